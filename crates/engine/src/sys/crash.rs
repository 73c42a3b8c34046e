//! Ends the process at a moment that a test has chosen. The engine passes such a moment before each change of a page's word that a claim makes,
//! and a faulty disk (`store/faulty.rs`) before and after each access.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// Moments left to pass; the process ends at the last one. 0: it does not end.
static LEFT: AtomicU64 = AtomicU64::new(0);
static PASSED: AtomicU64 = AtomicU64::new(0);
static IS_KILL: AtomicBool = AtomicBool::new(false);
static OVER: AtomicBool = AtomicBool::new(false);

/// Ends the process at the moment with a number, counted from here: by SIGKILL, or by `_exit(7)`.
pub fn at(moment: u64, is_kill: bool) {
    IS_KILL.store(is_kill, Ordering::Relaxed);
    LEFT.store(moment, Ordering::Relaxed);
}

/// Moments passed so far.
pub fn passed() -> u64 {
    PASSED.load(Ordering::Relaxed)
}

/// One more moment passes.
pub fn pass() {
    PASSED.fetch_add(1, Ordering::Relaxed);
    if LEFT.load(Ordering::Relaxed) == 0 || LEFT.fetch_sub(1, Ordering::Relaxed) != 1 {
        return;
    }
    begin_end();
    // SAFETY: no memory; neither returns.
    unsafe {
        if IS_KILL.load(Ordering::Relaxed) {
            libc::kill(libc::getpid(), libc::SIGKILL);
        }
        libc::_exit(7)
    }
}

/// Whether the process ends at the next moment.
pub fn is_next() -> bool {
    LEFT.load(Ordering::Relaxed) == 1
}

/// Says that the process is about to end in a way of the test's own.
pub fn begin_end() {
    LEFT.store(0, Ordering::Relaxed);
    OVER.store(true, Ordering::SeqCst);
}

/// The process has ended, or does so now: whoever asks is its keeper.
pub fn is_over() -> bool {
    OVER.load(Ordering::SeqCst)
}
