//! The command line.

use std::path::PathBuf;

use clap::{Args as ClapArgs, Parser, Subcommand};
use fastmap_workloads::{Advice, Engine, Op, Pattern, Trace};

use crate::size::{Memory, Size};

/// Memory-mapped files with a cache of their own, in user space: measure it here, and see what this machine offers.
#[derive(Debug, Parser)]
#[command(name = "fastmap", version, max_term_width = 100, subcommand_required = true, arg_required_else_help = true)]
#[command(after_help = "\
SIZE is a whole number of bytes or of KiB, MiB, GiB, TiB: 4096, 64KiB, 1GiB.
Exit status: 0 done, 1 failed, 2 wrong usage.

Examples:
  fastmap doctor                 what this machine offers and what it lacks
  fastmap bench                  FastMap beside kernel mmap, about two minutes
  fastmap bench micro --help     one load, in every detail")]
pub struct Args {
    #[command(subcommand)]
    pub command: Command,
}

/// What to do. (A description here would replace the longer one of the arguments' type.)
#[derive(Debug, Subcommand)]
pub enum Command {
    Bench(BenchArgs),
    /// Say what this machine offers FastMap, what is missing, and what to do about it
    Doctor(DoctorArgs),
}

/// Measure FastMap beside kernel mmap: a tour of about two minutes, or one load in detail (`bench micro`)
#[derive(Debug, ClapArgs)]
#[command(args_conflicts_with_subcommands = true)]
#[command(long_about = "\
Measure FastMap beside kernel mmap.

Without a subcommand: the tour. It makes a temporary file of 1 GiB, allows every engine 256 MiB of memory, and runs nine \
loads three times over with kernel mmap under the advice that can suit it, FastMap (random reads also with prefetch and \
with pins), and direct calls for reference. It needs nothing set up and takes about two minutes. As root (or where the user may make memory cgroups) every run is \
limited by a cgroup of its own; otherwise nothing limits kernel mmap, and the tour says so.")]
#[command(after_help = "\
Examples:
  fastmap bench
  fastmap bench --dir /mnt/disk --json tour.json
  systemd-run --user --scope -p Delegate=yes fastmap bench     limits without being root")]
pub struct BenchArgs {
    #[command(subcommand)]
    pub command: Option<BenchCommand>,
    #[command(flatten)]
    pub tour: TourArgs,
}

#[derive(Debug, ClapArgs)]
pub struct TourArgs {
    /// Where to put the temporary file [default: the first of the current directory, /var/tmp and $HOME that is on a
    /// disk and has room]
    #[arg(long, value_name = "DIR")]
    pub dir: Option<PathBuf>,
    /// Also write the results here as JSON
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
}

#[derive(Debug, Subcommand)]
pub enum BenchCommand {
    Micro(MicroArgs),
    Replacement(ReplacementArgs),
    /// One run of one engine, in a process of its own
    #[command(hide = true)]
    Worker {
        /// The order as JSON
        order: String,
    },
}

/// Measure one load, with the engines, threads, sizes and repetitions you choose
#[derive(Debug, ClapArgs)]
#[command(long_about = "\
Measure one load.

Every engine and repetition is a fresh process in a memory cgroup of its own, limited to --memory; engines take turns \
within each repetition; the file is dropped from the page cache before each run. A run warms up until 1.25 times the \
pages that fit into memory were touched (or --seconds have passed) and is then measured for --seconds. Every operation \
checks the page's stamp. After a load that writes, the whole file is read back and every byte checked. One wrong byte \
fails the command. Figures are medians over the repetitions.

The pattern fill is another kind of load: every run starts with an empty file, extended to --size without a write, and \
writes it forward, each page once and whole, then flushes it. What is measured is the time until the file is on stable \
storage, for every engine, so --seconds bounds nothing; latencies are those of single pages, without the flush (pread and direct write when 256 have come \
together).")]
#[command(after_help = "\
Engines:
  mmap, mmap-random, mmap-sequential   kernel mmap: no advice, MADV_RANDOM, MADV_SEQUENTIAL
  fastmap                              this project, plain loads and stores
  fastmap-pin                          the same, each page pinned while it is read or written
  fastmap-prefetch                     the same, plain loads and stores; each thread prefetches the 64 pages it needs next
  pread                                buffered pread and pwrite, one page a call (fill: 1 MiB)
  direct                               the same past the page cache (O_DIRECT); forward and backward reads: 2 MiB a call

Examples:
  fastmap bench micro
  fastmap bench micro --pattern zipf --threads 2 --size 4GiB --memory 1GiB --repeat 5
  fastmap bench micro --engines mmap,fastmap --op write --file /mnt/disk/bench --size 4GiB --json out.json
  fastmap bench micro --engines mmap-sequential,fastmap,direct --pattern fill --op write --size 4GiB
  fastmap bench micro --engines mmap-random,fastmap,fastmap-prefetch,fastmap-pin --threads 2 --size 4GiB
  fastmap bench micro --engines mmap,mmap-sequential,fastmap,direct --pattern backward --advice backward
  fastmap bench micro --memory none       without root: nothing limits kernel mmap then")]
pub struct MicroArgs {
    /// Engines to compare, separated by commas
    #[arg(
        long,
        value_name = "LIST",
        value_delimiter = ',',
        default_value = "mmap,mmap-random,mmap-sequential,fastmap"
    )]
    pub engines: Vec<Engine>,
    /// Order of the pages: random, zipf (theta 0.99), forward, backward, stride (every 16th page), fill (forward, a fresh
    /// file written whole; needs --op write)
    #[arg(long, default_value_t = Pattern::Random)]
    pub pattern: Pattern,
    /// What to do with each page: read (load and check its stamp), write (store a new generation, check the stamp),
    /// rmw (load the generation, store the next)
    #[arg(long, default_value_t = Op::Read)]
    pub op: Op,
    /// What the fastmap engines are told about the order of pages: normal (nothing), random, sequential, backward. For
    /// kernel mmap choose among its engines, whose names carry the advice [default: normal]
    #[arg(long)]
    pub advice: Option<Advice>,
    /// Threads, all on one map
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = threads)]
    pub threads: u32,
    /// The file: made if missing, extended if shorter than --size, used again if `fastmap bench` made it (fill writes it
    /// anew, --size long), refused otherwise [default: a temporary file in the current directory]
    #[arg(long, value_name = "PATH")]
    pub file: Option<PathBuf>,
    /// Size of the file, a multiple of 4096 [default: that of --file if it exists, else 1GiB]
    #[arg(long)]
    pub size: Option<Size>,
    /// Limit on all memory of each run, cache and bookkeeping included; or none, where no memory cgroup can be made
    /// [default: a quarter of --size, or none where no memory cgroup can be made]
    #[arg(long, value_name = "SIZE|none")]
    pub memory: Option<Memory>,
    /// Seconds to measure each run, and at most to warm up; fill takes what it takes
    #[arg(long, value_name = "S", default_value = "5", value_parser = seconds)]
    pub seconds: f64,
    /// Repetitions
    #[arg(long, value_name = "R", default_value_t = 3, value_parser = repetitions)]
    pub repeat: u32,
    /// Also write the results here as JSON
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
}

/// Measure which pages are kept: hit ratios of traces beside kernel mmap, with as many pages in memory
#[derive(Debug, ClapArgs)]
#[command(long_about = "\
Measure which pages are kept.

Each trace is a sequence of touches by one thread over a file larger than memory, scattered over it so that no readahead \
helps. Kernel mmap, without advice and with MADV_RANDOM, replays it in a memory cgroup limited to --memory; FastMap then \
with a cache of as many pages as the kernel had of the file in memory at the end. Every run is a fresh process and begins \
with a cold file; engines take turns; the stamp of every page touched is checked. Counted are the touches that had to \
wait for a read: major faults of the process, misses of the engine.")]
#[command(after_help = "\
Traces:
  zipf-0.6, zipf-0.99, zipf-1.2   Zipf with this exponent
  scan-mixed                      half to a hot set of half of memory, half a scan of the file
  loop                            the same pages again and again, a tenth more than fit into memory
  shifting                        nine of ten to a window of half of memory, which moves on

Examples:
  fastmap bench replacement
  fastmap bench replacement --traces zipf-0.99,scan-mixed --size 4GiB --memory 1GiB --repeat 5 --json out.json")]
pub struct ReplacementArgs {
    /// Traces to replay, separated by commas [default: all]
    #[arg(long, value_name = "LIST", value_delimiter = ',')]
    pub traces: Vec<Trace>,
    /// The file: made if missing, extended if shorter than --size, used again if `fastmap bench` made it, refused
    /// otherwise [default: a temporary file in the current directory]
    #[arg(long, value_name = "PATH")]
    pub file: Option<PathBuf>,
    /// Size of the file, a multiple of 4096 [default: that of --file if it exists, else 256MiB]
    #[arg(long)]
    pub size: Option<Size>,
    /// Limit on all memory of a run of kernel mmap [default: a quarter of --size]
    #[arg(long, value_name = "SIZE")]
    pub memory: Option<Size>,
    /// Touches in the window, and as many before it, times the file's pages
    #[arg(long, value_name = "N", default_value_t = 8, value_parser = touches)]
    pub touches: u32,
    /// Repetitions
    #[arg(long, value_name = "R", default_value_t = 3, value_parser = repetitions)]
    pub repeat: u32,
    /// Also write the results here as JSON
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
}

#[derive(Debug, ClapArgs)]
#[command(
    after_help = "Exit status: 0 if FastMap can cache files here, 1 if something it cannot do without is missing."
)]
pub struct DoctorArgs {
    /// A file to be mapped, or a directory of such files
    #[arg(default_value = ".")]
    pub path: PathBuf,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

fn threads(text: &str) -> Result<u32, String> {
    count(text, "threads", 1024)
}

fn repetitions(text: &str) -> Result<u32, String> {
    count(text, "repetitions", 10_000)
}

fn touches(text: &str) -> Result<u32, String> {
    count(text, "touches a page", 10_000)
}

fn count(text: &str, of: &str, most: u32) -> Result<u32, String> {
    match text.parse() {
        Ok(count) if (1..=most).contains(&count) => Ok(count),
        _ => Err(format!("\"{text}\" is no number of {of}: give 1 to {most}")),
    }
}

fn seconds(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(seconds) if (0.01..=86_400.0).contains(&seconds) => Ok(seconds),
        _ => Err(format!("\"{text}\" is no number of seconds: give 0.01 to 86400")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn the_command_line_is_consistent() {
        Args::command().debug_assert();
    }
}
