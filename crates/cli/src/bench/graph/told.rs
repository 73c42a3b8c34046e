//! What the figures say: tables, headlines, plots.

use super::{Part, Summary};
use crate::args::GraphArgs;
use crate::bench::table::{figure, render, threads};
use crate::results::{Axis, Figure, Headline, Kind, Paper, Point, Report, Series, Spread, spread};
use crate::size::Size;
use fastmap_workloads::graph::Engine;

const FIGURE: &str = "FastMap, USENIX ATC '20, figure 7";

/// An algorithm: how it is called, and its figures if it was run.
type Algorithm = (&'static str, fn(&Summary) -> Option<&Part>);

const ALGORITHMS: [Algorithm; 2] = [("BFS", |s| Some(&s.bfs)), ("PageRank", |s| s.pagerank.as_ref())];

/// Kernel mmap at its best among runs with as many threads.
fn best_mmap(group: &[Summary], of: fn(&Summary) -> Option<&Part>) -> Option<(Engine, &Part)> {
    let kernel = group.iter().filter(|s| s.engine != Engine::Fastmap);
    kernel.filter_map(|s| Some((s.engine, of(s)?))).min_by(|a, b| a.1.seconds.total_cmp(&b.1.seconds))
}

fn groups(report: &Report<Summary>) -> impl Iterator<Item = &[Summary]> {
    report.results.chunk_by(|a, b| a.threads == b.threads)
}

/// The tables.
pub fn text(args: &GraphArgs, report: &Report<Summary>) -> String {
    let limit = match report.memory_limit_bytes {
        Some(bytes) => format!("{:.1} MiB of memory each ({})", bytes as f64 / f64::from(1 << 20), report.memory_limit),
        None => "NO LIMIT on memory: kernel mmap may use all of it, which favours mmap".to_owned(),
    };
    let mut text = format!(
        "R-MAT graph of 2^{} vertices and {} edges each, {:.0} MiB with arrays, on a heap in a file ({} on {}), {limit}; \
         medians of {}\n",
        args.scale,
        args.edges,
        report.file_bytes as f64 / f64::from(1 << 20),
        report.machine.file_system,
        report.machine.device,
        args.repeat,
    );
    for group in groups(report) {
        for (name, of) in ALGORITHMS {
            let work = match name {
                "BFS" => format!("{} searches", args.sources),
                _ => format!("{} iterations", args.iterations),
            };
            let best = best_mmap(group, of);
            let rows: Vec<Vec<String>> =
                group.iter().filter_map(|s| Some(row(s, of(s)?, best.map(|(_, part)| part)))).collect();
            if !rows.is_empty() {
                text.push_str(&format!(
                    "\n{name}, {work}, {}\n\n{}",
                    threads(group[0].threads),
                    render(&HEADINGS, &rows)
                ));
            }
        }
    }
    if report.results.iter().any(|s| s.bfs.runs.len() < args.repeat as usize) {
        let times = super::HOPELESS;
        text.push_str(&format!("\nWhat took more than {times} times as long as the fastest was run once.\n"));
    }
    text
}

const HEADINGS: [&str; 13] = [
    "engine",
    "s",
    "min..max",
    "Medges/s",
    "x best mmap",
    "user %",
    "system %",
    "iowait %",
    "idle %",
    "MiB read",
    "KiB a read",
    "MiB written",
    "queue",
];

fn row(s: &Summary, part: &Part, best: Option<&Part>) -> Vec<String> {
    let (low, high) = spread(&part.runs);
    let mib = |bytes: u64| figure(bytes as f64 / f64::from(1 << 20));
    let of_device = |figure: &dyn Fn(&fastmap_workloads::DeviceReport) -> String| {
        part.device.as_ref().map_or_else(|| "-".to_owned(), figure)
    };
    let percent = |share: f64| figure(share * 100.0);
    vec![
        s.engine.to_string(),
        figure(part.seconds),
        format!("{}..{}", figure(low), figure(high)),
        figure(part.edges_per_s / 1e6),
        best.map_or_else(|| "-".to_owned(), |best| format!("{:.2}", best.seconds / part.seconds)),
        percent(part.user),
        percent(part.system),
        percent(part.iowait),
        percent(part.idle),
        of_device(&|d| mib(d.read_bytes)),
        of_device(&|d| figure(d.read_bytes as f64 / 1024.0 / d.reads.max(1) as f64)),
        of_device(&|d| mib(d.write_bytes)),
        of_device(&|d| figure(d.average_queue_depth)),
    ]
}

/// Headlines, figures, and what a reader must know.
pub fn tell(args: &GraphArgs, report: &mut Report<Summary>) {
    report.verified =
        "Each run's copy of the graph was compared by digest, the levels of all vertices with those of a plain \
                       serial search in memory, and all ranks, to the last bit, with serial PageRank."
            .to_owned();
    report.notes = notes(args, report);
    report.headlines =
        groups(report).flat_map(|group| ALGORITHMS.map(|one| headline(report, group, one))).flatten().collect();
    report.figures = figures(report);
}

fn notes(args: &GraphArgs, report: &Report<Summary>) -> Vec<String> {
    let mut notes = vec![
        "This is not Ligra itself but its breadth-first search and PageRank written again: vertices of 8 bytes, Ligra's R-MAT \
         parameters and its rule for when to change direction."
            .to_owned(),
        "Kernel mmap has the same allocator over a file that the kernel maps; mmap-random has it advised MADV_RANDOM once the \
         graph is loaded. The paper's kernel has no advice."
            .to_owned(),
        "I/O wait is counted by the kernel for the whole machine.".to_owned(),
    ];
    if args.engines.is_empty() && report.results.iter().all(|s| s.engine != Engine::Mmap) {
        notes.push(
            "Kernel mmap without advice is left out, for it would take minutes: the device's readahead is so large that each \
             page missed brings in more than memory holds. `--engines mmap,mmap-random,fastmap` has it."
                .to_owned(),
        );
    }
    for s in report.results.iter().filter(|s| s.bfs.runs.len() < args.repeat as usize) {
        notes.push(format!(
            "{} with {} was run once, since it took more than {} times as long as the fastest.",
            s.engine,
            threads(s.threads),
            super::HOPELESS
        ));
    }
    match report.memory_limit_bytes {
        Some(_) if args.memory.is_none() => notes.push(format!(
            "The limit is an eighth of graph and arrays, and {} for the process itself, the same for all.",
            Size(super::PROCESS)
        )),
        Some(_) => {}
        None => notes.push("No run was limited: nothing here says what happens when memory is short.".to_owned()),
    }
    notes
}

fn headline(report: &Report<Summary>, group: &[Summary], (name, of): Algorithm) -> Option<Headline> {
    let ours = of(group.iter().find(|s| s.engine == Engine::Fastmap)?)?;
    let (engine, theirs) = best_mmap(group, of)?;
    let ratio = Spread::of_ratios(&theirs.runs, &ours.runs);
    let paper = (name == "BFS").then(|| Paper {
        ratio: 3.31,
        source: FIGURE.to_owned(),
        setting: "Ligra, 100 million vertices, 32 threads, 8 of 64 GB of memory, Optane SSD; 6.42 s to 21.3 s"
            .to_owned(),
    });
    let short = ratio.median < paper.as_ref().map_or(1.0, |paper| paper.ratio);
    let what = format!("{name} on a heap larger than memory, {}: FastMap to {engine}", threads(group[0].threads));
    Some(Headline { what, ratio, paper, why: short.then(|| why(report, ours, theirs, engine)) })
}

/// Why ours is no better: what the numbers say of it.
fn why(report: &Report<Summary>, ours: &Part, theirs: &Part, engine: Engine) -> String {
    let cpus = report.machine.cpus;
    let Some(_) = report.memory_limit_bytes else {
        return "No limit could be set on memory, so kernel mmap reads each page once.".to_owned();
    };
    let busy = |part: &Part| (part.user + part.system) * 100.0;
    if ours.user + ours.system > 0.8 {
        return format!(
            "FastMap keeps all {cpus} processors busy ({:.0} %): they, not storage, bound it here, where the paper's machine has 32.",
            busy(ours)
        );
    }
    let contended = match engine {
        Engine::MmapRandom => "it is compared with a kernel that is advised MADV_RANDOM, as the paper's is not, and ",
        _ => "",
    };
    format!(
        "Both wait for the device most of the time (busy {:.0} % and {:.0} %); {contended}with {cpus} processors the kernel's \
         locks, which the paper shows with 32, are hardly contended.",
        busy(ours),
        busy(theirs)
    )
}

fn figures(report: &Report<Summary>) -> Vec<Figure> {
    let mut figures = Vec::new();
    for (name, of) in ALGORITHMS {
        let parts: Vec<(String, &Part)> = report
            .results
            .iter()
            .filter_map(|s| Some((format!("{}, {}", s.engine, threads(s.threads)), of(s)?)))
            .collect();
        if parts.is_empty() {
            continue;
        }
        let paper = |shows: &str| (name == "BFS").then(|| format!("{FIGURE}: {shows}"));
        let seconds = |(x, part): &(String, &Part)| Point::spread(x.as_str(), Spread::of(&part.runs));
        figures.push(Figure {
            title: format!("{name} on a heap larger than memory"),
            caption: "Time of a run; less is better. Medians, least and greatest of the repetitions.".to_owned(),
            paper: paper("6.42 s with FastMap, 21.3 s with Linux mmap, on an Optane SSD"),
            kind: Kind::Bars,
            x: Axis::of("engine"),
            y: Axis::of("seconds"),
            series: vec![Series { name: name.to_owned(), points: parts.iter().map(seconds).collect() }],
        });
        type Share = fn(&Part) -> f64;
        let shares: [(&str, Share); 4] =
            [("user", |p| p.user), ("system", |p| p.system), ("I/O wait", |p| p.iowait), ("idle", |p| p.idle)];
        let series = |(name, share): (&str, Share)| Series {
            name: name.to_owned(),
            points: parts.iter().map(|(x, part)| Point::bare(x.as_str(), share(part) * 100.0)).collect(),
        };
        figures.push(Figure {
            title: format!("{name}: where the processors' time goes"),
            caption: "Shares of all processors over the run: user and system of the process, I/O wait of the machine; the rest is \
                      idle, or other programs'."
                .to_owned(),
            paper: paper("system 10.3 % and I/O wait 19.31 % with FastMap, 27.38 % and 9.5 % with Linux mmap"),
            kind: Kind::Stacked,
            x: Axis::of("engine"),
            y: Axis::of("per cent of all processors' time"),
            series: shares.map(series).to_vec(),
        });
    }
    figures
}
