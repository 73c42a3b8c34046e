//! Steering from inside: a thread of a program that asked for it.

use crate::act::Own;
use crate::observe::{Process, Rights};
use crate::{Ledger, Report, Sampler, Settings, Watcher};
use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous, munmap};
use std::hint::black_box;
use std::mem::MaybeUninit;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::mpsc::sync_channel;
use std::sync::{Arc, LazyLock};
use std::time::Duration;

/// The thread's line.
static REPORT: LazyLock<Arc<Report>> = LazyLock::new(Arc::default);

/// What was given: a child of fork(2) has a copy, and its parent's advice.
static LEDGER: LazyLock<Ledger> = LazyLock::new(Ledger::default);

/// The process whose thread was started last.
static STARTED: AtomicU32 = AtomicU32::new(0);

/// How often the thread looks whether the program has given up rights.
const CHECK: Duration = Duration::from_millis(500);

/// Bytes that a sampling round may allocate.
const ROUND: usize = 4 << 20;

/// One line of what the thread of [`start`] has seen and done so far, or why it has ended; `None` if that is nothing.
///
/// ```
/// assert_eq!(fastmap_steer::report(), None);
/// ```
pub fn report() -> Option<String> {
    // A child made by fork(2) has a copy of its parent's line.
    if STARTED.load(Ordering::Relaxed) == std::process::id() { REPORT.text() } else { None }
}

/// Starts a thread that steers this process's file mappings. A second call does nothing.
///
/// It is a thread as any other library's: `/proc/self/task` and limits count it, and calls that need a process of one thread fail
/// (unshare(2), setns(2)). No signal is delivered to it. It lasts until the process ends or executes another program. It ends before
/// that, and says why in [`report`]:
/// * Half a second, or less, after the program's first thread has changed its user, capabilities, filters (seccomp(2)) or
///   `PR_SET_NO_NEW_PRIVS`. Filters for all threads (`SECCOMP_FILTER_FLAG_TSYNC`) apply to its calls until then. So a program that sets one
///   sets `PR_SET_NO_NEW_PRIVS` first, and waits until the thread is gone.
/// * When there is no memory for it (RLIMIT_AS, RLIMIT_DATA, `vm.max_map_count`), or /proc cannot be read.
///
/// Where a program reads from slow storage, the thread opens a few of the files that are mapped, and leaves them open: a close(2) would
/// end the program's locks on them (fcntl(2)).
///
/// There is no error to handle: where no further thread can be started, or /proc is missing, nothing is steered.
pub fn start() {
    if STARTED.load(Ordering::Relaxed) == 0 {
        start_here();
    }
}

/// The same in a child made by fork(2), too: no thread of its parent is in it.
pub fn start_here() {
    let own = std::process::id();
    if STARTED.swap(own, Ordering::Relaxed) != own {
        REPORT.set("");
        // Before the thread is there: the program may give up rights at once.
        let rights = Rights::of(own);
        let (tell, begun) = sync_channel(1);
        let body = move || {
            // This thread's part of the heap.
            drop(black_box(Vec::<u8>::with_capacity(16 << 10)));
            let _ = tell.send(());
            steer(rights);
        };
        let thread = std::thread::Builder::new().name("fastmap-steer".into()).stack_size(256 << 10);
        // Where the thread cannot be started, the mappings are the kernel's without advice. The C library ends the program where a thread
        // that begins gets no memory: a limit that the program sets next must not meet it there. The wait has an end, since the program
        // may hold the dynamic linker's lock, which the thread needs.
        without_signals(|| {
            if thread.spawn(body).is_ok() {
                let _ = begun.recv_timeout(Duration::from_millis(100));
            }
        });
    }
}

/// Runs `body` while this thread gets no signals. Threads that are started meanwhile never get any: the program's handlers run in the
/// program's threads.
fn without_signals(body: impl FnOnce()) {
    let (mut all, mut before) = (MaybeUninit::uninit(), MaybeUninit::uninit());
    // SAFETY: fills sets of this function's own.
    unsafe {
        libc::sigfillset(all.as_mut_ptr());
        libc::pthread_sigmask(libc::SIG_SETMASK, all.as_ptr(), before.as_mut_ptr());
    }
    body();
    // SAFETY: the set was filled above.
    unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, before.as_ptr(), null_mut()) };
}

/// Until the program no longer has `rights`.
fn steer(rights: Option<Rights>) {
    let process = std::process::id();
    let (mut since, mut end) = (Duration::ZERO, None);
    let image = Process::of(process).and_then(Process::image).unwrap_or_default();
    let report = Arc::clone(&REPORT);
    let mut watcher =
        Watcher::new(Sampler::of(process), Own::new(), Settings::default(), report, LEDGER.clone(), image);
    watcher.run(|pause| {
        std::thread::sleep(pause);
        since += pause;
        if !has_memory() {
            end = Some("steering has ended: there is no memory for it (RLIMIT_AS, RLIMIT_DATA, vm.max_map_count)");
        } else if since >= CHECK {
            since = Duration::ZERO;
            if Rights::of(process).is_some_and(|now| Some(now) != rights) {
                end = Some("steering has ended: the program has changed its rights or filters");
            }
        }
        end.is_none()
    });
    // A new filter may forbid what takes advice back.
    if Rights::of(process).zip(rights).is_some_and(|(now, before)| now.has_filters_of(&before)) {
        watcher.undo();
    }
    REPORT.set(end.unwrap_or("steering has ended: /proc cannot be read"));
}

/// Whether there is memory for a sampling round: an allocation that fails would end the program. Not by the allocator, which would keep some.
fn has_memory() -> bool {
    // SAFETY: the kernel chooses the place, and nobody uses it.
    unsafe {
        let made = mmap_anonymous(null_mut(), ROUND, ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE);
        made.is_ok_and(|at| munmap(at, ROUND).is_ok())
    }
}
