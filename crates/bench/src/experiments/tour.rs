//! `fastmap bench`: the tour, about two minutes, nothing to set up.

use std::time::{Duration, Instant};

use clap::Args as ClapArgs;
use fastmap_cli::cgroup::{Controller, REMEDY};
use fastmap_cli::failure::Failure;
use fastmap_cli::size::Size;
use fastmap_cli::table::{figure, render};
use serde_json::json;

use super::micro::{PAGES, VERIFIED};
use crate::driver::Ctx;
use crate::experiment::{
    ANY_FASTMAP, Arm, Claim, Column, Experiment, Flags, Group, Launch, MMAP, Nothing, Over, Part, Plan, Plot, Row, Stage,
    TEMPORARY, Turn,
};
use crate::results::{Kind, median};
use crate::runner::Limit;
use crate::substrates::{self, Engine, Meter, Op, Pattern, Reading, Spec, prepare};
use crate::target::Target;

const FILE: Size = Size(512 << 20);
const MEMORY: u64 = 128 << 20;
const REPETITIONS: u32 = 3;

/// A kernel way that does less than this share of the best one in the first repetition is run no more: it will not be the best.
const HOPELESS: f64 = 0.5;

/// What the whole tour should take, preparation included.
const WHOLE: Duration = Duration::from_secs(120);

/// Shortest and longest measurement of a run, seconds, whatever the machine.
const SECONDS: (f64, f64) = (0.3, 4.0);

/// Measure FastMap beside kernel mmap: a tour of about two minutes, or one experiment in detail (`bench micro`)
#[derive(Debug, ClapArgs)]
#[command(long_about = "\
Measure FastMap beside kernel mmap.

Without a subcommand: the tour. It makes a temporary file of 512 MiB, allows every engine 128 MiB of memory, and runs ten \
loads three times over with kernel mmap in every way that can suit them (advice; where the program knows its next pages, \
MADV_WILLNEED, MADV_POPULATE_READ and posix_fadvise) and FastMap (also with prefetch and with pins). Each run begins to measure \
when memory is full and all in it has been replaced once, and stores count when they are flushed. A kernel way that is far from the \
best in the first repetition runs once. It needs nothing set up and takes about two minutes. As root (or where the user may make memory cgroups) every run is \
limited by a cgroup of its own; otherwise nothing limits kernel mmap, and the tour says so. It ends with a page to look at, as \
`fastmap report` makes it.")]
#[command(after_help = "\
Examples:
  fastmap bench
  fastmap bench --dir /mnt/disk --json tour.json
  fastmap bench --dir /mnt/fastmap-fast      on a fast device, which scripts/fast-device makes of memory, as root
  systemd-run --user --scope -p Delegate=yes fastmap bench     limits without being root")]
pub struct Args {}

/// The experiment.
pub struct Tour;

/// One line of the tour: its name, order, what is done, by how many threads, and who does it.
type Work = (&'static str, Pattern, Op, u32, Vec<Engine>);

/// The lines; with one processor, one of them is the same twice and left out.
fn works() -> Vec<Work> {
    use Engine::{Fastmap, FastmapPin, FastmapPrefetch, Mmap, MmapFadvise, MmapPopulate, MmapRandom, MmapSequential, MmapWillneed};
    let two = std::thread::available_parallelism().map_or(1, usize::from).min(2) as u32;
    let known = [MmapWillneed, MmapPopulate, MmapFadvise, FastmapPrefetch];
    let walk = |advised| [&[Mmap, advised, Fastmap][..], &known].concat();
    let plain = || vec![Mmap, MmapRandom, Fastmap];
    let mut works = vec![
        ("fill a new file", Pattern::Fill, Op::Write, 1, vec![Mmap, MmapSequential, Fastmap]),
        ("random read", Pattern::Random, Op::Read, 1, plain()),
        ("random read, known ahead", Pattern::Random, Op::Read, 1, known.to_vec()),
        ("random read", Pattern::Random, Op::Read, 2, vec![MmapRandom, Fastmap, FastmapPin]),
        ("skewed read (zipf)", Pattern::Zipf, Op::Read, two, plain()),
        ("random write", Pattern::Random, Op::Write, two, plain()),
        ("random read-modify-write", Pattern::Random, Op::Rmw, two, plain()),
        ("forward scan", Pattern::Forward, Op::Read, 1, walk(MmapSequential)),
        ("backward scan", Pattern::Backward, Op::Read, 1, walk(MmapRandom)),
        ("every 16th page", Pattern::Stride, Op::Read, 1, walk(MmapRandom)),
    ];
    works.retain(|(_, _, _, threads, _)| *threads <= two);
    works
}

impl Experiment for Tour {
    const NAME: &'static str = "tour";
    type Args = Args;
    type Case = Spec;
    type Outcome = Nothing;
    const FLAGS: Flags = Flags { repeat: "3", seconds: None, memory: None, dir: Some(TEMPORARY), page: true };
    const COLUMNS: &'static [Column<Nothing>] = PAGES;
    const PLOTS: &'static [Plot<Nothing>] = &[
        Plot::new("Throughput", &["ops_per_s"], Kind::Bars, Over::Groups).log(),
        Plot::new("Median latency", &["latency_us.p50"], Kind::Bars, Over::Groups).log(),
        Plot::new("Latency of one operation in a thousand", &["latency_us.p999"], Kind::Bars, Over::Groups).log(),
        Plot::new("Processor time", &["cpu_ns_per_byte"], Kind::Bars, Over::Groups).log(),
    ];
    const VERIFIED: &'static str = VERIFIED;

    fn plan(_: &Args, ctx: &mut Ctx) -> Result<Plan<Tour>, Failure> {
        let begun = Instant::now();
        let limit = match Controller::find() {
            Ok(controller) => Limit::new(controller, MEMORY),
            Err(why) => {
                ctx.notes.push(format!(
                    "NO LIMIT on memory: no memory cgroup can be made ({why}), so kernel mmap may keep the whole file while FastMap's \
                     cache is {}. The comparison favours mmap; for a fair one {REMEDY}.",
                    Size(FILE.0 / 4)
                ));
                Limit::none()
            }
        };
        ctx.notes.push(
            "Runs are short and the file is small, so that the whole takes two minutes: `fastmap bench micro` measures one load at \
             length, `fastmap bench peers` what people use beside mmap."
                .to_owned(),
        );
        let target = Target::temporary(&ctx.dir_for(FILE.0), FILE, prepare::stamp_page)?;
        let group = |(name, pattern, op, threads, engines): Work| {
            let arm = |engine| Arm::of(engine, target.spec(engine, pattern, op, threads, limit.bytes(), 0.0));
            let labels = vec![
                ("work", json!(name)),
                ("pattern", json!(pattern.name())),
                ("op", json!(op.name())),
                ("threads", json!(threads)),
            ];
            Group::new(name, labels, engines.into_iter().map(arm).collect())
        };
        let groups: Vec<Group<Spec>> = works().into_iter().map(group).collect();
        let runs: usize = groups.iter().map(|group| group.arms.len()).sum();
        let share = WHOLE / groups.len() as u32;
        let pace = Pace { begun, runs_left: runs as u32 * ctx.repeat, overhead: 0.7 };
        Ok(Plan {
            about: String::new(),
            place: target.place.clone(),
            file: target.label.clone(),
            bytes: FILE.0,
            limit,
            groups,
            stage: Box::new(Walk { target, pace, share, of: (0, Instant::now()), one_is_enough: false, seconds: 0.0, begun: Instant::now() }),
        })
    }

    fn run(case: &Spec, meter: &Meter) -> substrates::Result<Vec<Part<Nothing>>> {
        Ok(Part::whole(substrates::run(case, meter)?, Nothing {}))
    }

    fn claims() -> Vec<Claim<Nothing>> {
        vec![Claim::new("ops_per_s").between(ANY_FASTMAP, MMAP)]
    }

    fn summary(rows: &[Row<Nothing>]) -> String {
        format!("\nWhat a user gains: the best way through FastMap beside the best of the kernel's\n\n{}", gains(rows))
    }
}

/// Line by line: throughput, the time of the slowest of a thousand operations, processor time of an operation, memory.
fn gains(rows: &[Row<Nothing>]) -> String {
    let middle = |row: &Row<Nothing>, of: fn(&Reading) -> f64| median(row.trials.iter().map(|t| of(&t.reading)).collect());
    let rate = |row: &&Row<Nothing>| middle(row, |reading| reading.ops_per_s);
    let lines = rows.chunk_by(|a, b| a.group == b.group).filter_map(|group| {
        let of = |ours: bool| {
            let those = group.iter().filter(move |row| row.engine.is_fastmap() == ours);
            those.max_by(|a, b| rate(a).total_cmp(&rate(b)))
        };
        let (ours, theirs) = (of(true)?, of(false)?);
        let both = |of: fn(&Reading) -> f64| format!("{} ({})", figure(middle(ours, of)), figure(middle(theirs, of)));
        Some(vec![
            group[0].what.clone(),
            format!("{} ({})", ours.name, theirs.name),
            format!("{:.2}", rate(&ours) / rate(&theirs)),
            both(|reading| reading.latency_us.map_or(0.0, |latency| latency.p999)),
            both(|reading| reading.cpu_us_per_op),
            both(|reading| reading.peak_rss_bytes as f64 / f64::from(1 << 20)),
        ])
    });
    render(
        &["work", "FastMap (kernel)", "x throughput", "p99.9 us", "CPU us/op", "peak MiB"],
        &lines.collect::<Vec<Vec<String>>>(),
    )
}

/// Whether the arm is a kernel way that the first repetition showed to be far from the best.
fn is_hopeless(turn: &Turn<'_, Tour>) -> bool {
    let first = |row: &Row<Nothing>| row.trials.first().map_or(0.0, |trial| trial.reading.ops_per_s);
    let kernel = || turn.group().filter(|row| row.engine.is_mmap());
    let best = kernel().map(first).fold(0.0, f64::max);
    kernel().any(|row| row.arm == turn.at.1 && first(row) < HOPELESS * best)
}

/// The file, and the time that is left.
struct Walk {
    target: Target,
    pace: Pace,
    /// What a line may take.
    share: Duration,
    /// The line at work, and when it began.
    of: (usize, Instant),
    one_is_enough: bool,
    seconds: f64,
    begun: Instant,
}

impl Stage<Tour> for Walk {
    fn before(&mut self, turn: &Turn<'_, Tour>, case: &mut Spec) -> Result<Launch, Failure> {
        if turn.at.0 != self.of.0 {
            self.of = (turn.at.0, Instant::now());
        }
        // Where 1 GiB takes long to write and to read back, no choice of seconds keeps the tour short: that line has one repetition.
        if turn.repetition == 2 && turn.at.1 == 0 {
            self.one_is_enough = self.of.1.elapsed() * REPETITIONS > self.share * 2;
        }
        if turn.repetition > 1 && (self.one_is_enough || is_hopeless(turn)) {
            self.pace.runs_left = self.pace.runs_left.saturating_sub(1);
            return Ok(Launch { skip: true, ..Launch::default() });
        }
        if turn.at.1 == 0 {
            self.seconds = self.pace.seconds();
        }
        case.seconds = self.seconds;
        self.begun = Instant::now();
        self.target.ready(case)
    }

    fn after(&mut self, _: &Turn<'_, Tour>, case: &Spec, _: &mut Vec<Part<Nothing>>) -> Result<(), Failure> {
        self.pace.ran(self.begun.elapsed().as_secs_f64(), case.seconds);
        Ok(())
    }
}

/// Shares out what is left of the tour's time.
struct Pace {
    begun: Instant,
    runs_left: u32,
    /// What a run takes beside measuring, seconds: starting, warming up, flushing, reading back. A moving average.
    overhead: f64,
}

impl Pace {
    /// Seconds to measure each of the next runs.
    fn seconds(&self) -> f64 {
        let left = WHOLE.saturating_sub(self.begun.elapsed()).as_secs_f64();
        (left / f64::from(self.runs_left.max(1)) - self.overhead).clamp(SECONDS.0, SECONDS.1)
    }

    fn ran(&mut self, took: f64, seconds: f64) {
        self.runs_left = self.runs_left.saturating_sub(1);
        self.overhead = 0.8 * self.overhead + 0.2 * (took - seconds).max(0.0);
    }
}
