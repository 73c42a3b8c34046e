//! `fastmap bench try`: four unchanged programs, on kernel mmap and under `fastmap run`. It tells the gain in one table and one sentence.
//!
//! It is not an experiment (`experiment.rs`): it shows the program's figures while it runs, and has neither repetitions nor JSON.

mod told;

use std::env;
use std::fs::{self, File};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use clap::Args as _;
use clap::FromArgMatches;
use fastmap_cli::cgroup::Controller;
use fastmap_cli::failure::Failure;
use fastmap_cli::interrupt;
use fastmap_cli::machine::Machine;
use fastmap_cli::size::Size;
use fastmap_cli::table::render;
use indicatif::ProgressBar;

use self::told::{KERNEL, OURS, Row, Unit, gained, mib, table};
use crate::args::seconds;
use crate::driver::{own_directory, progress_bar};
use crate::experiment::TEMPORARY;
use crate::runner;
use crate::storage::Beside;
use crate::storages::{BANDWIDTH, LATENCY};
use crate::substrates::cold;
use crate::substrates::programs::heard::{self, Heard, Job};
use crate::substrates::programs::{self, COLUMN, LOAD, MODEL, Program, Tool, Workshop};

/// Its name on the command line.
pub const NAME: &str = "try";

/// A program's memory limit is the sum of three parts: a share of its data, memory of its own, and memory for code, page tables and FastMap's
/// threads. The third part is `BESIDE` bytes, and one byte for each `TABLES` bytes of data.
const BESIDE: u64 = 16 << 20;
const TABLES: u64 = 64;

/// The least size of the data, and the step of sizes, bytes.
const LEAST: u64 = 16 << 20;
const STEP: u64 = 1 << 20;

/// Rates for the estimate of the time, bytes a second: data are made at the first rate, and loaded by the kernel from slow storage at the
/// second.
const MADE: f64 = 100e6;
const LOADED: f64 = 75e6;

/// This variable is set in the systemd scope that was made for the command.
const SCOPE: &str = "FASTMAP_BENCH_SCOPE";

/// Try it: four unchanged programs on this disk, on kernel mmap and under `fastmap run`, a minute
#[derive(Debug, clap::Args)]
#[command(long_about = "\
Try FastMap on this machine: four unchanged programs, on kernel mmap and under `fastmap run` with its defaults, in about a minute.

  1. Gets at random from LMDB, or from SQLite where there is no LMDB. Memory for a quarter of the data.
  2. A table in rows, column by column, by numpy.memmap, or by Python's mmap where there is no numpy. Memory for a quarter.
  3. A model in a .safetensors file, layer by layer, again for each token. Memory for four fifths.
  4. A load, once, from slow storage: a FUSE file system in which each read takes 2 ms. Memory is not limited.

The programs know nothing of FastMap. Each run begins with nothing of its data in memory, and counts from its start. Runs of the first \
three are in memory cgroups, which also allow 12 or 24 MiB for the program itself, and 16 MiB and a 64th of the data for everything else. \
The results of both runs are compared.

Memory cgroups take root, or a user's systemd. Slow storage takes /dev/fuse, and root or fusermount3. The programs take \
python3; LMDB in C takes gcc and liblmdb-dev. A program that cannot be tried is left out, and the reason is said.")]
#[command(after_help = "\
Examples:
  fastmap bench try
  fastmap bench try --size 8GiB --seconds 60 --dir /mnt/disk")]
pub struct Args {
    /// Size of each program's data
    #[arg(long, default_value = "512MiB")]
    size: Size,
    /// Seconds of each run; a load takes as long as it needs
    #[arg(long, value_name = "S", default_value = "5", value_parser = seconds)]
    seconds: f64,
    #[arg(long, help = TEMPORARY)]
    dir: Option<PathBuf>,
}

/// The command line of `fastmap bench try`.
pub fn command() -> clap::Command {
    Args::augment_args(clap::Command::new(NAME))
}

/// Runs the programs, and prints the results.
///
/// # Errors
///
/// No program can be tried, there is too little room or no `fastmap run`, the user interrupts, or an answer differs. Nothing is left
/// behind.
pub fn run(matches: &clap::ArgMatches) -> Result<(), Failure> {
    let args = Args::from_arg_matches(matches).map_err(|e| Failure::told(e.to_string()))?;
    let bytes = args.size.0;
    if bytes < LEAST || !bytes.is_multiple_of(STEP) {
        let what = format!("{} is too small or no multiple of {}", args.size, Size(STEP));
        let up = Size(bytes.max(LEAST).next_multiple_of(STEP));
        return Err(Failure::usage("--size", what, format!("give {up}")));
    }
    interrupt::watch();
    let controller = Controller::find().map_err(|why| {
        in_a_scope();
        why.to_string()
    });
    let dir = args.dir.unwrap_or_else(|| crate::target::directory_for(bytes));
    let place = own_directory(&dir, room(bytes))?;
    let own = env::current_exe().map_err(|e| Failure::new("/proc/self/exe", e, "mount /proc"))?;
    let bench = Bench {
        fastmap: runner::fastmap(&own),
        data: place.path().join("data"),
        bytes,
        seconds: args.seconds,
        controller,
        bar: progress_bar(1, "{bar:10} {elapsed} {msg}"),
    };
    let workshop = Workshop::new(place.path().join("program"))
        .map_err(|e| Failure::new(place.path().display(), e, "name another place with --dir"))?;
    let (parts, left_out) = bench.parts(&workshop)?;
    bench.check()?;
    fastmap_cli::print(&bench.needs(&parts, &left_out, place.path().parent().unwrap_or(&dir)));
    let rows = bench.rows(&parts)?;
    fastmap_cli::print(&format!("\n{}\n{}\n", table(&rows), gained(&rows, &Machine::of(place.path()).readahead())));
    Ok(())
}

/// Starts the command again in a systemd scope of its own, if the user's systemd gives out memory cgroups. Returns if it does not.
fn in_a_scope() {
    let scope = |then: &Path| {
        let mut command = Command::new("systemd-run");
        command.args(["--user", "--scope", "--quiet", "--collect", "-p", "Delegate=yes", "--"]).arg(then);
        command
    };
    let Ok(own) = env::current_exe() else { return };
    if env::var_os(SCOPE).is_none()
        && programs::wait_for(&mut scope(Path::new("true")), || !interrupt::requested()).is_ok()
    {
        // If exec(2) fails, this goes on as if there were no systemd.
        let _ = scope(&own).args(env::args_os().skip(1)).env(SCOPE, "1").exec();
    }
}

/// Ctrl-C also reaches the processes that the bench has started. Their failure is not reported then: the interruption is.
fn interrupted_or(failure: Failure) -> Failure {
    interrupt::check().err().unwrap_or(failure)
}

/// The room on a disk that so many bytes of data take.
fn room(bytes: u64) -> u64 {
    bytes + bytes / 10
}

/// The name of a program in the table, and the program.
type Named = (&'static str, &'static Program);

/// A program that can be tried.
struct Part {
    name: &'static str,
    unit: Unit,
    tool: Tool,
    /// The memory limit, bytes. None: the program loads from slow storage, without a limit.
    memory: Option<u64>,
}

/// The values that all runs share.
struct Bench {
    fastmap: PathBuf,
    /// The folder of the data of one program at a time.
    data: PathBuf,
    bytes: u64,
    seconds: f64,
    controller: Result<Controller, String>,
    bar: ProgressBar,
}

impl Bench {
    /// Checks that programs can be run under `fastmap run`, before anything takes long.
    fn check(&self) -> Result<(), Failure> {
        let mut command = Command::new(&self.fastmap);
        heard::with_defaults(command.args(["run", "--", "true"]));
        programs::wait_for(&mut command, || !interrupt::requested()).map_err(|why| {
            let what = format!("nothing can be run under it: {why}");
            interrupted_or(Failure::new(self.fastmap.display(), what, "build it with `make`"))
        })
    }

    /// The programs that can be tried here, and for each other program the reason why it cannot. If memory cannot be limited, only the load
    /// is tried.
    fn parts(&self, workshop: &Workshop) -> Result<(Vec<Part>, Vec<String>), Failure> {
        let known = |name| programs::named(name).expect("one of them");
        let quarter = Some(self.bytes / 4);
        let gets = [("gets from LMDB", known("lmdb")), ("gets from SQLite", known("sqlite"))];
        let column = [("a numpy column", &COLUMN[0]), ("a column in Python", &COLUMN[1])];
        let all: [(&[Named], Unit, Option<u64>); 4] = [
            (&gets, Unit::Each("gets/s"), quarter),
            (&column, Unit::Each("rows/s"), quarter),
            (&[("a model layer by layer", &MODEL)], Unit::Megabytes, Some(self.bytes / 5 * 4)),
            (&[("a load from slow storage", &LOAD)], Unit::Seconds, None),
        ];
        let (mut parts, mut left_out) = (Vec::new(), Vec::new());
        for (programs, unit, share) in all {
            if share.is_some() && self.controller.is_err() {
                continue;
            }
            let part = self.part(workshop, programs, unit, share);
            interrupt::check()?;
            match part {
                Ok(part) => parts.push(part),
                Err(why) => left_out.push(format!("{}: {why}", programs[0].0)),
            }
        }
        if parts.is_empty() {
            left_out.splice(0..0, self.controller.as_ref().err().map(|why| self.unlimited(why)));
            return Err(Failure::told(format!("nothing can be tried here: {}", left_out.join("; "))));
        }
        Ok((parts, left_out))
    }

    /// The reason why memory cannot be limited, with a remedy.
    fn unlimited(&self, why: &str) -> String {
        format!("memory cannot be limited ({why}): `sudo {} bench try`", self.fastmap.display())
    }

    /// The first of several programs that can be had. `share` is the memory for its data.
    fn part(&self, workshop: &Workshop, programs: &[Named], unit: Unit, share: Option<u64>) -> Result<Part, String> {
        if share.is_none() {
            drop(self.storage()?);
        }
        let mut why = String::new();
        for (name, program) in programs {
            match workshop.have(program) {
                Ok(tool) => {
                    let beside = (program.own_mib << 20) + BESIDE + self.bytes / TABLES;
                    return Ok(Part { name, unit, tool, memory: share.map(|share| share + beside) });
                }
                Err(missing) => why = missing,
            }
        }
        Err(why)
    }

    /// Mounts slow storage at the folder of the data. It is unmounted when the value is dropped.
    fn storage(&self) -> Result<Beside, String> {
        fs::create_dir_all(&self.data).map_err(|e| e.to_string())?;
        Beside::start(LATENCY, BANDWIDTH, self.bytes, &self.data)
    }

    /// The text that is printed at the start: what is run, and what it takes.
    fn needs(&self, parts: &[Part], left_out: &[String], dir: &Path) -> String {
        let (mut seconds, mut disk) = (0.0, 0);
        let rows = parts.iter().map(|part| {
            let bytes = self.bytes as f64;
            seconds += if part.memory.is_some() { bytes / MADE + 2.0 * self.seconds } else { bytes / LOADED };
            disk = disk.max(part.memory.map_or(0, |_| room(self.bytes)));
            vec![part.name.to_owned(), mib(self.bytes), part.memory.map_or("no limit".to_owned(), mib)]
        });
        let rows = render(&["", "data", "memory"], &rows.collect::<Vec<_>>());
        let machine = Machine::of(dir);
        let on = format!("{} on {}, {}", machine.file_system, machine.device, machine.readahead());
        let memory = match &self.controller {
            Ok(controller) if env::var_os(SCOPE).is_some() => {
                format!("limited by {}, in a scope of this user's systemd", controller.version())
            }
            Ok(controller) => format!("limited by {}", controller.version()),
            Err(why) => format!("without a limit there is nothing to gain but for the load; {}", self.unlimited(why)),
        };
        let mut text = format!(
            "Programs that nobody changed, each on {KERNEL} and under `{OURS}`, from a cold start:\n\n{rows}\n\
             time    about {seconds:.0} s\n\
             disk    {} in {} ({on}), given back at the end\n\
             memory  {memory}\n",
            mib(disk),
            dir.display(),
        );
        text.extend(left_out.iter().map(|why| format!("left out: {why}\n")));
        text
    }

    /// Makes all runs.
    fn rows(&self, parts: &[Part]) -> Result<Vec<Row>, Failure> {
        self.bar.set_length(2 * parts.len() as u64);
        self.bar.enable_steady_tick(Duration::from_secs(1));
        let rows = parts.iter().map(|part| self.row(part)).collect();
        self.bar.finish_and_clear();
        rows
    }

    /// Makes both runs of a program, and compares their answers.
    fn row(&self, part: &Part) -> Result<Row, Failure> {
        self.make(part)?;
        let row = Row { name: part.name, unit: part.unit, kernel: self.one(part, false)?, ours: self.one(part, true)? };
        fs::remove_dir_all(&self.data).map_err(|e| Failure::new(self.data.display(), e, "remove it by hand"))?;
        // The load, which has no memory limit, ends when its work is done. So both of its runs must have the same number of operations.
        let is_short = part.memory.is_none() && row.kernel.ops != row.ours.ops;
        let difference = programs::difference(&row.kernel.sums, &row.ours.sums);
        match difference.or(is_short.then(|| format!("{} operations, not {}", row.ours.ops, row.kernel.ops))) {
            None => Ok(row),
            Some(what) => Err(Failure::new(
                format!("{} under `{OURS}`", part.name),
                format!("it read other data than on {KERNEL}: {what}"),
                "this is an error in fastmap: please report it",
            )),
        }
    }

    /// Makes the data of a program. The data of the load are made up by the storage.
    fn make(&self, part: &Part) -> Result<(), Failure> {
        let io = |e| Failure::new(self.data.display(), e, "make room, or name another place with --dir");
        fs::create_dir_all(&self.data).map_err(io)?;
        if part.memory.is_some() {
            self.bar.set_message(format!("{}: making {} of data", part.name, mib(self.bytes)));
            programs::make(&part.tool, &self.data, self.bytes, || !interrupt::requested()).map_err(|why| {
                let what = format!("its data cannot be made: {why}");
                interrupted_or(Failure::new(part.name, what, "make room, or name another place with --dir"))
            })?;
            File::open(&self.data).and_then(|data| cold::write_back_all(&data)).map_err(io)?;
        }
        interrupt::check()
    }

    /// Makes one run.
    fn one(&self, part: &Part, ours: bool) -> Result<Heard, Failure> {
        let way = if ours { OURS } else { KERNEL };
        let failed = |what: String| {
            Failure::new(format!("{} on {way}", part.name), what, "run it again, and report it if it stays")
        };
        let (mut storage, mut group) = (None, None);
        match (part.memory, &self.controller) {
            (Some(memory), Ok(controller)) => {
                self.make_cold().map_err(failed)?;
                group = Some(controller.group(memory).map_err(|e| failed(e.to_string()))?);
            }
            _ => storage = Some(self.storage().map_err(|why| interrupted_or(failed(why)))?),
        }
        let job = Job {
            tool: &part.tool,
            data: &self.data,
            seconds: if storage.is_some() { f64::INFINITY } else { self.seconds },
            under: ours.then_some(self.fastmap.as_path()),
            join: group.as_ref().map(|group| group.join_file()),
        };
        let heard = heard::run(&job, |heard| {
            let of = if storage.is_some() { String::new() } else { format!(" of {}", self.seconds) };
            let now = part.unit.now(heard);
            self.bar.set_message(format!("{}, {way}: {:.0}{of} s, {now}", part.name, heard.seconds));
            !interrupt::requested()
        });
        self.bar.inc(1);
        let heard = heard.map_err(|why| interrupted_or(failed(why)))?;
        interrupt::check()?;
        Ok(heard)
    }

    fn make_cold(&self) -> Result<(), String> {
        let files = cold::files(&self.data).map_err(|e| e.to_string())?;
        let left = cold::drop_all(&files).map_err(|e| e.to_string())?;
        if left > 0 {
            self.bar.suspend(|| {
                eprintln!("fastmap: {left} pages of the data stay in the page cache, and favour the kernel")
            });
        }
        Ok(())
    }
}
