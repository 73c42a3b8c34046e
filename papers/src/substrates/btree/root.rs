//! The root: read without a lock, changed in a copy.
//!
//! It lies in two pages in turn; the version's lowest bit says which. Who changes it takes the mutex, copies it to the
//! other page, changes the copy there, and raises the version. Who reads it remembers the version, locks the child it
//! found, and looks whether the version is still that: if it is, the page was nobody's to write meanwhile, and the
//! child still has that part of the keys, since a child is split only by who changes the root before unlocking the
//! child. (Lamport: Concurrent reading and writing, CACM 1977.)
//!
//! The root is never a leaf: a new store has a root with one child.

use std::cell::Cell;
use std::ops::Range;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicU64, fence};
use std::sync::{Mutex, MutexGuard, PoisonError};

use super::alloc::Space;
use super::node::{INNER_ENTRIES, Node, Target};
use super::region::Region;

/// The root's pages.
pub const SLOTS: Range<u64> = 1..3;

/// The root's version and who may change it.
pub struct Root {
    /// How often it has changed.
    pub version: AtomicU64,
    change: Mutex<()>,
}

impl Root {
    /// The root of a store that was saved at this version; of a new one, 0.
    pub fn at(version: u64) -> Root {
        Root { version: AtomicU64::new(version), change: Mutex::new(()) }
    }

    /// The first root, over one leaf.
    pub fn begin<R: Region>(&self, space: &Space<R>, leaf: u64) {
        self.page(space, self.version.load(Relaxed)).make_inner(1, leaf);
    }

    fn page<'a, R: Region>(&self, space: &'a Space<R>, version: u64) -> Node<'a> {
        space.node(SLOTS.start + version % 2)
    }

    /// The child for a key and its level, valid if [`Root::is_still`] says so after the child was locked. None: try again.
    #[inline]
    pub fn child<R: Region>(&self, space: &Space<R>, target: &Target<'_>) -> Option<(u64, u32, u64)> {
        // Pairs with the store in `publish`: what was written before it is seen.
        let version = self.version.load(Acquire);
        let node = self.page(space, version);
        let changed = Cell::new(false);
        let position = node.partition(node.count().min(INNER_ENTRIES), |position| {
            let entry = node.inner(position);
            if entry.prefix != target.prefix {
                return entry.prefix < target.prefix;
            }
            // The record may be looked at only if it is this version that names it.
            if changed.get() || !self.is_still(version) {
                changed.set(true);
                return false;
            }
            space.compare(entry, target).is_le()
        });
        let (level, child) = (node.level().checked_sub(1)?, node.child(position));
        (!changed.get()).then_some((version, level, child))
    }

    /// Whether the root has not changed since; all that was read of it before counts then.
    #[inline]
    pub fn is_still(&self, version: u64) -> bool {
        // Pairs with the fence in `publish`: if anything read before this was written for a later version, that version's
        // predecessor is seen here.
        fence(Acquire);
        self.version.load(Relaxed) == version
    }

    /// Lets this thread alone change the root.
    pub fn change(&self) -> MutexGuard<'_, ()> {
        self.change.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The root as it is, for whom nobody else can change it.
    pub fn current<'a, R: Region>(&self, space: &'a Space<R>, _changing: &MutexGuard<'_, ()>) -> Node<'a> {
        self.page(space, self.version.load(Relaxed))
    }

    /// Makes a changed copy the root.
    pub fn publish<R: Region>(&self, space: &Space<R>, changing: &MutexGuard<'_, ()>, change: impl FnOnce(Node<'_>)) {
        let version = self.version.load(Relaxed);
        let copy = self.page(space, version + 1);
        // Pairs with the fence in `is_still`: who reads what is stored from here on sees this version, not the one before
        // it, which was the last that lay in this page.
        fence(Release);
        copy.copy_from(self.current(space, changing));
        change(copy);
        self.version.store(version + 1, Release);
    }
}
