//! Copies of the memory that a call reads or writes through pointers into the engine's mappings.
//!
//! The kernel answers EFAULT for an engine page that is not in memory. Direct I/O into a page that is evicted meanwhile
//! would be lost. So the bytes that a call reads there are copied into ordinary memory before the call, and the bytes
//! that it writes are copied back after it. The copies are plain loads and stores, whose page faults are served.
//!
//! `arguments.rs` copies single arguments, `vectors.rs` copies buffers of any length, and `buffers.rs` has the memory
//! for both. `tables.rs` makes wrappers from lines that give the meaning of each pointer.
//!
//! This room calls `own`, `next` and `signals`. Its tables also call `objects` and `processes::sandbox`.

mod arguments;
mod buffers;
#[macro_use]
mod tables;
mod vectors;

pub(crate) use arguments::Call;
pub(crate) use buffers::{Buffer, CHUNK};
pub(crate) use vectors::{MOST, Unit, Way, any_held, exchange};

/// Whether the engine maps any file. It costs one load, which is all that a program without maps pays for the copies.
#[inline]
pub fn mapped() -> bool {
    fastmap::coherence::any()
}

/// Whether a call with this result may have failed because its memory became the engine's while it ran. Such a call has
/// done nothing, and must be made again, with copies.
#[inline]
pub fn is_taken_since(result: isize) -> bool {
    result == -1 && crate::own::errno() == libc::EFAULT && mapped()
}

/// Whether any byte of a range is in memory of the engine. It takes a few nanoseconds and no lock.
#[inline]
pub fn held<P: Pointer>(pointer: P, len: usize) -> bool {
    fastmap::by_address::holds(pointer.address(), len)
}

/// A pointer argument of any type.
pub trait Pointer: Copy {
    /// The size of the pointer's target, bytes.
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

/// The size of `count` items of the pointer's target, bytes. A negative count becomes a huge one, which the kernel refuses.
#[inline]
pub fn bytes<P: Pointer>(_: P, count: usize) -> usize {
    count.saturating_mul(P::UNIT)
}

/// Reads the length that an argument points to; zero for null.
///
/// # Safety
/// `len` is null or leads to a length.
pub unsafe fn at(len: *const libc::socklen_t) -> usize {
    // SAFETY: the contract.
    if len.is_null() { 0 } else { unsafe { len.read() as usize } }
}

/// The size of select(2)'s set of the descriptors below `n`, bytes.
pub fn descriptors(n: libc::c_int) -> usize {
    (n.max(0) as usize).div_ceil(64) * 8
}
