//! The memory of the slots, and the list of robust futexes by which the kernel tells of the server's death.

use super::{Asking, Head, MAGIC, SLOTS, Slot};
pub(super) use crate::sys;
use crate::sys::{Mapping, Shared};
use std::fs::File;
use std::io;
use std::os::fd::FromRawFd;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::ptr;
use std::sync::Arc;
use std::sync::atomic::Ordering;
pub use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, fence};

/// A head, and the slots behind it.
#[derive(Debug)]
pub struct Memory(Mapping);

// SAFETY: atomics.
unsafe impl Shared for Head {}
// SAFETY: atomics.
unsafe impl Shared for Slot {}

impl Memory {
    pub fn head(&self) -> &Head {
        self.0.at(0)
    }

    pub fn slots(&self) -> &[Slot] {
        self.0.all(size_of::<Head>() as u64, SLOTS as u64)
    }
}

impl Asking {
    const BYTES: u64 = (size_of::<Head>() + SLOTS * size_of::<Slot>()) as u64;

    /// Slots for this process, and for its children made by fork(2).
    ///
    /// # Errors
    /// The system has no memory left, or this process no descriptors.
    pub fn anonymous() -> io::Result<Arc<Asking>> {
        // SAFETY: a new descriptor, or an error.
        match unsafe { libc::memfd_create(c"fastmap-asking".as_ptr(), libc::MFD_CLOEXEC) } {
            -1 => Err(io::Error::last_os_error()),
            // SAFETY: new, and nobody else's.
            fd => Self::begin(&unsafe { File::from_raw_fd(fd) }),
        }
    }

    /// Slots for processes that [`open`](Self::open) the file, which must not be there yet.
    ///
    /// # Errors
    /// The file cannot be made.
    pub fn create(path: &Path) -> io::Result<Arc<Asking>> {
        Self::begin(&File::options().read(true).write(true).create_new(true).mode(0o600).open(path)?)
    }

    fn begin(file: &File) -> io::Result<Arc<Asking>> {
        file.set_len(Self::BYTES)?;
        sys::allocate(file, 0..Self::BYTES)?;
        let asking = Asking { memory: Memory(Mapping::new(file, Self::BYTES)?) };
        asking.head().magic.store(MAGIC, Ordering::Release);
        Ok(Arc::new(asking))
    }

    /// The slots that another process has made by [`create`](Self::create).
    ///
    /// # Errors
    /// The file cannot be opened, or was not made by [`create`](Self::create).
    pub fn open(path: &Path) -> io::Result<Arc<Asking>> {
        let file = File::options().read(true).write(true).open(path)?;
        if file.metadata()?.len() == Self::BYTES {
            let asking = Asking { memory: Memory(Mapping::new(&file, Self::BYTES)?) };
            if asking.head().magic.load(Ordering::Acquire) == MAGIC {
                return Ok(Arc::new(asking));
            }
        }
        Err(io::ErrorKind::InvalidData.into())
    }
}

/// The kernel reads this when the server's thread ends: `struct robust_list_head` of linux/futex.h.
#[repr(C)]
struct ListHead {
    first: *const AtomicU64,
    offset: libc::c_long,
    pending: *const AtomicU64,
}

/// This thread's list of robust futexes, until dropped.
pub struct RobustList {
    /// Boxed: it stays where it is.
    list: Box<ListHead>,
    /// The C library's list, which was there before.
    before: (*const ListHead, usize),
}

impl RobustList {
    pub fn begin(head: &Head) -> Self {
        let offset = (std::mem::offset_of!(Head, server) - std::mem::offset_of!(Head, robust)) as libc::c_long;
        let list = Box::new(ListHead { first: &raw const head.robust, offset, pending: ptr::null() });
        // The list has one entry, which points back to the list's head. Only the kernel reads it, and only for this thread.
        head.robust.store(ptr::from_ref(&*list) as u64, Ordering::Relaxed);
        let mut before = (ptr::null(), 0);
        // SAFETY: the kernel writes two words.
        unsafe { libc::syscall(libc::SYS_get_robust_list, 0, &raw mut before.0, &raw mut before.1) };
        // SAFETY: the list stays where it is until `drop` has put back the one before, and the mapping outlives both.
        unsafe { libc::syscall(libc::SYS_set_robust_list, &raw const *list, size_of::<ListHead>()) };
        RobustList { list, before }
    }
}

impl Drop for RobustList {
    fn drop(&mut self) {
        // SAFETY: the list that the kernel had before is the C library's, which keeps it for as long as the thread lives.
        unsafe { libc::syscall(libc::SYS_set_robust_list, self.before.0, self.before.1) };
        debug_assert!(self.list.pending.is_null());
    }
}
