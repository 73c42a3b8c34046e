//! Key-value stores over mapped memory under YCSB: one call of [`run`] is the paper's whole sequence over one store, in
//! the calling process; one of [`check`] reads, in another process, all that the sequence left behind.
//!
//! The sequence is Load A, A, B, C, F, D, then an empty store, Load E, E ([`crate::ycsb::SEQUENCE`]). Every value that
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
use crate::device::Device;
use crate::spec::names;
use crate::ycsb::{SEQUENCE, Workload};
use crate::{DeviceReport, Error, FastmapReport, LatencyUs, Result};

/// The store.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Kind {
    /// This project's, see [`crate::btree`].
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

/// Whose mapped memory it lies in.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Engine {
    /// Kernel mmap without advice.
    Mmap,
    /// Kernel mmap with `MADV_RANDOM`.
    MmapRandom,
    /// This project: own through the library, the others unchanged under `fastmap run`.
    Fastmap,
}

names!(Engine, "engine", { Mmap => "mmap", MmapRandom => "mmap-random", Fastmap => "fastmap" });

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
    /// Capacity of a fastmap cache in bytes; of the stores under `fastmap run` that is told to `fastmap run`.
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

/// What one run gave.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct Outcome {
    /// Workload by workload.
    pub phases: Vec<Phase>,
    /// The memory cgroup's peak; without one, the process's peak resident set.
    pub peak_rss_bytes: u64,
    /// Only of the own store over FastMap; counters at the end of Run D.
    pub fastmap: Option<FastmapReport>,
}

/// One workload of a run.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Phase {
    /// Which.
    pub workload: Workload,
    /// Operations.
    pub ops: u64,
    /// How long they took.
    pub seconds: f64,
    /// Operations a second.
    pub ops_per_s: f64,
    /// Of a load, and of the last workload over a store: how long the flush after it took.
    pub flush_seconds: Option<f64>,
    /// User time of the process per operation.
    pub user_us_per_op: f64,
    /// System time of the process per operation; the kernel's own write-back threads are not in it.
    pub system_us_per_op: f64,
    /// The share of the threads' time in which none of their processor time was spent: they waited, for the device, for
    /// each other, or for a processor.
    pub waiting: f64,
    /// Time between successive operations of a thread.
    pub latency_us: LatencyUs,
    /// What the device did meanwhile, the flush left out; None where the files are on no block device.
    pub device: Option<DeviceReport>,
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

/// Runs the sequence in this process. `peak` is asked for the peak of memory once, in the end.
///
/// # Errors
///
/// Whatever kept the store from working, and the first wrong answer.
pub fn run(order: &Order, peak: impl FnOnce() -> u64) -> Result<Outcome> {
    let mut outcome = Outcome::default();
    let device = Device::of(&order.dir);
    for (part, workloads) in parts() {
        let path = store_of(&order.dir, part);
        std::fs::create_dir(&path).map_err(|source| failed(&path, "cannot make it", source))?;
        let mut store = engine::open(order, &path, true)?;
        let ledger = Ledger::new(order.most_records());
        for (n, &workload) in workloads.iter().enumerate() {
            let mut phase = measure::measure(order, workload, &*store, &ledger, device.as_ref())?;
            if workload.is_load() || n + 1 == workloads.len() {
                phase.flush_seconds = Some(measure::timed(|| store.flush())?);
            }
            outcome.phases.push(phase);
        }
        ledger.save(&ledger_of(&order.dir, part))?;
        if outcome.fastmap.is_none() {
            outcome.fastmap = store.report();
        }
        drop(store);
        // The next one begins as if this one were gone.
        make_cold(&path)?;
    }
    outcome.peak_rss_bytes = peak();
    Ok(outcome)
}

/// Drops a store's files from the page cache.
fn make_cold(path: &Path) -> Result<()> {
    for file in files_of(path)? {
        let cold =
            std::fs::File::open(&file).and_then(|opened| crate::cold::make_cold(&opened, opened.metadata()?.len()));
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
