//! What the replay of traces shows: reads from the device, and hit ratios.

use super::Summary;
use crate::bench::figures::{bars, thousands};
use crate::results::{Axis, Headline, Point, Report, Series, Spread};

/// Fills in how it was checked, the headlines and the figures.
pub fn show(report: &mut Report<Summary>, repeat: u32) {
    report.verified = "The stamp of every page touched was checked.".to_owned();
    report.notes = vec![
        "One thread, no readahead. FastMap's cache has as many pages as kernel mmap had of the file in memory at the end of its run, \
         not more: so what is compared is which pages are kept, not how many fit."
            .to_owned(),
    ];
    report.headlines = report.results.chunk_by(|a, b| a.trace == b.trace).filter_map(headline).collect();
    let plot = |title: &str, y, of: &dyn Fn(&Summary) -> Spread| {
        let mut series: Vec<Series> = Vec::new();
        for summary in &report.results {
            let name = summary.engine.name();
            let at = series.iter().position(|s| s.name == name).unwrap_or_else(|| {
                series.push(Series { name: name.to_owned(), points: Vec::new() });
                series.len() - 1
            });
            series[at].points.push(Point::spread(summary.trace.name(), of(summary)));
        }
        let caption = format!("Medians of {repeat} repetitions, engines in turn.");
        bars(title.to_owned(), &caption, "trace", y, series)
    };
    report.figures = vec![
        plot("Touches that find their page in memory", Axis::of("per cent"), &|s| Spread::of(&s.runs)),
        plot("Throughput", Axis::of("thousands of touches a second"), &|s| {
            let rates: Vec<f64> = s.repetitions.iter().map(|r| r.touches as f64 / r.seconds).collect();
            thousands(&rates)
        }),
    ];
}

/// Times fewer reads than the better of kernel mmap's.
fn headline(of_trace: &[Summary]) -> Option<Headline> {
    let (ours, kernel) = of_trace.split_last()?;
    let best = kernel.iter().max_by(|a, b| a.hit_percent.total_cmp(&b.hit_percent))?;
    let misses = |s: &Summary| s.repetitions.iter().map(|r| r.misses as f64).collect::<Vec<_>>();
    let (reads, least) = (misses(ours), misses(best));
    let any = reads.iter().all(|&misses| misses > 0.0);
    any.then(|| Headline {
        what: format!(
            "pages read from the device, trace {}: {} to {}, as many pages in memory",
            ours.trace, ours.engine, best.engine
        ),
        ratio: Spread::of_ratios(&least, &reads),
        paper: None,
        why: None,
    })
}
