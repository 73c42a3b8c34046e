//! `fastmap bench micro`, small and real: its JSON field by field, its files, and what it does when pages are wrong or
//! somebody stops it.

mod common;

use std::fs::{self, File};
use std::io::{Read, Seek, SeekFrom, Write};
use std::path::Path;
use std::process::Command;
use std::thread::sleep;
use std::time::{Duration, Instant};

use common::{FASTMAP, cgroups_of, dir, fastmap, files_in, finish, memory_flag, start_in};
use serde_json::Value;

fn json(path: &Path) -> Value {
    serde_json::from_str(&fs::read_to_string(path).unwrap()).unwrap()
}

/// Runs engines on a temporary file of 16 MiB and checks every field of the JSON.
fn check_every_field(engines: &str, pattern: &str, op: &str, threads: u64) -> Value {
    let dir = dir();
    let memory = memory_flag("24MiB");
    let line = format!(
        "bench micro --engines {engines} --pattern {pattern} --op {op} --threads {threads} --size 16MiB \
         --memory {memory} --seconds 0.2 --repeat 2 --json out.json"
    );
    let ran = fastmap(dir.path(), &line);
    ran.succeeded();
    assert_eq!(files_in(dir.path()), ["out.json"], "the temporary file is gone");
    let out = json(&dir.path().join("out.json"));

    assert_eq!(out["experiment"], "micro");
    let machine = &out["machine"];
    assert!(machine["cpus"].as_u64().unwrap() > 0);
    assert!(machine["memory_bytes"].as_u64().unwrap() > 1 << 20);
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
    assert_eq!(out["file_bytes"], 16 << 20);

    let results = out["results"].as_array().unwrap();
    assert_eq!(results.iter().map(|r| r["engine"].as_str().unwrap()).collect::<Vec<_>>().join(","), engines);
    for r in results {
        assert_eq!((r["pattern"].as_str(), r["op"].as_str()), (Some(pattern), Some(op)));
        assert_eq!(r["threads"], threads);
        let ops = r["ops_per_s"].as_f64().unwrap();
        assert!(ops > 0.0);
        assert!((r["bytes_per_s"].as_f64().unwrap() / ops - 4096.0).abs() < 1e-6);
        let cpu = r["cpu_us_per_op"].as_f64().unwrap();
        assert!(cpu >= 0.0 && (r["cpu_ns_per_byte"].as_f64().unwrap() * 4.096 - cpu).abs() < 1e-6 + cpu * 1e-6);
        let latency = |p: &str| r["latency_us"][p].as_f64().unwrap();
        assert!(0.0 < latency("p50") && latency("p50") <= latency("p99"));
        assert!(latency("p99") <= latency("p999") && latency("p999") <= latency("max"));
        let runs: Vec<f64> = r["runs"].as_array().unwrap().iter().map(|v| v.as_f64().unwrap()).collect();
        assert_eq!(runs.len(), 2);
        assert!((runs.iter().sum::<f64>() / 2.0 - ops).abs() < 1e-3 * ops, "the median of two is their mean");
        let peak = r["peak_rss_bytes_max"].as_u64().unwrap();
        assert!(peak > 0 && r["peak_rss_bytes"].as_u64().unwrap() <= peak);
        assert!(memory == "none" || peak <= 24 << 20, "{} used {peak} bytes", r["engine"]);
        assert!(ran.stdout.contains(r["engine"].as_str().unwrap()));
        check_device(r, pattern, &dir);
        let writeback = &r["writeback"];
        let ours = r["engine"].as_str().unwrap().starts_with("fastmap");
        assert_eq!(writeback.is_object(), ours && op != "read", "{r}");
        check_hits(r, ours);
        assert_eq!(ran.stdout.contains(&format!("{}: ", r["engine"].as_str().unwrap())), ours, "{}", ran.stdout);
        if writeback.is_object() {
            let of = |field: &str| writeback[field].as_f64().unwrap();
            assert!((of("bytes") - of("pages") * 4096.0).abs() < 4096.0);
            assert!(of("pages") >= of("runs") && (of("runs") == 0.0 || of("merge_ratio") > 0.0), "{writeback}");
            assert!(of("runs") == 0.0 || of("queue_depth") >= 0.9, "{writeback}");
            assert!(ran.stdout.contains("pages a run"));
        }
    }
    out
}

/// Hits, readahead and advice are there if and only if the engine is ours.
fn check_hits(result: &Value, ours: bool) {
    for field in ["misses", "hit_ratio", "readahead", "advice"] {
        assert_eq!(result.get(field).is_some(), ours, "{field}: {result}");
    }
    if ours {
        assert!((0.0..=1.0).contains(&result["hit_ratio"].as_f64().unwrap()), "{result}");
        for field in ["pages", "used", "wasted", "chunks", "streams", "prefetched"] {
            assert!(result["readahead"][field].is_u64(), "{field}: {result}");
        }
        assert_eq!(result["advice"], "normal");
    }
}

/// What the device did is told if and only if there is one, and for a fill it wrote the whole file.
fn check_device(result: &Value, pattern: &str, dir: &tempfile::TempDir) {
    use std::os::unix::fs::MetadataExt;
    let number = dir.path().metadata().unwrap().dev();
    let stat = format!("/sys/dev/block/{}:{}/stat", libc::major(number), libc::minor(number));
    let device = &result["device"];
    assert_eq!(device.is_object(), Path::new(&stat).exists(), "{result}");
    if device.is_object() {
        let of = |field: &str| device[field].as_f64().unwrap();
        assert!(of("reads") >= 0.0 && of("read_bytes") >= 0.0 && of("average_queue_depth") >= 0.0);
        if pattern == "fill" {
            assert!(of("write_bytes") >= f64::from(16 << 20) && of("writes") > 0.0, "{device}");
            assert!(of("average_write_bytes") >= 512.0);
        }
    }
}

#[test]
fn reads_through_the_kernel() {
    check_every_field("mmap,pread,direct", "zipf", "read", 1);
    check_every_field("mmap-sequential,direct", "forward", "read", 2);
    check_every_field("direct", "backward", "read", 1);
}

#[test]
fn writes_and_read_modify_writes_through_the_kernel() {
    check_every_field("mmap-random,mmap-sequential,pread,direct", "zipf", "write", 2);
    check_every_field("mmap,direct", "zipf", "rmw", 2);
}

#[test]
fn every_engine_fills_a_file() {
    let engines = "mmap,mmap-random,mmap-sequential,fastmap,fastmap-pin,fastmap-prefetch,pread,direct";
    let out = check_every_field(engines, "fill", "write", 3);
    for r in out["results"].as_array().unwrap() {
        // The work bounds a fill, not the time: all pages, in whatever the run took.
        for (rate, seconds) in r["runs"].as_array().unwrap().iter().zip(r["seconds"].as_array().unwrap()) {
            assert!((rate.as_f64().unwrap() * seconds.as_f64().unwrap() - 4096.0).abs() < 0.5, "{r}");
        }
    }
    for ours in &out["results"].as_array().unwrap()[3..6] {
        assert!(ours["writeback"]["pages"].as_u64().unwrap() >= 4096);
    }
}

#[test]
fn a_fill_leaves_a_file_that_other_loads_take_and_makes_it_as_long_as_asked() {
    let dir = dir();
    let run = |flags: &str| {
        let line = format!("bench micro --memory none --seconds 0.05 --repeat 1 --file ours {flags}");
        let ran = fastmap(dir.path(), &line);
        ran.succeeded();
        (dir.path().join("ours").metadata().unwrap().len(), ran.stdout)
    };
    let (len, stdout) = run("--engines mmap,fastmap --pattern fill --op write --size 2MiB");
    assert_eq!(len, 2 << 20);
    assert!(stdout.starts_with("a fresh file filled and flushed, 1 thread, 2MiB file"), "{stdout}");
    assert_eq!(run("--engines fastmap,direct --op rmw").0, 2 << 20);
    assert_eq!(run("--engines pread --pattern fill --op write").0, 2 << 20, "its own size is the default");
    assert_eq!(run("--engines direct --pattern fill --op write --size 1MiB").0, 1 << 20);
    assert_eq!(run("--engines mmap --pattern forward").0, 1 << 20);
}

#[test]
fn a_fill_interrupted_leaves_an_empty_file_that_is_used_again() {
    let dir = dir();
    let line = "bench micro --engines mmap-random --memory none --pattern fill --op write --repeat 10000 \
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
    let line = "bench micro --engines mmap --memory none --seconds 0.05 --repeat 1 --size 64MiB --file ours";
    fastmap(dir.path(), line).succeeded();
}

#[test]
fn fastmap_beside_mmap() {
    for (op, threads) in [("read", 1), ("read", 2), ("write", 2), ("rmw", 2)] {
        let out = check_every_field("mmap,fastmap", "zipf", op, threads);
        let ours = &out["results"][1]["fastmap"];
        assert_eq!(ours.as_array().unwrap().len(), 2, "one set of counters a repetition");
        assert!(ours[0]["counters"]["misses"].as_u64().unwrap() > 0);
        assert!(ours[0]["capacity_bytes"].as_u64().unwrap() >= 65536);
        assert!(ours[0]["direct_io"].is_boolean());
        assert!(out["results"][0].get("fastmap").is_none());
    }
}

#[test]
fn pinned_and_prefetched() {
    for (pattern, op, threads) in
        [("random", "read", 1), ("zipf", "read", 2), ("random", "write", 2), ("zipf", "rmw", 2)]
    {
        let out = check_every_field("fastmap-pin,fastmap-prefetch", pattern, op, threads);
        let [pinned, prefetched] = out["results"].as_array().unwrap().as_slice() else { panic!("{out}") };
        let counter = |of: &Value, name: &str| of["fastmap"][0]["counters"][name].as_u64().unwrap();

        assert!(pinned["readahead"]["prefetched"] == 0, "{out}");
        assert!(counter(prefetched, "prefetched_pages") > 0, "{out}");
    }
}

#[test]
fn advice_is_taken_by_the_fastmap_engines_and_told() {
    let dir = dir();
    for (advice, pattern) in [("sequential", "forward"), ("backward", "backward"), ("random", "stride")] {
        let line = format!(
            "bench micro --engines mmap,fastmap,fastmap-pin,fastmap-prefetch --advice {advice} --pattern {pattern} \
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
fn the_closing_lines_say_the_ratio() {
    let dir = dir();
    let line = "bench micro --engines mmap,fastmap,fastmap-pin --size 16MiB --memory none --seconds 0.1 --repeat 1";
    let ran = fastmap(dir.path(), line);
    ran.succeeded();
    let lines: Vec<&str> = ran.stdout.trim_end().lines().collect();
    for (line, engine) in lines[lines.len() - 2..].iter().zip(["fastmap", "fastmap-pin"]) {
        assert!(line.starts_with(&format!("{engine} is ")) && line.ends_with("x the best mmap (mmap)"), "{line}");
    }
}

#[test]
fn a_named_file_is_made_used_again_and_extended() {
    let dir = dir();
    let path = dir.path().join("ours");
    let run = |flags: &str| {
        let line = format!("bench micro --engines mmap --memory none --seconds 0.05 --repeat 1 --file ours {flags}");
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
    let line = "bench micro --engines pread --memory none --seconds 0.05 --repeat 1 --file ours --size 16MiB";
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
    for engine in ["mmap", "pread", "direct", "fastmap", "fastmap-pin", "fastmap-prefetch"] {
        let dir = dir();
        // Page 2000 is not among those looked at before the run, so that the engine's own check is what finds it.
        damaged(dir.path(), 2000 * 4096 + 3);
        let line = format!(
            "bench micro --engines {engine} --pattern forward --memory none --seconds 5 --repeat 1 --file ours"
        );
        fastmap(dir.path(), &line).failed_with(1, &[engine, "page 2000 at offset 8192000: holds", "remove the file"]);
    }
}

#[test]
fn a_wrong_byte_that_no_operation_looks_at_is_found_after_a_write_run() {
    let dir = dir();
    damaged(dir.path(), 2000 * 4096 + 1001);
    let line = "bench micro --engines mmap --op write --memory none --seconds 0.1 --repeat 1 --file ours";
    fastmap(dir.path(), line).failed_with(1, &["mmap", "page 2000 at offset 8193000: holds"]);
}

#[test]
fn damage_to_the_pages_looked_at_beforehand_is_told_as_damage() {
    let dir = dir();
    damaged(dir.path(), 100);
    let line = "bench micro --engines mmap --memory none --seconds 5 --repeat 1 --file ours";
    fastmap(dir.path(), line).failed_with(1, &["page 0 at offset 96: holds", "the file is damaged"]);
}

#[test]
fn terminated_in_the_middle_it_leaves_nothing() {
    for signal in ["TERM", "INT"] {
        let dir = dir();
        let memory = memory_flag("64MiB");
        let line = format!("bench micro --engines pread --size 16MiB --memory {memory} --seconds 60 --json out.json");
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
    let dir = dir();
    let memory = memory_flag("64MiB");
    let line = format!("bench micro --engines pread --size 16MiB --memory {memory} --seconds 60");
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
    fastmap(dir.path(), &format!("bench micro --engines pread --size 1MiB --memory {memory} --seconds 0.01"))
        .succeeded();
    assert!(cgroups_of(child.id()).is_empty());
}

/// The process that the bench `parent` has started, if it runs.
fn worker_of(parent: u32) -> Option<u32> {
    let children = fs::read_to_string(format!("/proc/{parent}/task/{parent}/children")).ok()?;
    children.split_whitespace().next()?.parse().ok()
}
