//! `fastmap bench async`: updates of a file larger than memory, and what they wait for.

mod shown;

use fastmap_workloads::updates::{Engine, Load, Outcome, Work, capacity_for, fresh_page, least_memory};
use fastmap_workloads::{DeviceReport, FastmapReport, LatencyUs, PAGE, Pattern, STRIDE_PAGES};
use serde::Serialize;

use super::runner::Limit;
use super::session::Session;
use super::summary::median_of;
use super::table::{figure, render};
use super::target::{Target, directory_for, length_for, progress_bar};
use crate::args::AsyncArgs;
use crate::failure::Failure;
use crate::interrupt;
use crate::results::{JsonFile, Report, median, spread};
use crate::size::Size;

/// One engine at one work; figures are medians over the repetitions, each by itself.
#[derive(Debug, Clone, Serialize)]
struct Summary {
    work: Work,
    engine: Engine,
    /// The order of records.
    #[serde(skip_serializing_if = "Option::is_none")]
    pattern: Option<Pattern>,
    threads: u32,
    /// Operations of each repetition.
    ops: u64,
    /// Without the flush.
    ops_per_s: f64,
    /// With it.
    flushed_ops_per_s: f64,
    /// Processor time of operations and flush.
    cpu_us_per_op: f64,
    /// Of an operation.
    latency_us: LatencyUs,
    peak_rss_bytes: u64,
    peak_rss_bytes_max: u64,
    /// `ops_per_s` of each repetition, in order.
    runs: Vec<f64>,
    /// `flushed_ops_per_s` of each repetition, in order.
    flushed_runs: Vec<f64>,
    /// Seconds of each repetition's operations, in order.
    seconds: Vec<f64>,
    /// Seconds of each repetition's flush, in order.
    flush_seconds: Vec<f64>,
    /// Reads that met the initial value of the AR protocol and waited.
    synchronised: u64,
    /// A fastmap engine's set-up and counters in each repetition.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    fastmap: Vec<FastmapReport>,
    /// What the device under the file did, the flush included.
    #[serde(skip_serializing_if = "Option::is_none")]
    device: Option<DeviceReport>,
}

impl Summary {
    fn of(load: Load, outcomes: &[Outcome]) -> Summary {
        let each = |figure: fn(&Outcome) -> f64| outcomes.iter().map(figure).collect::<Vec<f64>>();
        let by = |figure| median(each(figure));
        Summary {
            work: load.work,
            engine: load.engine,
            pattern: (load.work == Work::Record).then_some(load.pattern),
            threads: load.threads,
            ops: load.ops,
            ops_per_s: by(|o| o.ops_per_s),
            flushed_ops_per_s: by(|o| o.flushed_ops_per_s),
            cpu_us_per_op: by(|o| o.cpu_us_per_op),
            latency_us: median_of(outcomes, |o| Some(o.latency_us)).unwrap_or_default(),
            peak_rss_bytes: by(|o| o.peak_rss_bytes as f64) as u64,
            peak_rss_bytes_max: outcomes.iter().map(|o| o.peak_rss_bytes).max().unwrap_or(0),
            runs: each(|o| o.ops_per_s),
            flushed_runs: each(|o| o.flushed_ops_per_s),
            seconds: each(|o| o.seconds),
            flush_seconds: each(|o| o.flush_seconds),
            synchronised: by(|o| o.synchronised as f64) as u64,
            fastmap: outcomes.iter().filter_map(|o| o.fastmap).collect(),
            device: median_of(outcomes, |o| o.device),
        }
    }
}

/// Runs it.
///
/// # Errors
///
/// Any run's failure; nothing is left behind.
pub fn run(args: &AsyncArgs) -> Result<(), Failure> {
    interrupt::watch();
    let bytes = length_for(None, Some(args.size), 0)?;
    let pages = bytes / PAGE as u64;
    let loads = loads(args, pages)?;
    // Records need most beside the cache; all works are given the same.
    let limit = Limit::of(args.memory, (bytes / 4).max(least_memory(pages, Work::Record)), |limit| {
        match args.engines.iter().all(|engine| engine.is_mmap()) {
            true => Ok(()),
            false => Ok(capacity_for(limit, pages, Work::Record).map(drop)?),
        }
    })?;
    let json = args.json.as_deref().map(JsonFile::open).transpose()?;
    let dir = args.dir.clone().unwrap_or_else(|| directory_for(bytes));
    let target = Target::temporary(&dir, args.size, fresh_page)?;
    let session = Session::new(&target, &limit);
    session.touch_memory()?;
    let mut report = session.report("async");
    report.results = measure(&loads, &session, args.repeat)?;
    shown::show(&mut report, args.repeat);
    crate::print(&text(args.repeat, &report));
    json.map_or(Ok(()), |json| json.write(report))
}

/// What is measured, in this order: for each work and number of threads the engines, which take turns.
fn loads(args: &AsyncArgs, pages: u64) -> Result<Vec<Vec<Load>>, Failure> {
    let most = args.threads.iter().copied().max().unwrap_or(1);
    let least = u64::from(most) * STRIDE_PAGES;
    if pages < least {
        let what = format!("{} is too small for {most} threads", args.size);
        return Err(Failure::usage("--size", what, format!("give at least {}", Size(least * PAGE as u64))));
    }
    let in_memory = match args.memory {
        Some(crate::size::Memory::Limit(size)) => size.0 / PAGE as u64,
        _ => pages / 4,
    };
    let mut loads = Vec::new();
    for (n, &work) in args.works.iter().enumerate() {
        let (ops, warmup) = match work {
            Work::Record => (args.ops.unwrap_or(pages), in_memory * 5 / 4),
            Work::Store8 | Work::Line => (args.ops.unwrap_or(pages / 2), 0),
        };
        if work != Work::Record && ops > pages {
            let what = format!("{ops} stores cannot each have an absent page of {pages}");
            return Err(Failure::usage("--ops", what, "give fewer, more --size, or --work record"));
        }
        let mut engines: Vec<Engine> = Vec::new();
        for &engine in &args.engines {
            if engine.does(work) && !engines.contains(&engine) {
                engines.push(engine);
            }
        }
        if engines.is_empty() {
            let what = format!("none of them can do {work}, whose stores are not whole lines");
            return Err(Failure::usage("--engines", what, "give others, or --work line,record"));
        }
        if args.works[..n].contains(&work) {
            continue;
        }
        for &threads in &args.threads {
            let load = |&engine| Load { engine, work, pattern: args.pattern, threads, ops, warmup };
            loads.push(engines.iter().map(load).collect());
        }
    }
    Ok(loads)
}

/// All loads, engines in turn within each repetition.
fn measure(loads: &[Vec<Load>], session: &Session<'_>, repeat: u32) -> Result<Vec<Summary>, Failure> {
    let runs = loads.iter().map(Vec::len).sum::<usize>() as u64 * u64::from(repeat);
    let bar = progress_bar(runs, "{msg:44} {bar:30} {pos}/{len} runs, {eta} left");
    let (mut results, mut epoch) = (Vec::new(), 0);
    for engines in loads {
        let mut outcomes: Vec<Vec<Outcome>> = vec![Vec::new(); engines.len()];
        for repetition in 1..=repeat {
            for (load, outcomes) in engines.iter().zip(&mut outcomes) {
                bar.set_message(format!("{}: {}, repetition {repetition} of {repeat}", load.work, load.engine));
                epoch += 1;
                outcomes.push(session.update(*load, epoch)?);
                bar.inc(1);
            }
        }
        results.extend(engines.iter().zip(&outcomes).map(|(load, outcomes)| Summary::of(*load, outcomes)));
    }
    bar.finish_and_clear();
    Ok(results)
}

fn text(repeat: u32, report: &Report<Summary>) -> String {
    let limit = match report.memory_limit_bytes {
        Some(bytes) => format!("{} of memory each ({})", Size(bytes), report.memory_limit),
        None => format!(
            "NO LIMIT on memory: kernel mmap may use all of it, fastmap's cache is {}; the comparison favours mmap",
            Size(report.file_bytes / 4)
        ),
    };
    let mut text = format!(
        "{} file ({} on {}), {limit}; medians of {repeat}\n",
        Size(report.file_bytes),
        report.machine.file_system,
        report.machine.device
    );
    for group in report.results.chunk_by(|a, b| (a.work, a.threads) == (b.work, b.threads)) {
        text.push_str(&of_group(group));
    }
    text
}

/// The table of one work and number of threads, and how much time our engines save: what the AR-MMAP paper shows.
fn of_group(group: &[Summary]) -> String {
    let first = &group[0];
    let what = match (first.work, first.pattern) {
        (Work::Record, Some(order)) => format!("reads and updates of 1 KiB records, half and half, {order}"),
        (Work::Line, _) => "stores of a 64-byte line, each to an absent page".to_owned(),
        _ => "stores of 8 bytes, each to an absent page".to_owned(),
    };
    let plural = if first.threads == 1 { "" } else { "s" };
    let mut text = format!("\n{}: {} {what}; {} thread{plural}\n\n", first.work, first.ops, first.threads);
    let best = |rate: fn(&Summary) -> f64| {
        let kernel = group.iter().filter(|s| s.engine.is_mmap());
        kernel.max_by(|a, b| rate(a).total_cmp(&rate(b))).map(|s| (s.engine, rate(s)))
    };
    let (best_plain, best_flushed) = (best(|s| s.ops_per_s), best(|s| s.flushed_ops_per_s));
    let range = |runs: &[f64]| {
        let (low, high) = spread(runs);
        format!("{}..{}", figure(low / 1e3), figure(high / 1e3))
    };
    let times = |rate: f64, best: Option<(Engine, f64)>| match best {
        Some((_, best)) => format!("{:.2}", rate / best),
        None => "-".to_owned(),
    };
    let row = |s: &Summary| {
        vec![
            s.engine.to_string(),
            figure(s.ops_per_s / 1e3),
            range(&s.runs),
            times(s.ops_per_s, best_plain),
            figure(s.flushed_ops_per_s / 1e3),
            range(&s.flushed_runs),
            times(s.flushed_ops_per_s, best_flushed),
            figure(s.cpu_us_per_op),
            figure(s.latency_us.p50),
            figure(s.latency_us.p99),
            figure(s.latency_us.p999),
            figure(s.latency_us.max),
            figure(s.peak_rss_bytes as f64 / f64::from(1 << 20)),
        ]
    };
    let headings = [
        "engine",
        "kops/s",
        "min..max",
        "x best mmap",
        "and flush",
        "min..max",
        "x best mmap",
        "CPU us/op",
        "p50 us",
        "p99 us",
        "p99.9 us",
        "max us",
        "peak MiB",
    ];
    text.push_str(&render(&headings, &group.iter().map(row).collect::<Vec<_>>()));
    let (Some((plain, of_plain)), Some((flushed, of_flushed))) = (best_plain, best_flushed) else { return text };
    for ours in group.iter().filter(|s| !s.engine.is_mmap()) {
        let than = |rate: f64, best: f64| match 1.0 - best / rate {
            less if less >= 0.0 => format!("{:.1} % less time", less * 100.0),
            more => format!("{:.1} % more time", more * -100.0),
        };
        text.push_str(&format!(
            "{} takes {} than {plain}; with the flush {} than {flushed}\n",
            ours.engine,
            than(ours.ops_per_s, of_plain),
            than(ours.flushed_ops_per_s, of_flushed),
        ));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn args(line: &str) -> AsyncArgs {
        use clap::Parser;
        let args = crate::args::Args::try_parse_from(format!("fastmap bench async {line}").split_whitespace()).unwrap();
        match args.command {
            crate::args::Command::Bench(crate::args::BenchArgs {
                command: Some(crate::args::BenchCommand::Async(args)),
                ..
            }) => args,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn works_threads_and_engines_are_combined_and_engines_take_turns() {
        let loads = loads(&args("--threads 1,4 --memory 64MiB"), 1 << 16).unwrap();
        let said: Vec<_> = loads.iter().map(|group| (group[0].work.name(), group[0].threads, group[0].ops)).collect();
        let expected = [
            ("store8", 1, 32768),
            ("store8", 4, 32768),
            ("line", 1, 32768),
            ("line", 4, 32768),
            ("record", 1, 65536),
            ("record", 4, 65536),
        ];
        assert_eq!(said, expected);
        for group in &loads {
            let engines: Vec<_> = group.iter().map(|load| load.engine).collect();
            assert!(engines.iter().all(|engine| engine.does(group[0].work)));
            assert!(engines.contains(&Engine::MmapRandom) && engines.contains(&Engine::Fastmap));
            let warmup = if group[0].work == Work::Record { 20480 } else { 0 };
            assert!(group.iter().all(|load| load.warmup == warmup));
        }
    }

    #[test]
    fn what_makes_no_sense_is_refused_with_a_remedy() {
        let refused = |line: &str, pages| loads(&args(line), pages).unwrap_err().to_string();
        assert!(refused("--threads 1,16 --size 64KiB", 16).contains("--size: 64KiB is too small for 16 threads"));
        assert!(refused("--engines fastmap-ar", 4096).contains("store8, whose stores are not whole lines"));
        assert!(refused("--ops 5000", 4096).contains("give fewer, more --size, or --work record"));
        assert!(loads(&args("--ops 5000 --work record"), 4096).is_ok());
    }

    #[test]
    fn the_closing_lines_say_how_much_time_is_saved() {
        let summary = |engine, seconds: f64, flush: f64| {
            let (ops_per_s, flushed_ops_per_s) = (1000.0 / seconds, 1000.0 / (seconds + flush));
            let outcome = Outcome { ops_per_s, flushed_ops_per_s, ..Outcome::default() };
            let load = Load { engine, work: Work::Line, pattern: Pattern::Zipf, threads: 2, ops: 1000, warmup: 0 };
            Summary::of(load, &[outcome])
        };
        let group = [
            summary(Engine::Mmap, 2.0, 0.0),
            summary(Engine::MmapRandom, 1.0, 1.5),
            summary(Engine::Fastmap, 0.75, 2.25),
        ];
        let text = of_group(&group);
        let said = "fastmap takes 25.0 % less time than mmap-random; with the flush 50.0 % more time than mmap\n";
        assert!(text.ends_with(said), "{text}");
        assert!(text.starts_with("\nline: 1000 stores of a 64-byte line, each to an absent page; 2 threads\n"));
    }
}
