//! Loops larger than memory: pages come back in the order in which they left, each after about the same time. Replacement by age evicts each
//! page just before it is wanted. So while a loop goes on, pages that miss are kept until the protected queues are full. After that one in a
//! few is kept, and the rest pass through the other part of memory (as in bimodal insertion: Qureshi and others, ISCA 2007).
//!
//! A loop shows in the times that missed pages were away. In a loop these are about equal, whatever is kept of it; under random work, however
//! skewed, they differ by powers of two. Times are counted in classes, four to a power of two. There is a loop when three neighbouring
//! classes have most of the misses. Pages that come back much sooner, a hot set beside the loop, are treated as ever (`replacement.rs`).

use crate::pool::replacement::Ghosts;
use crate::sys::sync::{AtomicIsize, AtomicU32, Ordering};
use std::sync::atomic::AtomicBool;

/// Classes of times away: four to a power of two, up to a thousand memories.
const CLASSES: usize = 64;
/// Of 16 misses, so many in three neighbouring classes begin a loop, and so many keep it going.
const BEGINS: u64 = 11;
const GOES_ON: u64 = 7;
/// One missed page in so many is kept where the protected queues are full: the pages there are to be replaced in the end.
const RARELY: u32 = 64;
/// After so many decisions in a row without a loop, the next is a new one: the pages kept of the last are of no use to it.
const OVER: u32 = 3;

/// How long pages that one core missed were away, since it was last looked at.
#[derive(Debug)]
pub struct TimesAway {
    classes: [AtomicU32; CLASSES],
    /// Pages missed, including those that were never in memory.
    missed: AtomicU32,
}

impl Default for TimesAway {
    fn default() -> Self {
        TimesAway { classes: std::array::from_fn(|_| AtomicU32::new(0)), missed: AtomicU32::new(0) }
    }
}

impl TimesAway {
    /// Notes pages that were missed together, and how long they were away, in stamps of [`Ghosts`], if they were ever in memory.
    #[inline]
    pub fn note(&self, away: Option<u32>, pages: usize) {
        self.missed.fetch_add(pages as u32, Ordering::Relaxed);
        if let Some(class) = away.and_then(|away| self.classes.get(class_of(away))) {
            class.fetch_add(pages as u32, Ordering::Relaxed);
        }
    }
}

fn class_of(away: u32) -> usize {
    let power = away.max(1).ilog2();
    let quarter = if power < 2 { away.max(1) << (2 - power) } else { away >> (power - 2) } & 3;
    (4 * power + quarter) as usize
}

/// The least time away of a class.
fn least_of(class: usize) -> u32 {
    let (power, quarter) = (class as u32 / 4, class as u32 % 4);
    if power < 2 { (4 + quarter) >> (2 - power) } else { (4 + quarter) << (power - 2) }
}

/// Whether there is a loop.
#[derive(Debug)]
#[repr(align(128))] // written once in a while, read with each miss: on lines of its own
pub struct Loops {
    /// The least time that its pages are away, in stamps; zero: there is no loop.
    away: AtomicU32,
    /// So many further pages are kept, whatever the protected queues hold: a loop has begun.
    anew: AtomicIsize,
    /// Decisions in a row without one.
    without: AtomicU32,
    /// The protected queues have their share: after two more batches from the probationary queues they give the next.
    is_full: AtomicBool,
}

impl Loops {
    /// None so far.
    pub fn new() -> Self {
        Loops {
            away: AtomicU32::new(0),
            anew: AtomicIsize::new(0),
            without: AtomicU32::new(OVER),
            is_full: AtomicBool::new(false),
        }
    }

    /// Decides whether there is a loop, by what all cores have seen since the last decision, in a cache of so many pages. Called once in a
    /// quarter of a memory.
    #[cold]
    pub fn decide<'a>(&self, cores: impl Iterator<Item = &'a TimesAway>, capacity: usize) {
        let (mut counts, mut missed) = ([0u64; CLASSES], 0);
        for core in cores {
            missed += u64::from(core.missed.swap(0, Ordering::Relaxed));
            for (count, class) in counts.iter_mut().zip(&core.classes) {
                *count += u64::from(class.swap(0, Ordering::Relaxed));
            }
        }
        let of_three = |first: usize| counts[first..first + 3].iter().sum::<u64>();
        let first = (0..CLASSES - 2).max_by_key(|first| of_three(*first)).unwrap_or(0);
        let there_is_one = self.away.load(Ordering::Relaxed) > 0;
        let enough = if there_is_one { GOES_ON } else { BEGINS };
        let count = of_three(first);
        if count == 0 || count * 16 < missed * enough {
            self.away.store(0, Ordering::Relaxed);
            self.without.fetch_add(1, Ordering::Relaxed);
            return;
        }
        if self.without.swap(0, Ordering::Relaxed) >= OVER {
            self.anew.store(capacity as isize, Ordering::Relaxed);
        }
        self.away.store(least_of(first).max(1), Ordering::Relaxed);
    }

    /// Notes whether the protected queues have their share.
    pub fn note_full(&self, is_full: bool) {
        if self.is_full.load(Ordering::Relaxed) != is_full {
            self.is_full.store(is_full, Ordering::Relaxed);
        }
    }

    /// Whether pages that were missed together, after so long away, are to be kept; `None`: no loop decides that. `seen`: where their misses
    /// are noted.
    #[inline]
    pub fn keep(&self, away: Option<u32>, pages: usize, seen: &TimesAway) -> Option<bool> {
        let (of_loop, away) = (self.away.load(Ordering::Relaxed), away?);
        if of_loop == 0 || Ghosts::is_young_at(away) && away * 3 < of_loop * 2 {
            return None;
        }
        let is_anew = self.anew.load(Ordering::Relaxed) > 0;
        if is_anew {
            self.anew.fetch_sub(pages as isize, Ordering::Relaxed);
        }
        let its_turn = || (seen.missed.load(Ordering::Relaxed) / pages.max(1) as u32).is_multiple_of(RARELY);
        Some(!self.is_full.load(Ordering::Relaxed) || is_anew || its_turn())
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    fn decided(loops: &Loops, away: impl Iterator<Item = Option<u32>>) -> u32 {
        let seen = TimesAway::default();
        away.take(1000).for_each(|away| seen.note(away, 1));
        loops.decide(std::iter::once(&seen), 1000);
        loops.away.load(Ordering::Relaxed)
    }

    #[test]
    fn classes_are_in_order_and_begin_where_they_say() {
        for away in 1..100_000 {
            let class = class_of(away);
            assert!(least_of(class) <= away && away < least_of(class + 4), "{away}");
            assert!(class_of(away + 1) >= class);
        }
    }

    #[test]
    fn times_that_are_alike_make_a_loop() {
        for middle in [8, 16, 32, 64, 192, 960, 10_000] {
            // An eighth off, one way and the other.
            let away = (0..).map(|at: i32| Some((middle + (at % 9 - 4) * middle / 32) as u32));
            let of_loop = decided(&Loops::new(), away);
            assert!(of_loop > 0 && of_loop as i32 <= middle && 2 * of_loop as i32 > middle, "{middle}: {of_loop}");
        }
    }

    #[test]
    fn times_that_differ_and_pages_that_are_new_make_none() {
        assert_eq!(decided(&Loops::new(), (0..).map(|at: u32| Some(at * 7919 % 256))), 0);
        // As under accesses at random to pages of one kind: the longer, the rarer.
        let exponential = (0..).map(|at: u32| Some((-64.0 * (f64::from(at * 7919 % 1000 + 1) / 1001.0).ln()) as u32));
        assert_eq!(decided(&Loops::new(), exponential), 0);
        assert_eq!(decided(&Loops::new(), std::iter::repeat(None)), 0);
        assert_eq!(decided(&Loops::new(), (0..).map(|at| (at % 2 == 0).then_some(64))), 0);
        assert_eq!(decided(&Loops::new(), std::iter::empty()), 0);
    }

    #[test]
    fn it_goes_on_with_less_and_ends() {
        let loops = Loops::new();
        let half = || (0..).map(|at| (at % 2 == 0).then_some(64));
        assert!(decided(&loops, std::iter::repeat(Some(64))) > 0);
        assert!(decided(&loops, half()) > 0);
        assert_eq!(decided(&loops, std::iter::repeat(None)), 0);
        assert_eq!(decided(&loops, half()), 0);
    }

    #[test]
    fn what_is_kept() {
        let (loops, seen) = (Loops::new(), TimesAway::default());
        loops.note_full(true);
        assert_eq!(loops.keep(Some(64), 1, &seen), None, "no loop");
        decided(&loops, std::iter::repeat(Some(64)));
        assert!((0..1000).all(|_| loops.keep(Some(64), 1, &seen) == Some(true)), "a loop that begins: a memory of it");
        loops.note_full(false);
        assert_eq!(loops.keep(Some(64), 1, &seen), Some(true), "there is room");
        loops.note_full(true);
        assert_eq!(loops.keep(Some(4), 1, &seen), None, "much sooner than the loop");
        assert_eq!(loops.keep(None, 1, &seen), None, "never there");
        for pages in [1, 32, 512] {
            let kept = (0..64_000).filter(|_| {
                seen.note(Some(64), pages);
                loops.keep(Some(64), pages, &seen) == Some(true)
            });
            assert_eq!(kept.count(), 1000, "one in {RARELY}, {pages} pages at a time");
        }
    }
}
