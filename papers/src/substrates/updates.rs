//! Update-heavy loads over a file larger than memory: what it costs to store to pages that are not in memory, until the
//! stores are done and until they are on the device.
//!
//! One call of [`run`] is one measurement in the calling process, from opening the file to the last byte compared. The file
//! consists of lines that can be checked one by one ([`lines`]); the amount of work is the same for every engine, unless it takes too long.

mod engine;
pub mod lines;
mod measure;

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

pub use engine::{capacity_for, least_memory};

use self::lines::{Expected, LINE, PAGE_LINES};
use crate::substrates::measure::Shadow;
use crate::substrates::{Engine, Meter, PAGE, Pattern, Reading, Result, readback};
use fastmap_bench::names;

/// Bytes in a record.
pub const RECORD: usize = 1024;

/// Records in a page.
pub const PAGE_RECORDS: u64 = (PAGE / RECORD) as u64;

const RECORD_LINES: u64 = (RECORD / LINE) as u64;

/// Whether an engine can do a work: the AR protocol stores whole lines only.
pub fn does(engine: Engine, work: Work) -> bool {
    engine != Engine::FastmapAr || work != Work::Store8
}

/// The engines that update.
pub const ENGINES: &[Engine] =
    &[Engine::Mmap, Engine::MmapRandom, Engine::Fastmap, Engine::FastmapAr, Engine::FastmapStores];

/// What is done.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Work {
    /// Each operation stores 8 bytes to a page that no operation has touched, in scattered order.
    Store8,
    /// As `store8`, a whole line of 64 bytes.
    Line,
    /// Half of the operations read a record of 1 KiB and check it, half store one, all of its bytes.
    Record,
}

names!(Work, "work", { Store8 => "store8", Line => "line", Record => "record" });

impl Work {
    /// What generations are counted for: pages, or records.
    pub fn units(self, pages: u64) -> u64 {
        if self == Work::Record { pages * PAGE_RECORDS } else { pages }
    }
}

/// One thing to measure.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Load {
    /// The path to the file's pages.
    pub engine: Engine,
    /// What is done.
    pub work: Work,
    /// The order of records, random or zipf. Works that touch each page once have an order of their own.
    pub pattern: Pattern,
    /// Threads, all on one map. Each has pages, or records, of its own.
    pub threads: u32,
    /// Operations to measure, all threads together.
    pub ops: u64,
    /// Operations before these, as many again of the same kind. None in works that want their pages absent.
    pub warmup: u64,
    /// But no more of either than this many seconds allow.
    pub seconds: f64,
}

/// One run.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Order {
    /// Of what.
    pub load: Load,
    /// Where the file can be opened.
    pub path: PathBuf,
    /// How messages call the file.
    pub label: String,
    /// Length of the file in pages of 4096 bytes.
    pub pages: u64,
    /// Bytes the whole process may use; the cache is what [`capacity_for`] leaves of it. None: unlimited, and the cache is
    /// a quarter of the file.
    pub memory: Option<u64>,
    /// Which run over this file it is, counted from 1.
    pub epoch: u32,
}

/// What one run gave.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct Outcome {
    /// How long the flush after the operations took.
    pub flush_seconds: f64,
    /// Operations a second, the flush included.
    pub flushed_ops_per_s: f64,
    /// Reads that met the initial value of the AR protocol and waited.
    pub synchronised: u64,
}

/// A page as no run has written it yet, for [`crate::substrates::prepare::fill`].
pub fn fresh_page(bytes: &mut [u8], page: u64) {
    lines::fill(bytes, page * PAGE_LINES, 0);
}

/// Runs `order` in this process. `peak` is asked for the peak of memory once, after the map is let go.
///
/// # Errors
///
/// Whatever kept the engine from running, and the first wrong byte, be it met by an operation or when the whole file is
/// read back at the end.
pub fn run(order: &Order, meter: &Meter) -> Result<(Reading, Outcome)> {
    let shadow = Shadow::new(order.epoch, order.load.work.units(order.pages));
    let outcome = engine::with(order, |mapped| measure::measure(order, mapped, &shadow, meter))?;
    meter.let_go();
    readback::each_page(&order.path, &order.label, order.pages, &|page, bytes| {
        check(order.load.work, page * PAGE_LINES, bytes, &shadow)
    })?;
    Ok(outcome)
}

/// Checks the lines in `bytes`, the first of which is `first`: what the shadow says was stored, and else what was there.
fn check(work: Work, first: u64, bytes: &[u8], shadow: &Shadow) -> Result<()> {
    for (line, bytes) in (first..).zip(bytes.chunks_exact(LINE)) {
        lines::check(line, &lines::words(bytes), expected(work, line, shadow))?;
    }
    Ok(())
}

fn expected(work: Work, line: u64, shadow: &Shadow) -> Expected {
    let base = shadow.base();
    let page = line / PAGE_LINES;
    let stored = match work {
        Work::Record => shadow.stored(line / RECORD_LINES),
        _ if lines::target(page) == line => shadow.stored(page),
        _ => None,
    };
    match stored {
        None => Expected::Before { base },
        Some(generation) if work == Work::Store8 => Expected::Word { base, generation },
        Some(generation) => Expected::Whole { generation },
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::FileExt;

    use super::*;
    use crate::substrates::{Error, FastmapReport, prepare};

    const PAGES: u64 = 512;

    fn fresh() -> tempfile::NamedTempFile {
        let file = tempfile::NamedTempFile::new_in(env!("CARGO_MANIFEST_DIR")).unwrap();
        prepare::fill(file.as_file(), "file", 0, PAGES, fresh_page, |_| true).unwrap();
        file
    }

    fn order(file: &tempfile::NamedTempFile, engine: Engine, work: Work, epoch: u32) -> Order {
        let warmup = if work == Work::Record { 100 } else { 0 };
        Order {
            load: Load { engine, work, pattern: Pattern::Zipf, threads: 3, ops: 400, warmup, seconds: 60.0 },
            path: file.path().to_owned(),
            label: "file".to_owned(),
            pages: PAGES,
            memory: None,
            epoch,
        }
    }

    #[test]
    fn every_engine_does_every_work_on_what_the_one_before_left() {
        let file = fresh();
        // Without io_uring all stores wait.
        let rings = fastmap::requirements::of_machine().iter().all(|one| one.name != "io_uring" || one.found.is_ok());
        let mut epoch = 0;
        for work in [Work::Record, Work::Store8, Work::Line, Work::Record, Work::Store8] {
            for &engine in ENGINES {
                if !does(engine, work) {
                    continue;
                }
                epoch += 1;
                let (reading, outcome) = run(&order(&file, engine, work, epoch), &Meter::default())
                    .unwrap_or_else(|e| panic!("{engine} {work}: {e}"));
                assert_eq!(reading.ops, 400, "{engine} {work}");
                assert!(reading.seconds > 0.0 && outcome.flush_seconds > 0.0);
                assert!(reading.ops_per_s > outcome.flushed_ops_per_s);
                assert!(reading.latency_us.is_some_and(|l| l.p50 <= l.max));
                assert_eq!(reading.fastmap.is_some(), !engine.is_mmap());
                if let Some(FastmapReport { counters, .. }) = reading.fastmap {
                    assert!(work == Work::Record || counters.writeback_pages >= 400, "{work}: {counters:?}");
                    let (ar, kept) = (engine == Engine::FastmapAr, engine == Engine::FastmapStores);
                    assert_eq!(counters.async_loads > 0, (ar || kept) && rings, "{engine} {work}: {counters:?}");
                    assert_eq!(counters.kept_stores > 0, kept && rings, "{engine} {work}: {counters:?}");
                    assert_eq!(counters.partial_lines, 0, "{engine} {work} keeps to the protocol");
                }
            }
        }
    }

    #[test]
    fn who_is_slow_is_measured_by_what_there_was_time_for() {
        let file = fresh();
        let mut order = order(&file, Engine::MmapRandom, Work::Record, 1);
        (order.load.ops, order.load.warmup, order.load.seconds) = (u64::MAX / 4, u64::MAX / 4, 0.1);
        let (reading, _) = run(&order, &Meter::default()).unwrap();
        assert!(reading.ops > 0 && (0.1..10.0).contains(&reading.seconds), "{} in {} s", reading.ops, reading.seconds);
    }

    #[test]
    fn a_wrong_byte_anywhere_fails_the_run() {
        for work in [Work::Store8, Work::Line, Work::Record] {
            for offset in [0, 300 * 4096 + 4095, PAGES * 4096 - 1] {
                let file = fresh();
                let mut byte = [0];
                file.as_file().read_exact_at(&mut byte, offset).unwrap();
                file.as_file().write_all_at(&[byte[0] ^ 1], offset).unwrap();
                let mut order = order(&file, Engine::Mmap, work, 1);
                (order.load.ops, order.load.warmup) = (2, 0);
                match run(&order, &Meter::default()) {
                    Err(Error::Stamp { offset: at, .. } | Error::Generation { offset: at, .. }) => {
                        assert_eq!(at / 64, offset / 64, "{work}");
                    }
                    other => panic!("{work}, byte {offset}: {other:?}"),
                }
            }
        }
    }

    #[test]
    fn a_store_that_did_not_arrive_is_found() {
        let file = fresh();
        for work in [Work::Store8, Work::Line, Work::Record] {
            let shadow = Shadow::new(1, work.units(PAGES));
            shadow.next(77);
            let mut bytes = vec![0; PAGE];
            let page = if work == Work::Record { 77 / PAGE_RECORDS } else { 77 };
            file.as_file().read_exact_at(&mut bytes, page * PAGE as u64).unwrap();
            let found = check(work, page * PAGE_LINES, &bytes, &shadow);
            assert!(matches!(found, Err(Error::Generation { found: 0, .. })), "{work}: {found:?}");
            check(work, (page + 1) * PAGE_LINES, &bytes, &shadow).expect_err("another page's bytes");
        }
    }
}
