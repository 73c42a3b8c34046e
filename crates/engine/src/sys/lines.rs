//! Writes cache lines to memory from user space: CLWB, CLFLUSHOPT or CLFLUSH, and a fence (Intel SDM, volume 2).
//!
//! A line raises SIGBUS if its page is past the end of the file, or if its memory went bad. The signal handler calls [`give_up`] first. If the
//! thread trapped inside the loop below, it goes on behind the loop, and the caller learns how far the loop came. So a flush needs no system
//! call to learn the file's length.

use std::arch::global_asm;
use std::arch::x86_64::{__cpuid, __cpuid_count};
use std::ops::Range;
use std::sync::OnceLock;

/// Bytes in a cache line, on every x86-64 processor.
pub const LINE: usize = 64;

/// The instruction that writes a line to memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(usize)]
pub enum Instruction {
    /// Writes the line and keeps it in the cache.
    Clwb = 0,
    /// Writes the line and drops it from the cache. Many run at a time.
    Clflushopt = 1,
    /// Writes the line and drops it from the cache. Several of them run one after another. Every x86-64 processor has this instruction.
    Clflush = 2,
}

impl Instruction {
    /// The best of them that this processor has (cpuid, leaf 7).
    pub fn best() -> Self {
        static BEST: OnceLock<Instruction> = OnceLock::new();
        *BEST.get_or_init(|| {
            const CLFLUSHOPT: u32 = 1 << 23;
            const CLWB: u32 = 1 << 24;
            let features = if __cpuid(0).eax >= 7 { __cpuid_count(7, 0).ebx } else { 0 };
            match features {
                has if has & CLWB != 0 => Instruction::Clwb,
                has if has & CLFLUSHOPT != 0 => Instruction::Clflushopt,
                _ => Instruction::Clflush,
            }
        })
    }

    /// The name in Intel's manual.
    pub fn name(self) -> &'static str {
        match self {
            Instruction::Clwb => "CLWB",
            Instruction::Clflushopt => "CLFLUSHOPT",
            Instruction::Clflush => "CLFLUSH",
        }
    }
}

// rdi: the next line, rsi: the end of the range, rdx: the instruction. Returns the address of the first line that was not written.
global_asm!(
    ".pushsection .text.fastmap_lines, \"ax\", @progbits",
    ".globl fastmap_lines_begin, fastmap_lines_end",
    ".hidden fastmap_lines_begin, fastmap_lines_end",
    "fastmap_lines_begin:",
    "cmp edx, 1",
    "je 3f",
    "ja 4f",
    "2: clwb [rdi]",
    "add rdi, 64",
    "cmp rdi, rsi",
    "jb 2b",
    "jmp fastmap_lines_end",
    "3: clflushopt [rdi]",
    "add rdi, 64",
    "cmp rdi, rsi",
    "jb 3b",
    "jmp fastmap_lines_end",
    "4: clflush [rdi]",
    "add rdi, 64",
    "cmp rdi, rsi",
    "jb 4b",
    "fastmap_lines_end:",
    "sfence",
    "mov rax, rdi",
    "ret",
    ".popsection",
);

unsafe extern "C" {
    fn fastmap_lines_begin(from: usize, end: usize, instruction: Instruction) -> usize;
    fn fastmap_lines_end();
}

/// Writes the cache lines of a range of addresses to memory, and waits until they are there. The error is the address of the first line that
/// has no memory behind it (SIGBUS). The lines before that one were written.
///
/// # Safety
/// The whole range is mapped and may be read. The process's SIGBUS handler calls [`give_up`].
#[inline]
pub unsafe fn write_back(range: Range<usize>) -> Result<(), usize> {
    if range.is_empty() {
        return Ok(());
    }
    let start = range.start / LINE * LINE;
    // SAFETY: the caller's contract. The routine changes no memory, and preserves the registers that a called function must preserve.
    let stopped = unsafe { fastmap_lines_begin(start, range.end, Instruction::best()) };
    if stopped >= range.end { Ok(()) } else { Err(stopped) }
}

/// If the thread trapped in the loop of [`write_back`], makes it go on behind the loop. Returns false if it trapped elsewhere.
///
/// # Safety
/// Called from a signal handler with the context that the kernel gave it.
pub unsafe fn give_up(context: *mut libc::c_void) -> bool {
    // SAFETY: the kernel's structure, valid while the handler runs.
    let registers = unsafe { &mut (*context.cast::<libc::ucontext_t>()).uc_mcontext.gregs };
    let (begin, end) = (fastmap_lines_begin as *const () as i64, fastmap_lines_end as *const () as i64);
    let inside = (begin..end).contains(&registers[libc::REG_RIP as usize]);
    if inside {
        registers[libc::REG_RIP as usize] = end;
    }
    inside
}
