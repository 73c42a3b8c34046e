//! User-space page faults: userfaultfd(2), ioctl_userfaultfd(2).
//!
//! Opened with `UFFD_USER_MODE_ONLY` (Linux 5.11), so no privilege is needed, and with `UFFD_FEATURE_SIGBUS` (4.14), so
//! that a miss reaches the faulting thread itself as a signal. Write-protection of anonymous memory is Linux 5.7.

use super::errno;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};

const USER_MODE_ONLY: i32 = 1;
const API: u64 = 0xAA;
/// Write-protect faults are delivered (`UFFD_FEATURE_PAGEFAULT_FLAG_WP`).
const FEATURE_WP: u64 = 1 << 0;
/// Faults are delivered as SIGBUS to the faulting thread (`UFFD_FEATURE_SIGBUS`).
const FEATURE_SIGBUS: u64 = 1 << 7;

const MODE_MISSING: u64 = 1;
const MODE_WP: u64 = 2;
const COPY_DONTWAKE: u64 = 1;
const COPY_WP: u64 = 2;
const MOVE_DONTWAKE: u64 = 1;
const PROTECT_WP: u64 = 1;
const PROTECT_DONTWAKE: u64 = 2;

#[repr(C)]
struct Api {
    api: u64,
    features: u64,
    ioctls: u64,
}

#[repr(C)]
struct Range {
    start: u64,
    len: u64,
}

#[repr(C)]
struct Register {
    range: Range,
    mode: u64,
    ioctls: u64,
}

#[repr(C)]
struct Copy {
    dst: u64,
    src: u64,
    len: u64,
    mode: u64,
    copied: i64,
}

#[repr(C)]
struct Move {
    dst: u64,
    src: u64,
    len: u64,
    mode: u64,
    moved: i64,
}

#[repr(C)]
struct WriteProtect {
    range: Range,
    mode: u64,
}

/// `_IOWR(0xAA, number, T)`: every request used here passes a structure both ways.
const fn request<T>(number: u64) -> u64 {
    3 << 30 | (size_of::<T>() as u64) << 16 | API << 8 | number
}

/// One userfaultfd, with its features agreed.
#[derive(Debug)]
pub struct Userfaultfd(OwnedFd);

impl AsRawFd for Userfaultfd {
    fn as_raw_fd(&self) -> RawFd {
        self.0.as_raw_fd()
    }
}

impl Userfaultfd {
    /// Opens one in SIGBUS mode. ENOSYS or EPERM: this kernel, or its seccomp filter, has none to give. EINVAL: it
    /// lacks a feature.
    pub fn open() -> io::Result<Self> {
        let fd = Self::open_raw()?;
        Self::agree(&fd, FEATURE_SIGBUS | FEATURE_WP)?;
        Ok(Userfaultfd(fd))
    }

    fn open_raw() -> io::Result<OwnedFd> {
        let flags = libc::O_CLOEXEC | libc::O_NONBLOCK | USER_MODE_ONLY;
        // SAFETY: takes flags, returns a descriptor that is ours.
        let fd = unsafe { libc::syscall(libc::SYS_userfaultfd, flags) } as i32;
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: just opened.
        Ok(unsafe { OwnedFd::from_raw_fd(fd) })
    }

    fn agree(fd: &OwnedFd, features: u64) -> io::Result<()> {
        let mut api = Api { api: API, features, ioctls: 0 };
        // SAFETY: UFFDIO_API reads and writes this structure.
        match unsafe { libc::ioctl(fd.as_raw_fd(), request::<Api>(0x3F), &mut api) } {
            0 => Ok(()),
            _ => Err(io::Error::last_os_error()),
        }
    }

    /// `UFFDIO_REGISTER`: misses and write-protect faults in the range trap from now on.
    ///
    /// # Safety
    /// The range is the caller's own anonymous mapping.
    pub unsafe fn register(&self, at: *mut u8, len: usize) -> io::Result<()> {
        // SAFETY: the caller's contract.
        unsafe { self.register_as(at, len, MODE_MISSING | MODE_WP) }
    }

    /// Likewise, for memory that pages are only moved to.
    ///
    /// # Safety
    /// As for `register`.
    pub unsafe fn register_missing(&self, at: *mut u8, len: usize) -> io::Result<()> {
        // SAFETY: the caller's contract.
        unsafe { self.register_as(at, len, MODE_MISSING) }
    }

    unsafe fn register_as(&self, at: *mut u8, len: usize, mode: u64) -> io::Result<()> {
        let range = Range { start: at as u64, len: len as u64 };
        let mut register = Register { range, mode, ioctls: 0 };
        // SAFETY: UFFDIO_REGISTER reads and writes this structure; the range is the caller's.
        match unsafe { libc::ioctl(self.0.as_raw_fd(), request::<Register>(0x00), &mut register) } {
            0 => Ok(()),
            _ => Err(io::Error::last_os_error()),
        }
    }

    /// `UFFDIO_COPY` of one page: makes `to` resident with the bytes at `from`, write-protected if asked. A page that
    /// is there already is left alone. ENOMEM: no memory, or the cgroup's limit. Errors are error numbers, so that a
    /// fault handler can call this.
    ///
    /// # Safety
    /// `to` is an absent page registered here, `from` a readable page.
    pub unsafe fn copy_page(&self, to: *mut u8, from: *const u8, protected: bool) -> Result<(), i32> {
        let mode = COPY_DONTWAKE | if protected { COPY_WP } else { 0 };
        let mut copy = Copy { dst: to as u64, src: from as u64, len: super::PAGE as u64, mode, copied: 0 };
        loop {
            // SAFETY: UFFDIO_COPY reads and writes this structure; the pages are the caller's.
            if unsafe { libc::ioctl(self.0.as_raw_fd(), request::<Copy>(0x03), &mut copy) } == 0 {
                return Ok(());
            }
            match errno() {
                libc::EEXIST => return Ok(()),
                libc::EAGAIN => {} // the address space was changing; ask again
                error => return Err(error),
            }
        }
    }

    /// `UFFDIO_COPY` of neighbouring pages at once; the count of those that are resident now. 0.9 µs a page.
    ///
    /// # Safety
    /// As for `copy_page`, for each of them.
    pub unsafe fn copy_pages(&self, to: *mut u8, from: *const u8, pages: usize, protected: bool) -> usize {
        let mode = COPY_DONTWAKE | if protected { COPY_WP } else { 0 };
        let mut done = 0;
        while done < pages * super::PAGE {
            let (dst, src, len) =
                (to as u64 + done as u64, from as u64 + done as u64, (pages * super::PAGE - done) as u64);
            let mut copy = Copy { dst, src, len, mode, copied: 0 };
            // SAFETY: UFFDIO_COPY reads and writes this structure; the pages are the caller's.
            let all = unsafe { libc::ioctl(self.0.as_raw_fd(), request::<Copy>(0x03), &mut copy) } == 0;
            // Cut short, it says how far it came and asks to be called again.
            match (all, errno()) {
                (true, _) => done += len as usize,
                (false, libc::EAGAIN) => done += copy.copied.max(0) as usize,
                (false, _) => break,
            }
        }
        done / super::PAGE
    }

    /// `UFFDIO_MOVE` of memory (Linux 6.8): its pages are at `to` afterwards, writable, and no longer at `from`. 1 µs for a
    /// huge page, 22 µs where other processors have to be told; 0.9 µs a page otherwise. On failure (an error number) some
    /// pages may have gone over. EINVAL: one of the two is locked (mlock(2)) and the other is not.
    ///
    /// # Safety
    /// `to` is registered here and nothing is there; `from` is the caller's own anonymous memory, as long as a multiple of
    /// pages, both mapped readable and writable, and nobody uses it.
    pub unsafe fn move_pages(&self, to: *mut u8, from: *mut u8, len: usize) -> Result<(), i32> {
        /// Direct I/O into the pages holds references for a moment after it has ended (EBUSY).
        const PATIENCE: usize = 10_000;
        let mut done = 0;
        for _ in 0..PATIENCE {
            let (dst, src) = (to as u64 + done as u64, from as u64 + done as u64);
            let mut order = Move { dst, src, len: (len - done) as u64, mode: MOVE_DONTWAKE, moved: 0 };
            // SAFETY: UFFDIO_MOVE reads and writes this structure; the pages are the caller's.
            if unsafe { libc::ioctl(self.0.as_raw_fd(), request::<Move>(0x05), &mut order) } == 0 {
                return Ok(());
            }
            match errno() {
                libc::EAGAIN | libc::EBUSY => {
                    done += order.moved.max(0) as usize;
                    std::thread::yield_now();
                }
                error => return Err(error),
            }
        }
        Err(libc::EBUSY)
    }

    /// `UFFDIO_WRITEPROTECT`: protects the range, or lifts the protection. 0.7 µs for a page, 0.1 µs a page in ranges.
    ///
    /// # Safety
    /// The range is registered here.
    pub unsafe fn write_protect(&self, at: *mut u8, len: usize, on: bool) -> Result<(), i32> {
        let mode = if on { PROTECT_WP } else { PROTECT_DONTWAKE };
        let mut protect = WriteProtect { range: Range { start: at as u64, len: len as u64 }, mode };
        loop {
            // SAFETY: UFFDIO_WRITEPROTECT reads this structure; the range is the caller's.
            if unsafe { libc::ioctl(self.0.as_raw_fd(), request::<WriteProtect>(0x06), &mut protect) } == 0 {
                return Ok(());
            }
            match errno() {
                libc::EAGAIN | libc::EINTR => {}
                error => return Err(error),
            }
        }
    }
}
