//! `fastmap bench`: fair comparisons, one process and one memory cgroup a run.
//!
//! A module an experiment says what to run; `target` makes the file; `session` runs one engine once on it; `runner` makes the fresh
//! process, which `worker` is; `summary` turns repetitions into medians; `table` shows them, `figures` draws them.

pub mod ablation;
pub mod breakdown;
mod faulting;
mod figures;
pub mod graph;
pub mod kv;
pub mod micro;
pub mod olap;
pub mod oltp;
pub mod peers;
pub mod replacement;
pub mod runner;
pub mod scale;
mod session;
pub mod study;
mod summary;
pub mod sync;
pub mod table;
mod target;
pub mod tour;
pub mod updates;
pub mod worker;
