//! Tests direct maps against a shadow, which has the bytes that would be left after a power failure: lines that a flush writes are copied
//! there at that moment. A page that was stored to and that a flush does not find shows as a difference.

use crate::map::map_mut::MapMut;
use crate::map::options::MapOptions;
use crate::modes::{Mode, Persist};
use crate::sys::PAGE;
use std::cell::RefCell;
use std::fs::File;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Barrier, Mutex, MutexGuard, PoisonError};

/// Called with the addresses of lines that are written.
type Watch = Box<dyn FnMut(Range<usize>)>;

thread_local! {
    /// Called with the lines that this thread's flushes write.
    static WATCH: RefCell<Option<Watch>> = const { RefCell::new(None) };
}

/// Tells the watch of lines that are about to be written.
pub fn note(range: &Range<usize>) {
    WATCH.with_borrow_mut(|watch| {
        if let Some(watch) = watch {
            watch(range.clone());
        }
    });
}

const PAGES: usize = 1024;
const WORDS: usize = PAGE / 8;

/// A file, and the right to be the only test of this module that runs: files share what is known of large flushes by their numbers.
fn file() -> Option<(File, MutexGuard<'static, ()>)> {
    static ALONE: Mutex<()> = Mutex::new(());
    if let Err(why) = super::try_tracking() {
        crate::effort::skip(why);
        return None;
    }
    let file = tempfile::tempfile_in("/dev/shm")
        .inspect_err(|why| crate::effort::skip(format!("no file in /dev/shm: {why}")))
        .ok()?;
    file.set_len((PAGES * PAGE) as u64).unwrap();
    Some((file, ALONE.lock().unwrap_or_else(PoisonError::into_inner)))
}

fn map(file: &File) -> MapMut {
    // SAFETY: the file is the test's own; words are atomic.
    unsafe { MapOptions::new().mode(Mode::Direct).persist(Persist::CacheLines).map_mut(file) }.unwrap()
}

/// The words of a map, for threads.
fn words(map: &MapMut) -> &'static [AtomicU64] {
    // SAFETY: whole pages; the map outlives the threads of the test.
    unsafe { std::slice::from_raw_parts(map.as_ptr().cast(), PAGES * WORDS) }
}

/// Makes this thread's flushes copy the lines that they write into a shadow, whichever of the maps these are in.
fn watch(maps: &[MapMut], shadow: &'static [AtomicU64]) {
    let maps: Vec<_> = maps.iter().map(|map| map.as_ptr() as usize).collect();
    let copy = move |range: Range<usize>| {
        let base = maps.iter().copied().find(|base| (*base..base + PAGES * PAGE).contains(&range.start)).unwrap();
        let words = (range.start - base) / 8..(range.end - base).div_ceil(8);
        // SAFETY: inside a map, which is words.
        let seen = unsafe { std::slice::from_raw_parts(base as *const AtomicU64, PAGES * WORDS) };
        for (lasts, now) in shadow[words.clone()].iter().zip(&seen[words]) {
            lasts.store(now.load(Ordering::Relaxed), Ordering::Relaxed);
        }
    };
    WATCH.set(Some(Box::new(copy)));
}

fn shadow() -> &'static [AtomicU64] {
    (0..PAGES * WORDS).map(|_| AtomicU64::new(0)).collect::<Vec<_>>().leak()
}

/// A generator of numbers (xorshift).
fn next(state: &mut u64) -> usize {
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    (*state >> 20) as usize
}

#[test]
fn what_was_stored_before_a_flush_lasts() {
    let Some((file, _alone)) = file() else { return };
    let maps = [map(&file), map(&file), map(&file)];
    let shadow = shadow();
    watch(&maps, shadow);
    let mut state = 88_172_645_463_325_252;
    let mut value = 0;
    // The bytes that the program sees. All maps have the same.
    let seen = words(&maps[0]);
    for _ in 0..2000 {
        for _ in 0..next(&mut state) % 20 {
            value += 1;
            let word = next(&mut state) % (PAGES * WORDS);
            words(&maps[next(&mut state) % 3])[word].store(value, Ordering::Relaxed);
        }
        let start = next(&mut state) % (PAGES * PAGE);
        let len = (next(&mut state) % (if next(&mut state).is_multiple_of(2) { 64 << 10 } else { PAGES * PAGE }))
            .min(PAGES * PAGE - start);
        maps[next(&mut state) % 3].flush_range(start, len).unwrap();
        let flushed = start.div_ceil(8)..(start + len) / 8;
        for word in flushed {
            assert_eq!(shadow[word].load(Ordering::Relaxed), seen[word].load(Ordering::Relaxed), "word {word}");
        }
    }
}

/// Faults that this thread has taken.
fn faults() -> i64 {
    // SAFETY: plain numbers, which the call fills.
    unsafe {
        let mut usage: libc::rusage = std::mem::zeroed();
        assert_eq!(libc::getrusage(libc::RUSAGE_THREAD, &mut usage), 0);
        usage.ru_minflt
    }
}

#[test]
fn stores_to_all_pages_trap_in_few_rounds_and_all_last() {
    let Some((file, _alone)) = file() else { return };
    let maps = [map(&file), map(&file)];
    let (shadow, seen) = (shadow(), words(&maps[0]));
    watch(&maps, shadow);
    let mut rounds_that_trap = 0;
    for round in 1..=200 {
        let before = faults();
        // The stores come through both mappings.
        (0..PAGES).for_each(|page| words(&maps[page % 2])[page * WORDS].store(round, Ordering::Relaxed));
        rounds_that_trap += i64::from(faults() - before > PAGES as i64 / 2);
        maps[0].flush().unwrap();
        let differs = |word: &usize| shadow[*word].load(Ordering::Relaxed) != seen[*word].load(Ordering::Relaxed);
        assert_eq!((0..PAGES * WORDS).find(differs), None, "round {round}");
    }
    assert!(rounds_that_trap <= 40, "stores trap in {rounds_that_trap} of 200 rounds");
    // A few stores in a round, from here on: flushes write little again.
    let written = |map: &MapMut| {
        let before = map.flushed_bytes();
        words(map)[7].store(1, Ordering::Relaxed);
        map.flush().unwrap();
        map.flushed_bytes() - before
    };
    let small = (0..70).map(|_| written(&maps[0])).filter(|bytes| *bytes < 1 << 20).count();
    assert!(small >= 2, "{small} of 70 flushes write less than all");
    assert!((0..10).all(|_| written(&maps[0]) < 1 << 20));
}

/// Each round has few stores. So a store that a flush misses is the last to its page, and nothing makes the page dirty again before the end
/// of the round, when all stores must last.
#[test]
fn no_store_is_missed_by_flushes_at_the_same_time() {
    const ROUNDS: usize = 200;
    const WRITERS: usize = 3;
    let Some((file, _alone)) = file() else { return };
    let maps = [map(&file), map(&file)];
    let (shadow, seen) = (shadow(), words(&maps[0]));
    let barrier = Barrier::new(WRITERS + 2);
    let missed = Mutex::new(Vec::new());
    std::thread::scope(|scope| {
        for writer in 0..WRITERS {
            let (barrier, words) = (&barrier, words(&maps[writer % 2]));
            scope.spawn(move || {
                let mut state = 77 + writer as u64;
                for round in 1..=ROUNDS as u64 {
                    barrier.wait();
                    for _ in 0..200 {
                        // Each writer has words of its own, on pages that all share.
                        let word = next(&mut state) % (PAGES * WORDS / 4) * 4 + writer;
                        words[word].store(round, Ordering::Relaxed);
                        (0..next(&mut state) % 2000).for_each(|_| std::hint::spin_loop());
                    }
                    barrier.wait();
                }
            });
        }
        for flusher in 0..2 {
            let (barrier, maps, missed) = (&barrier, &maps, &missed);
            scope.spawn(move || {
                watch(maps, shadow);
                for round in 0..ROUNDS {
                    barrier.wait();
                    for part in 0..4 {
                        maps[flusher]
                            .flush_range(part * PAGES / 4 * PAGE, PAGES / 2 * PAGE * usize::from(part < 3))
                            .unwrap();
                        maps[flusher].flush().unwrap();
                    }
                    barrier.wait();
                    if flusher == 0 {
                        maps[1].flush().unwrap();
                        let differs =
                            |word: &usize| shadow[*word].load(Ordering::Relaxed) != seen[*word].load(Ordering::Relaxed);
                        let stale: Vec<_> = (0..PAGES * WORDS).filter(differs).take(10).collect();
                        // No assertion here: the others wait for this thread, so it has to go on.
                        missed.lock().unwrap().extend(stale.into_iter().map(|word| (round, word)));
                    }
                }
            });
        }
    });
    let missed = missed.into_inner().unwrap();
    assert!(missed.is_empty(), "rounds, and words that do not last: {:?}", &missed[..missed.len().min(20)]);
}
