//! A change of a mapped file's length by a system call.

use super::syscalls::{Work, length_of};
use crate::evict::invalidate::{self, Invalidated};
use crate::files::length;
use crate::region::in_flight::UnderWay;
use crate::sys::PAGE;
use std::fmt;

/// A change of a file's length that is under way ([`MappedFile::resizing`](super::MappedFile::resizing)). Dropped, it
/// leaves all as it was: for a call that failed.
pub struct Resizing<'a> {
    // In this order: the change is over when the pages are as they will be.
    invalidated: Option<Invalidated<'a>>,
    under_way: Option<UnderWay<'a>>,
    /// `None`: the file has no region any more.
    work: Option<Work>,
    /// The lesser of the two lengths.
    least: u64,
}

impl<'a> Resizing<'a> {
    pub(super) fn begin(work: Option<Work>, new_len: u64) -> Result<Resizing<'a>, i32> {
        let Some(Work { region, .. }) = work else {
            return Ok(Resizing { invalidated: None, under_way: None, work, least: new_len });
        };
        // First follows a length that others have set before, as far as that is possible now.
        let _ = length::follow(region);
        let under_way = region.in_flight().resizes().begin();
        let length = length_of(region)?;
        let known = region.store().size().max(length);
        let page_after = |end: u64| usize::try_from(end.div_ceil(PAGE as u64)).unwrap_or(usize::MAX);
        let least = new_len.min(length);
        // If the end moves up, the only page in memory at or behind the old end is the one that holds it.
        let end = if new_len < known { page_after(known) } else { page_after(length) };
        let pages = (least / PAGE as u64) as usize..end;
        let invalidated = Some(invalidate::invalidate(region, pages, page_after(new_len))?);
        Ok(Resizing { invalidated, under_way: Some(under_way), work, least })
    }

    /// Follows the new length, after the call has succeeded. The bytes that were cut off are gone; they are zeros if the
    /// file becomes longer again.
    ///
    /// # Safety
    /// The file has the length that was announced. Nobody has a reference to the bytes that were cut off: stores to them
    /// are lost.
    ///
    /// The caller has to ensure this:
    ///
    /// ```compile_fail,E0133
    /// # fn follow(resizing: fastmap::coherence::Resizing<'_>) {
    /// resizing.done();
    /// # }
    /// ```
    pub unsafe fn done(mut self) {
        let (Some(invalidated), Some(Work { region, .. })) = (self.invalidated.take(), &self.work) else { return };
        region.distrust((self.least / PAGE as u64) as usize);
        invalidated.cut();
        self.under_way = None;
        // Pages that cannot go now, since they are pinned, go when the length is next followed.
        let _ = length::follow(region);
    }
}

impl fmt::Debug for Resizing<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Resizing").field("least", &self.least).finish()
    }
}
