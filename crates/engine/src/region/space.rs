//! Blocks on the disk for stores to holes of a file. They are allocated before the store is accepted. So a full disk is an error of the
//! store, as with mmap(2), and no accepted store is lost for want of room.
//!
//! A bit for each page says that the file has blocks for it. The first store to a page without the bit asks the file (lseek(2)
//! `SEEK_HOLE`). If the page is data, the bits up to the next hole are set, for a block of pages at most. If it is in a hole, blocks are
//! allocated (fallocate(2)). Where the file system cannot do that zeros are written, by a thread that has claimed the page: a system call may
//! be writing there.
//!
//! The number of pages to allocate at a time is learnt from the bits that are set: the largest aligned group around the page of which a
//! quarter has them. So a file that is filled from front to back, or in any order, costs few calls, and a file with few stores takes at
//! most four times the pages that are stored to.
//!
//! A page is writable in memory only if its bit was set after the page was claimed, or was seen set then. Bits are cleared where blocks may
//! go: the file is cut, or a system call writes to it, which may punch a hole.

use crate::page::dirty::BLOCK_PAGES;
use crate::store::Store;
use crate::sys::PAGE;
use crate::sys::lock::Lock;
use crate::sys::memory::Zeroed;
use crate::sys::signal::Blocked;
use crate::sys::sync::{AtomicU64, Ordering};
use std::io;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU8};

/// Most pages allocated at a time: 1 MiB.
const MOST: usize = 256;

/// The pages of a file that are known to have blocks on the disk.
#[derive(Debug)]
pub struct Space {
    pages: Zeroed<AtomicU64>,
    /// Of each block of pages, whether any bit has been set.
    touched: Zeroed<AtomicU8>,
    /// One thread at a time asks and allocates: zeros that are written must not meet another thread's stores.
    lock: Lock,
    is_said: AtomicBool,
}

impl Space {
    /// Nothing is known yet. The first `likely` of so many pages are expected to be touched.
    pub fn new(pages: usize, likely: usize) -> io::Result<Self> {
        Ok(Space {
            pages: Zeroed::sparse(pages.div_ceil(64), likely / 64)?,
            touched: Zeroed::new(pages.div_ceil(BLOCK_PAGES))?,
            lock: Lock::new(),
            is_said: AtomicBool::new(false),
        })
    }

    /// Whether a page is known to have blocks.
    #[inline]
    pub fn has(&self, page: usize) -> bool {
        self.pages[page / 64].load(Ordering::Acquire) & 1 << (page % 64) != 0
    }

    /// Whether this is the first time that a lack of room is met, which is worth a message.
    pub fn is_first_lack(&self) -> bool {
        !self.is_said.swap(true, Ordering::Relaxed)
    }

    /// Allocates blocks for a page that has none, unless it lies past the file's end. Fails with an error number: ENOSPC, EDQUOT or another
    /// one of the file system's. Waits for the file alone. `zeros`: a page of zeros, if the caller has claimed the page, so that no system
    /// call writes there meanwhile. Without it nothing is done where zeros have to be written: the page has no bit then.
    #[cold]
    pub fn reserve(&self, page: usize, store: &dyn Store, zeros: Option<*const u8>) -> Result<(), i32> {
        let _blocked = Blocked::all();
        let _one = self.lock.lock();
        if self.has(page) {
            return Ok(());
        }
        let at = (page * PAGE) as u64;
        let size = if at < store.size() { store.size() } else { store.refresh_size() };
        if at >= size {
            return Ok(());
        }
        // The region may have room for less than the file has.
        let pages = (size as usize).div_ceil(PAGE).min(self.pages.len() * 64);
        let hole = store.next_hole(at);
        // Where the file system does not tell holes, the page may be in one.
        let is_known = hole != u64::MAX;
        if is_known && hole >= size.min(at + PAGE as u64) {
            let data = if hole >= size { pages } else { hole as usize / PAGE };
            self.mark(page..data.min((page / BLOCK_PAGES + 1) * BLOCK_PAGES));
            return Ok(());
        }
        let mut run = self.around(page, pages);
        loop {
            match store.allocate((run.start * PAGE) as u64..(run.end * PAGE) as u64) {
                Ok(()) => break,
                Err(_) if run.len() > 1 => run = page..page + 1,
                Err(libc::EOPNOTSUPP | libc::ENOSYS | libc::EINVAL | libc::EPERM) => {
                    match zeros {
                        // SAFETY: a page of zeros, as the hole is: while the page is claimed nobody stores there.
                        Some(zeros) if is_known => unsafe { store.write_pages(page, zeros, 1, u64::MAX)? },
                        None if is_known => return Ok(()),
                        _ => {}
                    }
                    break;
                }
                Err(error) => return Err(error),
            }
        }
        self.mark(run);
        Ok(())
    }

    /// The pages to allocate together with one. `pages`: how many the file has.
    fn around(&self, page: usize, pages: usize) -> Range<usize> {
        let group = |size: usize| page / size * size..(page / size * size + size).min(pages);
        // From front to back.
        let follows = page.is_multiple_of(MOST) && page >= MOST && self.count(page - MOST..page) == MOST;
        let sizes = [MOST, MOST / 4, MOST / 16, MOST / 64];
        let dense = sizes.into_iter().find(|size| 4 * self.count(group(*size)) >= *size);
        match dense {
            _ if follows => group(MOST),
            Some(size) => group(size),
            None => page..page + 1,
        }
    }

    fn count(&self, pages: Range<usize>) -> usize {
        words_of(pages)
            .map(|(word, bits)| (self.pages[word].load(Ordering::Relaxed) & bits).count_ones() as usize)
            .sum()
    }

    fn mark(&self, pages: Range<usize>) {
        self.touched[pages.start / BLOCK_PAGES].store(1, Ordering::Relaxed);
        words_of(pages).for_each(|(word, bits)| _ = self.pages[word].fetch_or(bits, Ordering::AcqRel));
    }

    /// Forgets what is known of some pages: their blocks may be gone.
    pub fn forget(&self, pages: Range<usize>) {
        // A thread that marks pages at this moment may have the file's answer from before.
        let _blocked = Blocked::all();
        let _one = self.lock.lock();
        let end = pages.end.min(self.pages.len() * 64);
        for block in pages.start / BLOCK_PAGES..end.div_ceil(BLOCK_PAGES).min(self.touched.len()) {
            // An untouched block stays untouched, and a large region small.
            if self.touched[block].load(Ordering::Relaxed) != 0 {
                let first = block * BLOCK_PAGES;
                words_of(pages.start.max(first)..end.min(first + BLOCK_PAGES))
                    .for_each(|(word, bits)| _ = self.pages[word].fetch_and(!bits, Ordering::AcqRel));
            }
        }
    }
}

/// The words that hold the bits of some pages, each with a mask of these bits.
fn words_of(pages: Range<usize>) -> impl Iterator<Item = (usize, u64)> {
    (pages.start / 64..pages.end.div_ceil(64)).map(move |word| {
        let (from, to) = (pages.start.max(word * 64) - word * 64, pages.end.min(word * 64 + 64) - word * 64);
        let below = |bit: usize| if bit == 64 { u64::MAX } else { (1 << bit) - 1 };
        (word, below(to) & !below(from))
    })
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn what_is_filled_is_allocated_in_groups_and_what_is_sparse_is_not() {
        let space = Space::new(1 << 20, 1 << 20).unwrap();
        let mut calls = 0;
        for page in 0..4000 {
            if !space.has(page) {
                calls += 1;
                space.mark(space.around(page, 4000));
            }
        }
        assert!(calls < 30 && space.count(0..4000) == 4000, "{calls} calls");
        space.forget(0..1 << 20);
        assert_eq!(space.count(0..1 << 20), 0);
        (0..1 << 20).step_by(512).for_each(|page| space.mark(space.around(page, 1 << 20)));
        assert_eq!(space.count(0..1 << 20), 2048);
        // In any order: each next page is far from the one before.
        space.forget(0..1 << 20);
        let mut calls = 0;
        for page in (0..4096).map(|step| step * 1597 % 4096) {
            if !space.has(page) {
                calls += 1;
                space.mark(space.around(page, 4096));
            }
        }
        assert!(calls <= 2048, "{calls} calls");
        space.forget(65..130);
        let found: Vec<_> = (60..140).filter(|page| !space.has(*page)).collect();
        assert_eq!(found, (65..130).collect::<Vec<_>>());
    }
}
