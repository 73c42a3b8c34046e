//! A descriptor that is opened and closed by bare system calls. The standard library calls the C library's close(2). Where the engine's
//! library is loaded, too, that call is the engine's, which would take a file of the program's for closed.

use rustix::fd::{AsFd, AsRawFd, BorrowedFd, IntoRawFd, RawFd};
use rustix::fs::{CWD, Mode, OFlags, RawDir, openat};
use rustix::io::Errno;
use std::mem::MaybeUninit;

/// An open file.
#[derive(Debug)]
pub struct Descriptor(RawFd);

impl Descriptor {
    /// Opens a file to read it, or a folder. `None` where that cannot be done.
    pub fn open(path: &str) -> Option<Descriptor> {
        Descriptor::open_with(path, OFlags::empty()).ok()
    }

    /// The same, with more flags, or the error.
    pub(crate) fn open_with(path: &str, flags: OFlags) -> Result<Descriptor, Errno> {
        let opened = openat(CWD, path, OFlags::RDONLY | OFlags::CLOEXEC | flags, Mode::empty());
        Ok(Descriptor(opened?.into_raw_fd()))
    }
}

impl AsFd for Descriptor {
    fn as_fd(&self) -> BorrowedFd<'_> {
        // SAFETY: open as long as this lives.
        unsafe { BorrowedFd::borrow_raw(self.0) }
    }
}

impl AsRawFd for Descriptor {
    fn as_raw_fd(&self) -> RawFd {
        self.0
    }
}

impl Drop for Descriptor {
    fn drop(&mut self) {
        // SAFETY: this one's own, and not used again.
        unsafe { rustix::io::close(self.0) };
    }
}

/// Closes all descriptors in a thread that has a table of its own, a copy of the program's. `false` where that cannot be done: the
/// thread must end then.
///
/// They are closed one by one. Where the engine's library is loaded, too, close_range(2) and syscall(2) are its own, and it would take
/// all of the program's files for closed.
pub fn close_descriptors() -> bool {
    let Some(folder) = Descriptor::open("/proc/thread-self/fd") else { return false };
    let mut buffer = [MaybeUninit::uninit(); 4096];
    let mut all = RawDir::new(&folder, &mut buffer);
    while let Some(one) = all.next() {
        let Ok(one) = one else { return false };
        let number = one.file_name().to_str().ok().and_then(|name| name.parse().ok());
        if let Some(number) = number.filter(|number| *number != folder.as_raw_fd()) {
            // SAFETY: of this thread's own table, of which nothing is used here.
            unsafe { rustix::io::close(number) };
        }
    }
    true
}
