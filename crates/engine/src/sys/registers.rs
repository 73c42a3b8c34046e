//! The registers and the code of a thread that a signal interrupted. They are in the ucontext that sigreturn(2) restores, and in what XSAVE wrote
//! there.
//!
//! The vector registers are spread over four XSAVE components. XMM0 to XMM15 are where FXSAVE has always put them. CPUID's leaf 0xD tells where the
//! others are. A component in its initial state counts as zeros, whatever its place holds.

use super::{PAGE, memory};
use std::arch::asm;
use std::arch::x86_64::{__cpuid_count, CpuidResult};
use std::ops::Range;
use std::sync::OnceLock;

/// Bytes in the longest instruction.
pub const LONGEST: usize = 15;
/// Bytes in the widest vector register.
pub const WIDEST: usize = 64;

/// The kernel's index of each general register, in the order of their numbers in instructions: RAX, RCX, RDX, RBX, RSP…
const GENERAL: [libc::c_int; 16] = [
    libc::REG_RAX,
    libc::REG_RCX,
    libc::REG_RDX,
    libc::REG_RBX,
    libc::REG_RSP,
    libc::REG_RBP,
    libc::REG_RSI,
    libc::REG_RDI,
    libc::REG_R8,
    libc::REG_R9,
    libc::REG_R10,
    libc::REG_R11,
    libc::REG_R12,
    libc::REG_R13,
    libc::REG_R14,
    libc::REG_R15,
];

// <asm/sigcontext.h>
const MAGIC1: u32 = 0x4650_5853;
const MAGIC2: u32 = 0x4650_5845;
/// The offset of struct _fpx_sw_bytes in the frame.
const SOFTWARE: usize = 464;
const HEADER: usize = 512;

const SSE: u32 = 1;
const AVX: u32 = 2;
const OPMASK: u32 = 5;
const ZMM_HI256: u32 = 6;
const HI16_ZMM: u32 = 7;
const XMM: usize = 160;

/// Facts that only the processor can tell.
#[derive(Debug)]
struct Processor {
    /// The offsets of the components that can be anywhere, by component number.
    places: [usize; 8],
    /// Whether pages have protection keys (pkeys(7)).
    has_keys: bool,
}

static PROCESSOR: OnceLock<Processor> = OnceLock::new();

/// Asks the processor where the vector registers are. Not to be called in a handler.
pub fn prepare() {
    // SAFETY: every 64-bit processor has the instruction.
    #[allow(unused_unsafe)]
    let ask = |leaf: u32, part: u32| -> CpuidResult { unsafe { __cpuid_count(leaf, part) } };
    PROCESSOR.get_or_init(|| {
        let most = ask(0, 0).eax;
        let mut places = [0; 8];
        for component in [AVX, OPMASK, ZMM_HI256, HI16_ZMM] {
            places[component as usize] = if most < 0xd { 0 } else { ask(0xd, component).ebx as usize };
        }
        // Bit OSPKE: the system has switched protection keys on.
        Processor { places, has_keys: most >= 7 && ask(7, 0).ecx & 1 << 4 != 0 }
    });
}

/// Copies bytes of a page from which the processor can read instructions.
///
/// Such a page can usually be read as well. Protection keys are the exception. A handler starts with the system's default keys, which close all pages
/// with a key other than 0. A page that may only be executed (mprotect(2)) has such a key. So this opens all keys for the copy.
///
/// # Safety
/// The bytes are on such a page.
unsafe fn copy_code(from: *const u8, to: &mut [u8], has_keys: bool) {
    let set = |keys: u32| {
        // SAFETY: the processor has keys; they are those of this thread, and stores to its own memory stay allowed.
        unsafe { asm!("wrpkru", in("eax") keys, in("ecx") 0, in("edx") 0, options(nostack)) }
    };
    let before = has_keys.then(|| {
        let keys: u32;
        // SAFETY: the processor has keys, and this only reads their register.
        unsafe { asm!("rdpkru", out("eax") keys, in("ecx") 0, out("edx") _, options(nostack)) };
        set(0);
        keys
    });
    // SAFETY: the caller's contract.
    unsafe { std::ptr::copy_nonoverlapping(from, to.as_mut_ptr(), to.len()) };
    if let Some(keys) = before {
        set(keys);
    }
}

/// The registers of the interrupted thread. The thread goes on with them when the handler returns, changed or not.
#[derive(Debug)]
pub struct Registers(*mut libc::ucontext_t);

impl Registers {
    /// # Safety
    /// `context` is what the kernel gave the handler, for a signal that an instruction raised. Nobody else looks at it. It is not used after the
    /// handler has returned.
    #[inline]
    pub unsafe fn new(context: *mut libc::c_void) -> Self {
        Registers(context.cast())
    }

    #[inline]
    fn get(&self, register: libc::c_int) -> u64 {
        // SAFETY: `new` was given a context that lives as long as this; the constants of libc are in range.
        unsafe { (&raw const (*self.0).uc_mcontext.gregs[register as usize]).read() as u64 }
    }

    #[inline]
    fn set(&mut self, register: libc::c_int, value: u64) {
        // SAFETY: `new` was given a context that is this handler's alone; the constants of libc are in range.
        unsafe { (&raw mut (*self.0).uc_mcontext.gregs[register as usize]).write(value as i64) }
    }

    /// A general register by its number in instructions (0 is RAX, 1 RCX).
    #[inline]
    pub fn general(&self, number: usize) -> Option<u64> {
        GENERAL.get(number).map(|register| self.get(*register))
    }

    /// The address where the thread goes on.
    #[inline]
    pub fn next(&self) -> u64 {
        self.get(libc::REG_RIP)
    }

    /// Makes the thread go on elsewhere.
    #[inline]
    pub fn set_next(&mut self, at: u64) {
        self.set(libc::REG_RIP, at);
    }

    /// The count of a repeated instruction (RCX).
    #[inline]
    pub fn count(&self) -> u64 {
        self.get(libc::REG_RCX)
    }

    /// Advances a repeated instruction: adds `to` bytes to RDI and `from` bytes to RSI, and takes `repetitions` from RCX.
    #[inline]
    pub fn step(&mut self, to: u64, from: u64, repetitions: u64) {
        for (register, by) in [(libc::REG_RDI, to), (libc::REG_RSI, from), (libc::REG_RCX, repetitions.wrapping_neg())]
        {
            self.set(register, self.get(register).wrapping_add(by));
        }
    }

    /// Whether repeated instructions go down in memory (the direction flag).
    #[inline]
    pub fn goes_down(&self) -> bool {
        self.get(libc::REG_EFL) & 1 << 10 != 0
    }

    /// Copies the code where the thread goes on: as many bytes as can be read, and as an instruction can have. Returns their count.
    #[inline]
    pub fn code(&self, into: &mut [u8; LONGEST]) -> usize {
        let Some(processor) = PROCESSOR.get() else { return 0 };
        let at = self.next() as usize;
        let len = LONGEST.min(PAGE - at % PAGE);
        let (here, beyond) = into.split_at_mut(len);
        // SAFETY: the processor has just read an instruction from this page, and the bytes are on it.
        unsafe { copy_code(at as *const u8, here, processor.has_keys) };
        len + if beyond.is_empty() { 0 } else { memory::read(at + len, beyond) }
    }

    /// The value of vector register `number`, of which at least the first `width` bytes are filled in. `None` if the frame lacks them.
    pub fn vector(&self, number: usize, width: usize) -> Option<[u8; WIDEST]> {
        let parts: &[(u32, Range<usize>)] = match number {
            0..16 => &[(SSE, 0..16), (AVX, 16..32), (ZMM_HI256, 32..64)],
            16..32 => &[(HI16_ZMM, 0..64)],
            _ => return None,
        };
        let mut value = [0; WIDEST];
        for (component, range) in parts.iter().filter(|(_, range)| range.start < width) {
            let part = value.get_mut(range.clone())?;
            self.component(*component, number % 16 * range.len(), part)?;
        }
        Some(value)
    }

    /// The value of mask register `number`. `None` if the frame lacks it.
    pub fn mask(&self, number: usize) -> Option<u64> {
        let mut value = [0; 8];
        self.component(OPMASK, number * value.len(), &mut value)?;
        Some(u64::from_le_bytes(value))
    }

    /// Copies bytes of a component, from `offset` on. Leaves `into` as it is if the component is in its initial state. `None`: the frame has no such
    /// component.
    fn component(&self, component: u32, offset: usize, into: &mut [u8]) -> Option<()> {
        // SAFETY: see `new`. The first 512 bytes of the kernel's frame are always there. The rest is there up to the size that the frame states, if
        // two magic numbers say so.
        unsafe {
            let state = (&raw const (*self.0).uc_mcontext.fpregs).read().cast::<u8>();
            if state.is_null() {
                return None;
            }
            let word = |at: usize| state.add(at).cast::<u32>().read_unaligned();
            let double = |at: usize| state.add(at).cast::<u64>().read_unaligned();
            let (features, size) = (double(SOFTWARE + 8), word(SOFTWARE + 16) as usize);
            let is_extended = word(SOFTWARE) == MAGIC1 && size >= HEADER + 64 && word(size) == MAGIC2;
            let from = match component {
                SSE => XMM,
                _ if !is_extended || features >> component & 1 == 0 => return None,
                _ => *PROCESSOR.get()?.places.get(component as usize)?,
            };
            // The second word of the header is for the compact format. The kernel does not use that here, so a frame in that format is not read.
            if is_extended && (double(HEADER) >> component & 1 == 0 || double(HEADER + 8) != 0) {
                return (double(HEADER + 8) == 0).then_some(());
            }
            let end = if component == SSE { HEADER } else { size };
            if from + offset + into.len() > end {
                return None;
            }
            std::ptr::copy_nonoverlapping(state.add(from + offset), into.as_mut_ptr(), into.len());
        }
        Some(())
    }
}
