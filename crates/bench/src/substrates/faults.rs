//! Random page faults: every operation is a load from, or a store to, a page that is not in memory (FastMap, USENIX ATC '20,
//! section 4: "We ensure that each load/store results in a page fault").
//!
//! Pages are taken in a scattered order in which each comes once before any comes again. So with data that fit into memory, and
//! begin cold, nothing is met twice; and with data that do not, whatever comes again was dropped long ago by any cache that
//! goes by recency. How many operations were page faults indeed is counted, since the kernel may read around a fault, and FastMap, once it has
//! recognised such a loop, keeps of it what fits: with memory for an eighth of the data up to an eighth of the operations are none.

mod measure;
mod usage;

use serde::{Deserialize, Serialize};

pub use self::usage::Time;
use crate::substrates::measure::Shadow;
use crate::substrates::spec::names;
use crate::substrates::{Meter, PAGE, Reading, Result, Spec, engine, memory_for, readback};

/// Whether the data fit into memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Room {
    /// They do, and none of them is there at the beginning: faults without evictions.
    InMemory,
    /// They do not, and memory is full at the beginning: every fault makes room.
    OutOfMemory,
}

names!(Room, "room", { InMemory => "in-memory", OutOfMemory => "out-of-memory" });

/// One run.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Order {
    /// Engine, operation, threads, file, memory, and the most seconds to measure. The pattern is not looked at. The advice should
    /// be random, as `MADV_RANDOM` is: among so many pages some always lie as if on a walk.
    pub spec: Spec,
    /// Whether the data fit.
    pub room: Room,
    /// The file has no blocks, so that no device takes part, and every byte must be zero; only to be read.
    pub hole: bool,
}

/// What one run gave beside its [`Reading`].
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct Outcome {
    /// The process that ran it, and those of its threads that operated, by which a profiler knows them.
    pub pid: u32,
    /// Their thread ids.
    pub load_tids: Vec<u32>,
    /// Memory was full when the measurement began, where that was wanted: the device filled it in time.
    pub filled: bool,
    /// Page faults of an operation: the kernel's, minor and major, or traps into the engine. 1 where each operation is one.
    pub faults_per_op: f64,
    /// Where the time of threads and processors went in the window.
    pub time: Time,
}

/// Memory in which a file of `pages` pages has room, whatever holds it: the kernel's page cache, or a cache of the fastmap
/// engine, which keeps some pages free.
pub fn memory_for_all(pages: u64) -> u64 {
    memory_for(pages + pages / 8 + 2048, pages) + pages * 8
}

/// Runs `order` in this process.
///
/// # Errors
///
/// Whatever kept the engine from running, and the first wrong byte, be it met by an operation or by the read-back that follows
/// a load that stores.
pub fn run(order: &Order, meter: &Meter) -> Result<(Reading, Outcome)> {
    let spec = &order.spec;
    let writes = spec.op.writes();
    let shadow = Shadow::new(spec.epoch, if writes { spec.pages } else { 0 });
    let outcome = engine::with(spec, measure::Measure { order, shadow: &shadow, meter })?;
    meter.let_go();
    if writes {
        readback::read_back(spec, &shadow)?;
    }
    Ok(outcome)
}

/// Pages to touch before the window, so that memory is full and every cache evicts.
fn warmup(order: &Order) -> u64 {
    let memory = order.spec.memory.unwrap_or(order.spec.pages * PAGE as u64 / 4);
    match order.room {
        Room::InMemory => 0,
        Room::OutOfMemory => (memory / PAGE as u64 * 5 / 4).min(order.spec.pages),
    }
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::os::unix::fs::FileExt;
    use std::path::Path;

    use super::*;
    use crate::substrates::{Advice, Engine, Error, Op, Pattern, capacity_for, prepare};

    const PAGES: u64 = 8192;

    fn order(path: &Path, engine: Engine, op: Op, room: Room) -> Order {
        let memory = match room {
            Room::InMemory => memory_for_all(PAGES),
            Room::OutOfMemory => 12 << 20,
        };
        let spec = Spec {
            engine,
            pattern: Pattern::Random,
            op,
            threads: 3,
            advice: Advice::Random,
            path: path.to_owned(),
            label: "file".to_owned(),
            pages: PAGES,
            memory: Some(memory),
            seconds: 0.3,
            epoch: 0,
            cold: false,
        };
        Order { spec, room, hole: false }
    }

    fn stamped() -> tempfile::NamedTempFile {
        let file = tempfile::NamedTempFile::new_in(env!("CARGO_MANIFEST_DIR")).unwrap();
        prepare::fill(file.as_file(), "file", 0, PAGES, prepare::stamp_page, |_| true).unwrap();
        file
    }

    #[test]
    fn every_operation_of_fastmap_is_a_fault_with_room_and_without() {
        let file = stamped();
        for room in [Room::InMemory, Room::OutOfMemory] {
            for op in [Op::Read, Op::Write] {
                let mut order = order(file.path(), Engine::Fastmap, op, room);
                order.spec.epoch = prepare::next_epoch(file.as_file(), "file").unwrap();
                let (reading, outcome) = run(&order, &Meter::default()).unwrap();
                let said = format!("{room} {op}: {reading:?} {outcome:?}");
                assert!(reading.ops > 0 && reading.seconds > 0.0, "{said}");
                // Of a loop a part is kept.
                let least = if room == Room::InMemory { 0.99 } else { 0.8 };
                assert!((least..=1.05).contains(&outcome.faults_per_op), "{said}");
                assert!(reading.window_ns.1 > reading.window_ns.0 && outcome.time.user_s >= 0.0, "{said}");
                let evicted = reading.fastmap.unwrap().counters.evicted_pages;
                assert_eq!(evicted > 0, room == Room::OutOfMemory, "{said}");
                if room == Room::InMemory {
                    assert!(reading.ops <= PAGES, "each page once: {said}");
                }
            }
        }
    }

    #[test]
    fn the_kernel_runs_it_too() {
        let file = stamped();
        for engine in [Engine::Mmap, Engine::MmapRandom] {
            for op in [Op::Read, Op::Write] {
                crate::substrates::cold::make_cold(file.as_file(), PAGES * PAGE as u64).unwrap();
                let mut order = order(file.path(), engine, op, Room::InMemory);
                order.spec.epoch = prepare::next_epoch(file.as_file(), "file").unwrap();
                let (reading, outcome) = run(&order, &Meter::default()).unwrap();
                assert!(reading.ops > 0 && reading.ops <= PAGES && reading.fastmap.is_none(), "{engine} {op}");
                assert!(outcome.faults_per_op > 0.0, "{engine} {op}");
            }
        }
    }

    #[test]
    fn holes_are_zero_and_need_no_device() {
        let file = tempfile::NamedTempFile::new_in(env!("CARGO_MANIFEST_DIR")).unwrap();
        prepare::make_sparse(file.as_file(), "file", PAGES).unwrap();
        for engine in [Engine::MmapRandom, Engine::Fastmap] {
            for room in [Room::InMemory, Room::OutOfMemory] {
                let order = Order { hole: true, ..order(file.path(), engine, Op::Read, room) };
                assert!(run(&order, &Meter::default()).unwrap().0.ops > 0, "{engine} {room}");
            }
        }
        file.as_file().write_all_at(&[1], 77 * PAGE as u64).unwrap();
        let order = Order { hole: true, ..order(file.path(), Engine::Fastmap, Op::Read, Room::InMemory) };
        assert!(matches!(run(&order, &Meter::default()), Err(Error::Stamp { page: 77, found: 1, .. })));
    }

    #[test]
    fn a_wrong_byte_is_found() {
        let file = stamped();
        File::options().write(true).open(file.path()).unwrap().write_all_at(&[0xff], 300 * 4096 + 4095).unwrap();
        for engine in [Engine::MmapRandom, Engine::Fastmap] {
            let order = order(file.path(), engine, Op::Read, Room::InMemory);
            assert!(matches!(run(&order, &Meter::default()), Err(Error::Stamp { page: 300, .. })), "{engine}");
        }
    }

    #[test]
    fn what_is_to_fit_fits() {
        for pages in [256, PAGES, 1 << 20] {
            let capacity = capacity_for(memory_for_all(pages), pages, true).unwrap() as u64;
            assert!(capacity > (pages + pages / 16) * PAGE as u64, "{pages}: {capacity}");
        }
    }
}
