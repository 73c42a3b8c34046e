//! `fastmap bench micro`: one load, the engines the user names.

use fastmap_workloads::{Op, Outcome, PAGE, Pattern, STRIDE_PAGES, capacity_for, least_memory, prepare};

use super::figures;
use super::runner::Limit;
use super::session::{Load, Session};
use super::summary::{Summary, best_mmap};
use super::table::{figure, render, threads};
use super::target::{DEFAULT_BYTES, Target, directory_for, length_for, progress_bar};
use crate::args::{MicroArgs, once_each};
use crate::failure::Failure;
use crate::interrupt;
use crate::results::{Axis, Headline, JsonFile, Point, Report, Series, Spread};
use crate::size::Size;

/// Runs it.
///
/// # Errors
///
/// Any run's failure; nothing but the file the user named is left behind.
pub fn run(args: &MicroArgs) -> Result<(), Failure> {
    interrupt::watch();
    if args.pattern == Pattern::Fill && args.op != Op::Write {
        let what = format!("fill writes a fresh file, {} has nothing to read in it", args.op);
        return Err(Failure::usage("--op", what, "give --op write, or --pattern forward"));
    }
    let ours = args.engines.iter().any(|engine| engine.is_fastmap());
    if let Some(advice) = args.advice
        && !ours
    {
        let what = format!("{advice} is for the fastmap engines, and --engines has none of them");
        return Err(Failure::usage("--advice", what, "add fastmap, or choose mmap-random or mmap-sequential there"));
    }
    let bytes = planned_bytes(args)?;
    let (pages, writes) = (bytes / PAGE as u64, args.op.writes());
    let limit = Limit::of(args.memory, (bytes / 4).max(least_memory(pages, writes)), |limit| {
        if ours { Ok(capacity_for(limit, pages, writes).map(drop)?) } else { Ok(()) }
    })?;
    let json = args.json.as_deref().map(JsonFile::open).transpose()?;
    let target = match &args.file {
        Some(path) => Target::named(path, args.size, args.op.writes())?,
        None => Target::temporary(&directory_for(bytes), Size(bytes), prepare::stamp_page)?,
    };
    if args.pattern == Pattern::Fill && !target.is_regular() {
        let what = "is a device, and fill begins with an empty file";
        return Err(Failure::new(&target.label, what, "name a regular file on it, or give --pattern forward"));
    }
    let session = Session::new(&target, &limit);
    session.touch_memory()?;

    let engines = once_each(&args.engines);
    let (pattern, op, threads, advice) = (args.pattern, args.op, args.threads, args.advice.unwrap_or_default());
    let load = |engine| Load { engine, pattern, op, threads, advice };
    let mut outcomes: Vec<Vec<Outcome>> = vec![Vec::new(); engines.len()];
    let bar =
        progress_bar(u64::from(args.repeat) * engines.len() as u64, "{msg:40} {bar:30} {pos}/{len} runs, {eta} left");
    for repetition in 1..=args.repeat {
        for (engine, outcomes) in engines.iter().zip(&mut outcomes) {
            bar.set_message(format!("{engine}, repetition {repetition} of {}", args.repeat));
            outcomes.push(session.run(load(*engine), args.seconds)?);
            bar.inc(1);
        }
    }
    bar.finish_and_clear();

    let mut report: Report<Summary> = session.report("micro");
    report.results = engines.iter().zip(&outcomes).map(|(e, o)| Summary::of(load(*e), o)).collect();
    tell(args, &mut report);
    crate::print(&text(args, &report));
    json.map_or(Ok(()), |json| json.write(report))
}

/// Length the file will have, checked against what the load needs.
fn planned_bytes(args: &MicroArgs) -> Result<u64, Failure> {
    let page = PAGE as u64;
    let bytes = length_for(args.file.as_deref(), args.size, DEFAULT_BYTES)?;
    let least = u64::from(args.threads) * STRIDE_PAGES * page;
    if bytes < least {
        return Err(Failure::usage(
            "--size",
            format!("{} is too small for {}", Size(bytes), threads(args.threads)),
            format!("give at least {}, or fewer --threads", Size(least)),
        ));
    }
    Ok(bytes)
}

fn text(args: &MicroArgs, report: &Report<Summary>) -> String {
    let best = best_mmap(&report.results);
    let limit = match report.memory_limit_bytes {
        Some(bytes) => format!("{} of memory each ({})", Size(bytes), report.memory_limit),
        None => format!(
            "NO LIMIT on memory: kernel mmap may use all of it, fastmap's cache is {}; the comparison favours mmap",
            Size(report.file_bytes / 4)
        ),
    };
    let caption = format!(
        "{}, {} file ({} on {}), {limit}; medians of {}\n\n",
        work(args),
        Size(report.file_bytes),
        report.machine.file_system,
        report.machine.device,
        match args.pattern {
            Pattern::Fill => args.repeat.to_string(),
            _ => format!("{} x {} s", args.repeat, args.seconds),
        },
    );
    let rows: Vec<Vec<String>> = report.results.iter().map(|s| row(s, best)).collect();
    let headings = [
        "engine",
        "kops/s",
        "min..max",
        "GB/s",
        "CPU us/op",
        "CPU ns/B",
        "p50 us",
        "p99 us",
        "p99.9 us",
        "max us",
        "peak MiB",
        "x best mmap",
    ];
    let mut text = caption + &render(&headings, &rows);
    if let Some(buffered) = report.results.iter().flat_map(|s| &s.fastmap).find(|f| !f.direct_io) {
        let capacity = Size(buffered.capacity_bytes);
        text.push_str(&format!(
            "\nThe file refuses O_DIRECT: fastmap's {capacity} cache reads through the page cache.\n"
        ));
    }
    text.push_str(&hits(&report.results));
    if args.op.writes() {
        text.push_str(&writes(&report.results));
    }
    if let Some(best) = best {
        let ratio = |s: &Summary| {
            format!("{} is {:.2}x the best mmap ({})", s.engine, s.ops_per_s / best.ops_per_s, best.engine)
        };
        text.push_str(&paragraph(report.results.iter().filter(|s| s.engine.is_fastmap()).map(ratio)));
    }
    text
}

/// Headlines and figures.
fn tell(args: &MicroArgs, report: &mut Report<Summary>) {
    let what = work(args);
    report.verified = match args.op.writes() {
        false => "Every operation checked its page's stamp.".to_owned(),
        true => {
            "Every operation checked its page's stamp; after each run the whole file was read back, every byte checked."
                .to_owned()
        }
    };
    if let Some(best) = best_mmap(&report.results) {
        let ours = report.results.iter().filter(|s| s.engine.is_fastmap());
        let headline = |s: &Summary| Headline {
            what: format!("{what}: {} to {}", s.engine, best.engine),
            ratio: Spread::of_ratios(&s.runs, &best.runs),
            paper: None,
            why: None,
        };
        report.headlines = ours.map(headline).collect();
    }
    let rate = |s: &Summary| Point::spread(s.engine.name(), figures::thousands(&s.runs));
    let rates = Series { name: "operations".to_owned(), points: report.results.iter().map(rate).collect() };
    let caption = format!("Medians of {} repetitions, engines in turn.", args.repeat);
    let y = Axis::of("thousands of operations a second");
    let latency = report.results.iter().map(|s| (s.engine.name(), s.latency_us));
    report.figures = vec![
        figures::bars(format!("Throughput: {what}"), &caption, "engine", y, vec![rates]),
        figures::latencies(format!("Latency: {what}"), &caption, "engine", latency),
    ];
}

/// What is done, in words.
fn work(args: &MicroArgs) -> String {
    let what = match args.pattern {
        Pattern::Stride => format!("every 16th page, {}", args.op),
        Pattern::Fill => "a fresh file filled and flushed".to_owned(),
        other => format!("{other} {}", args.op),
    };
    let advised = args.advice.map_or_else(String::new, |advice| format!(", fastmap advised {advice}"));
    format!("{what}{advised}, {}", threads(args.threads))
}

/// Lines below an empty one; nothing if there are none.
fn paragraph(lines: impl Iterator<Item = String>) -> String {
    let lines: String = lines.map(|line| line + "\n").collect();
    if lines.is_empty() { lines } else { format!("\n{lines}") }
}

/// How often each fastmap engine met its page mapped, and what it had read before it was touched.
fn hits(results: &[Summary]) -> String {
    paragraph(results.iter().filter_map(|s| {
        let (hits, ahead) = (s.hits?, s.readahead?);
        let mut line = format!("{}: {} of operations found their page mapped", s.engine, percent(hits.hit_ratio));
        if ahead.pages > 0 {
            let of_pages = |count: u64| percent(count as f64 / ahead.pages as f64);
            let (used, wasted) = (of_pages(ahead.used), of_pages(ahead.wasted));
            let a_trap = figure(ahead.used as f64 / ahead.chunks.max(1) as f64);
            line.push_str(&format!("; {} pages read ahead in {} streams", ahead.pages, ahead.streams));
            line.push_str(&format!(", {used} used, {a_trap} a trap, {wasted} wasted"));
        }
        if ahead.prefetched > 0 {
            line.push_str(&format!("; {} pages prefetched", ahead.prefetched));
        }
        Some(line)
    }))
}

fn percent(share: f64) -> String {
    format!("{:.1} %", share * 100.0)
}

/// How writes reached the device; nothing where neither device nor engine counts them.
fn writes(results: &[Summary]) -> String {
    let at_device = |s: &Summary| {
        let device = s.device?;
        let kib = figure(device.average_write_bytes / 1024.0);
        Some(format!("{} {kib} KiB at depth {}", s.engine, figure(device.average_queue_depth)))
    };
    let devices: Vec<String> = results.iter().filter_map(at_device).collect();
    let devices =
        (!devices.is_empty()).then(|| format!("A write at the device, and its queue: {}", devices.join(", ")));
    let wrote = |s: &Summary| {
        let (ratio, depth) = (figure(s.writeback?.merge_ratio), figure(s.writeback?.queue_depth));
        Some(format!("{} wrote {ratio} pages a run, {depth} runs under way at a time", s.engine))
    };
    paragraph(devices.into_iter()) + &paragraph(results.iter().filter_map(wrote))
}

fn row(s: &Summary, best: Option<&Summary>) -> Vec<String> {
    let (low, high) = s.spread();
    vec![
        s.engine.to_string(),
        figure(s.ops_per_s / 1e3),
        format!("{}..{}", figure(low / 1e3), figure(high / 1e3)),
        figure(s.bytes_per_s / 1e9),
        figure(s.cpu_us_per_op),
        figure(s.cpu_ns_per_byte),
        figure(s.latency_us.p50),
        figure(s.latency_us.p99),
        figure(s.latency_us.p999),
        figure(s.latency_us.max),
        figure(s.peak_rss_bytes as f64 / f64::from(1 << 20)),
        best.map_or_else(|| "-".to_owned(), |best| format!("{:.2}", s.ops_per_s / best.ops_per_s)),
    ]
}
