//! The command line.

mod ablation;
mod breakdown;
mod graph;
mod kv;
mod olap;
mod oltp;
mod peers;
mod report;
mod scale;
mod study;

use std::ffi::OsString;
use std::path::PathBuf;
use std::str::FromStr;

use clap::{Args as ClapArgs, Parser, Subcommand};
use fastmap_workloads::{Advice, Engine, Op, Pattern, SyncWork, Syncer, Trace, updates};

pub use ablation::AblationArgs;
pub use breakdown::BreakdownArgs;
pub use graph::GraphArgs;
pub use kv::{KvArgs, Room};
pub use olap::OlapArgs;
pub use oltp::{FileSystem, OltpArgs};
pub use peers::PeersArgs;
pub use report::ReportArgs;
pub use scale::ScaleArgs;
pub use study::StudyArgs;

use crate::size::{Memory, Size};

/// Memory-mapped files with a cache of their own, in user space: measure it here, and see what this machine offers.
#[derive(Debug, Parser)]
#[command(name = "fastmap", version, max_term_width = 100, subcommand_required = true, arg_required_else_help = true)]
#[command(after_help = "\
SIZE is a whole number of bytes or of KiB, MiB, GiB, TiB: 4096, 64KiB, 1GiB.
Exit status: 0 done, 1 failed, 2 wrong usage; of run: the program's own, 126 it cannot be executed, 127 it is not found.

Examples:
  fastmap run --cache 1GiB -- PROGRAM ARGS    a program, unchanged, with its mapped files in a cache of 1 GiB
  fastmap top                    what the programs here that use FastMap are doing
  fastmap doctor                 what this machine offers and what it lacks
  fastmap bench                  FastMap beside kernel mmap, about two minutes
  fastmap bench micro --help     one load, in every detail
  fastmap report *.json -o report.html     what was measured, as a page to look at")]
pub struct Args {
    #[command(subcommand)]
    pub command: Command,
}

/// What to do. (A description here would replace the longer one of the arguments' type.)
#[derive(Debug, Subcommand)]
pub enum Command {
    Run(RunArgs),
    Top(TopArgs),
    Bench(BenchArgs),
    Report(ReportArgs),
    /// Say what this machine offers FastMap, what is missing, and what to do about it
    Doctor(DoctorArgs),
}

/// Run a program, unchanged, with its mapped files served by FastMap
#[derive(Debug, ClapArgs)]
#[command(override_usage = "fastmap run [OPTIONS] [--] PROGRAM [ARGS]...")]
#[command(long_about = "\
Run a program, unchanged, with its mapped files served by FastMap.

The program's shared mappings of regular files and block devices are served from a cache with a hard limit instead of the \
kernel's page cache; all else is as without. Its process id, terminal, standard streams, signals and exit status are its \
own: fastmap becomes the program (exec).")]
#[command(after_help = "\
A GLOB is matched against the absolute path of a file, without symbolic links. * and ? stand for anything within a name, ** for \
any number of directories, [a-z] and {one,other} for choices. One without a slash matches names in every directory, another \
relative one begins in the current directory. It may hold no colon. Quote it, or the shell will expand it.

FASTMAP_CACHE, FASTMAP_MAP (globs separated by colons), FASTMAP_HEAP, FASTMAP_FAULTS, FASTMAP_ASYNC_STORES (1), \
FASTMAP_DIRECT, FASTMAP_PERSIST and FASTMAP_STATS in the environment count where the flag is not given. FASTMAP_PRELOAD says \
where libfastmap_preload.so is, if it is neither beside this command nor in ../lib.

Not possible: programs that are statically linked, setuid, setgid or with file capabilities (of other users), 32-bit, or \
built for another C library than glibc.

Exit status: the program's own; 126 if it cannot be executed, 127 if it is not found, 2 wrong usage, 1 anything else that \
keeps it from running.

Examples:
  fastmap run -- mdb_stat -e /data/db
  fastmap run --cache 4GiB --map '/data/**' --stats stats.json -- python3 train.py
  fastmap run --heap /fast/heap:64GiB -- sort --parallel 2 large.txt")]
pub struct RunArgs {
    /// Limit on the pages of mapped files in memory [default: a quarter of the memory this process may use]
    #[arg(long, value_name = "SIZE")]
    pub cache: Option<Size>,
    /// Serve shared mappings of these files only, small ones for reading too; may be given several times [default: every shared
    /// mapping of a regular file or block device that is larger than 1 MiB and not executable]
    #[arg(long, value_name = "GLOB")]
    pub map: Vec<OsString>,
    /// Also put the program's heap into this file, at most SIZE of it: not there yet or empty, on fast storage, gone when the
    /// program ends
    #[arg(long, value_name = "FILE[:SIZE]")]
    pub heap: Option<OsString>,
    /// How page faults are served: signal (fast; in the thread that faults) or service (slower; by other threads, also for
    /// system calls that the library does not see) [default: signal]
    #[arg(long, value_name = "signal|service")]
    pub faults: Option<Faults>,
    /// Keep stores to pages that are not in memory, and let the program go on while the pages are read: for scattered small
    /// stores to a slow device. Not with --faults service
    #[arg(long)]
    pub async_stores: bool,
    /// Map files in memory (tmpfs, hugetlbfs, DAX) straight: auto, always (nothing is cached; other files, and the heap, are left to the
    /// kernel, with a warning) or never [default: auto]
    #[arg(long, value_name = "auto|always|never")]
    pub direct: Option<Direct>,
    /// What msync(2) of a file in memory does: auto (on DAX, writes cache lines to memory; on tmpfs and hugetlbfs, nothing) or
    /// cache-lines (writes them everywhere: that memory is persistent, or stands in for such) [default: auto]
    #[arg(long, value_name = "auto|cache-lines")]
    pub persist: Option<Persist>,
    /// Write counters here as JSON when the program ends
    #[arg(long, value_name = "FILE")]
    pub stats: Option<OsString>,
    /// The program and its arguments
    #[arg(value_name = "PROGRAM", required = true, trailing_var_arg = true)]
    pub program: Vec<OsString>,
}

/// Settings that are one word of several, the same on the command line and in the environment.
macro_rules! choices {
    ($($(#[$doc:meta])* $type:ident, $what:literal: $($variant:ident = $word:literal),*;)*) => { $(
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub enum $type {
            $($variant,)*
        }

        impl $type {
            /// As it is given.
            pub fn name(self) -> &'static str {
                match self {
                    $($type::$variant => $word,)*
                }
            }
        }

        impl FromStr for $type {
            type Err = String;

            fn from_str(text: &str) -> Result<$type, String> {
                let all = [$($type::$variant),*];
                let words = all.map($type::name).join(" or ");
                let known = all.into_iter().find(|one| one.name() == text);
                known.ok_or_else(|| format!("\"{text}\" is no way to {}: give {words}", $what))
            }
        }
    )* };
}

choices! {
    /// How page faults of a program are served.
    Faults, "serve faults": Signal = "signal", Service = "service";
    /// Which files of a program are mapped straight.
    Direct, "map files in memory": Auto = "auto", Always = "always", Never = "never";
    /// What a program's msync(2) of a file in memory does.
    Persist, "make stores last": Auto = "auto", CacheLines = "cache-lines";
}

/// Show what programs that use FastMap are doing
#[derive(Debug, ClapArgs)]
#[command(long_about = "\
Show what programs that use FastMap are doing: your own, as root all. In full screen, until q is pressed; arrows and page \
keys scroll.

Under each program are its files. A size of a program is its cache's capacity, of a file what is mapped. There is no hit \
rate, and no tool can show one: a load that finds its page in memory does not trap, and the kernel tells nobody of it. What \
there is: misses (a load or store that found its page absent; pins count too), how many of these found a page that had been \
evicted a short while before (ghosts: a larger cache would have kept it), traps that found a page read ahead, and first \
stores to clean pages.")]
#[command(after_help = "\
Columns, rates by the second:
  SIZE RES DIRTY     bytes: capacity or mapped, in memory, newer than the file
  MISS EVICT WRITE   misses; pages dropped; pages written back
  AHEAD WASTE        pages read ahead and used; dropped unused
rw and r- are files mapped for writing and for reading, -- files that were mapped. Queue depth: writes under way when \
another is begun, on average.

With --once --json:
  {\"programs\": [{\"pid\", \"name\", \"interval_s\", \"traps_per_second\", \"ghost_share\", \"staged_share\",
    \"caches\": [{\"capacity_bytes\", \"writes_in_flight\", \"merged_run_pages\", \"queue_depth\",
                 \"totals\": {COUNTER: N}, \"per_second\": {COUNTER: N}}],
    \"maps\": [{\"path\", \"cache\", \"mapped_bytes\", \"writable\", \"totals\", \"per_second\"}], \"maps_left_out\",
    \"flushed_bytes\", \"flushed_bytes_per_second\"}]}
Counters are the fields of fastmap::Stats and fastmap::live::MapStats. ghost_share is of misses, staged_share (those that \
found their page read ahead) of traps; null where there were none. A map with no mapped_bytes is over.

Exit status: 0; 1 if there is no such program, or you may not look at it; 2 wrong usage.

Examples:
  fastmap top
  fastmap top --once --json --interval 5 $(pidof db_bench)")]
pub struct TopArgs {
    /// Only this program
    #[arg(value_name = "PID", value_parser = process)]
    pub pid: Option<u32>,
    /// Print one table and end
    #[arg(long)]
    pub once: bool,
    /// Print JSON
    #[arg(long, requires = "once")]
    pub json: bool,
    /// Seconds between two looks, over which rates are taken
    #[arg(long, value_name = "S", default_value = "1", value_parser = interval)]
    pub interval: f64,
}

/// Measure FastMap beside kernel mmap: a tour of about two minutes, or one load in detail (`bench micro`)
#[derive(Debug, ClapArgs)]
#[command(args_conflicts_with_subcommands = true)]
#[command(long_about = "\
Measure FastMap beside kernel mmap.

Without a subcommand: the tour. It makes a temporary file of 1 GiB, allows every engine 256 MiB of memory, and runs nine \
loads three times over with kernel mmap under the advice that can suit it, FastMap (random reads also with prefetch and \
with pins), and direct calls for reference. It needs nothing set up and takes about two minutes. As root (or where the user may make memory cgroups) every run is \
limited by a cgroup of its own; otherwise nothing limits kernel mmap, and the tour says so. It ends with a page to look at, as \
`fastmap report` makes it.")]
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
    /// Where to put the page to look at: .html, or .md for Markdown; overwritten if it is there [default: fastmap-report.html in the
    /// current directory, or fastmap-report-2.html and so on, where nothing is yet]
    #[arg(long, value_name = "FILE")]
    pub report: Option<PathBuf>,
}

#[derive(Debug, Subcommand)]
pub enum BenchCommand {
    Micro(MicroArgs),
    Replacement(ReplacementArgs),
    Sync(SyncArgs),
    Async(AsyncArgs),
    Scale(ScaleArgs),
    Breakdown(BreakdownArgs),
    Ablation(AblationArgs),
    Study(StudyArgs),
    Peers(PeersArgs),
    Kv(KvArgs),
    Graph(GraphArgs),
    Oltp(OltpArgs),
    Olap(OlapArgs),
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

/// Measure stores that are flushed at once: 4 KiB, or a whole file with little or all of it dirty
#[derive(Debug, ClapArgs)]
#[command(long_about = "\
Measure stores that are flushed at once.

The file is mapped and every page stored to and flushed; then one thread stores and flushes in turn for --seconds. Every run \
is a fresh process, engines take turns within each repetition. A page carries a stamp; before the map goes the whole file is \
read back through another descriptor and every byte checked. Rates are of store and flush together, latencies of the flush \
alone; figures are medians over the repetitions.

By default the file is a tmpfs's, /dev/shm. It stands in for persistent memory: fastmap-persist and persist write cache lines \
back as if they had to, fastmap and msync do what a tmpfs needs, which is nothing. On a file system mounted with -o dax all of \
it is real; on a disk, where cache lines make nothing durable, msync and fastmap alone can run.")]
#[command(after_help = "\
Works:
  page   store to a random page (4 KiB), flush that page
  one    store to a random page, flush the whole file
  all    store to every page, flush the whole file

Engines:
  msync             kernel mmap and msync(2)
  fastmap           this project, with the kind of map that it chooses itself
  fastmap-persist   the same, mapped without a copy, flushed by cache lines wherever the file is
  persist           kernel mmap and a bare loop over the range: CLWB (CLFLUSHOPT, CLFLUSH), then a fence

Bytes a flush: as FastMap counts them; what persist went over; of msync what the device under the file wrote meanwhile, for \
whomever, on a tmpfs 0; - where nobody tells (msync with DAX).

Examples:
  fastmap bench sync
  fastmap bench sync --works page --file /mnt/pmem/bench --seconds 5 --repeat 5 --json out.json
  fastmap bench sync --engines msync,fastmap --dir /var/tmp")]
pub struct SyncArgs {
    /// Engines to compare, separated by commas [default: all; on a disk msync and fastmap]
    #[arg(long, value_name = "LIST", value_delimiter = ',')]
    pub engines: Vec<Syncer>,
    /// What to store and flush, separated by commas
    #[arg(long, value_name = "LIST", value_delimiter = ',', default_value = "page,one,all")]
    pub works: Vec<SyncWork>,
    /// The file: made if missing, extended if shorter than --size, used again if `fastmap bench` made it, refused
    /// otherwise [default: a temporary file in --dir]
    #[arg(long, value_name = "PATH", conflicts_with = "dir")]
    pub file: Option<PathBuf>,
    /// Where to put a temporary file
    #[arg(long, value_name = "DIR", default_value = "/dev/shm")]
    pub dir: PathBuf,
    /// Size of the file, a multiple of 4096 [default: that of --file if it exists, else 100MiB]
    #[arg(long)]
    pub size: Option<Size>,
    /// Seconds to measure each run
    #[arg(long, value_name = "S", default_value = "2", value_parser = seconds)]
    pub seconds: f64,
    /// Repetitions
    #[arg(long, value_name = "R", default_value_t = 5, value_parser = repetitions)]
    pub repeat: u32,
    /// Also write the results here as JSON
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
}

/// Measure updates of a file larger than memory: what stores to absent pages wait for
#[derive(Debug, ClapArgs)]
#[command(long_about = "\
Measure updates of a file larger than memory.

A store to a page that is not in memory waits for the whole page to be read, though the program does not want to know what \
was in it. The works here do little else. Each run does a fixed number of operations and then flushes the file; both rates are \
shown, since a read that was put off, and what was stored, have to be paid for some time. \
Every engine and repetition is a fresh process in a memory cgroup of its own, limited to --memory; engines take turns; the \
file is dropped from the page cache before each run. Records are warmed up with 1.25 times as many operations as pages fit into memory; the other works want their \
pages absent. Reads check every byte of their record. After the flush the whole file is read back from the device and \
every byte compared with what it held before and what was stored since: one wrong byte fails the command. Figures are \
medians over the repetitions.")]
#[command(after_help = "\
Works:
  store8    stores of 8 bytes, scattered, each to a page that is absent
  line      stores of whole 64-byte lines, scattered, each to a page that is absent
  record    records of 1 KiB: half of the operations read one, half store one, all of its bytes

Engines:
  mmap, mmap-random   kernel mmap: no advice, MADV_RANDOM
  fastmap             this project; a store to an absent page waits for the read
  fastmap-ar          the same under the AR protocol (MapOptions::async_read): stores complete at once on a page filled with an \
initial value, and the program looks out for it when it reads; whole lines only, so not store8
  fastmap-stores      the same with MapOptions::async_stores: stores are decoded and kept until the read is done; the \
program does nothing for it

Examples:
  fastmap bench async --dir /mnt/disk
  fastmap bench async --work record --threads 1,2,4,8,16 --size 4GiB --memory 1GiB --repeat 5 --json out.json")]
pub struct AsyncArgs {
    /// What to do, separated by commas
    #[arg(long = "work", value_name = "LIST", value_delimiter = ',', default_value = "store8,line,record")]
    pub works: Vec<updates::Work>,
    /// Engines to compare, separated by commas
    #[arg(
        long,
        value_name = "LIST",
        value_delimiter = ',',
        default_value = "mmap,mmap-random,fastmap,fastmap-ar,fastmap-stores"
    )]
    pub engines: Vec<updates::Engine>,
    /// Order of the records: zipf (theta 0.99, as YCSB's) or random
    #[arg(long, default_value_t = Pattern::Zipf, value_parser = records_order)]
    pub pattern: Pattern,
    /// Threads, all on one map; several numbers, separated by commas, are measured one after the other
    #[arg(long, value_name = "LIST", value_delimiter = ',', default_value = "1", value_parser = threads)]
    pub threads: Vec<u32>,
    /// Operations of a run, all threads together [default: half as many as the file has pages; records: as many]
    #[arg(long, value_name = "N", value_parser = operations)]
    pub ops: Option<u64>,
    /// Where to put the temporary file [default: the first of the current directory, /var/tmp and $HOME that is on a
    /// disk and has room]
    #[arg(long, value_name = "DIR")]
    pub dir: Option<PathBuf>,
    /// Size of the file, a multiple of 4096
    #[arg(long, default_value = "1GiB")]
    pub size: Size,
    /// Limit on all memory of each run, cache and bookkeeping included; or none, where no memory cgroup can be made
    /// [default: a quarter of --size, or none where no memory cgroup can be made]
    #[arg(long, value_name = "SIZE|none")]
    pub memory: Option<Memory>,
    /// Repetitions
    #[arg(long, value_name = "R", default_value_t = 3, value_parser = repetitions)]
    pub repeat: u32,
    /// Also write the results here as JSON
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
}

#[derive(Debug, ClapArgs)]
#[command(
    after_help = "Exit status: 0 if FastMap can cache files here, or they are in memory and need no cache; 1 if something it cannot do without is missing."
)]
pub struct DoctorArgs {
    /// A file to be mapped, or a directory of such files
    #[arg(default_value = ".")]
    pub path: PathBuf,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

/// A list as it was given, with what was given twice left out the second time.
pub fn once_each<T: Copy + PartialEq>(given: &[T]) -> Vec<T> {
    let mut once = Vec::new();
    given.iter().for_each(|one| {
        if !once.contains(one) {
            once.push(*one);
        }
    });
    once
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

fn operations(text: &str) -> Result<u64, String> {
    count(text, "operations", 1_000_000_000).map(u64::from)
}

fn records_order(text: &str) -> Result<Pattern, String> {
    match text.parse() {
        Ok(pattern @ (Pattern::Zipf | Pattern::Random)) => Ok(pattern),
        _ => Err(format!("\"{text}\" is no order of records: give zipf or random")),
    }
}

fn count(text: &str, of: &str, most: u32) -> Result<u32, String> {
    match text.parse() {
        Ok(count) if (1..=most).contains(&count) => Ok(count),
        _ => Err(format!("\"{text}\" is no number of {of}: give 1 to {most}")),
    }
}

fn process(text: &str) -> Result<u32, String> {
    text.parse().map_err(|_| format!("\"{text}\" is no process id: give one as ps(1) shows it"))
}

fn interval(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(seconds) if (0.1..=3600.0).contains(&seconds) => Ok(seconds),
        _ => Err(format!("\"{text}\" is no interval: give 0.1 to 3600 seconds")),
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

    #[test]
    fn what_is_there_twice_counts_once() {
        assert_eq!(once_each(&[1, 2, 1, 3, 2]), [1, 2, 3]);
    }
}
