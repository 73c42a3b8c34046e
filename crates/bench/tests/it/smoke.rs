//! Every experiment, for real, at its smallest: it runs, verifies, and writes JSON that `report` reads. All of that takes minutes.

use std::fs;
use std::path::Path;

use serde_json::Value;

use crate::prompt::{dir, fastmap, files_in, full, skipped};
use crate::{FASTMAP, check_told, memory_flag};

/// What is run, with the memory of each where memory can be limited; what needs `fastmap` and its libraries beside this command.
const ALL: &[(&str, &str, &str, bool)] = &[
    ("replacement", "--traces loop,scan-mixed --size 16MiB --touches 1 --repeat 1", "12MiB", false),
    ("sync", "--size 1MiB --seconds 0.02 --repeat 1", "", false),
    ("async", "--size 32MiB --ops 400 --threads 1,2 --repeat 1", "28MiB", false),
    ("scale", "--size 64MiB --threads 1,2 --seconds 0.05 --repeat 1", "32MiB", false),
    ("breakdown", "--size 64MiB --threads 2 --seconds 0.05 --repeat 1 --no-perf", "32MiB", false),
    ("ablation", "--size 64MiB --threads 2 --seconds 0.05 --repeat 1", "32MiB", false),
    ("peers", "--size 96MiB --threads 2 --seconds 0.05 --repeat 1", "56MiB", false),
    ("random-64k", "--size 64MiB --seconds 0.05 --repeat 1", "32MiB", false),
    ("study", "--size 32MiB --small 512KiB --touches 16 --repeat 2", "24MiB", false),
    ("kv", "--stores own,lmdb --records 2000 --ops 500 --memory all --repeat 1", "", true),
    ("graph", "--scale 12 --sources 2 --iterations 2 --threads 2 --repeat 1", "24MiB", true),
    ("oltp", "--file-systems here --warehouses 1 --seconds 0.3 --repeat 1", "24MiB", true),
    ("calls", "--seconds 0.01 --repeat 1", "", true),
    ("loads", "--size 8MiB --repeat 1", "", true),
    (
        "programs",
        "--programs search,files,monetdb --memory all,half --size 4MiB --seconds 0.02 --warm-up 0.05 --repeat 1",
        "",
        true,
    ),
    ("olap", "--scale 0.03 --cache 24MiB --threads 2 --repeat 1", "96MiB", true),
];

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
    fastmap(dir.path(), &format!("report {} -o all.md", files.join(" "))).succeeded();
}

/// What makes no sense is refused before anything is made.
#[test]
fn each_experiment_refuses_what_makes_no_sense() {
    let dir = dir();
    for (line, parts) in [
        ("replacement --traces lop", &["--traces", "no trace", "zipf-0.6"][..]),
        ("replacement --size 64MiB --memory 60MiB", &["--size", "four times"]),
        ("replacement --touches 0", &["--touches", "touches a page"]),
        ("sync --dir . --engines persist --size 64KiB", &["--engines", "makes nothing durable"]),
        ("async --threads 1,16 --size 64KiB", &["--size", "too small for 16 threads"]),
        ("async --engines fastmap-ar --size 16MiB", &["--engines", "store8, whose stores are not whole lines"]),
        ("async --ops 5000 --size 16MiB", &["--ops", "give fewer, more --size, or --work record"]),
        ("async --pattern forward", &["--pattern", "give zipf or random"]),
        ("scale --engines pread", &["--engines", "choose from mmap, mmap-random, fastmap"]),
        ("scale --fast-dir /dev/shm --size 1MiB --memory none", &["--fast-dir", "in memory already"]),
        ("ablation --loads fill --off readahead --size 1MiB", &["--loads", "nothing in --off matters"]),
        ("study --small 5000 --size 1MiB", &["--small", "no multiple of 4096: give 8KiB"]),
        ("kv --stores own --records 1000 --memory sixth", &["--records", "too little memory", "--memory all"]),
        ("kv --memory lots", &["--memory", "or all, or sixth"]),
        ("graph --edges 0", &["--edges", "give 1 to 1000"]),
        ("oltp --file-systems fat", &["--file-systems", "choose from ext4, xfs, btrfs, here"]),
        ("programs --programs lmdb,emacs", &["--programs", "no program here", "search, files"]),
        ("programs --memory third", &["--memory"]),
        ("programs --size 5000", &["--size", "no multiple of 1 MiB: give 1MiB"]),
        ("loads --size 5000", &["--size", "no multiple of 4096: give 8KiB"]),
        ("storage --latency 2 .", &["--latency", "is no time: give up to a minute"]),
        ("storage --bandwidth 1GB .", &["--bandwidth", "is no bandwidth: give 1MB/s to"]),
        ("storage --size 1MiB --source . .", &["--size", "cannot be used with", "--source"]),
        ("olap --queries 23", &["--queries"]),
        ("olap --scale 0", &["--scale", "give 0.01 to 1000"]),
    ] {
        fastmap(dir.path(), line).failed_with(2, parts);
    }
    assert!(files_in(dir.path()).is_empty());
}

#[test]
fn help_documents_every_flag_of_every_experiment() {
    let dir = dir();
    let help = fastmap(dir.path(), "--help");
    help.succeeded();
    assert!(
        help.stdout.contains("fastmap bench") && help.stdout.contains("Without a subcommand: the tour"),
        "{}",
        help.stdout
    );
    for (name, ..) in ALL.iter().chain(&[
        ("try", "", "", false),
        ("micro", "", "", false),
        ("storage", "", "", false),
        ("report", "", "", false),
    ]) {
        assert!(help.stdout.contains(&format!("\n  {name} ")), "{name}: {}", help.stdout);
        let ran = fastmap(dir.path(), &format!("{name} --help"));
        ran.succeeded();
        let usage = if *name == "report" { "Usage: fastmap report" } else { &format!("Usage: fastmap bench {name}") };
        assert!(ran.stdout.contains(usage) && ran.stdout.contains("Examples:"), "{}", ran.stdout);
    }
}
