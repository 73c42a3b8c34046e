//! munmap(2) by address, and how maps make way for a mapping at a fixed place (`MAP_FIXED`).

use super::convert::convert_for;
use super::direct;
use super::lookup::{check, holds, range_of};
use super::own::{Owner, look, own};
use super::table::{Piece, Removed, Table, intersection, pages_at};
use super::why::Why;
use crate::coherence::to_kernel;
use crate::fault::child;
use crate::files::length;
use crate::region::region::Region;
use crate::region::registry;
use crate::sys::fork;
use crate::writeback::flush;
use std::ops::Range;
use std::sync::atomic::Ordering;

/// munmap(2).
///
/// # Safety
/// As for munmap(2): nobody uses the range any more.
///
/// # Errors
/// EINVAL as from munmap(2). Pages that cannot be written to their file stay in memory, and the writers go on trying.
pub unsafe fn unmap(addr: usize, len: usize) -> Result<(), i32> {
    if len == 0 {
        return Err(libc::EINVAL);
    }
    let range = range_of(addr, len, libc::EINVAL)?;
    forget_in_child(&range);
    let owner = own();
    let (parts, removed, layers) =
        owner.change(|table| (table.parts(&range), table.remove(&range, false), table.kernel_mappings.remove(&range)));
    let given_back = retire(&owner, removed);
    for (part, _) in parts.into_iter().filter(|(_, covered)| !covered) {
        // SAFETY: the caller's contract. Addresses of regions that no map covers are left alone.
        each_foreign(&part, &layers, |part| {
            direct::forget(&part);
            // SAFETY: the caller's contract.
            check(unsafe { libc::munmap(part.start as *mut _, part.len()) })
        })?;
    }
    // To drop the last map of a file writes what was stored to it. Other threads go on meanwhile, and one that wants this file waits for that.
    drop(owner);
    drop(given_back);
    Ok(())
}

fn forget_in_child(range: &Range<usize>) {
    if fork::is_child() {
        child::forget(range);
    }
}

/// Runs `then` on the parts of a range that lie in no region's own addresses, and not in `others`.
fn each_foreign(
    range: &Range<usize>,
    others: &[Range<usize>],
    mut then: impl FnMut(Range<usize>) -> Result<(), i32>,
) -> Result<(), i32> {
    let mut own: Vec<Range<usize>> = others.iter().filter_map(|part| intersection(part, range)).collect();
    if holds(range.start, range.len()) {
        for region in registry::all() {
            own.extend(region.address().own_addresses().into_iter().filter_map(|part| intersection(&part, range)));
        }
    }
    own.sort_by_key(|part| part.start);
    let mut at = range.start;
    for part in own.into_iter().chain(std::iter::once(range.end..range.end)) {
        if part.start > at {
            then(at..part.start)?;
        }
        at = at.max(part.end);
    }
    Ok(())
}

/// Clears the parts of regions that no map covers any more: nothing is there then, as after munmap(2). The caller gives the maps themselves back
/// by dropping the pieces that are returned.
pub(super) fn retire(owner: &Owner, removed: Removed) -> Vec<Piece> {
    drop(removed.locked);
    for (share, part) in &removed.bare {
        let region = &share.region;
        // The part of a converted region is the kernel's to unmap.
        if region.is_converted() || region.is_writable() && flush::flush(region, pages_at(region, part), false).is_err()
        {
            continue;
        }
        owner.change(|table| {
            // A part that a new map covers again stays.
            for (bare, _) in table.parts(part).into_iter().filter(|(_, covered)| !covered) {
                region.distrust(0);
                region.least_end().fetch_min(pages_at(region, &bare).start, Ordering::AcqRel);
                if clear_out(region, &bare).is_ok() {
                    // SAFETY: addresses of the region that no map covers.
                    unsafe { libc::mprotect(bare.start as *mut _, bare.len(), libc::PROT_NONE) };
                }
            }
        });
    }
    removed.pieces
}

/// Takes a range of a region out of memory, its dirty pages saved.
fn clear_out(region: &Region, range: &Range<usize>) -> Result<(), i32> {
    let _length = region.lock_length();
    length::leave_memory(region, pages_at(region, range)).map(drop).map_err(|error| error.errno())
}

/// Takes cached maps out of a range, all layers of them, for other memory that is about to replace it (`MAP_FIXED`): a file that has maps there
/// is converted, and an object's are unmapped. Nothing happens where there are none.
///
/// # Safety
/// Anything there goes; the caller maps the range next.
///
/// # Errors
/// EBUSY: pages are pinned, and stay so. Others: why the file cannot be saved. Files' maps are as before then, and nothing may be mapped there.
pub unsafe fn make_way(addr: usize, len: usize) -> Result<(), i32> {
    // The kernel refuses an invalid range.
    if let Ok(range) = range_of(addr, len, libc::ENOMEM) {
        forget_in_child(&range);
        let owner = own();
        // SAFETY: the caller's contract.
        unsafe { clear_way(&owner, &range)? };
        owner.change(|table| table.kernel_mappings.forget(&range));
    }
    Ok(())
}

/// Takes cached maps out of a range as [`make_way`] does, and keeps the notes of kernel mappings that may be there.
///
/// # Safety
/// Anything there goes; the caller maps the range next.
pub(super) unsafe fn clear_way(owner: &Owner, range: &Range<usize>) -> Result<(), i32> {
    if holds(range.start, range.len()) {
        let files = |table: &Table| {
            let met = table.meeting(range).filter(|(piece, _)| !piece.is_objects());
            met.map(|(piece, _)| piece.share.identity).collect::<Vec<_>>()
        };
        for identity in look(files) {
            convert_for(owner, identity, range, Why::Replaced).map_err(|error| error.errno())?;
        }
        // What is left are objects, which the kernel cannot map: they keep the rest. The pieces go last, since the end of a region unmaps it.
        let _given_back = retire(owner, owner.change(|table| table.remove(range, true)));
        // Now the addresses of regions that no map covers, and those of the heap, which is no map by address.
        for region in registry::all() {
            for part in region.address().own_addresses().into_iter().filter_map(|part| intersection(&part, range)) {
                // The kernel has all of the file now: no map covers the part.
                to_kernel::patiently(|| to_kernel::make_foreign(&region, pages_at(&region, &part)))?;
            }
        }
    }
    direct::forget(range);
    Ok(())
}
