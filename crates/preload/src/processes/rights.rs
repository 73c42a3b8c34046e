//! capset(2), which changes the calling thread's capabilities. A program of one thread means the whole process by that, and does not know of the
//! engine's threads. So before the call returns, these give up each capability that no thread of the program has any more.
//!
//! The same is done after setuid(2) and its kin by number, which change the calling thread alone. When they are called by name, the C library has
//! every thread make the call.

use crate::next;
use crate::own::{owner, undisturbed};
use fastmap::by_address;
use libc::{c_int, c_long, c_void};

/// Called after a system call by number.
pub(crate) fn after_syscall(number: c_long, result: c_long) {
    if result == 0 && matches!(number, libc::SYS_capset | libc::SYS_setuid | libc::SYS_setreuid | libc::SYS_setresuid) {
        follow();
    }
}

fn follow() {
    if owner::owns_maps() {
        undisturbed((), by_address::follow_rights);
    }
}

unsafe fn capset(header: *mut c_void, rights: *const c_void) -> c_int {
    // SAFETY: the caller's contract.
    let result = unsafe { next::capset(header, rights) };
    after_syscall(libc::SYS_capset, result.into());
    result
}

exported! {
    fn capset(header: *mut c_void, rights: *const c_void) -> c_int;
}
