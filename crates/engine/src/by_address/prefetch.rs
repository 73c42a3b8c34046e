//! Reading ahead by address: ranges that a program asks for, and how far ahead of its walks.

use super::access::{Part, as_it_is, parts_of};
use super::lookup::{check, range_of};
use super::table::{Share, pages_at};
#[cfg(doc)]
use crate::error::Error;
use crate::error::Result;
use crate::files::length;
use crate::pin::fetch;
use crate::pool::streams::{Expect, MOST_WINDOW};
use crate::readahead::prefetch;
use crate::sys::PAGE;
use std::ops::Range;
use std::sync::Arc;

/// Asks for scattered ranges of bytes, in order, and returns how many were taken. As [`Map::prefetch`](crate::Map::prefetch), over any number of
/// maps.
///
/// # Errors
/// [`Error::Io`] when part of the first range is not mapped.
pub fn prefetch(ranges: &[Range<usize>]) -> Result<usize> {
    let mut taken = 0;
    // Ranges of one region at a time: each call wakes a reader.
    let mut run: Option<(Arc<Share>, Vec<Range<usize>>)> = None;
    let offer = |run: &mut Option<(Arc<Share>, Vec<Range<usize>>)>, taken: &mut usize| match run.take() {
        Some((share, pages)) => {
            let now = prefetch::offer(&share.region, &pages);
            *taken += now;
            now == pages.len()
        }
        None => true,
    };
    for range in ranges {
        let parts = parts_of(range);
        if let [Part { cached: Some((share, _)), at }] = &parts[..] {
            if run.as_ref().is_some_and(|(before, _)| !Arc::ptr_eq(&before.region, &share.region))
                && !offer(&mut run, &mut taken)
            {
                return Ok(taken);
            }
            let pages = pages_at(&share.region, at);
            run.get_or_insert_with(|| (share.clone(), vec![])).1.push(pages);
            continue;
        }
        if !offer(&mut run, &mut taken) {
            return Ok(taken);
        }
        for part in &parts {
            match part.region() {
                Some(region) if prefetch::offer(region, &[part.pages(region)]) == 0 => return Ok(taken),
                Some(_) => {}
                None => match part.advise(libc::MADV_WILLNEED) {
                    Err(error) if taken == 0 => return Err(error),
                    Err(_) => return Ok(taken),
                    Ok(()) => {}
                },
            }
        }
        taken += 1;
    }
    offer(&mut run, &mut taken);
    Ok(taken)
}

/// Brings all pages of ranges of bytes into memory. As [`Map::prefetch_wait`](crate::Map::prefetch_wait), over any
/// number of maps.
///
/// # Errors
/// As for `Map::prefetch_wait`; [`Error::Io`] for what is not mapped.
pub fn prefetch_wait(ranges: &[Range<usize>]) -> Result<()> {
    as_it_is(|| bring_in(ranges))
}

fn bring_in(ranges: &[Range<usize>]) -> Result<()> {
    let parts: Vec<Part> = ranges.iter().flat_map(parts_of).collect();
    let mut at = 0;
    while let Some(part) = parts.get(at) {
        let Some(region) = part.region() else {
            part.advise(libc::MADV_POPULATE_READ)?;
            at += 1;
            continue;
        };
        let same = |part: &&Part| part.region().is_some_and(|other| Arc::ptr_eq(other, region));
        let pages: Vec<_> = parts[at..].iter().take_while(same).map(|part| part.pages(region)).collect();
        length::follow(region)?;
        fetch::fetch(region, &pages)?;
        at += pages.len();
    }
    Ok(())
}

/// Does what `MAP_POPULATE` asks for, to a map that was made just now: brings its pages into memory and waits for them, from the first on, as
/// many as its cache holds. As with mmap(2), a map that cannot be populated is still a map.
pub fn populate(addr: usize, len: usize) {
    let Ok(range) = range_of(addr, len, libc::EINVAL) else { return };
    for part in parts_of(&range) {
        let Some(region) = part.region() else { continue };
        let pages = part.pages(region);
        let end = (region.store().size() as usize).div_ceil(PAGE).min(pages.start + region.pool().capacity());
        if length::follow(region).is_ok() {
            let _ = fetch::fetch(region, std::slice::from_ref(&(pages.start..end.clamp(pages.start, pages.end))));
        }
    }
}

/// Limits how many bytes ahead of a walk are read, in the file that is mapped at an address. As
/// [`Map::set_readahead`](crate::Map::set_readahead); nothing happens to memory that is not cached.
///
/// # Errors
/// ENOMEM where nothing is mapped.
pub fn set_readahead(addr: usize, bytes: usize) -> std::result::Result<(), i32> {
    let page = addr / PAGE * PAGE;
    for part in parts_of(&range_of(page, PAGE, libc::EINVAL)?) {
        match part.region() {
            Some(region) => region.hints().set_readahead((bytes / PAGE).min(MOST_WINDOW)),
            None => {
                let mut there = 0u8;
                // SAFETY: one page, one byte.
                check(unsafe { libc::mincore(page as *mut _, PAGE, &mut there) })?;
            }
        }
    }
    Ok(())
}

/// [`Advice::Backward`](crate::Advice::Backward) for a range, for which madvise(2) has no word. Other memory gets
/// `MADV_NORMAL`.
///
/// # Errors
/// As for madvise(2).
pub fn expect_backward(addr: usize, len: usize) -> std::result::Result<(), i32> {
    let range = range_of(addr, len, libc::EINVAL)?;
    for part in parts_of(&range) {
        match part.region() {
            Some(region) => {
                length::follow(region).map_err(|error| error.errno())?;
                region.hints().expect(part.pages(region), Expect::Backward);
            }
            None => part.advise(libc::MADV_NORMAL).map_err(|error| error.errno())?,
        }
    }
    Ok(())
}
