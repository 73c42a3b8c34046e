//! The arguments of `fastmap bench kv`.

use std::path::PathBuf;
use std::str::FromStr;

use clap::Args;
use fastmap_workloads::kv::{Engine, Kind};

use super::{operations, repetitions, seconds, threads};
use crate::size::{Memory, Size};

/// Measure key-value stores over mapped memory under YCSB: a B+-tree of our own, LMDB, RocksDB
#[derive(Debug, Args)]
#[command(long_about = "\
Measure key-value stores over mapped memory under YCSB, after FastMap (USENIX ATC '20), figure 8.

Each run is YCSB's sequence over one store: Load A inserts all records; A (half reads, half updates), B (5 % updates), C (reads), F (half \
reads, half read-modify-writes), D (reads of the latest, 5 % inserts); then, into an empty store, Load E and E (scans of 1 to 100 \
records, 5 % inserts). Keys have 30 bytes, values 1000; requests follow a scrambled Zipf distribution (0.99). A load does all its \
records and is flushed, which is timed apart; the others do --ops operations or as many as --seconds allow.

Every run is a fresh process in a memory cgroup of its own; engines take turns. Every value that is read is checked, all its \
bytes, against its key and the versions it may have; after each run another process reads both stores whole, and each record must \
be there with its last version. One wrong answer fails the command. Figures are medians over the repetitions.")]
#[command(after_help = "\
Stores:
  own       a B+-tree and a log written for mapped memory, as the paper's Kreon: locks a node, an optimistic root
  lmdb      LMDB, unchanged; writes through its map (MDB_WRITEMAP), one transaction a put, no syncs (MDB_NOSYNC)
  rocksdb   RocksDB, unchanged, reading tables through maps (allow_mmap_reads); the system's librocksdb, left out where there is none

Engines:
  mmap          kernel mmap without advice
  mmap-random   the same with MADV_RANDOM (lmdb: MDB_NORDAHEAD; rocksdb: given to its maps from outside)
  fastmap       this project: own through the library, the others under `fastmap run`
mmap is not among the defaults: it reads around every page that is missing, which at random costs it more than it gains.

Memory, for everything that a run uses, cache and page cache included:
  all      room for all of the store
  sixth    a sixth of what the store takes (records' bytes and a sixteenth more; lmdb: twice the records' bytes)
  SIZE, none

Examples:
  fastmap bench kv
  fastmap bench kv --stores own --threads 1,2,4 --memory all        figure 8(a)
  fastmap bench kv --stores lmdb --engines mmap,mmap-random,fastmap --records 1000000 --seconds 5 --repeat 3 --json out.json")]
pub struct KvArgs {
    /// Stores, separated by commas [default: own,lmdb,rocksdb, this one if its library is installed]
    #[arg(long, value_name = "LIST", value_delimiter = ',')]
    pub stores: Vec<Kind>,
    /// Engines to compare, separated by commas
    #[arg(long, value_name = "LIST", value_delimiter = ',', default_value = "mmap-random,fastmap")]
    pub engines: Vec<Engine>,
    /// Limits on all memory of a run, separated by commas: all, sixth, a SIZE, or none [default: all,sixth]
    #[arg(long, value_name = "LIST", value_delimiter = ',', default_value = "all,sixth", hide_default_value = true)]
    pub memory: Vec<Room>,
    /// Threads, all on one store; several numbers, separated by commas, are measured one after the other
    #[arg(long, value_name = "LIST", value_delimiter = ',', default_value = "2", value_parser = threads)]
    pub threads: Vec<u32>,
    /// Records of a load, 1030 bytes each [default: 300000; lmdb 100000, which take as long]
    #[arg(long, value_name = "N", value_parser = operations)]
    pub records: Option<u64>,
    /// Most operations of a workload that is no load, all threads together [default: as many as records]
    #[arg(long, value_name = "N", value_parser = operations)]
    pub ops: Option<u64>,
    /// Most seconds of a workload that is no load
    #[arg(long, value_name = "S", default_value = "0.5", value_parser = seconds)]
    pub seconds: f64,
    /// Where to put the stores [default: the first of the current directory, /var/tmp and $HOME that is on a disk and has
    /// room]
    #[arg(long, value_name = "DIR")]
    pub dir: Option<PathBuf>,
    /// Repetitions
    #[arg(long, value_name = "R", default_value_t = 1, value_parser = repetitions)]
    pub repeat: u32,
    /// Also write the results here as JSON
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
}

/// How much memory a run may use.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Room {
    /// As much as its store needs.
    All,
    /// A sixth of what its store takes.
    Sixth,
    /// So much, or as much as there is.
    Given(Memory),
}

impl KvArgs {
    /// Records of a load of some store.
    pub fn records_of(&self, store: Kind) -> u64 {
        self.records.unwrap_or(if store == Kind::Lmdb { 100_000 } else { 300_000 })
    }
}

impl FromStr for Room {
    type Err = String;

    fn from_str(text: &str) -> Result<Room, String> {
        match text {
            "all" => Ok(Room::All),
            "sixth" => Ok(Room::Sixth),
            _ => text.parse().map(Room::Given).map_err(|why: String| format!("{why}; or all, or sixth")),
        }
    }
}

impl std::fmt::Display for Room {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Room::All => f.write_str("all"),
            Room::Sixth => f.write_str("sixth"),
            Room::Given(Memory::Limit(Size(bytes))) => Size(*bytes).fmt(f),
            Room::Given(Memory::Unlimited) => f.write_str("none"),
        }
    }
}
