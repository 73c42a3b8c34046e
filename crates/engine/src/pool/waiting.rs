//! Threads that wait for room: for a free frame, a clean page or a buffer.

use crate::sys::futex;
use crate::sys::sync::{AtomicU32, Ordering, fence};
use std::time::Duration;

/// How many threads wait, and the word that they sleep on.
#[derive(Debug, Default)]
#[repr(align(128))] // written by all cores: on lines of its own, beside what they only read
pub struct Waiting {
    /// Raised whenever something is freed while a thread waits.
    progress: AtomicU32,
    waiters: AtomicU32,
}

impl Waiting {
    /// Repeats `attempt` until it gives something, asleep between tries. A thread that frees a frame, a clean page or a
    /// buffer calls [`Waiting::wake_waiters`]; a sleeper that announced itself before its last try cannot miss it.
    pub fn wait_for_room<T>(&self, mut attempt: impl FnMut() -> Option<T>) -> T {
        /// The longest sleep. Some progress wakes nobody: space that is made on a full disk.
        const NAP: Duration = Duration::from_millis(50);
        loop {
            if let Some(found) = attempt() {
                return found;
            }
            self.waiters.fetch_add(1, Ordering::SeqCst);
            let before = self.progress.load(Ordering::SeqCst);
            let found = attempt();
            if found.is_none() {
                futex::wait(&self.progress, before, Some(NAP));
            }
            self.waiters.fetch_sub(1, Ordering::SeqCst);
            if let Some(found) = found {
                return found;
            }
        }
    }

    /// Tells waiting threads that something was freed. The fence pairs with `wait_for_room`: either this thread sees the sleeper announced,
    /// or the sleeper's last try sees what was freed.
    #[inline]
    pub fn wake_waiters(&self) {
        fence(Ordering::SeqCst);
        if self.waiters.load(Ordering::Relaxed) > 0 {
            self.progress.fetch_add(1, Ordering::SeqCst);
            futex::wake_all(&self.progress);
        }
    }
}
