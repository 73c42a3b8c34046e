//! `fastmap bench oltp`: TPC-C over a heap in a file, on one file system after the other.

mod told;
mod volume;

use std::ffi::OsString;

use fastmap_workloads::tpcc::{Engine, Kind, Latency, Order, Outcome, Scale, Times};
use fastmap_workloads::{DeviceReport, PAGE, capacity_for};
use serde::Serialize;

use self::volume::{Image, Volume, missing};
use super::runner::Limit;
use super::summary::median_of;
use super::target::{directory_for, progress_bar};
use super::worker::Job;
use crate::args::{FileSystem, OltpArgs};
use crate::failure::Failure;
use crate::interrupt;
use crate::results::{JsonFile, Report, median};
use crate::size::Size;

/// One engine on one file system; figures are medians over the repetitions, each by itself.
#[derive(Debug, Clone, Serialize)]
struct Summary {
    file_system: FileSystem,
    threads: u32,
    engine: Engine,
    transactions_per_s: f64,
    /// New orders a minute, without those that rolled back.
    new_orders_per_min: f64,
    latency_us: Latency,
    /// Of each kind of transaction.
    kinds: Vec<OfKind>,
    /// Parts of all processors' time.
    times: Times,
    /// Faults that waited for a read of the kernel's.
    major_faults: u64,
    /// New orders rolled back, of all transactions, warm-up included.
    rolled_back: u64,
    transactions: u64,
    /// To fill the tables.
    load_seconds: f64,
    /// To check them.
    check_seconds: f64,
    /// Rows checked at the end.
    rows: u64,
    peak_rss_bytes: u64,
    peak_rss_bytes_max: u64,
    /// `transactions_per_s` of each repetition, in order.
    runs: Vec<f64>,
    /// Average latency of each repetition, in order.
    mean_us: Vec<f64>,
    /// What the device under the heap did.
    #[serde(skip_serializing_if = "Option::is_none")]
    device: Option<DeviceReport>,
}

/// Latencies of one kind of transaction.
#[derive(Debug, Clone, Copy, Serialize)]
struct OfKind {
    kind: Kind,
    latency_us: Latency,
}

impl Summary {
    fn of(file_system: FileSystem, threads: u32, engine: Engine, outcomes: &[Outcome]) -> Summary {
        let each = |figure: fn(&Outcome) -> f64| outcomes.iter().map(figure).collect::<Vec<f64>>();
        let by = |figure| median(each(figure));
        let of_kind = |(number, kind): (usize, Kind)| {
            let latencies: Vec<Latency> = outcomes.iter().filter_map(|o| o.kinds.get(number).copied()).collect();
            OfKind { kind, latency_us: median_of(&latencies, |latency| Some(*latency)).unwrap_or_default() }
        };
        Summary {
            file_system,
            threads,
            engine,
            transactions_per_s: by(|o| o.transactions_per_s),
            new_orders_per_min: by(|o| o.new_orders_per_min),
            latency_us: median_of(outcomes, |o| Some(o.latency_us)).unwrap_or_default(),
            kinds: Kind::ALL.into_iter().enumerate().map(of_kind).collect(),
            times: median_of(outcomes, |o| Some(o.times)).unwrap_or_default(),
            major_faults: by(|o| o.major_faults as f64) as u64,
            rolled_back: by(|o| o.rolled_back as f64) as u64,
            transactions: by(|o| o.transactions as f64) as u64,
            load_seconds: by(|o| o.load_seconds),
            check_seconds: by(|o| o.check_seconds),
            rows: by(|o| o.rows as f64) as u64,
            peak_rss_bytes: by(|o| o.peak_rss_bytes as f64) as u64,
            peak_rss_bytes_max: outcomes.iter().map(|o| o.peak_rss_bytes).max().unwrap_or(0),
            runs: each(|o| o.transactions_per_s),
            mean_us: each(|o| o.latency_us.mean),
            device: median_of(outcomes, |o| o.device),
        }
    }
}

/// Sizes that follow from the command line.
struct Plan {
    scale: Scale,
    /// Bytes of the heap's file: twice the rows for what an allocator wastes, room for what transactions add, and some more.
    heap: u64,
    /// Bytes of FastMap's cache.
    cache: u64,
}

/// Bytes that a thread's transactions add in a second, at most.
const GROWTH: u64 = 8 << 20;

impl Plan {
    fn scale(args: &OltpArgs) -> Scale {
        Scale::of(args.warehouses)
    }

    fn heap(args: &OltpArgs) -> u64 {
        let threads = args.threads.iter().copied().max().unwrap_or(1);
        let seconds = (args.seconds + warmup(args)).ceil() as u64;
        let bytes = 2 * Plan::scale(args).bytes() + (128 << 20) + seconds * u64::from(threads) * GROWTH;
        bytes.next_multiple_of(1 << 20)
    }

    /// FastMap's cache in so much memory. Its bookkeeping grows with the pages in use, not with the file.
    fn cache(args: &OltpArgs, memory: u64) -> Result<u64, Failure> {
        let in_use = Plan::scale(args).bytes() / 4 * 5 / PAGE as u64;
        Ok(capacity_for(memory, in_use, false)? as u64)
    }

    fn of(args: &OltpArgs, limit: &Limit) -> Result<Plan, Failure> {
        let scale = Plan::scale(args);
        let cache = match limit.bytes() {
            Some(memory) => Plan::cache(args, memory)?,
            None => scale.bytes() / 4 / PAGE as u64 * PAGE as u64,
        };
        Ok(Plan { scale, heap: Plan::heap(args), cache })
    }

    /// Arguments of `fastmap run` for an engine. Both have the cache's size: by it the allocator decides how many small
    /// blocks stay in memory.
    fn under(&self, engine: Engine, volume: &Volume) -> Vec<OsString> {
        let mut heap = volume.root.join(format!("heap-{}", std::process::id())).into_os_string();
        heap.push(format!(":{}", self.heap));
        let mut under: Vec<OsString> = vec!["--heap".into(), heap, "--cache".into(), self.cache.to_string().into()];
        // Said in any case: the environment may say otherwise.
        let direct = if engine.is_mmap() { "always" } else { "never" };
        under.extend(["--faults", "signal", "--direct", direct].map(OsString::from));
        under
    }
}

/// Seconds of transactions that do not count.
fn warmup(args: &OltpArgs) -> f64 {
    args.seconds / 3.0
}

/// Runs it.
///
/// # Errors
///
/// Any run's failure; nothing is left behind.
pub fn run(args: &OltpArgs) -> Result<(), Failure> {
    interrupt::watch();
    let heap = Plan::heap(args);
    let data = Plan::scale(args).bytes();
    let limit =
        Limit::of(args.memory, (data / 7 * 2).next_multiple_of(1 << 20), |limit| Plan::cache(args, limit).map(drop))?;
    let plan = Plan::of(args, &limit)?;
    let json = args.json.as_deref().map(JsonFile::open).transpose()?;
    let (kinds, mut notes) = file_systems(&args.file_systems)?;
    // A file system's own tables and journal, and blocks that btrfs keeps until all of an extent is stored to anew.
    let image_bytes = heap + heap / 4 + (128 << 20);
    let dir = args.dir.clone().unwrap_or_else(|| directory_for(image_bytes));
    let mut report = Report::new("oltp", &dir, &dir.display().to_string(), data, &limit);
    report.results = measure(args, &plan, &limit, &kinds, |kind, image: &mut Option<Image>| match kind {
        FileSystem::Here => Ok(Volume::here(&dir)),
        kind => {
            let image = match image {
                Some(image) => image,
                None => image.insert(Image::new(&dir, image_bytes)?),
            };
            Volume::make(kind, image)
        }
    })?;
    notes.extend(told::notes(&report.results, limit.bytes().is_some()));
    report.notes = notes;
    report.verified = told::verified(&report.results);
    report.headlines = told::headlines(&report.results, report.machine.cpus);
    report.figures = told::figures(&report.results, args.repeat);
    crate::print(&told::text(args, &report));
    json.map_or(Ok(()), |json| json.write(report))
}

/// The file systems to measure on, each once, and notes on those that are left out.
fn file_systems(asked: &[FileSystem]) -> Result<(Vec<FileSystem>, Vec<String>), Failure> {
    let mut kinds: Vec<FileSystem> = Vec::new();
    for &kind in asked {
        if let Some(why) = missing(kind).filter(|_| kind != FileSystem::Here) {
            return Err(Failure::new(
                "--file-systems",
                format!("no {kind}: {why}"),
                "install or allow that, or give others",
            ));
        }
        if !kinds.contains(&kind) {
            kinds.push(kind);
        }
    }
    if !asked.is_empty() {
        return Ok((kinds, Vec::new()));
    }
    let mut notes = Vec::new();
    for kind in FileSystem::MADE {
        match missing(kind) {
            Some(why) => notes.push(format!("{kind} is left out: {why}.")),
            None => kinds.push(kind),
        }
    }
    if kinds.is_empty() {
        kinds.push(FileSystem::Here);
    }
    Ok((kinds, notes))
}

/// All runs: file systems one after the other, since they share a file; engines in turn within each repetition.
fn measure(
    args: &OltpArgs,
    plan: &Plan,
    limit: &Limit,
    kinds: &[FileSystem],
    volume: impl Fn(FileSystem, &mut Option<Image>) -> Result<Volume, Failure>,
) -> Result<Vec<Summary>, Failure> {
    let mut engines: Vec<Engine> = Vec::new();
    for &engine in &args.engines {
        if !engines.contains(&engine) {
            engines.push(engine);
        }
    }
    let runs = kinds.len() * args.threads.len() * engines.len() * args.repeat as usize;
    let bar = progress_bar(runs as u64, "{msg:48} {bar:26} {pos}/{len} runs, {eta} left");
    let (mut results, mut image) = (Vec::new(), None);
    for &kind in kinds {
        bar.set_message(format!("{kind}: making it"));
        let volume = volume(kind, &mut image)?;
        for &threads in &args.threads {
            let mut outcomes: Vec<Vec<Outcome>> = vec![Vec::new(); engines.len()];
            for repetition in 1..=args.repeat {
                for (&engine, outcomes) in engines.iter().zip(&mut outcomes) {
                    bar.set_message(format!("{kind}: {engine}, repetition {repetition} of {}", args.repeat));
                    outcomes.push(one_run(args, plan, limit, &volume, (engine, threads, repetition))?);
                    volume.settle(plan.heap);
                    bar.inc(1);
                }
            }
            let of_engine = |(&engine, outcomes): (_, &Vec<_>)| Summary::of(kind, threads, engine, outcomes);
            results.extend(engines.iter().zip(&outcomes).map(of_engine));
        }
    }
    bar.finish_and_clear();
    Ok(results)
}

fn one_run(
    args: &OltpArgs,
    plan: &Plan,
    limit: &Limit,
    volume: &Volume,
    (engine, threads, repetition): (Engine, u32, u32),
) -> Result<Outcome, Failure> {
    let order = Order {
        engine,
        scale: plan.scale,
        threads,
        warmup: warmup(args),
        seconds: args.seconds,
        seed: repetition.into(),
        device: volume.device.clone(),
    };
    let under = plan.under(engine, volume);
    let thing = format!("{engine} on {}", volume.kind);
    limit.obey(&thing, Job::Oltp(order), limit.bytes(), Some(&under))
}

/// A size in whole MiB, for people.
fn in_mib(bytes: u64) -> Size {
    Size(bytes.next_multiple_of(1 << 20))
}
