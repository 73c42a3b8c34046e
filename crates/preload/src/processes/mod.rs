//! Other processes: what comes after this program, or beside it, reads files, not the cache.
//!
//! Before the process ends, executes another program or makes a process, dirty pages are written back. A child made by
//! fork(2) gets kernel mappings at the same places (`fastmap::by_address::in_child`): by pthread_atfork(3), which covers
//! fork(3) and all that the C library calls it for (daemon(3), forkpty(3)), and by wrapping `_Fork` and clone(2)
//! without `CLONE_VM`, which it does not cover. A child that shares the memory (vfork(2), posix_spawn(3)) has the maps
//! too: nothing is to be done for it, and it must not save anything itself, being another process until it executes a
//! program.
//!
//! `fork.rs` makes children with a copy of the memory, `spawn.rs` those without, `exec.rs` executes programs, `exit.rs`
//! ends, `rights.rs` has the engine's threads give up what the program gives up, and `sandbox.rs` takes the engine out of a
//! process that cannot have it beside it. Calls `own`, `next`, `copy`,
//! `report`, `signals`, `heap` and `mappings`.

pub(crate) mod exec;
pub(crate) mod exit;
pub(crate) mod fork;
pub(crate) mod rights;
pub(crate) mod sandbox;
mod spawn;

use crate::own::{owner, undisturbed};
use crate::report;
use fastmap::by_address;

/// Writes dirty pages back before another program runs, which may read the files.
pub(crate) fn save() {
    report::note_child();
    save_files();
}

fn save_files() {
    if owner::owns_maps() {
        undisturbed((), by_address::save_all);
    }
}
