//! Key-value stores over mapped memory under YCSB: one call of [`run`] is the paper's whole sequence over one store, in
//! the calling process; one of [`check`] reads, in another process, all that the sequence left behind.
//!
//! The sequence is Load A, A, B, C, F, D, then an empty store, Load E, E ([`crate::substrates::ycsb::SEQUENCE`]). Every value that
//! a read or scan gives is checked, all its bytes, against the key and against the versions that it can have
//! ([`ledger`]); in the end the whole store is read in order and counted, and each record must have its last version.

mod check;
mod engine;
pub mod ledger;
mod lmdb;
mod measure;
mod own;
mod rocksdb;
#[cfg(test)]
mod tests;

use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

pub use self::check::{Checked, check};
pub use self::engine::{RECORD, capacity_for, room_for, stored_bytes};
pub use self::rocksdb::why_missing as why_rocksdb_is_missing;

use self::ledger::Ledger;
use crate::substrates::ycsb::{SEQUENCE, Workload};
use crate::substrates::{Engine, Error, FastmapReport, Meter, Reading, Result};
use fastmap_bench::names;

/// The store.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Kind {
    /// This project's, see [`crate::substrates::btree`].
    Own,
    /// LMDB, writing through its map, without syncs.
    Lmdb,
    /// RocksDB, reading its tables through maps.
    Rocksdb,
}

names!(Kind, "store", { Own => "own", Lmdb => "lmdb", Rocksdb => "rocksdb" });

impl Kind {
    /// As people write it.
    pub fn title(self) -> &'static str {
        match self {
            Kind::Own => "own B+-tree",
            Kind::Lmdb => "LMDB",
            Kind::Rocksdb => "RocksDB",
        }
    }

    /// Names of the files that it maps, for `fastmap run --map`. None: it is linked with the library.
    pub fn mapped_files(self) -> Option<&'static str> {
        match self {
            Kind::Own => None,
            Kind::Lmdb => Some("data.mdb"),
            Kind::Rocksdb => Some("*.sst"),
        }
    }
}

/// One run.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Order {
    /// Over which store.
    pub store: Kind,
    /// In whose memory.
    pub engine: Engine,
    /// An empty directory; what the run leaves in it [`check`] reads.
    pub dir: PathBuf,
    /// Records of a load.
    pub records: u64,
    /// Most operations of a workload that is no load.
    pub ops: u64,
    /// Most seconds of one.
    pub seconds: f64,
    /// Threads, all on one store.
    pub threads: u32,
    /// Capacity in bytes of a fastmap cache; the stores under `fastmap run` have what they leave of memory.
    pub capacity: u64,
}

impl Order {
    /// [`most_records`] of this run.
    pub fn most_records(&self) -> u64 {
        most_records(self.records, self.ops)
    }
}

/// Records that there can be, inserts of D or E included: these are a twentieth of the operations on average.
pub fn most_records(records: u64, ops: u64) -> u64 {
    records + ops / 8 + 64
}

/// One workload of a run.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct Phase {
    /// Which; None of what is no part of a run.
    pub workload: Option<Workload>,
    /// After a load, and at a store's end: how long the flush took.
    pub flush_seconds: Option<f64>,
    /// The share of the threads' time that no processor was theirs.
    pub waiting: f64,
}

/// A key-value store, shared by threads.
pub trait Store: Sync {
    /// Hands a key's value to `with`; whether there is one.
    ///
    /// # Errors
    ///
    /// What the store answers; likewise below.
    fn read(&self, key: &[u8], with: &mut dyn FnMut(&[u8])) -> Result<bool>;

    /// Inserts a key or gives it another value.
    fn write(&self, key: &[u8], value: &[u8]) -> Result<()>;

    /// Reads a key's value, has `with` change it, and writes it; whether there is one.
    fn modify(&self, key: &[u8], with: &mut dyn FnMut(&mut [u8])) -> Result<bool>;

    /// Hands keys and values to `with` in order, from the first key that is not below `from`, until it answers false.
    fn scan(&self, from: &[u8], with: &mut dyn FnMut(&[u8], &[u8]) -> bool) -> Result<()>;

    /// Puts everything on stable storage.
    fn flush(&mut self) -> Result<()>;

    /// Called now and then while threads work.
    fn tend(&self) {}

    /// The counters of FastMap, where the store is linked with it.
    fn report(&self) -> Option<FastmapReport> {
        None
    }
}

/// A part of the sequence, between two empty stores.
fn parts() -> [(&'static str, &'static [Workload]); 2] {
    let (first, second) = SEQUENCE.split_at(6);
    [("a", first), ("e", second)]
}

/// Where a part's store is.
fn store_of(dir: &Path, part: &str) -> PathBuf {
    dir.join(part)
}

/// Where a part's ledger is.
fn ledger_of(dir: &Path, part: &str) -> PathBuf {
    dir.join(format!("{part}.ledger"))
}

/// Runs the sequence over one store in this process; each workload by itself. FastMap's counters are those at the end of the first
/// store, where it is linked with it.
///
/// # Errors
///
/// Whatever the store answers, and the first wrong value.
pub fn run(order: &Order, meter: &Meter) -> Result<Vec<(Reading, Phase)>> {
    let mut phases = Vec::new();
    for (part, workloads) in parts() {
        let path = store_of(&order.dir, part);
        std::fs::create_dir(&path).map_err(|source| failed(&path, "cannot make it", source))?;
        let mut store = engine::open(order, &path, true)?;
        let ledger = Ledger::new(order.most_records());
        for (n, &workload) in workloads.iter().enumerate() {
            let last = n + 1 == workloads.len();
            let (mut reading, mut phase) = measure::measure(order, workload, &*store, &ledger, meter)?;
            if workload.is_load() || last {
                phase.flush_seconds = Some(measure::timed(|| store.flush())?);
            }
            if last {
                reading.fastmap = store.report();
            }
            phases.push((reading, phase));
        }
        ledger.save(&ledger_of(&order.dir, part))?;
        drop(store);
        // The next one begins as if this one were gone.
        make_cold(&path)?;
    }
    meter.let_go();
    Ok(phases)
}

/// Drops a store's files from the page cache.
fn make_cold(path: &Path) -> Result<()> {
    for file in files_of(path)? {
        let cold = std::fs::File::open(&file)
            .and_then(|opened| crate::substrates::cold::make_cold(&opened, opened.metadata()?.len()));
        cold.map_err(|source| failed(&file, "cannot be dropped from the page cache", source))?;
    }
    Ok(())
}

/// A store's files.
fn files_of(path: &Path) -> Result<Vec<PathBuf>> {
    let entries = || std::fs::read_dir(path)?.map(|entry| Ok(entry?.path())).collect::<std::io::Result<Vec<_>>>();
    Ok(entries()
        .map_err(|source| failed(path, "cannot be read", source))?
        .into_iter()
        .filter(|path| path.is_file())
        .collect())
}

fn failed(path: &Path, what: &'static str, source: std::io::Error) -> Error {
    Error::Io { thing: path.display().to_string(), what, source, remedy: "name another place with --dir" }
}
