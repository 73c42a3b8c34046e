//! The fall-back: an ordinary shared mapping (mmap(2)), for what the engine cannot cache.

use crate::sys::PAGE;
use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::ptr;

/// A kernel mapping of part of a file.
#[derive(Debug)]
pub struct KernelMapping {
    base: *mut libc::c_void,
    mapped: usize,
    /// Of the map's first byte in the mapping: offsets need not be page multiples.
    skip: usize,
}

impl KernelMapping {
    /// Maps `len` bytes, not zero, from `offset`.
    pub fn new(file: &File, offset: u64, len: usize, writable: bool) -> io::Result<Self> {
        let skip = (offset % PAGE as u64) as usize;
        let protection = libc::PROT_READ | if writable { libc::PROT_WRITE } else { 0 };
        let start = (offset - skip as u64) as i64;
        let mapped = len.checked_add(skip).ok_or(io::ErrorKind::InvalidInput)?;
        // SAFETY: a fresh mapping where the kernel likes.
        let base =
            unsafe { libc::mmap(ptr::null_mut(), mapped, protection, libc::MAP_SHARED, file.as_raw_fd(), start) };
        if base == libc::MAP_FAILED {
            Err(io::Error::last_os_error())
        } else {
            Ok(KernelMapping { base, mapped, skip })
        }
    }

    /// Makes the map `len` bytes long, elsewhere if there is no room behind it (mremap(2)).
    pub fn grow(&mut self, len: usize) -> io::Result<()> {
        let mapped = len.checked_add(self.skip).ok_or(io::ErrorKind::InvalidInput)?;
        // SAFETY: the mapping is this value's own, and the caller's `&mut` is to it alone.
        let base = unsafe { libc::mremap(self.base, self.mapped, mapped, libc::MREMAP_MAYMOVE) };
        if base == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        (self.base, self.mapped) = (base, mapped);
        Ok(())
    }

    /// The map's first byte.
    pub fn start(&self) -> *mut u8 {
        self.base.cast::<u8>().wrapping_add(self.skip)
    }

    /// msync(2) of part of the map; `wait` for stable storage, or start only.
    pub fn sync(&self, offset: usize, len: usize, wait: bool) -> io::Result<()> {
        let (at, len) = self.whole_pages(offset, len);
        let how = if wait { libc::MS_SYNC } else { libc::MS_ASYNC };
        // SAFETY: inside the mapping.
        if unsafe { libc::msync(at, len, how) } == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
    }

    /// madvise(2) on part of the map.
    pub fn advise(&self, offset: usize, len: usize, advice: i32) -> io::Result<()> {
        let (at, len) = self.whole_pages(offset, len);
        // SAFETY: inside the mapping; the advice given loses nothing on a shared file mapping.
        if unsafe { libc::madvise(at, len, advice) } == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
    }

    fn whole_pages(&self, offset: usize, len: usize) -> (*mut libc::c_void, usize) {
        let start = (self.skip + offset) / PAGE * PAGE;
        (self.base.wrapping_byte_add(start), self.skip + offset + len - start)
    }
}

impl Drop for KernelMapping {
    fn drop(&mut self) {
        // SAFETY: the mapping is this value's own.
        unsafe { libc::munmap(self.base, self.mapped) };
    }
}
