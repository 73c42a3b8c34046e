//! What the user expects of a region's pages, and what became of reading ahead of them.

use crate::page::entry::FRAME_PAGES;
use crate::pool::read_times::ReadTimes;
use crate::pool::runs::RunLengths;
use crate::pool::streams::{Expect, MOST_WINDOW};
use crate::sys::PAGE;
use crate::sys::memory::Zeroed;
use crate::sys::sync::AtomicU32;
use std::io;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicUsize, Ordering};

/// Bound of the count of wasted chunks: so many used ones make them good.
const MOST_WASTE: u32 = 16;

/// A region's.
#[derive(Debug)]
#[repr(align(128))] // written by all cores: on lines of its own, beside what they only read
pub struct Hints {
    /// What the user expects of each 2 MiB ([`Expect`]).
    expectations: Zeroed<AtomicU8>,
    /// When pages of each 2 MiB were last evicted, as their ghosts say (`pool/replacement.rs`): what comes back in a walk has none.
    gone: Zeroed<AtomicU32>,
    /// Largest window of readahead, pages.
    readahead: AtomicUsize,
    /// Chunks wasted of late, less those used.
    waste: AtomicU32,
    /// How many neighbouring pages are read together.
    runs: RunLengths,
    /// What reads take.
    read_times: ReadTimes,
    /// All of it has been asked for.
    filled: AtomicBool,
}

impl Hints {
    /// None, for so many pages.
    pub fn new(pages: usize) -> io::Result<Self> {
        Ok(Hints {
            expectations: Zeroed::new(pages.div_ceil(FRAME_PAGES))?,
            gone: Zeroed::new(pages.div_ceil(FRAME_PAGES))?,
            readahead: AtomicUsize::new(MOST_WINDOW),
            waste: AtomicU32::new(0),
            runs: RunLengths::default(),
            read_times: ReadTimes::default(),
            filled: AtomicBool::new(false),
        })
    }

    /// Expects the same as another region of the same file, which this one replaces.
    pub fn inherit(&self, other: &Hints) {
        self.set_readahead(other.readahead());
        for (one, theirs) in self.expectations.iter().zip(other.expectations.iter()) {
            let theirs = theirs.load(Ordering::Relaxed);
            // What is not touched costs nothing.
            if theirs != 0 {
                one.store(theirs, Ordering::Relaxed);
            }
        }
    }

    /// Largest window of readahead, pages; 0: nothing is read ahead.
    pub fn readahead(&self) -> usize {
        self.readahead.load(Ordering::Relaxed)
    }

    /// Sets it.
    pub fn set_readahead(&self, pages: usize) {
        self.readahead.store(pages, Ordering::Relaxed);
    }

    /// How many neighbouring pages are read together.
    #[inline]
    pub fn runs(&self) -> &RunLengths {
        &self.runs
    }

    /// Bytes that a miss reads together.
    pub fn read_size(&self) -> u64 {
        (self.runs.pages() * PAGE) as u64
    }

    /// What reads of it take.
    #[inline]
    pub fn read_times(&self) -> &ReadTimes {
        &self.read_times
    }

    /// Notes that all of it is asked for; false: it has been.
    pub fn begin_fill(&self) -> bool {
        !self.filled.swap(true, Ordering::Relaxed)
    }

    /// What the user expects of a page.
    #[inline]
    pub fn expect_at(&self, page: usize) -> Expect {
        Expect::from_number(self.expectations[page / FRAME_PAGES].load(Ordering::Relaxed))
    }

    /// Notes what the user expects of pages, and of their neighbours in the same 2 MiB.
    pub fn expect(&self, pages: Range<usize>, expect: Expect) {
        for one in &self.expectations[pages.start / FRAME_PAGES..pages.end.div_ceil(FRAME_PAGES)] {
            one.store(expect as u8, Ordering::Relaxed);
        }
    }

    /// Notes that a page was evicted, at a time so stamped.
    #[inline]
    pub fn note_gone(&self, page: usize, stamp: Option<u32>) {
        self.gone[page / FRAME_PAGES].store(stamp.unwrap_or(0), Ordering::Relaxed);
    }

    /// When the last page of a page's 2 MiB was.
    #[inline]
    pub fn gone_since(&self, page: usize) -> Option<u32> {
        Some(self.gone[page / FRAME_PAGES].load(Ordering::Relaxed)).filter(|stamp| *stamp > 0)
    }

    /// Whether its streams were mostly wasted of late.
    #[inline]
    pub fn wastes_streams(&self) -> bool {
        self.waste.load(Ordering::Relaxed) >= MOST_WASTE / 2
    }

    /// Notes that a chunk read ahead was touched.
    pub fn note_used_chunk(&self) {
        let less = |waste: u32| waste.checked_sub(1);
        let _ = self.waste.fetch_update(Ordering::Relaxed, Ordering::Relaxed, less);
    }

    /// Notes that one was dropped untouched.
    pub fn note_wasted_chunk(&self) {
        let more = |waste: u32| (waste < MOST_WASTE).then_some(waste + 1);
        let _ = self.waste.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more);
    }
}
