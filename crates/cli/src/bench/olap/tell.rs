//! What the runs of TPC-H come to: the table, headlines with the paper's figure, plots, and why ours is lower where it is.

use fastmap_workloads::PAGE;
use fastmap_workloads::olap::Loaded;
use serde::Serialize;

use super::{Checks, Engine, Run, Served};
use crate::bench::table::{figure, render};
use crate::results::{Axis, Figure, Headline, Kind, Paper, Point, Report, Series, Spread, median};
use crate::size::Size;

/// What a reader must know beside the runs.
pub struct Setting<'a> {
    pub cache: u64,
    pub threads: u32,
    pub scale: f64,
    pub loaded: Loaded,
    pub checks: &'a Checks,
}

/// One engine at all queries.
#[derive(Debug, Clone, Serialize)]
pub struct Summary {
    engine: Engine,
    /// All queries together.
    seconds: Spread,
    /// Of the processor time of a run, what the kernel took; median.
    system_share: f64,
    user_seconds: f64,
    system_seconds: f64,
    /// Faults that waited for a read by the kernel.
    major_faults: f64,
    /// Read from the device, where one is known.
    #[serde(skip_serializing_if = "Option::is_none")]
    device_read_bytes: Option<f64>,
    /// Written to it.
    #[serde(skip_serializing_if = "Option::is_none")]
    device_write_bytes: Option<f64>,
    peak_rss_bytes: f64,
    queries: Vec<OfQuery>,
    /// Of each repetition, what `fastmap run` did.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    served: Vec<Served>,
}

/// One query of an engine.
#[derive(Debug, Clone, Serialize)]
struct OfQuery {
    query: u32,
    rows: usize,
    seconds: Spread,
    /// Seconds of each repetition, in order.
    runs: Vec<f64>,
}

impl Summary {
    fn of(engine: Engine, runs: &[Run]) -> Summary {
        let each = |of: &dyn Fn(&Run) -> f64| runs.iter().map(of).collect::<Vec<f64>>();
        let by = |of: &dyn Fn(&Run) -> f64| median(each(of));
        let device = |of: &dyn Fn(&Run) -> Option<u64>| {
            runs.iter().map(|run| of(run).map(|bytes| bytes as f64)).collect::<Option<Vec<f64>>>().map(median)
        };
        let queries = runs[0].outcome.answers.iter().enumerate().map(|(n, answer)| {
            let runs = each(&|run| run.outcome.answers[n].seconds);
            OfQuery { query: answer.query, rows: answer.rows.len(), seconds: Spread::of(&runs), runs }
        });
        Summary {
            engine,
            seconds: Spread::of(&each(&total)),
            system_share: by(&|run| run.outcome.system_seconds / cpu(run).max(f64::MIN_POSITIVE)),
            user_seconds: by(&|run| run.outcome.user_seconds),
            system_seconds: by(&|run| run.outcome.system_seconds),
            major_faults: by(&|run| run.outcome.major_faults as f64),
            device_read_bytes: device(&|run| Some(run.outcome.device?.read_bytes)),
            device_write_bytes: device(&|run| Some(run.outcome.device?.write_bytes)),
            peak_rss_bytes: by(&|run| run.outcome.peak_rss_bytes as f64),
            queries: queries.collect(),
            served: runs.iter().filter_map(|run| run.served.clone()).collect(),
        }
    }
}

fn total(run: &Run) -> f64 {
    run.outcome.answers.iter().map(|answer| answer.seconds).sum()
}

fn cpu(run: &Run) -> f64 {
    run.outcome.user_seconds + run.outcome.system_seconds
}

/// Times as fast FastMap was at each query, repetition by repetition.
fn ratios(kernel: &Summary, ours: &Summary) -> Vec<Spread> {
    kernel.queries.iter().zip(&ours.queries).map(|(kernel, ours)| Spread::of_ratios(&kernel.runs, &ours.runs)).collect()
}

/// The geometric mean over the queries, of each repetition.
fn means(kernel: &Summary, ours: &Summary) -> Vec<f64> {
    let of = |repetition: usize| {
        let pairs = kernel.queries.iter().zip(&ours.queries);
        let logs = pairs.map(|(kernel, ours)| (kernel.runs[repetition] / ours.runs[repetition]).ln());
        (logs.sum::<f64>() / kernel.queries.len() as f64).exp()
    };
    (0..kernel.queries[0].runs.len()).map(of).collect()
}

/// Puts results, headlines, figures and notes into the report.
pub fn tell(report: &mut Report<Summary>, runs: &[Vec<Run>; 2], setting: &Setting<'_>) {
    let [kernel, ours] = [Summary::of(Engine::Mmap, &runs[0]), Summary::of(Engine::Fastmap, &runs[1])];
    let mean = Spread::of(&means(&kernel, &ours));
    let totals = |runs: &[Run]| runs.iter().map(total).collect::<Vec<_>>();
    let together = Spread::of_ratios(&totals(&runs[0]), &totals(&runs[1]));
    let paper = Paper {
        ratio: 1.0606,
        source: "FastMap, USENIX ATC '20, section 5, MonetDB".into(),
        setting: "50 GB of data, 16 GB of memory, 32 cores, Optane SSD; queries from 7.2 % worse to 45.7 % better"
            .into(),
    };
    let count = kernel.queries.len();
    let is_short = report.memory_limit_bytes.is_some_and(|limit| limit < report.file_bytes);
    let paper = Some(paper).filter(|_| count == 22 && is_short);
    let queries = if count == 22 { "22 TPC-H queries".to_owned() } else { format!("{count} of the TPC-H queries") };
    let memory = match report.memory_limit_bytes {
        None => "memory not limited",
        Some(_) if is_short => "data larger than memory",
        Some(_) => "memory for all of the data",
    };
    let what = format!("{queries} over MonetDB, unchanged, {memory}: geometric mean of the speed-ups");
    let lower = |ratio: Spread, level: f64| (ratio.median < level).then(|| why(report, &kernel, &ours, setting));
    let level = paper.as_ref().map_or(1.0, |paper| paper.ratio);
    let headlines = vec![
        Headline { what, why: lower(mean, level), ratio: mean, paper },
        Headline {
            what: "the same queries: time of all of them together".into(),
            ratio: together,
            paper: None,
            why: lower(together, 1.0),
        },
    ];
    report.headlines = headlines;
    report.figures = figures(&kernel, &ours);
    report.verified = verified(setting, runs[0].len());
    report.notes = notes(report, &ours, setting);
    report.results = vec![kernel, ours];
}

fn verified(setting: &Setting<'_>, repeat: usize) -> String {
    let official = match setting.checks.official {
        true => ", and with the answers in the TPC-H specification, to five cents",
        false => " (the specification has answers at scale factor 1 alone)",
    };
    format!(
        "All columns of all {} rows that the queries answer were compared, exactly and in order, between kernel mmap and FastMap in \
         each of {repeat} repetitions{official}.",
        setting.checks.rows()
    )
}

/// Why ours is lower, of what was counted.
fn why(report: &Report<Summary>, kernel: &Summary, ours: &Summary, setting: &Setting<'_>) -> String {
    let mut said = Vec::new();
    if let (Some(memory), Some(served)) = (report.memory_limit_bytes, ours.served.first()) {
        let again: u64 = served.caches.iter().map(|cache| cache.ghost_hits).sum();
        said.push(format!(
            "FastMap's cache of {} is fixed, whereas the kernel gives files all of {} that MonetDB's own memory leaves at the \
             moment ({again} of our misses were for pages dropped a short while before)",
            Size(setting.cache),
            Size(memory)
        ));
        let written: u64 = served.caches.iter().map(|cache| cache.writeback_pages).sum();
        if written > 0 {
            said.push(format!(
                "of intermediate results in files {} MiB were written back that MonetDB deletes soon after, which the page cache \
                 forgets where memory suffices",
                (written * PAGE as u64) >> 20
            ));
        }
    }
    if report.memory_limit_bytes.is_none() {
        said.push("nothing limited memory: kernel mmap could use all of it, FastMap its cache alone".to_owned());
    }
    if let Some((theirs, our_bytes)) = kernel.device_read_bytes.zip(ours.device_read_bytes) {
        let mib = |bytes: f64| figure(bytes / f64::from(1 << 20));
        said.push(format!(
            "{} MiB were read from the device under FastMap, {} on kernel mmap, there with {} faults that waited",
            mib(our_bytes),
            mib(theirs),
            kernel.major_faults
        ));
    }
    if ours.system_share > kernel.system_share {
        said.push(format!(
            "{:.0} % of the processor time is the kernel's under FastMap, {:.0} % on kernel mmap (the paper has less than 10 %): a trap \
             that goes on to user space likely costs more than one within the kernel",
            ours.system_share * 100.0,
            kernel.system_share * 100.0
        ));
    }
    said.push(format!("here are {} processors, in the paper 32", report.machine.cpus));
    said.join("; ")
}

fn notes(report: &Report<Summary>, ours: &Summary, setting: &Setting<'_>) -> Vec<String> {
    let mut notes = vec![format!(
        "TPC-H at scale factor {}: {} MiB of text, generated and loaded in {:.0} s, a database of {} MiB; MonetDB Jul2021 (monetdbe 0.11 \
         from PyPI, unchanged) with {} threads, its limit on address space at the default (in a cgroup it would take the \
         memory's); the queries have the specification's validation parameters.",
        setting.scale,
        setting.loaded.text_bytes >> 20,
        setting.loaded.seconds,
        report.file_bytes >> 20,
        setting.threads
    )];
    if let Some(served) = ours.served.first() {
        notes.push(format!(
            "MonetDB maps columns and heaps of 256 KiB and more, shared and writable, and gives no advice (madvise) for them, so kernel \
             mmap has none here. FastMap served {} of the {} mappings larger than 1 MiB from a cache of {}; smaller ones were the \
             kernel's.",
            served.candidates - served.kernel,
            served.candidates,
            Size(setting.cache)
        ));
    }
    notes.push(
        "Not served by FastMap: intermediate results smaller than a sixteenth of the memory that MonetDB may use, which are anonymous \
         memory. Larger ones are temporary files that it maps, and are served."
            .into(),
    );
    notes.push(
        "Every run had a copy of the database, since opening writes to it and queries leave indexes in it.".into(),
    );
    if report.memory_limit_bytes.is_none() {
        notes.push("Nothing limited memory: kernel mmap could use all of it, FastMap its cache alone.".into());
    }
    notes
}

fn figures(kernel: &Summary, ours: &Summary) -> Vec<Figure> {
    let name = |query: u32| format!("Q{query}");
    let seconds = |summary: &Summary, label: &str| Series {
        name: label.into(),
        points: summary.queries.iter().map(|of| Point::spread(name(of.query).as_str(), of.seconds)).collect(),
    };
    let paper = "FastMap, USENIX ATC '20, section 5, MonetDB: 6.06 % better on average, from -7.2 % to 45.7 %";
    let ratios = kernel.queries.iter().zip(ratios(kernel, ours));
    let times = Series {
        name: "FastMap to kernel mmap".into(),
        points: ratios.map(|(of, ratio)| Point::spread(name(of.query).as_str(), ratio)).collect(),
    };
    let share = |label: &str, of: fn(&Summary) -> f64| Series {
        name: label.into(),
        points: vec![Point::bare("kernel mmap", of(kernel)), Point::bare("FastMap", of(ours))],
    };
    vec![
        Figure {
            title: "TPC-H over MonetDB: time of each query".into(),
            caption: "From a cold start, one query after the other; less is better. Bars are medians, lines the least and the most of the \
                      repetitions."
                .into(),
            paper: None,
            kind: Kind::Bars,
            x: Axis::of("query"),
            y: Axis::of("seconds"),
            series: vec![seconds(kernel, "kernel mmap"), seconds(ours, "FastMap")],
        },
        Figure {
            title: "TPC-H over MonetDB: times as fast".into(),
            caption: "Kernel mmap's time to FastMap's, repetition by repetition; above 1 FastMap is faster.".into(),
            paper: Some(paper.into()),
            kind: Kind::Bars,
            x: Axis::of("query"),
            y: Axis::of("times as fast"),
            series: vec![times],
        },
        Figure {
            title: "TPC-H over MonetDB: processor time".into(),
            caption: "Of all queries together, in MonetDB (and FastMap's handler) and in the kernel; medians.".into(),
            paper: Some(
                "FastMap, USENIX ATC '20, section 5, MonetDB: system time below 10 %, and 5.4 % to 48.6 % less of it with FastMap"
                    .into(),
            ),
            kind: Kind::Stacked,
            x: Axis::of("on"),
            y: Axis::of("seconds of processor time"),
            series: vec![share("program", |s| s.user_seconds), share("kernel", |s| s.system_seconds)],
        },
    ]
}

/// The table.
pub fn text(report: &Report<Summary>, repeat: u32) -> String {
    let [kernel, ours] = report.results.as_slice() else { unreachable!("two engines") };
    let limit = match report.memory_limit_bytes {
        Some(bytes) => format!("{} of memory each ({})", Size(bytes), report.memory_limit),
        None => "NO LIMIT on memory: kernel mmap may use all of it".to_owned(),
    };
    let mut text = format!(
        "TPC-H over MonetDB: a database of {} MiB ({} on {}), {limit}; medians of {repeat}\n\n",
        report.file_bytes >> 20,
        report.machine.file_system,
        report.machine.device
    );
    let rows = kernel.queries.iter().zip(&ours.queries).zip(ratios(kernel, ours)).map(|((kernel, ours), ratio)| {
        vec![
            format!("Q{}", kernel.query),
            kernel.rows.to_string(),
            figure(kernel.seconds.median),
            figure(ours.seconds.median),
            figure(ratio.median),
            format!("{}..{}", figure(ratio.low), figure(ratio.high)),
        ]
    });
    let headings = ["query", "rows", "mmap s", "fastmap s", "times as fast", "min..max"];
    text.push_str(&render(&headings, &rows.collect::<Vec<_>>()));
    text.push('\n');
    let mib = |bytes: Option<f64>| bytes.map_or("-".to_owned(), |bytes| figure(bytes / f64::from(1 << 20)));
    let row = |s: &Summary| {
        vec![
            s.engine.name().to_owned(),
            figure(s.seconds.median),
            format!("{}..{}", figure(s.seconds.low), figure(s.seconds.high)),
            figure(s.user_seconds),
            figure(s.system_seconds),
            format!("{:.0} %", s.system_share * 100.0),
            mib(s.device_read_bytes),
            mib(s.device_write_bytes),
            mib(Some(s.peak_rss_bytes)),
        ]
    };
    let headings =
        ["all queries", "s", "min..max", "user s", "system s", "system", "read MiB", "written MiB", "peak MiB"];
    text.push_str(&render(&headings, &[row(kernel), row(ours)]));
    let headline = &report.headlines[0];
    text.push_str(&format!("\n{}: {:.3}", headline.what, headline.ratio.median));
    if let Some(paper) = &headline.paper {
        text.push_str(&format!(" (the paper: {})", paper.ratio));
    }
    text.push('\n');
    if let Some(why) = &headline.why {
        text.push_str(&format!("why not more: {why}\n"));
    }
    text.push_str(&format!("{}\n", report.verified));
    text
}
