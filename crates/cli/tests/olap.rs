//! `fastmap bench olap`, small and real, where MonetDB is.

mod common;

use std::fs;
use std::path::Path;
use std::process::Command;

use common::{FASTMAP, dir, fastmap, files_in, memory_flag, run_in};
use serde_json::Value;

/// Builds the preload library beside the command: cargo builds no cdylib for tests.
fn build_preload() {
    let built = Path::new(FASTMAP).parent().unwrap();
    let mut cargo = Command::new(env!("CARGO"));
    cargo.args(["build", "--quiet", "-p", "fastmap-preload", "--target-dir"]).arg(built.parent().unwrap());
    if built.ends_with("release") {
        cargo.arg("--release");
    }
    assert!(cargo.current_dir(env!("CARGO_MANIFEST_DIR")).status().unwrap().success(), "the library builds");
}

#[test]
fn every_query_on_both_and_every_field_of_the_json() {
    let dir = dir();
    build_preload();
    let memory = memory_flag("128MiB");
    let line = format!(
        "bench olap --dir . --scale 0.03 --memory {memory} --cache 24MiB --threads 2 --repeat 1 --json out.json"
    );
    let ran = fastmap(dir.path(), &line);
    if ran.stderr.contains("MonetDB is not there") {
        eprintln!("skipped: {}", ran.stderr.trim());
        return;
    }
    ran.succeeded();
    assert_eq!(files_in(dir.path()), ["out.json"], "database and tables are gone");
    let out: Value = serde_json::from_str(&fs::read_to_string(dir.path().join("out.json")).unwrap()).unwrap();
    assert_eq!(out["experiment"], "olap");
    assert!(out["file_bytes"].as_u64().unwrap() > 20 << 20, "{}", out["file_bytes"]);
    let results = out["results"].as_array().unwrap();
    assert_eq!(results.iter().map(|r| r["engine"].as_str().unwrap()).collect::<Vec<_>>(), ["mmap", "fastmap"]);
    for r in results {
        let queries = r["queries"].as_array().unwrap();
        assert_eq!(queries.iter().map(|q| q["query"].as_u64().unwrap()).collect::<Vec<_>>(), Vec::from_iter(1..=22));
        for q in queries {
            assert_eq!(q["runs"].as_array().unwrap().len(), 1);
            assert!(q["seconds"]["low"].as_f64() <= q["seconds"]["median"].as_f64(), "{q}");
        }
        assert!(r["seconds"]["median"].as_f64() > Some(0.0));
        assert!((0.0..=1.0).contains(&r["system_share"].as_f64().unwrap()));
        assert_eq!(r["served"].as_array().map_or(0, Vec::len), if r["engine"] == "fastmap" { 1 } else { 0 });
    }
    for (mmap, fastmap) in [0, 21].map(|n| (&results[0]["queries"][n], &results[1]["queries"][n])) {
        assert_eq!(mmap["rows"], fastmap["rows"]);
    }
    let served = &results[1]["served"][0];
    assert!(served["candidates"].as_u64() > Some(2) && served["kernel"] == 0, "{served}");
    assert_eq!(served["caches"][0]["capacity_bytes"], 24 << 20);
    assert!(served["caches"][0]["misses"].as_u64() > Some(0), "{served}");
    let is_short = out["memory_limit_bytes"].as_u64().is_some_and(|limit| limit < out["file_bytes"].as_u64().unwrap());
    assert_eq!(out["headlines"][0]["paper"]["ratio"] == 1.0606, is_short, "{}", out["headlines"]);
    assert_eq!(out["headlines"].as_array().unwrap().len(), 2);
    let figures: Vec<usize> =
        out["figures"].as_array().unwrap().iter().map(|f| f["series"].as_array().unwrap().len()).collect();
    assert_eq!(figures, [2, 1, 2]);
    assert!(out["verified"].as_str().unwrap().contains("between kernel mmap and FastMap"));
    assert!(ran.stdout.contains("\nQ22 ") && ran.stdout.contains("TPC-H"), "{}", ran.stdout);
}

#[test]
fn what_makes_no_sense_is_refused() {
    let dir = dir();
    let here = dir.path().to_str().unwrap();
    let none = ["bench", "olap", "--dir", ".", "--monetdb", here];
    run_in(dir.path(), Command::new(FASTMAP).args(none))
        .failed_with(1, &[here, "MonetDB is not there", "scripts/monetdb"]);
    // A folder that looks like it, for what is refused before it is used.
    fs::create_dir(dir.path().join("monetdbe.libs")).unwrap();
    let refused = |flags: &str, parts: &[&str]| {
        fastmap(dir.path(), &format!("bench olap --dir . --monetdb . {flags}")).failed_with(2, parts);
    };
    refused("--queries 23", &["--queries", "23"]);
    refused("--scale 0", &["--scale", "no scale factor: give 0.01 to 1000"]);
    refused("--memory 8MiB", &["--memory", "8MiB is too little", "give at least 96MiB"]);
    refused("--memory none --cache 96MiB --scale 0.01", &["--cache", "96MiB leaves nothing of 96MiB"]);
    fastmap(dir.path(), "bench olap --dir . --monetdb . --scale 0.01 --memory none")
        .failed_with(1, &["monetdbe.libs", "holds no libpcre-", "scripts/monetdb"]);
    assert_eq!(files_in(dir.path()), ["monetdbe.libs"]);
}
