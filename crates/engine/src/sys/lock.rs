//! The engine's lock: a futex word. A fault handler may take it.
//!
//! Only threads that block all signals hold it. Otherwise a signal handler could interrupt the holder, fault on a map, and wait for the lock
//! that its own thread holds.

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

/// Shows that a lock is held. Releases the lock when dropped.
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

    /// Takes the lock. Sleeps while another thread has it.
    pub fn lock(&self) -> Held<'_> {
        if let Some(held) = self.try_lock() {
            return held;
        }
        // A thread that had to wait takes the lock as CONTENDED, since others may still sleep.
        while self.0.swap(CONTENDED, Ordering::Acquire) != FREE {
            crate::sys::futex::wait(&self.0, CONTENDED, None);
        }
        Held(self)
    }

    /// Releases the lock without a guard.
    ///
    /// # Safety
    /// The caller holds the lock: it has taken the lock and forgotten the guard.
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
        // SAFETY: the guard exists, so the lock is held.
        unsafe { self.0.release() };
    }
}

/// A value guarded by a lock. A thread blocks all signals while it holds the lock.
#[derive(Debug)]
pub struct Guarded<T> {
    lock: LazyLock<Lock>,
    value: UnsafeCell<T>,
}

// SAFETY: the value is only reached under the lock.
unsafe impl<T: Send> Sync for Guarded<T> {}

impl<T> Guarded<T> {
    /// Guards `value` with a free lock.
    pub const fn new(value: T) -> Self {
        Guarded { lock: LazyLock::new(Lock::new), value: UnsafeCell::new(value) }
    }

    /// Runs `then` on the value.
    pub fn with<R>(&self, then: impl FnOnce(&mut T) -> R) -> R {
        let _blocked = Blocked::all();
        let _held = self.lock.lock();
        // SAFETY: this thread holds the lock.
        then(unsafe { &mut *self.value.get() })
    }

    /// Takes the lock for the time of a fork(2), until [`Guarded::thaw`]. The caller blocks all signals for that time.
    pub fn freeze(&self) {
        std::mem::forget(self.lock.lock());
    }

    /// The frozen value.
    ///
    /// # Safety
    /// This thread has frozen the value, and has not thawed it since.
    pub unsafe fn frozen(&self) -> &T {
        // SAFETY: the caller's contract: this thread holds the lock.
        unsafe { &*self.value.get() }
    }

    /// Releases the lock that `freeze` took, in the parent or in the child.
    ///
    /// # Safety
    /// This thread has frozen the value, or is the child's copy of the thread that has.
    pub unsafe fn thaw(&self) {
        // SAFETY: the caller's contract.
        unsafe { self.lock.release() };
    }
}
