//! The budget: one credit is the right to hold one page in memory.
//!
//! Credits live in per-core shares (the paper's per-core free lists, section 3.3). Taking from one's own share is one
//! compare-and-swap on a line no other core uses; an empty share steals half of another's, the next core's first.
//! A credit is always in exactly one place: a share, a thread's hands, or behind a resident page. So pages in memory
//! never exceed the credits issued.
//!
//! *Pin credits* are kept likewise: one is the right to have one page pinned (`pinning.rs`). Of these a thread may take one
//! that is not there, for a moment (`overdraw`): a share may be negative, and the sum is what counts.

use crate::sync::{AtomicIsize, Ordering};

/// Keeps two cores' data out of one another's cache lines; 128 bytes, since x86 fetches lines in pairs.
#[derive(Debug, Default)]
#[repr(align(128))]
pub struct Padded<T>(pub T);

/// Per-core shares of the credits issued.
#[derive(Debug)]
pub struct Credits {
    shares: Box<[Padded<AtomicIsize>]>,
}

impl Credits {
    /// Issues `total` credits, dealt evenly to `cores` shares.
    pub fn new(total: usize, cores: usize) -> Self {
        let credits = Credits { shares: (0..cores).map(|_| Padded(AtomicIsize::new(0))).collect() };
        credits.issue(total);
        credits
    }

    /// Takes one credit from a core's own share. Acquire pairs with `give`: the memory given back is gone.
    #[inline]
    pub fn take(&self, core: usize) -> bool {
        let one_less = |share: isize| (share > 0).then_some(share - 1);
        self.shares[core].0.fetch_update(Ordering::Acquire, Ordering::Relaxed, one_less).is_ok()
    }

    /// Takes up to `most` credits from a core's own share; the count.
    #[inline]
    pub fn take_some(&self, core: usize, most: usize) -> usize {
        let part = |share: isize| share.min(most as isize);
        let some = |share: isize| (share > 0).then(|| share - part(share));
        let before = self.shares[core].0.fetch_update(Ordering::Acquire, Ordering::Relaxed, some);
        before.map_or(0, |share| part(share) as usize)
    }

    /// Takes a credit of a core's own share whether there is one or not; true: there was. The caller gives it back soon, and
    /// waits for nobody before.
    #[inline]
    pub fn overdraw(&self, core: usize) -> bool {
        self.shares[core].0.fetch_sub(1, Ordering::Acquire) > 0
    }

    /// Puts credits into a core's share; the pages behind them are out of memory.
    #[inline]
    pub fn give(&self, core: usize, credits: usize) {
        self.shares[core].0.fetch_add(credits as isize, Ordering::Release);
    }

    /// Takes one credit from another core, and moves half of what that core has over to this one. `start` says where to
    /// look first.
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

    /// Issues `credits` more, dealt evenly.
    pub fn issue(&self, credits: usize) {
        let cores = self.shares.len();
        (0..cores).for_each(|core| self.give(core, credits / cores + usize::from(core < credits % cores)));
    }

    /// Takes up to `most` credits from all shares at once; the count.
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

    /// Credits in all shares, for statistics: a moment's sum.
    pub fn idle(&self) -> usize {
        self.shares.iter().map(|share| share.0.load(Ordering::Relaxed)).sum::<isize>().max(0) as usize
    }
}
