//! capset(2): it changes the calling thread's capabilities. A program of one thread means all that it has, and the engine's threads are
//! none that it knows of: they give up what none of the program's has any more, before the call returns. So they do after setuid(2) and its
//! kin by number, which are the calling thread's as well; by name the C library has every thread do them.

use crate::next;
use crate::own::{owner, undisturbed};
use fastmap::by_address;
use libc::{c_int, c_long, c_void};

/// After a system call by number.
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
