//! A read-write lock for each node, in ordinary memory: a table by node number, made a segment at a time.

use std::sync::{OnceLock, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use super::alloc::{SEGMENT, SEGMENT_PAGES};

/// The locks of all nodes that there can be.
pub struct Locks {
    segments: Vec<OnceLock<Box<[RwLock<()>]>>>,
}

impl Locks {
    /// For a file of at most `capacity` bytes.
    pub fn new(capacity: u64) -> Locks {
        Locks { segments: (0..capacity / SEGMENT).map(|_| OnceLock::new()).collect() }
    }

    /// A node's.
    #[inline]
    pub fn of(&self, node: u64) -> &RwLock<()> {
        let segment = self.segments[(node / SEGMENT_PAGES) as usize]
            .get_or_init(|| (0..SEGMENT_PAGES).map(|_| RwLock::new(())).collect());
        &segment[(node % SEGMENT_PAGES) as usize]
    }
}

/// Locks for reading. A thread that panicked left no value behind that could be wrong: the lock guards none of its own.
#[inline]
pub fn read(lock: &RwLock<()>) -> RwLockReadGuard<'_, ()> {
    lock.read().unwrap_or_else(PoisonError::into_inner)
}

/// Locks for writing.
#[inline]
pub fn write(lock: &RwLock<()>) -> RwLockWriteGuard<'_, ()> {
    lock.write().unwrap_or_else(PoisonError::into_inner)
}
