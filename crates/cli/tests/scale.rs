//! `fastmap bench scale`, small and real.

mod common;

use std::fs;

use common::{dir, fastmap, files_in, memory_flag};
use serde_json::Value;

#[test]
fn every_case_and_every_field_of_the_json() {
    let dir = dir();
    let memory = memory_flag("20MiB");
    let line = format!(
        "bench scale --dir . --threads 1,3,1 --size 32MiB --memory {memory} --seconds 0.05 --repeat 2 --json out.json"
    );
    let ran = fastmap(dir.path(), &line);
    ran.succeeded();
    assert_eq!(files_in(dir.path()), ["out.json"], "the temporary files are gone");
    let out: Value = serde_json::from_str(&fs::read_to_string(dir.path().join("out.json")).unwrap()).unwrap();
    assert_eq!((&out["experiment"], &out["file_bytes"]), (&"scale".into(), &(32 << 20).into()));
    assert!(out["verified"].as_str().unwrap().contains("stamp"));
    let text = |r: &Value, field: &str| r[field].as_str().unwrap().to_owned();
    let results = out["results"].as_array().unwrap();
    let mut cases: Vec<String> =
        results.iter().map(|r| format!("{} {} {}", text(r, "place"), text(r, "room"), text(r, "op"))).collect();
    cases.dedup();
    let expected = [
        "no-device out-of-memory read",
        "no-device in-memory read",
        "disk out-of-memory read",
        "disk out-of-memory write",
        "disk in-memory read",
        "disk in-memory write",
    ];
    assert_eq!(cases, expected);
    for r in results {
        let of = |field: &str| r[field].as_f64().unwrap();
        assert!(of("ops_per_s") > 0.0 && of("faults_per_op") > 0.0 && of("cpu_us_per_op") > 0.0, "{r}");
        let ours = text(r, "engine") == "fastmap";
        if r["trial"] == true {
            assert!(!ours && r["runs"].as_array().unwrap().len() == 1 && r.get("efficiency").is_none(), "{r}");
            continue;
        }
        assert_eq!(r["runs"].as_array().unwrap().len(), 2, "{r}");
        assert!(of("threads") != 1.0 || (of("efficiency") - 1.0).abs() < 1e-9, "{r}");
        assert_eq!(r.get("fastmap").is_some(), ours, "{r}");
        // Memory of four megabytes more or less: what comes back soonest is kept, and is no trap.
        assert!(!ours || of("faults_per_op") > 0.5, "operations are traps: {r}");
    }
    // Two trials, then two engines at two numbers of threads.
    assert_eq!(results.len(), 6 * (2 + 4));
    let figures = out["figures"].as_array().unwrap();
    assert!(figures.iter().filter(|f| text(f, "title").starts_with("Page faults, ")).count() == 6);
    assert!(figures.iter().filter(|f| text(f, "title").starts_with("Efficiency: ")).count() == 2);
    assert!(figures.iter().all(|f| (1..=8).contains(&f["series"].as_array().unwrap().len())));
    let headlines = out["headlines"].as_array().unwrap();
    assert!((2..=4).contains(&headlines.len()), "{headlines:?}");
    assert_eq!(headlines[0]["paper"]["ratio"], 3.7);
    assert!(headlines[0].get("why").is_some() || headlines[0]["ratio"]["median"].as_f64().unwrap() >= 3.7);
    assert!(ran.stdout.contains("random reads, out of memory: no device"), "{}", ran.stdout);
    if memory == "none" {
        assert!(ran.stdout.contains("NO LIMIT"));
    }
}

#[test]
fn what_makes_no_sense_is_refused() {
    let dir = dir();
    let refused = |flags: &str, parts: &[&str]| {
        fastmap(dir.path(), &format!("bench scale --dir . {flags}")).failed_with(2, parts);
    };
    refused("--engines pread", &["--engines", "no engine here: choose from mmap, mmap-random, fastmap"]);
    refused("--threads 0", &["--threads", "no number of threads"]);
    refused("--size 5000", &["--size", "no multiple of 4096", "8KiB"]);
    refused("--size 64KiB --threads 2", &["--size", "too small for 2 threads", "give at least 128KiB"]);
    refused("--memory 1MiB", &["--memory", "give at least"]);
    refused(
        "--size 1MiB --memory none --fast-dir /dev/shm",
        &["--fast-dir: /dev/shm", "nothing to cache", "fast-device up"],
    );
    assert!(files_in(dir.path()).is_empty());
    fastmap(dir.path(), "bench scale --dir nowhere --size 1MiB --memory none")
        .failed_with(1, &["temporary file in nowhere", "cannot make it"]);
}
