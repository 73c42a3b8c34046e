//! Dirty pages to the file: sorted runs of neighbours, many writes under way at a time.
//!
//! A writer holds the locks of the blocks it works on and has signals blocked. It takes a page's dirty bit, moves the word
//! to Clean+WRITING, protects the page, writes it. A store that comes after the protection traps and makes the page Dirty
//! again; one that came before is in what is written. Once a flusher has a block's lock, nobody's write is in flight in
//! the block, so what its bits do not show is on its way to no one.
//!
//! A page that is pinned for writing (`pinning.rs`) cannot be protected: somebody, perhaps the kernel, stores to it without a
//! trap. It is written as it is by whoever must have its bytes in the file, and stays Dirty, its bit set again once the
//! write has ended; who only looks for pages to make clean passes it over. Since such pins come under the block's lock only,
//! which pages these are does not change while a writer works on the block, except that there are fewer.
//!
//! No deadlock: a thread waits for a lock only while all it holds are of lower number, or else just tries; and writes in
//! flight end by themselves.

use crate::behind;
use crate::cache::Inner;
use crate::dirty::BLOCK_PAGES;
use crate::error::Error;
use crate::mechanism::Mechanism;
use crate::page::{Claim, State};
use crate::region::{Region, WRITE_LOCKS};
use crate::registry;
use crate::rings::Taken;
use crate::sync::Ordering;
use crate::sys::signal::Blocked;
use crate::sys::{PAGE, futex, uring};
use std::io;
use std::iter::successors;
use std::ops::Range;

/// Longest run, pages: 1 MiB.
pub const MOST_RUN: usize = 256;
/// Pages a faulting thread writes before it looks for a clean page again.
const HELP_PAGES: usize = 512;
/// The age at which a block is written, in looks of the writers.
pub const RIPE: u8 = 4;
/// Writes gathered before the kernel is told.
const SUBMIT: usize = 32;
/// In a ring's tag, of a run of pages that are pinned for writing; below it is the run's length.
const KEPT: usize = 1 << 15;

/// What becomes of dirty pages that are pinned for writing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kept {
    /// They are written too: their bytes have to be in the file.
    Write,
    /// They are passed over: they would not become clean.
    Skip,
}

/// Bytes that could not be written.
#[derive(Debug, Clone, Copy)]
pub struct Failure {
    page: usize,
    pages: usize,
    error: i32,
}

impl Failure {
    /// Of a page that could not be read, to be written with what was stored to it.
    pub fn new(page: usize, error: i32) -> Self {
        Failure { page, pages: 1, error }
    }

    /// Its error number.
    pub fn error(self) -> i32 {
        self.error
    }

    /// What a flush returns for it.
    pub fn into_error(self, region: &Region) -> Error {
        Error::WriteBack {
            path: region.store().path().to_owned(),
            offset: (self.page * PAGE) as u64,
            len: (self.pages * PAGE) as u64,
            source: io::Error::from_raw_os_error(self.error),
        }
    }
}

/// What a thread achieved that looked for dirty pages to write.
#[derive(Debug)]
pub enum Help {
    /// Some pages are clean now.
    Wrote,
    /// No dirty page, or other threads are writing.
    Nothing,
    /// Dirty pages, and none could be written: the error number.
    Failed(i32),
}

/// A share of every region's blocks: those whose number is `index` modulo `count`, a power of two up to [`WRITE_LOCKS`].
/// So whoever owns the stripe shares its locks with no other owner.
#[derive(Debug, Clone, Copy)]
pub struct Stripe {
    /// Which.
    pub index: usize,
    /// Of how many.
    pub count: usize,
}

impl Stripe {
    /// All blocks.
    pub const ALL: Stripe = Stripe { index: 0, count: 1 };

    fn has(self, block: usize) -> bool {
        block % self.count == self.index
    }
}

/// Writes of one thread under way in one region. Dropping it waits for them.
struct Flight<'a> {
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
    /// Handed to the ring and not submitted.
    gathered: usize,
    /// Where the file ended when the first of these was.
    end: Result<u64, i32>,
    /// Pages now clean.
    written: usize,
    /// The first run that failed.
    failure: Option<Failure>,
}

const _: () = assert!(WRITE_LOCKS == u64::BITS as usize && uring::DEPTH <= u8::MAX as usize && MOST_RUN < KEPT);

impl<'a> Flight<'a> {
    fn new(region: &'a Region, writes: bool) -> Self {
        Flight {
            region,
            ring: region.store().direct_writes().filter(|_| writes).and_then(|_| region.cache().writers()?.take_ring()),
            most_run: if region.cache().has(Mechanism::MergedWrites) { MOST_RUN } else { 1 },
            held: 0,
            closing: 0,
            pending: [0; WRITE_LOCKS],
            gathered: 0,
            end: Ok(0),
            written: 0,
            failure: None,
        }
    }

    /// Takes a block's lock, waiting for it. Locks waited for come in ascending order.
    fn lock(&mut self, lock: usize) {
        debug_assert!(self.held >> lock == 0);
        std::mem::forget(self.region.write_lock(lock).lock());
        self.held |= 1 << lock;
    }

    /// Takes a block's lock if it is free or this thread's.
    fn try_lock(&mut self, lock: usize) -> bool {
        if self.held & 1 << lock == 0 {
            let Some(held) = self.region.write_lock(lock).try_lock() else { return false };
            std::mem::forget(held);
            self.held |= 1 << lock;
        }
        self.closing &= !(1 << lock);
        true
    }

    /// Releases a lock as soon as nothing is in flight under it.
    fn close(&mut self, lock: usize) {
        self.closing |= 1 << lock;
        self.release_idle(lock);
    }

    fn release_idle(&mut self, lock: usize) {
        if self.pending[lock] == 0 && self.closing & 1 << lock != 0 {
            self.closing &= !(1 << lock);
            self.held &= !(1 << lock);
            // SAFETY: `lock` or `try_lock` took it and forgot the guard.
            unsafe { self.region.write_lock(lock).release() };
        }
    }

    /// Writes the dirty pages of a block that lie in `pages`, at most `limit`, under the block's lock; the count of those
    /// it found, less those it passed over.
    fn write_block(&mut self, block: usize, pages: Range<usize>, limit: usize, kept: Kept) -> usize {
        let region = self.region;
        let first = block * BLOCK_PAGES;
        let mut claimed = Claimed([0; BLOCK_PAGES / 64]);
        // Pinned for writing, to be written or not: not to be protected.
        let mut pinned = Claimed([0; BLOCK_PAGES / 64]);
        let mut found = 0;
        let mut from = pages.start;
        // More than once only if pages were passed over.
        loop {
            let (mut visited, mut skipped, wanted) = (0, 0, limit - found);
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
            if skipped == 0 || visited < wanted {
                break;
            }
        }
        if found < limit && pages.start <= first && pages.end >= first + BLOCK_PAGES {
            region.ages()[block].store(0, Ordering::Relaxed);
        }
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

    /// Has the dirty pages of a block that lie in `pages` be clean, under the block's lock, without writing them; those that
    /// are pinned for writing stay dirty.
    fn discard_block(&mut self, block: usize, pages: Range<usize>) {
        let (region, cache) = (self.region, self.region.cache());
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
                    cache.discount_dirty(cache.here(), run.len());
                }
                let run = first + run.start..first + run.end;
                self.settle(run, kept || protected.is_ok(), kept);
            }
        }
        self.note_progress(before);
    }

    /// Write-protects the claimed pages of the block that begins with `first`, and none that is pinned for writing.
    fn protect(&self, first: usize, claimed: &Claimed, pinned: &Claimed) -> Result<(), i32> {
        let Some(span) = claimed.span() else { return Ok(()) };
        let batched = self.region.cache().has(Mechanism::BatchedProtection);
        let mut at = span.start;
        while let Some(start) = claimed.next(at, 0) {
            // One protection for all of them, with one TLB flush on every core: a flush a run costs more than the writes
            // (docs/measurements.md). Other dirty pages in between, if any, trap once more, which is harmless.
            let batch = if batched { span.end } else { start + 1 };
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

    /// Starts writing pages claimed with `begin`, all with one claim (`kept`: [`Claim::Keep`]), or if they could not be
    /// protected, leaves them dirty.
    fn write_run(&mut self, run: Range<usize>, protected: Result<(), i32>, kept: bool) {
        let region = self.region;
        let cache = region.cache();
        if !kept {
            cache.discount_dirty(cache.here(), run.len());
        }
        if let Some(contents) = region.scratch() {
            contents.note_written(run.clone());
        }
        let from = region.address_of(run.start);
        let room = self.has_room();
        if self.gathered == 0 {
            // Asked for each batch: a write past an end that has moved since would undo a truncation.
            self.end = region.store().write_end();
        }
        let writable = protected.and(self.end);
        let whole = writable.is_ok_and(|end| (run.end * PAGE) as u64 <= end);
        let depth = cache.writes_in_flight.fetch_add(1, Ordering::Relaxed) + 1;
        cache.cores[cache.here()].0.counters.writeback_depth.add(depth);
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
        // SAFETY: as above.
        let written = writable.and_then(|end| unsafe { region.store().write_pages(run.start, from, run.len(), end) });
        let before = self.written;
        self.finish(run, written, kept);
        self.note_progress(before);
    }

    /// Tells whoever waits for room of pages that became clean. Not of failures: who waits naps between tries.
    fn note_progress(&self, before: usize) {
        if self.written > before {
            self.region.cache().note_progress();
        }
    }

    /// Makes room for one more write in the ring, if there is a ring that works.
    fn has_room(&mut self) -> bool {
        while self.ring.as_ref().is_some_and(|ring| ring.works() && ring.in_flight() == uring::DEPTH) {
            self.submit(uring::DEPTH / 8);
        }
        self.ring.as_ref().is_some_and(|ring| ring.works())
    }

    /// Tells the kernel of the writes gathered, waits for `wanted` to end, and finishes those that have ended.
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
                // Cut short or put off: the ordinary path says how it really ends.
                _ if result == -libc::EAGAIN
                    || result == -libc::EINTR
                    || (0..(len * PAGE) as i32).contains(&result) =>
                {
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
        let cache = region.cache();
        let here = cache.here();
        cache.writes_in_flight.fetch_sub(1, Ordering::Relaxed);
        self.settle(run.clone(), written.is_ok(), kept);
        let counters = &cache.cores[cache.here()].0.counters;
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

    /// Makes the pages of a run what they are after a write that came off, or did not.
    fn settle(&mut self, run: Range<usize>, saved: bool, kept: bool) {
        let region = self.region;
        let cache = region.cache();
        let here = cache.here();
        // To the tail of a queue that its block always has: writers are few, and every core evicts.
        let queue = run.start / BLOCK_PAGES % cache.cores.len();
        for page in run.clone() {
            let after = region.word(page).finish_write(saved);
            if after.enqueue {
                cache.enqueue(queue, region, page, after.long);
            }
            if after.newly_dirty {
                cache.recount_dirty(here);
            }
            // Still dirty, and the block's lock not released yet: whoever flushes next finds it.
            if kept || !saved {
                region.dirty().set(page);
            }
        }
        self.written += if kept || !saved { 0 } else { run.len() };
    }

    /// Waits for everything in flight and releases every lock.
    fn land(&mut self) {
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

/// Pages of a block that a writer has claimed: a set small enough for a signal handler's stack.
struct Claimed([u64; BLOCK_PAGES / 64]);

impl Claimed {
    fn insert(&mut self, page: usize) {
        self.0[page / 64] |= 1 << (page % 64);
    }

    /// From the first to the last, or nothing.
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

    /// The first page at or after `page` that is in the set, or with `flip` all ones, that is not.
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

/// Claims a dirty page for writing. A page that another thread is making writable may hold stores already: that thread
/// waits for nothing any more, so it is waited for.
fn begin(region: &Region, page: usize) -> Option<Claim> {
    let word = region.word(page);
    loop {
        if let Some(claim) = word.begin_write() {
            return Some(claim);
        }
        let seen = word.look();
        if !seen.is_upgrading() {
            if seen.state() != State::Dirty {
                return None;
            }
        } else if let Some(expected) = word.announce_waiter(seen) {
            futex::wait(word.futex(), expected, None);
        }
    }
}

/// Writes every page of the range, as far as it lies in the stripe, that is dirty at the time of the call, and waits for
/// others' writes in flight there.
pub fn write_out(region: &Region, pages: Range<usize>, stripe: Stripe) -> Result<(), Failure> {
    // A page that cannot be read keeps no other from being written.
    let settled = behind::settle(region, pages.clone());
    let blocks = pages.start / BLOCK_PAGES..pages.end.div_ceil(BLOCK_PAGES).min(region.dirty().blocks());
    let _blocked = Blocked::all();
    let mut flight = Flight::new(region, true);
    for lock in (stripe.index..WRITE_LOCKS).step_by(stripe.count) {
        let first = blocks.start + (lock + WRITE_LOCKS - blocks.start % WRITE_LOCKS) % WRITE_LOCKS;
        if first >= blocks.end {
            continue;
        }
        flight.lock(lock);
        for block in (first..blocks.end).step_by(WRITE_LOCKS) {
            if region.dirty().is_marked(block) {
                flight.write_block(block, pages.clone(), usize::MAX, Kept::Write);
            }
        }
        flight.close(lock);
    }
    flight.land();
    flight.failure.map_or(settled, Err)
}

/// Has the pages of a range of a scratch region be as good as written, without writing them: they are clean, and the file has
/// nothing of them. Contents of pages that are dirty at the time of the call are lost when they are evicted, and others' as
/// well; a store that comes after the page was protected makes it dirty as ever.
pub fn discard(region: &Region, pages: Range<usize>) {
    let Some(contents) = region.scratch() else { return };
    let _blocked = Blocked::all();
    let mut flight = Flight::new(region, false);
    let last = pages.end.div_ceil(BLOCK_PAGES).min(region.dirty().blocks());
    for block in pages.start / BLOCK_PAGES..last {
        let of_block = pages.start.max(block * BLOCK_PAGES)..pages.end.min((block + 1) * BLOCK_PAGES);
        let lock = block % WRITE_LOCKS;
        if region.dirty().is_marked(block) {
            flight.lock(lock);
            flight.discard_block(block, of_block.clone());
            contents.forget(of_block);
            flight.close(lock);
        } else {
            // A page that is being written was marked a moment ago: its writer has noted it and ends before the lock is free.
            let _held = region.write_lock(block).lock();
            contents.forget(of_block);
        }
    }
}

/// Writes dirty pages of a stripe of a region, block after block from where the last such call stopped, until `enough`
/// or `limit` pages were found. Blocks that others are writing are left to them. Signals are blocked.
pub fn sweep(region: &Region, stripe: Stripe, limit: usize, mut enough: impl FnMut() -> bool) -> Help {
    let dirty = region.dirty();
    let cursor = region.write_cursor(stripe.index);
    let start = cursor.load(Ordering::Relaxed);
    let mut flight = Flight::new(region, true);
    let mut left = limit;
    // From the cursor to the end, then from the beginning to the cursor.
    for part in [start..dirty.blocks(), 0..start] {
        let marked = successors(dirty.next_block(part.start), |block| dirty.next_block(block + 1));
        for block in marked.take_while(|block| part.contains(block)).filter(|block| stripe.has(*block)) {
            let lock = block % WRITE_LOCKS;
            if left == 0 || enough() {
                break;
            }
            if flight.try_lock(lock) {
                left -= flight.write_block(block, 0..dirty.blocks() * BLOCK_PAGES, left, Kept::Skip);
                flight.close(lock);
                // The block's rest is next, unless it was all.
                cursor.store(if left == 0 { block } else { block + 1 }, Ordering::Relaxed);
            }
        }
    }
    flight.land();
    match flight.failure {
        _ if flight.written > 0 => Help::Wrote,
        Some(failure) => Help::Failed(failure.error),
        None => Help::Nothing,
    }
}

/// Writes the blocks of a stripe of a region that are ripe: dirty at each of the last [`RIPE`] looks, or filled from front to
/// back. With `look`, this is one more look. Signals are blocked.
pub fn write_ripe(region: &Region, stripe: Stripe, look: bool) -> Help {
    let dirty = region.dirty();
    let mut flight = Flight::new(region, true);
    if region.scratch().is_some() {
        // Nobody ever reads its file: its pages are written for room alone.
        return Help::Nothing;
    }
    let marked = successors(dirty.next_block(0), |block| dirty.next_block(block + 1));
    for block in marked.filter(|block| stripe.has(*block)) {
        let age = &region.ages()[block];
        let seen = age.load(Ordering::Relaxed);
        if seen < RIPE {
            age.store(seen + u8::from(look), Ordering::Relaxed);
        } else if flight.try_lock(block % WRITE_LOCKS) {
            flight.write_block(block, 0..dirty.blocks() * BLOCK_PAGES, usize::MAX, Kept::Write);
            flight.close(block % WRITE_LOCKS);
        }
    }
    flight.land();
    match flight.failure {
        Some(failure) => Help::Failed(failure.error),
        None if flight.written > 0 => Help::Wrote,
        None => Help::Nothing,
    }
}

/// The regions whose pages a cache holds.
pub fn regions_of(cache: &Inner) -> impl Iterator<Item = registry::InUse<'_>> {
    registry::all().filter(move |region| std::ptr::eq(&**region.cache(), cache))
}

/// Writes a few dirty pages of the cache, for a thread that found no clean one. Signals are blocked.
pub fn help(cache: &Inner, core: usize) -> Help {
    let count = cache.writers().map_or(1, |writers| writers.count());
    let mut result = Help::Nothing;
    for region in regions_of(cache) {
        for step in 0..count {
            match sweep(&region, Stripe { index: (core + step) % count, count }, HELP_PAGES, || false) {
                Help::Wrote => return Help::Wrote,
                Help::Failed(error) => result = Help::Failed(error),
                Help::Nothing => {}
            }
        }
    }
    result
}
