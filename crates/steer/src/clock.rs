//! The monotonic clock (CLOCK_MONOTONIC). rustix reads it in the vDSO, without the C library.

use rustix::time::{ClockId, clock_gettime};
use std::time::Duration;

pub(crate) fn now() -> Duration {
    let time = clock_gettime(ClockId::Monotonic);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

/// Processor time that the calling thread has had. What costs it too much is told by this: beside other work everything takes longer.
pub fn processor_time() -> Duration {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}
