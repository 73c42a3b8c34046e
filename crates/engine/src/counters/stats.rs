//! Counters, one set per core, summed when they are read.

use super::numbers::numbers;
use crate::sys::PAGE;
use std::sync::atomic::{AtomicU64, Ordering};

/// Counts of what a cache has done since it was made, and of what it holds now. Counters are sums over cores, read one after another while
/// they change.
///
/// ```
/// # fn main() -> std::io::Result<()> {
/// use fastmap::{Cache, MapOptions};
///
/// # let file = tempfile::tempfile()?;
/// # file.set_len(1 << 20)?;
/// let cache = Cache::new(256 << 10)?;
/// // SAFETY: nobody else changes the file.
/// let map = unsafe { MapOptions::new().cache(&cache).map(&file)? };
/// let sum: u64 = map.iter().map(|byte| u64::from(*byte)).sum();
/// let stats = cache.stats();
/// println!("{} pages read, {} dropped, {} here (sum {sum})", stats.misses, stats.evicted_pages, stats.resident_pages);
/// assert!(stats.resident_pages <= 64);
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Stats {
    /// Loads and stores that found their page absent: one trap each. Also pins, copies and the like that did, without a trap.
    pub misses: u64,
    /// Pages that were not read from the device, because the kernel's page cache had them. They were missed, read ahead or prefetched.
    pub page_cache_hits: u64,
    /// Pages that came back a short while after they were evicted, and are kept longer. A short while is half as many evictions as the
    /// cache has pages. The pages were missed, read together with a missed page, or asked for ahead.
    pub ghost_hits: u64,
    /// Pages installed without a read because the file has a hole there.
    pub born_zero: u64,
    /// Pages installed writable for a load, because pages around them were soon stored to. Also pages made writable with a neighbour that
    /// was stored to, because both had been dirty when they were last written.
    pub guessed_stores: u64,
    /// Of these, how many were not stored to soon: an estimate from samples (one page in 16, one in each group of neighbours),
    /// which stay write-protected. Each cost a needless write.
    pub wrong_guesses: u64,
    /// First stores to clean pages: each trapped once to make its page writable. Also pages pinned for writing.
    pub upgrades: u64,
    /// Traps that found another thread at work on the page and slept until it was done.
    pub waits: u64,
    /// Streams begun: accesses with a constant stride that are read ahead of.
    pub streams: u64,
    /// Pages read ahead for streams.
    pub ahead_pages: u64,
    /// Traps that found their page read ahead, and mapped it together with the pages that were read with it.
    pub ahead_chunks: u64,
    /// Of `ahead_pages`, those that such a trap mapped.
    pub ahead_used: u64,
    /// Of `ahead_pages`, those dropped before anything touched a page that was read with them.
    pub ahead_wasted: u64,
    /// Stores to absent pages that went on without the read ([`MapOptions::async_read`](crate::MapOptions::async_read),
    /// [`MapOptions::async_stores`](crate::MapOptions::async_stores)); counted as misses, too.
    pub async_loads: u64,
    /// Stores kept in a buffer until their page was read, the first ones of each page included.
    pub kept_stores: u64,
    /// Cache lines in which an aligned word of 8 bytes still held the initial value beside what was stored. Either they were stored to in
    /// part, against the protocol, or the data looks like the initial value.
    pub partial_lines: u64,
    /// Pages brought in by `prefetch`.
    pub prefetched_pages: u64,
    /// Pages read together with a missed page before them: rows and the like, whose length was learnt.
    pub run_pages: u64,
    /// Of these, those that the program came to: an estimate from samples, which are read page by page or by halves.
    pub run_used: u64,
    /// Pages of files that fit into the cache and were read whole, because random misses had taken about as long as that.
    pub filled_pages: u64,
    /// Pages dropped, to make room or on advice.
    pub evicted_pages: u64,
    /// Batches that made room: one system call each, where the kernel takes a batch.
    pub eviction_batches: u64,
    /// Pages written back to files.
    pub writeback_pages: u64,
    /// Runs of neighbouring pages that they were written in, one write each.
    pub writeback_runs: u64,
    /// Summed over runs: how many of the cache's runs were under way when each was started, itself included. Divided by the number of
    /// writes, failed ones included, it is the average queue depth ([`Stats::writeback_queue_depth`]).
    pub writeback_depth: u64,
    /// Writes that failed; their pages are still dirty unless a later write saved them.
    pub writeback_errors: u64,
    /// fdatasync(2) calls. Flushes of one file at the same time share them.
    pub syncs: u64,
    /// Pages in memory now, those being read or dropped included.
    pub resident_pages: u64,
    /// Of these, pages newer than their file.
    pub dirty_pages: u64,
    /// Of these, pages that pins keep there ([`Map::pin`](crate::Map::pin)), those about to be pinned included.
    pub pinned_pages: u64,
    /// Bytes that a miss reads at once now, where nobody has advised otherwise: the largest value among the cache's maps. It is one page
    /// where rows are not read at once. 0: nothing is mapped.
    pub read_size: u64,
}

/// One core's counters.
#[derive(Debug, Default)]
pub struct Counters {
    pub misses: Counter,
    pub page_cache_hits: Counter,
    pub ghost_hits: Counter,
    pub born_zero: Counter,
    pub guessed_stores: Counter,
    pub wrong_guesses: Counter,
    pub upgrades: Counter,
    pub waits: Counter,
    pub streams: Counter,
    pub ahead_pages: Counter,
    pub ahead_chunks: Counter,
    pub ahead_used: Counter,
    pub ahead_wasted: Counter,
    pub async_loads: Counter,
    pub kept_stores: Counter,
    pub partial_lines: Counter,
    pub prefetched_pages: Counter,
    pub run_pages: Counter,
    pub run_used: Counter,
    pub filled_pages: Counter,
    pub evicted_pages: Counter,
    pub eviction_batches: Counter,
    pub writeback_pages: Counter,
    pub writeback_runs: Counter,
    pub writeback_depth: Counter,
    pub writeback_errors: Counter,
    pub syncs: Counter,
}

/// A number that only grows.
#[derive(Debug, Default)]
pub struct Counter(AtomicU64);

impl Counter {
    #[inline]
    pub fn add(&self, count: usize) {
        self.0.fetch_add(count as u64, Ordering::Relaxed);
    }

    /// Its value.
    pub fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

impl Stats {
    /// Bytes written back to files.
    ///
    /// ```
    /// assert_eq!(fastmap::Cache::new(1 << 20)?.stats().writeback_bytes(), 0);
    /// # Ok::<(), fastmap::Error>(())
    /// ```
    pub fn writeback_bytes(&self) -> u64 {
        self.writeback_pages * PAGE as u64
    }

    /// Pages written with one write, on average: what sorting and merging achieve (paper, section 3.3). Zero before the
    /// first write.
    ///
    /// ```
    /// assert_eq!(fastmap::Cache::new(1 << 20)?.stats().writeback_merge_ratio(), 0.0);
    /// # Ok::<(), fastmap::Error>(())
    /// ```
    pub fn writeback_merge_ratio(&self) -> f64 {
        self.writeback_pages as f64 / self.writeback_runs.max(1) as f64
    }

    /// Writes handed to the kernel and not finished, on average over the moments at which one was added.
    ///
    /// ```
    /// assert_eq!(fastmap::Cache::new(1 << 20)?.stats().writeback_queue_depth(), 0.0);
    /// # Ok::<(), fastmap::Error>(())
    /// ```
    pub fn writeback_queue_depth(&self) -> f64 {
        self.writeback_depth as f64 / (self.writeback_runs + self.writeback_errors).max(1) as f64
    }

    /// Adds one core's counters.
    pub(crate) fn add(&mut self, core: &Counters) {
        let Counters {
            misses,
            page_cache_hits,
            ghost_hits,
            born_zero,
            guessed_stores,
            wrong_guesses,
            upgrades,
            waits,
            streams,
            ahead_pages,
            ahead_chunks,
            ahead_used,
            ahead_wasted,
            async_loads,
            kept_stores,
            partial_lines,
            prefetched_pages,
            run_pages,
            run_used,
            filled_pages,
            evicted_pages,
            eviction_batches,
            writeback_pages,
            writeback_runs,
            writeback_depth,
            writeback_errors,
            syncs,
        } = core;
        for (sum, counter) in [
            (&mut self.misses, misses),
            (&mut self.page_cache_hits, page_cache_hits),
            (&mut self.ghost_hits, ghost_hits),
            (&mut self.born_zero, born_zero),
            (&mut self.guessed_stores, guessed_stores),
            (&mut self.wrong_guesses, wrong_guesses),
            (&mut self.upgrades, upgrades),
            (&mut self.waits, waits),
            (&mut self.streams, streams),
            (&mut self.ahead_pages, ahead_pages),
            (&mut self.ahead_chunks, ahead_chunks),
            (&mut self.ahead_used, ahead_used),
            (&mut self.ahead_wasted, ahead_wasted),
            (&mut self.async_loads, async_loads),
            (&mut self.kept_stores, kept_stores),
            (&mut self.partial_lines, partial_lines),
            (&mut self.prefetched_pages, prefetched_pages),
            (&mut self.run_pages, run_pages),
            (&mut self.run_used, run_used),
            (&mut self.filled_pages, filled_pages),
            (&mut self.evicted_pages, evicted_pages),
            (&mut self.eviction_batches, eviction_batches),
            (&mut self.writeback_pages, writeback_pages),
            (&mut self.writeback_runs, writeback_runs),
            (&mut self.writeback_depth, writeback_depth),
            (&mut self.writeback_errors, writeback_errors),
            (&mut self.syncs, syncs),
        ] {
            *sum += counter.get();
        }
    }
}

numbers!(
    Stats: misses, ghost_hits, born_zero, guessed_stores, wrong_guesses, upgrades, waits, streams, ahead_pages, ahead_chunks,
    ahead_used, ahead_wasted, async_loads, kept_stores, partial_lines, prefetched_pages, run_pages, evicted_pages, eviction_batches, writeback_pages,
    writeback_runs, writeback_depth, writeback_errors, syncs, resident_pages, dirty_pages, pinned_pages, page_cache_hits,
    run_used, filled_pages, read_size,
);
