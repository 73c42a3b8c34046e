//! Loops larger than memory: pages that come back in the order in which they left, each after about as long. Whatever is replaced by age is
//! replaced just before it is wanted. So part of them is kept, chosen by a hash, for as long as the loop goes on, and the rest passes
//! through what is left.
//!
//! A loop shows in how long pages that are missed were away: about as long as each other. (Under other work the times differ.) Counted in
//! memories of evictions, that is by how much the loop is longer than memory, whatever is kept of it.

use crate::pool::replacement::{Ghosts, PARTS};
use crate::sys::sync::{AtomicU32, Ordering};

/// Classes of times away, an eighth of a memory each.
const WIDTH: u32 = PARTS / 8;
const CLASSES: usize = 128;
/// Of 16 misses, as many must lie in three neighbouring classes.
const MOST_OF: u32 = 11;
/// Share of memory that is kept, of 2^16: were it all but a little, and the loop a little longer than thought, what is kept would be pushed out
/// as by any loop.
const KEPT: u32 = 85 * 65536 / 100;

/// What one core has seen of loops.
#[derive(Debug)]
pub struct Loops {
    classes: [AtomicU32; CLASSES],
    /// Misses since they were looked at.
    seen: AtomicU32,
    /// Share of the pages that is kept, of 2^16; zero: there is no loop.
    kept: AtomicU32,
}

impl Default for Loops {
    fn default() -> Self {
        let classes = std::array::from_fn(|_| AtomicU32::new(0));
        Loops { classes, seen: AtomicU32::new(0), kept: AtomicU32::new(0) }
    }
}

impl Loops {
    /// Notes a miss, of a page that was away for so many parts of a memory, if it was ever there. Once in so many misses it is decided
    /// anew.
    #[inline]
    pub fn note(&self, away: Option<u32>, every: u32) {
        if let Some(class) = away.and_then(|away| self.classes.get((away / WIDTH) as usize)) {
            class.fetch_add(1, Ordering::Relaxed);
        }
        let seen = self.seen.fetch_add(1, Ordering::Relaxed) + 1;
        if seen >= every {
            self.decide(seen);
        }
    }

    #[cold]
    fn decide(&self, misses: u32) {
        let counts: [u32; CLASSES] = std::array::from_fn(|class| self.classes[class].swap(0, Ordering::Relaxed));
        let sum = |first: usize| counts[first..first + 3].iter().sum::<u32>();
        let first = (0..CLASSES - 2).max_by_key(|first| sum(*first)).unwrap_or(0);
        let count = sum(first);
        let is_loop = u64::from(count) * 16 >= u64::from(misses) * u64::from(MOST_OF);
        // Twice the mean of the classes' middles.
        let halves = || (0..3).map(|at| (2 * (first + at) + 1) as u64 * u64::from(counts[first + at])).sum::<u64>();
        let memory = u64::from(PARTS / WIDTH);
        let kept = || u64::from(KEPT) * 2 * memory / (2 * memory + halves() / u64::from(count.max(1)));
        self.kept.store(if is_loop { kept() as u32 } else { 0 }, Ordering::Relaxed);
        self.seen.store(0, Ordering::Relaxed);
    }

    /// Whether a page, an [`Entry`](crate::page::entry::Entry), is one of those that are kept; `None`: there is no loop.
    #[inline]
    pub fn keeps(&self, page: u64) -> Option<bool> {
        let kept = self.kept.load(Ordering::Relaxed);
        // The high bits of a multiplicative hash.
        (kept != 0).then(|| ((page.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 48) as u32) < kept)
    }
}

impl Ghosts {
    /// Misses of one of so many cores between two decisions on loops: all cores together see a quarter of a memory.
    pub fn every(capacity: usize, cores: usize) -> u32 {
        (capacity / 4 / cores.max(1)).clamp(64, 1 << 20) as u32
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kept(away: impl Iterator<Item = Option<u32>>) -> u32 {
        let loops = Loops::default();
        away.take(1000).for_each(|away| loops.note(away, 1000));
        loops.kept.load(Ordering::Relaxed)
    }

    #[test]
    fn times_that_are_alike_make_a_loop() {
        for (longer, quarters) in [(0.25, 1), (1.0, 4), (3.0, 12), (15.0, 60)] {
            // A little off, one way and the other.
            let away = (0..).map(|at: u32| Some((quarters * PARTS / 4).saturating_add_signed(at as i32 % 9 - 4)));
            let share = f64::from(kept(away)) / 65536.0;
            let best = 0.85 / (1.0 + longer);
            assert!((best - share).abs() < 0.1 * best, "{longer}: {share} for {best}");
        }
    }

    #[test]
    fn times_that_differ_and_pages_that_are_new_make_none() {
        assert_eq!(kept((0..).map(|at: u32| Some(at * 7919 % (4 * PARTS)))), 0);
        assert_eq!(kept(std::iter::repeat(None)), 0);
        assert_eq!(kept((0..).map(|at| (at % 2 == 0).then_some(PARTS))), 0);
        assert_eq!(kept((0..).map(|_| Some(1000 * PARTS))), 0, "longer than anything is kept for");
    }

    #[test]
    fn it_ends_with_the_loop() {
        let loops = Loops::default();
        (0..100).for_each(|_| loops.note(Some(PARTS), 100));
        let kept = (0..10_000u64).filter(|page| loops.keeps(*page << 3) == Some(true)).count();
        assert!((3800..4700).contains(&kept), "{kept}");
        (0..100).for_each(|_| loops.note(None, 100));
        assert_eq!(loops.keeps(1), None);
    }
}
