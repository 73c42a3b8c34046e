//! Cache lines written back to memory from user space, as a program does that has persistent memory and nothing else.

use std::arch::asm;
use std::arch::x86_64::{__cpuid, __cpuid_count, _mm_sfence};
use std::sync::LazyLock;

/// Bytes in a cache line.
const LINE: usize = 64;

/// What this processor writes lines back with, the best it has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Instruction {
    /// Leaves the line in the cache.
    Clwb,
    /// Does not, but like CLWB many of them overlap.
    ClflushOpt,
    /// One after the other.
    Clflush,
}

static INSTRUCTION: LazyLock<Instruction> = LazyLock::new(|| {
    // Structured extended features: Intel's manual, volume 2, CPUID.
    // SAFETY: every x86-64 processor has the instruction. (Rust from 1.89 on knows.)
    #[allow(unused_unsafe)]
    let features = unsafe { if __cpuid(0).eax < 7 { 0 } else { __cpuid_count(7, 0).ebx } };
    match (features >> 24 & 1, features >> 23 & 1) {
        (1, _) => Instruction::Clwb,
        (_, 1) => Instruction::ClflushOpt,
        _ => Instruction::Clflush,
    }
});

/// Writes the cache lines of a range back to memory and waits until they are there.
///
/// # Safety
///
/// The range is mapped.
pub unsafe fn write_back(start: *const u8, len: usize) {
    let first = start as usize / LINE * LINE;
    let lines = (first..start as usize + len).step_by(LINE);
    // SAFETY: the caller's; whole lines share a page with a byte of the range, and no byte changes.
    unsafe {
        match *INSTRUCTION {
            Instruction::Clwb => {
                lines.for_each(|line| asm!("clwb [{}]", in(reg) line, options(nostack, preserves_flags)))
            }
            Instruction::ClflushOpt => {
                lines.for_each(|line| asm!("clflushopt [{}]", in(reg) line, options(nostack, preserves_flags)));
            }
            Instruction::Clflush => {
                lines.for_each(|line| asm!("clflush [{}]", in(reg) line, options(nostack, preserves_flags)));
            }
        }
        _mm_sfence();
    }
}
