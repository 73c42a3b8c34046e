//! What the runs of `fastmap bench oltp` come to: tables, headlines, figures.

use fastmap_workloads::tpcc::{Engine, Kind, Times};

use super::{Summary, in_mib};
use crate::args::{FileSystem, OltpArgs};
use crate::bench::table::{figure, render};
use crate::results::{Axis, Figure, Headline, Kind as Plot, Paper, Point, Report, Series, Spread, spread};

const TABLE: &str = "FastMap, USENIX ATC '20, table 2";
const SETTING: &str = "32 threads, Optane SSD, EXT4, Silo's heap by libvmmalloc, mmap without advice";

/// The tables on standard output.
pub fn text(args: &OltpArgs, report: &Report<Summary>) -> String {
    let limit = match report.memory_limit_bytes {
        Some(bytes) => format!("{} of memory each ({})", in_mib(bytes), report.memory_limit),
        None => "NO LIMIT on memory: kernel mmap may use all of it, fastmap's cache is a quarter of the rows; the comparison \
                 favours mmap"
            .to_owned(),
    };
    let plural = if args.warehouses == 1 { "" } else { "s" };
    let mut text = format!(
        "TPC-C, {} warehouse{plural}, {} of rows ({} on {}), {limit}; medians of {}\n",
        args.warehouses,
        in_mib(report.file_bytes),
        report.machine.file_system,
        report.machine.device,
        args.repeat
    );
    for group in groups(&report.results) {
        text.push_str(&of_group(group));
    }
    for note in &report.notes {
        text.push_str(&format!("\n{note}"));
    }
    if !report.notes.is_empty() {
        text.push('\n');
    }
    text
}

/// Results of one file system and number of threads.
fn groups(results: &[Summary]) -> impl Iterator<Item = &[Summary]> {
    results.chunk_by(|a, b| (a.file_system, a.threads) == (b.file_system, b.threads))
}

fn best_mmap(group: &[Summary]) -> Option<&Summary> {
    group.iter().filter(|s| s.engine.is_mmap()).max_by(|a, b| a.transactions_per_s.total_cmp(&b.transactions_per_s))
}

fn of_engine(group: &[Summary], engine: Engine) -> Option<&Summary> {
    group.iter().find(|s| s.engine == engine)
}

fn of_group(group: &[Summary]) -> String {
    let first = &group[0];
    let plural = if first.threads == 1 { "" } else { "s" };
    let mut text = format!("\n{}, {} thread{plural}\n\n", first.file_system, first.threads);
    let best = best_mmap(group).map(|s| s.transactions_per_s);
    let percent = |part: f64| figure(part * 100.0);
    let row = |s: &Summary| {
        let (low, high) = spread(&s.runs);
        let device =
            |of: fn(&fastmap_workloads::DeviceReport) -> f64| s.device.as_ref().map_or("-".into(), |d| figure(of(d)));
        vec![
            s.engine.to_string(),
            figure(s.transactions_per_s),
            format!("{}..{}", figure(low), figure(high)),
            best.map_or("-".to_owned(), |best| format!("{:.2}", s.transactions_per_s / best)),
            figure(s.new_orders_per_min / 1e3),
            figure(s.latency_us.mean / 1e3),
            figure(s.latency_us.p50 / 1e3),
            figure(s.latency_us.p99 / 1e3),
            figure(s.latency_us.p999 / 1e3),
            percent(s.times.user),
            percent(s.times.system),
            percent(s.times.others),
            percent(s.times.io_wait),
            percent(s.times.idle),
            device(|d| d.average_queue_depth),
            figure(s.peak_rss_bytes as f64 / f64::from(1 << 20)),
        ]
    };
    let headings = [
        "engine",
        "tx/s",
        "min..max",
        "x best mmap",
        "ktpmC",
        "mean ms",
        "p50 ms",
        "p99 ms",
        "p99.9 ms",
        "user %",
        "system %",
        "others %",
        "iowait %",
        "idle %",
        "queue",
        "peak MiB",
    ];
    text.push_str(&render(&headings, &group.iter().map(row).collect::<Vec<_>>()));
    text.push_str("\nms, mean and 99th percentile of each transaction\n\n");
    let row = |s: &Summary| {
        let of_kind = |one: &super::OfKind| {
            let us = one.latency_us;
            format!("{} {}", figure(us.mean / 1e3), figure(us.p99 / 1e3))
        };
        let mut row = vec![s.engine.to_string()];
        row.extend(s.kinds.iter().map(of_kind));
        row
    };
    let headings: Vec<&str> = ["engine"].into_iter().chain(Kind::ALL.map(Kind::name)).collect();
    text.push_str(&render(&headings, &group.iter().map(row).collect::<Vec<_>>()));
    text
}

/// How the answers were checked.
pub fn verified(results: &[Summary]) -> String {
    let rows = results.iter().map(|s| s.rows).max().unwrap_or(0);
    format!(
        "At the end of every run the conditions of consistency 1 to 10 and 12 of TPC-C's clause 3.3.2 held over all tables (up to \
         {rows} rows), the counts of orders, payments and deliveries were those the terminals had counted, and every row, \
         whenever it was read, had the check word of its bytes and its place."
    )
}

/// What a reader must know.
pub fn notes(results: &[Summary], is_limited: bool) -> Vec<String> {
    let mut notes = Vec::new();
    if results.iter().any(|s| s.file_system != FileSystem::Here) {
        notes.push(
            "File systems are on a loop device over a file in --dir, past the page cache there; its kernel readahead is a loop \
             device's, not that of the disk beneath."
                .to_owned(),
        );
    } else {
        notes.push("File systems are not compared: the heap was in --dir itself.".to_owned());
    }
    notes.push("NOVA and a pmem device, of which the paper's table has figures too, are not part of this.".to_owned());
    notes.push(
        "tpmC is without thinking time and without a log, as Silo's in the paper: it compares engines, not products."
            .to_owned(),
    );
    if !is_limited {
        notes.push("Memory was not limited: kernel mmap may have kept the whole heap in memory.".to_owned());
    }
    notes
}

/// What it comes to: on the first file system, with the most threads.
pub fn headlines(results: &[Summary], processors: usize) -> Vec<Headline> {
    let first = results.first().map(|s| s.file_system);
    let of_first = groups(results).filter(|group| Some(group[0].file_system) == first);
    let Some(group) = of_first.max_by_key(|group| group[0].threads) else { return Vec::new() };
    let (Some(ours), Some(best)) = (of_engine(group, Engine::Fastmap), best_mmap(group)) else { return Vec::new() };
    let threads = ours.threads;
    let setting = format!("TPC-C on {}, {threads} thread{}", ours.file_system, if threads == 1 { "" } else { "s" });
    let paper = |ratio, setting: &str| Paper { ratio, source: TABLE.to_owned(), setting: setting.to_owned() };
    let headline = |what: String, ratio: Spread, than: &Summary, paper: Paper| {
        let why = (ratio.median < paper.ratio).then(|| why(ours, than, ratio.median, processors));
        Headline { what, ratio, paper: Some(paper), why }
    };
    let throughput = |than: &Summary| Spread::of_ratios(&ours.runs, &than.runs);
    let mut all = vec![
        headline(
            format!("{setting}: transactions a second, FastMap to the better kernel mmap ({})", best.engine),
            throughput(best),
            best,
            paper(52.5, SETTING),
        ),
        headline(
            format!("{setting}: average latency of a transaction, FastMap to the better kernel mmap ({})", best.engine),
            Spread::of_ratios(&best.mean_us, &ours.mean_us),
            best,
            paper(75.0, "the best of several settings; 32 threads, Silo's heap by libvmmalloc, mmap without advice"),
        ),
    ];
    if let Some(plain) = of_engine(group, Engine::Mmap).filter(|plain| plain.engine != best.engine) {
        let what = format!("{setting}: transactions a second, FastMap to mmap without advice, as in the paper");
        all.push(headline(what, throughput(plain), plain, paper(52.5, SETTING)));
    }
    all
}

/// Why a ratio is below the paper's.
fn why(ours: &Summary, theirs: &Summary, ratio: f64, processors: usize) -> String {
    let percent = |part: f64| format!("{:.0} %", part * 100.0);
    let waits = |times: &Times| times.io_wait + times.idle;
    let mut why = format!(
        "In the paper mmap's 32 threads spend 74.2 % of the time on the kernel's buffer management (pages, their lists, eviction); here \
         there are {} threads on {processors} processors, and {} spends {} of the time in the kernel and {} idle or waiting for reads",
        theirs.threads,
        theirs.engine,
        percent(theirs.times.system),
        percent(waits(&theirs.times)),
    );
    if ratio < 1.0 {
        why.push_str(&format!(
            "; FastMap, whose page fault is a signal and several system calls, spends {} in the kernel and {} idle or waiting",
            percent(ours.times.system),
            percent(waits(&ours.times)),
        ));
    }
    if let (Some(of_ours), Some(of_theirs)) = (ours.device, theirs.device) {
        // Both were counted for as long.
        let of_transaction = |reads: u64, s: &Summary| reads as f64 / s.transactions_per_s;
        let more = of_transaction(of_ours.reads, ours) / of_transaction(of_theirs.reads, theirs);
        if more > 1.05 {
            why.push_str(&format!("; FastMap reads {more:.1} times as often for a transaction"));
        }
    }
    let others = ours.times.others.max(theirs.times.others);
    if others > 0.5 {
        why.push_str(&format!("; the machine was not quiet, others had {} of its time", percent(others)));
    }
    why.push('.');
    why
}

/// How a group is called on an axis.
fn name(group: &[Summary], several_threads: bool) -> String {
    match several_threads {
        true => format!("{}, {} threads", group[0].file_system, group[0].threads),
        false => group[0].file_system.to_string(),
    }
}

/// The same to look at.
pub fn figures(results: &[Summary], repeat: u32) -> Vec<Figure> {
    let several = results.iter().any(|s| s.threads != results[0].threads);
    let mut engines: Vec<Engine> = Vec::new();
    for s in results {
        if !engines.contains(&s.engine) {
            engines.push(s.engine);
        }
    }
    let by_engine = |of: &dyn Fn(&Summary) -> Spread| -> Vec<Series> {
        let series = |&engine: &Engine| {
            let points = groups(results)
                .filter_map(|group| Some(Point::spread(name(group, several).as_str(), of(of_engine(group, engine)?))));
            Series { name: engine.to_string(), points: points.collect() }
        };
        engines.iter().map(series).collect()
    };
    let medians = format!("medians of {repeat}, bars from the least to the greatest");
    let mut figures = vec![
        Figure {
            title: "TPC-C in memory over a file: throughput".to_owned(),
            caption: format!(
                "Transactions of the five kinds over a heap larger than memory, by file system; {medians}."
            ),
            paper: Some(format!("{TABLE}: EXT4 on NVMe, 32 threads: FastMap 52.5 times mmap; on pmem 75.9 times.")),
            kind: Plot::Bars,
            x: Axis::of("file system"),
            y: Axis::of("transactions a second"),
            series: by_engine(&|s| Spread::of(&s.runs)),
        },
        Figure {
            title: "TPC-C in memory over a file: average latency".to_owned(),
            caption: format!("Of a transaction, in the same runs; {medians}."),
            paper: Some(format!("{TABLE}: up to 75 times lower with FastMap.")),
            kind: Plot::Bars,
            x: Axis::of("file system"),
            y: Axis::of("milliseconds"),
            series: by_engine(&|s| Spread::of(&s.mean_us.iter().map(|us| us / 1e3).collect::<Vec<_>>())),
        },
    ];
    let Some(group) = groups(results).next() else { return Vec::new() };
    let of_kinds = |s: &Summary| {
        let point = |one: &super::OfKind| Point::bare(one.kind.name(), one.latency_us.p99 / 1e3);
        Series { name: s.engine.to_string(), points: s.kinds.iter().map(point).collect() }
    };
    figures.push(Figure {
        title: format!("TPC-C on {}: 99th percentile by transaction", name(group, several)),
        caption: format!("99 of 100 took no longer; medians of {repeat}."),
        paper: None,
        kind: Plot::Bars,
        x: Axis::of("transaction"),
        y: Axis::log("milliseconds"),
        series: group.iter().map(of_kinds).collect(),
    });
    figures.push(breakdown(results, several, repeat));
    figures
}

fn breakdown(results: &[Summary], several: bool, repeat: u32) -> Figure {
    type Part = fn(&Times) -> f64;
    let parts: [(&str, Part); 5] = [
        ("user", |times| times.user),
        ("system", |times| times.system),
        ("others, kernel threads among them", |times| times.others),
        ("I/O wait", |times| times.io_wait),
        ("idle", |times| times.idle),
    ];
    let series = |(part, of): (&str, Part)| {
        let points = groups(results).flat_map(|group| {
            let name = name(group, several);
            group.iter().map(move |s| Point::bare(format!("{name}: {}", s.engine).as_str(), of(&s.times) * 100.0))
        });
        Series { name: part.to_owned(), points: points.collect() }
    };
    Figure {
        title: "TPC-C in memory over a file: where the time goes".to_owned(),
        caption: format!("Of all processors' time while transactions are counted; medians of {repeat}, each part by itself."),
        paper: Some(
            "FastMap, USENIX ATC '20, figure 11: on EXT4 74.2 % of the time is mmap's buffer management in the kernel, and 10.3 % \
             FastMap's."
                .to_owned(),
        ),
        kind: Plot::Stacked,
        x: Axis::of("file system and engine"),
        y: Axis::of("% of the time"),
        series: parts.into_iter().map(series).collect(),
    }
}

#[cfg(test)]
mod tests {
    use fastmap_workloads::tpcc::{Latency, Outcome};

    use super::*;

    fn summary(file_system: FileSystem, engine: Engine, rates: &[f64]) -> Summary {
        let outcome = |&transactions_per_s: &f64| Outcome {
            transactions_per_s,
            latency_us: Latency { mean: 2e6 / transactions_per_s, ..Latency::default() },
            kinds: vec![Latency::default(); 5],
            times: Times { system: 0.25, idle: 0.5, ..Times::default() },
            ..Outcome::default()
        };
        Summary::of(file_system, 2, engine, &rates.iter().map(outcome).collect::<Vec<_>>())
    }

    fn results() -> Vec<Summary> {
        let mut results = Vec::new();
        for file_system in [FileSystem::Ext4, FileSystem::Xfs] {
            results.push(summary(file_system, Engine::Mmap, &[10.0, 20.0, 10.0]));
            results.push(summary(file_system, Engine::MmapRandom, &[100.0, 200.0, 100.0]));
            results.push(summary(file_system, Engine::Fastmap, &[300.0, 400.0, 50.0]));
        }
        results
    }

    #[test]
    fn headlines_compare_with_the_better_mmap_and_with_the_papers() {
        let headlines = headlines(&results(), 2);
        let said: Vec<_> = headlines.iter().map(|one| (one.ratio, one.paper.as_ref().unwrap().ratio)).collect();
        let expected = Spread { median: 2.0, low: 0.5, high: 3.0 };
        assert_eq!((said[0], said[2]), ((expected, 52.5), (Spread { median: 20.0, low: 5.0, high: 30.0 }, 52.5)));
        let latency = said[1];
        assert!((latency.0.median - 2.0).abs() < 1e-9 && (latency.0.high - 3.0).abs() < 1e-9, "{latency:?}");
        assert!(
            headlines[0].what.starts_with("TPC-C on ext4, 2 threads: ") && headlines[0].what.contains("(mmap-random)")
        );
        let why = headlines[0].why.as_ref().unwrap();
        assert!(
            why.contains("2 threads on 2 processors, and mmap-random spends 25 % of the time in the kernel"),
            "{why}"
        );
        assert!(!why.contains("signal"), "ours is better: {why}");
    }

    #[test]
    fn without_fastmap_or_the_kernel_there_is_nothing_to_compare() {
        let mut only = results();
        only.retain(|s| s.engine == Engine::Fastmap);
        assert!(headlines(&only, 2).is_empty() && headlines(&[], 2).is_empty());
        assert_eq!(figures(&only, 3).len(), 4);
        assert!(of_group(&only[..1]).contains("\next4, 2 threads\n"));
    }

    #[test]
    fn figures_have_every_file_system_and_engine() {
        let figures = figures(&results(), 3);
        let points: Vec<Vec<usize>> =
            figures.iter().map(|figure| figure.series.iter().map(|one| one.points.len()).collect()).collect();
        assert_eq!(points, [vec![2; 3], vec![2; 3], vec![5; 3], vec![6; 5]]);
        assert_eq!(figures[0].series[2].points[1].range, Some((50.0, 400.0)));
    }
}
