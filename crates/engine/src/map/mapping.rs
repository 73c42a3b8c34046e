//! The inside of both kinds of map: a range of memory, and the backing that serves it.

use crate::error::{Error, Result};
use crate::map::cached::Cached;
use crate::map::flush::{Flush, FlushKind};
use crate::map::kernel::{Kernel, Source};
use crate::map::map::Engine;
use crate::modes::Advice;
use crate::region::region::Region;
use crate::store;
use crate::sys::PAGE;
use std::ops::Range;
use std::sync::Arc;

/// A mapped part of a file. Its methods check their ranges, and leave the rest to the backing.
pub struct Mapping {
    pub start: *mut u8,
    pub len: usize,
    pub backing: Backing,
}

/// The way a map is served.
pub enum Backing {
    /// The map has no byte. A mutable one grows by its source.
    Empty(Option<Box<Source>>),
    Cached(Cached),
    Kernel(Kernel),
}

// SAFETY: `start` is a range of memory that may be read from any thread; a mutable map hands out `&mut` through `&mut`
// only.
unsafe impl Send for Mapping {}
// SAFETY: `&Mapping` allows loads only, and flushes, advice and pins, which synchronise among themselves.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Checks that a range is inside the map, and that the map is this process's.
    #[inline]
    pub fn check(&self, offset: usize, len: usize) -> Result<()> {
        if offset.checked_add(len).is_none_or(|end| end > self.len) {
            return Err(Error::RangeOutside { offset, len, map_len: self.len });
        }
        match &self.backing {
            Backing::Cached(cached) if !cached.region.is_ours() => Err(Error::in_a_child(cached.region.store().path())),
            _ => Ok(()),
        }
    }

    fn check_all(&self, ranges: &[Range<usize>]) -> Result<()> {
        self.check(0, 0)?;
        ranges.iter().try_for_each(|range| match range.end.checked_sub(range.start) {
            Some(len) => self.check(range.start, len),
            None => Err(Error::RangeOutside { offset: range.start, len: 0, map_len: self.len }),
        })
    }

    pub fn engine(&self) -> Engine {
        match &self.backing {
            Backing::Empty(_) | Backing::Cached(_) => Engine::Cached,
            Backing::Kernel(kernel) => kernel.engine(),
        }
    }

    /// Writes the dirty pages of a range to the file, and waits until they are on stable storage.
    pub fn flush(&self, offset: usize, len: usize) -> Result<()> {
        self.check(offset, len)?;
        match &self.backing {
            Backing::Empty(_) => Ok(()),
            Backing::Cached(cached) => cached.flush(offset, len),
            Backing::Kernel(kernel) => kernel.mapping.flush(offset, len, true),
        }
    }

    pub fn flush_async(&self) -> Flush {
        Flush(match (self.check(0, self.len), &self.backing) {
            (Err(error), _) => FlushKind::Done(Err(error)),
            (Ok(()), Backing::Empty(_)) => FlushKind::Done(Ok(())),
            (Ok(()), Backing::Cached(cached)) => cached.flush_async(self.len),
            (Ok(()), Backing::Kernel(kernel)) => kernel.flush_async(self.len),
        })
    }

    /// Writes dirty pages to the file, not necessarily to stable storage.
    pub fn save(&self) -> Result<()> {
        self.check(0, self.len)?;
        match &self.backing {
            Backing::Cached(cached) => cached.save(self.len),
            // The kernel writes back what its page cache holds.
            Backing::Empty(_) | Backing::Kernel(_) => Ok(()),
        }
    }

    /// Bytes that flushes wrote by cache line.
    pub fn flushed_bytes(&self) -> u64 {
        if let Backing::Kernel(kernel) = &self.backing { kernel.mapping.flushed_bytes() } else { 0 }
    }

    /// Makes the file reach to the end of a part of the map, and allocates disk space for the part if the map wants
    /// that.
    pub fn extend(&self, part: Range<usize>) -> Result<()> {
        match &self.backing {
            Backing::Empty(_) => Ok(()),
            Backing::Cached(cached) => cached.extend(part),
            Backing::Kernel(kernel) => kernel.extend(part),
        }
    }

    /// Makes the map longer. If it fails, nothing has changed but, perhaps, the file's length.
    pub fn grow(&mut self, new_len: usize) -> Result<()> {
        self.check(0, self.len)?;
        if new_len < self.len {
            return Err(Error::Shrinking { len: self.len, new_len });
        }
        match &mut self.backing {
            Backing::Empty(Some(source)) if new_len > 0 => {
                let mapping = source.options.place(&source.file, new_len, true, &store::open)?;
                mapping.extend(self.len..new_len)?;
                *self = mapping;
            }
            Backing::Empty(_) => {}
            Backing::Cached(cached) => self.start = cached.grow(self.len, new_len)?,
            Backing::Kernel(kernel) => self.start = kernel.grow(self.len, new_len)?,
        }
        self.len = new_len;
        Ok(())
    }

    pub fn advise(&self, advice: Advice, offset: usize, len: usize) -> Result<()> {
        self.check(offset, len)?;
        match &self.backing {
            Backing::Empty(_) => Ok(()),
            Backing::Cached(cached) => cached.advise(advice, offset, len),
            Backing::Kernel(kernel) => kernel.advise(advice, offset, len),
        }
    }

    pub fn set_readahead(&self, bytes: usize) -> Result<()> {
        self.check(0, 0)?;
        match &self.backing {
            Backing::Cached(cached) => cached.set_readahead(bytes),
            Backing::Empty(_) | Backing::Kernel(_) => {}
        }
        Ok(())
    }

    /// Asks for ranges to be brought in, and returns at once the number of ranges, from the first on, that were taken.
    pub fn prefetch(&self, ranges: &[Range<usize>]) -> Result<usize> {
        self.check_all(ranges)?;
        match &self.backing {
            Backing::Empty(_) => Ok(ranges.len()),
            Backing::Cached(cached) => Ok(cached.prefetch(ranges)),
            Backing::Kernel(kernel) => kernel.advise_all(ranges, libc::MADV_WILLNEED).map(|()| ranges.len()),
        }
    }

    pub fn prefetch_wait(&self, ranges: &[Range<usize>]) -> Result<()> {
        self.check_all(ranges)?;
        match &self.backing {
            Backing::Empty(_) => Ok(()),
            Backing::Cached(cached) => cached.prefetch_wait(ranges),
            Backing::Kernel(kernel) => kernel.advise_all(ranges, libc::MADV_POPULATE_READ),
        }
    }

    /// The whole pages in a range of a scratch map that is this process's.
    pub fn scratch_pages(&self, offset: usize, len: usize) -> Result<Option<(&Arc<Region>, Range<usize>)>> {
        self.check(offset, len)?;
        Ok(if let Backing::Cached(cached) = &self.backing { cached.scratch_pages(offset, len) } else { None })
    }
}

/// The pages that a range of bytes touches.
#[inline]
pub fn pages(offset: usize, len: usize) -> Range<usize> {
    if len == 0 { 0..0 } else { offset / PAGE..(offset + len).div_ceil(PAGE) }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        if let Backing::Cached(cached) = std::mem::replace(&mut self.backing, Backing::Empty(None)) {
            cached.detach(self.len);
        }
    }
}
