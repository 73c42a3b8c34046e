//! Calls that change or ask about mappings, against a mapping's exchange beneath them (`takeover.rs`): a call that found a range to be
//! the kernel's would otherwise do to the engine's memory there what it meant for the kernel's.

use crate::sys::{fork, futex};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

/// Threads inside, and `CLOSED`.
static GATE: AtomicU32 = AtomicU32::new(0);
const CLOSED: u32 = 1 << 31;

/// Held by a thread during such a call.
#[must_use]
#[derive(Debug)]
pub struct Passing(());

/// Goes through the gate: from here on, until the value is dropped, no kernel mapping becomes the engine's. Async-signal-safe; may be
/// held twice by a thread.
///
/// ```
/// let _passing = fastmap::by_address::pass();
/// ```
#[inline]
pub fn pass() -> Passing {
    if GATE.fetch_add(1, Ordering::SeqCst) & CLOSED != 0 {
        wait();
    }
    Passing(())
}

#[cold]
fn wait() {
    loop {
        // Not inside: it is waited for that nobody is.
        GATE.fetch_sub(1, Ordering::SeqCst);
        let seen = GATE.load(Ordering::SeqCst);
        if seen & CLOSED != 0 {
            if fork::is_child() {
                // Made meanwhile, in a way that is not seen: nobody opens the gate here.
                in_child();
            }
            futex::wait_shared(&GATE, seen, Some(Duration::from_millis(10)));
        }
        if GATE.fetch_add(1, Ordering::SeqCst) & CLOSED == 0 {
            return;
        }
    }
}

impl Drop for Passing {
    #[inline]
    fn drop(&mut self) {
        GATE.fetch_sub(1, Ordering::SeqCst);
    }
}

/// In a child made by fork(2), where nobody takes anything over: a gate that was closed is open.
pub(super) fn in_child() {
    GATE.fetch_and(!CLOSED, Ordering::SeqCst);
}

/// The closed gate.
#[derive(Debug)]
pub(super) struct Closed(());

/// Closes the gate, and waits until nobody is inside; `None`: somebody stays, and it is open again. One thread at a time.
pub(super) fn close() -> Option<Closed> {
    const PATIENCE: Duration = Duration::from_millis(20);
    let start = Instant::now();
    GATE.fetch_or(CLOSED, Ordering::SeqCst);
    let closed = Closed(());
    while GATE.load(Ordering::SeqCst) != CLOSED {
        if start.elapsed() > PATIENCE {
            return None;
        }
        std::thread::sleep(Duration::from_micros(50));
    }
    Some(closed)
}

impl Drop for Closed {
    fn drop(&mut self) {
        GATE.fetch_and(!CLOSED, Ordering::SeqCst);
        futex::wake_all_shared(&GATE);
    }
}
