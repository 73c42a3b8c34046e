//! `fastmap bench replacement`: how many touches find their page in memory, beside kernel mmap with as many pages in memory.

use std::path::PathBuf;

use clap::Args as ClapArgs;
use fastmap_cli::cgroup::REMEDY;
use fastmap_cli::failure::Failure;
use fastmap_cli::size::{Memory, Size};
use serde_json::json;

use crate::args::touches;
use crate::driver::Ctx;
use crate::experiment::columns::{peak, rate};
use crate::experiment::{
    Arm, Claim, Column, Experiment, Flags, Group, Launch, Of, Over, Part, Plan, Plot, Stage, Trial, Turn,
};
use crate::results::Kind;
use crate::substrates::replay::{self, Replay, Replayed};
use crate::substrates::{self, Advice, Engine, Meter, Op, PAGE, Pattern, Spec, Trace, least_memory, memory_for, prepare};
use crate::target::{Target, length_for};

/// Size of the file if neither the user nor an existing file says another. Hit ratios need many touches, not many bytes.
const DEFAULT_BYTES: u64 = 256 << 20;

/// The engines. MADV_RANDOM, the advice of the second engine, turns readahead off. In newer kernels it also turns off the look at accessed
/// bits.
const ENGINES: &[Engine] = Engine::PROGRAMS;

/// Measure which pages are kept: hit ratios of traces beside kernel mmap, with as many pages in memory
#[derive(Debug, ClapArgs)]
#[command(long_about = "\
Measure which pages are kept.

Each trace is a sequence of touches by one thread over a file larger than memory, scattered over it so that no readahead \
helps. Kernel mmap, without advice and with MADV_RANDOM, replays it in a memory cgroup limited to --memory; FastMap then \
with a cache of as many pages as the kernel had of the file in memory at the end. Every run is a fresh process and begins \
with a cold file; engines take turns; the stamp of every page touched is checked. Counted are the touches that had to \
wait for a read: major faults of the process, misses of the engine.")]
#[command(after_help = "\
Traces:
  zipf-0.6, zipf-0.99, zipf-1.2   Zipf with this exponent
  scan-mixed                      half to a hot set of half of memory, half a scan of the file
  loop                            the same pages again and again, a tenth more than fit into memory
  shifting                        nine of ten to a window of half of memory, which moves on

Examples:
  fastmap bench replacement
  fastmap bench replacement --traces zipf-0.99,scan-mixed --size 4GiB --memory 1GiB --repeat 5 --json out.json")]
pub struct Args {
    /// Traces to replay, separated by commas [default: all]
    #[arg(long, value_name = "LIST", value_delimiter = ',')]
    pub traces: Vec<Trace>,
    /// The file. It is made if it is missing, extended if it is shorter than --size, and used again if `fastmap bench` made it. Any other
    /// file is refused [default: a temporary file in the current directory]
    #[arg(long, value_name = "PATH")]
    pub file: Option<PathBuf>,
    /// Size of the file, a multiple of 4096 [default: that of --file if it exists, else 256MiB]
    #[arg(long)]
    pub size: Option<Size>,
    /// Most touches in the window, as a multiple of the file's pages. As many touches come before the window
    #[arg(long, value_name = "N", default_value_t = 8, value_parser = touches)]
    pub touches: u32,
}

/// The experiment.
pub struct Replacement;

impl Experiment for Replacement {
    const NAME: &'static str = "replacement";
    type Args = Args;
    type Case = Replay;
    type Outcome = Replayed;
    const FLAGS: Flags = Flags {
        repeat: "3",
        seconds: Some(("5", "Most seconds of the touches in the window, and of those before it")),
        memory: Some("a quarter of --size"),
        dir: None,
    };
    const COLUMNS: &'static [Column<Replayed>] = &[
        Column::new("hit_percent", "hits %", "per cent of touches that find their page in memory", |t: &Trial<Replayed>| Some(t.outcome.hit_percent))
            .range(),
        Column::new("misses_per_1000", "misses/1000", "of a thousand touches, those that had to wait for a read", |t: &Trial<Replayed>| {
            Some(t.outcome.misses as f64 * 1e3 / t.reading.ops.max(1) as f64)
        })
        .less(),
        Column::from("times_fewer_misses", "x best mmap", "times fewer misses than the best kernel mmap", Of::TimesMmap("misses_per_1000")),
        Column::new("resident_pages", "pages", "pages in memory", |t| Some(t.outcome.resident_pages as f64)),
        rate(),
        peak(),
    ];
    const PLOTS: &'static [Plot<Replayed>] = &[
        Plot::new("Touches that find their page in memory", &["hit_percent"], Kind::Bars, Over::Groups),
        Plot::new("Throughput", &["ops_per_s"], Kind::Bars, Over::Groups),
    ];
    const VERIFIED: &'static str = "The stamp of every page touched was checked.";

    fn plan(args: &Args, ctx: &mut Ctx) -> Result<Plan<Replacement>, Failure> {
        let bytes = length_for(args.file.as_deref(), args.size, DEFAULT_BYTES)?;
        let least = least_memory(bytes / PAGE as u64, false);
        let default = (bytes / 4).max(least);
        let memory = match ctx.memory {
            Some(Memory::Limit(size)) => size.0,
            _ => default,
        };
        if memory < least {
            let what = format!("{} are too few for the engine fastmap", Size(memory));
            return Err(Failure::usage("--memory", what, format!("give at least {}", Size(least))));
        }
        if bytes < memory + memory / 8 {
            let what = format!("{} hardly exceed {} of memory", Size(bytes), Size(memory));
            return Err(Failure::usage("--size", what, "give four times --memory"));
        }
        let limit = ctx.limit(default, |_| Ok(()))?;
        if limit.bytes().is_none() {
            let why = "hit ratios say nothing where kernel mmap may use all memory";
            return Err(Failure::new("--memory", why, REMEDY));
        }
        let target = match &args.file {
            Some(path) => Target::named(path, args.size.or(Some(Size(bytes))), false)?,
            None => Target::temporary(&ctx.dir_for(bytes)?, Size(bytes), prepare::stamp_page)?,
        };
        ctx.notes.push(
            "One thread, no readahead. FastMap's cache has as many pages as kernel mmap had of the file in memory at the end of its run, not \
             more: so what is compared is which pages are kept, not how many fit."
                .to_owned(),
        );
        let count = u64::from(args.touches) * target.pages;
        let traces = if args.traces.is_empty() { Trace::ALL.to_vec() } else { args.traces.clone() };
        let group = |trace: Trace| {
            let arm = |&engine: &Engine| {
                let spec = target.spec(engine, Pattern::Random, Op::Read, 1, Some(memory), ctx.seconds);
                // Pages that are read ahead would hide which pages are kept.
                let spec = Spec { advice: Advice::Random, ..spec };
                Arm::of(engine, Replay { spec, trace, frames: memory / PAGE as u64, touches: (count, count), seed: 0 })
            };
            Group::new(trace.name(), vec![("trace", json!(trace))], ENGINES.iter().map(arm).collect())
        };
        Ok(Plan {
            about: String::new(),
            place: target.place.clone(),
            file: target.label.clone(),
            bytes,
            limit,
            groups: traces.into_iter().map(group).collect(),
            until_steady: None,
            stage: Box::new(Traces { target }),
        })
    }

    fn run(case: &Replay, meter: &Meter) -> substrates::Result<Vec<Part<Replayed>>> {
        replay::replay(case, meter).map(|(reading, replayed)| Part::whole(reading, replayed))
    }

    fn claims() -> Vec<Claim<Replayed>> {
        vec![Claim::new("misses_per_1000").what("touches that had to wait for a read, as many pages in memory, trace")]
    }
}

struct Traces {
    target: Target,
}

impl Stage<Replacement> for Traces {
    fn before(&mut self, turn: &Turn<'_, Replacement>, case: &mut Replay) -> Result<Launch, Failure> {
        case.seed = turn.repetition.into();
        if turn.engine.is_fastmap() {
            // FastMap gets as many pages as the kernel kept. That is less than the limit, since the kernel needs some of the memory itself.
            let kernel = turn.group().filter(|row| row.engine.is_mmap()).flat_map(|row| &row.trials);
            let of_now = kernel.filter(|trial| trial.repetition == turn.repetition);
            let resident = of_now.map(|trial| trial.outcome.resident_pages).max().unwrap_or(0);
            case.spec.memory = Some(memory_for(resident, self.target.pages));
        }
        Ok(Launch { memory: case.spec.memory, ..self.target.ready(&mut case.spec)? })
    }
}
