//! Keeps pages out of every thread's reach while a system call writes to their file.

use super::syscalls::{Work, length_of, pages_of};
use crate::evict::invalidate::{self, Fill, Invalidated};
use crate::page::word::State;
use crate::sys::PAGE;
use std::cell::Cell;
use std::fmt;
use std::ops::Range;

/// Pages of a file that are out of every thread's reach while a system call writes there
/// ([`MappedFile::writing`](super::MappedFile::writing)). When it is dropped, for a call that was not made, they are let
/// go as they were.
pub struct Writing<'a> {
    // In this order: the work ends when the pages are as they will be.
    invalidated: Option<Invalidated<'a>>,
    /// `None`: the file has no region any more.
    work: Option<Work>,
    range: Range<u64>,
    /// The first and the last page, and whether they were in memory.
    edges: [usize; 2],
    resident: [bool; 2],
}

impl<'a> Writing<'a> {
    pub(super) fn begin(work: Option<Work>, range: Range<u64>) -> Result<Writing<'a>, i32> {
        let Some(Work { region, .. }) = work else {
            return Ok(Writing { invalidated: None, work, range, edges: [0; 2], resident: [false; 2] });
        };
        let length = length_of(region)?;
        let within = length % PAGE as u64;
        if range.end > length && range.start > length && within != 0 {
            // The page that holds the old end leaves memory: bytes that it has behind that end must not get into the file.
            let page = (length / PAGE as u64) as usize;
            drop(invalidate::invalidate(region, page..page + 1, usize::MAX)?);
        }
        let pages = pages_of(region, &range);
        let is_resident = |page: usize| {
            page < region.span() / PAGE && matches!(region.word(page).look().state(), State::Clean | State::Dirty)
        };
        let edges = [pages.start, pages.end.saturating_sub(1)];
        let resident = edges.map(|page| !pages.is_empty() && is_resident(page));
        let invalidated = Some(invalidate::invalidate(region, pages, usize::MAX)?);
        Ok(Writing { invalidated, work, range, edges, resident })
    }

    /// Lets the pages go after a call that wrote the first `count` bytes of `data` at `offset`. Pages that it wrote whole are
    /// put into memory from `data`, without a read, as far as there are idle free frames.
    ///
    /// # Safety
    /// Each part of `data` is memory that can be read, or memory whose use the kernel reports as an error. It holds the bytes
    /// that the file has there now. Nobody has a reference to these bytes of the map.
    pub unsafe fn written(mut self, offset: u64, data: &[libc::iovec], count: usize) {
        let (Some(invalidated), Some(Work { region, .. })) = (self.invalidated.take(), &self.work) else { return };
        let end = offset + count as u64;
        let pages = pages_of(region, &(offset..end));
        region.forget_file(pages.clone());
        region.store().expect_cached();
        if end > region.store().size() {
            region.store().refresh_size();
        }
        invalidated.patch(offset..end);
        // Pages that no map covers stay absent: others may change them later.
        let mapped = [self.edges[0], self.edges[1]].map(|page| region.extents().around(page));
        let parts = Parts { data, at: Cell::new((0, 0)) };
        invalidated.put_back(|page| {
            let start = (page * PAGE) as u64;
            if !mapped.iter().any(|part| part.contains(&page)) {
                return Fill::Absent;
            }
            if start >= offset && start + PAGE as u64 <= end {
                return parts.page_at((start - offset) as usize).map_or(Fill::Read, Fill::From);
            }
            let was_resident = self.edges.iter().zip(self.resident).any(|(edge, there)| *edge == page && there);
            if was_resident { Fill::Read } else { Fill::Absent }
        });
    }

    /// Lets the pages go after a call whose bytes are not known, or that failed half-way. Pages are read anew when they are
    /// touched; pinned pages get the file's bytes in the range.
    ///
    /// # Safety
    /// Nobody has a reference to bytes that the call may have changed, or that were stored to a pinned page meanwhile.
    pub unsafe fn done(mut self) {
        if let (Some(invalidated), Some(Work { region, .. })) = (self.invalidated.take(), &self.work) {
            region.forget_file(pages_of(region, &self.range));
            region.store().expect_cached();
            invalidated.patch(self.range.clone());
        }
    }
}

impl Drop for Writing<'_> {
    fn drop(&mut self) {
        if let Some(Work { region, .. }) = &self.work {
            region.forget_file(pages_of(region, &self.range));
        }
    }
}

impl fmt::Debug for Writing<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Writing").field("range", &self.range).finish()
    }
}

/// The parts of a write's data, walked in ascending order.
struct Parts<'a> {
    data: &'a [libc::iovec],
    /// The part that was used last, and the offset in the data at which it begins.
    at: Cell<(usize, usize)>,
}

impl Parts<'_> {
    /// The page of data from an offset on, if it lies in one part.
    fn page_at(&self, place: usize) -> Option<*const u8> {
        let (mut part, mut start) = self.at.get();
        if place < start {
            (part, start) = (0, 0);
        }
        while part < self.data.len() && start + self.data[part].iov_len <= place {
            start += self.data[part].iov_len;
            part += 1;
        }
        self.at.set((part, start));
        let iovec = self.data.get(part)?;
        let whole = place + PAGE <= start + iovec.iov_len;
        whole.then(|| iovec.iov_base.cast::<u8>().cast_const().wrapping_add(place - start))
    }
}
