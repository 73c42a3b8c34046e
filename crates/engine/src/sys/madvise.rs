//! Dropping pages: madvise(2), process_madvise(2).

use super::engine_fd::EngineFd;
use super::errno;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicI32, Ordering};

/// Like `MADV_DONTNEED`, and also on memory that mlockall(2) locked (Linux 5.18).
const MADV_DONTNEED_LOCKED: i32 = 24;

/// Set when this kernel refuses process_madvise(DONTNEED) on the calling process (before Linux 6.13, or seccomp).
static REFUSED: AtomicBool = AtomicBool::new(false);

/// A pidfd of this process, -1 before it is opened.
static PIDFD: AtomicI32 = AtomicI32::new(-1);

/// Opens what `drop_pages` needs; call before the first fault. Idempotent.
pub fn prepare() {
    if PIDFD.load(Ordering::Acquire) >= 0 {
        return;
    }
    // SAFETY: plain system call, the descriptor is close-on-exec by definition.
    let pidfd = unsafe { libc::syscall(libc::SYS_pidfd_open, libc::getpid(), 0) } as i32;
    if pidfd < 0 {
        REFUSED.store(true, Ordering::Release);
        return;
    }
    // SAFETY: opened just now.
    let pidfd = EngineFd::new(unsafe { OwnedFd::from_raw_fd(pidfd) });
    if PIDFD.compare_exchange(-1, pidfd.as_raw_fd(), Ordering::AcqRel, Ordering::Acquire).is_ok() {
        pidfd.leak();
    }
}

/// True when batches go out in one process_madvise(2); asks the kernel with an empty list.
pub fn batches() -> bool {
    prepare();
    if !REFUSED.load(Ordering::Acquire) {
        let page = std::cell::UnsafeCell::new([0u8; 1]);
        // An empty vector passes every check and touches nothing.
        let none = libc::iovec { iov_base: page.get().cast(), iov_len: 0 };
        if process_madvise(&[none]) < 0 && matches!(errno(), libc::EINVAL | libc::EPERM | libc::ENOSYS) {
            REFUSED.store(true, Ordering::Release);
        }
    }
    !REFUSED.load(Ordering::Acquire)
}

fn process_madvise(ranges: &[libc::iovec]) -> isize {
    let pidfd = PIDFD.load(Ordering::Acquire);
    // SAFETY: the kernel reads the list; what the advice does to the ranges is the contract of `drop_pages`.
    unsafe {
        libc::syscall(libc::SYS_process_madvise, pidfd, ranges.as_ptr(), ranges.len(), MADV_DONTNEED_LOCKED, 0) as isize
    }
}

/// Drops the memory behind every range: one call with one TLB flush where the kernel allows (0.3 to 0.7 µs a page in
/// batches of 512), else one madvise(2) a range (1.3 µs a page). False if some range could not be dropped.
///
/// # Safety
/// Each range is page-aligned, at most 1024 of them, and nobody needs its contents.
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
        // The count of bytes says how many ranges went; a short count stops inside the list (process_madvise(2)).
        let mut bytes = advised as usize;
        while done < ranges.len() && bytes >= ranges[done].iov_len {
            bytes -= ranges[done].iov_len;
            done += 1;
        }
    }
    ranges[done..].iter().all(|range| {
        // SAFETY: the caller's contract. The second advice is for kernels before 5.18.
        unsafe {
            libc::madvise(range.iov_base, range.iov_len, MADV_DONTNEED_LOCKED) == 0
                || libc::madvise(range.iov_base, range.iov_len, libc::MADV_DONTNEED) == 0
        }
    })
}

/// Keeps a region as the engine needs it: 4 KiB pages only, not inherited by fork(2) (a child would read zeros where
/// pages are absent).
///
/// # Safety
/// The range is the caller's own mapping.
pub unsafe fn prepare_region(at: *mut u8, len: usize) {
    // SAFETY: the caller's contract; a kernel that lacks an advice answers EINVAL, which loses nothing.
    unsafe {
        libc::madvise(at.cast(), len, libc::MADV_NOHUGEPAGE);
        libc::madvise(at.cast(), len, libc::MADV_DONTFORK);
    }
}

/// Keeps staging memory as the engine needs it: in huge pages, or in none also where the system gives them to all (the one that a buffer
/// touches would be sixteen buffers' memory), and not inherited by fork(2), after which the kernel would refuse to move pages.
///
/// # Safety
/// The range is the caller's own mapping.
pub unsafe fn prepare_staging(at: *mut u8, len: usize, huge: bool) {
    // SAFETY: the caller's contract; without huge pages moves take longer, and without the other advice they fail in a
    // process that has forked.
    unsafe {
        libc::madvise(at.cast(), len, if huge { libc::MADV_HUGEPAGE } else { libc::MADV_NOHUGEPAGE });
        libc::madvise(at.cast(), len, libc::MADV_DONTFORK);
    }
}
