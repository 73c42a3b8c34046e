//! `fastmap bench breakdown`, small and real.

mod common;

use std::fs;

use common::{dir, fastmap, files_in, memory_flag};
use serde_json::Value;

fn run(flags: &str, engines: &str) -> Value {
    let dir = dir();
    let memory = memory_flag("20MiB");
    let line = format!(
        "bench breakdown --dir . --threads 2 --engines {engines} --size 32MiB --memory {memory} --seconds 0.05 --repeat 1 --json out.json {flags}"
    );
    let ran = fastmap(dir.path(), &line);
    ran.succeeded();
    assert_eq!(files_in(dir.path()), ["out.json"], "the temporary files are gone");
    assert!(ran.stdout.contains("threads: waiting"), "{}", ran.stdout);
    let out: Value = serde_json::from_str(&fs::read_to_string(dir.path().join("out.json")).unwrap()).unwrap();
    assert_eq!(out["experiment"], "breakdown");
    let results = out["results"].as_array().unwrap();
    assert_eq!(results.len(), 6 * engines.split(',').count(), "of each of six cases");
    for r in results {
        let threads = &r["threads_us_per_op"];
        let part = |name: &str| threads[name].as_f64().unwrap();
        let sum = ["user", "system", "queued", "waiting"].map(part).iter().sum::<f64>();
        let an_op = 2e6 / r["ops_per_s"].as_f64().unwrap();
        assert!((sum - an_op).abs() < 0.2 * an_op, "all of two threads' time, {an_op} us: {r}");
        assert_eq!(r.get("fastmap").is_some(), r["engine"] == "fastmap");
    }
    out
}

#[test]
fn sampled_where_it_is_allowed() {
    let out = run("", "fastmap");
    let results = out["results"].as_array().unwrap();
    if results[0]["samples"] == 0 {
        eprintln!("skipped: {}", out["notes"][0]);
        return;
    }
    for r in results {
        let parts = r["processors_us_per_op"].as_object().unwrap();
        let sum: f64 = parts.values().map(|us| us.as_f64().unwrap()).sum();
        assert!(sum > 0.0 && parts.keys().all(|part| part != "unknown"), "{r}");
    }
    let titles: Vec<&str> = out["figures"].as_array().unwrap().iter().map(|f| f["title"].as_str().unwrap()).collect();
    for kind in ["Shares of processor time", "Processor time an operation", "Time of the faulting threads"] {
        assert_eq!(titles.iter().filter(|title| title.starts_with(kind)).count(), 6, "{titles:?}");
    }
}

#[test]
fn coarser_without_perf_and_it_says_so() {
    let out = run("--no-perf", "mmap-random,fastmap");
    assert!(out["notes"][0].as_str().unwrap().starts_with("Not sampled: --no-perf was given"));
    for r in out["results"].as_array().unwrap() {
        assert!(r["samples"] == 0 && r.get("processors_us_per_op").is_none(), "{r}");
        assert!(r["fault_runs"][0].as_f64().unwrap() > 0.0, "{r}");
    }
    let figures = out["figures"].as_array().unwrap();
    assert_eq!(figures.len(), 6);
    assert!(figures.iter().all(|f| f["kind"] == "stacked"));
}

#[test]
fn what_makes_no_sense_is_refused() {
    let dir = dir();
    let refused = |flags: &str, parts: &[&str]| {
        fastmap(dir.path(), &format!("bench breakdown --dir . {flags}")).failed_with(2, parts);
    };
    refused("--engines direct", &["--engines", "no engine here: choose from mmap, mmap-random, fastmap"]);
    refused("--size 4097", &["--size", "no multiple of 4096"]);
    refused("--memory 1MiB", &["--memory", "give at least"]);
    assert!(files_in(dir.path()).is_empty());
}
