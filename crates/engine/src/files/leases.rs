//! Read leases (fcntl(2), `F_SETLEASE`): the kernel's word that nobody writes a file.
//!
//! The engine's pages are copies, and nobody tells it when a file changes. So a file that is only read here is the engine's as long as its lease
//! holds. The kernel gives a lease of a regular file to its owner, and to CAP_LEASE, while nobody, this process included, has the file open to
//! write. A process that opens it to write later, or cuts it, waits in the kernel until the lease is given back: until the maps are the kernel's.
//! Nothing is stale, with two exceptions: the kernel lets the other in after 45 s (/proc/sys/fs/lease-break-time), in which pages may stay pinned;
//! and an open(2) with O_RDONLY and O_TRUNC breaks no read lease. An open(2) with O_NONBLOCK, such as truncate(1) makes, does not wait: it fails
//! with EAGAIN until then.
//!
//! A file that is stored to here has no lease: its user vouches that nobody else uses it.

use crate::sys::engine_fd::EngineFd;
use crate::sys::file::Identity;
use crate::sys::signal::Blocked;
use crate::sys::{engine_fd, file, threads};
use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::sync::atomic::{AtomicBool, AtomicI32, Ordering};
use std::sync::{Mutex, MutexGuard};
use std::time::Duration;

/// The signal that says that a lease is to be given back: one of the C library's own (for pthread_cancel(3)), which
/// programs neither send nor wait for. It is sent to one thread, which blocks it and is never cancelled.
const SIGNAL: i32 = 32;

/// The interval at which leases are looked at, since the kernel may be unable to queue a signal (RLIMIT_SIGPENDING).
const LOOK: Duration = Duration::from_secs(1);

/// The pause before a file is tried again whose pages are pinned. Others come between.
const AGAIN: Duration = Duration::from_millis(20);

/// Called with a file whose lease somebody waits for. Its maps are the kernel's on return; false: pages of it are pinned.
pub type GiveBack = fn(Identity) -> bool;

/// Why there is no lease.
#[derive(Debug)]
pub enum Refused {
    /// Somebody has the file open to write, this process perhaps.
    Written,
    /// This user has no right to it, or the file system gives none.
    Never(io::Error),
}

struct Lease {
    identity: Identity,
    /// The open file that has the lease.
    file: EngineFd<File>,
}

static LEASES: Mutex<Vec<Lease>> = Mutex::new(Vec::new());

fn leases() -> MutexGuard<'static, Vec<Lease>> {
    LEASES.lock().unwrap_or_else(|poison| poison.into_inner())
}

/// Takes a lease of a file, until [`forget`].
pub fn take(from: &File, identity: Identity, give_back: GiveBack) -> Result<(), Refused> {
    if is_held(identity) {
        return Ok(());
    }
    let thread = thread(give_back).map_err(Refused::Never)?;
    let own = file::reopen(from, false, false).map_err(Refused::Never)?;
    lease(&own, thread).map_err(|error| match error.raw_os_error() {
        Some(libc::EAGAIN) => Refused::Written,
        _ => Refused::Never(error),
    })?;
    leases().push(Lease { identity, file: own });
    // It may be broken already.
    wake(thread);
    Ok(())
}

/// Whether there is a lease of a file.
pub fn is_held(identity: Identity) -> bool {
    leases().iter().any(|one| one.identity == identity)
}

/// Gives the lease of a file back, which has no region any more.
pub fn forget(identity: Identity) {
    for one in leases().extract_if(.., |one| one.identity == identity) {
        // Explicitly: children made by fork(2) have the open file, too, so that to close it would not end the lease.
        // SAFETY: numbers only.
        unsafe { libc::fcntl(one.file.as_raw_fd(), libc::F_SETLEASE, libc::F_UNLCK) };
    }
}

fn lease(file: &File, thread: i32) -> io::Result<()> {
    #[repr(C)]
    struct Owner {
        kind: i32,
        id: i32,
    }
    const F_SETSIG: i32 = 10;
    const F_SETOWN_EX: i32 = 15;
    const F_OWNER_TID: i32 = 0;
    let fd = file.as_raw_fd();
    let owner = Owner { kind: F_OWNER_TID, id: thread };
    let check = |result: i32| if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) };
    // SAFETY: a descriptor of our own, numbers, and a structure that is read.
    unsafe {
        check(libc::fcntl(fd, F_SETSIG, SIGNAL))?;
        check(libc::fcntl(fd, F_SETOWN_EX, &owner))?;
        check(libc::fcntl(fd, libc::F_SETLEASE, libc::F_RDLCK))
    }
}

/// The files of leases that are to be given back, or have been taken away.
fn broken() -> Vec<Identity> {
    // SAFETY: no memory.
    let is_broken = |one: &&Lease| unsafe { libc::fcntl(one.file.as_raw_fd(), libc::F_GETLEASE) != libc::F_RDLCK };
    leases().iter().filter(is_broken).map(|one| one.identity).collect()
}

/// The thread that gives leases back; 0: there is none yet.
static THREAD: AtomicI32 = AtomicI32::new(0);

/// Called by one thread at a time.
fn thread(give_back: GiveBack) -> io::Result<i32> {
    match THREAD.load(Ordering::Acquire) {
        0 => start(give_back).inspect(|thread| THREAD.store(*thread, Ordering::Release)),
        thread => Ok(thread),
    }
}

/// Closes the leased files in a child made by fork(2): a lease lasts as long as any process has its open file.
pub fn in_child() {
    // If another thread held the lock when the child was made, the leases last as long as this child.
    if let Ok(leases) = LEASES.try_lock() {
        for one in leases.iter() {
            // SAFETY: a descriptor of the engine's, which nobody uses in a child.
            unsafe { engine_fd::close(one.file.as_raw_fd()) };
        }
    }
}

fn start(give_back: GiveBack) -> io::Result<i32> {
    let (tell, told) = std::sync::mpsc::sync_channel(1);
    // The thread inherits the mask: no signal of the program's comes to it. It has the program's rights, in whose place it converts maps.
    let _blocked = Blocked::all();
    let body = threads::named_with_rights(move || {
        ignore_where_default();
        block();
        // SAFETY: no memory.
        let thread = unsafe { libc::syscall(libc::SYS_gettid) };
        let _ = tell.send(thread as i32);
        serve(give_back)
    });
    std::thread::Builder::new().name("fastmap-leases".into()).stack_size(256 << 10).spawn(body)?;
    told.recv().map_err(io::Error::other)
}

/// The signal as a set. The system calls are made directly: the C library leaves its own signals out of every set.
const SET: u64 = 1 << (SIGNAL - 1);

/// Ignores the signal where it would end the process: the C library unblocks it whenever a library sets a mask in this thread. While it is blocked it
/// is kept all the same (signal(7)). The C library sets a handler of its own when it needs the signal (pthread_cancel(3)).
fn ignore_where_default() {
    /// As the kernel has it: handler, flags, restorer, mask.
    type Action = [usize; 4];
    let (mut now, ignored): (Action, Action) = ([0; 4], [libc::SIG_IGN, 0, 0, 0]);
    // SAFETY: actions of the kernel's size, of which it reads one and writes the other.
    unsafe {
        let none = std::ptr::null::<Action>();
        let known = libc::syscall(libc::SYS_rt_sigaction, SIGNAL, none, &raw mut now, size_of_val(&SET));
        if known == 0 && now[0] == libc::SIG_DFL {
            libc::syscall(libc::SYS_rt_sigaction, SIGNAL, &raw const ignored, 0, size_of_val(&SET));
        }
    }
}

/// Blocks the signal, so that it is kept.
fn block() {
    // SAFETY: a set that the kernel reads.
    unsafe { libc::syscall(libc::SYS_rt_sigprocmask, libc::SIG_BLOCK, &SET, 0, size_of_val(&SET)) };
}

/// Waits for the signal, which is blocked, and takes all that have come.
fn await_signal(timeout: Option<Duration>) {
    let time =
        |timeout: Duration| libc::timespec { tv_sec: timeout.as_secs() as i64, tv_nsec: timeout.subsec_nanos().into() };
    let take = |timeout: Option<Duration>| {
        let time = timeout.map(time);
        let at = time.as_ref().map_or(std::ptr::null(), std::ptr::from_ref);
        // SAFETY: a set and a time that the kernel reads; it writes nothing.
        unsafe { libc::syscall(libc::SYS_rt_sigtimedwait, &SET, std::ptr::null_mut::<u8>(), at, size_of_val(&SET)) }
    };
    let mut wait = timeout;
    while take(wait) > 0 {
        wait = Some(Duration::ZERO);
    }
}

/// Makes the thread look, and look again from time to time if there are leases.
fn wake(thread: i32) -> bool {
    // SAFETY: a thread of this process, which waits for this signal.
    unsafe { libc::syscall(libc::SYS_tgkill, libc::getpid(), thread, SIGNAL) == 0 }
}

static DISMISSED: AtomicBool = AtomicBool::new(false);

/// Ends the thread: no lease is held any more.
pub fn dismiss() {
    let thread = THREAD.load(Ordering::Acquire);
    if thread != 0 {
        DISMISSED.store(true, Ordering::Release);
        wake(thread);
    }
}

/// The thread's life.
fn serve(give_back: GiveBack) {
    while !DISMISSED.load(Ordering::Acquire) {
        let pinned = broken().into_iter().filter(|identity| !give_back(*identity)).count();
        // Each time anew, and before the look: a library may have unblocked it meanwhile.
        block();
        let look = (!leases().is_empty()).then_some(LOOK);
        await_signal(if pinned > 0 { Some(AGAIN) } else { look });
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn a_signal_that_finds_the_thread_unblocked_ends_nothing() {
        ignore_where_default();
        // SAFETY: a set that the kernel reads; the signal is sent to this thread.
        unsafe {
            libc::syscall(libc::SYS_rt_sigprocmask, libc::SIG_UNBLOCK, &SET, 0, size_of_val(&SET));
            assert!(wake(libc::syscall(libc::SYS_gettid) as i32));
        }
    }
}
