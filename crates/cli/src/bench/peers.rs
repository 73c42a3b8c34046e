//! `fastmap bench peers`: FastMap beside what people use instead, in one run.

mod shown;

use std::cell::Cell;
use std::fs::File;
use std::path::PathBuf;

use fastmap_workloads::peers::{self, Order, Peer, Work};
use fastmap_workloads::{
    Advice, DeviceReport, Engine, LatencyUs, Outcome, PAGE, STRIDE_PAGES, Spec, capacity_for, least_memory, prepare,
};
use serde::Serialize;
use tempfile::TempDir;

use super::runner::Limit;
use super::session::{Session, make_cold};
use super::summary::median_of;
use super::target::{Target, directory_for, length_for, progress_bar};
use super::worker::Job;
use crate::args::{PeersArgs, once_each};
use crate::failure::Failure;
use crate::interrupt;
use crate::results::{JsonFile, median};
use crate::size::Size;

/// One engine at one work; figures are medians over the repetitions, each by itself.
#[derive(Debug, Clone, Serialize)]
pub struct Summary {
    work: Work,
    engine: Peer,
    threads: u32,
    ops_per_s: f64,
    /// Bytes of touched pages a second.
    bytes_per_s: f64,
    /// Processor time of the process per operation.
    cpu_us_per_op: f64,
    /// Time between successive operations of a thread.
    latency_us: LatencyUs,
    peak_rss_bytes: u64,
    peak_rss_bytes_max: u64,
    /// Operations a second of each repetition, in order.
    runs: Vec<f64>,
    /// Seconds measured in each repetition.
    seconds: Vec<f64>,
    /// What the device under the file did in the measured window.
    #[serde(skip_serializing_if = "Option::is_none")]
    device: Option<DeviceReport>,
}

impl Summary {
    fn of(load: Load, outcomes: &[Outcome]) -> Summary {
        let by = |figure: fn(&Outcome) -> f64| median(outcomes.iter().map(figure).collect());
        Summary {
            work: load.work,
            engine: load.engine,
            threads: load.threads,
            ops_per_s: by(|o| o.ops_per_s),
            bytes_per_s: by(|o| o.bytes_per_s),
            cpu_us_per_op: by(|o| o.cpu_us_per_op),
            latency_us: median_of(outcomes, |o| Some(o.latency_us)).unwrap_or_default(),
            peak_rss_bytes: by(|o| o.peak_rss_bytes as f64) as u64,
            peak_rss_bytes_max: outcomes.iter().map(|o| o.peak_rss_bytes).max().unwrap_or(0),
            runs: outcomes.iter().map(|o| o.ops_per_s).collect(),
            seconds: outcomes.iter().map(|o| o.seconds).collect(),
            device: median_of(outcomes, |o| o.device),
        }
    }
}

/// One thing to measure.
#[derive(Debug, Clone, Copy)]
struct Load {
    work: Work,
    engine: Peer,
    threads: u32,
}

/// The data, and within which limit they are worked on.
struct Bench<'a> {
    seconds: f64,
    limit: &'a Limit,
    pages: &'a Target,
    database: Option<Records>,
    /// Update runs over the database so far.
    epoch: Cell<u32>,
}

/// The database, gone when it is dropped.
struct Records {
    path: PathBuf,
    label: String,
    _dir: TempDir,
}

/// Runs it.
///
/// # Errors
///
/// Any run's failure; nothing is left behind.
pub fn run(args: &PeersArgs) -> Result<(), Failure> {
    interrupt::watch();
    let bytes = length_for(None, Some(args.size), 0)?;
    let pages = bytes / PAGE as u64;
    let most = args.threads.iter().copied().max().unwrap_or(1);
    let least = u64::from(most) * STRIDE_PAGES;
    if pages < least {
        let what = format!("{} is too small for {most} threads", args.size);
        return Err(Failure::usage("--size", what, format!("give at least {}", Size(least * PAGE as u64))));
    }
    let limit = Limit::of(args.memory, (bytes / 4).max(least_memory(pages, true)), |limit| {
        Ok(capacity_for(limit, pages, true).map(drop)?)
    })?;
    let json = args.json.as_deref().map(JsonFile::open).transpose()?;
    // redb's file grows with updates, to about three times what it begins with.
    let with_redb = args.engines.contains(&Peer::Redb);
    let dir = args.dir.clone().unwrap_or_else(|| directory_for(if with_redb { bytes * 4 } else { bytes }));
    let target = Target::temporary(&dir, args.size, prepare::stamp_page)?;
    let session = Session::new(&target, &limit);
    session.touch_memory()?;
    let database = with_redb.then(|| Records::make(&dir, pages)).transpose()?;
    let bench = Bench { seconds: args.seconds, limit: &limit, pages: &target, database, epoch: Cell::new(0) };
    let mut report = session.report("peers");
    report.results = bench.measure(args)?;
    shown::fill_in(&mut report);
    crate::print(&shown::text(args, &report));
    json.map_or(Ok(()), |json| json.write(report))
}

impl Records {
    fn make(dir: &std::path::Path, pages: u64) -> Result<Records, Failure> {
        let label = format!("temporary database in {}", dir.display());
        let made = tempfile::Builder::new().prefix("fastmap-bench-").tempdir_in(dir);
        let made =
            made.map_err(|e| Failure::new(&label, format!("cannot make it: {e}"), "name a writable place with --dir"))?;
        let path = made.path().join("redb");
        peers::make_database(&path, &label, pages, || !interrupt::requested())
            .map_err(|e| interrupt::check().err().unwrap_or_else(|| e.into()))?;
        Ok(Records { path, label, _dir: made })
    }
}

impl Bench<'_> {
    /// All loads, engines in turn within each repetition.
    fn measure(&self, args: &PeersArgs) -> Result<Vec<Summary>, Failure> {
        let mut groups: Vec<Vec<Load>> = Vec::new();
        let engines = once_each(&args.engines);
        for &work in &once_each(&args.works) {
            for &threads in &once_each(&args.threads) {
                groups.push(engines.iter().map(|&engine| Load { work, engine, threads }).collect());
            }
        }
        let runs = groups.iter().map(Vec::len).sum::<usize>() as u64 * u64::from(args.repeat);
        let bar = progress_bar(runs, "{msg:44} {bar:30} {pos}/{len} runs, {eta} left");
        let mut results = Vec::new();
        for loads in groups {
            let mut outcomes: Vec<Vec<Outcome>> = vec![Vec::new(); loads.len()];
            for repetition in 1..=args.repeat {
                for (load, outcomes) in loads.iter().zip(&mut outcomes) {
                    bar.set_message(format!(
                        "{}: {}, repetition {repetition} of {}",
                        load.work, load.engine, args.repeat
                    ));
                    outcomes.push(self.once(*load)?);
                    bar.inc(1);
                }
            }
            results.extend(loads.iter().zip(&outcomes).map(|(load, outcomes)| Summary::of(*load, outcomes)));
        }
        bar.finish_and_clear();
        Ok(results)
    }

    /// One run from a cold page cache.
    fn once(&self, load: Load) -> Result<Outcome, Failure> {
        interrupt::check()?;
        let Load { work, engine: peer, threads } = load;
        let op = work.op();
        let (path, label, epoch) = match &self.database {
            Some(Records { path, label, .. }) if peer == Peer::Redb => {
                let failed = |e: std::io::Error| {
                    Failure::new(label, format!("cannot be dropped from the page cache: {e}"), "check its device")
                };
                let file = File::open(path).map_err(failed)?;
                make_cold(&file, label, file.metadata().map_err(failed)?.len())?;
                self.epoch.set(self.epoch.get() + u32::from(op.writes()));
                (path.clone(), label.clone(), self.epoch.get())
            }
            _ => {
                let Target { file, path, label, .. } = self.pages;
                let epoch = if op.writes() { prepare::next_epoch(file, label)? } else { 0 };
                make_cold(file, label, self.pages.bytes())?;
                (path.clone(), label.clone(), epoch)
            }
        };
        let (memory, seconds, pages) = (self.limit.bytes(), self.seconds, self.pages.pages);
        // A peer that is one of `bench micro`'s engines names it itself.
        let engine = peer.engine().unwrap_or(Engine::Direct);
        let pattern = work.pattern();
        let advice = Advice::Normal;
        let spec = Spec { engine, pattern, op, threads, advice, path, label, pages, memory, seconds, epoch };
        self.limit.obey(peer.name(), Job::Peer(Order { peer, spec }), memory, None)
    }
}
