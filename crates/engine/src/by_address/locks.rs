//! mlock(2) and its kin by address, and pins that a program holds by a guard.

use super::access::failed;
use super::convert::convert_range;
use super::keep::Locked;
use super::lookup::{Kind, check, kinds_in, range_of, rounded};
use super::own::{look, note_kept, own};
use super::table::pages_at;
use super::why::Why;
use crate::coherence::to_kernel;
use crate::error::Error;
use crate::pin::pin::Hold;
use crate::region::region::Region;
use crate::region::seats::Seat;
use crate::sys::PAGE;
use crate::sys::signal::Blocked;
use std::ops::Range;
use std::sync::Arc;

/// mlock(2): pins the pages of cached maps, within the budget for pins. More than that is an error; with `anyhow` the whole file is converted
/// instead, and the kernel locks the pages.
///
/// # Errors
/// Those of mlock(2); ENOMEM over the budget.
pub fn lock(addr: usize, len: usize, anyhow: bool) -> Result<(), i32> {
    let addr_page = addr / PAGE * PAGE;
    let len = rounded(len.wrapping_add(addr - addr_page));
    // SAFETY: it brings memory in.
    let kernel = |part: Range<usize>| check(unsafe { libc::mlock(part.start as *const _, part.len()) });
    may_lock(len)?;
    for (part, kind) in kinds_in(&range_of(addr_page, len, libc::EINVAL)?) {
        match kind {
            Kind::Other => kernel(part)?,
            Kind::Unmapped => return Err(libc::ENOMEM),
            Kind::Cached => match lock_cached(&part) {
                Err(Error::PinBudget { .. } | Error::TooManyPins { .. }) if anyhow => {
                    let owner = own();
                    convert_range(&owner, &part, Why::Locked)?;
                    kernel(part)?;
                }
                // The kernel's by now.
                Err(error) if error.is_of_changed_hands() => kernel(part)?,
                Err(Error::PinBudget { .. } | Error::TooManyPins { .. } | Error::PastEnd { .. }) => {
                    return Err(libc::ENOMEM);
                }
                done => done.map_err(|error| error.errno())?,
            },
        }
    }
    Ok(())
}

/// Whether this process may lock so much (setrlimit(2), capabilities(7)). The kernel is asked to lock as much memory that nobody uses.
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

fn lock_cached(range: &Range<usize>) -> crate::error::Result<()> {
    let pieces = look(|table| table.meeting(range).map(|(piece, at)| (piece.share.clone(), at)).collect::<Vec<_>>());
    for (share, at) in pieces {
        // SAFETY: the share beside it keeps the region.
        let region: &'static Region = unsafe { &*Arc::as_ptr(&share.region) };
        let known = look(|table| table.locked.iter().any(|one| one.at.start <= at.start && at.end <= one.at.end));
        if known {
            continue;
        }
        let hold = Hold::new(region, pages_at(region, &at), false)?;
        let lock = Locked { at, hold, share };
        let late = note_kept(|table| {
            // A lock that came after the unmapping, or the conversion, would keep what nobody can reach.
            let is_there = table.meeting(&lock.at).any(|(piece, _)| Arc::ptr_eq(&piece.share, &lock.share));
            if is_there {
                table.locked.push(lock);
                None
            } else {
                Some(lock)
            }
        });
        if late.is_some() {
            drop(late);
            return Err(failed(range, Error::CHANGED_HANDS, libc::ESTALE));
        }
    }
    Ok(())
}

/// munlock(2).
///
/// # Errors
/// Those of munlock(2).
pub fn unlock(addr: usize, len: usize) -> Result<(), i32> {
    let addr_page = addr / PAGE * PAGE;
    let len = rounded(len.wrapping_add(addr - addr_page));
    for (part, kind) in kinds_in(&range_of(addr_page, len, libc::EINVAL)?) {
        match kind {
            Kind::Unmapped => return Err(libc::ENOMEM),
            Kind::Cached => drop(note_kept(|table| table.unlock(&part))),
            // SAFETY: it lets memory go.
            Kind::Other => check(unsafe { libc::munlock(part.start as *const _, part.len()) })?,
        }
    }
    Ok(())
}

/// munlockall(2), the part of cached maps.
pub fn unlock_all() {
    drop(note_kept(|table| std::mem::take(&mut table.locked)));
}

/// Pages kept in memory until dropped.
#[derive(Debug)]
pub struct PinnedRange(#[expect(dead_code, reason = "kept for its drop")] Hold<'static>);

/// Keeps the pages of a range of one cached map in memory, and writable if the map is: for what the kernel reads or
/// writes at any time (futex(2), stacks on which it delivers signals). `None`: not in a cached map, or no room for
/// pins.
///
/// # Safety
/// The range stays mapped until the guard is dropped.
pub unsafe fn pin(addr: usize, len: usize) -> Option<PinnedRange> {
    loop {
        let blocked = Blocked::all();
        // SAFETY: the program has it mapped, which keeps the region, unless it becomes the kernel's. That waits for the seat, and then for the pins.
        let region = unsafe { Seat::take().find(addr) }?;
        if !region.is_leaving() {
            let pages = pages_at(&region, &(addr..addr + len.max(1)));
            // SAFETY: the pins keep it when the seat is left.
            let region = unsafe { region.outlived() };
            // To futex(2) a write-protected anonymous page is one that nobody will ever store to: EFAULT.
            return Hold::new(region, pages, region.is_writable()).ok().map(PinnedRange);
        }
        drop((region, blocked));
        to_kernel::nap();
    }
}
