//! A map that the cache serves: its part of its file's region.

use crate::error::Result;
use crate::evict::batch;
use crate::files::{closing, length, table};
use crate::map::flush::FlushKind;
use crate::map::mapping::pages;
use crate::map::open;
use crate::modes::Advice;
use crate::pin::fetch;
use crate::pool::streams::{Expect, MOST_WINDOW};
use crate::readahead::prefetch;
use crate::region::region::Region;
use crate::sys::PAGE;
use crate::sys::file::Identity;
use crate::writeback::flush;
use std::ops::Range;
use std::sync::Arc;

/// A map in the cache. Offsets and ranges that its methods take are inside the map, in bytes.
pub struct Cached {
    pub region: Arc<Region>,
    pub identity: Identity,
    /// Offset of the map in the file, bytes.
    pub offset: usize,
    /// Whether disk space is allocated for what it covers.
    pub reserve: bool,
}

impl Cached {
    fn pages(&self, offset: usize, len: usize) -> Range<usize> {
        pages(self.offset + offset, len)
    }

    fn pages_of(&self, ranges: &[Range<usize>]) -> Vec<Range<usize>> {
        ranges.iter().map(|range| self.pages(range.start, range.len())).collect()
    }

    /// The map's first byte.
    pub fn start(&self) -> *mut u8 {
        self.region.address_of(0).wrapping_add(self.offset)
    }

    pub fn flush(&self, offset: usize, len: usize) -> Result<()> {
        length::follow(&self.region)?;
        flush::flush(&self.region, self.pages(offset, len), true)
    }

    pub fn flush_async(&self, len: usize) -> FlushKind {
        match length::follow(&self.region).map(|()| flush::flush_later(&self.region, self.pages(0, len))) {
            Ok(Some(request)) => FlushKind::Writers(request),
            Ok(None) => FlushKind::Done(self.flush(0, len)),
            Err(error) => FlushKind::Done(Err(error)),
        }
    }

    pub fn save(&self, len: usize) -> Result<()> {
        length::follow(&self.region)?;
        flush::flush(&self.region, self.pages(0, len), false)
    }

    pub fn extend(&self, part: Range<usize>) -> Result<()> {
        let part = open::part_of_file(self.region.store().path(), self.offset as u64, part)?;
        length::extend(&self.region, part, self.reserve)
    }

    /// Makes the map longer, and returns its first byte, which may have moved.
    pub fn grow(&mut self, len: usize, new_len: usize) -> Result<*mut u8> {
        let added = open::part_of_file(self.region.store().path(), self.offset as u64, len..new_len)?;
        let end = added.end as usize;
        let before = self.pages(0, len);
        if end > self.region.span() || self.region.address().has_foreign(&(0..end)) {
            self.region = table::replace(self.identity, &self.region, end, Some((added, self.reserve)))?;
        } else {
            length::extend(&self.region, added, self.reserve)?;
        }
        table::note_grown(self.identity, &self.region, end);
        // A new region knows nothing of this map: there is nothing to remove then.
        self.region.extents().remove(&before);
        self.region.extents().add(self.pages(0, new_len));
        Ok(self.start())
    }

    pub fn advise(&self, advice: Advice, offset: usize, len: usize) -> Result<()> {
        let (region, pages) = (&self.region, self.pages(offset, len));
        length::follow(region)?;
        match advice {
            Advice::Normal => region.hints().expect(pages, Expect::Normal),
            Advice::Random => region.hints().expect(pages, Expect::Random),
            Advice::Sequential => region.hints().expect(pages, Expect::Forward),
            Advice::Backward => region.hints().expect(pages, Expect::Backward),
            Advice::WillNeed => {
                // Past the file's end there is nothing to bring in.
                let end = (region.store().size() as usize).div_ceil(PAGE).min(pages.end);
                let end = end.min(pages.start + region.pool().capacity());
                fetch::fetch(region, std::slice::from_ref(&(pages.start..end.max(pages.start))))?;
            }
            Advice::DontNeed => {
                if region.is_writable() {
                    flush::flush(region, pages.clone(), false)?;
                }
                let _length = region.lock_length();
                batch::evict_range(region, pages);
            }
        }
        Ok(())
    }

    pub fn set_readahead(&self, bytes: usize) {
        self.region.hints().set_readahead((bytes / PAGE).min(MOST_WINDOW));
    }

    pub fn prefetch(&self, ranges: &[Range<usize>]) -> usize {
        prefetch::offer(&self.region, &self.pages_of(ranges))
    }

    pub fn prefetch_wait(&self, ranges: &[Range<usize>]) -> Result<()> {
        length::follow(&self.region)?;
        fetch::fetch(&self.region, &self.pages_of(ranges))
    }

    /// The whole pages in a range, if the file is scratch.
    pub fn scratch_pages(&self, offset: usize, len: usize) -> Option<(&Arc<Region>, Range<usize>)> {
        let (start, end) = ((self.offset + offset).div_ceil(PAGE), (self.offset + offset + len) / PAGE);
        self.region.scratch().is_some().then_some((&self.region, start..end.max(start)))
    }

    /// Ends the map, which has `len` bytes.
    pub fn detach(self, len: usize) {
        if self.region.is_ours() {
            self.region.extents().remove(&self.pages(0, len));
        }
        closing::detach(self.identity, self.region, false);
    }
}
