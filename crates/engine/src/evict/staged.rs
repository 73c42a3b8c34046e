//! Drops chunks that were read ahead: for their slot, for their memory, or because their pages must be absent.

use crate::page::claims::PageAccess;
use crate::pool::ahead::Ahead;
use crate::pool::pool::Pool;
use crate::pool::staging::{Chunk, SlotNumber};
use crate::region::region::Region;
use crate::region::registry::{self, InUse};
use crate::sys::sync::{Ordering, fence};
use std::ops::Range;

/// A chunk that nobody has touched may be dropped for another once more than so many chunks have been staged after it.
const STALE: usize = 256;

impl Ahead {
    /// Makes a claimed chunk's pages Absent.
    pub fn unstage(&self, region: &Region, chunk: Chunk) {
        for page in chunk.pages() {
            let page = region.page(page);
            page.settle(page.word().unstage(), 0);
        }
    }

    /// Drops the chunk of a claimed slot. The slot stays this thread's, with its memory. Returns the free frames of the chunk's pages,
    /// which are the caller's. (A frame has none beside its memory's.)
    fn drop_chunk(&self, region: &Region, number: SlotNumber) -> usize {
        let chunk = self.staging.chunk(number);
        self.unstage(region, chunk);
        self.streams.note_wasted(chunk.stream, chunk.count);
        region.hints().note_wasted_chunk();
        let pool = region.pool();
        let core = pool.here();
        pool.counters_at(core).ahead_wasted.add(chunk.count);
        region.counters_at(core).ahead_wasted.add(chunk.count);
        if number.is_frame() { 0 } else { chunk.count }
    }

    /// Claims the next slot whose chunk fulfils `condition`, and enters its region.
    fn claim_some(&self, condition: impl Fn(SlotNumber, &Chunk) -> bool) -> Option<(SlotNumber, InUse<'static>)> {
        for (number, seen) in self.staging.ready_chunks() {
            if !condition(number, &seen) || !self.staging.claim(number) {
                continue;
            }
            let chunk = self.staging.chunk(number);
            match registry::enter(chunk.region) {
                Some(region) if condition(number, &chunk) => {
                    self.staging.note_asked(number);
                    return Some((number, region));
                }
                _ => self.put_back(number),
            }
        }
        None
    }

    /// Undoes a claim. Threads that found the slot taken sleep on its chunk's pages; they are woken, and look again.
    pub fn put_back(&self, number: SlotNumber) {
        let chunk = self.staging.chunk(number);
        // Entered before the slot is ready: from then on the chunk may go, its region end, and a smaller one take the region's number.
        let region = registry::enter(chunk.region);
        self.staging.ready(number);
        // Pairs with the look of a thread that has announced itself, as in `Ahead::publish` (`region/arrivals.rs`).
        fence(Ordering::SeqCst);
        let Some(region) = region else { return };
        for page in chunk.pages().map(|page| region.page(page)).filter(|page| page.word().call_waiters()) {
            page.wake();
        }
    }

    /// Takes the slot of a stale chunk: one that was not touched for long, or whose stream is over. The slot has memory.
    pub fn take_stale(&self, pool: &Pool, frame: bool) -> Option<SlotNumber> {
        let now = self.clock.load(Ordering::Relaxed);
        let stale = self.claim_some(|number, chunk| {
            let is_old = || now.wrapping_sub(self.staging.staged_at(number)) > STALE;
            number.is_frame() == frame && (!self.streams.is_current(chunk.stream) || is_old())
        });
        if stale.is_none() {
            // If all slots hold chunks that nobody touches, nothing is staged, and the clock would stand. So each attempt moves it on: slowly,
            // or walks that are under way would take each other's slots.
            self.clock.fetch_add(STALE / 64, Ordering::Relaxed);
        }
        let (number, region) = stale?;
        let free_frames = self.drop_chunk(&region, number);
        pool.give_free_frames(pool.here(), free_frames);
        Some(number)
    }

    /// Gives up a slot's memory: an idle slot's, else that of a chunk. Returns the free frames that this gives, which are the caller's. Called
    /// by fault handlers that find no other room, or that need room while nothing is read ahead.
    pub fn reclaim(&self) -> usize {
        let freed = match self.staging.take_idle() {
            Some(number) => self.strip(number, 0),
            None => self.claim_some(|_, _| true).map_or(0, |(number, region)| {
                let free_frames = self.drop_chunk(&region, number);
                self.strip(number, free_frames)
            }),
        };
        if freed == 0 {
            // So that it is not tried again for a while (`is_quiet`).
            self.note_work();
        }
        freed
    }

    /// Gives up all idle staging memory. Returns the free frames that this gives, which are the caller's.
    pub fn reclaim_idle(&self) -> usize {
        let strip = |number| self.strip(number, 0);
        std::iter::from_fn(|| self.staging.take_idle().map(strip).filter(|freed| *freed > 0)).sum()
    }

    fn strip(&self, number: SlotNumber, free_frames: usize) -> usize {
        let gone = self.staging.drop_memory(number);
        self.staging.free(number, !gone);
        free_frames + if gone { number.pages() } else { 0 }
    }

    /// Drops the chunks of a region that overlap a range of pages.
    pub fn drop_range(&self, region: &Region, pages: Range<usize>) {
        let slot = region.id();
        let overlaps = |chunk: &Chunk| {
            let last = chunk.first + chunk.count.saturating_sub(1) * chunk.step;
            chunk.region == slot && chunk.first < pages.end && last >= pages.start
        };
        for (number, seen) in self.staging.ready_chunks() {
            if !overlaps(&seen) || !self.staging.claim(number) {
                continue;
            }
            if overlaps(&self.staging.chunk(number)) {
                let free_frames = self.drop_chunk(region, number);
                self.staging.free(number, true);
                region.pool().give_free_frames(region.pool().here(), free_frames);
            } else {
                self.put_back(number);
            }
        }
    }

    /// Drops all chunks of a region. Nobody can enter it any more, or load from it.
    pub fn drop_region(&self, region: &Region) {
        while self.staging.may_hold(region.id()) {
            self.drop_range(region, 0..usize::MAX);
            std::thread::yield_now();
        }
    }

    /// Frees a slot and drops its memory, whose free frames go back to the pool. Returns 0, for its callers to return.
    pub fn free_without_memory(&self, pool: &Pool, number: SlotNumber) -> usize {
        let gone = self.staging.drop_memory(number);
        self.staging.free(number, !gone);
        if gone {
            pool.give_free_frames(pool.here(), number.pages());
        }
        0
    }
}
