//! `fastmap bench sync`: stores that are flushed at once, beside msync(2) and beside a bare loop over cache lines.

mod shown;

use fastmap_workloads::{LatencyUs, Medium, PAGE, STRIDE_PAGES, SyncWork, Synced, Syncer, prepare};
use serde::Serialize;

use super::runner::Limit;
use super::session::Session;
use super::table::{figure, render};
use super::target::{Target, length_for, progress_bar};
use crate::args::{SyncArgs, once_each};
use crate::failure::Failure;
use crate::interrupt;
use crate::results::{JsonFile, Report, median};
use crate::size::Size;

/// Size of the file where neither the user nor an existing file says another: that of the paper "msync under huge pages".
const DEFAULT_BYTES: u64 = 100 << 20;

/// One engine at one work; figures are medians over the repetitions, each by itself.
#[derive(Debug, Clone, Serialize)]
pub struct Summary {
    work: SyncWork,
    engine: Syncer,
    /// Stores, each with its flush, a second.
    ops_per_s: f64,
    /// Bytes stored a second.
    bytes_per_s: f64,
    cpu_us_per_op: f64,
    /// Of the flush alone.
    latency_us: LatencyUs,
    /// Bytes a flush wrote back.
    flush_bytes: Option<f64>,
    /// The kind of FastMap's map.
    #[serde(skip_serializing_if = "Option::is_none")]
    map: Option<String>,
    peak_rss_bytes: u64,
    /// Stores a second of each repetition, in order.
    runs: Vec<f64>,
    /// Seconds measured in each repetition.
    seconds: Vec<f64>,
}

impl Summary {
    fn of(work: SyncWork, engine: Syncer, pages: u64, runs: &[Synced]) -> Summary {
        let by = |figure: fn(&Synced) -> f64| median(runs.iter().map(figure).collect());
        let flushed: Option<Vec<f64>> = runs.iter().map(|r| r.flush_bytes).collect();
        let stored = if work == SyncWork::All { pages } else { 1 } * PAGE as u64;
        Summary {
            work,
            engine,
            ops_per_s: by(|r| r.ops_per_s),
            bytes_per_s: by(|r| r.ops_per_s) * stored as f64,
            cpu_us_per_op: by(|r| r.cpu_us_per_op),
            latency_us: LatencyUs {
                p50: by(|r| r.latency_us.p50),
                p99: by(|r| r.latency_us.p99),
                p999: by(|r| r.latency_us.p999),
                max: by(|r| r.latency_us.max),
            },
            flush_bytes: flushed.map(median),
            map: runs.iter().find_map(|r| r.map.clone()),
            peak_rss_bytes: by(|r| r.peak_rss_bytes as f64) as u64,
            runs: runs.iter().map(|r| r.ops_per_s).collect(),
            seconds: runs.iter().map(|r| r.seconds).collect(),
        }
    }
}

/// Runs it.
///
/// # Errors
///
/// Any run's failure; nothing but the file the user named is left behind.
pub fn run(args: &SyncArgs) -> Result<(), Failure> {
    interrupt::watch();
    let bytes = length_for(args.file.as_deref(), args.size, DEFAULT_BYTES)?;
    let least = Size(STRIDE_PAGES * PAGE as u64);
    if bytes < least.0 {
        return Err(Failure::usage(
            "--size",
            format!("{} is too small", Size(bytes)),
            format!("give at least {least}"),
        ));
    }
    let json = args.json.as_deref().map(JsonFile::open).transpose()?;
    let target = match &args.file {
        Some(path) => Target::named(path, Some(Size(bytes)), true)?,
        None => Target::temporary(&args.dir, Size(bytes), prepare::stamp_page)?,
    };
    let medium = Medium::of(&target.file);
    let engines = engines(args, medium, &target)?;
    let limit = Limit::none();
    let session = Session::new(&target, &limit);
    let mut report = session.report("sync");
    let runs = args.works.len() as u64 * u64::from(args.repeat) * engines.len() as u64;
    let bar = progress_bar(runs, "{msg:40} {bar:30} {pos}/{len} runs, {eta} left");
    for &work in &args.works {
        let mut runs: Vec<Vec<Synced>> = vec![Vec::new(); engines.len()];
        for repetition in 1..=args.repeat {
            for (&engine, runs) in engines.iter().zip(&mut runs) {
                bar.set_message(format!("{work}: {engine}, repetition {repetition} of {}", args.repeat));
                runs.push(session.sync(engine, work, args.seconds)?);
                bar.inc(1);
            }
        }
        let summaries = engines.iter().zip(&runs).map(|(&engine, runs)| Summary::of(work, engine, target.pages, runs));
        report.results.extend(summaries);
    }
    bar.finish_and_clear();
    shown::show(&mut report, medium, args.repeat);
    crate::print(&text(args, medium, &report));
    json.map_or(Ok(()), |json| json.write(report))
}

/// Whom to compare: those that make sense where the file is.
fn engines(args: &SyncArgs, medium: Medium, target: &Target) -> Result<Vec<Syncer>, Failure> {
    let fit = |engine: &Syncer| medium != Medium::Disk || !engine.is_for_memory();
    if let Some(engine) = args.engines.iter().find(|engine| !fit(engine)) {
        let what = format!("{engine} makes nothing durable in {}, which is on a disk", target.label);
        return Err(Failure::usage("--engines", what, "leave it out, or name a file on a tmpfs or with DAX"));
    }
    let all = [Syncer::Msync, Syncer::Fastmap, Syncer::FastmapPersist, Syncer::Persist];
    Ok(if args.engines.is_empty() { all.into_iter().filter(fit).collect() } else { once_each(&args.engines) })
}

fn text(args: &SyncArgs, medium: Medium, report: &Report<Summary>) -> String {
    let mut text = format!(
        "Stores that are flushed at once, 1 thread; {} file ({} on {}), medians of {} x {} s\n",
        Size(report.file_bytes),
        report.machine.file_system,
        report.machine.device,
        args.repeat,
        args.seconds,
    );
    if medium == Medium::Tmpfs {
        text.push_str(
            "A tmpfs stands in for persistent memory: nothing in it survives, and nothing needs to be flushed.\n",
        );
    }
    let headings =
        ["engine", "ops/s", "min..max", "bytes a flush", "p50 us", "p99 us", "p99.9 us", "max us", "CPU us/op", "map"];
    for of_work in report.results.chunk_by(|a, b| a.work == b.work) {
        let work = shown::words(of_work[0].work);
        let rows: Vec<Vec<String>> = of_work.iter().map(row).collect();
        text.push_str(&format!("\n{work}; latencies of the flush alone\n{}", render(&headings, &rows)));
        for (ours, theirs) in [(Syncer::Fastmap, Syncer::Msync), (Syncer::FastmapPersist, Syncer::Persist)] {
            let of = |engine| of_work.iter().find(|s| s.engine == engine);
            if let Some((ours, theirs)) = of(ours).zip(of(theirs)) {
                text.push_str(&format!(
                    "{} does {:.2}x the operations of {}, its flush takes {:.3}x the time\n",
                    ours.engine,
                    ours.ops_per_s / theirs.ops_per_s,
                    theirs.engine,
                    ours.latency_us.p50 / theirs.latency_us.p50,
                ));
            }
        }
    }
    text
}

fn row(s: &Summary) -> Vec<String> {
    let (low, high) = s.runs.iter().fold((f64::INFINITY, 0.0_f64), |(low, high), &run| (low.min(run), high.max(run)));
    vec![
        s.engine.to_string(),
        figure(s.ops_per_s),
        format!("{}..{}", figure(low), figure(high)),
        s.flush_bytes.map_or_else(|| "-".to_owned(), |bytes| format!("{bytes:.0}")),
        figure(s.latency_us.p50),
        figure(s.latency_us.p99),
        figure(s.latency_us.p999),
        figure(s.latency_us.max),
        figure(s.cpu_us_per_op),
        s.map.clone().unwrap_or_else(|| "kernel".to_owned()),
    ]
}
