//! The loads, and what they are done through: which pages are touched ([`Pattern`]), what is done to each ([`Op`]), by whom
//! ([`Engine`]), and how every byte is proved right afterwards ([`stamp`]); and what is larger than an experiment: key-value stores,
//! a graph, TPC-C, MonetDB, databases.
//!
//! One call of a load's `run` is one measurement in the calling process: it opens the file, warms the engine up, measures
//! ([`Meter`]), lets go of the map, and, where the load wrote, reads the whole file back and checks it. Isolation (a fresh process, a
//! memory limit, a cold cache) is the driver's affair; [`cold`] and [`prepare`] help with it.

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

/// A test cannot run here: told, and where CI runs a failure.
#[cfg(test)]
#[track_caller]
pub fn skipped(why: &str) {
    assert!(std::env::var("CI").as_deref() != Ok("true"), "cannot run in CI: {why}");
    eprintln!("skipped: {why}");
}
