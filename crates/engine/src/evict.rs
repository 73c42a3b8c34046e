//! Making room: one batch of the oldest clean pages leaves memory with one system call.

use crate::cache::{Inner, MOST_BATCH};
use crate::dirty::BLOCK_PAGES;
use crate::region::{Entry, Region};
use crate::registry;
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

/// Evicts a batch from this core's clean queue, or from the next one that has pages. True: the caller has a credit, and
/// the rest of the batch is in the core's share. False: nothing to evict at this moment. Runs with signals blocked.
pub fn evict(cache: &Inner, core: usize) -> bool {
    let freed = evict_batch(cache, core);
    if freed > 0 {
        cache.release_credits(core, freed - 1);
    }
    freed > 0
}

/// Evicts a batch likewise; its pages' credits are the caller's.
///
/// Runs with signals blocked (in the fault handler, or under a guard): it holds a core's `evicting` lock.
pub fn evict_batch(cache: &Inner, core: usize) -> usize {
    let batch = cache.batch();
    let cores = cache.cores.len();
    for from in (0..cores).map(|step| (core + step) % cores) {
        let Some(_held) = cache.cores[from].0.evicting.try_lock() else { continue };
        let scratch = &cache.cores[from].0.scratch;
        // SAFETY: the lock makes the scratch space this thread's.
        let (entries, ranges) = unsafe {
            (
                std::slice::from_raw_parts_mut(scratch.entries.as_mut_ptr(), batch),
                std::slice::from_raw_parts_mut(scratch.ranges.as_mut_ptr(), batch),
            )
        };
        // A batch of entries may be void, all of pages that were stored to: take the next.
        loop {
            let popped = cache.clean.pop(from, entries);
            if popped == 0 {
                break;
            }
            let freed = drop_batch(&mut entries[..popped], ranges);
            if freed > 0 {
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
fn drop_batch(entries: &mut [u64], ranges: &mut [libc::iovec]) -> usize {
    // By region first, then by address.
    entries.sort_unstable();
    let mut freed = 0;
    let mut rest = entries;
    while let Some(first) = rest.first() {
        let slot = Entry::from(*first).slot();
        let end = rest.iter().position(|entry| Entry::from(*entry).slot() != slot).unwrap_or(rest.len());
        let (of_region, others) = rest.split_at_mut(end);
        if let Some(region) = registry::enter(slot) {
            freed += drop_pages(&region, of_region, ranges);
        }
        rest = others;
    }
    freed
}

/// Drops the clean pages of a range at once, for advice; their count. The caller holds the region's length: `expel` must not
/// come between an entry in this thread's hands and its page.
pub fn evict_range(region: &Region, pages: Range<usize>) -> usize {
    let cache = region.cache();
    let mut entries: Vec<u64> = cache.clean.purge(region.slot(), pages).into_iter().map(u64::from).collect();
    let mut ranges = vec![libc::iovec { iov_base: std::ptr::null_mut(), iov_len: 0 }; MOST_BATCH];
    let mut dropped = 0;
    for batch in entries.chunks_mut(MOST_BATCH) {
        let _blocked = Blocked::all();
        let freed = drop_pages(region, batch, &mut ranges);
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
    }
    drop_memory(region, &[libc::iovec { iov_base: region.address_of(page).cast(), iov_len: PAGE }]);
    if word.finish_evict().wake {
        futex::wake_all(word.futex());
    }
    counters.evicted_pages.add(1);
    cache.release_credits(core, 1);
    Ok(true)
}

/// Drops pages that the state Evicting gives to this thread; the file has their contents.
fn drop_memory(region: &Region, ranges: &[libc::iovec]) {
    // SAFETY: as above.
    if !unsafe { madvise::drop_pages(ranges) } {
        // Not documented for such memory, and going on would lose stores to pages thought absent.
        crate::fault::die(region, "the kernel refuses to drop pages (madvise)");
    }
}

fn drop_pages(region: &Region, entries: &mut [u64], ranges: &mut [libc::iovec]) -> usize {
    let (mut freed, mut used) = (0, 0);
    for at in 0..entries.len() {
        let page = Entry::from(entries[at]).page();
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
        if word.finish_evict().wake {
            futex::wake_all(word.futex());
        }
    }
    freed
}
