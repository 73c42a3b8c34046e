//! Which pages of a region are dirty: a bitmap with two summary levels, apart from the page words.
//!
//! FastMap keeps dirty pages in a sorted per-core tree (paper, section 3.2); here iteration is sorted by construction.
//! A leaf word covers 64 pages, a summary word the 64 leaves of one *block* (4096 pages, 16 MiB), a top word 64 blocks.
//! A bit in a summary means "look below"; it may be stale, never missing once `set` has returned.
//!
//! `set` may run anywhere. `take` runs under the lock of its block (see `writeback/flight.rs`), so two takers never meet.

use crate::sys::sync::{AtomicU64, Ordering};
use std::ops::{Deref, Range};

/// Pages under one summary word: the unit that one writer works on.
pub const BLOCK_PAGES: usize = 4096;

/// The three levels; `S` is where the words live.
#[derive(Debug)]
pub struct DirtyBitmap<S> {
    leaves: S,
    summary: S,
    top: S,
}

/// Words each level needs for this many pages.
pub fn words_for(pages: usize) -> [usize; 3] {
    let leaves = pages.div_ceil(64);
    let summary = leaves.div_ceil(64);
    [leaves, summary, summary.div_ceil(64)]
}

impl<S: Deref<Target = [AtomicU64]>> DirtyBitmap<S> {
    /// A bitmap over zeroed words, as many in each level as [`words_for`] says.
    pub fn new(leaves: S, summary: S, top: S) -> Self {
        DirtyBitmap { leaves, summary, top }
    }

    /// Blocks the bitmap covers.
    pub fn blocks(&self) -> usize {
        self.summary.len()
    }

    /// Marks a page dirty. On return all levels say so. It does not rely on a neighbour's bit in the leaf: another thread may have set that
    /// a moment ago and not have reached the levels above yet, and the next flush must find this page.
    #[inline]
    pub fn set(&self, page: usize) {
        let (leaf, block) = (page / 64, page / BLOCK_PAGES);
        // Pairs with the update of the leaf in `take`, which updates a leaf even if it takes nothing from it. Either the taker sees this
        // page in the leaf, or this thread sees that the taker has cleared the levels above, and sets them again.
        self.leaves[leaf].fetch_or(1 << (page % 64), Ordering::AcqRel);
        self.tell_summary(block, 1 << (leaf % 64));
    }

    /// Sets the bits above some leaves of a block, from the bottom up; a taker clears them from the top down. It looks before it writes:
    /// mostly the bits are set already, and the cache lines stay shared between cores.
    fn tell_summary(&self, block: usize, leaves: u64) {
        if self.summary[block].load(Ordering::Acquire) & leaves != leaves {
            self.summary[block].fetch_or(leaves, Ordering::AcqRel);
        }
        let (word, bit) = (block / 64, 1 << (block % 64));
        if self.top[word].load(Ordering::Acquire) & bit == 0 {
            self.top[word].fetch_or(bit, Ordering::AcqRel);
        }
    }

    /// The first block at or after `from` that may hold dirty pages.
    pub fn next_block(&self, from: usize) -> Option<usize> {
        let mut word = from / 64;
        let mut mask = u64::MAX << (from % 64);
        while word < self.top.len() {
            let bits = self.top[word].load(Ordering::Acquire) & mask;
            if bits != 0 {
                return Some(word * 64 + bits.trailing_zeros() as usize);
            }
            mask = u64::MAX;
            word += 1;
        }
        None
    }

    /// Whether a block may hold dirty pages.
    #[inline]
    pub fn is_marked(&self, block: usize) -> bool {
        self.top[block / 64].load(Ordering::Acquire) & 1 << (block % 64) != 0
    }

    /// How many pages of a range are dirty at the moment; some number above `enough` if there are more than that.
    pub fn count(&self, pages: Range<usize>, enough: usize) -> usize {
        let mut count = 0;
        let mut block = pages.start / BLOCK_PAGES;
        while let Some(next) = self.next_block(block).filter(|next| next * BLOCK_PAGES < pages.end && count <= enough) {
            let mut marked = self.summary[next].load(Ordering::Acquire);
            while marked != 0 {
                let leaf = next * 64 + marked.trailing_zeros() as usize;
                marked &= marked - 1;
                count += (self.leaves[leaf].load(Ordering::Acquire) & mask_of(leaf, &pages)).count_ones() as usize;
            }
            block = next + 1;
        }
        count
    }

    /// Clears the bits of `block` that lie in `pages`, leaf by leaf until `enough` pages or more are found, and hands each page to `visit` in
    /// ascending order. So of a leaf it clears all bits in the range, or none. The caller holds the block's lock.
    pub fn take(&self, block: usize, pages: Range<usize>, enough: usize, mut visit: impl FnMut(usize)) {
        self.top[block / 64].fetch_and(!(1 << (block % 64)), Ordering::AcqRel);
        let mut marked = self.summary[block].swap(0, Ordering::AcqRel);
        let mut left_behind = 0;
        let mut found = 0;
        while marked != 0 {
            let bit = marked.trailing_zeros() as usize;
            marked &= marked - 1;
            let leaf = block * 64 + bit;
            let wanted_here = if found < enough { mask_of(leaf, &pages) } else { 0 };
            let mut wanted = wanted_here & self.leaves[leaf].load(Ordering::Acquire);
            found += wanted.count_ones() as usize;
            if self.leaves[leaf].fetch_and(!wanted, Ordering::AcqRel) & !wanted != 0 {
                left_behind |= 1 << bit;
            }
            while wanted != 0 {
                visit(leaf * 64 + wanted.trailing_zeros() as usize);
                wanted &= wanted - 1;
            }
        }
        if left_behind != 0 {
            self.tell_summary(block, left_behind);
        }
    }
}

/// The bits of a leaf that fall into a range of pages.
fn mask_of(leaf: usize, pages: &Range<usize>) -> u64 {
    let first = leaf * 64;
    let low = pages.start.saturating_sub(first).min(64);
    let high = pages.end.saturating_sub(first).min(64);
    if low >= high {
        return 0;
    }
    (u64::MAX >> (64 - (high - low))) << low
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    fn bitmap(pages: usize) -> DirtyBitmap<Box<[AtomicU64]>> {
        let [leaves, summary, top] = words_for(pages).map(|n| (0..n).map(|_| AtomicU64::new(0)).collect());
        DirtyBitmap::new(leaves, summary, top)
    }

    proptest! {
        #[test]
        fn behaves_like_a_sorted_set(
            steps in prop::collection::vec((any::<bool>(), 0usize..20_000, 0usize..6_000, 1usize..200), 1..200)
        ) {
            let bitmap = bitmap(20_000);
            let mut model = BTreeSet::new();
            for (set, page, len, limit) in steps {
                if set {
                    bitmap.set(page);
                    model.insert(page);
                    continue;
                }
                let block = page / BLOCK_PAGES;
                let range = page..page + len;
                let mut got = Vec::new();
                bitmap.take(block, range.clone(), limit, |page| got.push(page));
                let end = range.end.min((block + 1) * BLOCK_PAGES);
                let mut want: Vec<usize> = Vec::new();
                for page in model.range(range.start..end) {
                    let in_the_last_leaf = want.last().is_some_and(|last| last / 64 == page / 64);
                    if want.len() < limit || in_the_last_leaf {
                        want.push(*page);
                    }
                }
                for page in &want {
                    model.remove(page);
                }
                prop_assert_eq!(got, want);
                for page in &model {
                    prop_assert!(bitmap.next_block(0).unwrap() <= page / BLOCK_PAGES);
                    prop_assert!(bitmap.is_marked(page / BLOCK_PAGES));
                }
                prop_assert_eq!(bitmap.count(range.clone(), usize::MAX), model.range(range.clone()).count());
                prop_assert!(bitmap.count(range.clone(), 10) >= model.range(range).count().min(11));
            }
        }
    }
}
