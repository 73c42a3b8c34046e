//! `fastmap bench graph`: which graph, which runs in which order, and what becomes of their figures.

mod files;
mod told;

use std::ffi::OsString;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use fastmap_workloads::graph::{Engine, Load, Order, Outcome, Window};
use fastmap_workloads::{DeviceReport, PAGE, capacity_for};
use serde::Serialize;

use self::files::Files;
use super::runner::Limit;
use super::summary::median_of;
use super::target::{directory_for, progress_bar};
use super::worker::Job;
use crate::args::GraphArgs;
use crate::failure::Failure;
use crate::interrupt;
use crate::results::{JsonFile, Report, median};
use crate::size::Size;

/// What a run may use beyond its share of the data: code, stacks, tables. The same for all.
const PROCESS: u64 = 8 << 20;

/// Kernel mmap without advice reads as much around each page that it misses as the device's readahead says: with 8 MiB a search
/// takes 40 s that takes 2 s with MADV_RANDOM.
const MOST_READAHEAD_KIB: u64 = 256;

/// An engine that takes so many times as long as the fastest is not run again.
const HOPELESS: f64 = 8.0;

/// One engine with some threads; figures are medians over the repetitions, each by itself.
#[derive(Debug, Clone, Serialize)]
struct Summary {
    engine: Engine,
    threads: u32,
    /// All searches of a run together.
    bfs: Part,
    /// Where the searches began; seconds of each repetition, one list a source.
    searches: Vec<Source>,
    /// All iterations together.
    #[serde(skip_serializing_if = "Option::is_none")]
    pagerank: Option<Part>,
    /// Bringing the graph to the heap and the scan of it, which nothing else counts.
    load_seconds: f64,
    peak_rss_bytes: u64,
}

/// One algorithm.
#[derive(Debug, Clone, Serialize)]
struct Part {
    seconds: f64,
    /// Of the edges that come from all vertices reached; PageRank: all, once an iteration.
    edges_per_s: f64,
    /// Shares of the time of all processors.
    user: f64,
    system: f64,
    iowait: f64,
    idle: f64,
    /// What the device under the heap did.
    #[serde(skip_serializing_if = "Option::is_none")]
    device: Option<DeviceReport>,
    /// `seconds` of each repetition, in order.
    runs: Vec<f64>,
}

/// One source.
#[derive(Debug, Clone, Serialize)]
struct Source {
    vertex: u64,
    runs: Vec<f64>,
}

impl Part {
    fn of(windows: &[Window], edges: u64, cpus: usize) -> Part {
        let by = |figure: &dyn Fn(&Window) -> f64| median(windows.iter().map(figure).collect());
        let all = |w: &Window| w.seconds * cpus as f64;
        let busy = |w: &Window| (w.user_s + w.system_s) / all(w);
        // Others' waiting is counted too: no more than is left.
        let iowait = |w: &Window| (w.iowait_s / all(w)).min(1.0 - busy(w)).max(0.0);
        Part {
            seconds: by(&|w| w.seconds),
            edges_per_s: by(&|w| edges as f64 / w.seconds),
            user: by(&|w| w.user_s / all(w)),
            system: by(&|w| w.system_s / all(w)),
            iowait: by(&iowait),
            idle: by(&|w| (1.0 - busy(w) - iowait(w)).max(0.0)),
            device: median_of(windows, |w| w.device),
            runs: windows.iter().map(|w| w.seconds).collect(),
        }
    }
}

impl Summary {
    fn of(engine: Engine, threads: u32, files: &Files, cpus: usize, outcomes: &[Outcome]) -> Summary {
        let Load { edges, sources, iterations, .. } = &files.load;
        let bfs: Vec<Window> = outcomes.iter().map(|o| o.bfs).collect();
        let ranks: Vec<Window> = outcomes.iter().filter_map(|o| o.rank).collect();
        let source = |(n, vertex): (usize, &u64)| Source {
            vertex: *vertex,
            runs: outcomes.iter().map(|o| o.searches[n].seconds).collect(),
        };
        Summary {
            engine,
            threads,
            bfs: Part::of(&bfs, files.traversed, cpus),
            searches: sources.iter().enumerate().map(source).collect(),
            pagerank: (*iterations > 0).then(|| Part::of(&ranks, edges * u64::from(*iterations), cpus)),
            load_seconds: median(outcomes.iter().map(|o| o.load_seconds).collect()),
            peak_rss_bytes: outcomes.iter().map(|o| o.peak_rss_bytes).max().unwrap_or(0),
        }
    }
}

/// Runs it.
///
/// # Errors
///
/// Any run's failure; nothing is left behind.
pub fn run(args: &GraphArgs) -> Result<(), Failure> {
    interrupt::watch();
    let vertices = 1u64 << args.scale;
    let footprint = Load::footprint(vertices, vertices * u64::from(args.edges));
    let heap = heap_bytes(footprint);
    let limit = Limit::of(args.memory, footprint / 8 + PROCESS, |limit| Ok(cache_for(Some(limit), heap).map(drop)?))?;
    let json = args.json.as_deref().map(JsonFile::open).transpose()?;
    let dir = args.dir.clone().unwrap_or_else(|| directory_for(2 * footprint + heap));
    let files = Files::make(args, &dir)?;
    let mut report = Report::new("graph", &dir, &format!("heap in {}", dir.display()), footprint, &limit);
    let engines = engines(&args.engines, &files.dir);
    report.results = measure(args, &engines, &files, &limit, report.machine.cpus)?;
    told::tell(args, &mut report);
    crate::print(&told::text(args, &report));
    json.map_or(Ok(()), |json| json.write(report))
}

/// What is asked for, once each; else all that end in good time.
fn engines(asked: &[Engine], dir: &Path) -> Vec<Engine> {
    let known = [Engine::Mmap, Engine::MmapRandom, Engine::Fastmap];
    match asked {
        [] => known.into_iter().filter(|e| *e != Engine::Mmap || readahead_kib(dir) <= MOST_READAHEAD_KIB).collect(),
        _ => asked.iter().enumerate().filter(|(n, e)| !asked[..*n].contains(e)).map(|(_, e)| *e).collect(),
    }
}

/// How far the device under a directory is read ahead of, KiB; zero where nobody tells. The kernel's
/// Documentation/ABI/testing/sysfs-class-bdi.
fn readahead_kib(dir: &Path) -> u64 {
    let device = dir.metadata().map_or(0, |facts| facts.dev());
    let path = format!("/sys/class/bdi/{}:{}/read_ahead_kb", libc::major(device), libc::minor(device));
    fs::read_to_string(path).ok().and_then(|text| text.trim().parse().ok()).unwrap_or(0)
}

/// Length of the heap: what the allocator has not yet given back lies beside what is in use.
fn heap_bytes(footprint: u64) -> u64 {
    (2 * footprint + (64 << 20)).next_multiple_of(1 << 20)
}

/// The engine's cache in a process with so much memory.
fn cache_for(memory: Option<u64>, heap: u64) -> fastmap_workloads::Result<u64> {
    match memory {
        Some(memory) => Ok(capacity_for(memory, heap / PAGE as u64, false)? as u64),
        None => Ok((heap / 16).max(fastmap::Cache::MIN_CAPACITY as u64)),
    }
}

/// All numbers of threads; engines in turn within each repetition.
fn measure(
    args: &GraphArgs,
    engines: &[Engine],
    files: &Files,
    limit: &Limit,
    cpus: usize,
) -> Result<Vec<Summary>, Failure> {
    let runs = u64::from(args.repeat) * engines.len() as u64 * args.threads.len() as u64;
    let bar = progress_bar(runs, "{msg:44} {bar:30} {pos}/{len} runs, {eta} left");
    let mut results = Vec::new();
    for &threads in &args.threads {
        let mut outcomes: Vec<Vec<Outcome>> = vec![Vec::new(); engines.len()];
        for repetition in 1..=args.repeat {
            let fastest = outcomes.iter().filter_map(|o| Some(took(o.first()?))).fold(f64::INFINITY, f64::min);
            for (engine, outcomes) in engines.iter().zip(&mut outcomes) {
                if outcomes.first().is_some_and(|first| took(first) > HOPELESS * fastest) {
                    bar.inc(1);
                    continue;
                }
                bar.set_message(format!("{engine}, {threads} threads, repetition {repetition} of {}", args.repeat));
                outcomes.push(once(*engine, threads, files, limit)?);
                bar.inc(1);
            }
        }
        let summaries = engines.iter().zip(&outcomes).map(|(e, o)| Summary::of(*e, threads, files, cpus, o));
        results.extend(summaries);
    }
    bar.finish_and_clear();
    Ok(results)
}

/// What is measured of a run, seconds.
fn took(outcome: &Outcome) -> f64 {
    outcome.bfs.seconds + outcome.rank.map_or(0.0, |window| window.seconds)
}

/// One run.
fn once(engine: Engine, threads: u32, files: &Files, limit: &Limit) -> Result<Outcome, Failure> {
    files.make_cold()?;
    let heap = heap_bytes(Load::footprint(files.load.vertices, files.load.edges));
    // Said in any case: the environment may say otherwise.
    let direct = if engine == Engine::Fastmap { "never" } else { "always" };
    let mut at = files.dir.join(format!(".fastmap-bench-{}", std::process::id())).into_os_string();
    at.push(format!(":{}", Size(heap)));
    let cache = cache_for(limit.bytes(), heap)?.to_string();
    let under = ["--cache", &cache, "--faults", "signal", "--direct", direct, "--heap"].map(OsString::from);
    let order = Order {
        engine,
        load: files.load.clone(),
        graph: files.graph.path.clone(),
        answers: files.answers.path.clone(),
        place: files.dir.clone(),
        threads,
    };
    let under: Vec<OsString> = under.into_iter().chain([at]).collect();
    limit.obey(engine.name(), Job::Graph(order), limit.bytes(), Some(&under))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_add_up_whoever_else_waits() {
        let window = Window { seconds: 2.0, user_s: 1.0, system_s: 0.5, iowait_s: 9.0, device: None };
        let other = Window { iowait_s: 0.5, ..window };
        for (windows, iowait, idle) in [([window; 3], 0.625, 0.0), ([other; 3], 0.125, 0.5)] {
            let part = Part::of(&windows, 1000, 2);
            assert_eq!((part.user, part.system, part.iowait, part.idle), (0.25, 0.125, iowait, idle));
            assert_eq!((part.seconds, part.edges_per_s, part.runs), (2.0, 500.0, vec![2.0; 3]));
        }
    }

    #[test]
    fn the_default_limit_leaves_about_an_eighth_for_the_cache() {
        for scale in [20, 24] {
            let footprint = Load::footprint(1 << scale, 10 << scale);
            let cache = cache_for(Some(footprint / 8 + PROCESS), heap_bytes(footprint)).unwrap();
            let share = footprint as f64 / cache as f64;
            assert!((7.5..9.5).contains(&share), "{share}");
        }
    }
}
