//! How long a file's device takes: for a page by itself, and for each further page of the same request.
//!
//! Threads that miss time the reads that they do themselves; reads from the page cache are left out. The times are averages, in which no read
//! counts for more than four times the average before: the rest of its time is other work on the processor or the device, or a pause.

use crate::pool::reader::LARGE_PIECE_PAGES;
use crate::sys::preads::THREADS;
use crate::sys::sync::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

/// Time of a miss beside its read, ns: the trap and one UFFDIO_COPY of a page.
const TRAP: u64 = 4_000;
/// Time of a further page beside its read, ns: its part of UFFDIO_COPY, and of an eviction.
const MAPPED: u64 = 1_500;
/// Time to read a further page, ns, until that has been measured: 2 GB/s.
const UNFIRST: u32 = 2_000;
/// Times to read a page and a further one, ns, while the device has had none to read: the page cache has had all.
const CACHED: (u64, u64) = (1_500, 500);
/// A read of at least so many pages tells how long further ones take. Times of smaller reads differ by as much by chance.
const LEAST_PAGES: usize = 4;
/// One read of a page in so many is timed: two looks at the clock are 50 ns.
const RARELY: u64 = 16;
/// The first reads of a page by itself. All are timed, and the shortest time counts. With the last of them it is known whether reads take
/// long. One would not do: it may have waited for a processor, and a file that is taken to be far away is read in another way from then on.
const FIRST: u32 = 4;
/// A page by itself that takes longer comes from storage far away, ns. Today's disks take a third.
const LONG: u32 = 300_000;
/// A measurement moves the average by this part of its difference from it.
const PART: i64 = 16;

/// Times in ns. Two threads may overwrite each other's.
#[derive(Debug)]
pub struct ReadTimes {
    /// Zero: not known.
    page: AtomicU32,
    /// Measurements move it from the start. The first one does not count whole: where a pause was in it, no further page would be read any
    /// more, and none measured.
    further: AtomicU32,
    /// Reads of a page by itself, up to [`FIRST`].
    first: AtomicU32,
    /// Reads that were asked for alone.
    tried: AtomicU32,
    lost: Lost,
}

/// Misses of a file whose reads take long.
#[derive(Debug, Default)]
struct Lost {
    misses: AtomicU32,
    /// Of them, those beside earlier ones.
    near: AtomicU32,
}

/// The costs of a miss, and of a further page that is read with it, ns.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Costs {
    pub miss: u64,
    pub page: u64,
    /// [`ReadTimes::are_long`].
    pub are_long: bool,
}

impl Costs {
    /// Pages to read with one that is missed, this one included, while memory is free: 32 at most. On storage far away as many as take an eighth
    /// of the miss's time; else as many as take one and a half times as long, unless these are too few to pay.
    pub fn for_nothing(&self) -> usize {
        const LEAST: usize = 8;
        let time = if self.are_long { self.miss / 8 } else { self.miss * 3 / 2 };
        match ((time / self.page) as usize).clamp(1, LARGE_PIECE_PAGES) {
            ..LEAST if !self.are_long => 1,
            pages => pages,
        }
    }
}

impl Default for ReadTimes {
    fn default() -> Self {
        Self {
            page: AtomicU32::new(0),
            further: AtomicU32::new(UNFIRST),
            first: AtomicU32::new(0),
            tried: AtomicU32::new(0),
            lost: Lost::default(),
        }
    }
}

impl ReadTimes {
    /// Whether to time a read of so many pages, the n-th.
    #[inline]
    pub fn is_due(&self, pages: usize, number: u64) -> bool {
        let is_first = || self.first.load(Ordering::Relaxed) < FIRST;
        pages >= LEAST_PAGES || pages == 1 && (number.is_multiple_of(RARELY) || is_first())
    }

    /// Whether reads take so long that many are to be under way at a time, each by a thread.
    #[inline]
    pub fn are_long(&self) -> bool {
        self.page.load(Ordering::Relaxed) > LONG && self.first.load(Ordering::Relaxed) >= FIRST
    }

    /// Whether it is still unknown if the call that asks for a read waits for it. Until it is known the first reads are asked for alone.
    pub fn is_untried(&self) -> bool {
        self.tried.load(Ordering::Relaxed) < FIRST && self.first.load(Ordering::Relaxed) < FIRST
    }

    /// Notes a read of so many pages that was asked for alone, and how long the call took if it waited. A time that a disk may take
    /// is left out: the read may have been put off.
    pub fn note_tried(&self, pages: usize, waited: Option<Duration>) {
        self.tried.fetch_add(1, Ordering::Relaxed);
        let further = (pages as u32 - 1) * UNFIRST;
        let alone = waited.map(|waited| in_ns(waited).saturating_sub(further));
        if let Some(took) = alone.filter(|took| *took > LONG) {
            self.note_took(1, took);
        }
    }

    /// Notes a miss where reads take long; whether all misses so far have cost more than it takes to read the whole file, of so many pages,
    /// at once. `is_near`: the page is beside one that was missed earlier. Always false while at most half of the misses are near and few
    /// pages of the file were missed: these may be all that is wanted.
    pub fn has_lost_as_much(&self, pages: usize, is_near: bool) -> bool {
        /// A file is read here and there if at most one page in so many was missed.
        const SPARSE: usize = 256;
        let misses = self.lost.misses.fetch_add(1, Ordering::Relaxed) as usize + 1;
        let near = self.lost.near.fetch_add(u32::from(is_near), Ordering::Relaxed) as usize;
        let Costs { miss, page, .. } = self.costs();
        // A page's part of a large request, which takes as long as a page by itself, and goes on beside others.
        let page = page.min(miss / LARGE_PIECE_PAGES as u64) / THREADS as u64 + MAPPED;
        misses as u64 * miss > pages as u64 * page && (2 * near > misses || misses > pages / SPARSE)
    }

    /// Notes a read of so many pages that began then, and came from the device.
    #[cold]
    pub fn note(&self, pages: usize, began: Instant) {
        self.note_took(pages, in_ns(began.elapsed()));
    }

    fn note_took(&self, pages: usize, took: u32) {
        let page = self.page.load(Ordering::Relaxed);
        match (pages, page) {
            (1, _) if self.first.load(Ordering::Relaxed) < FIRST => {
                self.first.fetch_add(1, Ordering::Relaxed);
                self.page.store(if page == 0 { took } else { page.min(took) }.max(PART as u32), Ordering::Relaxed);
            }
            (1, _) => average(&self.page, took),
            (_, 0) => {}
            _ => average(&self.further, took.saturating_sub(page) / (pages - 1) as u32),
        }
    }

    /// The costs, as far as they are known.
    pub fn costs(&self) -> Costs {
        let (page, further) = match self.page.load(Ordering::Relaxed) {
            0 => CACHED,
            page => (page.into(), self.further.load(Ordering::Relaxed).into()),
        };
        Costs { miss: page + TRAP, page: further + MAPPED, are_long: self.are_long() }
    }
}

fn in_ns(time: Duration) -> u32 {
    time.as_nanos().min(u128::from(u32::MAX / 8)) as u32
}

fn average(time: &AtomicU32, now: u32) {
    let before = i64::from(time.load(Ordering::Relaxed));
    let next = before + (i64::from(now).min(4 * before) - before) / PART;
    // An average below this would not rise again.
    time.store(next.max(PART) as u32, Ordering::Relaxed);
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    fn note(times: &ReadTimes, pages: usize, took: impl Fn(u32) -> u32) {
        (0..200).for_each(|read| times.note_took(pages, took(read)));
    }

    #[test]
    fn latency_and_further_pages_are_told_apart() {
        let times = ReadTimes::default();
        assert_eq!(times.costs(), Costs { miss: 5_500, page: 2_000, are_long: false });
        note(&times, 16, |_| 100_000);
        assert_eq!(times.costs(), Costs { miss: 5_500, page: 2_000, are_long: false }, "without a page by itself");
        note(&times, 1, |_| 60_000);
        assert_eq!(times.costs(), Costs { miss: 64_000, page: u64::from(UNFIRST) + MAPPED, are_long: false });
        note(&times, 16, |_| 60_000 + 15 * 1_800);
        // 1,800, and less than the sixteenth part of a difference that still moves the average.
        assert_eq!(times.costs(), Costs { miss: 64_000, page: 1_815 + MAPPED, are_long: false });
    }

    #[test]
    fn storage_far_away_is_known_by_its_first_reads() {
        let far = ReadTimes::default();
        assert!(far.is_due(1, 7) && !far.are_long());
        (1..FIRST).for_each(|_| far.note_took(1, 2_100_000));
        assert!(!far.are_long(), "by few");
        far.note_took(1, 2_000_000);
        assert!(far.are_long() && far.costs().miss > 2_000_000);
        assert_eq!(far.costs().for_nothing(), LARGE_PIECE_PAGES);
        let disk = ReadTimes::default();
        [3_000_000, 90_000, 80_000, 3_000_000].into_iter().for_each(|took| disk.note_took(1, took));
        assert!(!disk.are_long(), "a first read that waited for something else");
        (0..100).for_each(|_| disk.note_took(1, 90_000));
        assert!(!disk.is_due(1, 7) && disk.is_due(1, 16));
        assert!((8..LARGE_PIECE_PAGES + 1).contains(&disk.costs().for_nothing()));
        assert_eq!(ReadTimes::default().costs().for_nothing(), 1, "the page cache has had all");
    }

    #[test]
    fn files_that_are_loaded_are_told_from_those_that_are_read_here_and_there() {
        let after = |is_near: bool, misses: usize| {
            let far = ReadTimes::default();
            (0..4).for_each(|_| far.note_took(1, 2_000_000));
            (0..misses).any(|_| far.has_lost_as_much(1 << 18, is_near))
        };
        assert!(!after(true, 100), "0.2 s, and all of the GiB takes longer");
        assert!(after(true, 400));
        assert!(!after(false, 900));
        assert!(after(false, 1100));
    }

    #[test]
    fn a_first_longer_read_that_paused_is_no_matter() {
        let far = ReadTimes::default();
        (0..4).for_each(|_| far.note_took(1, 2_000_000));
        far.note_took(16, 100_000_000);
        assert_eq!(far.costs().for_nothing(), LARGE_PIECE_PAGES);
    }

    #[test]
    fn one_read_that_took_long_is_no_matter() {
        let times = ReadTimes::default();
        note(&times, 1, |read| if read % 50 == 49 { 1_000_000_000 } else { 60_000 });
        let miss = times.costs().miss;
        assert!((64_000..90_000).contains(&miss), "{miss}");
        // And a device that has become another is followed.
        note(&times, 1, |_| 500_000);
        assert!(times.costs().miss > 450_000);
    }

    #[test]
    fn a_fast_device() {
        let times = ReadTimes::default();
        note(&times, 1, |_| 2_500);
        note(&times, 32, |_| 2_500 + 31 * 2_000);
        assert_eq!(times.costs(), Costs { miss: 6_500, page: 3_500, are_long: false });
        note(&times, 32, |_| 1_000);
        assert!(times.costs().page < 1_600, "never below nothing");
        // Nor for good, if the first one came to nothing.
        let times = ReadTimes::default();
        note(&times, 1, |_| 60_000);
        note(&times, 16, |read| if read == 0 { 60_000 } else { 60_000 + 15 * 1_800 });
        assert!(times.costs().page > 3_000, "{:?}", times.costs());
    }
}
