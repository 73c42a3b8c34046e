//! Files whose reads are said to take long: threads read what lies ahead of everything that programs do, from caches of a few pages on.

use crate::effort::{quick_or_full, skip};
use crate::pool::reader::LARGE_PIECE_PAGES;
use crate::region::registry;
use crate::sys::PAGE;
use crate::{Advice, Cache, Fallback, MapMut, MapOptions, Stats};
use std::ops::Range;
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use std::time::{Duration, Instant};

const PAGES: usize = 3000;

/// Numbers by chance, the same ones each time.
struct Chance(u64);

impl Chance {
    fn below(&mut self, end: usize) -> usize {
        self.0 = self.0.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (self.0 >> 33) as usize % end
    }

    fn range(&mut self, most: usize) -> Range<usize> {
        let start = self.below(PAGES * PAGE);
        start..(start + 1 + self.below(most)).min(PAGES * PAGE)
    }
}

/// As long reads would have been noted, of which further pages take little; those of a disk that are noted meanwhile, and the pauses of this
/// machine, say something else.
fn say_that_reads_take_long(at: *const u8) {
    // SAFETY: the caller's map keeps its region.
    let region = unsafe { registry::find(at as usize) }.expect("it is mapped");
    let times = region.hints().read_times();
    while !times.are_long() || times.costs().miss < 1_000_000 {
        times.note_tried(1, Some(Duration::from_millis(2)));
    }
    while times.costs().for_nothing() < LARGE_PIECE_PAGES {
        times.note(16, Instant::now());
    }
}

/// A file that the page cache has nothing of.
fn cold(bytes: &[u8]) -> tempfile::NamedTempFile {
    let file = tempfile::NamedTempFile::new_in(".").unwrap();
    file.as_file().write_all_at(bytes, 0).unwrap();
    file.as_file().sync_data().unwrap();
    // SAFETY: no memory is involved.
    unsafe { libc::posix_fadvise(file.as_raw_fd(), 0, 0, libc::POSIX_FADV_DONTNEED) };
    file
}

fn map(cache: &Cache, file: &std::fs::File) -> Option<MapMut> {
    // SAFETY: nobody else changes the file.
    match unsafe { MapOptions::new().cache(cache).fallback(Fallback::Refuse).map_mut(file) } {
        Ok(map) => Some(map),
        Err(why) => {
            skip(why);
            None
        }
    }
}

/// Work of one thread on its own part of the bytes, those of the numbers that leave `part` when they are divided by two.
fn work(map: &MapMut, shadow: &mut [u8], part: usize, steps: usize, chance: &mut Chance) {
    let check = |shadow: &[u8], at: usize| {
        // SAFETY: inside the map; the other thread stores to other bytes.
        let byte = unsafe { map.as_ptr().add(at).read_volatile() };
        assert_eq!(byte, shadow[at], "byte {at}");
    };
    let mine = |at: usize| at - at % 2 + part;
    for _ in 0..steps {
        say_that_reads_take_long(map.as_ptr());
        match chance.below(8) {
            0 => {
                let (page, step) = (chance.below(PAGES), [1, -1, 1, -1, 16, -7][chance.below(6)]);
                let walk =
                    (0..200).map_while(|index| page.checked_add_signed(index * step)).take_while(|page| *page < PAGES);
                walk.for_each(|page| check(shadow, mine(page * PAGE + 40)));
            }
            1 | 2 => (0..30).for_each(|_| check(shadow, mine(chance.below(PAGES * PAGE - 2)))),
            3 | 4 => {
                let at = mine(chance.below(PAGES * PAGE - 2));
                shadow[at] = shadow[at].wrapping_add(1);
                // SAFETY: as above, and no other thread has this byte.
                unsafe { map.as_ptr().cast_mut().add(at).write_volatile(shadow[at]) };
            }
            5 => {
                let rows: Vec<_> = (0..60).map(|_| chance.range(3 * PAGE)).collect();
                let places: Vec<_> = rows.iter().map(|row| (row.start, row.len())).collect();
                let mut output = vec![0; rows.iter().map(Range::len).sum()];
                map.gather(&places, &mut output).unwrap();
                let wanted = rows.into_iter().flatten();
                let own = wanted.zip(&output).filter(|(at, _)| at % 2 == part);
                own.for_each(|(at, byte)| assert_eq!(*byte, shadow[at], "byte {at} of a row"));
            }
            6 => {
                let Range { start, end } = chance.range(600 * PAGE);
                let advice =
                    [Advice::WillNeed, Advice::WillNeed, Advice::DontNeed, Advice::Sequential][chance.below(4)];
                map.advise_range(advice, start, end - start).unwrap();
            }
            _ => {
                let Range { start, end } = chance.range(50 * PAGE);
                map.flush_range(start, end - start).unwrap();
            }
        }
    }
}

/// Loads so many pages by chance; what the cache counts then.
fn load_here_and_there(cache: &Cache, map: &MapMut, chance: &mut Chance, loads: usize) -> Stats {
    for _ in 0..loads {
        say_that_reads_take_long(map.as_ptr());
        // SAFETY: inside the map.
        unsafe { map.as_ptr().add(chance.below(PAGES) * PAGE).read_volatile() };
    }
    cache.stats()
}

/// Waits until the cache has more than so many pages, which other threads read; returns its counts.
fn once_there(cache: &Cache, pages: u64) -> Stats {
    let until = Instant::now() + Duration::from_secs(60);
    while cache.stats().resident_pages <= pages {
        assert!(Instant::now() < until, "{:?}", cache.stats());
        std::thread::sleep(Duration::from_millis(1));
    }
    cache.stats()
}

#[test]
fn while_memory_is_free_a_miss_far_away_brings_neighbours() {
    let file = cold(&vec![7; PAGES * PAGE]);
    // Smaller than the file, which is read whole otherwise.
    let cache = Cache::new(1024 * PAGE).unwrap();
    let Some(map) = map(&cache, file.as_file()) else { return };
    let mut chance = Chance(1);
    load_here_and_there(&cache, &map, &mut chance, 20);
    let few = once_there(&cache, 20 * 4);
    let full = load_here_and_there(&cache, &map, &mut chance, 1500);
    let more = load_here_and_there(&cache, &map, &mut chance, 1000);
    let (misses, evicted) = (more.misses - full.misses, more.evicted_pages - full.evicted_pages);
    assert!(misses > 300 && evicted < 2 * misses, "{few:?}, {full:?}, then {more:?}");
}

/// On a disk only where all of the file fits into the cache.
#[test]
fn on_a_disk_a_miss_brings_neighbours_of_a_file_that_fits() {
    for (capacity, brings) in [(4096, true), (1024, false)] {
        let file = cold(&vec![7; PAGES * PAGE]);
        let cache = Cache::new(capacity * PAGE).unwrap();
        let Some(map) = map(&cache, file.as_file()) else { return };
        let mut chance = Chance(1);
        for _ in 0..20 {
            // SAFETY: the map keeps its region.
            let region = unsafe { registry::find(map.as_ptr() as usize) }.expect("it is mapped");
            for _ in 0..16 {
                let times = region.hints().read_times();
                times.note(1, Instant::now() - Duration::from_micros(80));
                times.note(16, Instant::now() - Duration::from_micros(110));
            }
            assert_eq!(map[chance.below(PAGES) * PAGE], 7);
        }
        let stats = if brings { once_there(&cache, 20 * 4) } else { cache.stats() };
        assert_eq!(stats.resident_pages > 20 * 4, brings, "{capacity}: {stats:?}");
    }
}

/// Though a step of it may lead just behind the neighbours that a miss brought.
#[test]
fn of_a_walk_by_steps_only_the_first_miss_brings_neighbours() {
    for step in [8, 16, 32] {
        const TOUCHES: usize = 60;
        let file = cold(&vec![7; PAGES * PAGE]);
        let cache = Cache::new(2048 * PAGE).unwrap();
        let Some(map) = map(&cache, file.as_file()) else { return };
        // No more is read ahead than is told from all that lies between.
        map.set_readahead(32 * PAGE).unwrap();
        for page in (100..).step_by(step).take(TOUCHES) {
            say_that_reads_take_long(map.as_ptr());
            assert_eq!(map[page * PAGE], 7);
        }
        let stats = cache.stats();
        let read = stats.misses + stats.run_pages + stats.ahead_pages;
        assert!((read as usize) < TOUCHES * step / 2, "steps of {step}: {stats:?}");
    }
}

#[test]
fn what_threads_read_is_what_the_file_has() {
    for (round, capacity) in [64, 128, 700, 2000, 4096].into_iter().enumerate() {
        let mut bytes: Vec<u8> = (0..PAGES * PAGE).map(|at| (at / PAGE + at % 251) as u8).collect();
        let file = cold(&bytes);
        let cache = Cache::new(capacity * PAGE).unwrap();
        let Some(map) = map(&cache, file.as_file()) else { return };
        let mut shadows = [bytes.clone(), bytes.clone()];
        std::thread::scope(|scope| {
            for (part, shadow) in shadows.iter_mut().enumerate() {
                let map = &map;
                let mut chance = Chance((round * 2 + part) as u64);
                scope.spawn(move || work(map, shadow, part, quick_or_full(150, 1500), &mut chance));
            }
        });
        let stats = cache.stats();
        assert!(stats.resident_pages as usize <= capacity, "{stats:?}");
        map.flush().unwrap();
        drop(map);
        bytes.iter_mut().enumerate().for_each(|(at, byte)| *byte = shadows[at % 2][at]);
        let found = std::fs::read(file.path()).unwrap();
        assert_eq!((0..bytes.len()).find(|at| found[*at] != bytes[*at]), None, "the file at the end");
        let stats = cache.stats();
        assert_eq!((stats.resident_pages, stats.dirty_pages), (0, 0), "{stats:?}");
    }
}

#[test]
fn a_file_that_is_loaded_out_of_order_is_read_whole() {
    let bytes: Vec<u8> = (0..PAGES).flat_map(|page| page.to_ne_bytes().repeat(PAGE / 8)).collect();
    let file = cold(&bytes);
    let cache = Cache::new(2 * PAGES * PAGE).unwrap();
    let Some(map) = map(&cache, file.as_file()) else { return };
    let mut chance = Chance(1);
    while cache.stats().filled_pages == 0 {
        say_that_reads_take_long(map.as_ptr());
        let first = chance.below(PAGES / 64) * 64;
        (first..first + 64).for_each(|page| assert_eq!(map[page * PAGE..][..8], page.to_ne_bytes()));
    }
    // Without another miss: by threads.
    let until = Instant::now() + Duration::from_secs(60);
    while (cache.stats().filled_pages as usize) < PAGES / 4 {
        assert!(Instant::now() < until, "{:?}", cache.stats());
        std::thread::yield_now();
    }
    (0..PAGES).for_each(|page| assert_eq!(map[page * PAGE..][..8], page.to_ne_bytes()));
}
