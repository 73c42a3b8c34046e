//! `fastmap bench micro`, small and real: its JSON field by field, its files, and what it does when pages are wrong or
//! somebody stops it.

use std::fs::{self, File};
use std::io::{Read, Seek, SeekFrom, Write};
use std::path::Path;
use std::process::Command;
use std::thread::sleep;
use std::time::{Duration, Instant};

use crate::prompt::{cgroups_of, dir, fastmap, files_in, finish, full, start_in};
use crate::{FASTMAP, check_told, memory_flag};
use serde_json::Value;

fn json(path: &Path) -> Value {
    serde_json::from_str(&fs::read_to_string(path).unwrap()).unwrap()
}

/// Runs a load through engines and checks every field of what it writes.
fn check_every_field(engines: &str, pattern: &str, op: &str, threads: u64) -> Value {
    let dir = dir();
    let memory = memory_flag("24MiB");
    let line = format!(
        "micro --storage here --engines {engines} --pattern {pattern} --op {op} --threads {threads} --size 16MiB \
         --memory {memory} --seconds 0.2 --repeat 2 --json out.json"
    );
    let ran = fastmap(dir.path(), &line);
    ran.succeeded();
    assert_eq!(files_in(dir.path()), ["out.json"], "the temporary file is gone");
    let out = json(&dir.path().join("out.json"));
    check_told(&out);
    let machine = &out["machine"];
    assert!(machine["cpus"].as_u64().unwrap() > 0 && machine["memory_bytes"].as_u64().unwrap() > 1 << 20);
    for field in ["model", "kernel", "file_system", "device"] {
        assert!(!machine[field].as_str().unwrap().is_empty(), "{field}");
    }
    if memory == "none" {
        assert_eq!(out["memory_limit"], "none");
        assert!(ran.stdout.contains("NO LIMIT"));
    } else {
        assert!(["cgroup-v1", "cgroup-v2"].contains(&out["memory_limit"].as_str().unwrap()));
        assert_eq!(out["memory_limit_bytes"], 24 << 20);
    }
    let results = out["results"].as_array().unwrap();
    assert_eq!(results.iter().map(|r| r["engine"].as_str().unwrap()).collect::<Vec<_>>().join(","), engines);
    for r in results {
        assert_eq!(
            (r["pattern"].as_str(), r["op"].as_str(), r["threads"].as_u64()),
            (Some(pattern), Some(op), Some(threads))
        );
        let ops = r["ops_per_s"].as_f64().unwrap();
        assert!(ops > 0.0 && (r["bytes_per_s"].as_f64().unwrap() / ops - 4096.0).abs() < 0.1, "of six digits");
        let cpu = r["cpu_us_per_op"].as_f64().unwrap();
        assert!(cpu >= 0.0 && (r["cpu_ns_per_byte"].as_f64().unwrap() * 4.096 - cpu).abs() < 1e-6 + cpu * 1e-4);
        let latency = |p: &str| r["latency_us"][p].as_f64().unwrap();
        assert!(0.0 < latency("p50") && latency("p50") <= latency("p99"));
        assert!(latency("p99") <= latency("p999") && latency("p999") <= latency("max"));
        let runs: Vec<f64> = r["runs"].as_array().unwrap().iter().map(|v| v.as_f64().unwrap()).collect();
        assert_eq!(runs.len(), 2);
        assert!((runs.iter().sum::<f64>() / 2.0 - ops).abs() < 1e-3 * ops, "the median of two is their mean");
        let ours = r["engine"].as_str().unwrap().starts_with("fastmap");
        assert_eq!(r.get("advice").is_some(), ours);
        for (trial, run) in r["trials"].as_array().unwrap().iter().zip(runs) {
            assert_eq!(trial["ops_per_s"].as_f64(), Some(run), "every trial is there as it was measured");
            let peak = trial["peak_rss_bytes"].as_u64().unwrap();
            assert!(peak > 0 && (memory == "none" || peak <= 24 << 20), "{} used {peak} bytes", r["engine"]);
            assert!(trial["window_ns"][0].as_u64() < trial["window_ns"][1].as_u64());
            assert_eq!(trial["fastmap"]["counters"].is_object(), ours);
            assert_eq!(trial["writeback"].is_object(), ours && op != "read", "{trial}");
            if ours {
                assert!((0.0..=1.0).contains(&trial["hits"]["hit_ratio"].as_f64().unwrap()), "{trial}");
                assert!(trial["fastmap"]["capacity_bytes"].as_u64().unwrap() >= 65536);
            }
            check_device(trial, pattern, &dir);
        }
    }
    out
}

/// Where the file is on a block device, its requests are there.
fn check_device(trial: &Value, pattern: &str, dir: &tempfile::TempDir) {
    use std::os::unix::fs::MetadataExt;
    let number = dir.path().metadata().unwrap().dev();
    let stat = format!("/sys/dev/block/{}:{}/stat", libc::major(number), libc::minor(number));
    let device = &trial["device"];
    assert_eq!(device.is_object(), Path::new(&stat).exists(), "{trial}");
    if device.is_object() && pattern == "fill" {
        assert!(device["write_bytes"].as_f64().unwrap() >= f64::from(16 << 20), "{device}");
        assert!(device["average_write_bytes"].as_f64().unwrap() >= 512.0);
    }
}

/// Small and real: two engines, a load that reads and writes.
#[test]
fn fastmap_beside_mmap() {
    let out = check_every_field("mmap,fastmap", "zipf", "rmw", 2);
    let misses = |trial: &Value| trial["fastmap"]["counters"]["misses"].as_u64().unwrap();
    assert!(out["results"][1]["trials"].as_array().unwrap().iter().all(|trial| misses(trial) > 0));
}

#[test]
fn every_engine_does_every_load() {
    if !full("bench micro with every engine, pattern and op") {
        return;
    }
    check_every_field("mmap,pread,direct", "zipf", "read", 1);
    check_every_field("mmap-sequential,direct", "forward", "read", 2);
    check_every_field("direct", "backward", "read", 1);
    check_every_field("mmap-random,mmap-sequential,pread,direct", "zipf", "write", 2);
    check_every_field("mmap,direct", "zipf", "rmw", 2);
    for (op, threads) in [("read", 1), ("read", 2), ("write", 2)] {
        check_every_field("mmap,fastmap", "zipf", op, threads);
    }
    for (pattern, op, threads) in
        [("random", "read", 1), ("zipf", "read", 2), ("random", "write", 2), ("zipf", "rmw", 2)]
    {
        let out = check_every_field("fastmap-pin,fastmap-prefetch", pattern, op, threads);
        let prefetched = &out["results"][1]["trials"][0]["fastmap"]["counters"]["prefetched_pages"];
        assert!(prefetched.as_u64().unwrap() > 0, "{out}");
    }
    for (pattern, op) in
        [("random", "read"), ("forward", "read"), ("backward", "rmw"), ("stride", "write"), ("order", "read")]
    {
        check_every_field("mmap-willneed,mmap-fadvise,mmap-populate,fastmap-prefetch", pattern, op, 2);
    }
    let engines = "mmap,mmap-random,mmap-sequential,mmap-willneed,mmap-fadvise,mmap-populate,fastmap,fastmap-pin,fastmap-prefetch,steered,pread,direct";
    let out = check_every_field(engines, "fill", "write", 3);
    for trial in out["results"].as_array().unwrap().iter().flat_map(|r| r["trials"].as_array().unwrap()) {
        assert_eq!(trial["ops"], 4096, "{trial}");
    }
}

#[test]
fn a_fill_leaves_a_file_that_other_loads_take_and_makes_it_as_long_as_asked() {
    if !full("files filled by several engines") {
        return;
    }
    let dir = dir();
    let run = |flags: &str| {
        let line = format!("micro --memory none --seconds 0.05 --repeat 1 --file ours {flags}");
        let ran = fastmap(dir.path(), &line);
        ran.succeeded();
        (dir.path().join("ours").metadata().unwrap().len(), ran.stdout)
    };
    let (len, stdout) = run("--engines mmap,fastmap --pattern fill --op write --size 2MiB");
    assert_eq!(len, 2 << 20);
    assert!(stdout.contains("a fresh file filled and flushed, 1 thread"), "{stdout}");
    assert_eq!(run("--engines fastmap,direct --op rmw").0, 2 << 20);
    assert_eq!(run("--engines pread --pattern fill --op write").0, 2 << 20, "its own size is the default");
    assert_eq!(run("--engines direct --pattern fill --op write --size 1MiB").0, 1 << 20);
    assert_eq!(run("--engines mmap --pattern forward").0, 1 << 20);
}

#[test]
fn a_fill_interrupted_leaves_an_empty_file_that_is_used_again() {
    let dir = dir();
    let line = "micro --engines mmap-random --memory none --pattern fill --op write --repeat 10000 \
                --size 64MiB --file ours";
    let child = start_in(dir.path(), Command::new(FASTMAP).args(line.split_whitespace()));
    let pid = child.id();
    let begun = Instant::now();
    while worker_of(pid).is_none() {
        assert!(begun.elapsed() < Duration::from_secs(60), "no worker appears");
        sleep(Duration::from_millis(1));
    }
    assert!(Command::new("kill").args(["-INT", &pid.to_string()]).status().unwrap().success());
    finish(child).failed_with(1, &["interrupted"]);
    let len = dir.path().join("ours").metadata().unwrap().len();
    assert!(len == 0 || len == 64 << 20, "empty, or filled just before the signal: {len}");
    let line = "micro --engines mmap --memory none --seconds 0.05 --repeat 1 --size 64MiB --file ours";
    fastmap(dir.path(), line).succeeded();
}

#[test]
fn advice_is_taken_by_the_fastmap_engines_and_told() {
    if !full("bench micro with every advice") {
        return;
    }
    let dir = dir();
    for (advice, pattern) in [("sequential", "forward"), ("backward", "backward"), ("random", "stride")] {
        let line = format!(
            "micro --engines mmap,fastmap,fastmap-pin,fastmap-prefetch --advice {advice} --pattern {pattern} \
             --size 16MiB --memory none --seconds 0.1 --repeat 1 --json out.json"
        );
        let ran = fastmap(dir.path(), &line);
        ran.succeeded();
        assert!(ran.stdout.contains(&format!("fastmap advised {advice}, 1 thread")), "{}", ran.stdout);
        let out = json(&dir.path().join("out.json"));
        assert!(out["results"][0].get("advice").is_none());
        assert!(out["results"].as_array().unwrap()[1..].iter().all(|r| r["advice"] == advice), "{out}");
    }
}

#[test]
fn a_named_file_is_made_used_again_and_extended() {
    if !full("a file that is used again") {
        return;
    }
    let dir = dir();
    let path = dir.path().join("ours");
    let run = |flags: &str| {
        let line = format!("micro --engines mmap --memory none --seconds 0.05 --repeat 1 --file ours {flags}");
        fastmap(dir.path(), &line).succeeded();
        path.metadata().unwrap().len()
    };
    assert_eq!(run("--size 1MiB --op write"), 1 << 20);
    assert_eq!(run("--op rmw"), 1 << 20, "its own size is the default");
    assert_eq!(run("--op write --size 512KiB"), 1 << 20, "a part is used, nothing is cut off");
    assert_eq!(run("--size 2MiB --op rmw --threads 2 --pattern forward"), 2 << 20);
    assert_eq!(run("--pattern stride"), 2 << 20);
    assert_eq!(files_in(dir.path()), ["ours"]);
}

/// Makes a file of 16 MiB and flips bits of the byte at `offset`.
fn damaged(dir: &Path, offset: u64) {
    let line = "micro --engines pread --memory none --seconds 0.05 --repeat 1 --file ours --size 16MiB";
    fastmap(dir, line).succeeded();
    let mut file = File::options().read(true).write(true).open(dir.join("ours")).unwrap();
    let mut byte = [0];
    file.seek(SeekFrom::Start(offset)).unwrap();
    file.read_exact(&mut byte).unwrap();
    file.seek(SeekFrom::Start(offset)).unwrap();
    file.write_all(&[byte[0] ^ 1]).unwrap();
}

#[test]
fn a_wrong_byte_fails_the_run_and_is_located() {
    for engine in ["mmap", "fastmap"] {
        let dir = dir();
        // Page 2000 is not among those looked at before the run, so that the engine's own check is what finds it.
        damaged(dir.path(), 2000 * 4096 + 3);
        let line =
            format!("micro --engines {engine} --pattern forward --memory none --seconds 5 --repeat 1 --file ours");
        fastmap(dir.path(), &line).failed_with(1, &[engine, "page 2000 at offset 8192000: holds", "remove the file"]);
    }
}

#[test]
fn a_wrong_byte_that_no_operation_looks_at_is_found_after_a_write_run() {
    let dir = dir();
    damaged(dir.path(), 2000 * 4096 + 1001);
    let line = "micro --engines mmap --op write --memory none --seconds 0.1 --repeat 1 --file ours";
    fastmap(dir.path(), line).failed_with(1, &["mmap", "page 2000 at offset 8193000: holds"]);
}

#[test]
fn damage_to_the_pages_looked_at_beforehand_is_told_as_damage() {
    let dir = dir();
    damaged(dir.path(), 100);
    let line = "micro --engines mmap --memory none --seconds 5 --repeat 1 --file ours";
    fastmap(dir.path(), line).failed_with(1, &["page 0 at offset 96: holds", "the file is damaged"]);
}

#[test]
fn terminated_in_the_middle_it_leaves_nothing() {
    for signal in ["TERM", "INT"] {
        let dir = dir();
        let memory = memory_flag("64MiB");
        let line = format!("micro --engines pread --size 16MiB --memory {memory} --seconds 60 --json out.json");
        let child = start_in(dir.path(), Command::new(FASTMAP).args(line.split_whitespace()));
        let pid = child.id();
        let begun = Instant::now();
        while worker_of(pid).is_none() {
            assert!(begun.elapsed() < Duration::from_secs(60), "no worker appears");
            sleep(Duration::from_millis(10));
        }
        assert!(Command::new("kill").args([&format!("-{signal}"), &pid.to_string()]).status().unwrap().success());
        let ran = finish(child);
        ran.failed_with(1, &["interrupted", "nothing was left behind"]);
        assert!(files_in(dir.path()).is_empty());
    }
}

#[test]
fn killed_it_takes_its_worker_along_and_the_next_one_removes_its_cgroup() {
    if !full("a bench that is killed") {
        return;
    }
    let dir = dir();
    let memory = memory_flag("64MiB");
    let line = format!("micro --storage here --engines pread --size 16MiB --memory {memory} --seconds 60");
    let mut child = start_in(dir.path(), Command::new(FASTMAP).args(line.split_whitespace()));
    let begun = Instant::now();
    let worker = loop {
        // In its cgroup and at work: it has asked to die with its parent by then.
        match worker_of(child.id()).filter(|_| begun.elapsed() > Duration::from_secs(2)) {
            Some(worker) => break worker,
            None => sleep(Duration::from_millis(10)),
        }
        assert!(begun.elapsed() < Duration::from_secs(60), "no worker appears");
    };
    child.kill().unwrap();
    child.wait().unwrap();
    let running = || fs::read_to_string(format!("/proc/{worker}/stat")).is_ok_and(|s| !s.contains(") Z "));
    let killed = Instant::now();
    while running() {
        assert!(killed.elapsed() < Duration::from_secs(10), "the worker lives on");
        sleep(Duration::from_millis(10));
    }
    assert!(files_in(dir.path()).is_empty());
    fastmap(dir.path(), &format!("micro --engines pread --size 1MiB --memory {memory} --seconds 0.01")).succeeded();
    assert!(cgroups_of(child.id()).is_empty());
}

/// The process that the bench `parent` has started, if it runs.
fn worker_of(parent: u32) -> Option<u32> {
    let children = fs::read_to_string(format!("/proc/{parent}/task/{parent}/children")).ok()?;
    children.split_whitespace().next()?.parse().ok()
}
