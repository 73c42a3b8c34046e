//! Prefetching: absurd ranges, back-pressure, waiting, lookahead, and several threads that want different things.

#![expect(clippy::single_range_in_vec_init)] // one range is a list of ranges here

use crate::common::*;
use fastmap::{Advice, Cache, Error, Map};
use std::fs::File;
use std::ops::Range;

const PAGES: usize = 6000;

struct World {
    _folder: tempfile::TempDir,
    file: File,
    cache: Cache,
    map: Map,
}

/// A stamped file and a map of it in a cache of so many pages. Nothing is read ahead but what is asked for.
fn world(capacity: usize) -> Option<World> {
    if !ready() {
        return None;
    }
    let folder = folder();
    let file = stamped(&folder.path().join("file"), PAGES);
    let cache = Cache::new(capacity * PAGE).unwrap();
    let map = map(&cache, &file);
    map.set_readahead(0).unwrap();
    Some(World { _folder: folder, file, cache, map })
}

fn check(map: &[u8], page: usize) {
    assert!(map[page * PAGE..][..PAGE] == *stamp(page), "page {page}");
}

fn pages(range: Range<usize>) -> Range<usize> {
    range.start * PAGE..range.end * PAGE
}

#[test]
fn ranges_outside_the_map_are_refused_and_nothing_is_read() {
    let Some(World { cache, map, .. }) = world(1024) else { return };
    let len = map.len();
    #[expect(clippy::reversed_empty_ranges)]
    let absurd = [len..len + 1, 0..len + 1, usize::MAX - 1..usize::MAX, 0..usize::MAX, len + 1..len + 1, 10..5, len..0];
    for range in absurd {
        for ranges in [vec![range.clone()], vec![0..PAGE, range.clone(), 0..PAGE]] {
            let reversed = range.start > range.end && range.start <= len;
            for result in [map.prefetch(&ranges).map(drop), map.prefetch_wait(&ranges)] {
                // A range that ends before it begins is empty, as for slices' iterators, or it is refused.
                assert!(
                    matches!(result, Err(Error::RangeOutside { .. })) || reversed && result.is_ok(),
                    "{ranges:?}: {result:?}"
                );
            }
        }
    }
    let stats = settle(&cache);
    assert!(stats.prefetched_pages + stats.misses <= 1, "{stats:?}");
    assert!(map[..100 * PAGE] == (0..100).flat_map(stamp).copied().collect::<Vec<_>>()[..]);
}

#[test]
fn ranges_that_are_no_work() {
    let Some(World { cache, map, .. }) = world(1024) else { return };
    let len = map.len();
    assert_eq!(map.prefetch(&[]).unwrap(), 0);
    map.prefetch_wait(&[]).unwrap();
    let empty = [0..0, len..len, 5..5, PAGE..PAGE];
    assert_eq!(map.prefetch(&empty).unwrap(), 4);
    map.prefetch_wait(&empty).unwrap();
    assert_eq!(map.prefetch(&vec![7..7; 1_000_000]).unwrap(), 1_000_000);
    let stats = settle(&cache);
    assert_eq!((stats.prefetched_pages, stats.misses), (0, 0), "{stats:?}");
}

/// One page a million times, overlapping ranges, each byte a range: everything is read once.
#[test]
fn a_million_ranges_and_ranges_over_each_other() {
    let Some(World { cache, map, .. }) = world(4096) else { return };
    let million: Vec<_> = (0..1_000_000).map(|index| index..index + 1).collect();
    map.prefetch_wait(&million).unwrap();
    let wanted = 1_000_000usize.div_ceil(PAGE) as u64;
    let stats = settle(&cache);
    assert_eq!(stats.misses + stats.prefetched_pages, wanted, "{stats:?}");
    let over: Vec<_> = (0..500).map(|index| pages(1000 + index % 7..1000 + index % 7 + 200)).collect();
    map.prefetch_wait(&over).unwrap();
    let stats = settle(&cache);
    assert_eq!(stats.misses + stats.prefetched_pages, wanted + 206, "{stats:?}");
    (0..wanted as usize).chain(1000..1206).for_each(|page| check(&map, page));
    assert_eq!(cache.stats().misses, stats.misses);
}

/// A queue takes an eighth of the cache, and in order. What it does not take it takes later.
#[test]
fn more_than_the_queue_takes() {
    let Some(World { _folder, file, cache, map }) = world(2048) else { return };
    // Reads that end later, and that nobody waits for.
    uncache(&file);
    let ranges: Vec<_> = (0..1500).map(|index| pages(index * 4..index * 4 + 1)).collect();
    let mut rest = &ranges[..];
    let mut rounds = 0;
    while !rest.is_empty() {
        let taken = map.prefetch(rest).unwrap();
        assert!(taken <= 256, "{taken} of {}", rest.len());
        rest = &rest[taken..];
        rounds += 1;
        let stats = cache.stats();
        assert!(stats.resident_pages <= 2048, "{stats:?}");
        std::thread::yield_now();
    }
    assert!(rounds >= 1500 / 256);
    let stats = settle(&cache);
    assert_eq!((stats.prefetched_pages, stats.misses), (1500, 0), "{stats:?}");
    (0..1500).for_each(|index| check(&map, index * 4));
    assert_eq!(cache.stats().misses, 0);
}

#[test]
fn a_range_longer_than_the_queue_and_the_cache() {
    let Some(World { cache, map, .. }) = world(1024) else { return };
    assert_eq!(map.prefetch(&[0..map.len()]).unwrap(), 1);
    await_prefetch(&cache);
    let stats = settle(&cache);
    assert!((1..=1024).contains(&stats.prefetched_pages) && stats.resident_pages <= 1024, "{stats:?}");
    // All of it was in memory once.
    map.prefetch_wait(&[0..map.len(), 0..map.len()]).unwrap();
    let stats = settle(&cache);
    assert!(stats.misses + stats.prefetched_pages >= 2 * PAGES as u64 - 1024, "{stats:?}");
    assert!(stats.resident_pages <= 1024, "{stats:?}");
    (0..PAGES).for_each(|page| check(&map, page));
}

#[test]
fn what_was_waited_for_is_there() {
    for capacity in [256, 1024, 4096] {
        let Some(World { cache, map, .. }) = world(capacity) else { return };
        let mut random = Random::new(seed(3));
        for _ in 0..20 {
            // Half of the cache, in ranges of any size.
            let mut ranges = Vec::new();
            let mut wanted = 0;
            while wanted < capacity / 2 {
                let len = 1 + random.below(24);
                let start = random.below(PAGES - len);
                ranges.push(start * PAGE + random.below(PAGE)..(start + len) * PAGE);
                wanted += len;
            }
            map.prefetch_wait(&ranges).unwrap();
            let before = cache.stats();
            assert!(before.resident_pages as usize <= capacity);
            for range in &ranges {
                (range.start / PAGE..range.end / PAGE).for_each(|page| check(&map, page));
            }
            let after = cache.stats();
            assert_eq!(after.misses, before.misses, "{ranges:?}: {before:?}, then {after:?}");
        }
    }
}

#[test]
fn a_file_that_was_cut_is_an_error_to_who_waits() {
    let Some(World { file, cache, map, .. }) = world(2048) else { return };
    file.set_len((1000 * PAGE + 10) as u64).unwrap();
    map.prefetch_wait(&[pages(900..1000), 1000 * PAGE..1001 * PAGE]).unwrap();
    for range in [pages(1001..1002), pages(990..1100), pages(5000..5001), 0..map.len()] {
        let result = map.prefetch_wait(std::slice::from_ref(&range));
        assert!(matches!(result, Err(Error::PastEnd { .. })), "{range:?}: {result:?}");
        // Who does not wait is told by whoever touches it.
        map.prefetch(&[range]).unwrap();
    }
    settle(&cache);
    let mut byte = [0];
    assert!(matches!(map.read_at(&mut byte, 1001 * PAGE), Err(Error::PastEnd { .. })));
    (0..1000).for_each(|page| check(&map, page));
    file.set_len((PAGES * PAGE) as u64).unwrap();
    map.prefetch_wait(&[0..map.len()]).unwrap();
    assert!(map[1000 * PAGE + 10..].iter().all(|byte| *byte == 0));
}

/// The accesses come back as they were, whatever they are.
#[test]
fn lookahead_hands_every_access_on_in_order() {
    let Some(World { cache, map, .. }) = world(1024) else { return };
    let mut random = Random::new(seed(4));
    let len = map.len();
    #[expect(clippy::reversed_empty_ranges)]
    let odd = [len..len + 1, 0..usize::MAX, 10..5, 7..7, len + 5..len + 5, usize::MAX..usize::MAX, 0..len];
    let accesses: Vec<Range<usize>> = (0..3000)
        .map(|index| {
            if index % 13 == 0 {
                return odd[random.below(odd.len())].clone();
            }
            let start = random.below(len - 5000);
            start..start + 1 + random.below(5000)
        })
        .collect();
    for depth in [0, 1, 2, 3, 17, 64, 1000, 10_000] {
        let mut seen = Vec::new();
        let mut lookahead = map.lookahead(depth, accesses.iter().cloned());
        assert_eq!(lookahead.size_hint(), (3000, Some(3000)));
        while let Some(access) = lookahead.next() {
            if access.end <= len && access.len() <= 5000 && !access.is_empty() {
                check(&map, access.start / PAGE);
            }
            seen.push(access);
            assert_eq!(lookahead.size_hint(), (3000 - seen.len(), Some(3000 - seen.len())));
        }
        assert!(lookahead.next().is_none());
        assert!(seen == accesses, "depth {depth}");
        assert!(cache.stats().resident_pages <= 1024);
    }
    assert!(cache.stats().prefetched_pages > 1000);
    // One that ends early, and one that never does.
    assert_eq!(map.lookahead(64, accesses.iter().cloned()).take(5).count(), 5);
    assert_eq!(map.lookahead(64, std::iter::repeat(0..10)).take(5000).count(), 5000);
}

#[test]
fn nothing_to_prefetch_in_an_empty_map() {
    if !ready() {
        return;
    }
    let folder = folder();
    let cache = Cache::new(1 << 20).unwrap();
    let map = map(&cache, &create(&folder.path().join("file"), &[]));
    assert_eq!(map.prefetch(&[0..0]).unwrap(), 1);
    map.prefetch_wait(&[0..0]).unwrap();
    assert!(matches!(map.prefetch(&[0..1]), Err(Error::RangeOutside { .. })));
    assert_eq!(map.lookahead(3, [0..1, 5..6]).count(), 2);
}

/// Threads that prefetch, wait, touch, walk and put out the same pages at the same time.
#[test]
fn threads_that_want_different_things() {
    for capacity in [256, 600, 1024] {
        let Some(World { cache, map, .. }) = world(capacity) else { return };
        map.set_readahead(8 << 20).unwrap();
        std::thread::scope(|scope| {
            for thread in 0..4 {
                let (map, cache) = (&map, &cache);
                scope.spawn(move || {
                    let mut random = Random::new(seed(5) * 10 + thread);
                    for _ in 0..quick_or_full(200, 600) {
                        let len = 1 + random.below(40);
                        let start = random.below(PAGES - len);
                        let range = pages(start..start + len);
                        match random.below(6) {
                            0 => drop(map.prefetch(&[range.clone(), range.clone()]).unwrap()),
                            1 => map.prefetch_wait(std::slice::from_ref(&range)).unwrap(),
                            2 => map.advise_range(Advice::DontNeed, range.start, range.len()).unwrap(),
                            3 => map.advise_range(Advice::WillNeed, range.start, range.len()).unwrap(),
                            4 => (start..start + len).rev().for_each(|page| check(map, page)),
                            _ => {}
                        }
                        (start..start + len).for_each(|page| check(map, page));
                        let stats = cache.stats();
                        assert!(stats.resident_pages as usize <= capacity, "{stats:?}");
                    }
                });
            }
        });
        println!("{:?}", cache.stats());
        drop(map);
        assert_eq!(cache.stats().resident_pages, 0);
    }
}

/// A map that goes while what it asked for is on its way, and its cache with it.
#[test]
fn maps_that_go_with_much_asked_for() {
    let Some(World { file, .. }) = world(1024) else { return };
    for round in 0..100 {
        let cache = Cache::new((1 + round % 4) << 20).unwrap();
        let map = map(&cache, &file);
        map.prefetch(&[0..map.len()]).unwrap();
        if round % 3 == 0 {
            check(&map, 100);
        }
        drop(map);
        assert_eq!(cache.stats().resident_pages, 0, "{:?}", cache.stats());
    }
}

/// Nobody is there to serve what is on its way: whoever needs it gone sees to it.
#[test]
fn what_is_on_its_way_is_given_up_for_whoever_needs_it_gone() {
    let Some(World { _folder, file, cache, map }) = world(1024) else { return };
    drop(map);
    for round in 0..quick_or_full(40, 400) {
        uncache(&file);
        let mut mapped = map_mut(&cache, &file);
        let first = round * 7 % 1000;
        mapped.prefetch(&[pages(first..first + 300), pages(3000..3100)]).unwrap();
        match round % 4 {
            0 => mapped.advise_range(Advice::DontNeed, first * PAGE, 300 * PAGE).unwrap(),
            1 => {
                cache.resize(16 * PAGE).unwrap();
                cache.resize(1024 * PAGE).unwrap();
            }
            2 => mapped.flush().unwrap(),
            _ => continue,
        }
        check(&mapped, first + round % 300);
        mapped[3000 * PAGE + 8] = 1;
        mapped[3000 * PAGE + 8] = stamp(3000)[8];
        check(&mapped, 3099);
    }
    assert_eq!((cache.stats().resident_pages, cache.is_reading_ahead()), (0, false));
}

/// A system call of Linux AIO is refused before the cache is made, or once it is at work: what is asked for comes all the same.
fn refused(call: libc::c_long, from_the_beginning: bool) {
    let folder = folder();
    let file = stamped(&folder.path().join("file"), PAGES);
    if from_the_beginning {
        refuse_call(call);
    }
    let cache = Cache::new(1024 * PAGE).unwrap();
    let map = map(&cache, &file);
    if !from_the_beginning {
        map.prefetch_wait(&[pages(5000..5100)]).unwrap();
        refuse_call(call);
    }
    uncache(&file);
    map.prefetch(&[pages(0..200)]).unwrap();
    (0..200).for_each(|page| check(&map, page));
    // Out of the walk's reach.
    map.prefetch_wait(&[pages(3000..3200)]).unwrap();
    let before = cache.stats();
    (3000..3200).for_each(|page| check(&map, page));
    assert_eq!(cache.stats().misses, before.misses);
    (200..PAGES).for_each(|page| check(&map, page));
    (0..PAGES / 16).rev().for_each(|page| check(&map, page * 16));
    let stats = settle(&cache);
    assert!(stats.prefetched_pages > 0 && stats.ahead_used > 3000, "{stats:?}");
}

macro_rules! refused {
    ($($name:ident: $call:ident, $from_the_beginning:expr;)*) => { $(
        #[test]
        fn $name() {
            alone!();
            refused(libc::$call, $from_the_beginning);
        }
    )* };
}

refused! {
    without_contexts_threads_read: SYS_io_setup, true;
    what_is_not_submitted_is_read_by_pread: SYS_io_submit, false;
    who_may_not_wait_in_the_kernel_looks_again: SYS_io_getevents, false;
}

#[test]
fn doctor_knows_whether_reads_can_be_asked_for() {
    alone!();
    let look = || fastmap::requirements::of_machine().into_iter().find(|one| one.name == "Linux AIO").unwrap();
    let before = look();
    assert!(before.optional && before.found.is_ok(), "{before:?}");
    refuse_call(libc::SYS_io_setup);
    let after = look();
    assert!(after.found.unwrap_err().contains("threads read"), "{}", after.remedy);
    assert!(after.remedy.contains("fs.aio-max-nr") && after.remedy.contains("io_setup"));
}
