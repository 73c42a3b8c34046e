//! `fastmap bench breakdown`: where the time of random page faults goes.

use std::collections::{BTreeMap, HashMap};

use clap::Args as ClapArgs;
use fastmap_cli::failure::Failure;
use fastmap_cli::size::Size;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use fastmap_bench::experiments::scale::{ENGINES, FAULTING, Faulting, Place, VERIFIED, ready, tell};
use crate::args::{once_each, one_of, threads};
use crate::driver::Ctx;
use crate::experiment::columns::rate;
use crate::experiment::{
    Arm, Claim, Column, Experiment, Flags, Launch, Over, Paper, Part as Whole, Plan, Plot, Row, Stage, Stat, Trial, Turn,
};
use crate::perf::{HERTZ, Part, Recording, Sample, allowed, part};
use crate::results::{Kind, Report};
use crate::substrates::faults::{self, Order};
use crate::substrates::{self, Engine, Meter, Reading};

/// Where the paper measured.
const LOAD_A: &str = "Kreon, Load A, 32 threads on 32 hardware threads, Optane SSD";
const RUN_C: &str = "Kreon, Run C, 32 threads on 32 hardware threads, Optane SSD";

/// Functions of the part `other` that are named.
const NAMED: usize = 5;

/// Measure where the time of random page faults goes
#[derive(Debug, ClapArgs)]
#[command(long_about = "\
Measure where the time of random page faults goes; after the FastMap paper, figures 5, 9 and 10.

The loads are those of `bench scale`. While a run is measured, perf(1) samples all processors, where it is installed and allowed (root, or \
kernel.perf_event_paranoid -1), and each sample is put down to a part by a table of functions. Beside that, and alone where perf \
may not be used, stands what the kernel counts for each thread. Engines take turns; every run is a fresh process in a memory cgroup of its own, begun with a cold file.")]
#[command(after_help = "\
Parts:
  program       the loop that faults, checks each page and takes the time
  trap          entry and return of page faults, signals and system calls
  wasted page   what Linux allocates for a store before it asks userfaultfd, and frees again (FastMap only)
  bookkeeping   which pages are there: the kernel's page cache; FastMap's own code
  install       a frame, its contents, its page table entry
  read          reads: submission and completion
  evict         reclaim, unmapping, the TLB flush
  write-back    what faulting threads do of it
  locks, scheduling, interrupts
  workers       FastMap's writers, readers and keeper; the kernel's threads for write-back, block devices and reclaim (the paper's kworker)
  other         not in the table; the JSON names the functions
  I/O wait      idle, a read or write being awaited; idle: otherwise
  elsewhere     other programs
  threads:      of those that fault: user, system, queued (no processor free), waiting (for a page); their workers: processor time of \
the process's other threads

Examples:
  fastmap bench breakdown
  fastmap bench breakdown --threads 1,2,4,8,16,32 --dir /mnt/nvme --seconds 5 --json breakdown.json
  fastmap bench breakdown --no-perf")]
pub struct Args {
    /// Numbers of threads, all on one map, separated by commas
    #[arg(long, value_name = "LIST", value_delimiter = ',', default_value = "1,16", value_parser = threads)]
    pub threads: Vec<u32>,
    /// Engines to compare, separated by commas: mmap, mmap-random (MADV_RANDOM), fastmap
    #[arg(
        long,
        value_name = "LIST",
        value_delimiter = ',',
        default_value = "mmap-random,fastmap",
        value_parser = one_of(ENGINES)
    )]
    pub engines: Vec<Engine>,
    /// Size of the file, a multiple of 4096
    #[arg(long, default_value = "512MiB")]
    pub size: Size,
    /// Do not sample with perf, even where it is allowed
    #[arg(long)]
    pub no_perf: bool,
}

/// What a run gave: the faults, and where the processors were by samples.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Outcome {
    #[serde(flatten)]
    faults: faults::Outcome,
    /// Samples in the window; none without perf.
    samples: usize,
    /// Of all processors, by samples, with what other programs took.
    processors_us_per_op: BTreeMap<Part, f64>,
    /// Functions of the part `other` that were met most, with their samples.
    other_functions: Vec<(String, usize)>,
}

/// The experiment.
pub struct Breakdown;

/// Microseconds an operation of a part of the processors' time.
macro_rules! of_part {
    ($part:ident, $key:literal) => {
        Column::new(concat!("processors_us_per_op.", $key), $key, "microseconds an operation", |t: &Trial<Outcome>| {
            t.outcome.processors_us_per_op.get(&Part::$part).copied()
        })
        .less()
        .stat(Stat::Mean)
    };
}

/// Parts put together for the plot, which gets crowded otherwise; other programs' time is left out there.
macro_rules! group {
    ($key:literal, $name:literal, $($part:ident),*) => {
        Column::new(concat!("grouped.", $key), "", $name, |t: &Trial<Outcome>| {
            let parts = &t.outcome.processors_us_per_op;
            let of = [$(Part::$part),*].iter().filter_map(|part| parts.get(part)).sum();
            (!parts.is_empty()).then_some(of)
        })
        .less()
        .stat(Stat::Mean)
    };
}

/// The same of the faulting threads' time, as the kernel counts it.
macro_rules! of_threads {
    ($field:ident, $key:literal, $title:literal) => {
        Column::new(concat!("threads_us_per_op.", $key), $title, "microseconds an operation", |t: &Trial<Outcome>| {
            Some(t.outcome.faults.time.$field * 1e6 / t.reading.ops.max(1) as f64)
        })
        .less()
        .stat(Stat::Mean)
    };
}

impl Experiment for Breakdown {
    const NAME: &'static str = "breakdown";
    type Args = Args;
    type Case = Order;
    type Outcome = Outcome;
    const FLAGS: Flags = Flags { seconds: Some(("1", "Seconds to measure each run")), ..FAULTING };
    const COLUMNS: &'static [Column<Outcome>] = &[
        rate(),
        Column::new("faults_per_op", "faults/op", "page faults an operation", |t| Some(t.outcome.faults.faults_per_op)),
        Column::new("fault_us_per_op", "page fault", "microseconds of processor time a page fault", fault).less().range(),
        of_part!(Program, "program"),
        of_part!(Trap, "trap"),
        of_part!(Wasted, "wasted"),
        of_part!(Bookkeeping, "bookkeeping"),
        of_part!(Install, "install"),
        of_part!(Read, "read"),
        of_part!(Evict, "evict"),
        of_part!(WriteBack, "write-back"),
        of_part!(Locks, "locks"),
        of_part!(Scheduling, "scheduling"),
        of_part!(Interrupts, "interrupts"),
        of_part!(Workers, "workers"),
        of_part!(Other, "other"),
        of_part!(IoWait, "io-wait"),
        of_part!(Idle, "idle"),
        of_part!(Elsewhere, "elsewhere"),
        group!("program", "program", Program),
        group!("trap", "trap", Trap, Wasted),
        group!("install", "install and bookkeeping", Bookkeeping, Install),
        group!("read", "read", Read),
        group!("evict", "evict and write back", Evict, WriteBack),
        group!("workers", "workers", Workers),
        group!("other", "locks, scheduling, interrupts, other", Locks, Scheduling, Interrupts, Other),
        group!("idle", "idle and I/O wait", IoWait, Idle),
        of_threads!(user_s, "user", "threads: user"),
        of_threads!(system_s, "system", "threads: system"),
        of_threads!(queued_s, "queued", "threads: queued"),
        of_threads!(waiting_s, "waiting", "threads: waiting"),
        of_threads!(workers_s, "workers", "their workers"),
    ];
    const PLOTS: &'static [Plot<Outcome>] = &[
        Plot::new(
            "Processor time an operation",
            &[
                "grouped.program",
                "grouped.trap",
                "grouped.install",
                "grouped.read",
                "grouped.evict",
                "grouped.workers",
                "grouped.other",
                "grouped.idle",
            ],
            Kind::Stacked,
            Over::Arms,
        )
        .after(
            "FastMap, USENIX ATC '20, figures 5, 9 and 10: with 32 threads FastMap spends 2.64 times less on page faults of Load A and 12.3 \
             times less on iowait, mmap 2.88 times as much on those of Run C and 1.41 times on iowait",
        ),
        Plot::new(
            "Time of the faulting threads",
            &[
                "threads_us_per_op.user",
                "threads_us_per_op.system",
                "threads_us_per_op.queued",
                "threads_us_per_op.waiting",
                "threads_us_per_op.workers",
            ],
            Kind::Stacked,
            Over::Arms,
        ),
    ];
    const VERIFIED: &'static str = VERIFIED;

    fn plan(args: &Args, ctx: &mut Ctx) -> Result<Plan<Breakdown>, Failure> {
        let numbers = once_each(&args.threads);
        let faulting = Faulting::plan(ctx, args.size, &numbers)?;
        let sampled = if args.no_perf { Err("--no-perf was given".to_owned()) } else { allowed() };
        ctx.notes.push(match &sampled {
            Ok(()) => format!(
                "perf sampled all processors {HERTZ} times a second by the processor's clock (cpu-clock); a sample belongs to the innermost \
                 of its functions that is in a table of the kernel's and FastMap's, and to `other` if none is. Time with interrupts off \
                 shows at the first instruction after it. Workers include the kernel's threads for write-back and block devices, whomever \
                 they serve. Plots leave other programs out."
            ),
            Err(why) => format!(
                "Not sampled: {why}. What is left is coarser: user and system time, waiting for a processor and waiting for anything else, \
                 as the kernel counts them for each thread (getrusage, schedstat)."
            ),
        });
        let mut groups = Vec::new();
        for (place, room, op) in faulting.cases() {
            for &threads in &numbers {
                let arm = |engine| Arm::of(engine, faulting.order(place, room, op, engine, threads, ctx.seconds));
                groups.push(faulting.group(place, room, op, threads, once_each(&args.engines).into_iter().map(arm).collect()));
            }
        }
        let sampled = sampled.is_ok();
        Ok(faulting.finish(groups, |places| Box::new(Sampling { places, sampled, recording: None })))
    }

    fn run(case: &Order, meter: &Meter) -> substrates::Result<Vec<Whole<Outcome>>> {
        let (reading, faults) = faults::run(case, meter)?;
        Ok(Whole::whole(reading, Outcome { faults, ..Outcome::default() }))
    }

    fn claims() -> Vec<Claim<Outcome>> {
        let fault = || Claim::new("fault_us_per_op").most_threads().what("processor time of a page fault");
        vec![
            fault().of(|row| is(row, "write")).paper(|row| sampled(row, 2.64, "FastMap, USENIX ATC '20, figure 9 (pgfault)", LOAD_A)),
            fault().of(|row| is(row, "read")).paper(|row| sampled(row, 2.88, "FastMap, USENIX ATC '20, figure 10 (pgfault)", RUN_C)),
            Claim::new("threads_us_per_op.waiting").most_threads().what("waiting time of a page fault").of(|row| is(row, "read")).paper(
                |_| Paper::says(1.41, "FastMap, USENIX ATC '20, figure 10 (iowait)", RUN_C),
            ),
        ]
    }
}

fn is(row: &Row<Outcome>, op: &str) -> bool {
    row.text("place") != "no-device" && (row.text("room"), row.text("op")) == ("out-of-memory", op)
}

/// Only samples tell page faults from the program and from workers, as the paper's pgfault does.
fn sampled(row: &Row<Outcome>, ratio: f64, figure: &'static str, load: &'static str) -> Option<Paper> {
    row.trials.iter().all(|trial| trial.outcome.samples > 0).then_some(Paper { ratio, source: figure, setting: load })
}

/// Processor time of page faults: by samples; without perf all that the threads and their workers used, program and all.
fn fault(trial: &Trial<Outcome>) -> Option<f64> {
    let parts = &trial.outcome.processors_us_per_op;
    if parts.is_empty() {
        let time = trial.outcome.faults.time;
        return Some((time.user_s + time.system_s + time.workers_s) * 1e6 / trial.reading.ops.max(1) as f64);
    }
    Some(parts.iter().filter(|(part, _)| part.is_fault()).map(|(_, us)| us).sum())
}

struct Sampling {
    places: Vec<Place>,
    sampled: bool,
    recording: Option<Recording>,
}

impl Stage<Breakdown> for Sampling {
    fn before(&mut self, _: &Turn<'_, Breakdown>, case: &mut Order) -> Result<Launch, Failure> {
        let launch = ready(&self.places, case)?;
        self.recording = self.sampled.then(Recording::start).transpose()?;
        Ok(launch)
    }

    fn after(&mut self, _: &Turn<'_, Breakdown>, _: &Order, parts: &mut Vec<Whole<Outcome>>) -> Result<(), Failure> {
        if let (Some(recording), Some(run)) = (self.recording.take(), parts.first_mut()) {
            let samples = recording.finish(run.reading.window_ns)?;
            // Those of the machine: perf samples all of them, whatever this process may use.
            // SAFETY: no memory is handed over.
            let processors = unsafe { libc::sysconf(libc::_SC_NPROCESSORS_ONLN) }.max(1);
            run.outcome.sort_out(&run.reading, &samples, processors as f64);
        }
        Ok(())
    }

    fn tell(&mut self, rows: &[Row<Outcome>], report: &mut Report<Value>) {
        tell(rows.iter().map(|row| row.trials.iter().all(|t| t.outcome.faults.filled)), report);
        let share = |part| {
            let of = |t: &Trial<Outcome>| {
                let parts = &t.outcome.processors_us_per_op;
                parts.get(&part).copied().unwrap_or(0.0) / parts.values().sum::<f64>().max(f64::MIN_POSITIVE)
            };
            rows.iter().flat_map(|row| &row.trials).map(of).fold(0.0, f64::max) * 100.0
        };
        if self.sampled {
            report.notes.push(format!(
                "Other programs took up to {:.0} % of the processors' time in a run; up to {:.0} % is in no line of the table \
                 (`other_functions` in the JSON).",
                share(Part::Elsewhere),
                share(Part::Other)
            ));
        }
    }
}

impl Outcome {
    /// Puts samples down to parts.
    fn sort_out(&mut self, reading: &Reading, samples: &[Sample], processors: f64) {
        let (mut counts, mut other): (BTreeMap<Part, usize>, HashMap<&str, usize>) = Default::default();
        for sample in samples {
            let part = part(sample, self.faults.pid, &self.faults.load_tids);
            *counts.entry(part).or_insert(0) += 1;
            if part == Part::Other {
                *other.entry(sample.frames.first().map_or("[nothing]", |frame| &frame.symbol)).or_insert(0) += 1;
            }
        }
        split_idle(&mut counts, reading);
        self.samples = counts.values().sum();
        let us = processors * reading.seconds * 1e6 / reading.ops.max(1) as f64;
        self.processors_us_per_op =
            counts.into_iter().map(|(part, count)| (part, count as f64 / self.samples.max(1) as f64 * us)).collect();
        let mut other: Vec<(String, usize)> = other.into_iter().map(|(name, count)| (name.to_owned(), count)).collect();
        other.sort_by(|a, b| b.1.cmp(&a.1).then_with(|| a.0.cmp(&b.0)));
        other.truncate(NAMED);
        self.other_functions = other;
    }
}

/// A profiler cannot tell what an idle processor waits for; the kernel's own count can, and idle samples are shared out by it.
fn split_idle(counts: &mut BTreeMap<Part, usize>, reading: &Reading) {
    let (Some(&idle), Some(machine)) = (counts.get(&Part::Idle), reading.machine) else { return };
    let all = machine.iowait_s + machine.idle_s;
    if all > 0.0 {
        let waiting = (idle as f64 * machine.iowait_s / all).round() as usize;
        counts.insert(Part::IoWait, waiting);
        counts.insert(Part::Idle, idle - waiting);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::substrates::MachineTime;

    fn sample(tid: u32, symbol: &str) -> Sample {
        let frame = crate::perf::Frame { symbol: symbol.to_owned(), module: "[kernel.kallsyms]".to_owned(), kernel: true };
        Sample { thread: "load".to_owned(), pid: if tid == 0 { 0 } else { 100 }, tid, at_ns: 1, frames: vec![frame] }
    }

    #[test]
    fn parts_add_up_to_the_processors_time() {
        let machine = Some(MachineTime { busy_s: 1.0, iowait_s: 0.3, idle_s: 0.1 });
        let reading = Reading { ops: 1000, seconds: 1.0, machine, ..Reading::default() };
        let faults = faults::Outcome { pid: 100, load_tids: vec![101], ..Default::default() };
        let mut outcome = Outcome { faults, ..Outcome::default() };
        let mut samples = vec![sample(101, "exc_page_fault"); 6];
        samples.extend(vec![sample(0, "do_idle"); 4]);
        samples.extend([sample(101, "odd"), sample(101, "odd")]);
        outcome.sort_out(&reading, &samples, 2.0);
        let us = &outcome.processors_us_per_op;
        assert!((us.values().sum::<f64>() - 2000.0).abs() < 1e-6, "two processors, a second, a thousand operations: {us:?}");
        let of = |part| us[&part] / 2000.0 * 12.0;
        assert!((of(Part::Trap) - 6.0).abs() < 1e-9 && (of(Part::IoWait) - 3.0).abs() < 1e-9, "{us:?}");
        assert_eq!((outcome.samples, &outcome.other_functions[..]), (12, &[("odd".to_owned(), 2)][..]));
        let trial = Trial { repetition: 1, reading, outcome };
        assert!((fault(&trial).unwrap() / 2000.0 * 12.0 - 8.0).abs() < 1e-9, "trap and other");
        let mut coarse = trial.clone();
        coarse.outcome.processors_us_per_op.clear();
        (coarse.outcome.faults.time.user_s, coarse.outcome.faults.time.workers_s) = (0.2, 0.1);
        assert!((fault(&coarse).unwrap() - 300.0).abs() < 1e-6, "without samples the process's own time counts");
    }
}
