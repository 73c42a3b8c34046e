//! A process that shares this one's memory and outlives it: clone(2), set_tid_address(2), close_range(2), dup2(2),
//! unshare(2).
//! That process allocates nothing and takes no lock: the threads that it shares memory with may have died while they held one.

use super::{PAGE, errno, memory};
use std::fs::File;
use std::os::fd::{AsRawFd, RawFd};
use std::ptr;
use std::sync::atomic::{AtomicI32, AtomicU32, Ordering};

/// The function that such a process runs.
pub type Body = extern "C" fn(*mut libc::c_void) -> libc::c_int;

/// Flags of clone(2). The child shares three things with the program:
///
/// * the address space,
/// * the descriptor table, so a file that the program closes is closed, and
/// * the working directory, so a file system that the program leaves can be unmounted.
///
/// The child sends no signal at its end, and wait(2) without `__WCLONE` does not see it.
const SHARED: libc::c_int = libc::CLONE_VM | libc::CLONE_FILES | libc::CLONE_FS;
const STACK: usize = 128 << 10;

/// Tells the process in between ([`spawn_sharing`]) the function to run and the stack to run it on. It puts an error number into `failure`.
struct Order {
    body: Body,
    stack: *mut libc::c_void,
    failure: AtomicI32,
}

/// Runs `body` in a process that shares this one's memory and is not its child: a process in between makes it and ends.
///
/// A child would be there after the program's exec(2). At its end it would send SIGCHLD to a program that does not know it, and remain as a
/// zombie. There is one exception: if this process is a subreaper (`PR_SET_CHILD_SUBREAPER`), the kernel would make the orphan its ordinary
/// child. Then `body` runs in a direct child, which sends no signal.
///
/// The new process also uses the calling thread's thread-local storage, with errno. So the calling thread must not depend on errno any more,
/// and must not return before the new process has ended. The new process inherits the caller's signal mask.
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
    // SAFETY: waits for the child made just now, the only one without an exit signal.
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

/// Makes a stack with a guard page at its lower end. Returns its top.
fn stack() -> Result<*mut libc::c_void, i32> {
    let failed = |error: std::io::Error| error.raw_os_error().unwrap_or(libc::ENOMEM);
    let at = memory::reserve(STACK, PAGE).map_err(failed)?;
    // SAFETY: reserved just now.
    unsafe { memory::protect(at.add(PAGE), STACK - PAGE, true).map_err(failed)? };
    Ok(at.wrapping_add(STACK).cast())
}

/// Calls clone(2) by the C library's other name for it, `__clone`. ThreadSanitizer intercepts `clone`: it takes the child for one made by fork(2),
/// and notes so in memory that the program shares. It would then end the program when that next starts a thread.
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

/// Asks the kernel to clear `word` and wake a sleeper when this thread ends. The thread does not return from its work unless the keeper is
/// dismissed, so it ends with the program: by exit, by a signal (after the core dump), or by exec(2). The kernel
/// clears the word only if another thread or process has the memory (set_tid_address(2)).
pub fn note_death_in(word: &'static AtomicU32) {
    word.store(1, Ordering::Release);
    // SAFETY: the word lives for ever. The C library's own word for this thread is not needed: nobody joins it.
    unsafe { libc::syscall(libc::SYS_set_tid_address, ptr::from_ref(word)) };
}

/// Sleeps until the kernel has cleared `word`.
pub fn await_death(word: &'static AtomicU32) {
    await_value(word, 0);
}

/// Sleeps until `word` has the value `wanted`. The futex is not process-private, since the kernel's wake-up is not.
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

/// Gives `word` a value and wakes its sleepers, in other processes, too.
pub fn set_value(word: &'static AtomicU32, value: u32) {
    word.store(value, Ordering::Release);
    // SAFETY: the word lives for ever.
    unsafe { libc::syscall(libc::SYS_futex, ptr::from_ref(word), libc::FUTEX_WAKE, i32::MAX) };
}

/// Gives this process, which has one thread, a name of at most 15 bytes. Starts a new session (setsid(2)), so that the terminal's job control
/// does not reach the process.
pub fn name_and_detach(name: &std::ffi::CStr) {
    // SAFETY: a C string; setsid has no preconditions.
    unsafe {
        libc::prctl(libc::PR_SET_NAME, name.as_ptr());
        libc::setsid();
    }
}

/// Gives this process a descriptor table of its own, and closes all descriptors in it but those to be kept. `next` returns the first of
/// these at or after a number. So the program's sockets, pipes and locks do not outlive it.
pub fn close_descriptors(next: impl Fn(RawFd) -> Option<RawFd>) {
    // SAFETY: nobody else uses a table of our own, so nobody misses what is closed. An exec(2) in progress still copies from the old table.
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

/// Makes the number of a descriptor another one of `file`'s open file.
pub fn replace_descriptor(file: &File, number: RawFd) {
    // SAFETY: numbers of this process.
    unsafe { libc::syscall(libc::SYS_dup2, file.as_raw_fd(), number) };
}

/// Waits until this process alone has its memory. From then on no thread of the program can run in it or finish a system call there, and no
/// process that the program made to share it can. unshare(2) with `CLONE_VM` tells: it succeeds if nobody else has the memory
/// (kernel/fork.c, `check_unshare_flags`), and changes nothing.
///
/// A program may have two engines. Their two keepers share its memory and would wait for each other. So every tenth of a second this looks
/// whether the program has left the memory. If it has, and somebody else is still there, that is another keeper, and this returns.
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

/// Whether no thread of the program has this process's memory any more. Then the program has ended, or has executed another one: exec(2) ends
/// all other threads first.
fn has_left(program: libc::pid_t) -> bool {
    // The mark is a time stamp: no other memory holds this value at this address.
    // SAFETY: no preconditions.
    let mark = unsafe { std::arch::x86_64::_rdtsc() }.to_ne_bytes();
    let found_by = |process| {
        let mut found = [0; 8];
        memory::read_of(process, mark.as_ptr() as usize, &mut found).map(|_| found == mark)
    };
    // SAFETY: no preconditions.
    if found_by(unsafe { libc::getpid() }) != Ok(true) {
        // The kernel lacks process_vm_readv(2), or a container's filter refuses it.
        return false;
    }
    match found_by(program) {
        // The program's first thread has ended. Others may still run.
        Err(libc::ESRCH) => has_ended(program),
        // The program has other memory: this process may not read that, or finds no such address or another value there. A process may
        // always read its own memory.
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

/// Sleeps for half a millisecond.
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
        // A confined process may make this call, too.
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
        // A child made by fork(2) shares its memory with nobody, so `await_alone` returns.
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
