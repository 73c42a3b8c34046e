//! Flipped bits, damaged indexes, and what a power failure leaves: at worst it is fetched again.

use crate::common::*;
use fastmap_tier::{Local, UNIT};
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;

const LIMIT: u64 = 64 * MIB;
const UNITS: u64 = 40;

/// What becomes of something.
type Damage<T> = (&'static str, fn(&T));

/// A copy of one object in which everything is there, closed.
fn full(folder: &Path) -> fastmap_tier::Version {
    let object = object(1, 1, UNITS * UNIT - 1000);
    let local = tier(folder, LIMIT).local(&object).unwrap();
    (0..UNITS).for_each(|unit| put(&local, unit).unwrap());
    object
}

fn open(folder: &Path, kind: &str) -> File {
    File::options().read(true).write(true).open(&files(folder, kind)[0]).unwrap()
}

/// Whatever is there is right or missing; what is missing can be put there; and everything is there then.
fn heals(folder: &Path, object: &fastmap_tier::Version) -> Arc<Local> {
    let local = tier(folder, LIMIT).local(object).unwrap();
    for unit in 0..UNITS {
        if !read_unit(&local, unit) {
            assert!(!local.has(unit * UNIT..(unit + 1) * UNIT), "what is wrong is absent");
            put(&local, unit).unwrap();
            assert!(read_unit(&local, unit));
        }
    }
    assert!(local.has(0..object.len));
    local
}

#[test]
fn flipped_bits_are_found_counted_and_brought_anew() {
    let folder = folder();
    let object = full(folder.path());
    let data = open(folder.path(), "data");
    let mut random = Random::new(1);
    let mut flipped = std::collections::BTreeSet::new();
    for _ in 0..12 {
        let at = random.below_u64(object.len);
        let mut byte = [0];
        data.read_exact_at(&mut byte, at).unwrap();
        data.write_all_at(&[byte[0] ^ 1 << random.below_u64(8)], at).unwrap();
        flipped.insert(at / UNIT);
    }
    let half: Vec<u64> = flipped.iter().copied().take(flipped.len() / 2).collect();
    let tier = tier(folder.path(), LIMIT);
    let local = tier.local(&object).unwrap();
    for unit in 0..UNITS {
        let is_flipped = flipped.contains(&unit);
        if half.contains(&unit) || !is_flipped {
            assert_eq!(read_unit(&local, unit), !is_flipped);
            assert_eq!(local.has(unit * UNIT..(unit + 1) * UNIT), !is_flipped);
        }
    }
    assert_eq!(local.stats().wrong, half.len() as u64);
    let found = tier.verify().unwrap();
    let rest = (flipped.len() - half.len()) as u64;
    assert_eq!((found.objects, found.units, found.wrong), (1, UNITS - half.len() as u64, rest));
    assert_eq!(tier.verify().unwrap().wrong, 0);
    drop((local, tier));
    heals(folder.path(), &object);
    check(folder.path(), LIMIT);
}

#[test]
fn other_pages_of_a_unit_can_be_read_beside_one_that_is_wrong_until_it_is_found() {
    let folder = folder();
    let object = full(folder.path());
    let local = tier(folder.path(), LIMIT).local(&object).unwrap();
    open(folder.path(), "data").write_all_at(&[0; 4096], 3 * UNIT + 7 * PAGE).unwrap();
    assert!(read(&local, 3, 0..7).is_some() && read(&local, 3, 8..64).is_some());
    assert!(read(&local, 3, 7..8).is_none() && read(&local, 3, 8..64).is_none());
}

#[test]
fn a_damaged_index_is_begun_anew() {
    let damages: [Damage<File>; 8] = [
        ("empty", |index| index.set_len(0).unwrap()),
        ("cut in the header", |index| index.set_len(50).unwrap()),
        ("cut in what it is of", |index| index.set_len(80).unwrap()),
        ("cut behind the header", |index| index.set_len(4096).unwrap()),
        ("longer", |index| index.set_len(1 << 20).unwrap()),
        ("of another kind", |index| index.write_all_at(b"FMTIER99", 0).unwrap()),
        ("of an impossible length", |index| index.write_all_at(&[0xFF; 4], 8).unwrap()),
        ("of another object", |index| index.write_all_at(b"S3", 64 + 12).unwrap()),
    ];
    for (what, damage) in damages {
        let folder = folder();
        let object = full(folder.path());
        damage(&open(folder.path(), "index"));
        let local = tier(folder.path(), LIMIT).local(&object).unwrap();
        assert!(there(&local).is_empty(), "{what}");
        drop(local);
        heals(folder.path(), &object);
        check(folder.path(), LIMIT);
    }
}

#[test]
fn a_copy_that_is_emptied_while_it_is_used_is_brought_anew() {
    let folder = folder();
    let object = full(folder.path());
    let tier = tier(folder.path(), LIMIT);
    let used = tier.local(&object).unwrap();
    open(folder.path(), "data").set_len(0).unwrap();
    heals(folder.path(), &object);
    assert!(read_unit(&used, 0));
    check(folder.path(), LIMIT);
}

#[test]
fn what_others_put_into_the_folder_is_left_alone() {
    let folder = folder();
    let object = full(folder.path());
    std::os::unix::fs::symlink("/etc/passwd", folder.path().join("x.data")).unwrap();
    std::fs::write(folder.path().join("x.index"), "").unwrap();
    std::fs::create_dir(folder.path().join("y.index")).unwrap();
    std::fs::write(folder.path().join("y.data"), "").unwrap();
    heals(folder.path(), &object);
    assert_eq!(tier(folder.path(), LIMIT).list().unwrap().len(), 1);
    assert!(folder.path().join("x.data").is_symlink() && folder.path().join("y.index").is_dir());
}

#[test]
fn a_damaged_index_that_somebody_uses_is_left_alone() {
    let folder = folder();
    let object = full(folder.path());
    let tier = tier(folder.path(), LIMIT);
    let local = tier.local(&object).unwrap();
    open(folder.path(), "index").write_all_at(b"FMTIER99", 0).unwrap();
    let error = tier.local(&object).unwrap_err().to_string();
    assert!(error.contains("end that program") && error.contains(folder.path().to_str().unwrap()), "{error}");
    assert!(read_unit(&local, 7));
}

#[test]
fn after_a_power_failure_nothing_is_wrong() {
    let losses: [Damage<Path>; 7] = [
        ("the data", |folder| {
            let (data, len) = (open(folder, "data"), open(folder, "data").metadata().unwrap().len());
            data.set_len(0).unwrap();
            data.set_len(len).unwrap();
        }),
        ("the data file", |folder| std::fs::remove_file(&files(folder, "data")[0]).unwrap()),
        ("the index file", |folder| std::fs::remove_file(&files(folder, "index")[0]).unwrap()),
        ("half of the data", |folder| {
            let data = open(folder, "data");
            let len = data.metadata().unwrap().len();
            data.set_len(len / 2 + 333).unwrap();
        }),
        ("the states", |folder| open(folder, "index").write_all_at(&[0; 4096], 4096).unwrap()),
        ("some checksums", |folder| open(folder, "index").write_all_at(&[0; 4096], 2 * 4096).unwrap()),
        // Torn sectors of whatever was there before.
        ("half of the states, and other bytes for the rest", |folder| {
            let mut random = Random::new(3);
            let noise: Vec<u8> = (0..512).map(|_| random.next() as u8).collect();
            let index = open(folder, "index");
            index.write_all_at(&[0; 64], 4096).unwrap();
            index.write_all_at(&noise[..320], 4096 + 64).unwrap();
            index.write_all_at(&noise, 2 * 4096 + 512).unwrap();
        }),
    ];
    for (what, lose) in losses {
        let folder = folder();
        let object = full(folder.path());
        lose(folder.path());
        let tier = tier(folder.path(), LIMIT);
        assert!(tier.used() >= on_disk(folder.path()), "{what}: what is there is counted");
        drop(tier);
        drop(heals(folder.path(), &object));
        check(folder.path(), LIMIT);
    }
    // What was counted is lost, too, or is anything.
    for noise in [0, 0xFF, 0x55] {
        let folder = folder();
        let object = full(folder.path());
        let usage = File::options().write(true).open(folder.path().join("usage")).unwrap();
        usage.write_all_at(&[noise; 8192], 0).unwrap();
        heals(folder.path(), &object);
        check(folder.path(), LIMIT);
    }
}
