//! The command as a user meets it: one test program.

mod attach;
mod bad_input;
mod bench;
mod cache;
mod doctor;
#[path = "../../../preload/tests/suite/group.rs"]
mod group;
mod keepers;
mod prompt;
mod prose;
mod run;
mod steered;
mod terminal;
mod top;
mod untouched;
mod warm;

/// What is tested.
pub const FASTMAP: &str = env!("CARGO_BIN_EXE_fastmap");
