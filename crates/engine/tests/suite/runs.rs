//! Neighbouring pages that are read together: rows whose length is learnt, and a file that fits into the cache.

use crate::common::*;
use fastmap::{Advice, Cache, Map, MapMut, Stats};
use std::thread;

const FRAMES: usize = 1024;
const PAGES: usize = 8192;

/// A page must hold its stamp.
fn check(map: &[u8], page: usize) {
    let at = page * PAGE + page % 512 * 8;
    assert!(map[at..at + 8] == stamp(page)[page % 512 * 8..][..8], "page {page}");
}

/// Reads a row of pages.
fn read_row(map: &[u8], row: std::ops::Range<usize>) {
    row.for_each(|page| check(map, page));
}

/// Pages that were read with a missed one: by the thread that missed it, or, of a file whose first reads waited for a processor and which is taken
/// to be far away, by readers.
fn together(stats: &Stats) -> u64 {
    stats.run_pages + stats.prefetched_pages
}

/// Rows of so many pages, far apart, in random order.
fn rows(map: &Map, random: &mut Random, count: usize, pages: usize) {
    for _ in 0..count {
        let first = random.below(PAGES / 64) * 64 + random.below(64 - pages);
        read_row(map, first..first + pages);
    }
}

#[test]
fn rows_are_read_at_once() {
    if !ready() {
        return;
    }
    let folder = folder();
    let file = stamped(&folder.path().join("file"), PAGES);
    let mut random = Random::new(seed(1));
    for pages in [2, 5, 16] {
        let cache = Cache::new(FRAMES * PAGE).unwrap();
        let map = map(&cache, &file);
        rows(&map, &mut random, 1500, pages);
        let before = settle(&cache);
        rows(&map, &mut random, 500, pages);
        let after = settle(&cache);
        println!("{pages}: {before:?} {after:?}");
        let traps = (after.misses + after.ahead_chunks) - (before.misses + before.ahead_chunks);
        // Rows that lap over one in memory are shorter; where the page cache has all, 16 pages are cheaper read in two parts for that.
        assert!(
            traps < if pages < 16 { 500 + 500 * 3 / 4 } else { 500 * 9 / 4 },
            "{pages}: {traps} traps for 500 rows"
        );
        assert!(together(&after) - together(&before) > 500 * (pages as u64 - 1) / 3, "{pages}: {after:?}");
        assert!(after.resident_pages <= FRAMES as u64);
    }
}

#[test]
fn single_pages_are_read_alone_and_so_is_what_is_known_to_be_at_random() {
    if !ready() {
        return;
    }
    let folder = folder();
    let file = stamped(&folder.path().join("file"), PAGES);
    let cache = Cache::new(FRAMES * PAGE).unwrap();
    let map = map(&cache, &file);
    let mut random = Random::new(seed(2));
    rows(&map, &mut random, 5000, 1);
    assert_eq!(together(&settle(&cache)), 0);
    map.advise(Advice::Random).unwrap();
    rows(&map, &mut random, 1000, 5);
    assert_eq!(together(&settle(&cache)), 0);
    map.advise(Advice::Normal).unwrap();
    rows(&map, &mut random, 1000, 5);
    assert!(together(&settle(&cache)) > 1000);
    // It goes back to single pages when rows are over.
    rows(&map, &mut random, 10_000, 1);
    let before = settle(&cache);
    rows(&map, &mut random, 1000, 1);
    assert_eq!(together(&settle(&cache)), together(&before));
}

/// At the end of the file, of the map, and where a page is there already.
#[test]
fn rows_end_where_the_file_and_the_map_end() {
    if !ready() {
        return;
    }
    let folder = folder();
    let file = stamped(&folder.path().join("file"), PAGES);
    file.set_len((PAGES * PAGE - 1000) as u64).unwrap();
    let cache = Cache::new(FRAMES * PAGE).unwrap();
    let whole = map(&cache, &file);
    let mut random = Random::new(seed(3));
    rows(&whole, &mut random, 1000, 8);
    for first in PAGES - 12..PAGES {
        whole.advise(Advice::DontNeed).unwrap();
        read_row(&whole, first..PAGES - 1);
        let tail = (PAGES - 1) * PAGE;
        assert!(whole[tail..] == stamp(PAGES - 1)[..PAGE - 1000]);
    }
    drop(whole);
    // SAFETY: nobody else changes the file.
    let part = unsafe { options(&cache).len(100 * PAGE).map(&file) }.unwrap();
    for _ in 0..200 {
        part.advise(Advice::DontNeed).unwrap();
        let first = random.below(96);
        read_row(&part, first..first + 4);
    }
}

/// Rows that are stored to and flushed, by threads that take each other's pages away.
#[test]
fn rows_of_many_threads_in_a_small_cache() {
    if !ready() {
        return;
    }
    let folder = folder();
    let path = folder.path().join("file");
    const THREADS: usize = 8;
    const ROW: usize = 4;
    let file = create(&path, &vec![0; PAGES * PAGE]);
    let cache = Cache::new(256 * PAGE).unwrap();
    let mut map: MapMut = map_mut(&cache, &file);
    let base = map.as_mut_ptr() as usize;
    let word = |page: usize| (base + page * PAGE + page % 500 * 8) as *mut u64;
    let seed = seed(4);
    thread::scope(|scope| {
        for thread in 0..THREADS {
            scope.spawn(move || {
                let mut random = Random::new(seed + thread as u64);
                let mut shadow = vec![0u64; PAGES / ROW / THREADS];
                for round in 1..=1500 {
                    let own = random.below(shadow.len());
                    let first = (own * THREADS + thread) * ROW;
                    for page in first..first + ROW {
                        // SAFETY: rows of this thread's, inside the map.
                        let there = unsafe { word(page).read_volatile() };
                        assert_eq!(there, shadow[own], "page {page}");
                        if round % 2 == 0 {
                            // SAFETY: likewise.
                            unsafe { word(page).write_volatile(round) };
                        }
                    }
                    if round % 2 == 0 {
                        shadow[own] = round;
                    }
                }
            });
        }
    });
    let stats = settle(&cache);
    assert!(together(&stats) > 1000 && stats.resident_pages <= 256, "{stats:?}");
    // SAFETY: inside the map.
    let before: Vec<u64> = (0..PAGES).map(|page| unsafe { word(page).read_volatile() }).collect();
    map.flush().unwrap();
    drop(map);
    let bytes = std::fs::read(&path).unwrap();
    for (page, before) in before.into_iter().enumerate() {
        let at = page * PAGE + page % 500 * 8;
        assert_eq!(u64::from_ne_bytes(bytes[at..at + 8].try_into().unwrap()), before, "page {page}");
    }
}

/// A file that fits is read whole when misses have taken as long as that, and one that does not is not.
#[test]
fn a_file_that_fits_is_read_whole() {
    if !ready() {
        return;
    }
    let folder = folder();
    let file = stamped(&folder.path().join("file"), PAGES);
    let mut random = Random::new(seed(5));
    for (frames, fits) in [(2 * PAGES, true), (PAGES / 2, false)] {
        let cache = Cache::new(frames * PAGE).unwrap();
        let map = map(&cache, &file);
        let mut touches = 0;
        while touches < 4000 && cache.stats().filled_pages == 0 {
            rows(&map, &mut random, 1, 1);
            touches += 1;
        }
        // Of what the page cache has most is left to another thread.
        let stats = settle(&cache);
        println!("{frames}: {touches} {stats:?}");
        assert_eq!(touches < 4000, fits, "{stats:?}");
        assert_eq!(stats.filled_pages > PAGES as u64 / 2, fits, "{stats:?}");
        (0..PAGES).for_each(|page| read_row(&map, page..page + 1));
    }
}

/// But for what the program said it reads at random.
#[test]
fn what_is_read_at_random_is_not_read_with_the_rest() {
    if !ready() {
        return;
    }
    let folder = folder();
    let file = stamped(&folder.path().join("file"), PAGES);
    let mut random = Random::new(seed(7));
    let cache = Cache::new(2 * PAGES * PAGE).unwrap();
    let map = map(&cache, &file);
    map.advise_range(Advice::Random, PAGES / 2 * PAGE, PAGES / 2 * PAGE).unwrap();
    let mut touch = || {
        let page = random.below(PAGES / 2);
        read_row(&map, page..page + 1);
    };
    until("the rest is read", || {
        touch();
        settle(&cache).filled_pages > PAGES as u64 / 4
    });
    let stats = settle(&cache);
    assert!(stats.resident_pages <= PAGES as u64 / 2, "{stats:?}");
}

/// A cache that others have most of is not taken from them for that.
#[test]
fn what_fits_is_not_read_where_there_is_no_room() {
    if !ready() {
        return;
    }
    let folder = folder();
    let (file, other) = (stamped(&folder.path().join("file"), PAGES), stamped(&folder.path().join("other"), PAGES));
    let cache = Cache::new((PAGES + PAGES / 8) * PAGE).unwrap();
    let others = map(&cache, &other);
    (0..PAGES).for_each(|page| read_row(&others, page..page + 1));
    let before = settle(&cache);
    let map = map(&cache, &file);
    let mut random = Random::new(seed(6));
    rows(&map, &mut random, 1000, 1);
    let after = settle(&cache);
    assert_eq!(after.filled_pages, before.filled_pages, "{after:?}");
}

/// Of 256 pages: more than one request, and across the borders of the region's stripes.
#[test]
fn long_rows_are_read_at_once() {
    if !ready() {
        return;
    }
    const ROW: usize = 256;
    let folder = folder();
    // A file whose first reads wait for a processor is taken to be far away, and read in other ways (`prefetched_pages`).
    for attempt in 0..10 {
        let file = stamped(&folder.path().join(format!("file{attempt}")), 4 * PAGES);
        let cache = Cache::new(2 * PAGES * PAGE).unwrap();
        let map = map(&cache, &file);
        let mut random = Random::new(seed(7));
        let mut rows = |count: usize| {
            for _ in 0..count {
                map.advise(Advice::DontNeed).unwrap();
                // Half a row beside the borders.
                let first = random.below(4 * PAGES / ROW - 1) * ROW + ROW / 2;
                // A page that no reader has begun to read would be missed, and look like a row of its own.
                at_leisure(&cache, first..first + ROW, |page| check(&map, page));
            }
        };
        assert_eq!(cache.stats().read_size, PAGE as u64);
        rows(1000);
        let before = settle(&cache);
        if before.prefetched_pages > 0 {
            continue;
        }
        assert_eq!(before.read_size, (ROW * PAGE) as u64, "{before:?}");
        rows(200);
        let after = settle(&cache);
        let traps = (after.misses + after.ahead_chunks) - (before.misses + before.ahead_chunks);
        // One in four is read in halves.
        assert!((200..300).contains(&traps), "{traps} traps: {after:?}");
        let (read, used) = (after.run_pages - before.run_pages, after.run_used - before.run_used);
        assert!(read > 200 * (ROW as u64 - 4) && used <= read && used > read * 9 / 10, "{used} of {read}: {after:?}");
        drop(map);
        assert_eq!(cache.stats().read_size, 0);
        return;
    }
    panic!("ten files whose first reads took long");
}
