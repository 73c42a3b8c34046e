//! Pages out of everybody's reach for the time of a file operation.
//!
//! A write by system call, or a truncation, changes the file beneath pages that are in memory. So its pages are *seized*:
//! saved if they are dirty, dropped, and held in state Loading, where every load and store of any thread waits on the word.
//! After the operation they are let go, absent, to be read as the file is then; or put back in with bytes that the caller
//! knows. A page that is pinned cannot leave. It is pinned once more, its block's write lock is held so that no writer puts
//! its old bytes over what the operation wrote, and what was written is copied into it afterwards.
//!
//! No deadlock: pages are claimed in ascending order, and who waits for one holds lower ones only, so of two seizers with
//! common pages one has the lowest. Who loads a page waits for no other page. Held pages have no credits, so nobody starves
//! for them. A write lock is waited for with pages held, since its holder waits for pages in UPGRADING only; and held together
//! with others, in ascending order, when all pages are claimed. The length of the region is never asked for with a page held:
//! who has it waits for pages to leave memory.

use crate::behind;
use crate::dirty::BLOCK_PAGES;
use crate::evict;
use crate::fault;
use crate::page::{Seen, State};
use crate::pinning;
use crate::region::{Region, WRITE_LOCKS};
use crate::registry;
use crate::sync::{AtomicU64, Ordering};
use crate::sys::memory::Zeroed;
use crate::sys::signal::Blocked;
use crate::sys::{PAGE, file, futex, memory};
use crate::writeback::{self, Stripe};
use std::ops::Range;

/// Resident pages that are taken out of memory together, at most.
const RUN: usize = 64;

/// Pages of a region that are nobody else's until this is dropped. Signals are blocked meanwhile: a handler that touched
/// one of them would wait for the thread that it interrupted.
pub struct Seized<'a> {
    region: &'a Region,
    /// Claimed so far, and not let go yet.
    pages: Range<usize>,
    /// Of these, the ones in memory because they are pinned: a bit each, from `first` on. Ordinary operations meet none.
    pinned: Option<Zeroed<AtomicU64>>,
    first: usize,
    /// Pages of which `pinned` has a bit.
    most: usize,
    /// What is dirty from here on is not saved but kept in Evicting, protected.
    doomed: usize,
    /// Write locks held, a bit each.
    locks: u64,
    /// The pins are still there.
    holds_pins: bool,
    _blocked: Blocked,
}

/// What came of looking at the next page.
enum Step {
    Claimed,
    Again,
    /// It is part of a frame.
    Frame,
}

/// A page's bytes for [`Seized::put_back`].
#[derive(Debug, Clone, Copy)]
pub enum Fill {
    /// These, a page of them.
    From(*const u8),
    /// As the file has them now, through the page cache.
    Read,
    /// None: the page stays out of memory.
    Absent,
}

/// Seizes pages, clipped to the region. Dirty bytes of those from `doomed` on are kept aside and not written, until
/// [`Seized::cut`] drops them. Fails with the error number of a write; then nothing is held and nothing lost.
pub fn seize(region: &Region, pages: Range<usize>, doomed: usize) -> Result<Seized<'_>, i32> {
    let end = pages.end.min(region.span() / PAGE);
    let pages = pages.start.min(end)..end;
    loop {
        if region.takes_frames() {
            region.forbid_frames();
        }
        let saved = pages.start..pages.end.min(doomed).max(pages.start);
        if region.dirty().count(saved.clone(), 0) > 0 {
            // Most of them at little cost a page.
            writeback::write_out(region, saved, Stripe::ALL).map_err(|failure| failure.error())?;
        }
        let mut seized = Seized {
            region,
            pages: pages.start..pages.start,
            pinned: None,
            first: pages.start,
            most: pages.len(),
            doomed,
            locks: 0,
            holds_pins: true,
            _blocked: Blocked::all(),
        };
        if seized.claim_all(pages.end)? {
            seized.lock_pinned();
            return Ok(seized);
        }
        // A frame was on its way in, or is being dissolved by another thread, which may wait for what is held here.
        drop(seized);
        region.forbid_frames();
    }
}

impl<'a> Seized<'a> {
    /// True when all are claimed; false when a frame is in the way.
    fn claim_all(&mut self, end: usize) -> Result<bool, i32> {
        while self.pages.end < end {
            match self.claim_next(end)? {
                Step::Claimed => self.pages.end += 1,
                Step::Again => {}
                Step::Frame => return Ok(false),
            }
        }
        Ok(true)
    }

    fn claim_next(&mut self, end: usize) -> Result<Step, i32> {
        let page = self.pages.end;
        let word = self.region.word(page);
        let seen = word.look();
        match seen.state() {
            State::Absent if word.begin_load(seen) => return Ok(Step::Claimed),
            State::Absent => {}
            State::Staged => {
                if let Some(ahead) = self.region.cache().ahead() {
                    ahead.drop_range(self.region, page..page + 1);
                }
                if word.look() == seen {
                    // Another thread maps or drops the chunk.
                    std::thread::yield_now();
                }
            }
            State::Unread | State::Kept => behind::await_read(self.region, page)?,
            State::Loading | State::Evicting => self.wait(page, seen),
            State::Clean | State::Dirty if seen.is_upgrading() => self.wait(page, seen),
            State::Clean | State::Dirty if seen.is_huge() => return Ok(Step::Frame),
            State::Clean | State::Dirty if seen.is_pinned() => {
                if seen.is_full() {
                    return Err(libc::EBUSY);
                }
                self.make_room_for_pins()?;
                // One more pin of a page that has some costs no pin credit; whoever takes the last back gives one.
                if word.try_pin(seen) {
                    self.note_pinned(page);
                    return Ok(Step::Claimed);
                }
            }
            State::Clean | State::Dirty => self.expel_run(end)?,
        }
        Ok(Step::Again)
    }

    fn wait(&self, page: usize, seen: Seen) {
        let word = self.region.word(page);
        if let Some(expected) = word.announce_waiter(seen) {
            futex::wait(word.futex(), expected, None);
        }
    }

    /// Takes the run of resident pages that begins with the next one out of memory, saved, and claims them.
    fn expel_run(&mut self, end: usize) -> Result<(), i32> {
        let (region, start) = (self.region, self.pages.end);
        let (cache, block) = (region.cache(), start / BLOCK_PAGES);
        let end = end.min((block + 1) * BLOCK_PAGES).min(start + RUN);
        let end = if start < self.doomed { end.min(self.doomed) } else { end };
        // Under it no write of these pages is in flight.
        let _writing = region.write_lock(block).lock();
        let (mut dirty, mut entries, mut at) = (0u64, 0, start);
        while at < end
            && let Some((was_dirty, was_queued)) = region.word(at).begin_seize()
        {
            dirty |= u64::from(was_dirty) << (at - start);
            entries += usize::from(was_queued);
            at += 1;
        }
        let pages = start..at;
        if pages.is_empty() {
            return Ok(());
        }
        let is_dirty = |page: usize| dirty >> (page - start) & 1 != 0;
        let core = cache.here();
        let mut result = Ok(());
        if dirty != 0 {
            region.dirty().take(block, pages.clone(), usize::MAX, |_| {});
            cache.discount_dirty(core, dirty.count_ones() as usize);
            result = self.protect_and_save(pages.clone(), dirty);
        }
        let kept = |page: usize| is_dirty(page) && (result.is_err() || page >= self.doomed);
        // Whether these are in time: entries of pages that are not in memory must leave room for others'.
        cache.clean.note_void(entries, cache.capacity(), |entry| {
            registry::enter(entry.slot()).is_some_and(|region| region.word(entry.page()).void_entry())
        });
        let mut from = start;
        while from < pages.end {
            let keeps = kept(from);
            let to = (from..pages.end).find(|page| kept(*page) != keeps).unwrap_or(pages.end);
            if !keeps {
                drop_run(region, from..to);
            }
            from = to;
        }
        if result.is_err() {
            pages.for_each(|page| give_back(region, page));
        } else {
            self.pages.end = pages.end;
        }
        result
    }

    /// Lets no store reach the dirty pages of a run in state Evicting any more, and writes them unless they are doomed.
    fn protect_and_save(&self, pages: Range<usize>, dirty: u64) -> Result<(), i32> {
        let region = self.region;
        let start = pages.start;
        let first = start + dirty.trailing_zeros() as usize;
        let last = start + 63 - dirty.leading_zeros() as usize;
        // SAFETY: resident pages of this region, of one block and so of one stripe; those between that are clean are protected.
        unsafe {
            let at = region.address_of(first);
            region.userfaultfd(first).write_protect(at, (last + 1 - first) * PAGE, true)?;
        }
        if start >= self.doomed {
            return Ok(());
        }
        let core = region.cache().here();
        let counters = &region.cache().cores[core].0.counters;
        let end = region.store().write_end()?;
        let mut rest = dirty;
        while rest != 0 {
            let at = rest.trailing_zeros();
            let len = (rest >> at).trailing_ones();
            rest &= u64::MAX.checked_shl(at + len).unwrap_or(0);
            let page = start + at as usize;
            // SAFETY: the state Evicting keeps them in memory.
            let saved = unsafe { region.store().write_pages(page, region.address_of(page), len as usize, end) };
            saved.inspect_err(|_| counters.writeback_errors.add(1))?;
            counters.writeback_pages.add(len as usize);
            region.counters_at(core).writeback_pages.add(len as usize);
            counters.writeback_runs.add(1);
            counters.writeback_depth.add(1);
        }
        Ok(())
    }

    fn make_room_for_pins(&mut self) -> Result<(), i32> {
        if self.pinned.is_none() {
            // Memory of its own: this may run in a handler that interrupted the allocator.
            self.pinned = Some(Zeroed::new(self.most.div_ceil(64)).map_err(|_| libc::ENOMEM)?);
        }
        Ok(())
    }

    fn note_pinned(&self, page: usize) {
        if let Some(bits) = &self.pinned {
            let at = page - self.first;
            bits[at / 64].fetch_or(1 << (at % 64), Ordering::Relaxed);
        }
    }

    fn is_pinned(&self, page: usize) -> bool {
        let at = page - self.first;
        self.pinned.as_ref().is_some_and(|bits| bits[at / 64].load(Ordering::Relaxed) >> (at % 64) & 1 != 0)
    }

    /// Pages that stay in memory because they are pinned.
    pub fn pinned(&self) -> impl Iterator<Item = usize> + '_ {
        let pages = if self.pinned.is_some() { self.pages.clone() } else { 0..0 };
        pages.filter(|page| self.is_pinned(*page))
    }

    /// Takes the write locks of the blocks that have pinned pages.
    fn lock_pinned(&mut self) {
        let wanted = self.pinned().fold(0u64, |locks, page| locks | 1 << (page / BLOCK_PAGES % WRITE_LOCKS));
        for lock in (0..WRITE_LOCKS).filter(|lock| wanted >> lock & 1 != 0) {
            std::mem::forget(self.region.write_lock(lock).lock());
            self.locks |= 1 << lock;
        }
    }

    /// Copies what the file has of a range of bytes into the pinned pages that it touches, with the stores beside it left alone.
    /// Of a page for which that fails, as it was before, standard error tells.
    pub fn patch(&self, range: Range<u64>) {
        for page in self.pinned() {
            let start = range.start.max((page * PAGE) as u64);
            let end = range.end.min(((page + 1) * PAGE) as u64);
            if start < end
                && let Err(error) = self.patch_page(page, start, end)
            {
                let what =
                    "is pinned and does not have what was written to the file: reading it back failed with error";
                fault::say(self.region, page, format_args!("{what} {error}"));
            }
        }
    }

    fn patch_page(&self, page: usize, start: u64, end: u64) -> Result<(), i32> {
        /// Small: the caller may be on a small stack.
        const PIECE: usize = 512;
        let region = self.region;
        let at = region.address_of(page);
        let writable = region.is_writable();
        if writable && !region.word(page).look().is_pinned_for_writing() {
            pinning::begin_upgrade(region, page);
            if let fault::Outcome::Failed(_, error) = fault::upgrade(region, page..page + 1) {
                return Err(error);
            }
        } else if !writable {
            // SAFETY: a page of this region that nobody may store to: it stays clean.
            unsafe { region.userfaultfd(page).write_protect(at, PAGE, false)? };
        }
        let mut piece = [0u8; PIECE];
        let mut from = start;
        while from < end {
            let len = PIECE.min((end - from) as usize);
            // SAFETY: the buffer is this function's; the page is resident and not protected while it is pinned and the block's
            // lock is held. Other threads may store to it.
            unsafe {
                let got = file::read_at(region.store().reader(), piece.as_mut_ptr(), len, from)?;
                piece[got..len].fill(0);
                memory::put(at.add(from as usize % PAGE), &piece[..len])?;
            }
            from += len as u64;
        }
        if !writable {
            // SAFETY: as above.
            unsafe { region.userfaultfd(page).write_protect(at, PAGE, true)? };
        }
        Ok(())
    }

    /// Lets all pages go, those in memory again for which `fill` has bytes and for which there is a credit that nobody needs.
    pub fn put_back(mut self, fill: impl Fn(usize) -> Fill) {
        let region = self.region;
        let core = region.cache().here();
        self.let_pins_go();
        while let Some(page) = self.next_held() {
            match fill(page) {
                Fill::From(bytes) => {
                    // Neighbours whose bytes follow go in together.
                    let end = self.pages.end.min(region.stripe_end(page)).min(page + RUN);
                    let follows = |next: &usize| {
                        let wanted = bytes.wrapping_add((*next - page) * PAGE);
                        !self.is_pinned(*next) && matches!(fill(*next), Fill::From(at) if std::ptr::eq(at, wanted))
                    };
                    let count = 1 + (page + 1..end).take_while(follows).count();
                    let credits = region.cache().credits.take_some(core, count);
                    let put = install(region, page..page + credits, bytes, core);
                    region.cache().release_credits(core, credits - put);
                    (page + put..page + count).for_each(|page| give_back(region, page));
                    self.pages.start = page + count;
                }
                Fill::Read => {
                    let credits = region.cache().credits.take_some(core, 1);
                    let put = if credits > 0 { self.read_in(page, core) } else { 0 };
                    region.cache().release_credits(core, credits - put);
                    if put == 0 {
                        give_back(region, page);
                    }
                    self.pages.start = page + 1;
                }
                Fill::Absent => {
                    give_back(region, page);
                    self.pages.start = page + 1;
                }
            }
        }
    }

    fn read_in(&self, page: usize, core: usize) -> usize {
        let region = self.region;
        let buffer = region.cache().buffer(core);
        // SAFETY: the buffer is this thread's page.
        match unsafe { file::read_at(region.store().reader(), buffer.at, PAGE, (page * PAGE) as u64) } {
            Ok(got @ 1..) => {
                // SAFETY: the rest of that page.
                unsafe { buffer.at.add(got).write_bytes(0, PAGE - got) };
                install(region, page..page + 1, buffer.at, core)
            }
            _ => 0,
        }
    }

    /// Drops the doomed pages, which the file does not have any more, and lets all go.
    pub fn cut(mut self) {
        let region = self.region;
        self.let_pins_go();
        while let Some(page) = self.next_held() {
            let is_kept = |page: &usize| region.word(*page).look().state() == State::Evicting;
            let end = self.pages.end.min(page + RUN);
            let kept = (page..end).take_while(|page| !self.is_pinned(*page) && is_kept(page)).count();
            if kept > 0 {
                drop_run(region, page..page + kept);
            }
            (page..page + kept.max(1)).for_each(|page| give_back(region, page));
            self.pages.start = page + kept.max(1);
        }
    }

    fn next_held(&mut self) -> Option<usize> {
        while self.pages.start < self.pages.end && self.is_pinned(self.pages.start) {
            self.pages.start += 1;
        }
        (self.pages.start < self.pages.end).then_some(self.pages.start)
    }

    fn let_pins_go(&mut self) {
        if !std::mem::replace(&mut self.holds_pins, false) {
            return;
        }
        self.pinned().for_each(|page| pinning::take_back(self.region, page));
        for lock in (0..WRITE_LOCKS).filter(|lock| self.locks >> lock & 1 != 0) {
            // SAFETY: `lock_pinned` took it and forgot the guard.
            unsafe { self.region.write_lock(lock).release() };
        }
        self.locks = 0;
    }
}

impl Drop for Seized<'_> {
    fn drop(&mut self) {
        self.let_pins_go();
        while let Some(page) = self.next_held() {
            give_back(self.region, page);
            self.pages.start = page + 1;
        }
    }
}

/// Takes saved pages in state Evicting, which are this thread's, out of memory, and holds them.
fn drop_run(region: &Region, pages: Range<usize>) {
    let cache = region.cache();
    let core = cache.here();
    let iov_base = region.address_of(pages.start).cast();
    evict::drop_memory(region, &[libc::iovec { iov_base, iov_len: pages.len() * PAGE }]);
    pages.clone().for_each(|page| region.word(page).hold());
    cache.cores[core].0.counters.evicted_pages.add(pages.len());
    region.counters_at(core).dropped.add(pages.len());
    cache.release_credits(core, pages.len());
}

/// Lets a held page go: absent, or as it was if it has been kept.
fn give_back(region: &Region, page: usize) {
    let word = region.word(page);
    if word.look().state() != State::Evicting {
        return fault::unclaim(region, page);
    }
    region.dirty().set(page);
    let after = word.abort_expel();
    // Whoever writes back may have taken the mark before the page was dirty again, and have passed over it.
    region.dirty().set(page);
    region.cache().recount_dirty(region.cache().here());
    if after.wake {
        futex::wake_all(word.futex());
    }
}

/// Makes held pages of one stripe resident and clean, with the bytes at `from`, for which the caller has credits; how many.
fn install(region: &Region, pages: Range<usize>, from: *const u8, core: usize) -> usize {
    if pages.is_empty() {
        return 0;
    }
    let to = region.address_of(pages.start);
    // SAFETY: absent pages of this region that are this thread's; as many bytes are there, or the kernel says that they are not.
    let put = unsafe { region.userfaultfd(pages.start).copy_pages(to, from, pages.len(), true) };
    region.counters_at(core).brought.add(put);
    (pages.start..pages.start + put).for_each(|page| fault::finish(region, page, core, false, false, false));
    put
}
