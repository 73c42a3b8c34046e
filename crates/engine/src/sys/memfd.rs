//! Memory that other processes can find and map: memfd_create(2).

use super::memory;
use std::ffi::CStr;
use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::ptr;

/// Its length is fixed, so that no process that maps it gets SIGBUS.
const FIXED: libc::c_int = libc::F_SEAL_SHRINK | libc::F_SEAL_GROW;

/// Makes `len` bytes of zeros of a fixed length, which other processes see as `/proc/PID/fd/N -> /memfd:NAME
/// (deleted)`. They cost memory where they are touched. Closed by exec(2).
pub fn create(name: &CStr, len: usize) -> io::Result<OwnedFd> {
    // SAFETY: a C string; the descriptor is this value's own from here on.
    let memory = unsafe {
        match libc::memfd_create(name.as_ptr(), libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING) {
            -1 => return Err(io::Error::last_os_error()),
            descriptor => OwnedFd::from_raw_fd(descriptor),
        }
    };
    let memory = File::from(memory);
    memory.set_len(len as u64)?;
    // SAFETY: a descriptor of our own.
    match unsafe { libc::fcntl(memory.as_raw_fd(), libc::F_ADD_SEALS, FIXED) } {
        0 => Ok(memory.into()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// A memfd, or a part of one, in memory; unmapped when dropped. Shared with other processes: only atomics belong there.
#[derive(Debug)]
pub struct Shared {
    at: *mut u8,
    len: usize,
}

// SAFETY: it owns its mapping, which any thread may unmap.
unsafe impl Send for Shared {}
// SAFETY: what it maps is touched through atomics only, by this process and others.
unsafe impl Sync for Shared {}

impl Shared {
    /// Maps `len` bytes of a memfd that has as many and keeps them; anything else is refused.
    pub fn map(memory: &File, len: usize) -> io::Result<Shared> {
        // SAFETY: a descriptor that is open.
        let seals = unsafe { libc::fcntl(memory.as_raw_fd(), libc::F_GET_SEALS) };
        if seals < 0 || seals & libc::F_SEAL_SHRINK == 0 || memory.metadata()?.len() < len as u64 {
            return Err(io::ErrorKind::InvalidData.into());
        }
        // SAFETY: a fresh mapping where the kernel likes, of bytes that do not go away.
        let at = unsafe {
            let protection = libc::PROT_READ | libc::PROT_WRITE;
            libc::mmap(ptr::null_mut(), len, protection, libc::MAP_SHARED, memory.as_raw_fd(), 0)
        };
        if at == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        Ok(Shared { at: at.cast(), len })
    }

    /// Keeps it out of children made by fork(2), which would go on changing it.
    pub fn keep_from_children(&self) -> io::Result<()> {
        // SAFETY: our own mapping.
        match unsafe { libc::madvise(self.at.cast(), self.len, libc::MADV_DONTFORK) } {
            0 => Ok(()),
            _ => Err(io::Error::last_os_error()),
        }
    }

    /// Its first byte; page-aligned.
    pub fn start(&self) -> *const u8 {
        self.at
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        // SAFETY: our own mapping.
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
        // SAFETY: inside both mappings, which nobody changes now.
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
