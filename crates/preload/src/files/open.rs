//! open(2), openat(2) and creat(2), which may empty a file.

use super::{coherence, memory};
use crate::copy::{Call, held, mapped};
use crate::own::remembered;
use crate::processes::sandbox;
use crate::{next, objects};
use libc::{c_char, c_int, mode_t};

/// Makes a call that opens a file with these flags, and may empty it. `call` gets the path to use.
///
/// # Safety
/// `call` may be made with this path.
#[inline]
pub unsafe fn opening(
    folder: c_int,
    path: *const c_char,
    flags: c_int,
    call: impl FnOnce(*const c_char) -> c_int,
) -> c_int {
    // SAFETY: the contract.
    if let Some(object) = unsafe { objects::reached(folder, path) } {
        let opened = object.open(flags);
        if opened >= 0 {
            remembered::opened(opened, true);
        }
        return opened;
    }
    let empties = flags & libc::O_TRUNC != 0;
    let reads_only = flags & libc::O_ACCMODE == libc::O_RDONLY;
    // SAFETY: the contract.
    unsafe {
        let concerned = held(path, libc::PATH_MAX as usize) || empties && mapped();
        if !concerned {
            let opened = call(path);
            if opened >= 0 {
                remembered::opened(opened, reads_only);
                memory::opened(path);
                sandbox::looked_at(path);
                coherence::await_keeper(opened);
            }
            return opened;
        }
        let arguments = Call::new();
        let path = arguments.text(path, libc::PATH_MAX as usize);
        let opened = coherence::emptying(empties.then_some((folder, path)), || coherence::Opened(call(path)));
        remembered::opened(opened, reads_only);
        coherence::await_keeper(opened);
        opened
    }
}

/// Wrappers of calls that open a file: `NAME(folder?; flags?; mode?)`.
macro_rules! opens {
    ($($name:ident($($folder:ident)?; $($flags:ident)?; $($mode:ident)?);)*) => { $(
        // SAFETY: the C library's name and signature. If the caller gave no mode, it is a register with any content. So it is
        // in the C library, which does not use it then.
        #[unsafe(no_mangle)]
        unsafe extern "C-unwind" fn $name($($folder: c_int,)? path: *const c_char $(, $flags: c_int)? $(, $mode: mode_t)?) -> c_int {
            // SAFETY: the caller's contract, which is the C library's.
            unsafe {
                opening(opens!(folder $($folder)?), path, opens!(flags $($flags)?), |path| {
                    next::$name($($folder,)? path $(, $flags)? $(, $mode)?)
                })
            }
        }
    )* };
    (flags) => { libc::O_WRONLY | libc::O_TRUNC };
    (flags $flags:ident) => { $flags };
    (folder) => { libc::AT_FDCWD };
    (folder $folder:ident) => { $folder };
}

opens! {
    open(; flags; mode);
    open64(; flags; mode);
    __open(; flags; mode);
    __open64(; flags; mode);
    __open_2(; flags;);
    __open64_2(; flags;);
    openat(folder; flags; mode);
    openat64(folder; flags; mode);
    __openat_2(folder; flags;);
    __openat64_2(folder; flags;);
    creat(;; mode);
    creat64(;; mode);
}
