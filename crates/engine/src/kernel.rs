//! The fall-back: an ordinary shared mapping (mmap(2)), for what the engine cannot cache.

use crate::error::{Error, Result};
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

    /// The map's first byte.
    pub fn start(&self) -> *mut u8 {
        self.base.cast::<u8>().wrapping_add(self.skip)
    }

    /// msync(2) of part of the map; `wait` for stable storage, or start only.
    pub fn flush(&self, offset: usize, len: usize, wait: bool) -> Result<()> {
        let (at, len) = self.whole_pages(offset, len);
        let how = if wait { libc::MS_SYNC } else { libc::MS_ASYNC };
        // SAFETY: inside the mapping.
        if unsafe { libc::msync(at, len, how) } == 0 {
            return Ok(());
        }
        let source = io::Error::last_os_error();
        Err(Error::Io { path: "kernel mapping".into(), operation: "write it back (msync)", source })
    }

    /// madvise(2) on part of the map.
    pub fn advise(&self, offset: usize, len: usize, advice: i32) -> io::Result<()> {
        let (at, len) = self.whole_pages(offset, len);
        // SAFETY: inside the mapping; the advice given loses nothing on a shared file mapping.
        if unsafe { libc::madvise(at, len, advice) } == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
    }

    /// Brings part of the map into memory, for stores with `writing` (madvise(2), `MADV_POPULATE_READ` and its kin, Linux
    /// 5.14): what touching it would raise SIGBUS for is an error, EFAULT. Older kernels leave it to the touch.
    pub fn populate(&self, offset: usize, len: usize, writing: bool) -> Result<()> {
        let advice = if writing { libc::MADV_POPULATE_WRITE } else { libc::MADV_POPULATE_READ };
        match self.advise(offset, len, advice) {
            Err(source) if source.raw_os_error() != Some(libc::EINVAL) => Err(Error::Io {
                path: "kernel mapping".into(),
                operation: "bring part of it into memory (madvise: EFAULT is past the file's end, or a failed read)",
                source,
            }),
            _ => Ok(()),
        }
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

// SAFETY: a range of memory that any thread may hand to the kernel.
unsafe impl Send for KernelMapping {}
// SAFETY: likewise.
unsafe impl Sync for KernelMapping {}
