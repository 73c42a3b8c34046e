//! User-space page faults: userfaultfd(2), ioctl_userfaultfd(2).
//!
//! Opened with `UFFD_USER_MODE_ONLY` (Linux 5.11), so no privilege is needed, and with `UFFD_FEATURE_SIGBUS` (4.14), so
//! that a miss reaches the faulting thread itself as a signal. Write-protection of anonymous memory is Linux 5.7. Or
//! opened without both, so that faults, those of system calls too, are messages to be read: a privilege (see
//! `open_for_service`).

use super::engine_fd::EngineFd;
use super::errno;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};

const USER_MODE_ONLY: i32 = 1;
const API: u64 = 0xAA;
/// Write-protect faults are delivered (`UFFD_FEATURE_PAGEFAULT_FLAG_WP`).
const FEATURE_WP: u64 = 1 << 0;
/// Faults are delivered as SIGBUS to the faulting thread (`UFFD_FEATURE_SIGBUS`).
const FEATURE_SIGBUS: u64 = 1 << 7;
/// Write-protection of memory of files, too (`UFFD_FEATURE_WP_HUGETLBFS_SHMEM`, Linux 5.19).
const FEATURE_WP_FILES: u64 = 1 << 12;
/// The kernel lifts the protection itself at the first store, and tells nobody (`UFFD_FEATURE_WP_ASYNC`, Linux 6.7).
const FEATURE_WP_ASYNC: u64 = 1 << 15;
/// `UFFDIO_POISON` (`UFFD_FEATURE_POISON`, Linux 6.6).
const FEATURE_POISON: u64 = 1 << 14;

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

#[repr(C)]
struct Poison {
    range: Range,
    mode: u64,
    poisoned: i64,
}

/// `struct uffd_msg` of a page fault.
#[repr(C)]
#[derive(Default)]
struct Message {
    event: u8,
    reserved: [u8; 7],
    flags: u64,
    address: u64,
    thread: u64,
}

/// A fault of a thread that waits.
#[derive(Debug, Clone, Copy)]
pub struct Fault {
    /// The address it touched, or its page's.
    pub address: usize,
    /// A store.
    pub is_store: bool,
}

/// `_IOWR(0xAA, number, T)`: every request used here passes a structure both ways.
const fn request<T>(number: u64) -> u64 {
    3 << 30 | (size_of::<T>() as u64) << 16 | API << 8 | number
}

/// One userfaultfd, with its features agreed.
#[derive(Debug)]
pub struct Userfaultfd(EngineFd<OwnedFd>);

impl AsRawFd for Userfaultfd {
    fn as_raw_fd(&self) -> RawFd {
        self.0.as_raw_fd()
    }
}

impl Userfaultfd {
    /// Opens one in SIGBUS mode. ENOSYS or EPERM: this kernel, or its seccomp filter, has none to give. EINVAL: it
    /// lacks a feature.
    pub fn open() -> io::Result<Self> {
        Self::with_features(Self::open_raw(USER_MODE_ONLY)?, FEATURE_SIGBUS | FEATURE_WP)
    }

    /// Opens one whose faults are read ([`next_fault`](Self::next_fault)), those taken inside the kernel too. EPERM,
    /// EACCES: this process may not: it needs CAP_SYS_PTRACE, or `vm.unprivileged_userfaultfd`, or access to
    /// /dev/userfaultfd (Linux 6.1). EINVAL: the kernel lacks a feature.
    pub fn open_for_service() -> io::Result<Self> {
        Self::with_features(Self::open_raw(0).or_else(|_| Self::open_by_device())?, FEATURE_WP | FEATURE_POISON)
    }

    /// Opens one for memory whose faults nobody serves: they are SIGBUS, or EFAULT. For a process that may have
    /// `open_for_service`.
    pub fn open_for_nobody() -> io::Result<Self> {
        Self::with_features(Self::open_raw(0).or_else(|_| Self::open_by_device())?, FEATURE_SIGBUS)
    }

    /// Opens one for asynchronous write-protection: no store waits, and which pages were stored to is asked of
    /// `pagemap.rs`. EINVAL: the kernel is older than Linux 6.7, or lacks it.
    pub fn open_for_tracking() -> io::Result<Self> {
        Self::with_features(Self::open_raw(USER_MODE_ONLY)?, FEATURE_WP_ASYNC | FEATURE_WP_FILES)
    }

    fn with_features(fd: EngineFd<OwnedFd>, features: u64) -> io::Result<Self> {
        Self::agree(&fd, features)?;
        Ok(Userfaultfd(fd))
    }

    /// `USERFAULTFD_IOC_NEW` of /dev/userfaultfd: its permissions say which users may.
    fn open_by_device() -> io::Result<EngineFd<OwnedFd>> {
        const NEW: libc::c_ulong = API << 8;
        let device = std::fs::OpenOptions::new().read(true).write(true).open("/dev/userfaultfd")?;
        // SAFETY: takes flags, returns a descriptor that is ours.
        match unsafe { libc::ioctl(device.as_raw_fd(), NEW, libc::O_CLOEXEC | libc::O_NONBLOCK) } {
            -1 => Err(io::Error::last_os_error()),
            // SAFETY: just opened.
            fd => Ok(EngineFd::new(unsafe { OwnedFd::from_raw_fd(fd) })),
        }
    }

    fn open_raw(more_flags: i32) -> io::Result<EngineFd<OwnedFd>> {
        let flags = libc::O_CLOEXEC | libc::O_NONBLOCK | more_flags;
        // SAFETY: takes flags, returns a descriptor that is ours.
        let fd = unsafe { libc::syscall(libc::SYS_userfaultfd, flags) } as i32;
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: just opened.
        Ok(EngineFd::new(unsafe { OwnedFd::from_raw_fd(fd) }))
    }

    fn agree(fd: &EngineFd<OwnedFd>, features: u64) -> io::Result<()> {
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

    /// `UFFDIO_REGISTER` for memory that pages are only moved to: misses trap from now on.
    ///
    /// # Safety
    /// As for `register`.
    pub unsafe fn register_missing(&self, at: *mut u8, len: usize) -> io::Result<()> {
        // SAFETY: the caller's contract.
        unsafe { self.register_as(at, len, MODE_MISSING) }
    }

    /// `UFFDIO_REGISTER` for memory of which only stores are of interest. Nothing is protected yet.
    ///
    /// # Safety
    /// As for `register`; a mapping of a file in memory will do. Not of one on DAX: there stores are lost, or never end
    /// (ARCHITECTURE.md, "Direct mappings").
    pub unsafe fn register_stores(&self, at: *mut u8, len: usize) -> io::Result<()> {
        // SAFETY: the caller's contract.
        unsafe { self.register_as(at, len, MODE_WP) }
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

    /// `UFFDIO_MOVE` of memory (Linux 6.8): its pages are at `to` afterwards, writable, and no longer at `from`. 1 µs
    /// for a huge page, 22 µs where other processors have to be told; 0.9 µs a page otherwise. On failure (an error
    /// number) some pages may have gone over. EINVAL: one of the two is locked (mlock(2)) and the other is not.
    ///
    /// # Safety
    /// `to` is registered here and nothing is there; `from` is the caller's own anonymous memory, as long as a multiple
    /// of pages, both mapped readable and writable, and nobody uses it.
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

    /// Reads a fault that no thread has read yet, if there is one. Its thread sleeps until its page is woken.
    pub fn next_fault(&self) -> Option<Fault> {
        const PAGE_FAULT: u8 = 0x12;
        const WRITE: u64 = 1;
        const PROTECTED: u64 = 2;
        loop {
            let mut message = Message::default();
            // Not through glibc's wrapper: that is a cancellation point.
            // SAFETY: the kernel writes at most one message.
            let got =
                unsafe { libc::syscall(libc::SYS_read, self.as_raw_fd(), &raw mut message, size_of::<Message>()) };
            if got == size_of::<Message>() as i64 && message.event == PAGE_FAULT {
                let is_store = message.flags & (WRITE | PROTECTED) != 0;
                return Some(Fault { address: message.address as usize, is_store });
            }
            if got >= 0 || errno() != libc::EINTR {
                return None;
            }
        }
    }

    /// `UFFDIO_WAKE`: threads that wait for a page try again.
    pub fn wake(&self, page: usize) {
        const WAKE: u64 = 2 << 30 | (size_of::<Range>() as u64) << 16 | API << 8 | 0x02;
        let mut range = Range { start: page as u64, len: super::PAGE as u64 };
        // SAFETY: reads the structure; nothing happens to the memory.
        unsafe { libc::ioctl(self.as_raw_fd(), WAKE, &mut range) };
    }

    /// `UFFDIO_POISON` of one absent page (Linux 6.6): a touch raises SIGBUS, a system call fails with EFAULT, and
    /// nobody waits for it. Copying a page there ends it, and so does dropping it. EEXIST: a page is there, or poison.
    ///
    /// # Safety
    /// The page is the caller's own memory.
    pub unsafe fn poison(&self, at: *mut u8) -> Result<(), i32> {
        let range = Range { start: at as u64, len: super::PAGE as u64 };
        let mut poison = Poison { range, mode: 0, poisoned: 0 };
        loop {
            // SAFETY: UFFDIO_POISON reads and writes this structure; the page is the caller's.
            if unsafe { libc::ioctl(self.as_raw_fd(), request::<Poison>(0x08), &mut poison) } == 0 {
                return Ok(());
            }
            match errno() {
                libc::EAGAIN => {}
                error => return Err(error),
            }
        }
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
