//! Many threads on a tiny cache. Every load is checked, every flush is checked against the file past the page cache, and
//! at the end every byte of the file is.
//!
//! Each word of the file holds a stamp: who it is, and how often it was stored to. One thread owns each page and stores
//! the next stamp, then publishes the generation; whoever reads the published generation first and the word after it
//! must find that generation or a later one. A store that got lost, a page from another place and a half-read page all
//! show.

use crate::common::{
    DirectReader, PAGE, Random, addresses, create, folder, open, quick_or_full, ready, resident, seed, under_load,
};
use fastmap::{Advice, Cache, Engine, Fallback, Map, MapMut, MapOptions};
use std::fs::File;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::time::{Duration, Instant};

const WORDS: usize = PAGE / 8;
const THREADS: usize = 8;

fn stamp(word: usize, generation: u32) -> u64 {
    ((word as u64 + 1).wrapping_mul(0x9E37_79B9_7F4A_7C15) & !0xFF_FFFF) | u64::from(generation)
}

fn generation(word: usize, value: u64) -> u32 {
    assert_eq!(value & !0xFF_FFFF, stamp(word, 0), "page {} word {} holds {value:#x}", word / WORDS, word % WORDS);
    (value & 0xFF_FFFF) as u32
}

/// A map's base address, to be shared between threads.
#[derive(Clone, Copy)]
struct Base(*mut u8, usize);
// SAFETY: the words behind it are only reached as atomics.
unsafe impl Send for Base {}
// SAFETY: likewise.
unsafe impl Sync for Base {}

impl Base {
    /// The word of the file with this number, if it lies in the map. `1` is the map's offset in the file.
    fn word(&self, word: usize) -> &AtomicU64 {
        // SAFETY: the callers stay inside the map; 8-byte aligned because the offsets are.
        unsafe { &*self.0.add(word * 8 - self.1).cast::<AtomicU64>() }
    }
}

/// A file of stamps with the generations that were published.
struct Stamped {
    path: std::path::PathBuf,
    file: File,
    published: Vec<AtomicU32>,
}

impl Stamped {
    fn new(path: &Path, pages: usize) -> Self {
        let bytes: Vec<u8> = (0..pages * WORDS).flat_map(|word| stamp(word, 0).to_le_bytes()).collect();
        let file = create(path, &bytes);
        Stamped { path: path.into(), file, published: (0..pages * WORDS).map(|_| AtomicU32::new(0)).collect() }
    }

    fn pages(&self) -> usize {
        self.published.len() / WORDS
    }

    /// By the page's owner only.
    fn store(&self, base: Base, word: usize) {
        let next = self.published[word].load(Ordering::Relaxed) + 1;
        base.word(word).store(stamp(word, next), Ordering::Release);
        self.published[word].store(next, Ordering::Release);
    }

    fn load(&self, base: Base, word: usize) {
        let least = self.published[word].load(Ordering::Acquire);
        let found = generation(word, base.word(word).load(Ordering::Acquire));
        assert!(found >= least, "page {} word {}: {found} after {least}: a store is lost", word / WORDS, word % WORDS);
    }

    /// Runs `flush`, then finds what was published before it in the file.
    fn check_flush(&self, reader: &mut DirectReader, pages: std::ops::Range<usize>, flush: impl FnOnce()) {
        let words = pages.start * WORDS..pages.end * WORDS;
        let before: Vec<u32> = self.published[words].iter().map(|one| one.load(Ordering::Acquire)).collect();
        flush();
        for page in pages.clone() {
            for (at, value) in reader.page(page).iter().enumerate() {
                let (word, least) = (page * WORDS + at, before[(page - pages.start) * WORDS + at]);
                let found = generation(word, *value);
                assert!(found >= least, "page {page} word {at}: file has {found} after a flush of {least}");
            }
        }
    }

    /// Every byte of the file, when all maps are gone.
    fn check_file(&self) {
        let bytes = std::fs::read(&self.path).unwrap();
        assert_eq!(bytes.len(), self.pages() * PAGE);
        for (word, bytes) in bytes.chunks(8).enumerate() {
            let want = stamp(word, self.published[word].load(Ordering::Relaxed));
            let found = u64::from_le_bytes(bytes.try_into().unwrap());
            assert_eq!(found, want, "page {} word {}: {found:#x} in the file", word / WORDS, word % WORDS);
        }
    }

    fn map_mut(&self, cache: &Cache, offset: usize) -> (MapMut, Base) {
        // SAFETY: the file is this test's own.
        let mut map = unsafe { options(cache).offset(offset as u64).map_mut(&self.file) }.unwrap();
        assert_eq!(map.engine(), Engine::Cached);
        let base = Base(map.as_mut_ptr(), offset);
        (map, base)
    }
}

fn options(cache: &Cache) -> MapOptions {
    MapOptions::new().cache(cache).fallback(Fallback::Refuse).clone()
}

/// Runs `THREADS` bodies for this long, or a quarter of it when effort is quick, and `others` beside them; asserts the budget all the while.
fn run(
    cache: &Cache,
    watched: &[&[u8]],
    millis: u64,
    body: impl Fn(usize, &AtomicBool) + Sync,
    others: &[&(dyn Fn(&AtomicBool) + Sync)],
) {
    let stop = AtomicBool::new(false);
    let watched: Vec<_> = watched.iter().map(|bytes| addresses(bytes)).collect();
    let begin = Instant::now();
    std::thread::scope(|scope| {
        let (stop, body) = (&stop, &body);
        let mut threads: Vec<_> = (0..THREADS).map(|thread| scope.spawn(move || body(thread, stop))).collect();
        threads.extend(others.iter().map(|other| scope.spawn(move || other(stop))));
        let mut most = 0;
        let mut looks = 0;
        while begin.elapsed() < Duration::from_millis(quick_or_full(millis / 4, millis))
            && !threads.iter().any(|thread| thread.is_finished())
        {
            for map in &watched {
                most = most.max(resident(map.clone()));
                looks += 1;
            }
            assert!(most <= cache.capacity(), "{most} bytes resident in a cache of {}", cache.capacity());
            assert!(cache.stats().resident_pages as usize * PAGE <= cache.capacity());
            std::thread::sleep(Duration::from_millis(2));
        }
        stop.store(true, Ordering::Relaxed);
        println!(
            "{looks} looks at smaps, at most {} of {} pages; {:?}",
            most / PAGE,
            cache.capacity() / PAGE,
            cache.stats()
        );
    });
}

/// All free frames are back when nothing is mapped.
fn check_free_frames(cache: &Cache) {
    let stats = cache.stats();
    assert_eq!((stats.resident_pages, stats.dirty_pages), (0, 0), "nothing is mapped any more: {stats:?}");
}

/// Loads everywhere, stores by owners, flushes, advice, other maps of the file, and other files coming and going.
fn mixed(cache: Cache, millis: u64) {
    let seed = seed(1 + (cache.capacity() / PAGE) as u64);
    let folder = folder();
    // 2 MiB: smaps is exact for it.
    let file = Stamped::new(&folder.path().join("stamped"), 512);
    let offset = 3 * PAGE + 8;
    {
        let (all, all_base) = file.map_mut(&cache, 0);
        let (part, part_base) = file.map_mut(&cache, offset);
        // SAFETY: the file is this test's own.
        let read: Map = unsafe { options(&cache).offset(16).map(&file.file) }.unwrap();
        let read_base = Base(read.as_ptr().cast_mut(), 16);
        let body = |thread: usize, stop: &AtomicBool| {
            let mut random = Random::new(seed * 100 + thread as u64);
            while !stop.load(Ordering::Relaxed) {
                let word = random.below(file.published.len());
                let (page, choice) = (word / WORDS, random.below(16));
                let base = if word * 8 >= offset && choice % 2 == 0 { part_base } else { all_base };
                if choice < 6 {
                    // Of its own pages, one in eight.
                    let own = page / THREADS * THREADS + thread;
                    let base = if own * PAGE >= offset { base } else { all_base };
                    file.store(base, own * WORDS + word % WORDS);
                } else if choice < 8 && word >= 2 {
                    file.load(read_base, word);
                } else {
                    file.load(base, word);
                }
            }
        };
        let flushes = |stop: &AtomicBool| {
            let mut random = Random::new(seed * 100 + 50);
            let mut reader = DirectReader::open(&file.path);
            while !stop.load(Ordering::Relaxed) {
                let first = random.below(file.pages());
                let pages = first..(first + 1 + random.below(24)).min(file.pages());
                match random.below(4) {
                    0 => file.check_flush(&mut reader, pages, || all.flush().unwrap()),
                    1 => file.check_flush(&mut reader, 0..file.pages(), || all.flush_async().wait().unwrap()),
                    2 if pages.start >= 4 => {
                        let at = pages.start * PAGE - offset;
                        let len = pages.len() * PAGE;
                        file.check_flush(&mut reader, pages, || part.flush_range(at, len).unwrap());
                    }
                    _ => {
                        let (at, len) = (pages.start * PAGE, pages.len() * PAGE);
                        file.check_flush(&mut reader, pages, || all.flush_range(at, len).unwrap());
                    }
                }
            }
        };
        let advises = |stop: &AtomicBool| {
            let mut random = Random::new(seed * 100 + 60);
            while !stop.load(Ordering::Relaxed) {
                let at = random.below(all.len());
                let len = random.below(32 * PAGE).min(all.len() - at);
                let advice = if random.below(3) == 0 { Advice::WillNeed } else { Advice::DontNeed };
                all.advise_range(advice, at, len).unwrap();
                read.advise_range(advice, at.min(read.len()), len.min(read.len() - at.min(read.len()))).unwrap();
            }
        };
        let others = |stop: &AtomicBool| come_and_go(&cache, folder.path(), seed * 100 + 70, stop);
        run(&cache, &[&all], millis, body, &[&flushes, &advises, &others]);
    }
    file.check_file();
    check_free_frames(&cache);
}

/// Maps and unmaps files of a few pages, stores to them, and finds the stores the next time.
fn come_and_go(cache: &Cache, folder: &Path, seed: u64, stop: &AtomicBool) {
    const FILES: usize = 6;
    let mut random = Random::new(seed);
    let path = |number: usize| folder.join(format!("other-{seed}-{number}"));
    let mut shadows: Vec<Vec<u8>> =
        (0..FILES).map(|number| vec![number as u8; (1 + 4 * number) * PAGE - 100]).collect();
    (0..FILES).for_each(|number| drop(create(&path(number), &shadows[number])));
    while !stop.load(Ordering::Relaxed) {
        let number = random.below(FILES);
        let shadow = &mut shadows[number];
        let file = open(&path(number));
        // SAFETY: this thread's own file.
        let mut map = unsafe { options(cache).map_mut(&file) }.unwrap();
        drop(file);
        assert!(map[..] == shadow[..], "file {number} differs from what was stored in it");
        for _ in 0..random.below(20) {
            let (at, value) = (random.below(shadow.len()), random.next() as u8);
            map[at] = value;
            shadow[at] = value;
        }
        if random.below(2) == 0 {
            map.flush().unwrap();
        }
        drop(map);
        if random.below(4) == 0 {
            assert!(
                std::fs::read(path(number)).unwrap() == *shadow,
                "file {number} lacks stores after its map is gone"
            );
        }
    }
    for (number, shadow) in shadows.iter().enumerate() {
        assert!(std::fs::read(path(number)).unwrap() == *shadow, "file {number} at the end");
    }
}

#[test]
fn loads_stores_flushes_advice_and_other_files_in_16_pages() {
    if ready() {
        mixed(Cache::new(16 * PAGE).unwrap(), 2500);
    }
}

#[test]
fn loads_stores_flushes_advice_and_other_files_in_64_pages() {
    if ready() {
        mixed(Cache::new(64 * PAGE).unwrap(), 2500);
    }
}

#[test]
fn loads_stores_flushes_advice_and_other_files_without_any_one_mechanism() {
    if !ready() {
        return;
    }
    for mechanism in fastmap::Mechanism::ALL {
        println!("without {mechanism:?}");
        mixed(Cache::builder().capacity(64 * PAGE).without(mechanism).build().unwrap(), 700);
    }
}

/// Stores only: there is never a clean page that was not written back a moment ago.
#[test]
fn every_page_dirty_all_the_time() {
    if !ready() {
        return;
    }
    for pages_of_cache in [16, 64] {
        let seed = seed(20 + pages_of_cache as u64);
        let folder = folder();
        let cache = Cache::new(pages_of_cache * PAGE).unwrap();
        let file = Stamped::new(&folder.path().join("stamped"), 512);
        {
            let (map, base) = file.map_mut(&cache, 0);
            let body = |thread: usize, stop: &AtomicBool| {
                let mut random = Random::new(seed * 100 + thread as u64);
                while !stop.load(Ordering::Relaxed) {
                    let page = random.below(file.pages() / THREADS) * THREADS + thread;
                    file.store(base, page * WORDS + random.below(WORDS));
                }
            };
            run(&cache, &[&map], 1500, body, &[]);
        }
        file.check_file();
        check_free_frames(&cache);
    }
}

/// All threads add to the same counters: a lost store is a wrong sum.
#[test]
fn shared_counters_add_up() {
    if !ready() {
        return;
    }
    let seed = seed(40);
    let folder = folder();
    let cache = Cache::new(16 * PAGE).unwrap();
    let path = folder.path().join("counters");
    let file = create(&path, &vec![0; 48 * PAGE]);
    // One counter at each end of each page and one in the middle.
    let counters = 48 * 3;
    let place = |counter: usize| counter / 3 * PAGE + [0, 2048, 4088][counter % 3];
    let sums: Vec<AtomicU64> = (0..counters).map(|_| AtomicU64::new(0)).collect();
    {
        // SAFETY: the file is this test's own.
        let mut map = unsafe { options(&cache).map_mut(&file) }.unwrap();
        let base = Base(map.as_mut_ptr(), 0);
        let map = map;
        let body = |thread: usize, stop: &AtomicBool| {
            let mut random = Random::new(seed * 100 + thread as u64);
            while !stop.load(Ordering::Relaxed) {
                let (counter, amount) = (random.below(counters), random.next() >> 40);
                let before = base.word(place(counter) / 8).fetch_add(amount, Ordering::AcqRel);
                let counted = sums[counter].fetch_add(amount, Ordering::AcqRel);
                // What others have counted they had added before; eight adds may be on their way between the two.
                assert!(before.abs_diff(counted) < THREADS as u64 * (1 << 24), "counter {counter}: {before} {counted}");
            }
        };
        let flushes = |stop: &AtomicBool| {
            while !stop.load(Ordering::Relaxed) {
                map.flush().unwrap();
                map.advise(Advice::DontNeed).unwrap();
            }
        };
        run(&cache, &[&map], 2000, body, &[&flushes]);
    }
    let bytes = std::fs::read(&path).unwrap();
    for (counter, sum) in sums.iter().enumerate() {
        let found = u64::from_le_bytes(bytes[place(counter)..][..8].try_into().unwrap());
        assert_eq!(found, sum.load(Ordering::Relaxed), "counter {counter}");
    }
    check_free_frames(&cache);
}

/// Files come and go under eight threads while one file keeps the cache full: no page and no free frame may go astray
/// when a batch of evictions meets a file that is being closed.
#[test]
fn files_come_and_go_from_every_thread() {
    if !ready() {
        return;
    }
    let seed = seed(60);
    let folder = folder();
    let cache = Cache::new(32 * PAGE).unwrap();
    let file = Stamped::new(&folder.path().join("stamped"), 128);
    {
        let (map, base) = file.map_mut(&cache, 0);
        let body = |thread: usize, stop: &AtomicBool| {
            if thread >= 5 {
                return come_and_go(&cache, folder.path(), seed * 100 + thread as u64, stop);
            }
            let mut random = Random::new(seed * 100 + thread as u64);
            while !stop.load(Ordering::Relaxed) {
                file.load(base, random.below(file.published.len()));
            }
        };
        run(&cache, &[&map], 3000, body, &[]);
    }
    file.check_file();
    check_free_frames(&cache);
}

/// The same file mapped and unmapped from every thread: the last one to go closes it while others are at the door.
#[test]
fn one_file_mapped_and_unmapped_from_every_thread() {
    if !ready() {
        return;
    }
    let seed = seed(80);
    let folder = folder();
    let cache = Cache::new(16 * PAGE).unwrap();
    let file = Stamped::new(&folder.path().join("stamped"), 64);
    let body = |thread: usize, stop: &AtomicBool| {
        let mut random = Random::new(seed * 100 + thread as u64);
        while !stop.load(Ordering::Relaxed) {
            let (map, base) = file.map_mut(&cache, 0);
            for _ in 0..random.below(12) {
                file.store(base, (random.below(8) * THREADS + thread) * WORDS + random.below(WORDS));
                file.load(base, random.below(file.published.len()));
            }
            drop(map);
        }
    };
    run(&cache, &[], 2000, body, &[]);
    file.check_file();
    check_free_frames(&cache);
}

/// Sixteen threads on sixteen pages, each copying 64 KiB at a time within its own part of the file, unaligned: every copy
/// needs two pages at once, and more pages than there are.
#[test]
fn long_copies_with_a_page_a_thread() {
    if !ready() {
        return;
    }
    const PART: usize = 256 << 10;
    const COPY: usize = 64 << 10;
    let seed = seed(100);
    let folder = folder();
    let cache = Cache::new(16 * PAGE).unwrap();
    let path = folder.path().join("file");
    let bytes: Vec<u8> = (0..16 * PART).map(|at| (at * 13 + at / 509) as u8).collect();
    let file = create(&path, &bytes);
    let mut parts: Vec<Vec<u8>> = bytes.chunks(PART).map(<[u8]>::to_vec).collect();
    {
        // SAFETY: the file is this test's own.
        let mut map = unsafe { options(&cache).map_mut(&file) }.unwrap();
        std::thread::scope(|scope| {
            for (thread, (own, shadow)) in map.chunks_mut(PART).zip(&mut parts).enumerate() {
                scope.spawn(move || {
                    let mut random = Random::new(seed * 100 + thread as u64);
                    let begin = Instant::now();
                    while begin.elapsed() < under_load() {
                        let (from, to) = (random.below(PART - COPY), random.below(PART - COPY));
                        own.copy_within(from..from + COPY, to);
                        shadow.copy_within(from..from + COPY, to);
                        let at = random.below(PART - PAGE);
                        assert!(own[at..at + PAGE] == shadow[at..at + PAGE], "part {thread} at {at}");
                    }
                });
            }
        });
        println!("{:?}", cache.stats());
    }
    assert!(std::fs::read(&path).unwrap() == parts.concat());
    check_free_frames(&cache);
}

/// One instruction that needs two pages, from as many threads as pairs of pages fit. (With more it still gets through,
/// but each page is likely gone again when the other comes: 32 threads read 33 pages a load instead of 2.)
#[test]
fn straddling_loads_with_two_pages_a_thread() {
    if !ready() {
        return;
    }
    let seed = seed(120);
    let folder = folder();
    let cache = Cache::new(16 * PAGE).unwrap();
    let bytes: Vec<u8> = (0..256 * PAGE).map(|at| (at * 13 + at / 509) as u8).collect();
    // SAFETY: the file is this test's own.
    let map = unsafe { options(&cache).map(&create(&folder.path().join("file"), &bytes)) }.unwrap();
    let most = AtomicU64::new(0);
    std::thread::scope(|scope| {
        for thread in 0..8 {
            let (map, bytes, most) = (&map, &bytes, &most);
            scope.spawn(move || {
                let mut random = Random::new(seed * 100 + thread);
                for _ in 0..150 {
                    let at = (1 + random.below(255)) * PAGE - 1 - random.below(7);
                    let begin = Instant::now();
                    // SAFETY: inside the map.
                    let word = unsafe { map.as_ptr().add(at).cast::<u64>().read_unaligned() };
                    most.fetch_max(begin.elapsed().as_micros() as u64, Ordering::Relaxed);
                    assert_eq!(word.to_ne_bytes(), bytes[at..at + 8]);
                }
            });
        }
    });
    println!("the slowest load took {} µs; {:?}", most.into_inner(), cache.stats());
}

#[test]
fn flushes_from_every_thread_share_syncs() {
    const THREADS: usize = 8;
    const ROUNDS: usize = 40;
    if !ready() {
        return;
    }
    let folder = folder();
    let path = folder.path().join("file");
    let stamped = Stamped::new(&path, THREADS);
    let cache = Cache::new(64 * PAGE).unwrap();
    let (map, base) = stamped.map_mut(&cache, 0);
    std::thread::scope(|scope| {
        for page in 0..THREADS {
            let (stamped, map, path) = (&stamped, &map, &path);
            scope.spawn(move || {
                let mut reader = DirectReader::open(path);
                for round in 0..ROUNDS {
                    stamped.store(base, page * WORDS + round);
                    stamped.check_flush(&mut reader, page..page + 1, || map.flush().unwrap());
                }
            });
        }
    });
    let syncs = cache.stats().syncs;
    println!("{syncs} syncs for {} flushes", THREADS * ROUNDS);
    assert!((1..=(THREADS * ROUNDS) as u64).contains(&syncs));
    map.flush().unwrap();
    assert_eq!(cache.stats().syncs, syncs + 1, "alone, each flush syncs");
    drop(map);
    stamped.check_file();
}
