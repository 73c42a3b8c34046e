//! Whether huge frames may be moved into a region. They may if the region is mapped so that the kernel moves them, and nobody stores to it.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

/// The state for a region.
#[derive(Debug, Default)]
#[repr(align(128))] // written by all cores: on lines of its own, beside what they only read
pub struct Frames {
    allowed: AtomicBool,
    /// Threads that are moving one in.
    moving: AtomicUsize,
}

/// A frame is on its way into a region.
#[derive(Debug)]
pub struct Moving<'a>(&'a AtomicUsize);

impl Drop for Moving<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

impl Frames {
    /// Allows frames or not, before the first one may come.
    pub fn allow(&self, allowed: bool) {
        self.allowed.store(allowed, Ordering::Release);
    }

    /// Forbids them, and waits until no thread moves one in. Those that are there stay.
    pub fn forbid(&self) {
        self.allowed.store(false, Ordering::SeqCst);
        while self.moving.load(Ordering::SeqCst) > 0 {
            std::thread::yield_now();
        }
    }

    /// Whether frames are moved into the region.
    pub fn are_allowed(&self) -> bool {
        self.allowed.load(Ordering::Relaxed)
    }

    /// Announces a thread that moves a frame in, until the guard is dropped. `None`: frames are forbidden.
    pub fn begin_move(&self) -> Option<Moving<'_>> {
        // SeqCst, as in `forbid`: either that sees this thread, or this thread sees that frames are forbidden.
        self.moving.fetch_add(1, Ordering::SeqCst);
        let moving = Moving(&self.moving);
        self.allowed.load(Ordering::SeqCst).then_some(moving)
    }
}
