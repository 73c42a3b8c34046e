//! `fastmap bench scale`: random page faults over the number of threads.

mod tell;

use std::path::Path;

use fastmap_workloads::faults::{Outcome, Room};
use fastmap_workloads::{
    DeviceReport, Engine, FastmapReport, LatencyUs, Op, PAGE, STRIDE_PAGES, Writeback, capacity_for, least_memory,
};
use serde::Serialize;

use super::faulting::{Behind, Load, Place};
use super::runner::Limit;
use super::summary::median_of;
use super::target::{directory_for, length_for, progress_bar};
use crate::args::{ScaleArgs, once_each};
use crate::failure::Failure;
use crate::interrupt;
use crate::results::{JsonFile, Report, median};
use crate::size::{Memory, Size};

/// Of a trial's operations so many must be page faults: otherwise it is not page faults that were measured.
const FAULTS: f64 = 0.9;

/// One engine at one load; figures are medians over the repetitions, each by itself.
#[derive(Debug, Clone, Serialize)]
pub struct Row {
    place: Behind,
    room: Room,
    op: Op,
    engine: Engine,
    threads: u32,
    /// One run that decided which advice is measured; not beside FastMap's runs.
    trial: bool,
    ops_per_s: f64,
    /// By thread, as a share of what one of the first number of threads did; None of a trial.
    #[serde(skip_serializing_if = "Option::is_none")]
    efficiency: Option<f64>,
    /// Memory was full when each repetition's measurement began, where that was wanted.
    filled: bool,
    /// 1 where every operation was a page fault.
    faults_per_op: f64,
    /// Processor time of the process.
    cpu_us_per_op: f64,
    latency_us: LatencyUs,
    /// At the device, on average.
    #[serde(skip_serializing_if = "Option::is_none")]
    queue_depth: Option<f64>,
    /// `ops_per_s` of each repetition, in order.
    runs: Vec<f64>,
    /// `queue_depth` of each repetition, in order.
    queue_depths: Vec<f64>,
    peak_rss_bytes: u64,
    /// What the device under the file did.
    #[serde(skip_serializing_if = "Option::is_none")]
    device: Option<DeviceReport>,
    /// The fastmap engine's write-back.
    #[serde(skip_serializing_if = "Option::is_none")]
    writeback: Option<Writeback>,
    /// The fastmap engine's set-up and counters in each repetition.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    fastmap: Vec<FastmapReport>,
}

impl Row {
    fn of(place: Behind, load: Load, trial: bool, outcomes: &[Outcome]) -> Row {
        let by = |figure: fn(&Outcome) -> f64| median(outcomes.iter().map(figure).collect());
        let cpu = |o: &Outcome| (o.time.user_s + o.time.system_s + o.time.workers_s) * 1e6 / o.ops.max(1) as f64;
        let device = median_of(outcomes, |o| o.device);
        Row {
            place,
            room: load.room,
            op: load.op,
            engine: load.engine,
            threads: load.threads,
            trial,
            ops_per_s: by(|o| o.ops_per_s),
            efficiency: None,
            filled: outcomes.iter().all(|o| o.filled),
            faults_per_op: by(|o| o.faults_per_op),
            cpu_us_per_op: by(cpu),
            latency_us: median_of(outcomes, |o| Some(o.latency_us)).unwrap_or_default(),
            queue_depth: device.map(|device: DeviceReport| device.average_queue_depth),
            runs: outcomes.iter().map(|o| o.ops_per_s).collect(),
            queue_depths: outcomes.iter().filter_map(|o| o.device).map(|d| d.average_queue_depth).collect(),
            peak_rss_bytes: outcomes.iter().map(|o| o.peak_rss_bytes).max().unwrap_or(0),
            device,
            writeback: median_of(outcomes, |o| o.writeback),
            fastmap: outcomes.iter().filter_map(|o| o.fastmap).collect(),
        }
    }
}

/// Runs it.
///
/// # Errors
///
/// Any run's failure; nothing is left behind.
pub fn run(args: &ScaleArgs) -> Result<(), Failure> {
    interrupt::watch();
    let bytes = size_for(args.size, &args.threads)?;
    let (limit, memory) = limit(args.memory, bytes)?;
    let json = args.json.as_deref().map(JsonFile::open).transpose()?;
    let places = places(args.dir.as_deref(), args.fast_dir.as_deref(), args.size)?;
    let disk = &places[places.len() - 1].target;
    let mut report = Report::new("scale", &disk.place, &disk.label, bytes, &limit);
    report.results = measure(args, &places, &limit, memory)?;
    tell::tell(args, &places, &mut report);
    let short = report.results.iter().filter(|row| !row.filled).count();
    if short > 0 {
        let rows = report.results.len();
        report.notes.push(format!(
            "Memory was not yet full when measurements of {short} of {rows} rows began: give more --seconds or less --memory."
        ));
    }
    crate::print(&tell::text(args, &places, memory, &report));
    json.map_or(Ok(()), |json| json.write(report))
}

/// The limit, and the memory of each run out of memory, which sizes the cache also where nothing is limited.
///
/// # Errors
///
/// Too little memory, or no cgroup where one was asked for.
pub fn limit(asked: Option<Memory>, bytes: u64) -> Result<(Limit, u64), Failure> {
    let pages = bytes / PAGE as u64;
    let default = (bytes / 8).max(least_memory(pages, true) + (8 << 20));
    let limit = Limit::of(asked, default, |limit| Ok(capacity_for(limit, pages, true).map(drop)?))?;
    let memory = limit.bytes().unwrap_or(default);
    Ok((limit, memory))
}

/// Bytes of the file, checked against what so many threads need.
///
/// # Errors
///
/// A size that is no multiple of a page, or too small.
pub fn size_for(size: Size, threads: &[u32]) -> Result<u64, Failure> {
    let bytes = length_for(None, Some(size), 0)?;
    let most = threads.iter().copied().max().unwrap_or(1);
    let least = u64::from(most) * STRIDE_PAGES * PAGE as u64;
    if bytes < least {
        let what = format!("{size} is too small for {most} threads");
        return Err(Failure::usage("--size", what, format!("give at least {}", Size(least))));
    }
    Ok(bytes)
}

/// Where to measure: the fast device or the hole, then the disk.
///
/// # Errors
///
/// Whatever keeps their files from being made.
pub fn places(dir: Option<&Path>, fast: Option<&Path>, size: Size) -> Result<Vec<Place>, Failure> {
    let dir = dir.map_or_else(|| directory_for(size.0), Path::to_owned);
    let first = match fast {
        Some(fast) => Place::stamped(Behind::Fast, fast, size)?,
        None => Place::hole(&dir, size)?,
    };
    Ok(vec![first, Place::stamped(Behind::Disk, &dir, size)?])
}

/// Everything, case by case.
fn measure(args: &ScaleArgs, places: &[Place], limit: &Limit, memory: u64) -> Result<Vec<Row>, Failure> {
    let threads = once_each(&args.threads);
    let engines = once_each(&args.engines);
    let kernel: Vec<Engine> = engines.iter().copied().filter(|engine| engine.is_mmap()).collect();
    let ours = engines.len() - kernel.len();
    let trials = if kernel.len() > 1 { 2 * kernel.len() } else { 0 };
    let cases: usize = places.iter().map(|place| place.ops().len() * 2).sum();
    let of_a_case = trials + threads.len() * (kernel.len().min(1) + ours) * args.repeat as usize;
    let bar = progress_bar((cases * of_a_case) as u64, "{msg:44} {bar:30} {pos}/{len} runs, {eta} left");
    let mut rows = Vec::new();
    for place in places {
        for room in [Room::OutOfMemory, Room::InMemory] {
            for &op in place.ops() {
                let run = |engine, threads| {
                    bar.set_message(format!("{} {room} {op}, {threads} threads: {engine}", place.behind.name()));
                    let load = Load { engine, op, room, threads, seconds: args.seconds };
                    let outcome = place.fault(load, limit, memory)?;
                    bar.inc(1);
                    Ok((load, outcome))
                };
                let (tried, rival) = choose(&kernel, |engine| run(engine, nearest(&threads)))?;
                rows.extend(
                    tried
                        .iter()
                        .map(|(load, outcome)| Row::of(place.behind, *load, true, std::slice::from_ref(outcome))),
                );
                let turns: Vec<Engine> =
                    rival.into_iter().chain(engines.iter().copied().filter(|e| e.is_fastmap())).collect();
                let from = rows.len();
                for &threads in &threads {
                    let mut outcomes: Vec<Vec<Outcome>> = vec![Vec::new(); turns.len()];
                    let mut load = None;
                    for _ in 0..args.repeat {
                        for (&engine, outcomes) in turns.iter().zip(&mut outcomes) {
                            let (done, outcome) = run(engine, threads)?;
                            load = Some(done);
                            outcomes.push(outcome);
                        }
                    }
                    let Some(load) = load else { continue };
                    let row = |(&engine, o): (&Engine, &Vec<Outcome>)| {
                        Row::of(place.behind, Load { engine, ..load }, false, o)
                    };
                    rows.extend(turns.iter().zip(&outcomes).map(row));
                }
                efficiencies(&mut rows[from..]);
            }
        }
    }
    bar.finish_and_clear();
    Ok(rows)
}

/// Runs that decided which kernel engine is the rival, and that engine. Without a choice there are none.
type Chosen = (Vec<(Load, Outcome)>, Option<Engine>);

/// The kernel's engine to measure: where there are several, the fastest in the slower of two trials, if that was page faults; if none
/// was, that with most of them.
///
/// # Errors
///
/// A trial's.
pub fn choose(
    kernel: &[Engine],
    mut run: impl FnMut(Engine) -> Result<(Load, Outcome), Failure>,
) -> Result<Chosen, Failure> {
    if kernel.len() < 2 {
        return Ok((Vec::new(), kernel.first().copied()));
    }
    let mut tried: Vec<(Load, Outcome)> = kernel.iter().map(|&engine| run(engine)).collect::<Result<_, _>>()?;
    // Once more, and the slower one counts: what reads around is now fast and now hopeless.
    for one in &mut tried {
        let again = run(one.0.engine)?;
        if again.1.ops_per_s < one.1.ops_per_s {
            *one = again;
        }
    }
    let fault = tried.iter().filter(|(_, o)| o.faults_per_op >= FAULTS);
    let fastest = fault.max_by(|a, b| a.1.ops_per_s.total_cmp(&b.1.ops_per_s));
    let most = || tried.iter().max_by(|a, b| a.1.faults_per_op.total_cmp(&b.1.faults_per_op));
    let rival = fastest.or_else(most).map(|(load, _)| load.engine);
    Ok((tried, rival))
}

/// The number of threads nearest to that of processors.
fn nearest(threads: &[u32]) -> u32 {
    threads.iter().copied().min_by_key(|threads| threads.abs_diff(processors())).unwrap_or(1)
}

/// Processors this process may use.
pub fn processors() -> u32 {
    std::thread::available_parallelism().map_or(1, |count| count.get() as u32)
}

/// Of one case, after the sweep.
fn efficiencies(rows: &mut [Row]) {
    for at in 0..rows.len() {
        let first = rows.iter().find(|row| row.engine == rows[at].engine).map(|row| (row.ops_per_s, row.threads));
        let Some((rate, threads)) = first else { continue };
        rows[at].efficiency = Some(efficiency((rate, threads), (rows[at].ops_per_s, rows[at].threads), processors()));
    }
}

/// Rate by thread over that of the first number of threads, no more threads than processors counted.
fn efficiency(first: (f64, u32), this: (f64, u32), processors: u32) -> f64 {
    let by_thread = |(rate, threads): (f64, u32)| rate / f64::from(threads.min(processors));
    by_thread(this) / by_thread(first)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn threads_beyond_the_processors_do_not_lower_efficiency() {
        assert_eq!(efficiency((100.0, 1), (180.0, 2), 2), 0.9);
        assert_eq!(efficiency((100.0, 1), (180.0, 16), 2), 0.9);
        assert_eq!(efficiency((100.0, 2), (400.0, 8), 32), 1.0);
    }

    #[test]
    fn the_rival_is_the_fastest_whose_operations_are_faults() {
        let chosen = |rates: [(f64, f64); 2]| {
            let again = rates.map(|(ops_per_s, faults)| (ops_per_s + 100.0, faults));
            let mut rates = rates.into_iter().chain(again);
            let trial = |engine| {
                let (ops_per_s, faults_per_op) = rates.next().unwrap();
                let load = Load { engine, op: Op::Read, room: Room::InMemory, threads: 2, seconds: 1.0 };
                Ok((load, Outcome { ops_per_s, faults_per_op, ..Outcome::default() }))
            };
            let (tried, rival) = choose(&[Engine::Mmap, Engine::MmapRandom], trial).unwrap();
            assert_eq!(tried.len(), 2);
            rival.unwrap()
        };
        assert_eq!(chosen([(2.0, 1.0), (1.0, 1.0)]), Engine::Mmap);
        assert_eq!(chosen([(1.0, 1.0), (2.0, 1.0)]), Engine::MmapRandom);
        assert_eq!(chosen([(9.0, 0.1), (1.0, 1.0)]), Engine::MmapRandom, "read around, not faults");
        assert_eq!(chosen([(1.0, 0.8), (9.0, 0.1)]), Engine::Mmap);
        let (tried, rival) = choose(&[Engine::Mmap], |_| unreachable!()).unwrap();
        assert!(tried.is_empty() && rival == Some(Engine::Mmap));
    }
}
