//! `fastmap doctor` and the help, as a user sees them.

use crate::prompt::{dir, fastmap, files_in, skipped};
use serde_json::Value;

#[test]
fn doctor_says_what_is_there_and_its_status_agrees() {
    let dir = dir();
    let ran = fastmap(dir.path(), "doctor");
    let can = ran.stdout.contains("\nSteering works here");
    let cannot = ran.stdout.contains("does not work here:\n");
    assert!(can != cannot, "{}{}", ran.stdout, ran.stderr);
    assert_eq!(ran.status, Some(if can { 0 } else { 1 }));
    let parts = [
        "ms (median); readahead ",
        "\nSteering",
        "touched pages",
        "\nThe engine",
        "userfaultfd",
        "unshare",
        "memory cgroup",
    ];
    let places = parts.map(|part| ran.stdout.find(part).unwrap_or_else(|| panic!("{part}: {}", ran.stdout)));
    assert!(places.is_sorted(), "{}", ran.stdout);
    assert!(files_in(dir.path()).is_empty());
    ran.left_no_cgroup();
}

#[test]
fn what_is_not_there_is_told() {
    let dir = dir();
    fastmap(dir.path(), "doctor no/such").failed_with(1, &["no/such: cannot be looked at", "name a readable file"]);
    fastmap(dir.path(), "frobnicate").failed_with(2, &["frobnicate", "see `fastmap --help`"]);
}

/// Steering needs no folder to write in.
#[test]
fn the_machine_is_looked_at_from_a_folder_that_cannot_be_written() {
    let ran = fastmap(std::path::Path::new("/proc/self"), "doctor --json");
    ran.succeeded();
    let out: Value = serde_json::from_str(&ran.stdout).unwrap();
    assert_eq!(out["can_steer"].as_bool(), Some(true));
    fastmap(std::path::Path::new("/"), "doctor /proc/self").failed_with(1, &["/proc/self: cannot be written"]);
}

#[test]
fn files_in_memory_need_no_cache() {
    let Ok(dir) = tempfile::tempdir_in("/dev/shm") else { return skipped("no folder in /dev/shm") };
    let ran = fastmap(dir.path(), "doctor");
    ran.succeeded();
    assert!(ran.stdout.contains("maps them straight") && !ran.stdout.contains("MISSING"), "{}", ran.stdout);
    assert!(!ran.stdout.contains("A read of 4 KiB"), "no storage: {}", ran.stdout);
    let ran = fastmap(dir.path(), "doctor --json");
    let out: Value = serde_json::from_str(&ran.stdout).unwrap();
    assert_eq!((out["in_memory"].as_bool(), out["can_cache"].as_bool()), (Some(true), Some(false)));
}

#[test]
fn doctor_in_json() {
    let dir = dir();
    let ran = fastmap(dir.path(), "doctor --json");
    let out: Value = serde_json::from_str(&ran.stdout).unwrap();
    assert_eq!(out["can_steer"].as_bool().unwrap(), ran.status == Some(0));
    assert!(out["can_cache"].is_boolean() && out["machine"]["read_ahead_kb"].is_u64());
    assert!((1e-7..10.0).contains(&out["read_s"].as_f64().unwrap()), "{out}");
    let findings = ["steering", "findings"].map(|list| out[list].as_array().unwrap().clone()).concat();
    assert!(findings.len() > 10);
    for finding in findings {
        for field in ["name", "purpose", "detail"] {
            assert!(!finding[field].as_str().unwrap().is_empty(), "{finding}");
        }
        assert!(finding["ok"].is_boolean() && finding["optional"].is_boolean());
        assert!(finding["ok"] == true || !finding["remedy"].as_str().unwrap().is_empty(), "{finding}");
    }
}

#[test]
fn help_goes_to_standard_output() {
    let dir = dir();
    for line in ["--help", "run --help", "top --help", "doctor --help", "--version"] {
        let ran = fastmap(dir.path(), line);
        ran.succeeded();
        assert!(ran.stderr.is_empty() && !ran.stdout.is_empty(), "{line}");
    }
}
