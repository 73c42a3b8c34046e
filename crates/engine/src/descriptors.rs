//! The engine's own file descriptors, for a library that stands in for close(2) and its kin in a program that knows
//! nothing of them.
//!
//! Programs close descriptors that they have not opened: all above 2 before exec(2), or whatever is at a number that
//! they want (dup2(2)). The engine keeps its own at high numbers, from three quarters of the limit on open files (3072
//! at most) on, which avoids the latter; the former has to be told which to leave open.

use crate::sys::engine_fd;
pub use crate::sys::engine_fd::Closing;
use std::os::fd::RawFd;

/// Whether the engine holds this descriptor: close(2) of it is to fail with EBADF, as if it were not there.
/// Async-signal-safe, a few nanoseconds. False in a child made by fork(2), where the engine does not run.
///
/// ```
/// assert!(!fastmap::descriptors::is_engine(0));
/// ```
#[inline]
pub fn is_engine(descriptor: RawFd) -> bool {
    engine_fd::is_engine_fd(descriptor)
}

/// To be held while the program closes or replaces descriptors: no thread of the engine has one open meanwhile that has not moved up.
/// Waits a tenth of a second at most. Async-signal-safe.
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
