//! Random work on maps against a shadow copy in memory.
//!
//! A case is a file, a cache, a number of threads and a list of phases. In a phase the file is mapped anew (mutable or
//! not, any offset and length, or the map of the phase before is kept), and every thread works through steps of its own
//! on the bytes it owns: threads own interleaved chunks, often several in one page. Between phases the file is compared
//! with the shadow, byte for byte.

use crate::common;
use crate::common::{PAGE, create, folder, quick_or_full, ready};
use fastmap::{Advice, Cache, CacheBuilder, Engine, Fallback, Map, MapMut, MapOptions};
use proptest::prelude::*;
use proptest::test_runner::{Config, RngAlgorithm, TestRng, TestRunner};
use std::ops::Range;
use std::path::Path;

/// Fractions of what there is when the step runs, so that every value is legal.
type Fraction = u16;

fn of(fraction: Fraction, whole: usize) -> usize {
    (usize::from(fraction) * whole) >> 16
}

#[derive(Debug, Clone)]
enum Step {
    Load { at: Fraction, len: usize },
    Store { at: Fraction, len: usize, value: u8 },
    Gather { rows: Vec<(Fraction, usize)> },
    Flush,
    FlushAsync,
    FlushRange { at: Fraction, len: Fraction },
    Advise { at: Fraction, len: Fraction, need: bool },
}

#[derive(Debug, Clone)]
struct Phase {
    mutable: bool,
    offset: Fraction,
    len: Fraction,
    /// Keep the whole file mapped beside it, so that its pages stay when the map goes.
    sibling: bool,
    flush: bool,
    steps: Vec<Vec<Step>>,
}

#[derive(Debug, Clone)]
struct Case {
    size: usize,
    capacity: usize,
    batch: usize,
    /// Bytes that one thread owns in a row.
    chunk: usize,
    phases: Vec<Phase>,
}

/// Widths of one instruction, of a few words, and of pages.
fn width() -> impl Strategy<Value = usize> {
    prop_oneof![4 => prop::sample::select(vec![1usize, 2, 4, 8, 16, 32]), 2 => 1..200usize, 1 => 1..3 * PAGE]
}

fn step() -> impl Strategy<Value = Step> {
    let (at, len) = (any::<Fraction>, any::<Fraction>);
    prop_oneof![
        30 => (at(), width()).prop_map(|(at, len)| Step::Load { at, len }),
        30 => (at(), width(), any::<u8>()).prop_map(|(at, len, value)| Step::Store { at, len, value }),
        6 => prop::collection::vec((at(), width()), 0..40).prop_map(|rows| Step::Gather { rows }),
        1 => Just(Step::Flush),
        1 => Just(Step::FlushAsync),
        2 => (at(), len()).prop_map(|(at, len)| Step::FlushRange { at, len }),
        3 => (at(), len(), any::<bool>()).prop_map(|(at, len, need)| Step::Advise { at, len, need }),
    ]
}

fn phase(threads: usize) -> impl Strategy<Value = Phase> {
    let steps = prop::collection::vec(prop::collection::vec(step(), 1..60), threads);
    (prop::bool::weighted(0.8), any::<Fraction>(), any::<Fraction>(), any::<bool>(), any::<bool>(), steps).prop_map(
        |(mutable, offset, len, sibling, flush, steps)| {
            // Whole files too: a small offset is none, a large length all.
            let offset = offset.saturating_sub(20_000);
            let len = if len > 40_000 { Fraction::MAX } else { len };
            Phase { mutable, offset, len, sibling, flush, steps }
        },
    )
}

fn case() -> impl Strategy<Value = Case> {
    let size =
        prop_oneof![1 => 0..2usize, 2 => 1..3 * PAGE, 6 => 1..100 * PAGE, 1 => (1..100usize).prop_map(|n| n * PAGE)];
    let chunk = prop_oneof![1..64usize, 64..2 * PAGE];
    (size, 16..=64usize, 1..=512usize, chunk, 1..=8usize).prop_flat_map(|(size, capacity, batch, chunk, threads)| {
        prop::collection::vec(phase(threads), 1..5).prop_map(move |phases| Case {
            size,
            capacity,
            batch,
            chunk,
            phases,
        })
    })
}

/// The start of a map for all threads of a phase.
#[derive(Clone, Copy)]
struct Base(*mut u8);
// SAFETY: each thread touches only the bytes it owns.
unsafe impl Send for Base {}
// SAFETY: likewise.
unsafe impl Sync for Base {}

impl Base {
    /// A byte of the map.
    fn at(self, at: usize) -> *mut u8 {
        self.0.wrapping_add(at)
    }
}

enum Either {
    Read(Map),
    Write(MapMut),
}

impl Either {
    fn gather(&self, rows: &[(usize, usize)], output: &mut [u8]) -> fastmap::Result<()> {
        match self {
            Either::Read(map) => map.gather(rows, output),
            Either::Write(map) => map.gather(rows, output),
        }
    }

    fn advise(&self, advice: Advice, at: usize, len: usize) -> fastmap::Result<()> {
        match self {
            Either::Read(map) => map.advise_range(advice, at, len),
            Either::Write(map) => map.advise_range(advice, at, len),
        }
    }
}

/// One thread's phase. `shadow` is its own copy of the file, true for the bytes it owns; `owned` says which those are.
fn work(
    map: &Either,
    base: Base,
    offset: usize,
    len: usize,
    steps: &[Step],
    shadow: &mut [u8],
    owned: &dyn Fn(usize) -> usize,
) {
    for (number, step) in steps.iter().enumerate() {
        // The owned bytes from a place on, at most so many: (place in the map, count).
        let span = |at: Fraction, want: usize| {
            let mut at = of(at, len);
            while at < len && owned(offset + at) == 0 {
                at += 1;
            }
            (at, if at < len { owned(offset + at).min(want).min(len - at) } else { 0 })
        };
        match (step, map) {
            (Step::Load { at, len: want }, _) => {
                let (at, count) = span(*at, *want);
                let mut found = vec![0; count];
                // SAFETY: inside the map; nobody else stores to these bytes.
                unsafe { read(base.at(at), &mut found) };
                assert!(found == shadow[offset + at..][..count], "step {number}: {count} bytes at {}", offset + at);
            }
            (Step::Store { at, len: want, value }, Either::Write(_)) => {
                let (at, count) = span(*at, *want);
                let bytes: Vec<u8> = (0..count).map(|byte| value.wrapping_add(byte as u8)).collect();
                // SAFETY: inside the map; these bytes are this thread's.
                unsafe { write(base.at(at), &bytes) };
                shadow[offset + at..][..count].copy_from_slice(&bytes);
            }
            (Step::Gather { rows }, _) => {
                let rows: Vec<_> = rows.iter().map(|(at, want)| span(*at, *want)).collect();
                let expected: Vec<u8> =
                    rows.iter().flat_map(|(at, count)| &shadow[offset + at..][..*count]).copied().collect();
                let mut found = vec![0; expected.len()];
                map.gather(&rows, &mut found).unwrap();
                assert!(found == expected, "step {number}: {rows:?}");
            }
            (Step::Flush, Either::Write(map)) => map.flush().unwrap(),
            (Step::FlushAsync, Either::Write(map)) => {
                let flush = map.flush_async();
                if number % 2 == 0 {
                    flush.wait().unwrap();
                }
            }
            (Step::FlushRange { at, len: want }, Either::Write(map)) => {
                let at = of(*at, len);
                map.flush_range(at, of(*want, len - at)).unwrap();
            }
            (Step::Advise { at, len: want, need }, _) => {
                let at = of(*at, len);
                let advice = if *need { Advice::WillNeed } else { Advice::DontNeed };
                map.advise(advice, at, of(*want, len - at)).unwrap();
            }
            (Step::Store { .. } | Step::Flush | Step::FlushAsync | Step::FlushRange { .. }, Either::Read(_)) => {}
        }
    }
}

/// Loads with one instruction where the width allows, straddling lines and pages as it may.
unsafe fn read(from: *const u8, to: &mut [u8]) {
    // SAFETY: the caller's bytes.
    unsafe {
        match to.len() {
            2 => to.copy_from_slice(&from.cast::<u16>().read_unaligned().to_ne_bytes()),
            4 => to.copy_from_slice(&from.cast::<u32>().read_unaligned().to_ne_bytes()),
            8 => to.copy_from_slice(&from.cast::<u64>().read_unaligned().to_ne_bytes()),
            16 => to.copy_from_slice(&from.cast::<u128>().read_unaligned().to_ne_bytes()),
            len => from.copy_to_nonoverlapping(to.as_mut_ptr(), len),
        }
    }
}

/// Stores likewise.
unsafe fn write(to: *mut u8, from: &[u8]) {
    // SAFETY: the caller's bytes.
    unsafe {
        match from.len() {
            2 => to.cast::<u16>().write_unaligned(from.as_ptr().cast::<u16>().read_unaligned()),
            4 => to.cast::<u32>().write_unaligned(from.as_ptr().cast::<u32>().read_unaligned()),
            8 => to.cast::<u64>().write_unaligned(from.as_ptr().cast::<u64>().read_unaligned()),
            16 => to.cast::<u128>().write_unaligned(from.as_ptr().cast::<u128>().read_unaligned()),
            len => from.as_ptr().copy_to_nonoverlapping(to, len),
        }
    }
}

fn run(case: &Case, path: &Path, cache: CacheBuilder) {
    let mut shadow: Vec<u8> = (0..case.size).map(|at| (at * 31 + at / PAGE) as u8).collect();
    let file = create(path, &shadow);
    let cache = cache.capacity(case.capacity * PAGE).evict_batch(case.batch).build().unwrap();
    let mut options = MapOptions::new();
    options.cache(&cache).fallback(Fallback::Refuse);
    let mut sibling = None;
    for phase in &case.phases {
        // SAFETY: the file is this test's own.
        let beside = phase.sibling.then(|| unsafe { options.clone().map(&file) }.unwrap());
        drop(std::mem::replace(&mut sibling, beside));
        let offset = of(phase.offset, case.size + 1);
        let len = if phase.len == Fraction::MAX { case.size - offset } else { of(phase.len, case.size - offset + 1) };
        let mut options = options.clone();
        let options = options.offset(offset as u64).len(len);
        let (map, base) = if phase.mutable {
            // SAFETY: as above.
            let mut map = unsafe { options.map_mut(&file) }.unwrap();
            let base = map.as_mut_ptr();
            assert_eq!((map.len(), map.engine()), (len, Engine::Cached));
            (Either::Write(map), Base(base))
        } else {
            // SAFETY: as above.
            let map = unsafe { options.map(&file) }.unwrap();
            assert_eq!((map.len(), map.engine()), (len, Engine::Cached));
            let base = map.as_ptr().cast_mut();
            (Either::Read(map), Base(base))
        };
        let threads = phase.steps.len();
        let copies: Vec<Vec<u8>> = std::thread::scope(|scope| {
            let spawned: Vec<_> = (phase.steps.iter().enumerate())
                .map(|(thread, steps)| {
                    let (mut copy, map, chunk) = (shadow.clone(), &map, case.chunk);
                    // How many bytes from this one on are the thread's.
                    let owned =
                        move |byte: usize| if byte / chunk % threads == thread { chunk - byte % chunk } else { 0 };
                    scope.spawn(move || {
                        work(map, base, offset, len, steps, &mut copy, &owned);
                        copy
                    })
                })
                .collect();
            spawned
                .into_iter()
                .map(|thread| thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)))
                .collect()
        });
        for (at, byte) in shadow.iter_mut().enumerate() {
            *byte = copies[at / case.chunk % threads][at];
        }
        if let (true, Either::Write(map)) = (phase.flush, &map) {
            map.flush().unwrap();
            compare(path, &shadow, offset..offset + len, "after a flush");
        }
        let bytes: &[u8] = match &map {
            Either::Read(map) => map,
            Either::Write(map) => map,
        };
        assert!(bytes == &shadow[offset..offset + len], "the map differs from the shadow");
        if let Some(sibling) = &sibling {
            assert!(sibling[..] == shadow[..], "the map beside it differs from the shadow");
        }
        drop(map);
        if sibling.is_none() {
            compare(path, &shadow, 0..case.size, "after its last map is gone");
            let stats = cache.stats();
            assert_eq!((stats.resident_pages, stats.dirty_pages), (0, 0));
        }
    }
    drop(sibling);
    compare(path, &shadow, 0..case.size, "at the end");
}

fn compare(path: &Path, shadow: &[u8], mut bytes: Range<usize>, when: &str) {
    let found = std::fs::read(path).unwrap();
    assert_eq!(found.len(), shadow.len(), "the file's length {when}");
    if let Some(at) = bytes.find(|at| found[*at] != shadow[*at]) {
        panic!("{when} the file has {:#x} at {at}, stored was {:#x}", found[at], shadow[at]);
    }
}

/// Runs so many cases, each with a cache that `builder` begins.
fn check(cases: u32, builder: impl Fn() -> CacheBuilder) {
    let folder = folder();
    let config = Config { cases, failure_persistence: None, max_shrink_iters: 200, ..Config::default() };
    // The same cases every time, unless FASTMAP_SEED says otherwise.
    let seed = common::seed(7);
    println!("{} cases", config.cases);
    let mut bytes = [0; 32];
    bytes[..8].copy_from_slice(&seed.to_le_bytes());
    let mut runner = TestRunner::new_with_rng(config, TestRng::from_seed(RngAlgorithm::ChaCha, &bytes));
    let path = folder.path().join("file");
    let result = runner.run(&case(), |case| {
        run(&case, &path, builder());
        Ok(())
    });
    result.unwrap_or_else(|failure| panic!("{failure}"));
}

#[test]
fn maps_agree_with_a_shadow_copy() {
    if ready() {
        check(quick_or_full(60, 500), Cache::builder);
    }
}

#[test]
fn maps_agree_without_any_one_mechanism() {
    if ready() {
        for mechanism in fastmap::Mechanism::ALL {
            println!("without {mechanism:?}");
            check(quick_or_full(8, 60), || Cache::builder().without(mechanism));
        }
    }
}
