//! Acts on a program's mappings. A [`Hand`] is one way to reach them:
//!
//! * [`Own`] calls madvise(2) in the program itself, and has readers beside the program's threads.
//! * [`Outside`] reaches another process: by ptrace(2) ([`Traced`]), and by readers.

mod beside;
mod files;
mod outside;
mod own;
mod readers;
#[cfg_attr(not(target_arch = "x86_64"), allow(dead_code, unused_imports))]
mod traced;

pub use beside::{Beside, Opened, Reading};
pub use files::Files;
pub use outside::Outside;
pub use own::Own;
pub(crate) use readers::PIECE;
pub use readers::Readers;
pub use traced::{Made, Refusal, Traced};
pub(crate) use traced::{may_trace_all, yama_scope};

use crate::observe::Mapping;
use crate::run::Run;

/// Advice on a mapping: madvise(2).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Advice {
    /// MADV_NORMAL: the kernel reads around and ahead.
    Normal,
    /// MADV_RANDOM: it reads only what is touched.
    Random,
}

/// A way to a program's mappings. A call that fails has done nothing, or a part of what was asked for: it may be repeated.
pub trait Hand {
    /// Advises a mapping: MADV_NORMAL or MADV_RANDOM.
    fn advise(&mut self, mapping: &Mapping, advice: Advice) -> Made;

    /// Begins to read pages of a mapping, without waiting (MADV_WILLNEED).
    fn read_ahead(&mut self, mapping: &Mapping, pages: &Run) -> bool;

    /// Drops pages of a mapping: they are read again at the next touch (MADV_PAGEOUT, Linux 5.4). Pages that other processes have
    /// mapped stay, and so do pages of a file that the caller could not write.
    fn drop(&mut self, mapping: &Mapping, pages: &Run) -> bool;

    /// Readers beside the program, if there are any.
    fn readers(&mut self) -> Option<&mut dyn Reading> {
        None
    }
}
