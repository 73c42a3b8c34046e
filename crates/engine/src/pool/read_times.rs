//! How long a file's device takes: for a page by itself, and for each further page of the same request.
//!
//! Threads that miss take the times of reads that they do themselves; what the page cache had is left out. They are averages, in which
//! no read counts for more than four times what was expected: what is beyond is another's work on the processor or the device, or a pause.

use crate::sys::sync::{AtomicU32, Ordering};
use std::time::Instant;

/// What a miss takes beside its read, ns: the trap and one UFFDIO_COPY of a page.
const TRAP: u64 = 4_000;
/// What a further page takes beside its read, ns: its part of UFFDIO_COPY, and of an eviction.
const MAPPED: u64 = 1_500;
/// A further page is read in so many ns until that has been measured: 2 GB/s.
const UNKNOWN: u64 = 2_000;
/// What the page cache takes, which has had all pages as long as the device has had none, ns: a page, and a further one.
const CACHED: (u64, u64) = (1_500, 500);
/// Pages of a read from which on it tells what further ones take: the times of a few differ by as much by chance.
const LEAST_PAGES: usize = 4;
/// One read of a page in so many is timed: two looks at the clock are 50 ns.
const RARELY: u64 = 16;
/// What a measurement adds of its difference to the average.
const PART: i64 = 16;

/// Times in ns; zero: not known. Two threads may overwrite each other's.
#[derive(Debug, Default)]
pub struct ReadTimes {
    page: AtomicU32,
    further: AtomicU32,
}

/// What a miss costs, and a further page that is read with it, ns.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Costs {
    pub miss: u64,
    pub page: u64,
}

impl ReadTimes {
    /// Whether to time a read of so many pages, the n-th.
    #[inline]
    pub fn is_due(pages: usize, number: u64) -> bool {
        pages >= LEAST_PAGES || pages == 1 && number.is_multiple_of(RARELY)
    }

    /// Notes a read of so many pages that began then, and was the device's.
    #[cold]
    pub fn note(&self, pages: usize, began: Instant) {
        let took = began.elapsed().as_nanos().min(u128::from(u32::MAX / 8)) as u32;
        self.note_took(pages, took);
    }

    fn note_took(&self, pages: usize, took: u32) {
        let page = self.page.load(Ordering::Relaxed);
        match (pages, page) {
            (1, _) => average(&self.page, took),
            (_, 0) => {}
            _ => average(&self.further, took.saturating_sub(page) / (pages - 1) as u32),
        }
    }

    /// What is known of the costs.
    pub fn costs(&self) -> Costs {
        let known = |time: &AtomicU32| Some(u64::from(time.load(Ordering::Relaxed))).filter(|time| *time > 0);
        let (page, further) = match known(&self.page) {
            Some(page) => (page, known(&self.further).unwrap_or(UNKNOWN)),
            None => CACHED,
        };
        Costs { miss: page + TRAP, page: further + MAPPED }
    }
}

fn average(time: &AtomicU32, now: u32) {
    let before = i64::from(time.load(Ordering::Relaxed));
    let next = match before {
        0 => i64::from(now),
        _ => before + (i64::from(now).min(4 * before) - before) / PART,
    };
    // Zero is not known, and what is less than this would not rise again.
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
        assert_eq!(times.costs(), Costs { miss: 5_500, page: 2_000 });
        note(&times, 16, |_| 100_000);
        assert_eq!(times.costs(), Costs { miss: 5_500, page: 2_000 }, "without a page by itself");
        note(&times, 1, |_| 60_000);
        assert_eq!(times.costs(), Costs { miss: 64_000, page: UNKNOWN + MAPPED });
        note(&times, 16, |_| 60_000 + 15 * 1_800);
        assert_eq!(times.costs(), Costs { miss: 64_000, page: 3_300 });
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
        assert_eq!(times.costs(), Costs { miss: 6_500, page: 3_500 });
        note(&times, 32, |_| 1_000);
        assert!(times.costs().page < 1_600, "never below nothing");
        // Nor for good, if the first one came to nothing.
        let times = ReadTimes::default();
        note(&times, 1, |_| 60_000);
        note(&times, 16, |read| if read == 0 { 60_000 } else { 60_000 + 15 * 1_800 });
        assert!(times.costs().page > 3_000, "{:?}", times.costs());
    }
}
