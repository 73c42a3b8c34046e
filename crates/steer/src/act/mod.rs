//! Acts on a program's mappings. A [`Hand`] is one way to reach them:
//!
//! * [`Own`] calls madvise(2) in the program itself.
//! * [`OwnAndReaders`] does so, too, and has readers beside the program's threads.
//! * [`Outside`] reaches another process: by ptrace(2) ([`Traced`]), and by readers.

mod files;
mod outside;
mod own;
mod readers;
#[cfg_attr(not(target_arch = "x86_64"), allow(dead_code, unused_imports))]
mod traced;

pub use files::Files;
pub use outside::Outside;
pub use own::{Own, OwnAndReaders};
pub use readers::Readers;
pub use traced::{Refusal, Traced};
pub(crate) use traced::{may_trace_all, yama_scope};

use crate::judge::{Advice, Run};
use crate::observe::Mapping;
use rustix::mm::Advice as Kernels;

/// The calls of madvise(2) that give an advice, in their order.
fn calls(advice: Advice, was_blocks: bool) -> impl Iterator<Item = Kernels> {
    let pages = match advice {
        Advice::Blocks => Some(Kernels::LinuxHugepage),
        _ if was_blocks => Some(Kernels::LinuxNoHugepage),
        _ => None,
    };
    let order = if advice == Advice::Normal { Kernels::Normal } else { Kernels::Random };
    pages.into_iter().chain([order])
}

/// A way to a program's mappings. A call that fails has done nothing, or a part of what was asked for: it may be repeated.
pub trait Hand {
    /// Advises a mapping: MADV_NORMAL, MADV_RANDOM, or MADV_RANDOM with MADV_HUGEPAGE. MADV_NORMAL does not take MADV_HUGEPAGE back.
    /// MADV_NOHUGEPAGE does, and is called if the advice before `was_blocks`.
    fn advise(&mut self, mapping: &Mapping, advice: Advice, was_blocks: bool) -> bool;

    /// Begins to read pages of a mapping, without waiting (MADV_WILLNEED).
    fn read_ahead(&mut self, mapping: &Mapping, pages: &Run) -> bool;

    /// Drops pages of a mapping: they are read again at the next touch (MADV_PAGEOUT, Linux 5.4). Pages that other processes have
    /// mapped stay, and so do pages of a file that the caller could not write.
    fn drop(&mut self, mapping: &Mapping, pages: &Run) -> bool;

    /// Readers beside the program, if there are any, and the files that they read.
    fn readers(&mut self) -> Option<(&mut Readers, &mut Files)> {
        None
    }
}
