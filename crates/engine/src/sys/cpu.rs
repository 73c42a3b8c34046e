//! The processor this thread runs on: getcpu(2) through glibc, which reads it from rseq(2) (2 ns) where it can.

/// Index of the current processor. A hint: the thread may move at once.
#[inline]
pub fn current() -> usize {
    // SAFETY: takes nothing, touches nothing of ours, async-signal-safe.
    unsafe { libc::sched_getcpu() }.max(0) as usize
}

/// Processors the system has configured; `current` is smaller, on all but machines with holes in their numbering.
pub fn count() -> usize {
    // SAFETY: sysconf has no preconditions.
    unsafe { libc::sysconf(libc::_SC_NPROCESSORS_CONF) }.max(1) as usize
}
