//! The command line.

use std::ffi::OsString;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use clap::builder::{MapValueParser, PossibleValuesParser, TypedValueParser, ValueParserFactory};
use clap::{Args as ClapArgs, Parser, Subcommand, ValueHint};

use crate::run::objects::Deadline;
use crate::size::{Capacity, Size};

/// Memory-mapped files that stay fast when they outgrow memory or lie on slow storage
#[derive(Debug, Parser)]
#[command(name = "fastmap", version, max_term_width = 100, subcommand_required = true, arg_required_else_help = true)]
#[command(after_help = "\
SIZE is a number of bytes, or of K, M, G or T: 4096, 64KiB, 1.5GiB, 1G, 1GB. Units are powers of 1024, however they are written. A cache's size may \
also be a share of the memory that this machine, or the memory group (cgroup), has: 50%.

Exit status: 0 success, 1 failure, 2 wrong usage. fastmap run ends with the program's own status, with 126 if the program cannot be executed, and \
with 127 if it is not found.

Examples:
  fastmap run -- PROGRAM ARGS    run an unchanged program, and steer what the kernel reads and keeps of its mapped files
  fastmap run --cache 1GiB -- PROGRAM ARGS    serve its mapped files from a cache of 1 GiB
  fastmap run --warm -- PROGRAM ARGS    read back what it had in memory of its files the last time
  fastmap attach PID             steer a program that is running
  fastmap top                    show which programs here wait for files that they have mapped, and what would help
  fastmap doctor                 show what this machine offers, and what it lacks
  fastmap bench                  measure FastMap beside kernel mmap, in six to twelve minutes
  fastmap bench micro --help     one load, in every detail
  fastmap report *.json -o results.md      make a page with a picture of what was measured")]
pub struct Args {
    #[command(subcommand)]
    pub command: Command,
}

/// The subcommands. A variant without a doc comment takes its descriptions from its arguments' type. A doc comment on the variant would
/// replace the long one, too.
#[derive(Debug, Subcommand)]
pub enum Command {
    Run(RunArgs),
    Attach(AttachArgs),
    Warm(WarmArgs),
    Top(TopArgs),
    /// Measure FastMap beside kernel mmap: a tour of eight workloads, or one experiment in detail (`bench micro`)
    #[command(disable_help_flag = true, override_usage = "fastmap bench [EXPERIMENT] [OPTIONS]")]
    Bench {
        /// Arguments of fastmap-bench
        #[arg(trailing_var_arg = true, allow_hyphen_values = true, hide = true)]
        args: Vec<OsString>,
    },
    /// Write a Markdown document, with a picture, of what benchmarks measured
    #[command(disable_help_flag = true, override_usage = "fastmap report RESULTS... --output FILE.md")]
    Report {
        /// Arguments of fastmap-bench report
        #[arg(trailing_var_arg = true, allow_hyphen_values = true, hide = true)]
        args: Vec<OsString>,
    },
    /// Show what this machine offers FastMap, what is missing, and what to do about it
    Doctor(DoctorArgs),
    Cache(CacheArgs),
}

/// The heading of the flags that need a cache.
const CACHED: &str = "Options with --cache, --heap or --object";

/// Run an unchanged program, and steer its mapped files or serve them from a cache
#[derive(Debug, ClapArgs)]
#[command(override_usage = "fastmap run [OPTIONS] [--] PROGRAM [ARGS]...")]
#[command(long_about = "\
Run an unchanged program, and steer its mapped files or serve them from a cache.

Without a cache, the kernel serves the program's mapped files as always, and fastmap, the program's parent, watches which pages are touched. While \
memory is short or storage is slow, it tells the kernel what to read ahead, what to keep, and where reading around a page fault is wasted. Nothing is \
loaded into the program, and no call of it is changed: for a moment now and then a thread that waits in a page fault, or runs its own code, is \
stopped (ptrace) and made to call madvise(2).

With --cache SIZE, a cache with a hard limit serves shared mappings of regular files and block devices, and private mappings while they are \
read-only. It takes the place of the kernel's page cache. It has a file as long as nobody can write it, or the files that you name with --own. \
Mappings that stay with the kernel are steered. --heap and --object bring a cache, too.

fastmap stays the program's parent, passes signals on, stops and goes on with it, and ends with its exit status. It gives up its own copies of the \
program's files. If fastmap is killed, the program is, too.")]
#[command(after_help = "\
A GLOB is matched against the absolute path of a file, without symbolic links. * and ? match anything within a name, ** matches \
any number of directories, [a-z] and {one,other} are choices. A GLOB without a slash matches names in every directory. Any other \
relative GLOB begins in the current directory. A GLOB holds no colon. Quote it, or the shell will expand it.

Environment: a variable counts where its flag is not given. The last two variables have no flag. FASTMAP_MAP to FASTMAP_PERSIST need a \
cache.
  FASTMAP_CACHE           --cache
  FASTMAP_HEAP            --heap
  FASTMAP_MAP             --map: globs separated by colons
  FASTMAP_OWN             --own: globs separated by colons
  FASTMAP_WRITE_WITHIN    --write-within
  FASTMAP_FAULTS          --faults
  FASTMAP_ASYNC_STORES    --async-stores: 1
  FASTMAP_RISK_STORES     --risk-stores: 1
  FASTMAP_DIRECT          --direct
  FASTMAP_PERSIST         --persist
  FASTMAP_STEER_OVERRIDE  --override: 1
  FASTMAP_STATS           --stats
  FASTMAP_TIER            --tier
  FASTMAP_TIER_LIMIT      --tier-limit
  FASTMAP_LOG             words separated by commas, for lines on standard error. steer: what steering saw and did, or why nothing was to be done. \
mappings: which part serves each file (engine, kernel, direct, heap), and why
  FASTMAP_PRELOAD         the library to load into the program instead of those below

Files: these lie beside this command, or in ../lib/fastmap of its directory.
  libfastmap_preload.so       loaded into the program with --cache or --object
  libfastmap_preload_heap.so  the same with --heap
With --warm, in $XDG_CACHE_HOME or ~/.cache:
  fastmap/warm                which pages were in memory, 64 MiB at most; see fastmap warm --help

Objects: PATH is a file for the program and for all programs that it executes, as far as they open, look up, map and read it through the C \
library. A file that is at PATH already is hidden. Calls that would change PATH fail with EROFS. Directories do not list it, and static programs \
do not see it. Another process fetches the parts that are read. It ends with the last process of the program. Credentials are found as the store's \
own tools find them.

With a cache these are not possible: programs that run with rights other than yours (setuid, setgid, file capabilities), and those that are \
statically linked, 32-bit, or built for a C library other than glibc. Without a cache every program runs; one that fastmap may not trace gets no \
advice: programs of 32 bits, those with rights of their own, and those that filter their system calls. FASTMAP_LOG=steer says why.

Exit status: the program's own; 126 if the program cannot be executed; 127 if it is not found; 2 for wrong usage; 1 if anything else \
keeps it from running.

Examples:
  fastmap run -- mdb_stat -e /data/db
  FASTMAP_LOG=steer fastmap run -- mdb_stat -e /data/db
  fastmap run --warm -- prometheus --storage.tsdb.path /data/tsdb
  fastmap run --cache 4GiB --map '/data/**' --stats stats.json -- python3 train.py
  fastmap run --object s3://bucket/texts=texts --tier /fast/objects -- grep -c word texts
  fastmap run --heap /fast/heap:64GiB -- sort --parallel 2 large.txt")]
pub struct RunArgs {
    /// Serve mapped files from a cache of this size. auto: as large as the memory that others leave, and resized as that changes
    /// [default: no cache; auto with --heap or --object]
    #[arg(long, value_name = "SIZE|auto")]
    pub cache: Option<Capacity>,
    /// Serve only shared mappings of these files, also small ones that are read-only; may be given several times [default: every shared
    /// mapping of a regular file that is larger than 1 MiB and not executable, and of those of --own that are writable, or block devices]
    #[arg(long, value_name = "GLOB", help_heading = CACHED)]
    pub map: Vec<OsString>,
    /// Only this program uses these files; may be given several times. Without this, a file is cached only while the kernel vouches that
    /// nobody has it open to write (a lease, fcntl(2)), so writable mappings are the kernel's. With it, other processes see of such a file
    /// what was flushed, and what they write may be lost; so do programs that this one executes
    #[arg(long, value_name = "GLOB", help_heading = CACHED)]
    pub own: Vec<OsString>,
    /// The longest time for which what is stored to the files of --own is in the program's memory alone, while the disk follows. It bounds what
    /// is lost where all of the program's control group is killed at once; longer saves writes of pages that are stored to again and again
    /// [default: 1s]
    #[arg(long, value_name = "TIME", value_parser = fastmap::size::time, help_heading = CACHED)]
    pub write_within: Option<Duration>,
    /// Also keep the program's heap in this file, at most SIZE of it. The file must not exist yet, or be empty. It should be on fast
    /// storage. It is removed when the program ends
    #[arg(long, value_name = "FILE[:SIZE]", value_hint = ValueHint::FilePath)]
    pub heap: Option<OsString>,
    /// How page faults are served: signal (fast; by the thread that faults) or service (slower; by other threads, and also in
    /// system calls that the library does not see) [default: signal]
    #[arg(long, value_name = "signal|service", hide_possible_values = true, help_heading = CACHED)]
    pub faults: Option<Faults>,
    /// Buffer stores to pages that are not in memory, so that the program goes on while the pages are read. This is for scattered small
    /// stores to a slow device. Not with --faults service
    #[arg(long, help_heading = CACHED)]
    pub async_stores: bool,
    /// Cache writable mappings also where the program's sudden end may lose stores: in a PID namespace other than the machine's first, as
    /// its first process, or in a memory cgroup with a limit. There, the end of the namespace or the OOM killer also ends the process of
    /// FastMap that would write the stores. Stores since the last msync(2) that are not written yet are then lost; mmap(2) would keep them.
    /// Without this option the kernel serves writable mappings there, and FastMap says so
    #[arg(long, help_heading = CACHED)]
    pub risk_stores: bool,
    /// Map files that are in memory already (tmpfs, hugetlbfs, DAX) directly: auto, never, or always (nothing is cached; the kernel serves
    /// all other files and the heap, with a warning) [default: auto]
    #[arg(long, value_name = "auto|always|never", hide_possible_values = true, help_heading = CACHED)]
    pub direct: Option<Direct>,
    /// How msync(2) works on a file in memory: auto (on DAX, it writes cache lines to memory; on tmpfs and hugetlbfs, it does
    /// nothing) or cache-lines (it writes them everywhere: for memory that is persistent, or stands in for it) [default: auto]
    #[arg(long, value_name = "auto|cache-lines", hide_possible_values = true, help_heading = CACHED)]
    pub persist: Option<Persist>,
    /// Undo advice of the program (madvise) that is plainly wrong: MADV_RANDOM on a walk, MADV_SEQUENTIAL on scattered accesses
    #[arg(long)]
    pub r#override: bool,
    /// Remember which pages of the program's mapped files are in memory, every minute and at its end, and read them back beside the
    /// program's next start: the next with the same program, arguments and current folder. Mappings of less than 4 MiB are left out. Not with
    /// a cache
    #[arg(long)]
    pub warm: bool,
    /// Write counters to this file as JSON when the program ends. Until then, and if the program is killed, the file says that it is not
    /// complete
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub stats: Option<OsString>,
    #[command(flatten)]
    pub objects: ObjectArgs,
    /// The program and its arguments
    #[arg(value_name = "PROGRAM", required = true, trailing_var_arg = true, value_hint = ValueHint::CommandWithArguments)]
    pub program: Vec<OsString>,
}

/// The flags of `run` that show objects of stores as files.
#[derive(Debug, ClapArgs)]
pub struct ObjectArgs {
    /// Show the object of a store (s3://BUCKET/KEY, gs://, az://, http(s):// and others) as a read-only file at PATH. The last = separates
    /// URL and PATH. May be given several times
    #[arg(long, value_name = "URL=PATH")]
    pub object: Vec<OsString>,
    #[command(flatten)]
    pub tier: TierArgs,
    /// How much disk space local copies may take [default: $FASTMAP_TIER_LIMIT, else the folder's last limit, else a tenth of the free space]
    #[arg(long, value_name = "SIZE")]
    pub tier_limit: Option<Size>,
    /// How long the program waits for a part of an object. After that, reads fail with ETIMEDOUT, and loads raise SIGBUS [default: 30]
    #[arg(long, value_name = "SECONDS|never")]
    pub deadline: Option<Deadline>,
}

/// Makes enums of settings. A setting is one of several words, the same on the command line and in the environment.
macro_rules! choices {
    ($($(#[$doc:meta])* $type:ident: $($variant:ident = $word:literal),*;)*) => { $(
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub enum $type {
            $($variant,)*
        }

        impl $type {
            /// The word on the command line.
            pub fn name(self) -> &'static str {
                match self {
                    $($type::$variant => $word,)*
                }
            }
        }

        impl FromStr for $type {
            type Err = String;

            fn from_str(text: &str) -> Result<$type, String> {
                let known = [$($type::$variant),*].into_iter().find(|one| one.name() == text);
                known.ok_or_else(|| format!("\"{text}\" is not one of its values: give {}", [$($word),*].join(" or ")))
            }
        }

        impl ValueParserFactory for $type {
            type Parser = MapValueParser<PossibleValuesParser, fn(String) -> $type>;

            /// Completions offer the words.
            fn value_parser() -> Self::Parser {
                let parse: fn(String) -> $type = |word| word.parse().expect("one of its words");
                PossibleValuesParser::new([$($word),*]).map(parse)
            }
        }
    )* };
}

choices! {
    /// The threads that serve a program's page faults.
    Faults: Signal = "signal", Service = "service";
    /// The files that are mapped directly, without a cache.
    Direct: Auto = "auto", Always = "always", Never = "never";
    /// The effect of msync(2) on a file that is in memory already.
    Persist: Auto = "auto", CacheLines = "cache-lines";
}

/// Steer the mapped files of programs that are running
#[derive(Debug, ClapArgs)]
#[command(override_usage = "fastmap attach [OPTIONS] [PID]...")]
#[command(group = clap::ArgGroup::new("who").required(true).multiple(true).args(["pid", "name", "group"]))]
#[command(long_about = "\
Steer the mapped files of programs that are running: your own programs, or any as root.

This command watches from outside which pages a program touches. To advise the kernel, it stops one of the program's threads for a fraction of a \
millisecond (ptrace(2)) and has it call madvise(2). When this command ends, by --for or a signal, it takes the advice back. Where no thread can be \
stopped for that, it says what stays.")]
#[command(after_help = "\
These programs get no advice: one that another process traces, one of another user, one that is not dumpable (setuid), one of 32 bits, and one with \
system call filters (seccomp), unless root attaches from outside its container and the filters let madvise(2) pass. Where \
kernel.yama.ptrace_scope is 1 or more, only root can attach. Each refusal is reported, with its remedy.

This command reads ahead only if it is in the memory group (cgroup) of the program: run it there.

Exit status: 0; 1 if no process could be steered; 2 for wrong usage.

Examples:
  fastmap attach --dry-run 4711
  fastmap attach --name prometheus --for 10m
  fastmap attach --group system.slice/etcd.service --children")]
pub struct AttachArgs {
    /// Steer these processes
    #[arg(value_name = "PID", value_parser = process)]
    pub pid: Vec<u32>,
    /// Steer all processes of this name, present and future. The name is that of the program's file, or the one that ps(1) shows. If there is
    /// none yet, it waits
    #[arg(long, value_name = "NAME")]
    pub name: Option<String>,
    /// Steer all processes of this cgroup and of the cgroups below it, present and future: its path as in /proc/PID/cgroup, or its folder
    #[arg(long, value_name = "CGROUP")]
    pub group: Option<PathBuf>,
    /// Steer their children, too
    #[arg(long)]
    pub children: bool,
    /// Steer for this time: 60s, 10m or 2h [default: until the processes have ended]
    #[arg(long = "for", value_name = "TIME", value_parser = fastmap::size::time)]
    pub lasting: Option<Duration>,
    /// Watch and report, and change nothing
    #[arg(long)]
    pub dry_run: bool,
    /// Undo advice of the programs (madvise) that is plainly wrong: MADV_RANDOM on a walk, MADV_SEQUENTIAL on scattered accesses
    #[arg(long)]
    pub r#override: bool,
}

/// Remember which pages of files are in memory, and read them back
#[derive(Debug, ClapArgs)]
#[command(subcommand_required = true, arg_required_else_help = true, disable_help_subcommand = true)]
#[command(long_about = "\
Remember which pages of files are in memory, and read them back after the machine was restarted or the pages were evicted. fastmap run --warm does \
both for the files that a program maps.

A record holds the numbers of the pages, of 4 KiB, and not their content. The record of a file is of no use once the file has another length or \
modification time.")]
#[command(after_help = "\
Files:
  ~/.cache/fastmap/warm    a record for each file, at most 64 MiB and 1024 records in all; the oldest are removed first. \
$XDG_CACHE_HOME/fastmap/warm if that variable is set. The folder must be yours alone; for root, all above it root's

Exit status: 0; 1 if it failed for one of the files, with a line for each that says why; 2 for wrong usage.

Examples:
  fastmap warm save /data/db/data.mdb
  fastmap warm load /data/db/data.mdb
  fastmap warm show --json")]
pub struct WarmArgs {
    #[command(subcommand)]
    pub command: WarmCommand,
}

/// The subcommands of `warm`. A record holds which pages of a file were in memory.
#[derive(Debug, Subcommand)]
pub enum WarmCommand {
    /// Remember which pages of these files are in memory now
    #[command(after_help = "\
Pages that were also in memory at the previous save are hot: they are read back first.

For a file that you neither own nor may write, the kernel does not say which pages are in memory. Only Linux 6.5 to 6.12 do.

Exit status: 0; 1 if it failed for one of the files; 2 for wrong usage.

Examples:
  fastmap warm save /data/db/*.mdb")]
    Save(WarmFiles),
    /// Read the remembered pages of these files back, hot pages first
    #[command(after_help = "\
It makes 2 to 64 requests at once, as many as pay. It fills at most seven eighths of the memory that files can have in the memory group (cgroup) \
that this command runs in. Run it in the group of the program that needs the files.

Exit status: 0; 1 if nothing is remembered of one of the files, or the file has changed, or a signal ended the command; 2 for wrong usage.

Examples:
  fastmap warm load /data/db/*.mdb")]
    Load(WarmFiles),
    /// Show which files have a record
    #[command(after_help = "\
REMEMBERED is how much of the file was in memory, and HOT is how much of that is read back first. STATE is ok, changed or gone (the file; the \
record is of no use any more), unknown (the file system does not answer), or damaged (the record, which is ignored).

With --json:
  {\"folder\", \"used_bytes\", \"limit_bytes\",
   \"files\": [{\"path\", \"length_bytes\", \"remembered_bytes\", \"hot_bytes\", \"runs\", \"saved_unix_s\", \"state\"}],
   \"damaged\": [{\"path\", \"why\"}]}

Exit status: 0; 1 if nothing is remembered of one of the files, or the folder cannot be read; 2 for wrong usage.

Examples:
  fastmap warm show")]
    Show(ShowArgs),
}

#[derive(Debug, ClapArgs)]
pub struct WarmFiles {
    /// The files
    #[arg(value_name = "FILE", required = true, value_hint = ValueHint::FilePath)]
    pub files: Vec<PathBuf>,
}

#[derive(Debug, ClapArgs)]
pub struct ShowArgs {
    /// Show these files [default: all]
    #[arg(value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub files: Vec<PathBuf>,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

/// Show what programs do with files that they have mapped, and what would help
#[derive(Debug, ClapArgs)]
#[command(long_about = "\
Show what programs do with files that they have mapped: your own programs, or all as root. The view is full-screen and ends with q; arrows and page \
keys scroll. With a FILE, show once how much of the file is in memory.

First come programs with files in a FastMap cache, and under each its files. The size of a program is the capacity of its cache. The size of a \
file is how much of it is mapped.

There is no hit rate, and no tool can show one: a load that finds its page in memory does not trap, so nobody counts it. Instead, the view shows: \
misses (loads, stores and pins that found their page absent); ghosts (misses of pages that had been evicted a short while before: a larger cache \
would have kept them); traps that found their page read ahead (staged); and first stores to clean pages. For objects (s3://BUCKET/KEY), it shows \
the bytes that were fetched, that were read from the local copy (hit), and that were fetched and given up unread (wasted).

Then come all processes, FastMap's or not, that have 32 MiB or more of data files mapped by the kernel. The view shows what their page faults \
cost, the pattern of their accesses, which process steers them, and one line of advice where something is wrong. Patterns are forward, backward, \
stride, scattered, pieces, load (dense reads from slow storage while memory is free), mixed and idle. A process that is named on the command line \
is shown from 4 MiB on.")]
#[command(after_help = "\
Columns of programs; rates are per second:
  SIZE RES DIRTY     bytes: of the cache's capacity, or mapped; in memory; newer than the file
  MISS READ          misses; bytes that one miss reads at once
  EVICT WRITE        pages evicted; pages written back
  AHEAD WASTE        pages read ahead and used; read ahead and dropped unused
Files marked rw are mapped for writing, r- for reading, and -- are not mapped any more. Queue depth is the average number of writes under way when a \
write begins, with itself.

Columns of processes; rates are per second:
  SIZE RES           bytes of data files: mapped; mapped into the process's page tables now, and so in memory (/proc/PID/pagemap)
  FAULT              page faults that waited for a device (/proc/PID/stat)
  READ               bytes read from devices (/proc/PID/io)
  TOUCH R/T          bytes of pages that were newly mapped, or of faults that waited, whichever is more; bytes read for each \
byte touched
  WAIT BLOCK         time that threads with faults spent neither on a processor nor waiting for one (schedstat), or waiting for a device where \
kernel.task_delayacct is 1: WAIT for each fault, BLOCK in all (100% is one thread). Both are upper bounds: a thread may have slept for other reasons
  REFLT              pages of the process's memory group that were read again soon after they were dropped (memory.stat)

With --once --json:
  {\"programs\": [{\"pid\", \"name\", \"interval_s\", \"traps_per_second\", \"ghost_share\", \"staged_share\", \"run_used_share\",
    \"caches\": [{\"capacity_bytes\", \"writes_in_flight\", \"merged_run_pages\", \"queue_depth\",
                 \"totals\": {COUNTER: N}, \"per_second\": {COUNTER: N}}],
    \"maps\": [{\"path\", \"cache\", \"mapped_bytes\", \"writable\", \"totals\", \"per_second\"}], \"maps_left_out\",
    \"objects\": {\"fetched_bytes\", \"hit_bytes\", \"wasted_bytes\", \"fetched_bytes_per_second\", \"hit_bytes_per_second\",
                \"wasted_bytes_per_second\"},
    \"flushed_bytes\", \"flushed_bytes_per_second\"}],
   \"processes\": [{\"pid\", \"name\", \"interval_s\", \"mapped_bytes\", \"resident_bytes\", \"waited_faults\", \"read_bytes\",
    \"waited_faults_per_second\", \"read_bytes_per_second\", \"touched_bytes_per_second\", \"read_per_touched\", \"wait_per_fault_s\",
    \"blocked_share\", \"group_refaults_per_second\", \"pattern\", \"steered\": {\"by\", \"pid\"}, \"advice\",
    \"files\": [{\"path\", \"writable\", \"mapped_bytes\", \"resident_bytes\"}]}], \"processes_left_out\"}
Counters are the fields of fastmap::Stats and fastmap::live::MapStats. ghost_share is the share of ghosts among misses. staged_share is the share \
of traps that found their page read ahead. run_used_share is an estimate of the share that was used of the pages read together with a missed page. \
A share is null if there was nothing to divide by. A map with mapped_bytes 0 is not mapped any more. objects is null if the program has none. \
waited_faults and read_bytes count since the process began. blocked_share is seconds per second, summed over all threads. group_refaults are \
pages. steered is by \"thread\" (of the process) or \"process\" (from outside), or null. Values that are not known are null, and so is advice if \
there is none. processes_left_out counts processes of other users that you may not look at.

With --json and a FILE:
  {\"file\": {\"path\", \"size_bytes\", \"cached_bytes\", \"dirty_bytes\", \"cells\": [SHARE], \"mapped_by\": [{\"pid\", \"name\", \"writable\", \"shared\", \
\"mapped_bytes\"}],
   \"processes_left_out\", \"readahead_bytes\", \"file_system\", \"device\"}}
cells has up to 64 equal parts of the file: for each, the share that is in memory, 0 to 1.

With --metrics, http://ADDRESS/metrics serves OpenMetrics text. For each process, by pid and name, it has these metrics, with the prefix \
fastmap_process_: mapped_bytes, resident_bytes, waited_faults, read_bytes, touched_bytes, blocked_seconds, group_refaults, steered, needs_advice.

Exit status: 0; 1 if there is nothing to show, or you may not look at it; 2 for wrong usage.

Files:
  /proc/PID/fd  holds each program's page of counters, a memfd called fastmap-stats

Examples:
  fastmap top
  fastmap top /data/index
  fastmap top --metrics 127.0.0.1:9742
  fastmap top --once --json --interval 5 $(pidof db_bench)")]
pub struct TopArgs {
    /// Show only this process, or how much of this file is in memory. Write a file whose name is a number as ./4711
    #[arg(value_name = "PID|FILE", value_parser = what, value_hint = ValueHint::FilePath)]
    pub what: Option<What>,
    /// Print one table, and end
    #[arg(long)]
    pub once: bool,
    /// Print JSON. Needs --once, except with a FILE
    #[arg(long)]
    pub json: bool,
    /// Serve the figures of processes as OpenMetrics at http://ADDRESS/metrics, until interrupted. ADDRESS is IP:PORT, or a PORT of this
    /// machine (127.0.0.1); without one, the port is 9742. Anybody who reaches the address can read the figures
    #[arg(long, value_name = "ADDRESS", value_parser = crate::top::serve::address, conflicts_with_all = ["once", "json"])]
    #[arg(num_args = 0..=1, default_missing_value = "9742")]
    pub metrics: Option<SocketAddr>,
    /// Seconds between two looks; rates are taken over this time. With --metrics, the least time between two looks
    #[arg(long, value_name = "S", default_value = "1", value_parser = interval)]
    pub interval: f64,
}

/// The argument of `top`: a process or a file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum What {
    Process(u32),
    File(PathBuf),
}

fn what(text: &str) -> Result<What, String> {
    let is_number = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    if is_number { process(text).map(What::Process) } else { Ok(What::File(text.into())) }
}

#[derive(Debug, ClapArgs)]
#[command(
    after_help = "Exit status: 0 if steering works here (fastmap run, fastmap attach), with or without the engine; 1 if it does not, or the path cannot be looked at."
)]
pub struct DoctorArgs {
    /// A file to map, or a directory of such files
    #[arg(default_value = ".")]
    pub path: PathBuf,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

/// Show, remove or verify the local copies of objects
#[derive(Debug, ClapArgs)]
#[command(subcommand_required = true, arg_required_else_help = true, disable_help_subcommand = true)]
#[command(long_about = "\
Show, remove or verify the local copies of objects.

Programs read objects of stores (s3://BUCKET/KEY and others). The parts that were fetched of an object stay in a folder on local disk, for the next \
program. A copy belongs to one version of its object, and all copies together stay within a limit.")]
#[command(after_help = "\
Environment:
  FASTMAP_TIER        the folder, if --tier is not given
  FASTMAP_TIER_LIMIT  how much disk space the folder may take: a SIZE, such as 10GiB

Files:
  ~/.cache/fastmap    the folder by default; $XDG_CACHE_HOME/fastmap if that variable is set

Exit status: 0; 1 for a failure, or if verify finds a copy that holds other bytes than were fetched; 2 for wrong usage.

Examples:
  fastmap cache ls
  fastmap cache rm s3://bucket/key
  fastmap cache verify --tier /fast/objects")]
pub struct CacheArgs {
    #[command(subcommand)]
    pub command: CacheCommand,
}

/// The subcommands of `cache`.
#[derive(Debug, Subcommand)]
pub enum CacheCommand {
    /// Show the local copies
    #[command(after_help = "\
LOCAL is the disk space that a copy takes. VERSION is how the store tells versions apart: version id, ETag or modification time.

With --json:
  {\"folder\", \"used_bytes\", \"limit_bytes\",
   \"copies\": [{\"url\", \"etag\", \"version\", \"modified\", \"length_bytes\", \"local_bytes\", \"last_used_unix_s\", \"in_use\"}]}

Exit status: 0; 1 if the folder cannot be used; 2 for wrong usage.")]
    Ls(LsArgs),
    /// Remove local copies. A copy that a program has open is emptied, and stays
    #[command(after_help = "\
Exit status: 0; 1 if there is no copy of URL, or the folder cannot be used; 2 for wrong usage.")]
    Rm(RmArgs),
    /// Compare all local copies with their checksums. Damaged parts will be fetched anew
    #[command(after_help = "\
Exit status: 0; 1 if a copy holds other bytes than were fetched, or the folder cannot be used; 2 for wrong usage.")]
    Verify(TierArgs),
}

/// The folder of local copies.
#[derive(Debug, ClapArgs)]
pub struct TierArgs {
    /// The folder of local copies [default: $FASTMAP_TIER, or ~/.cache/fastmap]
    #[arg(long, value_name = "DIR", value_hint = ValueHint::DirPath)]
    pub tier: Option<PathBuf>,
}

#[derive(Debug, ClapArgs)]
pub struct LsArgs {
    #[command(flatten)]
    pub tier: TierArgs,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

#[derive(Debug, ClapArgs)]
#[group(id = "which", required = true, multiple = false, args = ["url", "all"])]
pub struct RmArgs {
    /// Remove the copies of this object
    #[arg(value_name = "URL")]
    pub url: Option<String>,
    /// Remove all copies
    #[arg(long)]
    pub all: bool,
    #[command(flatten)]
    pub tier: TierArgs,
}

fn process(text: &str) -> Result<u32, String> {
    text.parse().map_err(|_| format!("\"{text}\" is not a process id: give one as ps(1) shows it"))
}

fn interval(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(seconds) if (0.1..=3600.0).contains(&seconds) => Ok(seconds),
        _ => Err(format!("\"{text}\" is not an interval: give 0.1 to 3600 seconds")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn digits_are_a_process_and_all_else_is_a_file() {
        assert_eq!(what("4711"), Ok(What::Process(4711)));
        assert_eq!(what("./4711"), Ok(What::File("./4711".into())));
        assert_eq!(what("x"), Ok(What::File("x".into())));
        assert!(what("99999999999").unwrap_err().contains("is not a process id"));
    }

    #[test]
    fn the_command_line_is_consistent() {
        Args::command().debug_assert();
    }
}
