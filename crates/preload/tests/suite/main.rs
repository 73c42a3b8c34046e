//! The preload library from outside: C programs that run on the kernel's maps and on the engine's.

#[macro_use]
mod common;
#[path = "../../../engine/tests/suite/effort.rs"]
mod effort;

mod all_calls;
mod allocator;
mod alone;
mod by_number;
mod coherence;
mod descriptors;
mod direct;
mod group;
mod io;
mod limits;
mod maps;
mod objects;
mod others;
mod peek;
mod private;
mod process;
mod sanitized;
mod scarce;
mod signals;
mod stores;
mod survival;
mod unserved;
mod verdicts;
