//! How does a pointer into a mapping become one that the kernel can use?
//!
//! The kernel answers EFAULT for a page of ours that is not in memory, and direct I/O into one that is evicted meanwhile
//! would be lost. So whatever a call reads or writes through a pointer into a mapping is copied: into ordinary memory
//! before the call, back after it. The copies are plain accesses, which trap and are served.
//!
//! `bounced!` declares functions of the C library with what each pointer argument means, and makes wrapper and
//! `next::NAME` of a line:
//!
//! * `text p`: a path, or another string that the kernel reads 4096 bytes of at most; `looked p`: that of what the call tells
//!   of, `entered p`: of a folder that it opens (`alone.rs`);
//! * `input p`: read by the call; `changed p`: read and written, or written whole or not at all;
//! * `filled p[n]`: written as far as the result says;
//! * `signals p`: a set of signals that is blocked during the call.
//!
//! `p` is one of what it points to, `p[n]` is n of them. Later lengths may look at earlier arguments.

use crate::buffers::Buffer;
use crate::signals;
use std::cell::{Cell, UnsafeCell};
use std::mem::MaybeUninit;

/// Is anything mapped? One load, so that a program without maps has no more than that of all this.
#[inline]
pub fn mapped() -> bool {
    fastmap::coherent::any()
}

/// Is a byte of it in one of our mappings?
#[inline]
pub fn held<P: Pointer>(pointer: P, len: usize) -> bool {
    fastmap::calls::holds(pointer.address(), len)
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

/// Bytes of `count` of what `pointer` points to; a count below zero is for the kernel to refuse.
#[inline]
pub fn bytes<P: Pointer>(_: P, count: usize) -> usize {
    count.saturating_mul(P::UNIT)
}

/// What a length argument's pointer points to.
///
/// # Safety
/// Null or a pointer to a length.
pub unsafe fn at(len: *const libc::socklen_t) -> usize {
    // SAFETY: the contract.
    if len.is_null() { 0 } else { unsafe { len.read() as usize } }
}

/// Bytes of a set of the descriptors below `n`, select(2).
pub fn descriptors(n: libc::c_int) -> usize {
    (n.max(0) as usize).div_ceil(64) * 8
}

/// This thread's errno.
pub fn errno() -> libc::c_int {
    // SAFETY: always this thread's.
    unsafe { *libc::__errno_location() }
}

pub fn set_errno(value: libc::c_int) {
    // SAFETY: as above.
    unsafe { *libc::__errno_location() = value }
}

/// What of a copy goes back.
#[derive(Clone, Copy)]
enum Back {
    Nothing,
    All,
    /// As many units of that many bytes as the result says.
    Result(usize),
}

struct Piece {
    from: *mut u8,
    copy: *mut u8,
    len: usize,
    back: Back,
    /// Holds the copy, if it is too long for the call's own room.
    _buffer: Option<Buffer>,
}

/// The arguments of one call that had to be copied.
pub struct Call {
    room: UnsafeCell<MaybeUninit<[u64; 128]>>,
    used: Cell<usize>,
    pieces: UnsafeCell<[MaybeUninit<Piece>; 8]>,
    count: Cell<usize>,
}

impl Call {
    pub fn new() -> Call {
        Call {
            room: UnsafeCell::new(MaybeUninit::uninit()),
            used: Cell::new(0),
            pieces: UnsafeCell::new([const { MaybeUninit::uninit() }; 8]),
            count: Cell::new(0),
        }
    }

    /// A path.
    ///
    /// # Safety
    /// A string or null.
    pub unsafe fn text<P: Pointer>(&self, pointer: P, len: usize) -> P {
        if !held(pointer, len) {
            return pointer;
        }
        // SAFETY: the contract. A longer one is ENAMETOOLONG with its first 4096 bytes too.
        unsafe {
            let len = libc::strnlen(pointer.address() as *const libc::c_char, len);
            let copy = self.copy(pointer.address() as *mut u8, len, len + 1, Back::Nothing);
            if copy.addr() != pointer.address() {
                copy.add(len).write(0);
            }
            P::at(copy)
        }
    }

    /// As `text`.
    ///
    /// # Safety
    /// A string or null.
    pub unsafe fn looked<P: Pointer>(&self, pointer: P, len: usize) -> P {
        // SAFETY: the contract.
        unsafe { self.text(pointer, len) }
    }

    /// As `text`.
    ///
    /// # Safety
    /// A string or null.
    pub unsafe fn entered<P: Pointer>(&self, pointer: P, len: usize) -> P {
        // SAFETY: the contract.
        unsafe { self.text(pointer, len) }
    }

    /// Read by the call.
    ///
    /// # Safety
    /// `len` bytes or null, as all below.
    pub unsafe fn input<P: Pointer>(&self, pointer: P, len: usize) -> P {
        // SAFETY: the contract.
        unsafe { self.argument(pointer, len, len, Back::Nothing) }
    }

    /// Signals to be blocked during the call: all but SIGBUS (`signals.rs`).
    ///
    /// # Safety
    /// A set or null.
    pub unsafe fn signals(&self, mask: *const libc::sigset_t, len: usize) -> *const libc::sigset_t {
        if !held(mask, len) && !signals::has_sigbus(mask) {
            return mask;
        }
        // SAFETY: the contract; where there was no memory for a copy the program's own stays as it is.
        unsafe {
            let copy = self.copy(mask.cast_mut().cast(), len, len, Back::Nothing).cast::<libc::sigset_t>();
            if !std::ptr::eq(copy, mask) {
                libc::sigdelset(copy, libc::SIGBUS);
            }
            copy
        }
    }

    /// Read and written.
    ///
    /// # Safety
    /// See `input`.
    pub unsafe fn changed<P: Pointer>(&self, pointer: P, len: usize) -> P {
        // SAFETY: the contract.
        unsafe { self.argument(pointer, len, len, Back::All) }
    }

    /// Written as far as the result says.
    ///
    /// # Safety
    /// See `input`.
    pub unsafe fn filled<P: Pointer>(&self, pointer: P, len: usize) -> P {
        // SAFETY: the contract.
        unsafe { self.argument(pointer, 0, len, Back::Result(P::UNIT)) }
    }

    unsafe fn argument<P: Pointer>(&self, pointer: P, read: usize, len: usize, back: Back) -> P {
        if !held(pointer, len) {
            return pointer;
        }
        // SAFETY: the contract.
        P::at(unsafe { self.copy(pointer.address() as *mut u8, read, len, back) })
    }

    /// A copy of the first `read` of `len` bytes; `from` itself if there is no memory for one, and the kernel may say so.
    unsafe fn copy(&self, from: *mut u8, read: usize, len: usize, back: Back) -> *mut u8 {
        let count = self.count.get();
        let used = self.used.get();
        let (copy, buffer) = if len <= size_of_val(&self.room) - used {
            self.used.set(used + len.next_multiple_of(8));
            // SAFETY: inside the room.
            (unsafe { self.room.get().cast::<u8>().add(used) }, None)
        } else {
            match Buffer::new(len) {
                Some(buffer) => (buffer.start(), Some(buffer)),
                None => return from,
            }
        };
        // SAFETY: the caller's bytes; the copy's are nobody else's.
        unsafe {
            from.copy_to_nonoverlapping(copy, read);
            let pieces = &mut *self.pieces.get();
            pieces[count].write(Piece { from, copy, len, back, _buffer: buffer });
        }
        self.count.set(count + 1);
        copy
    }

    /// Copies back what the call wrote, given its result; errno stays as the call left it.
    ///
    /// # Safety
    /// Once, right after the call.
    pub unsafe fn finish(&self, result: isize) {
        let errno = errno();
        // SAFETY: initialized as far as counted.
        let pieces = unsafe { &*self.pieces.get() }
            .iter()
            .take(self.count.get())
            .map(|piece| unsafe { piece.assume_init_ref() });
        for piece in pieces {
            let len = match piece.back {
                Back::Nothing => 0,
                Back::All => piece.len,
                Back::Result(unit) => piece.len.min(result.max(0) as usize * unit),
            };
            // SAFETY: the program said that the call may write there.
            unsafe { piece.copy.copy_to_nonoverlapping(piece.from, len) };
        }
        set_errno(errno);
    }
}

impl Drop for Call {
    fn drop(&mut self) {
        for piece in self.pieces.get_mut().iter_mut().take(self.count.get()) {
            // SAFETY: initialized as far as counted.
            unsafe { piece.assume_init_drop() };
        }
    }
}

/// How many bytes an argument of a table is.
macro_rules! span {
    (text $pointer:ident) => {
        ::libc::PATH_MAX as usize
    };
    (looked $pointer:ident) => {
        ::libc::PATH_MAX as usize
    };
    (entered $pointer:ident) => {
        ::libc::PATH_MAX as usize
    };
    ($kind:ident $pointer:ident) => {
        $crate::bounce::bytes($pointer, 1)
    };
    ($kind:ident $pointer:ident [$count:expr]) => {
        $crate::bounce::bytes($pointer, $count as usize)
    };
}

/// Whether an argument of a table must be copied.
macro_rules! concerned {
    (signals $pointer:ident $([$count:expr])?) => {
        $crate::bounce::held($pointer, span!(signals $pointer $([$count])?)) || $crate::signals::has_sigbus($pointer)
    };
    ($kind:ident $pointer:ident $([$count:expr])?) => {
        $crate::bounce::held($pointer, span!($kind $pointer $([$count])?))
    };
}

/// Whether a call is to be made again, by the meaning of one of its arguments.
macro_rules! again {
    (looked $pointer:ident, $result:ident) => {
        $result == 0 && $crate::alone::looked_at($pointer)
    };
    (entered $pointer:ident, $result:ident) => {
        !$result.is_null() && $crate::alone::looked_at($pointer) && false
    };
    ($kind:ident $pointer:ident, $result:ident) => {
        false
    };
}

/// Declares intercepted functions with the meaning of their pointers: see the top.
macro_rules! bounced {
    ($(fn $name:ident($($argument:ident: $type:ty),* $(,)?) -> $result:ty: $($kind:ident $pointer:ident $([$count:expr])?),+;)*) => {
        table! { $(fn $name($($argument: $type),*) -> $result;)* }

        // What the program calls.
        const _: () = { $(
                #[allow(clippy::too_many_arguments)]
                // SAFETY: the C library's name and signature.
                #[unsafe(no_mangle)]
                unsafe extern "C-unwind" fn $name($($argument: $type),*) -> $result {
                    #[cold]
                    unsafe fn copied($($argument: $type),*) -> $result {
                        let call = $crate::bounce::Call::new();
                        // SAFETY: the caller's contract, which is the C library's.
                        unsafe {
                            $(let $pointer = call.$kind($pointer, span!($kind $pointer $([$count])?));)+
                            let result = self::$name($($argument),*);
                            call.finish(result as isize);
                            result
                        }
                    }
                    // SAFETY: the caller's contract, which is the C library's.
                    unsafe {
                        if $crate::bounce::mapped() && ($(concerned!($kind $pointer $([$count])?))||+) {
                            return copied($($argument),*);
                        }
                        let result = self::$name($($argument),*);
                        if $(again!($kind $pointer, result))||+ {
                            return self::$name($($argument),*);
                        }
                        result
                    }
                }
        )* };
    };
}
