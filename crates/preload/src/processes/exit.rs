//! _exit(2) and every other way out but exit(3).

use super::save_files;
use crate::{next, report};
use libc::c_int;

/// Prepares every way out but exit(3). In exit(3) the engine's handler and this library's destructor do the same.
pub(crate) fn leave() {
    save_files();
    report::write();
}

/// _exit(2).
#[unsafe(no_mangle)]
pub extern "C-unwind" fn _exit(status: c_int) {
    leave();
    // SAFETY: the number is the caller's status, and the call does not return.
    unsafe { next::_exit(status) };
}

/// _Exit(3).
#[unsafe(no_mangle)]
#[allow(non_snake_case, reason = "the C library's name")]
pub extern "C-unwind" fn _Exit(status: c_int) {
    leave();
    // SAFETY: the number is the caller's status, and the call does not return.
    unsafe { next::_Exit(status) };
}

/// quick_exit(3).
#[unsafe(no_mangle)]
pub extern "C-unwind" fn quick_exit(status: c_int) {
    leave();
    // SAFETY: the number is the caller's status, and the call does not return.
    unsafe { next::quick_exit(status) };
}
