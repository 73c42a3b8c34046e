//! What is larger than an experiment: key-value stores, a graph, TPC-C, MonetDB; beside what `fastmap-bench` has.

pub use fastmap_bench::substrates::*;

pub mod ablation;
pub mod btree;
pub mod graph;
mod heap;
pub mod kv;
pub mod olap;
mod persist;
pub mod study;
pub mod sync;
pub mod tpcc;
pub mod updates;
pub mod ycsb;

/// A test cannot run here: told, and where CI runs a failure.
#[cfg(test)]
#[track_caller]
pub fn skipped(why: &str) {
    assert!(std::env::var("CI").as_deref() != Ok("true"), "cannot run in CI: {why}");
    eprintln!("skipped: {why}");
}
