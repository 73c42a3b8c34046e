//! The command line of `fastmap bench study`.

use std::path::PathBuf;

use clap::Args as ClapArgs;
use fastmap_workloads::study::{Engine, Work};

use super::{count, repetitions};
use crate::size::{Memory, Size};

/// Measure how long one pass over a file takes, a hundred times over: pread, mmap and FastMap, and how steady each is
#[derive(Debug, ClapArgs)]
#[command(long_about = "\
Measure how long one pass over a file takes, a hundred times over.

After the paper \"Linux Memory Mapped System Call Performance\" (Najafi, Kohler, VanDeBogart): a file twice as large as memory is \
read forward, backward and at random, and many small files are; each pass is timed from opening the first file to having let go of \
the last. The paper's finding is that kernel mmap was not only slower than pread but unsteady, so what is shown is average, \
least, greatest and standard deviation.

Every pass is a fresh process in a memory cgroup of its own, limited to --memory; engines take turns within each repetition; \
what is read is dropped from the page cache before. Every byte read is checked. An engine that \
takes ten times as long as the fastest at a work makes a tenth of the repetitions there. In the end one more pass of each engine over the \
large file is made with the requests recorded that its device gets (the paper's block traces), where tracefs allows that: as \
root, mostly.")]
#[command(after_help = "\
Works:
  forward, backward   the whole file, from its first page to its last, from its last to its first
  random              --touches pages of the file, drawn at random
  small-forward, small-backward, small-random
                      files of 16 to 64 KiB, --small together, in the order of their names and each forward; in the opposite
                      order and each backward; shuffled, with the pages of each shuffled

Engines:
  pread          128 KiB a call forward and backward, a page a call at random, through the page cache
  mmap           kernel mmap without advice
  mmap-advised   kernel mmap with MADV_SEQUENTIAL (forward) and MADV_RANDOM (random); left out elsewhere, where every advice makes it
                 slower or changes nothing
  fastmap        this project, without advice
  fastmap-advised
                 the same with Advice::Random (random), Advice::WillNeed (small files); left out forward and backward, which it
                 sees by itself

Examples:
  fastmap bench study
  fastmap bench study --works forward,backward --dir /mnt/disk --json study.json
  fastmap bench study --size 1GiB --memory 512MiB --touches 10000 --repeat 10")]
pub struct StudyArgs {
    /// What to read, separated by commas
    #[arg(
        long,
        value_name = "LIST",
        value_delimiter = ',',
        default_value = "forward,backward,random,small-forward,small-backward,small-random"
    )]
    pub works: Vec<Work>,
    /// Engines to compare, separated by commas
    #[arg(
        long,
        value_name = "LIST",
        value_delimiter = ',',
        default_value = "pread,mmap,mmap-advised,fastmap,fastmap-advised"
    )]
    pub engines: Vec<Engine>,
    /// Where to put the files [default: the first of the current directory, /var/tmp and $HOME that is on a disk and has room]
    #[arg(long, value_name = "DIR")]
    pub dir: Option<PathBuf>,
    /// Size of the large file, a multiple of 4096
    #[arg(long, default_value = "256MiB")]
    pub size: Size,
    /// Size of all small files together, a multiple of 4096
    #[arg(long, value_name = "SIZE", default_value = "4MiB")]
    pub small: Size,
    /// Pages that a pass at random touches
    #[arg(long, value_name = "N", default_value_t = 256, value_parser = touches)]
    pub touches: u32,
    /// Limit on all memory of each run, cache and bookkeeping included; or none, where no memory cgroup can be made
    /// [default: half of --size, or none where no memory cgroup can be made]
    #[arg(long, value_name = "SIZE|none")]
    pub memory: Option<Memory>,
    /// Repetitions
    #[arg(long, value_name = "R", default_value_t = 100, value_parser = repetitions)]
    pub repeat: u32,
    /// Also write the results here as JSON
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
}

fn touches(text: &str) -> Result<u32, String> {
    count(text, "pages to touch", 100_000_000)
}
