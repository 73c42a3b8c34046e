//! fopen(3) and freopen(3), which may empty a file. setvbuf(3) and its kin: a stream's buffer is never in a mapping.

use super::{descriptor, objects};
use crate::copy::{Call, held, mapped};
use crate::files::coherence::{self, Opened};
use crate::next;
use crate::own::{remembered, set_errno};
use libc::{FILE, c_char, c_int, size_t};

/// Wrappers of fopen(3) and freopen(3).
macro_rules! fopens {
    ($($name:ident($($stream:ident)?);)*) => { $(
        // SAFETY: the C library's name and signature.
        #[unsafe(no_mangle)]
        unsafe extern "C-unwind" fn $name(path: *const c_char, mode: *const c_char $(, $stream: *mut FILE)?) -> *mut FILE {
            // SAFETY: the caller's contract, which is the C library's.
            unsafe {
                $(if !$stream.is_null() {
                    remembered::closing(descriptor($stream));
                })?
                if let Some(object) = crate::objects::reached(libc::AT_FDCWD, path) {
                    if !objects::only_reads(mode) {
                        set_errno(libc::EROFS);
                        return std::ptr::null_mut();
                    }
                    return fopens!(object object.path(), mode $(, $stream)?);
                }
                let call = |path| next::$name(path, mode $(, $stream)?);
                let opened = if mapped() {
                    let arguments = Call::new();
                    let path = arguments.text(path, libc::PATH_MAX as usize);
                    let emptied = !path.is_null() && mode.cast::<u8>().read() == b'w';
                    coherence::emptying(emptied.then_some((libc::AT_FDCWD, path)), || Opened(call(path)))
                } else {
                    call(path)
                };
                if !opened.is_null() {
                    remembered::opened(descriptor(opened), false);
                    coherence::await_keeper(descriptor(opened));
                }
                fopens!(plain opened $(, $stream)?)
            }
        }
    )* };
    (object $path:expr, $mode:ident) => { objects::opened(next::fopen64($path, $mode)) };
    (object $path:expr, $mode:ident, $stream:ident) => { objects::reopened($path, $mode, $stream) };
    (plain $opened:ident) => { objects::opened($opened) };
    (plain $opened:ident, $stream:ident) => { $opened };
}
fopens! {
    fopen();
    fopen64();
    freopen(stream);
    freopen64(stream);
}

/// setvbuf(3). The C library uses a buffer of its own instead of one in a mapping.
#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn setvbuf(stream: *mut FILE, buf: *mut c_char, mode: c_int, size: size_t) -> c_int {
    let buf = if held(buf, size) { std::ptr::null_mut() } else { buf };
    // SAFETY: the caller's contract, which is the C library's.
    unsafe { next::setvbuf(stream, buf, mode, size) }
}

/// setbuf(3).
#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn setbuf(stream: *mut FILE, buf: *mut c_char) -> c_int {
    // SAFETY: the caller's contract, which is the C library's.
    unsafe {
        if held(buf, libc::BUFSIZ as usize) {
            return next::setvbuf(stream, std::ptr::null_mut(), libc::_IOFBF, libc::BUFSIZ as usize);
        }
        next::setbuf(stream, buf)
    }
}

/// setbuffer(3).
#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn setbuffer(stream: *mut FILE, buf: *mut c_char, size: size_t) -> c_int {
    // SAFETY: the caller's contract, which is the C library's.
    unsafe {
        if held(buf, size) {
            return next::setvbuf(stream, std::ptr::null_mut(), libc::_IOFBF, size);
        }
        next::setbuffer(stream, buf, size)
    }
}
