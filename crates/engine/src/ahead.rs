//! What lies ahead of the program: chunks that are read and not yet mapped, and how they come into its memory or go.
//!
//! A chunk's slot says who may touch its pages' words. A reader takes a slot, claims pages (Loading), reads them, makes them
//! Staged and the slot ready. Whoever traps on a Staged page claims the slot and maps all of the chunk; whoever needs the
//! slot, the memory or the pages' absence claims it and makes the pages Absent again.

use crate::cache::Inner;
use crate::evict;
use crate::fault;
use crate::page::Seen;
use crate::prefetch::Prefetches;
use crate::readers::Desk;
use crate::region::Region;
use crate::registry::{self, InUse};
use crate::staging::{Chunk, FRAME_PAGES, SlotNumber, Staging};
use crate::streams::Streams;
use crate::sync::{Ordering, fence};
use crate::sys::{PAGE, futex};
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicUsize};

/// Chunks staged since, after which one that nobody has touched is given up for another.
const STALE: usize = 256;

/// Batches evicted for misses since anything was staged or touched, after which staging memory goes before pages do.
const QUIET: usize = 8;

/// A cache's streams, slots and readers.
#[derive(Debug)]
pub struct Ahead {
    pub staging: Staging,
    pub streams: Streams,
    pub desks: Box<[Desk]>,
    pub stop: AtomicBool,
    /// Chunks staged so far, and more when there was no slot for one.
    pub clock: AtomicUsize,
    pub prefetches: Prefetches,
    /// Batches evicted for misses since a chunk was staged or touched.
    pub quiet: AtomicUsize,
}

/// What became of a trap on a Staged page.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Touch {
    /// The page has moved on: look at its word again.
    Again,
    /// Another thread maps or drops the chunk: wait on the word.
    Wait,
}

impl Ahead {
    /// Has a stream's reader look at it.
    pub fn call(&self, stream: usize) {
        self.desks[stream % self.desks.len()].call(stream);
    }

    /// Whether nothing was staged or touched for a while: then the memory serves pages better. Asked by a thread that is about
    /// to evict pages for a miss.
    pub fn is_quiet(&self) -> bool {
        self.quiet.fetch_add(1, Ordering::Relaxed) >= QUIET
    }

    fn note_work(&self) {
        if self.quiet.load(Ordering::Relaxed) != 0 {
            self.quiet.store(0, Ordering::Relaxed);
        }
    }

    /// Whether a slot can be claimed: asked by a thread that found it taken and has announced itself as a waiter. Pairs with
    /// `publish`: either this sees it ready, or that sees the waiter.
    pub fn is_claimable(&self, slot: usize) -> bool {
        fence(Ordering::SeqCst);
        self.staging.is_ready(SlotNumber(slot))
    }

    /// Makes the pages of a chunk, claimed and read, Staged, and its slot ready.
    pub fn publish(&self, region: &Region, number: SlotNumber, chunk: Chunk) {
        self.note_work();
        self.staging.fill(number, chunk, self.clock.fetch_add(1, Ordering::Relaxed));
        // Pages that were waited for while they were Loading, a bit each: nobody is woken before the slot is ready.
        let mut waited_for = [0u64; FRAME_PAGES / 64];
        for (index, page) in chunk.pages().enumerate() {
            waited_for[index / 64] |= u64::from(region.word(page).stage(number.0).wake) << (index % 64);
        }
        self.staging.ready(number);
        fence(Ordering::SeqCst);
        for (index, page) in chunk.pages().enumerate() {
            let word = region.word(page);
            // Those who came while it was Loading sleep on the word as it was then.
            if word.call_waiters() || waited_for[index / 64] & 1 << (index % 64) != 0 {
                futex::wake_all(word.futex());
            }
        }
    }

    /// Serves a trap on a page that `seen` says is Staged: maps the whole chunk. Called by fault handlers.
    pub fn touch(&self, region: &Region, page: usize, seen: Seen, is_store: bool) -> Touch {
        let Some(number) = seen.slot().map(SlotNumber) else { return Touch::Again };
        if !self.staging.claim(number) {
            return Touch::Wait;
        }
        let chunk = self.staging.chunk(number);
        if chunk.region != region.slot() || region.word(page).look().slot() != Some(number.0) {
            // The slot holds another chunk by now.
            self.put_back(number);
            return Touch::Again;
        }
        // First, so that reading goes on while this thread maps.
        if let Some(stream) = self.streams.note_used(chunk.stream, chunk.count, is_store) {
            self.call(stream);
        }
        region.note_used_chunk();
        self.note_work();
        let cache = region.cache();
        let core = cache.here();
        let counters = &cache.cores[core].0.counters;
        counters.ahead_chunks.add(1);
        let mapped = if number.is_frame() {
            self.map_frame(region, number, chunk)
        } else {
            self.map_buffer(region, number, chunk, page, is_store)
        };
        counters.ahead_used.add(mapped);
        region.counters_at(core).ahead_used.add(mapped);
        cache.note_progress();
        Touch::Again
    }

    /// Moves a frame to its place. Its credits are the pages' from then on, and its slot is empty.
    fn map_frame(&self, region: &Region, number: SlotNumber, chunk: Chunk) -> usize {
        let cache = region.cache();
        let from = self.staging.memory(number);
        let to = region.address_of(chunk.first);
        let bytes = FRAME_PAGES * PAGE;
        // Until the frame has its entry in a queue.
        let moving = region.begin_move();
        let moved = match moving {
            // SAFETY: pages of this region that are Staged in a slot that this thread has claimed: nothing is there, and the
            // frame is the slot's.
            Some(_) => unsafe {
                if !self.staging.moves_tables() {
                    evict::drop_memory(region, &[libc::iovec { iov_base: to.cast(), iov_len: bytes }]);
                }
                let userfaultfd = region.userfaultfd(chunk.first);
                userfaultfd.move_pages(to, from, bytes).and_then(|()| userfaultfd.write_protect(to, bytes, true))
            },
            None => Err(0),
        };
        if let Err(error) = moved {
            if error != 0 {
                if error != libc::EBUSY {
                    self.staging.give_up_moves();
                }
                // Part of it may be there.
                evict::drop_memory(region, &[libc::iovec { iov_base: to.cast(), iov_len: bytes }]);
            }
            self.unstage(region, chunk);
            return self.free_without_memory(cache, number);
        }
        for page in chunk.pages() {
            let word = region.word(page);
            if word.finish_huge().wake {
                futex::wake_all(word.futex());
            }
        }
        region.counters_at(cache.here()).brought.add(chunk.count);
        // Not before: a word that names the slot says that the slot's chunk is the page's.
        self.staging.free(number, false);
        cache.enqueue_frame(region, chunk.first);
        chunk.count
    }

    fn free_without_memory(&self, cache: &Inner, number: SlotNumber) -> usize {
        let gone = self.staging.drop_memory(number);
        self.staging.free(number, !gone);
        if gone {
            cache.release_credits(cache.here(), number.pages());
        }
        0
    }

    /// Copies a buffer's pages to their places. The buffer stays, free, with its credits.
    fn map_buffer(&self, region: &Region, number: SlotNumber, chunk: Chunk, page: usize, is_store: bool) -> usize {
        let core = region.cache().here();
        let from = self.staging.memory(number);
        let expects_stores = is_store && self.streams.stores(chunk.stream);
        let at = |index: usize| from.wrapping_add(index * PAGE);
        let mut mapped = 0;
        if chunk.step == 1 {
            let pages = chunk.first..chunk.first + chunk.count;
            mapped = fault::install_run(region, pages, from, core, expects_stores, 0);
        } else {
            for (index, one) in chunk.pages().enumerate() {
                let expects_store = expects_stores || is_store && one == page;
                if fault::install_run(region, one..one + 1, at(index), core, expects_store, 0) == 0 {
                    break;
                }
                mapped += 1;
            }
        }
        let rest = Chunk { first: chunk.first + mapped * chunk.step, count: chunk.count - mapped, ..chunk };
        self.unstage(region, rest);
        self.staging.free(number, true);
        region.cache().release_credits(core, rest.count);
        mapped
    }

    /// Makes a claimed chunk's pages Absent.
    fn unstage(&self, region: &Region, chunk: Chunk) {
        for page in chunk.pages() {
            let word = region.word(page);
            if word.unstage().wake {
                futex::wake_all(word.futex());
            }
        }
    }

    /// Drops the chunk of a claimed slot; the slot is this thread's then, with memory. Returns the credits of its pages, which
    /// are the caller's.
    fn drop_chunk(&self, region: &Region, number: SlotNumber) -> usize {
        let chunk = self.staging.chunk(number);
        self.unstage(region, chunk);
        self.streams.note_wasted(chunk.stream, chunk.count);
        region.note_wasted_chunk();
        let cache = region.cache();
        let core = cache.here();
        cache.cores[core].0.counters.ahead_wasted.add(chunk.count);
        region.counters_at(core).ahead_wasted.add(chunk.count);
        if number.is_frame() { 0 } else { chunk.count }
    }

    /// Claims the next slot with a chunk that `condition` is true for, and enters its region.
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

    /// Undoes a claim. Threads that found the slot taken sleep on its chunk's pages, and have to look again.
    fn put_back(&self, number: SlotNumber) {
        let chunk = self.staging.chunk(number);
        self.staging.ready(number);
        // As in `publish`.
        fence(Ordering::SeqCst);
        let Some(region) = registry::enter(chunk.region) else { return };
        for word in chunk.pages().map(|page| region.word(page)).filter(|word| word.call_waiters()) {
            futex::wake_all(word.futex());
        }
    }

    /// Takes a slot that nobody needs any more from a chunk that was not touched for long; it has memory.
    pub fn take_stale(&self, cache: &Inner, frame: bool) -> Option<SlotNumber> {
        let now = self.clock.load(Ordering::Relaxed);
        let stale = self.claim_some(|number, _| {
            number.is_frame() == frame && now.wrapping_sub(self.staging.staged_at(number)) > STALE
        });
        if stale.is_none() {
            // Where all slots hold chunks that nobody touches, nothing is staged: time passes by asking. Slowly, or walks that
            // are under way would take each other's.
            self.clock.fetch_add(STALE / 64, Ordering::Relaxed);
        }
        let (number, region) = stale?;
        let credits = self.drop_chunk(&region, number);
        cache.release_credits(cache.here(), credits);
        Some(number)
    }

    /// Gives up staging memory, idle if there is some, for credits, which are the caller's; how many. Called by fault
    /// handlers that find no other room, or that need it while nothing is read ahead.
    pub fn reclaim(&self) -> usize {
        let freed = match self.staging.take_idle() {
            Some(number) => self.strip(number, 0),
            None => self.claim_some(|_, _| true).map_or(0, |(number, region)| {
                let credits = self.drop_chunk(&region, number);
                self.strip(number, credits)
            }),
        };
        if freed == 0 {
            // Not asked again for a while.
            self.note_work();
        }
        freed
    }

    /// Gives up all staging memory that is idle, for credits, which are the caller's.
    pub fn reclaim_idle(&self) -> usize {
        let strip = |number| self.strip(number, 0);
        std::iter::from_fn(|| self.staging.take_idle().map(strip).filter(|freed| *freed > 0)).sum()
    }

    fn strip(&self, number: SlotNumber, credits: usize) -> usize {
        let gone = self.staging.drop_memory(number);
        self.staging.free(number, !gone);
        credits + if gone { number.pages() } else { 0 }
    }

    /// Drops what is staged of some pages of a region.
    pub fn drop_range(&self, region: &Region, pages: Range<usize>) {
        let slot = region.slot();
        let overlaps = |chunk: &Chunk| {
            let last = chunk.first + chunk.count.saturating_sub(1) * chunk.step;
            chunk.region == slot && chunk.first < pages.end && last >= pages.start
        };
        for (number, seen) in self.staging.ready_chunks() {
            if !overlaps(&seen) || !self.staging.claim(number) {
                continue;
            }
            if overlaps(&self.staging.chunk(number)) {
                let credits = self.drop_chunk(region, number);
                self.staging.free(number, true);
                region.cache().release_credits(region.cache().here(), credits);
            } else {
                self.put_back(number);
            }
        }
    }

    /// Drops everything that is staged of a region that nobody can enter any more, or load from.
    pub fn drop_region(&self, region: &Region) {
        while self.staging.may_hold(region.slot()) {
            self.drop_range(region, 0..usize::MAX);
            std::thread::yield_now();
        }
    }
}
