//! Counters of what happened to the pages of one file, for each core, and their sums once the file is not mapped any more.

use super::numbers::numbers;
use super::stats::Counter;
use crate::sys::cpu;
use crate::sys::sync::Padded;
use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard};

/// Counts of what happened to the pages of one file, as in [`Stats`](crate::Stats).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct MapStats {
    /// Pages in memory.
    pub resident_pages: u64,
    /// Loads, stores and pins that found their page absent.
    pub misses: u64,
    /// Of these, those on pages that had been evicted a short while ago.
    pub ghost_hits: u64,
    /// Pages read ahead that a trap mapped.
    pub ahead_used: u64,
    /// Pages read ahead and dropped untouched.
    pub ahead_wasted: u64,
    /// Pages dropped, to make room or on advice.
    pub evicted_pages: u64,
    /// Pages written back.
    pub writeback_pages: u64,
    /// Pages read together with a missed page before them.
    pub run_pages: u64,
    /// Of these, those that the program came to: an estimate from samples.
    pub run_used: u64,
    /// Bytes that a miss reads at once now. 0: the file is not mapped.
    pub read_size: u64,
}

/// One core's counters of a region.
#[derive(Debug, Default)]
pub struct MapCounters {
    pub misses: Counter,
    pub ghost_hits: Counter,
    /// Pages that came into memory otherwise than by a miss of their own.
    pub brought: Counter,
    pub ahead_used: Counter,
    pub ahead_wasted: Counter,
    /// Pages that left memory, the region's end apart.
    pub dropped: Counter,
    pub writeback_pages: Counter,
    pub run_pages: Counter,
    pub run_used: Counter,
}

impl MapCounters {
    /// A set for each core: a miss touches no other core's line.
    pub fn per_core() -> Box<[Padded<MapCounters>]> {
        (0..cpu::count()).map(|_| Padded::default()).collect()
    }
}

impl MapStats {
    /// Adds another map's.
    pub(crate) fn add(&mut self, other: MapStats) {
        let sums = self.numbers().zip(other.numbers()).map(|((_, one), (_, other))| one + other);
        *self = MapStats { read_size: self.read_size.max(other.read_size), ..MapStats::from_numbers(sums) };
    }

    /// The sums of all cores' counters. Of the present state they hold the pages in memory only.
    pub(crate) fn of(counters: &[Padded<MapCounters>]) -> MapStats {
        let sum = |of: fn(&MapCounters) -> &Counter| counters.iter().map(|core| of(&core.0).get()).sum::<u64>();
        // Read first: otherwise a page that comes and goes in between could be counted as dropped and not as missed.
        let dropped = sum(|of| &of.dropped);
        let misses = sum(|of| &of.misses);
        MapStats {
            resident_pages: (misses + sum(|of| &of.brought)).saturating_sub(dropped),
            misses,
            ghost_hits: sum(|of| &of.ghost_hits),
            ahead_used: sum(|of| &of.ahead_used),
            ahead_wasted: sum(|of| &of.ahead_wasted),
            evicted_pages: dropped,
            writeback_pages: sum(|of| &of.writeback_pages),
            run_pages: sum(|of| &of.run_pages),
            run_used: sum(|of| &of.run_used),
            read_size: 0,
        }
    }
}

numbers!(MapStats: resident_pages, misses, ghost_hits, ahead_used, ahead_wasted, evicted_pages, writeback_pages, run_pages, run_used, read_size);

/// Counts of files that are not mapped any more.
#[derive(Debug, Default)]
pub struct Ended(Mutex<HashMap<PathBuf, MapStats>>);

impl Ended {
    /// Files that are told apart. All further files share one entry.
    const MOST: usize = 1024;
    const OTHERS: &str = "(other files)";

    /// Held while a region ends, so that a snapshot finds either the region or its counts here, and never both.
    pub fn lock(&self) -> MutexGuard<'_, HashMap<PathBuf, MapStats>> {
        self.0.lock().unwrap_or_else(|poison| poison.into_inner())
    }

    /// Keeps the counts of a region whose pages are gone.
    pub fn keep(ended: &mut HashMap<PathBuf, MapStats>, path: &Path, counters: &[Padded<MapCounters>]) {
        let path = if ended.len() < Self::MOST || ended.contains_key(path) { path } else { Path::new(Self::OTHERS) };
        let gone = MapStats { resident_pages: 0, ..MapStats::of(counters) };
        ended.entry(path.to_owned()).or_default().add(gone);
    }
}
