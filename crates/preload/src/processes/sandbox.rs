//! The engine leaves a process in which it cannot stay.
//!
//! Its threads are threads of the program, and faults are served by system calls of the thread that faults. In three
//! cases the program would notice, or could not go on:
//!
//! * A program counts its threads in `/proc/self/task`, and expects one (Chromium's zygote ends otherwise).
//! * unshare(2) and setns(2) move only a process of one thread to a user namespace, or to another process's.
//! * A seccomp(2) filter may forbid what serving a fault takes.
//!
//! So before that all maps are converted to kernel mappings, and the engine's threads end; later mappings are the
//! kernel's. Statistics are written first, since a filter may forbid it afterwards.

use crate::mappings::kernel_maps;
use crate::own::{owner, remembered, undisturbed};
use crate::{next, report, say};
use fastmap::by_address;
use libc::{c_char, c_int, c_long};
use std::ffi::CStr;

/// Whether this process or an ancestor has maps or threads of the engine: asked without a system call.
fn may_concern() -> bool {
    owner::may_own_maps() || report::may_have_direct()
}

/// Whether this process has maps or threads of the engine.
fn is_concerned() -> bool {
    owner::owns_maps() || report::has_direct()
}

/// The engine leaves this process.
fn leave() {
    // First, since a filter may forbid it later.
    by_address::resolve_in_child();
    let (may_concern, is_concerned) = (may_concern(), is_concerned());
    // A child that shares the memory (vfork(2)) leaves all to its parent.
    if may_concern && !is_concerned && !by_address::is_in_child() || !owner::note_left() {
        return;
    }
    report::close();
    if !is_concerned {
        owner::forget_maps();
        return;
    }
    fastmap::placement::dismiss();
    while !owner::no_mapping_under_way() {
        std::thread::yield_now();
    }
    let cache = if owner::owns_maps() { crate::cache() } else { None };
    match undisturbed(Err(libc::EIO), || by_address::leave(cache)) {
        Ok(()) => {
            owner::forget_maps();
            kernel_maps::forget(0..usize::MAX);
        }
        Err(error) => say(format_args!(
            "this process enters a sandbox or must have one thread, but keeps maps or threads of the engine: error {error}"
        )),
    }
}

/// After a call has looked at a path: true if the engine had to leave, so that the call must be repeated without its
/// threads.
///
/// # Safety
/// `path` is a C string that the kernel could read, or null.
pub(crate) unsafe fn looked_at(path: *const c_char) -> bool {
    // SAFETY: the caller's contract.
    let asks = || !path.is_null() && names_threads(unsafe { CStr::from_ptr(path) });
    let counts =
        may_concern() && !owner::has_left() && asks() && is_concerned() && undisturbed(false, by_address::is_alone);
    if counts {
        leave();
    }
    counts
}

/// Whether a path is that of a process's threads (`/proc/self/task`, or a part of it from some folder).
fn names_threads(path: &CStr) -> bool {
    let mut parts = path.to_bytes().split(|byte| *byte == b'/').rev().filter(|part| !part.is_empty());
    parts.next() == Some(b"task")
        && parts.next().is_some_and(|of| of == b"self" || of == b"thread-self" || of.iter().all(u8::is_ascii_digit))
}

/// Namespaces that one thread of several may move to.
const OF_A_THREAD: c_int =
    libc::CLONE_NEWNET | libc::CLONE_NEWUTS | libc::CLONE_NEWIPC | libc::CLONE_NEWCGROUP | libc::CLONE_NEWPID;

fn before_unshare(flags: c_int) {
    const OF_A_PROCESS: c_int = libc::CLONE_NEWUSER | libc::CLONE_VM | libc::CLONE_SIGHAND | libc::CLONE_THREAD;
    if flags & OF_A_PROCESS != 0 {
        leave();
    }
    if flags & libc::CLONE_FILES != 0 {
        divide();
    }
}

/// Before a thread gets a descriptor table of its own. A file that is being taken over is the engine's or the kernel's afterwards.
pub(crate) fn divide() {
    remembered::divide();
    fastmap::placement::divide();
    drop(by_address::pass());
}

fn before_setns(kinds: c_int) {
    if kinds == 0 || kinds & !OF_A_THREAD != 0 {
        leave();
    }
}

/// Lets the engine leave before a system call by number that it cannot stay for.
pub(crate) fn before_syscall(number: c_long, a: c_long, b: c_long) {
    match number {
        libc::SYS_unshare => before_unshare(a as c_int),
        libc::SYS_setns => before_setns(b as c_int),
        libc::SYS_prctl => before_prctl(a as c_int),
        libc::SYS_seccomp if matches!(a as u32, libc::SECCOMP_SET_MODE_STRICT | libc::SECCOMP_SET_MODE_FILTER) => {
            leave()
        }
        _ => {}
    }
}

/// Lets the engine leave before prctl(2) installs a filter.
pub(crate) fn before_prctl(option: c_int) {
    if option == libc::PR_SET_SECCOMP {
        leave();
    }
}

/// unshare(2).
#[unsafe(no_mangle)]
extern "C-unwind" fn unshare(flags: c_int) -> c_int {
    before_unshare(flags);
    // SAFETY: unshare takes no memory.
    unsafe { next::unshare(flags) }
}

/// setns(2).
#[unsafe(no_mangle)]
extern "C-unwind" fn setns(fd: c_int, kinds: c_int) -> c_int {
    before_setns(kinds);
    // SAFETY: setns takes no memory.
    unsafe { next::setns(fd, kinds) }
}
