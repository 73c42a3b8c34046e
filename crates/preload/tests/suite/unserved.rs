//! A budget that is not applied is said, once a file, with the reason; and a list says who serves what.

use crate::common;

use std::process::Output;

/// Runs one case on a file called `data`; with these variables of the library's.
fn run(case: &str, variables: &[(&str, &str)]) -> Output {
    let folder = common::folder();
    let exe = common::compile(folder.path(), "unserved.c", &[]);
    let output =
        common::command(&exe, Some(common::library()), variables).arg(case).arg(folder.path().join("data")).output();
    let output = output.expect("timeout");
    common::expect_success(case, &output);
    output
}

/// One line about the file, with these words in it.
fn is_said(case: &str, words: &[&str]) {
    is_said_of(case, "*", words);
}

/// The same, of a program that owns these files.
fn is_said_of(case: &str, own: &str, words: &[&str]) {
    if !common::ready() {
        return;
    }
    let own = ("FASTMAP_OWN", own);
    let said = common::said(&run(case, &[own]));
    let is_it = |line: &String| {
        line.starts_with("fastmap: ")
            && line.contains("/data is the kernel's, outside the cache: ")
            && line.contains("; ")
            && words.iter().all(|word| line.contains(word))
    };
    assert!(said.len() == 1 && said.iter().all(is_it), "{case}: {said:?}");
    // Who names other files is not told of this one.
    let other = common::said(&run(case, &[own, ("FASTMAP_MAP", "other")]));
    assert!(other.iter().all(|line| line.contains("no mapped file matches")), "{case}: {other:?}");
    // Whatever the capacity is.
    assert_eq!(common::said(&run(case, &[own, ("FASTMAP_CACHE", "auto")])).len(), 1, "{case}");
}

#[test]
fn private_stores() {
    is_said("stores", &["MAP_PRIVATE, PROT_WRITE"]);
}

#[test]
fn twice() {
    is_said("again", &["a second time"]);
}

#[test]
fn executable() {
    is_said("executable", &["PROT_EXEC"]);
}

#[test]
fn flags() {
    is_said("low", &["MAP_32BIT"]);
}

#[test]
fn advice() {
    is_said("advice", &["MADV_MERGEABLE"]);
}

#[test]
fn holes() {
    is_said("hole", &["MADV_REMOVE"]);
}

#[test]
fn parts() {
    is_said("part", &["mprotect"]);
}

#[test]
fn children() {
    is_said("child", &["fork(2)"]);
}

#[test]
fn files_that_are_written() {
    is_said_of("written", "", &["open to write"]);
}

#[test]
fn what_is_served_small_or_code_is_not_said() {
    if !common::ready() {
        return;
    }
    for case in ["plain", "small", "code"] {
        assert_eq!(common::said(&run(case, &[])), [""; 0], "{case}");
    }
}

#[test]
fn a_list_of_who_serves_what() {
    if !common::ready() {
        return;
    }
    for (case, cache, servers) in [
        ("plain", "1MiB", &["engine"][..]),
        ("plain", "auto", &["engine"]),
        ("small", "1MiB", &["kernel: not more than 1 MiB"]),
        ("code", "1MiB", &["kernel: it is code"]),
        ("part", "1MiB", &["engine", "kernel: a part of it"]),
    ] {
        let output = run(case, &[("FASTMAP_CACHE", cache), ("FASTMAP_LOG", "mappings")]);
        let said = common::said(&output);
        let listed: Vec<_> = said.iter().filter(|line| line.starts_with("fastmap: mappings: ")).collect();
        let fits = |(line, server): (&&String, &&str)| line.contains(&format!("/data: {server}"));
        assert!(listed.len() == servers.len() && listed.iter().zip(servers).all(fits), "{case}: {said:?}");
    }
}

/// A file that was named and mapped, in a way that the engine does not serve, was mapped all the same.
#[test]
fn a_named_file_was_mapped_whoever_serves_it() {
    if !common::ready() {
        return;
    }
    for case in ["stores", "small", "code", "low", "part", "child"] {
        let said = common::said(&run(case, &[("FASTMAP_MAP", "data")]));
        assert!(!said.iter().any(|line| line.contains("no mapped file")), "{case}: {said:?}");
    }
}

/// A program in whose process the engine cannot stay has mapped the file afterwards, and its statistics are not of all that it did.
#[test]
fn what_is_mapped_after_the_engine_has_left_is_not_denied() {
    if !common::ready() {
        return;
    }
    let folder = common::folder();
    let exe = common::compile(folder.path(), "unserved.c", &[]);
    let stats = folder.path().join("stats");
    let mut command = std::process::Command::new("sh");
    // As `fastmap run` does: the shell becomes the program.
    command.args(["-c", "FASTMAP_RUN_PID=$$ LD_PRELOAD=$0 exec \"$@\""]).arg(common::library()).arg(exe).arg("left");
    command.arg(folder.path().join("data"));
    command.env("FASTMAP_CACHE", "1MiB").env("FASTMAP_MAP", "data").env("FASTMAP_STATS", &stats);
    let output = command.output().expect("sh");
    common::expect_success("left", &output);
    let said = common::said(&output);
    assert!(!said.iter().any(|line| line.contains("no mapped file")), "{said:?}");
    let text = std::fs::read_to_string(&stats).expect("statistics");
    assert!(text.contains("\"complete\":false,") && text.contains("left the process"), "{text}");
}
