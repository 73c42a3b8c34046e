//! `fastmap bench try`: one program that nobody changed, short of memory, on kernel mmap and under `fastmap run`; what was gained, in
//! plain words.
//!
//! Beside the experiments, and none of them: it is heard while it runs, and has no repetitions, columns or JSON.

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
use fastmap_cli::size::Size;

use self::told::{Run, Told};
use crate::args::seconds;
use crate::driver::{own_directory, progress_bar};
use crate::experiment::TEMPORARY;
use crate::runner::{self, Limit};
use crate::substrates::cold;
use crate::substrates::programs::lookups::{self, Job};
use crate::substrates::programs::{self, LOOKUPS, Tool, Workshop};

/// On the command line.
pub const NAME: &str = "try";

/// Memory beside a quarter of the file, and a byte for each so many of the file: the program, code, page tables, FastMap's threads.
const BESIDE: u64 = 16 << 20;
const TABLES: u64 = 64;

/// The least file: smaller ones would be mostly allowance.
const LEAST: u64 = 16 << 20;

/// The file and the seconds of a run where memory is limited, and where it is not: there is nothing to be gained then.
const LIMITED: (u64, f64) = (1 << 30, 22.0);
const UNLIMITED: (u64, f64) = (256 << 20, 5.0);

/// Set in the scope that was made for the command.
const SCOPE: &str = "FASTMAP_BENCH_SCOPE";

/// Try it: one unchanged program, short of memory, on kernel mmap and under `fastmap run`, a minute
#[derive(Debug, clap::Args)]
#[command(long_about = "\
Try FastMap on this machine: one unchanged program, on kernel mmap and under `fastmap run` with its defaults, in about a minute.

The program knows nothing of FastMap. It is written out and compiled with cc; it maps a file of sorted records and an index, and looks \
keys up at random, some far oftener than others. Each run begins with nothing of the file in memory, in a memory cgroup of its own that \
allows a quarter of the file, and 16 MiB and a 64th of the file for everything else. What both runs read is compared.

As root, or where the user may make memory cgroups (alone, or by systemd-run), memory is limited; elsewhere it is not, a smaller file is \
mapped for a shorter time, and there is nothing to gain.")]
#[command(after_help = "\
Examples:
  fastmap bench try
  fastmap bench try --size 8GiB --seconds 60 --dir /mnt/disk")]
pub struct Args {
    /// Size of the file, about [default: 1GiB, 256MiB where memory cannot be limited]
    #[arg(long)]
    size: Option<Size>,
    /// Seconds of each of the two runs [default: 22, 5 where memory cannot be limited]
    #[arg(long, value_name = "S", value_parser = seconds)]
    seconds: Option<f64>,
    #[arg(long, help = TEMPORARY)]
    dir: Option<PathBuf>,
}

/// Its command line.
pub fn command() -> clap::Command {
    Args::augment_args(clap::Command::new(NAME))
}

/// Does it.
///
/// # Errors
///
/// No compiler, no room, no `fastmap run`, an interruption, an answer that differs. Nothing is left behind.
pub fn run(matches: &clap::ArgMatches) -> Result<(), Failure> {
    let args = Args::from_arg_matches(matches).map_err(|e| Failure::told(e.to_string()))?;
    if let Some(size) = args.size.filter(|size| size.0 < LEAST || !size.0.is_multiple_of(1 << 20)) {
        let up = Size(size.0.max(LEAST).next_multiple_of(1 << 20));
        return Err(Failure::usage(
            "--size",
            format!("{size} is too small or no multiple of 1 MiB"),
            format!("give {up}"),
        ));
    }
    interrupt::watch();
    let (controller, unlimited) = match Controller::find() {
        Ok(controller) => (Some(controller), None),
        Err(why) => {
            in_a_scope();
            (None, Some(why.to_string()))
        }
    };
    let (size, seconds) = if controller.is_some() { LIMITED } else { UNLIMITED };
    let (bytes, seconds) = (args.size.map_or(size, |size| size.0), args.seconds.unwrap_or(seconds));
    let memory = bytes / 4 + BESIDE + bytes / TABLES;
    let limit = controller.map_or_else(Limit::none, |controller| Limit::new(controller, memory));

    let dir = args.dir.unwrap_or_else(|| crate::target::directory_for(bytes));
    let place = own_directory(&dir, bytes + bytes / 20)?;
    let own = env::current_exe().map_err(|e| Failure::new("/proc/self/exe", e, "mount /proc"))?;
    let workshop = Workshop::new(place.path().join("program"))
        .map_err(|e| Failure::new(place.path().display(), e, "name another place with --dir"))?;
    let bench = Bench {
        tool: workshop.have(&LOOKUPS).map_err(|why| interrupted_or(Failure::told(why)))?,
        fastmap: runner::fastmap(&own),
        data: place.path().join("data"),
        seconds,
        limit,
    };
    bench.check()?;
    bench.make(bytes)?;
    let kernel = bench.one(told::KERNEL, false)?;
    let ours = bench.one(told::OURS, true)?;
    let unlimited = unlimited.map(|why| (why, bench.fastmap.clone()));
    let told = Told { bytes, memory: bench.limit.bytes(), unlimited, kernel, ours };
    fastmap_cli::print(&told.text()?);
    Ok(())
}

/// A user whose systemd hands him memory cgroups gets one: the command begins again in a scope of its own. Where there is none this
/// returns.
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
        // Where it does not become the command, that is as if there were no systemd.
        let _ = scope(&own).args(env::args_os().skip(1)).env(SCOPE, "1").exec();
    }
}

/// Ctrl-C reaches the processes that are started too: that they failed is none of their faults then.
fn interrupted_or(failure: Failure) -> Failure {
    interrupt::check().err().unwrap_or(failure)
}

/// What both runs have in common.
struct Bench {
    tool: Tool,
    fastmap: PathBuf,
    data: PathBuf,
    seconds: f64,
    limit: Limit,
}

impl Bench {
    /// That programs can be run under `fastmap run` shows before anything takes long.
    fn check(&self) -> Result<(), Failure> {
        let mut command = Command::new(&self.fastmap);
        lookups::with_defaults(command.args(["run", "--", "true"]));
        programs::wait_for(&mut command, || !interrupt::requested()).map_err(|why| {
            let what = format!("nothing can be run under it: {why}");
            interrupted_or(Failure::new(self.fastmap.display(), what, "build it with `make`"))
        })
    }

    fn make(&self, bytes: u64) -> Result<(), Failure> {
        let io = |e| Failure::new(self.data.display(), e, "make room, or name another place with --dir");
        let bar = progress_bar(1, "making a file of {msg}, {elapsed}");
        bar.set_message(Size(bytes).to_string());
        bar.enable_steady_tick(Duration::from_secs(1));
        fs::create_dir(&self.data).map_err(io)?;
        programs::make(&self.tool, &self.data, bytes, || !interrupt::requested()).map_err(|why| {
            let what = format!("its file cannot be made: {why}");
            interrupted_or(Failure::new(LOOKUPS.name, what, "make room, or name another place with --dir"))
        })?;
        File::open(&self.data).and_then(|data| cold::write_back_all(&data)).map_err(io)?;
        bar.finish_and_clear();
        interrupt::check()
    }

    /// One run.
    fn one(&self, name: &str, ours: bool) -> Result<Run, Failure> {
        let failed = |what: String| {
            Failure::new(format!("{} on {name}", LOOKUPS.name), what, "run it again, and report it if it stays")
        };
        let left = cold::drop_all(&[self.data.join("table")]).map_err(|e| failed(e.to_string()))?;
        if left > 0 {
            eprintln!("fastmap: {left} pages of the file stay in the page cache, and favour the kernel");
        }
        let group = self.limit.group(self.limit.bytes())?;
        let bar = progress_bar(1, "{msg}");
        let job = Job {
            tool: &self.tool,
            data: &self.data,
            seconds: self.seconds,
            under: ours.then_some(self.fastmap.as_path()),
            join: group.as_ref().map(|group| group.join_file()),
        };
        let looked = lookups::run(&job, |looked| {
            let now = looked.course.last().map_or(0.0, |(at, _)| *at);
            bar.set_message(format!("{name}  {now:>4.0} s  {:>7} lookups/s", told::rate(looked.now())));
            !interrupt::requested()
        });
        let looked = looked.map_err(|why| interrupted_or(failed(why)))?;
        interrupt::check()?;
        bar.finish_and_clear();
        let peak = group.as_ref().and_then(|group| fs::read_to_string(group.peak_file()?).ok()?.trim().parse().ok());
        Ok(Run { peak: peak.unwrap_or(looked.peak), looked })
    }
}
