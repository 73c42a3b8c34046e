//! `fastmap bench sync`, small and real: its JSON field by field, on a tmpfs and on a disk, and what it refuses.

mod common;

use std::fs;
use std::path::Path;

use common::{check_told, dir, fastmap, files_in};
use serde_json::Value;

fn json(path: &Path) -> Value {
    serde_json::from_str(&fs::read_to_string(path).unwrap()).unwrap()
}

/// A fresh directory on a tmpfs; None, with the reason printed, where there is none.
fn memory_dir() -> Option<tempfile::TempDir> {
    let is_tmpfs = || {
        let mounts = fs::read_to_string("/proc/self/mounts").ok()?;
        mounts.lines().any(|line| line.split(' ').nth(1) == Some("/dev/shm") && line.contains(" tmpfs ")).then_some(())
    };
    let made = is_tmpfs().and_then(|()| tempfile::tempdir_in("/dev/shm").ok());
    if made.is_none() {
        println!("skipped: no tmpfs to write to at /dev/shm");
    }
    made
}

/// Checks every field of a report, and that all works were done by `engines`; its results.
fn check_fields(out: &Value, engines: &[&str], stdout: &str) -> Vec<Value> {
    assert_eq!(out["experiment"], "sync");
    check_told(out);
    assert_eq!((out["headlines"].as_array().unwrap().len(), out["figures"].as_array().unwrap().len()), (3, 4));
    assert_eq!(out["memory_limit"], "none");
    assert_eq!(out["file_bytes"], 4 << 20);
    assert!(out["machine"]["cpus"].as_u64().unwrap() > 0);
    let results = out["results"].as_array().unwrap();
    let found: Vec<_> = results.iter().map(|r| (r["work"].as_str().unwrap(), r["engine"].as_str().unwrap())).collect();
    let expected: Vec<_> =
        ["page", "one", "all"].iter().flat_map(|work| engines.iter().map(|engine| (*work, *engine))).collect();
    assert_eq!(found, expected);
    for r in results {
        let of = |field: &str| r[field].as_f64().unwrap();
        let stored = if r["work"] == "all" { f64::from(4 << 20) } else { 4096.0 };
        assert!(of("ops_per_s") > 0.0 && (of("bytes_per_s") / of("ops_per_s") - stored).abs() < 1e-3);
        assert!(of("cpu_us_per_op") >= 0.0 && of("peak_rss_bytes") > 0.0);
        let latency = |p: &str| r["latency_us"][p].as_f64().unwrap();
        assert!(0.0 < latency("p50") && latency("p50") <= latency("p99"));
        assert!(latency("p99") <= latency("p999") && latency("p999") <= latency("max"));
        let runs: Vec<f64> = r["runs"].as_array().unwrap().iter().map(|v| v.as_f64().unwrap()).collect();
        assert!(runs.len() == 2 && r["seconds"].as_array().unwrap().iter().all(|s| s.as_f64().unwrap() >= 0.05));
        assert!((runs.iter().sum::<f64>() / 2.0 - of("ops_per_s")).abs() < 1e-3 * of("ops_per_s"));
        assert_eq!(r["map"].is_string(), r["engine"].as_str().unwrap().starts_with("fastmap"), "{r}");
        assert!(stdout.contains(r["engine"].as_str().unwrap()));
    }
    results.clone()
}

#[test]
fn on_a_tmpfs_every_engine_does_every_work() {
    let Some(memory) = memory_dir() else { return };
    let line = "bench sync --dir . --size 4MiB --seconds 0.05 --repeat 2 --json out.json";
    let ran = fastmap(memory.path(), line);
    ran.succeeded();
    assert_eq!(files_in(memory.path()), ["out.json"], "the temporary file is gone");
    assert!(ran.stdout.contains("stands in for persistent memory"), "{}", ran.stdout);
    let out = json(&memory.path().join("out.json"));
    for r in check_fields(&out, &["msync", "fastmap", "fastmap-persist", "persist"], &ran.stdout) {
        // What a flush goes over is known to the byte.
        let dirty = if r["work"] == "all" { 4 << 20 } else { 4096 };
        let expected = match (r["engine"].as_str().unwrap(), r["work"].as_str().unwrap()) {
            ("msync" | "fastmap", _) => 0,
            ("persist", "one") => 4 << 20,
            _ => dirty,
        };
        assert_eq!(r["flush_bytes"].as_f64().unwrap(), f64::from(expected), "{r}");
        assert!(r["map"].is_null() || r["map"] == "direct", "{r}");
    }
}

#[test]
fn on_a_disk_cached_maps_stand_beside_msync() {
    let dir = dir();
    let line = "bench sync --dir . --size 4MiB --seconds 0.05 --repeat 2 --json out.json";
    let ran = fastmap(dir.path(), line);
    ran.succeeded();
    assert!(!ran.stdout.contains("persistent memory"), "{}", ran.stdout);
    for r in check_fields(&json(&dir.path().join("out.json")), &["msync", "fastmap"], &ran.stdout) {
        if r["engine"] == "fastmap" && r["map"] == "cached" {
            let least = if r["work"] == "all" { 4 << 20 } else { 4096 };
            assert!(r["flush_bytes"].as_f64().unwrap() >= f64::from(least), "{r}");
        }
    }
    let line = "bench sync --dir . --size 4MiB --engines msync,persist";
    fastmap(dir.path(), line).failed_with(2, &["--engines", "persist makes nothing durable", "tmpfs"]);
}

#[test]
fn a_named_file_is_made_used_again_and_checked() {
    let dir = dir();
    let line = "bench sync --engines msync --works page --seconds 0.02 --repeat 1 --file ours";
    fastmap(dir.path(), &format!("{line} --size 1MiB")).succeeded();
    assert_eq!(files_in(dir.path()), ["ours"]);
    fastmap(dir.path(), line).succeeded();
    let path = dir.path().join("ours");
    assert_eq!(path.metadata().unwrap().len(), 1 << 20, "its own size is the default");
    fs::write(&path, vec![7; 1 << 20]).unwrap();
    fastmap(dir.path(), line).failed_with(1, &["ours", "other than a benchmark's pages"]);
}

#[test]
fn what_makes_no_sense_is_refused() {
    let dir = dir();
    fastmap(dir.path(), "bench sync --engines mmap").failed_with(2, &["--engines", "no engine", "fastmap-persist"]);
    fastmap(dir.path(), "bench sync --works two").failed_with(2, &["--works", "no work", "page, one, all"]);
    fastmap(dir.path(), "bench sync --size 5000").failed_with(2, &["--size", "no multiple of 4096", "8KiB"]);
    fastmap(dir.path(), "bench sync --size 8KiB").failed_with(2, &["--size", "too small", "64KiB"]);
    fastmap(dir.path(), "bench sync --dir nowhere").failed_with(1, &["nowhere", "cannot make it", "--dir"]);
    assert!(files_in(dir.path()).is_empty());
}
