//! Caches whose capacity changes while they are in use.

use crate::common::*;
use fastmap::{Advice, Cache, Error, MapMut};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};

const THREADS: usize = 4;

/// Loads and stores words of a map that one thread owns: every fourth, so that pages have several owners.
struct Owner {
    base: usize,
    thread: usize,
    /// What it stored last in each of its words.
    shadow: Vec<u64>,
    random: Random,
}

impl Owner {
    fn new(map: &mut MapMut, thread: usize, seed: u64) -> Self {
        let words = map.len() / 8 / THREADS;
        Owner {
            base: map.as_mut_ptr() as usize,
            thread,
            shadow: vec![0; words],
            random: Random::new(seed + thread as u64),
        }
    }

    fn step(&mut self) {
        let own = self.random.below(self.shadow.len());
        // SAFETY: inside the map, aligned; other threads leave this word alone.
        let word = unsafe { &*((self.base + (own * THREADS + self.thread) * 8) as *const AtomicU64) };
        assert_eq!(word.load(Ordering::Relaxed), self.shadow[own], "word {own} of thread {}", self.thread);
        if self.random.below(2) == 0 {
            self.shadow[own] = self.random.next();
            word.store(self.shadow[own], Ordering::Relaxed);
        }
    }
}

#[test]
fn resized_at_random_while_threads_load_store_and_flush() {
    if !ready() {
        return;
    }
    let seed = seed(11);
    let folder = folder();
    let path = folder.path().join("file");
    // 2 MiB: smaps is exact for it.
    let file = create(&path, &vec![0; 512 * PAGE]);
    let cache = Cache::new(100 * PAGE).unwrap();
    let mut map = map_mut(&cache, &file);
    let mut owners: Vec<_> = (0..THREADS).map(|thread| Owner::new(&mut map, thread, seed * 100)).collect();
    let stop = AtomicBool::new(false);
    let steps = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        let (map, stop, steps) = (&map, &stop, &steps);
        let mut threads = Vec::new();
        for owner in &mut owners {
            threads.push(scope.spawn(move || {
                while !stop.load(Ordering::Relaxed) {
                    owner.step();
                    if steps.fetch_add(1, Ordering::Relaxed) % 4000 == 0 {
                        let page = owner.random.below(500);
                        match owner.random.below(3) {
                            0 => map.flush().unwrap(),
                            1 => map.flush_range(page * PAGE, 12 * PAGE).unwrap(),
                            _ => map.advise_range(Advice::DontNeed, page * PAGE, 12 * PAGE).unwrap(),
                        }
                    }
                }
            }));
        }
        let _stop = Stop(stop);
        let mut random = Random::new(seed);
        let mut capacity = cache.capacity() / PAGE;
        for round in 0..quick_or_full(40, 150) {
            let pages = if random.below(4) == 0 { 16 } else { 16 + random.below(500) };
            cache.resize(pages * PAGE + random.below(PAGE)).unwrap();
            assert_eq!(cache.capacity(), pages * PAGE);
            let stats = cache.stats();
            assert!(stats.resident_pages as usize <= pages && stats.dirty_pages <= stats.resident_pages, "{stats:?}");
            if pages < capacity {
                let found = resident(addresses(map)) / PAGE;
                assert!(found <= pages, "round {round}: {found} pages resident after shrinking to {pages}");
            }
            capacity = pages;
            // The threads get somewhere in between.
            let before = steps.load(Ordering::Relaxed);
            while steps.load(Ordering::Relaxed) < before + 300 && !threads.iter().any(|thread| thread.is_finished()) {
                std::thread::yield_now();
            }
        }
    });
    println!("{} steps, {:?}", steps.load(Ordering::Relaxed), cache.stats());
    drop(map);
    let bytes = std::fs::read(&path).unwrap();
    for (at, word) in bytes.chunks(8).enumerate() {
        let stored = owners[at % THREADS].shadow[at / THREADS];
        assert_eq!(u64::from_le_bytes(word.try_into().unwrap()), stored, "word {at} of the file");
    }
    until("no page is left", || (cache.stats().resident_pages, cache.stats().dirty_pages) == (0, 0));
}

#[test]
fn down_to_the_minimum_and_back() {
    if !ready() {
        return;
    }
    let folder = folder();
    let path = folder.path().join("file");
    // Nothing is written but to make room: 396 pages may be dirty, and the other four cannot be.
    let cache = Cache::builder().capacity(400 * PAGE).high_water(99).dirty_expire(None).build().unwrap();
    let mut map = map_mut(&cache, &create(&path, &vec![0; 396 * PAGE]));
    let others = self::map(&cache, &create(&folder.path().join("others"), &vec![7; 4 * PAGE]));
    // Its memory is the cache's, too, and the count is exact here.
    map.set_readahead(0).unwrap();
    others.set_readahead(0).unwrap();
    let touch_others = || (0..4).for_each(|page| assert_eq!(others[page * PAGE], 7));
    // Never 0, and another with each round.
    let stored = |page: usize, round: usize| (page + 2 * round) as u8 | 1;
    (0..200).for_each(|page| map[page * PAGE] = stored(page, 0));
    (200..396).for_each(|page| assert_eq!(map[page * PAGE], 0));
    touch_others();
    assert_eq!((cache.stats().resident_pages, cache.stats().dirty_pages), (400, 200));
    for round in 0..3 {
        cache.resize(Cache::MIN_CAPACITY).unwrap();
        let stats = cache.stats();
        assert_eq!(cache.capacity(), Cache::MIN_CAPACITY);
        assert!(stats.resident_pages <= 16 && resident(addresses(&map)) <= Cache::MIN_CAPACITY, "{stats:?}");
        // All of it passes through sixteen pages.
        (0..200).for_each(|page| assert_eq!(map[page * PAGE], stored(page, round)));
        assert!(resident(addresses(&map)) <= Cache::MIN_CAPACITY);
        cache.resize(400 * PAGE).unwrap();
        assert_eq!(cache.capacity(), 400 * PAGE);
        map.advise(Advice::WillNeed).unwrap();
        touch_others();
        let before = cache.stats();
        (0..200).for_each(|page| map[page * PAGE] = stored(page, round + 1));
        let after = cache.stats();
        assert_eq!((after.misses, after.resident_pages), (before.misses, 400), "it all fits");
        // More where the engine took the pages read for pages to be stored to.
        assert!((200..=396).contains(&after.dirty_pages), "{after:?}");
        assert_eq!(resident(addresses(&map)), 396 * PAGE);
    }
    drop((map, others));
    let bytes = std::fs::read(&path).unwrap();
    (0..396).for_each(|page| assert_eq!(bytes[page * PAGE], if page < 200 { stored(page, 3) } else { 0 }));
    assert_eq!(cache.stats().resident_pages, 0);
}

/// A small cache that becomes a large one holds as much as one made large, and gives it all up again.
#[test]
fn far_beyond_the_first_capacity() {
    if !ready() {
        return;
    }
    let folder = folder();
    let file = create(&folder.path().join("file"), &[]);
    file.set_len(100 << 20).unwrap();
    let cache = small();
    let map = map(&cache, &file);
    cache.resize(64 << 20).unwrap();
    let pages = (64 << 20) / PAGE;
    for round in 0..2 {
        (0..100 << 20).step_by(PAGE).for_each(|at| assert_eq!(map[at], 0, "round {round}"));
        let stats = cache.stats();
        // Less a batch of evicted pages, and the room that readers have taken.
        assert!((pages - 1024..=pages).contains(&(stats.resident_pages as usize)), "{stats:?}");
    }
    cache.resize(Cache::MIN_CAPACITY).unwrap();
    assert!(cache.stats().resident_pages <= 16);
}

#[test]
fn sizes_that_cannot_be_are_refused_with_the_limit() {
    let cache = Cache::new(1 << 20).unwrap();
    for capacity in [0, PAGE, Cache::MIN_CAPACITY - 1] {
        assert!(matches!(cache.resize(capacity), Err(Error::CapacityTooSmall { minimum: Cache::MIN_CAPACITY, .. })));
    }
    let Err(error) = cache.resize(1 << 50) else { panic!("a cache of 1 PiB") };
    let Error::CapacityTooLarge { maximum, .. } = error else { panic!("{error}") };
    assert!(error.to_string().contains(&maximum.to_string()) && !error.to_string().contains('\n'), "{error}");
    assert_eq!(cache.capacity(), 1 << 20);
    assert!(matches!(cache.resize(maximum + PAGE), Err(Error::CapacityTooLarge { .. })));
    cache.resize(maximum).unwrap();
    assert_eq!((cache.capacity(), cache.stats().resident_pages), (maximum, 0));
    cache.resize(1 << 20).unwrap();
    assert_eq!((cache.capacity(), cache.stats().resident_pages), (1 << 20, 0));
}

/// Resizes at the same time come one after another, and no free frame is lost or made between them.
#[test]
fn resized_by_several_threads_at_once() {
    for readahead in [0, 8 << 20] {
        resized_by_several_threads(readahead);
    }
}

fn resized_by_several_threads(readahead: usize) {
    if !ready() {
        return;
    }
    let folder = folder();
    let cache = Cache::new(64 * PAGE).unwrap();
    let mut map = map_mut(&cache, &create(&folder.path().join("file"), &vec![0; 300 * PAGE]));
    map.set_readahead(readahead).unwrap();
    let base = map.as_mut_ptr() as usize;
    std::thread::scope(|scope| {
        for thread in 0..THREADS {
            let cache = &cache;
            scope.spawn(move || {
                let mut random = Random::new(thread as u64 + 3);
                for _ in 0..60 {
                    cache.resize((16 + random.below(300)) * PAGE).unwrap();
                    for _ in 0..50 {
                        let at = base + random.below(300) * PAGE + thread * 8;
                        // SAFETY: inside the map.
                        unsafe { &*(at as *const AtomicU64) }.fetch_add(1, Ordering::Relaxed);
                    }
                }
            });
        }
    });
    let sum: u64 = map.chunks(8).map(|word| u64::from_le_bytes(word.try_into().unwrap())).sum();
    assert_eq!(sum, THREADS as u64 * 60 * 50);
    cache.resize(300 * PAGE).unwrap();
    (0..300).for_each(|page| map[page * PAGE + 100] = 1);
    assert!(cache.stats().resident_pages <= 300);
    if readahead == 0 {
        assert_eq!(cache.stats().resident_pages, 300);
        assert_eq!(resident(addresses(&map)), 300 * PAGE);
    }
    cache.resize(40 * PAGE).unwrap();
    assert!(resident(addresses(&map)) <= 40 * PAGE);
    drop(map);
    assert_eq!((cache.stats().resident_pages, cache.stats().dirty_pages), (0, 0));
}

#[test]
fn pages_that_a_full_disk_refuses_stay_and_the_file_is_named() {
    let Some(disk) = small_disk() else { return };
    let path = disk.path("sparse");
    let file = create(&path, &[]);
    file.set_len(1 << 20).unwrap();
    let cache = Cache::new(200 * PAGE).unwrap();
    let mut map = map_mut(&cache, &file);
    (0..100).for_each(|page| map[page * PAGE] = page as u8 + 1);
    disk.rob(&file);
    (100..200).for_each(|page| assert_eq!(map[page * PAGE], 0));
    let refused = cache.resize(Cache::MIN_CAPACITY);
    assert!(matches!(&refused, Err(Error::WriteBack { path: named, .. }) if *named == path), "{refused:?}");
    let reached = cache.capacity() / PAGE;
    let stats = cache.stats();
    assert!((100..200).contains(&reached) && stats.resident_pages as usize <= reached, "{reached} {stats:?}");
    assert!(resident(addresses(&map)) <= cache.capacity());
    (0..100).for_each(|page| assert_eq!(map[page * PAGE], page as u8 + 1));
    disk.make_room();
    cache.resize(Cache::MIN_CAPACITY).unwrap();
    assert_eq!(cache.capacity(), Cache::MIN_CAPACITY);
    assert!(resident(addresses(&map)) <= Cache::MIN_CAPACITY);
    drop(map);
    let bytes = std::fs::read(&path).unwrap();
    (0..100).for_each(|page| assert_eq!(bytes[page * PAGE], page as u8 + 1));
}

/// Pages that are expected to be stored to are mapped writable, also by reads that end when nobody can store any more.
#[test]
fn what_arrives_while_its_map_ends_leaves_the_cache() {
    if !ready() {
        return;
    }
    let folder = folder();
    let path = folder.path().join("file");
    let file = create(&path, &vec![0; 512 * PAGE]);
    let cache = Cache::new(1024 * PAGE).unwrap();
    for _ in 0..quick_or_full(40, 400) {
        let mut map = map_mut(&cache, &file);
        map.set_readahead(0).unwrap();
        for _ in 0..2 {
            (0..512).for_each(|page| map[page * PAGE] = map[page * PAGE].wrapping_add(1));
            map.advise(Advice::DontNeed).unwrap();
        }
        map.prefetch(std::slice::from_ref(&(0..128 * PAGE))).unwrap();
        drop(map);
        until("no page is left", || (cache.stats().resident_pages, cache.stats().dirty_pages) == (0, 0));
    }
}
