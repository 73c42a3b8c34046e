//! The command line of `fastmap bench graph`.

use std::path::PathBuf;

use clap::Args as ClapArgs;
use fastmap_workloads::graph;

use super::{count, repetitions, threads};
use crate::size::Memory;

/// Measure graph analytics on a heap that lies in a file: breadth-first search and PageRank, memory an eighth
#[derive(Debug, ClapArgs)]
#[command(long_about = "\
Measure graph analytics on a heap that lies in a file.

After figure 7 of the FastMap paper: Ligra on a heap extended over storage with libvmmalloc. An R-MAT graph, as Ligra's generator \
draws it (0.5, 0.1, 0.1, 0.3), in compressed sparse rows both ways round, with 8 bytes for a vertex; breadth-first search that \
chooses its direction, from several sources, and PageRank that pulls along the edges. The program knows nothing of files: it runs \
under `fastmap run --heap`, and for kernel mmap under the same allocator with --direct always, where the kernel maps the heap's \
file.

The graph is drawn once. Every engine and repetition is a fresh process in a memory cgroup of its own; engines take turns. A \
run reads the graph into its heap and scans all of it, which is not measured, and has then no more in memory than fits. All \
levels of every search, and all ranks to the last bit, are compared with those that plain algorithms found in memory; a wrong \
one fails the command. Figures are medians over the repetitions. An engine that takes eight times as long as the fastest is \
run once.

Shares of time are of all processors over the time measured: user and system of the process, I/O wait as the kernel counts it \
for the machine.")]
#[command(after_help = "\
Engines:
  mmap, mmap-random   the heap's file mapped by the kernel: no advice, MADV_RANDOM
  fastmap             this project

Examples:
  fastmap bench graph
  fastmap bench graph --dir /mnt/disk --scale 22 --threads 2,8,32 --repeat 5 --json out.json
  fastmap bench graph --engines mmap-random,fastmap --iterations 0 --sources 8")]
pub struct GraphArgs {
    /// Engines to compare, separated by commas [default: mmap-random,fastmap; mmap too where the device's readahead is at most
    /// 256 KiB: with more it takes minutes]
    #[arg(long, value_name = "LIST", value_delimiter = ',')]
    pub engines: Vec<graph::Engine>,
    /// The graph has 2^N vertices
    #[arg(long, value_name = "N", default_value_t = 20, value_parser = clap::value_parser!(u32).range(10..=30))]
    pub scale: u32,
    /// Directed edges for each vertex
    #[arg(long, value_name = "N", default_value_t = 10, value_parser = edges)]
    pub edges: u32,
    /// Searches of a run, each from another vertex
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = sources)]
    pub sources: u32,
    /// Iterations of PageRank; 0: none of it
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u32).range(0..=1000))]
    pub iterations: u32,
    /// Threads that share the work; several numbers, separated by commas, are measured one after the other
    #[arg(long, value_name = "LIST", value_delimiter = ',', default_value = "8", value_parser = threads)]
    pub threads: Vec<u32>,
    /// Where to put temporary files: the graph, the right answers, and the heap [default: the first of the current directory,
    /// /var/tmp and $HOME that is on a disk and has room]
    #[arg(long, value_name = "DIR")]
    pub dir: Option<PathBuf>,
    /// Limit on all memory of each run, cache and bookkeeping included; or none, where no memory cgroup can be made [default: an
    /// eighth of graph and arrays, and 8MiB for the process itself; or none where no memory cgroup can be made]
    #[arg(long, value_name = "SIZE|none")]
    pub memory: Option<Memory>,
    /// Repetitions
    #[arg(long, value_name = "R", default_value_t = 3, value_parser = repetitions)]
    pub repeat: u32,
    /// Also write the results here as JSON
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
}

fn edges(text: &str) -> Result<u32, String> {
    count(text, "edges", 1000)
}

fn sources(text: &str) -> Result<u32, String> {
    count(text, "sources", 1000)
}
