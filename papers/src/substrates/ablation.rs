//! Loads that the mechanisms of the engine are for, each run with all of them and with one left out: what the FastMap paper
//! shows in its figure 6, and says of batched TLB invalidations.
//!
//! They are loads of [`crate::substrates::run()`].

use fastmap::{CacheBuilder, Mechanism};
use serde::{Deserialize, Serialize};

use crate::substrates::engine::{self, Access, Cached, Load, Setup};
use crate::substrates::measure::{self, Shadow};
use crate::substrates::run::checked;
use crate::substrates::{Engine, Meter, Op, Pattern, Reading, Result, Spec};
use fastmap_bench::names;

/// What the fastmap engine does without.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Off {
    /// Credits, clean queues and buffers of each core's own: all cores share one of each.
    PerCore,
    /// Batches of 512 pages when room is made: 64.
    #[serde(rename = "batch-64")]
    Batch64,
    /// Batches of 512 pages when room is made: each page is dropped alone, with a TLB flush of its own.
    #[serde(rename = "batch-1")]
    Batch1,
    /// One write-protection, and TLB flush, for many pages that are written back: each is protected alone.
    Protection,
    /// Stripes of the file with VMAs, and so locks, of their own: one VMA.
    Stripes,
    /// One write for neighbouring dirty pages: each is written alone.
    Merging,
    /// Readahead of any kind.
    Readahead,
    /// Pages that are read being writable at once where stores follow.
    Habits,
}

names!(Off, "mechanism", {
    PerCore => "per-core", Batch64 => "batch-64", Batch1 => "batch-1", Protection => "protection", Stripes => "stripes",
    Merging => "merging", Readahead => "readahead", Habits => "habits",
});

impl Off {
    /// The engine's set-up without it.
    fn setup(self) -> Setup {
        let cache: fn(CacheBuilder) -> CacheBuilder = match self {
            Off::PerCore => |cache| cache.without(Mechanism::PerCore),
            Off::Batch64 => |cache| cache.evict_batch(64),
            Off::Batch1 => |cache| cache.evict_batch(1),
            Off::Protection => |cache| cache.without(Mechanism::BatchedProtection),
            Off::Stripes => |cache| cache.without(Mechanism::Stripes),
            Off::Merging => |cache| cache.without(Mechanism::MergedWrites),
            Off::Habits => |cache| cache.without(Mechanism::StorePrediction),
            Off::Readahead => return Setup { readahead: false, ..Setup::default() },
        };
        Setup { cache, ..Setup::default() }
    }
}

/// A load.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Work {
    /// Loads of random pages.
    RandomRead,
    /// Stores to random pages.
    RandomWrite,
    /// Read-modify-write of pages, zipf.
    Rmw,
    /// A fresh file filled front to back, and flushed.
    Fill,
    /// A scan upwards.
    Forward,
    /// A scan downwards.
    Backward,
    /// Every 16th page.
    Stride,
}

names!(Work, "load", {
    RandomRead => "random-read", RandomWrite => "random-write", Rmw => "rmw", Fill => "fill",
    Forward => "forward", Backward => "backward", Stride => "stride",
});

impl Work {
    /// Which pages, and what is done to each.
    pub fn is(self) -> (Pattern, Op) {
        match self {
            Work::RandomRead => (Pattern::Random, Op::Read),
            Work::RandomWrite => (Pattern::Random, Op::Write),
            Work::Rmw => (Pattern::Zipf, Op::Rmw),
            Work::Fill => (Pattern::Fill, Op::Write),
            Work::Forward => (Pattern::Forward, Op::Read),
            Work::Backward => (Pattern::Backward, Op::Read),
            Work::Stride => (Pattern::Stride, Op::Read),
        }
    }

    /// Whether it is for many threads; otherwise one does it.
    pub fn is_for_threads(self) -> bool {
        matches!(self, Work::RandomRead | Work::RandomWrite | Work::Rmw)
    }

    /// The mechanisms that can matter for it.
    pub fn needs(self) -> &'static [Off] {
        use Off::*;
        match self {
            Work::RandomRead => &[PerCore, Batch64, Batch1, Stripes],
            Work::RandomWrite => &[PerCore, Batch1, Protection, Stripes, Merging],
            Work::Rmw => &[PerCore, Protection, Habits],
            Work::Fill => &[Protection, Merging],
            Work::Forward | Work::Backward | Work::Stride => &[Readahead],
        }
    }

    /// Kernel mmap with the advice that suits it.
    pub fn kernel(self) -> Engine {
        match self {
            Work::Forward | Work::Fill => Engine::MmapSequential,
            // Without advice it goes backward by chunks.
            Work::Backward => Engine::Mmap,
            Work::RandomRead | Work::RandomWrite | Work::Rmw | Work::Stride => Engine::MmapRandom,
        }
    }
}

/// One run.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Order {
    /// The load's pattern, operation and all else.
    pub spec: Spec,
    /// The load.
    pub work: Work,
    /// What its fastmap engine does without.
    pub off: Option<Off>,
}

/// Runs `order` in this process.
///
/// # Errors
///
/// As [`crate::substrates::run()`].
pub fn run(order: &Order, meter: &Meter) -> Result<Reading> {
    let Order { spec, off, .. } = order;
    let setup = off.map_or_else(Setup::default, Off::setup);
    checked(spec, meter, |shadow| engine::with_setup(spec, &setup, Measure { spec, shadow, meter }))
}

struct Measure<'a> {
    spec: &'a Spec,
    shadow: &'a Shadow,
    meter: &'a Meter,
}

impl Load for Measure<'_> {
    type Output = Reading;

    fn over<A: Access>(self, access: &A, cached: Option<&Cached<'_>>) -> Result<Reading> {
        measure::measure(self.spec, access, self.shadow, cached, self.meter)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::substrates::{Advice, prepare};

    const PAGES: u64 = 4096;

    fn stamped() -> tempfile::NamedTempFile {
        let file = tempfile::NamedTempFile::new_in(env!("CARGO_MANIFEST_DIR")).unwrap();
        prepare::fill(file.as_file(), "file", 0, PAGES, prepare::stamp_page, |_| true).unwrap();
        file
    }

    fn order(file: &tempfile::NamedTempFile, work: Work, off: Option<Off>) -> Order {
        let (pattern, op) = work.is();
        let epoch = prepare::next_epoch(file.as_file(), "file").unwrap();
        if work == Work::Fill {
            prepare::make_sparse(file.as_file(), "file", PAGES).unwrap();
        }
        let spec = Spec {
            engine: Engine::Fastmap,
            pattern,
            op,
            threads: if work.is_for_threads() { 2 } else { 1 },
            advice: Advice::Normal,
            path: file.path().to_owned(),
            label: "file".to_owned(),
            pages: PAGES,
            memory: None,
            seconds: 0.2,
            epoch,
            cold: false,
        };
        Order { spec, work, off }
    }

    /// What was left out shows in the engine's own counts.
    #[test]
    fn every_load_runs_right_without_each_of_its_mechanisms() {
        let file = stamped();
        for &name in Work::NAMES {
            let work: Work = name.parse().unwrap();
            for off in std::iter::once(None).chain(work.needs().iter().copied().map(Some)) {
                let label = format!("{work} without {off:?}");
                let run = run(&order(&file, work, off), &Meter::default()).unwrap_or_else(|e| panic!("{label}: {e}"));
                let counters = run.fastmap.unwrap().counters;
                assert!(run.ops > 0 && run.cpu_us_per_op >= 0.0, "{label}");
                match off {
                    Some(Off::Batch1) => assert_eq!(counters.evicted_pages, counters.eviction_batches, "{label}"),
                    Some(Off::Merging) => {
                        let writeback = run.writeback.unwrap();
                        assert!(writeback.pages > 0 && writeback.runs == writeback.pages, "{label}: {writeback:?}");
                    }
                    Some(Off::Readahead) => assert_eq!((counters.ahead_pages, counters.streams), (0, 0), "{label}"),
                    None if work == Work::Fill => assert!(run.writeback.unwrap().merge_ratio > 2.0, "{label}"),
                    None if work == Work::RandomRead => {
                        assert!(counters.evicted_pages > 2 * counters.eviction_batches, "{label}: {counters:?}");
                    }
                    _ => {}
                }
            }
        }
    }

    #[test]
    fn names_in_json_are_those_of_the_command_line() {
        for name in Off::NAMES {
            assert_eq!(serde_json::to_string(&name.parse::<Off>().unwrap()).unwrap(), format!("\"{name}\""));
        }
        for name in Work::NAMES {
            assert_eq!(serde_json::to_string(&name.parse::<Work>().unwrap()).unwrap(), format!("\"{name}\""));
        }
    }
}
