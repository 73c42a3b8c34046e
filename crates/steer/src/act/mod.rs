//! What is done to a program's mappings: one face, with a hand for each way in.

mod own;

pub use own::Own;

use crate::judge::Advice;
use std::ops::Range;

/// A way to a program's mappings. A call that fails changes nothing.
pub trait Hand {
    /// Advises the addresses: MADV_NORMAL, MADV_RANDOM, or both that and MADV_HUGEPAGE (which MADV_NORMAL does not take back:
    /// MADV_NOHUGEPAGE does, if it `was_blocks`).
    fn advise(&self, at: Range<u64>, advice: Advice, was_blocks: bool) -> bool;

    /// Has the addresses' pages read, without waiting (MADV_WILLNEED).
    fn read_ahead(&self, at: Range<u64>) -> bool;

    /// Lets go of the addresses' pages: they are read again at the next touch (MADV_PAGEOUT, Linux 5.4). Nothing
    /// happens to pages that other processes have mapped, or of a file that the caller could not write.
    fn drop(&self, at: Range<u64>) -> bool;
}
