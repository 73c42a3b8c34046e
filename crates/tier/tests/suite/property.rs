//! Random work against a shadow: what is read is what was put there, or nothing.

use crate::common::*;
use fastmap_tier::{Local, Tier, UNIT};
use proptest::prelude::*;
use std::sync::Arc;

const LIMIT: u64 = 16 * MIB;
const OBJECTS: u64 = 3;
const UNITS: u64 = 50;

#[derive(Debug, Clone)]
enum Step {
    Put { object: usize, unit: u64 },
    Read { object: usize, unit: u64, first: u64, pages: u64 },
    Claim { object: usize, unit: u64 },
    Remove { object: usize },
    NewVersion { object: usize },
    Reopen,
    Verify,
}

fn step() -> impl Strategy<Value = Step> {
    let (object, unit) = (0..OBJECTS as usize, 0..UNITS);
    prop_oneof![
        40 => (object.clone(), unit.clone()).prop_map(|(object, unit)| Step::Put { object, unit }),
        60 => (object.clone(), unit.clone(), 0..64_u64, 1..64_u64)
            .prop_map(|(object, unit, first, pages)| Step::Read { object, unit, first, pages }),
        4 => (object.clone(), unit).prop_map(|(object, unit)| Step::Claim { object, unit }),
        1 => object.clone().prop_map(|object| Step::Remove { object }),
        1 => object.prop_map(|object| Step::NewVersion { object }),
        1 => Just(Step::Reopen),
        1 => Just(Step::Verify),
    ]
}

struct World {
    tier: Arc<Tier>,
    locals: Vec<Arc<Local>>,
}

impl World {
    fn new(folder: &std::path::Path, etags: &[u64]) -> Self {
        let tier = tier(folder, LIMIT);
        let local =
            |(number, etag): (usize, &u64)| tier.local(&object(number as u64, *etag, UNITS * UNIT - 77)).unwrap();
        World { locals: etags.iter().enumerate().map(local).collect(), tier }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: quick_or_full(12, 150), failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn what_is_there_is_what_was_put_there(steps in prop::collection::vec(step(), 100..500)) {
        let folder = folder();
        let mut etags = vec![0; OBJECTS as usize];
        let mut world = World::new(folder.path(), &etags);
        // For each unit whether it was put there, into this version; it may have gone since.
        let mut shadow = vec![[false; UNITS as usize]; OBJECTS as usize];
        for step in steps {
            match step {
                Step::Put { object, unit } => {
                    put(&world.locals[object], unit).unwrap();
                    shadow[object][unit as usize] = true;
                    // Nothing else has begun since: it must be there.
                    prop_assert!(read_unit(&world.locals[object], unit));
                }
                Step::Read { object, unit, first, pages } => {
                    let is_there = read(&world.locals[object], unit, first..(first + pages).min(64)).is_some();
                    prop_assert!(shadow[object][unit as usize] || !is_there);
                }
                Step::Claim { object, unit } => {
                    let lock = world.locals[object].claim(unit);
                    prop_assert!(lock.is_some() && world.locals[object].claim(unit).is_none());
                }
                Step::Remove { object } => {
                    let url = world.locals[object].version().url.clone();
                    world.tier.remove(Some(&url)).unwrap();
                    prop_assert!(there(&world.locals[object]).is_empty());
                    shadow[object] = [false; UNITS as usize];
                }
                Step::NewVersion { object: number } => {
                    etags[number] += 1;
                    let new = object(number as u64, etags[number], UNITS * UNIT - 77);
                    world.locals[number] = world.tier.local(&new).unwrap();
                    shadow[number] = [false; UNITS as usize];
                }
                Step::Reopen => {
                    drop(world);
                    world = World::new(folder.path(), &etags);
                }
                Step::Verify => prop_assert_eq!(world.tier.verify().unwrap().wrong, 0),
            }
            for (local, shadow) in world.locals.iter().zip(&shadow) {
                prop_assert!(there(local).iter().all(|unit| shadow[*unit as usize]));
                prop_assert_eq!(local.stats().wrong, 0);
            }
            prop_assert!(on_disk(folder.path()) <= LIMIT && world.tier.used() <= LIMIT);
        }
        drop(world);
        check(folder.path(), LIMIT);
    }
}
