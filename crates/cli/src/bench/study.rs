//! `fastmap bench study`: one pass over a file, or over many small ones, again and again; how long, how steady, and in which
//! order the device is asked.

mod requests;
mod shown;

use std::path::Path;

use fastmap_workloads::study::{self, Engine, Order, Outcome, Work};
use fastmap_workloads::{PAGE, capacity_for, prepare};
use serde::Serialize;
use tempfile::TempDir;

use self::requests::{Request, Tracer};
use super::runner::Limit;
use super::session::{Session, make_cold};
use super::target::{Target, directory_for, length_for, progress_bar};
use super::worker::Job;
use crate::args::{StudyArgs, once_each};
use crate::failure::Failure;
use crate::interrupt;
use crate::results::{JsonFile, median};
use crate::size::Size;

/// How many times as slow as the fastest an engine is whose passes would take most of the time; it makes one of so many passes.
const SLOW: u32 = 10;

/// One engine at one work.
#[derive(Debug, Clone, Serialize)]
pub struct Summary {
    work: Work,
    engine: Engine,
    /// Pages of one pass.
    pages: u64,
    /// Average, least and greatest time of a pass, and the standard deviation (of a sample), seconds.
    average_s: f64,
    minimum_s: f64,
    maximum_s: f64,
    deviation_s: f64,
    /// The standard deviation as a share of the average.
    relative_deviation: f64,
    /// Processor time of a pass, the median.
    cpu_s: f64,
    peak_rss_bytes_max: u64,
    /// Seconds of each pass, in order.
    seconds: Vec<f64>,
    /// In which repetition each of them was made; a slow engine is not in all.
    repetitions: Vec<u32>,
    /// What the device was asked for in one more pass.
    #[serde(skip_serializing_if = "Option::is_none")]
    requests: Option<Requests>,
}

/// A device's requests in one pass.
#[derive(Debug, Clone, Copy, Serialize)]
pub struct Requests {
    /// How many.
    count: u64,
    /// Bytes of one, on average.
    average_bytes: f64,
    /// Bytes of all, to the bytes that the pass wanted.
    amplification: f64,
    /// The share of them that lie next to the one before.
    adjacent: f64,
    /// The longest time between one and the next.
    longest_gap_ms: f64,
}

impl Requests {
    fn of(requests: &[Request], wanted: u64) -> Option<Requests> {
        let bytes: u64 = requests.iter().map(|r| r.bytes).sum();
        let pairs = requests.windows(2);
        let next = |a: &Request, b: &Request| a.offset + a.bytes == b.offset || b.offset + b.bytes == a.offset;
        (!requests.is_empty()).then(|| Requests {
            count: requests.len() as u64,
            average_bytes: bytes as f64 / requests.len() as f64,
            amplification: bytes as f64 / wanted as f64,
            adjacent: pairs.clone().filter(|pair| next(&pair[0], &pair[1])).count() as f64
                / (requests.len() - 1).max(1) as f64,
            longest_gap_ms: pairs.map(|pair| pair[1].ms - pair[0].ms).fold(0.0, f64::max),
        })
    }
}

impl Summary {
    fn of(work: Work, engine: Engine, passes: &[Pass]) -> Summary {
        let (repetitions, passes): (Vec<u32>, Vec<&Outcome>) =
            passes.iter().map(|pass| (pass.repetition, &pass.outcome)).unzip();
        let seconds: Vec<f64> = passes.iter().map(|pass| pass.seconds).collect();
        let (average_s, deviation_s) = average_and_deviation(&seconds);
        Summary {
            work,
            engine,
            pages: passes[0].pages,
            average_s,
            minimum_s: seconds.iter().copied().fold(f64::INFINITY, f64::min),
            maximum_s: seconds.iter().copied().fold(0.0, f64::max),
            deviation_s,
            relative_deviation: deviation_s / average_s,
            cpu_s: median(passes.iter().map(|pass| pass.cpu_s).collect()),
            peak_rss_bytes_max: passes.iter().map(|pass| pass.peak_rss_bytes).max().unwrap_or(0),
            seconds,
            repetitions,
            requests: None,
        }
    }
}

/// The mean of some figures, and their standard deviation as of a sample; 0 of a single one.
fn average_and_deviation(figures: &[f64]) -> (f64, f64) {
    let average = figures.iter().sum::<f64>() / figures.len() as f64;
    let squares: f64 = figures.iter().map(|figure| (figure - average).powi(2)).sum();
    (average, (squares / (figures.len() - 1).max(1) as f64).sqrt())
}

/// One pass, and the repetition that it was made in.
struct Pass {
    repetition: u32,
    outcome: Outcome,
}

/// Seconds of the fastest engine's first pass, once all have made one.
fn fastest(passes: &[Vec<Pass>]) -> f64 {
    passes.iter().filter_map(|passes| passes.first()).map(|pass| pass.outcome.seconds).fold(f64::INFINITY, f64::min)
}

/// One pass of one engine, as its device saw it.
struct Trace {
    work: Work,
    engine: Engine,
    requests: Vec<Request>,
}

/// What is read, and within which limit.
struct Study<'a> {
    args: &'a StudyArgs,
    limit: &'a Limit,
    big: &'a Target,
    small: Option<TempDir>,
    small_pages: u64,
}

/// Runs it.
///
/// # Errors
///
/// Any pass's failure; nothing is left behind.
pub fn run(args: &StudyArgs) -> Result<(), Failure> {
    interrupt::watch();
    let bytes = length_for(None, Some(args.size), 0)?;
    let small_pages = args.small.0 / PAGE as u64;
    if small_pages == 0 || !args.small.0.is_multiple_of(PAGE as u64) {
        let up = Size(args.small.0.max(1).next_multiple_of(PAGE as u64));
        return Err(Failure::usage("--small", format!("{} is no multiple of 4096", args.small), format!("give {up}")));
    }
    let (works, engines) = (once_each(&args.works), once_each(&args.engines));
    let most = (bytes / PAGE as u64).max(small_pages);
    let limit = Limit::of(args.memory, (bytes / 2).max(fastmap_workloads::least_memory(most, false)), |limit| {
        match engines.iter().any(|engine| engine.is_fastmap()) {
            true => Ok(capacity_for(limit, most, false).map(drop)?),
            false => Ok(()),
        }
    })?;
    let json = args.json.as_deref().map(JsonFile::open).transpose()?;
    let dir = args.dir.clone().unwrap_or_else(|| directory_for(bytes + args.small.0));
    let big = Target::temporary(&dir, args.size, prepare::stamp_page)?;
    let session = Session::new(&big, &limit);
    session.touch_memory()?;
    let small = works.iter().any(|work| work.is_small()).then(|| small_files(&dir, small_pages)).transpose()?;
    let study = Study { args, limit: &limit, big: &big, small, small_pages };
    let mut report = session.report("study");
    report.results = study.passes(&works, &engines)?;
    let (traces, why_not) = study.traces(&works, &engines)?;
    for trace in &traces {
        let mut of = report.results.iter_mut().filter(|s| (s.work, s.engine) == (trace.work, trace.engine));
        of.by_ref().for_each(|s| s.requests = Requests::of(&trace.requests, s.pages * PAGE as u64));
    }
    shown::fill_in(&mut report, args, &traces, why_not);
    crate::print(&shown::text(args, &report));
    json.map_or(Ok(()), |json| json.write(report))
}

/// A directory of small files in `dir`, gone when it is dropped.
fn small_files(dir: &Path, pages: u64) -> Result<TempDir, Failure> {
    let label = label_of_small(dir);
    let made = tempfile::Builder::new().prefix("fastmap-bench-").tempdir_in(dir);
    let made =
        made.map_err(|e| Failure::new(&label, format!("cannot make them: {e}"), "name a writable place with --dir"))?;
    study::make_small(made.path(), &label, pages, || !interrupt::requested())
        .map_err(|e| interrupt::check().err().unwrap_or_else(|| e.into()))?;
    Ok(made)
}

fn label_of_small(dir: &Path) -> String {
    format!("small files in {}", dir.display())
}

impl Study<'_> {
    /// All passes; engines in turn within each repetition of a work.
    fn passes(&self, works: &[Work], engines: &[Engine]) -> Result<Vec<Summary>, Failure> {
        let runs = works.iter().map(|&work| engines.iter().filter(|engine| engine.does(work)).count()).sum::<usize>();
        let runs = runs as u64 * u64::from(self.args.repeat);
        let bar = progress_bar(runs, "{msg:40} {bar:30} {pos}/{len} passes, {eta} left");
        let mut results = Vec::new();
        for &work in works {
            let engines: Vec<Engine> = engines.iter().copied().filter(|engine| engine.does(work)).collect();
            let mut made: Vec<Vec<Pass>> = engines.iter().map(|_| Vec::new()).collect();
            for repetition in 1..=self.args.repeat {
                let fastest = fastest(&made);
                for (&engine, made) in engines.iter().zip(&mut made) {
                    let slow = made.first().is_some_and(|first| first.outcome.seconds > fastest * f64::from(SLOW));
                    if slow && repetition % SLOW != 1 {
                        bar.inc(1);
                        continue;
                    }
                    bar.set_message(format!("{work}: {engine}, {repetition} of {}", self.args.repeat));
                    made.push(Pass { repetition, outcome: self.pass(work, engine, repetition)? });
                    bar.inc(1);
                }
            }
            results.extend(engines.iter().zip(&made).map(|(&engine, passes)| Summary::of(work, engine, passes)));
        }
        bar.finish_and_clear();
        Ok(results)
    }

    /// One pass from a cold page cache.
    fn pass(&self, work: Work, engine: Engine, seed: u32) -> Result<Outcome, Failure> {
        let (path, label, pages) = match &self.small {
            Some(dir) if work.is_small() => {
                let label = label_of_small(dir.path());
                study::make_cold(dir.path(), &label, self.small_pages)?;
                (dir.path().to_owned(), label, self.small_pages)
            }
            _ => {
                make_cold(&self.big.file, &self.big.label, self.big.bytes())?;
                (self.big.path.clone(), self.big.label.clone(), self.big.pages)
            }
        };
        let memory = self.limit.bytes();
        let touches = u64::from(self.args.touches);
        let order = Order { engine, work, path, label, pages, touches, seed: u64::from(seed), memory };
        self.limit.obey(engine.name(), Job::Study(order), memory, None)
    }

    /// One more pass of each engine over the large file with the device's requests recorded; or why they cannot be.
    fn traces(&self, works: &[Work], engines: &[Engine]) -> Result<(Vec<Trace>, Option<String>), Failure> {
        let tracer = match Tracer::of(&self.big.file) {
            Ok(tracer) => tracer,
            Err(why) => return Ok((Vec::new(), Some(why))),
        };
        let mut traces = Vec::new();
        for &work in works.iter().filter(|work| !work.is_small()) {
            for &engine in engines.iter().filter(|engine| engine.does(work)) {
                let failed =
                    |e| Failure::new("tracefs", e, "look whether something else on this machine removes traces");
                tracer.clear().map_err(failed)?;
                self.pass(work, engine, 0)?;
                traces.push(Trace { work, engine, requests: tracer.requests().map_err(failed)? });
            }
        }
        let silent = traces.iter().all(|trace| trace.requests.is_empty()) && !traces.is_empty();
        Ok((traces, silent.then(|| "requests go to a device below the one that holds the file".to_owned())))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_deviation_is_that_of_a_sample() {
        assert_eq!(average_and_deviation(&[2.0]), (2.0, 0.0));
        let (average, deviation) = average_and_deviation(&[2.0, 4.0, 4.0, 4.0, 5.0, 5.0, 7.0, 9.0]);
        assert_eq!(average, 5.0);
        assert!((deviation - (32.0_f64 / 7.0).sqrt()).abs() < 1e-12);
    }

    #[test]
    fn requests_are_summed_up() {
        let request = |ms, offset, bytes| Request { ms, offset, bytes };
        let requests = [request(0.0, 0, 100), request(1.0, 100, 100), request(4.0, 700, 50), request(5.0, 650, 50)];
        let of = Requests::of(&requests, 600).unwrap();
        assert_eq!((of.count, of.average_bytes, of.amplification), (4, 75.0, 0.5));
        assert!((of.adjacent - 2.0 / 3.0).abs() < 1e-12 && of.longest_gap_ms == 3.0);
        assert!(Requests::of(&[], 600).is_none());
    }
}
