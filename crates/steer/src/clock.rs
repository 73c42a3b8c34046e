//! The monotonic clock (CLOCK_MONOTONIC). rustix reads it in the vDSO, without the C library.

use rustix::time::{ClockId, clock_gettime};
use std::time::Duration;

pub(crate) fn now() -> Duration {
    let time = clock_gettime(ClockId::Monotonic);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}
