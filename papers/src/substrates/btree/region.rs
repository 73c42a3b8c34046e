//! What the store lies in: a file mapped at one place for good, which can become longer. Kernel mmap and FastMap.

use std::fs::File;
use std::io;

use fastmap::{Cache, MapMut};
use memmap2::{Advice, MmapMut, MmapOptions};

use crate::substrates::{Error, PAGE, Result, engine, sys};

/// A file that is mapped farther than it reaches, so that it can grow where it is.
///
/// # Safety
///
/// `base` points to `capacity` bytes, page-aligned and writable, that stay mapped as long as the value lives; what the file
/// covers of them can be loaded and stored, and nobody else does that.
pub unsafe trait Region: Send + Sync {
    /// The first byte.
    fn base(&self) -> *mut u8;

    /// Bytes mapped.
    fn capacity(&self) -> u64;

    /// The file.
    fn file(&self) -> &File;

    /// Puts so many bytes from the beginning on stable storage.
    ///
    /// # Errors
    ///
    /// What the system answers.
    fn flush(&self, bytes: u64) -> Result<()>;

    /// Has the file reach to `len` at least, with blocks allocated where the file system can: then no store meets a full
    /// disk, and what is new is in large extents.
    ///
    /// # Errors
    ///
    /// What the system answers.
    fn extend(&self, len: u64) -> Result<()> {
        let extended = match sys::reserve(self.file(), len) {
            Err(error) if error.kind() == io::ErrorKind::Unsupported => self.file().set_len(len),
            reserved => reserved,
        };
        extended.map_err(|source| failed("cannot extend it", source))
    }
}

fn failed(what: &'static str, source: io::Error) -> Error {
    Error::Io { thing: "store".to_owned(), what, source, remedy: "free some space, or name another place with --dir" }
}

/// Kernel mmap.
pub struct KernelRegion {
    map: MmapMut,
    base: *mut u8,
    file: File,
}

// SAFETY: the pointer is the map's, which may be used from any thread.
unsafe impl Send for KernelRegion {}
// SAFETY: likewise; who loads and stores what through it is the store's affair.
unsafe impl Sync for KernelRegion {}

impl KernelRegion {
    /// Maps `capacity` bytes, a multiple of a page, of a file that may be shorter; `random`: with `MADV_RANDOM`.
    ///
    /// # Errors
    ///
    /// What mmap(2) and madvise(2) answer.
    ///
    /// # Safety
    ///
    /// Nobody else changes the file meanwhile.
    pub unsafe fn map(file: File, capacity: u64, random: bool) -> Result<KernelRegion> {
        debug_assert!(capacity.is_multiple_of(PAGE as u64));
        // SAFETY: the caller's promise.
        let map = unsafe { MmapOptions::new().len(capacity as usize).map_mut(&file) };
        let mut map = map.map_err(|source| failed("mmap", source))?;
        if random {
            map.advise(Advice::Random).map_err(|source| failed("madvise", source))?;
        }
        Ok(KernelRegion { base: map.as_mut_ptr(), map, file })
    }
}

// SAFETY: a mapping of that length, at one place until it is dropped.
unsafe impl Region for KernelRegion {
    fn base(&self) -> *mut u8 {
        self.base
    }

    fn capacity(&self) -> u64 {
        self.map.len() as u64
    }

    fn file(&self) -> &File {
        &self.file
    }

    fn flush(&self, bytes: u64) -> Result<()> {
        self.map.flush_range(0, bytes as usize).map_err(|source| failed("msync", source))
    }
}

/// This project's engine.
pub struct FastmapRegion {
    map: MapMut,
    base: *mut u8,
    file: File,
    direct_io: bool,
}

// SAFETY: the pointer is the map's, which may be used from any thread.
unsafe impl Send for FastmapRegion {}
// SAFETY: likewise; who loads and stores what through it is the store's affair.
unsafe impl Sync for FastmapRegion {}

impl FastmapRegion {
    /// Maps `capacity` bytes, a multiple of a page, of a file that may be shorter, into a cache.
    ///
    /// # Errors
    ///
    /// What the engine answers.
    ///
    /// # Safety
    ///
    /// Nobody else changes the file meanwhile.
    pub unsafe fn map(file: File, capacity: u64, cache: &Cache) -> Result<FastmapRegion> {
        let (options, direct_io) = engine::options(&file, cache, capacity / PAGE as u64);
        // SAFETY: the caller's promise.
        let mut map = unsafe { options.map_mut(&file) }?;
        Ok(FastmapRegion { base: map.as_mut_ptr(), map, file, direct_io })
    }

    /// Whether the file is read past the page cache.
    pub fn direct_io(&self) -> bool {
        self.direct_io
    }
}

// SAFETY: a mapping of that length, at one place until it is dropped.
unsafe impl Region for FastmapRegion {
    fn base(&self) -> *mut u8 {
        self.base
    }

    fn capacity(&self) -> u64 {
        self.map.len() as u64
    }

    fn file(&self) -> &File {
        &self.file
    }

    fn flush(&self, bytes: u64) -> Result<()> {
        Ok(self.map.flush_range(0, bytes as usize)?)
    }
}
