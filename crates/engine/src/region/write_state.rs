//! The writers' state for a region: its dirty bitmap, the locks of its blocks, the place where each writer looks next, and how long blocks
//! have been dirty.

use crate::page::dirty::{self, BLOCK_PAGES, DirtyBitmap};
use crate::pool::mailbox::MOST_WRITERS;
use crate::sys::lock::Lock;
use crate::sys::memory::Zeroed;
use crate::sys::sync::AtomicU64;
use std::io;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicUsize, Ordering};

/// Write locks of a region: each is for every 64th block. A writer holds the locks of the blocks that it works on.
pub const WRITE_LOCKS: usize = 64;
/// The age at which a block is written, in ticks of the writers.
pub const EXPIRED_TICKS: u8 = 4;

/// The writers' state for a region.
#[derive(Debug)]
#[repr(align(128))] // written by all cores: on lines of its own, beside what they only read
pub struct WriteState {
    dirty: DirtyBitmap<Zeroed<AtomicU64>>,
    write_locks: [Lock; WRITE_LOCKS],
    /// The block at which each background writer looks next.
    write_cursors: [AtomicUsize; MOST_WRITERS],
    /// For each block, for how many ticks of the writers it has been dirty.
    ages: Zeroed<AtomicU8>,
    /// The file could not be saved when somebody wanted it, or when its last map was dropped: the writers try again.
    unsaved: AtomicBool,
    /// An error of background writing has been reported (`complain`).
    complained: AtomicBool,
}

impl WriteState {
    /// For so many pages, of which the first `likely` are expected to be touched.
    pub fn new(pages: usize, likely: usize) -> io::Result<Self> {
        let mut levels = dirty::words_for(pages).into_iter().map(|words| Zeroed::sparse(words, likely / 64));
        let mut level = || levels.next().expect("three levels");
        Ok(WriteState {
            dirty: DirtyBitmap::new(level()?, level()?, level()?),
            write_locks: std::array::from_fn(|_| Lock::new()),
            write_cursors: std::array::from_fn(|_| AtomicUsize::new(0)),
            ages: Zeroed::new(pages.div_ceil(BLOCK_PAGES))?,
            unsaved: AtomicBool::new(false),
            complained: AtomicBool::new(false),
        })
    }

    /// The bitmap of dirty pages.
    #[inline]
    pub fn dirty(&self) -> &DirtyBitmap<Zeroed<AtomicU64>> {
        &self.dirty
    }

    /// The write lock of a block: each guards the blocks whose number is its own modulo [`WRITE_LOCKS`].
    pub fn write_lock(&self, block: usize) -> &Lock {
        &self.write_locks[block % WRITE_LOCKS]
    }

    /// The block at which a background writer looks next.
    pub fn write_cursor(&self, writer: usize) -> &AtomicUsize {
        &self.write_cursors[writer]
    }

    /// For each block, for how many ticks of the writers it has been dirty.
    pub fn ages(&self) -> &[AtomicU8] {
        &self.ages
    }

    /// Set when the file could not be saved as somebody wanted. The writers clear it and try again.
    pub fn unsaved(&self) -> &AtomicBool {
        &self.unsaved
    }

    /// True the first time: an error of the region's file is to be reported then, only once.
    pub fn complain(&self) -> bool {
        !self.complained.swap(true, Ordering::AcqRel)
    }
}
