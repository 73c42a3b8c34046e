//! The user's expectations of a region's pages, and how reading ahead of them went.

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

/// Upper bound of `waste`: so many used chunks make up for any waste before.
const MOST_WASTE: u32 = 16;

/// The hints of a region.
#[derive(Debug)]
#[repr(align(128))] // written by all cores: on lines of its own, beside what they only read
pub struct Hints {
    /// The user's expectation of each 2 MiB ([`Expect`]).
    expectations: Zeroed<AtomicU8>,
    /// For each 2 MiB, the stamp of the last eviction of one of its pages, as in ghosts (`pool/replacement.rs`). It stands in for the
    /// ghosts of pages that come back in a walk.
    gone: Zeroed<AtomicU32>,
    /// Largest window of readahead, pages.
    readahead: AtomicUsize,
    /// Chunks wasted of late, less those used.
    waste: AtomicU32,
    /// How many neighbouring pages are read together.
    runs: RunLengths,
    /// How long reads take.
    read_times: ReadTimes,
    /// The readers have been asked for the whole file.
    filled: AtomicBool,
}

impl Hints {
    /// No hints yet, for so many pages.
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

    /// Takes the user's expectations over from another region of the same file, which this one replaces.
    pub fn inherit(&self, other: &Hints) {
        self.set_readahead(other.readahead());
        for (one, theirs) in self.expectations.iter().zip(other.expectations.iter()) {
            let theirs = theirs.load(Ordering::Relaxed);
            // Memory that is not touched costs nothing.
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

    /// Bytes that a miss reads at once.
    pub fn read_size(&self) -> u64 {
        (self.runs.pages() * PAGE) as u64
    }

    /// How long reads of the file take.
    #[inline]
    pub fn read_times(&self) -> &ReadTimes {
        &self.read_times
    }

    /// Notes that the whole file is asked for. False: it was before.
    pub fn begin_fill(&self) -> bool {
        !self.filled.swap(true, Ordering::Relaxed)
    }

    /// Takes that back: nobody could be asked.
    pub fn abort_fill(&self) {
        self.filled.store(false, Ordering::Relaxed);
    }

    /// The user's expectation of a page.
    #[inline]
    pub fn expect_at(&self, page: usize) -> Expect {
        Expect::from_number(self.expectations[page / FRAME_PAGES].load(Ordering::Relaxed))
    }

    /// Notes the user's expectation of pages; it also holds for their neighbours in the same 2 MiB.
    pub fn expect(&self, pages: Range<usize>, expect: Expect) {
        for one in &self.expectations[pages.start / FRAME_PAGES..pages.end.div_ceil(FRAME_PAGES)] {
            one.store(expect as u8, Ordering::Relaxed);
        }
    }

    /// Notes the eviction of a page, and its stamp; `None`: it leaves none.
    #[inline]
    pub fn note_gone(&self, page: usize, stamp: Option<u32>) {
        self.gone[page / FRAME_PAGES].store(stamp.unwrap_or(0), Ordering::Relaxed);
    }

    /// The stamp of the last eviction in a page's 2 MiB.
    #[inline]
    pub fn gone_since(&self, page: usize) -> Option<u32> {
        Some(self.gone[page / FRAME_PAGES].load(Ordering::Relaxed)).filter(|stamp| *stamp > 0)
    }

    /// Whether most chunks that were read ahead of late were wasted.
    #[inline]
    pub fn wastes_streams(&self) -> bool {
        self.waste.load(Ordering::Relaxed) >= MOST_WASTE / 2
    }

    /// Notes that a chunk read ahead was touched.
    pub fn note_used_chunk(&self) {
        let less = |waste: u32| waste.checked_sub(1);
        let _ = self.waste.fetch_update(Ordering::Relaxed, Ordering::Relaxed, less);
    }

    /// Notes that a chunk was dropped untouched.
    pub fn note_wasted_chunk(&self) {
        let more = |waste: u32| (waste < MOST_WASTE).then_some(waste + 1);
        let _ = self.waste.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more);
    }
}
