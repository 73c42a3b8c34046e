//! Hit ratios of small traces, told by the counters. Each ratio is compared with two policies that are computed here from the
//! trace alone: first in, first out, and the best there can be (Belady: evict the page whose next touch is farthest).

use crate::common::*;
use fastmap::{Advice, Cache, Map};
use std::collections::{BTreeSet, HashMap, HashSet, VecDeque};

const FRAMES: usize = 1024;

/// A cache of [`FRAMES`] pages and a map of a file of four times as many.
fn world() -> Option<(tempfile::TempDir, Cache, Map)> {
    if !ready() {
        return None;
    }
    let folder = folder();
    let file = create(&folder.path().join("file"), &pattern(4 * FRAMES * PAGE));
    let cache = Cache::new(FRAMES * PAGE).unwrap();
    let map = map(&cache, &file);
    // Pages read ahead would blur what replacement does.
    map.advise(Advice::Random).unwrap();
    Some((folder, cache, map))
}

/// Puts neighbours apart.
fn scattered(page: usize) -> usize {
    page * 2741 % (4 * FRAMES)
}

/// Hits among the last half of a trace that begins with an empty cache of [`FRAMES`] pages, first in, first out.
fn first_in_first_out(trace: &[usize]) -> usize {
    let (mut queue, mut there, mut hits) = (VecDeque::new(), HashSet::new(), 0);
    for (time, &page) in trace.iter().enumerate() {
        if there.insert(page) {
            queue.push_back(page);
            if queue.len() > FRAMES {
                there.remove(&queue.pop_front().unwrap());
            }
        } else if time >= trace.len() / 2 {
            hits += 1;
        }
    }
    hits
}

/// Hits among the last half of a trace that begins with an empty cache, at best.
fn at_best(trace: &[usize]) -> usize {
    let (mut later, mut next) = (HashMap::new(), vec![usize::MAX; trace.len()]);
    for (time, &page) in trace.iter().enumerate().rev() {
        next[time] = later.insert(page, time).unwrap_or(usize::MAX - page);
    }
    // The pages in memory, by the time of their next touch. A page that is never touched again has a time of its own.
    let (mut there, mut hits) = (BTreeSet::new(), 0);
    for (time, next) in next.into_iter().enumerate() {
        if there.remove(&time) {
            hits += usize::from(time >= trace.len() / 2);
        }
        there.insert(next);
        if there.len() > FRAMES {
            there.pop_last();
        }
    }
    hits
}

#[test]
fn the_yardsticks_are_right() {
    let twice_around = |pages: usize| (0..4).flat_map(|_| 0..pages).collect::<Vec<_>>();
    assert_eq!(first_in_first_out(&twice_around(FRAMES)), 2 * FRAMES);
    assert_eq!(first_in_first_out(&twice_around(FRAMES + 1)), 0);
    assert_eq!(at_best(&twice_around(FRAMES)), 2 * FRAMES);
    // Of a loop that is one page too large, one page a round is missed, but for the round that the end cuts short.
    let hits = at_best(&twice_around(FRAMES + 1));
    assert!((2 * FRAMES..=2 * FRAMES + 1).contains(&hits), "{hits}");
}

/// Touches pages, so many to warm up and as many again; per cent of the latter that found their page in memory.
fn hits(cache: &Cache, map: &Map, touches: usize, mut next: impl FnMut() -> usize) -> f64 {
    let expected = pattern(map.len());
    let was_empty = cache.stats().resident_pages == 0;
    let (mut misses, mut trace) = (0, Vec::new());
    for _ in 0..2 {
        misses = cache.stats().misses;
        for _ in 0..touches {
            let page = next();
            trace.push(page);
            let at = scattered(page) * PAGE + 123;
            assert_eq!(map[at], expected[at]);
        }
    }
    let stats = cache.stats();
    let percent = |hits: usize| 100.0 * hits as f64 / touches as f64;
    let hits = 100.0 - percent((stats.misses - misses) as usize);
    let (naive, best) = (percent(first_in_first_out(&trace)), percent(at_best(&trace)));
    println!("{hits:.1} % of {touches} touches; first in, first out: {naive:.1}; at best: {best:.1}; {stats:?}");
    assert!(stats.resident_pages <= FRAMES as u64);
    assert!(!was_empty || hits <= best + 0.5, "more than there can be: {hits:.1} of {best:.1}");
    hits
}

#[test]
fn a_hot_set_survives_a_scan() {
    let Some((_folder, cache, map)) = world() else { return };
    let mut random = Random::new(seed(3));
    let mut scan = 0;
    // Half of the touches to half as many pages as fit, half to one page after the other.
    let found = hits(&cache, &map, 24 * FRAMES, || {
        if random.below(2) == 0 {
            return random.below(FRAMES / 2);
        }
        scan = (scan + 1) % (4 * FRAMES);
        scan
    });
    assert!(found > 54.0, "first in, first out: 36; found: {found}");
}

#[test]
fn of_a_loop_larger_than_the_cache_what_fits_is_kept() {
    for (eighths, least) in [(9, 75.0), (10, 67.0), (12, 54.0), (16, 38.0), (28, 20.0)] {
        let Some((_folder, cache, map)) = world() else { return };
        let found = hits(&cache, &map, 24 * FRAMES, sequence(FRAMES * eighths / 8));
        let best = 800.0 / eighths as f64;
        assert!(found > least, "{eighths} eighths, first in, first out: 0; at best: {best:.0}; found: {found}");
    }
}

/// The part that was kept of the first loop makes room.
#[test]
fn another_loop_is_kept_after_it() {
    let Some((_folder, cache, map)) = world() else { return };
    hits(&cache, &map, 12 * FRAMES, sequence(FRAMES * 5 / 4));
    let mut next = sequence(FRAMES * 5 / 4);
    let found = hits(&cache, &map, 12 * FRAMES, || 2 * FRAMES + next());
    assert!(found > 60.0, "first in, first out: 0; found: {found}");
}

/// Runs something on one processor: a thread that moves leaves pages in the other's queues, and these are told from its own by age only once
/// memory has been full. It runs in a thread of its own, since another test may run in this one.
fn on_one_processor(run: impl FnOnce() + Send) {
    std::thread::scope(|scope| {
        let thread = scope.spawn(|| {
            assert!(run_on(0));
            run();
        });
        thread.join().unwrap();
    });
}

/// After a loop the cache serves what comes then.
#[test]
fn a_loop_is_over_when_it_is() {
    let Some((_folder, cache, map)) = world() else { return };
    on_one_processor(|| {
        let looped = hits(&cache, &map, 10 * FRAMES, sequence(2 * FRAMES));
        let mut random = Random::new(5);
        let fits = hits(&cache, &map, 4 * FRAMES, || 3 * FRAMES + random.below(FRAMES * 3 / 4));
        // 98.8, the same each time; 97.5 if a loop never ends.
        assert!(looped > 30.0 && fits > 98.0, "{looped}, then {fits}");
    });
}

/// The walk's frames of 2 MiB and its buffers too.
#[test]
fn of_a_walk_that_comes_round_what_fits_is_kept() {
    if !ready() {
        return;
    }
    const FITS: usize = 32 * 1024;
    let folder = folder();
    let file = create(&folder.path().join("file"), &pattern(FITS * 5 / 4 * PAGE));
    let expected = pattern(FITS * 5 / 4 * PAGE);
    for is_writable in [false, true] {
        let cache = Cache::new(FITS * PAGE).unwrap();
        let maps = (map(&cache, &file), is_writable.then(|| map_mut(&cache, &file)));
        let read = || {
            let stats = cache.stats();
            stats.misses + stats.ahead_pages + stats.run_pages
        };
        let mut before = 0;
        for round in 0..24 {
            if round == 12 {
                before = read();
            }
            for page in 0..FITS * 5 / 4 {
                let at = page * PAGE + page % PAGE;
                assert_eq!(maps.0[at], expected[at]);
            }
        }
        let read = (read() - before) as f64 / (12 * FITS * 5 / 4) as f64;
        println!("writable {is_writable}: {:.0} % read anew, {:?}", 100.0 * read, cache.stats());
        assert!(read < 0.45, "at best 0.2; writable {is_writable}: {read}");
    }
}

#[test]
fn random_touches_hit_as_often_as_pages_are_there() {
    let Some((_folder, cache, map)) = world() else { return };
    let mut random = Random::new(seed(4));
    let found = hits(&cache, &map, 16 * FRAMES, || random.below(4 * FRAMES));
    assert!((23.0..27.0).contains(&found), "a quarter of the file is in memory; found: {found}");
}

#[test]
fn a_hot_set_that_moves_is_let_go() {
    let Some((_folder, cache, map)) = world() else { return };
    let mut random = Random::new(seed(5));
    let mut done = 0;
    // As `fastmap bench replacement` has it: the old window must not stay for having been wanted once.
    let found = hits(&cache, &map, 32 * FRAMES, || {
        let start = done / (8 * FRAMES) * (FRAMES / 2);
        done += 1;
        if random.below(10) > 0 { (start + random.below(FRAMES / 2)) % (4 * FRAMES) } else { random.below(4 * FRAMES) }
    });
    assert!(found > 82.0, "first in, first out: 85; found: {found}");
}

#[test]
fn a_thread_that_moved_to_another_processor_gets_the_room_it_had() {
    let Some((_folder, cache, map)) = world() else { return };
    std::thread::scope(|scope| {
        let (cache, map) = (&cache, &map);
        let filler = scope.spawn(move || run_on(0) && hits(cache, map, FRAMES, sequence(2 * FRAMES)) < 1.0);
        filler.join().unwrap();
        scope.spawn(move || {
            if !run_on(1) {
                return skip("one processor");
            }
            // Pages that fit, others than those that lie in the first processor's queues.
            let mut next = sequence(FRAMES * 3 / 4);
            let found = hits(cache, map, 8 * FRAMES, || 2 * FRAMES + next());
            assert!(found > 90.0, "they fit into memory; found: {found}");
        });
    });
}

fn sequence(pages: usize) -> impl FnMut() -> usize + Send {
    let mut next = 0;
    move || {
        next = (next + 1) % pages;
        next
    }
}

/// A list that comes back soon after it was evicted is kept, though a stream brings it: it is read backward, as only streams are.
#[test]
fn a_list_that_a_stream_brings_is_kept_if_it_comes_back() {
    const LIST: usize = FRAMES / 16;
    let Some((_folder, cache, map)) = world() else { return };
    map.advise_range(Advice::Normal, 0, FRAMES * PAGE).unwrap();
    let expected = pattern(map.len());
    let check = |page: usize| assert_eq!(map[page * PAGE + 123], expected[page * PAGE + 123]);
    let brought = || {
        let stats = settle(&cache);
        (stats.misses + stats.ahead_used) as usize
    };
    let read = || {
        let before = brought();
        (0..LIST).rev().for_each(check);
        brought() - before
    };
    // Others, each once, behind the list: nothing of them is read ahead.
    let mut others = sequence(3 * FRAMES);
    let mut touch = |count: usize| (0..count).for_each(|_| check(FRAMES + others()));
    on_one_processor(|| {
        read();
        touch(FRAMES + FRAMES / 8);
        let again = read();
        assert!(again > LIST / 2, "it is not in memory: {again} pages came");
        touch(FRAMES + FRAMES / 8);
        let kept = LIST - read().min(LIST);
        assert!(kept > LIST / 2, "{kept} of {LIST} pages were kept");
    });
}

#[test]
fn pages_dropped_on_advice_leave_no_ghosts() {
    let Some((_folder, cache, map)) = world() else { return };
    map.set_readahead(0).unwrap();
    for _ in 0..3 {
        assert!((0..FRAMES / 2).map(|page| usize::from(map[page * PAGE])).sum::<usize>() > 0);
        map.advise_range(Advice::DontNeed, 0, FRAMES / 2 * PAGE).unwrap();
    }
    let stats = cache.stats();
    assert_eq!((stats.ghost_hits, stats.misses), (0, 3 * FRAMES as u64 / 2));
    map.set_readahead(8 << 20).unwrap();
    for _ in 0..3 {
        assert!((0..FRAMES / 2).map(|page| usize::from(map[page * PAGE])).sum::<usize>() > 0);
        map.advise_range(Advice::DontNeed, 0, FRAMES / 2 * PAGE).unwrap();
    }
    assert_eq!(cache.stats().ghost_hits, 0, "of pages read ahead");
}
