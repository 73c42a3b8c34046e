//! Memory that other processes can find and map: memfd_create(2).

use super::memory;
use std::ffi::CStr;
use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::ptr;

/// Seals that fix the length, so that no process that maps the memory gets SIGBUS.
const FIXED: libc::c_int = libc::F_SEAL_SHRINK | libc::F_SEAL_GROW;

/// Makes a memfd of `len` bytes of zeros. Its length is fixed. Other processes see it as `/proc/PID/fd/N -> /memfd:NAME (deleted)`. Pages take
/// memory once they are touched. exec(2) closes the descriptor.
pub fn create(name: &CStr, len: usize) -> io::Result<OwnedFd> {
    // SAFETY: `name` is a C string. The descriptor was made just now, and `OwnedFd` alone owns it.
    let memory = unsafe {
        match libc::memfd_create(name.as_ptr(), libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING) {
            -1 => return Err(io::Error::last_os_error()),
            descriptor => OwnedFd::from_raw_fd(descriptor),
        }
    };
    let memory = File::from(memory);
    memory.set_len(len as u64)?;
    // SAFETY: the descriptor is this function's.
    match unsafe { libc::fcntl(memory.as_raw_fd(), libc::F_ADD_SEALS, FIXED) } {
        0 => Ok(memory.into()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// A mapping of a memfd, or of the first part of one. It is unmapped when dropped. Other processes share the memory, so only atomics belong
/// there.
#[derive(Debug)]
pub struct Shared {
    at: *mut u8,
    len: usize,
}

// SAFETY: the value owns its mapping, and any thread may unmap it.
unsafe impl Send for Shared {}
// SAFETY: this process and others touch the mapped memory through atomics only.
unsafe impl Sync for Shared {}

impl Shared {
    /// Maps the first `len` bytes of a memfd. `InvalidData` if the file is shorter, or is not sealed against shrinking.
    pub fn map(memory: &File, len: usize) -> io::Result<Shared> {
        // SAFETY: the descriptor is open.
        let seals = unsafe { libc::fcntl(memory.as_raw_fd(), libc::F_GET_SEALS) };
        if seals < 0 || seals & libc::F_SEAL_SHRINK == 0 || memory.metadata()?.len() < len as u64 {
            return Err(io::ErrorKind::InvalidData.into());
        }
        // SAFETY: a new mapping at an address of the kernel's choice. The file cannot shrink below it.
        let at = unsafe {
            let protection = libc::PROT_READ | libc::PROT_WRITE;
            libc::mmap(ptr::null_mut(), len, protection, libc::MAP_SHARED, memory.as_raw_fd(), 0)
        };
        if at == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        Ok(Shared { at: at.cast(), len })
    }

    /// Keeps the mapping out of children made by fork(2). A child that inherited it would change the shared memory as well.
    pub fn keep_from_children(&self) -> io::Result<()> {
        // SAFETY: the mapping is this value's own.
        match unsafe { libc::madvise(self.at.cast(), self.len, libc::MADV_DONTFORK) } {
            0 => Ok(()),
            _ => Err(io::Error::last_os_error()),
        }
    }

    /// The address of the first byte, which is page-aligned.
    pub fn start(&self) -> *const u8 {
        self.at
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        // SAFETY: the mapping is this value's own.
        unsafe { memory::release(self.at, self.len) };
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use std::os::unix::fs::FileExt;

    #[test]
    fn two_mappings_show_the_same_bytes_and_what_may_shrink_is_refused() {
        let memory = File::from(create(c"fastmap-test", 8192).unwrap());
        let (one, other) = (Shared::map(&memory, 8192).unwrap(), Shared::map(&memory, 4096).unwrap());
        memory.write_all_at(b"seen", 100).unwrap();
        // SAFETY: the bytes are inside both mappings, and nobody changes them now.
        unsafe {
            assert_eq!(std::slice::from_raw_parts(one.start().add(100), 4), b"seen");
            assert_eq!(std::slice::from_raw_parts(other.start().add(100), 4), b"seen");
        }
        assert!(memory.set_len(4096).is_err() && memory.set_len(16384).is_err());
        assert!(Shared::map(&memory, 16384).is_err(), "longer than it is");
        let unsealed = tempfile::tempfile().unwrap();
        unsealed.set_len(8192).unwrap();
        assert!(Shared::map(&unsealed, 8192).is_err());
    }
}
