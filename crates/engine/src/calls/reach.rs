//! What mmap(2) has no word for, by address: prefetching, pins, copies that return errors, and how far to read ahead.
//!
//! As everywhere here a range may lie across cached maps and other memory, whose part the kernel does.

use super::table::{Locked, PinKey, Share, intersection, pages_at};
use super::{check, holds, range_of, with};
use crate::error::{Error, Result};
use crate::handover;
use crate::pinning::Hold;
use crate::pins::{copy_in, copy_out};
use crate::prefetch;
use crate::region::Region;
use crate::sizes;
use crate::streams::{Expect, MOST_WINDOW};
use crate::sys::PAGE;
use std::io;
use std::ops::Range;
use std::sync::Arc;

/// Part of a range that is one file's, with one protection, or of no cached map.
struct Part {
    at: Range<usize>,
    /// Whose, and what may be done to it.
    cached: Option<(Arc<Share>, i32)>,
}

impl Part {
    fn region(&self) -> Option<&Arc<Region>> {
        self.cached.as_ref().map(|(share, _)| &share.region)
    }

    fn pages(&self, region: &Region) -> Range<usize> {
        pages_at(region, &self.at)
    }

    /// Fails where the program may not do that itself.
    fn allow(&self, prot: i32) -> Result<()> {
        let is_allowed = self.cached.as_ref().is_none_or(|(_, allowed)| allowed & prot != 0);
        if is_allowed { Ok(()) } else { Err(unusable(&self.at, libc::EFAULT)) }
    }

    /// madvise(2) on all pages of a part that is not cached.
    fn advise(&self, advice: i32) -> Result<()> {
        let start = self.at.start / PAGE * PAGE;
        // SAFETY: advice that destroys nothing.
        check(unsafe { libc::madvise(start as *mut _, self.at.end - start, advice) })
            .map_err(|error| unusable(&self.at, error))
    }
}

/// Which parts of a range of bytes are whose. Their shares keep the regions, whoever unmaps them meanwhile.
fn parts_of(range: &Range<usize>) -> Vec<Part> {
    if range.is_empty() {
        return vec![];
    }
    if !holds(range.start, range.len()) {
        return vec![Part { at: range.clone(), cached: None }];
    }
    with(|table| {
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
fn bytes_at(addr: usize, len: usize) -> Result<Range<usize>> {
    addr.checked_add(len).map(|end| addr..end).ok_or_else(|| unusable(&(addr..usize::MAX), libc::EFAULT))
}

#[cold]
fn unusable(range: &Range<usize>, error: i32) -> Error {
    Error::Io {
        path: format!("{} bytes at {:#x}", range.len(), range.start).into(),
        operation: "use all of them: part is not mapped, or past its file's end, or not mapped for that",
        source: io::Error::from_raw_os_error(error),
    }
}

/// Does something with what a range was found to be, and again if its file has become the kernel's before it was done.
fn as_it_is<R>(mut call: impl FnMut() -> Result<R>) -> Result<R> {
    loop {
        match call() {
            Err(error) if error.errno() == libc::ESTALE => {}
            done => return done,
        }
    }
}

/// Whether a whole range lies in cached maps.
///
/// ```
/// assert!(!fastmap::calls::is_cached(&0 as *const i32 as usize, 4));
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
/// As for [`Map::read_at`](crate::Map::read_at); [`Error::Io`] with EFAULT for what may not be read. The buffer's bytes are
/// unspecified then.
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
            Some(region) => copy_out(region, part.at.start - region.start() as usize, to)?,
            None => copy_foreign(part.at.start, to.len(), |at, aside, done| {
                let aside_vec = libc::iovec { iov_base: aside.as_mut_ptr().cast(), iov_len: aside.len() };
                let there = libc::iovec { iov_base: at as *mut _, iov_len: aside.len() };
                // SAFETY: into a page on the stack; the kernel checks the other side.
                let copied = unsafe { libc::process_vm_readv(libc::getpid(), &aside_vec, 1, &there, 1, 0) };
                to[done..done + aside.len()].copy_from_slice(aside);
                copied
            })
            .map_err(|error| unusable(&part.at, error))?,
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
/// As for [`MapMut::write_at`](crate::MapMut::write_at); [`Error::Io`] with EFAULT for what may not be written. Part of the data may
/// have been stored then.
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
            Some(region) => copy_in(region, part.at.start - region.start() as usize, from)?,
            None => copy_foreign(part.at.start, from.len(), |at, aside, done| {
                aside.copy_from_slice(&from[done..done + aside.len()]);
                let aside_vec = libc::iovec { iov_base: aside.as_mut_ptr().cast(), iov_len: aside.len() };
                let there = libc::iovec { iov_base: at as *mut _, iov_len: aside.len() };
                // SAFETY: the kernel checks that it may be written.
                unsafe { libc::process_vm_writev(libc::getpid(), &aside_vec, 1, &there, 1, 0) }
            })
            .map_err(|error| unusable(&part.at, error))?,
        }
    }
    Ok(())
}

/// Runs `copy` on memory that is not cached, in pieces of a page on the stack: the other side of the copy may be a cached map,
/// which the kernel cannot touch. `copy` is given an address, the piece and how much was done before it.
fn copy_foreign(
    addr: usize,
    len: usize,
    mut copy: impl FnMut(usize, &mut [u8], usize) -> isize,
) -> std::result::Result<(), i32> {
    let mut aside = [0; PAGE];
    let mut done = 0;
    while done < len {
        // Not across pages: one may be there without the other.
        let count = (len - done).min(PAGE - (addr + done) % PAGE);
        match copy(addr + done, &mut aside[..count], done) {
            copied if copied == count as isize => done += count,
            -1 => return Err(crate::sys::errno()),
            _ => return Err(libc::EFAULT),
        }
    }
    Ok(())
}

/// Asks for scattered ranges of bytes, in order; how many were taken. As [`Map::prefetch`](crate::Map::prefetch), over any number
/// of maps.
///
/// # Errors
/// [`Error::Io`] when the first that was not taken is not mapped.
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

/// Brings all pages of ranges of bytes into memory. As [`Map::prefetch_wait`](crate::Map::prefetch_wait), over any number of maps.
///
/// # Errors
/// As there; [`Error::Io`] for what is not mapped.
pub fn prefetch_wait(ranges: &[Range<usize>]) -> Result<()> {
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
        sizes::follow(region)?;
        prefetch::fetch(region, &pages)?;
        at += pages.len();
    }
    Ok(())
}

/// Keeps a range of bytes in memory, for writing with `writing` also writable, until [`let_go`] of the same range has been called as
/// often: for system calls. Memory that is not cached is brought in, and left to the kernel.
///
/// # Errors
/// As for [`Map::pin`](crate::Map::pin) and [`MapMut::pin_mut`](crate::MapMut::pin_mut); [`Error::Io`] with EFAULT for what is not
/// mapped, or not for that.
pub fn keep(addr: usize, len: usize, writing: bool) -> Result<()> {
    as_it_is(|| keep_parts(addr, len, writing))
}

fn keep_parts(addr: usize, len: usize, writing: bool) -> Result<()> {
    let range = bytes_at(addr, len)?;
    let key = PinKey { addr, len, writing };
    let parts = parts_of(&range);
    let cached = || parts.iter().filter_map(|part| Some((part, part.cached.as_ref()?)));
    let wanted: usize = cached().map(|(part, _)| part.at.len()).sum();
    let again = with(|table| match table.pins.get_mut(&key) {
        // Unless some of it was unmapped meanwhile, and mapped again.
        Some(pins) if pins.holds.iter().map(|hold| hold.at.len()).sum::<usize>() >= wanted => {
            pins.count += 1;
            true
        }
        _ => false,
    });
    if again {
        return Ok(());
    }
    if cached().any(|(_, (share, _))| share.region.is_leaving()) {
        handover::nap();
        return Err(unusable(&range, libc::ESTALE));
    }
    let prot = if writing { libc::PROT_WRITE } else { libc::PROT_READ | libc::PROT_WRITE };
    let advice = if writing { libc::MADV_POPULATE_WRITE } else { libc::MADV_POPULATE_READ };
    for part in &parts {
        part.allow(prot)?;
        if part.cached.is_none() {
            // SAFETY: of no memory; it says whether there is such advice (Linux 5.14). Else it is left to whoever touches it.
            let is_known = unsafe { libc::madvise(std::ptr::null_mut(), 0, advice) } == 0;
            match part.advise(advice) {
                Err(_) if is_known => return Err(unusable(&part.at, libc::EFAULT)),
                _ => {}
            }
        }
    }
    let mut held = Vec::new();
    for (part, (share, _)) in cached() {
        // SAFETY: the share beside it keeps the region.
        let region: &'static Region = unsafe { &*Arc::as_ptr(&share.region) };
        let hold = Hold::new(region, part.pages(region), writing)?;
        held.push(Locked { at: part.at.clone(), hold, share: share.clone() });
    }
    let is_there = with(|table| {
        // A pin that came after the unmapping would keep what nobody can reach.
        let is_there =
            held.iter().all(|one| table.meeting(&one.at).any(|(piece, _)| Arc::ptr_eq(&piece.share, &one.share)));
        if is_there {
            let pins = table.pins.entry(key).or_default();
            pins.count += 1;
            pins.holds.append(&mut held);
        }
        is_there
    });
    if is_there { Ok(()) } else { Err(unusable(&range, libc::EFAULT)) }
}

/// Takes back one [`keep`] of the same range.
///
/// # Errors
/// EINVAL where there is none.
pub fn let_go(addr: usize, len: usize, writing: bool) -> std::result::Result<(), i32> {
    let key = PinKey { addr, len, writing };
    let last = with(|table| {
        let pins = table.pins.get_mut(&key).ok_or(libc::EINVAL)?;
        pins.count -= 1;
        Ok::<_, i32>(if pins.count == 0 { table.pins.remove(&key) } else { None })
    });
    // With the table free: the share may be the file's last.
    last.map(drop)
}

/// Limits how far ahead a walk is read for, bytes, in the file that is mapped at an address. As
/// [`Map::set_readahead`](crate::Map::set_readahead); nothing happens to memory that is not cached.
///
/// # Errors
/// ENOMEM where nothing is mapped.
pub fn set_readahead(addr: usize, bytes: usize) -> std::result::Result<(), i32> {
    let page = addr / PAGE * PAGE;
    for part in parts_of(&range_of(page, PAGE, libc::EINVAL)?) {
        match part.region() {
            Some(region) => region.set_readahead((bytes / PAGE).min(MOST_WINDOW)),
            None => {
                let mut there = 0u8;
                // SAFETY: one page, one byte.
                check(unsafe { libc::mincore(page as *mut _, PAGE, &mut there) })?;
            }
        }
    }
    Ok(())
}

/// [`Advice::Backward`](crate::Advice::Backward) for a range, for which madvise(2) has no word. Other memory gets `MADV_NORMAL`.
///
/// # Errors
/// As for madvise(2).
pub fn expect_backward(addr: usize, len: usize) -> std::result::Result<(), i32> {
    let range = range_of(addr, len, libc::EINVAL)?;
    for part in parts_of(&range) {
        match part.region() {
            Some(region) => {
                sizes::follow(region).map_err(|error| error.errno())?;
                region.expect(part.pages(region), Expect::Backward);
            }
            None => part.advise(libc::MADV_NORMAL).map_err(|error| error.errno())?,
        }
    }
    Ok(())
}

/// Whether locks or pins keep pages of a range, so that its region cannot be replaced.
pub fn is_kept(table: &super::Table, range: &Range<usize>) -> bool {
    let mut kept = table.locked.iter().chain(table.pins.values().flat_map(|pins| &pins.holds));
    kept.any(|one| intersection(&one.at, range).is_some())
}
