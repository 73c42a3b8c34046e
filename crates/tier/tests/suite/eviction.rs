//! The limit holds at every moment, whoever fills; and what goes first when there is no room is what is least likely to be read again.

use crate::common::*;
use fastmap_tier::UNIT;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

const LIMIT: u64 = 16 * MIB;

#[test]
fn the_oldest_goes_first() {
    let folder = folder();
    let tier = tier(folder.path(), LIMIT);
    let object = object(1, 1, 400 * UNIT);
    let local = tier.local(&object).unwrap();
    for unit in 0..400 {
        put(&local, unit).unwrap();
        // One that is read now and then stays, be it for this alone.
        if unit % 8 == 0 {
            assert!(read(&local, 0, 0..1).is_some());
        }
        assert!(tier.used() <= LIMIT && on_disk(folder.path()) <= LIMIT);
    }
    let there = there(&local);
    let kept = there.len() as u64;
    assert!(kept > LIMIT / UNIT * 8 / 10 && there[0] == 0);
    assert!(there[1..].iter().eq((401 - kept..400).collect::<Vec<_>>().iter()), "{there:?}");
    // All that went was never read, but what was read of the first unit.
    assert_eq!(local.stats().wasted, (400 - kept) * UNIT);
    assert_eq!((local.stats().wrong, local.touched(0..UNIT), local.touched(UNIT..2 * UNIT)), (0, PAGE, 0));
}

#[test]
fn what_was_read_twice_outlives_a_scan() {
    let folder = folder();
    let tier = tier(folder.path(), LIMIT);
    let hot = tier.local(&object(1, 1, 24 * UNIT)).unwrap();
    (0..24).for_each(|unit| put(&hot, unit).unwrap());
    for _ in 0..2 {
        (0..24).for_each(|unit| assert!(read_unit(&hot, unit)));
    }
    let units = 3 * LIMIT / UNIT;
    let scanned = tier.local(&object(2, 1, units * UNIT)).unwrap();
    for unit in 0..units {
        put(&scanned, unit).unwrap();
        // As the engine does, in several reads.
        (0..4).for_each(|part| assert!(read(&scanned, unit, part * 16..(part + 1) * 16).is_some()));
    }
    assert!(there(&hot).len() >= 22, "{:?}", there(&hot));
    // What is read twice now takes their place.
    for unit in 0..units {
        if !read_unit(&scanned, unit) {
            put(&scanned, unit).unwrap();
        }
        assert!(read_unit(&scanned, unit) && read_unit(&scanned, unit));
    }
    assert!(there(&hot).len() <= 2, "{:?}", there(&hot));
}

#[test]
fn a_copy_that_nobody_has_open_gives_way_and_goes() {
    let folder = folder();
    let tier = tier(folder.path(), LIMIT);
    for number in 0..100 {
        let local = tier.local(&object(number, 1, 2 * UNIT)).unwrap();
        put(&local, 0).unwrap();
        put(&local, 1).unwrap();
        assert!(on_disk(folder.path()) <= LIMIT);
    }
    let listed = tier.list().unwrap();
    assert!(listed.len() < 40 && listed.len() > 20, "{}", listed.len());
    assert!(listed.iter().any(|one| one.version.url.ends_with("/99")));
}

#[test]
fn an_object_far_larger_than_the_limit_leaves_nothing_in_the_index() {
    let folder = folder();
    let tier = tier(folder.path(), LIMIT);
    let local = tier.local(&object(1, 1, 1 << 40)).unwrap();
    let mut random = Random::new(5);
    for _ in 0..quick_or_full(1500, 6000) {
        let unit = random.below_u64(local.units());
        put(&local, unit).unwrap();
        assert!(on_disk(folder.path()) <= LIMIT);
    }
    // Each that is there has a page of checksums and one of states of its own; nothing else has.
    let index = std::fs::metadata(&files(folder.path(), "index")[0]).unwrap();
    let left = there(&local).len() as u64;
    assert!(left > LIMIT / UNIT * 8 / 10, "{left}");
    assert!(index.blocks() * 512 <= (left * 3 + 8) * PAGE, "{} bytes for {left} units", index.blocks() * 512);
}

#[test]
fn of_two_limits_the_smaller_holds_while_it_is_in_use() {
    let folder = folder();
    let large = tier(folder.path(), 64 * MIB);
    let local = large.local(&object(1, 1, 1000 * UNIT)).unwrap();
    (0..150).for_each(|unit| put(&local, unit).unwrap());
    assert_eq!(there(&local).len(), 150);
    let small = tier(folder.path(), LIMIT);
    assert_eq!((small.limit(), large.limit()), (LIMIT, LIMIT));
    assert!(on_disk(folder.path()) <= LIMIT && !there(&local).is_empty());
    (200..300).for_each(|unit| put(&local, unit).unwrap());
    assert!(on_disk(folder.path()) <= LIMIT && large.used() <= LIMIT);
    drop(small);
    (300..450).for_each(|unit| put(&local, unit).unwrap());
    assert!(there(&local).len() >= 150 && large.limit() == 64 * MIB);
}

const FILLING: &str = "eviction::the_limit_holds_while_processes_and_threads_fill";
const OBJECTS: u64 = 3;
const UNITS: u64 = 100;

/// Fills, reads and claims at random; what is read must be right.
pub fn work(folder: &Path, limit: u64, seed: u64, stop: &AtomicBool) {
    let tier = tier(folder, limit);
    let locals: Vec<_> = (0..OBJECTS).map(|number| tier.local(&object(number, 1, UNITS * UNIT)).unwrap()).collect();
    std::thread::scope(|scope| {
        for thread in 0..8 {
            let locals = &locals;
            scope.spawn(move || {
                let mut random = Random::new(seed * 100 + thread);
                while !stop.load(Ordering::Relaxed) {
                    let local = &locals[random.below_u64(OBJECTS) as usize];
                    // Some more often than others.
                    let unit = random.below_u64(UNITS).min(random.below_u64(UNITS));
                    match random.below_u64(3) {
                        0 => drop(read(local, unit, random.below_u64(32)..32 + random.below_u64(33))),
                        1 => put(local, unit).unwrap(),
                        _ => match local.claim(unit) {
                            Some(_lock) => put(local, unit).unwrap(),
                            None => drop(local.wait(unit, Duration::from_millis(50))),
                        },
                    }
                }
            });
        }
    });
    // Bytes that were evicted and put there again while they were read are not taken for wrong ones.
    assert!(locals.iter().all(|local| local.stats().wrong == 0));
}

#[test]
fn the_limit_holds_while_processes_and_threads_fill() {
    if let Some((seed, on)) = role() {
        let stop = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while !on.join("stop").exists() {
                    std::thread::sleep(Duration::from_millis(5));
                }
                stop.store(true, Ordering::Relaxed);
            });
            work(&on, LIMIT, seed.parse().unwrap(), &stop);
        });
        return;
    }
    let folder = folder();
    drop(tier(folder.path(), LIMIT));
    let mut children: Vec<_> = (1..=4).map(|seed| child(FILLING, &seed.to_string(), folder.path())).collect();
    let (begun, mut looks, mut most) = (Instant::now(), 0, 0);
    while looks < 100 || most < LIMIT / 2 || begun.elapsed() < 2 * under_load() {
        most = most.max(on_disk_meanwhile(folder.path()));
        looks += 1;
        assert!(most <= LIMIT, "{most} bytes after {looks} looks");
        assert!(children.iter_mut().all(|one| one.0.try_wait().unwrap().is_none()), "a child has ended");
        std::thread::yield_now();
    }
    std::fs::write(folder.path().join("stop"), "").unwrap();
    children.iter_mut().for_each(Running::succeeds);
    check(folder.path(), LIMIT);
}

/// The time is not asserted. Most of the units are only said to be there; those that go are.
#[test]
fn among_100_000_units_the_oldest_are_found() {
    let folder = folder();
    let (units, real) = (100_000, 150);
    let object = object(1, 1, 2 * units * UNIT);
    // What is counted for a unit: its bytes and a page; and the index.
    let limit = (units + 10) * (UNIT + PAGE) + 4 * MIB;
    let local = tier(folder.path(), limit).local(&object).unwrap();
    let bytes = vec![1; UNIT as usize];
    let begun = Instant::now();
    (0..real).for_each(|at| local.put(2 * at, &bytes).unwrap());
    println!("other puts took {:?} each", begun.elapsed() / real as u32);
    // As those have been that are the oldest: what is dirty is written before its blocks can go.
    local.file().sync_all().unwrap();
    drop(local);
    // Not side by side. Present, and used when the last of the others was.
    let index = std::fs::File::options().write(true).open(&files(folder.path(), "index")[0]).unwrap();
    let mut records = vec![0; 32 * (units - real) as usize];
    for record in records.chunks_mut(32) {
        record[0] = 8 + 2;
        record[4..8].copy_from_slice(&(real as u32).to_le_bytes());
    }
    index.write_all_at(&records, PAGE + 32 * real).unwrap();
    let tier = tier(folder.path(), limit);
    let local = tier.local(&object).unwrap();
    assert_eq!((there(&local).len() as u64, tier.limit()), (units, limit));
    let (mut unit, mut longest) = (2 * units - 1, Duration::ZERO);
    while there(&local)[0] == 0 {
        let begun = Instant::now();
        local.put(unit, &bytes).unwrap();
        longest = longest.max(begun.elapsed());
        unit -= 2;
    }
    println!("the put that evicted took {longest:?}");
    let gone = real - there(&local).iter().filter(|unit| **unit < 2 * real).count() as u64;
    assert!(gone >= 40 && there(&local)[0] == 2 * gone, "{gone}");
}
