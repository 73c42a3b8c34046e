//! Write-back: who writes when, what is read and what is not, and that every store arrives.

use crate::common::*;
use fastmap::{Advice, Cache, Map, MapMut};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

// --- who writes when --------------------------------------------------------------------------------------------------

/// It is the writers', which go on for it.
#[test]
fn a_flush_ends_though_its_map_and_its_cache_are_gone() {
    if !ready() {
        return;
    }
    let folder = folder();
    let path = folder.path().join("file");
    let file = create(&path, &pattern(8 * PAGE));
    for round in 0..quick_or_full(200, 1000) {
        let cache = Cache::builder().capacity(Cache::MIN_CAPACITY).keeper(false).build().unwrap();
        let mut map = map_mut(&cache, &file);
        map[round % 8 * PAGE] = round as u8;
        let flush = map.flush_async();
        drop((map, cache));
        until("the flush ends", || flush.is_done());
        flush.wait().unwrap();
        assert_eq!(std::fs::read(&path).unwrap()[round % 8 * PAGE], round as u8);
    }
}

#[test]
fn what_has_been_dirty_for_long_is_written_without_being_asked_for() {
    if !ready() {
        return;
    }
    let folder = folder();
    let path = folder.path().join("file");
    let file = create(&path, &pattern(64 * PAGE));
    let cache = Cache::builder().capacity(1 << 20).dirty_expire(Some(Duration::from_millis(40))).build().unwrap();
    let mut map = map_mut(&cache, &file);
    for round in 0..3 {
        map[5 * PAGE + 7] = 100 + round;
        map[50 * PAGE] = 200 + round;
        until("two old pages are written", || {
            let bytes = std::fs::read(&path).unwrap();
            bytes[5 * PAGE + 7] == 100 + round && bytes[50 * PAGE] == 200 + round
        });
    }
    until("nothing is dirty", || cache.stats().dirty_pages == 0);
    assert_eq!(cache.stats().syncs, 0, "writing is not flushing");
}

#[test]
fn what_may_stay_dirty_stays_until_the_high_mark() {
    if !ready() {
        return;
    }
    let folder = folder();
    let file = create(&folder.path().join("file"), &pattern(512 * PAGE));
    let cache = Cache::builder().capacity(256 * PAGE).high_water(50).dirty_expire(None).build().unwrap();
    let mut map = map_mut(&cache, &file);
    // Pages read ahead of stores count as stored to: here each counts.
    map.set_readahead(0).unwrap();
    (0..100).for_each(|page| map[page * PAGE] = 1);
    // Another cache, with more than its mark, is written meanwhile.
    let other = Cache::builder().capacity(256 * PAGE).high_water(25).dirty_expire(None).build().unwrap();
    let mut its = map_mut(&other, &create(&folder.path().join("other"), &pattern(512 * PAGE)));
    (0..100).for_each(|page| its[page * PAGE] = 1);
    until("another cache is written", || other.stats().writeback_pages > 0);
    assert_eq!((cache.stats().dirty_pages, cache.stats().writeback_pages), (100, 0));
    (100..200).for_each(|page| map[page * PAGE] = 1);
    // The mark is at 128 and looked at every 16 pages; writing stops at two thirds of it.
    until("the writers bring the dirty pages down", || cache.stats().dirty_pages <= 128);
    // Counted when their writes end.
    until("64 pages are written", || cache.stats().writeback_pages >= 64);
}

#[test]
fn neighbours_are_written_together() {
    if !ready() {
        return;
    }
    let folder = folder();
    let file = create(&folder.path().join("file"), &vec![1; 1024 * PAGE]);
    let cache = Cache::new(8 << 20).unwrap();
    let mut map = map_mut(&cache, &file);
    let mut pages: Vec<usize> = (0..1024).collect();
    let mut random = Random::new(seed(3));
    (0..1024).for_each(|at| pages.swap(at, random.below(1024)));
    pages.iter().for_each(|page| map[page * PAGE + page % PAGE] = 2);
    map.flush().unwrap();
    let stats = cache.stats();
    // 1024 pages dirtied in any order are 4 MiB: four runs of the largest size.
    assert_eq!((stats.writeback_pages, stats.writeback_runs, stats.syncs), (1024, 4, 1));
    assert_eq!((stats.writeback_merge_ratio(), stats.writeback_bytes()), (256.0, 4 << 20));
    assert!(stats.writeback_queue_depth() >= 1.0, "{stats:?}");
    // Every other page: nothing to merge, and many writes under way at a time where io_uring works. Mapped anew: those between them
    // would become writable with them, since they were dirty with them before.
    drop(map);
    let mut map = map_mut(&cache, &file);
    // Pages read ahead of stores count as stored to.
    map.set_readahead(0).unwrap();
    (0..1024).step_by(2).for_each(|page| map[page * PAGE] = 3);
    map.flush().unwrap();
    let stats = cache.stats();
    assert_eq!((stats.writeback_pages, stats.writeback_runs, stats.syncs), (1536, 516, 2));
    drop(map);
    let bytes = std::fs::read(folder.path().join("file")).unwrap();
    for (page, bytes) in bytes.chunks(PAGE).enumerate() {
        let want = |at: usize| match at {
            0 if page % 2 == 0 => 3,
            at if at == page % PAGE => 2,
            _ => 1,
        };
        assert!(bytes.iter().enumerate().all(|(at, byte)| *byte == want(at)), "page {page}");
    }
}

#[test]
fn a_flush_writes_what_is_dirty_and_no_more() {
    if !ready() {
        return;
    }
    let folder = folder();
    let file = create(&folder.path().join("file"), &pattern(300 * PAGE));
    let cache = Cache::new(4 << 20).unwrap();
    let mut map = map_mut(&cache, &file);
    let sum: u64 = map.iter().map(|byte| u64::from(*byte)).sum();
    assert!(sum > 0);
    [3, 4, 200].iter().for_each(|page| map[page * PAGE] ^= 1);
    map.flush_range(4 * PAGE + 100, 1).unwrap();
    assert_eq!(cache.stats().writeback_pages, 1);
    map.flush().unwrap();
    map.flush().unwrap();
    assert_eq!(cache.stats().writeback_pages, 3);
}

#[test]
fn large_flushes_from_many_threads_at_once() {
    if !ready() {
        return;
    }
    let folder = folder();
    let path = folder.path().join("file");
    let pages = 6000;
    let file = sparse(&path, (pages * PAGE) as u64);
    let cache = Cache::builder().capacity(64 << 20).dirty_expire(None).build().unwrap();
    let mut map = map_mut(&cache, &file);
    let base = map.as_mut_ptr() as usize;
    // Each thread owns every fourth page, and what it stored is in the file after each of its flushes.
    std::thread::scope(|scope| {
        for thread in 0..4usize {
            let (map, path) = (&map, &path);
            scope.spawn(move || {
                let mut reader = DirectReader::open(path);
                for round in 1..6u64 {
                    for page in (thread..pages).step_by(4) {
                        // SAFETY: inside the map, this thread's page.
                        unsafe {
                            ((base + page * PAGE + 8 * thread) as *mut u64).write_volatile(round << 32 | page as u64)
                        };
                    }
                    match (round + thread as u64) % 3 {
                        0 => map.flush().unwrap(),
                        1 => map.flush_async().wait().unwrap(),
                        _ => map.flush_range(0, pages * PAGE).unwrap(),
                    }
                    for page in (thread..pages).step_by(40) {
                        assert_eq!(reader.page(page)[thread], round << 32 | page as u64, "page {page}");
                    }
                }
            });
        }
    });
}

#[test]
fn a_flush_under_way_outlives_its_map() {
    if !ready() {
        return;
    }
    let folder = folder();
    let path = folder.path().join("file");
    let file = create(&path, &vec![0; 600 * PAGE]);
    let cache = Cache::new(4 << 20).unwrap();
    for round in 1..20 {
        let mut map = map_mut(&cache, &file);
        (0..600).for_each(|page| map[page * PAGE] = round);
        let flush = map.flush_async();
        drop(map);
        flush.wait().unwrap();
        assert!(std::fs::read(&path).unwrap().chunks(PAGE).all(|page| page[0] == round));
    }
    let mut map = map_mut(&cache, &file);
    map[0] = 77;
    let flush = map.flush_async();
    until("it ends by itself", || flush.is_done());
    assert_eq!(std::fs::read(&path).unwrap()[0], 77);
    flush.wait().unwrap();
    map.unmap().unwrap();
}

// --- fewer traps ------------------------------------------------------------------------------------------------------

/// Loads a word of a page, then stores to it.
fn add_one(map: &mut MapMut, page: usize) {
    let word = map[page * PAGE..].as_mut_ptr().cast::<u64>();
    // SAFETY: inside the map, aligned.
    unsafe { word.write_volatile(word.read_volatile() + 1) };
}

#[test]
fn pages_soon_written_after_they_are_read_trap_once() {
    if !ready() {
        return;
    }
    let folder = folder();
    let path = folder.path().join("file");
    let file = create(&path, &vec![0; 4096 * PAGE]);
    let cache = Cache::builder().capacity(256 * PAGE).build().unwrap();
    let mut map = map_mut(&cache, &file);
    // Pages that chance has read ahead, mapped and not touched, would show as wrong guesses.
    map.set_readahead(0).unwrap();
    let mut random = Random::new(seed(5));
    let mut counts = vec![0u64; 4096];
    for _ in 0..20_000 {
        let page = random.below(4096);
        add_one(&mut map, page);
        counts[page] += 1;
    }
    let stats = cache.stats();
    println!("{stats:?}");
    // All but the controls, one page in 16, and the misses before the block had made up its mind.
    assert!(stats.guessed_stores > stats.misses * 7 / 10, "{stats:?}");
    assert!(stats.upgrades < stats.misses / 4, "{stats:?}");
    // None of these; but the first store after a write-back takes neighbours along that were dirty before.
    assert!(stats.wrong_guesses < stats.misses / 100, "{stats:?}");
    // The habit changes: reading alone. Guessing ends after some hundred pages, and what was wrong shows.
    for _ in 0..10_000 {
        let page = random.below(4096);
        assert_eq!(map[page * PAGE], counts[page] as u8);
    }
    let after = cache.stats();
    println!("{after:?}");
    let guesses = after.guessed_stores - stats.guessed_stores;
    assert!((1..1500).contains(&guesses), "{guesses} pages of 10000 read were installed writable");
    assert!(after.wrong_guesses >= 48, "{after:?}");
    drop(map);
    let bytes = std::fs::read(&path).unwrap();
    for (page, count) in counts.iter().enumerate() {
        assert_eq!(u64::from_le_bytes(bytes[page * PAGE..][..8].try_into().unwrap()), *count, "page {page}");
    }
}

#[test]
fn pages_only_read_are_not_guessed_about() {
    if !ready() {
        return;
    }
    let folder = folder();
    let file = create(&folder.path().join("file"), &pattern(1000 * PAGE));
    let cache = Cache::builder().capacity(64 * PAGE).build().unwrap();
    let map = map_mut(&cache, &file);
    let mut random = Random::new(seed(6));
    let sum: u64 = (0..5000).map(|_| u64::from(map[random.below(1000) * PAGE])).sum();
    assert!(sum > 0);
    let stats = cache.stats();
    assert_eq!((stats.guessed_stores, stats.wrong_guesses, stats.dirty_pages, stats.writeback_pages), (0, 0, 0, 0));
}

// --- born zero --------------------------------------------------------------------------------------------------------

#[test]
fn pages_in_holes_are_zero_until_stored_to_and_then_are_not() {
    if !ready() {
        return;
    }
    let folder = folder();
    let path = folder.path().join("file");
    const PAGES: usize = 9000; // two blocks of the bitmap and a bit
    let file = sparse(&path, (PAGES * PAGE) as u64 + 100);
    let mut model = vec![0u8; PAGES * PAGE + 100];
    // Data here and there, some of it less than a page.
    for (at, len) in [(10 * PAGE, 3 * PAGE), (100 * PAGE + 50, 7), (5000 * PAGE, 200 * PAGE), (PAGES * PAGE + 50, 50)] {
        model[at..at + len].fill(9);
        file.write_all_at(&model[at..at + len], at as u64).unwrap();
    }
    let cache = Cache::builder().capacity(64 * PAGE).build().unwrap();
    let mut map = map_mut(&cache, &file);
    let mut random = Random::new(seed(7));
    for step in 0..30_000 {
        // Near the data as often as far from it.
        let page = [random.below(PAGES), random.below(200), 4990 + random.below(220), PAGES][random.below(4)];
        let at = (page * PAGE + random.below(PAGE)).min(model.len() - 1);
        if step % 3 == 0 {
            map[at] = step as u8;
            model[at] = step as u8;
        } else {
            assert_eq!(map[at], model[at], "step {step}, byte {at}");
        }
        if step % 5000 == 4999 {
            map.advise(Advice::DontNeed).unwrap();
        }
    }
    let stats = cache.stats();
    println!("{stats:?}");
    assert!(stats.born_zero > 1000 && stats.born_zero < PAGES as u64 + 1, "{stats:?}");
    assert!(map[..] == model[..]);
    drop(map);
    assert!(std::fs::read(&path).unwrap() == model);
}

#[test]
fn a_file_filled_from_front_to_back_takes_few_traps() {
    if !ready() {
        return;
    }
    let folder = folder();
    let path = folder.path().join("file");
    const PAGES: usize = 20_000;
    let file = sparse(&path, (PAGES * PAGE) as u64);
    let cache = Cache::builder().capacity(16 << 20).build().unwrap();
    let mut map = map_mut(&cache, &file);
    for page in 0..PAGES {
        map[page * PAGE..][..PAGE].fill(page as u8 | 1);
    }
    map.flush().unwrap();
    let stats = cache.stats();
    println!("{stats:?}");
    assert_eq!(stats.born_zero, PAGES as u64, "no page is read");
    assert!(stats.misses < PAGES as u64 / 10, "{stats:?}");
    assert!(stats.writeback_merge_ratio() > 50.0, "{stats:?}");
    drop(map);
    let bytes = std::fs::read(&path).unwrap();
    assert_eq!(bytes.len(), PAGES * PAGE);
    assert!(bytes.chunks(PAGE).enumerate().all(|(page, bytes)| bytes.iter().all(|byte| *byte == page as u8 | 1)));
}

#[test]
fn filling_ahead_stops_at_data_at_the_end_and_within_the_cache() {
    if !ready() {
        return;
    }
    let folder = folder();
    let path = folder.path().join("file");
    let file = sparse(&path, 200 * PAGE as u64 + 10);
    file.write_all_at(&[5; PAGE], 100 * PAGE as u64).unwrap();
    let cache = Cache::new(Cache::MIN_CAPACITY).unwrap();
    let mut map = map_mut(&cache, &file);
    // Into the data, which keeps what is not stored to, and to the end.
    (0..=200).for_each(|page| map[page * PAGE] = 7);
    assert!(resident(addresses(&map)) <= cache.capacity());
    map.flush().unwrap();
    let bytes = std::fs::read(&path).unwrap();
    assert_eq!(bytes.len(), 200 * PAGE + 10);
    for (at, byte) in bytes.iter().enumerate() {
        let want = if at % PAGE == 0 { 7 } else { 5 * u8::from(at / PAGE == 100) };
        assert_eq!(*byte, want, "byte {at}");
    }
}

#[test]
fn a_program_that_stops_filling_leaves_the_rest_of_a_hole_alone() {
    if !ready() {
        return;
    }
    let folder = folder();
    let file = sparse(&folder.path().join("file"), 1000 * PAGE as u64);
    let cache = Cache::new(4 << 20).unwrap();
    let mut map = map_mut(&cache, &file);
    (0..100).for_each(|page| map[page * PAGE] = 7);
    map.unmap().unwrap();
    let blocks = file.metadata().unwrap().blocks() as usize * 512 / PAGE;
    // As many pages ahead as were filled, 64 at most; and the disk has room for four times as many, 1 MiB at most, beside what the
    // file system keeps of them.
    assert!((100..=260).contains(&blocks), "{blocks} pages on disk");
}

#[test]
fn threads_on_a_sparse_file_with_a_small_cache() {
    if !ready() {
        return;
    }
    let folder = folder();
    let path = folder.path().join("file");
    const PAGES: usize = 3000;
    let file = sparse(&path, (PAGES * PAGE) as u64);
    let cache = Cache::builder().capacity(64 * PAGE).build().unwrap();
    let mut map = map_mut(&cache, &file);
    let base = map.as_mut_ptr() as usize;
    let seed = seed(8);
    // A word of each page is a thread's own; they start together in the same block.
    let word = |page: usize, thread: usize| -> &AtomicU64 {
        // SAFETY: inside the map, aligned, alive as long as the scope below.
        unsafe { &*((base + page * PAGE + thread * 1000) as *const AtomicU64) }
    };
    let counts: Vec<Vec<u64>> = std::thread::scope(|scope| {
        let of_thread = |thread: usize| {
            move || {
                let mut random = Random::new(seed + thread as u64);
                let mut counts = vec![0; PAGES];
                let mut next = 0;
                for step in 0..8000 {
                    // Strides of stores, and single ones.
                    next = if step % 200 < 100 { (next + 1) % PAGES } else { random.below(PAGES) };
                    assert_eq!(word(next, thread).fetch_add(1, Ordering::Relaxed), counts[next], "page {next}");
                    counts[next] += 1;
                }
                counts
            }
        };
        let threads: Vec<_> = (0..4).map(|thread| scope.spawn(of_thread(thread))).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    map.flush().unwrap();
    drop(map);
    let bytes = std::fs::read(&path).unwrap();
    for (thread, counts) in counts.iter().enumerate() {
        for (page, count) in counts.iter().enumerate() {
            let at = page * PAGE + thread * 1000;
            assert_eq!(
                u64::from_le_bytes(bytes[at..at + 8].try_into().unwrap()),
                *count,
                "page {page}, thread {thread}"
            );
        }
    }
}

#[test]
fn reading_a_hole_writes_nothing_into_it() {
    for readahead in [0, 8 << 20] {
        reading_a_hole(readahead);
    }
}

fn reading_a_hole(readahead: usize) {
    if !ready() {
        return;
    }
    let folder = folder();
    let file = sparse(&folder.path().join("file"), 500 * PAGE as u64);
    let cache = Cache::new(4 << 20).unwrap();
    let mutable = map_mut(&cache, &file);
    mutable.set_readahead(readahead).unwrap();
    assert!(mutable.iter().all(|byte| *byte == 0));
    let born_zero = cache.stats().born_zero;
    // Pages read ahead are read like any.
    assert!(readahead > 0 || born_zero == 500);
    drop(mutable);
    assert_eq!(file.metadata().unwrap().blocks(), 0);
    // A map that others may write beside asks the file for each page.
    let map: Map = map(&cache, &file);
    map.set_readahead(readahead).unwrap();
    file.write_all_at(&[3], 77 * PAGE as u64).unwrap();
    assert!(map.iter().enumerate().all(|(at, byte)| *byte == 3 * u8::from(at == 77 * PAGE)));
    assert_eq!(cache.stats().born_zero, born_zero);
}
