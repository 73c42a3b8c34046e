//! Decides what would help, from what was seen. It is pure, so it can be tested on recorded touches.
//!
//! * [`shape`] tells the pattern of the pages that were touched in two looks, one after the other.
//! * [`Case`] follows one mapping and decides on its advice.
//! * [`Stream`] says what to read ahead of a walk in strides.
//! * [`Backward`] says what to read ahead of a walk backward.
//! * [`Round`] says what to read ahead of a loop, a walk that starts again at its beginning, and what to drop behind it.
//! * [`Load`] says which pages of a file on slow storage to read into memory before the program touches them.
//!
//! A new pattern that one turn's looks show is another method of [`Shape`]. A new pattern that takes many turns is a follower like [`Stream`]: a
//! field of the watcher's state of a mapping (`watcher/held.rs`), fed in `watcher/follow.rs` and reported in `watcher/done.rs`. Either has a row
//! in docs/steering.md. `fastmap top` has a list of its own (`crates/cli/src/top/pattern.rs`).

mod backward;
mod case;
mod load;
mod round;
mod shape;
mod stream;

pub use backward::Backward;
pub use case::{Advice, Case, Look};
pub use load::{Depth, Load, PIECE, is_dense, is_slow, may_load, window};
pub use round::Round;
pub use shape::{Front, Pieces, Shape, pieces, shape, windows};
pub use stream::{Stream, WIDE};

/// Adjoining pages of a mapping.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Run {
    /// The first, counted from the mapping's beginning.
    pub at: u64,
    /// How many.
    pub len: u64,
}

impl Run {
    /// The page after the last.
    pub fn end(&self) -> u64 {
        self.at + self.len
    }
}

/// Pages of a *window*. For one touch the kernel maps at most this many pages, those that are in the page cache (`fault_around_bytes`, 64 KiB).
pub(crate) const WINDOW: u64 = 16;

/// Pages of a *block*, 2 MiB: what the kernel reads by one request where a mapping has MADV_HUGEPAGE.
pub(crate) const BLOCK: u64 = 512;
