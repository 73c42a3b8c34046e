//! What does not change which addresses are mapped: msync(2), madvise(2), mincore(2), mlock(2).

use super::table::{Locked, Table, intersection, pages_at};
use super::{check, direct, holds, range_of, split, with};
use crate::behind::{self, Wish};
use crate::error::Error;
use crate::evict;
use crate::fault;
use crate::page::State;
use crate::pinning::Hold;
use crate::prefetch;
use crate::region::Region;
use crate::registry;
use crate::sizes;
use crate::streams::Expect;
use crate::sys::PAGE;
use crate::writers;
use std::ops::Range;
use std::sync::Arc;

/// msync(2). `MS_ASYNC` leaves it to the writers, as the kernel does.
///
/// # Errors
/// As there; EIO, ENOSPC and their kin as [`MapMut::flush`](crate::MapMut::flush) has them.
pub fn sync(addr: usize, len: usize, flags: i32) -> Result<(), i32> {
    let range = range_of(addr, len)?;
    if !holds(addr, range.len()) {
        return direct::sync(range, flags);
    }
    let both = libc::MS_ASYNC | libc::MS_SYNC;
    if flags & !(both | libc::MS_INVALIDATE) != 0 || flags & both == both {
        return Err(libc::EINVAL);
    }
    for (part, covered) in with(|table| table.parts(&range)) {
        if !covered {
            direct::sync(part, flags)?;
        } else if flags & libc::MS_SYNC != 0 {
            // With the table free: it may take long, and others unmap meanwhile, which saves too.
            for (region, part) in regions_in(&part) {
                sizes::follow(&region).and_then(|()| writers::flush(&region, pages_at(&region, &part), true)).map_err(
                    |error| {
                        fault::say(&region, region.page_at(part.start), format_args!("and others: {error}"));
                        error.errno()
                    },
                )?;
            }
        }
    }
    Ok(())
}

/// The regions of cached maps in a range, each with what it has of it.
fn regions_in(range: &Range<usize>) -> Vec<(Arc<Region>, Range<usize>)> {
    with(|table| {
        let mut found: Vec<(Arc<Region>, Range<usize>)> = Vec::new();
        for (piece, part) in table.meeting(range) {
            match found.iter_mut().find(|(region, _)| Arc::ptr_eq(region, &piece.share.region)) {
                Some((_, all)) => *all = all.start.min(part.start)..all.end.max(part.end),
                None => found.push((piece.share.region.clone(), part)),
            }
        }
        found
    })
}

/// Has stores to absent pages of a range complete on a page filled with a line, again and again, as
/// [`MapOptions::async_read`](crate::MapOptions::async_read): the whole file's, for as long as it is mapped. Kernel mappings stay what
/// they are.
///
/// # Safety
/// Whoever stores to the file's maps, or has references into them, keeps the duties that are told of there.
///
/// # Errors
/// EINVAL: no map of the file is writable, or it has another such line; ENOMEM.
pub unsafe fn async_read(addr: usize, len: usize, initial_line: [u8; 64]) -> Result<(), i32> {
    let wish = Wish { initial: Some(initial_line), keep: false };
    for (region, _) in regions_in(&range_of(addr, len)?) {
        if !region.is_writable() {
            return Err(libc::EINVAL);
        }
        region.go_on_behind(wish).map_err(|error| error.errno())?;
    }
    Ok(())
}

/// The line given to [`async_read`] for the map at an address.
pub fn initial_line(addr: usize) -> Option<[u8; 64]> {
    let (region, _) = regions_in(&(addr..addr.checked_add(1)?)).pop()?;
    region.behind()?.initial().copied()
}

/// Waits until the file's bytes are in every page of a range that was stored to before it was read.
///
/// # Errors
/// Of the read.
pub fn synchronise(addr: usize, len: usize) -> Result<(), i32> {
    let end = addr.checked_add(len).ok_or(libc::EINVAL)?;
    for (region, part) in regions_in(&range_of(addr / PAGE * PAGE, end - addr / PAGE * PAGE)?) {
        behind::settle(&region, pages_at(&region, &part)).map_err(|failure| failure.error())?;
    }
    Ok(())
}

/// madvise(2). What is about reading ahead, about what is wanted and what is not, is understood; the rest changes nothing.
///
/// # Safety
/// As there: on memory that is not cached, some advice destroys.
///
/// # Errors
/// As there.
pub unsafe fn advise(addr: usize, len: usize, advice: i32) -> Result<(), i32> {
    let kernel = |part: Range<usize>| {
        direct::advising(&part, advice);
        // SAFETY: the caller's contract.
        check(unsafe { libc::madvise(part.start as *mut _, part.len(), advice) })
    };
    let range = range_of(addr, len)?;
    if !holds(addr, range.len()) {
        return kernel(range);
    }
    // It refuses advice that is none.
    kernel(range.start..range.start)?;
    for (part, covered) in with(|table| table.parts(&range)) {
        if !covered {
            kernel(part)?;
            continue;
        }
        if matches!(advice, libc::MADV_DONTFORK | libc::MADV_DOFORK) {
            with(|table| table.set_in_children(&part, advice == libc::MADV_DOFORK));
            continue;
        }
        for (region, part) in regions_in(&part) {
            advise_region(&region, pages_at(&region, &part), advice).map_err(|error| error.errno())?;
        }
    }
    Ok(())
}

fn advise_region(region: &Arc<Region>, pages: Range<usize>, advice: i32) -> crate::Result<()> {
    sizes::follow(region)?;
    match advice {
        libc::MADV_NORMAL => region.expect(pages, Expect::Normal),
        libc::MADV_RANDOM => region.expect(pages, Expect::Random),
        libc::MADV_SEQUENTIAL => region.expect(pages, Expect::Forward),
        libc::MADV_WILLNEED => drop(prefetch::offer(region, &[pages])),
        libc::MADV_POPULATE_READ | libc::MADV_POPULATE_WRITE => {
            let end = (region.store().size() as usize).div_ceil(PAGE).clamp(pages.start, pages.end);
            prefetch::fetch(region, std::slice::from_ref(&(pages.start..end)))?;
        }
        libc::MADV_DONTNEED | libc::MADV_COLD | libc::MADV_PAGEOUT => {
            if region.is_writable() {
                writers::flush(region, pages.clone(), false)?;
            }
            let _length = region.lock_length();
            evict::evict_range(region, pages);
        }
        _ => {}
    }
    Ok(())
}

/// mincore(2): the lowest bit of a byte for each page. A page that is read ahead and not touched yet counts as there.
///
/// # Safety
/// `out` has a byte for each page of the range.
///
/// # Errors
/// As there.
pub unsafe fn residency(addr: usize, len: usize, out: *mut u8) -> Result<(), i32> {
    let start = addr;
    let kernel = |part: Range<usize>| {
        // SAFETY: the caller's contract.
        check(unsafe { libc::mincore(part.start as *mut _, part.len(), out.add((part.start - start) / PAGE)) })
    };
    let ours = |table: &mut Table, part: Range<usize>| {
        for at in part.step_by(PAGE) {
            if let Some((piece, _)) = table.meeting(&(at..at + PAGE)).next() {
                let region = &piece.share.region;
                let state = region.word(region.page_at(at)).look().state();
                let there = matches!(state, State::Clean | State::Dirty | State::Staged | State::Unread);
                // SAFETY: the caller's contract.
                unsafe { out.add((at - start) / PAGE).write(u8::from(there)) };
            }
        }
        Ok(())
    };
    split(addr, len, ours, kernel)
}

/// mlock(2): pins the pages of cached maps, within the budget for pins.
///
/// # Errors
/// As there; ENOMEM over the budget.
pub fn lock(addr: usize, len: usize) -> Result<(), i32> {
    let addr_page = addr / PAGE * PAGE;
    let len = len.checked_add(addr - addr_page).ok_or(libc::EINVAL)?;
    // SAFETY: it brings memory in.
    let kernel = |part: Range<usize>| check(unsafe { libc::mlock(part.start as *const _, part.len()) });
    let range = range_of(addr_page, len)?;
    if !holds(addr_page, range.len()) {
        return kernel(range);
    }
    for (part, covered) in with(|table| table.parts(&range)) {
        if !covered {
            kernel(part)?;
            continue;
        }
        let pieces =
            with(|table| table.meeting(&part).map(|(piece, at)| (piece.share.clone(), at)).collect::<Vec<_>>());
        for (share, at) in pieces {
            // SAFETY: the share beside it keeps the region.
            let region: &'static Region = unsafe { &*Arc::as_ptr(&share.region) };
            let known = with(|table| table.locked.iter().any(|one| one.at.start <= at.start && at.end <= one.at.end));
            if !known {
                let hold = Hold::new(region, pages_at(region, &at), false).map_err(|error| match error {
                    Error::PinBudget { .. } | Error::TooManyPins { .. } | Error::PastEnd { .. } => libc::ENOMEM,
                    error => error.errno(),
                })?;
                with(|table| table.locked.push(Locked { at, hold, share }));
            }
        }
    }
    Ok(())
}

/// munlock(2); locks that reach past the range are let go whole where they are cut.
///
/// # Errors
/// As there.
pub fn unlock(addr: usize, len: usize) -> Result<(), i32> {
    let addr_page = addr / PAGE * PAGE;
    let len = len.checked_add(addr - addr_page).ok_or(libc::EINVAL)?;
    let ours = |table: &mut Table, part: Range<usize>| {
        table.locked.retain(|one| intersection(&one.at, &part).is_none());
        Ok(())
    };
    // SAFETY: it lets memory go.
    split(addr_page, len, ours, |part| check(unsafe { libc::munlock(part.start as *const _, part.len()) }))
}

/// munlockall(2), the part of cached maps.
pub fn unlock_all() {
    drop(with(|table| std::mem::take(&mut table.locked)));
}

/// Pages kept in memory until dropped.
#[derive(Debug)]
pub struct Held(#[expect(dead_code, reason = "kept for its drop")] Hold<'static>);

/// Keeps the pages of a range of one cached map in memory, and writable if the map is: for what the kernel reads or writes at
/// any time (futex(2), stacks on which it delivers signals). `None`: not in a cached map, or no room for pins.
///
/// # Safety
/// The range stays mapped until the guard is dropped.
pub unsafe fn pin(addr: usize, len: usize) -> Option<Held> {
    // SAFETY: the program has it mapped, which keeps the region.
    let region: &'static Region = unsafe { registry::find(addr) }?;
    let pages = pages_at(region, &(addr..addr + len.max(1)));
    // To futex(2) a write-protected anonymous page is one that nobody will ever store to: EFAULT.
    Hold::new(region, pages, region.is_writable()).ok().map(Held)
}
