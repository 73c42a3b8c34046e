//! The order in which threads touch pages.

use std::sync::Arc;

use rand::{RngExt, SeedableRng};
use rand_pcg::Pcg64Mcg;
use serde::{Deserialize, Serialize};

use crate::substrates::Zipf;
use crate::substrates::spec::names;

/// Distance between the pages of the `stride` pattern: 16 pages, 64 KiB.
pub const STRIDE_PAGES: u64 = 16;

/// The exponent of the `zipf` pattern, which is YCSB's. Of a million pages the hottest hundredth gets two thirds of the touches.
const ZIPF_THETA: f64 = 0.99;

/// The order in which pages are touched.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Pattern {
    /// Uniform over the file. Each thread has a seed of its own.
    Random,
    /// Zipf with exponent 0.99. The hot pages are scattered over the file.
    Zipf,
    /// One page after the other. Each thread takes a contiguous part of the file, and starts over at its end.
    Forward,
    /// Like forward, from the end to the beginning.
    Backward,
    /// Every 16th page, then the same shifted by one page, until all pages were touched. Threads take parts as for forward.
    Stride,
    /// Every page once in a scattered order, then all again in the same order, and so on. Threads take contiguous parts of the order. If
    /// the file is larger than memory, a cache that goes by recency never has a page of this loop.
    Order,
    /// A fresh, sparse file that is written whole: each page once, forward, all of its bytes. Threads take parts as for forward. It is
    /// measured until the file is on stable storage, so no time bounds it. Only with [`crate::substrates::Op::Write`].
    Fill,
}

names!(Pattern, "a pattern", {
    Random => "random", Zipf => "zipf", Forward => "forward", Backward => "backward", Stride => "stride",
    Order => "order", Fill => "fill",
});

/// The sequence of pages of one thread. It is endless, except for `fill`.
pub struct Sequence {
    order: Order,
    /// The number of this thread and the number of threads, if the load writes and the pages are drawn at random. Page `p` then belongs to
    /// thread `p % threads`. So each page has one writer, and its generation has one history.
    owner: Option<(u64, u64)>,
    pages: u64,
    once: Option<u64>,
}

enum Order {
    Random(Pcg64Mcg),
    Zipf(Pcg64Mcg, Arc<Zipf>, Scatter),
    Forward {
        start: u64,
        end: u64,
        next: u64,
    },
    Backward {
        start: u64,
        end: u64,
        next: u64,
    },
    Stride {
        start: u64,
        end: u64,
        phase: u64,
        next: u64,
    },
    /// The numbers are places in the scattered order.
    Again {
        start: u64,
        end: u64,
        next: u64,
        scatter: Scatter,
    },
}

impl Sequence {
    /// The sequences of all `threads` threads over `pages` pages. With `writes`, no page is in the sequences of two threads.
    ///
    /// # Panics
    ///
    /// There are fewer than [`STRIDE_PAGES`] pages per thread.
    pub fn of_all(pattern: Pattern, pages: u64, threads: u64, writes: bool) -> Vec<Sequence> {
        assert!(threads > 0 && pages >= threads * STRIDE_PAGES);
        let zipf = (pattern == Pattern::Zipf).then(|| Arc::new(Zipf::new(pages, ZIPF_THETA)));
        let sequence = |thread: u64| {
            let rng = Pcg64Mcg::seed_from_u64(0x5eed_0000 + thread);
            let (start, end) = (pages * thread / threads, pages * (thread + 1) / threads);
            let order = match (pattern, &zipf) {
                (Pattern::Zipf, Some(zipf)) => Order::Zipf(rng, Arc::clone(zipf), Scatter::over(pages)),
                (Pattern::Random | Pattern::Zipf, _) => Order::Random(rng),
                (Pattern::Forward | Pattern::Fill, _) => Order::Forward { start, end, next: start },
                (Pattern::Backward, _) => Order::Backward { start, end, next: end },
                (Pattern::Stride, _) => Order::Stride { start, end, phase: 0, next: start },
                (Pattern::Order, _) => Order::Again { start, end, next: start, scatter: Scatter::over(pages) },
            };
            let drawn = matches!(order, Order::Random(_) | Order::Zipf(..));
            let once = (pattern == Pattern::Fill).then_some(end - start);
            Sequence { order, owner: (writes && drawn && threads > 1).then_some((thread, threads)), pages, once }
        };
        (0..threads).map(sequence).collect()
    }

    /// The number of pages after which the sequence ends. None: it never ends.
    pub fn once(&self) -> Option<u64> {
        self.once
    }

    /// The next page to touch.
    #[inline]
    pub fn next_page(&mut self) -> u64 {
        let page = match &mut self.order {
            Order::Random(rng) => rng.random_range(0..self.pages),
            Order::Zipf(rng, zipf, scatter) => scatter.page_of(zipf.sample(rng)),
            Order::Forward { start, end, next } => {
                let page = *next;
                *next = if page + 1 == *end { *start } else { page + 1 };
                page
            }
            Order::Backward { start, end, next } => {
                let page = *next - 1;
                *next = if page == *start { *end } else { page };
                page
            }
            Order::Stride { start, end, phase, next } => {
                let page = *next;
                *next += STRIDE_PAGES;
                if *next >= *end {
                    *phase = (*phase + 1) % STRIDE_PAGES;
                    *next = *start + *phase;
                }
                page
            }
            Order::Again { start, end, next, scatter } => {
                let page = scatter.page_of(*next);
                *next = if *next + 1 == *end { *start } else { *next + 1 };
                page
            }
        };
        match self.owner {
            Some((thread, threads)) => {
                let owned = page - page % threads + thread;
                if owned < self.pages { owned } else { owned - threads }
            }
            None => page,
        }
    }
}

/// The multipliers of [`Scatter`], one for each step. With three steps the same distance from page to page came again and again, and with
/// four it still came now and then. With five it is as rare as in a random order.
const ROUNDS: [u64; 5] =
    [0x9e37_79b9_7f4a_7c15, 0xd1b5_4a32_d192_ed03, 0xbf58_476d_1ce4_e5b9, 0x94d0_49bb_1331_11eb, 0xff51_afd7_ed55_8ccd];

/// A fixed permutation of `0..pages` that scatters neighbours. So hot pages share neither huge pages nor readahead, and a loop over it has
/// no stride by which pages could be read ahead.
pub struct Scatter {
    pages: u64,
    bits: u32,
}

impl Scatter {
    /// The permutation of so many pages.
    pub fn over(pages: u64) -> Scatter {
        Scatter { pages, bits: (64 - (pages - 1).leading_zeros()).max(2) }
    }

    /// The page with a rank. Each step (odd multiplication, xor-shift) is a bijection of the next power of two. All steps are repeated
    /// until the result is below `pages`, which makes it a bijection of `0..pages`. On average that takes fewer than two repetitions.
    pub fn page_of(&self, rank: u64) -> u64 {
        let mask = (1u64 << self.bits) - 1;
        let half = self.bits / 2;
        let mut page = rank;
        loop {
            for odd in ROUNDS {
                page = page.wrapping_add(odd >> 17).wrapping_mul(odd) & mask;
                page ^= page >> half;
            }
            if page < self.pages {
                return page;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    const ALL: [Pattern; 7] = [
        Pattern::Random,
        Pattern::Zipf,
        Pattern::Forward,
        Pattern::Backward,
        Pattern::Stride,
        Pattern::Order,
        Pattern::Fill,
    ];

    fn take(sequence: &mut Sequence, count: usize) -> Vec<u64> {
        (0..count).map(|_| sequence.next_page()).collect()
    }

    #[test]
    fn every_pattern_stays_in_the_file() {
        for pattern in ALL {
            for (pages, threads) in [(16, 1), (100, 3), (1023, 8)] {
                for mut sequence in Sequence::of_all(pattern, pages, threads, true) {
                    assert!(take(&mut sequence, 5000).iter().all(|&p| p < pages), "{pattern}");
                }
            }
        }
    }

    #[test]
    fn writers_share_no_page() {
        for pattern in ALL {
            let mut seen = HashSet::new();
            for mut sequence in Sequence::of_all(pattern, 1001, 4, true) {
                let own: HashSet<u64> = take(&mut sequence, 20_000).into_iter().collect();
                assert!(seen.is_disjoint(&own), "{pattern}");
                seen.extend(own);
            }
            assert!(seen.len() > 900, "{pattern} reaches {} pages of 1001", seen.len());
        }
    }

    #[test]
    fn orders_are_what_they_say_and_wrap_around() {
        let mut all = Sequence::of_all(Pattern::Forward, 40, 2, false);
        assert_eq!(take(&mut all[1], 22), (20..40).chain(20..22).collect::<Vec<_>>());
        let mut all = Sequence::of_all(Pattern::Backward, 40, 2, false);
        assert_eq!(take(&mut all[0], 22), (0..20).rev().chain([19, 18]).collect::<Vec<_>>());
        let mut all = Sequence::of_all(Pattern::Stride, 40, 1, false);
        assert_eq!(take(&mut all[0], 6), [0, 16, 32, 1, 17, 33]);
        let whole: HashSet<u64> = take(&mut all[0], 34 + 6).into_iter().collect();
        assert_eq!(whole.len(), 40);
    }

    #[test]
    fn an_order_takes_every_page_once_a_round_and_is_the_same_in_each() {
        let all = Sequence::of_all(Pattern::Order, 1001, 3, true);
        let rounds: Vec<[Vec<u64>; 3]> = (all.into_iter().zip([333, 334, 334]))
            .map(|(mut sequence, part)| [(); 3].map(|()| take(&mut sequence, part)))
            .collect();
        assert!(rounds.iter().all(|[first, second, third]| first == second && second == third));
        let whole: HashSet<u64> = rounds.iter().flat_map(|[first, ..]| first.iter().copied()).collect();
        assert_eq!(whole.len(), 1001);
        // One thread takes the parts of the three threads, one after the other. It does the same a second time.
        let one = || take(&mut Sequence::of_all(Pattern::Order, 1001, 1, false)[0], 1001);
        assert_eq!(one(), rounds.iter().flat_map(|[first, ..]| first.iter().copied()).collect::<Vec<_>>());
        assert_eq!(one(), one());
    }

    #[test]
    fn a_fill_takes_every_page_once() {
        let mut pages = Vec::new();
        for mut sequence in Sequence::of_all(Pattern::Fill, 1001, 3, true) {
            let count = sequence.once().unwrap() as usize;
            pages.extend(take(&mut sequence, count));
        }
        assert_eq!(pages, (0..1001).collect::<Vec<_>>());
        assert!(Sequence::of_all(Pattern::Forward, 1001, 1, true)[0].once().is_none());
    }

    #[test]
    fn threads_draw_different_pages() {
        for pattern in [Pattern::Random, Pattern::Zipf] {
            let mut all = Sequence::of_all(pattern, 1 << 20, 2, false);
            assert_ne!(take(&mut all[0], 64), take(&mut all[1], 64));
        }
    }

    #[test]
    fn scatter_is_a_permutation_that_scatters() {
        for pages in [2, 3, 16, 1000, 4096, 5000] {
            let scatter = Scatter::over(pages);
            let image: HashSet<u64> = (0..pages).map(|r| scatter.page_of(r)).collect();
            assert_eq!(image.len() as u64, pages);
        }
        // The 512 hottest of a million pages lie in nearly as many 2 MiB neighbourhoods as chance would give (316).
        let scatter = Scatter::over(1 << 20);
        let huge: HashSet<u64> = (0..512).map(|r| scatter.page_of(r) / 512).collect();
        assert!(huge.len() > 380, "{} neighbourhoods", huge.len());
    }

    /// No distance between a page and the page that comes `lag` touches later is common. In a random order the commonest distance comes ten
    /// times.
    #[test]
    fn a_scattered_order_has_no_stride() {
        for pages in [40_960, 65_536] {
            let scatter = Scatter::over(pages);
            let order: Vec<i64> = (0..pages).map(|rank| scatter.page_of(rank) as i64).collect();
            for lag in (1..=64).chain([128, 256, 512, 1024, 4096]) {
                let mut steps: Vec<i64> = order.iter().zip(&order[lag..]).map(|(page, later)| later - page).collect();
                steps.sort_unstable();
                let commonest = steps.chunk_by(|a, b| a == b).map(<[i64]>::len).max().unwrap();
                assert!(commonest <= 16, "{pages} pages: one step of {lag} touches {commonest} times");
            }
        }
    }
}
