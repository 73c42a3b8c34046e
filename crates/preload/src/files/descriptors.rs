//! Making, closing and copying descriptors. The program cannot close or replace the hidden descriptors, which are the
//! engine's and the session's of objects: for the program they are not open. `own/remembered.rs` is told of the
//! program's own descriptors.

use crate::own::{errno, remembered, set_errno};
use crate::{next, objects};
use fastmap::descriptors::{self, closing};
use libc::{c_int, c_uint, c_void};

/// Whether a descriptor is hidden from the program.
#[inline]
fn is_ours(fd: c_int) -> bool {
    descriptors::is_engine(fd) || objects::is_hidden(fd)
}

/// The first hidden descriptor at or after `from`.
fn next_ours(from: c_int) -> Option<c_int> {
    [descriptors::next_engine(from), objects::next_hidden(from)].into_iter().flatten().min()
}

fn bad_descriptor() -> c_int {
    set_errno(libc::EBADF);
    -1
}

// `close_one`, `close_many` and `copy` are the functions behind the exported names. A call of an exported name from inside
// this library would be redirected to the C library (`next/mod.rs`).

pub(crate) fn close_one(fd: c_int) -> c_int {
    let _closing = closing();
    if is_ours(fd) {
        return bad_descriptor();
    }
    remembered::closing(fd);
    // SAFETY: the descriptor is the program's own.
    unsafe { next::close(fd) }
}

/// close(2).
#[unsafe(no_mangle)]
pub extern "C-unwind" fn close(fd: c_int) -> c_int {
    close_one(fd)
}

/// close(2), under its other name.
#[unsafe(no_mangle)]
pub extern "C-unwind" fn __close(fd: c_int) -> c_int {
    close_one(fd)
}

/// close_range(2), without the hidden descriptors in the range.
#[unsafe(no_mangle)]
pub extern "C-unwind" fn close_range(first: c_uint, last: c_uint, flags: c_int) -> c_int {
    close_many(first, last, flags)
}

pub(crate) fn close_many(first: c_uint, last: c_uint, flags: c_int) -> c_int {
    let _closing = closing();
    if flags & libc::CLOSE_RANGE_UNSHARE as c_int != 0 {
        crate::own::remembered::divide();
    }
    remembered::closing_all(first, last);
    // No descriptor's number is larger than an int.
    let mut at = first.min(c_int::MAX as c_uint);
    let stops = std::iter::from_fn(|| {
        let stop = next_ours(at as c_int)? as c_uint;
        at = stop + 1;
        (stop <= last).then_some(stop)
    });
    let mut from = first;
    for stop in stops {
        // SAFETY: the call takes numbers only, and no hidden descriptor is among them.
        if from < stop && unsafe { next::close_range(from, stop - 1, flags) } != 0 {
            return -1;
        }
        from = stop + 1;
    }
    // Nothing may be left of the range. But the kernel must refuse a range that was wrong from the beginning.
    if from > last && from != first {
        return 0;
    }
    // SAFETY: the call takes numbers only. The hidden descriptors are below `from` or above `last`.
    unsafe { next::close_range(from, last, flags) }
}

/// closefrom(3).
#[unsafe(no_mangle)]
pub extern "C-unwind" fn closefrom(first: c_int) {
    // SAFETY: the calls take numbers only. The hidden descriptors are left out.
    unsafe {
        let closing = closing();
        let first = first.max(0);
        remembered::closing_all(first as c_uint, c_uint::MAX);
        if next_ours(first).is_none() {
            return next::closefrom(first);
        }
        // The calls below take this guard themselves, and wait less if it is free.
        drop(closing);
        let before = errno();
        if close_many(first as c_uint, c_uint::MAX, 0) != 0 {
            // Linux before 5.9 has no close_range(2).
            for fd in first..libc::sysconf(libc::_SC_OPEN_MAX) as c_int {
                close_one(fd);
            }
        }
        set_errno(before);
    }
}

/// dup2(2) and dup3(2). They neither replace nor copy a hidden descriptor.
pub(crate) fn copy(old: c_int, new: c_int, call: impl FnOnce() -> c_int) -> c_int {
    let _closing = closing();
    if is_ours(old) || is_ours(new) {
        return bad_descriptor();
    }
    if old != new {
        remembered::closing(new);
    }
    let copy = call();
    remembered::copied(old, copy);
    copy
}

/// dup(2).
#[unsafe(no_mangle)]
pub extern "C-unwind" fn dup(old: c_int) -> c_int {
    // SAFETY: the call takes a number only.
    let copy = unsafe { next::dup(old) };
    remembered::copied(old, copy);
    copy
}

/// socket(2).
#[unsafe(no_mangle)]
extern "C-unwind" fn socket(domain: c_int, kind: c_int, protocol: c_int) -> c_int {
    // SAFETY: the call takes numbers only.
    let made = unsafe { next::socket(domain, kind, protocol) };
    remembered::opened(made, false);
    made
}

/// eventfd(2).
#[unsafe(no_mangle)]
extern "C-unwind" fn eventfd(value: c_uint, flags: c_int) -> c_int {
    // SAFETY: the call takes numbers only.
    let made = unsafe { next::eventfd(value, flags) };
    remembered::opened(made, false);
    made
}

/// open_by_handle_at(2).
///
/// # Safety
/// The caller keeps the contract of open_by_handle_at(2).
#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn open_by_handle_at(mount: c_int, handle: *mut c_void, flags: c_int) -> c_int {
    // SAFETY: the caller's contract.
    let opened = unsafe { next::open_by_handle_at(mount, handle, flags) };
    remembered::received(opened);
    opened
}

/// pidfd_getfd(2).
#[unsafe(no_mangle)]
extern "C-unwind" fn pidfd_getfd(process: c_int, target: c_int, flags: c_uint) -> c_int {
    // SAFETY: the call takes numbers only.
    let got = unsafe { next::pidfd_getfd(process, target, flags) };
    remembered::received(got);
    got
}

/// closedir(3).
///
/// # Safety
/// The caller keeps the contract of closedir(3).
#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn closedir(folder: *mut libc::DIR) -> c_int {
    // SAFETY: the caller's contract.
    unsafe {
        if !folder.is_null() {
            remembered::closing(libc::dirfd(folder));
        }
        next::closedir(folder)
    }
}

/// dup2(2).
#[unsafe(no_mangle)]
pub extern "C-unwind" fn dup2(old: c_int, new: c_int) -> c_int {
    // SAFETY: `copy` calls this with descriptors of the program's own.
    copy(old, new, || unsafe { next::dup2(old, new) })
}

/// dup2(2), under its other name.
#[unsafe(no_mangle)]
pub extern "C-unwind" fn __dup2(old: c_int, new: c_int) -> c_int {
    // SAFETY: `copy` calls this with descriptors of the program's own.
    copy(old, new, || unsafe { next::dup2(old, new) })
}

/// dup3(2).
#[unsafe(no_mangle)]
pub extern "C-unwind" fn dup3(old: c_int, new: c_int, flags: c_int) -> c_int {
    // SAFETY: `copy` calls this with descriptors of the program's own.
    copy(old, new, || unsafe { next::dup3(old, new, flags) })
}
