//! `fastmap bench replacement`: which touches find their page in memory, beside kernel mmap with as many pages.

mod shown;

use fastmap_workloads::{Engine, PAGE, Replayed, Trace, least_memory, memory_for, prepare};
use serde::Serialize;

use super::runner::Limit;
use super::session::{Session, Traced};
use super::table::{figure, render};
use super::target::{Target, directory_for, length_for, progress_bar};
use crate::args::ReplacementArgs;
use crate::cgroup::{Controller, REMEDY};
use crate::failure::Failure;
use crate::interrupt;
use crate::results::{JsonFile, Report, median};
use crate::size::Size;

/// Size of the file where neither the user nor an existing file says another: hit ratios need many touches, not many bytes.
const DEFAULT_BYTES: u64 = 256 << 20;

/// Who is compared. The advice of the second turns readahead off and, in newer kernels, the look at accessed bits too.
const ENGINES: [Engine; 3] = [Engine::Mmap, Engine::MmapRandom, Engine::Fastmap];

/// One engine under one trace; figures are medians over the repetitions, each by itself.
#[derive(Debug, Clone, Serialize)]
pub struct Summary {
    trace: Trace,
    engine: Engine,
    /// Touches in the window that found their page in memory.
    hit_percent: f64,
    /// The same of each repetition, in order.
    runs: Vec<f64>,
    /// Pages of the file in memory at the end of the window.
    resident_pages: u64,
    /// Limit on everything the run used.
    memory_bytes: u64,
    ops_per_s: f64,
    /// Every repetition as it was measured.
    repetitions: Vec<Replayed>,
}

impl Summary {
    fn of(trace: Trace, engine: Engine, runs: &[(u64, Replayed)]) -> Summary {
        let by = |figure: fn(&(u64, Replayed)) -> f64| median(runs.iter().map(figure).collect());
        Summary {
            trace,
            engine,
            hit_percent: by(|(_, r)| r.hit_percent()),
            runs: runs.iter().map(|(_, r)| r.hit_percent()).collect(),
            resident_pages: by(|(_, r)| r.resident_pages as f64) as u64,
            memory_bytes: by(|(memory, _)| *memory as f64) as u64,
            ops_per_s: by(|(_, r)| r.touches as f64 / r.seconds),
            repetitions: runs.iter().map(|(_, r)| r.clone()).collect(),
        }
    }
}

/// Runs it.
///
/// # Errors
///
/// Any run's failure; nothing but the file the user named is left behind.
pub fn run(args: &ReplacementArgs) -> Result<(), Failure> {
    interrupt::watch();
    let (bytes, memory) = sizes(args)?;
    let controller = Controller::find().map_err(|why| {
        Failure::told(format!("{why}: hit ratios say nothing where kernel mmap may use all memory: {REMEDY}"))
    })?;
    let json = args.json.as_deref().map(JsonFile::open).transpose()?;
    let target = match &args.file {
        Some(path) => Target::named(path, args.size.or(Some(Size(bytes))), false)?,
        None => Target::temporary(&directory_for(bytes), Size(bytes), prepare::stamp_page)?,
    };
    let limit = Limit::new(controller, memory);
    let session = Session::new(&target, &limit);
    session.touch_memory()?;
    let traces = if args.traces.is_empty() { Trace::ALL.to_vec() } else { args.traces.clone() };
    let mut report = session.report("replacement");
    report.results = measure(args, &session, &target, &traces, memory)?;
    shown::show(&mut report, args.repeat);
    crate::print(&text(args, &report));
    json.map_or(Ok(()), |json| json.write(report))
}

/// All traces, engines in turn within each repetition.
fn measure(
    args: &ReplacementArgs,
    session: &Session<'_>,
    target: &Target,
    traces: &[Trace],
    memory: u64,
) -> Result<Vec<Summary>, Failure> {
    let touches = u64::from(args.touches) * target.pages;
    let bar = progress_bar(
        traces.len() as u64 * u64::from(args.repeat) * ENGINES.len() as u64,
        "{msg:40} {bar:30} {pos}/{len} runs, {eta} left",
    );
    let mut results = Vec::new();
    for &trace in traces {
        let mut runs: [Vec<(u64, Replayed)>; ENGINES.len()] = Default::default();
        for repetition in 1..=args.repeat {
            // As many pages as the kernel keeps, which is less than the limit by what the kernel itself needs there.
            let mut resident = 0;
            for (engine, runs) in ENGINES.into_iter().zip(&mut runs) {
                bar.set_message(format!("{trace}: {engine}, repetition {repetition} of {}", args.repeat));
                let (frames, seed) = (memory / PAGE as u64, u64::from(repetition));
                let memory = if engine == Engine::Fastmap { memory_for(resident, target.pages) } else { memory };
                let traced = Traced { engine, trace, frames, touches: (touches, touches), seed };
                let replayed = session.replay(&traced, Some(memory))?;
                resident = resident.max(replayed.resident_pages);
                runs.push((memory, replayed));
                bar.inc(1);
            }
        }
        results.extend(ENGINES.iter().zip(&runs).map(|(engine, runs)| Summary::of(trace, *engine, runs)));
    }
    bar.finish_and_clear();
    Ok(results)
}

/// Bytes of the file and of memory, checked against what the traces need.
fn sizes(args: &ReplacementArgs) -> Result<(u64, u64), Failure> {
    let page = PAGE as u64;
    let bytes = length_for(args.file.as_deref(), args.size, DEFAULT_BYTES)?;
    let least = least_memory(bytes / page, false);
    let memory = args.memory.map_or((bytes / 4).max(least), |size| size.0);
    if memory < least {
        let what = format!("{} are too few for the engine fastmap", Size(memory));
        return Err(Failure::usage("--memory", what, format!("give at least {}", Size(least))));
    }
    if bytes < memory + memory / 8 {
        let what = format!("{} hardly exceed {} of memory", Size(bytes), Size(memory));
        return Err(Failure::usage("--size", what, "give four times --memory"));
    }
    Ok((bytes, memory))
}

fn text(args: &ReplacementArgs, report: &Report<Summary>) -> String {
    let mut text = format!(
        "Touches that find their page in memory, per cent; {} file ({} on {}), {} of memory ({}) for kernel mmap, as many \
         pages for fastmap; medians of {}\n\n",
        Size(report.file_bytes),
        report.machine.file_system,
        report.machine.device,
        Size(report.memory_limit_bytes.unwrap_or(0)),
        report.memory_limit,
        args.repeat,
    );
    let mut rows = Vec::new();
    for of_trace in report.results.chunk_by(|a, b| a.trace == b.trace) {
        let (kernel, ours) = of_trace.split_at(of_trace.len() - 1);
        let Some((best, ours)) = kernel.iter().max_by(|a, b| a.hit_percent.total_cmp(&b.hit_percent)).zip(ours.first())
        else {
            continue;
        };
        rows.push(vec![
            ours.trace.to_string(),
            best.engine.to_string(),
            format!("{:.2}", best.hit_percent),
            format!("{:.2}", ours.hit_percent),
            format!("{:+.2}", ours.hit_percent - best.hit_percent),
            best.resident_pages.to_string(),
            ours.resident_pages.to_string(),
            figure(best.ops_per_s / 1e3),
            figure(ours.ops_per_s / 1e3),
        ]);
    }
    let headings =
        ["trace", "best mmap", "its hits", "fastmap", "points", "its pages", "fastmap", "its kops/s", "fastmap"];
    text.push_str(&render(&headings, &rows));
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::PathBuf;

    fn args(size: Option<u64>, memory: Option<u64>) -> ReplacementArgs {
        let (size, memory) = (size.map(Size), memory.map(Size));
        ReplacementArgs { traces: Vec::new(), file: None::<PathBuf>, size, memory, touches: 1, repeat: 1, json: None }
    }

    #[test]
    fn sizes_that_make_no_trace_are_refused_with_a_remedy() {
        assert_eq!(sizes(&args(None, None)).ok(), Some((256 << 20, 64 << 20)));
        let refused = |size, memory| sizes(&args(size, memory)).map(drop).unwrap_err().to_string();
        assert!(refused(Some(5000), None).contains("give 8KiB"));
        assert!(refused(Some(64 << 20), Some(60 << 20)).contains("give four times --memory"));
        assert!(refused(None, Some(1 << 20)).starts_with("--memory: 1MiB are too few"));
    }
}
