//! mmap(2) and its kin: which mappings are the engine's, and the calls on them.
//!
//! The engine's are shared mappings, and private ones that may only be read, of more than 1 MiB, not executable, of
//! regular files and block devices that the user named (all, unless told otherwise), smaller ones of files that were named if they are
//! only read, and every shared mapping of a file that it has already. Files in memory are mapped straight: of those only msync(2) is ours, where it
//! can do better than the kernel. The rest is the kernel's, untouched.
//!
//! `fastmap::by_address` has the semantics, and the table of what lies where, kernel mappings included. Here is the choice (`choice.rs`), and
//! what is said of it (`served.rs`). Objects are never the kernel's (`objects.rs`). Calls `own`, `next`, `copy`, `config`, `report`,
//! `objects`, `heap` and `threads`.

mod advise;
mod choice;
mod map;
mod objects;
mod protect;
mod remap;
mod seal;
pub(crate) mod served;

pub(crate) use advise::{madvise, mincore, msync};
pub(crate) use choice::is_own;
pub(crate) use map::mmap;
pub(crate) use protect::{mlock, mlock2, mprotect, munlock, munlockall, pkey_mprotect};
pub(crate) use remap::{mremap, munmap, remap_file_pages};
pub(crate) use seal::{SYS_MSEAL, mseal};

use crate::own::{PAGE, owner, set_errno, undisturbed};
use crate::threads;
use crate::{config, heap, say};
use fastmap::by_address::{self, Why};
use libc::{c_int, c_void, size_t};
use std::ops::Range;
use std::os::fd::BorrowedFd;
use std::sync::atomic::{AtomicBool, Ordering};

/// Whether a range may hold mappings that the engine knows of: cached, direct, or kernel mappings of files that it
/// could cache.
#[inline]
fn concerns(addr: *const c_void, len: size_t) -> bool {
    by_address::concerns(addr as usize, len)
}

/// Whether a range may hold direct mappings whose msync(2) is ours.
#[inline]
fn holds_direct(addr: *const c_void, len: size_t) -> bool {
    by_address::holds_direct(addr as usize, len)
}

/// The program has set up a queue of requests that this library does not see.
static HAS_RINGS: AtomicBool = AtomicBool::new(false);

/// Leaves all files to the kernel, those that are mapped and those that will be. Not where service threads serve such requests, too.
pub(crate) fn leave_to_rings() {
    if config().faults != fastmap::faults::Faults::Service && !HAS_RINGS.swap(true, Ordering::SeqCst) {
        let left = undisturbed(Err(libc::EIO), || by_address::leave_all_to_kernel(Why::Ring));
        if let Err(error) = left {
            let why = std::io::Error::from_raw_os_error(error);
            say(format_args!(
                "a file stays in the cache, so io_uring and Linux AIO do not read or write its mapping: {why}"
            ));
        }
    }
}

#[inline]
fn whole_pages(addr: *const c_void, len: size_t) -> Range<usize> {
    let end = (addr as usize).saturating_add(len).checked_next_multiple_of(PAGE).unwrap_or(usize::MAX);
    addr as usize..end
}

/// Removes what the engine has in a range that is about to be replaced. On failure nothing may be mapped there.
unsafe fn make_way(addr: *mut c_void, len: size_t) -> Result<(), c_int> {
    if concerns(addr, len) {
        let part = heap::part_of_heap(addr as usize, len);
        if let Some(part) = &part {
            heap::release(part);
        }
        // SAFETY: the caller's contract.
        undisturbed(Err(libc::EIO), || unsafe { by_address::make_way(addr as usize, len) })?;
        if let Some(part) = part {
            heap::forget(&part);
        }
    }
    Ok(())
}

/// Makes a call on a range of the heap; `None`: the range is not the heap's.
#[inline]
fn on_heap(addr: *const c_void, len: size_t, call: impl FnOnce(&Range<usize>) -> Result<(), c_int>) -> Option<c_int> {
    let part = heap::part_of_heap(addr as usize, len)?;
    Some(result(undisturbed(Err(libc::EIO), || call(&part))))
}

/// The engine's result as a system call's: 0, or -1 with errno.
fn result(result: Result<(), c_int>) -> c_int {
    match result {
        Ok(()) => 0,
        Err(error) => {
            set_errno(error);
            -1
        }
    }
}

/// Notes that this process maps files through the engine, whose threads never end.
fn note_maps() {
    if owner::note_maps() {
        threads::watch_for_last();
    }
}

/// Converts the files that are mapped in a range to kernel mappings, for a call that only the kernel can do.
pub(crate) fn leave_to_kernel(addr: *const c_void, len: size_t, why: Why) -> Result<(), c_int> {
    undisturbed(Err(libc::EIO), || by_address::leave_file_to_kernel(addr as usize, len, why))
}

/// Converts the file behind a descriptor, which stays the kernel's.
pub(crate) fn leave_descriptor_to_kernel(fd: c_int, why: Why) -> Result<(), c_int> {
    undisturbed(Err(libc::EIO), || {
        // SAFETY: the program's descriptor, open during its call.
        by_address::leave_descriptor_to_kernel(unsafe { BorrowedFd::borrow_raw(fd) }, why)
    })
}
