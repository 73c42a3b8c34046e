//! `fastmap bench scale`: random page faults over the number of threads.


use clap::Args as ClapArgs;
use fastmap_cli::failure::Failure;
use fastmap_cli::size::Size;
use serde_json::{Value, json};

use crate::args::{once_each, one_of, threads};
use crate::driver::Ctx;
use crate::experiment::columns::{cpu, p50, p99, peak, queue, rate, times_mmap};
use crate::experiment::{
    Arm, Claim, Column, Experiment, Flags, Group, Labels, Launch, Of, Over, Paper, Part, Plan, Plot, Row, Stage, TEMPORARY, Turn,
};
use crate::results::{Kind, Report};
use crate::runner::Limit;
use crate::substrates::faults::{self, Order, Outcome, Room, memory_for_all};
use crate::substrates::{self, Advice, Engine, Meter, Op, PAGE, Pattern, Spec, capacity_for, least_memory, prepare};
use crate::target::{Target, enough_for, length_for};

/// Page faults per operation that a trial must have at least. With fewer, the trial has not measured page faults.
const FAULTS: f64 = 0.9;

/// Measure random page faults, reads and writes, over the number of threads
#[derive(Debug, ClapArgs)]
#[command(long_about = "\
Measure random page faults, reads and writes, over the number of threads; after the FastMap paper, figures 1, 4 and 8(c).

Every operation loads from, or stores to, a page that is not in memory. Pages come in a scattered order, each once before any comes again. \
There are two cases. In memory: the data fit and begin cold. A run ends when each page was touched, or after --seconds. Out of memory: a run may \
use --memory. Memory is full when the measurement of --seconds begins, so every fault evicts a page. The page faults are counted, since some \
operations may not fault.

There are two files. One is on --storage. The other is one hole and needs no device. A fault there gives a page of zeros, so only the software is \
measured, as over the paper's null_blk. The hole is only read, since stores need blocks.

Kernel mmap and FastMap take turns. FastMap is advised that the order is random. Every run is a fresh process in a memory cgroup of its own, and \
begins with a cold file. Trial runs decide which kernel mmap is measured against FastMap: mmap without advice, or with MADV_RANDOM. Each has two \
trial runs, at the number of threads nearest to the number of processors, and counts by the slower one. The faster one is measured, among those \
of which at least nine of ten operations are page faults. The trial runs of the other one are shown as well.")]
#[command(after_help = "\
Figures are medians over the repetitions. Efficiency: the rate per thread, divided by the rate per thread at the first number of threads. Threads \
beyond the number of processors do not count. Efficiency may exceed 1 where threads wait for a device. Queue depth: reads and writes at the device, \
averaged over the window. The requests of other programs count, too, so leave the device alone meanwhile.

Every operation checks its page's stamp (zeros in the hole). After each run that stores, the whole file is read back and every byte is checked.

Examples:
  fastmap bench scale
  fastmap bench scale --storage fast --json scale.json
  fastmap bench scale --threads 1,2,4,8,16,32,64 --size 64GiB --memory 4GiB --seconds 10 --dir /mnt/nvme")]
pub struct Args {
    /// Numbers of threads, all on one map, separated by commas
    #[arg(long, value_name = "LIST", value_delimiter = ',', default_value = "1,2,4,16", value_parser = threads)]
    pub threads: Vec<u32>,
    /// Engines to compare, separated by commas: mmap, mmap-random (MADV_RANDOM), fastmap
    #[arg(
        long,
        value_name = "LIST",
        value_delimiter = ',',
        default_value = "mmap,mmap-random,fastmap",
        value_parser = one_of(ENGINES)
    )]
    pub engines: Vec<Engine>,
    /// Size of the file, a multiple of 4096
    #[arg(long, default_value = "512MiB")]
    pub size: Size,
}

/// The experiment.
pub struct Scale;

impl Experiment for Scale {
    const NAME: &'static str = "scale";
    type Args = Args;
    type Case = Order;
    type Outcome = Outcome;
    const FLAGS: Flags = Flags { repeat: "3", seconds: Some(("0.5", "Seconds to measure each run")), ..FAULTING };
    const COLUMNS: &'static [Column<Outcome>] = &[
        rate(),
        times_mmap(),
        Column::from("efficiency", "effic.", "share of the first rate by thread", Of::Rows(efficiency)),
        Column::new("faults_per_op", "faults/op", "page faults an operation", |t| Some(t.outcome.faults_per_op)),
        queue(),
        cpu(),
        p50(),
        p99(),
        peak(),
        Column::new("filled", "", "memory was full when the measurement began", |t| Some(f64::from(u8::from(t.outcome.filled)))),
    ];
    const PLOTS: &'static [Plot<Outcome>] = &[
        Plot::new("Page faults", &["ops_per_s"], Kind::Lines, Over::Label("threads")).after(
            "FastMap, USENIX ATC '20, figures 1 and 4: over null_blk and 32 threads FastMap does 3.7 times the random reads of mmap and 6.6 \
             times the writes, with 80 threads 4.7 and 7 times; mmap does not scale beyond 8 threads",
        ),
        Plot::new("Efficiency", &["efficiency"], Kind::Lines, Over::Label("threads"))
            .after("FastMap, USENIX ATC '20, figure 1, read as efficiency"),
        Plot::new("Device queue depth", &["device.average_queue_depth"], Kind::Lines, Over::Label("threads"))
            .after("FastMap, USENIX ATC '20, figure 8(c): with 32 threads 39.2 (FastMap) and 17.5 (mmap) in Load A, 13 and 3 in Run C"),
    ];
    const VERIFIED: &'static str = VERIFIED;

    fn plan(args: &Args, ctx: &mut Ctx) -> Result<Plan<Scale>, Failure> {
        let numbers = once_each(&args.threads);
        let faulting = Faulting::plan(ctx, args.size, &numbers)?;
        let engines = once_each(&args.engines);
        let kernel: Vec<Engine> = engines.iter().copied().filter(|engine| engine.is_mmap()).collect();
        let nearest = numbers.iter().copied().min_by_key(|n| n.abs_diff(processors())).unwrap_or(1);
        let mut groups = Vec::new();
        for (place, room, op) in faulting.cases() {
            let group = |engines: &[Engine], threads| {
                let arm = |&engine: &Engine| Arm::of(engine, faulting.order(place, room, op, engine, threads, ctx.seconds));
                faulting.group(place, room, op, threads, engines.iter().map(arm).collect())
            };
            if kernel.len() > 1 {
                // Two trials, of which the slower counts: an engine that reads around a fault is fast in one run and very slow in another.
                groups.push(Group { trial: true, repeat: Some(2), ..group(&kernel, nearest) });
            }
            groups.extend(numbers.iter().map(|&threads| group(&engines, threads)));
        }
        let chooses = kernel.len() > 1;
        Ok(faulting.finish(groups, |places| Box::new(Threads { places, chooses })))
    }

    fn run(case: &Order, meter: &Meter) -> substrates::Result<Vec<Part<Outcome>>> {
        faults::run(case, meter).map(|(reading, outcome)| Part::whole(reading, outcome))
    }

    fn claims() -> Vec<Claim<Outcome>> {
        let rate = || Claim::new("ops_per_s").most_threads();
        vec![
            rate().of(|row| is(row, "read", false)).paper(|_| figure_1(3.7)),
            rate().of(|row| is(row, "write", false)).paper(|_| figure_1(6.6)),
            rate().of(|row| is(row, "read", true)),
            Claim::new("device.average_queue_depth").most_threads().what("device queue depth").of(|row| is(row, "write", true)).paper(
                |_| Paper::says(39.2 / 17.5, "FastMap, USENIX ATC '20, figure 8(c)", "Kreon, Load A, 32 threads, Optane SSD"),
            ),
        ]
    }
}

fn is(row: &Row<Outcome>, op: &str, disk: bool) -> bool {
    row.text("op") == op && row.text("room") == "out-of-memory" && (row.text("place") != "no-device") == disk
}

fn figure_1(ratio: f64) -> Option<Paper> {
    Paper::says(ratio, "FastMap, USENIX ATC '20, figure 1", "32 threads on 32 hardware threads, null_blk, Linux 4.14")
}

/// The rate per thread, divided by the rate per thread at the first number of threads. Threads beyond the number of processors do not count.
fn efficiency(row: &Row<Outcome>, rows: &[Row<Outcome>]) -> Option<f64> {
    let by_thread = |row: &Row<Outcome>| {
        let rates: Vec<f64> = row.trials.iter().map(|trial| trial.reading.ops_per_s).collect();
        Some(crate::results::median(rates) / row.number("threads")?.min(f64::from(processors())))
    };
    let case = |row: &Row<Outcome>| (row.text("place").to_owned(), row.text("room").to_owned(), row.text("op").to_owned(), row.engine);
    let first = rows.iter().find(|other| !other.trial && case(other) == case(row))?;
    if row.trial { None } else { Some(by_thread(row)? / by_thread(first)?) }
}

/// Processors this process may use.
fn processors() -> u32 {
    std::thread::available_parallelism().map_or(1, |count| count.get() as u32)
}

struct Threads {
    places: Vec<Place>,
    /// Trials decide which kernel engine is measured.
    chooses: bool,
}

impl Stage<Scale> for Threads {
    fn before(&mut self, turn: &Turn<'_, Scale>, case: &mut Order) -> Result<Launch, Failure> {
        if self.chooses && !turn.trial && turn.engine.is_mmap() && rival(turn.rows) != Some(turn.engine) {
            return Ok(Launch { skip: true, ..Launch::default() });
        }
        ready(&self.places, case)
    }

    fn tell(&mut self, rows: &[Row<Outcome>], report: &mut Report<Value>) {
        let read_around = rows.iter().filter(|row| row.trial && row.trials.iter().any(|t| t.outcome.faults_per_op < FAULTS));
        report.notes.extend(read_around.map(|row| {
            let share = row.trials[0].outcome.faults_per_op * 100.0;
            format!("{}, {}: only {share:.0} % of its operations were page faults. It is in no ratio here.", row.what, row.name)
        }));
        tell(rows.iter().map(|row| row.trials.iter().all(|t| t.outcome.filled)), report);
    }
}

/// The kernel engine to compare FastMap with. Each engine counts by the slower of its two trials. The fastest engine is chosen among those
/// that reach [`FAULTS`]. If none does, the engine with the most page faults is chosen.
fn rival(rows: &[Row<Outcome>]) -> Option<Engine> {
    // The trials of a case come just before its measurements, so they are the latest trials.
    let group = rows.iter().filter(|row| row.trial).map(|row| row.group).max()?;
    let tried: Vec<(Engine, f64, f64)> = rows
        .iter()
        .filter(|row| row.group == group)
        .filter_map(|row| Some((row.engine, row.trials.first()?.reading.ops_per_s, row.trials.first()?.outcome.faults_per_op)))
        .collect();
    let fastest = tried.iter().filter(|(_, _, faults)| *faults >= FAULTS).max_by(|a, b| a.1.total_cmp(&b.1));
    fastest.or_else(|| tried.iter().max_by(|a, b| a.2.total_cmp(&b.2))).map(|(engine, _, _)| *engine)
}

/// The flags of `scale` and `breakdown`.
pub const FAULTING: Flags =
    Flags { repeat: "2", seconds: None, memory: Some("an eighth of --size"), dir: Some(TEMPORARY) };

/// How `scale` and `breakdown` are verified.
pub const VERIFIED: &str = "Every operation checked its page's stamp (in the hole, that it is zero); after each run that stores, the whole \
                            file was read back, every byte checked.";

/// Engines that reach pages by page faults.
pub const ENGINES: &[Engine] = Engine::PROGRAMS;

/// A file whose pages the runs access.
pub struct Place {
    /// `no-device` (the file is one hole), or the storage.
    behind: &'static str,
    target: Target,
    /// The place as tables show it.
    name: String,
}

/// The part of a plan that `scale` and `breakdown` share: the files, and the limit on memory.
pub struct Faulting {
    places: Vec<Place>,
    limit: Limit,
    /// Memory of a run whose data do not fit, bytes. It sizes the cache, even if no limit is set.
    memory: u64,
    bytes: u64,
}

impl Faulting {
    /// Checks the sizes and makes the files: first one that is a hole, then one on the storage.
    ///
    /// # Errors
    ///
    /// The size is too small or no multiple of a page, memory is too little, or the files cannot be made.
    pub fn plan(ctx: &mut Ctx, size: Size, threads: &[u32]) -> Result<Faulting, Failure> {
        let bytes = length_for(None, Some(size), 0)?;
        enough_for(bytes, threads)?;
        let pages = bytes / PAGE as u64;
        let default = (bytes / 8).max(least_memory(pages, true) + (8 << 20));
        let limit = ctx.limit(default, |limit| Ok(capacity_for(limit, pages, true).map(drop)?))?;
        let memory = limit.bytes().unwrap_or(default);
        let dir = ctx.dir_for(bytes)?;
        let hole = Place { behind: "no-device", target: Target::hole(&dir, size)?, name: "no device (a hole)".to_owned() };
        Ok(Faulting { places: vec![hole, Place::stamped(ctx.storage.name(), &dir, size)?], limit, memory, bytes })
    }

    /// All cases: each is the number of a place, a room, and an operation. A hole is only read, since stores need blocks.
    pub fn cases(&self) -> Vec<(usize, Room, Op)> {
        let ops = |place: usize| if self.places[place].behind == "no-device" { &[Op::Read][..] } else { &[Op::Read, Op::Write] };
        let rooms = [Room::OutOfMemory, Room::InMemory];
        let of_place = |place| rooms.into_iter().flat_map(move |room| ops(place).iter().map(move |&op| (place, room, op)));
        (0..self.places.len()).flat_map(of_place).collect()
    }

    /// One run of a case.
    pub fn order(&self, place: usize, room: Room, op: Op, engine: Engine, threads: u32, seconds: f64) -> Order {
        let Place { behind, target, .. } = &self.places[place];
        let memory = match room {
            Room::InMemory => memory_for_all(target.pages),
            Room::OutOfMemory => self.memory,
        };
        let spec = target.spec(engine, Pattern::Random, op, threads, Some(memory), seconds);
        Order { spec: Spec { advice: Advice::Random, ..spec }, room, hole: *behind == "no-device" }
    }

    /// The group of these arms, for one case and one number of threads.
    pub fn group(&self, place: usize, room: Room, op: Op, threads: u32, arms: Vec<Arm<Order>>) -> Group<Order> {
        let Place { behind, name, .. } = &self.places[place];
        let ops = if op == Op::Read { "reads" } else { "writes" };
        let rooms = if room == Room::InMemory { "in memory" } else { "out of memory" };
        let labels: Labels = vec![
            ("place", json!(behind)),
            ("room", json!(room)),
            ("op", json!(op)),
            ("threads", json!(threads)),
        ];
        Group::new(format!("random {ops}, {rooms}, {name}"), labels, arms)
    }

    /// The plan.
    pub fn finish<E: Experiment>(self, groups: Vec<Group<E::Case>>, stage: impl FnOnce(Vec<Place>) -> Box<dyn Stage<E>>) -> Plan<E> {
        let Faulting { places, limit, bytes, .. } = self;
        let disk = &places[places.len() - 1].target;
        let (place, file) = (disk.place.clone(), disk.label.clone());
        Plan { about: String::new(), place, file, bytes, limit, groups, until_steady: None, stage: stage(places) }
    }
}

/// Makes a case's file ready.
///
/// # Errors
///
/// The file cannot be made ready.
pub fn ready(places: &[Place], case: &mut Order) -> Result<Launch, Failure> {
    let place = places.iter().find(|place| place.target.path == case.spec.path);
    let launch = place.map_or_else(|| Ok(Launch::default()), |place| place.target.ready(&mut case.spec))?;
    Ok(Launch { memory: case.spec.memory, ..launch })
}

/// Adds a note to the report if memory was not full when the measurements of some rows began.
pub fn tell(filled: impl Iterator<Item = bool>, report: &mut Report<Value>) {
    let filled: Vec<bool> = filled.collect();
    let short = filled.iter().filter(|filled| !**filled).count();
    if short > 0 {
        let rows = filled.len();
        report.notes.push(format!(
            "Memory was not yet full when measurements of {short} of {rows} rows began: give more --seconds or less --memory."
        ));
    }
}

impl Place {
    /// A stamped file in `dir`.
    fn stamped(behind: &'static str, dir: &std::path::Path, size: Size) -> Result<Place, Failure> {
        let target = Target::temporary(dir, size, prepare::stamp_page)?;
        Ok(Place { behind, target, name: behind.to_owned() })
    }
}
