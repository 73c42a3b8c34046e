//! What does not change which addresses are mapped: msync(2), madvise(2), mincore(2), mlock(2).

use super::table::{Locked, intersection, pages_at};
use super::{Kind, check, direct, hand_over_range, holds, kinds_in, range_of, with};
use crate::behind::{self, Wish};
use crate::error::Error;
use crate::evict;
use crate::fault;
use crate::handover;
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
    let both = libc::MS_ASYNC | libc::MS_SYNC;
    if flags & !(both | libc::MS_INVALIDATE) != 0 || flags & both == both {
        return Err(libc::EINVAL);
    }
    let range = range_of(addr, rounded(len), libc::ENOMEM)?;
    if !range.is_empty() && !holds(addr, range.len()) {
        // Without what `kinds_in` allocates, a flush makes no system call.
        return direct::sync(range, flags);
    }
    let mut holes = Ok(());
    for (part, kind) in kinds_in(&range) {
        // Of a range with holes the rest is written all the same, unless nobody waits for that.
        let done = match kind {
            Kind::Spare => Err(libc::ENOMEM),
            Kind::Other => direct::sync(part, flags),
            Kind::Cached if flags & libc::MS_INVALIDATE != 0 && with(|table| table.is_locked(&part)) => {
                return Err(libc::EBUSY);
            }
            Kind::Cached if flags & libc::MS_SYNC != 0 => sync_cached(&part),
            Kind::Cached => Ok(()),
        };
        match done {
            Err(libc::ENOMEM) if flags != libc::MS_ASYNC => holes = Err(libc::ENOMEM),
            done => done?,
        }
    }
    holes
}

/// A length in whole pages, as the kernel has it: nothing, of the very last ones.
fn rounded(len: usize) -> usize {
    len.wrapping_add(PAGE - 1) & !(PAGE - 1)
}

/// With the table free: it may take long, and others unmap meanwhile, which saves too.
fn sync_cached(range: &Range<usize>) -> Result<(), i32> {
    for (region, part) in regions_in(range) {
        sizes::follow(&region).and_then(|()| writers::flush(&region, pages_at(&region, &part), true)).map_err(
            |error| {
                fault::say(&region, region.page_at(part.start), format_args!("and others: {error}"));
                error.errno()
            },
        )?;
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
    for (region, _) in regions_in(&range_of(addr, len, libc::EINVAL)?) {
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
    for (region, part) in regions_in(&range_of(addr / PAGE * PAGE, end - addr / PAGE * PAGE, libc::EINVAL)?) {
        behind::settle(&region, pages_at(&region, &part)).map_err(|failure| failure.error())?;
    }
    Ok(())
}

/// madvise(2). What is about reading ahead, about what is wanted and what is not, is done here, and what only hints at how the kernel
/// should keep pages changes nothing; all else is the kernel's, with the whole file.
///
/// # Safety
/// As there: some advice destroys.
///
/// # Errors
/// As there; what keeps a file from being handed over.
pub unsafe fn advise(addr: usize, len: usize, advice: i32) -> Result<(), i32> {
    let kernel = |part: Range<usize>| {
        direct::advising(&part, advice);
        // SAFETY: the caller's contract.
        check(unsafe { libc::madvise(part.start as *mut _, part.len(), advice) })
    };
    let range = range_of(addr, len, libc::EINVAL)?;
    if !holds(addr, range.len()) {
        return kernel(range);
    }
    // It knows which advice there is, and gives none on nothing.
    kernel(range.start..range.start)?;
    let is_populating = matches!(advice, libc::MADV_POPULATE_READ | libc::MADV_POPULATE_WRITE);
    let mut holes = Ok(());
    for (part, kind) in kinds_in(&range) {
        let done = match kind {
            Kind::Spare => Err(libc::ENOMEM),
            Kind::Other => kernel(part),
            Kind::Cached if OURS.contains(&advice) => advise_cached(&part, advice),
            Kind::Cached if HINTS.contains(&advice) => Ok(()),
            Kind::Cached => hand_over_range(&part).and_then(|()| kernel(part)),
        };
        match done {
            // Of a range with holes the rest is done all the same.
            Err(libc::ENOMEM) if !is_populating => holes = Err(libc::ENOMEM),
            done => done?,
        }
    }
    holes
}

/// Advice that the engine follows.
const OURS: [i32; 11] = [
    libc::MADV_NORMAL,
    libc::MADV_RANDOM,
    libc::MADV_SEQUENTIAL,
    libc::MADV_WILLNEED,
    libc::MADV_DONTNEED,
    libc::MADV_COLD,
    libc::MADV_PAGEOUT,
    libc::MADV_POPULATE_READ,
    libc::MADV_POPULATE_WRITE,
    libc::MADV_DONTFORK,
    libc::MADV_DOFORK,
];

/// Advice that no program can see the effect of.
const HINTS: [i32; 4] = [libc::MADV_HUGEPAGE, libc::MADV_NOHUGEPAGE, libc::MADV_DONTDUMP, libc::MADV_DODUMP];

fn advise_cached(range: &Range<usize>, advice: i32) -> Result<(), i32> {
    match advice {
        libc::MADV_DONTFORK | libc::MADV_DOFORK => {
            with(|table| table.set_in_children(range, advice == libc::MADV_DOFORK));
            return Ok(());
        }
        libc::MADV_POPULATE_WRITE if with(|table| table.forbids_stores(range)) => return Err(libc::EINVAL),
        _ => {}
    }
    // What is locked is not let go; what lies before it is.
    let drops = matches!(advice, libc::MADV_DONTNEED | libc::MADV_COLD | libc::MADV_PAGEOUT);
    let lock =
        with(|table| table.locked.iter().filter_map(|one| intersection(&one.at, range)).map(|at| at.start).min());
    let end = lock.filter(|_| drops).unwrap_or(range.end);
    for (region, part) in regions_in(&(range.start..end)) {
        advise_region(&region, pages_at(&region, &part), advice).map_err(|error| error.errno())?;
    }
    if end == range.end { Ok(()) } else { Err(libc::EINVAL) }
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
            if end < pages.end {
                // As there, with what comes before it brought in.
                return Err(
                    region.io_error("populate it past its end", std::io::Error::from_raw_os_error(libc::EFAULT))
                );
            }
        }
        _ => {
            if region.is_writable() {
                writers::flush(region, pages.clone(), false)?;
            }
            let _length = region.lock_length();
            evict::evict_range(region, pages);
        }
    }
    Ok(())
}

/// mincore(2): the lowest bit of a byte for each page. A page that is read ahead and not touched yet counts as there, and so does one
/// whose stores are kept until it is read.
///
/// # Safety
/// `out` has a byte for each page of the range.
///
/// # Errors
/// As there.
pub unsafe fn residency(addr: usize, len: usize, out: *mut u8) -> Result<(), i32> {
    let range = range_of(addr, len, libc::ENOMEM)?;
    let byte_of = |at: usize| out.wrapping_add((at - addr) / PAGE);
    for (part, kind) in kinds_in(&range) {
        if kind == Kind::Spare {
            return Err(libc::ENOMEM);
        }
        // A page of ours that is in memory is one to the kernel.
        if !holds(byte_of(part.start) as usize, part.len() / PAGE) {
            // SAFETY: it finds out itself whether the bytes may be stored to.
            check(unsafe { libc::mincore(part.start as *mut _, part.len(), byte_of(part.start)) })?;
        } else {
            // The answer is to be in a map of ours, in which the kernel may not find all pages.
            let mut there = vec![0; part.len() / PAGE];
            // SAFETY: as many bytes are there; the caller has room for them.
            unsafe {
                check(libc::mincore(part.start as *mut _, part.len(), there.as_mut_ptr()))?;
                there.as_ptr().copy_to(byte_of(part.start), there.len());
            }
        }
        if kind == Kind::Cached {
            for (region, part) in regions_in(&part) {
                let state = |at: usize| region.word(region.page_at(at)).look().state();
                let aside = |at: &usize| matches!(state(*at), State::Staged | State::Kept);
                // SAFETY: bytes that have been stored to.
                part.step_by(PAGE).filter(aside).for_each(|at| unsafe { byte_of(at).write(1) });
            }
        }
    }
    Ok(())
}

/// mlock(2): pins the pages of cached maps, within the budget for pins. What is more than that is an error, or `anyhow` the kernel's
/// to lock, with the whole file.
///
/// # Errors
/// As there; ENOMEM over the budget.
pub fn lock(addr: usize, len: usize, anyhow: bool) -> Result<(), i32> {
    let addr_page = addr / PAGE * PAGE;
    let len = rounded(len.wrapping_add(addr - addr_page));
    // SAFETY: it brings memory in.
    let kernel = |part: Range<usize>| check(unsafe { libc::mlock(part.start as *const _, part.len()) });
    may_lock(len)?;
    for (part, kind) in kinds_in(&range_of(addr_page, len, libc::EINVAL)?) {
        match kind {
            Kind::Other => kernel(part)?,
            Kind::Spare => return Err(libc::ENOMEM),
            Kind::Cached => match lock_cached(&part) {
                Err(Error::PinBudget { .. } | Error::TooManyPins { .. }) if anyhow => {
                    hand_over_range(&part)?;
                    kernel(part)?;
                }
                // The kernel's by now.
                Err(error) if error.errno() == libc::ESTALE => kernel(part)?,
                Err(Error::PinBudget { .. } | Error::TooManyPins { .. } | Error::PastEnd { .. }) => {
                    return Err(libc::ENOMEM);
                }
                done => done.map_err(|error| error.errno())?,
            },
        }
    }
    Ok(())
}

/// Whether this process may lock so much (setrlimit(2), capabilities(7)): the kernel says so of memory that nobody has a use for.
fn may_lock(len: usize) -> Result<(), i32> {
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
    // SAFETY: it is not touched, and goes at once.
    unsafe {
        let room = libc::mmap(std::ptr::null_mut(), len.max(PAGE), libc::PROT_NONE, flags, -1, 0);
        if room == libc::MAP_FAILED {
            // More than there are addresses: there is no such range either.
            return Ok(());
        }
        let verdict = check(libc::mlock2(room, len, libc::MLOCK_ONFAULT as _));
        libc::munmap(room, len.max(PAGE));
        verdict
    }
}

fn lock_cached(range: &Range<usize>) -> crate::Result<()> {
    let pieces = with(|table| table.meeting(range).map(|(piece, at)| (piece.share.clone(), at)).collect::<Vec<_>>());
    for (share, at) in pieces {
        // SAFETY: the share beside it keeps the region.
        let region: &'static Region = unsafe { &*Arc::as_ptr(&share.region) };
        let known = with(|table| table.locked.iter().any(|one| one.at.start <= at.start && at.end <= one.at.end));
        if known {
            continue;
        }
        let hold = Hold::new(region, pages_at(region, &at), false)?;
        let lock = Locked { at, hold, share };
        let late = with(|table| {
            // A lock that came after the unmapping, or the hand-over, would keep what nobody can reach.
            let is_there = table.meeting(&lock.at).any(|(piece, _)| Arc::ptr_eq(&piece.share, &lock.share));
            if is_there {
                table.locked.push(lock);
                None
            } else {
                Some(lock)
            }
        });
        drop(late);
    }
    Ok(())
}

/// munlock(2).
///
/// # Errors
/// As there.
pub fn unlock(addr: usize, len: usize) -> Result<(), i32> {
    let addr_page = addr / PAGE * PAGE;
    let len = rounded(len.wrapping_add(addr - addr_page));
    for (part, kind) in kinds_in(&range_of(addr_page, len, libc::EINVAL)?) {
        match kind {
            Kind::Spare => return Err(libc::ENOMEM),
            Kind::Cached => drop(with(|table| table.unlock(&part))),
            // SAFETY: it lets memory go.
            Kind::Other => check(unsafe { libc::munlock(part.start as *const _, part.len()) })?,
        }
    }
    Ok(())
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
    let region: &'static Region = loop {
        // SAFETY: the program has it mapped, which keeps the region.
        let region = unsafe { registry::find(addr) }?;
        if !region.is_leaving() {
            break region;
        }
        handover::nap();
    };
    let pages = pages_at(region, &(addr..addr + len.max(1)));
    // To futex(2) a write-protected anonymous page is one that nobody will ever store to: EFAULT.
    Hold::new(region, pages, region.is_writable()).ok().map(Held)
}
