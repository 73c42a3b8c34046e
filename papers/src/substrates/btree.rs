//! A small key-value store written for mapped memory: a B+-tree and a log in one file, any number of threads.
//!
//! After Kreon (Papagiannis et al., SoCC '18) as the FastMap paper changed it: records, key and value together, are
//! appended to a log (`log.rs`), so that new ones dirty pages one after the other, and are written in large runs; the
//! tree (`node.rs`) holds 16 bytes of each key and the record's place, so that a sixth of memory still holds all of it
//! and a get touches one page or two that may be absent. Two keys that agree in 16 bytes are told apart in the log. A
//! value of the same length is overwritten where it is, without garbage and without a collector; one of another length
//! moves to the log's end, and its old place is lost.
//!
//! Threads go down by Bayer and Schkolnick's second protocol: read locks coupled from the root to the leaf, whose lock
//! alone is a write lock for those who change it; who finds the leaf full goes down again with write locks, and keeps
//! those of full nodes. The root has no such lock, since all would meet there: it is changed in a copy, under a mutex,
//! and published by a counter that readers compare (`root.rs`). Locks are in a table by node number (`locks.rs`), not
//! in the file.
//!
//! [`Tree::flush`] puts everything on stable storage. What was flushed is found again; a file that was changed after
//! its last flush and not flushed again, by a crash say, is refused when it is opened: pages reach the file in any
//! order between two flushes. Nothing is deleted.

mod alloc;
mod locks;
mod log;
mod node;
mod region;
mod root;
mod split;
#[cfg(test)]
mod tests;

use std::sync::atomic::Ordering::Acquire;
use std::sync::{RwLockReadGuard, RwLockWriteGuard};

pub use self::region::{FastmapRegion, KernelRegion, Region};

use self::alloc::Space;
use self::locks::Locks;
use self::log::{Log, Place};
use self::node::{LEAF_ENTRIES, Node, Target};
use self::root::Root;
use crate::substrates::Result;

/// Longest key, bytes.
pub const LONGEST_KEY: usize = 4096;

/// Longest value, bytes.
pub const LONGEST_VALUE: usize = 512 << 10;

/// The store over some region.
pub struct Tree<R> {
    space: Space<R>,
    log: Log,
    root: Root,
    locks: Locks,
}

/// A locked node on the way down.
#[expect(dead_code, reason = "held, not looked at")]
enum Held<'a> {
    Read(RwLockReadGuard<'a, ()>),
    Write(RwLockWriteGuard<'a, ()>),
}

impl<R: Region> Tree<R> {
    /// A new, empty store that takes the whole region.
    ///
    /// # Errors
    ///
    /// What extending the file answers.
    pub fn create(region: R) -> Result<Tree<R>> {
        let space = Space::create(region)?;
        let tree = Tree { log: Log::create(), root: Root::at(0), locks: Locks::new(space.capacity()), space };
        let leaf = tree.space.take_node()?;
        tree.space.node(leaf).make_leaf();
        tree.root.begin(&tree.space, leaf);
        Ok(tree)
    }

    /// The store that [`Tree::flush`] left in the region.
    ///
    /// # Errors
    ///
    /// A file that holds no store, or one that was changed after its last flush.
    pub fn open(region: R) -> Result<Tree<R>> {
        let (space, saved) = Space::open(region)?;
        let (log, root) = (Log::restore(&saved), Root::at(saved.root));
        Ok(Tree { log, root, locks: Locks::new(space.capacity()), space })
    }

    /// Hands a value to `with`; None if there is no such key.
    #[inline]
    pub fn get<T>(&self, key: &[u8], with: impl FnOnce(&[u8]) -> T) -> Option<T> {
        let target = Target::of(key);
        let (leaf, _held) = self.leaf(&target, false);
        let place = self.find(leaf, &target)?;
        // SAFETY: a record that the leaf names; values change under the leaf's write lock alone.
        Some(with(unsafe { self.space.record(place).value() }))
    }

    /// Inserts a key or gives it another value; whether it is new.
    ///
    /// # Errors
    ///
    /// A key or value that is too long, no room in the region, or what the file's system answers.
    pub fn put(&self, key: &[u8], value: &[u8]) -> Result<bool> {
        self.space.check_lengths(key, value)?;
        self.space.note_change()?;
        let target = Target::of(key);
        let (leaf, held) = self.leaf(&target, true);
        if let Some(position) = self.position(leaf, &target) {
            self.replace(leaf, position, key, value)?;
            return Ok(false);
        }
        let node = self.space.node(leaf);
        if node.count() < LEAF_ENTRIES {
            let place = self.log.append(&self.space, key, value)?;
            node.insert_leaf(self.lower_bound(leaf, &target), &target, place);
            return Ok(true);
        }
        drop(held);
        self.put_splitting(&target, value)
    }

    /// Changes a value where it is; None if there is no such key.
    ///
    /// # Errors
    ///
    /// What the file's system answers.
    pub fn modify<T>(&self, key: &[u8], with: impl FnOnce(&mut [u8]) -> T) -> Result<Option<T>> {
        self.space.note_change()?;
        let target = Target::of(key);
        let (leaf, _held) = self.leaf(&target, true);
        let Some(place) = self.find(leaf, &target) else { return Ok(None) };
        // SAFETY: a record that the leaf names, whose write lock this thread holds.
        Ok(Some(with(unsafe { self.space.record(place).value_mut() })))
    }

    /// Hands keys and values to `with`, in the order of keys from the first that is not below `from`, until it answers
    /// false.
    pub fn scan(&self, from: &[u8], mut with: impl FnMut(&[u8], &[u8]) -> bool) {
        let target = Target::of(from);
        let (mut leaf, mut held) = self.leaf(&target, false);
        let mut position = self.lower_bound(leaf, &target);
        loop {
            let node = self.space.node(leaf);
            for position in position..node.count() {
                // SAFETY: a record that the leaf names; values change under the leaf's write lock alone.
                let record = unsafe { self.space.record(node.place(position)) };
                // SAFETY: as above.
                if !with(record.key(), unsafe { record.value() }) {
                    return;
                }
            }
            let Some(next) = node.next() else { return };
            let lock = Held::Read(locks::read(self.locks.of(next)));
            drop(std::mem::replace(&mut held, lock));
            (leaf, position) = (next, 0);
        }
    }

    /// Puts everything on stable storage, so that [`Tree::open`] finds it.
    ///
    /// # Errors
    ///
    /// What the file's system answers.
    pub fn flush(&mut self) -> Result<()> {
        let root = self.root.version.load(Acquire);
        self.space.save(root, self.log.tails())
    }

    /// The leaf for a key, locked: for writing if it is to be changed.
    #[inline]
    fn leaf(&self, target: &Target<'_>, write: bool) -> (u64, Held<'_>) {
        loop {
            let Some((version, mut level, mut node)) = self.root.child(&self.space, target) else { continue };
            let mut held = self.lock(node, level == 0 && write);
            if !self.root.is_still(version) {
                continue; // whoever split the child has changed the root before unlocking it
            }
            while level > 0 {
                level -= 1;
                node = {
                    let inner = self.space.node(node);
                    inner.child(self.above(inner, target))
                };
                let lock = self.lock(node, level == 0 && write);
                drop(std::mem::replace(&mut held, lock));
            }
            return (node, held);
        }
    }

    #[inline]
    fn lock(&self, node: u64, write: bool) -> Held<'_> {
        let lock = self.locks.of(node);
        if write { Held::Write(locks::write(lock)) } else { Held::Read(locks::read(lock)) }
    }

    /// The first entry of a locked leaf that is not below a key.
    #[inline]
    fn lower_bound(&self, leaf: u64, target: &Target<'_>) -> usize {
        let node = self.space.node(leaf);
        node.partition(node.count(), |position| self.space.compare(node.leaf(position), target).is_lt())
    }

    /// A key's entry in a locked leaf.
    #[inline]
    fn position(&self, leaf: u64, target: &Target<'_>) -> Option<usize> {
        let (node, position) = (self.space.node(leaf), self.lower_bound(leaf, target));
        let is_there = position < node.count() && self.space.compare(node.leaf(position), target).is_eq();
        is_there.then_some(position)
    }

    #[inline]
    fn find(&self, leaf: u64, target: &Target<'_>) -> Option<Place> {
        self.position(leaf, target).map(|position| self.space.node(leaf).place(position))
    }

    /// Gives an entry of a write-locked leaf another value.
    fn replace(&self, leaf: u64, position: usize, key: &[u8], value: &[u8]) -> Result<()> {
        let node = self.space.node(leaf);
        // SAFETY: a record that the leaf names, whose write lock this thread holds.
        let record = unsafe { self.space.record(node.place(position)) };
        if record.value_len() == value.len() {
            // SAFETY: as above.
            unsafe { record.value_mut() }.copy_from_slice(value);
        } else {
            node.set_place(position, self.log.append(&self.space, key, value)?);
        }
        Ok(())
    }

    /// How often the root has changed, for tests.
    #[cfg(test)]
    fn root_changes(&self) -> u64 {
        self.root.version.load(Acquire)
    }
}
