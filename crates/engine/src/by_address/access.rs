//! Copies by address, which return errors where a load or store would raise a signal; and the parts of a range that a program names.
//!
//! A range may lie across cached maps and other memory; the kernel does the part of the latter.

use super::lookup::{check, holds};
use super::own::look;
use super::table::{Share, pages_at};
use crate::error::{Error, Result};
use crate::fault::child;
use crate::map::copies::{copy_in, copy_out};
use crate::region::region::Region;
use crate::sys::{PAGE, fork, guarded_copy};
use std::io;
use std::ops::Range;
use std::sync::Arc;

/// Part of a range that is one file's, with one protection, or of no cached map.
pub(super) struct Part {
    pub(super) at: Range<usize>,
    /// The map that it is of, and its protection.
    pub(super) cached: Option<(Arc<Share>, i32)>,
}

impl Part {
    pub(super) fn region(&self) -> Option<&Arc<Region>> {
        self.cached.as_ref().map(|(share, _)| &share.region)
    }

    pub(super) fn pages(&self, region: &Region) -> Range<usize> {
        pages_at(region, &self.at)
    }

    /// Fails where the program's own access, for one of the uses in `prot`, would fail.
    pub(super) fn allow(&self, prot: i32) -> Result<()> {
        let is_allowed = self.cached.as_ref().is_none_or(|(_, allowed)| allowed & prot != 0);
        if is_allowed { Ok(()) } else { Err(unusable(&self.at, libc::EFAULT)) }
    }

    /// madvise(2) on all pages of a part that is not cached.
    pub(super) fn advise(&self, advice: i32) -> Result<()> {
        let start = self.at.start / PAGE * PAGE;
        // SAFETY: advice that destroys nothing.
        check(unsafe { libc::madvise(start as *mut _, self.at.end - start, advice) })
            .map_err(|error| unusable(&self.at, error))
    }
}

/// The parts of a range of bytes, by file. Their shares keep the regions should another thread unmap them meanwhile.
pub(super) fn parts_of(range: &Range<usize>) -> Vec<Part> {
    if range.is_empty() {
        return vec![];
    }
    if !holds(range.start, range.len()) {
        return vec![Part { at: range.clone(), cached: None }];
    }
    look(|table| {
        let mut parts = Vec::new();
        for (at, covered) in table.parts(range) {
            if !covered {
                parts.push(Part { at, cached: None });
                continue;
            }
            for (at, prot) in table.protections(&at) {
                let share = table.meeting(&at).next().map(|(piece, _)| piece.share.clone());
                parts.push(Part { cached: share.map(|share| (share, prot)), at });
            }
        }
        parts
    })
}

/// The addresses of `len` bytes.
pub(super) fn bytes_at(addr: usize, len: usize) -> Result<Range<usize>> {
    addr.checked_add(len).map(|end| addr..end).ok_or_else(|| unusable(&(addr..usize::MAX), libc::EFAULT))
}

#[cold]
pub(super) fn unusable(range: &Range<usize>, error: i32) -> Error {
    failed(range, "use all of them: part is not mapped, or past its file's end, or not mapped for that", error)
}

/// An error of an operation on a range.
#[cold]
pub(super) fn failed(range: &Range<usize>, operation: &'static str, error: i32) -> Error {
    let path = format!("{} bytes at {:#x}", range.len(), range.start).into();
    Error::Io { path, operation, source: io::Error::from_raw_os_error(error) }
}

/// Makes a call, and makes it again if a file in its range has become the kernel's before the call was done.
pub(super) fn as_it_is<R>(mut call: impl FnMut() -> Result<R>) -> Result<R> {
    loop {
        match call() {
            Err(error) if error.is_of_changed_hands() => {}
            done => return done,
        }
    }
}

/// Whether a whole range lies in cached maps.
///
/// ```
/// assert!(!fastmap::by_address::is_cached(&0 as *const i32 as usize, 4));
/// ```
pub fn is_cached(addr: usize, len: usize) -> bool {
    let Ok(range) = bytes_at(addr, len.max(1)) else { return false };
    holds(addr, range.len()) && parts_of(&range).iter().all(|part| part.cached.is_some())
}

/// Copies bytes out of mapped memory. Unlike a load it raises no signal.
///
/// # Safety
/// `buffer` has room for `len` bytes.
///
/// # Errors
/// As for [`Map::read_at`](crate::Map::read_at); [`Error::Io`] with EFAULT for what may not be read. The buffer's bytes
/// are unspecified then.
pub unsafe fn read(addr: usize, buffer: *mut u8, len: usize) -> Result<()> {
    // SAFETY: the caller's contract.
    as_it_is(|| unsafe { read_parts(addr, buffer, len) })
}

unsafe fn read_parts(addr: usize, buffer: *mut u8, len: usize) -> Result<()> {
    for part in parts_of(&bytes_at(addr, len)?) {
        part.allow(libc::PROT_READ | libc::PROT_WRITE)?;
        // SAFETY: the caller's contract.
        let to = unsafe { std::slice::from_raw_parts_mut(buffer.add(part.at.start - addr), part.at.len()) };
        match part.region() {
            Some(region) => copy_out(region, part.at.start - region.address().start() as usize, to)?,
            None if fork::is_child()
                && let Some(done) = child::read(part.at.start, to) =>
            {
                done.map_err(|error| unusable(&part.at, error))?;
            }
            None => guarded_copy::read(part.at.start, to).map_err(|error| unusable(&part.at, error))?,
        }
    }
    Ok(())
}

/// Copies bytes into mapped memory. Unlike a store it raises no signal.
///
/// # Safety
/// There are `len` bytes at `data`. Nobody else uses the range meanwhile.
///
/// # Errors
/// As for [`MapMut::write_at`](crate::MapMut::write_at); [`Error::Io`] with EFAULT for what may not be written. Part of
/// the data may have been stored then.
pub unsafe fn write(addr: usize, data: *const u8, len: usize) -> Result<()> {
    // SAFETY: the caller's contract.
    as_it_is(|| unsafe { write_parts(addr, data, len) })
}

unsafe fn write_parts(addr: usize, data: *const u8, len: usize) -> Result<()> {
    for part in parts_of(&bytes_at(addr, len)?) {
        part.allow(libc::PROT_WRITE)?;
        // SAFETY: the caller's contract.
        let from = unsafe { std::slice::from_raw_parts(data.add(part.at.start - addr), part.at.len()) };
        match part.region() {
            Some(region) => copy_in(region, part.at.start - region.address().start() as usize, from)?,
            // SAFETY: the caller's contract.
            None => unsafe { guarded_copy::write(part.at.start, from) }.map_err(|error| unusable(&part.at, error))?,
        }
    }
    Ok(())
}
