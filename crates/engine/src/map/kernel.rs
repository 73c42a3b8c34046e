//! Ordinary shared mappings (mmap(2)): of maps without a cache, of files that the engine cannot cache, and of files in
//! memory, which need no cache (*direct* mappings, in the room `direct`).

use crate::counters::per_cpu::PerCpuCounter;
use crate::direct::mapping::Wanted;
use crate::direct::table::Span;
use crate::direct::{mapping, table};
use crate::error::{Error, Result};
use crate::files::{facts, length};
use crate::live;
use crate::map::agree::Registered;
use crate::map::flush::FlushKind;
use crate::map::map::Engine;
use crate::map::open;
use crate::map::options::MapOptions;
use crate::modes::{Advice, Persist};
use crate::sys::engine_fd::EngineFd;
use crate::sys::file::{Identity, Medium};
use crate::sys::{PAGE, file, fork};
use std::fs::File;
use std::io;
use std::ops::Range;
use std::sync::Arc;

/// A map that the kernel serves. Offsets and ranges that its methods take are inside the map, in bytes.
pub struct Kernel {
    /// A flush under way may use it longer than the map does.
    pub mapping: Arc<KernelMapping>,
    /// Of a mutable map.
    pub source: Option<Box<Source>>,
    /// `None` for a direct mapping, and where the fallback was taken.
    pub _registered: Option<Registered>,
}

/// Means of growth of a mutable map that is not in the cache.
pub struct Source {
    /// To set its length, and to map it anew.
    pub file: EngineFd<File>,
    pub options: MapOptions,
}

impl Kernel {
    pub fn engine(&self) -> Engine {
        if self.mapping.persist().is_some() { Engine::Direct } else { Engine::Kernel }
    }

    pub fn flush_async(&self, len: usize) -> FlushKind {
        let is_direct = self.mapping.persist().is_some();
        match self.mapping.flush(0, len, is_direct) {
            Ok(()) if !is_direct => FlushKind::Kernel(self.mapping.clone(), 0, len),
            done => FlushKind::Done(done),
        }
    }

    pub fn extend(&self, part: Range<usize>) -> Result<()> {
        let Some(source) = &self.source else { return Ok(()) };
        let Source { file, options } = &**source;
        let part = open::part_of_file(&file::path_of(file), options.offset, part)?;
        length::extend_file(file, part, options.reserve)
    }

    /// Makes the map longer, and returns its first byte, which may have moved.
    pub fn grow(&mut self, len: usize, new_len: usize) -> Result<*mut u8> {
        self.extend(len..new_len)?;
        if let Some(source) = &self.source {
            let part = source.options.part(&source.file, &facts::facts_of(&source.file)?, new_len, true);
            let larger = KernelMapping::new(part, self.mapping.persist()).map_err(|error| Error::Io {
                path: file::path_of(&source.file),
                operation: "map it (mmap)",
                source: error,
            })?;
            larger.continue_count(&self.mapping);
            self.mapping = Arc::new(larger);
        }
        Ok(self.mapping.start())
    }

    pub fn advise(&self, advice: Advice, offset: usize, len: usize) -> Result<()> {
        let number = match advice {
            Advice::Normal => libc::MADV_NORMAL,
            Advice::Random => libc::MADV_RANDOM,
            Advice::Sequential => libc::MADV_SEQUENTIAL,
            // The kernel has no such advice, and reads ahead only forward.
            Advice::Backward => libc::MADV_NORMAL,
            Advice::WillNeed => libc::MADV_WILLNEED,
            Advice::DontNeed => libc::MADV_DONTNEED,
        };
        self.mapping.advise(offset, len, number).map_err(kernel_refuses)
    }

    /// Gives advice, by its number in madvise(2), on ranges.
    pub fn advise_all(&self, ranges: &[Range<usize>], advice: i32) -> Result<()> {
        let mut ranges = ranges.iter().filter(|range| !range.is_empty());
        ranges.try_for_each(|range| self.mapping.advise(range.start, range.len(), advice)).map_err(kernel_refuses)
    }
}

fn kernel_refuses(source: io::Error) -> Error {
    Error::Io { path: "kernel mapping".into(), operation: "advise on it (madvise)", source }
}

/// A kernel mapping of part of a file.
#[derive(Debug)]
pub struct KernelMapping {
    base: usize,
    mapped: usize,
    /// Offset of the map's first byte in the mapping, bytes: offsets in the file need not be page multiples.
    skip: usize,
    direct: Option<Direct>,
}

/// State that only a direct mapping has.
#[derive(Debug)]
struct Direct {
    persist: Persist,
    span: Span,
    /// Bytes that its flushes wrote by cache line.
    flushed: Box<PerCpuCounter>,
}

/// A part of a file.
#[derive(Debug, Clone, Copy)]
pub struct FilePart<'a> {
    pub file: &'a File,
    pub identity: Identity,
    pub medium: Medium,
    pub offset: u64,
    /// Not zero.
    pub len: usize,
    pub writable: bool,
}

impl KernelMapping {
    /// Maps part of a file. With `persist` it is a direct mapping, whose stores are made to last in that way.
    pub fn new(part: FilePart<'_>, persist: Option<Persist>) -> io::Result<Self> {
        let FilePart { file, identity, medium, offset, len, writable } = part;
        let unit = if let Medium::Memory { unit } = medium { unit } else { PAGE };
        let skip = (offset % unit as u64) as usize;
        let mapped = len.checked_add(skip).and_then(|len| len.checked_next_multiple_of(unit));
        let mapped = mapped.ok_or(io::ErrorKind::InvalidInput)?;
        let start = offset - skip as u64;
        let prot = libc::PROT_READ | if writable { libc::PROT_WRITE } else { 0 };
        let wanted = Wanted { addr: 0, len: mapped, prot, flags: libc::MAP_SHARED, offset: start as i64 };
        let Some(persist) = persist else {
            // SAFETY: a fresh mapping where the kernel likes, which replaces nothing.
            let base = unsafe { mapping::map_plainly(file, wanted) }?;
            return Ok(KernelMapping { base, mapped, skip, direct: None });
        };
        // SAFETY: at no fixed place, so it replaces nothing.
        let (base, durability) = unsafe { mapping::map(file, medium, persist, wanted) }?;
        if durability.is_by_line() {
            live::offer();
        }
        let span = Span { at: base..base + mapped, file: identity, offset: start, durability };
        let is_tracked = durability == mapping::Durability::Tracked && writable;
        let direct = Some(Direct { persist, span: span.clone(), flushed: Box::new(PerCpuCounter::new()) });
        let mapping = KernelMapping { base, mapped, skip, direct };
        if is_tracked && !table::add(&span) {
            return Err(io::Error::other(format!("{} tracked mappings in this process are the most", table::MOST)));
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

    /// Adds the count of the mapping whose place this one takes.
    pub fn continue_count(&self, of: &KernelMapping) {
        if let Some(direct) = &self.direct {
            direct.flushed.add(of.flushed_bytes());
        }
    }

    /// The map's first byte.
    pub fn start(&self) -> *mut u8 {
        (self.base + self.skip) as *mut u8
    }

    /// Brings part of the map to stable storage; without `wait` it only starts that.
    #[inline]
    pub fn flush(&self, offset: usize, len: usize, wait: bool) -> Result<()> {
        let failed = |operation, source| Err(Error::Io { path: "kernel mapping".into(), operation, source });
        if let Some(direct) = &self.direct {
            let start = self.base + self.skip + offset;
            return match mapping::flush(&direct.span, start..start + len) {
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

    /// madvise(2) on part of the map. A direct map ignores `MADV_DONTNEED`: its memory is the only copy.
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

    /// Brings part of the map into memory, with `writing` for stores (madvise(2), `MADV_POPULATE_READ` and
    /// `MADV_POPULATE_WRITE`, Linux 5.14). Where a touch would raise SIGBUS, it fails with EFAULT. Older kernels leave
    /// all of it to the touch.
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
        // In a child the table may be in the middle of a change.
        if self.direct.is_some() && !fork::is_child() && table::meets(at.clone()) {
            mapping::retire(&at);
        }
        // SAFETY: the mapping is this value's own.
        unsafe { libc::munmap(self.base as *mut _, self.mapped) };
    }
}
