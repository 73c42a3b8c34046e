//! read(2), write(2) and similar functions: with one buffer or several, at the position or at an offset.

use super::{At, coherence, memory};
use crate::copy::{Unit, Way, any_held, exchange, held, is_taken_since, mapped};
use crate::next;
use crate::objects::{self, Read};
use crate::own::kernel;
use crate::own::remembered::is_foreign;
use libc::{c_int, c_void, iovec, off_t, size_t, ssize_t};

/// Makes a read or write on an engine file, or with buffers in engine mappings. `call` gets a window and its offset.
///
/// # Safety
/// There are `count` valid entries, as for readv(2) or writev(2).
unsafe fn moved(
    way: Way,
    fd: c_int,
    entries: *const iovec,
    count: usize,
    at: At,
    append: bool,
    call: &mut dyn FnMut(&[iovec], off_t) -> isize,
) -> isize {
    // SAFETY: the contract, handed on.
    unsafe {
        if memory::is_own(fd) {
            return memory::through(way, fd, entries, count, at, call);
        }
        match coherence::file(fd).is_some() {
            true if way == Way::In => coherence::read(fd, entries, count, at, call),
            true => coherence::write(fd, entries, count, at, append, call),
            false => {
                exchange(way, Unit::Descriptor(fd), entries, count, &mut |window, done| call(window, at.after(done)))
            }
        }
    }
}

/// If a call reads an object's descriptor, makes the read and returns its result.
macro_rules! object {
    (In, $fd:ident, objects::read($entries:expr, $count:expr), $how:expr) => {
        if let Some(object) = objects::of($fd) {
            return objects::read(object, $fd, $entries, $count, $how);
        }
    };
    (Out, $fd:ident, objects::read($entries:expr, $count:expr), $how:expr) => {};
}

/// Wrappers of calls with one buffer: `WAY NAME(type of the buffer; offset?; size?)`. The functions that check the buffer's
/// size (`__read_chk`) have a size.
macro_rules! buffers {
    ($($way:ident $name:ident($buffer:ty; $($offset:ident)?; $($size:ident)?);)*) => { $(
        /// The C library's function of this name, on a mapped file or with a buffer in a mapping.
        ///
        /// # Safety
        /// The caller keeps the contract of the C library's function of this name.
        pub unsafe fn $name(fd: c_int, buf: $buffer, len: size_t $(, $offset: off_t)? $(, $size: size_t)?) -> ssize_t {
            // SAFETY: the caller's contract, which is the C library's.
            unsafe {
                object!($way, fd, objects::read(&iovec { iov_base: buf as *mut c_void, iov_len: len }, 1), buffers!(how $($offset)?));
                let mut done = 0;
                if !mapped() || is_foreign(fd) && !held(buf, len) && !memory::is_own(fd) {
                    let moved = next::$name(fd, buf, len $(, $offset)? $(, $size)?);
                    if !is_taken_since(moved) && !is_cut_short(fd, moved, buf.cast(), len) {
                        return moved;
                    }
                    done = moved.max(0);
                }
                let entry = iovec { iov_base: buf.cast::<u8>().add(done as usize) as *mut c_void, iov_len: len - done as usize };
                let at = buffers!(at done, $($offset)?);
                let rest = moved(Way::$way, fd, &entry, 1, at, false, &mut |window, _offset| {
                    next::$name(fd, window[0].iov_base, window[0].iov_len $(, { let _ = $offset; _offset })? $(, $size)?)
                });
                if done > 0 { done + rest.max(0) } else { rest }
            }
        }

        exported! { fn $name(fd: c_int, buf: $buffer, len: size_t $(, $offset: off_t)? $(, $size: size_t)?) -> ssize_t; }
    )* };
    (how) => { Read { offset: None, waits: true } };
    (how $offset:ident) => { Read { offset: Some($offset), waits: true } };
    (at $done:ident,) => { At::Position };
    (at $done:ident, $offset:ident) => { At::Offset($offset.saturating_add($done as off_t)) };
}

/// Whether a call on a file moved fewer bytes than it was asked for, and the rest of the buffer is now the engine's. Then
/// the mapping may have changed hands during the call, and the rest must be moved by another call.
unsafe fn is_cut_short(fd: c_int, done: isize, buffer: *const u8, len: usize) -> bool {
    let is_short =
        (0..len as isize).contains(&done) && mapped() && held(buffer.wrapping_offset(done), len - done as usize);
    is_short && is_regular(fd)
}

/// Whether a descriptor is of a regular file, which moves all bytes that there are. On other files a short call may be
/// complete.
#[cold]
fn is_regular(fd: c_int) -> bool {
    kernel::facts_of(fd).is_some_and(|facts| facts.st_mode & libc::S_IFMT == libc::S_IFREG)
}

buffers! {
    In read(*mut c_void;;);
    In __read(*mut c_void;;);
    In __read_chk(*mut c_void;; size);
    In pread(*mut c_void; offset;);
    In pread64(*mut c_void; offset;);
    In __pread64(*mut c_void; offset;);
    In __pread_chk(*mut c_void; offset; size);
    In __pread64_chk(*mut c_void; offset; size);
    Out write(*const c_void;;);
    Out __write(*const c_void;;);
    Out pwrite(*const c_void; offset;);
    Out pwrite64(*const c_void; offset;);
    Out __pwrite64(*const c_void; offset;);
}

/// Wrappers of calls with an array of buffers.
macro_rules! vectors {
    ($($way:ident $name:ident($($offset:ident)?; $($flags:ident)?);)*) => { $(
        /// The C library's function of this name, on a mapped file or with a buffer in a mapping.
        ///
        /// # Safety
        /// The caller keeps the contract of the C library's function of this name.
        pub unsafe fn $name(fd: c_int, entries: *const iovec, count: c_int $(, $offset: off_t)? $(, $flags: c_int)?) -> ssize_t {
            // SAFETY: the caller's contract, which is the C library's. Entries are read only if the count is in range. The
            // kernel refuses any other count.
            unsafe {
                if (0..=libc::UIO_MAXIOV).contains(&count) $(&& $flags & !(libc::RWF_HIPRI | libc::RWF_NOWAIT) == 0)? {
                    object!($way, fd, objects::read(entries, count as usize), vectors!(how $($offset)?; $($flags)?));
                }
                let ours = (0..=libc::UIO_MAXIOV).contains(&count) && (any_held(entries, count as usize) || mapped() && !is_foreign(fd) || memory::is_own(fd));
                if !ours {
                    let done = next::$name(fd, entries, count $(, $offset)? $(, $flags)?);
                    if !is_taken_since(done) {
                        return done;
                    }
                }
                let at = vectors!(at $($offset)?; $($flags)?);
                let append = false $(|| $flags & libc::RWF_APPEND != 0)?;
                moved(Way::$way, fd, entries, count as usize, at, append, &mut |window, _offset| {
                    next::$name(fd, window.as_ptr(), window.len() as c_int $(, { let _ = $offset; _offset })? $(, $flags)?)
                })
            }
        }

        exported! { fn $name(fd: c_int, entries: *const iovec, count: c_int $(, $offset: off_t)? $(, $flags: c_int)?) -> ssize_t; }
    )* };
    (how ;) => { Read { offset: None, waits: true } };
    (how $offset:ident;) => { Read { offset: Some($offset), waits: true } };
    (how $offset:ident; $flags:ident) => {
        Read { offset: ($offset != -1).then_some($offset), waits: $flags & libc::RWF_NOWAIT == 0 }
    };
    (at ;) => { At::Position };
    (at $offset:ident;) => { At::Offset($offset) };
    (at $offset:ident; $flags:ident) => { At::or_position($offset) };
}

vectors! {
    In readv(;);
    In preadv(offset;);
    In preadv64(offset;);
    In preadv2(offset; flags);
    In preadv64v2(offset; flags);
    Out writev(;);
    Out pwritev(offset;);
    Out pwritev64(offset;);
    Out pwritev2(offset; flags);
    Out pwritev64v2(offset; flags);
}
