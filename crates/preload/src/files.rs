//! read(2), write(2), their kin, and what else changes a file: buffers in mappings are copied (`vectors.rs`), and a file
//! that the engine has mapped is kept coherent (`coherence.rs`).
//!
//! What is called from elsewhere in this library is a function of its own inside the exported one: the linker would take a
//! call of `read` here for one of the C library's (`next.rs`).

use crate::bounce::{Call, held};
use crate::vectors::{Unit, Way, any_held, exchange};
use crate::{alone, coherence, next};
use libc::{c_char, c_int, c_uint, c_ulong, c_void, iovec, mode_t, off_t, pid_t, size_t, ssize_t};

/// Where a call reads or writes.
#[derive(Clone, Copy)]
pub enum At {
    /// Where the descriptor stands, and it moves.
    Position,
    Offset(off_t),
}

impl At {
    /// preadv2(2): -1 is the descriptor's position.
    fn or_position(offset: off_t) -> At {
        if offset == -1 { At::Position } else { At::Offset(offset) }
    }

    /// The offset argument after `done` bytes.
    pub fn after(self, done: usize) -> off_t {
        match self {
            At::Position => -1,
            At::Offset(offset) => offset.wrapping_add(done as off_t),
        }
    }
}

/// One call's bytes. `call` gets a window and its offset.
///
/// # Safety
/// As readv(2) or writev(2).
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
        match coherence::file(fd).is_some() {
            true if way == Way::In => coherence::read(fd, entries, count, at, call),
            true => coherence::write(fd, entries, count, at, append, call),
            false => {
                exchange(way, Unit::Descriptor(fd), entries, count, &mut |window, done| call(window, at.after(done)))
            }
        }
    }
}

/// Wrappers of calls with one buffer: `WAY NAME(type of the buffer; offset?; size, for the checked ones?)`.
macro_rules! buffers {
    ($($way:ident $name:ident($buffer:ty; $($offset:ident)?; $($size:ident)?);)*) => { $(
        /// As the C library's.
        ///
        /// # Safety
        /// As there.
        pub unsafe fn $name(fd: c_int, buf: $buffer, len: size_t $(, $offset: off_t)? $(, $size: size_t)?) -> ssize_t {
            // SAFETY: the caller's contract, which is the C library's.
            unsafe {
                if !coherence::any() {
                    return next::$name(fd, buf, len $(, $offset)? $(, $size)?);
                }
                let entry = iovec { iov_base: buf as *mut c_void, iov_len: len };
                let at = buffers!(at $($offset)?);
                moved(Way::$way, fd, &entry, 1, at, false, &mut |window, _offset| {
                    next::$name(fd, window[0].iov_base, window[0].iov_len $(, { let _ = $offset; _offset })? $(, $size)?)
                })
            }
        }

        const _: () = {
            // SAFETY: the C library's name and signature.
            #[unsafe(no_mangle)]
            unsafe extern "C-unwind" fn $name(fd: c_int, buf: $buffer, len: size_t $(, $offset: off_t)? $(, $size: size_t)?) -> ssize_t {
                // SAFETY: the caller's contract, which is the C library's.
                unsafe { self::$name(fd, buf, len $(, $offset)? $(, $size)?) }
            }
        };
    )* };
    (at) => { At::Position };
    (at $offset:ident) => { At::Offset($offset) };
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
        /// As the C library's.
        ///
        /// # Safety
        /// As there.
        pub unsafe fn $name(fd: c_int, entries: *const iovec, count: c_int $(, $offset: off_t)? $(, $flags: c_int)?) -> ssize_t {
            // SAFETY: the caller's contract, which is the C library's; a count that is none is for the kernel to refuse.
            unsafe {
                let ours = (0..=libc::UIO_MAXIOV).contains(&count) && (any_held(entries, count as usize) || coherence::any());
                if !ours {
                    return next::$name(fd, entries, count $(, $offset)? $(, $flags)?);
                }
                let at = vectors!(at $($offset)?; $($flags)?);
                let append = false $(|| $flags & libc::RWF_APPEND != 0)?;
                moved(Way::$way, fd, entries, count as usize, at, append, &mut |window, _offset| {
                    next::$name(fd, window.as_ptr(), window.len() as c_int $(, { let _ = $offset; _offset })? $(, $flags)?)
                })
            }
        }

        const _: () = {
            // SAFETY: the C library's name and signature.
            #[unsafe(no_mangle)]
            unsafe extern "C-unwind" fn $name(fd: c_int, entries: *const iovec, count: c_int $(, $offset: off_t)? $(, $flags: c_int)?) -> ssize_t {
                // SAFETY: the caller's contract, which is the C library's.
                unsafe { self::$name(fd, entries, count $(, $offset)? $(, $flags)?) }
            }
        };
    )* };
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

/// vmsplice(2). Pages of a mapping are copied: what is stored there afterwards does not show in the pipe.
///
/// # Safety
/// As there.
pub unsafe fn vmsplice(fd: c_int, entries: *const iovec, count: size_t, flags: c_uint) -> ssize_t {
    // SAFETY: the caller's contract, which is the C library's.
    unsafe {
        if count > libc::UIO_MAXIOV as usize || !any_held(entries, count) {
            return next::vmsplice(fd, entries, count, flags);
        }
        let reads = next::fcntl(fd, libc::F_GETFL, 0) & libc::O_ACCMODE == libc::O_RDONLY;
        let (way, unit) = if reads { (Way::In, Unit::Call) } else { (Way::Out, Unit::KeptCall) };
        exchange(way, unit, entries, count, &mut |window, _| next::vmsplice(fd, window.as_ptr(), window.len(), flags))
    }
}

/// What process_vm_readv(2) and process_vm_writev(2) have in common: the other process's addresses are no memory here.
///
/// # Safety
/// As there.
unsafe fn with_process(
    way: Way,
    local: *const iovec,
    count: c_ulong,
    remote: *const iovec,
    remotes: c_ulong,
    call: impl Fn(*const iovec, c_ulong, *const iovec) -> ssize_t,
) -> ssize_t {
    // SAFETY: the caller's contract, which is the C library's.
    unsafe {
        let arguments = Call::new();
        let remote = arguments.input(remote, (remotes as usize).saturating_mul(size_of::<iovec>()));
        if count > libc::UIO_MAXIOV as c_ulong || !any_held(local, count as usize) {
            return call(local, count, remote);
        }
        exchange(way, Unit::Call, local, count as usize, &mut |window, _| {
            call(window.as_ptr(), window.len() as c_ulong, remote)
        })
    }
}

/// process_vm_readv(2).
///
/// # Safety
/// As there.
pub unsafe fn process_vm_readv(
    pid: pid_t,
    local: *const iovec,
    count: c_ulong,
    remote: *const iovec,
    remotes: c_ulong,
    flags: c_ulong,
) -> ssize_t {
    // SAFETY: the caller's contract, which is the C library's.
    unsafe {
        with_process(Way::In, local, count, remote, remotes, |local, count, remote| {
            next::process_vm_readv(pid, local, count, remote, remotes, flags)
        })
    }
}

/// process_vm_writev(2).
///
/// # Safety
/// As there.
pub unsafe fn process_vm_writev(
    pid: pid_t,
    local: *const iovec,
    count: c_ulong,
    remote: *const iovec,
    remotes: c_ulong,
    flags: c_ulong,
) -> ssize_t {
    // SAFETY: the caller's contract, which is the C library's.
    unsafe {
        with_process(Way::Out, local, count, remote, remotes, |local, count, remote| {
            next::process_vm_writev(pid, local, count, remote, remotes, flags)
        })
    }
}

exported! {
    fn vmsplice(fd: c_int, entries: *const iovec, count: size_t, flags: c_uint) -> ssize_t;
    fn process_vm_readv(pid: pid_t, local: *const iovec, count: c_ulong, remote: *const iovec, remotes: c_ulong, flags: c_ulong) -> ssize_t;
    fn process_vm_writev(pid: pid_t, local: *const iovec, count: c_ulong, remote: *const iovec, remotes: c_ulong, flags: c_ulong) -> ssize_t;
}

/// A call that opens a file, and may empty it.
///
/// # Safety
/// A path, as the call has it.
#[inline]
pub unsafe fn opening(
    folder: c_int,
    path: *const c_char,
    empties: bool,
    call: impl FnOnce(*const c_char) -> c_int,
) -> c_int {
    // SAFETY: the contract.
    unsafe {
        let concerned = held(path, libc::PATH_MAX as usize) || empties && coherence::any();
        if !concerned {
            let opened = call(path);
            if opened >= 0 {
                alone::looked_at(path);
            }
            return opened;
        }
        let arguments = Call::new();
        let path = arguments.text(path, libc::PATH_MAX as usize);
        coherence::emptying(empties.then_some((folder, path)), || coherence::Opened(call(path)))
    }
}

/// Wrappers that open: `NAME(folder?; flags?; mode?)`.
macro_rules! opens {
    ($($name:ident($($folder:ident)?; $($flags:ident)?; $($mode:ident)?);)*) => { $(
        // SAFETY: the C library's name and signature; the mode that a caller did not give is a register of any content, as
        // in the C library, which does not look at it then.
        #[unsafe(no_mangle)]
        unsafe extern "C-unwind" fn $name($($folder: c_int,)? path: *const c_char $(, $flags: c_int)? $(, $mode: mode_t)?) -> c_int {
            // SAFETY: the caller's contract, which is the C library's.
            unsafe {
                opening(opens!(folder $($folder)?), path, opens!(emptied $($flags)?), |path| {
                    next::$name($($folder,)? path $(, $flags)? $(, $mode)?)
                })
            }
        }
    )* };
    (emptied) => { true };
    (emptied $flags:ident) => { $flags & libc::O_TRUNC != 0 };
    (folder) => { libc::AT_FDCWD };
    (folder $folder:ident) => { $folder };
}

opens! {
    open(; flags; mode);
    open64(; flags; mode);
    __open(; flags; mode);
    __open64(; flags; mode);
    __open_2(; flags;);
    __open64_2(; flags;);
    openat(folder; flags; mode);
    openat64(folder; flags; mode);
    __openat_2(folder; flags;);
    __openat64_2(folder; flags;);
    creat(;; mode);
    creat64(;; mode);
}
