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
//! kernel's, and a line says so. Statistics are written first, since a filter may forbid it afterwards.
//!
//! Many programs ask whether such a call is there by one that fails, or make one that they may not, and go on as before. So the engine leaves for
//! what succeeds: unshare(2) and setns(2) are made first, and once more where only its threads were in the way; a filter, after which
//! it would be too late, is tried in a copy of the process (`attempt`).

use crate::own::guard::Quiet;
use crate::own::{errno, kernel, owner, remembered, set_errno, undisturbed};
use crate::{config, next, report, say};
use fastmap::by_address;
use libc::{c_char, c_int, c_long, c_void};
use std::ffi::CStr;
use std::sync::atomic::{AtomicI32, Ordering};
use std::time::Duration;

/// Whether this process or an ancestor has maps or threads of the engine: asked without a system call.
fn may_concern() -> bool {
    owner::may_own_maps() || report::may_have_direct()
}

/// Whether this process has maps or threads of the engine.
fn is_concerned() -> bool {
    owner::owns_maps() || report::has_direct()
}

/// Whether the engine would leave now. A child that shares the memory (vfork(2)) leaves all to its parent.
fn would_leave() -> bool {
    !owner::has_left() && (is_concerned() || !may_concern() || by_address::is_in_child())
}

/// The engine leaves this process, which does something that it cannot stay for.
fn leave(why: &str) {
    // First, since a filter may forbid it later.
    by_address::resolve_in_child();
    let (may_concern, is_concerned) = (may_concern(), is_concerned());
    if may_concern && !is_concerned && !by_address::is_in_child() || !owner::note_left() {
        return;
    }
    let is_asked_for = config().run_pid == Some(std::process::id() as i32);
    if is_concerned || is_asked_for && !config().off {
        say(format_args!(
            "{why}: what this process maps is the kernel's from now on, without a limit, since FastMap's threads and calls cannot stay"
        ));
    }
    report::close();
    if !is_concerned {
        owner::forget_maps();
        return;
    }
    while !owner::no_mapping_under_way() {
        std::thread::yield_now();
    }
    let cache = if owner::owns_maps() { crate::cache() } else { None };
    match undisturbed(Err(libc::EIO), || by_address::leave(cache)) {
        Ok(()) => owner::forget_maps(),
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
        leave("it counts its threads (/proc/self/task)");
    }
    counts
}

/// Whether a path is that of this process's threads (`/proc/self/task`, or a part of it from some folder).
fn names_threads(path: &CStr) -> bool {
    let mut parts = path.to_bytes().split(|byte| *byte == b'/').rev().filter(|part| !part.is_empty());
    parts.next() == Some(b"task")
        && parts.next().is_some_and(|of| of == b"self" || of == b"thread-self" || is_own_number(of))
}

/// Whether this is what proc(5) calls this process: other than getpid(2) says where it is another namespace's.
fn is_own_number(text: &[u8]) -> bool {
    text.iter().all(u8::is_ascii_digit) && *text == *kernel::read_link(b"/proc/self\0", &mut [0; 16])
}

/// Namespaces that one thread of several may join.
const OF_A_THREAD: c_int =
    libc::CLONE_NEWNET | libc::CLONE_NEWUTS | libc::CLONE_NEWIPC | libc::CLONE_NEWCGROUP | libc::CLONE_NEWPID;

/// Makes unshare(2) or setns(2). Where the engine's threads alone are in its way they go, and it is made once more.
fn moving(number: c_long, [a, b]: [c_long; 2], wants_one_thread: bool) -> c_long {
    let arguments = [a, b, 0, 0, 0, 0];
    let call = || {
        // SAFETY: neither takes memory.
        unsafe { next::syscall(number, a, b, 0, 0, 0, 0) }
    };
    let before = errno();
    let moved = call();
    if moved == 0 || !wants_one_thread || !matches!(errno(), libc::EINVAL | libc::EUSERS) {
        return moved;
    }
    let refused = errno();
    let is_in_the_way = would_leave() && is_concerned() && undisturbed(false, by_address::is_alone);
    if !is_in_the_way || attempt(number, arguments).is_err() {
        set_errno(refused);
        return moved;
    }
    leave("it moves to another namespace, which takes a process of one thread");
    set_errno(before);
    call()
}

fn unsharing(flags: c_int) -> c_long {
    const OF_A_PROCESS: c_int = libc::CLONE_NEWUSER | libc::CLONE_VM | libc::CLONE_SIGHAND | libc::CLONE_THREAD;
    if flags & libc::CLONE_FILES != 0 {
        remembered::divide();
    }
    moving(libc::SYS_unshare, [flags.into(), 0], flags & OF_A_PROCESS != 0)
}

fn joining(fd: c_int, kinds: c_int) -> c_long {
    moving(libc::SYS_setns, [fd.into(), kinds.into()], kinds == 0 || kinds & !OF_A_THREAD != 0)
}

/// What a call would do in a process of one thread, an error number: it is made in a copy of this process, which makes no other afterwards
/// and is killed. Where there cannot be a copy: that it would succeed.
fn attempt(number: c_long, [a, b, c, d, e, f]: [c_long; 6]) -> Result<(), c_int> {
    const PENDING: i32 = -1;
    // Blocked in the copy, too.
    let _quiet = Quiet::begin();
    // SAFETY: a page of our own; a copy that touches nothing but this page and its stack; a child that nobody else waits for, since it
    // sends no signal when it ends.
    unsafe {
        let (kind, size) = (libc::MAP_SHARED | libc::MAP_ANONYMOUS, size_of::<AtomicI32>());
        let page = next::mmap(std::ptr::null_mut(), size, libc::PROT_READ | libc::PROT_WRITE, kind, -1, 0);
        if page == libc::MAP_FAILED {
            return Ok(());
        }
        let outcome = &*page.cast::<AtomicI32>();
        outcome.store(PENDING, Ordering::Relaxed);
        let child = next::syscall(libc::SYS_clone, 0, 0, 0, 0, 0, 0);
        if child == 0 {
            // Should this process end meanwhile.
            let limit = libc::rlimit { rlim_cur: 1, rlim_max: 1 };
            next::syscall(libc::SYS_prlimit64, 0, libc::RLIMIT_CPU.into(), &raw const limit as c_long, 0, 0, 0);
            let done = next::syscall(number, a, b, c, d, e, f);
            outcome.store(if done < 0 { errno() } else { 0 }, Ordering::Release);
            loop {
                std::hint::spin_loop();
            }
        }
        let wait = |options: c_int| next::syscall(libc::SYS_wait4, child, 0, (libc::__WALL | options).into(), 0, 0, 0);
        while child > 0 && outcome.load(Ordering::Acquire) == PENDING && wait(libc::WNOHANG) == 0 {
            std::thread::sleep(Duration::from_micros(50));
        }
        if child > 0 {
            next::syscall(libc::SYS_kill, child, libc::SIGKILL.into(), 0, 0, 0, 0);
            wait(0);
        }
        let outcome = outcome.load(Ordering::Acquire);
        next::munmap(page.cast::<c_void>(), size);
        if outcome > 0 { Err(outcome) } else { Ok(()) }
    }
}

/// Before a filter is installed: the engine leaves, if that will succeed.
fn before_filter(number: c_long, arguments: [c_long; 6]) {
    let before = errno();
    if would_leave() && attempt(number, arguments).is_ok() {
        leave("it enters a sandbox (seccomp)");
    }
    set_errno(before);
}

/// Makes a system call by number that the engine may have to leave for; `None`: it is to be made as any other.
pub(crate) fn by_number(number: c_long, arguments: [c_long; 6]) -> Option<c_long> {
    let [a, b, ..] = arguments;
    match number {
        libc::SYS_unshare => Some(unsharing(a as c_int)),
        libc::SYS_setns => Some(joining(a as c_int, b as c_int)),
        libc::SYS_prctl if a as c_int == libc::PR_SET_SECCOMP => {
            before_filter(number, arguments);
            None
        }
        libc::SYS_seccomp if matches!(a as u32, libc::SECCOMP_SET_MODE_STRICT | libc::SECCOMP_SET_MODE_FILTER) => {
            before_filter(number, arguments);
            None
        }
        _ => None,
    }
}

/// Lets the engine leave before prctl(2) installs a filter.
pub(crate) fn before_prctl(arguments: [c_long; 5]) {
    let [option, a, b, c, d] = arguments;
    if option as c_int == libc::PR_SET_SECCOMP {
        before_filter(libc::SYS_prctl, [option, a, b, c, d, 0]);
    }
}

/// unshare(2).
#[unsafe(no_mangle)]
extern "C-unwind" fn unshare(flags: c_int) -> c_int {
    unsharing(flags) as c_int
}

/// setns(2).
#[unsafe(no_mangle)]
extern "C-unwind" fn setns(fd: c_int, kinds: c_int) -> c_int {
    joining(fd, kinds) as c_int
}
