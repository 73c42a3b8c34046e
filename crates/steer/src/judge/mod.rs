//! What would help, from what was seen: pure, so that it can be tested on recorded touches.
//!
//! [`shape`] tells the pattern of what was touched in two looks that followed one another. [`Case`] follows one mapping
//! and decides on its advice. [`Stream`] says what to read ahead of a walk, [`Round`] what to drop behind one that
//! comes round, [`Load`] what to bring of a file that is read from slow storage.

mod case;
mod load;
mod round;
mod shape;
mod stream;

pub use case::{Advice, Case, Look};
pub use load::{Depth, Load, PIECE, SLOW, is_dense, may_load, window};
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

/// Pages that the kernel maps at most for one touch where it has them (`fault_around_bytes`, 64 KiB): a *window*.
pub(crate) const WINDOW: u64 = 16;
