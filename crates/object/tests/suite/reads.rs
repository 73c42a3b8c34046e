//! What is read of an object is what is in it, however it is read; and no more is fetched than that is worth.

use crate::common::*;
use fastmap::Cache;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

#[test]
fn of_any_length() {
    if !ready() {
        return;
    }
    for len in [1, 100, PAGE - 1, PAGE, UNIT - 1, UNIT, UNIT + 1, 5 * MIB + 123] {
        let bytes = pattern(len);
        let (store, _folder, tier) = store_with(&bytes);
        let map = open(&tier, &store.url("/object"));
        assert_eq!(map.len(), len);
        assert!(map[..] == bytes[..], "{len}");
        let mut copy = vec![0; len];
        map.read_at(&mut copy, 0).unwrap();
        assert!(copy == **bytes, "{len}");
        assert_eq!(map.stats().fetched, len as u64, "{:?}", map.stats());
    }
}

#[test]
fn an_empty_one_says_so() {
    if !ready() {
        return;
    }
    let (store, _folder, tier) = store_with(&Arc::default());
    let object = options(&tier).open(&store.url("/object")).unwrap();
    assert!(object.is_empty());
    println!("{:?}", options(&tier).map(&store.url("/object")));
}

#[test]
fn a_second_time_nothing_is_fetched() {
    if !ready() {
        return;
    }
    let bytes = pattern(3 * MIB);
    let (store, _folder, tier) = store_with(&bytes);
    let first = open(&tier, &store.url("/object"));
    assert!(first[..] == bytes[..]);
    // Beside it, by a map of its own, and after it.
    let beside = open(&tier, &store.url("/object"));
    assert!(beside[..] == bytes[..]);
    drop((first, beside));
    let after = open(&tier, &store.url("/object"));
    assert!(after[..] == bytes[..]);
    let stats = after.stats();
    assert_eq!((stats.fetched, store.sent()), (0, 3 * MIB as u64));
    assert!(stats.hit >= 3 * MIB as u64, "{stats:?}");
}

#[test]
fn at_random_a_unit_is_fetched_for_each() {
    if !ready() {
        return;
    }
    let bytes = pattern(64 * MIB);
    let (store, _folder, tier) = store_with(&bytes);
    let map = open(&tier, &store.url("/object"));
    let mut random = Random::new(seed(3));
    for _ in 0..100 {
        let at = random.below(64 * MIB / PAGE) * PAGE;
        assert_eq!(map[at..at + PAGE], bytes[at..at + PAGE]);
    }
    let fetched = map.stats().fetched as usize;
    assert!(fetched <= 2 * 100 * UNIT, "{fetched}");
}

#[test]
fn a_gather_is_one_round_trip() {
    if !ready() {
        return;
    }
    let bytes = pattern(64 * MIB);
    let (store, _folder, tier) = store_with(&bytes);
    store.settings().latency = std::time::Duration::from_millis(100);
    let map = open(&tier, &store.url("/object"));
    let ranges: Vec<(usize, usize)> = (0..40).map(|row| (row * MIB + row * 5000, 3000)).collect();
    let mut rows = vec![0; 40 * 3000];
    let begun = Instant::now();
    map.gather(&ranges, &mut rows).unwrap();
    let took = begun.elapsed();
    for (row, (at, len)) in rows.chunks(3000).zip(ranges) {
        assert_eq!(row, &bytes[at..at + len]);
    }
    // One after another they would take four seconds, at the least.
    assert!(took.as_secs_f64() < 2.0, "{took:?}");
}

#[test]
fn walks_are_fetched_ahead() {
    if !ready() {
        return;
    }
    let bytes = pattern(24 * MIB);
    for is_forward in [true, false] {
        let (store, _folder, tier) = store_with(&bytes);
        store.settings().latency = std::time::Duration::from_millis(20);
        let map = open(&tier, &store.url("/object"));
        let begun = Instant::now();
        let pages = bytes.len() / PAGE;
        for page in 0..pages {
            let page = if is_forward { page } else { pages - 1 - page };
            assert_eq!(map[page * PAGE..][..PAGE], bytes[page * PAGE..][..PAGE], "{page}");
        }
        let (took, stats) = (begun.elapsed(), map.stats());
        println!("forward: {is_forward}: {took:?}, {stats:?}");
        assert_eq!(stats.fetched as usize, bytes.len());
        // A round trip for each unit would be 1.92 s.
        assert!(took.as_secs_f64() < 1.5, "forward: {is_forward}: {took:?}");
    }
}

#[test]
fn property_of_reads_by_threads_through_a_tiny_tier() {
    if !ready() {
        return;
    }
    let bytes = pattern(40 * MIB + 777);
    let store = crate::store::Store::start();
    store.put("/object", &bytes);
    let folder = folder();
    let tier = tier(folder.path(), 16 * MIB);
    let mut options = options(&tier);
    options.cache(&Cache::new(MIB).unwrap());
    let map = options.map(&store.url("/object")).unwrap();
    let seed = seed(5);
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for thread in 0..4 {
            let (map, bytes, stop) = (&map, &bytes, &stop);
            scope.spawn(move || {
                let mut random = Random::new(seed + thread);
                while !stop.load(Ordering::Relaxed) {
                    read_somehow(map, bytes, &mut random);
                }
            });
        }
        std::thread::sleep(2 * under_load());
        stop.store(true, Ordering::Relaxed);
    });
    println!("{:?}, {} of {}", map.stats(), tier.used(), tier.limit());
    assert!(tier.used() <= tier.limit());
}

fn read_somehow(map: &fastmap::Map, bytes: &[u8], random: &mut Random) {
    let len = [1, 100, PAGE, 3 * PAGE, UNIT, MIB][random.below(6)];
    let at = random.below(bytes.len() - len);
    match random.below(5) {
        0 => assert!(map[at..at + len] == bytes[at..at + len], "{at} {len}"),
        1 => {
            let mut copy = vec![0; len];
            map.read_at(&mut copy, at).unwrap();
            assert!(copy == bytes[at..at + len], "{at} {len}");
        }
        2 => {
            let len = len.min(PAGE);
            let pinned = map.pin(at, len).unwrap();
            assert!(pinned[..] == bytes[at..at + len], "{at} {len}");
        }
        3 => {
            let ranges: Vec<_> = (0..8).map(|_| (random.below(bytes.len() - 64), 64)).collect();
            let mut rows = [0; 8 * 64];
            map.gather(&ranges, &mut rows).unwrap();
            for (row, (at, len)) in rows.chunks(64).zip(ranges) {
                assert_eq!(row, &bytes[at..at + len]);
            }
        }
        _ => {
            // A walk, forward or backward, of single bytes.
            let steps = random.below(40);
            for step in 0..steps {
                let at =
                    if at & 1 == 0 { (at + step * PAGE).min(bytes.len() - 1) } else { at.saturating_sub(step * PAGE) };
                assert_eq!(map[at], bytes[at], "{at}");
            }
        }
    }
}
