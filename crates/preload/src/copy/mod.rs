//! Copies of what a call reads or writes through pointers into mappings.
//!
//! The kernel answers EFAULT for a page of ours that is not in memory, and direct I/O into one that is evicted
//! meanwhile would be lost. So whatever a call reads or writes there is copied: into ordinary memory before the call,
//! back after it. The copies are plain loads and stores, which trap and are served.
//!
//! `arguments.rs` copies single arguments, `vectors.rs` buffers of any length, `buffers.rs` has the memory for both;
//! `tables.rs` makes wrappers of lines that say what each pointer means. Calls `own`, `next` and `signals`.

mod arguments;
mod buffers;
#[macro_use]
mod tables;
mod vectors;

pub(crate) use arguments::Call;
pub(crate) use buffers::{Buffer, CHUNK};
pub(crate) use vectors::{MOST, Unit, Way, any_held, exchange};

/// Whether anything is mapped: one load, which is all that a program without maps pays for the copies.
#[inline]
pub fn mapped() -> bool {
    fastmap::coherence::any()
}

/// Whether a call failed because what it reads or writes was the kernel's when it began, and is the engine's now: it is to be made again,
/// with copies. It has done nothing then.
#[inline]
pub fn is_taken_since(result: isize) -> bool {
    result == -1 && crate::own::errno() == libc::EFAULT && mapped()
}

/// Whether any byte of a range is in memory of the engine: a few nanoseconds, no lock.
#[inline]
pub fn held<P: Pointer>(pointer: P, len: usize) -> bool {
    fastmap::by_address::holds(pointer.address(), len)
}

/// A pointer argument, whatever it points to.
pub trait Pointer: Copy {
    /// Bytes of what it points to.
    const UNIT: usize;
    fn address(self) -> usize;
    fn at(memory: *mut u8) -> Self;
}

impl<T> Pointer for *const T {
    const UNIT: usize = size_of::<T>();
    fn address(self) -> usize {
        self.addr()
    }
    fn at(memory: *mut u8) -> Self {
        memory.cast_const().cast()
    }
}

impl<T> Pointer for *mut T {
    const UNIT: usize = size_of::<T>();
    fn address(self) -> usize {
        self.addr()
    }
    fn at(memory: *mut u8) -> Self {
        memory.cast()
    }
}

/// The bytes of `count` items of what the pointer points to; a count below zero is left to the kernel to refuse.
#[inline]
pub fn bytes<P: Pointer>(_: P, count: usize) -> usize {
    count.saturating_mul(P::UNIT)
}

/// The length that an argument points to; zero for null.
///
/// # Safety
/// `len` is null or leads to a length.
pub unsafe fn at(len: *const libc::socklen_t) -> usize {
    // SAFETY: the contract.
    if len.is_null() { 0 } else { unsafe { len.read() as usize } }
}

/// The bytes of select(2)'s set of the descriptors below `n`.
pub fn descriptors(n: libc::c_int) -> usize {
    (n.max(0) as usize).div_ceil(64) * 8
}
