//! Decides what would help, from what was seen. It is pure, so it can be tested on recorded touches.
//!
//! * [`shape`] tells the pattern of the pages that were touched in two looks, one after the other.
//! * [`Case`] follows one mapping and decides on its advice.
//! * [`Stream`] says what to read ahead of a walk in strides.
//! * [`Round`] says what to drop behind a walk that comes round.
//! * [`Load`] says what to bring of a file that is read from slow storage.

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

/// Pages of a *window*: the kernel maps as many at most for one touch, where it has them (`fault_around_bytes`, 64 KiB).
pub(crate) const WINDOW: u64 = 16;
