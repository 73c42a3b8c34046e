//! `fastmap bench async`: updates of a file larger than memory, and what they wait for.

use clap::Args as ClapArgs;
use fastmap_cli::failure::Failure;
use fastmap_cli::size::{Memory, Size};
use serde_json::json;

use crate::args::{once_each, one_of, operations, threads};
use crate::driver::Ctx;
use crate::experiment::columns::{cpu, longest, p50, p99, p999, peak, queue, rate, times_mmap};
use crate::experiment::{
    Arm, Claim, Column, Experiment, Flags, Group, Launch, MMAP, Of, Over, Paper, Part, Plan, Plot, Row, Stage, TEMPORARY, Trial, Turn,
};
use crate::results::Kind;
use crate::substrates::updates::{self, ENGINES, Load, Order, Outcome, Work, capacity_for, does, fresh_page, least_memory};
use crate::substrates::{self, Engine, Meter, PAGE, Pattern};
use crate::target::{Target, enough_for, length_for, make_cold};

/// Measure updates of a file larger than memory: what stores to absent pages wait for
#[derive(Debug, ClapArgs)]
#[command(long_about = "\
Measure updates of a file larger than memory.

A store to a page that is not in memory waits for the whole page to be read, though the program does not want to know what \
was in it. The works here do little else. Each run does a number of operations, or as many as --seconds allow, and then flushes the file; both \
rates are shown, since a read that was put off, and what was stored, have to be paid for some time. \
Every engine and repetition is a fresh process in a memory cgroup of its own, limited to --memory; engines take turns; the \
file is dropped from the page cache before each run. Records are warmed up with 1.25 times as many operations as pages fit into memory; the other works want their \
pages absent. Reads check every byte of their record. After the flush the whole file is read back from the device and \
every byte compared with what it held before and what was stored since: one wrong byte fails the command. Figures are \
medians over the repetitions.")]
#[command(after_help = "\
Works:
  store8    stores of 8 bytes, scattered, each to a page that is absent
  line      stores of whole 64-byte lines, scattered, each to a page that is absent
  record    records of 1 KiB: half of the operations read one, half store one, all of its bytes

Engines:
  mmap, mmap-random   kernel mmap: no advice, MADV_RANDOM
  fastmap             this project; a store to an absent page waits for the read
  fastmap-ar          the same under the AR protocol (MapOptions::async_read): stores complete at once on a page filled with an \
initial value, and the program looks out for it when it reads; whole lines only, so not store8
  fastmap-stores      the same with MapOptions::async_stores: stores are decoded and kept until the read is done; the \
program does nothing for it

Examples:
  fastmap bench async --dir /mnt/disk
  fastmap bench async --work record --threads 1,2,4,8,16 --size 4GiB --memory 1GiB --repeat 5 --json out.json")]
pub struct Args {
    /// What to do, separated by commas
    #[arg(long = "work", value_name = "LIST", value_delimiter = ',', default_value = "store8,line,record")]
    pub works: Vec<Work>,
    /// Engines to compare, separated by commas
    #[arg(
        long,
        value_name = "LIST",
        value_delimiter = ',',
        default_value = "mmap,mmap-random,fastmap,fastmap-ar,fastmap-stores",
        value_parser = one_of(ENGINES)
    )]
    pub engines: Vec<Engine>,
    /// Order of the records: zipf (theta 0.99, as YCSB's) or random
    #[arg(long, default_value_t = Pattern::Zipf, value_parser = records_order)]
    pub pattern: Pattern,
    /// Threads, all on one map; several numbers, separated by commas, are measured one after the other
    #[arg(long, value_name = "LIST", value_delimiter = ',', default_value = "1", value_parser = threads)]
    pub threads: Vec<u32>,
    /// Operations of a run, all threads together [default: half as many as the file has pages; records: as many]
    #[arg(long, value_name = "N", value_parser = operations)]
    pub ops: Option<u64>,
    /// Size of the file, a multiple of 4096
    #[arg(long, default_value = "1GiB")]
    pub size: Size,
}

/// The experiment.
pub struct Async;

impl Experiment for Async {
    const NAME: &'static str = "async";
    type Args = Args;
    type Case = Order;
    type Outcome = Outcome;
    const FLAGS: Flags =
        Flags {
            repeat: "3",
            seconds: Some(("10", "Most seconds of a run's operations, and of those before them")),
            memory: Some("a quarter of --size"),
            dir: Some(TEMPORARY),
        };
    const COLUMNS: &'static [Column<Outcome>] = &[
        rate(),
        times_mmap(),
        Column::new("flushed_ops_per_s", "and flush", "thousands of operations a second, the flush included", |t: &Trial<Outcome>| {
            Some(t.outcome.flushed_ops_per_s)
        })
        .per(1e3)
        .range(),
        Column::from("flushed_times_best_mmap", "x best mmap", "times the best kernel mmap", Of::TimesMmap("flushed_ops_per_s")),
        Column::new("flush_seconds", "flush s", "seconds of the flush", |t: &Trial<Outcome>| Some(t.outcome.flush_seconds)).less(),
        cpu(),
        p50(),
        p99(),
        p999(),
        longest(),
        peak(),
        queue(),
        Column::new("synchronised", "", "reads that met the initial value", |t: &Trial<Outcome>| Some(t.outcome.synchronised as f64)).less(),
    ];
    const PLOTS: &'static [Plot<Outcome>] = &[
        Plot::new("Throughput", &["ops_per_s"], Kind::Lines, Over::Label("threads")).after(
            "AR-MMAP (poster), figure 3: 30.5 to 7.3 % less time than kernel mmap at 1 to 16 threads, which is 1.44 to 1.08 times the rate",
        ),
        Plot::new("Throughput with the flush", &["flushed_ops_per_s"], Kind::Lines, Over::Label("threads")),
        Plot::new("Latency", &["latency_us.p50", "latency_us.p99", "latency_us.p999", "latency_us.max"], Kind::Bars, Over::Arms).log(),
    ];
    const VERIFIED: &'static str = "Reads checked every byte of their record; after the flush the whole file was read back from the device and \
                                    every byte compared with what it held before and what was stored since.";

    fn plan(args: &Args, ctx: &mut Ctx) -> Result<Plan<Async>, Failure> {
        let bytes = length_for(None, Some(args.size), 0)?;
        let pages = bytes / PAGE as u64;
        enough_for(bytes, &args.threads)?;
        let mut loads = Vec::new();
        for work in once_each(&args.works) {
            let engines: Vec<Engine> = once_each(&args.engines).into_iter().filter(|engine| does(*engine, work)).collect();
            if engines.is_empty() {
                let what = format!("none of them can do {work}, whose stores are not whole lines");
                return Err(Failure::usage("--engines", what, "give others, or --work line,record"));
            }
            let (ops, warmup) = match work {
                Work::Record => (args.ops.unwrap_or(pages), in_memory(ctx, pages) * 5 / 4),
                Work::Store8 | Work::Line => (args.ops.unwrap_or(pages / 2), 0),
            };
            if work != Work::Record && ops > pages {
                let what = format!("{ops} stores cannot each have an absent page of {pages}");
                return Err(Failure::usage("--ops", what, "give fewer, more --size, or --work record"));
            }
            loads.extend(once_each(&args.threads).into_iter().map(|threads| (work, threads, ops, warmup, engines.clone())));
        }
        // Records need most beside the cache; all works are given the same.
        let limit = ctx.limit((bytes / 4).max(least_memory(pages, Work::Record)), |limit| {
            match args.engines.iter().all(|engine| engine.is_mmap()) {
                true => Ok(()),
                false => Ok(capacity_for(limit, pages, Work::Record).map(drop)?),
            }
        })?;
        let target = Target::temporary(&ctx.dir_for(bytes)?, args.size, fresh_page)?;
        let group = |(work, threads, ops, warmup, engines): (Work, u32, u64, u64, Vec<Engine>)| {
            let (what, pattern) = match work {
                Work::Record => (format!("reads and updates of 1 KiB records, half and half, {}", args.pattern), Some(args.pattern)),
                Work::Line => ("stores of a 64-byte line, each to an absent page".to_owned(), None),
                Work::Store8 => ("stores of 8 bytes, each to an absent page".to_owned(), None),
            };
            let arm = |engine| {
                let load = Load { engine, work, pattern: args.pattern, threads, ops, warmup, seconds: ctx.seconds };
                let (path, label, memory) = (target.path.clone(), target.label.clone(), limit.bytes());
                Arm::of(engine, Order { load, path, label, pages, memory, epoch: 0 })
            };
            let mut labels = vec![("work", json!(work)), ("threads", json!(threads)), ("ops", json!(ops))];
            labels.extend(pattern.map(|pattern| ("pattern", json!(pattern))));
            Group::new(what, labels, engines.into_iter().map(arm).collect())
        };
        Ok(Plan {
            about: String::new(),
            place: target.place.clone(),
            file: target.label.clone(),
            bytes,
            groups: loads.into_iter().map(group).collect(),
            limit,
            until_steady: None,
            stage: Box::new(Lines { target, epoch: 0 }),
        })
    }

    fn run(case: &Order, meter: &Meter) -> substrates::Result<Vec<Part<Outcome>>> {
        updates::run(case, meter).map(|(reading, outcome)| Part::whole(reading, outcome))
    }

    fn claims() -> Vec<Claim<Outcome>> {
        let of = |ours| Claim::new("ops_per_s").between(ours, MMAP);
        vec![
            of(&[Engine::FastmapStores]).of(|row| row.text("work") == "store8"),
            of(&[Engine::FastmapAr]).of(|row| row.text("work") != "store8").paper(paper),
        ]
    }
}

/// Pages that fit into memory.
fn in_memory(ctx: &Ctx, pages: u64) -> u64 {
    match ctx.memory {
        Some(Memory::Limit(size)) => size.0 / PAGE as u64,
        _ => pages / 4,
    }
}

/// Share of the time that the paper saves with the slower of its devices, at the fewest and at the most threads.
fn paper(row: &Row<Outcome>) -> Option<Paper> {
    let saved = match (row.text("work"), row.number("threads")) {
        ("record", Some(1.0)) => 0.305,
        ("record", Some(16.0)) => 0.073,
        _ => return None,
    };
    let setting = "YCSB, half reads and half updates, on a memcached made for it, page cache a quarter of the data, Xeon E5-2697 v4 and Intel \
                   P3700; its greatest figure taken to be at 1 thread, its smallest at 16";
    Paper::says(1.0 / (1.0 - saved), "AR-MMAP (poster, Fujitsu Laboratories), figure 3", setting)
}

/// The file of lines, and how many runs stored to it.
struct Lines {
    target: Target,
    epoch: u32,
}

impl Stage<Async> for Lines {
    fn before(&mut self, _: &Turn<'_, Async>, case: &mut Order) -> Result<Launch, Failure> {
        self.epoch += 1;
        case.epoch = self.epoch;
        make_cold(&self.target.file, &self.target.label, self.target.bytes())?;
        Ok(Launch::default())
    }
}

fn records_order(text: &str) -> Result<Pattern, String> {
    match text.parse() {
        Ok(pattern @ (Pattern::Zipf | Pattern::Random)) => Ok(pattern),
        _ => Err(format!("\"{text}\" is not an order of records: give zipf or random")),
    }
}
