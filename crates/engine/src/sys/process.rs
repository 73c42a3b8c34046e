//! A process that shares this one's memory and outlives it: clone(2), set_tid_address(2), close_range(2), unshare(2), seccomp(2).
//! What runs in that process allocates nothing and takes no lock: the threads it shares memory with may have died anywhere.

use super::{PAGE, errno, memory};
use std::os::fd::RawFd;
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

/// Waits until nobody else has this process's memory: no thread of the program can run in it, or finish a system call in it, any more,
/// nor can a process that the program made to share it. unshare(2) of the memory succeeds where there is nothing to unshare
/// (kernel/fork.c, `check_unshare_flags`), and changes nothing.
pub fn await_alone() {
    // SAFETY: no memory.
    while unsafe { libc::syscall(libc::SYS_unshare, libc::CLONE_VM) } != 0 {
        pause();
    }
}

/// Gives up, for good, what this process could do beyond `pwrite(2)` and its kin on descriptors that are open: all capabilities, and,
/// by an allow-list (seccomp(2)), every other system call. What a process may do is not what its memory's other owner may do:
/// that one may drop its rights, be taken over, and write code into memory that this process executes.
///
/// The user stays. A process of another user that shares the program's memory would either be that user's to trace (ptrace(2)), and
/// the program with it, or make the program's memory one that is not dumped: `PR_SET_DUMPABLE` is the memory's. Without
/// capabilities, and without a call that looks at the user, it is of no use.
pub fn confine() -> Result<(), i32> {
    /// `_LINUX_CAPABILITY_VERSION_3`, and this process.
    const HEADER: [u32; 2] = [0x2008_0522, 0];
    /// Effective, permitted, inheritable: twice.
    const NONE: [u32; 6] = [0; 6];
    const POISON: u32 = 0xC020_AA08;
    const BLKGETSIZE64: u32 = 0x8008_1272;
    // SAFETY: no preconditions.
    let own = unsafe { libc::getpid() } as u32;
    let any = |call| (call, None);
    let allowed = [
        any(libc::SYS_futex),
        any(libc::SYS_pread64),
        any(libc::SYS_pwrite64),
        any(libc::SYS_fstat),
        any(libc::SYS_close_range),
        any(libc::SYS_nanosleep),
        any(libc::SYS_restart_syscall),
        any(libc::SYS_sched_yield),
        any(libc::SYS_getpid),
        any(libc::SYS_exit),
        any(libc::SYS_exit_group),
        // Which argument, and what it may be.
        (libc::SYS_write, Some((0, [libc::STDERR_FILENO as u32; 2]))),
        (libc::SYS_unshare, Some((0, [libc::CLONE_VM as u32, libc::CLONE_FILES as u32]))),
        (libc::SYS_ioctl, Some((1, [POISON, BLKGETSIZE64]))),
        (libc::SYS_fcntl, Some((1, [libc::F_OFD_SETLK as u32; 2]))),
        // Of its own memory.
        (libc::SYS_process_vm_readv, Some((0, [own; 2]))),
    ];
    let mut filter = Filter::new();
    allowed.iter().for_each(|(call, argument)| filter.allow(*call as u32, *argument));
    filter.end();
    // SAFETY: numbers, and structures of this function, which the kernel copies.
    unsafe {
        let check = |result: libc::c_long| if result == 0 { Ok(()) } else { Err(errno()) };
        check(libc::syscall(libc::SYS_prctl, libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0))?;
        check(libc::syscall(libc::SYS_capset, &HEADER, &NONE))?;
        let program = libc::sock_fprog { len: filter.len as u16, filter: filter.code.as_mut_ptr() };
        check(libc::syscall(libc::SYS_prctl, libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &program, 0, 0))
    }
}

/// A program for the kernel that decides by number and one argument of a system call (seccomp(2)). It is built on the stack.
struct Filter {
    code: [libc::sock_filter; 128],
    len: usize,
}

impl Filter {
    const LOAD: u16 = (libc::BPF_LD | libc::BPF_W | libc::BPF_ABS) as u16;
    const EQUAL: u16 = (libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K) as u16;
    const RETURN: u16 = (libc::BPF_RET | libc::BPF_K) as u16;
    /// In `seccomp_data`: the number, the architecture, and six arguments of eight bytes.
    const NUMBER: u32 = 0;
    const ARCHITECTURE: u32 = 4;
    const ARGUMENTS: u32 = 16;
    const X86_64: u32 = 0xC000_003E;
    const REFUSE: u32 = libc::SECCOMP_RET_ERRNO | libc::EPERM as u32;

    fn new() -> Self {
        let mut filter = Filter { code: [libc::sock_filter { code: 0, jt: 0, jf: 0, k: 0 }; 128], len: 0 };
        filter.push(Self::LOAD, Self::ARCHITECTURE, 0, 0);
        filter.push(Self::EQUAL, Self::X86_64, 1, 0);
        filter.end();
        filter
    }

    fn push(&mut self, code: u16, k: u32, jt: u8, jf: u8) {
        self.code[self.len] = libc::sock_filter { code, jt, jf, k };
        self.len += 1;
    }

    /// Allows a call; where an argument (its place) must have one of two values, only then. Their upper halves count as well.
    fn allow(&mut self, call: u32, argument: Option<(u32, [u32; 2])>) {
        self.push(Self::LOAD, Self::NUMBER, 0, 0);
        let Some((place, [one, other])) = argument else {
            self.push(Self::EQUAL, call, 0, 1);
            return self.push(Self::RETURN, libc::SECCOMP_RET_ALLOW, 0, 0);
        };
        let low = Self::ARGUMENTS + 8 * place;
        self.push(Self::EQUAL, call, 0, 6);
        self.push(Self::LOAD, low + 4, 0, 0);
        self.push(Self::EQUAL, 0, 0, 4);
        self.push(Self::LOAD, low, 0, 0);
        self.push(Self::EQUAL, one, 1, 0);
        self.push(Self::EQUAL, other, 0, 1);
        self.push(Self::RETURN, libc::SECCOMP_RET_ALLOW, 0, 0);
    }

    fn end(&mut self) {
        self.push(Self::RETURN, Self::REFUSE, 0, 0);
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
    names().iter().filter(|name| !name.starts_with("fastmap-") && !name.starts_with("iou-")).count() <= 1
}

/// Waits until the engine's threads, which have been told to end, are gone, and those that the kernel had for their writes. False:
/// one does not end. A thread of the program's that the kernel keeps another for is not waited for: that stays as long as it does.
pub fn await_own_threads() -> bool {
    const PATIENCE: Duration = Duration::from_secs(1);
    const KERNELS: Duration = Duration::from_millis(500);
    await_names();
    let gone = |beginning: &str, patience: Duration| {
        let start = Instant::now();
        while names().iter().any(|name| name.starts_with(beginning)) {
            if start.elapsed() > patience {
                return false;
            }
            pause();
        }
        true
    };
    let are_gone = gone("fastmap-", PATIENCE);
    gone("iou-", KERNELS);
    are_gone
}

/// The names of this process's threads (proc(5)). Where one ends while they are listed others may be left out: they are listed anew.
fn names() -> Vec<String> {
    loop {
        let threads = std::fs::read_dir("/proc/self/task").into_iter().flatten().flatten();
        let name = |thread: std::fs::DirEntry| std::fs::read_to_string(thread.path().join("comm")).ok();
        if let Some(names) = threads.map(name).collect() {
            return names;
        }
    }
}

/// Half a millisecond's sleep.
pub fn pause() {
    const PAUSE: libc::timespec = libc::timespec { tv_sec: 0, tv_nsec: 500_000 };
    // SAFETY: a valid time. Not glibc's wrapper: that is a cancellation point.
    unsafe { libc::syscall(libc::SYS_nanosleep, &PAUSE, ptr::null_mut::<u8>()) };
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use std::os::fd::AsRawFd;

    /// What a process like the keeper comes to when it tries, by place.
    static CAME_TO: [AtomicI32; 32] = [const { AtomicI32::new(i32::MIN) }; 32];
    static DESCRIPTOR: AtomicI32 = AtomicI32::new(-1);
    static ENDED: AtomicU32 = AtomicU32::new(0);

    extern "C" fn attempt(_: *mut libc::c_void) -> libc::c_int {
        let confined = confine();
        let fd = DESCRIPTOR.load(Ordering::Relaxed);
        let mut byte = *b"x";
        let (path, at) = (c"/etc/passwd".as_ptr(), byte.as_mut_ptr());
        let iov = libc::iovec { iov_base: at.cast(), iov_len: 1 };
        // SAFETY: calls that must fail, or that do what they are told to bytes of this function.
        let tried = unsafe {
            let said = |result: libc::c_long| if result < 0 { errno() } else { 0 };
            [
                confined.err().unwrap_or(0),
                // Its task.
                said(libc::syscall(libc::SYS_pwrite64, fd, at, 1, 0)),
                said(libc::syscall(libc::SYS_pread64, fd, at, 1, 0)),
                said(libc::syscall(libc::SYS_process_vm_readv, libc::getpid(), &iov, 1usize, &iov, 1usize, 0usize)),
                // What must fail from here on.
                said(libc::syscall(libc::SYS_openat, libc::AT_FDCWD, path, libc::O_RDONLY)),
                said(libc::syscall(libc::SYS_open, path, libc::O_RDONLY)),
                said(libc::syscall(libc::SYS_socket, libc::AF_INET, libc::SOCK_STREAM, 0)),
                said(libc::syscall(libc::SYS_execve, c"/bin/true".as_ptr(), ptr::null::<u8>(), ptr::null::<u8>())),
                said(libc::syscall(libc::SYS_kill, libc::getpid(), 0)),
                said(libc::syscall(libc::SYS_ptrace, libc::PTRACE_ATTACH, 1, 0, 0)),
                said(libc::syscall(libc::SYS_process_vm_readv, 1, &iov, 1usize, &iov, 1usize, 0usize)),
                said(libc::syscall(libc::SYS_setuid, 0)),
                said(libc::syscall(libc::SYS_io_uring_setup, 1, ptr::null::<u8>())),
                said(libc::syscall(libc::SYS_io_uring_enter, fd, 1, 0, 0, 0, 0)),
                said(libc::syscall(libc::SYS_clone, libc::SIGCHLD, 0, 0, 0, 0)),
                said(libc::syscall(libc::SYS_unshare, libc::CLONE_NEWUSER)),
                said(libc::syscall(libc::SYS_fcntl, fd, libc::F_GETFL)),
                said(libc::syscall(libc::SYS_ioctl, fd, libc::FIONREAD, at)),
                said(libc::syscall(libc::SYS_write, fd, at, 1)),
                said(libc::syscall(libc::SYS_mmap, 0, 4096, 0, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS, -1, 0)),
            ]
        };
        CAME_TO.iter().zip(tried).for_each(|(word, result)| word.store(result, Ordering::Relaxed));
        ENDED.store(1, Ordering::Release);
        0
    }

    #[test]
    fn a_confined_process_can_write_what_is_open_and_nothing_else() {
        let file = tempfile::tempfile().unwrap();
        DESCRIPTOR.store(file.as_raw_fd(), Ordering::Relaxed);
        // It has this thread's storage, errno too, until the thread ends: that waits for it.
        std::thread::spawn(|| {
            spawn_sharing(attempt).unwrap();
            while ENDED.load(Ordering::Acquire) == 0 {
                std::hint::spin_loop();
            }
        })
        .join()
        .unwrap();
        let came_to: Vec<i32> = CAME_TO.iter().map(|word| word.load(Ordering::Relaxed)).collect();
        let tried = came_to.iter().take_while(|result| **result != i32::MIN).count();
        assert!(tried == 20 && came_to[..4] == [0; 4], "{came_to:?}");
        assert!(came_to[4..tried].iter().all(|result| *result == libc::EPERM), "{came_to:?}");
        let mut written = String::new();
        std::io::Read::read_to_string(&mut &file, &mut written).unwrap();
        assert_eq!(written, "x");
    }

    extern "C" fn wait_alone(_: *mut libc::c_void) -> libc::c_int {
        // A confined one may ask.
        let confined = confine();
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
                await_alone();
                libc::_exit(i32::from(alone != 0));
            }
            let mut status = 0;
            assert!(libc::waitpid(child, &mut status, 0) == child && status == 0, "{status:#x}");
        }
    }
}
