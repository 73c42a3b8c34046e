//! The length of a mapped file: following what others did to it, and extending it.
//!
//! A page is read when it is touched, so a change of length concerns only pages in memory. The page that holds an end may
//! have bytes behind it, in memory only; pages wholly past a new end hold what was cut off. Both leave memory here, so
//! that what is behind an end is read anew once the file is longer: zeros, or what others wrote.

use crate::error::{Error, Result};
use crate::evict;
use crate::files;
use crate::options;
use crate::page::State;
use crate::region::Region;
use crate::sys::{PAGE, file};
use crate::writers;
use std::fs::File;
use std::io;
use std::ops::Range;
use std::path::Path;

/// Takes notice of a file that others made shorter or longer. Asked before every flush, new map, growth and advice.
pub fn follow(region: &Region) -> Result<()> {
    follow_locked(region, &mut region.lock_length())
}

/// `followed` is the length that was met last; faults may have met a greater one since, and pages behind it.
fn follow_locked(region: &Region, followed: &mut u64) -> Result<()> {
    let store = region.store();
    let now = store.length().map_err(|source| region.io_error("ask for its length (fstat)", source))?;
    let known = store.size().max(*followed);
    if (known, now) == (*followed, *followed) {
        return Ok(());
    }
    if now < known {
        region.holes().distrust(now as usize / PAGE);
        // Nothing of what lies past the end is written: `write_end` sees to that.
        leave_memory(region, page_after(now)..page_after(known))?;
        drop_end(region, now)?;
    }
    if now > *followed {
        drop_end(region, *followed)?;
    }
    // At the end: should a page not be saved, the next call meets the same change.
    if now < known {
        store.note_shorter(now);
    } else {
        store.refresh_size();
    }
    *followed = now;
    Ok(())
}

/// Saves the page that holds the end, up to there, and drops it.
fn drop_end(region: &Region, end: u64) -> Result<()> {
    leave_memory(region, (end / PAGE as u64) as usize..page_after(end))
}

fn page_after(end: u64) -> usize {
    end.div_ceil(PAGE as u64) as usize
}

/// Sees to it that each of these pages is out of memory once, its dirty bytes saved. One that another thread is at work on
/// at this moment is met in the next round.
fn leave_memory(region: &Region, pages: Range<usize>) -> Result<()> {
    let pages = pages.start..pages.end.min(region.span() / PAGE);
    if pages.len() > 1 {
        // Most of them at little cost a page.
        if region.is_writable() {
            writers::write_out(region, pages.clone())?;
        }
        evict::evict_range(region, pages.clone());
    }
    for page in pages {
        while region.word(page).look().state() != State::Absent {
            let expelled = evict::expel(region, page).map_err(|error| Error::WriteBack {
                path: region.store().path().to_owned(),
                offset: (page * PAGE) as u64,
                len: PAGE as u64,
                source: io::Error::from_raw_os_error(error),
            })?;
            if expelled {
                break;
            }
            std::thread::yield_now();
        }
    }
    Ok(())
}

/// Makes a region's file reach to the end of `part`, and with `reserve` allocates disk space for the part.
pub fn extend(region: &Region, part: Range<u64>, reserve: bool) -> Result<()> {
    let store = region.store();
    let Some(writer) = store.writer() else { return Err(Error::ReadOnlyFile { path: store.path().to_owned() }) };
    prepare(writer, store.path(), part.clone(), reserve)?;
    // Two that extend one file must not meet between the look at its length and the call that sets it.
    let _table = files::lock();
    let mut followed = region.lock_length();
    follow_locked(region, &mut followed)?;
    if *followed < part.end {
        // Whoever loads the page from here on finds zeros behind the old end.
        drop_end(region, *followed)?;
        region.holes().note_growth(*followed, part.end);
        file::extend(writer, part.end).map_err(|source| {
            region.holes().distrust(page_after(*followed));
            region.io_error(EXTENDING, source)
        })?;
        if store.next_data(page_after(*followed) as u64 * PAGE as u64) < part.end {
            // Somebody appended in the last moment.
            region.holes().distrust(page_after(*followed));
        }
        *followed = store.refresh_size();
    }
    Ok(())
}

/// Likewise for a file that is mapped through the kernel.
pub fn extend_file(file: &File, part: Range<u64>, reserve: bool) -> Result<()> {
    let path = file::path_of(file);
    prepare(file, &path, part.clone(), reserve)?;
    let _table = files::lock();
    file::extend(file, part.end).map_err(|source| Error::Io { path, operation: EXTENDING, source })
}

const EXTENDING: &str = "extend it (ftruncate)";

/// What comes before extending: whether it is possible, and the disk space.
fn prepare(file: &File, path: &Path, part: Range<u64>, reserve: bool) -> Result<()> {
    let facts = options::facts_of(file)?;
    if facts.is_device {
        // All of a device's space is there.
        return if part.end <= facts.size {
            Ok(())
        } else {
            Err(Error::FixedSize { path: path.to_owned(), size: facts.size })
        };
    }
    if reserve && !part.is_empty() {
        file::allocate(file, part.clone()).map_err(|source| {
            let remedy = match source.raw_os_error() {
                Some(libc::ENOSPC | libc::EDQUOT) => "make room there, or map without `reserve`",
                Some(libc::EOPNOTSUPP | libc::ENOSYS) => "its file system cannot allocate ahead: map without `reserve`",
                _ => "map without `reserve`",
            };
            Error::Reserve { path: path.to_owned(), offset: part.start, len: part.end - part.start, source, remedy }
        })?;
    }
    Ok(())
}
