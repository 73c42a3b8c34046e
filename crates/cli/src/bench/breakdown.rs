//! `fastmap bench breakdown`: where the time of random page faults goes.

mod parts;
mod perf;
mod tell;

use std::collections::{BTreeMap, HashMap};

use fastmap_workloads::faults::{Outcome, Room};
use fastmap_workloads::{Engine, FastmapReport, Op};
use serde::Serialize;

use self::parts::{Part, part};
use self::perf::{Recording, Sample};
use super::faulting::{Behind, Load, Place};
use super::runner::Limit;
use super::scale::{limit, places, size_for};
use super::target::progress_bar;
use crate::args::{BreakdownArgs, once_each};
use crate::failure::Failure;
use crate::interrupt;
use crate::results::{JsonFile, Report, median};

/// Functions of the part `other` that are named.
const NAMED: usize = 5;

/// One engine at one load. Times are microseconds an operation, means over the repetitions, so that they add up.
#[derive(Debug, Clone, Serialize)]
pub struct Row {
    place: Behind,
    room: Room,
    op: Op,
    engine: Engine,
    threads: u32,
    ops_per_s: f64,
    faults_per_op: f64,
    /// Of all processors, by samples; with what other programs took. Nothing without perf.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    processors_us_per_op: BTreeMap<Part, f64>,
    /// Samples in that.
    samples: usize,
    /// Functions of the part `other` that were met most, with their samples.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    other_functions: Vec<(String, usize)>,
    /// Of the threads that fault, as the kernel counts it.
    threads_us_per_op: Threads,
    /// Processor time of page faults in each repetition, in order: by samples, or without perf all that the process used.
    fault_runs: Vec<f64>,
    /// `threads_us_per_op.waiting` of each repetition, in order.
    waiting_runs: Vec<f64>,
    /// Operations a second of each repetition, in order.
    runs: Vec<f64>,
    /// The fastmap engine's set-up and counters in each repetition.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    fastmap: Vec<FastmapReport>,
}

/// Time of the threads that fault, and of their process's other threads.
#[derive(Debug, Clone, Copy, Default, Serialize)]
pub struct Threads {
    user: f64,
    system: f64,
    /// Ready to run, and no processor free.
    queued: f64,
    /// For reads, or for each other.
    waiting: f64,
    /// Processor time of the process's other threads.
    workers: f64,
}

/// One repetition.
struct Repetition {
    outcome: Outcome,
    /// Samples of the window by part; empty without perf.
    counts: BTreeMap<Part, usize>,
    /// Of the part `other`, by function.
    other: HashMap<String, usize>,
}

impl Repetition {
    fn of(outcome: Outcome, samples: &[Sample]) -> Repetition {
        let (mut counts, mut other) = (BTreeMap::new(), HashMap::new());
        for sample in samples {
            let part = part(sample, outcome.pid, &outcome.load_tids);
            *counts.entry(part).or_insert(0) += 1;
            if part == Part::Other {
                let function = sample.frames.first().map_or("[nothing]", |frame| &frame.symbol);
                *other.entry(function.to_owned()).or_insert(0) += 1;
            }
        }
        split_idle(&mut counts, &outcome);
        Repetition { outcome, counts, other }
    }

    /// Microseconds an operation.
    fn parts(&self, processors: f64) -> BTreeMap<Part, f64> {
        let samples = self.counts.values().sum::<usize>() as f64;
        let us = processors * self.outcome.seconds * 1e6 / self.outcome.ops.max(1) as f64;
        self.counts.iter().map(|(part, count)| (*part, *count as f64 / samples * us)).collect()
    }

    fn threads(&self) -> Threads {
        let an_op = |seconds: f64| seconds * 1e6 / self.outcome.ops.max(1) as f64;
        let time = self.outcome.time;
        Threads {
            user: an_op(time.user_s),
            system: an_op(time.system_s),
            queued: an_op(time.queued_s),
            waiting: an_op(time.waiting_s),
            workers: an_op(time.workers_s),
        }
    }

    fn fault_us(&self, processors: f64) -> f64 {
        let parts = self.parts(processors);
        if parts.is_empty() {
            let Threads { user, system, workers, .. } = self.threads();
            return user + system + workers;
        }
        parts.iter().filter(|(part, _)| part.is_fault()).map(|(_, us)| us).sum()
    }
}

/// A profiler cannot tell what an idle processor waits for; the kernel's own count can, and idle samples are shared out by it.
fn split_idle(counts: &mut BTreeMap<Part, usize>, outcome: &Outcome) {
    let (Some(&idle), Some(machine)) = (counts.get(&Part::Idle), outcome.time.machine) else { return };
    let all = machine.iowait_s + machine.idle_s;
    if all > 0.0 {
        let waiting = (idle as f64 * machine.iowait_s / all).round() as usize;
        counts.insert(Part::IoWait, waiting);
        counts.insert(Part::Idle, idle - waiting);
    }
}

impl Row {
    fn of(place: Behind, load: Load, repetitions: &[Repetition], processors: f64) -> Row {
        let count = repetitions.len() as f64;
        let mut parts: BTreeMap<Part, f64> = BTreeMap::new();
        let mut other: HashMap<&str, usize> = HashMap::new();
        let mut threads = Threads::default();
        for repetition in repetitions {
            for (part, us) in repetition.parts(processors) {
                *parts.entry(part).or_insert(0.0) += us / count;
            }
            for (function, samples) in &repetition.other {
                *other.entry(function).or_insert(0) += samples;
            }
            let Threads { user, system, queued, waiting, workers } = repetition.threads();
            threads.user += user / count;
            threads.system += system / count;
            threads.queued += queued / count;
            threads.waiting += waiting / count;
            threads.workers += workers / count;
        }
        let mut other: Vec<(String, usize)> = other.into_iter().map(|(name, count)| (name.to_owned(), count)).collect();
        other.sort_by(|a, b| b.1.cmp(&a.1).then_with(|| a.0.cmp(&b.0)));
        other.truncate(NAMED);
        let each = |figure: &dyn Fn(&Repetition) -> f64| repetitions.iter().map(figure).collect::<Vec<f64>>();
        let runs = each(&|r| r.outcome.ops_per_s);
        Row {
            place,
            room: load.room,
            op: load.op,
            engine: load.engine,
            threads: load.threads,
            ops_per_s: median(runs.clone()),
            faults_per_op: median(each(&|r| r.outcome.faults_per_op)),
            processors_us_per_op: parts,
            samples: repetitions.iter().flat_map(|r| r.counts.values()).sum(),
            other_functions: other,
            threads_us_per_op: threads,
            fault_runs: each(&|r| r.fault_us(processors)),
            waiting_runs: each(&|r| r.threads().waiting),
            runs,
            fastmap: repetitions.iter().filter_map(|r| r.outcome.fastmap).collect(),
        }
    }
}

/// Runs it.
///
/// # Errors
///
/// Any run's failure; nothing is left behind.
pub fn run(args: &BreakdownArgs) -> Result<(), Failure> {
    interrupt::watch();
    let bytes = size_for(args.size, &args.threads)?;
    let (limit, memory) = limit(args.memory, bytes)?;
    let json = args.json.as_deref().map(JsonFile::open).transpose()?;
    let sampled = if args.no_perf { Err("--no-perf was given".to_owned()) } else { perf::allowed() };
    let places = places(args.dir.as_deref(), args.fast_dir.as_deref(), args.size)?;
    let disk = &places[places.len() - 1].target;
    let mut report = Report::new("breakdown", &disk.place, &disk.label, bytes, &limit);
    report.results = measure(args, &places, &limit, memory, sampled.is_ok())?;
    tell::tell(args, &places, sampled, &mut report);
    crate::print(&tell::text(args, &places, memory, &report));
    json.map_or(Ok(()), |json| json.write(report))
}

/// Everything; engines take turns within each repetition.
fn measure(
    args: &BreakdownArgs,
    places: &[Place],
    limit: &Limit,
    memory: u64,
    sampled: bool,
) -> Result<Vec<Row>, Failure> {
    let (threads, engines) = (once_each(&args.threads), once_each(&args.engines));
    let cases: usize = places.iter().map(|place| place.ops().len() * 2).sum();
    let runs = cases * threads.len() * engines.len() * args.repeat as usize;
    let bar = progress_bar(runs as u64, "{msg:44} {bar:30} {pos}/{len} runs, {eta} left");
    // Those of the machine: perf samples all of them, whatever this process may use.
    let processors = processors();
    let mut rows = Vec::new();
    for place in places {
        for room in [Room::OutOfMemory, Room::InMemory] {
            for &op in place.ops() {
                for &threads in &threads {
                    let load = |engine| Load { engine, op, room, threads, seconds: args.seconds };
                    let mut repetitions: Vec<Vec<Repetition>> = engines.iter().map(|_| Vec::new()).collect();
                    for _ in 0..args.repeat {
                        for (&engine, repetitions) in engines.iter().zip(&mut repetitions) {
                            bar.set_message(format!(
                                "{} {room} {op}, {threads} threads: {engine}",
                                place.behind.name()
                            ));
                            repetitions.push(once(place, load(engine), limit, memory, sampled)?);
                            bar.inc(1);
                        }
                    }
                    let row =
                        |(&engine, r): (&Engine, &Vec<Repetition>)| Row::of(place.behind, load(engine), r, processors);
                    rows.extend(engines.iter().zip(&repetitions).map(row));
                }
            }
        }
    }
    bar.finish_and_clear();
    Ok(rows)
}

fn once(place: &Place, load: Load, limit: &Limit, memory: u64, sampled: bool) -> Result<Repetition, Failure> {
    let recording = sampled.then(Recording::start).transpose()?;
    let outcome = place.fault(load, limit, memory)?;
    let samples = match recording {
        Some(recording) => recording.finish(outcome.window_ns)?,
        None => Vec::new(),
    };
    Ok(Repetition::of(outcome, &samples))
}

/// Processors that are online.
fn processors() -> f64 {
    // SAFETY: no memory is handed over.
    let online = unsafe { libc::sysconf(libc::_SC_NPROCESSORS_ONLN) };
    online.max(1) as f64
}

#[cfg(test)]
mod tests {
    use super::*;
    use fastmap_workloads::faults::{MachineTime, Time};

    fn repetition(counts: &[(Part, usize)], iowait_s: f64, idle_s: f64) -> Repetition {
        let machine = Some(MachineTime { busy_s: 1.0, iowait_s, idle_s });
        let time = Time { user_s: 0.2, system_s: 0.3, queued_s: 0.1, waiting_s: 0.4, workers_s: 0.1, machine };
        let outcome = Outcome { ops: 1000, seconds: 1.0, ops_per_s: 1000.0, time, ..Outcome::default() };
        let mut counts: BTreeMap<Part, usize> = counts.iter().copied().collect();
        split_idle(&mut counts, &outcome);
        Repetition { outcome, counts, other: HashMap::from([("odd".to_owned(), 2)]) }
    }

    #[test]
    fn parts_add_up_to_the_processors_time() {
        let counts =
            [(Part::Program, 100), (Part::Trap, 300), (Part::Other, 100), (Part::Idle, 400), (Part::Elsewhere, 100)];
        let repetitions = [repetition(&counts, 0.3, 0.1), repetition(&counts, 0.0, 0.0)];
        let load = Load { engine: Engine::Fastmap, op: Op::Read, room: Room::InMemory, threads: 1, seconds: 1.0 };
        let row = Row::of(Behind::Disk, load, &repetitions, 2.0);
        let sum: f64 = row.processors_us_per_op.values().sum();
        assert!((sum - 2000.0).abs() < 1e-6, "two processors, a second, a thousand operations: {sum}");
        let of = |part| row.processors_us_per_op[&part];
        assert!((of(Part::IoWait) - 300.0).abs() < 1e-6 && (of(Part::Idle) - 500.0).abs() < 1e-6, "{row:?}");
        assert!((row.fault_runs[0] - 800.0).abs() < 1e-6, "trap and other: {row:?}");
        assert_eq!((row.samples, &row.other_functions[..]), (2000, &[("odd".to_owned(), 4)][..]));
        let Threads { user, system, queued, waiting, workers } = row.threads_us_per_op;
        assert!(
            [(user, 200.0), (system, 300.0), (queued, 100.0), (waiting, 400.0), (workers, 100.0)]
                .iter()
                .all(|(a, b)| (a - b).abs() < 1e-6)
        );
    }

    #[test]
    fn without_samples_the_process_s_own_time_counts() {
        let repetition = repetition(&[], 0.3, 0.1);
        assert!(repetition.parts(2.0).is_empty());
        assert!((repetition.fault_us(2.0) - 600.0).abs() < 1e-6);
    }
}
