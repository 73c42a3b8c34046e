//! An ordinary shared mapping (mmap(2)): of what the engine cannot cache, and of files in memory, which need no cache
//! (`direct.rs`).

use crate::direct::{self, Persist, Wanted};
use crate::error::{Error, Result};
use crate::spans::{self, Span};
use crate::sys::file::{Identity, Medium};
use crate::sys::{PAGE, fork};
use crate::tally::Tally;
use std::fs::File;
use std::io;
use std::ops::Range;

/// A kernel mapping of part of a file.
#[derive(Debug)]
pub struct KernelMapping {
    base: usize,
    mapped: usize,
    /// Of the map's first byte in the mapping: offsets need not be page multiples.
    skip: usize,
    direct: Option<Direct>,
}

/// What a direct mapping has beside.
#[derive(Debug)]
struct Direct {
    persist: Persist,
    span: Span,
    /// Bytes that its flushes wrote by cache line.
    flushed: Box<Tally>,
}

/// Which part of which file.
#[derive(Debug, Clone, Copy)]
pub struct Part<'a> {
    pub file: &'a File,
    pub identity: Identity,
    pub medium: Medium,
    pub offset: u64,
    /// Not zero.
    pub len: usize,
    pub writable: bool,
}

impl KernelMapping {
    /// Maps part of a file; straight, with `persist`, if its stores are to last in ways of their own.
    pub fn new(part: Part<'_>, persist: Option<Persist>) -> io::Result<Self> {
        let Part { file, identity, medium, offset, len, writable } = part;
        let unit = if let Medium::Memory { unit } = medium { unit } else { PAGE };
        let skip = (offset % unit as u64) as usize;
        let mapped = len.checked_add(skip).and_then(|len| len.checked_next_multiple_of(unit));
        let mapped = mapped.ok_or(io::ErrorKind::InvalidInput)?;
        let start = offset - skip as u64;
        let prot = libc::PROT_READ | if writable { libc::PROT_WRITE } else { 0 };
        let wanted = Wanted { addr: 0, len: mapped, prot, flags: libc::MAP_SHARED, offset: start as i64 };
        let Some(persist) = persist else {
            // SAFETY: a fresh mapping where the kernel likes.
            let base = unsafe { direct::map_plainly(file, wanted) }?;
            return Ok(KernelMapping { base, mapped, skip, direct: None });
        };
        // SAFETY: likewise.
        let (base, lasting) = unsafe { direct::map(file, medium, persist, wanted) }?;
        let span = Span { at: base..base + mapped, file: identity, offset: start, lasting };
        let is_tracked = lasting == direct::Lasting::Tracked && writable;
        let direct = Some(Direct { persist, span: span.clone(), flushed: Box::new(Tally::new()) });
        let mapping = KernelMapping { base, mapped, skip, direct };
        if is_tracked && !spans::add(&span) {
            return Err(io::Error::other(format!("{} tracked mappings in this process are the most", spans::MOST)));
        }
        Ok(mapping)
    }

    /// How its stores last, if it is a direct one.
    pub fn persist(&self) -> Option<Persist> {
        self.direct.as_ref().map(|direct| direct.persist)
    }

    /// Bytes that flushes wrote by cache line.
    pub fn flushed_bytes(&self) -> u64 {
        self.direct.as_ref().map_or(0, |direct| direct.flushed.sum())
    }

    /// The same count goes on in the mapping that takes this one's place.
    pub fn continue_count(&self, of: &KernelMapping) {
        if let Some(direct) = &self.direct {
            direct.flushed.add(of.flushed_bytes());
        }
    }

    /// The map's first byte.
    pub fn start(&self) -> *mut u8 {
        (self.base + self.skip) as *mut u8
    }

    /// Has part of the map on stable storage; `wait` for that, or start only.
    #[inline]
    pub fn flush(&self, offset: usize, len: usize, wait: bool) -> Result<()> {
        let failed = |operation, source| Err(Error::Io { path: "kernel mapping".into(), operation, source });
        if let Some(direct) = &self.direct {
            let start = self.base + self.skip + offset;
            return match direct::flush(&direct.span, start..start + len) {
                Ok(0) => Ok(()),
                Ok(bytes) => {
                    direct.flushed.add(bytes as u64);
                    Ok(())
                }
                Err(error) => failed("make it last (EIO is memory that went bad)", io::Error::from_raw_os_error(error)),
            };
        }
        let at = self.whole_pages(offset, len);
        let how = if wait { libc::MS_SYNC } else { libc::MS_ASYNC };
        // SAFETY: inside the mapping.
        match unsafe { libc::msync(at.start as *mut _, at.len(), how) } {
            0 => Ok(()),
            _ => failed("write it back (msync)", io::Error::last_os_error()),
        }
    }

    /// madvise(2) on part of the map. What a direct map does not want any more stays: it is the only copy.
    pub fn advise(&self, offset: usize, len: usize, advice: i32) -> io::Result<()> {
        if advice == libc::MADV_DONTNEED && self.direct.is_some() {
            return Ok(());
        }
        let at = self.whole_pages(offset, len);
        // SAFETY: inside the mapping; the advice given loses nothing on a shared file mapping.
        match unsafe { libc::madvise(at.start as *mut _, at.len(), advice) } {
            0 => Ok(()),
            _ => Err(io::Error::last_os_error()),
        }
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

    fn whole_pages(&self, offset: usize, len: usize) -> Range<usize> {
        let start = (self.skip + offset) / PAGE * PAGE;
        self.base + start..self.base + self.skip + offset + len
    }
}

impl Drop for KernelMapping {
    fn drop(&mut self) {
        let at = self.base..self.base + self.mapped;
        // A child has the table as it was at some moment of a change, perhaps.
        if self.direct.is_some() && !fork::is_child() && spans::meets(at.clone()) {
            direct::retire(&at);
        }
        // SAFETY: the mapping is this value's own.
        unsafe { libc::munmap(self.base as *mut _, self.mapped) };
    }
}
