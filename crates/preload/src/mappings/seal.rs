//! mseal(2): a range that is never unmapped, moved, replaced or protected otherwise.
//!
//! Only the kernel can see to that, so what is sealed is the kernel's from then on. What it refuses must not change what is known of the
//! mappings, and the tables change before it is asked: so the sealed ranges are known here, and calls on them go straight to the kernel.

use super::{leave_to_kernel, result, whole_pages};
use crate::copy::held;
use crate::next;
use crate::own::guard::Guarded;
use fastmap::by_address::Why;
use libc::{c_int, c_long, c_ulong, c_void, size_t};
use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};

/// mseal(2)'s number, the same for all machines.
pub(crate) const SYS_MSEAL: c_long = 462;

static SEALED: Guarded<Vec<Range<usize>>> = Guarded::new(Vec::new());
/// Whether there is any.
static ANY: AtomicBool = AtomicBool::new(false);

/// Whether a call that would take away or change what is mapped in a range is the kernel's to refuse, since a part of it is sealed.
#[inline]
pub(super) fn forbids(addr: *const c_void, len: size_t) -> bool {
    ANY.load(Ordering::Relaxed) && meets(whole_pages(addr, len))
}

#[cold]
fn meets(range: Range<usize>) -> bool {
    SEALED.with(|sealed| sealed.iter().any(|one| one.start < range.end && range.start < one.end))
}

/// The result of such a call: EPERM, as the kernel has it.
pub(super) fn refused() -> c_int {
    result(Err(libc::EPERM))
}

/// mseal(2).
///
/// # Safety
/// The caller keeps the contract of mseal(2).
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C-unwind" fn mseal(addr: *mut c_void, len: size_t, flags: c_ulong) -> c_int {
    let call = |len: size_t| {
        // SAFETY: it takes no memory.
        unsafe { next::syscall(SYS_MSEAL, addr as c_long, len as c_long, flags as c_long, 0, 0, 0) as c_int }
    };
    // Nothing is sealed by no length: whether the kernel knows the call, and would take these arguments, before anything changes.
    if call(0) != 0 {
        return -1;
    }
    if held(addr, len)
        && let Err(error) = leave_to_kernel(addr, len, Why::Call)
    {
        return result(Err(error));
    }
    let sealed = call(len);
    if sealed == 0 && len > 0 {
        SEALED.with(|all| all.push(whole_pages(addr, len)));
        ANY.store(true, Ordering::Release);
    }
    sealed
}
