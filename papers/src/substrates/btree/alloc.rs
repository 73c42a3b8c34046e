//! The file: a superblock, then segments of 1 MiB that are given to nodes or to the log, one after the other.

use std::cmp::Ordering;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::sync::{Mutex, MutexGuard, PoisonError};

use super::log::{Place, Record, TAILS, Tail};
use super::node::{Entry, Node, Target, WORDS};
use super::region::Region;
use super::{LONGEST_KEY, LONGEST_VALUE, root};
use crate::substrates::{Error, PAGE, Result};

/// Bytes of a segment: long enough for large writes.
pub const SEGMENT: u64 = 1 << 20;

/// Nodes of a segment.
pub const SEGMENT_PAGES: u64 = SEGMENT / PAGE as u64;

/// The file grows by so much at a time.
const STEP: u64 = 16 * SEGMENT;

/// The superblock's words.
const MAGIC: usize = 0;
const STATE: usize = 1;
const ROOT: usize = 2;
const NEXT_SEGMENT: usize = 3;
const NODES: usize = 4;
const FIRST_TAIL: usize = 8;

/// `FMBTREE1`.
const SIGNATURE: u64 = u64::from_be_bytes(*b"FMBTREE1");

/// States of the file on stable storage.
const CHANGED: u64 = 1;
const FLUSHED: u64 = 2;

/// What the superblock keeps for the rest of the store.
pub struct Saved {
    /// The root's version.
    pub root: u64,
    /// The log's ends.
    pub tails: [Tail; TAILS],
}

/// The mapped file and what of it is taken.
pub struct Space<R> {
    region: R,
    taken: Mutex<Taken>,
    /// [`CHANGED`] or [`FLUSHED`], as the superblock on stable storage says.
    state: AtomicU64,
}

struct Taken {
    /// Segments before this one are in use.
    next_segment: u64,
    /// The file reaches to here at least.
    file_bytes: u64,
    /// Nodes of a segment that are still free.
    nodes: std::ops::Range<u64>,
}

impl<R: Region> Space<R> {
    /// Takes a whole region.
    pub fn create(region: R) -> Result<Space<R>> {
        // The first segment: superblock, the root's two pages, and nodes.
        let taken = Taken { next_segment: 1, file_bytes: 0, nodes: root::SLOTS.end..SEGMENT_PAGES };
        let space = Space { region, taken: Mutex::new(taken), state: AtomicU64::new(CHANGED) };
        space.reach(&mut space.taken(), SEGMENT)?;
        space.set(STATE, CHANGED);
        space.set(MAGIC, SIGNATURE);
        // A store that was here may be marked as flushed.
        space.region.flush(PAGE as u64)?;
        Ok(space)
    }

    /// Takes a region that [`Space::save`] has left.
    pub fn open(region: R) -> Result<(Space<R>, Saved)> {
        let refused =
            |what: &str| Error::Refused { thing: "store".to_owned(), what: what.to_owned(), remedy: "make it anew" };
        let file_bytes = region.file().metadata().map_or(0, |file| file.len());
        if file_bytes < SEGMENT {
            return Err(refused("holds no B+-tree"));
        }
        let state = AtomicU64::new(FLUSHED);
        let empty = Taken { next_segment: 0, file_bytes, nodes: 0..0 };
        let space = Space { region, taken: Mutex::new(empty), state };
        if space.get(MAGIC) != SIGNATURE {
            return Err(refused("holds no B+-tree"));
        }
        if space.get(STATE) != FLUSHED {
            return Err(refused("was changed after it was flushed last, and not flushed again"));
        }
        {
            let mut taken = space.taken();
            taken.next_segment = space.get(NEXT_SEGMENT);
            taken.nodes = space.get(NODES)..space.get(NODES + 1);
        }
        let tail = |n| Tail { next: space.get(FIRST_TAIL + 2 * n), end: space.get(FIRST_TAIL + 2 * n + 1) };
        let saved = Saved { root: space.get(ROOT), tails: std::array::from_fn(tail) };
        Ok((space, saved))
    }

    /// Puts everything on stable storage, the superblock last. Nobody changes anything meanwhile.
    pub fn save(&self, root: u64, tails: [Tail; TAILS]) -> Result<()> {
        let bytes = {
            let taken = self.taken();
            self.set(NEXT_SEGMENT, taken.next_segment);
            self.set(NODES, taken.nodes.start);
            self.set(NODES + 1, taken.nodes.end);
            taken.next_segment * SEGMENT
        };
        self.set(ROOT, root);
        for (n, tail) in tails.iter().enumerate() {
            self.set(FIRST_TAIL + 2 * n, tail.next);
            self.set(FIRST_TAIL + 2 * n + 1, tail.end);
        }
        self.region.flush(bytes)?;
        self.set(STATE, FLUSHED);
        self.region.flush(PAGE as u64)?;
        self.state.store(FLUSHED, Release);
        Ok(())
    }

    /// Before the first change after a flush the superblock says, on stable storage, that there are changes.
    #[inline]
    pub fn note_change(&self) -> Result<()> {
        if self.state.load(Acquire) == CHANGED { Ok(()) } else { self.begin_change() }
    }

    #[cold]
    fn begin_change(&self) -> Result<()> {
        let _one_at_a_time = self.taken();
        if self.state.load(Acquire) == FLUSHED {
            self.set(STATE, CHANGED);
            self.region.flush(PAGE as u64)?;
            self.state.store(CHANGED, Release);
        }
        Ok(())
    }

    /// Bytes mapped.
    pub fn capacity(&self) -> u64 {
        self.region.capacity()
    }

    /// The number of a node that nobody has.
    pub fn take_node(&self) -> Result<u64> {
        let mut taken = self.taken();
        if taken.nodes.is_empty() {
            let segment = self.segment(&mut taken)?;
            taken.nodes = segment / PAGE as u64..segment / PAGE as u64 + SEGMENT_PAGES;
        }
        Ok(taken.nodes.next().expect("a segment has nodes"))
    }

    /// The first byte of a segment that nobody has.
    pub fn take_segment(&self) -> Result<u64> {
        self.segment(&mut self.taken())
    }

    fn segment(&self, taken: &mut Taken) -> Result<u64> {
        let first = taken.next_segment * SEGMENT;
        self.reach(taken, first + SEGMENT)?;
        taken.next_segment += 1;
        Ok(first)
    }

    fn reach(&self, taken: &mut Taken, end: u64) -> Result<()> {
        if end > self.capacity() {
            let what = format!("full: {} bytes are mapped for it", self.capacity());
            return Err(Error::Refused { thing: "store".to_owned(), what, remedy: "map more" });
        }
        if end > taken.file_bytes {
            let len = (end + STEP - 1).min(self.capacity()) / SEGMENT * SEGMENT;
            self.region.extend(len)?;
            taken.file_bytes = len;
        }
        Ok(())
    }

    fn taken(&self) -> MutexGuard<'_, Taken> {
        self.taken.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn get(&self, word: usize) -> u64 {
        self.node(0).0[word].load(Relaxed)
    }

    fn set(&self, word: usize, to: u64) {
        self.node(0).0[word].store(to, Relaxed);
    }

    /// A page of words.
    #[inline]
    pub fn node(&self, number: u64) -> Node<'_> {
        assert!(number < self.region.capacity() / PAGE as u64, "the store's file is damaged");
        let at = self.region.base().wrapping_add(number as usize * PAGE);
        // SAFETY: inside the mapping and page-aligned (see `Region`); words of nodes are atomic for everybody.
        Node(unsafe { &*at.cast::<[AtomicU64; WORDS]>() })
    }

    /// Where a record of so many bytes is.
    #[inline]
    pub fn bytes_at(&self, place: Place, len: u64) -> *mut u8 {
        let end = place.0.checked_add(len);
        assert!(end.is_some_and(|end| end <= self.region.capacity()), "the store's file is damaged");
        self.region.base().wrapping_add(place.0 as usize)
    }

    /// A record.
    ///
    /// # Safety
    ///
    /// The place is one that an entry named which this thread has read under the node's lock, or from a root that is still
    /// the root.
    #[inline]
    pub unsafe fn record(&self, place: Place) -> Record<'_> {
        // SAFETY: a header is there, and its lengths never change; whoever named the place had written them.
        unsafe { Record::at(self, place) }
    }

    /// How an entry's key compares with another.
    #[inline]
    pub fn compare(&self, entry: Entry, target: &Target<'_>) -> Ordering {
        match entry.prefix.cmp(&target.prefix) {
            // SAFETY: the caller has the entry from a locked node or a valid root.
            Ordering::Equal => unsafe { self.record(entry.place) }.key().cmp(target.key),
            unequal => unequal,
        }
    }

    /// Refuses what a record cannot hold.
    #[inline]
    pub fn check_lengths(&self, key: &[u8], value: &[u8]) -> Result<()> {
        if key.len() <= LONGEST_KEY && value.len() <= LONGEST_VALUE {
            return Ok(());
        }
        let what = format!("a key of {} bytes with a value of {} is too long", key.len(), value.len());
        let remedy = "keys have at most 4096 bytes, values 524288";
        Err(Error::Refused { thing: "store".to_owned(), what, remedy })
    }
}
