//! `fastmap bench ablation`, small and real.

mod common;

use std::fs::{self, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::Path;

use common::{dir, fastmap, files_in, memory_flag};
use serde_json::{Value, json};

fn numbers(of: &Value) -> Vec<f64> {
    of.as_array().unwrap().iter().map(|v| v.as_f64().unwrap()).collect()
}

#[test]
fn every_arm_is_there_and_says_what_it_is_worth() {
    let dir = dir();
    let memory = memory_flag("12MiB");
    let line = format!(
        "bench ablation --dir . --size 16MiB --memory {memory} --threads 2 --seconds 0.1 --repeat 2 \
         --loads random-read,fill,flush,backward --json out.json"
    );
    let ran = fastmap(dir.path(), &line);
    ran.succeeded();
    assert_eq!(files_in(dir.path()), ["out.json"], "the temporary file is gone");
    let out: Value = serde_json::from_str(&fs::read_to_string(dir.path().join("out.json")).unwrap()).unwrap();
    assert_eq!(out["experiment"], "ablation");
    let results = out["results"].as_array().unwrap();
    let said = |r: &Value| {
        let off = r["off"].as_str().unwrap_or("-");
        format!("{} {} {} {off}", r["load"].as_str().unwrap(), r["threads"], r["engine"].as_str().unwrap())
    };
    let expected = [
        "random-read 2 fastmap -",
        "random-read 2 fastmap per-core",
        "random-read 2 fastmap batch-64",
        "random-read 2 fastmap batch-1",
        "random-read 2 fastmap stripes",
        "random-read 2 mmap-random -",
        "fill 1 fastmap -",
        "fill 1 fastmap protection",
        "fill 1 fastmap merging",
        "fill 1 mmap-sequential -",
        "flush 1 fastmap -",
        "flush 1 fastmap tracking",
        "flush 1 mmap-random -",
        "backward 1 fastmap -",
        "backward 1 fastmap readahead",
        "backward 1 mmap -",
    ];
    assert_eq!(results.iter().map(said).collect::<Vec<_>>(), expected);
    let mut on: &Value = &Value::Null;
    for r in results {
        if r["worth"].is_null() {
            on = r;
            continue;
        }
        assert_eq!(on["load"], r["load"]);
        let (with, without) = (numbers(&on["runs"]), numbers(&r["runs"]));
        let mut ratios = [with[0] / without[0], with[1] / without[1]];
        ratios.sort_by(f64::total_cmp);
        let worth = |part: &str| r["worth"][part].as_f64().unwrap();
        assert!((worth("low") / ratios[0] - 1.0).abs() < 1e-9 && (worth("high") / ratios[1] - 1.0).abs() < 1e-9, "{r}");
        assert!(worth("low") <= worth("median") && worth("median") <= worth("high"));
        assert!(r["worth_cpu"]["median"].as_f64().unwrap() > 0.0);
        match r["off"].as_str() {
            Some("batch-1") => assert!(r["drops_per_page"].as_f64().is_none_or(|drops| drops == 1.0), "{r}"),
            Some("merging") => assert_eq!(r["writeback"]["merge_ratio"], 1.0),
            Some("readahead") => assert_eq!(r["readahead"]["pages"], 0),
            _ => {}
        }
    }
    for figure in out["figures"].as_array().unwrap() {
        let series = figure["series"].as_array().unwrap();
        assert!((1..=8).contains(&series.len()), "{figure}");
        assert!(series.iter().all(|s| !s["points"].as_array().unwrap().is_empty()));
    }
    let headlines = out["headlines"].as_array().unwrap();
    assert!((1..=4).contains(&headlines.len()), "{headlines:?}");
    for heading in ["\nrandom read, 2 threads\n", "\nfill and flush\n", "\nflush of 16 pages\n", "\nbackward scan\n"] {
        assert!(ran.stdout.contains(heading), "{}", ran.stdout);
    }
}

#[test]
fn a_wrong_byte_fails_a_run() {
    let dir = dir();
    let make = "bench micro --engines pread --file data --size 4MiB --memory none --seconds 0.01 --repeat 1";
    fastmap(dir.path(), make).succeeded();
    let file = OpenOptions::new().write(true).open(dir.path().join("data")).unwrap();
    for (work, op, offset) in [("flush", "write", 700 * 4096 + 999), ("forward", "read", 5 * 4096)] {
        let pattern = if work == "flush" { "random" } else { "forward" };
        let spec = json!({
            "engine": "fastmap", "pattern": pattern, "op": op, "threads": 1, "advice": "normal", "path": "data",
            "label": "data", "pages": 1024, "memory": null, "seconds": 0.05, "epoch": 1,
        });
        let job = json!({ "ablate": { "spec": spec, "work": work, "off": null } });
        let order = json!({ "job": job, "join": null, "peak": null, "parent": std::process::id() }).to_string();
        let run = || fastmap(dir.path(), &format!("bench worker {order}"));
        run().succeeded();
        file.write_all_at(&[0x5a], offset).unwrap();
        let ran = run();
        assert_eq!(ran.status, Some(1), "{}", ran.stdout);
        let said = format!("page {} at offset {}", offset / 4096, offset / 8 * 8);
        assert!(ran.stdout.contains(&said) && ran.stdout.contains("is damaged"), "{}", ran.stdout);
    }
}

#[test]
fn what_makes_no_sense_is_refused() {
    let dir = dir();
    let refused = |flags: &str, parts: &[&str]| {
        fastmap(dir.path(), &format!("bench ablation --dir . {flags}")).failed_with(2, parts);
    };
    refused("--loads sideways", &["--loads", "no load: choose from random-read, random-write"]);
    refused("--off tlb", &["--off", "no mechanism: choose from per-core, batch-64"]);
    refused("--loads fill --off readahead,habits", &["--loads", "matters for them", "ablation --help"]);
    refused("--size 5000", &["--size", "no multiple of 4096", "8KiB"]);
    refused("--size 512KiB --threads 16", &["--size", "too small for 16 threads", "give at least 1MiB"]);
    refused("--memory 1MiB", &["--memory", "give at least"]);
    if Path::new("/dev/shm").exists() {
        fastmap(dir.path(), "bench ablation --dir /dev/shm --loads fill")
            .failed_with(2, &["--loads", "file in memory"]);
    }
    assert!(files_in(dir.path()).is_empty());
    fastmap(dir.path(), "bench ablation --dir nowhere --size 1MiB --memory none")
        .failed_with(1, &["temporary file in nowhere", "cannot make it"]);
}
