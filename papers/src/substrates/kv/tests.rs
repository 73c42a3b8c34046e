//! The sequence over every store, and wrong answers of every kind, which must be found.

use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use super::check::compare;
use super::*;
use crate::substrates::ycsb::{self, VALUE};

fn order(store: Kind, engine: Engine, dir: &Path) -> Order {
    let (records, ops) = (2000, 1500);
    Order { store, engine, dir: dir.to_owned(), records, ops, seconds: 10.0, threads: 3, capacity: 1 << 20 }
}

fn dir() -> tempfile::TempDir {
    tempfile::tempdir_in(env!("CARGO_MANIFEST_DIR")).unwrap()
}

#[test]
fn every_store_does_the_sequence_and_keeps_it() {
    let missing = why_rocksdb_is_missing();
    for (store, engine) in [
        (Kind::Own, Engine::Mmap),
        (Kind::Own, Engine::MmapRandom),
        (Kind::Own, Engine::Fastmap),
        (Kind::Lmdb, Engine::Mmap),
        (Kind::Lmdb, Engine::MmapRandom),
        (Kind::Rocksdb, Engine::MmapRandom),
    ] {
        if let (Kind::Rocksdb, Some(why)) = (store, &missing) {
            crate::substrates::skipped(why);
            continue;
        }
        let dir = dir();
        let order = order(store, engine, dir.path());
        let phases = run(&order, &Meter::default()).unwrap();
        let workloads: Vec<_> = phases.iter().filter_map(|(_, phase)| phase.workload).collect();
        assert_eq!(workloads, SEQUENCE.to_vec());
        for ((reading, phase), workload) in phases.iter().zip(workloads) {
            assert_eq!(reading.ops, if workload.is_load() { 2000 } else { 1500 }, "{phase:?}");
            assert!(reading.seconds > 0.0 && (0.0..=1.0).contains(&phase.waiting));
            let flushes = workload.is_load() || matches!(workload, Workload::D | Workload::E);
            assert_eq!(phase.flush_seconds.is_some(), flushes);
        }
        let of_cache = phases.iter().find_map(|(reading, _)| reading.fastmap);
        assert_eq!(of_cache.is_some(), engine == Engine::Fastmap);
        if let Some(FastmapReport { counters, .. }) = of_cache {
            assert!(counters.evicted_pages > 0 && counters.writeback_pages > 0, "{counters:?}");
        }
        let checked = check(&order).unwrap();
        // D and E insert a twentieth of 1500 each, more or less.
        assert!((4050..4250).contains(&checked.records), "{checked:?}");
        assert!(checked.bytes > 2000 * 1030, "{checked:?}");
    }
}

#[test]
fn what_was_changed_on_the_device_is_found_in_the_end() {
    let dir = dir();
    let order = order(Kind::Own, Engine::Mmap, dir.path());
    run(&order, &Meter::default()).unwrap();
    check(&order).unwrap();
    let store = store_of(dir.path(), "e").join("store");
    let mut bytes = std::fs::read(&store).unwrap();
    let value = bytes.windows(8).rposition(|word| word == 1234u64.to_le_bytes()).unwrap();
    bytes[value + 500] ^= 4;
    std::fs::write(&store, &bytes).unwrap();
    let found = check(&order).unwrap_err().to_string();
    assert!(found.starts_with("own B+-tree: in the end: user") && found.contains("gave a value whose word"), "{found}");
    bytes[value + 500] ^= 4;
    std::fs::write(&store, &bytes).unwrap();
    check(&order).unwrap();
    let ledger = ledger_of(dir.path(), "a");
    let mut versions = std::fs::read(&ledger).unwrap();
    versions[44] += 1;
    std::fs::write(&ledger, &versions).unwrap();
    let found = check(&order).unwrap_err().to_string();
    assert!(found.contains("record 11: gave version"), "{found}");
    versions[44] -= 1;
    versions.extend(1u32.to_le_bytes());
    std::fs::write(&ledger, &versions).unwrap();
    let found = check(&order).unwrap_err().to_string();
    assert!(found.contains("is missing"), "{found}");
}

/// A map in memory that goes wrong at some operation, in its own way.
struct Faulty {
    map: Mutex<std::collections::BTreeMap<Vec<u8>, Vec<u8>>>,
    operations: AtomicU64,
    at: u64,
    fault: Fault,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Fault {
    None,
    LosesWrites,
    FlipsABit,
    GivesAnother,
    GivesNothing,
    Skips,
}

impl Faulty {
    fn is_now(&self, fault: Fault) -> bool {
        self.fault == fault && self.operations.fetch_add(1, Relaxed) >= self.at
    }
}

impl Store for Faulty {
    fn read(&self, key: &[u8], with: &mut dyn FnMut(&[u8])) -> Result<bool> {
        let map = self.map.lock().unwrap();
        let Some(value) = map.get(key) else { return Ok(false) };
        if self.is_now(Fault::GivesNothing) {
            return Ok(false);
        }
        let mut value =
            if self.is_now(Fault::GivesAnother) { map.values().next().unwrap().clone() } else { value.clone() };
        if self.is_now(Fault::FlipsABit) {
            value[VALUE - 1] ^= 1;
        }
        with(&value);
        Ok(true)
    }

    fn write(&self, key: &[u8], value: &[u8]) -> Result<()> {
        let mut map = self.map.lock().unwrap();
        if !map.contains_key(key) || !self.is_now(Fault::LosesWrites) {
            map.insert(key.to_vec(), value.to_vec());
        }
        Ok(())
    }

    fn modify(&self, key: &[u8], with: &mut dyn FnMut(&mut [u8])) -> Result<bool> {
        let mut value = Vec::new();
        let found = self.read(key, &mut |found| value = found.to_vec())?;
        with(&mut value);
        self.write(key, &value)?;
        Ok(found)
    }

    fn scan(&self, from: &[u8], with: &mut dyn FnMut(&[u8], &[u8]) -> bool) -> Result<()> {
        let map = self.map.lock().unwrap();
        let skipped = usize::from(self.is_now(Fault::Skips));
        for (key, value) in map.range(from.to_vec()..).skip(skipped) {
            if !with(key, value) {
                break;
            }
        }
        Ok(())
    }

    fn flush(&mut self) -> Result<()> {
        Ok(())
    }
}

/// The first workload that finds a fault, and what it says of it.
fn found(fault: Fault, workloads: &[Workload]) -> Option<(Workload, String)> {
    let store = Faulty { map: Mutex::default(), operations: AtomicU64::new(0), at: 300, fault };
    let order = order(Kind::Own, Engine::Mmap, Path::new("/nowhere"));
    let ledger = Ledger::new(order.most_records());
    for &workload in workloads {
        if let Err(error) = measure::measure(&order, workload, &store, &ledger, &Meter::default()) {
            return Some((workload, error.to_string()));
        }
    }
    None
}

#[test]
fn every_wrong_answer_fails_the_workload() {
    use Workload::{A, C, D, E, F, LoadA, LoadE};
    assert_eq!(found(Fault::None, &SEQUENCE[..6]), None);
    for (fault, workloads, said) in [
        (Fault::LosesWrites, &[LoadA, A][..], "version"),
        (Fault::LosesWrites, &[LoadA, F], "version"),
        (Fault::FlipsABit, &[LoadA, C], "a value whose word 124 is wrong"),
        (Fault::FlipsABit, &[LoadA, F], "a value whose word 124 is wrong"),
        (Fault::GivesAnother, &[LoadA, C], "gave the value of record"),
        (Fault::GivesAnother, &[LoadA, D], "gave the value of record"),
        (Fault::GivesNothing, &[LoadA, C], "gave nothing"),
        (Fault::GivesNothing, &[LoadA, D], "gave nothing"),
        (Fault::Skips, &[LoadE, E], "in a scan from it key user"),
    ] {
        let (workload, what) = found(fault, workloads).unwrap_or_else(|| panic!("{fault:?} in {workloads:?}"));
        assert_eq!(workload, workloads[1]);
        assert!(what.contains(said), "{fault:?}: {what}");
    }
}

#[test]
fn a_scan_of_everything_finds_what_is_missing_stale_or_twice() {
    let store = Faulty { map: Mutex::default(), operations: AtomicU64::new(0), at: 0, fault: Fault::None };
    let put = |at: u64, number, version| {
        let mut value = [0; VALUE];
        ycsb::fill(&mut value, number, version);
        store.write(&ycsb::key(at), &value).unwrap();
    };
    (0..10).for_each(|number| put(number, number, 1));
    let compared = |versions: &[u32]| compare(Kind::Own, &store, versions).map_err(|error| error.to_string());
    assert_eq!(compared(&[1; 10]), Ok(10));
    assert!(compared(&[1; 11]).unwrap_err().contains("record 10 is missing, and 10 of 11 are there"));
    assert!(compared(&[1; 9]).unwrap_err().contains("record 9: gave version 1 where 0 is the last"));
    put(4, 4, 2);
    assert!(compared(&[1; 10]).unwrap_err().contains("record 4: gave version 2 where 1 is the last"));
    put(4, 5, 1);
    assert!(compared(&[1; 10]).unwrap_err().contains("gave the value of record 5 elsewhere"));
}
