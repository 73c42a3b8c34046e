//! Streams of objects. The C library's own streams read by themselves, and would read holes of a local copy as zeros. So a stream of an object
//! reads through functions of this library (fopencookie(3)). fileno(3) tells the object's descriptor.

use super::descriptor;
use crate::files::descriptors::{close_one, dup};
use crate::files::read;
use crate::own::{errno, remembered, set_errno};
use crate::{next, objects};
use libc::{FILE, c_char, c_int, c_void, off64_t, size_t, ssize_t};
use std::mem::offset_of;

/// The functions that make a stream (fopencookie(3)).
#[repr(C)]
struct Functions {
    read: unsafe extern "C-unwind" fn(*mut c_void, *mut c_char, size_t) -> ssize_t,
    write: *const c_void,
    seek: unsafe extern "C-unwind" fn(*mut c_void, *mut off64_t, c_int) -> c_int,
    close: unsafe extern "C-unwind" fn(*mut c_void) -> c_int,
}

unsafe extern "C" {
    fn fopencookie(cookie: *mut c_void, mode: *const c_char, functions: Functions) -> *mut FILE;
    static mut stdin: *mut FILE;
}

/// The descriptor is the cookie.
fn fd_of(cookie: *mut c_void) -> c_int {
    cookie.addr() as c_int
}

unsafe extern "C-unwind" fn take(cookie: *mut c_void, buffer: *mut c_char, len: size_t) -> ssize_t {
    // SAFETY: the C library's buffer.
    unsafe { read(fd_of(cookie), buffer.cast(), len) }
}

unsafe extern "C-unwind" fn seek(cookie: *mut c_void, offset: *mut off64_t, whence: c_int) -> c_int {
    // SAFETY: the C library's offset.
    unsafe {
        let place = next::lseek64(fd_of(cookie), *offset, whence);
        if place < 0 {
            return -1;
        }
        *offset = place;
        0
    }
}

unsafe extern "C-unwind" fn close(cookie: *mut c_void) -> c_int {
    close_one(fd_of(cookie))
}

/// The beginning of a `FILE` up to its descriptor, on x86-64. The C library cannot change it, since old programs' macros use it.
#[repr(C)]
struct Beginning {
    flags: c_int,
    pointers: [*mut c_void; 13],
    fd: c_int,
}
const _: () = assert!(offset_of!(Beginning, fd) == 112);

/// A stream that reads from a descriptor. Null, with errno: there is no memory for it.
fn stream(fd: c_int) -> *mut FILE {
    /// The descriptor in a stream from fopencookie(3).
    const NONE: c_int = -2;
    let functions = Functions { read: take, write: std::ptr::null(), seek, close };
    // SAFETY: the functions are of this library, which is never unloaded. A stream of the C library is at least as long as `Beginning`.
    unsafe {
        let stream = fopencookie(std::ptr::without_provenance_mut(fd as usize), c"r".as_ptr(), functions);
        if !stream.is_null() && (*stream.cast::<Beginning>()).fd == NONE {
            (*stream.cast::<Beginning>()).fd = fd;
        }
        stream
    }
}

/// Whether a mode of fopen(3) only reads.
///
/// # Safety
/// `mode` is a string.
pub(super) unsafe fn only_reads(mode: *const c_char) -> bool {
    // SAFETY: the contract.
    let mode = unsafe { std::ffi::CStr::from_ptr(mode) }.to_bytes();
    mode.starts_with(b"r") && !mode.contains(&b'+')
}

/// Takes the stream that fopen(3) returned. If its file is an object, replaces it by a stream that can read the object.
///
/// # Safety
/// The stream is open, or null.
pub(super) unsafe fn opened(plain: *mut FILE) -> *mut FILE {
    if !objects::any() || plain.is_null() {
        return plain;
    }
    // SAFETY: the contract. The plain stream has read nothing yet.
    unsafe {
        let fd = descriptor(plain);
        if objects::of(fd).is_none() {
            return plain;
        }
        let own = dup(fd);
        let flags = next::fcntl(fd, libc::F_GETFD, 0);
        if own >= 0 {
            next::fcntl(own, libc::F_SETFD, flags.into());
        }
        remembered::closing(fd);
        next::fclose(plain);
        if own < 0 { std::ptr::null_mut() } else { of_descriptor(own) }
    }
}

/// A stream of an object's descriptor. If it cannot be made, the descriptor is closed.
fn of_descriptor(fd: c_int) -> *mut FILE {
    let made = stream(fd);
    if made.is_null() {
        let error = errno();
        close_one(fd);
        set_errno(error);
    }
    made
}

/// fdopen(3).
#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn fdopen(fd: c_int, mode: *const c_char) -> *mut FILE {
    // SAFETY: the caller's contract, which is the C library's.
    unsafe {
        if objects::any() && !mode.is_null() && only_reads(mode) && objects::of(fd).is_some() {
            return stream(fd);
        }
        next::fdopen(fd, mode)
    }
}

/// freopen(3) on an object. Returns another stream, which becomes `stdin` if `before` was `stdin`. `before` is empty from then on.
///
/// # Safety
/// The stream is open; the path is a string.
pub(super) unsafe fn reopened(path: *const c_char, mode: *const c_char, before: *mut FILE) -> *mut FILE {
    // SAFETY: the contract.
    unsafe {
        let new = opened(next::fopen64(path, mode));
        if !new.is_null() {
            next::freopen64(c"/dev/null".as_ptr(), c"r".as_ptr(), before);
            if before == stdin {
                stdin = new;
            }
        }
        new
    }
}

/// Called when the process starts: standard input may be an object.
pub(crate) fn begin() {
    if objects::of(libc::STDIN_FILENO).is_some() {
        let new = stream(libc::STDIN_FILENO);
        if !new.is_null() {
            // SAFETY: this is before the program runs, so nobody else changes `stdin`.
            unsafe { stdin = new };
        }
    }
}
