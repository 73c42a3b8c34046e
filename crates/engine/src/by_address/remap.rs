//! mremap(2) by address.

use super::convert::convert_range;
use super::lookup::{Kind, kinds_in, range_of};
use super::own::{Owner, look, own};
use super::protect::apply_protections;
use super::table::{Piece, Share, Table, intersection};
use super::unmap::{clear_way, retire};
use super::why::Why;
use super::{direct, keep};
use crate::files::table as files;
use crate::sys::{PAGE, errno, file};
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// mremap(2). A cached map grows in place as far as its region's addresses reach (64 GiB if it was mapped to be written). Beyond that, with
/// `MREMAP_MAYMOVE`, it moves if it is the only map of the file; else the file is converted.
///
/// # Safety
/// As for mremap(2).
///
/// # Errors
/// Those of mremap(2).
pub unsafe fn remap(old: usize, old_len: usize, new_len: usize, flags: i32, new: usize) -> Result<*mut u8, i32> {
    let known = libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED | libc::MREMAP_DONTUNMAP;
    let new_len = new_len.checked_next_multiple_of(PAGE).ok_or(libc::EINVAL)?;
    let is_at_a_place = flags & libc::MREMAP_FIXED != 0;
    let moves = flags & (libc::MREMAP_FIXED | libc::MREMAP_DONTUNMAP) != 0;
    let range = range_of(old, old_len, libc::EINVAL)?;
    let place = if is_at_a_place { range_of(new, new_len, libc::EINVAL)? } else { 0..0 };
    // Checked before anything at the new place goes.
    if flags & !known != 0
        || new_len == 0
        || moves && flags & libc::MREMAP_MAYMOVE == 0
        || flags & libc::MREMAP_DONTUNMAP != 0 && new_len != range.len()
        || intersection(&range, &place).is_some()
    {
        return Err(libc::EINVAL);
    }
    let first = range.start..range.end.max(range.start + 1);
    let owner = own();
    if kinds_in(&first).first().is_some_and(|(_, kind)| *kind == Kind::Unmapped) {
        return Err(libc::EFAULT);
    }
    if is_at_a_place {
        let mut there = 0;
        // SAFETY: one page, one byte.
        if unsafe { libc::mincore(old as *mut _, PAGE, &mut there) } != 0 {
            return Err(libc::EFAULT);
        }
        // SAFETY: the caller wants what is there gone.
        unsafe { clear_way(&owner, &place)? };
    }
    let by_kernel = || {
        // SAFETY: the caller's contract.
        unsafe { remap_by_kernel(&owner, &range, new_len, flags, new) }
    };
    let Some(piece) = look(|table| {
        let inside = |piece: &&Piece| piece.at.start <= range.start && first.end <= piece.at.end;
        let mut pieces = table.pieces().iter().rev();
        // Of several layers the map of just this range.
        let exact = table.pieces().iter().rev().find(|piece| piece.at == range);
        exact.or_else(|| pieces.find(inside)).cloned()
    }) else {
        convert_range(&owner, &range, Why::Moved)?;
        return by_kernel();
    };
    let (region, identity) = (piece.share.region.clone(), piece.share.identity);
    let offset = region.address().page_at(range.start) * PAGE;
    let in_file = offset..offset + new_len;
    let to = range.start..range.start + new_len;
    let is_plain = flags & !libc::MREMAP_MAYMOVE == 0 && old_len > 0;
    if is_plain && new_len <= range.len() {
        if new_len < range.len() {
            let removed = owner.change(|table| table.shrink(&piece, &(to.end..range.end)));
            drop(retire(&owner, removed));
        }
        return Ok(old as *mut u8);
    }
    // Memory that grows out of locked memory has to be locked as well.
    let is_plain = is_plain && !look(|table| table.is_locked(&range));
    let grown = range.end..to.end;
    // A map behind it is another one, even if its bytes follow in the file.
    let has_room =
        is_plain && !region.address().has_foreign(&in_file) && look(|table| table.meeting(&grown).next().is_none());
    if has_room && range.end == piece.at.end {
        region.store().note_mapped(in_file.end);
        owner.change(|table| {
            table.grow(&piece, &range, to.clone());
            apply_protections(table, &to)
        })?;
        return Ok(old as *mut u8);
    }
    if is_plain && flags & libc::MREMAP_MAYMOVE == 0 {
        return Err(libc::ENOMEM);
    }
    let is_alone = |table: &Table| {
        table.pieces().iter().filter(|one| Arc::ptr_eq(&one.share.region, &region)).count() == 1
            && !keep::is_kept(table, &range)
    };
    if is_plain && piece.at == range && look(is_alone) {
        // If another thread maps the file at this moment it is converted after all.
        if let Ok(larger) = files::replace(identity, &region, in_file.end, None) {
            piece.share.moved.store(true, Ordering::Release);
            let start = larger.address().start().wrapping_add(offset) as usize;
            let writer = piece.share.writer.as_ref().and_then(|file| file::another(file).ok());
            let (may_write, kind) = (piece.share.may_write, piece.share.kind);
            let moved = AtomicBool::new(false);
            let share = Arc::new(Share { region: larger, identity, writer, may_write, kind, moved });
            let at = start..start + new_len;
            owner.change(|table| {
                table.remove(&piece.at, false);
                table.add(Piece { at: at.clone(), share, ..piece.clone() });
                apply_protections(table, &at)
            })?;
            return Ok(start as *mut u8);
        }
    }
    drop((piece, region));
    convert_range(&owner, &first, Why::Moved)
        .map_err(|error| if error == libc::EBUSY { libc::EAGAIN } else { error })?;
    by_kernel()
}

/// mremap(2) of memory that is not cached.
///
/// # Safety
/// As for mremap(2); what is at a fixed place has made way.
unsafe fn remap_by_kernel(
    owner: &Owner,
    from: &Range<usize>,
    new_len: usize,
    flags: i32,
    new: usize,
) -> Result<*mut u8, i32> {
    let moving = |old_len| {
        direct::moving(from, new_len, || {
            // SAFETY: the caller's contract.
            let at = unsafe { libc::mremap(from.start as *mut _, old_len, new_len, flags, new) };
            if at == libc::MAP_FAILED {
                return Err(errno());
            }
            if flags & libc::MREMAP_FIXED != 0 {
                owner.change(|table| table.kernel_mappings.forget(&(new..new + new_len)));
            }
            Ok(at.cast())
        })
    };
    if look(|table| table.kernel_mappings.is_layered(from)) && flags & libc::MREMAP_MAYMOVE != 0 {
        // Another mapping of the same, and one layer less of this one.
        let at = moving(0)?;
        owner.change(|table| {
            table.kernel_mappings.moved(from, at as usize..at as usize + new_len, true);
            if !from.is_empty() && flags & libc::MREMAP_DONTUNMAP == 0 {
                table.kernel_mappings.remove(from);
            }
        });
        return Ok(at);
    }
    let at = moving(from.len())?;
    owner.change(|table| {
        let (to, stays) = (at as usize..at as usize + new_len, flags & libc::MREMAP_DONTUNMAP != 0);
        table.kernel_mappings.moved(from, to, stays);
    });
    Ok(at)
}
