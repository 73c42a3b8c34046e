//! The part of a file that is in the kernel's page cache: counted by cachestat(2), copied by preadv2(2), dropped by posix_fadvise(2). Fault handlers
//! may call these functions.

use super::errno;
use std::fs::File;
use std::os::fd::AsRawFd;

/// The number of cachestat(2). It is the same on every architecture, and libc does not name it yet.
const SYS_CACHESTAT: libc::c_long = 451;

/// How many pages of a range are in the page cache.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Cached {
    /// All of them. The kernel may still be reading some.
    pub pages: u64,
    /// Those that are dirty or under write-back.
    pub unsaved: u64,
}

/// Counts the pages of a range that are in the page cache (cachestat(2), Linux 6.5).
///
/// Returns an error number on failure: ENOSYS; EPERM under seccomp(2), or for a file that this process neither owns nor may write (Linux 6.13);
/// EOPNOTSUPP for hugetlbfs.
///
/// Do not call this on a file on DAX: that brings Linux 6.12 down.
pub fn count(file: &File, offset: u64, len: usize) -> Result<Cached, i32> {
    let range = [offset, len as u64];
    // nr_cache, nr_dirty, nr_writeback, nr_evicted, nr_recently_evicted
    let mut counts = [0u64; 5];
    // SAFETY: the kernel reads two u64 from `range` and writes five to `counts`.
    match unsafe { libc::syscall(SYS_CACHESTAT, file.as_raw_fd(), range.as_ptr(), counts.as_mut_ptr(), 0) } {
        0 => Ok(Cached { pages: counts[0], unsaved: counts[1] + counts[2] }),
        _ => Err(errno()),
    }
}

/// Copies up to `len` bytes of the file from the page cache, without waiting for the device (preadv2(2) with `RWF_NOWAIT`, Linux 4.14). Stops at the
/// end of the file.
///
/// Returns the count of bytes, or an error number: EAGAIN if the page cache lacks some of the bytes, EOPNOTSUPP if the file system cannot tell. The
/// kernel may begin to read the missing bytes.
///
/// # Safety
/// `to` is valid for `len` writes.
pub unsafe fn copy(file: &File, to: *mut u8, len: usize, offset: u64) -> Result<usize, i32> {
    let mut done = 0;
    while done < len {
        // SAFETY: the rest of the caller's buffer. This is a raw system call, since glibc's wrapper is a cancellation point.
        let got = unsafe {
            let rest = libc::iovec { iov_base: to.add(done).cast(), iov_len: len - done };
            let (at, flags) = (offset + done as u64, libc::RWF_NOWAIT);
            libc::syscall(libc::SYS_preadv2, file.as_raw_fd(), &rest, 1usize, at, 0usize, flags)
        };
        match got {
            0 => break,
            1.. => done += got as usize,
            _ if errno() == libc::EINTR => {}
            _ => return Err(errno()),
        }
    }
    Ok(done)
}

/// Asks the page cache to drop the clean pages of a range (posix_fadvise(2)). A page that a process has mapped stays. A larger folio that reaches
/// past the range stays, too.
pub fn drop_clean(file: &File, offset: u64, len: usize) {
    // SAFETY: takes numbers only.
    unsafe { libc::posix_fadvise(file.as_raw_fd(), offset as i64, len as i64, libc::POSIX_FADV_DONTNEED) };
}

/// Tells the kernel not to predict what will be read next through this descriptor.
pub fn expect_random(file: &File) {
    // SAFETY: advice on a descriptor of our own.
    unsafe { libc::posix_fadvise(file.as_raw_fd(), 0, 0, libc::POSIX_FADV_RANDOM) };
}
