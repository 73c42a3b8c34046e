//! The decoder: finds what a store that trapped would have stored, from the instruction and the registers of the thread.
//!
//! Only plain stores are known, which the processor does in one piece or, repeated, in elements: moves of 1 to 64 bytes from a register or the
//! instruction, and `stos` and `movs`. All else, and any store that is not certain, is `None`: the caller then goes on without decoding. This
//! runs in the fault handler: it allocates nothing once [`prepare`] has been called, never panics, and cannot fault.

use crate::sys::registers::{LONGEST, Registers, WIDEST};
use crate::sys::{PAGE, memory, registers};
use iced_x86::{Decoder, DecoderOptions, Instruction, Mnemonic, OpKind, Register};

/// Builds the tables that decoding needs; not in a handler.
pub fn prepare() {
    registers::prepare();
    decode(&[0x90], 0);
}

fn decode(code: &[u8], at: u64) -> Option<Instruction> {
    let mut decoder = Decoder::try_with_ip(64, code, at, DecoderOptions::NONE).ok()?;
    let instruction = decoder.decode();
    (!instruction.is_invalid()).then_some(instruction)
}

/// A store, or the part of a repeated one that lies on the page it trapped on.
#[derive(Debug, Clone, Copy)]
pub struct Store {
    /// Where it begins.
    pub at: usize,
    /// Its bytes, or where they come from.
    pub what: What,
    /// The instruction is to be repeated RCX times.
    repeats: bool,
    /// Address of the instruction behind this one.
    next: u64,
}

/// The bytes that are stored.
#[derive(Debug, Clone, Copy)]
pub enum What {
    /// The first `len` bytes of these.
    Bytes { bytes: [u8; WIDEST], len: usize },
    /// The first `size` bytes of an element, `count` times (`stos`).
    Fill { element: [u8; 8], size: usize, count: usize },
    /// `count` elements of `size` bytes from memory on other pages, which need not be readable (`movs`).
    Copy { source: usize, size: usize, count: usize },
}

impl Store {
    /// Bytes that are stored. They are all on one page.
    #[inline]
    pub fn len(&self) -> usize {
        match self.what {
            What::Bytes { len, .. } => len,
            What::Fill { size, count, .. } | What::Copy { size, count, .. } => size * count,
        }
    }

    /// Puts the bytes into `to`, which stands for the memory at `at`. Returns how many could be had: all of them, unless a source cannot be
    /// read. Bytes of `to` behind `len()` do not change.
    pub fn put(&self, to: &mut [u8]) -> usize {
        let Some(to) = to.get_mut(..self.len()) else { return 0 };
        match &self.what {
            What::Bytes { bytes, len } => put(to, bytes, *len),
            What::Fill { element, size, .. } => to.chunks_exact_mut(*size).map(|to| put(to, element, *size)).sum(),
            What::Copy { source, size, .. } => {
                let got = memory::read(*source, to);
                got - got % size
            }
        }
    }

    /// Sets the registers so that the thread goes on behind the `stored` bytes: none, all of them, or some elements.
    pub fn advance(&self, registers: &mut Registers, stored: usize) {
        let by = stored as u64;
        match self.what {
            What::Bytes { .. } => {}
            What::Fill { size, .. } => registers.step(by, 0, self.repetitions(stored, size)),
            What::Copy { size, .. } => registers.step(by, by, self.repetitions(stored, size)),
        }
        if stored > 0 && !(self.repeats && registers.count() > 0) {
            registers.set_next(self.next);
        }
    }

    fn repetitions(&self, stored: usize, size: usize) -> u64 {
        if self.repeats { (stored / size) as u64 } else { 0 }
    }
}

fn put(to: &mut [u8], from: &[u8], len: usize) -> usize {
    to.iter_mut().zip(from).take(len).for_each(|(to, from)| *to = *from);
    len
}

/// The store of the instruction that trapped on `trap_address`. The address is among the bytes stored, which are on one page.
pub fn store_at(trap_address: usize, registers: &Registers) -> Option<Store> {
    let mut code = [0; LONGEST];
    let len = registers.code(&mut code);
    let instruction = decode(code.get(..len)?, registers.next())?;
    let store = match instruction.op0_kind() {
        OpKind::Memory => one(&instruction, registers)?,
        OpKind::MemoryESRDI => string(&instruction, registers)?,
        _ => return None,
    };
    let end = store.at.checked_add(store.len())?;
    let one_page = store.at / PAGE == end.checked_sub(1)? / PAGE;
    (one_page && (store.at..end).contains(&trap_address)).then_some(store)
}

/// Which bytes of its source a move stores.
enum Part {
    Low,
    /// The same, and the processor itself must refuse an address that is not a multiple of the width.
    LowAligned,
    /// Bytes 8 to 15.
    High,
    /// Low, last byte first.
    Swapped,
    /// The lane that the instruction names: lanes are as wide as the store.
    Lane,
}

/// The moves that store their second operand.
#[rustfmt::skip]
fn part(mnemonic: Mnemonic) -> Option<Part> {
    use Mnemonic::*;
    Some(match mnemonic {
        Mov | Movnti | Movd | Movq | Movss | Movsd | Movlps | Movlpd | Movups | Movupd | Movdqu
        | Vmovd | Vmovq | Vmovss | Vmovsd | Vmovlps | Vmovlpd | Vmovups | Vmovupd | Vmovdqu
        | Vmovdqu8 | Vmovdqu16 | Vmovdqu32 | Vmovdqu64 => Part::Low,
        Movaps | Movapd | Movdqa | Movntps | Movntpd | Movntdq
        | Vmovaps | Vmovapd | Vmovdqa | Vmovdqa32 | Vmovdqa64 | Vmovntps | Vmovntpd | Vmovntdq => Part::LowAligned,
        Movhps | Movhpd | Vmovhps | Vmovhpd => Part::High,
        Movbe => Part::Swapped,
        Pextrb | Pextrw | Pextrd | Pextrq | Extractps | Vpextrb | Vpextrw | Vpextrd | Vpextrq | Vextractps
        | Vextractf128 | Vextractf32x4 | Vextractf64x2 | Vextractf32x8 | Vextractf64x4
        | Vextracti128 | Vextracti32x4 | Vextracti64x2 | Vextracti32x8 | Vextracti64x4 => Part::Lane,
        _ => return None,
    })
}

/// A move of a register or of a constant.
fn one(instruction: &Instruction, registers: &Registers) -> Option<Store> {
    let part = part(instruction.mnemonic())?;
    if instruction.has_lock_prefix() || instruction.has_rep_prefix() || instruction.has_repne_prefix() {
        return None;
    }
    let at = address(instruction, 0, registers)?;
    let size = instruction.memory_size().size();
    let (source, width) = source(instruction, registers)?;
    let from = match part {
        Part::LowAligned if !at.is_multiple_of(size) => return None,
        Part::Low | Part::LowAligned | Part::Swapped => 0,
        Part::High => 8,
        Part::Lane => size * usize::from(instruction.immediate8()).checked_rem(width.checked_div(size)?)?,
    };
    let len = match instruction.op_mask() {
        Register::None => size,
        // With a mask, these touch all bytes all the same.
        _ if matches!(part, Part::Lane) => return None,
        mask => unmasked(instruction, registers.mask(mask.number())?)?,
    };
    let mut bytes = [0; WIDEST];
    put(&mut bytes, source.get(from..)?.get(..len)?, len);
    if let Part::Swapped = part {
        bytes.get_mut(..len)?.reverse();
    }
    Some(Store { at, what: What::Bytes { bytes, len }, repeats: false, next: instruction.next_ip() })
}

/// The number of bytes that a mask of elements leaves. `None`: they are not the first ones. (memset(3) of a few bytes is such a store.)
fn unmasked(instruction: &Instruction, mask: u64) -> Option<usize> {
    let info = instruction.memory_size().info();
    let count = info.size().checked_div(info.element_size())?;
    let mask = mask & u64::MAX.checked_shr(64u32.checked_sub(count as u32)?)?;
    let first = mask.trailing_ones();
    (first == mask.count_ones()).then_some(first as usize * info.element_size())
}

/// `stos` and `movs`, repeated or not: the elements that lie whole on the page of the first one.
fn string(instruction: &Instruction, registers: &Registers) -> Option<Store> {
    use Mnemonic::{Movsb, Movsd, Movsq, Movsw, Stosb, Stosd, Stosq, Stosw};
    if registers.goes_down() || instruction.has_repne_prefix() {
        return None;
    }
    let repeats = instruction.has_rep_prefix();
    let at = address(instruction, 0, registers)?;
    let size = instruction.memory_size().size();
    let here = (PAGE - at % PAGE).checked_div(size)?;
    let count = if repeats { registers.count().min(here as u64) as usize } else { here.min(1) };
    let what = match instruction.mnemonic() {
        Stosb | Stosw | Stosd | Stosq => What::Fill { element: registers.general(0)?.to_le_bytes(), size, count },
        Movsb | Movsw | Movsd | Movsq => {
            let source = address(instruction, 1, registers)?;
            let last = source.checked_add(size * count)?.checked_sub(1)?;
            // The source lies on the absent page itself, and cannot be read.
            if (source / PAGE..=last / PAGE).contains(&(at / PAGE)) {
                return None;
            }
            What::Copy { source, size, count }
        }
        _ => return None,
    };
    Some(Store { at, what, repeats, next: instruction.next_ip() })
}

/// The bytes of the second operand, and how many it has.
fn source(instruction: &Instruction, registers: &Registers) -> Option<([u8; WIDEST], usize)> {
    let general = |value: u64| {
        let mut bytes = [0; WIDEST];
        put(&mut bytes, &value.to_le_bytes(), 8);
        Some((bytes, 8))
    };
    if instruction.op1_kind() != OpKind::Register {
        return general(instruction.try_immediate(1).ok()?);
    }
    let register = instruction.op1_register();
    if register.is_vector_register() {
        return Some((registers.vector(register.number(), register.size())?, register.size()));
    }
    let value = general_register(register.full_register(), registers)?;
    let is_high = matches!(register, Register::AH | Register::CH | Register::DH | Register::BH);
    general(if is_high { value >> 8 } else { value })
}

fn general_register(register: Register, registers: &Registers) -> Option<u64> {
    if register.is_gpr64() { registers.general(register.number()) } else { None }
}

/// The address of an operand. Only 64-bit registers, and segments that begin at 0, are known.
fn address(instruction: &Instruction, operand: u32, registers: &Registers) -> Option<usize> {
    let value = |register: Register| match register {
        Register::ES | Register::CS | Register::SS | Register::DS => Some(0),
        _ => general_register(register, registers),
    };
    instruction.virtual_address(operand, 0, |register, _, _| value(register)).map(|at| at as usize)
}

/// Whether stores by an instruction are known, for tests.
#[cfg(test)]
pub fn is_known(mnemonic: Mnemonic) -> bool {
    part(mnemonic).is_some()
}

/// Whether stores by an instruction must be aligned, for tests.
#[cfg(test)]
pub fn is_aligned(mnemonic: Mnemonic) -> bool {
    matches!(part(mnemonic), Some(Part::LowAligned))
}
