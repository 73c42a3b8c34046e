//! First stores after a flush, in groups: fewer traps, no store lost, and little written that nobody stored to.

use crate::common::*;
use fastmap::{Cache, MapMut};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// Large enough for everything, and nothing is written but by a flush.
fn roomy() -> Cache {
    Cache::builder().capacity(64 << 20).high_water(95).dirty_expire(None).build().unwrap()
}

fn shuffled(count: usize, random: &mut Random) -> Vec<usize> {
    let mut pages: Vec<usize> = (0..count).collect();
    (1..count).rev().for_each(|last| pages.swap(last, random.below(last + 1)));
    pages
}

/// Stores to pages, flushes, and says how many of them trapped and how many were written.
fn update(cache: &Cache, map: &mut MapMut, pages: &[usize], value: u8) -> (u64, u64) {
    let before = cache.stats();
    pages.iter().for_each(|page| map[page * PAGE] = value);
    map.flush().unwrap();
    let after = cache.stats();
    (after.upgrades - before.upgrades, after.writeback_pages - before.writeback_pages)
}

#[test]
fn one_trap_for_many_pages_that_were_flushed_together() {
    if !ready() {
        return;
    }
    let folder = folder();
    let path = folder.path().join("file");
    let file = create(&path, &vec![0; 2048 * PAGE]);
    let cache = roomy();
    let mut map = map_mut(&cache, &file);
    let mut random = Random::new(seed(21));
    update(&cache, &mut map, &shuffled(2048, &mut random), 1);
    // What was read ahead of the first stores was guessed about, too.
    let before = cache.stats().wrong_guesses;
    let traps: Vec<u64> = (2..6).map(|round| update(&cache, &mut map, &shuffled(2048, &mut random), round).0).collect();
    // Groups of 8 and 32 samples, then of 64.
    assert!((200..400).contains(&traps[0]), "{traps:?}");
    assert!(traps[1..].iter().all(|traps| (32..100).contains(traps)), "{traps:?}");
    assert_eq!(cache.stats().wrong_guesses, before);
    assert!(std::fs::read(&path).unwrap().chunks(PAGE).all(|page| page[0] == 5));
}

#[test]
fn sparse_updates_are_written_alone_once_that_is_learnt() {
    if !ready() {
        return;
    }
    for dense in [1, 3] {
        let folder = folder();
        let file = create(&folder.path().join("file"), &vec![0; 4096 * PAGE]);
        let cache = roomy();
        let mut map = map_mut(&cache, &file);
        let mut random = Random::new(seed(22));
        for round in 0..dense {
            update(&cache, &mut map, &shuffled(4096, &mut random), round);
        }
        let mut updates = |round| update(&cache, &mut map, &shuffled(4096, &mut random)[..200], round).1;
        let first = updates(100);
        assert!(first > 400, "{dense}: {first} pages are written, so no guess was made");
        assert!(dense > 1 || first < 8 * 200, "with groups of 8, {first} pages are written");
        let later: u64 = (101..111).map(&mut updates).sum();
        assert!((2000..2100).contains(&later), "{dense}: {later} pages are written for 2000");
    }
}

/// What a thread has stored is in the file after its flush, whoever made the page writable, and whoever else flushed meanwhile.
#[test]
fn no_store_to_a_group_is_lost_under_flushes() {
    if !ready() {
        return;
    }
    const PAGES: usize = 192;
    let folder = folder();
    let path = folder.path().join("file");
    let file = create(&path, &vec![0; PAGES * PAGE]);
    // In the second, pages leave memory and come back, too.
    for capacity in [4 << 20, 128 * PAGE] {
        let cache = Cache::builder().capacity(capacity).build().unwrap();
        let mut map = map_mut(&cache, &file);
        let base = map.as_mut_ptr() as usize;
        // SAFETY: inside the map, aligned; reached as atomics only.
        let word = |page: usize, thread: usize| unsafe { &*((base + page * PAGE + thread * 8) as *const AtomicU64) };
        let map = &map;
        let stop = &AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while !stop.load(Ordering::Relaxed) {
                    map.flush().unwrap();
                }
            });
            let stores = |thread: usize| {
                let mut random = Random::new(seed(23 + thread as u64));
                let mut file = DirectReader::open(&path);
                let mut stored: Vec<u64> = (0..PAGES).map(|page| word(page, thread).load(Ordering::Relaxed)).collect();
                for _ in 0..quick_or_full(60, 400) {
                    // All of them, so that groups go on, but in another order each time.
                    for page in shuffled(PAGES, &mut random) {
                        stored[page] += 1;
                        word(page, thread).store(stored[page], Ordering::Relaxed);
                    }
                    map.flush().unwrap();
                    for _ in 0..20 {
                        let page = random.below(PAGES);
                        assert_eq!(file.page(page)[thread], stored[page], "page {page}, thread {thread}");
                    }
                }
                stored
            };
            let threads: Vec<_> = (0..3).map(|thread| scope.spawn(move || stores(thread))).collect();
            let _stop = Stop(stop);
            for (thread, stored) in threads.into_iter().map(|thread| thread.join().unwrap()).enumerate() {
                let there: Vec<u64> = (0..PAGES).map(|page| word(page, thread).load(Ordering::Relaxed)).collect();
                assert_eq!(there, stored, "thread {thread}");
            }
        });
        let stats = cache.stats();
        println!("{stats:?}");
        assert!(capacity == 128 * PAGE || stats.guessed_stores > 0, "{stats:?}");
    }
}
