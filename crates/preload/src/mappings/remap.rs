//! munmap(2), mremap(2) and remap_file_pages(2).

use super::choice::{SMALL, left_for_stores};
use super::map::{Wanted, by_engine};
use super::served::note_kernels;
use super::{concerns, leave_to_kernel, make_way, result, seal};
use crate::copy::held;
use crate::own::{PAGE, set_errno, undisturbed};
use crate::{config, heap, next};
use fastmap::Mode;
use fastmap::by_address::{self, Why};
use libc::{c_int, c_void, size_t};
use std::os::fd::BorrowedFd;

/// munmap(2).
///
/// # Safety
/// The caller keeps the contract of munmap(2).
pub(crate) unsafe fn munmap(addr: *mut c_void, len: size_t) -> c_int {
    if seal::forbids(addr, len) {
        return seal::refused();
    }
    if !concerns(addr, len) {
        // SAFETY: the caller's contract.
        return unsafe { next::munmap(addr, len) };
    }
    if (addr as usize).is_multiple_of(PAGE)
        && len > 0
        && let Some(part) = heap::part_of_heap(addr as usize, len)
    {
        undisturbed((), || heap::unmap(&part));
    }
    // SAFETY: the caller's contract.
    result(undisturbed(Err(libc::EIO), || unsafe { by_address::unmap(addr as usize, len) }))
}

/// mremap(2).
///
/// # Safety
/// The caller keeps the contract of mremap(2).
pub(crate) unsafe fn mremap(
    old: *mut c_void,
    old_len: size_t,
    new_len: size_t,
    flags: c_int,
    new: *mut c_void,
) -> *mut c_void {
    let new = if flags & libc::MREMAP_FIXED != 0 { new } else { std::ptr::null_mut() };
    if seal::forbids(old, old_len) || !new.is_null() && seal::forbids(new, new_len) {
        seal::refused();
        return libc::MAP_FAILED;
    }
    let replaces = !new.is_null() && concerns(new, new_len);
    if !replaces && !concerns(old, old_len) {
        // SAFETY: the caller's contract.
        return unsafe { next::mremap(old, old_len, new_len, flags, new) };
    }
    if let Some(old) = heap::part_of_heap(old as usize, old_len) {
        // SAFETY: the caller's contract.
        let way = if replaces { unsafe { make_way(new, new_len) } } else { Ok(()) };
        // SAFETY: the caller's contract.
        let moved = way.and_then(|()| undisturbed(Err(libc::EIO), || unsafe { heap::remap(old, new_len, flags, new) }));
        return moved.map_or_else(
            |error| {
                set_errno(error);
                libc::MAP_FAILED
            },
            |at| at as *mut c_void,
        );
    }
    // SAFETY: the caller's contract.
    if let Some(at) = unsafe { outgrow(old, old_len, new_len, flags) } {
        return at;
    }
    let moved =
        // SAFETY: the caller's contract.
        undisturbed(Err(libc::EIO), || unsafe { by_address::remap(old as usize, old_len, new_len, flags, new as usize) });
    match moved {
        Ok(at) => at.cast(),
        Err(error) => {
            set_errno(error);
            libc::MAP_FAILED
        }
    }
}

/// The only mapping of a file, small so far and therefore the kernel's, becomes the engine's when it becomes large.
unsafe fn outgrow(old: *mut c_void, old_len: size_t, new_len: size_t, flags: c_int) -> Option<*mut c_void> {
    if old_len > SMALL || new_len <= SMALL || flags != libc::MREMAP_MAYMOVE || config().off {
        return None;
    }
    // Nobody else maps the file until it is the engine's.
    let owner = by_address::own();
    let made = undisturbed(None, || by_address::alone(old as usize, old_len))?;
    let wanted = Wanted {
        addr: std::ptr::null_mut(),
        len: new_len,
        prot: made.prot,
        flags: made.flags & libc::MAP_TYPE,
        fd: made.fd,
        offset: made.offset,
    };
    if made.prot & libc::PROT_EXEC != 0 {
        return None;
    }
    // SAFETY: a descriptor of the program's, open on that file a moment ago; another file only gives another answer.
    let fd = unsafe { BorrowedFd::borrow_raw(made.fd) };
    let is_in_memory = || by_address::is_in_memory(fd);
    if config().direct != Mode::Cached && undisturbed(false, is_in_memory) {
        return None;
    }
    if let Some(why) = undisturbed(Some(Why::NoCache), || left_for_stores(made.fd, made.prot)) {
        note_kernels(made.fd, new_len, why);
        return None;
    }
    // SAFETY: the caller's contract: the old mapping is exchanged for the new one.
    undisturbed(None, || unsafe {
        // Removes the note that the file is the kernel's.
        by_address::make_way(old as usize, old_len).ok()?;
        match by_engine(wanted) {
            Ok(Some(at)) => {
                next::munmap(old, old_len);
                Some(at)
            }
            _ => {
                by_address::note_kernel(&owner, fd, old as usize, old_len, Some(made));
                None
            }
        }
    })
}

/// remap_file_pages(2): maps other bytes over a part, which only kernel mappings can do. (The kernel emulates it too.)
///
/// # Safety
/// The caller keeps the contract of remap_file_pages(2).
pub(crate) unsafe fn remap_file_pages(
    addr: *mut c_void,
    len: size_t,
    prot: c_int,
    page: size_t,
    flags: c_int,
) -> c_int {
    if held(addr, len)
        && let Err(error) = leave_to_kernel(addr, len, Why::Call)
    {
        // remap_file_pages(2) reports a hole as EINVAL.
        return result(Err(if error == libc::ENOMEM { libc::EINVAL } else { error }));
    }
    // SAFETY: the caller's contract.
    unsafe { next::remap_file_pages(addr, len, prot, page, flags) }
}

exported! {
    fn munmap(addr: *mut c_void, len: size_t) -> c_int;
    fn mremap(old: *mut c_void, old_len: size_t, new_len: size_t, flags: c_int, new: *mut c_void) -> *mut c_void;
    fn remap_file_pages(addr: *mut c_void, len: size_t, prot: c_int, page: size_t, flags: c_int) -> c_int;
}
