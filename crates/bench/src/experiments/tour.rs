//! `fastmap bench`: the tour, about two minutes, nothing to set up.

use std::path::Path;
use std::time::{Duration, Instant};

use clap::Args as ClapArgs;
use fastmap_cli::cgroup::{Controller, REMEDY};
use fastmap_cli::failure::Failure;
use fastmap_cli::interrupt;
use fastmap_cli::machine::FileSystem;
use fastmap_cli::size::Size;
use fastmap_cli::table::{figure, render};
use serde_json::json;

use super::micro::{PAGES, VERIFIED};
use crate::driver::Ctx;
use crate::experiment::{
    ANY_FASTMAP, Arm, Claim, Column, Experiment, Flags, Group, Launch, MMAP, Nothing, Over, Part, Plan, Plot, Row, Stage,
    TEMPORARY, Turn,
};
use crate::fast::FastDevice;
use crate::results::{Kind, median};
use crate::runner::Limit;
use crate::substrates::{self, Engine, Meter, Op, Pattern, Reading, Spec, prepare};
use crate::target::Target;

const FILE: Size = Size(512 << 20);
const MEMORY: u64 = 128 << 20;
const REPETITIONS: u32 = 3;

/// How the place is called that is no disk.
const FAST_DEVICE: &str = "fast device";

/// What the file takes on a fast device, its file system included.
const FAST: u64 = 640 << 20;

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
best in the first repetition runs once. As root it measures six of the loads on a fast device, too: ext4 on zram, compressed memory behind \
the block layer, which it makes (of 640 MiB, mounted nowhere) and which is gone when it ends, however it ends; without root or zram it \
says why not. It needs nothing set up and takes about two minutes. As root (or where the user may make memory cgroups) every run is \
limited by a cgroup of its own; otherwise nothing limits kernel mmap, and the tour says so.")]
#[command(after_help = "\
Examples:
  fastmap bench
  fastmap bench --dir /mnt/disk --json tour.json
  fastmap bench --dir /mnt/fastmap-fast      all of it on a fast device, which scripts/fast-device makes of memory, as root
  systemd-run --user --scope -p Delegate=yes fastmap bench     limits without being root")]
pub struct Args {}

/// The experiment.
pub struct Tour;

/// One line of the tour: its name, order, what is done, by how many threads, and who does it.
type Work = (&'static str, Pattern, Op, u32, Vec<Engine>);

/// Two threads, if there are processors for them.
fn two() -> u32 {
    std::thread::available_parallelism().map_or(1, usize::from).min(2) as u32
}

/// The lines; with one processor, one of them is the same twice and left out.
fn works() -> Vec<Work> {
    use Engine::{Fastmap, FastmapPin, FastmapPrefetch, Mmap, MmapFadvise, MmapPopulate, MmapRandom, MmapSequential, MmapWillneed};
    let two = two();
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

/// The lines on a fast device, which does not hide what the software costs. Of the kernel's ways those that were the best of some line
/// there: to be told what comes next gains nothing where there is hardly a wait to hide, and without advice random reads are read around
/// in vain.
fn fast_works() -> Vec<Work> {
    use Engine::{Fastmap, Mmap, MmapRandom, MmapSequential};
    let two = two();
    let plain = || vec![MmapRandom, Fastmap];
    let walk = |advised| vec![Mmap, advised, Fastmap];
    let mut works = vec![
        ("random read", Pattern::Random, Op::Read, 1, plain()),
        ("random read", Pattern::Random, Op::Read, 2, plain()),
        ("random write", Pattern::Random, Op::Write, two, plain()),
        ("forward scan", Pattern::Forward, Op::Read, 1, walk(MmapSequential)),
        ("backward scan", Pattern::Backward, Op::Read, 1, walk(MmapRandom)),
        ("every 16th page", Pattern::Stride, Op::Read, 1, walk(MmapRandom)),
    ];
    works.retain(|(_, _, _, threads, _)| *threads <= two);
    works
}

/// Where the lines are measured.
struct Place {
    /// In the JSON, and before a line's name if it is the fast device.
    name: &'static str,
    works: Vec<Work>,
    target: Target,
    /// Under the target, if it was made for this.
    _device: Option<FastDevice>,
}

/// The fast device with the file; none where the tour is on one already, or where there can be none, which is noted.
fn fast_place(dir: &Path, notes: &mut Vec<String>) -> Result<Option<Place>, Failure> {
    if FileSystem::of(dir).device.starts_with("/dev/zram") {
        return Ok(None);
    }
    let mut not = |why: String| notes.push(format!("Not measured on a fast device (ext4 on zram): {why}."));
    let device = match FastDevice::make(FAST) {
        Ok(device) => device,
        Err(why) => {
            not(why);
            return Ok(None);
        }
    };
    let target = match Target::temporary(&device.root, FILE, prepare::stamp_page) {
        Ok(target) => target,
        Err(failure) if interrupt::requested() => return Err(failure),
        Err(failure) => {
            not(failure.to_string());
            return Ok(None);
        }
    };
    let target = Target { label: format!("temporary file on a {FAST_DEVICE}"), ..target };
    Ok(Some(Place { name: FAST_DEVICE, works: fast_works(), target, _device: Some(device) }))
}

impl Experiment for Tour {
    const NAME: &'static str = "tour";
    type Args = Args;
    type Case = Spec;
    type Outcome = Nothing;
    const FLAGS: Flags = Flags { repeat: "3", seconds: None, memory: None, dir: Some(TEMPORARY) };
    const COLUMNS: &'static [Column<Nothing>] = PAGES;
    const PLOTS: &'static [Plot<Nothing>] = &[
        Plot::new("Throughput", &["ops_per_s"], Kind::Bars, Over::Groups).log().of(is_here),
        Plot::new("Median latency", &["latency_us.p50"], Kind::Bars, Over::Groups).log().of(is_here),
        Plot::new("Latency of one operation in a thousand", &["latency_us.p999"], Kind::Bars, Over::Groups).log().of(is_here),
        Plot::new("Processor time", &["cpu_ns_per_byte"], Kind::Bars, Over::Groups).log().of(is_here),
        Plot::new("Throughput on a fast device", &["ops_per_s"], Kind::Bars, Over::Groups).log().of(is_fast),
        Plot::new("Latency of one operation in a thousand on a fast device", &["latency_us.p999"], Kind::Bars, Over::Groups)
            .log()
            .of(is_fast),
        Plot::new("Processor time on a fast device", &["cpu_ns_per_byte"], Kind::Bars, Over::Groups).log().of(is_fast),
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
        let dir = ctx.dir_for(FILE.0);
        let fast = fast_place(&dir, &mut ctx.notes)?;
        let target = Target::temporary(&dir, FILE, prepare::stamp_page)?;
        let (place, file) = (target.place.clone(), target.label.clone());
        let here = Place { name: "here", works: works(), target, _device: None };
        let places: Vec<Place> = [here].into_iter().chain(fast).collect();
        let group = |at: &Place, &(name, pattern, op, threads, ref engines): &Work| {
            let arm = |&engine: &Engine| Arm::of(engine, at.target.spec(engine, pattern, op, threads, limit.bytes(), 0.0));
            let labels = vec![
                ("place", json!(at.name)),
                ("work", json!(name)),
                ("pattern", json!(pattern.name())),
                ("op", json!(op.name())),
                ("threads", json!(threads)),
            ];
            let what = if at.name == FAST_DEVICE { format!("{FAST_DEVICE}: {name}") } else { name.to_owned() };
            Group::new(what, labels, engines.iter().map(arm).collect())
        };
        let groups: Vec<Group<Spec>> = places.iter().flat_map(|at| at.works.iter().map(move |work| group(at, work))).collect();
        let runs: usize = groups.iter().map(|group| group.arms.len()).sum();
        let share = WHOLE / runs as u32;
        let pace = Pace { begun, runs_left: runs as u32 * ctx.repeat, overhead: 0.7 };
        Ok(Plan {
            about: String::new(),
            place,
            file,
            bytes: FILE.0,
            limit,
            groups,
            stage: Box::new(Walk { places, pace, share, of: (0, Instant::now()), one_is_enough: false, seconds: 0.0, begun: Instant::now() }),
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

fn is_fast(row: &Row<Nothing>) -> bool {
    row.text("place") == FAST_DEVICE
}

fn is_here(row: &Row<Nothing>) -> bool {
    !is_fast(row)
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
            both(|reading| reading.ops_per_s / 1e3),
            both(|reading| reading.latency_us.map_or(0.0, |latency| latency.p999)),
            both(|reading| reading.cpu_us_per_op),
            both(|reading| reading.peak_rss_bytes as f64 / f64::from(1 << 20)),
        ])
    });
    render(
        &["work", "FastMap (kernel)", "x throughput", "kops/s", "p99.9 us", "CPU us/op", "peak MiB"],
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

/// The files, and the time that is left.
struct Walk {
    places: Vec<Place>,
    pace: Pace,
    /// What each arm of a line may take.
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
            let arms = turn.group().count() as u32;
            self.one_is_enough = self.of.1.elapsed() * REPETITIONS > self.share * arms * 3;
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
        let place = self.places.iter().find(|place| place.target.path == case.path);
        place.map_or_else(|| Ok(Launch::default()), |place| place.target.ready(case))
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::experiment::Trial;
    use crate::substrates::LatencyUs;

    fn row(engine: Engine, ops_per_s: f64, p999: f64, cpu_us_per_op: f64, mib: u64) -> Row<Nothing> {
        let latency_us = Some(LatencyUs { p999, ..LatencyUs::default() });
        let reading = Reading { ops_per_s, latency_us, cpu_us_per_op, peak_rss_bytes: mib << 20, ..Reading::default() };
        Row {
            group: 0,
            arm: 0,
            part: String::new(),
            nth: 0,
            what: "random read, 1 thread".to_owned(),
            engine,
            name: engine.to_string(),
            labels: Vec::new(),
            trial: false,
            trials: vec![Trial { repetition: 1, reading, outcome: Nothing {} }],
            late: Vec::new(),
        }
    }

    #[test]
    fn what_a_user_gains_is_the_best_beside_the_best_in_rate_latency_processor_time_and_memory() {
        let table = gains(&[
            row(Engine::Mmap, 10_000.0, 900.0, 9.0, 64),
            row(Engine::MmapRandom, 20_000.0, 400.0, 8.0, 127),
            row(Engine::Fastmap, 30_000.0, 200.0, 5.0, 125),
            row(Engine::FastmapPin, 25_000.0, 100.0, 4.0, 120),
        ]);
        let line = table.lines().last().unwrap().split_whitespace().collect::<Vec<_>>().join(" ");
        assert_eq!(
            line,
            "random read, 1 thread fastmap (mmap-random) 1.50 30.0 (20.0) 200 (400) 5.00 (8.00) 125 (127)",
            "{table}"
        );
        let heading: Vec<&str> = table.lines().next().unwrap().split("  ").map(str::trim).filter(|s| !s.is_empty()).collect();
        assert_eq!(heading, ["work", "FastMap (kernel)", "x throughput", "kops/s", "p99.9 us", "CPU us/op", "peak MiB"]);
    }

    #[test]
    fn every_line_has_fastmap_beside_the_kernel() {
        for (name, _, _, _, engines) in works().into_iter().chain(fast_works()) {
            let ours = engines.iter().filter(|engine| engine.is_fastmap()).count();
            let theirs = engines.iter().filter(|engine| engine.is_mmap()).count();
            assert!(ours > 0 && theirs > 0, "{name}");
        }
    }
}
