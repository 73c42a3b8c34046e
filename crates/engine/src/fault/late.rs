//! Traps that were taken on a region's memory before it became the kernel's.

use crate::sys::signal::Trap;
use crate::sys::{PAGE, errno};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

/// Some region has become a kernel mapping.
static ANY: AtomicBool = AtomicBool::new(false);

/// Notes that a region has become the kernel's: from now on traps may come late.
pub fn expect_late() {
    ANY.store(true, Ordering::Release);
}

/// Whether a trap on an address that is no region's was taken before the region there was handed over, so that the access succeeds now.
/// False: the signal is the kernel's own (past the end of the file, say), and the program's to deal with.
pub fn is_late(trap: Trap) -> bool {
    /// Traps that are still taken for late ones where the kernel cannot be asked.
    static CREDULITY: AtomicUsize = AtomicUsize::new(10_000);
    if !ANY.load(Ordering::Acquire) {
        return false;
    }
    let advice = if trap.is_store { libc::MADV_POPULATE_WRITE } else { libc::MADV_POPULATE_READ };
    // SAFETY: it does what the program's own access does, and says how that ends (Linux 5.14).
    let populated = unsafe { libc::madvise((trap.address / PAGE * PAGE) as *mut _, PAGE, advice) } == 0;
    let one_less = |left: usize| left.checked_sub(1);
    populated
        || errno() == libc::EINVAL && CREDULITY.fetch_update(Ordering::Relaxed, Ordering::Relaxed, one_less).is_ok()
}
