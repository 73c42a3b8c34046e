//! A descriptor that is opened and closed by bare system calls. The standard library calls the C library's close(2). Where the engine's
//! library is loaded, too, that call is the engine's, which would take a file of the program's for closed.

use rustix::fd::{AsFd, AsRawFd, BorrowedFd, IntoRawFd, RawFd};
use rustix::fs::{CWD, Mode, OFlags, openat};
use rustix::io::{Errno, fcntl_dupfd_cloexec};
use rustix::process::{Resource, getrlimit};

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

    /// The same file by a number that this program's next open(2) does not get, if there is one: 1000 or more, or close to the limit.
    pub(super) fn aside(self) -> Descriptor {
        let limit = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
        let number = fcntl_dupfd_cloexec(&self, limit.saturating_sub(16).min(1000) as RawFd);
        number.map_or(self, |number| Descriptor(number.into_raw_fd()))
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
