//! A process that shares this one's memory and outlives it: clone(2), set_tid_address(2), close_range(2), unshare(2).
//! What runs in that process allocates nothing and takes no lock: the threads it shares memory with may have died
//! anywhere.

use super::{PAGE, errno, memory};
use std::os::fd::RawFd;
use std::ptr;
use std::sync::atomic::{AtomicI32, AtomicU32, Ordering};

/// What a process made here runs.
pub type Body = extern "C" fn(*mut libc::c_void) -> libc::c_int;

/// One address space, one table of descriptors (a file the program closes is closed), one working directory (one the
/// program leaves can be unmounted). No signal at its end: wait(2) does not see such a child.
const SHARED: libc::c_int = libc::CLONE_VM | libc::CLONE_FILES | libc::CLONE_FS;
const STACK: usize = 128 << 10;

/// What the process in between is told, and what it answers.
struct Order {
    body: Body,
    stack: *mut libc::c_void,
    failure: AtomicI32,
}

/// Runs `body` in a process that shares this one's memory and is nobody's child: a process in between makes it and
/// ends. As a child it would outlive the program's exec(2) as a zombie, with a SIGCHLD, of a program that knows nothing
/// of it. Only where orphans come back to this process (`PR_SET_CHILD_SUBREAPER`), which would make it an ordinary
/// child, it is one without a signal.
///
/// It also shares the calling thread's thread-local storage: the caller must do nothing more that sets errno and
/// matters, and must never end before the program does. It inherits the caller's signal mask.
pub fn spawn_sharing(body: Body) -> Result<(), i32> {
    let mut subreaper: libc::c_int = 0;
    // SAFETY: writes one int.
    unsafe { libc::prctl(libc::PR_GET_CHILD_SUBREAPER, &mut subreaper) };
    let stack = stack()?;
    if subreaper != 0 {
        return clone(body, stack, ptr::null_mut()).map(drop);
    }
    let mut order = Order { body, stack, failure: AtomicI32::new(0) };
    let between = clone(make, self::stack()?, ptr::from_mut(&mut order).cast())?;
    // SAFETY: waits for the child just made, which alone has no exit signal.
    while unsafe { libc::waitpid(between, ptr::null_mut(), libc::__WCLONE) } < 0 && errno() == libc::EINTR {}
    match order.failure.into_inner() {
        0 => Ok(()),
        error => Err(error),
    }
}

extern "C" fn make(order: *mut libc::c_void) -> libc::c_int {
    // SAFETY: on the stack of `spawn_sharing`, which waits for the end of this process.
    let order = unsafe { &*order.cast::<Order>() };
    if let Err(error) = clone(order.body, order.stack, ptr::null_mut()) {
        order.failure.store(error, Ordering::Release);
    }
    0
}

/// The top of a new stack, with a page without access below it.
fn stack() -> Result<*mut libc::c_void, i32> {
    let failed = |error: std::io::Error| error.raw_os_error().unwrap_or(libc::ENOMEM);
    let at = memory::reserve(STACK, PAGE).map_err(failed)?;
    // SAFETY: reserved just now.
    unsafe { memory::protect(at.add(PAGE), STACK - PAGE, true).map_err(failed)? };
    Ok(at.wrapping_add(STACK).cast())
}

/// clone(2), by the C library's other name for it: ThreadSanitizer takes a child by the first for one made by fork(2), and ends the
/// program, whose memory this one shares, when it starts a thread.
fn clone(body: Body, stack: *mut libc::c_void, argument: *mut libc::c_void) -> Result<libc::pid_t, i32> {
    unsafe extern "C" {
        fn __clone(
            body: Body,
            stack: *mut libc::c_void,
            flags: libc::c_int,
            argument: *mut libc::c_void,
            ...
        ) -> libc::c_int;
    }
    // SAFETY: the stack is the new process's own.
    match unsafe { __clone(body, stack, SHARED, argument) } {
        -1 => Err(errno()),
        pid => Ok(pid),
    }
}

/// Asks the kernel to clear `word` and wake a sleeper when this thread ends. It never returns from its work, so it ends
/// with the program: by exit, by a signal once a core dump is written, or by exec(2). The kernel does this only while
/// somebody else has the memory (set_tid_address(2)).
pub fn note_death_in(word: &'static AtomicU32) {
    word.store(1, Ordering::Release);
    // SAFETY: the word lives for ever. The C library's own word for this thread is not needed: nobody joins it.
    unsafe { libc::syscall(libc::SYS_set_tid_address, ptr::from_ref(word)) };
}

/// Sleeps until the kernel has cleared `word`.
pub fn await_death(word: &'static AtomicU32) {
    await_value(word, 0);
}

/// Sleeps until `word` has a value: not process-private, as the kernel's wake-up is not.
pub fn await_value(word: &'static AtomicU32, wanted: u32) {
    loop {
        let found = word.load(Ordering::Acquire);
        if found == wanted {
            return;
        }
        // SAFETY: the word lives for ever.
        unsafe { libc::syscall(libc::SYS_futex, ptr::from_ref(word), libc::FUTEX_WAIT, found, ptr::null::<u8>()) };
    }
}

/// Gives `word` a value and wakes its sleepers, as the kernel does.
pub fn set_value(word: &'static AtomicU32, value: u32) {
    word.store(value, Ordering::Release);
    // SAFETY: the word lives for ever.
    unsafe { libc::syscall(libc::SYS_futex, ptr::from_ref(word), libc::FUTEX_WAKE, i32::MAX) };
}

/// Names this process, of one thread (15 bytes at most), and takes it out of its terminal's job control.
pub fn name_and_detach(name: &std::ffi::CStr) {
    // SAFETY: a C string; setsid has no preconditions.
    unsafe {
        libc::prctl(libc::PR_SET_NAME, name.as_ptr());
        libc::setsid();
    }
}

/// Gives this process a table of descriptors of its own and closes all but those that `next` names: the first at or
/// after a number. What the program held (sockets, pipes, locks) is let go, as at any death.
pub fn close_descriptors(next: impl Fn(RawFd) -> Option<RawFd>) {
    // SAFETY: in a table of our own nobody misses what is closed: an exec(2) in progress still copies from the old one.
    unsafe {
        if libc::syscall(libc::SYS_unshare, libc::CLONE_FILES) != 0 {
            return;
        }
        let mut from = 0;
        while let Some(kept) = next(from) {
            if kept > from {
                libc::syscall(libc::SYS_close_range, from, kept - 1, 0);
            }
            from = kept + 1;
        }
        libc::syscall(libc::SYS_close_range, from, i32::MAX, 0);
    }
}

/// Waits until no thread of the program can run in this memory, or finish a system call in it, any more, nor can a
/// process that the program made to share it. unshare(2) of the memory succeeds where nobody else has it (kernel/fork.c,
/// `check_unshare_flags`), and changes nothing.
///
/// Where the program has left the memory and somebody stays all the same, it is the keeper of another engine of the
/// same program, which waits for this one: it gets a tenth of a second.
pub fn await_alone(program: libc::pid_t) {
    let mut tries = 0;
    // SAFETY: no memory.
    while unsafe { libc::syscall(libc::SYS_unshare, libc::CLONE_VM) } != 0 {
        tries += 1;
        if tries % 200 == 0 && has_left(program) {
            return;
        }
        pause();
    }
}

/// Whether none of the program's threads has this process's memory any more: it has ended, or has executed another
/// program, which it does when its other threads have ended.
fn has_left(program: libc::pid_t) -> bool {
    // Nobody else's memory has this there.
    // SAFETY: no preconditions.
    let mark = unsafe { std::arch::x86_64::_rdtsc() }.to_ne_bytes();
    let found_by = |process| {
        let mut found = [0; 8];
        memory::read_of(process, mark.as_ptr() as usize, &mut found).map(|_| found == mark)
    };
    // SAFETY: no preconditions.
    if found_by(unsafe { libc::getpid() }) != Ok(true) {
        // The kernel, or a container's filter, has no such call.
        return false;
    }
    match found_by(program) {
        // Its first thread has ended: the last, too?
        Err(libc::ESRCH) => has_ended(program),
        // Other memory, which this process may not read, or which has no such address. Its own it may always read.
        Err(libc::EPERM | libc::EFAULT) | Ok(false) => true,
        Err(_) | Ok(true) => false,
    }
}

/// Whether all threads of a process have ended (pidfd_open(2)).
fn has_ended(process: libc::pid_t) -> bool {
    // SAFETY: the descriptor is this function's own; poll(2) writes into the structure.
    unsafe {
        let descriptor = libc::syscall(libc::SYS_pidfd_open, process, 0) as RawFd;
        if descriptor < 0 {
            return errno() == libc::ESRCH;
        }
        let mut polled = libc::pollfd { fd: descriptor, events: libc::POLLIN, revents: 0 };
        let ready = libc::syscall(libc::SYS_poll, &mut polled, 1, 0);
        libc::syscall(libc::SYS_close_range, descriptor, descriptor, 0);
        ready == 1
    }
}

/// Half a millisecond's sleep.
pub fn pause() {
    pause_for(500_000);
}

/// Sleeps for so many nanoseconds, less than a second.
pub fn pause_for(nanoseconds: libc::c_long) {
    let time = libc::timespec { tv_sec: 0, tv_nsec: nanoseconds };
    // SAFETY: a valid time. Not glibc's wrapper: that is a cancellation point.
    unsafe { libc::syscall(libc::SYS_nanosleep, &time, ptr::null_mut::<u8>()) };
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::super::confine::confine;
    use super::*;

    extern "C" fn wait_alone(_: *mut libc::c_void) -> libc::c_int {
        // A confined one may ask.
        let confined = confine(std::process::id());
        // SAFETY: no memory.
        let shared = unsafe { libc::syscall(libc::SYS_unshare, libc::CLONE_VM) };
        SHARED_SAYS.store(if confined.is_ok() && shared < 0 { errno() } else { 0 }, Ordering::Release);
        0
    }
    static SHARED_SAYS: AtomicI32 = AtomicI32::new(i32::MIN);

    #[test]
    fn memory_that_others_have_is_told_from_ones_own() {
        std::thread::spawn(|| {
            spawn_sharing(wait_alone).unwrap();
            while SHARED_SAYS.load(Ordering::Acquire) == i32::MIN {
                std::hint::spin_loop();
            }
        })
        .join()
        .unwrap();
        assert_eq!(SHARED_SAYS.load(Ordering::Acquire), libc::EINVAL);
        // A child made by fork(2) has all of its memory to itself: this returns.
        // SAFETY: the child calls what is async-signal-safe, and ends.
        unsafe {
            let child = libc::fork();
            if child == 0 {
                let alone = libc::syscall(libc::SYS_unshare, libc::CLONE_VM);
                await_alone(libc::getppid());
                libc::_exit(i32::from(alone != 0));
            }
            let mut status = 0;
            assert!(libc::waitpid(child, &mut status, 0) == child && status == 0, "{status:#x}");
        }
    }
}

/// Whether another process has this one's memory (CLONE_VM). Where that cannot be asked: it has not.
pub fn shares_memory(pid: u32) -> bool {
    const KCMP_VM: i32 = 1;
    // SAFETY: numbers.
    unsafe { libc::syscall(libc::SYS_kcmp, std::process::id(), pid, KCMP_VM, 0, 0) == 0 }
}

/// Whether a descriptor of this process and one of another are copies of each other (dup(2), fork(2)). Where that cannot be asked: they are not.
pub fn have_same_file(own: u32, pid: u32, other: u32) -> bool {
    const KCMP_FILE: i32 = 0;
    // SAFETY: numbers.
    unsafe { libc::syscall(libc::SYS_kcmp, std::process::id(), pid, KCMP_FILE, u64::from(own), u64::from(other)) == 0 }
}
