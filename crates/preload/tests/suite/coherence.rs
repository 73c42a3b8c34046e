//! One file, mapped and at the same time changed by system calls and streams: `programs/coherence.c` compares all with a shadow.
//! The case `buffered` has no descriptor for direct I/O, `operations` has. FASTMAP_SEED runs other steps.

use crate::common;
use crate::effort::quick_or_full;

/// Runs one case on the kernel's map, and on the engine's with a cache of a few pages, from several seeds, or from one.
fn coherence(case: &str, seeds: std::ops::Range<u64>, steps: &str) {
    if !common::ready() {
        return;
    }
    let folder = common::folder();
    let program = common::compile(folder.path(), "coherence.c", &[]);
    let first = std::env::var("FASTMAP_SEED").map_or(seeds.start, |seed| seed.parse().expect("a number"));
    for seed in first..first + quick_or_full(1, seeds.end - seeds.start) {
        for library in [None, Some(common::library())] {
            let cache = format!("{}KiB", 64 << (seed % 3));
            let mut command = common::command(&program, library, &[("FASTMAP_CACHE", &cache)]);
            command.arg(case).arg(folder.path().join("data")).env("SEED", seed.to_string()).env("STEPS", steps);
            let what = format!(
                "{case}, seed {seed}, {}",
                if library.is_some() { "with the library" } else { "on the kernel" }
            );
            common::expect_success(&what, &command.output().expect("timeout"));
        }
    }
}

#[test]
fn buffered() {
    coherence("buffered", 1..3, "2500");
}

#[test]
fn operations() {
    coherence("operations", 3..7, "2500");
}

#[test]
fn threads() {
    coherence("threads", 1..4, "8000");
}

#[test]
fn appends() {
    coherence("appends", 1..4, "1");
}
