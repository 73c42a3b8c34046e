//! `fastmap bench ablation`: everything on, and one thing off.

use clap::Args as ClapArgs;
use fastmap_cli::failure::Failure;
use fastmap_cli::machine::FileSystem;
use fastmap_cli::size::Size;
use serde_json::json;

use fastmap_bench::experiments::micro::{Pages, VERIFIED};
use crate::args::{once_each, threads};
use crate::driver::Ctx;
use crate::experiment::columns::{cpu, merged, p99, peak, rate, times_mmap};
use crate::experiment::{
    Arm, Claim, Column, Experiment, Flags, Group, Nothing, Of, Over, Part, Plan, Plot, Row, TEMPORARY, Trial,
};
use crate::results::Kind;
use crate::substrates::ablation::{self, Off, Order, Work};
use crate::substrates::{self, Engine, Meter, prepare};
use crate::target::{Target, enough_for, length_for};

/// Measure what each mechanism of FastMap is worth: everything on, and one thing off
#[derive(Debug, ClapArgs)]
#[command(long_about = "\
Measure what each mechanism of FastMap is worth: everything on, and one thing off, after the FastMap paper's figure 6 and what \
it says of batched TLB invalidations.

Each load runs with all mechanisms, without each of those that can matter for it, and, for scale, on kernel mmap with the advice \
that suits it; they take turns within each repetition. What a mechanism is worth is the rate with everything on, divided by the rate \
without it, repetition by repetition; the same for processor time an operation. Where the device sets the pace a mechanism shows in \
processor time alone.

Every run is a fresh process in a memory cgroup of its own, limited to --memory; the file is dropped from the page cache before. It \
warms up until 1.25 times the pages that fit into memory were touched (or --seconds have passed) and is then measured for --seconds. \
Every operation checks its page's stamp; after a load that writes, the whole file is read back and every byte checked. One wrong \
byte fails the command. Figures are medians over the repetitions.")]
#[command(after_help = "\
Loads:
  random-read                 random pages, --threads threads: per-core, batch-64, batch-1, stripes
  random-write                the same: per-core, batch-1, protection, stripes, merging
  rmw                         read-modify-write, zipf, --threads threads: per-core, protection, habits
  fill                        a fresh file filled front to back and flushed: protection, merging
  forward, backward, stride   scans; every 16th page: readahead

Mechanisms, and what is done without each:
  per-core     credits, clean queues and buffers of each processor's own: one of each for all
  batch-64     pages leave memory 512 at a time (in caches below 128 MiB a 64th of the pages), with one TLB flush: 64 at a time
  batch-1      the same: each alone
  protection   pages that are written back are write-protected with one call, and one TLB flush: each alone
  stripes      a file is striped over several userfaultfds, and so VMAs and their locks: one
  merging      neighbouring dirty pages are written with one write: each alone (the kernel may still merge them)
  readahead    walks forward, backward and with strides are recognised: nothing is read ahead
  habits       pages that are read are writable at once where stores follow: each first store traps

Examples:
  fastmap bench ablation
  fastmap bench ablation --dir /mnt/fastmap-fast --threads 2,8 --size 1GiB --seconds 2 --repeat 5 --json out.json
  fastmap bench ablation --loads random-read,random-write --off batch-64,batch-1 --size 4GiB
  fastmap bench ablation --dir /dev/shm   no device: the engine's own work alone; kernel mmap, which has the file itself mapped there,
                                          is no comparison; without fill")]
pub struct Args {
    /// Loads, separated by commas
    #[arg(
        long,
        value_name = "LIST",
        value_delimiter = ',',
        default_value = "random-read,random-write,rmw,fill,forward,backward,stride"
    )]
    pub loads: Vec<Work>,
    /// Mechanisms to do without, one at a time, separated by commas [default: all that can matter for the load]
    #[arg(long, value_name = "LIST", value_delimiter = ',')]
    pub off: Vec<Off>,
    /// Threads of the random loads, all on one map; several numbers, separated by commas, are measured one after the other
    #[arg(long, value_name = "LIST", value_delimiter = ',', default_value = "8", value_parser = threads)]
    pub threads: Vec<u32>,
    /// Size of the file, a multiple of 4096
    #[arg(long, default_value = "640MiB")]
    pub size: Size,
}

/// The experiment.
pub struct Ablation;

impl Experiment for Ablation {
    const NAME: &'static str = "ablation";
    type Args = Args;
    type Case = Order;
    type Outcome = Nothing;
    const FLAGS: Flags = Flags {
        repeat: "3",
        seconds: Some(("0.8", "Seconds to measure each run, and at most to warm up; fill takes what it takes")),
        memory: Some("a quarter of --size"),
        dir: Some(TEMPORARY),
    };
    const COLUMNS: &'static [Column<Nothing>] = &[
        rate(),
        Column::from("worth", "worth", "rate with everything on, to that without", Of::Worth("ops_per_s")).range(),
        cpu(),
        Column::from("worth_cpu", "CPU worth", "processor time without, to that with everything on", Of::Worth("cpu_us_per_op"))
            .range(),
        times_mmap(),
        p99(),
        Column::new("drops_per_page", "drops/page", "calls of process_madvise(2) for each page evicted", |t| {
            per_page(t, t.reading.fastmap?.counters.eviction_batches)
        })
        .less(),
        Column::new("shootdowns_per_page", "TLB ints/page", "interrupts to flush TLBs for each page evicted", |t| {
            per_page(t, t.reading.tlb_shootdowns?)
        })
        .less(),
        merged(),
        peak(),
    ];
    const PLOTS: &'static [Plot<Nothing>] = &[
        Plot::new("One mechanism off: random loads", &["worth"], Kind::Bars, Over::Groups).of(is_random).after(
            "FastMap, USENIX ATC '20, figure 6: what its page tree, clean queues, free lists and dirty queues of each core's own bring, a plot \
             without numbers",
        ),
        Plot::new("One mechanism off: processor time of random loads", &["worth_cpu"], Kind::Bars, Over::Groups).of(is_random),
        Plot::new("One mechanism off: other loads", &["worth"], Kind::Bars, Over::Groups)
            .of(|row| row.engine.is_fastmap() && !is_random(row)),
        Plot::new("TLB flushes of eviction", &["drops_per_page", "shootdowns_per_page"], Kind::Bars, Over::Arms)
            .of(|row| row.text("load") == "random-read" && row.engine.is_fastmap())
            .after(
                "FastMap, USENIX ATC '20, section on false TLB invalidations: without batches flush_tlb_mm_range() takes 20.3 % of system \
                 time, with them 0.1 %",
            ),
        Plot::new("Everything on, beside kernel mmap", &["times_best_mmap"], Kind::Bars, Over::Groups).of(|row| row.arm == 0),
    ];
    const VERIFIED: &'static str = VERIFIED;

    fn plan(args: &Args, ctx: &mut Ctx) -> Result<Plan<Ablation>, Failure> {
        let bytes = length_for(None, Some(args.size), 0)?;
        enough_for(bytes, &args.threads)?;
        let dir = ctx.dir_for(bytes)?;
        let in_memory = FileSystem::of(&dir).is_memory();
        let mut loads: Vec<(Work, Vec<Off>)> = Vec::new();
        for work in once_each(&args.loads) {
            let off: Vec<Off> = work.needs().iter().copied().filter(|off| args.off.is_empty() || args.off.contains(off)).collect();
            // A fresh file's own pages in memory would count against the limit of the process that fills it.
            let no_comparison = in_memory && work == Work::Fill;
            if !off.is_empty() && !no_comparison {
                loads.push((work, off));
            }
        }
        if loads.is_empty() {
            let what = if in_memory { "nothing is left of them for a file in memory" } else { "nothing in --off matters for them" };
            return Err(Failure::usage("--loads", what, "see `fastmap bench ablation --help` for what matters where"));
        }
        // Loads that write need more beside the cache; all are given the same.
        let limit = ctx.limit_of_file(bytes, true, true)?;
        let target = Target::temporary(&dir, args.size, prepare::stamp_page)?;
        ctx.notes.push(
            "Worth: the rate with everything on, divided by this row's; CPU worth: this row's processor time an operation, divided by that \
             with everything on. Kernel mmap is there for scale, with the one advice that suits each load; `fastmap bench micro` compares \
             with all of them. Without merging each page is a write of its own for io_uring; the kernel's block layer may still merge \
             neighbours that are handed over together."
                .to_owned(),
        );
        if in_memory {
            ctx.notes.push(
                "The file is in memory: kernel mmap has the file itself mapped, evicts nothing, and is no comparison. Fill is left out."
                    .to_owned(),
            );
        }
        let mut groups = Vec::new();
        for (work, off) in loads {
            let (pattern, op) = work.is();
            for threads in if work.is_for_threads() { once_each(&args.threads) } else { vec![1] } {
                let arm = |engine, name: &str, off: Option<Off>| {
                    let spec = target.spec(engine, pattern, op, threads, limit.bytes(), ctx.seconds);
                    let labels = vec![("off", json!(off))];
                    Arm { engine, name: name.to_owned(), labels, case: Order { spec, work, off } }
                };
                let mut arms = vec![arm(Engine::Fastmap, "everything on", None)];
                arms.extend(off.iter().map(|&off| arm(Engine::Fastmap, without(off), Some(off))));
                arms.push(arm(work.kernel(), work.kernel().name(), None));
                let labels = vec![("load", json!(work)), ("pattern", json!(pattern)), ("op", json!(op)), ("threads", json!(threads))];
                groups.push(Group { rotate: true, ..Group::new(in_words(work), labels, arms) });
            }
        }
        Ok(Plan {
            about: String::new(),
            place: target.place.clone(),
            file: target.label.clone(),
            bytes,
            limit,
            groups,
            until_steady: None,
            stage: Box::new(Pages { target, spec: |case: &mut Order| &mut case.spec }),
        })
    }

    fn run(case: &Order, meter: &Meter) -> substrates::Result<Vec<Part<Nothing>>> {
        Ok(Part::whole(ablation::run(case, meter)?, Nothing {}))
    }

    fn claims() -> Vec<Claim<Nothing>> {
        Vec::new()
    }
}

/// FastMap at a load of several threads.
fn is_random(row: &Row<Nothing>) -> bool {
    row.engine.is_fastmap() && ["random-read", "random-write", "rmw"].contains(&row.text("load"))
}

/// A count for each page that was evicted.
fn per_page(trial: &Trial<Nothing>, count: u64) -> Option<f64> {
    let evicted = trial.reading.fastmap?.counters.evicted_pages;
    (evicted > 0).then(|| count as f64 / evicted as f64)
}

fn without(off: Off) -> &'static str {
    match off {
        Off::PerCore => "one shard for all cores",
        Off::Batch64 => "batches of 64",
        Off::Batch1 => "batches of 1",
        Off::Protection => "each page protected alone",
        Off::Stripes => "one stripe",
        Off::Merging => "each page written alone",
        Off::Readahead => "no readahead",
        Off::Habits => "no store prediction",
    }
}

fn in_words(work: Work) -> &'static str {
    match work {
        Work::RandomRead => "random read",
        Work::RandomWrite => "random write",
        Work::Rmw => "zipf read-modify-write",
        Work::Fill => "fill and flush",
        Work::Forward => "forward scan",
        Work::Backward => "backward scan",
        Work::Stride => "every 16th page",
    }
}
