//! Runs: neighbouring pages that a program reads one after the other before it goes elsewhere (a row, a node of a tree, a block that does not
//! begin at a page's border). This file tells how long those of a file are, and so how many pages are read at a miss.
//!
//! A miss that continues no run begins one. One run in a few is *measured*: its pages are read one by one, and each further miss tells how
//! far it goes. Of all other runs a number of pages is read at once: the number that would have been cheapest for the measured runs, walks
//! apart. The cost is the time that a miss and a further page take on this device (`read_times.rs`), and the memory that pages read in vain
//! take from others.
//!
//! If three quarters of the measured runs come as far as the 33rd page, they are walks or *long* runs, of up to 2 MiB:
//!
//! * While it pays, since nearly all go on behind the pages that are read at once, twice as many are read.
//! * Of one long run in a few half as many pages are read. This tells whether it needs all of them; if too few runs do, half as many are read
//!   of all.
//!
//! If only some of them do, runs are short or long (a list's header, and the list). Then, and while most are long, as many pages again, 8 at
//! least, are read of a run that goes on behind those that were read: so few misses find its end, and at most half of what is read is behind
//! it. If it goes on behind 2 MiB it is a walk.

use crate::pool::read_times::Costs;
use crate::sys::sync::{AtomicU32, AtomicU64, Ordering};
use std::sync::atomic::AtomicBool;

/// The page at which a run that is measured page by page turns out to be a long one, or a walk, which is for streams. One more than 128 KiB.
pub const MOST_RUN: usize = 33;
/// Pages that are read at once of the shortest long runs, and of the longest (2 MiB).
const LEAST_LONG: usize = 64;
/// A run that goes on behind so many is a walk.
pub const MOST_LONG: usize = 512;
/// Measured runs between two decisions. Under random reads in 32 MiB one run in 32 has a second page by chance: 256 pages of 8192 are where a
/// run would have gone on. A quarter of so many measured runs have one by chance once in a hundred thousand decisions.
const SAMPLES: u32 = 32;
/// The same where reads take long: to measure one long run page by page takes as long as dozens of other runs. As many long runs, if they are
/// three quarters of those measured, will do everywhere: until they are known to be long, each is read page by page.
const FEW_SAMPLES: u32 = 8;
/// Reading runs page by page costs this part of what reading all others costs.
const PART: u32 = 16;
/// After so many measured runs of a single page, one after the other, fewer pages are read at once without waiting for a decision: pages read
/// in vain meanwhile are dear.
const MOST_SINGLE: u32 = 4;
/// One run in so many is measured while pages are read one by one, and one long run in so many. More would keep streams waiting.
const RARELY: u32 = 4;
/// The same for long runs where reads take long: a measured one has a miss more. Also while pages are read one by one and some runs are long: to
/// measure one of those takes dozens of misses.
const MORE_RARELY: u32 = 16;
/// A page read in vain takes the place of another, which would have saved a third of the cost of reading a page: with random accesses and
/// memory for a quarter of the pages, a page is found in memory a third as often as it is read.
const DISPLACED: u64 = 3;
/// More than one run in so many is long where some are. Fewer may be walks among other accesses.
const SOME: u32 = 16;
/// Pages, at least, that are read of a run that goes on where some are long.
const LEAST_FURTHER: usize = 8;
/// Open runs that are remembered.
const OPEN: usize = 1024;
/// When so many runs have begun since, or chunks have been read ahead, a miss behind a run is taken for chance.
const LATE: u32 = 256;
/// The same, at least, behind pages that were read at once, which makes a stream: in small files it is as soon as chance alone would continue
/// one run in [`BY_CHANCE`]. As many threads may take turns with their runs.
const LEAST_LATE: usize = 32;
const BY_CHANCE: usize = 64;
const NONE: u64 = u64::MAX;

/// How long a file's runs are.
#[derive(Debug, Default)]
pub struct RunLengths {
    begun: AtomicU32,
    /// Runs measured since the last decision, and how many of them came as far as each page but the first.
    measured: AtomicU32,
    reached: [AtomicU32; MOST_RUN - 1],
    /// Runs measured since one last had a second page.
    single: AtomicU32,
    /// Pages to read with the first.
    more: AtomicU32,
    /// Of 1024 pages that are read with the first, those that the measured runs came to.
    used: AtomicU32,
    /// Long runs that went on behind what was read at once, since the last decision.
    went_on: AtomicU32,
    /// Long runs turned out to be walks.
    walked: AtomicBool,
    /// Of the runs last measured some were long, and more than a quarter were not.
    some_are_long: AtomicBool,
}

/// How a run that begins is read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Begun {
    /// It is measured. So many pages are read at once: one, or half of those of other long runs.
    Measured(usize),
    /// So many pages are read at once.
    Read(usize),
}

impl Begun {
    /// The same with at most so many pages.
    pub fn at_most(self, most: usize) -> Self {
        match self {
            Begun::Measured(pages) => Begun::Measured(pages.min(most)),
            Begun::Read(pages) => Begun::Read(pages.min(most)),
        }
    }

    /// Pages to be read at once.
    pub fn pages(self) -> usize {
        let (Begun::Measured(pages) | Begun::Read(pages)) = self;
        pages
    }
}

impl RunLengths {
    /// Notes that a run begins, or goes on behind what was read of it. `costs`: of this file's device.
    #[inline]
    pub fn begin_or_go_on(&self, goes_on: Option<GoesOn>, costs: impl FnOnce() -> Costs) -> Begun {
        let pages = self.pages();
        if let Some(goes_on) = goes_on {
            if goes_on == GoesOn::Read(pages) {
                self.went_on.fetch_add(1, Ordering::Relaxed);
            }
            let before = if let GoesOn::Read(before) = goes_on { before } else { 0 };
            return Begun::Read(if self.long_runs_end() {
                before.clamp(pages.max(LEAST_FURTHER), MOST_LONG)
            } else {
                pages
            });
        }
        let is_long = pages >= LEAST_LONG;
        let costs = costs();
        let (samples, rarely) = if costs.are_long { (FEW_SAMPLES, MORE_RARELY) } else { (SAMPLES, RARELY) };
        let every = match pages {
            1 if self.some_are_long.load(Ordering::Relaxed) => MORE_RARELY,
            1 => RARELY,
            _ if is_long => rarely,
            _ => PART * pages as u32,
        };
        if self.begun.fetch_add(1, Ordering::Relaxed) % every != every - 1 {
            return Begun::Read(pages);
        }
        let measured = self.measured.fetch_add(1, Ordering::Relaxed) + 1;
        let is_ours = || self.measured.compare_exchange(measured, 1, Ordering::Relaxed, Ordering::Relaxed).is_ok();
        let long = self.reached[MOST_RUN - 2].load(Ordering::Relaxed);
        // Runs that were begun before a decision may come to their end after it: more of them than were measured since.
        let are_long = pages == 1 && (FEW_SAMPLES..=measured).contains(&long) && measured - long <= measured / 4;
        if (measured > samples || are_long) && is_ours() {
            self.decide(costs, if are_long { measured } else { samples }, samples * (rarely - 1));
        }
        if self.single.fetch_add(1, Ordering::Relaxed) >= MOST_SINGLE && pages > 1 {
            self.change_to(if is_long { pages / 2 } else { 1 });
            self.single.store(0, Ordering::Relaxed);
        }
        Begun::Measured(if is_long { pages / 2 } else { 1 })
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

    /// Pages to read at once of a measured run that has come to page [`MOST_RUN`], unless it is a walk.
    pub fn rest_of_long(&self) -> Option<usize> {
        self.long_runs_end().then(|| (self.pages() / 2).max(LEAST_LONG / 2))
    }

    /// Whether long runs of the file are known to end, most of them, so that one that goes on is no walk yet.
    pub fn long_runs_end(&self) -> bool {
        self.pages() >= LEAST_LONG || self.some_are_long.load(Ordering::Relaxed)
    }

    /// Notes that a measured run came to its n-th page.
    pub fn note_reached(&self, pages: usize) {
        self.single.store(0, Ordering::Relaxed);
        self.reached[pages.min(MOST_RUN) - 2].fetch_add(1, Ordering::Relaxed);
    }

    /// Of so many pages that were read with the first, those that the program comes to, as far as the measured runs tell.
    pub fn used_of(&self, pages: usize) -> usize {
        pages * self.used.load(Ordering::Relaxed) as usize / 1024
    }

    fn change_to(&self, pages: usize) {
        self.more.store(pages as u32 - 1, Ordering::Relaxed);
    }

    /// Notes that the measured runs would have used so many of the pages read with their first ones.
    fn note_used(&self, used: u64, read: u64) {
        self.used.store((1024 * used / read.max(1)).min(1024) as u32, Ordering::Relaxed);
    }

    #[cold]
    fn decide(&self, costs: Costs, samples: u32, others: u32) {
        // All of them, to begin anew.
        let reached: [u32; MOST_RUN - 1] = std::array::from_fn(|page| self.reached[page].swap(0, Ordering::Relaxed));
        let went_on = self.went_on.swap(0, Ordering::Relaxed);
        let long = reached[MOST_RUN - 2].min(samples);
        let pages = self.pages();
        let most_are_long = samples - long <= samples / 4;
        self.some_are_long.store(!most_are_long && long > samples / SOME, Ordering::Relaxed);
        self.change_to(if pages >= LEAST_LONG {
            self.longer_or_shorter(pages, (long, samples), (went_on, others), costs)
        } else if !most_are_long {
            self.walked.store(false, Ordering::Relaxed);
            let (pages, used, read) = cheapest(&reached, costs, samples);
            self.note_used(used, read);
            pages
        } else if self.walked.load(Ordering::Relaxed) {
            1
        } else {
            // All that is known: they come behind half of it.
            self.note_used(1, 2);
            LEAST_LONG
        });
    }

    /// How many pages of long runs to read at once from now on; `pages` were until now. Of the measured runs, which are `samples`, `half`
    /// went on behind half of these pages. Of the `others`, `went_on` went on behind all of them.
    fn longer_or_shorter(
        &self,
        pages: usize,
        (half, samples): (u32, u32),
        (went_on, others): (u32, u32),
        costs: Costs,
    ) -> usize {
        // Whether it pays to read so many further pages, if `needed` of so many runs need them: each of these saves a miss.
        let pays = |further: usize, needed: u32, of: u32| {
            let in_vain = u64::from(of.saturating_sub(needed)) * further as u64 * costs.page;
            u64::from(needed) * costs.miss > in_vain + in_vain / DISPLACED
        };
        if pays(pages, went_on, others) {
            if pages < MOST_LONG {
                self.note_used(u64::from(others + went_on), 2 * u64::from(others));
                return pages * 2;
            }
            self.walked.store(true, Ordering::Relaxed);
            return 1;
        }
        self.note_used(u64::from(samples + half), 2 * u64::from(samples));
        if pays(pages / 2, half, samples) { pages } else { pages / 2 }
    }
}

/// The number of pages in which it would have been cheapest to read the measured runs, long ones apart. `reached` tells how many of the
/// `samples` came as far as each page but the first. Also returned: of the pages that would have been read with the first ones, how many
/// would have been used, and how many there are.
fn cheapest(reached: &[u32; MOST_RUN - 1], costs: Costs, samples: u32) -> (usize, u64, u64) {
    let long = reached[MOST_RUN - 2];
    let mut rows = samples.saturating_sub(long);
    let reaching: [u64; MOST_RUN - 1] = std::array::from_fn(|page| {
        // A run that has reached a page has reached those before it, whatever threads have noted meanwhile.
        rows = if page == 0 { rows } else { reached[page - 1].saturating_sub(long).min(rows) };
        u64::from(rows)
    });
    let used: u64 = reaching.iter().sum();
    let reads = |pages: usize| -> u64 { reaching.iter().step_by(pages).sum() };
    let cost = |pages: usize| {
        let reads = reads(pages);
        let time = reads * (costs.miss + pages as u64 * costs.page);
        // Plus what pages read in vain displace, by their ratio to pages used.
        time * ((DISPLACED - 1) * used + reads * pages as u64)
    };
    let pages = (1..MOST_RUN).min_by_key(|pages| cost(*pages)).unwrap_or(1);
    (pages, used - reads(pages), reads(pages) * (pages as u64 - 1))
}

/// Where runs that have begun would go on.
#[derive(Debug)]
pub struct OpenRuns([OpenRun; OPEN]);

/// A hint, as all entries of the miss history are: two threads may write one at the same time.
#[derive(Debug)]
struct OpenRun {
    /// The page where it would go on, as an [`Entry`](crate::page::entry::Entry); [`NONE`]: it has gone on.
    next: AtomicU64,
    /// Twice the pages so far, and one more if the run is measured.
    pages: AtomicU32,
    /// Runs begun and chunks read ahead before this was noted, in all.
    at: AtomicU32,
}

/// A miss that continues a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum GoesOn {
    /// A measured run. The miss is its n-th page.
    Measured(usize),
    /// Another run. So many pages of it were read so far, [`RunLengths::pages`] at a time, or for nothing (`readahead/detect.rs`).
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

    /// Notes a run that begins here, or goes on. `now`: runs begun and chunks read ahead so far.
    #[inline]
    pub fn begin(&self, here: u64, now: u32, goes_on: Option<GoesOn>, begun: Begun) {
        let before = if let Some(GoesOn::Read(before)) = goes_on { before } else { 0 };
        match begun {
            Begun::Measured(pages) => self.note(here + pages as u64, pages, true, now),
            Begun::Read(pages) => self.note(here + pages as u64, before.saturating_add(pages), false, now),
        }
    }

    /// Whether a miss continues a run. `now`: as for `begin`. `file`: pages of the file.
    #[inline]
    pub fn goes_on(&self, here: u64, now: u32, file: usize) -> Option<GoesOn> {
        let run = self.of(here);
        if run.next.load(Ordering::Relaxed) != here {
            return None;
        }
        let pages = run.pages.load(Ordering::Relaxed);
        let (pages, is_measured) = ((pages >> 1) as usize, pages & 1 != 0);
        let late = if is_measured { LATE as usize } else { file / BY_CHANCE / pages.max(1) };
        if now.wrapping_sub(run.at.load(Ordering::Relaxed)) > late.clamp(LEAST_LATE, LATE as usize) as u32 {
            return None;
        }
        run.next.store(NONE, Ordering::Relaxed);
        if !is_measured {
            return Some(GoesOn::Read(pages));
        }
        if pages + 1 < MOST_RUN {
            self.note(here + 1, pages + 1, true, now);
        }
        Some(GoesOn::Measured(pages + 1))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DISK: Costs = Costs { miss: 64_000, page: 3_300, are_long: false };
    /// A page costs as much as a miss.
    const EVEN: Costs = Costs { miss: 4_000, page: 4_000, are_long: false };

    /// Lets a page miss; how many pages from it on are read.
    fn miss(lengths: &RunLengths, open: &OpenRuns, here: u64, costs: Costs) -> usize {
        let goes_on = open.goes_on(here, lengths.begun(), 1 << 40);
        let begun = match goes_on {
            Some(GoesOn::Measured(reached)) => {
                lengths.note_reached(reached);
                match lengths.rest_of_long().filter(|_| reached >= MOST_RUN) {
                    Some(rest) => Begun::Read(rest),
                    None => return 1,
                }
            }
            _ => lengths.begin_or_go_on(goes_on, || costs),
        };
        open.begin(here, lengths.begun(), goes_on, begun);
        begun.pages()
    }

    /// Lets a program read rows of some pages, far apart; the misses per row of the last hundred.
    fn misses(
        (lengths, open): &(RunLengths, OpenRuns),
        costs: Costs,
        rows: usize,
        pages: impl Fn(usize) -> usize,
    ) -> f64 {
        let mut misses = 0;
        for row in 0..rows {
            let first = 1 << 40 | (row as u64 * 7919) << 10;
            let mut there = 0;
            for page in 0..pages(row) {
                if page < there {
                    continue;
                }
                misses += usize::from(row + 100 >= rows);
                there = page + miss(lengths, open, first + page as u64, costs);
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
        for (costs, pages) in
            [DISK, EVEN].into_iter().flat_map(|costs| [1, 2, 3, 5, 16, 31, 32].map(|pages| (costs, pages)))
        {
            let runs = Default::default();
            let per_row = misses(&runs, costs, 1000, |_| pages);
            assert_eq!(runs.0.pages(), pages);
            assert!(per_row < 1.6, "{pages}: {per_row}");
        }
    }

    #[test]
    fn long_rows_too() {
        let lengths = [(33, 64), (64, 64), (100, 128), (128, 128), (300, 512), (512, 512)];
        for (costs, (pages, read)) in [DISK, EVEN].into_iter().flat_map(|costs| lengths.map(|length| (costs, length))) {
            let runs = Default::default();
            let per_row = misses(&runs, costs, 2000, |_| pages);
            assert_eq!(runs.0.pages(), read, "{pages}");
            assert!(per_row < 1.4, "{pages}: {per_row}");
        }
    }

    /// A quarter of the rows are longer. To read those at once, 64 pages of each of the others would be read in vain.
    #[test]
    fn long_rows_are_read_at_once_where_most_are() {
        let runs = Default::default();
        misses(&runs, DISK, 5000, |row| if of(row) < 64 { 128 } else { 64 });
        assert_eq!(runs.0.pages(), 64);
    }

    /// Headers of one page, and lists: doubled from 1 page on, 128 pages take 9 misses, and one list in 16 is measured.
    #[test]
    fn where_some_are_long_few_misses_find_their_ends() {
        let runs = Default::default();
        let per_row = misses(&runs, DISK, 5000, |row| if row < 500 || of(row * row) < 128 { 1 } else { 128 });
        assert_eq!(runs.0.pages(), 1);
        assert!(per_row < 8.0, "{per_row}");
        misses(&runs, DISK, 5000, |_| 1);
        assert!(!runs.0.long_runs_end());
    }

    #[test]
    fn it_follows_the_program() {
        let runs = Default::default();
        for pages in [4, 1, 256, 12, 64, 2] {
            misses(&runs, DISK, 20_000, |_| pages);
            assert_eq!(runs.0.pages(), pages);
        }
    }

    #[test]
    fn a_walk_is_no_row() {
        for costs in [DISK, EVEN] {
            let runs = Default::default();
            misses(&runs, costs, 3000, |_| 2000);
            assert_eq!(runs.0.pages(), 1);
            misses(&runs, costs, 5000, |row| if of(row) < 85 { 2000 } else { 3 });
            assert_eq!(runs.0.pages(), 3);
        }
    }

    /// Until then five runs are measured, one of 256 each; of long runs five, one of four each, for each halving, down to 32 pages.
    #[test]
    fn when_rows_are_over_that_is_soon_known() {
        for (pages, rows, left) in [(16, 1500, 1), (512, 100, 32), (512, 6000, 1)] {
            let runs = Default::default();
            misses(&runs, DISK, 5000, |_| pages);
            assert_eq!(runs.0.pages(), pages);
            misses(&runs, DISK, rows, |_| 1);
            assert_eq!(runs.0.pages(), left);
        }
    }

    /// One row in four is of 16 pages. Read in 8, four rows are 5 misses of 40 pages; in 16, 4 misses of 64; in 2, 11 of 22.
    #[test]
    fn the_device_decides_what_pays() {
        for (costs, read) in [(DISK, 8), (EVEN, 2)] {
            let runs = Default::default();
            misses(&runs, costs, 20_000, |row| if of(row) < 64 { 16 } else { 1 });
            assert_eq!(runs.0.pages(), read);
        }
    }

    #[test]
    fn what_was_read_in_vain_is_estimated() {
        for (pages, used) in [(16, 1000..=1000), (100, 750..=1000), (64, 1000..=1000)] {
            let runs = Default::default();
            misses(&runs, DISK, 20_000, |_| pages);
            assert!(used.contains(&runs.0.used_of(1000)), "{pages}: {}", runs.0.used_of(1000));
        }
        // Five reads of 8 pages, and of the 35 that are not the first 14 are used.
        let runs = Default::default();
        misses(&runs, DISK, 20_000, |row| if of(row) < 64 { 16 } else { 1 });
        assert!((200..600).contains(&runs.0.used_of(1000)), "{}", runs.0.used_of(1000));
    }

    #[test]
    fn neighbours_by_chance_are_no_row() {
        let runs = Default::default();
        for _ in 0..100 {
            misses(&runs, DISK, 1000, |row| 1 + usize::from(of(row) < 8));
            assert_eq!(runs.0.pages(), 1);
        }
    }

    /// The same place comes by again by chance: in a small file that is no walk.
    #[test]
    fn pieces_of_a_small_file_in_any_order_go_on_by_chance() {
        let after = |file: usize, others: u32| {
            let open = OpenRuns::default();
            open.begin(1 << 40, 0, None, Begun::Read(64));
            open.goes_on((1 << 40) + 64, others, file)
        };
        assert_eq!(after(1 << 17, 32), Some(GoesOn::Read(64)));
        assert_eq!(after(1 << 17, 33), None, "32 of the 2048 pieces");
        assert_eq!(after(1 << 10, 32), Some(GoesOn::Read(64)), "threads that take turns");
        assert_eq!((after(1 << 30, 256), after(1 << 30, 257)), (Some(GoesOn::Read(64)), None));
    }

    #[test]
    fn a_few_long_rows_will_do() {
        for (short, rows) in [(0, FEW_SAMPLES as usize + 2), (4, FEW_SAMPLES as usize + 6)] {
            let runs = Default::default();
            misses(&runs, DISK, 4 * rows, |row| if row < 4 * short && row % 8 == 3 { 1 } else { 64 });
            assert_eq!(runs.0.pages(), 64);
        }
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
                    *there = page + miss(&lengths, &open, here, DISK) as u64;
                }
            }
        }
        assert_eq!(lengths.pages(), 4);
    }

    #[test]
    fn runs_that_began_before_a_decision_may_end_after_it() {
        let lengths = RunLengths::default();
        (0..2 * FEW_SAMPLES).for_each(|_| lengths.note_reached(MOST_RUN));
        let measure = || (0..RARELY).for_each(|_| _ = lengths.begin_or_go_on(None, || DISK));
        (1..2 * FEW_SAMPLES).for_each(|_| measure());
        assert_eq!(lengths.pages(), 1, "fewer were measured than came to their end");
        measure();
        assert_eq!(lengths.pages(), LEAST_LONG);
    }
}
