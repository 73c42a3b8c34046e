//! How much the tests do, and what they may leave out: read here for all crates.

#![allow(dead_code)] // each crate uses its own part

use std::fmt::Display;
use std::io::Write;
use std::time::Duration;

/// How much is done: durations, moments at which programs are killed, random cases. The environment variable `FASTMAP_EFFORT`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Effort {
    /// `quick`, which is the default: what a change needs to be trusted.
    Quick,
    /// `full`: what `make test-all` does.
    Full,
}

/// What the environment says.
pub fn effort() -> Effort {
    match std::env::var("FASTMAP_EFFORT").as_deref() {
        Err(std::env::VarError::NotPresent) | Ok("quick") => Effort::Quick,
        Ok("full") => Effort::Full,
        other => panic!("FASTMAP_EFFORT is quick or full, not {other:?}"),
    }
}

/// One of two amounts, by the [`effort`].
pub fn quick_or_full<T>(quick: T, full: T) -> T {
    if effort() == Effort::Quick { quick } else { full }
}

/// How long many threads work on something.
pub fn under_load() -> Duration {
    quick_or_full(Duration::from_millis(700), Duration::from_secs(3))
}

/// Says why a test, or a part of one, does not run here. Where CI runs (`CI=true`) it has to: that is a failure.
pub fn skip(why: impl Display) {
    assert!(std::env::var("CI").as_deref() != Ok("true"), "this has to run where CI runs: {why}");
    // Of a test that runs in a process of its own; otherwise the test's thread has its name.
    let test = std::env::var("FASTMAP_TEST_ALONE").ok();
    let test = test.or_else(|| std::thread::current().name().map(String::from)).unwrap_or_default();
    // Not by eprintln!, which is kept back while a test passes.
    let _ = writeln!(std::io::stderr(), "skipped: {test}: {why}");
}
