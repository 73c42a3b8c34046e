//! Calls that change or move a file's bytes inside the kernel, or change its length: truncations, allocations, copies, syncs.

use crate::bounce::{Call, held};
use crate::coherence::{self, Span};
use crate::next;
use libc::{c_char, c_int, c_uint, off_t, size_t, ssize_t};

/// Wrappers of truncate(2).
macro_rules! truncates {
    ($($name:ident)*) => { $(
        // SAFETY: the C library's name and signature.
        #[unsafe(no_mangle)]
        unsafe extern "C-unwind" fn $name(path: *const c_char, len: off_t) -> c_int {
            // SAFETY: the caller's contract, which is the C library's.
            unsafe {
                let arguments = Call::new();
                let path = arguments.text(path, libc::PATH_MAX as usize);
                coherence::resizing_path(path, len, || next::$name(path, len))
            }
        }
    )* };
}
truncates!(truncate truncate64);

/// Wrappers of ftruncate(2).
macro_rules! ftruncates {
    ($($name:ident)*) => { $(
        // SAFETY: the C library's name and signature.
        #[unsafe(no_mangle)]
        unsafe extern "C-unwind" fn $name(fd: c_int, len: off_t) -> c_int {
            // SAFETY: a descriptor and a number.
            coherence::resizing(fd, len, || unsafe { next::$name(fd, len) })
        }
    )* };
}
ftruncates!(ftruncate ftruncate64);

/// Wrappers of fallocate(2).
macro_rules! fallocates {
    ($($name:ident)*) => { $(
        // SAFETY: the C library's name and signature.
        #[unsafe(no_mangle)]
        unsafe extern "C-unwind" fn $name(fd: c_int, mode: c_int, offset: off_t, len: off_t) -> c_int {
            // SAFETY: a descriptor and numbers.
            coherence::allocating(fd, mode, offset, len, || unsafe { next::$name(fd, mode, offset, len) })
        }
    )* };
}
fallocates!(fallocate fallocate64);

/// Wrappers of posix_fallocate(3), which returns the error. Where a file system has no fallocate(2) the C library writes a
/// byte to each block, in the brackets of an allocation all the same.
macro_rules! posix_fallocates {
    ($($name:ident)*) => { $(
        // SAFETY: the C library's name and signature.
        #[unsafe(no_mangle)]
        unsafe extern "C-unwind" fn $name(fd: c_int, offset: off_t, len: off_t) -> c_int {
            // SAFETY: a descriptor and numbers.
            coherence::allocating(fd, 0, offset, len, || unsafe { next::$name(fd, offset, len) })
        }
    )* };
}
posix_fallocates!(posix_fallocate posix_fallocate64);

/// fsync(2): what is dirty in the file's maps too.
#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn fsync(fd: c_int) -> c_int {
    // SAFETY: a descriptor.
    coherence::syncing(fd, || unsafe { next::fsync(fd) })
}

/// fdatasync(2).
#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn fdatasync(fd: c_int) -> c_int {
    // SAFETY: a descriptor.
    coherence::syncing(fd, || unsafe { next::fdatasync(fd) })
}

/// sync_file_range(2): dirty pages of maps are written; the rest is as there.
#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn sync_file_range(fd: c_int, offset: off_t, len: off_t, flags: c_uint) -> c_int {
    coherence::reading(fd, Span::of(offset, if len == 0 { off_t::MAX } else { len }));
    // SAFETY: a descriptor and numbers.
    unsafe { next::sync_file_range(fd, offset, len, flags) }
}

/// syncfs(2): of all maps, those of other file systems too.
#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn syncfs(fd: c_int) -> c_int {
    coherence::save_all();
    // SAFETY: a descriptor.
    unsafe { next::syncfs(fd) }
}

/// sync(2).
#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn sync() -> c_int {
    coherence::save_all();
    // SAFETY: no arguments.
    unsafe { next::sync() }
}

/// Wrappers of lseek(2): data that only a map has is no hole.
macro_rules! seeks {
    ($($name:ident)*) => { $(
        // SAFETY: the C library's name and signature.
        #[unsafe(no_mangle)]
        unsafe extern "C-unwind" fn $name(fd: c_int, offset: off_t, whence: c_int) -> off_t {
            if matches!(whence, libc::SEEK_HOLE | libc::SEEK_DATA) {
                coherence::reading(fd, Span::from(offset));
            }
            // SAFETY: a descriptor and numbers.
            unsafe { next::$name(fd, offset, whence) }
        }
    )* };
}
seeks!(lseek lseek64);

/// Wrappers of sendfile(2).
macro_rules! sendfiles {
    ($($name:ident)*) => { $(
        /// sendfile(2).
        ///
        /// # Safety
        /// As there.
        pub unsafe fn $name(out: c_int, from: c_int, offset: *mut off_t, len: size_t) -> ssize_t {
            // SAFETY: the caller's contract, which is the C library's.
            unsafe {
                if !held(offset, size_of::<off_t>()) && !coherence::any() {
                    return next::$name(out, from, offset, len);
                }
                let arguments = Call::new();
                let offset = arguments.changed(offset, size_of::<off_t>());
                let moved = coherence::copying(from, offset, out, std::ptr::null_mut(), len, &mut |len| next::$name(out, from, offset, len));
                arguments.finish(moved);
                moved
            }
        }

        const _: () = {
            // SAFETY: the C library's name and signature.
            #[unsafe(no_mangle)]
            unsafe extern "C-unwind" fn $name(out: c_int, from: c_int, offset: *mut off_t, len: size_t) -> ssize_t {
                // SAFETY: the caller's contract, which is the C library's.
                unsafe { self::$name(out, from, offset, len) }
            }
        };
    )* };
}
sendfiles!(sendfile sendfile64);

/// Wrappers of copy_file_range(2) and splice(2).
macro_rules! copies {
    ($($name:ident)*) => { $(
        /// As the C library's.
        ///
        /// # Safety
        /// As there.
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
                let copied = held(from_offset, size_of::<off_t>()) || held(to_offset, size_of::<off_t>());
                if !copied && !coherence::any() {
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

        const _: () = {
            // SAFETY: the C library's name and signature.
            #[unsafe(no_mangle)]
            unsafe extern "C-unwind" fn $name(
                from: c_int,
                from_offset: *mut off_t,
                to: c_int,
                to_offset: *mut off_t,
                len: size_t,
                flags: c_uint,
            ) -> ssize_t {
                // SAFETY: the caller's contract, which is the C library's.
                unsafe { self::$name(from, from_offset, to, to_offset, len, flags) }
            }
        };
    )* };
    (do splice($from:ident, $from_offset:ident, $to:ident, $to_offset:ident, $len:ident, $flags:ident)) => {
        coherence::splicing($from, $from_offset, $to, $to_offset, $len, $flags)
    };
    (do $name:ident($from:ident, $from_offset:ident, $to:ident, $to_offset:ident, $len:ident, $flags:ident)) => {
        coherence::copying($from, $from_offset, $to, $to_offset, $len, &mut |len| {
            next::$name($from, $from_offset, $to, $to_offset, len, $flags)
        })
    };
}
copies!(copy_file_range splice);
