//! Other processes. A program that runs after this one, or beside it, reads files, not the cache. So dirty pages are
//! written back before the process ends, executes another program or makes a process.
//!
//! A child made by fork(2) gets kernel mappings at the same places (`fastmap::by_address::in_child`). pthread_atfork(3)
//! sees to this for the C library's fork(3), and for all that the C library calls it for (daemon(3), forkpty(3)). It
//! does not cover `_Fork` and clone(2) without `CLONE_VM`, so these are wrapped.
//!
//! A child that shares the memory (vfork(2), posix_spawn(3)) has the maps too, so nothing is to be done for it. It is
//! another process until it executes a program, so it must not save anything itself.
//!
//! `fork.rs` makes children with a copy of the memory, `spawn.rs` children without. `exec.rs` executes programs.
//! `exit.rs` ends the process. `rights.rs` has the engine's threads give up the capabilities that the program gives up.
//! `sandbox.rs` takes the engine out of a process in which it cannot stay.
//!
//! This room calls `own`, `next`, `copy`, `report`, `signals`, `heap`, `mappings` and `threads`.

pub(crate) mod exec;
pub(crate) mod exit;
pub(crate) mod fork;
pub(crate) mod rights;
pub(crate) mod sandbox;
mod spawn;

use crate::own::{owner, undisturbed};
use crate::report;
use fastmap::by_address;

/// Writes dirty pages back. Called before another program runs, which may read the files.
pub(crate) fn save() {
    report::note_child();
    save_files();
}

fn save_files() {
    if owner::owns_maps() {
        undisturbed((), by_address::save_all);
    }
}
