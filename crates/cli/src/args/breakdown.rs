//! `fastmap bench breakdown`.

use std::path::PathBuf;

use clap::Args as ClapArgs;
use fastmap_workloads::Engine;

use super::scale::faulting;
use super::{repetitions, seconds, threads};
use crate::size::{Memory, Size};

/// Measure where the time of random page faults goes
#[derive(Debug, ClapArgs)]
#[command(long_about = "\
Measure where the time of random page faults goes; after the FastMap paper, figures 5, 9 and 10.

The loads are those of `bench scale`. While a run is measured, perf(1) samples all processors, where it is installed and allowed (root, or \
kernel.perf_event_paranoid -1), and each sample is put down to a part by a table of functions. Beside that, and alone where perf \
may not be used, stands what the kernel counts for each thread. Engines take turns; every run is a fresh process in a memory cgroup of its own, begun with a cold file.")]
#[command(after_help = "\
Parts:
  program       the loop that faults, checks each page and takes the time
  trap          entry and return of page faults, signals and system calls
  wasted page   what Linux allocates for a store before it asks userfaultfd, and frees again (FastMap only)
  bookkeeping   which pages are there: the kernel's page cache; FastMap's own code
  install       a frame, its contents, its page table entry
  read          reads: submission and completion
  evict         reclaim, unmapping, the TLB flush
  write-back    what faulting threads do of it
  locks, scheduling, interrupts
  workers       FastMap's writers, readers and keeper; the kernel's threads for write-back, block devices and reclaim (the paper's kworker)
  other         not in the table; the JSON names the functions
  I/O wait      idle, a read or write being awaited; idle: otherwise
  elsewhere     other programs
  threads:      of those that fault: user, system, queued (no processor free), waiting (for a page); their workers: processor time of \
the process's other threads

Examples:
  fastmap bench breakdown
  fastmap bench breakdown --threads 1,2,4,8,16,32 --dir /mnt/nvme --seconds 5 --json breakdown.json
  fastmap bench breakdown --no-perf")]
pub struct BreakdownArgs {
    /// Numbers of threads, all on one map, separated by commas
    #[arg(long, value_name = "LIST", value_delimiter = ',', default_value = "1,16", value_parser = threads)]
    pub threads: Vec<u32>,
    /// Engines to compare, separated by commas: mmap, mmap-random (MADV_RANDOM), fastmap
    #[arg(
        long,
        value_name = "LIST",
        value_delimiter = ',',
        default_value = "mmap-random,fastmap",
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
    #[arg(long, value_name = "S", default_value = "1", value_parser = seconds)]
    pub seconds: f64,
    /// Repetitions
    #[arg(long, value_name = "R", default_value_t = 2, value_parser = repetitions)]
    pub repeat: u32,
    /// Do not sample with perf, even where it is allowed
    #[arg(long)]
    pub no_perf: bool,
    /// Also write the results here as JSON
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
}
