//! msync(2), madvise(2) and mincore(2): what a mapping's pages hold, and what will be wanted of them.

use super::{holds_direct, on_heap, result};
use crate::copy::held;
use crate::own::{PAGE, caught, errno, owner, undisturbed};
use crate::{heap, next};
use fastmap::by_address;
use libc::{c_int, c_uchar, c_void, size_t};
use std::ops::Range;

/// msync(2).
///
/// # Safety
/// The caller keeps the contract of msync(2).
pub(crate) unsafe fn msync(addr: *mut c_void, len: size_t, flags: c_int) -> c_int {
    if held(addr, len) {
        if let Some(done) = on_heap(addr, len, |_| Ok(())) {
            return done;
        }
        return result(undisturbed(Err(libc::EIO), || by_address::sync(addr as usize, len, flags)));
    }
    if holds_direct(addr, len) {
        // `undisturbed` would cost two system calls; `by_address::sync` blocks signals itself where it must.
        return result(caught(Err(libc::EIO), || by_address::sync(addr as usize, len, flags)));
    }
    // SAFETY: the caller's contract.
    let done = unsafe { next::msync(addr, len, flags) };
    if done != 0 && errno() == libc::EINVAL && owner::may_own_maps() {
        // The engine's rings may lie in the range.
        return result(caught(Err(libc::EIO), || by_address::sync(addr as usize, len, flags)));
    }
    done
}

/// madvise(2).
///
/// # Safety
/// The caller keeps the contract of madvise(2).
pub(crate) unsafe fn madvise(addr: *mut c_void, len: size_t, advice: c_int) -> c_int {
    if holds_direct(addr, len) && !held(addr, len) {
        // SAFETY: the caller's contract.
        return result(undisturbed(Err(libc::EIO), || unsafe { by_address::advise(addr as usize, len, advice) }));
    }
    if !held(addr, len) {
        // SAFETY: the caller's contract.
        return unsafe { next::madvise(addr, len, advice) };
    }
    // The kernel checks the advice: a range of no length changes nothing.
    // SAFETY: the caller's contract.
    if unsafe { next::madvise(addr, 0, advice) } != 0 {
        return -1;
    }
    if let Some(done) = on_heap(addr, len, |part| heap::advise(part, advice)) {
        return done;
    }
    // SAFETY: the caller's contract.
    result(undisturbed(Err(libc::EIO), || unsafe { by_address::advise(addr as usize, len, advice) }))
}

/// posix_madvise(3), which returns the error's number.
///
/// # Safety
/// The caller keeps the contract of posix_madvise(3).
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn posix_madvise(addr: *mut c_void, len: size_t, advice: c_int) -> c_int {
    if !held(addr, len) {
        // SAFETY: the caller's contract.
        return unsafe { next::posix_madvise(addr, len, advice) };
    }
    // Ignored, as the C library ignores advice that would lose memory.
    if heap::part_of_heap(addr as usize, len).is_some() {
        return 0;
    }
    // The numbers are madvise(2)'s; POSIX_MADV_DONTNEED loses nothing in a shared mapping.
    if !(libc::POSIX_MADV_NORMAL..=libc::POSIX_MADV_DONTNEED).contains(&advice) {
        return libc::EINVAL;
    }
    // SAFETY: the caller's contract.
    undisturbed(Err(libc::EIO), || unsafe { by_address::advise(addr as usize, len, advice) }).err().unwrap_or(0)
}

/// mincore(2).
///
/// # Safety
/// The caller keeps the contract of mincore(2).
pub(crate) unsafe fn mincore(addr: *mut c_void, len: size_t, vec: *mut c_uchar) -> c_int {
    if held(addr, len) {
        // Pages of the heap count as present: a program cannot tell, and does not depend on it.
        let all = |part: &Range<usize>| {
            // SAFETY: the caller's contract.
            unsafe { vec.write_bytes(1, part.len().div_ceil(PAGE)) };
            Ok(())
        };
        if let Some(done) = on_heap(addr, len, all) {
            return done;
        }
        // SAFETY: the caller's contract.
        return result(undisturbed(Err(libc::EIO), || unsafe { by_address::residency(addr as usize, len, vec) }));
    }
    // SAFETY: the caller's contract.
    unsafe { next::mincore(addr, len, vec) }
}

exported! {
    fn msync(addr: *mut c_void, len: size_t, flags: c_int) -> c_int;
    fn madvise(addr: *mut c_void, len: size_t, advice: c_int) -> c_int;
    fn mincore(addr: *mut c_void, len: size_t, vec: *mut c_uchar) -> c_int;
}
