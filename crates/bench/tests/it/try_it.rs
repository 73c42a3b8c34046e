//! `fastmap bench try`, short and real.

use std::path::Path;
use std::process::Command;
use std::thread::sleep;
use std::time::{Duration, Instant};

use crate::FASTMAP;
use crate::prompt::{dir, fastmap, files_in, finish, run_in, skipped, start_in};

/// Whether `fastmap run` can be had.
fn beside() -> bool {
    let there = Path::new(FASTMAP).with_file_name("fastmap").exists();
    if !there {
        skipped("fastmap is not beside fastmap-bench: `make build PROFILE=dev`");
    }
    there
}

#[test]
fn it_says_what_it_needs_and_what_was_gained() {
    if !beside() {
        return;
    }
    let dir = dir();
    // What the environment asks for is not what is tried.
    let line = ["try", "--seconds", "0.3", "--size", "16MiB", "--dir", "."];
    let ran = run_in(dir.path(), Command::new(FASTMAP).args(line).env("FASTMAP_FAULTS", "nonsense"));
    if ran.status == Some(1) && ran.stderr.contains("nothing can be tried here: ") {
        return skipped(&ran.stderr);
    }
    ran.succeeded();
    let (needs, rest) = ran.stdout.split_once("  times\n").unwrap();
    for part in ["\ntime    about ", "\ndisk    ", ", readahead ", "\nmemory  "] {
        assert!(needs.contains(part), "{needs}");
    }
    let (rows, sentence) = rest.split_once("\n\n").unwrap();
    assert!((1..=4).contains(&rows.lines().count()), "{rows}");
    assert_eq!(rows.lines().count() < 4, needs.contains("left out: ") || needs.contains("memory cannot"), "{needs}");
    for row in rows.lines() {
        assert!(row.chars().count() <= 80, "{row}");
        let (name, figures) = row.split_once("  ").unwrap();
        assert!(needs.contains(&format!("\n{name}  ")) && sentence.contains(name), "{row}\n{sentence}");
        assert!(figures.contains("/s") || figures.contains(" s "), "{row}");
    }
    assert!(sentence.starts_with("On this machine (readahead ") && sentence.ends_with(".\n"), "{sentence}");
    assert!(files_in(dir.path()).is_empty());
}

#[test]
fn what_is_wrong_is_said() {
    let dir = dir();
    for (flags, parts) in [
        ("--size 5000", &["--size", "too small or no multiple of 1MiB", "give 16MiB"][..]),
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
    ran.failed_with(1, &["nothing can be tried here: ", "a load from slow storage: "]);
    assert!(files_in(dir.path()).is_empty());
}

#[test]
fn interrupted_it_leaves_nothing() {
    if !beside() {
        return;
    }
    let dir = dir();
    let line = ["try", "--seconds", "60", "--size", "16MiB", "--dir", "."];
    let mut child = start_in(dir.path(), Command::new(FASTMAP).args(line));
    // The first program's data: its first run has begun, or is about to.
    let data = || {
        let own = files_in(dir.path()).first().map(|own| dir.path().join(own).join("data"));
        own.and_then(|data| data.read_dir().ok()).is_some_and(|mut files| files.next().is_some())
    };
    let began = Instant::now();
    while !data() {
        if child.try_wait().unwrap().is_some() {
            let ran = finish(child);
            assert!(ran.stderr.contains("nothing can be tried here: "), "{}", ran.stderr);
            return skipped(&ran.stderr);
        }
        assert!(began.elapsed() < Duration::from_secs(60), "no data were made");
        sleep(Duration::from_millis(20));
    }
    sleep(Duration::from_millis(500));
    let killed = Command::new("kill").args(["-TERM", &child.id().to_string()]).status();
    assert!(killed.unwrap().success());
    let ran = finish(child);
    assert_eq!(ran.status, Some(1), "{}", ran.stderr);
    assert!(ran.stderr.contains("interrupted") && ran.stderr.contains("nothing was left behind"), "{}", ran.stderr);
    ran.left_no_cgroup();
    assert!(files_in(dir.path()).is_empty());
}
