//! Files in memory are mapped straight, and all is as on the kernel, less what msync(2) writes.

use crate::common;
use crate::effort::skip;

use std::path::Path;

const PAGE: u64 = 4096;

/// A folder in memory; else says why a test is skipped.
fn in_memory() -> Option<tempfile::TempDir> {
    let folder = tempfile::tempdir_in("/dev/shm");
    folder.inspect_err(|why| skip(format!("no folder in /dev/shm: {why}"))).ok()
}

/// Whether stores are tracked here: else all that a flush is asked for is written.
fn tracks() -> bool {
    fastmap::requirements::of_machine().iter().any(|one| one.name == "store tracking" && one.found.is_ok())
}

/// A number of the statistics that a program left beside its file.
fn number(folder: &Path, name: &str) -> u64 {
    let stats = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    let stats: Vec<_> = stats.filter(|path| path.to_string_lossy().contains("/stats")).collect();
    assert_eq!(stats.len(), 1, "{stats:?}");
    let text = std::fs::read_to_string(&stats[0]).unwrap();
    let (_, rest) = text.split_once(&format!("\"{name}\":")).unwrap_or_else(|| panic!("{text}"));
    rest.split([',', '}']).next().unwrap().parse().unwrap()
}

/// Runs a case on a file in memory: on the kernel's mapping, and with the library, which then counts this many pages.
fn case(program: &Path, case: &str, variables: &[(&str, &str)], check: impl Fn(&Path)) {
    for library in [None, Some(common::library())] {
        let Some(folder) = in_memory() else { return };
        let stats = folder.path().join("stats");
        let variables = [variables, &[("FASTMAP_STATS", stats.to_str().unwrap())]].concat();
        let mut command = common::command(program, library, &variables);
        command.arg(case).arg(folder.path().join("data"));
        let with = if library.is_some() { "with the library" } else { "on the kernel" };
        common::expect_success(&format!("{case} {with}"), &command.output().expect("timeout"));
        if library.is_some() {
            check(folder.path());
        }
    }
}

/// What msync(2) writes, in pages.
#[test]
fn flushes_are_of_what_was_stored_to() {
    let programs = common::folder();
    let program = common::compile(programs.path(), "direct.c", &[]);
    for (name, mappings, pages) in
        // Of a mapping that was moved some kernels forget what was protected: what is there, and the kernel brings in around it, counts as stored to.
        [
            ("small", 1, 2..=2),
            ("large", 2, 4..=4),
            ("parts", 1, 7..=7),
            ("moved", 2, 4..=40),
            ("child", 1, 2..=2),
            ("cut", 1, 10..=10),
        ]
    {
        case(&program, name, &[("FASTMAP_PERSIST", "cache-lines")], |folder| {
            assert_eq!(number(folder, "direct"), mappings, "{name}");
            if tracks() || name == "small" {
                let written = number(folder, "flushed_bytes");
                assert!(written.is_multiple_of(PAGE) && pages.contains(&(written / PAGE)), "{name}: {written} bytes");
            }
        });
        // Memory that does not outlive the machine needs none of that, and is the kernel's.
        for (variable, value) in [("FASTMAP_PERSIST", "auto"), ("FASTMAP_DIRECT", "never")] {
            case(&program, name, &[(variable, value)], |_| {});
        }
    }
}

/// The engine's own cases.
#[test]
fn mappings_are_as_the_kernels() {
    let programs = common::folder();
    let program = common::compile(programs.path(), "maps.c", &[]);
    for name in [
        "unmap_whole",
        "unmap_part",
        "unmap_across",
        "fixed_over",
        "fixed_under",
        "remap",
        "protect",
        "residency",
        "locking",
        "two_maps",
        "private_beside_shared",
        "past_the_end",
        "offsets",
        "syncing",
        "large_then_small",
        "small_then_large",
        "small_grows",
        "executable",
        "private_only",
        "refused",
    ] {
        case(&program, name, &[("FASTMAP_PERSIST", "cache-lines")], |_| {});
    }
}

#[test]
fn always_is_said_to_be_impossible_on_a_disk() {
    if !common::ready() {
        return;
    }
    let folder = common::folder();
    let program = common::compile(folder.path(), "direct.c", &[]);
    let mut command = common::command(&program, Some(common::library()), &[("FASTMAP_DIRECT", "always")]);
    let output = command.arg("large").arg(folder.path().join("data")).output().expect("timeout");
    common::expect_success("large", &output);
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(said.matches("a file in memory").count(), 1, "{said}");
    assert!(said.contains("data") && said.contains("--direct always"), "{said}");
}
