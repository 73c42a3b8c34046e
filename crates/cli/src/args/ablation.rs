//! The command line of `fastmap bench ablation`.

use std::path::PathBuf;

use clap::Args as ClapArgs;
use fastmap_workloads::ablation::{Off, Work};

use super::{repetitions, seconds, threads};
use crate::size::{Memory, Size};

/// Measure what each mechanism of FastMap is worth: everything on, and one thing off
#[derive(Debug, ClapArgs)]
#[command(long_about = "\
Measure what each mechanism of FastMap is worth: everything on, and one thing off, after the FastMap paper's figure 6 and what \
it says of batched TLB invalidations.

Each load runs with all mechanisms, without each of those that can matter for it, and, for scale, on kernel mmap with the advice \
that suits it; they take turns within each repetition. What a mechanism is worth is the rate with everything on, divided by the rate \
without it, repetition by repetition; the same for processor time an operation. Where the device sets the pace a mechanism shows in \
processor time alone.

Every run is a fresh process in a memory cgroup of its own, limited to --memory; the file is dropped from the page cache before. It \
warms up until 1.25 times the pages that fit into memory were touched (or --seconds have passed) and is then measured for --seconds. \
Every operation checks its page's stamp; after a load that writes, the whole file is read back and every byte checked. One wrong \
byte fails the command. Figures are medians over the repetitions.")]
#[command(after_help = "\
Loads:
  random-read                 random pages, --threads threads: per-core, batch-64, batch-1, stripes
  random-write                the same: per-core, batch-1, protection, stripes, merging, tracking
  rmw                         read-modify-write, zipf, --threads threads: per-core, protection, habits
  fill                        a fresh file filled front to back and flushed: protection, merging
  flush                       stores to 16 pages all over the file, then a flush of all of it: tracking
  forward, backward, stride   scans; every 16th page: readahead

Mechanisms, and what is done without each:
  per-core     credits, clean queues and buffers of each processor's own: one of each for all
  batch-64     pages leave memory 512 at a time (in caches below 128 MiB a 64th of the pages), with one TLB flush: 64 at a time
  batch-1      the same: each alone
  protection   pages that are written back are write-protected with one call, and one TLB flush: each alone
  stripes      a file is striped over several userfaultfds, and so VMAs and their locks: one
  merging      neighbouring dirty pages are written with one write: each alone (the kernel may still merge them)
  tracking     dirty pages are kept apart, in a bitmap with summaries: the states of all pages are looked through
  readahead    walks forward, backward and with strides are recognised: nothing is read ahead
  habits       pages that are read are writable at once where stores follow: each first store traps

Examples:
  fastmap bench ablation
  fastmap bench ablation --dir /mnt/fastmap-fast --threads 2,8 --size 1GiB --seconds 2 --repeat 5 --json out.json
  fastmap bench ablation --loads random-read,random-write --off batch-64,batch-1 --size 4GiB
  fastmap bench ablation --dir /dev/shm   no device: the engine's own work alone; kernel mmap, which has the file itself mapped there,
                                          is no comparison; without fill")]
pub struct AblationArgs {
    /// Loads, separated by commas
    #[arg(
        long,
        value_name = "LIST",
        value_delimiter = ',',
        default_value = "random-read,random-write,rmw,fill,flush,forward,backward,stride"
    )]
    pub loads: Vec<Work>,
    /// Mechanisms to do without, one at a time, separated by commas [default: all that can matter for the load]
    #[arg(long, value_name = "LIST", value_delimiter = ',')]
    pub off: Vec<Off>,
    /// Threads of the random loads, all on one map; several numbers, separated by commas, are measured one after the other
    #[arg(long, value_name = "LIST", value_delimiter = ',', default_value = "8", value_parser = threads)]
    pub threads: Vec<u32>,
    /// Where to put the temporary file [default: the first of the current directory, /var/tmp and $HOME that is on a
    /// disk and has room]
    #[arg(long, value_name = "DIR")]
    pub dir: Option<PathBuf>,
    /// Size of the file, a multiple of 4096
    #[arg(long, default_value = "640MiB")]
    pub size: Size,
    /// Limit on all memory of each run, cache and bookkeeping included; or none, where no memory cgroup can be made
    /// [default: a quarter of --size, or none where no memory cgroup can be made]
    #[arg(long, value_name = "SIZE|none")]
    pub memory: Option<Memory>,
    /// Seconds to measure each run, and at most to warm up; fill takes what it takes
    #[arg(long, value_name = "S", default_value = "0.8", value_parser = seconds)]
    pub seconds: f64,
    /// Repetitions
    #[arg(long, value_name = "R", default_value_t = 3, value_parser = repetitions)]
    pub repeat: u32,
    /// Also write the results here as JSON
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
}
