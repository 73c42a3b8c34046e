//! What a study comes to: tables, headlines beside the paper's numbers, figures after its graphs.

use fastmap_workloads::study::{Engine, Work};

use super::{Summary, Trace, average_and_deviation};
use crate::args::{StudyArgs, once_each};
use crate::bench::table::{figure, render};
use crate::results::{Axis, Figure, Headline, Kind, Paper, Point, Report, Series, Spread};
use crate::size::Size;

/// The paper, as it is cited.
const STUDY: &str = "Najafi, Kohler, VanDeBogart, Linux Memory Mapped System Call Performance";

/// Where the paper measured.
const SETTING: &str = "pread and mmap of Linux in a file of 256 MB, 128 MB of memory, a hard disk";

/// Points of a trace in a plot, at most: more cannot be told apart.
const POINTS: usize = 700;

/// Repetitions in a group over which a standard deviation is taken, where there are at least two such groups.
const GROUP: usize = 20;

/// A relative standard deviation that no engine alone is to blame for, if all have it; the paper's pread has 0.003.
const UNSTEADY: f64 = 0.05;

/// The paper's averages and standard deviations in seconds: of pread, of mmap.
struct Published {
    pread: (f64, f64),
    mmap: (f64, f64),
}

fn published(work: Work) -> Option<Published> {
    match work {
        Work::Forward => Some(Published { pread: (4.698, 0.0141), mmap: (9.504, 4.505) }),
        Work::Backward => Some(Published { pread: (19.457, 0.0572), mmap: (17.513, 3.451) }),
        _ => None,
    }
}

/// Writes everything but the results themselves into `report`.
pub fn fill_in(report: &mut Report<Summary>, args: &StudyArgs, traces: &[Trace], why_no_trace: Option<String>) {
    report.verified =
        "Every byte of every page read was compared with what belongs there, by every engine in every pass.".to_owned();
    report.notes = notes(args, why_no_trace);
    let results = std::mem::take(&mut report.results);
    report.headlines = headlines(report, &results);
    let of_the_paper = of_the_paper(report, &results);
    report.notes.extend(of_the_paper);
    report.figures = figures(&results, traces);
    report.results = results;
}

fn notes(args: &StudyArgs, why_no_trace: Option<String>) -> Vec<String> {
    let mut notes = vec![
        format!(
            "A pass at random touches {} pages, not all: the paper does not say how many its own did. The small files are {} \
             together, 16 to 64 KiB each; the paper gives no numbers for them.",
            args.touches, args.small
        ),
        "An engine that takes ten times as long as the fastest at a work made a tenth of the passes there; a ratio is of the \
         repetitions in which both made one."
            .to_owned(),
        "Times include opening, mapping and letting go; FastMap's include making its cache. The process's start is in none."
            .to_owned(),
    ];
    if let Some(why) = why_no_trace {
        notes.push(format!(
            "The order of requests is not shown: {why}. Kernel mmap's can be seen in no other way; run it as root, with tracefs \
             mounted, and the files on a plain disk or partition."
        ));
    }
    notes
}

fn of(results: &[Summary], work: Work, engine: Engine) -> Option<&Summary> {
    results.iter().find(|s| (s.work, s.engine) == (work, engine))
}

fn best_mmap(results: &[Summary], work: Work) -> Option<&Summary> {
    let kernel = results.iter().filter(|s| s.work == work && s.engine.is_mmap());
    kernel.min_by(|a, b| a.average_s.total_cmp(&b.average_s))
}

/// Seconds of the passes that both made in the same repetitions, in order; there is at least one, the first.
fn paired(ours: &Summary, theirs: &Summary) -> (Vec<f64>, Vec<f64>) {
    let made = ours.repetitions.iter().zip(&ours.seconds);
    let pairs = made.filter_map(|(repetition, &ours)| {
        let at = theirs.repetitions.iter().position(|other| other == repetition)?;
        Some((ours, theirs.seconds[at]))
    });
    pairs.unzip()
}

/// Relative standard deviations, group of repetitions by group.
fn deviations(seconds: &[f64]) -> Vec<f64> {
    let relative = |seconds: &[f64]| {
        let (average, deviation) = average_and_deviation(seconds);
        deviation / average
    };
    match seconds.len() {
        few if few < 2 * GROUP => vec![relative(seconds)],
        _ => seconds.chunks_exact(GROUP).map(relative).collect(),
    }
}

/// The file beside the memory, and whether it is the larger one.
fn room(report: &Report<Summary>) -> (String, bool) {
    let bytes = report.file_bytes;
    match report.memory_limit_bytes {
        Some(limit) if limit * 2 == bytes => ("over a file twice as large as memory".to_owned(), true),
        Some(limit) if limit < bytes => {
            (format!("over a file {:.2} times as large as memory", bytes as f64 / limit as f64), true)
        }
        Some(_) => ("over a file no larger than memory".to_owned(), false),
        None => ("over a file, memory not limited".to_owned(), false),
    }
}

fn headlines(report: &Report<Summary>, results: &[Summary]) -> Vec<Headline> {
    let ours = |work| of(results, work, Engine::Fastmap);
    let (over, _) = room(report);
    let mut headlines = Vec::new();
    for work in [Work::Forward, Work::Backward] {
        if let Some((ours, theirs)) = ours(work).zip(best_mmap(results, work)) {
            headlines.push(time(format!("one pass {work} {over}"), ours, theirs));
        }
    }
    if let Some((ours, theirs)) = ours(Work::Forward).zip(of(results, Work::Forward, Engine::Pread)) {
        headlines.push(time(format!("one pass forward {over}"), ours, theirs));
    }
    let steady = ours(Work::Forward).zip(best_mmap(results, Work::Forward));
    headlines.extend(steady.and_then(|(ours, theirs)| steadiness(results, &over, ours, theirs, None)));
    let told = [Engine::FastmapAdvised, Engine::Fastmap].into_iter();
    let small = told.filter_map(|engine| of(results, Work::SmallForward, engine)).next();
    if let Some((ours, theirs)) = small.zip(best_mmap(results, Work::SmallForward)) {
        headlines.push(time(
            "many files of 16 to 64 KiB, each mapped, read forward and unmapped".to_owned(),
            ours,
            theirs,
        ));
    }
    headlines
}

/// What the paper compares, the kernel with itself: a sentence each, since no headline of FastMap's.
fn of_the_paper(report: &Report<Summary>, results: &[Summary]) -> Vec<String> {
    let (over, is_short) = room(report);
    let mut compared = Vec::new();
    for work in [Work::Forward, Work::Backward] {
        let of = |engine| of(results, work, engine);
        let Some((pread, mmap)) = of(Engine::Pread).zip(of(Engine::Mmap)) else { continue };
        let published = published(work).filter(|_| is_short);
        let as_fast = published.as_ref().map(|paper| Paper {
            ratio: paper.mmap.0 / paper.pread.0,
            source: STUDY.to_owned(),
            setting: format!("average times; {SETTING}"),
        });
        compared.push(kernels(&format!("one pass {work} {over}"), pread, mmap, as_fast));
        let as_steady = published.map(|paper| Paper {
            ratio: (paper.mmap.1 / paper.mmap.0) / (paper.pread.1 / paper.pread.0),
            source: STUDY.to_owned(),
            setting: format!(
                "{:.1} % to {:.0} %; {SETTING}",
                paper.pread.1 / paper.pread.0 * 100.0,
                paper.mmap.1 / paper.mmap.0 * 100.0
            ),
        });
        compared.extend(steadiness(results, &over, pread, mmap, as_steady));
    }
    let sentence = |told: Headline| {
        let Spread { median, low, high } = told.ratio;
        let paper = told.paper.map_or_else(String::new, |paper| format!("; the paper: {:.2}", paper.ratio));
        let why = told.why.map_or_else(String::new, |why| format!(" ({why})"));
        format!("{}: {median:.2} ({low:.2} to {high:.2}){paper}{why}.", told.what)
    };
    compared.into_iter().map(sentence).collect()
}

/// How many times as fast pread is as mmap, both the kernel's.
fn kernels(what: &str, pread: &Summary, mmap: &Summary, paper: Option<Paper>) -> Headline {
    let (preads, mmaps) = paired(pread, mmap);
    let ratio = Spread::of_ratios(&mmaps, &preads);
    let level = paper.as_ref().map_or(1.0, |paper| paper.ratio);
    Headline {
        what: format!("{what}, the kernel alone: times as fast {} is as {}", pread.engine, mmap.engine),
        ratio,
        why: (ratio.median < level)
            .then(|| format!("{}; here are another kernel and another device", costs(pread, mmap))),
        paper,
    }
}

/// How many times as steady ours is as theirs, where both made several passes.
fn steadiness(
    results: &[Summary],
    over: &str,
    ours: &Summary,
    theirs: &Summary,
    paper: Option<Paper>,
) -> Option<Headline> {
    let (our_seconds, their_seconds) = paired(ours, theirs);
    let (our_deviations, their_deviations) = (deviations(&our_seconds), deviations(&their_seconds));
    if our_deviations.iter().chain(&their_deviations).any(|deviation| *deviation <= 0.0) {
        return None;
    }
    let ratio = Spread::of_ratios(&their_deviations, &our_deviations);
    let level = paper.as_ref().map_or(1.0, |paper| paper.ratio);
    Some(Headline {
        what: format!(
            "{} passes {} {over}: times as steady {} is as {}, by the standard deviation as a share of the average",
            our_seconds.len(),
            ours.work,
            ours.engine,
            theirs.engine
        ),
        ratio,
        why: (ratio.median < level).then(|| unsteady(results, ours, theirs)),
        paper,
    })
}

/// How much less time ours takes than theirs.
fn time(what: String, ours: &Summary, theirs: &Summary) -> Headline {
    let (our_seconds, their_seconds) = paired(ours, theirs);
    let ratio = Spread::of_ratios(&their_seconds, &our_seconds);
    Headline {
        what: format!("{what}: {} to {}", ours.engine, theirs.engine),
        ratio,
        paper: None,
        why: (ratio.median < 1.0).then(|| slower(ours.work, ours, theirs)),
    }
}

/// What a pass of the two costs.
fn costs(ours: &Summary, theirs: &Summary) -> String {
    format!(
        "{} takes {} ms of processor time a pass, {} {} ms",
        ours.engine,
        figure(ours.cpu_s * 1e3),
        theirs.engine,
        figure(theirs.cpu_s * 1e3)
    )
}

/// Why FastMap's pass took longer, as the figures have it.
fn slower(work: Work, ours: &Summary, theirs: &Summary) -> String {
    let cost = costs(ours, theirs);
    if work.is_small() {
        return format!(
            "{cost}: a map of FastMap's costs dozens of system calls to make and to let go, which a small file never earns back; it is \
             made for large ones"
        );
    }
    match ours.cpu_s / ours.average_s {
        busy if busy > 0.8 => format!("{cost}: a core, not the device, is likely what its pass waits for"),
        busy => {
            format!("{cost}, {:.0} % of {}'s pass: likely it waits for the device the rest", busy * 100.0, ours.engine)
        }
    }
}

/// Why the one is not as much steadier than the other as in the paper.
fn unsteady(results: &[Summary], ours: &Summary, theirs: &Summary) -> String {
    let percent = |s: &Summary| format!("{} by {:.1} %", s.engine, s.relative_deviation * 100.0);
    let pread = of(results, ours.work, Engine::Pread).filter(|_| ours.engine != Engine::Pread);
    let all = [pread, Some(theirs), Some(ours)].into_iter().flatten().map(percent).collect::<Vec<_>>().join(", ");
    let least = pread.map_or(ours.relative_deviation, |pread| pread.relative_deviation.min(ours.relative_deviation));
    let met = published(ours.work).map(|paper| paper.mmap.1 / paper.mmap.0);
    let reason = if least > UNSTEADY {
        ": all are unsteady, so that something that they share likely is, such as the device".to_owned()
    } else if let Some(met) = met.filter(|met| theirs.relative_deviation < *met) {
        format!(
            ": kernel mmap is steadier here than the one that the paper met, which deviated by {:.0} %",
            met * 100.0
        )
    } else {
        String::new()
    };
    format!("times deviate, {all}{reason}")
}

fn engines(results: &[Summary]) -> Vec<Engine> {
    once_each(&results.iter().map(|s| s.engine).collect::<Vec<_>>())
}

/// One series an engine, one point a result.
fn by_work(results: &[Summary], point: impl Fn(&Summary) -> Point) -> Vec<Series> {
    let series = |engine: Engine| {
        let points = results.iter().filter(|s| s.engine == engine).map(&point).collect();
        Series { name: engine.to_string(), points }
    };
    engines(results).into_iter().map(series).collect()
}

fn figures(results: &[Summary], traces: &[Trace]) -> Vec<Figure> {
    let ms = |s: &Summary| Point {
        x: s.work.name().into(),
        y: s.average_s * 1e3,
        range: Some((s.minimum_s * 1e3, s.maximum_s * 1e3)),
    };
    let mut figures = vec![
        Figure {
            title: "Time of one pass".to_owned(),
            caption: "Average, least and greatest; less is better. Passes over the file read all of it, those at random and over small \
                      files less, so bars are to be compared within a work."
                .to_owned(),
            paper: Some(format!(
                "{STUDY}: forward pread 4.698 s, mmap 9.504 s (5.488 to 19.121); backward pread 19.457 s, mmap 17.513 s \
                 (11.758 to 25.156)"
            )),
            kind: Kind::Bars,
            x: Axis::of("what is read"),
            y: Axis::log("milliseconds"),
            series: by_work(results, ms),
        },
        Figure {
            title: "How unsteady a pass is".to_owned(),
            caption: "Standard deviation as a share of the average; less is better.".to_owned(),
            paper: Some(format!("{STUDY}: forward pread 0.3 %, mmap 47 %; backward pread 0.3 %, mmap 20 %")),
            kind: Kind::Bars,
            x: Axis::of("what is read"),
            y: Axis::of("% of the average"),
            series: by_work(results, |s| Point::bare(s.work.name(), s.relative_deviation * 100.0)),
        },
    ];
    for work in [Work::Forward, Work::Backward] {
        let of_work = results.iter().filter(|s| s.work == work && s.seconds.len() > 1);
        let series: Vec<Series> = of_work
            .map(|s| {
                let passes = s.repetitions.iter().zip(&s.seconds);
                let points = passes.map(|(&n, seconds)| Point::bare(f64::from(n), seconds * 1e3));
                Series { name: s.engine.to_string(), points: points.collect() }
            })
            .collect();
        if !series.is_empty() {
            figures.push(Figure {
                title: format!("Consecutive passes, {work}"),
                caption: "Each pass by itself, in the order they were made; less is better.".to_owned(),
                paper: Some(format!(
                    "{STUDY}: graphs of 100 runs, in which pread is a straight line and mmap's runs differ threefold"
                )),
                kind: Kind::Lines,
                x: Axis::of("repetition"),
                y: Axis::of("milliseconds"),
                series,
            });
        }
    }
    figures.extend([Work::Forward, Work::Backward, Work::Random].iter().filter_map(|&work| trace_of(work, traces)));
    figures
}

/// The order of a device's requests.
fn trace_of(work: Work, traces: &[Trace]) -> Option<Figure> {
    let mut thinned = 0;
    let of_work = traces.iter().filter(|trace| trace.work == work && !trace.requests.is_empty());
    let series: Vec<Series> = of_work
        .map(|trace| {
            let step = trace.requests.len().div_ceil(POINTS);
            thinned = thinned.max(step);
            let mib = |offset: u64| offset as f64 / f64::from(1 << 20);
            let points = trace.requests.iter().step_by(step).map(|r| Point::bare(r.ms, mib(r.offset)));
            Series { name: trace.engine.to_string(), points: points.collect() }
        })
        .collect();
    let left_out = if thinned > 1 { " Where there are many, not every request is shown." } else { "" };
    (!series.is_empty()).then(|| Figure {
        title: format!("What the device is asked for, {work}"),
        caption: format!(
            "Each read that the kernel hands to the device in one pass (block:block_rq_issue), by its place in the file.{left_out}"
        ),
        paper: Some(format!(
            "{STUDY}: block traces, in which pread is one solid line, and mmap a line with gaps of a quarter and half a second \
             and a long tail"
        )),
        kind: Kind::Scatter,
        x: Axis::of("milliseconds since the first request"),
        y: Axis::of("MiB from the file's beginning"),
        series,
    })
}

/// Everything for a terminal.
pub fn text(args: &StudyArgs, report: &Report<Summary>) -> String {
    let limit = match report.memory_limit_bytes {
        Some(bytes) => format!("{} of memory each ({})", Size(bytes), report.memory_limit),
        None => "NO LIMIT on memory: kernel mmap may use all of it, and the comparison favours it".to_owned(),
    };
    let mut text = format!(
        "{} file, small files of {} together ({} on {}), {limit}; {} passes, every byte checked\n",
        Size(report.file_bytes),
        args.small,
        report.machine.file_system,
        report.machine.device,
        args.repeat
    );
    let headings =
        ["engine", "average ms", "min", "max", "deviation", "% of average", "x best mmap", "CPU ms", "peak MiB"];
    for group in report.results.chunk_by(|a, b| a.work == b.work) {
        let work = group[0].work;
        let best = best_mmap(group, work).map(|s| s.average_s);
        let row = |s: &Summary| {
            let mut cells = vec![s.engine.to_string()];
            cells.extend([s.average_s, s.minimum_s, s.maximum_s, s.deviation_s].map(|s| figure(s * 1e3)));
            cells.push(figure(s.relative_deviation * 100.0));
            cells.push(best.map_or_else(|| "-".to_owned(), |best| format!("{:.2}", best / s.average_s)));
            cells.push(figure(s.cpu_s * 1e3));
            cells.push(figure(s.peak_rss_bytes_max as f64 / f64::from(1 << 20)));
            cells
        };
        let rows: Vec<Vec<String>> = group.iter().map(row).collect();
        text.push_str(&format!("\n{work}: {} pages a pass\n\n{}", group[0].pages, render(&headings, &rows)));
        if let Some(Published { pread, mmap }) = published(work) {
            text.push_str(&format!(
                "the paper: pread {} s, deviation {:.1} %; mmap {} s, deviation {:.0} %\n",
                pread.0,
                pread.1 / pread.0 * 100.0,
                mmap.0,
                mmap.1 / mmap.0 * 100.0
            ));
        }
    }
    let traced: Vec<&Summary> = report.results.iter().filter(|s| s.requests.is_some()).collect();
    if !traced.is_empty() {
        let headings = ["one pass traced", "requests", "KiB each", "x what was wanted", "% adjacent", "longest gap ms"];
        let rows = traced.into_iter().filter_map(|s| {
            let r = s.requests?;
            let figures = [r.average_bytes / 1024.0, r.amplification, r.adjacent * 100.0, r.longest_gap_ms].map(figure);
            Some([format!("{}: {}", s.work, s.engine), r.count.to_string()].into_iter().chain(figures).collect())
        });
        text.push_str(&format!("\n{}", render(&headings, &rows.collect::<Vec<_>>())));
    }
    report.notes.iter().for_each(|note| text.push_str(&format!("\n{note}\n")));
    text
}

#[cfg(test)]
mod tests {
    use fastmap_workloads::study::Outcome;

    use super::super::Pass;
    use super::*;

    fn summary(engine: Engine, passes: &[(u32, f64)]) -> Summary {
        let pass = |&(repetition, seconds)| Pass { repetition, outcome: Outcome { seconds, ..Outcome::default() } };
        Summary::of(Work::Forward, engine, &passes.iter().map(pass).collect::<Vec<_>>())
    }

    #[test]
    fn passes_are_paired_by_repetition() {
        let every: Vec<(u32, f64)> = (1..=21).map(|n| (n, f64::from(n))).collect();
        let slow = summary(Engine::Mmap, &[(1, 10.0), (11, 110.0), (21, 210.0)]);
        let fast = summary(Engine::Fastmap, &every);
        assert_eq!(paired(&fast, &slow), (vec![1.0, 11.0, 21.0], vec![10.0, 110.0, 210.0]));
        assert_eq!(time(String::new(), &fast, &slow).ratio, Spread { median: 10.0, low: 10.0, high: 10.0 });
    }
}
