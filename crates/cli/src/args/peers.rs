//! The command line of `fastmap bench peers`.

use std::path::PathBuf;

use clap::Args as ClapArgs;
use fastmap_workloads::peers::{Peer, Work};

use super::{repetitions, seconds, threads};
use crate::size::{Memory, Size};

/// Measure FastMap beside what people use instead: mmap, a cache over pread, a database's buffer pool, plain calls
#[derive(Debug, ClapArgs)]
#[command(long_about = "\
Measure FastMap beside what people use instead.

The same work, with the same memory, through every engine: pages of 4 KiB (the database: records of 4032 bytes, which fill one of \
its own pages), read or read and updated by several threads. Every engine and repetition is a fresh process in a memory \
cgroup of its own, limited to --memory, whatever part of it the engine's own cache takes; engines take turns; the file is \
dropped from the page cache before each run. A run warms up until 1.25 times the pages that fit into memory were touched (or \
--seconds have passed) and is then measured for --seconds. Every operation checks its page's stamp; after a work that updates, \
every page is read back and every byte checked. Figures are medians over the repetitions.")]
#[command(after_help = "\
Works:
  random-read   reads, uniformly over the file
  zipf-read     reads, Zipf (theta 0.99), hot pages scattered
  zipf-update   the same, each read followed by a store to the same page

Engines:
  mmap, mmap-random  kernel mmap (crate memmap2): no advice, MADV_RANDOM
  fastmap            this project, plain loads and stores
  fastmap-pin        the same, each page pinned while it is worked on
  fastmap-prefetch   the same, each thread prefetches the 64 pages it needs next
  pread, direct      pread and pwrite, a page a call, through the page cache and past it (O_DIRECT)
  quick-cache        a cache of pages (crate quick_cache) over pread with O_DIRECT; an update is written through at once
  redb               an embedded database (crate redb) with its cache limited; an update is a transaction, every 256th durable;
                     one thread at a time can write

scripts/peers runs the same beside a UMap or vmcache that you have built.

Examples:
  fastmap bench peers
  fastmap bench peers --engines fastmap-pin,quick-cache,redb --threads 1,2,4 --size 4GiB --memory 1GiB --seconds 5 --json out.json")]
pub struct PeersArgs {
    /// What to do, separated by commas
    #[arg(long, value_name = "LIST", value_delimiter = ',', default_value = "random-read,zipf-read,zipf-update")]
    pub works: Vec<Work>,
    /// Engines to compare, separated by commas
    #[arg(
        long,
        value_name = "LIST",
        value_delimiter = ',',
        default_value = "mmap-random,fastmap,fastmap-pin,fastmap-prefetch,pread,direct,quick-cache,redb"
    )]
    pub engines: Vec<Peer>,
    /// Threads; several numbers, separated by commas, are measured one after the other
    #[arg(long, value_name = "LIST", value_delimiter = ',', default_value = "1,2", value_parser = threads)]
    pub threads: Vec<u32>,
    /// Where to put the files [default: the first of the current directory, /var/tmp and $HOME that is on a disk and has room]
    #[arg(long, value_name = "DIR")]
    pub dir: Option<PathBuf>,
    /// Size of the file, a multiple of 4096; the database is about as large beside it
    #[arg(long, default_value = "256MiB")]
    pub size: Size,
    /// Limit on all memory of each run, caches and bookkeeping included; or none, where no memory cgroup can be made
    /// [default: a quarter of --size, or none where no memory cgroup can be made]
    #[arg(long, value_name = "SIZE|none")]
    pub memory: Option<Memory>,
    /// Seconds to measure each run, and at most to warm up
    #[arg(long, value_name = "S", default_value = "0.8", value_parser = seconds)]
    pub seconds: f64,
    /// Repetitions
    #[arg(long, value_name = "R", default_value_t = 3, value_parser = repetitions)]
    pub repeat: u32,
    /// Also write the results here as JSON
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
}
