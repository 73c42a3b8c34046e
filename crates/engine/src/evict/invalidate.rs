//! Takes pages out of every thread's reach for the time of a file operation.
//!
//! A write by system call, or a truncation, changes the file beneath pages that are in memory. So its pages are *invalidated*: saved
//! if they are dirty, dropped, and held in state Loading. A thread that loads from one or stores to it waits on the word. After the
//! operation they are let go: absent, to be read as the file is then, or in memory again, with bytes that the caller knows. Pages that no
//! thread ever claimed are held together, by a gate (`region/reach.rs`).
//!
//! A pinned page cannot leave memory. It is pinned once more, and its block's write lock is held, so that no writer puts old bytes over
//! those that the operation wrote. Afterwards the bytes that were written are copied into it.
//!
//! No deadlock:
//!
//! * Pages are claimed in ascending order, and a thread that waits for one holds lower ones only. So of two such threads with common
//!   pages one gets the lowest, and goes on.
//! * A thread that loads a page waits for no other page.
//! * Held pages have no free frames, so no thread starves for them.
//! * A write lock may be waited for with pages held: its holder waits for pages in UPGRADING only. Several write locks are held at once
//!   only when all pages are claimed; they are taken in ascending order.
//! * The length of the region is never asked for with a page held, since its holder waits for pages to leave memory.

use crate::deferred::protocol;
use crate::evict::batch;
use crate::page::claims::{Evicting, Loading, PageAccess, Upgrading};
use crate::page::dirty::BLOCK_PAGES;
use crate::page::word::State;
use crate::region::arrivals;
use crate::region::reach::Shut;
use crate::region::region::Region;
use crate::region::write_state::WRITE_LOCKS;
use crate::region::{install, registry, report};
use crate::sys::memory::Zeroed;
use crate::sys::signal::Blocked;
use crate::sys::sync::{AtomicU64, Ordering};
use crate::sys::{PAGE, file, memory};
use crate::writeback::sweep::{self, Stripe};
use std::ops::Range;

/// Resident pages that leave memory together, at most.
const RUN: usize = 64;

/// Pages of a region that this thread alone holds, until this is dropped. Signals are blocked meanwhile: a handler that touched
/// one of the pages would wait for the thread that it interrupted.
pub struct Invalidated<'a> {
    region: &'a Region,
    /// The pages claimed so far, and not let go yet.
    pages: Range<usize>,
    /// A bit for each page from `first` on: set if it is in memory because it is pinned. Ordinary operations meet none.
    pinned: Option<Zeroed<AtomicU64>>,
    first: usize,
    /// Pages of which `pinned` has a bit.
    most: usize,
    /// Dirty pages from this one on are not saved but kept in state Evicting, protected.
    truncated: usize,
    /// Write locks held, a bit each.
    locks: u64,
    /// The pins have not been taken back yet.
    holds_pins: bool,
    /// The gate before pages that were never claimed, if the range reaches that far.
    _shut: Option<Shut<'a>>,
    _blocked: Blocked,
}

/// The result of a look at the next page.
enum Step {
    Claimed,
    Again,
    /// It is part of a frame.
    Frame,
}

/// A page's bytes for [`Invalidated::put_back`].
#[derive(Debug, Clone, Copy)]
pub enum Fill {
    /// These, a page of them.
    From(*const u8),
    /// Those that the file has now, through the page cache.
    Read,
    /// None: the page stays out of memory.
    Absent,
}

/// Invalidates pages, clipped to the region. Dirty pages from `truncated` on are kept and not written, until [`Invalidated::cut`] drops
/// them. Fails with the error number of a write; then nothing is held and nothing lost.
pub fn invalidate(region: &Region, pages: Range<usize>, truncated: usize) -> Result<Invalidated<'_>, i32> {
    let end = pages.end.min(region.span() / PAGE);
    let pages = pages.start.min(end)..end;
    loop {
        // A region that has never had a page has no frame yet, and may go on having some.
        if region.frames().are_allowed() && region.reach().end() > 0 {
            batch::forbid_frames(region);
        }
        let saved = pages.start..pages.end.min(truncated).max(pages.start);
        if region.dirty().count(saved.clone(), 0) > 0 {
            // This writes most of them at little cost a page. Pages that become dirty again are saved one run at a time below.
            sweep::write_out(region, saved, Stripe::ALL).map_err(|failure| failure.error)?;
        }
        let blocked = Blocked::all();
        let shut = (pages.end > region.reach().end()).then(|| region.reach().shut());
        let pages = pages.start..pages.end.min(region.reach().end()).max(pages.start);
        let mut invalidated = Invalidated {
            region,
            pages: pages.start..pages.start,
            pinned: None,
            first: pages.start,
            most: pages.len(),
            truncated,
            locks: 0,
            holds_pins: true,
            _shut: shut,
            _blocked: blocked,
        };
        if invalidated.claim_all(pages.end)? {
            invalidated.lock_pinned();
            return Ok(invalidated);
        }
        // A frame was on its way in, or is being dissolved by another thread, which may wait for what is held here.
        drop(invalidated);
        batch::forbid_frames(region);
    }
}

impl<'a> Invalidated<'a> {
    /// Claims all pages up to `end`. False: a frame is in the way.
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
        let page = self.region.page(self.pages.end);
        let seen = page.look();
        match seen.state() {
            State::Absent => {
                if let Some(claim) = Loading::begin(page, seen) {
                    claim.keep();
                    return Ok(Step::Claimed);
                }
            }
            State::Staged => {
                if let Some(ahead) = self.region.pool().ahead() {
                    ahead.drop_range(self.region, page.number()..page.number() + 1);
                }
                if page.look() == seen {
                    // Another thread maps or drops the chunk.
                    std::thread::yield_now();
                }
            }
            State::Unfilled | State::Buffered => protocol::await_read(page)?,
            State::Loading | State::Evicting => arrivals::await_page(page, seen),
            State::Clean | State::Dirty if seen.is_upgrading() => page.wait(seen),
            State::Clean | State::Dirty if seen.is_huge() => return Ok(Step::Frame),
            State::Clean | State::Dirty if seen.is_pinned() => {
                if seen.is_full() {
                    return Err(libc::EBUSY);
                }
                self.make_room_for_pins()?;
                // One more pin of a pinned page costs no pinnable frame. The thread that takes back the last pin returns the page's one.
                if page.word().try_pin(seen) {
                    self.note_pinned(page.number());
                    return Ok(Step::Claimed);
                }
            }
            State::Clean | State::Dirty => {
                self.pages.end = invalidate_run(self.region, page.number()..end, self.truncated)?.end;
            }
        }
        Ok(Step::Again)
    }

    fn make_room_for_pins(&mut self) -> Result<(), i32> {
        if self.pinned.is_none() {
            // Memory from the kernel: this may run in a handler that interrupted the allocator.
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
            std::mem::forget(self.region.writes().write_lock(lock).lock());
            self.locks |= 1 << lock;
        }
    }

    /// Copies a range of bytes from the file into the pinned pages that it touches. Stores to other bytes of these pages stay. If a page
    /// cannot be copied to, it stays as it is, and standard error says so.
    pub fn patch(&self, range: Range<u64>) {
        for page in self.pinned() {
            let start = range.start.max((page * PAGE) as u64);
            let end = range.end.min(((page + 1) * PAGE) as u64);
            if start < end
                && let Err(error) = self.patch_page(page, start, end)
            {
                let what =
                    "is pinned and does not have what was written to the file: reading it back failed with error";
                report::say(self.region, page, format_args!("{what} {error}"));
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
            if let install::Outcome::Failed(_, error) = install::upgrade(Upgrading::await_turn(region.page(page))) {
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
            // SAFETY: the page of this region that was written to above, resident while it is pinned.
            unsafe { region.userfaultfd(page).write_protect(at, PAGE, true)? };
        }
        Ok(())
    }

    /// Lets all pages go. A page for which `fill` has bytes is put into memory again, if there is an idle free frame for it.
    pub fn put_back(mut self, fill: impl Fn(usize) -> Fill) {
        let region = self.region;
        let core = region.pool().here();
        self.let_pins_go();
        while let Some(page) = self.next_held() {
            match fill(page) {
                Fill::From(bytes) => {
                    // Neighbours whose bytes follow in memory are installed together.
                    let end = self.pages.end.min(region.address().stripe_end(page)).min(page + RUN);
                    let follows = |next: &usize| {
                        let wanted = bytes.wrapping_add((*next - page) * PAGE);
                        !self.is_pinned(*next) && matches!(fill(*next), Fill::From(at) if std::ptr::eq(at, wanted))
                    };
                    let count = 1 + (page + 1..end).take_while(follows).count();
                    let free_frames = region.pool().free_frames.take_some(core, count);
                    let put = install(region, page..page + free_frames, bytes, core);
                    region.pool().give_free_frames(core, free_frames - put);
                    (page + put..page + count).for_each(|page| give_back(region, page));
                    self.pages.start = page + count;
                }
                Fill::Read => {
                    let free_frames = region.pool().free_frames.take_some(core, 1);
                    let put = if free_frames > 0 { self.read_in(page, core) } else { 0 };
                    region.pool().give_free_frames(core, free_frames - put);
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
        let buffer = region.pool().buffer(core);
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

    /// Drops the truncated pages, which the file no longer has, and lets all pages go.
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
        self.pinned().for_each(|page| install::take_back(self.region, page));
        for lock in (0..WRITE_LOCKS).filter(|lock| self.locks >> lock & 1 != 0) {
            // SAFETY: `lock_pinned` took it and forgot the guard.
            unsafe { self.region.writes().write_lock(lock).release() };
        }
        self.locks = 0;
    }
}

impl Drop for Invalidated<'_> {
    fn drop(&mut self) {
        self.let_pins_go();
        while let Some(page) = self.next_held() {
            give_back(self.region, page);
            self.pages.start = page + 1;
        }
    }
}

/// Saves and drops the run of resident pages that begins with the first of `pages`, and claims them (Loading). Dirty pages from `truncated`
/// on are neither saved nor dropped, but stay in Evicting, protected. Returns the claimed pages: none if another thread is at work on the
/// first, or has it pinned. Fails with the error number of a write; nothing is claimed then, and nothing lost.
fn invalidate_run(region: &Region, pages: Range<usize>, truncated: usize) -> Result<Range<usize>, i32> {
    let pool = region.pool();
    let (start, block) = (pages.start, pages.start / BLOCK_PAGES);
    let end = pages.end.min((block + 1) * BLOCK_PAGES).min(start + RUN);
    let end = if start < truncated { end.min(truncated) } else { end };
    // While it is held no write of these pages is in flight.
    let _writing = region.writes().write_lock(block).lock();
    let (mut dirty, mut entries, mut at) = (0u64, 0, start);
    while at < end
        && let Some((claim, was_dirty, was_queued)) = Evicting::begin_invalidate(region.page(at))
    {
        claim.keep();
        dirty |= u64::from(was_dirty) << (at - start);
        entries += usize::from(was_queued);
        at += 1;
    }
    let pages = start..at;
    if pages.is_empty() {
        return Ok(pages);
    }
    let mut result = Ok(());
    if dirty != 0 {
        region.dirty().take(block, pages.clone(), usize::MAX, |_| {});
        pool.discount_dirty(pool.here(), dirty.count_ones() as usize);
        result = protect_and_save(region, start, dirty, truncated);
    }
    let stays = |page: usize| dirty >> (page - start) & 1 != 0 && (result.is_err() || page >= truncated);
    // Before the free frames are given up: void entries must leave room in the queues for the entries of other pages.
    pool.clean.note_void(entries, pool.capacity(), |entry| {
        registry::enter(entry.region()).is_some_and(|region| region.word(entry.page()).void_entry())
    });
    let mut from = start;
    while from < pages.end {
        let keeps = stays(from);
        let to = (from..pages.end).find(|page| stays(*page) != keeps).unwrap_or(pages.end);
        if !keeps {
            drop_run(region, from..to);
        }
        from = to;
    }
    if result.is_err() {
        pages.clone().for_each(|page| give_back(region, page));
    }
    result.map(|()| pages)
}

/// Protects the dirty pages of a run in state Evicting from stores, and writes them unless they are truncated. `dirty` has a bit for each
/// page from `start` on.
fn protect_and_save(region: &Region, start: usize, dirty: u64, truncated: usize) -> Result<(), i32> {
    let first = start + dirty.trailing_zeros() as usize;
    let last = start + 63 - dirty.leading_zeros() as usize;
    // SAFETY: resident pages of this region, of one block and so of one stripe. The clean ones between are protected already.
    unsafe {
        let at = region.address_of(first);
        region.userfaultfd(first).write_protect(at, (last + 1 - first) * PAGE, true)?;
    }
    if start >= truncated {
        return Ok(());
    }
    let core = region.pool().here();
    let counters = region.pool().counters_at(core);
    let end = region.store().write_end()?;
    let mut rest = dirty;
    while rest != 0 {
        let at = rest.trailing_zeros();
        let len = (rest >> at).trailing_ones();
        rest &= u64::MAX.checked_shl(at + len).unwrap_or(0);
        let (page, len) = (start + at as usize, len as usize);
        if let Some(saved) = region.scratch() {
            saved.note_written(page..page + len);
        }
        // SAFETY: the state Evicting keeps them in memory.
        let written = unsafe { region.store().write_pages(page, region.address_of(page), len, end) };
        written.inspect_err(|_| counters.writeback_errors.add(1))?;
        counters.writeback_pages.add(len);
        region.counters_at(core).writeback_pages.add(len);
        counters.writeback_runs.add(1);
        counters.writeback_depth.add(1);
    }
    Ok(())
}

/// Saves one page and takes it out of memory, even if it is stored to again and again. The caller holds the region's length. False:
/// another thread is at work on it, or has it pinned, or it is not in memory. Fails with the error number of the write; the page is
/// dirty then.
pub fn drop_page(region: &Region, page: usize) -> Result<bool, i32> {
    let _blocked = Blocked::all();
    let dropped = invalidate_run(region, page..page + 1, usize::MAX)?;
    dropped.clone().for_each(|page| give_back(region, page));
    Ok(!dropped.is_empty())
}

/// Takes saved pages out of memory, and holds them. They are in state Evicting, and this thread's.
fn drop_run(region: &Region, pages: Range<usize>) {
    let pool = region.pool();
    let core = pool.here();
    let iov_base = region.address_of(pages.start).cast();
    install::drop_memory(region, &[libc::iovec { iov_base, iov_len: pages.len() * PAGE }]);
    for page in pages.clone() {
        Evicting::adopt(region.page(page)).hold().keep();
    }
    pool.counters_at(core).evicted_pages.add(pages.len());
    region.counters_at(core).dropped.add(pages.len());
    pool.give_free_frames(core, pages.len());
}

/// Lets a held page go: it is absent, or dirty if it stayed in memory.
fn give_back(region: &Region, page: usize) {
    let page = region.page(page);
    if page.look().state() == State::Evicting {
        Evicting::adopt(page).abort(region.pool().here());
    } else {
        Loading::adopt(page).abort();
    }
}

/// Makes held pages of one stripe resident and clean, with the bytes at `from`. The caller has free frames for them. Returns how many
/// were installed.
fn install(region: &Region, pages: Range<usize>, from: *const u8, core: usize) -> usize {
    if pages.is_empty() {
        return 0;
    }
    let to = region.address_of(pages.start);
    // SAFETY: absent pages of this region that are this thread's. As many bytes are at `from`, or the kernel reports that they are not.
    let put = unsafe { region.userfaultfd(pages.start).copy_pages(to, from, pages.len(), true) };
    region.counters_at(core).brought.add(put);
    (pages.start..pages.start + put)
        .for_each(|page| Loading::adopt(region.page(page)).finish(false, false, false, core));
    put
}
