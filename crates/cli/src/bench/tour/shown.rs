//! What the tour shows: a ratio for each work, and plots.

use fastmap_workloads::Engine;

use crate::bench::figures::{bars, thousands};
use crate::bench::summary::{Summary, best_mmap};
use crate::results::{Axis, Figure, Headline, Point, Report, Series, Spread};

/// Fills in how it was checked, the headlines and the figures. `unlimited` says why nothing was limited.
pub fn show(report: &mut Report<Summary>, unlimited: Option<&str>) {
    report.verified =
        "Every operation checked the stamp of its page; after every run that wrote, the whole file was read back and \
        every byte checked."
            .to_owned();
    if let Some(why) = unlimited {
        report.notes.push(format!(
            "Nothing limited kernel mmap, which may have kept the whole file in memory ({why}): the comparison favours it."
        ));
    }
    report.notes.push(
        "Runs are short and the file is small, so that the whole takes two minutes: `fastmap bench micro` measures one load at length."
            .to_owned(),
    );
    report.notes.push("Direct calls (O_DIRECT) are for reference and ran once.".to_owned());
    let works: Vec<&[Summary]> = report.results.chunk_by(|a, b| a.work == b.work).collect();
    report.headlines = works.iter().flat_map(|of_work| headlines(of_work)).collect();
    report.figures = figures(&report.results);
}

fn headlines(of_work: &[Summary]) -> Vec<Headline> {
    let (Some(work), Some(best)) = (of_work[0].work, best_mmap(of_work)) else { return Vec::new() };
    let headline = |s: &Summary| Headline {
        what: format!("{work}: {} to {}", s.engine, best.engine),
        ratio: Spread::of_ratios(&s.runs, &best.runs),
        paper: None,
        why: None,
    };
    of_work.iter().filter(|s| s.engine.is_fastmap()).map(headline).collect()
}

fn figures(results: &[Summary]) -> Vec<Figure> {
    let mut engines: Vec<Engine> = results.iter().map(|s| s.engine).collect();
    engines.sort_by_key(|engine| Engine::NAMES.iter().position(|name| *name == engine.name()));
    engines.dedup();
    let plot = |title: &str, y, of: &dyn Fn(&Summary, &'static str) -> Point| {
        let series = |&engine: &Engine| {
            let here = results.iter().filter(|s| s.engine == engine);
            Series { name: engine.to_string(), points: here.filter_map(|s| Some(of(s, s.work?))).collect() }
        };
        let caption = "Medians of interleaved repetitions; each work with kernel mmap without advice and with the one that suits it.";
        bars(title.to_owned(), caption, "work", y, engines.iter().map(series).collect())
    };
    let pages = Axis::log("thousands of 4 KiB pages a second");
    vec![
        plot("Throughput", pages, &|s, work| Point::spread(work, thousands(&s.runs))),
        plot("Median latency", Axis::log("microseconds"), &|s, work| Point::bare(work, s.latency_us.p50)),
        plot("Latency of one operation in a hundred (99th percentile)", Axis::log("microseconds"), &|s, work| {
            Point::bare(work, s.latency_us.p99)
        }),
        plot("Processor time", Axis::log("nanoseconds a byte"), &|s, work| Point::bare(work, s.cpu_ns_per_byte)),
    ]
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use fastmap_workloads::{Advice, Op, Outcome, Pattern};

    use super::*;
    use crate::bench::runner::Limit;
    use crate::bench::session::Load;

    #[test]
    fn a_ratio_for_each_work_and_engine_and_the_engines_in_one_order() {
        let summary = |work, engine, rates: [f64; 2]| {
            let load = Load { engine, pattern: Pattern::Random, op: Op::Read, threads: 1, advice: Advice::Normal };
            let outcomes = rates.map(|ops_per_s| Outcome { ops: 1, seconds: 1.0, ops_per_s, ..Outcome::default() });
            Summary { work: Some(work), ..Summary::of(load, &outcomes) }
        };
        let mut report = Report::new("tour", Path::new("."), "a file", 4096, &Limit::none());
        report.results = vec![
            summary("one", Engine::Mmap, [10.0, 20.0]),
            summary("one", Engine::Fastmap, [20.0, 30.0]),
            summary("two", Engine::MmapRandom, [1e3, 1e3]),
            summary("two", Engine::FastmapPin, [2e3, 4e3]),
            summary("two", Engine::Fastmap, [5e2, 5e2]),
        ];
        show(&mut report, Some("nobody may"));
        let said: Vec<_> = report.headlines.iter().map(|h| (h.what.as_str(), h.ratio.low, h.ratio.high)).collect();
        let expected = [
            ("one: fastmap to mmap", 1.5, 2.0),
            ("two: fastmap-pin to mmap-random", 2.0, 4.0),
            ("two: fastmap to mmap-random", 0.5, 0.5),
        ];
        assert_eq!(said, expected);
        for figure in &report.figures {
            let names: Vec<&str> = figure.series.iter().map(|s| s.name.as_str()).collect();
            assert_eq!(names, ["mmap", "mmap-random", "fastmap", "fastmap-pin"]);
        }
        assert_eq!(report.figures[0].series[2].points.len(), 2);
        assert!(report.notes[0].contains("nobody may") && !report.verified.is_empty());
    }
}
