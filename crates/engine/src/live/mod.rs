//! Counters of a program's caches and maps, on request: of the program itself ([`snapshot_of_self`]), or of another process ([`programs`],
//! [`Program`]), as `fastmap top` does.
//!
//! Counters stay where they are counted, per core. With its first cached file, or the first that it flushes by cache line, a process makes
//! a page that others can map (`live/page.rs`), and a thread. When somebody asks through that page, the thread copies the counters into it.
//! While nobody asks, nothing is copied and the thread sleeps.
//!
//! **Hits cannot be counted.** A load or store that finds its page in memory does not trap and runs no code of the engine; the kernel shows
//! no accessed bits of such memory to user space. So there is no hit rate here. These can be known:
//!
//! * misses: each a trap, or a pin that found nothing;
//! * traps that found their page read ahead ([`Stats::ahead_chunks`](crate::Stats::ahead_chunks));
//! * first stores to clean pages ([`Stats::upgrades`](crate::Stats::upgrades));
//! * misses on pages that were evicted a short while before ([`Stats::ghost_hits`](crate::Stats::ghost_hits)): where these are many, a
//!   larger cache would have kept the pages.
//!
//! May call: `requirements` and the rooms above it.

mod objects;
mod page;
mod programs;
mod snapshot;

pub use crate::counters::per_map::MapStats;
pub use objects::{Objects, count_also, count_objects, counted};
pub use programs::{Program, programs};
pub use snapshot::*;
