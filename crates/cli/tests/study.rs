//! `fastmap bench study`, small and real.

mod common;

use std::fs;
use std::process::Command;
use std::thread::sleep;
use std::time::{Duration, Instant};

use common::{FASTMAP, dir, fastmap, files_in, finish, is_root, memory_flag, start_in};
use serde_json::Value;

const WORKS: [&str; 6] = ["forward", "backward", "random", "small-forward", "small-backward", "small-random"];
const ENGINES: [&str; 5] = ["pread", "mmap", "mmap-advised", "fastmap", "fastmap-advised"];

/// Whether an engine has something to be told at a work, or would only be another's double.
fn differs(work: &str, engine: &str) -> bool {
    match engine {
        "mmap-advised" => ["forward", "random"].contains(&work),
        "fastmap-advised" => work != "forward" && work != "backward",
        _ => true,
    }
}

fn repeat_left_out(seconds: &[f64], results: &[Value], work: &str) -> bool {
    let of_work = results.iter().filter(|r| r["work"] == work);
    of_work.map(|r| r["seconds"][0].as_f64().unwrap()).any(|first| seconds[0] > first * 10.0)
}

#[test]
fn every_work_and_engine_and_every_field_of_the_json() {
    let dir = dir();
    let memory = memory_flag("12MiB");
    let line = format!(
        "bench study --dir . --size 16MiB --small 512KiB --touches 16 --memory {memory} --repeat 2 --json out.json"
    );
    let ran = fastmap(dir.path(), &line);
    ran.succeeded();
    assert_eq!(files_in(dir.path()), ["out.json"], "the temporary files are gone");
    let out: Value = serde_json::from_str(&fs::read_to_string(dir.path().join("out.json")).unwrap()).unwrap();
    assert_eq!((&out["experiment"], &out["file_bytes"]), (&"study".into(), &(16 << 20).into()));
    assert!(out["verified"].as_str().unwrap().contains("Every byte"));
    let results = out["results"].as_array().unwrap();
    let said: Vec<_> = results.iter().map(|r| (r["work"].as_str().unwrap(), r["engine"].as_str().unwrap())).collect();
    let all = WORKS.iter().flat_map(|&work| ENGINES.iter().map(move |&engine| (work, engine)));
    assert_eq!(said, all.filter(|(work, engine)| differs(work, engine)).collect::<Vec<_>>());
    for r in results {
        let of = |field: &str| r[field].as_f64().unwrap();
        let work = r["work"].as_str().unwrap();
        let pages = if work == "random" { 16.0 } else { f64::from(if work.starts_with("small") { 128 } else { 4096 }) };
        assert_eq!(of("pages"), pages, "{r}");
        let seconds: Vec<f64> = r["seconds"].as_array().unwrap().iter().map(|s| s.as_f64().unwrap()).collect();
        // Who takes ten times as long as the fastest makes fewer passes.
        assert!(seconds.len() == 2 || seconds.len() == 1 && repeat_left_out(&seconds, results, work), "{r}");
        assert!((seconds.iter().sum::<f64>() / seconds.len() as f64 - of("average_s")).abs() < 1e-9);
        assert!(0.0 < of("minimum_s") && of("minimum_s") <= of("average_s") && of("average_s") <= of("maximum_s"));
        assert!((of("deviation_s") / of("average_s") - of("relative_deviation")).abs() < 1e-9);
        assert!(memory == "none" || of("peak_rss_bytes_max") <= f64::from(12 << 20), "{r}");
    }
    let traced: Vec<&Value> = results.iter().filter(|r| r.get("requests").is_some()).collect();
    let notes = out["notes"].to_string();
    if traced.is_empty() {
        assert!(notes.contains("The order of requests is not shown"), "{notes}");
        eprintln!("skipped the order of requests: {notes}");
    } else {
        assert_eq!(traced.len(), 12, "each engine's pass over the large file");
        for r in traced {
            let (requests, work) = (&r["requests"], r["work"].as_str().unwrap());
            assert!(requests["count"].as_u64().unwrap() > 0);
            // What is read at least; a page drawn twice is read once.
            let least = if work == "random" { 0.8 } else { 0.99 };
            assert!(requests["amplification"].as_f64().unwrap() > least, "{r}");
        }
    }
    let titles: Vec<&str> = out["figures"].as_array().unwrap().iter().map(|f| f["title"].as_str().unwrap()).collect();
    for title in
        ["Time of one pass", "How unsteady a pass is", "Consecutive passes, forward", "Consecutive passes, backward"]
    {
        assert!(titles.contains(&title), "{titles:?}");
    }
    let headlines = out["headlines"].as_array().unwrap();
    assert!((4..=5).contains(&headlines.len()), "{headlines:?}");
    // The kernel with itself, as in the paper, is no headline of FastMap's.
    let notes = out["notes"].to_string();
    assert!(notes.contains("times as fast pread is as mmap"), "{notes}");
    assert_eq!(notes.contains("the paper: 2.02"), memory != "none", "{notes}");
    if is_root() {
        let instances = std::path::Path::new("/sys/kernel/tracing/instances");
        let left = if instances.exists() { files_in(instances) } else { Vec::new() };
        assert!(!left.contains(&format!("fastmap-bench-{}", ran.pid)), "{left:?}");
    }
    for heading in WORKS {
        assert!(ran.stdout.contains(&format!("\n{heading}: ")), "{}", ran.stdout);
    }
    assert!(ran.stdout.contains("the paper: pread 4.698 s, deviation 0.3 %; mmap 9.504 s, deviation 47 %"));
}

#[test]
fn what_makes_no_sense_is_refused() {
    let dir = dir();
    let refused = |flags: &str, parts: &[&str]| {
        fastmap(dir.path(), &format!("bench study --dir . {flags}")).failed_with(2, parts);
    };
    refused("--works sideways", &["--works", "no work: choose from forward, backward, random, small-forward"]);
    refused(
        "--engines direct",
        &["--engines", "no engine: choose from pread, mmap, mmap-advised, fastmap, fastmap-advised"],
    );
    refused("--size 5000", &["--size", "no multiple of 4096", "8KiB"]);
    refused("--small 5000", &["--small", "no multiple of 4096", "8KiB"]);
    refused("--repeat 0", &["--repeat", "no number of repetitions"]);
    refused("--memory 1MiB", &["--memory", "give at least"]);
    assert!(files_in(dir.path()).is_empty());
    fastmap(dir.path(), "bench study --dir nowhere --size 1MiB --memory none")
        .failed_with(1, &["temporary file in nowhere", "cannot make it"]);
}

#[test]
fn interrupted_it_leaves_nothing() {
    let dir = dir();
    let line = "bench study --dir . --size 8MiB --memory none --small 256KiB --repeat 10000 --json out.json";
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
