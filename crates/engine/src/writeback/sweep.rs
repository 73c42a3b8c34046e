//! Goes over dirty blocks and writes them: all of a range, or a share of each region.

use crate::deferred::protocol;
use crate::page::dirty::BLOCK_PAGES;
use crate::pool::mailbox::Failure;
use crate::pool::pool::Pool;
use crate::region::region::Region;
use crate::region::registry::regions_of;
use crate::region::write_state::{EXPIRED_TICKS, WRITE_LOCKS};
use crate::sys::signal::Blocked;
use crate::writeback::flight::{Flight, Kept};
use std::iter::successors;
use std::ops::Range;
use std::sync::atomic::Ordering;

/// The result of a look for dirty pages to write.
#[derive(Debug)]
pub enum Swept {
    /// Some pages are clean now.
    Wrote,
    /// No dirty page, or other threads are writing.
    Nothing,
    /// There are dirty pages, and none could be written: the error number.
    Failed(i32),
}

/// A share of every region's blocks: those whose number modulo `count` is `index`. `count` is a power of two, at most
/// [`WRITE_LOCKS`], so owners of different stripes want different locks.
#[derive(Debug, Clone, Copy)]
pub struct Stripe {
    pub index: usize,
    /// Stripes that there are.
    pub count: usize,
}

impl Stripe {
    /// All blocks.
    pub const ALL: Stripe = Stripe { index: 0, count: 1 };

    pub fn has(self, block: usize) -> bool {
        block % self.count == self.index
    }
}

/// Writes the pages of the range that are in the stripe and dirty at the time of the call. Waits for other threads' writes in
/// flight there.
pub fn write_out(region: &Region, pages: Range<usize>, stripe: Stripe) -> Result<(), Failure> {
    // If a page cannot be read, the others are written all the same.
    let settled = protocol::settle(region, pages.clone());
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

/// Makes the pages of a range of a scratch region clean without writing them; the file then has none of them. When one is
/// evicted, its contents are lost, whether it was dirty at the time of the call or not. A store after the page was protected
/// makes it dirty as ever.
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
            // A page here may be in a write that began a moment ago. The writer has noted the page in `contents`, and ends before the lock is
            // free.
            let _held = region.writes().write_lock(block).lock();
            contents.forget(of_block);
        }
    }
}

/// Writes dirty pages of a stripe of a region, block after block from where the last such call stopped, until `enough` returns
/// true or `wanted` pages were found, or a few more. Blocks that others are writing are left to them. Signals are blocked.
pub fn sweep(region: &Region, stripe: Stripe, wanted: usize, mut enough: impl FnMut() -> bool) -> Swept {
    let dirty = region.dirty();
    let cursor = region.writes().write_cursor(stripe.index);
    let start = cursor.load(Ordering::Relaxed);
    let mut flight = Flight::new(region, true);
    let mut left = wanted;
    // From the cursor to the end, then from the beginning to the cursor.
    for part in [start..dirty.blocks(), 0..start] {
        let marked = successors(dirty.next_block(part.start), |block| dirty.next_block(block + 1));
        for block in marked.take_while(|block| part.contains(block)).filter(|block| stripe.has(*block)) {
            let lock = block % WRITE_LOCKS;
            if left == 0 || enough() {
                break;
            }
            if flight.try_lock(lock) {
                left =
                    left.saturating_sub(flight.write_block(block, 0..dirty.blocks() * BLOCK_PAGES, left, Kept::Skip));
                flight.close(lock);
                // The rest of this block is next, or the next block if there is none.
                cursor.store(if left == 0 { block } else { block + 1 }, Ordering::Relaxed);
            }
        }
    }
    flight.land();
    match flight.failure {
        _ if flight.written > 0 => Swept::Wrote,
        Some(failure) => Swept::Failed(failure.error),
        None => Swept::Nothing,
    }
}

/// Writes the expired blocks of a stripe of a region: those that were dirty at each of the last [`EXPIRED_TICKS`] ticks, or
/// were filled from front to back. With `tick`, this call is one more tick. Signals are blocked.
pub fn write_expired(region: &Region, stripe: Stripe, tick: bool) -> Swept {
    if region.scratch().is_some() {
        // Nobody else reads its file: its pages are written only to make room.
        return Swept::Nothing;
    }
    let dirty = region.dirty();
    let mut flight = Flight::new(region, true);
    let marked = successors(dirty.next_block(0), |block| dirty.next_block(block + 1));
    for block in marked.filter(|block| stripe.has(*block)) {
        let age = &region.writes().ages()[block];
        let seen = (age.load(Ordering::Relaxed) + u8::from(tick)).min(EXPIRED_TICKS);
        age.store(seen, Ordering::Relaxed);
        if seen == EXPIRED_TICKS && flight.try_lock(block % WRITE_LOCKS) {
            flight.write_block(block, 0..dirty.blocks() * BLOCK_PAGES, usize::MAX, Kept::Write);
            flight.close(block % WRITE_LOCKS);
        }
    }
    flight.land();
    match flight.failure {
        Some(failure) => Swept::Failed(failure.error),
        None if flight.written > 0 => Swept::Wrote,
        None => Swept::Nothing,
    }
}

/// Writes `wanted` dirty pages of the cache, or a few more, for a thread that found no clean one. Signals are blocked.
pub fn direct_reclaim(pool: &Pool, core: usize, wanted: usize) -> Swept {
    let count = pool.writers().map_or(1, |writers| writers.writers());
    let mut result = Swept::Nothing;
    for region in regions_of(pool) {
        for step in 0..count {
            match sweep(&region, Stripe { index: (core + step) % count, count }, wanted, || false) {
                Swept::Wrote => return Swept::Wrote,
                Swept::Failed(error) => result = Swept::Failed(error),
                Swept::Nothing => {}
            }
        }
    }
    result
}
