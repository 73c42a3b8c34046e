//! The engine's own file descriptors, for a library that stands in for close(2) and its kin in a program that knows
//! nothing of them.
//!
//! Programs close descriptors that they have not opened: all above 2 before exec(2), or one at a number that they want
//! (dup2(2)). Such a number is low, and the engine's are high: from three quarters of the limit on open files, or from
//! 3072 if that is less. For the others, this module says which to leave open.

use crate::sys::engine_fd;
pub use crate::sys::engine_fd::Closing;
use std::os::fd::RawFd;

/// Whether the engine holds this descriptor: close(2) of it is to fail with EBADF, as if it were not there.
/// Async-signal-safe, a few nanoseconds. False in a child made by fork(2) that no longer needs those it inherited.
///
/// ```
/// assert!(!fastmap::descriptors::is_engine(0));
/// ```
#[inline]
pub fn is_engine(descriptor: RawFd) -> bool {
    engine_fd::is_engine_fd(descriptor)
}

/// Returns a guard to hold while the program closes or replaces descriptors. A descriptor of the engine is at a low
/// number for a moment after it was opened. This call waits until none is, a tenth of a second at most; while the guard
/// is held, the engine's threads wait, though not for long, before they open one. Async-signal-safe.
///
/// ```
/// let closing = fastmap::descriptors::closing();
/// // close(2), dup2(2) and their kin.
/// drop(closing);
/// ```
#[inline]
pub fn closing() -> Closing {
    engine_fd::closing()
}

/// The first descriptor that the engine holds at or after `from`: close_range(2) stops before it and goes on behind it.
/// Async-signal-safe.
///
/// ```
/// let all = std::iter::successors(fastmap::descriptors::next_engine(3), |last| fastmap::descriptors::next_engine(last + 1));
/// assert!(all.count() < 1000);
/// ```
pub fn next_engine(from: RawFd) -> Option<RawFd> {
    engine_fd::next_engine_fd(from)
}
