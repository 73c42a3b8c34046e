//! Writes dirty pages to the file: sorted runs of neighbours, with many writes under way at a time.
//!
//! A writer holds the locks of the blocks it works on and has signals blocked. It takes a page's dirty bit, moves the word
//! to Clean+WRITING, protects the page and writes it. A store after the protection traps and makes the page Dirty
//! again; a store before it is in the bytes that are written. Once a flusher has a block's lock, no write is in flight in
//! the block. So a page without a dirty bit is in the file.
//!
//! A page that is pinned for writing (`pin/pin.rs`) cannot be protected: a thread, or the kernel, stores to it without a
//! trap. A flush needs its bytes in the file, so it writes the page as it is. The page stays Dirty, and its bit is set again
//! once the write has ended. A writer that only makes pages clean passes it over. A page's first write pin comes under the
//! block's lock. So while a writer works on the block, pages may lose their write pins, but none gets its first.
//!
//! No deadlock: a thread waits for a lock only while all the locks it holds have lower numbers; otherwise it only tries.
//! Writes in flight end by themselves.

use crate::mechanism::Mechanism;
use crate::page::claims::Writing;
use crate::page::dirty::BLOCK_PAGES;
use crate::page::word::Claim;
use crate::pool::mailbox::Failure;
use crate::pool::rings::Taken;
use crate::region::region::Region;
use crate::region::store_groups::GROUP_PAGES;
use crate::region::write_state::WRITE_LOCKS;
use crate::sys::sync::Ordering;
use crate::sys::{PAGE, file, uring};
use std::ops::Range;

/// Longest run, pages: 1 MiB.
pub const MOST_RUN: usize = 256;
/// Writes that are gathered before they are submitted to the kernel.
const SUBMIT: usize = 32;
/// Set in a ring's tag if the run's pages are pinned for writing. The run's length lies in the bits below.
const KEPT: usize = 1 << 15;

/// How dirty pages that are pinned for writing are treated.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kept {
    /// They are written too: their bytes have to be in the file.
    Write,
    /// They are passed over: they would not become clean.
    Skip,
}

/// The writes that one thread has under way in one region. Dropping it waits for them.
pub struct Flight<'a> {
    region: &'a Region,
    ring: Option<Taken<'a>>,
    /// Longest run, pages.
    most_run: usize,
    /// Write locks held by this thread, a bit each.
    held: u64,
    /// Of these, the ones to release when the last run under them has ended.
    closing: u64,
    /// Runs in flight under each lock.
    pending: [u8; WRITE_LOCKS],
    /// Writes handed to the ring and not submitted.
    gathered: usize,
    /// The file's end when the first of these was handed over.
    end: Result<u64, i32>,
    /// The offset at that time that no direct write may go beyond (`RLIMIT_FSIZE`).
    limit: u64,
    /// Pages that have become clean.
    pub written: usize,
    /// The first run that failed.
    pub failure: Option<Failure>,
}

const _: () = assert!(WRITE_LOCKS == u64::BITS as usize && uring::DEPTH <= u8::MAX as usize && MOST_RUN < KEPT);

impl<'a> Flight<'a> {
    pub fn new(region: &'a Region, writes: bool) -> Self {
        Flight {
            region,
            ring: region.store().direct_writes().filter(|_| writes).and_then(|_| region.pool().writers()?.take_ring()),
            most_run: if region.pool().has(Mechanism::MergedWrites) { MOST_RUN } else { 1 },
            held: 0,
            closing: 0,
            pending: [0; WRITE_LOCKS],
            gathered: 0,
            end: Ok(0),
            limit: 0,
            written: 0,
            failure: None,
        }
    }

    /// Waits for a block's lock and takes it. Locks are waited for in ascending order.
    pub fn lock(&mut self, lock: usize) {
        debug_assert!(self.held >> lock == 0);
        std::mem::forget(self.region.writes().write_lock(lock).lock());
        self.held |= 1 << lock;
    }

    /// Takes a block's lock if it is free or this thread's.
    pub fn try_lock(&mut self, lock: usize) -> bool {
        if self.held & 1 << lock == 0 {
            let Some(held) = self.region.writes().write_lock(lock).try_lock() else { return false };
            std::mem::forget(held);
            self.held |= 1 << lock;
        }
        self.closing &= !(1 << lock);
        true
    }

    /// Releases a lock as soon as nothing is in flight under it.
    pub fn close(&mut self, lock: usize) {
        self.closing |= 1 << lock;
        self.release_idle(lock);
    }

    fn release_idle(&mut self, lock: usize) {
        if self.pending[lock] == 0 && self.closing & 1 << lock != 0 {
            self.closing &= !(1 << lock);
            self.held &= !(1 << lock);
            // SAFETY: `lock` or `try_lock` took it and forgot the guard.
            unsafe { self.region.writes().write_lock(lock).release() };
        }
    }

    /// Writes the dirty pages of a block that lie in `pages`, leaf by leaf until `enough` or more are found. The caller holds the block's
    /// lock. Returns how many it found, less those it passed over.
    pub fn write_block(&mut self, block: usize, pages: Range<usize>, enough: usize, kept: Kept) -> usize {
        let region = self.region;
        let first = block * BLOCK_PAGES;
        let mut claimed = Claimed([0; BLOCK_PAGES / 64]);
        // Pages that are pinned for writing, whether they are written or passed over: they are not protected.
        let mut pinned = Claimed([0; BLOCK_PAGES / 64]);
        let mut found = 0;
        let mut from = pages.start;
        // It goes round more than once only if pages were passed over.
        loop {
            let (mut visited, mut skipped, wanted) = (0, 0, enough - found);
            region.dirty().take(block, from..pages.end, wanted, |page| {
                visited += 1;
                from = page + 1;
                if kept == Kept::Skip && region.word(page).look().is_pinned_for_writing() {
                    skipped += 1;
                    pinned.insert(page - first);
                    region.dirty().set(page);
                    return;
                }
                match begin(region, page) {
                    Some(Claim::Protect) => claimed.insert(page - first),
                    Some(Claim::Keep) => pinned.insert(page - first),
                    None => {}
                }
            });
            found += visited - skipped;
            if found >= enough || visited < wanted {
                break;
            }
        }
        if found < enough && pages.start <= first && pages.end >= first + BLOCK_PAGES {
            region.writes().ages()[block].store(0, Ordering::Relaxed);
        }
        // A group is a leaf, and none is taken in part.
        let gone_over =
            pages.start..if found < enough { pages.end } else { from.next_multiple_of(GROUP_PAGES).min(pages.end) };
        let dirty = claimed.0.iter().zip(&pinned.0).map(|(claimed, pinned)| claimed | pinned);
        let wrong = region.store_groups().note_taken(block, gone_over, dirty);
        region.pool().counters_at(region.pool().here()).wrong_guesses.add(wrong);
        let protected = self.protect(first, &claimed, &pinned);
        let mut at = 0;
        while let Some(run) = claimed.run_from(at, self.most_run) {
            at = run.end;
            self.write_run(first + run.start..first + run.end, protected, false);
        }
        let mut at = 0;
        while kept == Kept::Write
            && let Some(run) = pinned.run_from(at, self.most_run)
        {
            at = run.end;
            self.write_run(first + run.start..first + run.end, Ok(()), true);
        }
        self.submit(0);
        found
    }

    /// Makes the dirty pages of a block that lie in `pages` clean, without writing them. Those that are pinned for writing stay
    /// dirty. The caller holds the block's lock.
    pub fn discard_block(&mut self, block: usize, pages: Range<usize>) {
        let (region, pool) = (self.region, self.region.pool());
        let first = block * BLOCK_PAGES;
        let mut claimed = Claimed([0; BLOCK_PAGES / 64]);
        let mut pinned = Claimed([0; BLOCK_PAGES / 64]);
        region.dirty().take(block, pages, usize::MAX, |page| match begin(region, page) {
            Some(Claim::Protect) => claimed.insert(page - first),
            Some(Claim::Keep) => pinned.insert(page - first),
            None => {}
        });
        let protected = self.protect(first, &claimed, &pinned);
        let before = self.written;
        for (pages, kept) in [(&claimed, false), (&pinned, true)] {
            let mut at = 0;
            while let Some(run) = pages.run_from(at, self.most_run) {
                at = run.end;
                if !kept {
                    pool.discount_dirty(pool.here(), run.len());
                }
                let run = first + run.start..first + run.end;
                self.settle(run, kept || protected.is_ok(), kept);
            }
        }
        self.note_progress(before);
    }

    /// Write-protects the claimed pages of the block that begins with `first`. It protects no page that is pinned for writing, and no
    /// foreign memory that lies between parts of the region.
    fn protect(&self, first: usize, claimed: &Claimed, pinned: &Claimed) -> Result<(), i32> {
        let bridges = !self.region.address().is_parted();
        match self.protect_as(first, claimed, pinned, bridges) {
            // Foreign memory has come to lie there at this moment.
            Err(_) if bridges && self.region.address().is_parted() => self.protect_as(first, claimed, pinned, false),
            done => done,
        }
    }

    /// Does so. If `bridges`, the pages between the claimed ones are protected with them.
    fn protect_as(&self, first: usize, claimed: &Claimed, pinned: &Claimed, bridges: bool) -> Result<(), i32> {
        let Some(span) = claimed.span() else { return Ok(()) };
        let batched = self.region.pool().has(Mechanism::BatchedProtection);
        let mut at = span.start;
        while let Some(start) = claimed.next(at, 0) {
            // One call for all of them, with one TLB flush on every core: one flush for each run costs more than the writes
            // (docs/measurements.md). Other dirty pages in between trap once more, which is harmless.
            let batch = match (batched, bridges) {
                (true, true) => span.end,
                (true, false) => claimed.next(start, u64::MAX).unwrap_or(span.end),
                (false, _) => start + 1,
            };
            let end = pinned.next(start, 0).map_or(batch, |end| end.min(batch));
            // SAFETY: a block lies in one stripe of the region.
            unsafe {
                let from = self.region.address_of(first + start);
                self.region.userfaultfd(first).write_protect(from, (end - start) * PAGE, true)?;
            }
            at = end;
        }
        Ok(())
    }

    /// Starts writing a run of pages claimed with `begin`; if they could not be protected, leaves them dirty. `kept`: their claim is
    /// [`Claim::Keep`].
    fn write_run(&mut self, run: Range<usize>, protected: Result<(), i32>, kept: bool) {
        let region = self.region;
        let pool = region.pool();
        if !kept {
            pool.discount_dirty(pool.here(), run.len());
        }
        if let Some(contents) = region.scratch() {
            contents.note_written(run.clone());
        }
        let from = region.address_of(run.start);
        let room = self.has_room();
        if self.gathered == 0 {
            // Asked for each batch anew: a write past the file's end would undo a truncation.
            self.end = region.store().write_end();
            self.limit = file::write_limit();
        }
        let writable = protected.and(self.end);
        let whole = writable.is_ok_and(|end| (run.end * PAGE) as u64 <= end.min(self.limit));
        let depth = pool.writes_in_flight.0.fetch_add(1, Ordering::Relaxed) + 1;
        pool.counters_at(pool.here()).writeback_depth.add(depth);
        if let (true, Some(file)) = (whole && room, region.store().direct_writes()) {
            let lock = run.start / BLOCK_PAGES % WRITE_LOCKS;
            if let Some(ring) = &mut self.ring {
                let offset = (run.start * PAGE) as u64;
                let tag = (run.start << 16 | run.len() | if kept { KEPT } else { 0 }) as u64;
                // SAFETY: the pages are resident until `finish`: nobody evicts one that is being written.
                unsafe { ring.write(file, from, run.len() * PAGE, offset, tag) };
                self.pending[lock] += 1;
                self.gathered += 1;
                if self.gathered == SUBMIT {
                    self.submit(0);
                }
                return;
            }
        }
        // SAFETY: the pages are resident until `finish`: nobody evicts one that is being written.
        let written = writable.and_then(|end| unsafe { region.store().write_pages(run.start, from, run.len(), end) });
        let before = self.written;
        self.finish(run, written, kept);
        self.note_progress(before);
    }

    /// Wakes threads that wait for room if pages have become clean. Failures wake nobody: those threads nap between tries.
    fn note_progress(&self, before: usize) {
        if self.written > before {
            self.region.pool().waiting().wake_waiters();
        }
    }

    /// Makes room for one more write in the ring, if there is a ring that works.
    fn has_room(&mut self) -> bool {
        while self.ring.as_ref().is_some_and(|ring| ring.works() && ring.in_flight() == uring::DEPTH) {
            self.submit(uring::DEPTH / 8);
        }
        self.ring.as_ref().is_some_and(|ring| ring.works())
    }

    /// Submits the writes gathered, waits for `wanted` writes to end, and finishes those that have ended.
    fn submit(&mut self, wanted: usize) {
        let Some(ring) = &mut self.ring else { return };
        if wanted > 0 || self.gathered > 0 {
            ring.submit(wanted);
            self.gathered = 0;
        }
        let before = self.written;
        while let Some((tag, result)) = self.ring.as_mut().and_then(|ring| ring.next_done()) {
            let (start, len, kept) = (tag as usize >> 16, tag as usize & (KEPT - 1), tag as usize & KEPT != 0);
            let written = match result {
                // The write was cut short or put off. It is done again by pwrite(2), which tells the error if there is one.
                _ if result == -libc::EAGAIN
                    || result == -libc::EINTR
                    || result == -libc::EFBIG
                    || (0..(len * PAGE) as i32).contains(&result) =>
                {
                    if result == -libc::EFBIG {
                        file::forget_limit_signal();
                    }
                    let from = self.region.address_of(start);
                    // SAFETY: still resident and claimed.
                    self.region
                        .store()
                        .write_end()
                        .and_then(|end| unsafe { self.region.store().write_pages(start, from, len, end) })
                }
                ..0 => Err(-result),
                _ => Ok(()),
            };
            self.finish(start..start + len, written, kept);
            let lock = start / BLOCK_PAGES % WRITE_LOCKS;
            self.pending[lock] -= 1;
            self.release_idle(lock);
        }
        self.note_progress(before);
    }

    /// Gives the pages of a run back after its write.
    fn finish(&mut self, run: Range<usize>, written: Result<(), i32>, kept: bool) {
        let region = self.region;
        let pool = region.pool();
        let here = pool.here();
        pool.writes_in_flight.0.fetch_sub(1, Ordering::Relaxed);
        self.settle(run.clone(), written.is_ok(), kept);
        let counters = pool.counters_at(pool.here());
        match written {
            Ok(()) => {
                counters.writeback_pages.add(run.len());
                region.counters_at(here).writeback_pages.add(run.len());
                counters.writeback_runs.add(1);
            }
            Err(error) => {
                counters.writeback_errors.add(1);
                self.failure.get_or_insert(Failure { page: run.start, pages: run.len(), error });
            }
        }
    }

    /// Ends the writing of a run's pages: clean if they were saved, otherwise dirty again.
    fn settle(&mut self, run: Range<usize>, saved: bool, kept: bool) {
        let region = self.region;
        let pool = region.pool();
        // A block's pages always go to the same core's queue: writers are few, and every core evicts.
        let queue = run.start / BLOCK_PAGES % pool.cores.len();
        let claim = if kept { Claim::Keep } else { Claim::Protect };
        run.clone().for_each(|page| Writing::adopt(region.page(page)).finish(saved, claim, queue));
        self.written += if kept || !saved { 0 } else { run.len() };
    }

    /// Waits for everything in flight and releases every lock.
    pub fn land(&mut self) {
        self.closing = self.held;
        while let Some(in_flight) = self.ring.as_ref().map(|ring| ring.in_flight()).filter(|count| *count > 0) {
            self.submit(in_flight);
        }
        (0..WRITE_LOCKS).for_each(|lock| self.release_idle(lock));
    }
}

impl Drop for Flight<'_> {
    fn drop(&mut self) {
        self.land();
    }
}

/// A set of pages of a block that a writer has claimed. It is small enough for a signal handler's stack.
struct Claimed([u64; BLOCK_PAGES / 64]);

impl Claimed {
    fn insert(&mut self, page: usize) {
        self.0[page / 64] |= 1 << (page % 64);
    }

    /// The range from the first page to the last. `None`: the set is empty.
    fn span(&self) -> Option<Range<usize>> {
        let first = self.next(0, 0)?;
        let last = self.0.iter().rposition(|word| *word != 0)?;
        Some(first..last * 64 + 64 - self.0[last].leading_zeros() as usize)
    }

    /// The first run of neighbours at or after a page, at most `most` long.
    fn run_from(&self, page: usize, most: usize) -> Option<Range<usize>> {
        let start = self.next(page, 0)?;
        let end = self.next(start, u64::MAX).unwrap_or(BLOCK_PAGES);
        Some(start..end.min(start + most))
    }

    /// The first page at or after `page` that is in the set, or, if `flip` is all ones, that is not in it.
    fn next(&self, page: usize, flip: u64) -> Option<usize> {
        let mut mask = u64::MAX << (page % 64);
        for word in page / 64..self.0.len() {
            let bits = (self.0[word] ^ flip) & mask;
            if bits != 0 {
                return Some(word * 64 + bits.trailing_zeros() as usize);
            }
            mask = u64::MAX;
        }
        None
    }
}

/// Claims a dirty page for a write. The caller notes it in a set.
fn begin(region: &Region, page: usize) -> Option<Claim> {
    let (writing, claim) = Writing::begin(region.page(page))?;
    writing.keep();
    Some(claim)
}
