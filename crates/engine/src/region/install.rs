//! How a page comes into a region's memory, becomes writable, and leaves: the steps that faults, readahead, pins and invalidation share.

use crate::page::claims::{Loading, Upgrading};
use crate::page::word::Seen;
use crate::region::page_ref::PageRef;
use crate::region::prediction::StorePrediction;
use crate::region::region::Region;
use crate::region::store_groups::GROUP_PAGES;
use crate::region::{prediction, registry, report};
use crate::sys::signal::Blocked;
use crate::sys::{PAGE, madvise};
use std::ops::Range;

/// The operation that fails where the disk has no room for a store to a hole.
pub const TAKING_SPACE: &str = "allocating space on the disk (fallocate)";

/// How a fault ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    /// The access will succeed now, or trap anew.
    Resolved,
    /// The page lies past the file's end.
    PastEnd,
    /// A system call failed: what it was for, and the error number.
    Failed(&'static str, i32),
}

/// Maps a page that was missed and that this thread has claimed. `from` is a page of bytes: a read buffer, or zeros.
pub fn install_missed(claim: &Loading<PageRef<'_>>, from: *const u8, writable: bool) -> Outcome {
    // SAFETY: the caller has a page there.
    match unsafe { claim.install(from, writable) } {
        Ok(()) => Outcome::Resolved,
        Err(error) => Outcome::Failed("UFFDIO_COPY", error),
    }
}

/// Maps neighbouring pages that this thread has claimed (Loading, or Staged in a slot of its own) with the bytes at `from`, and publishes
/// them. Returns how many it could map. Pages that are expected to be stored to are writable, the others write-protected. `protected` has a
/// bit for each of the first 64 pages whose queue is the protected one.
pub fn install_run(
    region: &Region,
    run: Range<usize>,
    from: *const u8,
    core: usize,
    expects_stores: bool,
    protected: u64,
) -> usize {
    #[derive(PartialEq)]
    enum Kind {
        Protected,
        Sample,
        Writable,
    }
    let kind = |page: usize| match () {
        () if !region.is_writable() => Kind::Protected,
        () if expects_stores && region.store().is_locked() && region.has_space(page) => Kind::Writable,
        () if prediction::is_sample(page) => Kind::Sample,
        () if region.predicts_store(page) && region.has_space(page) => Kind::Writable,
        () => Kind::Protected,
    };
    let counters = region.pool().counters_at(core);
    let mut start = run.start;
    while start < run.end {
        let kind_here = kind(start);
        let end = (start..run.end).find(|page| kind(*page) != kind_here).unwrap_or(run.end);
        let (writable, sample) = (kind_here == Kind::Writable, kind_here == Kind::Sample);
        if writable {
            for page in start..end {
                announce_writable(region, page);
            }
        }
        let bytes = from.wrapping_add((start - run.start) * PAGE);
        // SAFETY: absent pages of one stripe that are this thread's to install; as many bytes are there.
        let installed =
            unsafe { region.userfaultfd(start).copy_pages(region.address_of(start), bytes, end - start, !writable) };
        for page in start..start + installed {
            let protected = protected.checked_shr((page - run.start) as u32).is_some_and(|bits| bits & 1 != 0);
            Loading::adopt(region.page(page)).finish(writable, sample, protected, core);
            if sample {
                note_sample(region, page, core);
            }
        }
        if writable {
            counters.guessed_stores.add(installed);
        }
        region.counters_at(core).brought.add(installed);
        start += installed;
        if start < end {
            break;
        }
    }
    start - run.start
}

/// Announces that a page which this thread has claimed is installed writable.
pub fn announce_writable(region: &Region, page: usize) {
    let claim = Loading::adopt(region.page(page));
    claim.announce_writable();
    claim.keep();
}

/// Notes that a sample page was loaded by a read, and counts the wrong guesses that this shows.
pub fn note_sample(region: &Region, page: usize, core: usize) {
    let wrong: u32 = region.predictions().samples_at(page).map(StorePrediction::note_load).sum();
    region.pool().counters_at(core).wrong_guesses.add(wrong as usize * prediction::SAMPLES);
}

/// Claims an absent page for a reader, or, without one, for this thread. Returns the word as it was seen before.
pub fn claim(region: &Region, page: usize, reader: Option<usize>) -> Option<Seen> {
    let page = region.page(page);
    let seen = page.look();
    let claim = match reader {
        Some(reader) => Loading::begin_read(page, seen, reader),
        None => Loading::begin(page, seen),
    }?;
    if !registry::has(region, page.number()) {
        // The page was asked for before the conversion, or before its address became foreign. Something else may lie there soon.
        claim.abort();
        return None;
    }
    // A hole is read like any page, and its bit is void once the page is in memory. A page of a scratch region that its file does not have
    // is not read: the page holds zeros, not the file's bytes.
    region.take_hole(page.number());
    if region.is_in_file(page.number()) {
        claim.keep();
        Some(seen)
    } else {
        claim.abort();
        None
    }
}

/// Claims neighbouring pages from `first` on, as far as they are absent and mapped, `most` of them at most. The caller has as many free frames;
/// those that are left are given back. Returns how many pages were claimed, and a bit for each whose queue is the protected one.
pub fn claim_run(region: &Region, first: usize, most: usize, reader: Option<usize>, core: usize) -> (usize, u64) {
    let pool = region.pool();
    let (mut count, mut protected_queue) = (0, 0);
    while let Some(seen) = (count < most).then(|| claim(region, first + count, reader)).flatten() {
        protected_queue |= u64::from(pool.note_missed(core, seen.ghost())) << count;
        count += 1;
    }
    // Asked again, now that they are claimed: who unmaps pages notes that first, and then takes them out of memory.
    let mapped = region.ahead_of(first).end.saturating_sub(first).min(count);
    (first + mapped..first + count).for_each(|page| unclaim(region, page));
    pool.give_free_frames(core, most - mapped);
    (mapped, protected_queue)
}

/// Maps the first of the pages that [`claim_run`] has claimed, with the bytes at `from`. Gives up the rest, and its free frames. Returns
/// how many were mapped.
pub fn install_claimed(region: &Region, pages: Range<usize>, first: usize, from: *const u8, protected: u64) -> usize {
    let core = region.pool().here();
    let mapped = install_run(region, pages.start..pages.start + first, from, core, false, protected);
    (pages.start + mapped..pages.end).for_each(|page| unclaim(region, page));
    region.pool().give_free_frames(core, pages.len() - mapped);
    mapped
}

/// Gives up a page that this thread has claimed and does not load after all.
pub fn unclaim(region: &Region, page: usize) {
    Loading::adopt(region.page(page)).abort();
}

/// The first store to a clean page: makes it writable, then Dirty. A writer of its neighbours may protect it once more, and then the
/// store traps once more.
#[inline]
pub fn upgrade(claim: Upgrading<PageRef<'_>>) -> Outcome {
    let pool = claim.page().region().pool();
    let core = pool.here();
    pool.counters_at(core).upgrades.add(1);
    upgraded(claim.upgrade(core))
}

/// The first store to a clean page: makes the page writable, with those that are likely to be stored to soon (`store_groups.rs`). Pages
/// that another thread has claimed, or that are not clean, are left out: a thread that holds claims waits for nothing.
pub fn upgrade_group(claim: Upgrading<PageRef<'_>>) -> Outcome {
    let (region, page) = (claim.page().region(), claim.page().number());
    let companions = region.companions(page);
    if companions == 0 {
        return upgrade(claim);
    }
    let first = page - page % GROUP_PAGES;
    let mut claimed = 1 << (page % GROUP_PAGES);
    claim.mark_dirty();
    claim.keep();
    let mut left = companions;
    while left != 0 {
        let other = region.page(first + left.trailing_zeros() as usize);
        let seen = other.look();
        if seen.may_accompany()
            && region.has_space(other.number())
            && let Some(claim) = Upgrading::begin(other, seen)
        {
            claim.mark_dirty();
            claim.keep();
            claimed |= left & left.wrapping_neg();
        }
        left &= left - 1;
    }
    let counters = region.pool().counters_at(region.pool().here());
    counters.upgrades.add(1);
    counters.guessed_stores.add(claimed.count_ones() as usize - 1);
    let mut outcome = Outcome::Resolved;
    while claimed != 0 {
        let start = claimed.trailing_zeros();
        let len = (claimed >> start).trailing_ones();
        let run = first + start as usize..first + (start + len) as usize;
        let lifted = lift(region, run.clone());
        if run.contains(&page) {
            outcome = upgraded(lifted);
        }
        // Adding the lowest bit carries through the run.
        claimed &= claimed.wrapping_add(1 << start);
    }
    outcome
}

/// Makes neighbours in one block writable and Dirty, with one system call, for pins for writing: 0.1 µs a page, instead of 0.7.
/// The caller has pinned them.
pub fn upgrade_run(region: &Region, pages: Range<usize>) -> Outcome {
    let pool = region.pool();
    for page in pages.clone() {
        let claim = Upgrading::await_turn(region.page(page));
        claim.mark_dirty();
        claim.keep();
    }
    pool.counters_at(pool.here()).upgrades.add(pages.len());
    upgraded(lift(region, pages))
}

/// Makes neighbours of one block writable that this thread has claimed (Upgrading) and marked dirty, and ends the claims.
fn lift(region: &Region, pages: Range<usize>) -> Result<(), i32> {
    let (start, len) = (region.address_of(pages.start), pages.len() * PAGE);
    // SAFETY: resident pages of this region, of one stripe; UPGRADING lets no one drop them.
    let lifted = unsafe { region.userfaultfd(pages.start).write_protect(start, len, false) };
    let core = region.pool().here();
    pages.for_each(|page| Upgrading::adopt(region.page(page)).finish(core));
    lifted
}

fn upgraded(lifted: Result<(), i32>) -> Outcome {
    lifted.map_or_else(|error| Outcome::Failed("UFFDIO_WRITEPROTECT", error), |()| Outcome::Resolved)
}

/// Takes back one pin. True: it was the page's last pin, and the page's pinnable frame is the caller's now.
#[inline(always)]
pub fn let_go(region: &Region, page: usize, writing: bool) -> bool {
    let (last, after) = region.word(page).unpin(writing);
    if after.enqueue {
        requeue(region, page);
    }
    last
}

/// Takes back a pin that took no pinnable frame, because the page had others when it came. If it is the last one now, gives the page's
/// pinnable frame back.
pub fn take_back(region: &Region, page: usize) {
    if let_go(region, page, false) {
        region.pool().pins.give(region.pool().here(), 1);
    }
}

/// Makes a page known to the evictors again, after one has met it pinned.
#[cold]
pub fn requeue(region: &Region, page: usize) {
    // A thread that invalidates the page waits for an entry that is about to be pushed.
    let _blocked = Blocked::all();
    if let Some(returns) = region.word(page).requeue() {
        let pool = region.pool();
        pool.enqueue(pool.here(), region.id(), page, returns);
        pool.waiting().wake_waiters();
    }
}

/// Drops pages that the state Evicting gives to this thread; the file has their contents.
pub fn drop_memory(region: &Region, ranges: &[libc::iovec]) {
    // SAFETY: pages of this region that the state Evicting gives to this thread, and whose contents the file has.
    if !unsafe { madvise::drop_pages(ranges) } {
        // Not documented for such memory, and going on would lose stores to pages thought absent.
        report::die(region, "the kernel refuses to drop pages (madvise)");
    }
}
