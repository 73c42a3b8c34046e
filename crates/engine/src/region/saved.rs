//! Which pages of a scratch region are saved in its file.
//!
//! A scratch map is memory that uses a file as swap space. It begins with zeros, whatever the file holds. The engine writes a page to the
//! file when it needs the page's memory, or for a snapshot. [`SavedPages`] has a bit for each page, which says whether the file has the
//! page's bytes. The thread that begins to write the page sets the bit. A thread that clears or discards the page's contents clears the
//! bit. A page whose bit is clear is loaded as zeros.

use crate::sys::memory::Zeroed;
use crate::sys::sync::{AtomicU64, Ordering};
use std::io;
use std::ops::Range;

/// A bit for each page.
#[derive(Debug)]
pub struct SavedPages(Zeroed<AtomicU64>);

impl SavedPages {
    /// No page is saved yet.
    pub fn new(pages: usize) -> io::Result<Self> {
        Ok(SavedPages(Zeroed::new(pages.div_ceil(64))?))
    }

    /// Whether the file has a page's bytes. The answer is certain for the thread that has claimed the page, since the acquire and release of
    /// the page's word order it; for other threads it is a hint.
    #[inline]
    pub fn has(&self, page: usize) -> bool {
        self.0[page / 64].load(Ordering::Relaxed) & 1 << (page % 64) != 0
    }

    /// Notes that the file will have these pages' bytes. Called by the thread that is about to write them.
    pub fn note_written(&self, pages: Range<usize>) {
        self.change(pages, |word, bits| {
            if word.load(Ordering::Relaxed) & bits != bits {
                word.fetch_or(bits, Ordering::Relaxed);
            }
        });
    }

    /// Notes that the file's bytes of these pages are not valid any more.
    pub fn forget(&self, pages: Range<usize>) {
        self.change(pages, |word, bits| {
            // A word without these bits is not written, so that it takes no memory where no page was ever saved.
            if word.load(Ordering::Relaxed) & bits != 0 {
                word.fetch_and(!bits, Ordering::Relaxed);
            }
        });
    }

    fn change(&self, pages: Range<usize>, change: impl Fn(&AtomicU64, u64)) {
        let mut at = pages.start;
        while at < pages.end {
            let end = pages.end.min((at / 64 + 1) * 64);
            change(&self.0[at / 64], u64::MAX >> (64 - (end - at)) << (at % 64));
            at = end;
        }
    }

    /// The first run of pages in a range that the file has.
    pub fn run_from(&self, pages: Range<usize>) -> Option<Range<usize>> {
        let start = self.next(pages.clone(), 0)?;
        Some(start..self.next(start..pages.end, u64::MAX).unwrap_or(pages.end))
    }

    /// The first page in a range whose bit is set; with `flip` all ones, the first whose bit is clear.
    fn next(&self, pages: Range<usize>, flip: u64) -> Option<usize> {
        let mut mask = u64::MAX << (pages.start % 64);
        for word in pages.start / 64..pages.end.div_ceil(64) {
            let bits = (self.0[word].load(Ordering::Relaxed) ^ flip) & mask;
            if bits != 0 {
                return Some(word * 64 + bits.trailing_zeros() as usize).filter(|page| *page < pages.end);
            }
            mask = u64::MAX;
        }
        None
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn notes_and_forgets_runs() {
        let contents = SavedPages::new(1000).unwrap();
        assert_eq!(contents.run_from(0..1000), None);
        contents.note_written(63..130);
        contents.note_written(200..201);
        assert!(!contents.has(62) && contents.has(63) && contents.has(129) && !contents.has(130) && contents.has(200));
        assert_eq!(contents.run_from(0..1000), Some(63..130));
        assert_eq!(contents.run_from(64..100), Some(64..100));
        assert_eq!(contents.run_from(130..1000), Some(200..201));
        contents.forget(64..128);
        assert_eq!(contents.run_from(0..1000), Some(63..64));
        assert_eq!(contents.run_from(64..1000), Some(128..130));
        contents.forget(0..1000);
        assert_eq!(contents.run_from(0..1000), None);
    }
}
