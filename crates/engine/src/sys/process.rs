//! A process that shares this one's memory and outlives it: clone(2), set_tid_address(2), close_range(2), and what proc(5)
//! says of threads that are being killed. What runs in that process allocates nothing and takes no lock: the threads it
//! shares memory with may have died anywhere.

use super::own::Own;
use super::{PAGE, errno, memory};
use std::os::fd::{AsRawFd, RawFd};
use std::ptr;
use std::sync::atomic::{AtomicI32, AtomicU32, Ordering};
use std::time::{Duration, Instant};

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

/// Runs `body` in a process that shares this one's memory and is nobody's child: a process in between makes it and ends.
/// As a child it would outlive the program's exec(2) as a zombie, with a SIGCHLD, of a program that knows nothing of it.
/// Only where orphans come back to this process (`PR_SET_CHILD_SUBREAPER`), which would make it an ordinary child, it is
/// one without a signal.
///
/// It also shares the calling thread's thread-local storage: the caller must do nothing more that sets errno and matters,
/// and must never end before the program does. It inherits the caller's signal mask.
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

fn clone(body: Body, stack: *mut libc::c_void, argument: *mut libc::c_void) -> Result<libc::pid_t, i32> {
    // SAFETY: the stack is the new process's own.
    match unsafe { libc::clone(body, stack, SHARED, argument) } {
        -1 => Err(errno()),
        pid => Ok(pid),
    }
}

/// Has the kernel clear `word` and wake a sleeper when this thread ends. It never returns from its work, so it ends with
/// the program: by exit, by a signal once a core dump is written, or by exec(2). The kernel does this only while somebody
/// else has the memory (set_tid_address(2)).
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

/// Gives `word` a value and wakes who sleeps on it, as the kernel does.
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

/// The threads of this process, as a folder, to be looked at from another (proc(5)).
pub fn threads() -> std::io::Result<Own<std::fs::File>> {
    std::fs::File::open("/proc/self/task").map(Own::new)
}

/// Waits until no thread of a process that is ending can run in the program or finish a system call any more. `threads` is
/// from [`threads`]. SIGKILL, a crash, exit and exec(2) mark all threads under one lock, so whoever has seen one of them
/// end (`await_death`) sees the others marked; they end when their system calls do.
pub fn await_threads(threads: RawFd) {
    while any(threads, is_ending) {
        pause();
    }
}

/// Threads of the engine's that were made, and that have their names: what tells them from the program's.
static MADE: AtomicU32 = AtomicU32::new(0);
static NAMED: AtomicU32 = AtomicU32::new(0);

/// A thread's work, counted: it begins once the thread has its name.
pub fn named<T>(body: impl FnOnce() -> T) -> impl FnOnce() -> T {
    struct Ticket;
    impl Drop for Ticket {
        fn drop(&mut self) {
            NAMED.fetch_add(1, Ordering::Release);
        }
    }
    MADE.fetch_add(1, Ordering::Relaxed);
    // Dropped, too, when no thread could be made.
    let ticket = Ticket;
    move || {
        drop(ticket);
        body()
    }
}

fn await_names() {
    while NAMED.load(Ordering::Acquire) != MADE.load(Ordering::Relaxed) {
        pause();
    }
}

/// Whether the calling thread is the only one of its process, but for the engine's and those that the kernel keeps for
/// io_uring(7). Without /proc: as if it were.
pub fn is_alone() -> bool {
    await_names();
    threads().map_or(true, |threads| {
        let mut others = 0;
        any(threads.as_raw_fd(), |folder, thread| {
            others += usize::from(!is_named(folder, thread, &[b"fastmap-", b"iou-"]));
            others > 1
        });
        others <= 1
    })
}

/// Waits until the engine's threads, which have been told to end, are gone, and those that the kernel had for their writes. False:
/// one does not end. A thread of the program's that the kernel keeps another for is not waited for: that stays as long as it does.
pub fn await_own_threads() -> bool {
    const PATIENCE: Duration = Duration::from_secs(1);
    const KERNELS: Duration = Duration::from_millis(50);
    await_names();
    let Ok(threads) = threads() else { return false };
    let gone = |beginning: &[u8], patience: Duration| {
        let start = Instant::now();
        while any(threads.as_raw_fd(), |folder, thread| is_named(folder, thread, &[beginning])) {
            if start.elapsed() > patience {
                return false;
            }
            pause();
        }
        true
    };
    let are_gone = gone(b"fastmap-", PATIENCE);
    gone(b"iou-", KERNELS);
    are_gone
}

/// Whether a thread's name begins with one of these. One that is gone has none.
fn is_named(threads: RawFd, thread: &[u8], beginnings: &[&[u8]]) -> bool {
    let mut name = [0u8; 32];
    read_of(threads, thread, b"/comm\0", &mut name)
        .is_ok_and(|len| beginnings.iter().any(|beginning| name[..len].starts_with(beginning)))
}

/// Half a millisecond's sleep.
pub fn pause() {
    const PAUSE: libc::timespec = libc::timespec { tv_sec: 0, tv_nsec: 500_000 };
    // SAFETY: a valid time. Not glibc's wrapper: that is a cancellation point.
    unsafe { libc::syscall(libc::SYS_nanosleep, &PAUSE, ptr::null_mut::<u8>()) };
}

/// Whether `of` says so of any thread, which it gets by its number in decimal.
fn any(threads: RawFd, mut of: impl FnMut(RawFd, &[u8]) -> bool) -> bool {
    /// Start of a name in a `linux_dirent64`; its length is two bytes at 16.
    const NAME: usize = 19;
    let mut entries = [0u8; 4096];
    // SAFETY: both calls on our own descriptor; the kernel writes into the buffer at most its length.
    unsafe {
        libc::syscall(libc::SYS_lseek, threads, 0, libc::SEEK_SET);
        loop {
            let got = libc::syscall(libc::SYS_getdents64, threads, entries.as_mut_ptr(), entries.len());
            let Some(mut rest) = usize::try_from(got).ok().and_then(|got| entries.get(..got)) else { return false };
            if rest.is_empty() {
                return false;
            }
            while let Some(&[low, high]) = rest.get(16..18) {
                let Some((entry, next)) = rest.split_at_checked(u16::from_le_bytes([low, high]).into()) else { break };
                rest = next;
                let name = entry.get(NAME..).and_then(|name| name.split(|byte| *byte == 0).next()).unwrap_or_default();
                if name.first().is_some_and(u8::is_ascii_digit) && of(threads, name) {
                    return true;
                }
            }
        }
    }
}

fn is_ending(threads: RawFd, thread: &[u8]) -> bool {
    let mut text = [0u8; 1024];
    match read_of(threads, thread, b"/stat\0", &mut text) {
        Ok(len) => stat_is_ending(&text[..len]),
        // It went between the listing and now, and others may not have been listed for that: look once more.
        Err(error) => matches!(error, libc::ENOENT | libc::ESRCH),
    }
}

/// The beginning of a thread's file (a slash, its name, and a zero byte), and its length; or an error number.
fn read_of(threads: RawFd, thread: &[u8], file: &[u8], text: &mut [u8]) -> Result<usize, i32> {
    let mut path = [0u8; 32];
    let len = thread.len().min(path.len() - file.len());
    path[..len].copy_from_slice(&thread[..len]);
    path[len..len + file.len()].copy_from_slice(file);
    // SAFETY: a C string; the kernel writes into the buffer at most its length; the descriptor is ours.
    unsafe {
        let file = libc::syscall(libc::SYS_openat, threads, path.as_ptr(), libc::O_RDONLY | libc::O_CLOEXEC);
        if file < 0 {
            return Err(errno());
        }
        let got = libc::syscall(libc::SYS_read, file, text.as_mut_ptr(), text.len());
        let error = errno();
        libc::syscall(libc::SYS_close, file);
        usize::try_from(got).map_err(|_| error)
    }
}

/// Whether a thread's line in /proc is that of one on its way out: SIGKILL pending, or in the kernel's exit path, and not
/// through with it.
fn stat_is_ending(line: &[u8]) -> bool {
    const EXITING: u64 = 4; // PF_EXITING
    const KILLED: u64 = 1 << (libc::SIGKILL - 1);
    // The name, in parentheses, may hold anything.
    let Some(name_end) = line.iter().rposition(|byte| *byte == b')') else { return false };
    let mut fields = line[name_end + 1..].split(|byte| *byte == b' ').skip(1);
    let number = |field: Option<&[u8]>| {
        let text = field.and_then(|field| std::str::from_utf8(field).ok());
        text.and_then(|text| text.parse::<u64>().ok()).unwrap_or(0)
    };
    let state = fields.next().and_then(|field| field.first());
    let flags = number(fields.nth(5)); // the ninth of the line
    let pending = number(fields.nth(21)); // the 31st
    !matches!(state, Some(b'Z' | b'X') | None) && (flags & EXITING != 0 || pending & KILLED != 0)
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn a_threads_end_is_read_from_its_line() {
        let line = |name: &str, state: char, flags: u64, pending: u64| {
            let zeros = |count: usize| " 0".repeat(count);
            format!("17 ({name}) {state}{} {flags}{} {pending}{}\n", zeros(5), zeros(21), zeros(20)).into_bytes()
        };
        for name in ["plain", "a ) S 4 (b", ""] {
            assert!(!stat_is_ending(&line(name, 'R', 0x0040_0040, 2)));
            assert!(stat_is_ending(&line(name, 'D', 0x0040_0040, 1 << 8)));
            assert!(stat_is_ending(&line(name, 'R', 0x0040_0044, 0)));
            assert!(!stat_is_ending(&line(name, 'Z', 0x0040_0044, 1 << 8)));
        }
        assert!(!stat_is_ending(b"") && !stat_is_ending(b"17 (cut"));
    }

    #[test]
    fn living_threads_are_not_ending() {
        let threads = threads().unwrap();
        let (tell, told) = std::sync::mpsc::channel::<()>();
        std::thread::scope(|scope| {
            for _ in 0..3 {
                scope.spawn(|| ());
            }
            let waiting = scope.spawn(move || told.recv().is_err());
            // Short-lived ones pass; this returns.
            await_threads(threads.as_raw_fd());
            drop(tell);
            assert!(waiting.join().unwrap());
        });
    }
}
