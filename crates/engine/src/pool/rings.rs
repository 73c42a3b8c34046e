//! The rings of a cache (io_uring(7)). A thread that writes takes a free one; if there is none it writes without.

use crate::sys::lock::Lock;
use crate::sys::process;
use crate::sys::uring::Ring;
use std::cell::UnsafeCell;
use std::io;
use std::ops::{Deref, DerefMut};
use std::os::fd::RawFd;

/// A few rings, each used by one thread at a time.
#[derive(Debug)]
pub struct Rings(Box<[Place]>);

#[derive(Debug)]
struct Place {
    taken: Lock,
    ring: UnsafeCell<Ring>,
}

// SAFETY: a ring is reached only under its lock.
unsafe impl Sync for Rings {}
// SAFETY: nothing in a ring belongs to a thread; writes in it end before it is given back.
unsafe impl Send for Rings {}

/// A ring, given back when dropped; nothing is in flight in it then.
#[derive(Debug)]
pub struct Taken<'a>(&'a Place);

impl Rings {
    /// Opens `count` rings.
    pub fn open(count: usize) -> io::Result<Self> {
        let place = |_| Ok(Place { taken: Lock::new(), ring: UnsafeCell::new(Ring::open()?) });
        Ok(Rings((0..count).map(place).collect::<io::Result<_>>()?))
    }

    /// A free ring that works. Signals are blocked.
    pub fn take(&self) -> Option<Taken<'_>> {
        self.0.iter().find_map(|place| {
            std::mem::forget(place.taken.try_lock()?);
            Some(Taken(place)).filter(|ring| ring.works())
        })
    }

    /// Waits until the writes in flight of a program that has ended are over, however long they take: a write that landed later might
    /// overwrite something newer. For the keeper, which alone is left.
    pub fn await_writes(&self) {
        /// Tries, half a millisecond each, after which one write is left out of account if the ring's count may be one too high.
        const PATIENCE: usize = 10_000;
        for place in &self.0 {
            // SAFETY: the program's threads have ended, so a lock that is held protects nothing, and the keeper has one
            // thread.
            let ring = unsafe { &mut *place.ring.get() };
            let mut tries = 0;
            while ring.unfinished() > usize::from(tries > PATIENCE && ring.is_between()) {
                tries += 1;
                process::pause();
            }
        }
    }

    /// Their descriptors.
    pub fn descriptors(&self) -> impl Iterator<Item = RawFd> {
        // SAFETY: a descriptor is set once and for all.
        self.0.iter().map(|place| unsafe { &*place.ring.get() }.descriptor())
    }
}

impl Deref for Taken<'_> {
    type Target = Ring;

    fn deref(&self) -> &Ring {
        // SAFETY: this thread holds the place's lock.
        unsafe { &*self.0.ring.get() }
    }
}

impl DerefMut for Taken<'_> {
    fn deref_mut(&mut self) -> &mut Ring {
        // SAFETY: this thread holds the place's lock.
        unsafe { &mut *self.0.ring.get() }
    }
}

impl Drop for Taken<'_> {
    fn drop(&mut self) {
        // SAFETY: `take` locked it and forgot the guard.
        unsafe { self.0.taken.release() };
    }
}
