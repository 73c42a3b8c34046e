//! All calls on mappings at once, by many threads over overlapping parts of three files: `programs/all_calls.c`.
//! FASTMAP_SEED runs other steps; STEPS, ROUNDS, THREADS and PROCESSES are taken from the environment, for longer runs by hand.

use crate::common;
use crate::effort::quick_or_full;

fn all_calls(processes: &str, threads: &str, steps: u64, own: &str) {
    if !common::ready() {
        return;
    }
    let folder = common::folder();
    let program = common::compile(folder.path(), "all_calls.c", &[]);
    let first = std::env::var("FASTMAP_SEED").map_or(1, |seed| seed.parse().expect("a number"));
    for seed in first..first + quick_or_full(1, 6) {
        for library in [None, Some(common::library())] {
            let mut command = common::command(&program, library, &[("FASTMAP_CACHE", "8MiB"), ("FASTMAP_OWN", own)]);
            command.arg("stress").arg(folder.path().join("data")).env("SEED", seed.to_string());
            for (name, value) in [("THREADS", threads), ("PROCESSES", processes), ("STEPS", &steps.to_string())] {
                command.env(name, std::env::var(name).unwrap_or(value.into()));
            }
            let what =
                format!("{processes} processes of {threads} threads, seed {seed}, library {}", library.is_some());
            common::expect_success(&what, &command.output().expect("timeout"));
        }
    }
}

#[test]
fn of_two_threads() {
    all_calls("1", "2", 1200, "*");
}

#[test]
fn of_eight_threads() {
    all_calls("1", "8", 400, "*");
}

/// Nobody owns the files: the kernel has them, under the library.
#[test]
fn of_three_processes() {
    all_calls("3", "2", 800, "");
}
