//! Random work with pins on a tiny cache: against a shadow copy in memory, and by many threads at once.

use crate::common::{PAGE, Random, create, folder, map_mut, quick_or_full, ready, seed};
use fastmap::{Advice, Cache, Error, MapMut};
use proptest::prelude::*;
use proptest::test_runner::{Config, RngAlgorithm, TestRng, TestRunner};
use std::ops::Deref;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};

const PAGES: usize = 90;
const SIZE: usize = PAGES * PAGE - 1000;

/// What one step does. Places and lengths are bytes.
#[derive(Debug, Clone)]
enum Step {
    /// Pins a range and keeps the guard in a place, instead of the one that was there.
    Pin {
        place: usize,
        at: usize,
        len: usize,
        write: Option<u8>,
    },
    Unpin {
        place: usize,
    },
    /// Looks at the pinned bytes, and stores to those that are pinned for writing.
    Use {
        place: usize,
        value: u8,
    },
    Load {
        at: usize,
        len: usize,
    },
    Store {
        at: usize,
        len: usize,
        value: u8,
    },
    ReadAt {
        at: usize,
        len: usize,
    },
    WriteAt {
        at: usize,
        len: usize,
        value: u8,
    },
    Get {
        at: usize,
    },
    Flush {
        at: usize,
        len: usize,
    },
    DontNeed {
        at: usize,
        len: usize,
    },
    Resize {
        pages: usize,
    },
}

fn range() -> impl Strategy<Value = (usize, usize)> {
    let len = prop_oneof![4 => 1..200usize, 3 => 1..4 * PAGE, 1 => 1..40 * PAGE];
    (0..SIZE, len).prop_map(|(at, len)| (at, len.min(SIZE - at)))
}

fn step() -> impl Strategy<Value = Step> {
    let write = prop_oneof![Just(None), any::<u8>().prop_map(Some)];
    prop_oneof![
        6 => (0..6usize, range(), write).prop_map(|(place, (at, len), write)| Step::Pin { place, at, len, write }),
        3 => (0..6usize).prop_map(|place| Step::Unpin { place }),
        6 => (0..6usize, any::<u8>()).prop_map(|(place, value)| Step::Use { place, value }),
        6 => range().prop_map(|(at, len)| Step::Load { at, len }),
        6 => (range(), any::<u8>()).prop_map(|((at, len), value)| Step::Store { at, len, value }),
        3 => range().prop_map(|(at, len)| Step::ReadAt { at, len }),
        3 => (range(), any::<u8>()).prop_map(|((at, len), value)| Step::WriteAt { at, len, value }),
        3 => (0..SIZE - 8).prop_map(|at| Step::Get { at }),
        2 => range().prop_map(|(at, len)| Step::Flush { at, len }),
        1 => range().prop_map(|(at, len)| Step::DontNeed { at, len }),
        1 => (16..80usize).prop_map(|pages| Step::Resize { pages }),
    ]
}

/// A guard of either kind.
enum Guard<'a> {
    Read(fastmap::Pinned<'a>),
    Write(fastmap::PinnedMut<'a>),
}

impl Deref for Guard<'_> {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match self {
            Guard::Read(pinned) => pinned,
            Guard::Write(pinned) => pinned,
        }
    }
}

fn pages_of(at: usize, len: usize) -> std::ops::Range<usize> {
    at / PAGE..(at + len).div_ceil(PAGE)
}

fn most_pins(pages: usize) -> usize {
    pages.saturating_sub(16.max(pages / 16)).max(pages / 4)
}

fn run(capacity: usize, steps: &[Step], path: &Path) {
    let mut shadow: Vec<u8> = (0..SIZE).map(|at| (at * 31 + at / PAGE) as u8).collect();
    let file = create(path, &shadow);
    let cache = Cache::builder().capacity(capacity * PAGE).evict_batch(4).high_water(50).build().unwrap();
    // Each guard that may be kept borrows a map of its own; loads and stores go through another.
    let mut maps: Vec<MapMut> = (0..6).map(|_| map_mut(&cache, &file)).collect();
    let mut plain = map_mut(&cache, &file);
    let base: Vec<*mut MapMut> = maps.iter_mut().map(std::ptr::from_mut).collect();
    let mut guards: [Option<(usize, Guard<'_>)>; 6] = Default::default();
    let mut capacity = capacity;
    for (number, step) in steps.iter().enumerate() {
        match *step {
            Step::Pin { place, at, len, write } => {
                guards[place] = None;
                // SAFETY: no other guard borrows this map now, and the map is used through this pointer alone.
                let map = unsafe { base[place].as_mut().unwrap() };
                let pinned = |guards: &[Option<(usize, Guard<'_>)>]| {
                    let mut pages: Vec<usize> =
                        guards.iter().flatten().flat_map(|(at, g)| pages_of(*at, g.len())).collect();
                    pages.sort_unstable();
                    pages.dedup();
                    pages
                };
                let before = pinned(&guards);
                let fresh = pages_of(at, len).filter(|page| !before.contains(page)).count();
                let fits =
                    before.len() + fresh <= most_pins(capacity) && pages_of(at, len).len() <= most_pins(capacity);
                let guard = match write {
                    None => map.pin(at, len).map(Guard::Read),
                    Some(_) => map.pin_mut(at, len).map(Guard::Write),
                };
                match guard {
                    Ok(guard) => {
                        assert!(fits, "step {number}: {} pages and {fresh} in {capacity}", before.len());
                        guards[place] = Some((at, guard));
                    }
                    Err(error) => {
                        assert!(matches!(error, Error::PinBudget { .. }) && !fits, "step {number}: {error}");
                    }
                }
                if let (Some(value), Some((at, Guard::Write(pinned)))) = (write, &mut guards[place]) {
                    pinned.fill(value);
                    shadow[*at..][..len].fill(value);
                }
                assert_eq!(cache.stats().pinned_pages as usize, pinned(&guards).len(), "step {number}");
            }
            Step::Unpin { place } => guards[place] = None,
            Step::Use { place, value } => {
                if let Some((at, guard)) = &mut guards[place] {
                    assert!(shadow[*at..][..guard.len()] == guard[..], "step {number}: pinned bytes at {at}");
                    if let Guard::Write(pinned) = guard {
                        pinned.fill(value);
                        shadow[*at..][..pinned.len()].fill(value);
                    }
                }
            }
            Step::Load { at, len } => assert!(plain[at..at + len] == shadow[at..at + len], "step {number}"),
            Step::Store { at, len, value } => {
                plain[at..at + len].fill(value);
                shadow[at..at + len].fill(value);
            }
            Step::ReadAt { at, len } => {
                let mut buffer = vec![0; len];
                plain.read_at(&mut buffer, at).unwrap();
                assert!(buffer == shadow[at..at + len], "step {number}");
            }
            Step::WriteAt { at, len, value } => {
                plain.write_at(&vec![value; len], at).unwrap();
                shadow[at..at + len].fill(value);
            }
            Step::Get { at } => {
                let found = plain.get_at::<u64>(at).unwrap();
                assert_eq!(found.to_ne_bytes(), shadow[at..at + 8], "step {number}");
            }
            Step::Flush { at, len } => {
                plain.flush_range(at, len).unwrap();
                assert!(std::fs::read(path).unwrap()[at..at + len] == shadow[at..at + len], "step {number}");
            }
            Step::DontNeed { at, len } => plain.advise_range(Advice::DontNeed, at, len).unwrap(),
            Step::Resize { pages } => match cache.resize(pages * PAGE) {
                Ok(()) => capacity = pages,
                Err(error) => assert!(matches!(error, Error::PinsHold { .. }), "step {number}: {error}"),
            },
        }
        assert!(cache.stats().resident_pages as usize <= capacity);
    }
    drop(guards);
    assert!(plain[..] == shadow[..]);
    drop((plain, maps));
    assert!(std::fs::read(path).unwrap() == shadow);
    let stats = cache.stats();
    assert_eq!((stats.resident_pages, stats.dirty_pages, stats.pinned_pages), (0, 0, 0));
}

#[test]
fn pins_agree_with_a_shadow_copy() {
    if !ready() {
        return;
    }
    let folder = folder();
    let path = folder.path().join("file");
    let config =
        Config { cases: quick_or_full(40, 150), failure_persistence: None, max_shrink_iters: 300, ..Config::default() };
    let mut bytes = [0; 32];
    bytes[..8].copy_from_slice(&seed(5).to_le_bytes());
    let mut runner = TestRunner::new_with_rng(config, TestRng::from_seed(RngAlgorithm::ChaCha, &bytes));
    let cases = (16..=64usize, prop::collection::vec(step(), 1..80));
    let result = runner.run(&cases, |(capacity, steps)| {
        run(capacity, &steps, &path);
        Ok(())
    });
    result.unwrap_or_else(|failure| panic!("{failure}"));
}

/// A word of the file, to be shared between threads.
#[derive(Clone, Copy)]
struct Base(*mut u8);
// SAFETY: the words behind it are only reached as atomics.
unsafe impl Send for Base {}
// SAFETY: likewise.
unsafe impl Sync for Base {}

/// Four threads pin, unpin, store and flush; each has stamps of its own in every page, which nobody else stores to.
fn threads(capacity: usize, high_water: u8, seed: u64, path: &Path) {
    const THREADS: usize = 4;
    let file = create(path, &vec![0; PAGES * PAGE]);
    let cache = Cache::builder().capacity(capacity * PAGE).evict_batch(4).high_water(high_water).build().unwrap();
    let mut check = map_mut(&cache, &file);
    let base = Base(check.as_mut_ptr());
    let generations: Vec<Vec<u64>> = std::thread::scope(|scope| {
        let work = |thread: usize| {
            let mut map = map_mut(&cache, &file);
            move || {
                let base = base; // whole
                let mut random = Random::new(seed + thread as u64);
                let mut stored = vec![0u64; PAGES];
                let word = |from: *const u8, page_at: usize| {
                    // SAFETY: a word of this thread's in a page that is in the map; aligned.
                    unsafe { &*from.add(page_at + thread * 8).cast::<AtomicU64>() }
                };
                for step in 1..4000u64 {
                    let (page, many) = (random.below(PAGES), 1 + random.below(4));
                    let pages = page..(page + many).min(PAGES);
                    let (at, len) = (page * PAGE, pages.len() * PAGE);
                    let pinned = match random.below(10) {
                        0..3 => map.pin(at, len).map(Guard::Read),
                        3..6 => map.pin_mut(at, len).map(Guard::Write),
                        6 => {
                            map.write_at(&step.to_ne_bytes(), at + thread * 8).unwrap();
                            stored[page] = step;
                            continue;
                        }
                        7 => {
                            assert_eq!(map.get_at::<u64>(at + thread * 8).unwrap(), stored[page]);
                            continue;
                        }
                        8 => {
                            if step % 8 == 0 {
                                map.flush().unwrap()
                            } else {
                                map.flush_range(at, len).unwrap()
                            }
                            continue;
                        }
                        _ => {
                            map.advise_range(Advice::DontNeed, at, len).unwrap();
                            continue;
                        }
                    };
                    let pinned = match pinned {
                        Ok(pinned) => pinned,
                        Err(Error::PinBudget { .. }) => continue,
                        Err(error) => panic!("{error}"),
                    };
                    for (number, page) in pages.enumerate() {
                        let own = word(pinned.as_ptr(), number * PAGE);
                        assert_eq!(own.load(Ordering::Relaxed), stored[page], "page {page}");
                        if random.below(2) == 0 {
                            // Traps under a read pin of a clean page, and nowhere else.
                            own.store(step, Ordering::Relaxed);
                            stored[page] = step;
                        }
                    }
                    if random.below(4) == 0 {
                        // Unpinned pages, loaded meanwhile.
                        let page = random.below(PAGES);
                        assert_eq!(word(base.0, page * PAGE).load(Ordering::Relaxed), stored[page], "page {page}");
                    }
                }
                stored
            }
        };
        let spawned: Vec<_> = (0..THREADS).map(|thread| scope.spawn(work(thread))).collect();
        spawned.into_iter().map(|one| one.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))).collect()
    });
    check.flush().unwrap();
    drop(check);
    let stats = cache.stats();
    assert_eq!((stats.resident_pages, stats.dirty_pages, stats.pinned_pages), (0, 0, 0));
    let bytes = std::fs::read(path).unwrap();
    for (thread, stored) in generations.iter().enumerate() {
        for (page, stored) in stored.iter().enumerate() {
            assert_eq!(bytes[page * PAGE + thread * 8..][..8], stored.to_ne_bytes(), "thread {thread} page {page}");
        }
    }
}

#[test]
fn threads_that_pin_lose_nothing() {
    if !ready() {
        return;
    }
    let folder = folder();
    let seed = seed(9);
    for (round, (capacity, high_water)) in [(16, 75), (20, 20), (40, 5), (64, 75)].into_iter().enumerate() {
        threads(capacity, high_water, seed + 100 * round as u64, &folder.path().join("file"));
    }
}
