//! Calls that change a file's length or blocks, sync it, look for its holes, fetch it ahead, or lock it (flock(2)).

use super::coherence::{self, Span};
use crate::copy::Call;
use crate::own::set_errno;
use crate::{next, objects};
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
                if objects::is_kept(libc::AT_FDCWD, path) {
                    return -1;
                }
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
            // SAFETY: ftruncate takes no memory.
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
            // SAFETY: the call takes no memory.
            coherence::allocating(fd, mode, offset, len, || unsafe { next::$name(fd, mode, offset, len) })
        }
    )* };
}
fallocates!(fallocate fallocate64);

/// Wrappers of posix_fallocate(3), which returns the error's number. On a file system without fallocate(2) the C library
/// writes a byte to each block instead. `coherence::allocating` covers this as well.
macro_rules! posix_fallocates {
    ($($name:ident)*) => { $(
        // SAFETY: the C library's name and signature.
        #[unsafe(no_mangle)]
        unsafe extern "C-unwind" fn $name(fd: c_int, offset: off_t, len: off_t) -> c_int {
            // SAFETY: the call takes no memory.
            coherence::allocating(fd, 0, offset, len, || unsafe { next::$name(fd, offset, len) })
        }
    )* };
}
posix_fallocates!(posix_fallocate posix_fallocate64);

/// fsync(2). Dirty pages of the file's maps are written first.
#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn fsync(fd: c_int) -> c_int {
    // SAFETY: the call takes no memory.
    coherence::syncing(fd, || unsafe { next::fsync(fd) })
}

/// fdatasync(2). Dirty pages of the file's maps are written first.
#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn fdatasync(fd: c_int) -> c_int {
    // SAFETY: the call takes no memory.
    coherence::syncing(fd, || unsafe { next::fdatasync(fd) })
}

/// sync_file_range(2). Dirty pages of the file's maps in the range are written first. The kernel does the rest.
#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn sync_file_range(fd: c_int, offset: off_t, len: off_t, flags: c_uint) -> c_int {
    coherence::reading(fd, Span::of(offset, if len == 0 { off_t::MAX } else { len }));
    // SAFETY: the call takes no memory.
    unsafe { next::sync_file_range(fd, offset, len, flags) }
}

/// syncfs(2). Dirty pages of all maps are written first, even of files on other file systems.
#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn syncfs(fd: c_int) -> c_int {
    coherence::save_all();
    // SAFETY: the call takes no memory.
    unsafe { next::syncfs(fd) }
}

/// sync(2). Dirty pages of all maps are written first.
#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn sync() -> c_int {
    coherence::save_all();
    // SAFETY: sync(2) has no preconditions.
    unsafe { next::sync() }
}

/// Wrappers of lseek(2). A search for data or holes first has stores written to the file: data that only a map has is no
/// hole.
macro_rules! seeks {
    ($($name:ident)*) => { $(
        // SAFETY: the C library's name and signature.
        #[unsafe(no_mangle)]
        unsafe extern "C-unwind" fn $name(fd: c_int, offset: off_t, whence: c_int) -> off_t {
            if let Some(done) = seeking_object(fd, offset, whence) {
                return done;
            }
            if matches!(whence, libc::SEEK_HOLE | libc::SEEK_DATA) {
                coherence::reading(fd, Span::from(offset));
            }
            // SAFETY: the call takes no memory.
            unsafe { next::$name(fd, offset, whence) }
        }
    )* };
}
seeks!(lseek lseek64);

/// lseek(2) for data or a hole of an object. All of an object is data. `None`: the kernel has the answer.
pub(crate) fn seeking_object(fd: c_int, offset: off_t, whence: c_int) -> Option<off_t> {
    if !matches!(whence, libc::SEEK_HOLE | libc::SEEK_DATA) {
        return None;
    }
    let len = objects::of(fd)?.len as off_t;
    if !(0..len).contains(&offset) {
        set_errno(libc::ENXIO);
        return Some(-1);
    }
    let place = if whence == libc::SEEK_DATA { offset } else { len };
    // SAFETY: the call takes no memory.
    Some(unsafe { next::lseek64(fd, place, libc::SEEK_SET) })
}

/// Wrappers of posix_fadvise(3). For an object, `POSIX_FADV_WILLNEED` has the range fetched.
macro_rules! advises {
    ($($name:ident)*) => { $(
        // SAFETY: the C library's name and signature.
        #[unsafe(no_mangle)]
        unsafe extern "C-unwind" fn $name(fd: c_int, offset: off_t, len: off_t, advice: c_int) -> c_int {
            if advice == libc::POSIX_FADV_WILLNEED && let Some(object) = objects::of(fd) {
                objects::ask(object, offset, len);
                return 0;
            }
            // SAFETY: the call takes no memory.
            unsafe { next::$name(fd, offset, len, advice) }
        }
    )* };
}
advises!(posix_fadvise posix_fadvise64);

/// readahead(2). For an object it has the range fetched.
#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn readahead(fd: c_int, offset: off_t, len: size_t) -> ssize_t {
    if len > 0
        && let Some(object) = objects::of(fd)
    {
        objects::ask(object, offset, len.min(isize::MAX as usize) as off_t);
        return 0;
    }
    // SAFETY: the call takes no memory.
    unsafe { next::readahead(fd, offset, len) }
}

/// flock(2). Every process that uses an object holds a shared lock on its local copy. So no process can lock it exclusively:
/// `LOCK_EX` is EBADF.
#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn flock(fd: c_int, operation: c_int) -> c_int {
    if operation & libc::LOCK_EX != 0 && objects::of(fd).is_some() {
        set_errno(libc::EBADF);
        return -1;
    }
    // SAFETY: the call takes no memory.
    let result = unsafe { next::flock(fd, operation) };
    if result == 0 && operation & libc::LOCK_UN == 0 {
        coherence::await_keeper(fd);
    }
    result
}
