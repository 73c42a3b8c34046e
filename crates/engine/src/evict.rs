//! Making room: one batch of the oldest clean pages leaves memory with one system call.

use crate::cache::{Inner, MOST_BATCH};
use crate::dirty::BLOCK_PAGES;
use crate::page::After;
use crate::region::{Entry, Region};
use crate::registry;
use crate::staging::{FRAME_PAGES, SlotNumber, Staging};
use crate::sync::Ordering;
use crate::sys::memory::Zeroed;
use crate::sys::signal::Blocked;
use crate::sys::{PAGE, futex, madvise};
use std::io;
use std::ops::Range;

/// Space to put a batch together, one per core, held under the core's `evicting` lock. A fault handler may run on a
/// small stack, which has no room for it.
#[derive(Debug)]
pub struct Scratch {
    entries: Zeroed<u64>,
    ranges: Zeroed<libc::iovec>,
}

// SAFETY: the addresses in it are only passed to the kernel, by the thread that holds the lock.
unsafe impl Send for Scratch {}
// SAFETY: likewise.
unsafe impl Sync for Scratch {}

impl Scratch {
    /// Space for the largest batch.
    pub fn new() -> io::Result<Self> {
        Ok(Scratch { entries: Zeroed::new(MOST_BATCH)?, ranges: Zeroed::new(MOST_BATCH)? })
    }
}

/// Evicts a batch from this core's clean queues, or from another's that hold older pages. True: the caller has a credit, and
/// the rest of the batch is in the core's share. False: nothing to evict at this moment. Runs with signals blocked.
pub fn evict(cache: &Inner, core: usize) -> bool {
    let freed = evict_batch(cache, core, &mut None);
    if freed > 0 {
        cache.release_credits(core, freed - 1);
    }
    freed > 0
}

/// An empty slot, for the memory of a frame that is evicted.
pub type Spare<'a> = Option<(&'a Staging, SlotNumber)>;

/// How much older another core's pages must be for it to evict them and not its own, in units of births: a 32nd of memory.
const OLDER: u32 = 8;

/// The core whose clean pages go first. Where all cores miss alike each evicts its own; but a thread that moved to another
/// core leaves pages behind that nobody there would ever evict, while it lived on what it loads from then on.
fn oldest(cache: &Inner, core: usize) -> usize {
    let now = cache.ghosts.birth();
    let mut oldest = (core, cache.clean.age(core, now).map_or(0, |age| age + OLDER));
    for other in 0..cache.cores.len() {
        if let Some(age) = cache.clean.age(other, now)
            && age > oldest.1
        {
            oldest = (other, age);
        }
    }
    oldest.0
}

/// Evicts a batch likewise; its pages' credits are the caller's. The memory of one frame may go to `spare`, which is taken
/// then.
///
/// Runs with signals blocked (in the fault handler, or under a guard): it holds a core's `evicting` lock.
pub fn evict_batch(cache: &Inner, core: usize, spare: &mut Spare<'_>) -> usize {
    let batch = cache.batch();
    let cores = cache.cores.len();
    let votes = cache.cores[core].0.votes.swap(0, Ordering::Relaxed);
    if votes != 0 {
        cache.ghosts.adapt(votes, cache.capacity());
    }
    let first = oldest(cache, core);
    for from in std::iter::once(first).chain((0..cores).map(|step| (core + step) % cores)) {
        let Some(_held) = cache.cores[from].0.evicting.try_lock() else { continue };
        let scratch = &cache.cores[from].0.scratch;
        // SAFETY: the lock makes the scratch space this thread's.
        let (entries, ranges) = unsafe {
            (
                std::slice::from_raw_parts_mut(scratch.entries.as_mut_ptr(), batch),
                std::slice::from_raw_parts_mut(scratch.ranges.as_mut_ptr(), batch),
            )
        };
        let mut held_back = 0;
        // A batch of entries may be void, all of pages that were stored to: take the next.
        loop {
            let popped = cache.clean.pop(from, &cache.ghosts, entries);
            if popped == 0 {
                break;
            }
            let popped = &mut entries[..popped];
            let frames = popped.iter().any(|entry| Entry::from(*entry).is_frame());
            let freed = drop_batch(popped, ranges, cache.ghosts.stamp(), spare);
            if freed == 0 && frames {
                // Frames that may not go are at the end of the queue again: no use to meet them twice.
                held_back += popped.len();
                if held_back * FRAME_PAGES > cache.capacity() {
                    break;
                }
            }
            if freed > 0 {
                cache.ghosts.advance(freed, cache.capacity());
                let counters = &cache.cores[core].0.counters;
                counters.evicted_pages.add(freed);
                counters.eviction_batches.add(1);
                return freed;
            }
        }
    }
    0
}

/// Takes the pages of a batch out of memory, region by region; the count of those that could go.
fn drop_batch(entries: &mut [u64], ranges: &mut [libc::iovec], stamp: u32, spare: &mut Spare<'_>) -> usize {
    // By region first, then by address.
    entries.sort_unstable();
    let mut freed = 0;
    let mut rest = entries;
    while let Some(first) = rest.first() {
        let slot = Entry::from(*first).slot();
        let end = rest.iter().position(|entry| Entry::from(*entry).slot() != slot).unwrap_or(rest.len());
        let (of_region, others) = rest.split_at_mut(end);
        if let Some(region) = registry::enter(slot) {
            freed += drop_pages(&region, of_region, ranges, Some(stamp), spare);
        }
        rest = others;
    }
    freed
}

/// Drops the clean pages of a range at once, for advice; their count. The caller holds the region's length: `expel` must not
/// come between an entry in this thread's hands and its page.
pub fn evict_range(region: &Region, pages: Range<usize>) -> usize {
    let cache = region.cache();
    if let Some(ahead) = cache.ahead() {
        let _blocked = Blocked::all();
        ahead.drop_range(region, pages.clone());
    }
    let mut entries: Vec<u64> = cache.clean.purge(region.slot(), pages).into_iter().map(u64::from).collect();
    let mut ranges = vec![libc::iovec { iov_base: std::ptr::null_mut(), iov_len: 0 }; MOST_BATCH];
    let mut dropped = 0;
    for batch in entries.chunks_mut(MOST_BATCH) {
        let _blocked = Blocked::all();
        let freed = drop_pages(region, batch, &mut ranges, None, &mut None);
        let core = cache.here();
        cache.cores[core].0.counters.evicted_pages.add(freed);
        cache.release_credits(core, freed);
        dropped += freed;
    }
    dropped
}

/// Saves one page and takes it out of memory, whoever stores to it meanwhile; the caller holds the region's length. False:
/// someone else is at work on it, or it is not in memory. Fails with the error number of the write; the page is dirty then.
pub fn expel(region: &Region, page: usize) -> Result<bool, i32> {
    let cache = region.cache();
    let word = region.word(page);
    let _blocked = Blocked::all();
    // Only tried claims under it: a page being loaded may wait for a writer of this block.
    let _writing = region.write_lock(page / BLOCK_PAGES).lock();
    let was_dirty = {
        // An evictor that has the page's entry in its hands might use it when the page is back.
        let _evicting: Vec<_> = cache.cores.iter().map(|core| core.0.evicting.lock()).collect();
        let Some((was_dirty, was_queued)) = word.begin_expel() else { return Ok(false) };
        // Whoever made the page clean may be about to push its entry: it waits for nothing.
        while was_queued && cache.clean.purge(region.slot(), page..page + 1).is_empty() {
            std::thread::yield_now();
        }
        was_dirty
    };
    let core = cache.here();
    let counters = &cache.cores[core].0.counters;
    if was_dirty {
        region.dirty().take(page / BLOCK_PAGES, page..page + 1, 1, |_| {});
        cache.discount_dirty(core, 1);
        if let Some(contents) = region.scratch() {
            contents.note_written(page..page + 1);
        }
        let at = region.address_of(page);
        // SAFETY: a resident page of this region that the state Evicting keeps there.
        let saved = unsafe {
            let protected = region.userfaultfd(page).write_protect(at, PAGE, true);
            protected.and_then(|()| region.store().write_pages(page, at, 1, region.store().write_end()?))
        };
        if let Err(error) = saved {
            counters.writeback_errors.add(1);
            region.dirty().set(page);
            let after = word.abort_expel();
            cache.recount_dirty(core);
            if after.wake {
                futex::wake_all(word.futex());
            }
            return Err(error);
        }
        counters.writeback_pages.add(1);
        counters.writeback_runs.add(1);
        counters.writeback_depth.add(1);
        region.counters_at(core).writeback_pages.add(1);
    }
    drop_memory(region, &[libc::iovec { iov_base: region.address_of(page).cast(), iov_len: PAGE }]);
    if word.finish_evict(None).wake {
        futex::wake_all(word.futex());
    }
    counters.evicted_pages.add(1);
    region.counters_at(core).dropped.add(1);
    cache.release_credits(core, 1);
    Ok(true)
}

/// Drops pages that the state Evicting gives to this thread; the file has their contents.
pub fn drop_memory(region: &Region, ranges: &[libc::iovec]) {
    // SAFETY: as above.
    if !unsafe { madvise::drop_pages(ranges) } {
        // Not documented for such memory, and going on would lose stores to pages thought absent.
        crate::fault::die(region, "the kernel refuses to drop pages (madvise)");
    }
}

/// Takes all pages of a frame out of memory, unless one of them may not go; then the frame is queued again.
fn drop_frame(region: &Region, entry: Entry, spare: &mut Spare<'_>) -> bool {
    let pages = entry.page()..entry.page() + FRAME_PAGES;
    let wake = |page: usize, after: After| {
        if after.wake {
            futex::wake_all(region.word(page).futex());
        }
    };
    let claimed = pages.clone().take_while(|page| region.word(*page).begin_evict_huge()).count();
    if claimed < FRAME_PAGES {
        pages.take(claimed).for_each(|page| wake(page, region.word(page).abort_evict_huge()));
        region.cache().requeue_frame(entry);
        return false;
    }
    let from = region.address_of(pages.start);
    // SAFETY: the state Evicting gives the frame to this thread.
    let moved = spare.take().is_some_and(|(staging, number)| match unsafe { staging.move_back(number, from) } {
        Ok(()) => true,
        Err(_) => {
            // Part of it may have gone over.
            staging.drop_memory(number);
            *spare = Some((staging, number));
            false
        }
    });
    if !moved {
        drop_memory(region, &[libc::iovec { iov_base: from.cast(), iov_len: FRAME_PAGES * PAGE }]);
    }
    // Without ghosts: pages of a walk come back in a walk.
    pages.for_each(|page| wake(page, region.word(page).finish_evict(None)));
    region.counters_at(region.cache().here()).dropped.add(FRAME_PAGES);
    true
}

/// Takes every frame of a region out of memory, or makes its pages ordinary ones, where one cannot go.
pub fn dissolve_frames(region: &Region) {
    let cache = region.cache();
    let _blocked = Blocked::all();
    let _evicting: Vec<_> = cache.cores.iter().map(|core| core.0.evicting.lock()).collect();
    let core = cache.here();
    for _ in 0..2 {
        for entry in cache.clean.purge_frames(region.slot()) {
            if drop_frame(region, entry, &mut None) {
                cache.release_credits(core, FRAME_PAGES);
            }
        }
    }
    for entry in cache.clean.purge_frames(region.slot()) {
        for page in entry.page()..entry.page() + FRAME_PAGES {
            if region.word(page).leave_huge().enqueue {
                cache.enqueue(core, region, page, false);
            }
        }
    }
}

/// Takes clean pages of one region out of memory; with a stamp they leave ghosts. The count of those that could go.
fn drop_pages(
    region: &Region,
    entries: &mut [u64],
    ranges: &mut [libc::iovec],
    stamp: Option<u32>,
    spare: &mut Spare<'_>,
) -> usize {
    let (mut freed, mut used, mut frames) = (0, 0, 0);
    for at in 0..entries.len() {
        let entry = Entry::from(entries[at]);
        if entry.is_frame() {
            frames += usize::from(drop_frame(region, entry, spare));
            continue;
        }
        let page = entry.page();
        // From here a store to the page traps and waits: it was write-protected when it became clean.
        if region.word(page).begin_evict() {
            let start = region.address_of(page).cast::<libc::c_void>();
            match ranges[..used].last_mut() {
                // Neighbours in one range: it costs the kernel less.
                Some(last) if last.iov_base.wrapping_byte_add(last.iov_len) == start => last.iov_len += PAGE,
                _ => {
                    ranges[used] = libc::iovec { iov_base: start, iov_len: PAGE };
                    used += 1;
                }
            }
            entries[freed] = entries[at];
            freed += 1;
        }
    }
    drop_memory(region, &ranges[..used]);
    for entry in &entries[..freed] {
        let word = region.word(Entry::from(*entry).page());
        if word.finish_evict(stamp).wake {
            futex::wake_all(word.futex());
        }
    }
    region.counters_at(region.cache().here()).dropped.add(freed);
    freed + frames * FRAME_PAGES
}
