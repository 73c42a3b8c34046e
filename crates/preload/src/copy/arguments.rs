//! The pointer arguments of one call. Memory that they point to is copied if it is the engine's.

use super::{Buffer, Pointer, held};
use crate::own::{errno, set_errno};
use crate::signals;
use std::cell::{Cell, UnsafeCell};
use std::mem::MaybeUninit;

/// The part of a copy that is copied back after the call.
#[derive(Clone, Copy)]
enum Back {
    Nothing,
    All,
    /// As many units as the call's result says. A unit has this many bytes.
    Result(usize),
}

struct Piece {
    from: *mut u8,
    copy: *mut u8,
    len: usize,
    back: Back,
    /// The copy's memory, if the copy is too long for `Call::room`.
    _buffer: Option<Buffer>,
}

/// The copied arguments of one call, 8 at most.
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

    /// A path or another string, of which the call reads `len` bytes at most (`text` in tables).
    ///
    /// # Safety
    /// `pointer` is a string or null.
    pub unsafe fn text<P: Pointer>(&self, pointer: P, len: usize) -> P {
        if !held(pointer, len) {
            return pointer;
        }
        // SAFETY: the contract. A path that is longer than `len` is cut to 4096 bytes, which is ENAMETOOLONG too.
        unsafe {
            let len = libc::strnlen(pointer.address() as *const libc::c_char, len);
            let copy = self.copy(pointer.address() as *mut u8, len, len + 1, Back::Nothing);
            if copy.addr() != pointer.address() {
                copy.add(len).write(0);
            }
            P::at(copy)
        }
    }

    /// The place of two descriptors that the call makes (`pair` in tables).
    ///
    /// # Safety
    /// As for `changed`.
    pub unsafe fn pair<P: Pointer>(&self, pointer: P, len: usize) -> P {
        // SAFETY: the contract.
        unsafe { self.changed(pointer, len) }
    }

    /// Read and written by a call that returns a descriptor (`from` in tables).
    ///
    /// # Safety
    /// As for `changed`.
    pub unsafe fn from<P: Pointer>(&self, pointer: P, len: usize) -> P {
        // SAFETY: the contract.
        unsafe { self.changed(pointer, len) }
    }

    /// A path of a file whose facts the call returns (`looked` in tables).
    ///
    /// # Safety
    /// `pointer` is a string or null.
    pub unsafe fn looked<P: Pointer>(&self, pointer: P, len: usize) -> P {
        // SAFETY: the contract.
        unsafe { self.text(pointer, len) }
    }

    /// A path of a folder that the call opens (`entered` in tables).
    ///
    /// # Safety
    /// `pointer` is a string or null.
    pub unsafe fn entered<P: Pointer>(&self, pointer: P, len: usize) -> P {
        // SAFETY: the contract.
        unsafe { self.text(pointer, len) }
    }

    /// A path that may be an object's (`shown` in tables).
    ///
    /// # Safety
    /// `pointer` is a string or null.
    pub unsafe fn shown<P: Pointer>(&self, pointer: P, len: usize) -> P {
        // SAFETY: the contract.
        unsafe { self.text(pointer, len) }
    }

    /// A path of a file whose access rights the call checks (`accessed` in tables).
    ///
    /// # Safety
    /// `pointer` is a string or null.
    pub unsafe fn accessed<P: Pointer>(&self, pointer: P, len: usize) -> P {
        // SAFETY: the contract.
        unsafe { self.text(pointer, len) }
    }

    /// A path of a file that the call changes (`kept` in tables).
    ///
    /// # Safety
    /// `pointer` is a string or null.
    pub unsafe fn kept<P: Pointer>(&self, pointer: P, len: usize) -> P {
        // SAFETY: the contract.
        unsafe { self.text(pointer, len) }
    }

    /// A path of a file that the call makes (`made` in tables).
    ///
    /// # Safety
    /// `pointer` is a string or null.
    pub unsafe fn made<P: Pointer>(&self, pointer: P, len: usize) -> P {
        // SAFETY: the contract.
        unsafe { self.text(pointer, len) }
    }

    /// A descriptor (`file` in tables).
    ///
    /// # Safety
    /// It has no requirement. It is unsafe because its siblings are.
    pub unsafe fn file(&self, fd: libc::c_int, _: usize) -> libc::c_int {
        fd
    }

    /// The facts of a file, which the call fills in (`told` in tables).
    ///
    /// # Safety
    /// As for `changed`.
    pub unsafe fn told<P: Pointer>(&self, pointer: P, len: usize) -> P {
        // SAFETY: the contract.
        unsafe { self.changed(pointer, len) }
    }

    /// Read by the call (`input` in tables).
    ///
    /// # Safety
    /// `pointer` leads to `len` bytes, or is null.
    pub unsafe fn input<P: Pointer>(&self, pointer: P, len: usize) -> P {
        // SAFETY: the contract.
        unsafe { self.argument(pointer, len, len, Back::Nothing) }
    }

    /// A set of signals to be blocked during the call. SIGBUS is taken out of it (`signals/mod.rs`).
    ///
    /// # Safety
    /// `mask` leads to a set, or is null.
    pub unsafe fn signals(&self, mask: *const libc::sigset_t, len: usize) -> *const libc::sigset_t {
        if !held(mask, len) && !signals::has_sigbus(mask) {
            return mask;
        }
        // SAFETY: the contract. If there is no memory for a copy, the program's own mask is used, and not changed.
        unsafe {
            let copy = self.copy(mask.cast_mut().cast(), len, len, Back::Nothing).cast::<libc::sigset_t>();
            if !std::ptr::eq(copy, mask) {
                libc::sigdelset(copy, libc::SIGBUS);
            }
            copy
        }
    }

    /// Read and written by the call, or written whole (`changed` in tables).
    ///
    /// # Safety
    /// `pointer` leads to `len` bytes, or is null.
    pub unsafe fn changed<P: Pointer>(&self, pointer: P, len: usize) -> P {
        // SAFETY: the contract.
        unsafe { self.argument(pointer, len, len, Back::All) }
    }

    /// Written by the call, as many units as its result says (`filled` in tables).
    ///
    /// # Safety
    /// `pointer` leads to `len` bytes, or is null.
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

    /// Makes room for `len` bytes and copies the first `read` of them. Without memory for a copy it returns `from` itself,
    /// for which the kernel may return EFAULT.
    unsafe fn copy(&self, from: *mut u8, read: usize, len: usize, back: Back) -> *mut u8 {
        let count = self.count.get();
        let used = self.used.get();
        let (copy, buffer) = if len <= size_of_val(&self.room) - used {
            self.used.set(used + len.next_multiple_of(8));
            // SAFETY: `used + len` is inside the room, as the condition says.
            (unsafe { self.room.get().cast::<u8>().add(used) }, None)
        } else {
            match Buffer::new(len) {
                Some(buffer) => (buffer.start(), Some(buffer)),
                None => return from,
            }
        };
        // SAFETY: the bytes at `from` are the caller's, and the copy belongs to this call alone.
        unsafe {
            from.copy_to_nonoverlapping(copy, read);
            let pieces = &mut *self.pieces.get();
            pieces[count].write(Piece { from, copy, len, back, _buffer: buffer });
        }
        self.count.set(count + 1);
        copy
    }

    /// Copies back the bytes that the call wrote. `result` is the call's result. errno stays as the call left it.
    ///
    /// # Safety
    /// The caller calls this once, right after the call.
    pub unsafe fn finish(&self, result: isize) {
        let errno = errno();
        // SAFETY: the first `count` pieces are initialized.
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
            // SAFETY: the program passed this memory for the call to write to.
            unsafe { piece.copy.copy_to_nonoverlapping(piece.from, len) };
        }
        set_errno(errno);
    }
}

impl Drop for Call {
    fn drop(&mut self) {
        for piece in self.pieces.get_mut().iter_mut().take(self.count.get()) {
            // SAFETY: the first `count` pieces are initialized, and only this function drops them.
            unsafe { piece.assume_init_drop() };
        }
    }
}
