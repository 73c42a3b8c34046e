//! The engine's lock: a futex word, safe to take in a fault handler.
//!
//! It is held only by threads that have every signal blocked, so that its owner is never interrupted by a handler that
//! faults on a map and waits for the lock beneath it.

use crate::sync::{AtomicU32, Ordering};

const FREE: u32 = 0;
const HELD: u32 = 1;
const CONTENDED: u32 = 2;

/// A mutex without data.
#[derive(Debug)]
pub struct Lock(AtomicU32);

/// Releases its lock when dropped.
#[derive(Debug)]
pub struct Held<'a>(&'a Lock);

impl Lock {
    /// A free lock.
    pub fn new() -> Self {
        Lock(AtomicU32::new(FREE))
    }

    /// Takes the lock if it is free.
    #[inline]
    pub fn try_lock(&self) -> Option<Held<'_>> {
        self.0.compare_exchange(FREE, HELD, Ordering::Acquire, Ordering::Relaxed).ok().map(|_| Held(self))
    }

    /// Takes the lock, sleeping while another thread has it.
    pub fn lock(&self) -> Held<'_> {
        if let Some(held) = self.try_lock() {
            return held;
        }
        // Whoever slept marks the lock contended when it gets it: others may sleep still.
        while self.0.swap(CONTENDED, Ordering::Acquire) != FREE {
            crate::sys::futex::wait(&self.0, CONTENDED, None);
        }
        Held(self)
    }

    /// Releases the lock without a guard.
    ///
    /// # Safety
    /// The caller holds the lock: it took it and forgot the guard.
    #[inline]
    pub unsafe fn release(&self) {
        if self.0.swap(FREE, Ordering::Release) == CONTENDED {
            crate::sys::futex::wake(&self.0, 1);
        }
    }
}

impl Drop for Held<'_> {
    #[inline]
    fn drop(&mut self) {
        // SAFETY: the guard stands for the lock being held.
        unsafe { self.0.release() };
    }
}
