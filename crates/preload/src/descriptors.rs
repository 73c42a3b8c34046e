//! Closing descriptors: the engine's own are not the program's, which may close all that it sees. To the program they are not
//! open.

use crate::{next, set_errno};
use fastmap::descriptors::{is_engine, next_engine};
use libc::{c_int, c_uint};

fn bad_descriptor() -> c_int {
    set_errno(libc::EBADF);
    -1
}

// The functions behind the names: a call of an exported one from here would be the C library's (`next.rs`).

pub(crate) fn close_one(fd: c_int) -> c_int {
    if is_engine(fd) {
        return bad_descriptor();
    }
    // SAFETY: the program's own.
    unsafe { next::close(fd) }
}

/// close(2).
#[unsafe(no_mangle)]
pub extern "C-unwind" fn close(fd: c_int) -> c_int {
    close_one(fd)
}

/// close(2), by its other name.
#[unsafe(no_mangle)]
pub extern "C-unwind" fn __close(fd: c_int) -> c_int {
    close_one(fd)
}

/// close_range(2), around the engine's.
#[unsafe(no_mangle)]
pub extern "C-unwind" fn close_range(first: c_uint, last: c_uint, flags: c_int) -> c_int {
    close_many(first, last, flags)
}

pub(crate) fn close_many(first: c_uint, last: c_uint, flags: c_int) -> c_int {
    // No descriptor has a number beyond an int's.
    let mut at = first.min(c_int::MAX as c_uint);
    let stops = std::iter::from_fn(|| {
        let stop = next_engine(at as c_int)? as c_uint;
        at = stop + 1;
        (stop <= last).then_some(stop)
    });
    let mut from = first;
    for stop in stops {
        // SAFETY: numbers only, and none of the engine's among them.
        if from < stop && unsafe { next::close_range(from, stop - 1, flags) } != 0 {
            return -1;
        }
        from = stop + 1;
    }
    // Nothing may be left of it; but a range that was wrong from the beginning is for the kernel to refuse.
    if from > last && from != first {
        return 0;
    }
    // SAFETY: likewise.
    unsafe { next::close_range(from, last, flags) }
}

/// closefrom(3).
#[unsafe(no_mangle)]
pub extern "C-unwind" fn closefrom(first: c_int) {
    // SAFETY: likewise, here and below.
    unsafe {
        let first = first.max(0);
        if next_engine(first).is_none() {
            return next::closefrom(first);
        }
        let errno = *libc::__errno_location();
        if close_many(first as c_uint, c_uint::MAX, 0) != 0 {
            // Before Linux 5.9.
            for fd in first..libc::sysconf(libc::_SC_OPEN_MAX) as c_int {
                close_one(fd);
            }
        }
        set_errno(errno);
    }
}

/// dup2(2), dup3(2): the engine's numbers are neither to be had nor copied.
pub(crate) fn copy(old: c_int, new: c_int, call: impl FnOnce() -> c_int) -> c_int {
    if is_engine(old) || is_engine(new) {
        return bad_descriptor();
    }
    call()
}

/// dup2(2).
#[unsafe(no_mangle)]
pub extern "C-unwind" fn dup2(old: c_int, new: c_int) -> c_int {
    // SAFETY: the program's own.
    copy(old, new, || unsafe { next::dup2(old, new) })
}

/// dup2(2), by its other name.
#[unsafe(no_mangle)]
pub extern "C-unwind" fn __dup2(old: c_int, new: c_int) -> c_int {
    // SAFETY: the program's own.
    copy(old, new, || unsafe { next::dup2(old, new) })
}

/// dup3(2).
#[unsafe(no_mangle)]
pub extern "C-unwind" fn dup3(old: c_int, new: c_int, flags: c_int) -> c_int {
    // SAFETY: the program's own.
    copy(old, new, || unsafe { next::dup3(old, new, flags) })
}
