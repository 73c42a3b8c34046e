//! Tells the engine's threads from the program's by their names: proc(5).

use super::leaks::Unseen;
use super::proc_files;
use super::process::pause;
use super::rights;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

/// How many threads of the engine were made. [`NAMED`] lags behind until all of them have their names.
static MADE: AtomicU32 = AtomicU32::new(0);

/// How many of these threads have their names, or could not be made.
static NAMED: AtomicU32 = AtomicU32::new(0);

/// Wraps the work of a new thread, and counts the thread. The work begins once the thread has its name, and with the rights of the engine's threads
/// (`rights.rs`).
pub fn named<T>(body: impl FnOnce() -> T) -> impl FnOnce() -> T {
    with_rights(false, body)
}

/// The same for a thread that acts in place of the program's threads: it keeps their rights.
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
    // The ticket is dropped, too, when no thread could be made.
    let ticket = Ticket;
    move || {
        Unseen::for_good();
        let _own = rights::Own::begin(all);
        drop(ticket);
        body()
    }
}

/// Waits until all threads of the engine that were made have their names and their rights.
pub fn await_names() {
    while NAMED.load(Ordering::Acquire) != MADE.load(Ordering::Relaxed) {
        pause();
    }
}

/// Whether the calling thread is the only one of the program's. The engine's threads do not count, nor do those that the kernel keeps for
/// io_uring(7). Without /proc the answer is yes.
pub fn is_alone() -> bool {
    await_names();
    names().iter().filter(|name| !name.starts_with("fastmap-") && !name.starts_with("iou-")).count() <= 1
}

/// Waits until the engine's threads, which were told to end, are gone: a second at most. False: one of them has not ended.
///
/// Then it waits, half a second at most, for the threads that the kernel keeps for the engine's writes. It cannot wait longer: the kernel may keep
/// such a thread for one of the program's, and keeps it as long as that thread lives.
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

/// Returns the names of this process's threads (proc(5)). If a thread ends while they are listed, others may be left out. Then they are listed anew.
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
