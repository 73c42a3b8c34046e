//! Whenever processes that fill a folder are killed, nothing in it is wrong, nothing is locked, and what is there is counted right.

use crate::common::*;
use crate::eviction::work;
use fastmap_tier::UNIT;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

const LIMIT: u64 = 16 * MIB;
const FILLING: &str = "killed::while_they_fill";

#[test]
fn while_they_fill() {
    if let Some((seed, on)) = role() {
        return work(&on, LIMIT, seed.parse().unwrap(), &AtomicBool::new(false));
    }
    let folder = folder();
    let mut random = Random::new(3);
    drop(tier(folder.path(), LIMIT));
    // One lives on, and goes on filling.
    let mut survivor = child(FILLING, "77", folder.path());
    for round in 0..quick_or_full(20, 200) {
        let count = 1 + round % 3;
        let mut children: Vec<_> =
            (0..count).map(|at| child(FILLING, &(round * 10 + at).to_string(), folder.path())).collect();
        std::thread::sleep(Duration::from_micros(20_000 + random.below_u64(60_000)));
        children.iter_mut().for_each(Running::kill);
        assert!(on_disk_meanwhile(folder.path()) <= LIMIT, "round {round}");
        assert!(survivor.0.try_wait().unwrap().is_none(), "it met no error");
        if round % 5 == 4 {
            survivor.kill();
            check(folder.path(), LIMIT);
            // Every unit can be claimed and filled again.
            let tier = tier(folder.path(), LIMIT);
            let local = tier.local(&object(0, 1, 100 * UNIT)).unwrap();
            for unit in 0..100 {
                assert!(local.claim(unit).is_some());
                put(&local, unit).unwrap();
                assert!(read_unit(&local, unit) && on_disk(folder.path()) <= LIMIT);
            }
            drop((local, tier));
            survivor = child(FILLING, "77", folder.path());
        }
    }
    survivor.kill();
    check(folder.path(), LIMIT);
}

const CLAIMING: &str = "killed::the_lock_of_a_unit_goes_with_its_process";

#[test]
fn the_lock_of_a_unit_goes_with_its_process() {
    let object = object(1, 1, 8 * UNIT);
    if let Some((_, on)) = role() {
        let local = tier(&on, LIMIT).local(&object).unwrap();
        let _lock = local.claim(5).unwrap();
        put(&local, 4).unwrap();
        loop {
            std::thread::park();
        }
    }
    let folder = folder();
    let mut claiming = child(CLAIMING, "claim", folder.path());
    let local = tier(folder.path(), LIMIT).local(&object).unwrap();
    until("the child has claimed it", || local.has(4 * UNIT..5 * UNIT));
    assert!(local.claim(5).is_none() && local.claim(4).is_some());
    claiming.kill();
    let lock = local.claim(5).unwrap();
    put(&local, 5).unwrap();
    drop(lock);
    assert!(read_unit(&local, 5));
}
