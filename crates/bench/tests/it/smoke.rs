//! Every experiment, for real, at its smallest: it runs, verifies, and writes JSON that `report` reads. All of that takes minutes.

use std::fs;
use std::path::Path;
use std::process::Command;

use serde_json::Value;

use crate::prompt::{dir, fastmap, files_in, full, run_in, skipped};
use crate::{ALL, FASTMAP, OTHERS, REFUSED, check_told, memory_flag};

#[test]
fn every_experiment_at_its_smallest() {
    if !full("every experiment at its smallest, for real") {
        return;
    }
    let beside = Path::new(FASTMAP).with_file_name("fastmap").exists()
        && Path::new(FASTMAP).with_file_name("libfastmap_preload_heap.so").exists();
    let dir = dir();
    let mut files = Vec::new();
    for (name, flags, memory, under) in ALL {
        if *under && !beside {
            skipped(&format!(
                "{name}: fastmap and its libraries are not beside fastmap-bench: `make build PROFILE=dev`"
            ));
            continue;
        }
        let memory = if memory.is_empty() { String::new() } else { format!("--memory {}", memory_flag(memory)) };
        let placed = if ["replacement", "sync"].contains(name) { "" } else { "--dir ." };
        let ran = fastmap(dir.path(), &format!("{name} {flags} {memory} {placed} --json {name}.json"));
        if ran.stderr.contains("MonetDB is not there") {
            skipped(&ran.stderr);
            continue;
        }
        ran.succeeded();
        files.push(format!("{name}.json"));
        let told: Value = serde_json::from_slice(&fs::read(dir.path().join(format!("{name}.json"))).unwrap()).unwrap();
        check_told(&told);
        assert_eq!(told["experiment"], *name);
        for row in told["results"].as_array().unwrap() {
            let (runs, trials) = (row["runs"].as_array().unwrap().len(), row["trials"].as_array().unwrap().len());
            assert!(trials > 0 && runs <= trials, "{name}: {row}");
        }
    }
    let mut left = files.clone();
    left.sort();
    assert_eq!(files_in(dir.path()), left, "nothing else is left");
    let report = format!("report {} -o all.md", files.join(" "));
    let bench = Path::new(FASTMAP).with_file_name("fastmap-bench");
    run_in(dir.path(), Command::new(bench).args(report.split(' '))).succeeded();
}

/// What makes no sense is refused before anything is made.
#[test]
fn each_experiment_refuses_what_makes_no_sense() {
    let dir = dir();
    for (line, parts) in REFUSED {
        fastmap(dir.path(), line).failed_with(2, parts);
    }
    assert!(files_in(dir.path()).is_empty());
}

#[test]
fn help_documents_every_flag_of_every_experiment() {
    let dir = dir();
    let help = fastmap(dir.path(), "--help");
    help.succeeded();
    for name in ALL.iter().map(|(name, ..)| name).chain(OTHERS) {
        assert!(help.stdout.contains(&format!("\n  {name} ")), "{name}: {}", help.stdout);
        let ran = fastmap(dir.path(), &format!("{name} --help"));
        ran.succeeded();
        let usage = if *name == "report" { "Usage: fastmap report" } else { &format!("Usage: fastmap bench {name}") };
        assert!(ran.stdout.contains(usage) && ran.stdout.contains("Examples:"), "{}", ran.stdout);
    }
}
