//! The budget: a *free frame* is the right to have one page more in memory.
//!
//! It is a count and no address: the kernel decides where a page's memory is when the page is installed. (A *frame* without the word free is
//! another thing, 2 MiB of staging memory that is moved into a file's place whole: `staging.rs`.)
//!
//! Free frames lie in per-core shares (the paper's per-core free lists, section 3.3). Taking from one's own share is
//! one compare-and-swap on a line no other core uses; an empty share steals half of another's, the next core's first.
//! Each of the frames issued is always in exactly one place: free in a share, in the hands of a thread, or behind a
//! page in memory. So pages in memory never exceed the frames issued, which are the capacity.
//!
//! *Pinnable frames* are counted in the same way: one is the right to have one page pinned (`pin/`). A thread may
//! overdraw its core's share of them for a moment (`overdraw`): a share may be negative, and only the sum means
//! something.

use crate::sys::sync::{AtomicIsize, Ordering, Padded};

/// Per-core shares of the free frames issued.
#[derive(Debug)]
pub struct FreeFrames {
    shares: Box<[Padded<AtomicIsize>]>,
}

impl FreeFrames {
    /// Issues `total` free frames, dealt evenly to `cores` shares.
    pub fn new(total: usize, cores: usize) -> Self {
        let free_frames = FreeFrames { shares: (0..cores).map(|_| Padded(AtomicIsize::new(0))).collect() };
        free_frames.issue(total);
        free_frames
    }

    /// Takes one free frame from a core's own share. Acquire pairs with `give`: the pages behind it are out of memory.
    #[inline]
    pub fn take(&self, core: usize) -> bool {
        let one_less = |share: isize| (share > 0).then_some(share - 1);
        self.shares[core].0.fetch_update(Ordering::Acquire, Ordering::Relaxed, one_less).is_ok()
    }

    /// Takes up to `most` free frames from a core's own share; the count.
    #[inline]
    pub fn take_some(&self, core: usize, most: usize) -> usize {
        let part = |share: isize| share.min(most as isize);
        let some = |share: isize| (share > 0).then(|| share - part(share));
        let before = self.shares[core].0.fetch_update(Ordering::Acquire, Ordering::Relaxed, some);
        before.map_or(0, |share| part(share) as usize)
    }

    /// Takes a free frame of a core's own share whether there is one or not; true: there was. The caller gives it back
    /// soon, and does not wait before that.
    #[inline]
    pub fn overdraw(&self, core: usize) -> bool {
        self.shares[core].0.fetch_sub(1, Ordering::Acquire) > 0
    }

    /// Puts free frames into a core's share; the pages behind them are out of memory.
    #[inline]
    pub fn give(&self, core: usize, count: usize) {
        self.shares[core].0.fetch_add(count as isize, Ordering::Release);
    }

    /// Takes one free frame from another core, and moves half of what that core has over to this one. `start` says
    /// where to look first.
    pub fn steal(&self, core: usize, start: usize) -> bool {
        let count = self.shares.len();
        for victim in (0..count).map(|step| (start + step) % count) {
            let mut loot = 0;
            let taken = self.shares[victim].0.fetch_update(Ordering::Acquire, Ordering::Relaxed, |share| {
                loot = share - share / 2;
                (share > 0).then(|| share - loot)
            });
            if taken.is_ok() {
                if loot > 1 {
                    self.give(core, loot as usize - 1);
                }
                return true;
            }
        }
        false
    }

    /// Issues `count` more, dealt evenly.
    pub fn issue(&self, count: usize) {
        let cores = self.shares.len();
        (0..cores).for_each(|core| self.give(core, count / cores + usize::from(core < count % cores)));
    }

    /// Takes up to `most` free frames from all shares at once; the count.
    pub fn withdraw(&self, most: usize) -> usize {
        let mut taken = 0;
        for Padded(share) in &self.shares {
            let mut loot = 0;
            let update = share.fetch_update(Ordering::Acquire, Ordering::Relaxed, |share| {
                loot = share.min((most - taken) as isize);
                (loot > 0).then(|| share - loot)
            });
            taken += update.map_or(0, |_| loot as usize);
        }
        taken
    }

    /// Free frames in all shares, for statistics: a moment's sum.
    pub fn idle(&self) -> usize {
        self.shares.iter().map(|share| share.0.load(Ordering::Relaxed)).sum::<isize>().max(0) as usize
    }
}
