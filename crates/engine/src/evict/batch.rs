//! Making room: one batch of the oldest clean pages leaves memory with one system call.

use crate::evict::bookkeeping;
use crate::page::claims::Evicting;
use crate::page::entry::{Entry, FRAME_PAGES};
use crate::pool::pool::{MOST_BATCH, Pool};
use crate::pool::staging::{SlotNumber, Staging};
use crate::region::region::Region;
use crate::region::{install, registry};
use crate::sys::PAGE;
use crate::sys::signal::Blocked;
use crate::sys::sync::Ordering;
use std::ops::Range;

/// An empty slot, which gets the memory of the first frame that is evicted.
pub type Spare<'a> = Option<(&'a Staging, SlotNumber)>;

/// A core evicts another core's pages if they are older than its own by more than this, in units of births: a 32nd of memory.
const OLDER: u32 = 8;

/// The core whose probationary or protected queue gives the next batch. If all cores miss alike, each evicts its own pages. But a thread that
/// moves to another core leaves pages behind, which no thread on the old core may ever evict.
fn oldest(pool: &Pool, core: usize, protected_queue: bool) -> usize {
    let now = pool.ghosts.birth();
    let mut oldest = (core, pool.clean.age(core, protected_queue, now).map_or(0, |age| age + OLDER));
    for other in 0..pool.cores.len() {
        if let Some(age) = pool.clean.age(other, protected_queue, now)
            && age > oldest.1
        {
            oldest = (other, age);
        }
    }
    oldest.0
}

/// Evicts a batch from this core's clean queues, or from another core's if its pages are older. Returns the number of free frames, which are the
/// caller's. If a frame was evicted, its memory may have gone to the slot `spare`, which then is `None`.
///
/// Signals are blocked (in the fault handler, or by a guard), since it holds a core's `evicting` lock.
pub fn evict_batch(pool: &Pool, core: usize, spare: &mut Spare<'_>) -> usize {
    let batch = pool.batch();
    let cores = pool.cores.len();
    let votes = pool.cores[core].0.votes.swap(0, Ordering::Relaxed);
    if votes != 0 {
        pool.ghosts.adapt(votes, pool.capacity());
    }
    let takes_protected = pool.takes_protected(0);
    let others = || (0..cores).map(|step| (core + step) % cores);
    let queues = |protected_queue: bool| {
        std::iter::once(oldest(pool, core, protected_queue)).chain(others()).map(move |from| (from, protected_queue))
    };
    for (from, protected_queue) in [takes_protected, !takes_protected].into_iter().flat_map(queues) {
        let Some(_held) = pool.cores[from].0.evicting.try_lock() else { continue };
        let space = &pool.cores[from].0.batch;
        // SAFETY: the lock makes the space this thread's.
        let (entries, ranges) = unsafe {
            (
                std::slice::from_raw_parts_mut(space.entries.as_mut_ptr(), batch),
                std::slice::from_raw_parts_mut(space.ranges.as_mut_ptr(), batch),
            )
        };
        let mut held_back = 0;
        // It may be that no page of a batch can go, since all were stored to: then take the next batch.
        loop {
            let popped = pool.clean.pop(from, protected_queue, entries, pool.ghosts.birth());
            if popped == 0 {
                break;
            }
            let popped = &mut entries[..popped];
            let frames = popped.iter().any(|entry| Entry::from(*entry).is_frame());
            let freed = drop_batch(popped, ranges, pool.ghosts.stamp(), spare);
            if freed == 0 && frames {
                // Frames that may not go are at the end of the queue again. There is no use in meeting them twice.
                held_back += popped.len();
                if held_back * FRAME_PAGES > pool.capacity() {
                    break;
                }
            }
            if freed > 0 {
                pool.note_evicted(freed);
                let counters = pool.counters_at(core);
                counters.evicted_pages.add(freed);
                counters.eviction_batches.add(1);
                return freed;
            }
        }
    }
    0
}

/// Takes the pages of a batch out of memory, region by region. Returns how many could go.
fn drop_batch(entries: &mut [u64], ranges: &mut [libc::iovec], stamp: u32, spare: &mut Spare<'_>) -> usize {
    // By region first, then by address.
    entries.sort_unstable();
    let mut freed = 0;
    let mut rest = entries;
    while let Some(first) = rest.first() {
        let slot = Entry::from(*first).region();
        let end = rest.iter().position(|entry| Entry::from(*entry).region() != slot).unwrap_or(rest.len());
        let (of_region, others) = rest.split_at_mut(end);
        if let Some(region) = registry::enter(slot) {
            freed += drop_pages(&region, of_region, ranges, Some(stamp), spare);
        }
        rest = others;
    }
    freed
}

/// Drops the clean pages of a range at once, for advice. Returns how many. The caller holds the region's length: a change of the length must
/// not come between an entry in this thread's hands and its page.
pub fn evict_range(region: &Region, pages: Range<usize>) -> usize {
    let pool = region.pool();
    if let Some(ahead) = pool.ahead() {
        let _blocked = Blocked::all();
        ahead.drop_range(region, pages.clone());
    }
    let mut entries: Vec<u64> = pool.clean.purge(region.id(), pages).into_iter().map(u64::from).collect();
    let mut ranges = vec![libc::iovec { iov_base: std::ptr::null_mut(), iov_len: 0 }; MOST_BATCH];
    let mut dropped = 0;
    // By address: `drop_pages` joins neighbours.
    entries.sort_unstable();
    for batch in entries.chunks_mut(MOST_BATCH) {
        let _blocked = Blocked::all();
        let freed = drop_pages(region, batch, &mut ranges, None, &mut None);
        let core = pool.here();
        pool.counters_at(core).evicted_pages.add(freed);
        pool.give_free_frames(core, freed);
        dropped += freed;
    }
    dropped
}

/// Takes all pages of a frame out of memory. False: one of them may not go, and the frame is queued again.
fn drop_frame(region: &Region, entry: Entry, stamp: Option<u32>, spare: &mut Spare<'_>) -> bool {
    let pages = entry.page()..entry.page() + FRAME_PAGES;
    let claim = |page: usize| Evicting::begin_huge(region.page(page)).map(Evicting::keep).is_some();
    let claimed = pages.clone().take_while(|page| claim(*page)).count();
    if claimed < FRAME_PAGES {
        pages.take(claimed).for_each(|page| Evicting::adopt(region.page(page)).abort_huge());
        region.pool().enqueue_frame(entry, false);
        return false;
    }
    let from = region.address_of(pages.start);
    // SAFETY: the state Evicting gives the frame to this thread.
    let moved = spare.take().is_some_and(|(staging, number)| match unsafe { staging.move_back(number, from) } {
        Ok(()) => true,
        Err(_) => {
            // Part of it may have been moved.
            staging.drop_memory(number);
            *spare = Some((staging, number));
            false
        }
    });
    if !moved {
        install::drop_memory(region, &[libc::iovec { iov_base: from.cast(), iov_len: FRAME_PAGES * PAGE }]);
    }
    // Without ghosts: pages of a walk come back in a walk.
    pages.for_each(|page| Evicting::adopt(region.page(page)).finish(None));
    region.hints().note_gone(entry.page(), stamp);
    region.counters_at(region.pool().here()).dropped.add(FRAME_PAGES);
    true
}

/// Takes every frame of a region out of memory. The pages of a frame that cannot go become ordinary ones.
pub fn dissolve_frames(region: &Region) {
    let pool = region.pool();
    let _blocked = Blocked::all();
    let _evicting: Vec<_> = pool.cores.iter().map(|core| core.0.evicting.lock()).collect();
    let core = pool.here();
    for _ in 0..2 {
        for entry in pool.clean.purge_frames(region.id()) {
            if drop_frame(region, entry, None, &mut None) {
                pool.give_free_frames(core, FRAME_PAGES);
            }
        }
    }
    for entry in pool.clean.purge_frames(region.id()) {
        for page in entry.page()..entry.page() + FRAME_PAGES {
            if region.word(page).leave_huge().enqueue {
                pool.enqueue(core, region.id(), page, 0);
            }
        }
    }
}

/// Keeps frames out of a region from now on, and takes out those that are there. The caller holds no page.
pub fn forbid_frames(region: &Region) {
    region.frames().forbid();
    // A thread that drops a range at this moment (`evict_range`) has entries of frames in its hands. It holds the length.
    let _length = region.lock_length();
    dissolve_frames(region);
}

/// Takes clean pages of one region out of memory. With a stamp they leave ghosts. Returns how many could go.
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
            frames += usize::from(drop_frame(region, entry, stamp, spare));
            continue;
        }
        // From here on a store to the page traps and waits: the page was write-protected when it became clean.
        if let Some(claim) = Evicting::begin(region.page(entry.page())) {
            let start = claim.keep().address().cast::<libc::c_void>();
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
    install::drop_memory(region, &ranges[..used]);
    for entry in &entries[..freed] {
        let page = Entry::from(*entry).page();
        Evicting::adopt(region.page(page)).finish(stamp);
        region.hints().note_gone(page, stamp);
    }
    bookkeeping::give_back(region, entries[..freed].iter().map(|entry| Entry::from(*entry).page()));
    region.counters_at(region.pool().here()).dropped.add(freed);
    freed + frames * FRAME_PAGES
}
