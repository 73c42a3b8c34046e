//! What the kernel's page cache has of a file: cachestat(2), preadv2(2), posix_fadvise(2). For fault handlers.

use super::errno;
use std::fs::File;
use std::os::fd::AsRawFd;

/// Its number is the same on every architecture, and libc does not name it yet.
const SYS_CACHESTAT: libc::c_long = 451;

/// Pages of a range that the page cache has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Cached {
    /// All of them, some perhaps still being read.
    pub pages: u64,
    /// Those that are newer than the device, or on their way there.
    pub unsaved: u64,
}

/// Counts the pages of a range in the page cache (cachestat(2), Linux 6.5), or an error number: ENOSYS, EPERM for a file
/// that this process neither owns nor may write (Linux 6.13) or under seccomp(2), EOPNOTSUPP for hugetlbfs. Not to be
/// called on files with DAX: it brings Linux 6.12 down.
pub fn count(file: &File, offset: u64, len: usize) -> Result<Cached, i32> {
    let range = [offset, len as u64];
    // nr_cache, nr_dirty, nr_writeback, nr_evicted, nr_recently_evicted
    let mut counts = [0u64; 5];
    // SAFETY: the kernel reads two and writes five u64.
    match unsafe { libc::syscall(SYS_CACHESTAT, file.as_raw_fd(), range.as_ptr(), counts.as_mut_ptr(), 0) } {
        0 => Ok(Cached { pages: counts[0], unsaved: counts[1] + counts[2] }),
        _ => Err(errno()),
    }
}

/// Reads what the page cache has, until `len` bytes or the file's end; the count, or an error number: EAGAIN where it lacks
/// something (preadv2(2) with `RWF_NOWAIT`, Linux 4.14), EOPNOTSUPP where the file system cannot tell. What it lacks the
/// kernel may begin to read.
///
/// # Safety
/// `to` is valid for `len` writes.
pub unsafe fn copy(file: &File, to: *mut u8, len: usize, offset: u64) -> Result<usize, i32> {
    let mut done = 0;
    while done < len {
        // SAFETY: the rest of the caller's buffer. Not through glibc's wrapper, a cancellation point.
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

/// Lets the page cache drop the clean pages of a range (posix_fadvise(2)). What somebody has mapped stays, and so does a
/// larger folio that reaches past the range.
pub fn drop_clean(file: &File, offset: u64, len: usize) {
    // SAFETY: takes numbers only.
    unsafe { libc::posix_fadvise(file.as_raw_fd(), offset as i64, len as i64, libc::POSIX_FADV_DONTNEED) };
}

/// Tells the page cache not to guess what will be read next through a descriptor.
pub fn expect_random(file: &File) {
    // SAFETY: advice on a descriptor of our own.
    unsafe { libc::posix_fadvise(file.as_raw_fd(), 0, 0, libc::POSIX_FADV_RANDOM) };
}
