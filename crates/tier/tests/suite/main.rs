//! Local copies from outside. One executable, so that tests overlap; what ends a process, or changes what is the whole process's, has a `role` in
//! its file for a child, which is this program run again.

#[macro_use]
mod common;
#[path = "../../../engine/tests/suite/effort.rs"]
mod effort;
#[path = "../../../engine/tests/suite/loops.rs"]
mod loops;
#[path = "../../../engine/tests/suite/random.rs"]
mod random;

mod asking;
mod copies;
mod damage;
mod disks;
mod eviction;
mod folders;
mod killed;
mod property;
