//! Random page faults: every operation is a load from, or a store to, a page that is not in memory (FastMap, USENIX ATC '20, section 4: "We
//! ensure that each load/store results in a page fault").
//!
//! Pages are touched in a scattered order, each once before any is touched again. If the data fit into memory, they begin cold, and the run ends when
//! each page was touched once. If they do not fit, any cache that goes by recency has dropped a page long before its next touch.
//!
//! The share of operations that are page faults is counted, since it can be below 1. The kernel may read around a fault. FastMap recognises
//! such a loop and then keeps as much of it as fits: with memory for an eighth of the data, up to an eighth of the operations are no
//! faults.

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
    /// The data fit, and none of them is there at the beginning: faults without evictions.
    InMemory,
    /// The data do not fit, and memory is full at the beginning: every fault makes room.
    OutOfMemory,
}

names!(Room, "a room", { InMemory => "in-memory", OutOfMemory => "out-of-memory" });

/// One run.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Order {
    /// Engine, operation, threads, file, memory, and the most seconds to measure. The pattern is ignored. The advice should be random, like
    /// `MADV_RANDOM`, since among so many pages some always look like a walk.
    pub spec: Spec,
    /// Whether the data fit.
    pub room: Room,
    /// Whether the file has no blocks. Then no device takes part, and every byte must be zero. Such a file may only be read.
    pub hole: bool,
}

/// The result of a run, beside its [`Reading`].
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct Outcome {
    /// The process that made the run, for a profiler.
    pub pid: u32,
    /// The threads that made its operations, for a profiler.
    pub load_tids: Vec<u32>,
    /// False: memory should have been full when the measurement began, but the device was too slow to fill it in time.
    pub filled: bool,
    /// Page faults per operation: the kernel's, minor and major, or traps into the engine. 1 if each operation is a fault.
    pub faults_per_op: f64,
    /// The time of threads and processors in the window.
    pub time: Time,
}

/// The bytes of memory that have room for a file of `pages` pages. They suffice for the kernel's page cache and for the cache of the fastmap
/// engine, which keeps some pages free.
pub fn memory_for_all(pages: u64) -> u64 {
    memory_for(pages + pages / 8 + 2048, pages) + pages * 8
}

/// Runs `order` in this process.
///
/// # Errors
///
/// The engine cannot run, or a byte is wrong. An operation finds that, or the read-back after a run that stores.
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

/// Pages to touch before the window, so that memory is full and every cache evicts. At most all pages of the file.
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
                // A part of the loop is kept.
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
