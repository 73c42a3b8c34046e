//! The command line of `fastmap bench olap`.

use std::env;
use std::path::PathBuf;

use clap::Args as ClapArgs;

use crate::size::{Memory, Size};

/// Measure the 22 TPC-H queries over MonetDB, which maps its files and is not changed: kernel mmap, and under `fastmap run`
#[derive(Debug, ClapArgs)]
#[command(long_about = "\
Measure the 22 TPC-H queries over MonetDB.

MonetDB maps the files of its columns. It is the library in the wheel of monetdbe 0.11, as it comes from PyPI (scripts/monetdb \
gets it), and runs twice: on kernel mmap, and under `fastmap run`. After the FastMap paper's experiment (USENIX ATC '20, section 5, \
MonetDB): 6.06 % better on average, between 7.2 % worse and 45.7 % better, with 50 GB of data and 16 GB of memory.

The eight tables are generated and loaded once. Each run gets a copy of the database, cold, and a fresh process in a memory \
cgroup of its own limited to --memory; it answers the queries one after the other; engines take turns. All rows and columns of \
every answer are compared with those of the first run on kernel mmap, and at --scale 1 also with the answers in the \
specification: one wrong cell fails the command. Figures are medians over the repetitions.

Within the limit FastMap has --cache for the files that are mapped; the rest is left to MonetDB, whose smaller intermediate \
results are no files, and to whatever else the process needs. The kernel divides the same memory as it sees fit.")]
#[command(after_help = "\
Examples:
  scripts/monetdb && fastmap bench olap
  fastmap bench olap --queries 1,6,9 --repeat 5 --json olap.json
  fastmap bench olap --scale 10 --memory 4GiB --dir /mnt/disk")]
pub struct OlapArgs {
    /// Where MonetDB is: the folder of scripts/monetdb [default: ~/.cache/fastmap/monetdb]
    #[arg(long, value_name = "DIR")]
    pub monetdb: Option<PathBuf>,
    /// TPC-H's scale factor: 1 is 1.1 GB of text, 6 million rows in the largest table
    #[arg(long, value_name = "F", default_value = "1", value_parser = scale)]
    pub scale: f64,
    /// Queries to run, 1 to 22, separated by commas [default: all]
    #[arg(long, value_name = "LIST", value_delimiter = ',', value_parser = clap::value_parser!(u32).range(1..=22))]
    pub queries: Vec<u32>,
    /// MonetDB's threads [default: as many as processors]
    #[arg(long, value_name = "N", value_parser = super::threads)]
    pub threads: Option<u32>,
    /// Where to put the tables, the database and its copy: three times the text together [default: the first of the current
    /// directory, /var/tmp and $HOME that is on a disk and has room]
    #[arg(long, value_name = "DIR")]
    pub dir: Option<PathBuf>,
    /// Limit on all memory of each run; or none, where no memory cgroup can be made [default: a third of the text, 96MiB at
    /// least, or none where no memory cgroup can be made]
    #[arg(long, value_name = "SIZE|none")]
    pub memory: Option<Memory>,
    /// FastMap's cache; with much more than the default MonetDB has too little for itself and is killed [default: a quarter of
    /// --memory]
    #[arg(long, value_name = "SIZE")]
    pub cache: Option<Size>,
    /// Repetitions
    #[arg(long, value_name = "R", default_value_t = 3, value_parser = super::repetitions)]
    pub repeat: u32,
    /// Also write the results here as JSON
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
}

impl OlapArgs {
    /// Where MonetDB is, or should be.
    pub fn monetdb(&self) -> PathBuf {
        self.monetdb.clone().unwrap_or_else(|| {
            // As scripts/monetdb has it.
            let named = |name| env::var_os(name).filter(|dir| !dir.is_empty()).map(PathBuf::from);
            let cache = named("XDG_CACHE_HOME").or_else(|| Some(named("HOME")?.join(".cache")));
            cache.unwrap_or_else(|| PathBuf::from(".")).join("fastmap/monetdb")
        })
    }
}

fn scale(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(scale) if (0.01..=1000.0).contains(&scale) => Ok(scale),
        _ => Err(format!("\"{text}\" is no scale factor: give 0.01 to 1000")),
    }
}
