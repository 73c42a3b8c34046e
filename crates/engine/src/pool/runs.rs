//! Runs: neighbouring pages that a program reads one after the other before it goes elsewhere (a row, a node of a tree, a block that does not
//! begin on a page's border), and how long those of a file are.
//!
//! A miss that continues none begins a run. One in a few is *measured*: its pages are read one by one, and each further miss tells how far
//! it went. What half of the measured runs reach, but for walks, is read with the first page of all others, in one request.

use crate::sys::sync::{AtomicU32, AtomicU64, Ordering};

/// Pages of a run after which it is a walk, and streams' business: 128 KiB.
pub const MOST_RUN: usize = 32;
/// Measured runs between two decisions.
const SAMPLES: u32 = 16;
/// Measured runs of a page each, one after the other, with which rows are over: what is read in vain until that is known is dear.
const MOST_SINGLE: u32 = 4;
/// One run in so many is measured while pages are read one by one. (That keeps streams waiting.)
const RARELY: u32 = 4;
/// Open runs that are remembered.
const OPEN: usize = 1024;
/// Runs that begin meanwhile, or chunks that are read ahead, after which a miss behind a run is there by chance.
const LATE: u32 = 256;
const NONE: u64 = u64::MAX;

/// How long a file's runs are.
#[derive(Debug, Default)]
pub struct RunLengths {
    begun: AtomicU32,
    /// Measured since the last decision, and how many of them came as far as to each page but the first.
    measured: AtomicU32,
    reached: [AtomicU32; MOST_RUN - 1],
    /// Measured since one last had a second page.
    single: AtomicU32,
    /// Pages to read with the first.
    more: AtomicU32,
}

/// What a run that begins is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Begun {
    /// To be measured.
    Measured,
    /// So many pages are to be read at once.
    Read(usize),
}

impl RunLengths {
    /// Notes that a run begins, or goes on behind what was read of it.
    #[inline]
    pub fn begin_or_go_on(&self, goes_on: Option<GoesOn>) -> Begun {
        let pages = self.pages();
        if goes_on.is_some() {
            return Begun::Read(pages);
        }
        // What it costs to read a run page by page is a sixteenth of what all others cost.
        let every = if pages == 1 { RARELY } else { SAMPLES * pages as u32 };
        if self.begun.fetch_add(1, Ordering::Relaxed) % every != every - 1 {
            return Begun::Read(pages);
        }
        if self.measured.fetch_add(1, Ordering::Relaxed) == SAMPLES {
            self.decide();
        }
        if self.single.fetch_add(1, Ordering::Relaxed) >= MOST_SINGLE && pages > 1 {
            self.more.store(0, Ordering::Relaxed);
        }
        Begun::Measured
    }

    /// Runs so far.
    #[inline]
    pub fn begun(&self) -> u32 {
        self.begun.load(Ordering::Relaxed)
    }

    /// Pages that are read together.
    #[inline]
    pub fn pages(&self) -> usize {
        self.more.load(Ordering::Relaxed) as usize + 1
    }

    /// Notes that a measured run came to its n-th page.
    pub fn note_reached(&self, pages: usize) {
        self.single.store(0, Ordering::Relaxed);
        self.reached[pages - 2].fetch_add(1, Ordering::Relaxed);
    }

    #[cold]
    fn decide(&self) {
        let walks = self.reached[MOST_RUN - 2].load(Ordering::Relaxed);
        let rows = SAMPLES.saturating_sub(walks);
        let half = |reached: &AtomicU32| {
            let reached = reached.swap(0, Ordering::Relaxed).saturating_sub(walks);
            rows > SAMPLES / 4 && reached >= rows.div_ceil(2)
        };
        // All of them, to begin anew.
        let (mut more, mut is_half) = (0, true);
        for reached in &self.reached {
            let reaches = half(reached);
            is_half &= reaches;
            more += u32::from(is_half);
        }
        self.more.store(more, Ordering::Relaxed);
        self.measured.store(1, Ordering::Relaxed);
    }
}

/// Where runs that have begun would go on.
#[derive(Debug)]
pub struct OpenRuns([OpenRun; OPEN]);

/// A hint, as all entries of the history of misses are: two threads may write one at a time.
#[derive(Debug)]
struct OpenRun {
    /// An [`Entry`](crate::page::entry::Entry); [`NONE`]: it has gone on.
    next: AtomicU64,
    /// Pages so far; twice as many, and one more of a run that is measured.
    pages: AtomicU32,
    /// Runs begun, and chunks read ahead, before it was written down.
    at: AtomicU32,
}

/// A miss that continues a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum GoesOn {
    /// A measured one, whose n-th page it is.
    Measured(usize),
    /// One of which so many pages were read, as many as was thought at a time.
    Read(usize),
}

impl Default for OpenRun {
    fn default() -> Self {
        OpenRun { next: AtomicU64::new(NONE), pages: AtomicU32::new(0), at: AtomicU32::new(0) }
    }
}

impl Default for OpenRuns {
    fn default() -> Self {
        OpenRuns(std::array::from_fn(|_| OpenRun::default()))
    }
}

impl OpenRuns {
    fn of(&self, next: u64) -> &OpenRun {
        &self.0[(next.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 54) as usize % OPEN]
    }

    fn note(&self, next: u64, pages: usize, is_measured: bool, now: u32) {
        let run = self.of(next);
        run.next.store(next, Ordering::Relaxed);
        run.pages.store((pages as u32) << 1 | u32::from(is_measured), Ordering::Relaxed);
        run.at.store(now, Ordering::Relaxed);
    }

    /// Notes a run that begins here, or goes on, at a time so counted.
    #[inline]
    pub fn begin(&self, here: u64, now: u32, goes_on: Option<GoesOn>, begun: Begun) {
        let before = if let Some(GoesOn::Read(before)) = goes_on { before } else { 0 };
        match begun {
            Begun::Measured => self.note(here + 1, 1, true, now),
            Begun::Read(pages) => self.note(here + pages as u64, before.saturating_add(pages), false, now),
        }
    }

    /// Whether a miss continues one, at a time so counted.
    #[inline]
    pub fn goes_on(&self, here: u64, now: u32) -> Option<GoesOn> {
        let run = self.of(here);
        if run.next.load(Ordering::Relaxed) != here || now.wrapping_sub(run.at.load(Ordering::Relaxed)) > LATE {
            return None;
        }
        run.next.store(NONE, Ordering::Relaxed);
        let pages = run.pages.load(Ordering::Relaxed);
        let (pages, is_measured) = ((pages >> 1) as usize, pages & 1 != 0);
        if !is_measured {
            return Some(GoesOn::Read(pages));
        }
        let pages = (pages + 1).min(MOST_RUN);
        if pages < MOST_RUN {
            self.note(here + 1, pages, true, now);
        }
        Some(GoesOn::Measured(pages))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Has a page missed; how many from it on are read.
    fn miss(lengths: &RunLengths, open: &OpenRuns, here: u64) -> usize {
        match open.goes_on(here, lengths.begun()) {
            Some(GoesOn::Measured(reached)) => {
                lengths.note_reached(reached);
                1
            }
            goes_on => {
                let begun = lengths.begin_or_go_on(goes_on);
                open.begin(here, lengths.begun(), goes_on, begun);
                if let Begun::Read(pages) = begun { pages } else { 1 }
            }
        }
    }

    /// Has a program read rows of some pages, far apart; misses per row of the last hundred.
    fn misses(lengths: &RunLengths, open: &OpenRuns, rows: usize, pages: impl Fn(usize) -> usize) -> f64 {
        let mut misses = 0;
        for row in 0..rows {
            let first = 1 << 40 | (row as u64 * 7919) << 10;
            let mut there = 0;
            for page in 0..pages(row) {
                if page < there {
                    continue;
                }
                misses += usize::from(row + 100 >= rows);
                there = page + miss(lengths, open, first + page as u64);
            }
        }
        misses as f64 / 100.0
    }

    /// One of 256 numbers, by chance.
    fn of(row: usize) -> usize {
        row.wrapping_mul(0x9E37_79B9) >> 8 & 255
    }

    #[test]
    fn a_row_is_read_at_once_when_its_length_is_known() {
        for pages in [1, 2, 3, 5, 16, 31] {
            let (lengths, open) = (RunLengths::default(), OpenRuns::default());
            let per_row = misses(&lengths, &open, 1000, |_| pages);
            assert_eq!(lengths.pages(), pages);
            assert!(per_row < 1.6, "{pages}: {per_row}");
        }
    }

    #[test]
    fn it_follows_the_program() {
        let (lengths, open) = (RunLengths::default(), OpenRuns::default());
        for pages in [4, 1, 12, 2] {
            misses(&lengths, &open, 20_000, |_| pages);
            assert_eq!(lengths.pages(), pages);
        }
    }

    #[test]
    fn a_walk_is_no_row() {
        let (lengths, open) = (RunLengths::default(), OpenRuns::default());
        misses(&lengths, &open, 300, |_| 1000);
        assert_eq!(lengths.pages(), 1);
        misses(&lengths, &open, 5000, |row| if of(row) < 85 { 1000 } else { 3 });
        assert_eq!(lengths.pages(), 3);
    }

    /// Five runs are measured until then, of 256 each.
    #[test]
    fn when_rows_are_over_that_is_soon_known() {
        let (lengths, open) = (RunLengths::default(), OpenRuns::default());
        misses(&lengths, &open, 5000, |_| 16);
        assert_eq!(lengths.pages(), 16);
        misses(&lengths, &open, 1500, |_| 1);
        assert_eq!(lengths.pages(), 1);
    }

    #[test]
    fn what_half_of_the_rows_reach() {
        let (lengths, open) = (RunLengths::default(), OpenRuns::default());
        misses(&lengths, &open, 5000, |row| if of(row) < 64 { 9 } else { 3 });
        assert_eq!(lengths.pages(), 3);
    }

    /// Others' misses in between, and more runs at a time than are remembered, spoil some measurements.
    #[test]
    fn many_at_a_time() {
        let (lengths, open) = (RunLengths::default(), OpenRuns::default());
        for round in 0..200u64 {
            let mut there = [0; 32];
            for page in 0..4 {
                for (run, there) in there.iter_mut().enumerate().filter(|(_, there)| **there <= page) {
                    let here = 1 << 40 | (round * 32 + run as u64) << 12 | page;
                    *there = page + miss(&lengths, &open, here) as u64;
                }
            }
        }
        assert_eq!(lengths.pages(), 4);
    }
}
