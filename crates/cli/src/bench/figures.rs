//! Plots that several experiments draw alike.

use fastmap_workloads::LatencyUs;

use crate::results::{Axis, Figure, Kind, Point, Series, Spread};

/// Bars of latencies: percentiles by name.
pub fn latencies<'a>(title: String, caption: &str, x: &str, of: impl Iterator<Item = (&'a str, LatencyUs)>) -> Figure {
    let of: Vec<_> = of.collect();
    type Percentile = fn(&LatencyUs) -> f64;
    let percentiles: [(&str, Percentile); 4] =
        [("p50", |l| l.p50), ("p99", |l| l.p99), ("p99.9", |l| l.p999), ("max", |l| l.max)];
    let series = |(name, percentile): (&str, Percentile)| Series {
        name: name.to_owned(),
        points: of.iter().map(|(x, latency)| Point::bare(*x, percentile(latency))).collect(),
    };
    bars(title, caption, x, Axis::log("microseconds"), percentiles.map(series).to_vec())
}

/// Bars side by side.
pub fn bars(title: String, caption: &str, x: &str, y: Axis, series: Vec<Series>) -> Figure {
    Figure { title, caption: caption.to_owned(), paper: None, kind: Kind::Bars, x: Axis::of(x), y, series }
}

/// Repetitions of a rate in thousands.
pub fn thousands(runs: &[f64]) -> Spread {
    Spread::of(&runs.iter().map(|run| run / 1e3).collect::<Vec<_>>())
}
