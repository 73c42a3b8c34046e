//! `fastmap bench programs`: real programs that map files, unchanged, on kernel mmap and under `fastmap run`.

use std::env;
use std::fs;
use std::path::PathBuf;
use std::time::Duration;

use clap::Args as ClapArgs;
use fastmap_cli::failure::Failure;
use fastmap_cli::interrupt;
use fastmap_cli::size::Size;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use tempfile::TempDir;

use self::together::{distinct, times_kernel};
use crate::args::{once_each, seconds};
use crate::driver::{Ctx, own_directory, progress_bar};
use crate::experiment::columns::{cpu, queue, rate, times_mmap};
use crate::experiment::{
    Arm, Claim, Column, Experiment, Flags, Group, Launch, Of, Over, Part, Plan, Plot, Row, Stage, TEMPORARY, Trial, Turn,
};
use crate::results::{Kind, Report};
use crate::runner::{self, Limit};
use crate::substrates::programs::{self, ALL, Advice, Order, Program, Tool, WarmUp, Way, Workshop, difference, named};
use crate::substrates::{self, Engine, Meter, PAGE, cold};

mod together;

/// The names of the two parts of a run.
const COLD: &str = "cold";
const WARM: &str = "warm";

/// Memory that a run may use beside the data and the program's own memory: for the worker that starts it, code, FastMap's threads and
/// buffers. Bytes.
const BESIDE: u64 = 16 << 20;

/// A run may also use one byte for each so many bytes of data: for page tables and FastMap's page words.
const TABLES: u64 = 64;

/// The longest time of a run: this many times its windows and its longest warm-up together, plus this many seconds for everything around
/// them, such as filling memcached. A run that takes longer hangs, and is killed.
const PATIENCE: (f64, f64) = (4.0, 240.0);

/// Measure real programs that map files, unchanged: kernel mmap, the same with advice, and under `fastmap run`
#[derive(Debug, ClapArgs)]
#[command(long_about = "\
Measure real programs that map files, unchanged.

Each program that is there runs in several ways; one that is not there is left out, and said. Ways take turns; figures are medians over the \
repetitions.

Every run is a fresh process in a memory cgroup of its own, limited to a part of the data, and an allowance: 4 to 64 MiB for the \
program's own memory, 16 MiB and a 64th of the data for everything else (tables, bookkeeping, the process that starts it); with memory for \
all of the data there is no limit. The data are dropped from the page cache before each run. A run is measured twice, for --seconds \
each: from its start (cold), and warm. In between it works on for --warm-up seconds, and until it has read as much as there is memory \
for its data, three times --warm-up at most; with memory for all the files are also read once by read(2). ripgrep, whose life is one search, searches anew until it is \
warm; fio warms up in a second process. A run that takes far longer than all that is killed: its row says so, \
the others are made, and the command fails in the end.

All programs take about an hour and a half with the defaults. --json has what was measured so far after every run.

Work is the same in every run, in the same order, for as long as --seconds: each batch of operations has a sum of what it read, and \
all runs of a program are compared, as far as they came. One that differs fails the command.")]
#[command(after_help = "\
Ways:
  kernel         as it is
  advised        with the best blanket advice: a library compiled for it gives every shared map of 1 MiB or more of a file MADV_RANDOM,
                 or MADV_SEQUENTIAL to programs that scan
  fastmap        under `fastmap run` with its defaults: the kernel serves the files, steered
  fastmap-sized  under `fastmap run` with a cache as large as the memory meant for the data

Examples:
  fastmap bench programs
  fastmap bench programs --programs lmdb,sqlite --memory all,quarter --repeat 5 --json programs.json
  fastmap bench programs --programs rocksdb --memory half,eighth --warm-up 20
  fastmap bench programs --ways kernel,advised,fastmap-sized --size 8GiB --seconds 5 --dir /mnt/disk")]
pub struct Args {
    /// Programs to run, separated by commas [default: all that are installed]
    #[arg(long, value_name = "LIST", value_delimiter = ',', value_parser = program)]
    pub programs: Vec<&'static Program>,
    /// Ways to compare, separated by commas
    #[arg(long, value_name = "LIST", value_delimiter = ',', default_value = "kernel,advised,fastmap")]
    pub ways: Vec<Way>,
    /// Memory for the data, as a share of them, separated by commas: all, most (four fifths), half, quarter, eighth
    #[arg(long, value_name = "LIST", value_delimiter = ',', default_value = "all,quarter")]
    pub memory: Vec<Share>,
    /// Size of each program's data, about
    #[arg(long, default_value = "1GiB")]
    pub size: Size,
    /// Seconds between the cold window and the warm one, at least
    #[arg(long, value_name = "S", default_value = "12", value_parser = seconds)]
    pub warm_up: f64,
    /// Seconds after which a run is killed [default: four times the expected seconds, and 4 minutes]
    #[arg(long, value_name = "S", value_parser = seconds)]
    pub at_most: Option<f64>,
}

/// The share of the data that memory has room for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum Share {
    /// No limit.
    All,
    /// Four fifths: the data are 1.25 times the memory.
    Most,
    /// A half.
    Half,
    /// A quarter.
    Quarter,
    /// An eighth.
    Eighth,
}

/// All shares.
const SHARES: [Share; 5] = [Share::All, Share::Most, Share::Half, Share::Quarter, Share::Eighth];

impl Share {
    fn name(self) -> &'static str {
        match self {
            Share::All => "all",
            Share::Most => "most",
            Share::Half => "half",
            Share::Quarter => "quarter",
            Share::Eighth => "eighth",
        }
    }

    fn of(self, bytes: u64) -> Option<u64> {
        match self {
            Share::All => None,
            Share::Most => Some(bytes / 5 * 4),
            Share::Half => Some(bytes / 2),
            Share::Quarter => Some(bytes / 4),
            Share::Eighth => Some(bytes / 8),
        }
    }
}

/// The result of a run, beside its reading.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Outcome {
    /// The sums of its batches, until they are checked.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    sums: Vec<String>,
    /// The number of batches whose sums were compared with another run's.
    compared: usize,
    /// Seconds between the cold window and the warm one. Behind it, the bytes that the program had read by the end of that time.
    warm_up_seconds: Option<f64>,
    warm_up_read_bytes: Option<u64>,
    /// The report of `fastmap run`, if it had a cache.
    served: Option<Served>,
}

/// Some fields of the report that `fastmap run` writes with `--cache` and `--stats`.
#[derive(Debug, Clone, Serialize, Deserialize)]
struct Served {
    /// Mappings that FastMap could have served.
    candidates: u64,
    /// Those of them that the kernel served.
    kernel: u64,
    /// The counters of the cache, if there was one.
    caches: Vec<Counters>,
}

/// Some fields of `fastmap::Stats`.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
struct Counters {
    capacity_bytes: u64,
    misses: u64,
    evicted_pages: u64,
}

/// The experiment.
pub struct Programs;

impl Experiment for Programs {
    const NAME: &'static str = "programs";
    type Args = Args;
    type Case = Order;
    type Outcome = Outcome;
    const PART: &'static str = "setting";
    const FLAGS: Flags = Flags {
        repeat: "3",
        seconds: Some(("4", "Seconds to measure each run cold, and as many warm")),
        memory: None,
        dir: Some(TEMPORARY),
    };
    const COLUMNS: &'static [Column<Outcome>] = &[
        rate(),
        Column::from("times_kernel", "x kernel", "times kernel mmap as it is", Of::Rows(times_kernel)),
        times_mmap(),
        cpu(),
        queue(),
        Column::new("batches_compared", "", "batches compared", |t: &Trial<Outcome>| Some(t.outcome.compared as f64)),
    ];
    const PLOTS: &'static [Plot<Outcome>] = &[
        Plot::new("Real programs, to kernel mmap as it is", &["times_kernel"], Kind::Bars, Over::Groups)
            .log()
            .of(|row| row.engine != Engine::Mmap),
    ];
    const VERIFIED: &'static str = "Each batch of operations has a sum of what it read, and all runs of a program, in whatever way, were \
                                    compared batch by batch, as far as each came; fio checked each block's own checksum.";

    fn plan(args: &Args, ctx: &mut Ctx) -> Result<Plan<Programs>, Failure> {
        let bytes = args.size.0;
        if bytes < 1 << 20 || !bytes.is_multiple_of(1 << 20) {
            let up = Size(bytes.max(1).next_multiple_of(1 << 20));
            return Err(Failure::usage("--size", format!("{} is not a multiple of 1 MiB", args.size), format!("give {up}")));
        }
        let dir = ctx.dir_for(bytes * 2)?;
        let place = own_directory(&dir, bytes + bytes / 2)?;
        let failed = |e: std::io::Error| Failure::new(place.path().display(), e, "name another place with --dir");
        let workshop = Workshop::new(place.path().join("programs")).map_err(failed)?;
        let (mut ways, mut shares) = (once_each(&args.ways), once_each(&args.memory));
        let advice = match workshop.advice() {
            Ok(library) => library,
            Err(why) => {
                if ways.contains(&Way::Advised) {
                    ctx.notes.push(format!("No program was advised: {why}: install gcc."));
                    ways.retain(|way| *way != Way::Advised);
                }
                PathBuf::new()
            }
        };
        let limited = shares.iter().any(|share| *share != Share::All);
        let beside = BESIDE + bytes / TABLES;
        let limit = if limited { Limit::of(None, bytes / 8 + beside, |_| Ok(()))? } else { Limit::none() };
        if limited && limit.bytes().is_none() {
            ctx.notes.push("Only runs that have memory for all of the data were made: nothing can be limited here.".to_owned());
            shares = vec![Share::All];
        }
        let asked: Vec<_> = if args.programs.is_empty() { ALL.iter().collect() } else { args.programs.clone() };
        let (mut groups, mut tools, mut limits, mut settings) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
        let own = env::current_exe().map_err(failed)?;
        for program in asked {
            interrupt::check()?;
            let tool = match workshop.have(program) {
                Ok(tool) => tool,
                Err(why) => {
                    ctx.notes.push(format!("Left out: {why}."));
                    continue;
                }
            };
            for share in &shares {
                let memory = share.of(bytes).map(|part| part + (program.own_mib << 20) + beside);
                let arm = |&way: &Way| {
                    let engine = match way {
                        Way::Kernel => Engine::Mmap,
                        Way::Advised => Engine::MmapAdvised,
                        Way::Fastmap | Way::FastmapSized => Engine::Fastmap,
                    };
                    let order = Order {
                        program: program.name.to_owned(),
                        tool: tool.clone(),
                        way,
                        advice: Advice { library: advice.clone(), what: program.advice.to_owned() },
                        data: place.path().join("data"),
                        seconds: ctx.seconds,
                        warm_up: WarmUp { seconds: args.warm_up, bytes: share.of(bytes) },
                        fastmap: runner::fastmap(&own),
                        // A cache for all of the data has room to spare, for files beside the data proper.
                        cache: share.of(bytes).unwrap_or(bytes + bytes / 4) / PAGE as u64 * PAGE as u64,
                        stats: place.path().join("stats.json"),
                    };
                    Arm { name: way.to_string(), labels: vec![("way", json!(way))], ..Arm::of(engine, order) }
                };
                let labels = vec![
                    ("program", json!(program.name)),
                    ("memory", json!(share.name())),
                    ("memory_limit_bytes", json!(memory)),
                ];
                groups.push(Group::new(program.title, labels, ways.iter().map(arm).collect()));
                limits.push(memory);
                settings.push(share.name());
                tools.push((program, tool.clone()));
            }
        }
        if groups.is_empty() {
            return Err(Failure::told(format!("no program is there: {}", ctx.notes.join(" "))));
        }
        let warm_up = WarmUp { seconds: args.warm_up, bytes: None };
        let expected = 2.0 * ctx.seconds + warm_up.most();
        let within = Duration::from_secs_f64(args.at_most.unwrap_or(PATIENCE.0 * expected + PATIENCE.1));
        let stage = Box::new(Runs { place, bytes, tools, limits, settings, warm_up, within, made: None, checks: Checks::default() });
        let (place, file) = (dir.clone(), format!("temporary directory in {}", dir.display()));
        Ok(Plan { about: "real programs".to_owned(), place, file, bytes, limit, groups, until_steady: None, stage })
    }

    fn run(case: &Order, meter: &Meter) -> substrates::Result<Vec<Part<Outcome>>> {
        let programs::Ran { readings: [cold, warm], sums, warmed } = programs::run(case, meter)?;
        let warmed = Outcome { warm_up_seconds: Some(warmed.0), warm_up_read_bytes: warmed.1, sums, ..Outcome::default() };
        let part = |name: &str, reading, outcome| Part { name: name.to_owned(), reading, outcome };
        Ok(vec![part(COLD, cold, Outcome::default()), part(WARM, warm, warmed)])
    }

    fn work(row: &Row<Outcome>) -> Option<String> {
        Some(format!("{}, memory for {}", row.what, row.part))
    }

    fn way(row: &Row<Outcome>) -> Option<&'static str> {
        match row.text("way") {
            "fastmap" => Some("fastmap run"),
            "fastmap-sized" => Some("engine"),
            _ => None,
        }
    }

    fn claims() -> Vec<Claim<Outcome>> {
        // The headlines are about all programs together. See `together`.
        Vec::new()
    }

    fn summary(rows: &[Row<Outcome>]) -> String {
        together::table(rows)
    }
}

/// The data of one program at a time, and the answers so far.
struct Runs {
    place: TempDir,
    bytes: u64,
    /// For each group: its program, its memory limit, and the name of its share of memory.
    tools: Vec<(&'static Program, Tool)>,
    limits: Vec<Option<u64>>,
    settings: Vec<&'static str>,
    warm_up: WarmUp,
    /// The time after which a run is killed.
    within: Duration,
    /// The program whose data are in the folder.
    made: Option<&'static str>,
    checks: Checks,
}

impl Runs {
    /// Makes the program's data, in place of the data of the program before.
    fn make(&mut self, program: &Program, tool: &Tool) -> Result<(), Failure> {
        let data = self.place.path().join("data");
        let failed = |e: String| {
            let what = format!("its data cannot be made: {e}");
            Failure::new(program.name, what, "make room, name another place with --dir, or leave it out with --programs")
        };
        let io = |e: std::io::Error| failed(e.to_string());
        if data.exists() {
            fs::remove_dir_all(&data).map_err(io)?;
        }
        fs::create_dir(&data).map_err(io)?;
        let bar = progress_bar(1, "making data, {elapsed}");
        bar.enable_steady_tick(std::time::Duration::from_secs(1));
        programs::make(tool, &data, self.bytes, || !interrupt::requested())
            .map_err(|e| interrupt::check().err().unwrap_or_else(|| failed(e)))?;
        fs::File::open(&data).and_then(|data| cold::write_back_all(&data)).map_err(io)?;
        bar.finish_and_clear();
        self.checks = Checks::default();
        Ok(())
    }
}

impl Stage<Programs> for Runs {
    fn before(&mut self, turn: &Turn<'_, Programs>, case: &mut Order) -> Result<Launch, Failure> {
        let (program, tool) = self.tools[turn.at.0].clone();
        if self.made != Some(program.name) {
            self.make(program, &tool)?;
            self.made = Some(program.name);
        }
        // A run may have made more files.
        let left = cold::drop_all(&cold::files(&case.data)?).map_err(|e| Failure::new(self.place.path().display(), e, "check the device"))?;
        if left > 0 {
            eprintln!("fastmap: {left} pages of {}'s data stay in the page cache, and favour the kernel", program.name);
        }
        let _ = fs::remove_file(&case.stats);
        let memory = self.limits[turn.at.0];
        Ok(Launch { memory, unlimited: memory.is_none(), within: Some(self.within), ..Launch::default() })
    }

    fn after(&mut self, turn: &Turn<'_, Programs>, case: &Order, parts: &mut Vec<Part<Outcome>>) -> Result<(), Failure> {
        // The sums of both parts come together, with the last part.
        let sums = parts.iter_mut().flat_map(|part| std::mem::take(&mut part.outcome.sums)).collect();
        let compared = self.checks.check(case, turn.repetition, sums)?;
        let served: Option<Served> =
            fs::read(&case.stats).ok().filter(|_| case.way.is_fastmap()).and_then(|text| serde_json::from_slice(&text).ok());
        for (part, name) in parts.iter_mut().zip(self.parts(turn)) {
            (part.outcome.compared, part.outcome.served, part.name) = (compared, served.clone(), name);
        }
        Ok(())
    }

    fn parts(&self, turn: &Turn<'_, Programs>) -> Vec<String> {
        [COLD, WARM].map(|temperature| format!("{}, {temperature}", self.settings[turn.at.0])).into()
    }

    fn tell(&mut self, rows: &[Row<Outcome>], report: &mut Report<Value>) {
        let ours = |row: &&Row<Outcome>| row.text("way") == Way::FastmapSized.to_string();
        let served = |row: &Row<Outcome>| {
            let caches = |t: &Trial<Outcome>| t.outcome.served.as_ref().is_some_and(|s| s.caches.iter().any(|c| c.misses > 0));
            row.trials.iter().any(caches)
        };
        let programs = distinct(rows.iter().filter(ours).map(|row| row.text("program")));
        let unserved: Vec<&str> =
            programs.into_iter().filter(|program| !rows.iter().any(|row| row.text("program") == *program && served(row))).collect();
        if !unserved.is_empty() {
            let what = "With a cache all maps were the kernel's all the same, of";
            report.notes.push(format!("{what}: {}.", unserved.join(", ")));
        }
        report.notes.push(self.warmed(rows));
        let allowances = distinct(self.tools.iter().map(|(program, _)| format!("{} {} MiB", program.name, program.own_mib)));
        report.notes.push(format!(
            "Memory of a run is the part of the data that is named, {} for the worker, code and bookkeeping, and for the program itself: {}. \
             `fastmap-sized` has a cache of the part of the data; with all in memory there is no limit.",
            Size(BESIDE + self.bytes / TABLES),
            allowances.join(", ")
        ));
        report.headlines.extend(together::headlines(rows));
        report.figures.splice(0..0, together::figures(rows));
    }
}

impl Runs {
    /// A note that says what warm means, and which runs did not get warm.
    fn warmed(&self, rows: &[Row<Outcome>]) -> String {
        let WarmUp { seconds, .. } = self.warm_up;
        let most = self.warm_up.most();
        let took = rows.iter().flat_map(|row| &row.trials).filter_map(|trial| trial.outcome.warm_up_seconds);
        let longest = took.fold(0.0, f64::max);
        let early = rows.iter().filter(|row| {
            let memory = SHARES.iter().find(|share| share.name() == row.text("memory")).and_then(|share| share.of(self.bytes));
            let read = row.trials.iter().filter_map(|trial| trial.outcome.warm_up_read_bytes).min();
            read.zip(memory).is_some_and(|(read, memory)| read < memory)
        });
        let early = distinct(early.map(|row| format!("{} {} ({})", row.text("program"), row.part, row.name)));
        let early = match early.is_empty() {
            true => "all came to that".to_owned(),
            false => format!("not so far came {}", early.join(", ")),
        };
        format!(
            "Cold is from the start of a process. Warm is the same process later: after {seconds} s or more of the same work, in which `fastmap \
             run` finds out what pays, and when as much has been read as there is memory for the data, at most {most} s (the longest: \
             {longest:.1} s; {early})."
        )
    }
}

/// The sums of the current program, from the run that got farthest.
#[derive(Default)]
struct Checks {
    sums: Vec<String>,
}

impl Checks {
    /// Compares a run's sums with those of the runs before. Returns the number of batches that were compared.
    fn check(&mut self, case: &Order, repetition: u32, sums: Vec<String>) -> Result<usize, Failure> {
        if let Some(what) = difference(&self.sums, &sums) {
            let thing = format!("{}, {}, repetition {repetition}", case.program, case.way);
            let what = format!("it read other data than the runs before: {what}");
            return Err(Failure::new(thing, what, "this is an error in fastmap or in the program: please report it"));
        }
        let compared = self.sums.len().min(sums.len());
        if sums.len() > self.sums.len() {
            self.sums = sums;
        }
        Ok(compared)
    }
}

fn program(name: &str) -> Result<&'static Program, String> {
    let known = || ALL.iter().map(|program| program.name).collect::<Vec<_>>().join(", ");
    named(name).ok_or_else(|| format!("\"{name}\" is not a program here: choose from {}", known()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn order(way: Way) -> Order {
        Order {
            program: "lmdb".to_owned(),
            tool: Tool::Ours(Vec::new()),
            way,
            advice: Advice { library: PathBuf::new(), what: String::new() },
            data: PathBuf::new(),
            seconds: 1.0,
            warm_up: WarmUp { seconds: 1.0, bytes: None },
            fastmap: PathBuf::new(),
            cache: 0,
            stats: PathBuf::new(),
        }
    }

    #[test]
    fn an_answer_that_differs_fails() {
        let sums = |text: &str| text.split(' ').map(str::to_owned).collect::<Vec<_>>();
        let mut checks = Checks::default();
        assert_eq!(checks.check(&order(Way::Kernel), 1, sums("a b")).unwrap(), 0);
        assert_eq!(checks.check(&order(Way::Advised), 1, sums("a b c d")).unwrap(), 2);
        assert_eq!(checks.check(&order(Way::Fastmap), 1, sums("a")).unwrap(), 1);
        let why = checks.check(&order(Way::Fastmap), 2, sums("a b c e")).unwrap_err().to_string();
        let said = "lmdb, fastmap, repetition 2: it read other data than the runs before: batch 3 has the sum e where d belongs";
        assert!(why.starts_with(said), "{why}");
    }
}
