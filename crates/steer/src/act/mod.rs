//! What is done to a program's mappings: one face, with a hand for each way in.

mod own;

pub use own::Own;

use crate::judge::{Advice, Run};
use crate::observe::Mapping;

/// A way to a program's mappings. A call that fails changes nothing.
pub trait Hand {
    /// Advises a mapping: MADV_NORMAL, MADV_RANDOM, or both that and MADV_HUGEPAGE (which MADV_NORMAL does not take back:
    /// MADV_NOHUGEPAGE does, if it `was_blocks`).
    fn advise(&mut self, mapping: &Mapping, advice: Advice, was_blocks: bool) -> bool;

    /// Has pages of a mapping read, without waiting (MADV_WILLNEED).
    fn read_ahead(&mut self, mapping: &Mapping, pages: &Run) -> bool;

    /// Lets go of pages of a mapping: they are read again at the next touch (MADV_PAGEOUT, Linux 5.4). Nothing
    /// happens to pages that other processes have mapped, or of a file that the caller could not write.
    fn drop(&mut self, mapping: &Mapping, pages: &Run) -> bool;
}
