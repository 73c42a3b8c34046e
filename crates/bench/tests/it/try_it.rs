//! `fastmap bench try`, short and real.

use std::path::Path;
use std::process::Command;
use std::thread::sleep;
use std::time::{Duration, Instant};

use crate::FASTMAP;
use crate::prompt::{dir, fastmap, files_in, finish, run_in, skipped, start_in};

/// Whether `fastmap run` can be had.
fn beside() -> bool {
    let there = ["fastmap", "libfastmap_steer.so"].iter().all(|file| Path::new(FASTMAP).with_file_name(file).exists());
    if !there {
        skipped("fastmap and its library are not beside fastmap-bench: `make build PROFILE=dev`");
    }
    there
}

#[test]
fn it_says_what_was_gained_or_that_nothing_was() {
    if !beside() {
        return;
    }
    let dir = dir();
    // What the environment asks for is not what is tried.
    let line = ["try", "--seconds", "1", "--size", "32MiB", "--dir", "."];
    let ran = run_in(dir.path(), Command::new(FASTMAP).args(line).env("FASTMAP_FAULTS", "nonsense"));
    ran.succeeded();
    let said = ran.stdout;
    assert!(said.starts_with("A program that maps a file of 32MiB and looks keys up in it, with "), "{said}");
    for row in ["\nkernel mmap  ", "\nfastmap run  "] {
        assert!(said.contains(row), "{said}");
    }
    let gained = said.contains("\nUnder `fastmap run` ");
    let nothing = said.contains("\nNothing was gained here: ") || said.contains("\nNothing could be gained here");
    assert!(gained != nothing, "{said}");
    assert_eq!(said.contains("NO LIMIT on memory"), said.contains("Nothing could be gained"), "{said}");
    let compared = said.split_once("The first ").and_then(|(_, rest)| rest.split_once(" lookups")).unwrap().0;
    assert!(compared.parse::<u64>().unwrap() >= 256, "{said}");
    assert!(files_in(dir.path()).is_empty());
}

#[test]
fn what_it_needs_is_said() {
    let dir = dir();
    for (flags, parts) in [
        ("--size 5000", &["--size", "too small or no multiple of 1 MiB", "give 16MiB"][..]),
        ("--size 17000KiB", &["--size", "give 17MiB"]),
        ("--seconds 0", &["--seconds", "give 0.01 to 86400"]),
        ("--repeat 2", &["--repeat"]),
    ] {
        fastmap(dir.path(), &format!("try {flags}")).failed_with(2, parts);
    }
    fastmap(dir.path(), "try --size 16MiB --dir no/such")
        .failed_with(1, &["no/such", "cannot make a directory", "--dir"]);
    fastmap(dir.path(), "try --size 1024TiB --dir .").failed_with(1, &["MiB left", "are needed", "make room"]);
    let line = ["try", "--size", "16MiB", "--dir", "."];
    let ran = run_in(dir.path(), Command::new(FASTMAP).env("PATH", dir.path()).args(line));
    ran.failed_with(1, &["lookups (cc: ", "install gcc"]);
    assert!(files_in(dir.path()).is_empty());
}

#[test]
fn interrupted_it_leaves_nothing() {
    if !beside() {
        return;
    }
    let dir = dir();
    let line = ["try", "--seconds", "60", "--size", "16MiB", "--dir", "."];
    let child = start_in(dir.path(), Command::new(FASTMAP).args(line));
    // The table: the first run has begun, or is about to.
    let table = || {
        let data = files_in(dir.path()).first().map(|own| dir.path().join(own).join("data/table"));
        data.and_then(|table| table.metadata().ok()).is_some_and(|table| table.len() > 15 << 20)
    };
    let began = Instant::now();
    while !table() {
        assert!(began.elapsed() < Duration::from_secs(60), "no file was made");
        sleep(Duration::from_millis(20));
    }
    sleep(Duration::from_millis(500));
    let killed = Command::new("kill").args(["-TERM", &child.id().to_string()]).status();
    assert!(killed.unwrap().success());
    finish(child).failed_with(1, &["interrupted", "nothing was left behind"]);
    assert!(files_in(dir.path()).is_empty());
}
