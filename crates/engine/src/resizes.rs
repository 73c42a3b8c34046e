//! Changes of a file's length that are under way (`coherent.rs`), for flushes.
//!
//! What a truncation is to cut off has no dirty bit while it is under way and is not in the file either; should the call fail it
//! is dirty again. A flush that looks at the bits meanwhile would miss it. So whoever promises that all is in the file waits until
//! none is under way, flushes, and flushes once more if one has begun since.
//!
//! No deadlock: a thread that changes a length waits for pages that others hold, and for the writers' locks, never for a flush.
//! Nobody waits here with a page, such a lock or a region's length held: `writeback::write_out` and what is beneath it does not.

use crate::lock::{Held, Lock};
use crate::sync::{AtomicU32, Ordering};
use crate::sys::futex;
use crate::sys::signal::Blocked;
use libc::pthread_t;
use std::sync::atomic::AtomicU64;

/// A region's.
#[derive(Debug)]
pub struct Resizes {
    /// One at a time.
    lock: Lock,
    /// Raised when one begins and when it ends, so odd while it is under way; slept on.
    count: AtomicU32,
    /// The thread that has it; 0: none.
    owner: AtomicU64,
}

/// One that is under way, until dropped: when its pages are as they will be.
#[derive(Debug)]
pub struct UnderWay<'a> {
    resizes: &'a Resizes,
    // In this order: a lock is held only with signals blocked.
    _held: Held<'a>,
    _blocked: Blocked,
}

/// A moment at which none was under way.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Mark(u32);

fn this_thread() -> pthread_t {
    // SAFETY: no preconditions.
    unsafe { libc::pthread_self() }
}

impl Resizes {
    /// None.
    pub fn new() -> Self {
        Resizes { lock: Lock::new(), count: AtomicU32::new(0), owner: AtomicU64::new(0) }
    }

    /// Begins one, before it takes any page.
    pub fn begin(&self) -> UnderWay<'_> {
        let blocked = Blocked::all();
        let held = self.lock.lock();
        self.owner.store(this_thread(), Ordering::Relaxed);
        // A flush that misses a bit which this thread takes sees the count: the block's lock is between the two.
        self.count.fetch_add(1, Ordering::AcqRel);
        UnderWay { resizes: self, _held: held, _blocked: blocked }
    }

    /// Whether this thread has one under way, and would wait for itself.
    pub fn is_mine(&self) -> bool {
        self.owner.load(Ordering::Relaxed) == this_thread()
    }

    /// This moment, which is no mark if one is under way.
    pub fn moment(&self) -> Mark {
        Mark(self.count.load(Ordering::Acquire))
    }

    /// Waits until none is under way. EDEADLK: this thread has one.
    pub fn await_end(&self) -> Result<Mark, i32> {
        loop {
            let now = self.moment();
            if now.0.is_multiple_of(2) {
                return Ok(now);
            }
            if self.is_mine() {
                return Err(libc::EDEADLK);
            }
            futex::wait(&self.count, now.0, None);
        }
    }

    /// Whether none has been under way since a mark.
    pub fn none_since(&self, mark: Mark) -> bool {
        mark.0.is_multiple_of(2) && self.moment() == mark
    }
}

impl Drop for UnderWay<'_> {
    fn drop(&mut self) {
        self.resizes.owner.store(0, Ordering::Relaxed);
        self.resizes.count.fetch_add(1, Ordering::AcqRel);
        futex::wake_all(&self.resizes.count);
    }
}
