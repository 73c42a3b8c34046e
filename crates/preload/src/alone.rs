//! Programs that cannot have the engine beside them any more: it leaves them.
//!
//! The engine's threads are threads of the program, and faults are served by system calls of the thread that faults. What a
//! program is told it could not tell from kernel mmap otherwise, or could not do:
//!
//! * A program with one thread looks into `/proc/self/task` whether it has (Chromium's zygote ends if not).
//! * The kernel allows a user namespace, or another process's, to processes of one thread only (unshare(2), setns(2)).
//! * A seccomp(2) filter may forbid what serving a fault takes.
//!
//! So before that all maps become kernel mappings, and the threads end; later mappings are the kernel's, and no call makes
//! another here. A process that has seccomp filters says its statistics before, since it may not be able to afterwards.

use crate::{kernel_maps, next, process, report, say, undisturbed};
use fastmap::calls;
use libc::{c_char, c_int, c_long};
use std::ffi::CStr;
use std::sync::atomic::{AtomicU32, Ordering};

/// How many threads are mapping a file through the engine, and `LEFT`.
static STATE: AtomicU32 = AtomicU32::new(0);
/// The engine has left this process, or is about to.
const LEFT: u32 = 1 << 31;

/// Held by a thread while it maps a file through the engine.
pub(crate) struct Mapping(());

impl Mapping {
    /// `None`: new files are the kernel's.
    pub fn begin() -> Option<Self> {
        let mapping = Mapping(());
        (STATE.fetch_add(1, Ordering::SeqCst) & LEFT == 0).then_some(mapping)
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        STATE.fetch_sub(1, Ordering::SeqCst);
    }
}

/// Whether the engine has left this process.
#[inline]
pub(crate) fn has_left() -> bool {
    STATE.load(Ordering::Relaxed) & LEFT != 0
}

/// Whether this process has anything of the engine's, or one that it was made by has: asked without a system call.
fn may_concern() -> bool {
    process::may_own_maps() || report::may_have_direct()
}

/// Whether this process has anything of the engine's.
fn is_concerned() -> bool {
    process::owns_maps() || report::has_direct()
}

/// The engine leaves this process.
fn leave() {
    // Later a filter may forbid it.
    calls::resolve_in_child();
    let (may_concern, is_concerned) = (may_concern(), is_concerned());
    // A child that shares the memory (vfork(2)) leaves all to its parent.
    if may_concern && !is_concerned && !calls::is_in_child() || STATE.fetch_or(LEFT, Ordering::SeqCst) & LEFT != 0 {
        return;
    }
    report::close();
    if !is_concerned {
        process::forget_maps();
        return;
    }
    while STATE.load(Ordering::SeqCst) != LEFT {
        std::thread::yield_now();
    }
    let cache = if process::owns_maps() { crate::cache() } else { None };
    match undisturbed(Err(libc::EIO), || calls::leave(cache)) {
        Ok(()) => {
            process::forget_maps();
            kernel_maps::forget(0..usize::MAX);
        }
        Err(error) => say(format_args!(
            "this process enters a sandbox or must have one thread, but keeps maps or threads of the engine: error {error}"
        )),
    }
}

/// What a successful look at a path means; true: it is to be looked at again, since the engine's threads were there.
///
/// # Safety
/// A C string that the kernel could read.
pub(crate) unsafe fn looked_at(path: *const c_char) -> bool {
    // SAFETY: the caller's contract.
    let asks = || !path.is_null() && names_threads(unsafe { CStr::from_ptr(path) });
    let counts = may_concern() && !has_left() && asks() && is_concerned() && undisturbed(false, calls::is_alone);
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
}

fn before_setns(kinds: c_int) {
    if kinds == 0 || kinds & !OF_A_THREAD != 0 {
        leave();
    }
}

/// What a system call by number means, before it is made.
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

/// What prctl(2) means, before it is called.
pub(crate) fn before_prctl(option: c_int) {
    if option == libc::PR_SET_SECCOMP {
        leave();
    }
}

/// unshare(2).
#[unsafe(no_mangle)]
extern "C-unwind" fn unshare(flags: c_int) -> c_int {
    before_unshare(flags);
    // SAFETY: a number.
    unsafe { next::unshare(flags) }
}

/// setns(2).
#[unsafe(no_mangle)]
extern "C-unwind" fn setns(fd: c_int, kinds: c_int) -> c_int {
    before_setns(kinds);
    // SAFETY: numbers.
    unsafe { next::setns(fd, kinds) }
}
