//! A per-CPU counter that may be added to right after cache lines were written to memory.
//!
//! A locked instruction waits there until the lines have arrived. A fence need not: it only keeps later stores behind them, and the program
//! goes on. A flush of 4 KiB took 0.74 µs with two atomic additions, and 0.16 µs without. So each processor has a count of its own, and
//! adds to it with one plain instruction, which an interrupt finds done or not begun. If a thread has just moved, two processors may add to
//! one count at the same moment, and one of the additions may be lost.

use crate::sys::cpu;
use std::arch::asm;
use std::sync::atomic::{AtomicU64, Ordering};

/// Counters; processors with higher numbers share them.
const COUNTS: usize = 64;

/// One processor's part, on a cache line of its own.
#[derive(Debug)]
#[repr(align(64))]
struct Count(AtomicU64);

/// A number that processors add to without a locked instruction.
#[derive(Debug)]
pub struct PerCpuCounter([Count; COUNTS]);

impl PerCpuCounter {
    /// Zero.
    pub const fn new() -> Self {
        PerCpuCounter([const { Count(AtomicU64::new(0)) }; COUNTS])
    }

    /// Adds to it.
    #[inline]
    pub fn add(&self, amount: u64) {
        let count = self.0[cpu::current() % COUNTS].0.as_ptr();
        // SAFETY: aligned, alive, and only ever read and written whole.
        unsafe { asm!("add qword ptr [{}], {}", in(reg) count, in(reg) amount, options(nostack)) };
    }

    /// All that was added.
    pub fn sum(&self) -> u64 {
        self.0.iter().map(|count| count.0.load(Ordering::Relaxed)).sum()
    }
}
