//! A node: one page of words. What the words mean, and how entries are found, inserted and moved.
//!
//! Words are atomic, since the root is read while its other copy, and in time this one, is written; everywhere else the
//! node's lock orders what happens, so relaxed accesses do, which are plain moves.
//!
//! ```text
//! word 0     entries, and above them in the upper half the level: 0 leaf
//! word 1     leaf: number of the next leaf, 0 none; inner: the child for keys below all entries
//! leaf       3 words an entry: 16 bytes of the key, big-endian; the record's place
//! inner      4 words: 16 bytes of the least key of a child, the place of a record with that key, the child's number
//! ```
//!
//! A separator's record is never taken away, so its key can be looked at for ever.

use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;

use super::log::Place;
use crate::substrates::PAGE;

/// Words in a node.
pub const WORDS: usize = PAGE / 8;

const HEAD: usize = 2;
const LEAF_WORDS: usize = 3;
const INNER_WORDS: usize = 4;

/// Most entries of a leaf.
pub const LEAF_ENTRIES: usize = (WORDS - HEAD) / LEAF_WORDS;

/// Most entries of an inner node, which has a child more.
pub const INNER_ENTRIES: usize = (WORDS - HEAD) / INNER_WORDS;

/// A key that is looked for.
pub struct Target<'a> {
    /// All of it.
    pub key: &'a [u8],
    /// Its first 16 bytes.
    pub prefix: u128,
}

impl<'a> Target<'a> {
    /// Takes its prefix.
    #[inline]
    pub fn of(key: &'a [u8]) -> Target<'a> {
        let mut prefix = [0; 16];
        let len = key.len().min(16);
        prefix[..len].copy_from_slice(&key[..len]);
        Target { key, prefix: u128::from_be_bytes(prefix) }
    }
}

/// A key as a node has it.
#[derive(Clone, Copy)]
pub struct Entry {
    /// Its first 16 bytes.
    pub prefix: u128,
    /// Where all of it is.
    pub place: Place,
}

/// One page.
#[derive(Clone, Copy)]
pub struct Node<'a>(pub &'a [AtomicU64; WORDS]);

impl Node<'_> {
    #[inline]
    fn word(&self, at: usize) -> u64 {
        self.0[at].load(Relaxed)
    }

    #[inline]
    fn set(&self, at: usize, word: u64) {
        self.0[at].store(word, Relaxed);
    }

    /// Entries.
    #[inline]
    pub fn count(&self) -> usize {
        (self.word(0) & 0xffff_ffff) as usize
    }

    /// 0 of a leaf, else one above its children's.
    #[inline]
    pub fn level(&self) -> u32 {
        (self.word(0) >> 32) as u32
    }

    fn set_head(&self, level: u32, count: usize) {
        self.set(0, u64::from(level) << 32 | count as u64);
    }

    /// Makes it a leaf without entries.
    pub fn make_leaf(&self) {
        self.set_head(0, 0);
        self.set(1, 0);
    }

    /// Makes it an inner node with one child.
    pub fn make_inner(&self, level: u32, child: u64) {
        self.set_head(level, 0);
        self.set(1, child);
    }

    /// Makes it the same as another.
    pub fn copy_from(&self, other: Node<'_>) {
        for at in 0..WORDS {
            self.set(at, other.word(at));
        }
    }

    #[inline]
    fn entry(&self, at: usize) -> Entry {
        let prefix = u128::from(self.word(at)) << 64 | u128::from(self.word(at + 1));
        Entry { prefix, place: Place(self.word(at + 2)) }
    }

    fn set_entry(&self, at: usize, entry: Entry) {
        self.set(at, (entry.prefix >> 64) as u64);
        self.set(at + 1, entry.prefix as u64);
        self.set(at + 2, entry.place.0);
    }

    /// An entry of a leaf.
    #[inline]
    pub fn leaf(&self, position: usize) -> Entry {
        self.entry(HEAD + position * LEAF_WORDS)
    }

    /// An entry of an inner node.
    #[inline]
    pub fn inner(&self, position: usize) -> Entry {
        self.entry(HEAD + position * INNER_WORDS)
    }

    /// A leaf's record.
    #[inline]
    pub fn place(&self, position: usize) -> Place {
        Place(self.word(HEAD + position * LEAF_WORDS + 2))
    }

    /// Names another record for the same key.
    pub fn set_place(&self, position: usize, place: Place) {
        self.set(HEAD + position * LEAF_WORDS + 2, place.0);
    }

    /// The leaf behind this one.
    #[inline]
    pub fn next(&self) -> Option<u64> {
        Some(self.word(1)).filter(|next| *next != 0)
    }

    /// An inner node's child: 0 below all entries, n for keys from entry n - 1 on.
    #[inline]
    pub fn child(&self, position: usize) -> u64 {
        match position {
            0 => self.word(1),
            _ => self.word(HEAD + (position - 1) * INNER_WORDS + 3),
        }
    }

    /// How many entries of `count` come first of which `is_before` is true, as `slice::partition_point`.
    #[inline]
    pub fn partition(&self, count: usize, is_before: impl Fn(usize) -> bool) -> usize {
        let (mut low, mut high) = (0, count);
        while low < high {
            let middle = (low + high) / 2;
            if is_before(middle) { low = middle + 1 } else { high = middle }
        }
        low
    }

    /// Makes room for an entry of so many words.
    fn open_gap(&self, position: usize, words: usize) -> usize {
        let (count, at) = (self.count(), HEAD + position * words);
        for from in (at..HEAD + count * words).rev() {
            self.set(from + words, self.word(from));
        }
        self.set_head(self.level(), count + 1);
        at
    }

    /// Inserts into a leaf that has room.
    pub fn insert_leaf(&self, position: usize, target: &Target<'_>, place: Place) {
        debug_assert!(self.level() == 0 && self.count() < LEAF_ENTRIES);
        let at = self.open_gap(position, LEAF_WORDS);
        self.set_entry(at, Entry { prefix: target.prefix, place });
    }

    /// Inserts a child and the least key under it into an inner node that has room.
    pub fn insert_inner(&self, position: usize, least: Entry, child: u64) {
        debug_assert!(self.level() > 0 && self.count() < INNER_ENTRIES);
        let at = self.open_gap(position, INNER_WORDS);
        self.set_entry(at, least);
        self.set(at + 3, child);
    }

    /// Moves the upper half of a leaf to a new one behind it; returns the least key there.
    pub fn split_leaf(&self, new: Node<'_>, number_of_new: u64) -> Entry {
        let (count, half) = (self.count(), self.count() / 2);
        new.set(1, self.word(1));
        self.move_words(HEAD + half * LEAF_WORDS, HEAD + count * LEAF_WORDS, new);
        new.set_head(0, count - half);
        self.set(1, number_of_new);
        self.set_head(0, half);
        new.leaf(0)
    }

    /// Moves the upper half of an inner node to a new one; returns what separates them, which is in neither.
    pub fn split_inner(&self, new: Node<'_>) -> Entry {
        let (level, count, half) = (self.level(), self.count(), self.count() / 2);
        let middle = self.inner(half);
        new.set(1, self.child(half + 1));
        self.move_words(HEAD + (half + 1) * INNER_WORDS, HEAD + count * INNER_WORDS, new);
        new.set_head(level, count - half - 1);
        self.set_head(level, half);
        middle
    }

    fn move_words(&self, from: usize, to: usize, new: Node<'_>) {
        for (at, from) in (HEAD..).zip(from..to) {
            new.set(at, self.word(from));
        }
    }
}
