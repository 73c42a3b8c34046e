//! mremap(2) by address.

use super::convert::convert_range;
use super::direct;
use super::lookup::{Kind, kinds_in, range_of, rounded};
use super::own::{Owner, look, own};
use super::protect::apply_protections;
use super::table::{Piece, intersection};
use super::unmap::{clear_way, retire};
use super::why::Why;
use crate::sys::{PAGE, errno};
use std::ops::Range;

/// mremap(2). A cached map grows in place as far as its region's addresses reach (64 GiB if it may be written). Beyond that, with
/// `MREMAP_MAYMOVE`, the file is converted: other threads may store to it at the old addresses until the kernel has moved it.
///
/// # Safety
/// As for mremap(2).
///
/// # Errors
/// Those of mremap(2).
pub unsafe fn remap(old: usize, old_len: usize, new_len: usize, flags: i32, new: usize) -> Result<*mut u8, i32> {
    let wanted = Wanted::check(old, old_len, new_len, flags, new)?;
    let owner = own();
    if kinds_in(&wanted.touched()).first().is_some_and(|(_, kind)| *kind == Kind::Unmapped) {
        return Err(libc::EFAULT);
    }
    if let Some(place) = &wanted.place {
        let mut there = 0;
        // SAFETY: one page, one byte.
        if unsafe { libc::mincore(old as *mut _, PAGE, &mut there) } != 0 {
            return Err(libc::EFAULT);
        }
        // SAFETY: the caller wants what is there gone.
        unsafe { clear_way(&owner, place)? };
    }
    match wanted.piece() {
        Some(piece) => {
            if let Some(at) = change_cached(&owner, &wanted, &piece)? {
                return Ok(at);
            }
            drop(piece);
            convert_range(&owner, &wanted.touched(), Why::Moved)
                .map_err(|error| if error == libc::EBUSY { libc::EAGAIN } else { error })?;
        }
        None => convert_range(&owner, &wanted.from, Why::Moved)?,
    }
    // SAFETY: the caller's contract.
    unsafe { remap_by_kernel(&owner, &wanted, new) }
}

/// The arguments of a call, checked.
struct Wanted {
    from: Range<usize>,
    new_len: usize,
    flags: i32,
    /// The new addresses, if the caller chooses them (`MREMAP_FIXED`).
    place: Option<Range<usize>>,
}

/// How a call on a cached map is served.
enum Plan {
    /// Its end goes.
    Shrink,
    /// It grows in place.
    Grow,
    /// It cannot grow in place, and the caller does not let it move.
    Refuse,
    /// The file is converted, and the kernel serves the call.
    Convert,
}

impl Wanted {
    /// Checks everything that needs no look at what is mapped: nothing has changed yet.
    fn check(old: usize, old_len: usize, new_len: usize, flags: i32, new: usize) -> Result<Self, i32> {
        let known = libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED | libc::MREMAP_DONTUNMAP;
        let new_len = new_len.checked_next_multiple_of(PAGE).ok_or(libc::EINVAL)?;
        let is_at_a_place = flags & libc::MREMAP_FIXED != 0;
        let moves = flags & (libc::MREMAP_FIXED | libc::MREMAP_DONTUNMAP) != 0;
        let from = range_of(old, rounded(old_len), libc::EINVAL)?;
        let place = is_at_a_place.then(|| range_of(new, new_len, libc::EINVAL)).transpose()?;
        if flags & !known != 0
            || new_len == 0
            || moves && flags & libc::MREMAP_MAYMOVE == 0
            || flags & libc::MREMAP_DONTUNMAP != 0 && new_len != from.len()
            || place.as_ref().is_some_and(|place| intersection(&from, place).is_some())
        {
            return Err(libc::EINVAL);
        }
        Ok(Wanted { from, new_len, flags, place })
    }

    /// The old addresses. Of none (which asks for another mapping of the same) the first byte.
    fn touched(&self) -> Range<usize> {
        self.from.start..self.from.end.max(self.from.start + 1)
    }

    /// The addresses of a map that stays where it is.
    fn in_place(&self) -> Range<usize> {
        self.from.start..self.from.start + self.new_len
    }

    /// The cached map that the call is about. Of several layers it is the map of just this range.
    fn piece(&self) -> Option<Piece> {
        let touched = self.touched();
        let inside = |piece: &&Piece| piece.at.start <= touched.start && touched.end <= piece.at.end;
        look(|table| {
            let exact = table.pieces().iter().rev().find(|piece| piece.at == self.from);
            exact.or_else(|| table.pieces().iter().rev().find(inside)).cloned()
        })
    }

    /// The part of the file that the map has afterwards.
    fn in_file(&self, piece: &Piece) -> Range<usize> {
        let offset = piece.share.region.address().page_at(self.from.start) * PAGE;
        offset..offset + self.new_len
    }

    fn plan(&self, piece: &Piece) -> Plan {
        let region = &piece.share.region;
        if self.flags & !libc::MREMAP_MAYMOVE != 0 || self.from.is_empty() {
            return Plan::Convert;
        }
        if self.new_len <= self.from.len() {
            return Plan::Shrink;
        }
        // Memory that grows out of locked memory has to be locked as well.
        if look(|table| table.is_locked(&self.from)) {
            return Plan::Convert;
        }
        // A map behind it is another one, even if its bytes follow in the file.
        let grown = self.from.end..self.in_place().end;
        let has_room =
            !region.address().has_foreign(&self.in_file(piece)) && look(|table| table.meeting(&grown).next().is_none());
        if has_room && self.from.end == piece.at.end {
            return Plan::Grow;
        }
        if self.flags & libc::MREMAP_MAYMOVE == 0 { Plan::Refuse } else { Plan::Convert }
    }
}

/// Serves a call on a cached map. `None`: the file has to be converted.
fn change_cached(owner: &Owner, wanted: &Wanted, piece: &Piece) -> Result<Option<*mut u8>, i32> {
    let to = wanted.in_place();
    match wanted.plan(piece) {
        Plan::Shrink => {
            if to.end < wanted.from.end {
                let removed = owner.change(|table| table.shrink(piece, &(to.end..wanted.from.end)));
                drop(retire(owner, removed));
            }
        }
        Plan::Grow => {
            piece.share.region.store().note_mapped(wanted.in_file(piece).end);
            owner.change(|table| {
                table.grow(piece, &wanted.from, to.clone());
                apply_protections(table, &to).inspect_err(|_| {
                    let grown = Piece { at: to.clone(), ..piece.clone() };
                    table.grow(&grown, &to, wanted.from.clone());
                })
            })?;
        }
        Plan::Refuse => return Err(libc::ENOMEM),
        Plan::Convert => return Ok(None),
    }
    Ok(Some(to.start as *mut u8))
}

/// mremap(2) of memory that is not cached.
///
/// # Safety
/// As for mremap(2); what is at a fixed place has made way.
unsafe fn remap_by_kernel(owner: &Owner, wanted: &Wanted, new: usize) -> Result<*mut u8, i32> {
    let Wanted { from, new_len, flags, .. } = wanted;
    let (new_len, flags) = (*new_len, *flags);
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
