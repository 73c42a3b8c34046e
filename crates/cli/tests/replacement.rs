//! `fastmap bench replacement`, small and real.

mod common;

use std::fs;

use common::{check_told, dir, fastmap, files_in, memory_flag};
use serde_json::Value;

#[test]
fn two_traces_and_every_field_of_the_json() {
    if memory_flag("64MiB") == "none" {
        return println!("skipped: no memory cgroup can be made");
    }
    let dir = dir();
    let line = "bench replacement --traces loop,scan-mixed --size 16MiB --memory 12MiB --touches 1 --repeat 2 \
                --json out.json";
    let ran = fastmap(dir.path(), line);
    ran.succeeded();
    assert_eq!(files_in(dir.path()), ["out.json"], "the temporary file is gone");
    let out: Value = serde_json::from_str(&fs::read_to_string(dir.path().join("out.json")).unwrap()).unwrap();
    assert_eq!((&out["experiment"], &out["memory_limit_bytes"]), (&"replacement".into(), &(12 << 20).into()));
    check_told(&out);
    assert_eq!((out["headlines"].as_array().unwrap().len(), out["figures"].as_array().unwrap().len()), (2, 2));
    let results = out["results"].as_array().unwrap();
    let names: Vec<_> = results.iter().map(|r| (r["trace"].as_str().unwrap(), r["engine"].as_str().unwrap())).collect();
    let engines = ["mmap", "mmap-random", "fastmap"];
    assert_eq!(names, ["loop", "scan-mixed"].map(|trace| engines.map(|engine| (trace, engine))).concat());
    for of_trace in results.chunks(3) {
        let resident = |r: &Value| r["resident_pages"].as_u64().unwrap();
        for r in of_trace {
            let runs: Vec<f64> = r["runs"].as_array().unwrap().iter().map(|v| v.as_f64().unwrap()).collect();
            assert!(runs.len() == 2 && runs.iter().all(|hits| (0.0..=100.0).contains(hits)), "{r}");
            assert!((r["hit_percent"].as_f64().unwrap() - (runs[0] + runs[1]) / 2.0).abs() < 1e-6);
            assert!(r["ops_per_s"].as_f64().unwrap() > 0.0 && r["memory_bytes"].as_u64().unwrap() >= 9 << 20);
            assert!(resident(r) > 0 && resident(r) <= 3072, "{r}");
            for one in r["repetitions"].as_array().unwrap() {
                let count = |field: &str| one[field].as_u64().unwrap();
                assert_eq!(count("touches"), 16 << 8);
                assert!(count("misses") <= count("touches"));
                assert!(count("peak_rss_bytes") <= r["memory_bytes"].as_u64().unwrap());
                assert_eq!(one["counters"].is_object(), r["engine"] == "fastmap");
            }
        }
        let most = of_trace[..2].iter().map(resident).max().unwrap();
        assert!(resident(&of_trace[2]) <= most + 64, "no more pages than the kernel has: {most}");
        let ours = of_trace[2]["hit_percent"].as_f64().unwrap();
        assert!(ran.stdout.contains(&format!("{ours:.2}")), "{}", ran.stdout);
    }
}

#[test]
fn what_makes_no_sense_is_refused() {
    let dir = dir();
    fastmap(dir.path(), "bench replacement --traces lop").failed_with(2, &["--traces", "no trace", "zipf-0.6"]);
    fastmap(dir.path(), "bench replacement --size 5000").failed_with(2, &["--size", "no multiple of 4096", "8KiB"]);
    fastmap(dir.path(), "bench replacement --size 64MiB --memory 60MiB").failed_with(2, &["--size", "four times"]);
    fastmap(dir.path(), "bench replacement --size 64MiB --memory 1MiB").failed_with(2, &["--memory", "give at least"]);
    fastmap(dir.path(), "bench replacement --touches 0").failed_with(2, &["--touches", "touches a page"]);
    assert!(files_in(dir.path()).is_empty());
}
