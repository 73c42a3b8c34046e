//! Counters, and nothing that acts on them.
//!
//! Owns the counters of a cache, of a map and of a processor. May call: `sys`, `page`.

mod numbers;
pub mod per_cpu;
pub mod per_map;
pub mod stats;
