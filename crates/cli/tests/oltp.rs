//! `fastmap bench oltp`, small and real. That a wrong row or a broken condition fails a run is tested where the conditions are
//! (`fastmap-workloads`).

mod common;

use std::fs;
use std::path::Path;
use std::process::Command;
use std::thread::sleep;
use std::time::{Duration, Instant};

use common::{FASTMAP, dir, fastmap, files_in, finish, is_root, memory_flag, start_in};
use serde_json::Value;

/// Builds the preload library with the heap, which lies beside the command then.
fn build_library() {
    let profile = Path::new(FASTMAP).parent().unwrap();
    let mut cargo = Command::new(env!("CARGO"));
    cargo.args(["build", "--quiet", "-p", "fastmap-preload-heap", "--target-dir"]).arg(profile.parent().unwrap());
    if profile.ends_with("release") {
        cargo.arg("--release");
    }
    assert!(cargo.status().expect("cargo").success(), "the library builds");
}

/// Loop devices over files in a directory.
fn loop_devices_in(dir: &Path) -> Vec<String> {
    let dir = dir.canonicalize().unwrap().display().to_string();
    let files = fs::read_dir("/sys/block").unwrap().flatten().map(|entry| entry.path().join("loop/backing_file"));
    files.filter_map(|file| fs::read_to_string(file).ok()).filter(|file| file.starts_with(&dir)).collect()
}

#[test]
fn engines_take_turns_and_every_field_of_the_json() {
    build_library();
    let dir = dir();
    let memory = memory_flag("48MiB");
    let line = format!(
        "bench oltp --dir . --file-systems here,here --engines mmap-random,fastmap,fastmap --warehouses 1 --seconds 0.3 \
         --repeat 2 --memory {memory} --json out.json"
    );
    let ran = fastmap(dir.path(), &line);
    ran.succeeded();
    assert_eq!(files_in(dir.path()), ["out.json"], "the heaps are gone");
    let out: Value = serde_json::from_str(&fs::read_to_string(dir.path().join("out.json")).unwrap()).unwrap();
    assert_eq!(out["experiment"], "oltp");
    assert!(out["verified"].as_str().unwrap().contains("conditions of consistency 1 to 10 and 12"));
    if memory == "none" {
        assert!(ran.stdout.contains("NO LIMIT"));
    } else {
        assert_eq!(out["memory_limit_bytes"], 48 << 20);
    }
    let results = out["results"].as_array().unwrap();
    let engines: Vec<_> = results.iter().map(|r| r["engine"].as_str().unwrap()).collect();
    assert_eq!(engines, ["mmap-random", "fastmap"], "once each");
    for r in results {
        let of = |field: &str| r[field].as_f64().unwrap();
        assert_eq!((&r["file_system"], &r["threads"]), (&"here".into(), &2.into()));
        assert_eq!((r["runs"].as_array().unwrap().len(), r["mean_us"].as_array().unwrap().len()), (2, 2));
        assert!(of("transactions_per_s") > 0.0 && of("new_orders_per_min") >= 0.0 && of("transactions") > 0.0);
        assert!(of("rows") > 500_000.0 && of("load_seconds") > 0.0 && of("check_seconds") > 0.0);
        assert!(memory == "none" || of("peak_rss_bytes_max") <= f64::from(48 << 20), "{r}");
        let kinds: Vec<_> = r["kinds"].as_array().unwrap().iter().map(|kind| kind["kind"].as_str().unwrap()).collect();
        assert_eq!(kinds, ["new-order", "payment", "order-status", "delivery", "stock-level"]);
        let latency = |p: &str| r["latency_us"][p].as_f64().unwrap();
        assert!(0.0 < latency("p50") && latency("p50") <= latency("p99") && latency("p999") <= latency("max"));
        let times: Vec<f64> = r["times"].as_object().unwrap().values().map(|part| part.as_f64().unwrap()).collect();
        assert!(times.len() == 5 && times.iter().all(|part| (0.0..1.2).contains(part)), "{r}");
        let is_kernels = r["engine"] == "mmap-random" && memory != "none";
        assert!(!is_kernels || of("major_faults") > 0.0, "the heap is a file that the kernel maps: {r}");
        assert!(r["engine"] != "fastmap" || of("major_faults") < 100.0, "the kernel does not page FastMap's heap: {r}");
    }
    let headlines = out["headlines"].as_array().unwrap();
    assert_eq!(headlines.len(), 2);
    assert_eq!(headlines[0]["paper"]["ratio"], 52.5);
    assert!(headlines[0]["ratio"]["median"].as_f64().unwrap() > 0.0);
    let titles: Vec<_> = out["figures"].as_array().unwrap().iter().map(|f| f["kind"].as_str().unwrap()).collect();
    assert_eq!(titles, ["bars", "bars", "bars", "stacked"]);
    assert_eq!(out["figures"][3]["series"].as_array().unwrap().len(), 5);
    assert!(ran.stdout.contains("\nhere, 2 threads\n"), "{}", ran.stdout);
}

#[test]
fn what_makes_no_sense_is_refused() {
    let dir = dir();
    let refused = |flags: &str, parts: &[&str]| {
        fastmap(dir.path(), &format!("bench oltp --dir . {flags}")).failed_with(2, parts);
    };
    refused("--file-systems zfs", &["--file-systems", "is no file system: choose from ext4, xfs, btrfs, here"]);
    refused("--engines mmap-sequential", &["--engines", "no engine: choose from mmap, mmap-random, fastmap"]);
    refused("--warehouses 0", &["--warehouses", "no number of warehouses: give 1 to 1000"]);
    refused("--memory 4MiB", &["--memory", "give at least"]);
    assert!(files_in(dir.path()).is_empty());
    fastmap(dir.path(), "bench oltp --file-systems here --dir nowhere --memory none --seconds 0.1")
        .failed_with(1, &["--heap", "no directory", "nowhere"]);
}

#[test]
fn interrupted_it_leaves_nothing() {
    build_library();
    let dir = dir();
    let kinds = if is_root() && Command::new("mkfs.ext4").arg("-V").output().is_ok() { "ext4" } else { "here" };
    if kinds == "here" {
        eprintln!("skipped: no loop devices to be left without root and mkfs.ext4");
    }
    let line = format!(
        "bench oltp --dir . --file-systems {kinds} --warehouses 1 --engines fastmap --threads 1 --memory none --seconds 10 \
         --json out.json"
    );
    let child = start_in(dir.path(), Command::new(FASTMAP).args(line.split_whitespace()));
    let pid = child.id();
    let begun = Instant::now();
    let children = format!("/proc/{pid}/task/{pid}/children");
    // mkfs is a child as well.
    let works = || {
        let children = fs::read_to_string(&children).unwrap();
        let of_worker = |child: &str| fs::read_to_string(format!("/proc/{child}/cmdline")).unwrap_or_default();
        children.split_whitespace().any(|child| of_worker(child).contains("worker"))
    };
    while !works() {
        assert!(begun.elapsed() < Duration::from_secs(120), "no worker appears");
        sleep(Duration::from_millis(10));
    }
    assert_eq!(loop_devices_in(dir.path()).len(), usize::from(kinds == "ext4"));
    assert!(Command::new("kill").args(["-INT", &pid.to_string()]).status().unwrap().success());
    finish(child).failed_with(1, &["interrupted", "nothing was left behind"]);
    assert!(files_in(dir.path()).is_empty());
    let begun = Instant::now();
    while !loop_devices_in(dir.path()).is_empty() {
        assert!(begun.elapsed() < Duration::from_secs(20), "the loop device stays");
        sleep(Duration::from_millis(10));
    }
}
