//! Page faults in user space: userfaultfd(2), ioctl_userfaultfd(2).
//!
//! The engine serves faults in one of two ways:
//!
//! * In SIGBUS mode, a miss reaches the faulting thread itself as a signal (`UFFD_FEATURE_SIGBUS`, Linux 4.14). `UFFD_USER_MODE_ONLY` (Linux 5.11)
//!   makes this possible without a privilege.
//! * Without both, faults are messages that service threads read, also faults inside system calls. This needs a privilege (`open_for_service`).
//!
//! Write-protection of anonymous memory needs Linux 5.7.

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
/// Write-protection works for memory of files, too (`UFFD_FEATURE_WP_HUGETLBFS_SHMEM`, Linux 5.19).
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

/// A page fault whose thread waits.
#[derive(Debug, Clone, Copy)]
pub struct Fault {
    /// The address that the thread touched, or the address of its page.
    pub address: usize,
    /// Whether it was a store.
    pub is_store: bool,
}

/// `_IOWR(0xAA, number, T)`: the number of a request that passes a structure both ways. All requests here do, but for `UFFDIO_WAKE`.
const fn request<T>(number: u64) -> u64 {
    3 << 30 | (size_of::<T>() as u64) << 16 | API << 8 | number
}

/// A userfaultfd whose features are agreed with the kernel.
#[derive(Debug)]
pub struct Userfaultfd(EngineFd<OwnedFd>);

impl AsRawFd for Userfaultfd {
    fn as_raw_fd(&self) -> RawFd {
        self.0.as_raw_fd()
    }
}

impl Userfaultfd {
    /// Opens a userfaultfd in SIGBUS mode. Errors: ENOSYS or EPERM if this kernel, or its seccomp filter, does not give any; EINVAL if the kernel
    /// lacks a feature.
    pub fn open() -> io::Result<Self> {
        Self::with_features(Self::open_raw(USER_MODE_ONLY)?, FEATURE_SIGBUS | FEATURE_WP)
    }

    /// Opens a userfaultfd whose faults are read ([`next_fault`](Self::next_fault)), also those taken inside the kernel.
    ///
    /// The process needs CAP_SYS_PTRACE, or `vm.unprivileged_userfaultfd`, or access to /dev/userfaultfd (Linux 6.1). Errors: EPERM or EACCES if it
    /// has none of these; ENOENT if it has neither of the first two and the device is not there; EINVAL if the kernel lacks a feature.
    pub fn open_for_service() -> io::Result<Self> {
        Self::with_features(Self::open_raw(0).or_else(|_| Self::open_by_device())?, FEATURE_WP | FEATURE_POISON)
    }

    /// Opens a userfaultfd for memory whose faults nobody serves: a touch raises SIGBUS, and a system call fails with EFAULT. For a process that may
    /// use `open_for_service`.
    pub fn open_for_nobody() -> io::Result<Self> {
        Self::with_features(Self::open_raw(0).or_else(|_| Self::open_by_device())?, FEATURE_SIGBUS)
    }

    /// Opens a userfaultfd for asynchronous write-protection: no store waits, and `pagemap.rs` tells which pages were stored to. Error: EINVAL if the
    /// kernel is older than Linux 6.7, or lacks the feature.
    pub fn open_for_tracking() -> io::Result<Self> {
        Self::with_features(Self::open_raw(USER_MODE_ONLY)?, FEATURE_WP_ASYNC | FEATURE_WP_FILES)
    }

    fn with_features(fd: EngineFd<OwnedFd>, features: u64) -> io::Result<Self> {
        Self::agree(&fd, features)?;
        Ok(Userfaultfd(fd))
    }

    /// Opens a userfaultfd by `USERFAULTFD_IOC_NEW` of /dev/userfaultfd. The device's permissions tell which users may do this.
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

    /// `UFFDIO_REGISTER` for memory to which pages are only moved: misses trap from now on.
    ///
    /// # Safety
    /// As for `register`.
    pub unsafe fn register_missing(&self, at: *mut u8, len: usize) -> io::Result<()> {
        // SAFETY: the caller's contract.
        unsafe { self.register_as(at, len, MODE_MISSING) }
    }

    /// `UFFDIO_REGISTER` for memory in which only stores are of interest. Nothing is protected yet.
    ///
    /// # Safety
    /// As for `register`, but the range may also be a mapping of a file in memory. It must not be a mapping of a file on DAX: there stores are lost,
    /// or faults never end (`direct/mod.rs`).
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

    /// `UFFDIO_COPY` of one page: makes `to` resident with the bytes at `from`, write-protected if `protected`. A page that is there already is left
    /// alone.
    ///
    /// The error is an error number, so that a fault handler can call this. ENOMEM: there is no memory, or the cgroup is at its limit.
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

    /// `UFFDIO_COPY` of neighbouring pages at once. Returns how many were copied, from the first on. 0.9 µs a page.
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
            // A copy that was cut short says how far it came, and asks to be called again.
            match (all, errno()) {
                (true, _) => done += len as usize,
                (false, libc::EAGAIN) => done += copy.copied.max(0) as usize,
                (false, _) => break,
            }
        }
        done / super::PAGE
    }

    /// `UFFDIO_MOVE` (Linux 6.8): moves the pages at `from` to `to`. Afterwards they are writable at `to`, and no longer at `from`. A huge page takes
    /// 1 µs, or 22 µs where other processors have to be told. Other pages take 0.9 µs each.
    ///
    /// On failure (an error number) some pages may have been moved. EINVAL: one of the two ranges is locked (mlock(2)) and the other is not.
    ///
    /// # Safety
    /// `to` is registered here and nothing is there. `from` is the caller's own anonymous memory, and nobody uses it. `len` is a multiple of the page
    /// size. Both ranges are mapped readable and writable.
    pub unsafe fn move_pages(&self, to: *mut u8, from: *mut u8, len: usize) -> Result<(), i32> {
        /// How often to try. Direct I/O into the pages holds references for a moment after it has ended (EBUSY).
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

    /// Reads a fault that no thread has read yet, if there is one. The faulting thread sleeps until its page is woken.
    pub fn next_fault(&self) -> Option<Fault> {
        const PAGE_FAULT: u8 = 0x12;
        const WRITE: u64 = 1;
        const PROTECTED: u64 = 2;
        loop {
            let mut message = Message::default();
            // This is a raw system call, since glibc's wrapper is a cancellation point.
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

    /// `UFFDIO_POISON` of one absent page (Linux 6.6): a touch raises SIGBUS, and a system call fails with EFAULT. No thread waits for the page. The
    /// poison ends when a page is copied there, or when it is dropped. EEXIST: a page is there, or poison.
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

    /// `UFFDIO_WRITEPROTECT`: protects the range if `on`, else lifts the protection. 0.7 µs for a single page, 0.1 µs a page in ranges.
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
