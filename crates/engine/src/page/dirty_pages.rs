//! Which pages of a region are dirty, for those who write them: what the dirty bitmap says, or, to show what that is worth
//! ([`Mechanism::DirtyBitmap`](crate::mechanism::Mechanism)), what the page words do. With the feature `ablation` only.

use crate::page::dirty::{BLOCK_PAGES, DirtyBitmap};
use crate::page::word::PageWord;
use crate::sys::memory::Zeroed;
use crate::sys::sync::AtomicU64;
use std::ops::Range;

/// A region's dirty pages. The methods are those of [`DirtyBitmap`].
#[derive(Debug, Clone, Copy)]
pub enum DirtyPages<'a> {
    /// Kept apart from the page words.
    InBitmap(&'a DirtyBitmap<Zeroed<AtomicU64>>),
    /// Only in the page words. A word says that its page is dirty, or about to be, no later than the bitmap would, and not
    /// any more once a writer has claimed it.
    InWords(&'a [PageWord]),
}

impl DirtyPages<'_> {
    /// Blocks there are.
    pub fn blocks(self) -> usize {
        match self {
            DirtyPages::InBitmap(bitmap) => bitmap.blocks(),
            DirtyPages::InWords(words) => words.len().div_ceil(BLOCK_PAGES),
        }
    }

    /// Marks a page dirty.
    #[inline]
    pub fn set(self, page: usize) {
        if let DirtyPages::InBitmap(bitmap) = self {
            bitmap.set(page);
        }
    }

    /// The first block at or after `from` that may hold dirty pages.
    pub fn next_block(self, from: usize) -> Option<usize> {
        match self {
            DirtyPages::InBitmap(bitmap) => bitmap.next_block(from),
            DirtyPages::InWords(_) => (from..self.blocks()).find(|block| self.is_marked(*block)),
        }
    }

    /// Whether a block may hold dirty pages.
    pub fn is_marked(self, block: usize) -> bool {
        match self {
            DirtyPages::InBitmap(bitmap) => bitmap.is_marked(block),
            DirtyPages::InWords(words) => {
                dirty_among(words, block * BLOCK_PAGES..(block + 1) * BLOCK_PAGES).next().is_some()
            }
        }
    }

    /// Dirty pages in a range, or some number above `enough` when there are that many: a moment's count.
    pub fn count(self, pages: Range<usize>, enough: usize) -> usize {
        match self {
            DirtyPages::InBitmap(bitmap) => bitmap.count(pages, enough),
            DirtyPages::InWords(words) => dirty_among(words, pages).take(enough.saturating_add(1)).count(),
        }
    }

    /// Hands the dirty pages of `block` that lie in `pages`, at most `limit` of them, to `visit` in ascending order, and takes
    /// their marks away. The caller holds the block's lock.
    pub fn take(self, block: usize, pages: Range<usize>, limit: usize, visit: impl FnMut(usize)) {
        match self {
            DirtyPages::InBitmap(bitmap) => bitmap.take(block, pages, limit, visit),
            DirtyPages::InWords(words) => {
                let first = block * BLOCK_PAGES;
                let of_block = pages.start.max(first)..pages.end.min(first + BLOCK_PAGES);
                dirty_among(words, of_block).take(limit).for_each(visit);
            }
        }
    }
}

/// The pages of a range whose words say that they are dirty, each looked at when it is come to.
fn dirty_among(words: &[PageWord], pages: Range<usize>) -> impl Iterator<Item = usize> {
    let end = pages.end.min(words.len());
    (pages.start.min(end)..end).filter(|page| words[*page].look().is_to_be_written())
}
