//! mprotect(2) by address.

use super::convert::convert_range;
use super::direct;
use super::lookup::{Kind, check, holds, kinds_in, range_of};
use super::map::SERVED;
use super::own::{look, own};
use super::table::Table;
use super::why::Why;
use crate::files::{lifecycle, table as files};
use crate::region::region::Region;
use crate::sys::{PAGE, descriptor_table};
use std::ops::Range;
use std::sync::Arc;

/// mprotect(2). A whole map of the cache stays in the cache with `PROT_READ`, with or without `PROT_WRITE`. The protection of a part, and any
/// other protection, converts the file.
///
/// # Safety
/// As for mprotect(2).
///
/// # Errors
/// Those of mprotect(2): EACCES for `PROT_WRITE` through a descriptor that may not write; what keeps a file from being
/// converted to kernel mappings.
pub unsafe fn protect(addr: usize, len: usize, prot: i32) -> Result<(), i32> {
    /// With `PROT_SEM` (asm-generic/mman-common.h); the others are for stacks.
    const KNOWN: i32 = libc::PROT_READ | libc::PROT_WRITE | libc::PROT_EXEC | 8;
    let kernel = || {
        // SAFETY: the caller's contract.
        check(unsafe { libc::mprotect(addr as *mut _, len, prot) })
    };
    if !addr.is_multiple_of(PAGE) || len == 0 || prot & !KNOWN != 0 {
        return kernel();
    }
    let range = range_of(addr, len, libc::ENOMEM)?;
    // Most ranges that a program protects have nothing of the table. They do not wait for its owner.
    let concerns = holds(addr, len) || direct::holds_direct(addr, len);
    if !concerns && !look(|table| table.kernel_mappings.meets(&range)) {
        return kernel();
    }
    let owner = own();
    direct::protecting(&range, prot);
    let kinds = kinds_in(&range);
    if kinds.iter().any(|(_, kind)| *kind == Kind::Other) {
        owner.change(|table| table.kernel_mappings.protected(&range));
    }
    if kinds.iter().all(|(_, kind)| *kind == Kind::Other) {
        return kernel();
    }
    if kinds[0].1 == Kind::Unmapped {
        return Err(libc::ENOMEM);
    }
    let is_cached = kinds.iter().all(|(_, kind)| *kind == Kind::Cached);
    if is_cached && let Some(done) = owner.change(|table| protect_whole(table, &range, prot)) {
        return done;
    }
    convert_range(&owner, &range, Why::Protection)?;
    // mprotect(2) stops at the first hole. To the program, addresses of a region that no map covered are a hole.
    let end = kinds.iter().find(|(_, kind)| *kind == Kind::Unmapped).map_or(range.end, |(part, _)| part.start);
    // SAFETY: the caller's contract.
    check(unsafe { libc::mprotect(addr as *mut _, end - range.start, prot) })?;
    if end == range.end { Ok(()) } else { Err(libc::ENOMEM) }
}

/// mprotect(2) of whole maps that stay in the cache. `None`: they cannot.
fn protect_whole(table: &mut Table, range: &Range<usize>, prot: i32) -> Option<Result<(), i32>> {
    let is_whole = table.meeting(range).all(|(piece, part)| piece.at == part);
    // To open the file in another descriptor table is of no use.
    let opens = prot & libc::PROT_WRITE != 0 && !descriptor_table::is_engines();
    // Stores to a private mapping are not the file's.
    let copies = prot & libc::PROT_WRITE != 0 && table.has_kind(range, libc::MAP_PRIVATE);
    if !is_whole || opens || copies || !SERVED.contains(&prot) {
        return None;
    }
    let shares: Vec<_> = table.meeting(range).map(|(piece, _)| piece.share.clone()).collect();
    if prot & libc::PROT_WRITE != 0 {
        match shares.iter().filter(|share| share.may_write).count() {
            0 => return Some(Err(libc::EACCES)),
            all if all == shares.len() => {}
            // The kernel does it up to the first that may not.
            _ => return None,
        }
    }
    for share in &shares {
        let region = &share.region;
        if prot & libc::PROT_WRITE != 0
            && !region.is_writable()
            && let Some(from) = &share.writer
            && let Err(error) = files::let_write(region, from, share.one_writer)
        {
            return Some(Err(error.errno()));
        }
    }
    table.set_protection(range, prot);
    Some(shares.iter().try_for_each(|share| apply_all(table, &share.region)))
}

/// Sets what the program may do to all maps of a region, which may have been made writable just now.
pub(super) fn apply_all(table: &Table, region: &Arc<Region>) -> Result<(), i32> {
    let of_region = table.pieces().iter().filter(|piece| Arc::ptr_eq(&piece.share.region, region));
    of_region.map(|piece| piece.at.clone()).try_for_each(|part| apply_protections(table, &part))
}

/// Sets what the program may do to a range of pages, which maps cover.
pub(super) fn apply_protections(table: &Table, range: &Range<usize>) -> Result<(), i32> {
    for (part, prot) in table.protections(range) {
        let Some((piece, _)) = table.meeting(&part).next() else { continue };
        let region = &piece.share.region;
        // SAFETY: the program's own maps; the engine needs no more than the program.
        unsafe {
            if region.is_writable() {
                check(libc::mprotect(part.start as *mut _, part.len(), prot))?;
            } else {
                let opened = lifecycle::open_to_loads(region, part.start as *mut u8, part.len());
                opened.map_err(|error| error.raw_os_error().unwrap_or(libc::ENOMEM))?;
            }
        }
    }
    Ok(())
}

/// Converts every file that is mapped in a range to kernel mappings, all of its maps: before a system call that only
/// the kernel can do, such as pkey_mprotect(2) with a key.
///
/// # Errors
/// ENOMEM: there is a hole in the range; what keeps a file from being converted.
pub fn leave_file_to_kernel(addr: usize, len: usize, why: Why) -> Result<(), i32> {
    // The system call itself returns the errors of invalid ranges.
    let Ok(range) = range_of(addr, len, libc::EINVAL) else { return Ok(()) };
    let owner = own();
    if kinds_in(&range).iter().any(|(_, kind)| *kind == Kind::Unmapped) {
        return Err(libc::ENOMEM);
    }
    convert_range(&owner, &range, why)
}
