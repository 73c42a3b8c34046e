//! mprotect(2), mlock(2) and their kin.

use super::choice::risks_stores;
use super::{concerns, leave_to_kernel, on_heap, result, seal};
use crate::copy::held;
use crate::own::{owner, undisturbed};
use crate::{heap, next};
use fastmap::by_address::{self, Why};
use libc::{c_int, c_uint, c_void, size_t};

/// mprotect(2).
///
/// # Safety
/// The caller keeps the contract of mprotect(2).
pub(crate) unsafe fn mprotect(addr: *mut c_void, len: size_t, prot: c_int) -> c_int {
    // SAFETY: the caller's contract.
    unsafe { protect(addr, len, prot) }
}

unsafe fn protect(addr: *mut c_void, len: size_t, prot: c_int) -> c_int {
    if seal::forbids(addr, len) {
        return seal::refused();
    }
    if held(addr, len) {
        if let Some(done) = on_heap(addr, len, |part| heap::protect(part, prot)) {
            return done;
        }
        if undisturbed(true, || risks_stores(prot)) {
            match leave_to_kernel(addr, len, Why::AtRisk) {
                // EOPNOTSUPP: there is an object in the range, which cannot be stored to. ENOMEM: part of the range is not
                // mapped. Then `by_address::protect` below converts the files in the mapped part, or refuses the call.
                Ok(()) | Err(libc::EOPNOTSUPP | libc::ENOMEM) => {}
                error => return result(error),
            }
        }
    } else if prot & libc::PROT_WRITE != 0 && by_address::is_object_in_child(addr as usize, len) {
        return result(Err(libc::EOPNOTSUPP));
    } else if !concerns(addr, len) {
        // SAFETY: the caller's contract.
        return unsafe { next::mprotect(addr, len, prot) };
    }
    // SAFETY: the caller's contract.
    result(undisturbed(Err(libc::EIO), || unsafe { by_address::protect(addr as usize, len, prot) }))
}

/// pkey_mprotect(2). Without a key it is mprotect(2); with one the file is converted, since the engine's pages have no
/// keys.
///
/// # Safety
/// The caller keeps the contract of pkey_mprotect(2).
pub(crate) unsafe fn pkey_mprotect(addr: *mut c_void, len: size_t, prot: c_int, key: c_int) -> c_int {
    // SAFETY: the caller's contract.
    unsafe {
        match key {
            -1 => protect(addr, len, prot),
            _ if heap::part_of_heap(addr as usize, len).is_some() => result(Err(libc::EINVAL)),
            _ => {
                if held(addr, len) {
                    let done = leave_to_kernel(addr, len, Why::Call);
                    if done.is_err() {
                        return result(done);
                    }
                }
                by_address::leave_to_kernel(addr as usize, len);
                next::pkey_mprotect(addr, len, prot, key)
            }
        }
    }
}

/// Pins the engine's pages. Where the budget for pins does not suffice, the file is converted, and the kernel locks its
/// pages.
pub(super) fn lock_cached(addr: *const c_void, len: size_t) -> Result<(), c_int> {
    by_address::lock(addr as usize, len, true)
}

/// mlock(2), of the engine's pages too.
///
/// # Safety
/// The caller keeps the contract of mlock(2).
pub(crate) unsafe fn mlock(addr: *const c_void, len: size_t) -> c_int {
    if held(addr, len) {
        if let Some(done) = on_heap(addr, len, heap::lock) {
            return done;
        }
        return result(undisturbed(Err(libc::EIO), || lock_cached(addr, len)));
    }
    // SAFETY: the caller's contract.
    unsafe { next::mlock(addr, len) }
}

/// mlock2(2). The engine's pages are brought in at once, `MLOCK_ONFAULT` or not.
///
/// # Safety
/// The caller keeps the contract of mlock2(2).
pub(crate) unsafe fn mlock2(addr: *const c_void, len: size_t, flags: c_uint) -> c_int {
    if flags & !(libc::MLOCK_ONFAULT as c_uint) == 0 && held(addr, len) {
        if let Some(done) = on_heap(addr, len, heap::lock) {
            return done;
        }
        return result(undisturbed(Err(libc::EIO), || lock_cached(addr, len)));
    }
    // SAFETY: the caller's contract.
    unsafe { next::mlock2(addr, len, flags) }
}

/// munlock(2).
///
/// # Safety
/// The caller keeps the contract of munlock(2).
pub(crate) unsafe fn munlock(addr: *const c_void, len: size_t) -> c_int {
    if held(addr, len) {
        if let Some(done) = on_heap(addr, len, |part| {
            heap::unlock(part);
            Ok(())
        }) {
            return done;
        }
        return result(undisturbed(Err(libc::EIO), || by_address::unlock(addr as usize, len)));
    }
    // SAFETY: the caller's contract.
    unsafe { next::munlock(addr, len) }
}

/// munlockall(2). (mlockall(2) is not intercepted. It has no effect on cached maps: it neither brings pages in nor pins
/// them.)
///
/// # Safety
/// It has no preconditions; it is unsafe as its namesake in `next`.
pub(crate) unsafe fn munlockall() -> c_int {
    if owner::owns_maps() {
        undisturbed((), by_address::unlock_all);
    }
    // SAFETY: munlockall takes no memory.
    unsafe { next::munlockall() }
}

exported! {
    fn mprotect(addr: *mut c_void, len: size_t, prot: c_int) -> c_int;
    fn pkey_mprotect(addr: *mut c_void, len: size_t, prot: c_int, key: c_int) -> c_int;
    fn mlock(addr: *const c_void, len: size_t) -> c_int;
    fn mlock2(addr: *const c_void, len: size_t, flags: c_uint) -> c_int;
    fn munlock(addr: *const c_void, len: size_t) -> c_int;
    fn munlockall() -> c_int;
}
