//! `fastmap bench random-64k`: random reads of 64 KiB, as analytics over columns make them.

use std::sync::Barrier;
use std::thread;
use std::time::{Duration, Instant};

use clap::Args as ClapArgs;
use fastmap_cli::failure::Failure;
use fastmap_cli::size::Size;
use serde_json::json;

use fastmap_bench::experiments::micro::{Pages, VERIFIED};
use crate::args::{once_each, one_of, threads};
use crate::driver::Ctx;
use crate::experiment::columns::{cpu, p50, p99, peak, queue, rate, times_mmap};
use crate::experiment::{Arm, Claim, Column, Experiment, Flags, Group, Nothing, Over, Part, Plan, Plot, TEMPORARY};
use crate::results::Kind;
use crate::substrates::engine::{self, Access, Cached, Load};
use crate::substrates::measure::histogram;
use crate::substrates::pattern::Scatter;
use crate::substrates::{self, Engine, Meter, Op, PAGE, Pattern, Reading, Spec, prepare};
use crate::target::{Target, enough_for, length_for};

/// Pages of a read.
const BLOCK: u64 = (64 << 10) / PAGE as u64;

/// Measure random reads of 64 KiB: sixteen neighbouring pages, then another place
#[derive(Debug, ClapArgs)]
#[command(after_help = "\
Every page of a read has its stamp checked. Places come in a scattered order, each once before any again; memory is filled first.

Examples:
  fastmap bench random-64k
  fastmap bench random-64k --threads 1,2,4,8 --size 4GiB --seconds 5 --repeat 5 --json out.json")]
pub struct Args {
    /// Engines to compare, separated by commas
    #[arg(
        long,
        value_name = "LIST",
        value_delimiter = ',',
        default_value = "mmap,mmap-random,fastmap,pread,direct",
        value_parser = one_of(Engine::PLAIN)
    )]
    pub engines: Vec<Engine>,
    /// Threads, all on one map; several numbers, separated by commas, are measured one after the other
    #[arg(long, value_name = "LIST", value_delimiter = ',', default_value = "2", value_parser = threads)]
    pub threads: Vec<u32>,
    /// Size of the file, a multiple of 64 KiB
    #[arg(long, default_value = "512MiB")]
    pub size: Size,
}

/// The experiment.
pub struct Random64k;

impl Experiment for Random64k {
    const NAME: &'static str = "random-64k";
    type Args = Args;
    type Case = Spec;
    type Outcome = Nothing;
    const FLAGS: Flags = Flags {
        repeat: "3",
        seconds: Some(("1", "Seconds to measure each run, and at most to warm up")),
        memory: Some("a quarter of --size"),
        dir: Some(TEMPORARY),
    };
    const COLUMNS: &'static [Column<Nothing>] = &[rate(), times_mmap(), cpu(), p50(), p99(), queue(), peak()];
    const PLOTS: &'static [Plot<Nothing>] = &[
        Plot::new("Random reads of 64 KiB", &["ops_per_s"], Kind::Lines, Over::Label("threads")),
        Plot::new("Latency", &["latency_us.p50", "latency_us.p99"], Kind::Bars, Over::Arms).log(),
    ];
    const VERIFIED: &'static str = VERIFIED;

    fn plan(args: &Args, ctx: &mut Ctx) -> Result<Plan<Random64k>, Failure> {
        let bytes = length_for(None, Some(args.size), 0)?;
        enough_for(bytes, &args.threads)?;
        let limit = ctx.limit_of_file(bytes, false, true)?;
        let target = Target::temporary(&ctx.dir_for(bytes)?, args.size, prepare::stamp_page)?;
        let group = |threads| {
            let spec = |engine| target.spec(engine, Pattern::Random, Op::Read, threads, limit.bytes(), ctx.seconds);
            let arms = once_each(&args.engines).into_iter().map(|engine| Arm::of(engine, spec(engine))).collect();
            Group::new("random reads of 64 KiB", vec![("threads", json!(threads))], arms)
        };
        let groups = once_each(&args.threads).into_iter().map(group).collect();
        let (place, file) = (target.place.clone(), target.label.clone());
        let stage = Box::new(Pages { target, spec: |case| case });
        Ok(Plan { about: String::new(), place, file, bytes, limit, groups, until_steady: None, stage })
    }

    fn run(case: &Spec, meter: &Meter) -> substrates::Result<Vec<Part<Nothing>>> {
        let reading = engine::with(case, Blocks { spec: case, meter })?;
        meter.let_go();
        Ok(Part::whole(reading, Nothing {}))
    }

    fn claims() -> Vec<Claim<Nothing>> {
        vec![Claim::new("ops_per_s")]
    }
}

struct Blocks<'a> {
    spec: &'a Spec,
    meter: &'a Meter,
}

impl Load for Blocks<'_> {
    type Output = Reading;

    fn over<A: Access>(self, access: &A, cached: Option<&Cached<'_>>) -> substrates::Result<Reading> {
        let Spec { pages, threads, seconds, .. } = *self.spec;
        let (blocks, threads) = (pages / BLOCK, u64::from(threads));
        let (scatter, seconds) = (Scatter::over(blocks), Duration::from_secs_f64(seconds));
        let enough = self.spec.kept() / PAGE as u64 * 5 / 4 / BLOCK / threads;
        // Passed twice: when all are warm, and when the window is open.
        let barrier = Barrier::new(threads as usize + 1);
        let read = |thread: u64| {
            let (mut local, mut latency, warm) = (access.local(), histogram(), Instant::now());
            let mut number = thread;
            let mut block = |local: &mut A::Local| {
                let first = scatter.page_of(number % blocks) * BLOCK;
                number += threads;
                (first..first + BLOCK).try_for_each(|page| access.read(local, page))
            };
            let warmed = local.as_mut().ok().map_or(Ok(()), |local| {
                (0..enough).take_while(|_| warm.elapsed() < seconds).try_for_each(|_| block(local))
            });
            barrier.wait();
            barrier.wait();
            warmed?;
            let (mut local, start) = (local?, Instant::now());
            let mut before = start;
            while before - start < seconds {
                block(&mut local)?;
                let now = Instant::now();
                latency.saturating_record((now - before).as_nanos() as u64);
                before = now;
            }
            Ok((before, latency))
        };
        thread::scope(|scope| {
            let read = &read;
            let running: Vec<_> = (0..threads).map(|thread| scope.spawn(move || read(thread))).collect();
            barrier.wait();
            let (stats, open) = (cached.map(Cached::stats), self.meter.start(&self.spec.path));
            let start = open.at;
            barrier.wait();
            let ended: Vec<substrates::Result<_>> =
                running.into_iter().map(|t| t.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))).collect();
            let (mut window, mut latency) = (Duration::ZERO, histogram());
            for one in ended {
                let (end, histogram) = one?;
                window = window.max(end - start);
                latency.add(histogram).expect("all histograms have the same bounds");
            }
            let reading = open.end().counting(latency.len(), window, Some(&latency));
            Ok(reading.cached(cached, stats.zip(cached.map(Cached::stats)), false))
        })
    }
}
