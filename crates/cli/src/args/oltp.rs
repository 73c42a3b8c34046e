//! The arguments of `fastmap bench oltp`.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

use clap::Args;
use fastmap_workloads::tpcc::Engine;
use serde::Serialize;

use super::{repetitions, seconds, threads};
use crate::size::Memory;

/// Measure transactions over a heap larger than memory: TPC-C, on several file systems
#[derive(Debug, Args)]
#[command(long_about = "\
Measure transactions over a heap larger than memory: TPC-C, on several file systems.

After the FastMap paper's table 2 and figure 11: an in-memory database (there Silo) whose heap a library extends over a file. \
The five transactions of TPC-C run without thinking time over tables on the ordinary heap of a program that knows nothing of \
FastMap. The very same allocator hands out memory of a file that the kernel maps (`fastmap run --direct always --heap`, which is \
what libvmmalloc does) or FastMap (`fastmap run --heap`). Nothing is logged: the database lives as long as the process.

Each file system is made anew on a loop device over one unnamed file in --dir, past the page cache beneath, and goes with \
this command, however that ends. That takes root, and mkfs for each of them. Where there is none of it, the heap is in --dir itself.

Every engine and repetition is a fresh process in a memory cgroup of its own, limited to --memory; engines take turns. A run \
fills the tables, which are the same each time, runs transactions for a third of --seconds that do not count, and then for --seconds. At its \
end the conditions of consistency 1 to 10 and 12 of the specification (clause 3.3.2) are checked over all tables, and that they \
hold what the terminals counted. Every row carries a check word, which is verified whenever it is read. One wrong row fails the command. \
Figures are medians over the repetitions.")]
#[command(after_help = "\
Engines:
  mmap, mmap-random   kernel mmap: no advice, MADV_RANDOM
  fastmap             this project

A warehouse takes about 80 MB. tpmC counts new orders as the specification does, but for its rules of thinking time and \
durability: it compares engines, not products.

Examples:
  fastmap bench oltp
  fastmap bench oltp --file-systems here --dir /mnt/disk --warehouses 8 --threads 2,8 --json out.json
  fastmap bench oltp --file-systems xfs --engines mmap-random,fastmap --seconds 30 --repeat 5")]
pub struct OltpArgs {
    /// File systems to have the heap on, separated by commas: ext4, xfs, btrfs (each made for this), here (that of --dir as it
    /// is) [default: ext4, xfs and btrfs, as far as they can be had; else here]
    #[arg(long, value_name = "LIST", value_delimiter = ',')]
    pub file_systems: Vec<FileSystem>,
    /// Engines to compare, separated by commas
    #[arg(long, value_name = "LIST", value_delimiter = ',', default_value = "mmap,mmap-random,fastmap")]
    pub engines: Vec<Engine>,
    /// Size of the database
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = warehouses)]
    pub warehouses: u32,
    /// Threads, each a terminal with its share of the warehouses; several numbers, separated by commas, are measured one after
    /// the other
    #[arg(long, value_name = "LIST", value_delimiter = ',', default_value = "2", value_parser = threads)]
    pub threads: Vec<u32>,
    /// Where to put the file with the file systems, or the heap [default: the first of the current directory, /var/tmp and
    /// $HOME that is on a disk and has room]
    #[arg(long, value_name = "DIR")]
    pub dir: Option<PathBuf>,
    /// Limit on all memory of each run, cache and bookkeeping included; or none, where no memory cgroup can be made
    /// [default: two sevenths of the rows' size, or none where no memory cgroup can be made]
    #[arg(long, value_name = "SIZE|none")]
    pub memory: Option<Memory>,
    /// Seconds to measure each run
    #[arg(long, value_name = "S", default_value = "3", value_parser = seconds)]
    pub seconds: f64,
    /// Repetitions
    #[arg(long, value_name = "R", default_value_t = 3, value_parser = repetitions)]
    pub repeat: u32,
    /// Also write the results here as JSON
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
}

/// What the heap's file is on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum FileSystem {
    /// Made for the bench.
    Ext4,
    /// Made for the bench.
    Xfs,
    /// Made for the bench.
    Btrfs,
    /// The directory's own.
    Here,
}

impl FileSystem {
    /// Those that can be made.
    pub const MADE: [FileSystem; 3] = [FileSystem::Ext4, FileSystem::Xfs, FileSystem::Btrfs];

    /// As it is given.
    pub fn name(self) -> &'static str {
        match self {
            FileSystem::Ext4 => "ext4",
            FileSystem::Xfs => "xfs",
            FileSystem::Btrfs => "btrfs",
            FileSystem::Here => "here",
        }
    }
}

impl fmt::Display for FileSystem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl FromStr for FileSystem {
    type Err = String;

    fn from_str(text: &str) -> Result<FileSystem, String> {
        let mut all = FileSystem::MADE.into_iter().chain([FileSystem::Here]);
        let known = all.find(|one| one.name() == text);
        known.ok_or_else(|| format!("\"{text}\" is no file system: choose from ext4, xfs, btrfs, here"))
    }
}

fn warehouses(text: &str) -> Result<u32, String> {
    super::count(text, "warehouses", 1000)
}
