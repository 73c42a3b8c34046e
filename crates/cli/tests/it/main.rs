//! The command as a user meets it: one test program.

mod attach;
mod bad_input;
mod bench;
mod cache;
mod doctor;
mod prompt;
mod prose;
mod run;
mod terminal;
mod top;
mod warm;

/// What is tested.
pub const FASTMAP: &str = env!("CARGO_BIN_EXE_fastmap");
