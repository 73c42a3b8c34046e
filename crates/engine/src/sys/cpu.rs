//! The processor that this thread runs on: getcpu(2) through glibc. Where glibc can, it reads the number from rseq(2), in 2 ns.

/// Index of the current processor. It is a hint: the thread may move at any time.
#[inline]
pub fn current() -> usize {
    // SAFETY: the call takes no argument, touches no memory of ours, and is async-signal-safe.
    unsafe { libc::sched_getcpu() }.max(0) as usize
}

/// The number of processors that the system has configured. `current` is below it, except on machines with gaps in their numbering.
pub fn count() -> usize {
    // SAFETY: sysconf has no preconditions.
    unsafe { libc::sysconf(libc::_SC_NPROCESSORS_CONF) }.max(1) as usize
}
