//! The loads that `fastmap bench` runs: which pages are touched ([`Pattern`]), what is done to each ([`Op`]), through
//! what ([`Engine`]), and how every byte is proved right afterwards ([`stamp`]).
//!
//! One call of [`run()`] is one measurement in the calling process: it opens the file, warms the engine up, measures for
//! a given time (or, with [`Pattern::Fill`], until a file is written), lets go of the map, and, where the load wrote,
//! reads the whole file back and checks it; [`sync()`] is another kind, of stores that are flushed at once. Isolation (a
//! fresh process, a memory limit, a cold cache) is the caller's affair; [`cold`] and [`prepare`] help with it.

pub mod ablation;
pub mod btree;
pub mod cold;
mod device;
mod engine;
mod error;
pub mod faults;
pub mod graph;
mod heap;
pub mod kv;
mod measure;
pub mod olap;
mod pattern;
pub mod peers;
mod persist;
pub mod prepare;
mod readback;
mod replay;
mod run;
mod spec;
pub mod stamp;
pub mod study;
mod sync;
mod sys;
pub mod tpcc;
mod traces;
pub mod updates;
pub mod ycsb;
mod zipf;

pub use engine::capacity_for;
pub use engine::{least_memory, memory_for};
pub use error::{Error, Result};
pub use pattern::{Pattern, STRIDE_PAGES, Sequence};
pub use replay::{Replay, Replayed, replay};
pub use run::run;
pub use spec::{Advice, Counters, DeviceReport, Engine, FastmapReport, Hits, LatencyUs, Op, Outcome, Readahead, Spec};
pub use spec::{Unknown, Writeback};
pub use sync::{Medium, SyncSpec, SyncWork, Synced, Syncer, sync};
pub use traces::{SHIFT, Touches, Trace};
pub use zipf::Zipf;

/// Bytes in a page, the unit of every load.
pub const PAGE: usize = 4096;
