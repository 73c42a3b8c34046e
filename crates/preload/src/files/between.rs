//! Calls that move bytes from one file to another inside the kernel: sendfile(2), copy_file_range(2), splice(2), and the
//! ioctl(2) requests that clone.

use super::coherence::{
    Mapped, Span, appends, changing, changing_file, file, length_of, position_of, reading, refused,
};
use crate::copy::{Call, MOST, held, mapped};
use crate::own::{errno, set_errno};
use crate::{next, objects};
use fastmap::coherence;
use libc::{c_int, c_uint, off_t, size_t, ssize_t};

/// The place where a call with this offset argument reads or writes. Null stands for the descriptor's position.
unsafe fn place(fd: c_int, offset: *const off_t) -> off_t {
    // SAFETY: the pointer is null or leads to the caller's offset, which is in ordinary memory by now.
    unsafe { offset.as_ref() }.copied().unwrap_or_else(|| position_of(fd))
}

/// sendfile(2) or copy_file_range(2): moves bytes from one descriptor to another. If the file of either is in the engine, it
/// moves pieces of at most `PIECE` bytes.
///
/// # Safety
/// The offsets are null or in ordinary memory.
pub unsafe fn copying(
    from: c_int,
    from_offset: *const off_t,
    to: c_int,
    to_offset: *const off_t,
    len: size_t,
    call: &mut dyn FnMut(size_t) -> ssize_t,
) -> ssize_t {
    let target = file(to);
    if target.is_none() && file(from).is_none() {
        return call(len);
    }
    let before = errno();
    let len = len.min(MOST);
    let mut done = 0;
    loop {
        let piece = (len - done).min(coherence::PIECE);
        // SAFETY: the contract.
        let moved = unsafe { copying_piece(from, from_offset, &target, to, to_offset, piece, call) };
        if moved < 0 {
            if done > 0 {
                set_errno(before);
                return done as ssize_t;
            }
            return moved;
        }
        done += moved as usize;
        if (moved as usize) < piece || done == len {
            return done as ssize_t;
        }
    }
}

unsafe fn copying_piece(
    from: c_int,
    from_offset: *const off_t,
    target: &Option<Mapped>,
    to: c_int,
    to_offset: *const off_t,
    len: size_t,
    call: &mut dyn FnMut(size_t) -> ssize_t,
) -> ssize_t {
    let before = errno();
    // The source is released before the call. The call may wait for a socket or a pipe, and munmap(2) of the source would
    // have to wait as well.
    if let Some(Mapped { file: source, .. }) = file(from) {
        // SAFETY: the contract.
        let start = unsafe { place(from, from_offset) };
        if let Err(error) = source.before_read(Span::of(start, len as off_t).range()) {
            return refused(error);
        }
    }
    let Some(Mapped { file: target, .. }) = target else {
        set_errno(before);
        return call(len);
    };
    let _position = to_offset.is_null().then(|| target.position());
    // SAFETY: the contract.
    let start = if appends(to) { length_of(to) } else { unsafe { place(to, to_offset) } };
    set_errno(before);
    changing_file(target, Span::of(start, len as off_t), || call(len))
}

/// splice(2), by `copying`. If the target is in the engine, this waits for the pipe before it takes pages out of reach: the
/// program itself may have to fill the pipe, and may need these pages for it.
///
/// # Safety
/// The offsets are null or in ordinary memory.
pub unsafe fn splicing(
    from: c_int,
    from_offset: *mut off_t,
    to: c_int,
    to_offset: *mut off_t,
    len: size_t,
    flags: c_uint,
) -> ssize_t {
    let piece = |flags: c_uint| {
        let mut splice = |len: size_t| {
            // SAFETY: the contract.
            unsafe { next::splice(from, from_offset, to, to_offset, len, flags) }
        };
        // SAFETY: the contract.
        unsafe { copying(from, from_offset, to, to_offset, len.min(coherence::PIECE), &mut splice) }
    };
    if file(to).is_none() {
        return piece(flags);
    }
    loop {
        let moved = piece(flags | libc::SPLICE_F_NONBLOCK);
        if moved >= 0 || errno() != libc::EAGAIN || flags & libc::SPLICE_F_NONBLOCK != 0 {
            return moved;
        }
        // SAFETY: F_GETFL takes no memory, and poll(2) takes one local structure.
        unsafe {
            if next::fcntl(from, libc::F_GETFL, 0) & libc::O_NONBLOCK != 0 {
                return moved;
            }
            let mut pipe = libc::pollfd { fd: from, events: libc::POLLIN, revents: 0 };
            if next::poll(&mut pipe, 1, -1) < 0 {
                return -1;
            }
        }
    }
}

/// The result of a call that would move bytes of an object inside the kernel. It fails with EINVAL, as on file systems that
/// cannot do this. Programs then read and write instead.
fn objects_are_read() -> ssize_t {
    set_errno(libc::EINVAL);
    -1
}

/// ioctl(2) FICLONE and FICLONERANGE. `range` is the offset and length in the source, and the offset in the target, bytes.
/// `None` is the whole file. A length of 0 means the bytes up to the source's end.
pub fn cloning(from: c_int, to: c_int, range: Option<[i64; 3]>, call: impl FnOnce() -> c_int) -> c_int {
    let [start, len, at] = range.unwrap_or([0; 3]);
    let len = if len == 0 { off_t::MAX } else { len };
    reading(from, Span::of(start, len));
    changing(to, Span::of(at, len), call)
}

/// Wrappers of sendfile(2).
macro_rules! sendfiles {
    ($($name:ident)*) => { $(
        /// sendfile(2).
        ///
        /// # Safety
        /// The caller keeps the contract of sendfile(2).
        pub unsafe fn $name(out: c_int, from: c_int, offset: *mut off_t, len: size_t) -> ssize_t {
            // SAFETY: the caller's contract, which is the C library's.
            unsafe {
                if objects::of(from).is_some() {
                    return objects_are_read();
                }
                if !held(offset, size_of::<off_t>()) && !mapped() {
                    return next::$name(out, from, offset, len);
                }
                let arguments = Call::new();
                let offset = arguments.changed(offset, size_of::<off_t>());
                let moved = copying(from, offset, out, std::ptr::null_mut(), len, &mut |len| next::$name(out, from, offset, len));
                arguments.finish(moved);
                moved
            }
        }

        exported! { fn $name(out: c_int, from: c_int, offset: *mut off_t, len: size_t) -> ssize_t; }
    )* };
}
sendfiles!(sendfile sendfile64);

/// Wrappers of copy_file_range(2) and splice(2).
macro_rules! copies {
    ($($name:ident)*) => { $(
        /// copy_file_range(2) or splice(2).
        ///
        /// # Safety
        /// The caller keeps the contract of the C library's function of this name.
        pub unsafe fn $name(
            from: c_int,
            from_offset: *mut off_t,
            to: c_int,
            to_offset: *mut off_t,
            len: size_t,
            flags: c_uint,
        ) -> ssize_t {
            // SAFETY: the caller's contract, which is the C library's.
            unsafe {
                if objects::of(from).is_some() {
                    return objects_are_read();
                }
                let copied = held(from_offset, size_of::<off_t>()) || held(to_offset, size_of::<off_t>());
                if !copied && !mapped() {
                    return next::$name(from, from_offset, to, to_offset, len, flags);
                }
                let arguments = Call::new();
                let from_offset = arguments.changed(from_offset, size_of::<off_t>());
                let to_offset = arguments.changed(to_offset, size_of::<off_t>());
                let moved = copies!(do $name(from, from_offset, to, to_offset, len, flags));
                arguments.finish(moved);
                moved
            }
        }

        exported! { fn $name(from: c_int, from_offset: *mut off_t, to: c_int, to_offset: *mut off_t, len: size_t, flags: c_uint) -> ssize_t; }
    )* };
    (do splice($from:ident, $from_offset:ident, $to:ident, $to_offset:ident, $len:ident, $flags:ident)) => {
        splicing($from, $from_offset, $to, $to_offset, $len, $flags)
    };
    (do $name:ident($from:ident, $from_offset:ident, $to:ident, $to_offset:ident, $len:ident, $flags:ident)) => {
        copying($from, $from_offset, $to, $to_offset, $len, &mut |len| {
            next::$name($from, $from_offset, $to, $to_offset, len, $flags)
        })
    };
}
copies!(copy_file_range splice);
