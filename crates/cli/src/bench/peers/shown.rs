//! What a comparison with peers comes to: tables, headlines, figures.

use fastmap_workloads::peers::{Peer, Work};

use super::Summary;
use crate::args::{PeersArgs, once_each};
use crate::bench::table::{figure, render};
use crate::results::{Axis, Figure, Headline, Kind, Point, Report, Series, Spread, spread};
use crate::size::Size;

/// Share of the processors' time below which something else sets the pace.
const BUSY: f64 = 0.7;

/// Requests at the device, on average, from which it is what is waited for.
const WAITED_FOR: f64 = 0.5;

/// Writes everything but the results themselves into `report`.
pub fn fill_in(report: &mut Report<Summary>) {
    report.verified = "Every operation checked three words of its page or record; after each run that updated, every byte of every page \
                       and record was read back and compared with what was stored last."
        .to_owned();
    let results = std::mem::take(&mut report.results);
    report.notes = notes(&results);
    report.headlines = headlines(report, &results);
    report.figures = figures(&results);
    report.results = results;
}

fn notes(results: &[Summary]) -> Vec<String> {
    let has = |peer| results.iter().any(|s| s.engine == peer);
    let mut notes = Vec::new();
    if has(Peer::Redb) {
        notes.push(
            "redb keeps its records in a tree, reads through the page cache, and makes every update a transaction that is atomic after a \
             crash; no other engine here promises that, and redb alone pays for it."
                .to_owned(),
        );
    }
    if has(Peer::QuickCache) && results.iter().any(|s| s.work == Work::ZipfUpdate) {
        notes.push(
            "quick-cache, pread and direct hand each update to the kernel at once (quick-cache and direct: to the device); kernel mmap \
             and FastMap write back later, several updates of a page together. No engine flushes within the measurement."
                .to_owned(),
        );
    }
    notes.push(
        "UMap and vmcache are in no package registry: scripts/peers measures one that you have built beside these."
            .to_owned(),
    );
    notes
}

/// The results of the most threads that were measured.
fn busiest(results: &[Summary]) -> impl Iterator<Item = &Summary> {
    let most = results.iter().map(|s| s.threads).max();
    results.iter().filter(move |s| Some(s.threads) == most)
}

fn best<'a>(results: impl Iterator<Item = &'a Summary>) -> Option<&'a Summary> {
    results.max_by(|a, b| a.ops_per_s.total_cmp(&b.ops_per_s))
}

/// What memory there was beside the data.
fn memory(report: &Report<Summary>) -> String {
    match report.memory_limit_bytes {
        Some(limit) if limit < report.file_bytes => "data larger than memory".to_owned(),
        Some(limit) => format!("{} of memory for {} of data", Size(limit), Size(report.file_bytes)),
        None => "memory not limited".to_owned(),
    }
}

fn headlines(report: &Report<Summary>, results: &[Summary]) -> Vec<Headline> {
    let mut headlines = Vec::new();
    let of = |work, peers: &[Peer]| best(busiest(results).filter(|s| s.work == work && peers.contains(&s.engine)));
    let ours = [Peer::Fastmap, Peer::FastmapPin, Peer::FastmapPrefetch];
    // Plain loads beside plain loads; beside calls, whichever face a program that calls would use.
    for (work, ours, theirs) in [
        (Work::RandomRead, &ours[..1], &[Peer::Mmap, Peer::MmapRandom][..]),
        (Work::RandomRead, &ours[..], &[Peer::Direct, Peer::QuickCache][..]),
        (Work::ZipfRead, &ours[..2], &[Peer::QuickCache, Peer::Redb][..]),
        (Work::ZipfUpdate, &ours[..2], &[Peer::Mmap, Peer::MmapRandom, Peer::QuickCache, Peer::Redb][..]),
    ] {
        let Some((ours, theirs)) = of(work, ours).zip(of(work, theirs)) else { continue };
        let ratio = Spread::of_ratios(&ours.runs, &theirs.runs);
        headlines.push(Headline {
            what: format!(
                "{work}, {}, {}: {} to {}",
                counted(ours.threads),
                memory(report),
                ours.engine,
                theirs.engine
            ),
            ratio,
            paper: None,
            why: (ratio.median < 1.0).then(|| lower(ours, theirs, report.machine.cpus)),
        });
    }
    headlines
}

fn counted(threads: u32) -> String {
    if threads == 1 { "1 thread".to_owned() } else { format!("{threads} threads") }
}

/// Why ours is the lower one, as the figures have it.
fn lower(ours: &Summary, theirs: &Summary, cpus: usize) -> String {
    let cost =
        |s: &Summary| format!("{} takes {} us of processor time an operation", s.engine, figure(s.cpu_us_per_op));
    if ours.cpu_us_per_op > theirs.cpu_us_per_op * 1.1 {
        let instead = match theirs.engine {
            Peer::Mmap | Peer::MmapRandom => "one in the kernel",
            _ => "the call it replaces",
        };
        return format!(
            "{}, {}: a page fault handled in user space costs more than {instead}",
            cost(ours),
            cost(theirs)
        );
    }
    // No more processors than threads can be busy with the load.
    let used = cpus.min(ours.threads as usize).max(1);
    let busy = |s: &Summary| s.ops_per_s * s.cpu_us_per_op / 1e6 / used as f64;
    let depth = |s: &Summary| s.device.map(|device| device.average_queue_depth);
    let pace = match depth(ours).zip(depth(theirs)) {
        Some((ours_depth, theirs_depth))
            if busy(ours).max(busy(theirs)) < BUSY && ours_depth.min(theirs_depth) > WAITED_FOR =>
        {
            format!(
                "the device sets the pace, with {} and {} requests under way on average, and {:.0} % and {:.0} % of the processors' time \
                 taken",
                figure(ours_depth),
                figure(theirs_depth),
                busy(ours) * 100.0,
                busy(theirs) * 100.0
            )
        }
        _ => "what sets the pace was not measured".to_owned(),
    };
    format!("{}, {}: {pace}", cost(ours), cost(theirs))
}

fn figures(results: &[Summary]) -> Vec<Figure> {
    let mut figures: Vec<Figure> = [Work::RandomRead, Work::ZipfRead, Work::ZipfUpdate]
        .into_iter()
        .filter_map(|work| {
            let of_work: Vec<&Summary> = results.iter().filter(|s| s.work == work).collect();
            let thousands = |s: &Summary| Spread::of(&s.runs.iter().map(|run| run / 1e3).collect::<Vec<_>>());
            let series = engines(&of_work)
                .into_iter()
                .map(|engine| {
                    let points = of_work.iter().filter(|s| s.engine == engine);
                    let points = points.map(|s| Point::spread(counted(s.threads).as_str(), thousands(s)));
                    Series { name: engine.to_string(), points: points.collect() }
                })
                .collect();
            (!of_work.is_empty()).then(|| Figure {
                title: format!("Operations a second, {work}"),
                caption: "Pages of 4 KiB with the same memory for everybody; medians, least and greatest of the repetitions; more is better."
                    .to_owned(),
                paper: None,
                kind: Kind::Bars,
                x: Axis::of("threads"),
                y: Axis::of("thousands of operations a second"),
                series,
            })
        })
        .collect();
    let busiest: Vec<&Summary> = busiest(results).collect();
    let works = once_each(&busiest.iter().map(|s| s.work).collect::<Vec<_>>());
    figures.extend(works.iter().map(|&work| latencies(work, &busiest)));
    let cpu = |&work: &Work| {
        let points = busiest.iter().filter(|s| s.work == work);
        let points = points.map(|s| Point::bare(s.engine.name(), s.cpu_us_per_op));
        Series { name: work.to_string(), points: points.collect() }
    };
    figures.push(Figure {
        title: "Processor time of an operation".to_owned(),
        caption: "User and system time of the process; what kernel threads do for it is not in it. Less is better."
            .to_owned(),
        paper: None,
        kind: Kind::Bars,
        x: Axis::of("engine"),
        y: Axis::of("microseconds"),
        series: works.iter().map(cpu).collect(),
    });
    figures
}

fn latencies(work: Work, busiest: &[&Summary]) -> Figure {
    let of_work: Vec<&&Summary> = busiest.iter().filter(|s| s.work == work).collect();
    let series = |name: &str, of: fn(&Summary) -> f64| Series {
        name: name.to_owned(),
        // A hit takes a few nanoseconds, which a logarithm can show and zero cannot.
        points: of_work.iter().map(|s| Point::bare(s.engine.name(), of(s).max(0.01))).collect(),
    };
    Figure {
        title: format!("Latencies, {work}"),
        caption: format!(
            "Time between two operations of a thread, {}; less is better.",
            of_work.first().map_or_else(String::new, |s| counted(s.threads))
        ),
        paper: None,
        kind: Kind::Bars,
        x: Axis::of("engine"),
        y: Axis::log("microseconds"),
        series: vec![
            series("median", |s| s.latency_us.p50),
            series("99 %", |s| s.latency_us.p99),
            series("99.9 %", |s| s.latency_us.p999),
        ],
    }
}

fn engines(results: &[&Summary]) -> Vec<Peer> {
    once_each(&results.iter().map(|s| s.engine).collect::<Vec<_>>())
}

/// Everything for a terminal.
pub fn text(args: &PeersArgs, report: &Report<Summary>) -> String {
    let limit = match report.memory_limit_bytes {
        Some(bytes) => format!("{} of memory each ({})", Size(bytes), report.memory_limit),
        None => format!(
            "NO LIMIT on memory: kernel mmap, pread and redb may use all of it, other caches {}; the comparison favours the former",
            Size(report.file_bytes / 4)
        ),
    };
    let mut text = format!(
        "{} file ({} on {}), {limit}; medians of {} x {} s\n",
        Size(report.file_bytes),
        report.machine.file_system,
        report.machine.device,
        args.repeat,
        args.seconds
    );
    let headings = [
        "engine",
        "kops/s",
        "min..max",
        "x best mmap",
        "CPU us/op",
        "p50 us",
        "p99 us",
        "p99.9 us",
        "max us",
        "peak MiB",
    ];
    for group in report.results.chunk_by(|a, b| (a.work, a.threads) == (b.work, b.threads)) {
        let mmap =
            best(group.iter().filter(|s| matches!(s.engine, Peer::Mmap | Peer::MmapRandom))).map(|s| s.ops_per_s);
        let row = |s: &Summary| {
            let (low, high) = spread(&s.runs);
            vec![
                s.engine.to_string(),
                figure(s.ops_per_s / 1e3),
                format!("{}..{}", figure(low / 1e3), figure(high / 1e3)),
                mmap.map_or_else(|| "-".to_owned(), |mmap| format!("{:.2}", s.ops_per_s / mmap)),
                figure(s.cpu_us_per_op),
                figure(s.latency_us.p50),
                figure(s.latency_us.p99),
                figure(s.latency_us.p999),
                figure(s.latency_us.max),
                figure(s.peak_rss_bytes as f64 / f64::from(1 << 20)),
            ]
        };
        let rows: Vec<Vec<String>> = group.iter().map(row).collect();
        text.push_str(&format!("\n{}, {}\n\n{}", group[0].work, counted(group[0].threads), render(&headings, &rows)));
    }
    report.notes.iter().for_each(|note| text.push_str(&format!("\n{note}\n")));
    text
}
