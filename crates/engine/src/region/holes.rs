//! Pages *born zero*: a page that lies in a hole of the file is installed without a read (the paper's `mmap-filter`).
//!
//! The file is asked once about each block, by the first thread that loads a page there. The answer is a bit for each page: the page was in
//! a hole when the file was asked, and nobody here has loaded it since. (Loading a page clears its bit.) Where no other process writes the
//! file, nobody has written such a page, and it is a hole still. The file is locked there (`store/one_writer.rs`); a file that is not
//! locked is not asked. A new map spoils all answers given before it. The file is not asked about each page because lseek(2) waits for
//! writes under way in the file.

use crate::page::dirty::BLOCK_PAGES;
use crate::store::Store;
use crate::sys::PAGE;
use crate::sys::memory::Zeroed;
use crate::sys::sync::{AtomicU64, Ordering};
use std::io;
use std::ops::Range;
use std::sync::atomic::AtomicU8;

/// State of a block: the file has not been asked.
const UNASKED: u8 = 0;
/// A thread is asking. Another thread that loaded a page meanwhile could store to it and have it written before the answer is noted.
const ASKING: u8 = 1;
/// The file has been asked: a bit says that the page is a hole.
const ASKED: u8 = 2;
/// The bits mean nothing, and never will: pages are read, which is right in any case.
const SPOILT: u8 = 3;

/// Holes noted in a block, at most: pages behind the last of them are read.
const MOST_HOLES: usize = 16;
/// How often a thread yields to one that asks before it spoils the answer.
const PATIENCE: usize = 100;

/// The holes of a file, as far as they are known.
#[derive(Debug)]
pub struct Holes {
    blocks: Zeroed<AtomicU8>,
    pages: Zeroed<AtomicU64>,
}

impl Holes {
    /// Nothing is known yet. The first `likely` of so many pages are expected to be touched.
    pub fn new(pages: usize, likely: usize) -> io::Result<Self> {
        let (blocks, bits) = (pages.div_ceil(BLOCK_PAGES), pages.div_ceil(64));
        Ok(Holes { blocks: Zeroed::new(blocks)?, pages: Zeroed::sparse(bits, likely / 64)? })
    }

    /// Whether a page that the caller has claimed for loading is a hole. Clears its bit: the next answer is no.
    #[inline]
    pub fn take(&self, page: usize, store: &dyn Store) -> bool {
        let block = page / BLOCK_PAGES;
        match self.blocks[block].load(Ordering::Acquire) {
            SPOILT => return false,
            ASKED => {}
            _ => self.settle(block, store),
        }
        let (word, bit) = (&self.pages[page / 64], 1 << (page % 64));
        // Looks before it writes: most pages are data.
        word.load(Ordering::Relaxed) & bit != 0
            && self.blocks[block].load(Ordering::Acquire) == ASKED
            && word.fetch_and(!bit, Ordering::Relaxed) & bit != 0
    }

    /// Spoils a page's block: from now on none of its pages counts as a hole.
    #[inline]
    pub fn spoil(&self, page: usize) {
        let state = &self.blocks[page / BLOCK_PAGES];
        if state.load(Ordering::Relaxed) != SPOILT {
            state.store(SPOILT, Ordering::Release);
        }
    }

    /// Asks about a block, or waits for a thread that does. The block is asked or spoilt then.
    #[cold]
    fn settle(&self, block: usize, store: &dyn Store) {
        let state = &self.blocks[block];
        if state.compare_exchange(UNASKED, ASKING, Ordering::Acquire, Ordering::Relaxed).is_ok() {
            self.ask(block, store);
            // Fails if another thread lost patience. Release: the bits come before.
            let _ = state.compare_exchange(ASKING, ASKED, Ordering::Release, Ordering::Relaxed);
            return;
        }
        for _ in 0..PATIENCE {
            if state.load(Ordering::Acquire) != ASKING {
                return;
            }
            std::thread::yield_now();
        }
        let _ = state.compare_exchange(ASKING, SPOILT, Ordering::AcqRel, Ordering::Relaxed);
    }

    fn ask(&self, block: usize, store: &dyn Store) {
        let end = ((block + 1) * BLOCK_PAGES * PAGE) as u64;
        let mut at = (block * BLOCK_PAGES * PAGE) as u64;
        for _ in 0..MOST_HOLES {
            let hole = store.next_hole(at);
            if hole >= end {
                return;
            }
            at = store.next_data(hole).min(end);
            // A page that is partly data is data.
            self.mark((hole as usize).div_ceil(PAGE), at as usize / PAGE);
            if at >= end || at <= hole {
                return;
            }
        }
    }

    /// Sets the bits of pages, as far as there are bits: the file may have more pages than are mapped.
    fn mark(&self, start: usize, end: usize) {
        (start..end.min(self.pages.len() * 64)).for_each(|page| {
            self.pages[page / 64].fetch_or(1 << (page % 64), Ordering::Relaxed);
        });
    }

    /// Notes that the file is about to grow from `old` to `new` bytes, with zeros; nobody has loaded a page there.
    pub fn note_growth(&self, old: u64, new: u64) {
        let (start, end) = ((old as usize).div_ceil(PAGE), new as usize / PAGE);
        // Only the block that holds the old end may have been asked about: what lies behind it could not be loaded.
        let block = start / BLOCK_PAGES;
        if self.blocks.get(block).is_some_and(|state| state.load(Ordering::Acquire) == ASKED) {
            self.mark(start, end.min((block + 1) * BLOCK_PAGES));
        }
    }

    /// Forgets that pages were holes: they were written, or may have been, by another way than the region. Nobody loads one at this moment.
    pub fn forget(&self, pages: Range<usize>) {
        let end = pages.end.min(self.pages.len() * 64);
        for block in pages.start / BLOCK_PAGES..end.div_ceil(BLOCK_PAGES).min(self.blocks.len()) {
            let state = &self.blocks[block];
            // A thread that asks at this moment may have the file's answer from before.
            let _ = state.compare_exchange(ASKING, SPOILT, Ordering::AcqRel, Ordering::Relaxed);
            if state.load(Ordering::Acquire) == ASKED {
                let first = block * BLOCK_PAGES;
                for page in pages.start.max(first)..end.min(first + BLOCK_PAGES) {
                    self.pages[page / 64].fetch_and(!(1 << (page % 64)), Ordering::Relaxed);
                }
            }
        }
    }

    /// Spoils what is known from a page on: the file was cut off there, or others may have written to it since.
    pub fn distrust(&self, page: usize) {
        for state in &self.blocks[(page / BLOCK_PAGES).min(self.blocks.len())..] {
            // An untouched block stays untouched, and a large region small.
            if state.load(Ordering::Acquire) != UNASKED {
                state.store(SPOILT, Ordering::Release);
            }
        }
    }
}
