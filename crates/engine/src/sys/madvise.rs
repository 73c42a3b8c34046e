//! Dropping pages: madvise(2), process_madvise(2).

use super::engine_fd::EngineFd;
use super::errno;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicI32, Ordering};

/// Does the same as `MADV_DONTNEED`, but also on memory locked by mlockall(2) (Linux 5.18).
const MADV_DONTNEED_LOCKED: i32 = 24;

/// Set once the kernel has refused a pidfd, or process_madvise(2) with this advice on the calling process (before Linux 6.13, or by
/// seccomp(2)).
static REFUSED: AtomicBool = AtomicBool::new(false);

/// A pidfd of this process. -1 before it is opened.
static PIDFD: AtomicI32 = AtomicI32::new(-1);

/// Opens the pidfd that `drop_pages` needs. Called before the first fault. Idempotent.
pub fn prepare() {
    if PIDFD.load(Ordering::Acquire) >= 0 {
        return;
    }
    // SAFETY: the call takes numbers only. (It makes the descriptor close-on-exec.)
    let pidfd = unsafe { libc::syscall(libc::SYS_pidfd_open, libc::getpid(), 0) } as i32;
    if pidfd < 0 {
        REFUSED.store(true, Ordering::Release);
        return;
    }
    // SAFETY: the descriptor was opened just now, so nobody else owns it.
    let pidfd = EngineFd::new(unsafe { OwnedFd::from_raw_fd(pidfd) });
    if PIDFD.compare_exchange(-1, pidfd.as_raw_fd(), Ordering::AcqRel, Ordering::Acquire).is_ok() {
        pidfd.leak();
    }
}

/// Whether a batch of ranges can be dropped by one process_madvise(2). Asks the kernel with one empty range.
pub fn batches() -> bool {
    prepare();
    if !REFUSED.load(Ordering::Acquire) {
        let page = std::cell::UnsafeCell::new([0u8; 1]);
        // The kernel makes all its checks of the call, and then drops nothing, since the range has no bytes.
        let none = libc::iovec { iov_base: page.get().cast(), iov_len: 0 };
        if process_madvise(&[none]) < 0 && matches!(errno(), libc::EINVAL | libc::EPERM | libc::ENOSYS) {
            REFUSED.store(true, Ordering::Release);
        }
    }
    !REFUSED.load(Ordering::Acquire)
}

fn process_madvise(ranges: &[libc::iovec]) -> isize {
    let pidfd = PIDFD.load(Ordering::Acquire);
    // SAFETY: the kernel reads the list. The contract of `drop_pages` allows the advice on the ranges.
    unsafe {
        libc::syscall(libc::SYS_process_madvise, pidfd, ranges.as_ptr(), ranges.len(), MADV_DONTNEED_LOCKED, 0) as isize
    }
}

/// Drops the memory behind every range. Where the kernel allows it, this is one call with one TLB flush (0.3 to 0.7 µs a page in batches of
/// 512). Otherwise it is one madvise(2) for each range (1.3 µs a page). Returns false if a range could not be dropped; the ranges behind it
/// are then left alone.
///
/// # Safety
/// There are at most 1024 ranges. Each range is page-aligned, and nobody needs its contents.
pub unsafe fn drop_pages(ranges: &[libc::iovec]) -> bool {
    let mut done = 0;
    while done < ranges.len() && !REFUSED.load(Ordering::Relaxed) {
        let advised = process_madvise(&ranges[done..]);
        if advised < 0 {
            match errno() {
                libc::EINTR | libc::EAGAIN => continue,
                libc::EINVAL | libc::EPERM | libc::ENOSYS | libc::EBADF => REFUSED.store(true, Ordering::Release),
                _ => {}
            }
            break;
        }
        // The kernel returns a count of bytes, from which follows how many ranges it has dropped. It may stop early (process_madvise(2)).
        let mut bytes = advised as usize;
        while done < ranges.len() && bytes >= ranges[done].iov_len {
            bytes -= ranges[done].iov_len;
            done += 1;
        }
    }
    ranges[done..].iter().all(|range| {
        // SAFETY: the caller's contract. (The second advice is for kernels before 5.18.)
        unsafe {
            libc::madvise(range.iov_base, range.iov_len, MADV_DONTNEED_LOCKED) == 0
                || libc::madvise(range.iov_base, range.iov_len, libc::MADV_DONTNEED) == 0
        }
    })
}

/// Prepares the memory of a region. It gets 4 KiB pages only. Children made by fork(2) do not inherit it, since they would read zeros where
/// pages are absent.
///
/// # Safety
/// The range is the caller's own mapping.
pub unsafe fn prepare_region(at: *mut u8, len: usize) {
    // SAFETY: the caller's contract. A kernel that lacks an advice answers EINVAL, which loses nothing.
    unsafe {
        libc::madvise(at.cast(), len, libc::MADV_NOHUGEPAGE);
        libc::madvise(at.cast(), len, libc::MADV_DONTFORK);
    }
}

/// Prepares staging memory. If `huge`, it gets huge pages. If not, it gets none, even where the system gives them to all memory: the huge page
/// that one buffer touches would take the memory of sixteen buffers. Children made by fork(2) do not inherit the memory: after a fork that
/// shares it, the kernel would refuse to move its pages.
///
/// # Safety
/// The range is the caller's own mapping.
pub unsafe fn prepare_staging(at: *mut u8, len: usize, huge: bool) {
    // SAFETY: the caller's contract. (If the first advice fails, moves take longer. If the second fails, moves fail in a process that has
    // forked.)
    unsafe {
        libc::madvise(at.cast(), len, if huge { libc::MADV_HUGEPAGE } else { libc::MADV_NOHUGEPAGE });
        libc::madvise(at.cast(), len, libc::MADV_DONTFORK);
    }
}
