//! The engine's lock: a futex word, safe to take in a fault handler.
//!
//! It is held only by threads that have every signal blocked, so that its owner is never interrupted by a handler that
//! faults on a map and waits for the lock beneath it.

use crate::sys::signal::Blocked;
use crate::sys::sync::{AtomicU32, Ordering};
use std::cell::UnsafeCell;
use std::sync::LazyLock;

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
        // A thread that slept marks the lock contended when it gets it: others may sleep still.
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

/// A value that a lock guards, taken with signals blocked.
#[derive(Debug)]
pub struct Guarded<T> {
    lock: LazyLock<Lock>,
    value: UnsafeCell<T>,
}

// SAFETY: the value is only reached under the lock.
unsafe impl<T: Send> Sync for Guarded<T> {}

impl<T> Guarded<T> {
    /// A value that nobody has.
    pub const fn new(value: T) -> Self {
        Guarded { lock: LazyLock::new(Lock::new), value: UnsafeCell::new(value) }
    }

    /// Runs `then` on the value.
    pub fn with<R>(&self, then: impl FnOnce(&mut T) -> R) -> R {
        let _blocked = Blocked::all();
        let _held = self.lock.lock();
        // SAFETY: under the lock.
        then(unsafe { &mut *self.value.get() })
    }

    /// Takes the lock for as long as a fork(2) lasts. Signals are blocked meanwhile.
    pub fn freeze(&self) {
        std::mem::forget(self.lock.lock());
    }

    /// The frozen value.
    ///
    /// # Safety
    /// This thread has frozen it, and not thawed it since.
    pub unsafe fn frozen(&self) -> &T {
        // SAFETY: under the lock.
        unsafe { &*self.value.get() }
    }

    /// Lets it go, in the parent or in the child.
    ///
    /// # Safety
    /// This thread has frozen it, or is the one that a child was made of.
    pub unsafe fn thaw(&self) {
        // SAFETY: the caller's contract.
        unsafe { self.lock.release() };
    }
}
