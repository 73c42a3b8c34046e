//! The results as tables and plots.

use fastmap_workloads::kv::Kind;
use fastmap_workloads::ycsb::Workload;

use super::headlines::{is_short, room};
use super::summary::{Row, Sequence, mean_ratio, ratio};
use crate::bench::table::{figure, render};
use crate::results::{Axis, Figure, Kind as Plot, Point, Report, Series, Spread};
use crate::size::Size;

/// The paper's figure.
const PAPER: &str = "FastMap, USENIX ATC '20, figure 8";

/// What is printed.
pub fn text(repeat: u32, report: &Report<Sequence>) -> String {
    let mut text = format!(
        "YCSB, records of 1030 bytes ({} on {}); {}\n",
        report.machine.file_system,
        report.machine.device,
        if repeat == 1 { "one run each".to_owned() } else { format!("medians of {repeat}") },
    );
    for group in report.results.chunk_by(|a, b| a.group() == b.group()) {
        text.push_str(&of_group(group));
    }
    for note in &report.notes {
        text.push_str(&format!("\n{note}"));
    }
    text.push('\n');
    text
}

fn of_group(group: &[Sequence]) -> String {
    let first = &group[0];
    let limit = match (first.memory_limit_bytes, first.has_room()) {
        (Some(bytes), true) => format!("{} of memory, room for everything", Size(bytes >> 20 << 20)),
        (Some(bytes), false) => format!("{:.1} MiB of memory each", bytes as f64 / f64::from(1 << 20)),
        (None, _) => "NO LIMIT on memory, which favours kernel mmap".to_owned(),
    };
    let plural = if first.threads == 1 { "" } else { "s" };
    let mut text =
        format!("\n{}, {} records, {} thread{plural}, {limit}\n\n", first.store.title(), first.records, first.threads);
    let mut headings = vec!["thousands/s".to_owned()];
    headings.extend(group.iter().map(|sequence| sequence.engine.to_string()));
    headings.extend(["x best mmap".to_owned(), "min..max".to_owned()]);
    headings.extend(group.iter().map(|sequence| format!("p99 us {}", sequence.engine)));
    headings.extend(group.iter().map(|sequence| format!("in flight {}", sequence.engine)));
    let rows: Vec<Vec<String>> = first
        .workloads
        .iter()
        .enumerate()
        .map(|(n, row)| {
            let ratio = ratio(group, row.workload);
            let each = |cell: fn(&Row) -> String| group.iter().map(move |sequence| cell(&sequence.workloads[n]));
            let mut cells = vec![row.workload.title()];
            cells.extend(each(|row| figure(row.ops_per_s / 1e3)));
            cells.push(ratio.map_or_else(|| "-".to_owned(), |ratio| format!("{:.2}", ratio.median)));
            cells.push(ratio.map_or_else(|| "-".to_owned(), |ratio| format!("{:.2}..{:.2}", ratio.low, ratio.high)));
            cells.extend(each(|row| figure(row.latency_us.p99)));
            cells.extend(each(|row| row.device.map_or_else(|| "-".to_owned(), |d| figure(d.average_queue_depth))));
            cells
        })
        .collect();
    text.push_str(&render(&headings.iter().map(String::as_str).collect::<Vec<_>>(), &rows));
    if let Some((mean, (low, high))) = mean_ratio(group) {
        text.push_str(&format!(
            "fastmap does {:.2} times as much as the best mmap on average, {low:.2} to {high:.2}\n",
            mean.median
        ));
    }
    text
}

/// What is plotted.
pub fn figures(results: &[Sequence]) -> Vec<Figure> {
    let groups: Vec<&[Sequence]> = results.chunk_by(|a, b| a.group() == b.group()).collect();
    let most = results.iter().map(|sequence| sequence.threads).max().unwrap_or(1);
    let mut figures = Vec::new();
    for group in groups.iter().filter(|group| group[0].threads == most) {
        figures.push(Figure {
            title: format!("{}: YCSB {}", group[0].store.title(), room(group)),
            caption: format!("Throughput of each workload, {most} threads; loads without their flush. Whiskers: least and greatest run."),
            paper: is_short(group)
                .then(|| format!("{PAPER}: Kreon, out of memory 2.48 times mmap on average, 1.25 to 3.65")),
            kind: Plot::Bars,
            x: Axis::of("workload"),
            y: Axis::log("thousands of operations a second"),
            series: series(group, |row| Some(Spread::of(&row.runs.iter().map(|run| run / 1e3).collect::<Vec<_>>()))),
        });
    }
    for store in [Kind::Own, Kind::Lmdb, Kind::Rocksdb] {
        let of_store: Vec<&Sequence> = results.iter().filter(|sequence| sequence.store == store).collect();
        figures.extend(scalability(store, &of_store));
    }
    let small =
        groups.iter().find(|group| !group[0].has_room() && group[0].threads == most && group[0].store == Kind::Own);
    if let Some(group) =
        small.filter(|group| group.iter().all(|sequence| sequence.workloads.iter().all(|row| row.device.is_some())))
    {
        let mut plot = |title: &str, y: Axis, of: fn(&Row) -> Option<f64>| {
            figures.push(Figure {
                title: format!("own B+-tree: {title}, {}", room(group)),
                caption: "Requests of everybody to the device under the store, while the workload ran; loads without their flush.".to_owned(),
                paper: is_short(group).then(|| format!(
                    "{PAPER}(c): with 32 threads 39.2 requests in flight to mmap's 17.5 in Load A, of 51.2 KB to 26.5; 13 to 3 in Run C, of 4 KB"
                )),
                kind: Plot::Bars,
                x: Axis::of("workload"),
                y,
                series: series(group, |row| of(row).map(|median| Spread { median, low: median, high: median })),
            });
        };
        plot("requests in flight", Axis::of("requests"), |row| row.device.map(|device| device.average_queue_depth));
        plot("size of requests", Axis::of("KiB a request"), |row| row.request_bytes.map(|bytes| bytes / 1024.0));
    }
    figures
}

/// Load A and Run C over threads, where there are several numbers of them and memory for everything.
fn scalability(store: Kind, sequences: &[&Sequence]) -> Option<Figure> {
    let mut series: Vec<Series> = Vec::new();
    for workload in [Workload::LoadA, Workload::C] {
        for sequence in sequences.iter().filter(|sequence| sequence.has_room()) {
            let Some(row) = sequence.row(workload) else { continue };
            let name = format!("{} {}", workload.title(), sequence.engine);
            let rate = Spread::of(&row.runs.iter().map(|run| run / 1e3).collect::<Vec<_>>());
            let point = Point::spread(f64::from(sequence.threads), rate);
            match series.iter_mut().find(|series| series.name == name) {
                Some(series) => series.points.push(point),
                None => series.push(Series { name, points: vec![point] }),
            }
        }
    }
    series.iter().any(|series| series.points.len() > 1).then(|| Figure {
        title: format!("{}: scalability, all in memory", store.title()),
        caption: "Throughput of Load A (inserts) and Run C (reads) over threads.".to_owned(),
        paper: Some(format!("{PAPER}(a): with 32 threads 1.55 times mmap-filter in Load A, 1.09 times in Run C")),
        kind: Plot::Lines,
        x: Axis::of("threads"),
        y: Axis::of("thousands of operations a second"),
        series,
    })
}

fn series(group: &[Sequence], of: impl Fn(&Row) -> Option<Spread>) -> Vec<Series> {
    let points = |sequence: &Sequence| {
        let point = |row: &Row| of(row).map(|spread| Point::spread(row.workload.title().as_str(), spread));
        sequence.workloads.iter().filter_map(point).collect()
    };
    group.iter().map(|sequence| Series { name: sequence.engine.to_string(), points: points(sequence) }).collect()
}
