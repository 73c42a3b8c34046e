//! `fastmap bench scale`.

use std::path::PathBuf;

use clap::Args as ClapArgs;
use fastmap_workloads::Engine;

use super::{repetitions, seconds, threads};
use crate::size::{Memory, Size};

/// Measure random page faults, reads and writes, over the number of threads
#[derive(Debug, ClapArgs)]
#[command(long_about = "\
Measure random page faults, reads and writes, over the number of threads; after the FastMap paper, figures 1, 4 and 8(c).

Every operation loads from, or stores to, a page that is not in memory: pages come in a scattered order, each once before any \
comes again. In memory: the data fit, and begin cold; a run ends when each page was touched, or after --seconds. Out of memory: a run may \
use --memory, and its memory is full when the measurement of --seconds begins, so every fault evicts a page. How many operations were \
faults indeed is counted.

The data are on a disk, and without root on no device: a file that is one hole, so that a fault gives a page of zeros and all that \
is measured is the software, as over the paper's null_blk (reads only, since stores need blocks). With --fast-dir, a directory on a \
fast device such as scripts/fast-device makes (ext4 on zram, memory behind the block layer), that takes the place of the hole, for \
reads and writes.

Kernel mmap and FastMap, advised that the order is random, take turns; every run is a fresh process in a memory cgroup of its own, \
begun with a cold file. Of mmap without advice and with MADV_RANDOM two trial runs each, at the number of threads nearest to that of processors, decides which is \
measured against FastMap: the faster one, by the slower of its two, of which at least nine of ten operations are page faults. The other's trial is shown as well.")]
#[command(after_help = "\
Figures are medians over the repetitions. Efficiency: operations a second over those of the first number of threads, by thread, counting no more threads than \
there are processors; threads that wait for a device can be worth more than 1. Queue depth: reads and writes at the device, on average over the \
window, everybody's: leave the device alone meanwhile.

Each page's stamp is checked by every operation (zeros in the hole); after each run that stores, the whole file is read back and \
every byte checked.

Examples:
  fastmap bench scale
  sudo scripts/fast-device up && fastmap bench scale --fast-dir /mnt/fastmap-fast --json scale.json
  fastmap bench scale --threads 1,2,4,8,16,32,64 --size 64GiB --memory 4GiB --seconds 10 --dir /mnt/nvme")]
pub struct ScaleArgs {
    /// Numbers of threads, all on one map, separated by commas
    #[arg(long, value_name = "LIST", value_delimiter = ',', default_value = "1,2,4,16", value_parser = threads)]
    pub threads: Vec<u32>,
    /// Engines to compare, separated by commas: mmap, mmap-random (MADV_RANDOM), fastmap
    #[arg(
        long,
        value_name = "LIST",
        value_delimiter = ',',
        default_value = "mmap,mmap-random,fastmap",
        value_parser = faulting
    )]
    pub engines: Vec<Engine>,
    /// Where to put the temporary file [default: the first of the current directory, /var/tmp and $HOME that is on a
    /// disk and has room]
    #[arg(long, value_name = "DIR")]
    pub dir: Option<PathBuf>,
    /// A directory on a device that is memory, or nearly as fast; no tmpfs, where there is nothing to cache
    #[arg(long, value_name = "DIR")]
    pub fast_dir: Option<PathBuf>,
    /// Size of the file, a multiple of 4096
    #[arg(long, default_value = "512MiB")]
    pub size: Size,
    /// Limit on all memory of each run out of memory, cache and bookkeeping included; or none, where no memory cgroup can be made
    /// [default: an eighth of --size, or none where no memory cgroup can be made]
    #[arg(long, value_name = "SIZE|none")]
    pub memory: Option<Memory>,
    /// Seconds to measure each run
    #[arg(long, value_name = "S", default_value = "0.5", value_parser = seconds)]
    pub seconds: f64,
    /// Repetitions
    #[arg(long, value_name = "R", default_value_t = 3, value_parser = repetitions)]
    pub repeat: u32,
    /// Also write the results here as JSON
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
}

/// An engine whose pages are reached by page faults, one at a time.
pub fn faulting(text: &str) -> Result<Engine, String> {
    match text.parse() {
        Ok(engine @ (Engine::Mmap | Engine::MmapRandom | Engine::Fastmap)) => Ok(engine),
        _ => Err(format!("\"{text}\" is no engine here: choose from mmap, mmap-random, fastmap")),
    }
}
