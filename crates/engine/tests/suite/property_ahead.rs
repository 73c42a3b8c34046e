//! Random work on one map against a shadow copy, with everything that reads ahead, keeps pages, or drops them: walks, pins,
//! prefetching, advice, windows, flushes, capacities, lengths. In caches so small that all of it meets all the time.

use crate::common;
use crate::common::{PAGE, create, folder, quick_or_full, ready};
use fastmap::{Advice, Cache, Fallback, MapMut, MapOptions, Pinned};
use proptest::prelude::*;
use proptest::test_runner::{Config, RngAlgorithm, TestRng, TestRunner};
use std::ops::Range;
use std::path::Path;

/// A fraction of what there is when the step runs, so that every value is legal.
type Fraction = u16;

fn of(fraction: Fraction, whole: usize) -> usize {
    (usize::from(fraction) * whole) >> 16
}

#[derive(Debug, Clone)]
enum Step {
    Load { at: Fraction, len: usize },
    Store { at: Fraction, len: usize, value: u8 },
    Walk { at: Fraction, step: isize, count: usize, stores: bool },
    Pin { at: Fraction, len: usize },
    PinMut { at: Fraction, len: usize, value: u8 },
    Unpin,
    Prefetch { at: Fraction, len: usize, wait: bool },
    Advise { at: Fraction, len: Fraction, advice: Advice },
    SetReadahead { pages: usize },
    Flush,
    FlushAsync,
    Beside { count: usize },
    Resize { pages: usize },
    Truncate { to: Fraction, back: bool },
    Grow { by: usize },
}

#[derive(Debug, Clone)]
struct Case {
    pages: usize,
    tail: usize,
    capacity: usize,
    steps: Vec<Step>,
}

fn step() -> impl Strategy<Value = Step> {
    let at = any::<Fraction>;
    let advice = prop::sample::select(vec![
        Advice::Normal,
        Advice::Random,
        Advice::Sequential,
        Advice::Backward,
        Advice::WillNeed,
        Advice::DontNeed,
    ]);
    let walks = prop::sample::select(vec![1isize, 1, 1, -1, -1, 2, -3, 7, 16, -64]);
    prop_oneof![
        8 => (at(), 1..3 * PAGE).prop_map(|(at, len)| Step::Load { at, len }),
        8 => (at(), 1..3 * PAGE, any::<u8>()).prop_map(|(at, len, value)| Step::Store { at, len, value }),
        12 => (at(), walks, 3..300usize, prop::bool::weighted(0.3))
            .prop_map(|(at, step, count, stores)| Step::Walk { at, step, count, stores }),
        3 => (at(), 1..4 * PAGE).prop_map(|(at, len)| Step::Pin { at, len }),
        2 => (at(), 1..4 * PAGE, any::<u8>()).prop_map(|(at, len, value)| Step::PinMut { at, len, value }),
        3 => Just(Step::Unpin),
        3 => (at(), 0..200 * PAGE, any::<bool>()).prop_map(|(at, len, wait)| Step::Prefetch { at, len, wait }),
        4 => (at(), at(), advice).prop_map(|(at, len, advice)| Step::Advise { at, len, advice }),
        1 => (0..600usize).prop_map(|pages| Step::SetReadahead { pages }),
        2 => Just(Step::Flush),
        1 => Just(Step::FlushAsync),
        1 => (1..600usize).prop_map(|count| Step::Beside { count }),
        2 => (64..800usize).prop_map(|pages| Step::Resize { pages }),
        2 => (at(), any::<bool>()).prop_map(|(to, back)| Step::Truncate { to, back }),
        1 => (1..300 * PAGE).prop_map(|by| Step::Grow { by }),
    ]
}

fn case() -> impl Strategy<Value = Case> {
    (100..1500usize, 0..PAGE, 64..700usize, prop::collection::vec(step(), 1..80))
        .prop_map(|(pages, tail, capacity, steps)| Case { pages, tail, capacity, steps })
}

struct World<'a> {
    cache: Cache,
    map: MapMut,
    shadow: Vec<u8>,
    path: &'a Path,
}

impl World<'_> {
    /// What can be touched: inside the map and the file.
    fn len(&self) -> usize {
        self.map.len().min(self.shadow.len())
    }

    fn span(&self, at: Fraction, want: usize) -> Range<usize> {
        let start = of(at, self.len());
        start..(start + want).min(self.len())
    }

    fn check(&self, range: Range<usize>) {
        if self.map[range.clone()] != self.shadow[range.clone()] {
            let at = range.clone().find(|at| self.map[*at] != self.shadow[*at]).unwrap_or(range.start);
            panic!("byte {at} (page {}) is {:#x}, not {:#x}", at / PAGE, self.map[at], self.shadow[at]);
        }
    }

    fn walk(&mut self, at: Fraction, step: isize, count: usize, stores: bool) {
        let pages = self.len() / PAGE;
        let mut page = Some(of(at, pages));
        for _ in 0..count {
            let Some(here) = page.filter(|page| *page < pages) else { break };
            let byte = here * PAGE + here % PAGE;
            self.check(byte..byte + 1);
            if stores {
                self.map[byte] = self.map[byte].wrapping_add(1);
                self.shadow[byte] = self.map[byte];
            }
            page = here.checked_add_signed(step);
        }
    }

    /// One step; pins of the map are out.
    fn change(&mut self, step: &Step, beside: &fastmap::Map) {
        match *step {
            Step::Store { at, len, value } => {
                let span = self.span(at, len);
                self.map[span.clone()].fill(value);
                self.shadow[span].fill(value);
            }
            Step::Walk { at, step, count, stores } => self.walk(at, step, count, stores),
            Step::PinMut { at, len, value } => {
                let span = self.span(at, len);
                let mut pin = self.map.pin_mut(span.start, span.len()).unwrap();
                pin.fill(value);
                drop(pin);
                self.shadow[span].fill(value);
            }
            Step::Truncate { to, back } => {
                // A write-back that begins at this moment may undo the cut: nothing to write, and nobody reads ahead of stores.
                self.map.flush().unwrap();
                let len = self.shadow.len();
                self.shadow.truncate(of(to, len).max(1));
                let file = common::open(self.path);
                file.set_len(self.shadow.len() as u64).unwrap();
                self.map.flush().unwrap();
                if back {
                    self.shadow.resize(len, 0);
                    file.set_len(len as u64).unwrap();
                    self.map.flush().unwrap();
                }
            }
            Step::Grow { by } => {
                let to = (self.map.len() + by).min(8 << 20).max(self.map.len());
                self.map.grow(to).unwrap();
                let len = self.shadow.len().max(to);
                self.shadow.resize(len, 0);
            }
            Step::Beside { count } => (0..count).for_each(|page| assert_eq!(beside[page * PAGE], 1)),
            ref step => self.look(step),
        }
    }

    /// One step that leaves the bytes as they are; the map may be pinned.
    fn look(&self, step: &Step) {
        match *step {
            Step::Load { at, len } => self.check(self.span(at, len)),
            Step::Prefetch { at, len, wait } => {
                let span = self.span(at, len);
                let half = span.start + span.len() / 2;
                let ranges = [span.start..half, half..span.end];
                if wait {
                    self.map.prefetch_wait(&ranges).unwrap();
                } else {
                    assert!(self.map.prefetch(&ranges).unwrap() <= 2);
                }
            }
            Step::Advise { at, len, advice } => {
                let start = of(at, self.len());
                self.map.advise_range(advice, start, of(len, self.len() - start)).unwrap();
            }
            Step::SetReadahead { pages } => self.map.set_readahead(pages * PAGE).unwrap(),
            Step::Flush => self.map.flush().unwrap(),
            Step::FlushAsync => drop(self.map.flush_async()),
            Step::Resize { pages } => self.cache.resize(pages * PAGE).unwrap(),
            _ => {}
        }
    }
}

fn run(case: &Case, path: &Path, other: &Path) {
    let shadow: Vec<u8> = (0..case.pages * PAGE + case.tail).map(|at| (at * 31 + at / PAGE) as u8).collect();
    let file = create(path, &shadow);
    let beside = common::open(other);
    let cache = Cache::new(case.capacity * PAGE).unwrap();
    let mut options = MapOptions::new();
    options.cache(&cache).fallback(Fallback::Refuse);
    // SAFETY: the files are this test's own.
    let (map, beside) = unsafe { (options.map_mut(&file).unwrap(), options.map(&beside).unwrap()) };
    let mut world = World { cache: cache.clone(), map, shadow, path };
    let mut steps = case.steps.iter();
    while let Some(step) = steps.next() {
        let Step::Pin { at, len } = *step else {
            world.change(step, &beside);
            continue;
        };
        // Pins hold while what leaves the bytes alone goes on, and more pins come.
        let mut pins: Vec<(Pinned<'_>, Range<usize>)> = Vec::new();
        let span = world.span(at, len);
        pins.push((world.map.pin(span.start, span.len()).unwrap(), span));
        let mut last = None;
        for step in steps.by_ref() {
            match *step {
                Step::Unpin => break,
                Step::Pin { at, len } if pins.len() < 4 => {
                    let span = world.span(at, len);
                    pins.push((world.map.pin(span.start, span.len()).unwrap(), span));
                }
                Step::Store { .. } | Step::PinMut { .. } | Step::Truncate { .. } | Step::Grow { .. } => {
                    last = Some(step);
                    break;
                }
                ref step => world.look(step),
            }
            for (pin, span) in &pins {
                assert!(pin[..] == world.shadow[span.clone()], "pinned {span:?}");
            }
        }
        drop(pins);
        if let Some(step) = last {
            world.change(step, &beside);
        }
        let stats = cache.stats();
        assert!(stats.resident_pages as usize * PAGE <= cache.capacity(), "{stats:?}");
        assert!(stats.ahead_used + stats.ahead_wasted <= stats.ahead_pages, "{stats:?}");
    }
    world.check(0..world.len());
    let World { map, shadow, .. } = world;
    drop(map);
    let found = std::fs::read(path).unwrap();
    assert_eq!(found.len(), shadow.len(), "the file's length");
    assert_eq!((0..shadow.len()).find(|at| found[*at] != shadow[*at]), None, "the file at the end");
    drop(beside);
    let stats = cache.stats();
    assert_eq!((stats.resident_pages, stats.dirty_pages, stats.pinned_pages), (0, 0, 0), "{stats:?}");
}

#[test]
fn maps_agree_with_a_shadow_copy_whatever_is_read_ahead() {
    if !ready() {
        return;
    }
    let folder = folder();
    let config =
        Config { cases: quick_or_full(30, 200), failure_persistence: None, max_shrink_iters: 200, ..Config::default() };
    // The same cases every time, unless FASTMAP_SEED says otherwise.
    let seed = common::seed(9);
    println!("{} cases", config.cases);
    let mut bytes = [0; 32];
    bytes[..8].copy_from_slice(&seed.to_le_bytes());
    let mut runner = TestRunner::new_with_rng(config, TestRng::from_seed(RngAlgorithm::ChaCha, &bytes));
    let (path, other) = (folder.path().join("file"), folder.path().join("other"));
    create(&other, &vec![1; 600 * PAGE]);
    let result = runner.run(&case(), |case| {
        run(&case, &path, &other);
        Ok(())
    });
    result.unwrap_or_else(|failure| panic!("{failure}"));
}
