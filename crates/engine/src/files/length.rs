//! The length of a mapped file: following what others did to it, and extending it.
//!
//! A page is read when it is touched, so a change of length concerns only pages in memory. The page that holds an end may have bytes behind it,
//! in memory only; pages wholly past a new end hold what was cut off. Both leave memory here, so that what is behind an end is read anew once
//! the file is longer: zeros, or what others wrote. A pinned page stays as it is until it is unpinned; until then the change counts as not
//! followed.

use crate::deferred::protocol;
use crate::error::{Error, Result};
use crate::evict::{batch, invalidate};
use crate::fault::poison;
use crate::files::{facts, table};
use crate::page::word::State;
use crate::pool::mailbox::Failure;
use crate::region::arrivals;
use crate::region::region::Region;
use crate::sys::file::Medium;
use crate::sys::{PAGE, file};
use crate::writeback::sweep::{self, Stripe};
use std::fs::File;
use std::ops::Range;
use std::path::Path;
use std::sync::atomic::Ordering;

/// Follows a change of the file's length by others. Called before every flush, new map, growth and advice.
pub fn follow(region: &Region) -> Result<()> {
    if region.in_flight().resizes().is_mine() {
        // This thread would wait for pages that it holds itself.
        let operation = "look at its length in a thread that is changing it (coherence::Resizing)";
        return Err(region.io_error(operation, std::io::Error::from_raw_os_error(libc::EDEADLK)));
    }
    follow_locked(region, &mut region.lock_length()).map(drop)
}

/// `followed` is the length that was followed last. Faults may have seen a greater one since, and loaded pages behind `followed`. Returns the
/// file's length.
fn follow_locked(region: &Region, followed: &mut u64) -> Result<u64> {
    let store = region.store();
    let now = store.length().map_err(|source| region.io_error("ask for its length (fstat)", source))?;
    let known = store.size().max(*followed);
    // Pages that could not leave at an earlier cut may do so now, wherever the file ends now.
    let cut = now.min(region.left_behind().load(Ordering::Relaxed));
    if (cut, known, now) == (*followed, *followed, *followed) {
        return Ok(now);
    }
    let mut gone = true;
    if cut < known {
        region.distrust(cut as usize / PAGE);
        // Nothing of what lies past the end is written: `write_end` sees to that.
        gone &= leave_memory(region, page_after(cut)..page_after(known))?;
        gone &= drop_end(region, cut)?;
    }
    region.left_behind().store(if gone { u64::MAX } else { cut }, Ordering::Relaxed);
    if now > *followed {
        gone &= drop_end(region, *followed)?;
    }
    if !gone {
        return Ok(now);
    }
    // Last: if a page could not be saved, the next call sees the same change.
    if now < known {
        store.note_shorter(now);
    } else {
        store.refresh_size();
    }
    if now > *followed {
        poison::note_longer(region);
    }
    *followed = now;
    Ok(now)
}

/// Saves the page that holds the end, up to the end, and drops it. Returns false if it is pinned.
fn drop_end(region: &Region, end: u64) -> Result<bool> {
    leave_memory(region, (end / PAGE as u64) as usize..page_after(end))
}

fn page_after(end: u64) -> usize {
    end.div_ceil(PAGE as u64) as usize
}

/// Takes each of these pages out of memory once, its dirty bytes saved. A page that another thread is at work on is tried again until it leaves.
/// Returns false if a pinned page is still in memory.
pub fn leave_memory(region: &Region, pages: Range<usize>) -> Result<bool> {
    let mut gone = true;
    let pages = pages.start..pages.end.min(region.span() / PAGE);
    if pages.len() > 1 {
        // In batches first: most pages leave this way, at little cost a page.
        if region.is_writable() {
            // `write_out` does not wait for another change of the length, whose thread may be waiting for this one.
            sweep::write_out(region, pages.clone(), Stripe::ALL)
                .map_err(|failure| failure.into_error(&**region.store()))?;
        }
        batch::evict_range(region, pages.clone());
    }
    for page in pages {
        loop {
            let seen = region.word(page).look();
            if seen.state() == State::Absent {
                break;
            }
            if seen.is_pinned() {
                gone = false;
                break;
            }
            if seen.state() == State::Loading {
                arrivals::await_page(region.page(page), seen);
                continue;
            }
            if seen.state() == State::Staged || seen.is_huge() {
                // A frame (2 MiB) leaves as a whole. If one of its pages is pinned, all of it counts as pinned.
                gone &= batch::evict_range(region, page..page + 1) > 0 || seen.state() == State::Staged;
                if !gone {
                    break;
                }
                continue;
            }
            // A page whose stores wait for its read cannot be invalidated.
            let expelled = protocol::await_read(region.page(page)).and_then(|()| invalidate::drop_page(region, page));
            if expelled.map_err(|error| Failure::new(page, error).into_error(&**region.store()))? {
                break;
            }
            std::thread::yield_now();
        }
    }
    Ok(gone)
}

/// Zeroes the bytes of a pinned page behind the file's end, as the kernel does with its own pages. They are in memory only.
fn clear_behind(region: &Region, end: u64) {
    let within = end as usize % PAGE;
    let from = region.address_of(end as usize / PAGE).wrapping_add(within);
    for at in (0..PAGE - within).map(|at| from.wrapping_add(at)) {
        // SAFETY: in a page of this region that holds the end of the file, and so can be loaded; a store traps like
        // any. Nobody has a claim to bytes past the end.
        unsafe {
            if at.read_volatile() != 0 {
                at.write_volatile(0);
            }
        }
    }
}

/// Makes a region's file reach to the end of `part`, and with `reserve` allocates disk space for the part.
pub fn extend(region: &Region, part: Range<u64>, reserve: bool) -> Result<()> {
    let store = region.store();
    let Some(writer) = store.writer() else { return Err(Error::ReadOnlyFile { path: store.path().to_owned() }) };
    prepare(writer, store.path(), part.clone(), reserve)?;
    // With the table locked no other thread extends the file between the look at its length and the call that sets it.
    let _table = table::lock();
    let mut followed = region.lock_length();
    let end = follow_locked(region, &mut followed)?;
    if end < part.end {
        // The page of the old end is loaded anew from here on, with zeros behind that end.
        if !drop_end(region, end)? {
            clear_behind(region, end);
        }
        region.holes().note_growth(end, part.end);
        file::extend(writer, part.end).map_err(|source| {
            region.distrust(page_after(end));
            region.io_error(EXTENDING, source)
        })?;
        if store.next_data(page_after(end) as u64 * PAGE as u64) < part.end {
            // Somebody appended in the last moment.
            region.distrust(page_after(end));
        }
        // `followed` is greater than the size only if pinned pages are left behind, up to `followed`.
        *followed = store.refresh_size().max(*followed);
        poison::note_longer(region);
    }
    Ok(())
}

/// Makes a file that is mapped through the kernel reach to the end of `part`, and with `reserve` allocates disk space
/// for the part.
pub fn extend_file(file: &File, part: Range<u64>, reserve: bool) -> Result<()> {
    let path = file::path_of(file);
    prepare(file, &path, part.clone(), reserve)?;
    // Files of hugetlbfs are made of whole huge pages.
    let end = match file::medium(file) {
        Medium::Memory { unit } if unit > PAGE => part.end.next_multiple_of(unit as u64),
        _ => part.end,
    };
    let _table = table::lock();
    file::extend(file, end).map_err(|source| Error::Io { path, operation: EXTENDING, source })
}

const EXTENDING: &str = "extend it (ftruncate)";

/// Checks that a file can be extended, and allocates the disk space.
fn prepare(file: &File, path: &Path, part: Range<u64>, reserve: bool) -> Result<()> {
    let facts = facts::facts_of(file)?;
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
