//! Cache lines written to memory from user space: CLWB, CLFLUSHOPT or CLFLUSH, and a fence (Intel SDM, volume 2).
//!
//! A line of a page past its file's end, or of memory that went bad, raises SIGBUS. The handler asks [`give_up`] first:
//! inside the loop below it goes on behind the loop, and the caller learns how far it came. So a flush needs no system
//! call to know the file's length.

use std::arch::global_asm;
use std::arch::x86_64::{__cpuid, __cpuid_count};
use std::ops::Range;
use std::sync::OnceLock;

/// Bytes in a cache line of every x86-64 processor.
pub const LINE: usize = 64;

/// What writes a line to memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(usize)]
pub enum Instruction {
    /// Writes it and keeps it in the cache.
    Clwb = 0,
    /// Writes it and drops it; many at a time.
    Clflushopt = 1,
    /// Writes it and drops it, one after another. Every x86-64 processor has it.
    Clflush = 2,
}

impl Instruction {
    /// The best that this processor has (cpuid, leaf 7).
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

    /// As its manual has it.
    pub fn name(self) -> &'static str {
        match self {
            Instruction::Clwb => "CLWB",
            Instruction::Clflushopt => "CLFLUSHOPT",
            Instruction::Clflush => "CLFLUSH",
        }
    }
}

// rdi: the next line, rsi: where to end, rdx: the instruction. Returns the first line that was not written.
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

/// Writes the lines of a range of addresses to memory and waits until they are there. `Err`: the first address that has
/// none behind it (SIGBUS); those before it were written.
///
/// # Safety
/// All of it is mapped and may be read. The process's SIGBUS handler asks [`give_up`].
#[inline]
pub unsafe fn write_back(range: Range<usize>) -> Result<(), usize> {
    if range.is_empty() {
        return Ok(());
    }
    let start = range.start / LINE * LINE;
    // SAFETY: the caller's contract; the routine changes no memory and keeps the registers that it must.
    let stopped = unsafe { fastmap_lines_begin(start, range.end, Instruction::best()) };
    if stopped >= range.end { Ok(()) } else { Err(stopped) }
}

/// Lets a thread that trapped in [`write_back`] go on behind its loop; false: it trapped elsewhere.
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
