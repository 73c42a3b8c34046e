//! `fastmap bench graph`, small and real. That wrong levels, ranks and graphs are noticed is shown where the load is (workloads).

mod common;

use std::fs;
use std::path::Path;
use std::process::Command;
use std::sync::OnceLock;

use common::{FASTMAP, Ran, dir, fastmap, files_in, memory_flag};
use serde_json::Value;

/// `bench graph LINE`, with the preload library that has the heap, built first: cargo builds none for these tests.
fn graph(dir: &Path, line: &str) -> Ran {
    static BUILT: OnceLock<()> = OnceLock::new();
    BUILT.get_or_init(|| {
        let profile = Path::new(FASTMAP).parent().expect("target/PROFILE");
        let mut cargo = Command::new(env!("CARGO"));
        cargo.args(["build", "--quiet", "-p", "fastmap-preload-heap", "--target-dir"]);
        cargo.arg(profile.parent().expect("target")).current_dir(env!("CARGO_MANIFEST_DIR"));
        if profile.ends_with("release") {
            cargo.arg("--release");
        }
        assert!(cargo.status().expect("cargo").success(), "the library builds");
    });
    fastmap(dir, &format!("bench graph --dir . {line}"))
}

fn out(dir: &Path) -> Value {
    serde_json::from_str(&fs::read_to_string(dir.join("out.json")).unwrap()).unwrap()
}

#[test]
fn every_engine_and_every_field_of_the_json() {
    let dir = dir();
    let memory = memory_flag("16MiB");
    // The kernel's readahead would take most of a minute.
    let engines = ["mmap-random", "fastmap"];
    let line = format!(
        "--scale 16 --engines {} --sources 2 --iterations 3 --threads 1,3 --memory {memory} --repeat 2 --json out.json",
        engines.join(",")
    );
    let ran = graph(dir.path(), &line);
    ran.succeeded();
    assert_eq!(files_in(dir.path()), ["out.json"], "temporary files and the heap are gone");
    let out = out(dir.path());
    let footprint = 2 * 8 * (65_537 + 655_360) + 2 * 8 * 65_536;
    assert_eq!((&out["experiment"], &out["file_bytes"]), (&"graph".into(), &footprint.into()));
    assert!(out["verified"].as_str().unwrap().contains("to the last bit"));
    assert_eq!(memory == "none", out["memory_limit_bytes"].is_null());
    let results = out["results"].as_array().unwrap();
    let said = |r: &Value| format!("{} {}", r["threads"], r["engine"].as_str().unwrap());
    assert_eq!(
        results.iter().map(said).collect::<Vec<_>>(),
        ["1 mmap-random", "1 fastmap", "3 mmap-random", "3 fastmap"]
    );
    for r in results {
        for (name, edges) in [("bfs", None), ("pagerank", Some(3.0 * 655_360.0))] {
            let part = &r[name];
            let of = |field: &str| part[field].as_f64().unwrap();
            let runs: Vec<f64> = part["runs"].as_array().unwrap().iter().map(|v| v.as_f64().unwrap()).collect();
            // One that took eight times as long as the other is not run again.
            assert!((1..=2).contains(&runs.len()) && runs.iter().all(|seconds| *seconds > 0.0));
            assert!((of("seconds") - runs.iter().sum::<f64>() / runs.len() as f64).abs() < 1e-9, "{r}");
            let shares = of("user") + of("system") + of("iowait") + of("idle");
            assert!((0.5..1.5).contains(&shares), "medians of parts of a whole: {shares}");
            if let (Some(edges), 1) = (edges, runs.len()) {
                assert!((of("edges_per_s") * runs[0] - edges).abs() < 1.0, "{r}");
            }
        }
        let searches = r["searches"].as_array().unwrap();
        assert_eq!(searches.len(), 2);
        assert_eq!(searches.iter().map(|s| &s["vertex"]).collect::<Vec<_>>(), {
            let first = results[0]["searches"].as_array().unwrap();
            first.iter().map(|s| &s["vertex"]).collect::<Vec<_>>()
        });
        assert!(r["load_seconds"].as_f64().unwrap() > 0.0 && r["peak_rss_bytes"].as_f64().unwrap() > 0.0);
        assert!(memory == "none" || r["peak_rss_bytes"].as_f64().unwrap() <= f64::from(16 << 20), "{r}");
    }
    let headlines = out["headlines"].as_array().unwrap();
    assert_eq!(headlines.len(), 4, "two algorithms, two numbers of threads");
    assert_eq!(headlines.iter().filter(|h| h["paper"]["ratio"] == 3.31).count(), 2);
    let kinds: Vec<_> = out["figures"].as_array().unwrap().iter().map(|f| f["kind"].as_str().unwrap()).collect();
    assert_eq!(kinds, ["bars", "stacked", "bars", "stacked"]);
    for heading in ["\nBFS, 2 searches, 1 thread\n", "\nPageRank, 3 iterations, 3 threads\n"] {
        assert!(ran.stdout.contains(heading), "{}", ran.stdout);
    }
}

#[test]
fn kernel_mmap_without_advice_and_no_pagerank() {
    let dir = dir();
    let ran = graph(
        dir.path(),
        "--scale 10 --edges 3 --engines mmap,mmap --iterations 0 --threads 2 --memory none --repeat 1 --json out.json",
    );
    ran.succeeded();
    assert!(!ran.stdout.contains("PageRank") && ran.stdout.contains("NO LIMIT"), "{}", ran.stdout);
    let out = out(dir.path());
    assert_eq!(out["results"].as_array().unwrap().len(), 1, "once each");
    assert_eq!((&out["results"][0]["pagerank"], &out["headlines"]), (&Value::Null, &Value::Array(Vec::new())));
}

#[test]
fn what_makes_no_sense_is_refused() {
    let dir = dir();
    let refused = |flags: &str, parts: &[&str]| {
        fastmap(dir.path(), &format!("bench graph --dir . {flags}")).failed_with(2, parts);
    };
    refused("--engines kernel", &["--engines", "no engine: choose from mmap, mmap-random, fastmap"]);
    refused("--scale 9", &["--scale", "9 is not in 10..=30"]);
    refused("--edges 0", &["--edges", "no number of edges: give 1 to 1000"]);
    refused("--sources 0", &["--sources", "no number of sources"]);
    refused("--memory 1MiB", &["--memory", "give at least"]);
    assert!(files_in(dir.path()).is_empty());
    fastmap(dir.path(), "bench graph --dir nowhere --memory none")
        .failed_with(1, &["temporary file in nowhere", "cannot make it", "--dir"]);
    fastmap(dir.path(), "bench graph --dir . --scale 30 --edges 1000 --memory none")
        .failed_with(1, &["no room", "--dir", "--scale"]);
}
