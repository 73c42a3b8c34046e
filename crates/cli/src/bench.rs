//! `fastmap bench`: fair comparisons, one process and one memory cgroup a run.
//!
//! `micro`, `updates`, `replacement`, `sync` and `tour` say what to run; `target` makes the file; `session` runs one engine once,
//! through `worker` in a fresh process; `report` turns repetitions into medians; `table` shows them.

pub mod micro;
pub mod replacement;
mod report;
mod session;
pub mod sync;
pub mod table;
mod target;
pub mod tour;
pub mod updates;
pub mod worker;
