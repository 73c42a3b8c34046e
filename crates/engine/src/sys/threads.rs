//! The threads of this process, the engine's told from the program's by their names: proc(5).

use super::leaks::Unseen;
use super::proc_files;
use super::process::pause;
use super::rights;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

/// Threads of the engine's that were made, and that have their names: what tells them from the program's.
static MADE: AtomicU32 = AtomicU32::new(0);

static NAMED: AtomicU32 = AtomicU32::new(0);

/// A thread's work, counted: it begins once the thread has its name, and with the rights of one of the engine's (`rights.rs`).
pub fn named<T>(body: impl FnOnce() -> T) -> impl FnOnce() -> T {
    with_rights(false, body)
}

/// The same, of a thread that acts in place of the program's: it keeps their rights.
pub fn named_with_rights<T>(body: impl FnOnce() -> T) -> impl FnOnce() -> T {
    with_rights(true, body)
}

fn with_rights<T>(all: bool, body: impl FnOnce() -> T) -> impl FnOnce() -> T {
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
        Unseen::for_good();
        let _own = rights::Own::begin(all);
        drop(ticket);
        body()
    }
}

/// Waits until threads of the engine's that were made have their names, and their rights.
pub fn await_names() {
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

/// Waits until the engine's threads, which have been told to end, are gone, and those that the kernel had for their
/// writes. False: one does not end. A thread of the program's that the kernel keeps another for is not waited for: that
/// stays as long as it does.
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

/// The names of this process's threads (proc(5)). Where one ends while they are listed others may be left out: they are
/// listed anew.
fn names() -> Vec<String> {
    loop {
        let threads = proc_files::numbers("/proc/self/task");
        let name = |thread: &u32| proc_files::text(format!("/proc/self/task/{thread}/comm"));
        let names: Vec<_> = threads.iter().map(name).collect();
        if names.iter().all(|name| !name.is_empty()) {
            return names;
        }
    }
}
