//! The loads, and the engines that they run on.
//!
//! * [`Pattern`] is the order in which pages are touched, [`Op`] is the operation on each page, and [`Engine`] is the way to the pages.
//! * [`stamp`] proves every byte right afterwards.
//! * `calls`, `faults`, `loads`, `peers`, `programs` and `replay` are the loads of single experiments.
//!
//! One call of a load's `run` is one measurement, in the calling process. It opens the file, warms up, measures ([`Meter`]), and drops the
//! map. If the load wrote, it reads the whole file back and checks it. The driver provides a fresh process, a memory limit and a cold
//! cache; [`cold`] and [`prepare`] help with that.

pub mod calls;
pub mod cold;
pub mod device;
pub mod engine;
pub mod error;
pub mod faults;
pub mod loads;
pub mod measure;
pub mod meter;
pub mod pattern;
pub mod peers;
pub mod prepare;
pub mod programs;
pub mod readback;
pub mod replay;
pub mod run;
pub mod spec;
pub mod stamp;
pub mod sys;
pub mod traces;
pub mod zipf;

pub use engine::capacity_for;
pub use engine::{least_memory, memory_for};
pub use error::{Error, Result};
pub use meter::{MachineTime, Meter, Reading, resident_peak};
pub use pattern::{Pattern, STRIDE_PAGES, Sequence};
pub use run::run;
pub use spec::{Advice, Counters, DeviceReport, Engine, FastmapReport, Hits, LatencyUs, Op, Readahead, Spec};
pub use spec::{Unknown, Writeback};
pub use traces::{Touches, Trace};
pub use zipf::Zipf;

/// Bytes in a page, the unit of every load.
pub const PAGE: usize = 4096;

/// Reports that a test cannot run here. Fails in CI, where every test must run.
#[cfg(test)]
#[track_caller]
pub fn skipped(why: &str) {
    assert!(std::env::var("CI").as_deref() != Ok("true"), "cannot run in CI: {why}");
    eprintln!("skipped: {why}");
}
