//! `fastmap bench async`, small and real.

mod common;

use std::fs;
use std::process::Command;
use std::thread::sleep;
use std::time::{Duration, Instant};

use common::{FASTMAP, check_told, dir, fastmap, files_in, finish, memory_flag, start_in};
use serde_json::Value;

/// Kernel mmap without advice reads so much around each store that it takes a minute for this.
const ENGINES: [&str; 4] = ["mmap-random", "fastmap", "fastmap-ar", "fastmap-stores"];

fn numbers(of: &Value) -> Vec<f64> {
    of.as_array().unwrap().iter().map(|v| v.as_f64().unwrap()).collect()
}

#[test]
fn every_work_and_engine_and_every_field_of_the_json() {
    let dir = dir();
    let memory = memory_flag("24MiB");
    let line = format!(
        "bench async --dir . --engines {} --threads 1,3 --size 32MiB --ops 2000 --memory {memory} --repeat 2 \
         --json out.json",
        ENGINES.join(",")
    );
    let ran = fastmap(dir.path(), &line);
    ran.succeeded();
    assert_eq!(files_in(dir.path()), ["out.json"], "the temporary file is gone");
    let out: Value = serde_json::from_str(&fs::read_to_string(dir.path().join("out.json")).unwrap()).unwrap();
    assert_eq!((&out["experiment"], &out["file_bytes"]), (&"async".into(), &(32 << 20).into()));
    check_told(&out);
    // Lines over threads, and latencies, for each work; store8 and line at one number of threads, records at both.
    let told: Vec<&str> = out["headlines"].as_array().unwrap().iter().map(|h| h["what"].as_str().unwrap()).collect();
    assert_eq!((told.len(), out["figures"].as_array().unwrap().len()), (4, 6), "{told:?}");
    let paper = |n: usize| out["headlines"][n].get("paper").map(|paper| paper["ratio"].as_f64().unwrap());
    assert!(
        told[2].starts_with("reads and updates of records, half and half, 1 thread: fastmap-ar to mmap"),
        "{told:?}"
    );
    assert!((paper(2).unwrap() - 1.439).abs() < 1e-3 && paper(1).is_none() && paper(3).is_none());
    if memory == "none" {
        assert!(ran.stdout.contains("NO LIMIT"));
    } else {
        assert_eq!(out["memory_limit_bytes"], 24 << 20);
    }
    let results = out["results"].as_array().unwrap();
    let said =
        |r: &Value| format!("{} {} {}", r["work"].as_str().unwrap(), r["threads"], r["engine"].as_str().unwrap());
    let mut expected = Vec::new();
    for work in ["store8", "line", "record"] {
        for threads in [1, 3] {
            // The AR protocol wants whole lines.
            let engines = ENGINES.iter().filter(|&&engine| (work, engine) != ("store8", "fastmap-ar"));
            expected.extend(engines.map(|engine| format!("{work} {threads} {engine}")));
        }
    }
    assert_eq!(results.iter().map(said).collect::<Vec<_>>(), expected);
    for r in results {
        let of = |field: &str| r[field].as_f64().unwrap();
        let (runs, flushed) = (numbers(&r["runs"]), numbers(&r["flushed_runs"]));
        let (seconds, flush) = (numbers(&r["seconds"]), numbers(&r["flush_seconds"]));
        assert_eq!((runs.len(), flushed.len(), seconds.len(), flush.len(), of("ops")), (2, 2, 2, 2, 2000.0));
        for at in 0..2 {
            assert!((runs[at] * seconds[at] - 2000.0).abs() < 0.5, "{r}");
            assert!((flushed[at] * (seconds[at] + flush[at]) - 2000.0).abs() < 0.5, "{r}");
        }
        assert!((of("ops_per_s") - (runs[0] + runs[1]) / 2.0).abs() < 1e-3 * of("ops_per_s"));
        assert!((of("flushed_ops_per_s") - (flushed[0] + flushed[1]) / 2.0).abs() < 1e-3 * of("flushed_ops_per_s"));
        let latency = |p: &str| r["latency_us"][p].as_f64().unwrap();
        assert!(0.0 < latency("p50") && latency("p50") <= latency("p99"));
        assert!(latency("p99") <= latency("p999") && latency("p999") <= latency("max"));
        assert!(of("cpu_us_per_op") >= 0.0 && of("peak_rss_bytes") > 0.0);
        assert!(memory == "none" || of("peak_rss_bytes_max") <= f64::from(24 << 20), "{r}");
        assert_eq!(r.get("pattern").is_some(), r["work"] == "record");
        let ours = r["engine"].as_str().unwrap().starts_with("fastmap");
        assert_eq!(r["fastmap"].as_array().map_or(0, Vec::len), if ours { 2 } else { 0 });
        if ours {
            let counter = |name: &str| r["fastmap"][0]["counters"][name].as_u64().unwrap();
            let written = counter("writeback_pages");
            assert!(r["work"] == "record" || written >= 2000, "what was stored to is written at the end: {written}");
            // Without io_uring all stores wait.
            let defers = counter("async_loads") > 0;
            assert!(!defers || r["engine"] != "fastmap", "{r}");
            assert_eq!(counter("kept_stores") > 0, defers && r["engine"] == "fastmap-stores", "{r}");
            assert_eq!(counter("partial_lines"), 0, "{r}");
        }
    }
    for heading in ["store8: 2000 stores of 8 bytes", "line: 2000 stores of a 64-byte line", "record: 2000 reads and"] {
        assert_eq!(ran.stdout.matches(&format!("\n{heading}")).count(), 2, "{}", ran.stdout);
    }
    assert_eq!(ran.stdout.matches("\nfastmap takes ").count(), 6, "{}", ran.stdout);
}

#[test]
fn kernel_mmap_without_advice_is_there_too() {
    let dir = dir();
    let line =
        "bench async --dir . --engines mmap,mmap,mmap-random --work line,line --size 1MiB --memory none --repeat 1";
    let ran = fastmap(dir.path(), line);
    ran.succeeded();
    let rows: Vec<&str> = ran.stdout.lines().filter_map(|line| line.split_whitespace().next()).collect();
    assert_eq!(rows[rows.len() - 3..], ["engine", "mmap", "mmap-random"], "once each: {}", ran.stdout);
}

#[test]
fn what_makes_no_sense_is_refused() {
    let dir = dir();
    let refused = |flags: &str, parts: &[&str]| {
        fastmap(dir.path(), &format!("bench async --dir . {flags}")).failed_with(2, parts);
    };
    refused("--work store9", &["--work", "no work: choose from store8, line, record"]);
    refused("--engines mmap-sequential", &["--engines", "no engine: choose from"]);
    refused("--pattern forward", &["--pattern", "no order of records: give zipf or random"]);
    refused("--size 5000", &["--size", "no multiple of 4096", "8KiB"]);
    refused("--size 1MiB --ops 300", &["--ops", "absent page of 256", "--work record"]);
    refused("--size 64KiB --threads 2", &["--size", "too small for 2 threads", "give at least 128KiB"]);
    refused("--memory 1MiB", &["--memory", "give at least"]);
    assert!(files_in(dir.path()).is_empty());
    fastmap(dir.path(), "bench async --dir nowhere --size 1MiB --memory none")
        .failed_with(1, &["temporary file in nowhere", "cannot make it"]);
}

#[test]
fn interrupted_it_leaves_nothing() {
    let dir = dir();
    let line = "bench async --dir . --work record --size 16MiB --memory none --ops 100000000 --json out.json";
    let child = start_in(dir.path(), Command::new(FASTMAP).args(line.split_whitespace()));
    let pid = child.id();
    let begun = Instant::now();
    let children = format!("/proc/{pid}/task/{pid}/children");
    while fs::read_to_string(&children).unwrap().is_empty() {
        assert!(begun.elapsed() < Duration::from_secs(60), "no worker appears");
        sleep(Duration::from_millis(10));
    }
    assert!(Command::new("kill").args(["-INT", &pid.to_string()]).status().unwrap().success());
    finish(child).failed_with(1, &["interrupted", "nothing was left behind"]);
    assert!(files_in(dir.path()).is_empty());
}
