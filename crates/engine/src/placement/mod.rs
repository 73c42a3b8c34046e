//! Placement: whether the kernel serves a file mapping, the kernel with learned advice, or the engine.
//!
//! The kernel first, the engine on evidence. `controller.rs` owns the judgement, and no act: what was seen goes in, a way comes out.
//! `watch.rs` owns the thread that looks, `act.rs` what it does, `known.rs` and `asked.rs` what it is told by the program's calls; `own.rs` is how maps of the C library and of Rust come to it, `calls.rs` what the
//! latter's methods do. May call: all rooms.
//!
//! What pays is found by trying. No rule on what a program looks like was right twice: `MADV_RANDOM` makes LMDB with memory for a
//! quarter seven times as fast and numpy half, and the engine is ahead of it in one and behind in the other. What a program achieves,
//! though, shows in its user-mode time, whatever it does.

mod act;
mod asked;
mod calls;
mod controller;
#[cfg(all(test, not(loom)))]
mod controller_tests;
mod known;
mod look;
mod own;
mod progress;
mod watch;

pub use own::{Entered, Moving, enter, enter_named, has_engine, look_after, note_advice, note_backward, note_kernels};
pub use watch::{Face, Then, begin, dismiss, divide, is_put_off, is_watching, watch, watch_grown};
