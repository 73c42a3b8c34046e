//! Traces on which replacement policies differ: sequences of touches over a file several times larger than memory.

use std::sync::Arc;

use rand::{RngExt, SeedableRng};
use rand_pcg::Pcg64Mcg;
use serde::{Deserialize, Serialize};

use crate::substrates::Zipf;
use crate::substrates::pattern::Scatter;
use crate::substrates::spec::names;

/// A sequence of touches. Its sizes are multiples of memory's size, which is the number of pages that fit into memory.
///
/// All traces are scattered over the file, also scans and loops. So neither the kernel's readahead nor the engine's hides the effect of
/// replacement.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Trace {
    /// Zipf with exponent 0.6 over the file.
    Zipf06,
    /// Zipf with exponent 0.99 over the file.
    Zipf099,
    /// Zipf with exponent 1.2 over the file.
    Zipf12,
    /// Half of the touches go to a hot set of half of memory, uniformly. The other half pass over the file, again and again.
    ScanMixed,
    /// The same pages one after the other, again and again. There are a tenth more of them than fit into memory.
    Loop,
    /// Nine of ten touches go to a window of half of memory, the tenth to any page. The window moves on by its own size each time that
    /// [`SHIFT`] times as many touches were made as pages fit into memory.
    Shifting,
}

names!(Trace, "a trace", {
    Zipf06 => "zipf-0.6", Zipf099 => "zipf-0.99", Zipf12 => "zipf-1.2", ScanMixed => "scan-mixed", Loop => "loop",
    Shifting => "shifting",
});

impl Trace {
    /// All traces.
    pub const ALL: [Trace; 6] =
        [Trace::Zipf06, Trace::Zipf099, Trace::Zipf12, Trace::ScanMixed, Trace::Loop, Trace::Shifting];
}

/// Touches between two moves of the window of [`Trace::Shifting`], for each page that fits into memory.
pub const SHIFT: u64 = 8;

/// The touches of a trace. They never end.
pub struct Touches {
    kind: Kind,
    rng: Pcg64Mcg,
    scatter: Scatter,
    /// Pages of the file.
    pages: u64,
    /// Pages that fit into memory.
    frames: u64,
    done: u64,
}

enum Kind {
    Zipf(Arc<Zipf>),
    ScanMixed { next: u64 },
    Loop,
    Shifting,
}

impl Touches {
    /// The touches of `trace` over a file of `pages` pages, of which `frames` fit into memory. They are always the same for a `seed`.
    ///
    /// # Panics
    ///
    /// The file is not larger than memory by a tenth, or memory is below 16 pages.
    pub fn new(trace: Trace, pages: u64, frames: u64, seed: u64) -> Touches {
        assert!(frames >= 16 && pages >= frames + frames / 10);
        let zipf = |theta| Kind::Zipf(Arc::new(Zipf::new(pages, theta)));
        let kind = match trace {
            Trace::Zipf06 => zipf(0.6),
            Trace::Zipf099 => zipf(0.99),
            Trace::Zipf12 => zipf(1.2),
            Trace::ScanMixed => Kind::ScanMixed { next: 0 },
            Trace::Loop => Kind::Loop,
            Trace::Shifting => Kind::Shifting,
        };
        let rng = Pcg64Mcg::seed_from_u64(0x7ace_0000 + seed);
        Touches { kind, rng, scatter: Scatter::over(pages), pages, frames, done: 0 }
    }

    /// The next page to touch.
    #[inline]
    pub fn next_page(&mut self) -> u64 {
        let (pages, half) = (self.pages, self.frames / 2);
        let rank = match &mut self.kind {
            Kind::Zipf(zipf) => zipf.sample(&mut self.rng),
            Kind::ScanMixed { next } => {
                if self.rng.random::<bool>() {
                    self.rng.random_range(0..half)
                } else {
                    *next = (*next + 1) % pages;
                    *next
                }
            }
            Kind::Loop => self.done % (self.frames + self.frames / 10),
            Kind::Shifting => {
                let start = self.done / (SHIFT * self.frames) * half;
                if self.rng.random_ratio(9, 10) {
                    (start + self.rng.random_range(0..half)) % pages
                } else {
                    self.rng.random_range(0..pages)
                }
            }
        };
        self.done += 1;
        self.scatter.page_of(rank)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    const FRAMES: u64 = 1000;
    const PAGES: u64 = 4 * FRAMES;

    fn take(trace: Trace, count: u64) -> Vec<u64> {
        let mut touches = Touches::new(trace, PAGES, FRAMES, 1);
        (0..count).map(|_| touches.next_page()).collect()
    }

    fn distinct(pages: &[u64]) -> u64 {
        pages.iter().collect::<HashSet<_>>().len() as u64
    }

    #[test]
    fn traces_stay_in_the_file_and_are_the_same_each_time() {
        for trace in Trace::ALL {
            let pages = take(trace, 3 * SHIFT * FRAMES);
            assert!(pages.iter().all(|page| *page < PAGES), "{trace}");
            assert_eq!(pages, take(trace, 3 * SHIFT * FRAMES), "{trace}");
            assert_eq!(trace.name().parse(), Ok(trace));
        }
        let other: Vec<u64> = {
            let mut touches = Touches::new(Trace::Zipf099, PAGES, FRAMES, 2);
            (0..100).map(|_| touches.next_page()).collect()
        };
        assert_ne!(other, take(Trace::Zipf099, 100));
    }

    #[test]
    fn traces_are_what_they_say() {
        let pages = take(Trace::Loop, 3300);
        assert_eq!((distinct(&pages), distinct(&pages[..1100])), (1100, 1100));
        assert_eq!(pages[..1100], pages[1100..2200]);

        let pages = take(Trace::ScanMixed, 2 * PAGES);
        let hot: HashSet<u64> = (0..FRAMES / 2).map(|rank| Scatter::over(PAGES).page_of(rank)).collect();
        let share = pages.iter().filter(|page| hot.contains(page)).count() as f64 / pages.len() as f64;
        assert!((0.53..0.59).contains(&share), "half, and an eighth of the other half: {share}");
        assert!(distinct(&pages) > PAGES * 9 / 10, "the scan gets round");

        let pages = take(Trace::Shifting, 2 * SHIFT * FRAMES);
        let (first, second) = pages.split_at((SHIFT * FRAMES) as usize);
        let frequent = |pages: &[u64]| -> HashSet<u64> {
            let mut counts = vec![0; PAGES as usize];
            pages.iter().for_each(|page| counts[*page as usize] += 1);
            (0..PAGES).filter(|page| counts[*page as usize] > 4).collect()
        };
        let (first, second) = (frequent(first), frequent(second));
        assert!((480..=520).contains(&first.len()) && (480..=520).contains(&second.len()));
        assert!(first.intersection(&second).count() < 30, "the window has moved");
    }

    #[test]
    fn the_steeper_the_fewer_pages() {
        let [flat, middle, steep] =
            [Trace::Zipf06, Trace::Zipf099, Trace::Zipf12].map(|trace| distinct(&take(trace, PAGES)));
        assert!(flat > middle && middle > steep, "{flat} {middle} {steep}");
    }
}
