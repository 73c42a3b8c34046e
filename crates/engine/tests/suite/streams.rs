//! Reading ahead of walks: which are recognised, how far ahead is read, what that wastes. Told by the counters, against what
//! may be read ahead at most.

use crate::common::*;
use fastmap::{Advice, Cache, Map, Stats};
use std::fs::File;

/// Pages of the cache of most tests; it reads an eighth of that ahead, in all.
const FRAMES: usize = 2048;
const WINDOW: usize = FRAMES / 8;
/// Pages of the largest chunk that is no frame.
const CHUNK: usize = 32;
/// First window of a stream, pages.
const FIRST: usize = 32;

struct World {
    _folder: tempfile::TempDir,
    file: File,
    cache: Cache,
}

/// A file that is a hole of so many pages: what is read is zeros, and how it is read is the same.
fn world(pages: usize) -> Option<World> {
    if !ready() {
        return None;
    }
    let folder = folder();
    let file = sparse(&folder.path().join("file"), (pages * PAGE) as u64);
    Some(World { _folder: folder, file, cache: Cache::new(FRAMES * PAGE).unwrap() })
}

impl World {
    fn map(&self) -> Map {
        map(&self.cache, &self.file)
    }

    /// The counters, which must be in order whenever somebody asks.
    fn stats(&self) -> Stats {
        let stats = self.cache.stats();
        assert!(stats.resident_pages <= FRAMES as u64, "{stats:?}");
        stats
    }

    fn settled(&self) -> Stats {
        settle(&self.cache);
        let stats = self.stats();
        assert!(stats.ahead_used + stats.ahead_wasted <= stats.ahead_pages, "{stats:?}");
        stats
    }
}

/// Pages read ahead between two looks and not mapped in between.
fn unused(before: &Stats, after: &Stats) -> u64 {
    (after.ahead_pages - after.ahead_used) - (before.ahead_pages - before.ahead_used)
}

fn touch(map: &Map, page: usize) {
    // SAFETY: inside the map.
    assert_eq!(unsafe { map.as_ptr().add(page * PAGE + page % PAGE).read_volatile() }, 0, "page {page}");
}

/// The pages of a walk.
fn walk(first: usize, step: isize, count: usize) -> impl Iterator<Item = usize> {
    (0..count).map(move |index| first.checked_add_signed(index as isize * step).expect("inside the file"))
}

/// Pages read for each that a walk of some step comes to: of short steps what lies between is read, too.
fn read_for_each(step: isize) -> usize {
    if step.unsigned_abs() <= 4 { step.unsigned_abs() } else { 1 }
}

/// Every step from the shortest to the longest: a walk is recognised, no more than a window is read ahead of it at any time,
/// and what it leaves behind when it stops is no more either.
#[test]
fn walks_of_every_step_are_read_ahead_of_by_a_window() {
    const PAGES: usize = 1 << 19;
    for step in [1isize, -1, 2, -2, 3, -4, 5, 7, -16, 31, -32, 64, 333, -511, 1000, 1024, -1024] {
        let Some(world) = world(PAGES) else { return };
        let map = world.map();
        let count = 250;
        for (index, page) in walk(PAGES / 2, step, count).enumerate() {
            at_leisure(&world.cache, [page], |page| touch(&map, page));
            let stats = world.stats();
            assert!(
                stats.ahead_pages <= ((index + 1) * read_for_each(step) + WINDOW + CHUNK) as u64,
                "step {step}: {index} touched, {stats:?}"
            );
        }
        let stats = world.settled();
        println!("step {step}: {stats:?}");
        // Three pages show the walk; each of the others is mapped with its chunk.
        assert_eq!((stats.streams, stats.ahead_wasted), (1, 0), "step {step}: {stats:?}");
        // A chunk of pages side by side for each trap, as of a walk of all pages.
        let traps = if read_for_each(step) > 1 { count * read_for_each(step) / CHUNK + 14 } else { 40 };
        assert!(stats.misses < 12 && stats.misses + stats.ahead_chunks < traps as u64, "step {step}: {stats:?}");
        assert!(
            stats.misses + stats.ahead_used >= count as u64,
            "step {step}: each page came from somewhere: {stats:?}"
        );
        let left = stats.ahead_pages - stats.ahead_used;
        assert!(left <= (WINDOW + CHUNK) as u64, "step {step}: {stats:?}");
        map.advise(Advice::DontNeed).unwrap();
        let after = world.settled();
        assert_eq!((after.ahead_pages, after.ahead_wasted), (stats.ahead_pages, left), "step {step}: {after:?}");
    }
}

/// A walk as fast as it goes overtakes its readers now and then. They never read more for that.
#[test]
fn walks_in_haste_are_read_ahead_of_by_no_more() {
    const PAGES: usize = 1 << 18;
    for step in [1isize, -1, 2, -3, 5, 16, -64] {
        let Some(world) = world(PAGES) else { return };
        let map = world.map();
        for (index, page) in walk(PAGES / 2, step, 2000).enumerate() {
            touch(&map, page);
            let stats = world.stats();
            assert!(
                stats.ahead_pages <= ((index + 1) * read_for_each(step) + WINDOW + CHUNK) as u64,
                "step {step}: {index} touched, {stats:?}"
            );
        }
        let stats = world.settled();
        assert!(stats.misses + stats.ahead_used >= 2000, "step {step}: each page came from somewhere: {stats:?}");
    }
}

#[test]
fn longer_steps_are_not_read_ahead_of() {
    for step in [1025isize, -1025, 1500, -4096] {
        let Some(world) = world(1 << 21) else { return };
        let map = world.map();
        walk(1 << 20, step, 200).for_each(|page| touch(&map, page));
        let stats = world.settled();
        assert_eq!((stats.streams, stats.ahead_pages, stats.misses), (0, 0, 200), "step {step}: {stats:?}");
    }
}

/// A walk to the file's end, to its beginning, and to the end of a map that is shorter than the file: each page is read once,
/// none outside, none in vain.
#[test]
fn nothing_is_read_past_an_end() {
    const PAGES: usize = 1000;
    for (step, mapped) in
        [(1, PAGES), (-1, PAGES), (1, PAGES / 2), (3, PAGES / 2), (-3, PAGES), (5, PAGES / 2), (-5, PAGES)]
    {
        let Some(world) = world(PAGES) else { return };
        // SAFETY: the file is this test's own.
        let map = unsafe { options(&world.cache).len(mapped * PAGE).map(&world.file) }.unwrap();
        let pages: Vec<_> = (0..mapped).step_by(isize::unsigned_abs(step)).collect();
        let each: Vec<_> = if step > 0 { pages } else { pages.into_iter().rev().collect() };
        at_leisure(&world.cache, each.iter().copied(), |page| touch(&map, page));
        let stats = world.settled();
        assert!(stats.ahead_used > each.len() as u64 / 2, "step {step}: {stats:?}");
        // Not what lies between the three that show the walk.
        let all = if step.unsigned_abs() == 3 { mapped - 4 } else { each.len() };
        assert_eq!(stats.misses + stats.ahead_pages, all as u64, "step {step} of {mapped}: {stats:?}");
        assert_eq!(
            (stats.ahead_used, stats.ahead_wasted),
            (stats.ahead_pages, 0),
            "step {step} of {mapped}: {stats:?}"
        );
    }
}

#[test]
fn the_last_page_that_is_not_whole_is_read_by_itself() {
    if !ready() {
        return;
    }
    let folder = folder();
    let bytes = pattern(300 * PAGE + 123);
    let file = create(&folder.path().join("file"), &bytes);
    let cache = Cache::new(FRAMES * PAGE).unwrap();
    let map = map(&cache, &file);
    assert!(map[..] == bytes[..]);
    // SAFETY: the mapped page holds the end of the file; as with mmap(2) there are zeros behind it.
    let behind = unsafe { std::slice::from_raw_parts(map.as_ptr().add(bytes.len()), PAGE - 123) };
    assert!(behind.iter().all(|byte| *byte == 0));
    let stats = settle(&cache);
    assert_eq!(stats.misses + stats.ahead_pages, 301, "{stats:?}");
}

#[test]
fn who_wants_nothing_read_ahead_gets_nothing() {
    for how in 0..3 {
        let Some(world) = world(4000) else { return };
        let map = world.map();
        match how {
            0 => map.advise(Advice::Random).unwrap(),
            1 => map.set_readahead(0).unwrap(),
            _ => map.set_readahead(PAGE - 1).unwrap(),
        }
        for step in [1, -1, 5] {
            walk(2000, step, 300).for_each(|page| touch(&map, page));
        }
        let stats = world.settled();
        assert_eq!((stats.ahead_pages, stats.ahead_chunks), (0, 0), "{how}: {stats:?}");
        // And back.
        match how {
            0 => map.advise(Advice::Normal).unwrap(),
            _ => map.set_readahead(1 << 20).unwrap(),
        }
        at_leisure(&world.cache, walk(1000, -1, 300), |page| touch(&map, page));
        let stats = world.settled();
        assert!(stats.ahead_used > 250, "{how}: {stats:?}");
    }
}

/// Advice holds for a part of the file, in units of 2 MiB.
#[test]
fn advice_for_a_part_holds_there() {
    let Some(world) = world(8192) else { return };
    let map = world.map();
    map.advise_range(Advice::Random, 0, 1024 * PAGE).unwrap();
    walk(0, 1, 400).for_each(|page| touch(&map, page));
    assert_eq!(world.settled().ahead_pages, 0);
    at_leisure(&world.cache, walk(2048, 1, 400), |page| touch(&map, page));
    let normal = world.settled();
    assert!(normal.ahead_used > 300, "{normal:?}");
    // The first page that is missed is enough, and is all.
    for (advice, first, step) in [(Advice::Sequential, 4096, 1), (Advice::Backward, 7000, -1)] {
        // What was read ahead of the walk before and not used.
        map.advise(Advice::DontNeed).unwrap();
        map.advise_range(advice, 4096 * PAGE, 4096 * PAGE).unwrap();
        let before = world.settled();
        touch(&map, first);
        let begun = world.settled();
        assert!(begun.ahead_pages > before.ahead_pages, "{advice:?}: {begun:?}");
        at_leisure(&world.cache, walk(first, step, 300), |page| touch(&map, page));
        let after = world.settled();
        assert!(after.misses - before.misses < 8, "{advice:?}: {after:?}");
    }
}

#[test]
fn the_window_is_bounded_as_asked() {
    for window in [8usize, 16, 40, 100] {
        let Some(world) = world(20_000) else { return };
        let map = world.map();
        map.set_readahead(window * PAGE).unwrap();
        for (touched, page) in walk(0, 1, 400).enumerate() {
            at_leisure(&world.cache, [page], |page| touch(&map, page));
            let stats = world.stats();
            // A touch brings the whole chunk in, and the window begins behind that.
            let come = (touched as u64 + 1).max(stats.ahead_used);
            assert!(stats.ahead_pages <= come + (window + CHUNK) as u64, "{window}: {touched} touched, {stats:?}");
        }
        let stats = world.settled();
        assert!(stats.ahead_used > 350, "{window}: {stats:?}");
        assert!(stats.ahead_pages - stats.ahead_used <= (window + CHUNK) as u64, "{window}: {stats:?}");
    }
}

/// A long walk comes to large chunks: it traps a few times for a hundred pages.
#[test]
fn windows_grow_while_they_are_used() {
    for step in [1, -1] {
        let Some(world) = world(20_000) else { return };
        let map = world.map();
        at_leisure(&world.cache, walk(10_000, step, 8000), |page| touch(&map, page));
        let stats = world.settled();
        println!("{stats:?}");
        assert!(stats.misses + stats.ahead_chunks < 8000 / 15, "step {step}: {stats:?}");
        assert_eq!(stats.ahead_wasted, 0, "step {step}: {stats:?}");
    }
}

/// As a program reads that takes every second part of a file: what was read ahead of the last part is in nobody's way.
#[test]
fn walks_that_jump_are_read_ahead_of_after_each_jump() {
    const PART: usize = 512;
    for jump in [WINDOW / 2, WINDOW, 3 * WINDOW / 2, PART] {
        let Some(world) = world(24 * (PART + jump)) else { return };
        let map = world.map();
        for part in 0..24 {
            let before = world.settled();
            at_leisure(&world.cache, walk(part * (PART + jump), 1, PART), |page| touch(&map, page));
            let misses = world.settled().misses - before.misses;
            // Until the walk is recognised, and after so many false starts later than at first.
            assert!(misses <= PART as u64 / 8, "{misses} misses in part {part}, jumps of {jump} pages");
        }
    }
}

/// Three neighbours and away, again and again: each may cost a first window, and after a few that nobody came back for, three
/// are no walk any more.
#[test]
fn false_starts_are_not_repeated_for_ever() {
    let Some(world) = world(1 << 20) else { return };
    let map = world.map();
    let mut random = Random::new(seed(5));
    let mut last = world.stats();
    for round in 0..4 {
        for _ in 0..50 {
            walk(random.below(1 << 19) * 2, 1, 3).for_each(|page| touch(&map, page));
        }
        let stats = world.settled();
        println!("{stats:?}");
        assert!(stats.ahead_pages - last.ahead_pages <= 50 * (FIRST + CHUNK) as u64, "{stats:?}");
        if round > 1 {
            assert_eq!(stats.ahead_pages, last.ahead_pages, "round {round}: {stats:?}");
        }
        // What was in vain is known for that by now.
        map.advise(Advice::DontNeed).unwrap();
        last = world.settled();
    }
    // One who goes on is found all the same, and forgiven.
    at_leisure(&world.cache, walk(1000, 1, 1000), |page| touch(&map, page));
    let stats = world.settled();
    assert!(stats.ahead_used - last.ahead_used > 800, "{stats:?}");
}

/// Chunks that nobody comes back for do not keep the staging memory for ever.
#[test]
fn false_starts_do_not_end_reading_ahead() {
    let Some(world) = world(1 << 20) else { return };
    let map = world.map();
    for start in 0..100 {
        at_leisure(&world.cache, walk(start * 5000, 1, 3), |page| touch(&map, page));
    }
    let before = world.settled();
    // It takes some hundred misses until they count as old.
    walk(600_000, 1, 100).for_each(|page| touch(&map, page));
    at_leisure(&world.cache, walk(600_100, 1, 2000), |page| touch(&map, page));
    let after = world.settled();
    println!("{before:?} {after:?}");
    assert!(after.ahead_used - before.ahead_used > 800, "{before:?} {after:?}");
}

/// Random touches of a large file: what neighbours come by chance cost less than a page read in vain for every hundred misses.
#[test]
fn random_touches_are_not_read_ahead_of() {
    let Some(world) = world(1 << 20) else { return };
    let map = world.map();
    let mut random = Random::new(seed(6));
    let touches = 20_000;
    (0..touches).for_each(|_| touch(&map, random.below(1 << 20)));
    let stats = world.settled();
    println!("{stats:?}");
    assert!(stats.misses > touches * 9 / 10);
    assert!(stats.ahead_pages < stats.misses / 100, "{stats:?}");
}

/// Four walks in turn by one thread, in four directions, with a random page after every four.
#[test]
fn walks_in_turn_and_noise_among_them() {
    let Some(world) = world(1 << 20) else { return };
    let map = world.map();
    // What was missed is remembered by processor: moved about, a thread is known later.
    run_on(0);
    let mut random = Random::new(seed(7));
    let count = 400;
    for index in 0..count {
        let at = [100_000 + index, 300_000 - index, 400_000 + 16 * index, 800_000 - 77 * index];
        at_leisure(&world.cache, at, |page| touch(&map, page));
        touch(&map, 900_000 + random.below(100_000));
        world.stats();
    }
    let stats = world.settled();
    println!("{stats:?}");
    let (noise, walked) = (count as u64, 4 * count as u64);
    assert!(stats.misses < noise + walked / 4, "{stats:?}");
    assert!(stats.ahead_used > walked / 2, "{stats:?}");
    // Readers that come late, on a busy machine, read what was walked by then.
    assert!(stats.ahead_wasted < walked / 4, "{stats:?}");
}

/// Walks with one step side by side, as in the runs of a merge. (Those less than 1024 pages apart are not told apart.)
#[test]
fn walks_alike_side_by_side() {
    for apart in [3000, 30_000] {
        let Some(world) = world(1 << 20) else { return };
        let map = world.map();
        let count = 250;
        for index in 0..count {
            at_leisure(&world.cache, (0..4).map(|walk| 1000 + walk * apart + index), |page| touch(&map, page));
        }
        let stats = world.settled();
        println!("{apart} pages apart: {stats:?}");
        assert!(stats.ahead_used > 2 * count as u64, "{apart} pages apart: {stats:?}");
        assert!(
            stats.ahead_wasted + unused(&Stats::default(), &stats) < 4 * (WINDOW + CHUNK) as u64,
            "{apart}: {stats:?}"
        );
    }
}

/// Walks of threads, each its own.
#[test]
fn walks_of_several_threads() {
    let Some(world) = world(1 << 18) else { return };
    let map = world.map();
    let count = 1000;
    std::thread::scope(|scope| {
        for (thread, step) in [1isize, -1, 5, -16].into_iter().enumerate() {
            let (map, world) = (&map, &world);
            scope.spawn(move || {
                for page in walk((2 * thread + 1) << 15, step, count) {
                    at_leisure(&world.cache, [page], |page| touch(map, page));
                    world.stats();
                }
            });
        }
    });
    let stats = world.settled();
    println!("{stats:?}");
    assert!(stats.ahead_used > 2 * count as u64, "{stats:?}");
    assert!(stats.misses < 2 * count as u64, "{stats:?}");
}

/// Caches too small for a buffer read nothing ahead, and work.
#[test]
fn the_smallest_caches_read_nothing_ahead() {
    let Some(world) = world(2000) else { return };
    for pages in [16, 64, 255] {
        let cache = Cache::new(pages * PAGE).unwrap();
        let map = map(&cache, &world.file);
        map.advise(Advice::Sequential).unwrap();
        (0..2000).for_each(|page| touch(&map, page));
        let stats = settle(&cache);
        assert_eq!((stats.ahead_pages, stats.misses), (0, 2000), "{pages}: {stats:?}");
    }
}

/// What a scan leaves behind, in staging memory that is free, does not keep a program out of the cache that comes after it.
#[test]
fn memory_that_was_read_ahead_into_is_given_back() {
    let Some(world) = world(1 << 16) else { return };
    let map = world.map();
    at_leisure(&world.cache, walk(0, 1, 4000), |page| touch(&map, page));
    world.settled();
    // A hot set of nine tenths of the cache, which came to stay.
    map.set_readahead(0).unwrap();
    let hot: Vec<usize> = (0..FRAMES * 9 / 10).map(|index| 20_000 + index * 2741 % 8192).collect();
    for _ in 0..6 {
        hot.iter().for_each(|page| touch(&map, *page));
    }
    let before = world.stats();
    hot.iter().for_each(|page| touch(&map, *page));
    let misses = world.stats().misses - before.misses;
    println!("{misses} misses of {}, {:?}", hot.len(), world.stats());
    assert!(misses < hot.len() as u64 / 4, "{misses} misses of {}", hot.len());
}

/// A cache that was large is a good small one: what it read ahead into is not what is left of it.
#[test]
fn a_cache_that_shrinks_gives_up_what_it_read_ahead_into() {
    let Some(world) = world(1 << 16) else { return };
    let map = world.map();
    world.cache.resize(64 << 20).unwrap();
    walk(0, 1, 30_000).for_each(|page| touch(&map, page));
    settle(&world.cache);
    world.cache.resize(1 << 20).unwrap();
    map.set_readahead(0).unwrap();
    // Half of what it holds.
    let hot: Vec<usize> = (0..128).map(|index| 50_000 + index * 37).collect();
    for _ in 0..3 {
        hot.iter().for_each(|page| touch(&map, *page));
    }
    let before = world.cache.stats().misses;
    hot.iter().for_each(|page| touch(&map, *page));
    let misses = world.cache.stats().misses - before;
    assert!(misses <= 4, "{misses} misses of {}, {:?}", hot.len(), world.cache.stats());
}
