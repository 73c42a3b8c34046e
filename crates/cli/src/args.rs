//! The command line.

use std::ffi::OsString;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use clap::{Args as ClapArgs, Parser, Subcommand, ValueHint};

use crate::run::objects::Deadline;
use crate::size::{Capacity, Size};

/// Memory-mapped files with a cache of their own, in user space: measure it here, and see what this machine offers.
#[derive(Debug, Parser)]
#[command(name = "fastmap", version, max_term_width = 100, subcommand_required = true, arg_required_else_help = true)]
#[command(after_help = "\
SIZE is a whole number of bytes or of KiB, MiB, GiB, TiB: 4096, 64KiB, 1GiB.

Exit status: 0 done, 1 failed, 2 wrong usage; of run: the program's own, 126 it cannot be executed, 127 it is not found.

Examples:
  fastmap run -- PROGRAM ARGS    a program, unchanged, with what the kernel reads and keeps of its mapped files steered
  fastmap run --cache 1GiB -- PROGRAM ARGS    the same with its mapped files in a cache of 1 GiB
  fastmap attach PID             the same for one that is running
  fastmap run --warm -- PROGRAM ARGS    with what it had of its files in memory the last time read back beside its start
  fastmap top                    which programs here wait for files that they have mapped, and what would help
  fastmap doctor                 what this machine offers and what it lacks
  fastmap bench                  FastMap beside kernel mmap, six to twelve minutes
  fastmap bench micro --help     one load, in every detail
  fastmap report *.json -o results.md      what was measured, as a page to read, with a picture")]
pub struct Args {
    #[command(subcommand)]
    pub command: Command,
}

/// What to do. (A description here would replace the longer one of the arguments' type.)
#[derive(Debug, Subcommand)]
pub enum Command {
    Run(RunArgs),
    Attach(AttachArgs),
    Warm(WarmArgs),
    Top(TopArgs),
    /// Measure FastMap beside kernel mmap: a tour of eight works, or one experiment in detail (`bench micro`)
    #[command(disable_help_flag = true, override_usage = "fastmap bench [EXPERIMENT] [OPTIONS]")]
    Bench {
        /// Arguments of fastmap-bench
        #[arg(trailing_var_arg = true, allow_hyphen_values = true, hide = true)]
        args: Vec<OsString>,
    },
    /// Show what benchmarks measured: one Markdown document, and a picture of it
    #[command(disable_help_flag = true, override_usage = "fastmap report RESULTS... --output FILE.md")]
    Report {
        /// Arguments of fastmap-bench report
        #[arg(trailing_var_arg = true, allow_hyphen_values = true, hide = true)]
        args: Vec<OsString>,
    },
    /// Say what this machine offers FastMap, what is missing, and what to do about it
    Doctor(DoctorArgs),
    /// Show, remove or verify the local copies of objects
    Cache(CacheArgs),
}

/// Flags that mean something where there is a cache.
const CACHED: &str = "Options with --cache, --heap or --object";

/// Run a program, unchanged, with its mapped files steered, or served from a cache
#[derive(Debug, ClapArgs)]
#[command(override_usage = "fastmap run [OPTIONS] [--] PROGRAM [ARGS]...")]
#[command(long_about = "\
Run a program, unchanged, with its mapped files steered, or served from a cache.

The kernel serves the program's mapped files as always, and a thread in the program looks at what is touched of them. While memory is short or loads \
are slow, it tells the kernel what to read ahead, what to keep, and where not to read around a miss. Every call of the program goes through as it is.

With --cache SIZE the program's shared mappings of regular files and block devices, and private ones as long as they may only be read, are \
served from a cache with a hard limit instead of the kernel's page cache; what stays the kernel's is steered. --heap and --object bring a cache, too.

Nothing else changes: the program's process id, terminal, standard streams, signals and exit status are its own, since fastmap becomes \
the program (exec).")]
#[command(after_help = "\
A GLOB is matched against the absolute path of a file, without symbolic links. * and ? stand for anything within a name, ** for \
any number of directories, [a-z] and {one,other} for choices. One without a slash matches names in every directory, another \
relative one begins in the current directory. It may hold no colon. Quote it, or the shell will expand it.

Environment: each counts where its flag is not given; the last two have none. FASTMAP_MAP to FASTMAP_PERSIST count where there is a \
cache.
  FASTMAP_CACHE           --cache
  FASTMAP_HEAP            --heap
  FASTMAP_MAP             --map: globs separated by colons
  FASTMAP_FAULTS          --faults
  FASTMAP_ASYNC_STORES    --async-stores: 1
  FASTMAP_RISK_STORES     --risk-stores: 1
  FASTMAP_DIRECT          --direct
  FASTMAP_PERSIST         --persist
  FASTMAP_STEER_OVERRIDE  --override: 1
  FASTMAP_STATS           --stats
  FASTMAP_TIER            --tier
  FASTMAP_TIER_LIMIT      --tier-limit
  FASTMAP_LOG             steer: what steering saw and did is said on standard error; mappings: who serves each file (engine, kernel, \
direct, heap), and why; both with a comma
  FASTMAP_PRELOAD         the library that is loaded into the program, instead of those below

Files: beside this command, or else in ../lib of its directory.
  libfastmap_steer.so         loaded into every program
  libfastmap_preload.so       loaded before it with --cache or --object
  libfastmap_preload_heap.so  the same with --heap
With --warm, in $XDG_CACHE_HOME or ~/.cache:
  fastmap/warm                what was in memory, 64 MiB at most; see fastmap warm --help

Objects: PATH is a file for what the program, and all that it executes, opens, looks at, maps and reads through the C library; a file that is \
there is hidden. What would change it fails with EROFS. Directories do not list it, static programs do not see it. Another process fetches \
what is asked for, and ends when the last process of the program has. Credentials are found as the store's own tools find them.

Not possible: programs that are setuid, setgid or with file capabilities (of other users); with a cache also those that are statically linked, 32-bit, or \
built for another C library than glibc. Without one a process beside the program, fastmap-beside, steers what no library reaches.

Exit status: the program's own; 126 if it cannot be executed, 127 if it is not found, 2 wrong usage, 1 anything else that \
keeps it from running.

Examples:
  fastmap run -- mdb_stat -e /data/db
  FASTMAP_LOG=steer fastmap run -- mdb_stat -e /data/db
  fastmap run --warm -- prometheus --storage.tsdb.path /data/tsdb
  fastmap run --cache 4GiB --map '/data/**' --stats stats.json -- python3 train.py
  fastmap run --object s3://bucket/texts=texts --tier /fast/objects -- grep -c word texts
  fastmap run --heap /fast/heap:64GiB -- sort --parallel 2 large.txt")]
pub struct RunArgs {
    /// Serve mapped files from a cache of so many bytes. auto: the memory that others leave, followed as it changes [default: no cache;
    /// auto with --heap or --object]
    #[arg(long, value_name = "SIZE|auto")]
    pub cache: Option<Capacity>,
    /// Serve shared mappings of these files only, small ones for reading too; may be given several times [default: every shared
    /// mapping of a regular file or block device that is larger than 1 MiB and not executable]
    #[arg(long, value_name = "GLOB", help_heading = CACHED)]
    pub map: Vec<OsString>,
    /// Also put the program's heap into this file, at most SIZE of it: not there yet or empty, on fast storage, gone when the
    /// program ends
    #[arg(long, value_name = "FILE[:SIZE]", value_hint = ValueHint::FilePath)]
    pub heap: Option<OsString>,
    /// How page faults are served: signal (fast; in the thread that faults) or service (slower; by other threads, also for
    /// system calls that the library does not see) [default: signal]
    #[arg(long, value_name = "signal|service", help_heading = CACHED)]
    pub faults: Option<Faults>,
    /// Keep stores to pages that are not in memory, and let the program go on while the pages are read: for scattered small
    /// stores to a slow device. Not with --faults service
    #[arg(long, help_heading = CACHED)]
    pub async_stores: bool,
    /// Cache writable mappings also where the program's sudden end may lose stores: in a PID namespace other than the machine's first, as
    /// its first process, or in a memory cgroup with a limit. There the end of the namespace, or the OOM killer, ends FastMap's keeper
    /// together with the program, and what was stored since the last msync(2) and not written yet is lost, which mmap(2) would keep.
    /// Without this option the kernel maps what is writable there, and FastMap says so
    #[arg(long, help_heading = CACHED)]
    pub risk_stores: bool,
    /// Map files in memory (tmpfs, hugetlbfs, DAX) straight: auto, always (nothing is cached; other files, and the heap, are left to the
    /// kernel, with a warning) or never [default: auto]
    #[arg(long, value_name = "auto|always|never", help_heading = CACHED)]
    pub direct: Option<Direct>,
    /// What msync(2) of a file in memory does: auto (on DAX, writes cache lines to memory; on tmpfs and hugetlbfs, nothing) or
    /// cache-lines (writes them everywhere: that memory is persistent, or stands in for such) [default: auto]
    #[arg(long, value_name = "auto|cache-lines", help_heading = CACHED)]
    pub persist: Option<Persist>,
    /// Let FastMap undo advice of the program (madvise) that is plainly wrong: MADV_RANDOM on a walk, MADV_SEQUENTIAL on scattered accesses
    #[arg(long)]
    pub r#override: bool,
    /// Remember what of the program's mapped files is in memory, every minute and at its end, and read it back beside its next start: that of the
    /// same program with the same arguments, in the same folder. Files of less than 4 MiB are left out. Not with a cache
    #[arg(long)]
    pub warm: bool,
    /// Write counters here as JSON when the program ends; until then, and where it is killed, the file says that they are not complete
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub stats: Option<OsString>,
    #[command(flatten)]
    pub objects: ObjectArgs,
    /// The program and its arguments
    #[arg(value_name = "PROGRAM", required = true, trailing_var_arg = true, value_hint = ValueHint::CommandWithArguments)]
    pub program: Vec<OsString>,
}

/// Objects of stores that are to be files for a program.
#[derive(Debug, ClapArgs)]
pub struct ObjectArgs {
    /// Have the object of a store (s3://BUCKET/KEY, gs://, az://, http(s):// and others) appear as a file at PATH, which can only be read.
    /// The last = divides the two. May be given several times
    #[arg(long, value_name = "URL=PATH")]
    pub object: Vec<OsString>,
    #[command(flatten)]
    pub tier: TierArgs,
    /// How much local copies may take of the disk [default: $FASTMAP_TIER_LIMIT, else what the folder was given last, else a tenth of what is free]
    #[arg(long, value_name = "SIZE")]
    pub tier_limit: Option<Size>,
    /// How long the program waits for a part of an object. After it reads fail with ETIMEDOUT, and loads raise SIGBUS [default: 30]
    #[arg(long, value_name = "SECONDS|never")]
    pub deadline: Option<Deadline>,
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

/// Steer the mapped files of programs that are running
#[derive(Debug, ClapArgs)]
#[command(override_usage = "fastmap attach [OPTIONS] [PID]...")]
#[command(group = clap::ArgGroup::new("who").required(true).multiple(true).args(["pid", "name", "group"]))]
#[command(long_about = "\
Steer the mapped files of programs that are running: your own, as root all.

It looks from outside at which pages a program touches, and has one of its threads, stopped for a fraction of a millisecond (ptrace(2)), make the \
madvise(2) that fits. Nothing stays of it: when it ends, by --for or a signal, the advice is taken back.")]
#[command(after_help = "\
Not possible: a program that another traces, one of another user's, one that is not dumpable (setuid), one with filters for its system calls \
(seccomp) other than its container's, and where kernel.yama.ptrace_scope is 1 or more all that is no child of this command, unless it is run as root. \
Each is said, with the remedy.

Reading ahead needs the program's own memory group: run it there.

Exit status: 0; 1 if nobody could be steered; 2 wrong usage.

Examples:
  fastmap attach --dry-run 4711
  fastmap attach --name prometheus --for 10m
  fastmap attach --group system.slice/etcd.service --children")]
pub struct AttachArgs {
    /// These processes
    #[arg(value_name = "PID", value_parser = process)]
    pub pid: Vec<u32>,
    /// All processes of this name: of the program's file, or as ps(1) shows it; those to come, too
    #[arg(long, value_name = "NAME")]
    pub name: Option<String>,
    /// All processes of this cgroup and those in it: its path as in /proc/PID/cgroup, or its folder
    #[arg(long, value_name = "CGROUP")]
    pub group: Option<PathBuf>,
    /// Their children, too
    #[arg(long)]
    pub children: bool,
    /// For so long [default: until they have ended]
    #[arg(long = "for", value_name = "TIME", value_parser = time)]
    pub lasting: Option<Duration>,
    /// See and say, and change nothing
    #[arg(long)]
    pub dry_run: bool,
    /// Undo advice of the programs (madvise) that is plainly wrong: MADV_RANDOM on a walk, MADV_SEQUENTIAL on scattered accesses
    #[arg(long)]
    pub r#override: bool,
}

/// Remember what of files is in memory, and read it back
#[derive(Debug, ClapArgs)]
#[command(subcommand_required = true, arg_required_else_help = true, disable_help_subcommand = true)]
#[command(long_about = "\
Remember what of files is in memory, and read it back after a restart of the machine, or once it was taken away. fastmap run --warm does both for the files \
that a program maps.

What is remembered is which pages, of 4 KiB, and not what they hold. A file that has changed in length or modification time since is forgotten.")]
#[command(after_help = "\
Files:
  ~/.cache/fastmap/warm    a record for each file, 64 MiB and 1024 in all, of which the oldest go; $XDG_CACHE_HOME/fastmap/warm where that is set

Exit status: 0; 1 if it failed for one of the files, each with a line that says why; 2 wrong usage.

Examples:
  fastmap warm save /data/db/data.mdb
  fastmap warm load /data/db/data.mdb
  fastmap warm show --json")]
pub struct WarmArgs {
    #[command(subcommand)]
    pub command: WarmCommand,
}

/// What to do with records of what was in memory.
#[derive(Debug, Subcommand)]
pub enum WarmCommand {
    /// Remember which pages of these files are in memory now
    #[command(after_help = "\
Pages that were in memory at the save before, too, are hot: they are read back first.

Of another user's file that may not be written the kernel does not say what is in memory (but Linux 6.5 to 6.12 do).

Exit status: 0; 1 if it failed for one of the files; 2 wrong usage.

Examples:
  fastmap warm save /data/db/*.mdb")]
    Save(WarmFiles),
    /// Read what is remembered of these files, hot pages first
    #[command(after_help = "\
It is read by 2 to 64 requests at once, as many as pay, in seven eighths of the memory that files can have: that of the group (cgroup) that this runs in. Run it in the group of the program that needs the files.

Exit status: 0; 1 if nothing is remembered of one of the files, or it has changed, or a signal ended it; 2 wrong usage.

Examples:
  fastmap warm load /data/db/*.mdb")]
    Load(WarmFiles),
    /// Show what is remembered
    #[command(after_help = "\
REMEMBERED is what was in memory, HOT what is read back first. STATE: ok; changed or gone: of no use any more; damaged: the record, which is ignored.

With --json:
  {\"folder\", \"used_bytes\", \"limit_bytes\",
   \"files\": [{\"path\", \"length_bytes\", \"remembered_bytes\", \"hot_bytes\", \"runs\", \"saved_unix_s\", \"state\"}],
   \"damaged\": [{\"path\", \"why\"}]}

Exit status: 0; 1 if nothing is remembered of one of the files, or the folder cannot be read; 2 wrong usage.

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
    /// Of these files [default: all]
    #[arg(value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub files: Vec<PathBuf>,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

/// Show what programs do with files that they have mapped, and what would help
#[derive(Debug, ClapArgs)]
#[command(long_about = "\
Show what programs do with files that they have mapped: your own programs, as root all. In full screen, until q is pressed; arrows and page \
keys scroll. Of a FILE: what of it is in memory, once.

First come programs with files in a FastMap cache. Under each are its files. A size of a program is its cache's capacity, of a file what is mapped. There is no hit \
rate, and no tool can show one: a load that finds its page in memory does not trap, and the kernel tells nobody of it. What \
there is: misses (a load or store that found its page absent; pins count too), how many of these found a page that had been \
evicted a short while before (ghosts: a larger cache would have kept it), traps that found a page read ahead, and first \
stores to clean pages. Of objects (s3://BUCKET/KEY) also the bytes that were fetched, that were read from the local copy (hit), and \
that were fetched and given up unread (wasted).

Then come processes, FastMap's or not, that have 32 MiB or more of data files mapped by the kernel: what their faults cost, how they touch the files \
(forward, backward, stride, scattered, pieces, load: all of it from slow storage; mixed, idle), who steers them, and one line of advice where something \
is wrong. A named process is shown from 4 MiB on.")]
#[command(after_help = "\
Columns of programs, rates by the second:
  SIZE RES DIRTY     bytes: capacity or mapped, in memory, newer than the file
  MISS READ          misses; bytes: read together at a miss where rows are
  EVICT WRITE        pages dropped; pages written back
  AHEAD WASTE        pages read ahead and used; dropped unused
rw and r- are files mapped for writing and for reading, -- files that were mapped. Queue depth: writes under way when \
another is begun, on average.

Columns of processes, rates by the second:
  SIZE RES           bytes of data files: mapped; mapped into the process now, and so in memory (/proc/PID/pagemap)
  FAULT              faults that waited for a device (/proc/PID/stat)
  READ               bytes read from devices (/proc/PID/io)
  TOUCH R/T          bytes of pages that came to be mapped, or of faults that waited where these are more; bytes read for each \
byte touched
  WAIT BLOCK         time of threads with faults neither on a processor nor waiting for one (schedstat; with kernel.task_delayacct: waiting for a device): for \
each fault; in all, 100% is one thread. At most: a thread may have slept for other reasons, too
  REFLT              pages read again soon after they were dropped, in the process's memory group (memory.stat)

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
Counters are the fields of fastmap::Stats and fastmap::live::MapStats. ghost_share is of misses, staged_share (those that \
found their page read ahead) of traps, run_used_share, an estimate, of pages read in rows behind the one that was missed; null where there were none. A map with no mapped_bytes is over. objects: bytes fetched from stores, read from the local copy, \
and given up unread; null where there are none. waited_faults and read_bytes are since the process began; blocked_share is seconds a second, of all threads; \
group_refaults are pages; steered is by \"thread\" (its own) or \"process\" (from outside), or null; advice and what is not known are null. processes_left_out: those of others that you may not look at.

Of a FILE, with --json:
  {\"file\": {\"path\", \"size_bytes\", \"cached_bytes\", \"dirty_bytes\", \"cells\": [SHARE], \"mapped_by\": [{\"pid\", \"name\", \"writable\", \"shared\", \
\"mapped_bytes\"}],
   \"processes_left_out\", \"readahead_bytes\", \"file_system\", \"device\"}}
cells are up to 64 equal parts of the file, each with the share of it that is in memory, 0 to 1.

With --metrics, http://ADDRESS/metrics is OpenMetrics text: for each process, by pid and name, fastmap_process_ mapped_bytes, resident_bytes, waited_faults, \
read_bytes, touched_bytes, blocked_seconds, group_refaults, steered, needs_advice.

Exit status: 0; 1 if there is nothing to show, or you may not look at it; 2 wrong usage.

Files:
  /proc/PID/fd  where each program's page of counters is looked for: a memfd, fastmap-stats

Examples:
  fastmap top
  fastmap top /data/index
  fastmap top --metrics 127.0.0.1:9742
  fastmap top --once --json --interval 5 $(pidof db_bench)")]
pub struct TopArgs {
    /// Only this process, or what of this file is in memory (a file whose name is a number: ./4711)
    #[arg(value_name = "PID|FILE", value_parser = what, value_hint = ValueHint::FilePath)]
    pub what: Option<What>,
    /// Print one table and end
    #[arg(long)]
    pub once: bool,
    /// Print JSON, once
    #[arg(long)]
    pub json: bool,
    /// Serve the figures of processes as OpenMetrics at http://ADDRESS/metrics, until interrupted: IP:PORT, or a PORT of this machine's
    /// own (127.0.0.1). Anybody who reaches the address may read them
    #[arg(long, value_name = "ADDRESS", value_parser = crate::top::serve::address, conflicts_with_all = ["once", "json"])]
    #[arg(num_args = 0..=1, default_missing_value = "9742")]
    pub metrics: Option<SocketAddr>,
    /// Seconds between two looks, over which rates are taken; with --metrics, at least
    #[arg(long, value_name = "S", default_value = "1", value_parser = interval)]
    pub interval: f64,
}

/// What `top` is to look at.
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

#[derive(Debug, ClapArgs)]
#[command(subcommand_required = true, arg_required_else_help = true, disable_help_subcommand = true)]
#[command(long_about = "\
Show, remove or verify the local copies of objects.

What programs read of objects in stores (s3://BUCKET/KEY and others) stays in a folder on local disk, within a limit, for the next program: \
the parts that were fetched of each object, at the version that it had.")]
#[command(after_help = "\
Environment:
  FASTMAP_TIER        the folder, where --tier is not given
  FASTMAP_TIER_LIMIT  how much it may take: SIZE, whole bytes or KiB, MiB, GiB, TiB

Files:
  ~/.cache/fastmap    the folder, where nothing else is said; $XDG_CACHE_HOME/fastmap where that is set

Exit status: 0; 1 failed, and of verify if a copy holds other bytes than were fetched; 2 wrong usage.

Examples:
  fastmap cache ls
  fastmap cache rm s3://bucket/key
  fastmap cache verify --tier /fast/objects")]
pub struct CacheArgs {
    #[command(subcommand)]
    pub command: CacheCommand,
}

/// What to do with local copies.
#[derive(Debug, Subcommand)]
pub enum CacheCommand {
    /// Show what is there of which objects
    #[command(after_help = "\
LOCAL is what a copy takes of the disk. VERSION is what the store tells versions apart by: version id, ETag or time of modification.

With --json:
  {\"folder\", \"used_bytes\", \"limit_bytes\",
   \"copies\": [{\"url\", \"etag\", \"version\", \"modified\", \"length_bytes\", \"local_bytes\", \"last_used_unix_s\", \"in_use\"}]}

Exit status: 0; 1 if the folder cannot be used; 2 wrong usage.")]
    Ls(LsArgs),
    /// Remove local copies; one that a program has open stays, with nothing in it
    #[command(after_help = "\
Exit status: 0; 1 if there is no copy of URL, or the folder cannot be used; 2 wrong usage.")]
    Rm(RmArgs),
    /// Read all that is there and compare it with its checksums; what is wrong will be fetched anew
    #[command(after_help = "\
Exit status: 0; 1 if a copy holds other bytes than were fetched, or the folder cannot be used; 2 wrong usage.")]
    Verify(TierArgs),
}

/// Which local copies.
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
    /// Those of this object
    #[arg(value_name = "URL")]
    pub url: Option<String>,
    /// All
    #[arg(long)]
    pub all: bool,
    #[command(flatten)]
    pub tier: TierArgs,
}

fn process(text: &str) -> Result<u32, String> {
    text.parse().map_err(|_| format!("\"{text}\" is no process id: give one as ps(1) shows it"))
}

fn time(text: &str) -> Result<Duration, String> {
    let digits = text.len() - text.trim_start_matches(|c: char| c.is_ascii_digit()).len();
    let seconds = match &text[digits..] {
        "s" | "" => Some(1),
        "m" => Some(60),
        "h" => Some(3600),
        _ => None,
    };
    let time = seconds.and_then(|unit| text[..digits].parse::<u64>().ok()?.checked_mul(unit)).filter(|time| *time > 0);
    time.map(Duration::from_secs).ok_or_else(|| format!("\"{text}\" is no time: give 60s, 10m or 2h"))
}

fn interval(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(seconds) if (0.1..=3600.0).contains(&seconds) => Ok(seconds),
        _ => Err(format!("\"{text}\" is no interval: give 0.1 to 3600 seconds")),
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
        assert!(what("99999999999").unwrap_err().contains("is no process id"));
    }

    #[test]
    fn the_command_line_is_consistent() {
        Args::command().debug_assert();
    }
}
