//! `fastmap bench` and `fastmap report`, which start another command.

use std::fs;
use std::process::Command;

use crate::FASTMAP;
use crate::prompt::{dir, fastmap, make_program, run_in};

#[test]
fn without_fastmap_bench_it_says_what_to_do() {
    let dir = dir();
    let alone = dir.path().join("fastmap");
    fs::hard_link(FASTMAP, &alone).unwrap();
    for line in [&["bench"][..], &["bench", "micro", "--help"], &["report", "a.json", "-o", "a.md"]] {
        let ran = run_in(dir.path(), Command::new(&alone).args(line).env("PATH", "/nowhere"));
        ran.failed_with(1, &["fastmap-bench: is neither beside this command nor in PATH", "make install BENCH=1"]);
    }
}

#[test]
fn the_one_beside_it_is_started_with_the_arguments_else_the_one_in_path() {
    let dir = dir();
    let there = |name: &str, says: &str| {
        let path = dir.path().join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        make_program(&path, format!("#!/bin/sh\necho {says} \"$@\"\nexit 3\n").as_bytes());
    };
    fs::create_dir(dir.path().join("bin")).unwrap();
    let own = dir.path().join("bin/fastmap");
    fs::hard_link(FASTMAP, &own).unwrap();
    there("elsewhere/fastmap-bench", "elsewhere");
    let path = format!("{}:/usr/bin:/bin", dir.path().join("elsewhere").display());
    let said = |line: &[&str]| {
        let ran = run_in(dir.path(), Command::new(&own).args(line).env("PATH", &path));
        assert_eq!(ran.status, Some(3), "{}", ran.stderr);
        ran.stdout
    };
    assert_eq!(said(&["bench", "micro", "--size", "1MiB", "--help"]), "elsewhere micro --size 1MiB --help\n");
    there("bin/fastmap-bench", "beside");
    assert_eq!(said(&["bench"]), "beside\n");
    assert_eq!(said(&["report", "a.json", "-o", "b.md"]), "beside report a.json -o b.md\n");
}

#[test]
fn help_names_both() {
    let dir = dir();
    let ran = fastmap(dir.path(), "--help");
    ran.succeeded();
    assert!(ran.stdout.contains("\n  bench ") && ran.stdout.contains("\n  report "), "{}", ran.stdout);
}
