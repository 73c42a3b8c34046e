//! Reads runs: neighbouring pages that a thread reads together with the one that it missed (`pool/runs.rs` says how many).

use crate::evict::room::Room;
use crate::page::claims::Loading;
use crate::page::entry::FRAME_PAGES;
use crate::page::word::State;
use crate::pool::read_buffers::{BUFFERS, Buffer};
use crate::region::arrivals::clear_tail;
use crate::region::install::{self, Outcome};
use crate::region::page_ref::PageRef;
use crate::region::region::Region;
use crate::sys::PAGE;
use std::ops::Range;
use std::time::Instant;

/// Pages that this thread has claimed and reads at once, and the buffer for them. They lie behind the page that was missed, or behind others
/// that were read with it. They become resident, or are given up, before this thread waits for anything but the device.
pub struct Run<'a> {
    region: &'a Region,
    pages: Range<usize>,
    /// Pages before them in the same read: 1, the page that was missed, or 0.
    before: usize,
    /// A bit for each page that goes into the protected queue.
    protected_queue: u64,
    buffer: Buffer<'a>,
    core: usize,
}

impl<'a> Run<'a> {
    /// Claims the first of some pages: as many as are absent and mapped, fit into a buffer, and have room without waiting.
    #[cold]
    pub fn claim(region: &'a Region, pages: Range<usize>, before: usize, core: usize) -> Option<Self> {
        let (pool, first) = (region.pool(), pages.start);
        // All of the run lies in one stripe of the region.
        let stripe = (first - before) / FRAME_PAGES * FRAME_PAGES + FRAME_PAGES;
        let end = region.ahead_of(first - before).end.min(pages.end).min(stripe).min(first - before + BUFFERS);
        let is_absent = |page: &usize| region.word(*page).look().state() == State::Absent;
        let most = (first..end).take_while(is_absent).count();
        let buffer = if most > 0 { pool.run_buffer(core, before + most) } else { None }?;
        if pool.take_ahead(core, most, None) == Room::None {
            return None;
        }
        let (count, protected_queue) = install::claim_run(region, first, most, None, core);
        (count > 0).then_some(Run { region, pages: first..first + count, before, protected_queue, buffer, core })
    }

    /// Reads the pages, and the missed one before them. Returns how many of all these were read.
    fn read(&self) -> usize {
        let Run { region, pages, before, buffer, core, .. } = self;
        let (first, count) = (pages.start - before, pages.len() + before);
        let hits = &region.pool().counters_at(*core).page_cache_hits;
        // SAFETY: the buffer is this thread's, and has room for them.
        let read = || unsafe { region.store().read_pages(first, count, buffer.at, hits) };
        let filled = timed(region, count, *core, read, |read| *read == Ok(count * PAGE)).unwrap_or(0);
        let there = filled.div_ceil(PAGE);
        clear_tail(buffer.at, filled, there);
        there
    }

    /// Makes the first `there` pages resident, and gives up the others. Returns how many became resident.
    fn bring(self, there: usize) -> usize {
        let from = self.buffer.at.wrapping_add(self.before * PAGE);
        let mapped = install::install_claimed(self.region, self.pages, there, from, self.protected_queue);
        let lengths = self.region.hints().runs();
        if lengths.pages() == 1 {
            // They were read for nothing (`readahead/detect.rs`): no length says how many are used.
            return mapped;
        }
        let used = lengths.used_of(mapped);
        let (counters, of_file) = (self.region.pool().counters_at(self.core), self.region.counters_at(self.core));
        for (pages, used_pages) in [(&counters.run_pages, &counters.run_used), (&of_file.run_pages, &of_file.run_used)]
        {
            pages.add(mapped);
            used_pages.add(used);
        }
        mapped
    }

    /// Reads the pages and the one that was missed, and makes all resident. Returns the outcome of the missed one, and the page behind the last.
    /// `None`: nothing could be read.
    pub fn load(self, claim: &Loading<PageRef<'_>>, writable: bool) -> Option<(Outcome, usize)> {
        let (there, behind) = (self.read(), self.pages.end);
        let outcome = (there > 0).then(|| install::install_missed(claim, self.buffer.at, writable));
        self.bring(if outcome == Some(Outcome::Resolved) { there - 1 } else { 0 });
        outcome.map(|outcome| (outcome, behind))
    }
}

/// Reads the rest of a long run, a buffer at a time, as far as there is room without waiting. The caller has claimed the page that was missed,
/// so the region stays. Not called if that page is writable: its word has UPGRADING then, and a thread that waits for it holds a block's lock.
#[cold]
pub fn read_rest(region: &Region, pages: Range<usize>, core: usize) {
    let mut behind = pages.start;
    while behind < pages.end
        && let Some(run) = Run::claim(region, behind..pages.end, 0, core)
    {
        behind = run.pages.end;
        let (there, all) = (run.read(), run.pages.len());
        if run.bring(there) < all {
            break;
        }
    }
}

/// Reads pages. Now and then it takes the time, which does not count if the page cache had the pages, or if not all of them were read.
#[inline]
pub fn timed<T>(
    region: &Region,
    pages: usize,
    core: usize,
    read: impl FnOnce() -> T,
    is_all: impl FnOnce(&T) -> bool,
) -> T {
    let counters = region.pool().counters_at(core);
    let hits = || counters.page_cache_hits.get();
    let before = region.hints().read_times().is_due(pages, counters.misses.get()).then(|| (Instant::now(), hits()));
    let read = read();
    // Another thread of this core may have had a hit meanwhile. Then one measurement is lost.
    if let Some((began, _)) = before.filter(|(_, before)| hits() == *before && is_all(&read)) {
        region.hints().read_times().note(pages, began);
    }
    read
}
