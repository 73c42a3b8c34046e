//! Repetitions of a load into medians.

use fastmap_workloads::{
    Advice, DeviceReport, Engine, FastmapReport, Hits, LatencyUs, Outcome, PAGE, Readahead, Writeback,
};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

use super::session::Load;
use crate::results::{median, spread};

/// One engine under one load; figures are medians over the repetitions, each by itself.
#[derive(Debug, Clone, Serialize)]
pub struct Summary {
    /// The tour's name for the load.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub work: Option<&'static str>,
    /// The engine.
    pub engine: Engine,
    /// The order of pages.
    pub pattern: &'static str,
    /// What was done to each.
    pub op: &'static str,
    /// By how many threads.
    pub threads: u32,
    /// What a fastmap engine was told about the order.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub advice: Option<Advice>,
    /// Operations a second.
    pub ops_per_s: f64,
    /// Bytes of touched pages a second.
    pub bytes_per_s: f64,
    /// Processor time of the process per operation.
    pub cpu_us_per_op: f64,
    /// The same per byte of the pages touched.
    pub cpu_ns_per_byte: f64,
    /// Time between successive operations of a thread.
    pub latency_us: LatencyUs,
    /// Peak of memory.
    pub peak_rss_bytes: u64,
    /// The highest peak of any repetition.
    pub peak_rss_bytes_max: u64,
    /// Operations a second of each repetition, in order.
    pub runs: Vec<f64>,
    /// Seconds measured in each repetition.
    pub seconds: Vec<f64>,
    /// A fastmap engine's set-up and counters in each repetition.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub fastmap: Vec<FastmapReport>,
    /// A fastmap engine's `misses` and `hit_ratio` in the measured window.
    #[serde(flatten)]
    pub hits: Option<Hits>,
    /// What a fastmap engine read ahead in the measured window.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub readahead: Option<Readahead>,
    /// A fastmap engine's write-back in the measured window, in a load that writes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub writeback: Option<Writeback>,
    /// What the device under the file did in the measured window; nothing where the file is on no block device.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub device: Option<DeviceReport>,
}

impl Summary {
    /// Sums up the repetitions of a load.
    ///
    /// # Panics
    ///
    /// If there is none.
    pub fn of(load: Load, outcomes: &[Outcome]) -> Summary {
        let by = |figure: fn(&Outcome) -> f64| median(outcomes.iter().map(figure).collect());
        Summary {
            work: None,
            engine: load.engine,
            pattern: load.pattern.name(),
            op: load.op.name(),
            threads: load.threads,
            advice: load.engine.is_fastmap().then_some(load.advice),
            ops_per_s: by(|o| o.ops_per_s),
            bytes_per_s: by(|o| o.bytes_per_s),
            cpu_us_per_op: by(|o| o.cpu_us_per_op),
            cpu_ns_per_byte: by(|o| o.cpu_us_per_op) * 1e3 / PAGE as f64,
            latency_us: median_of(outcomes, |o| Some(o.latency_us)).unwrap_or_default(),
            peak_rss_bytes: by(|o| o.peak_rss_bytes as f64) as u64,
            peak_rss_bytes_max: outcomes.iter().map(|o| o.peak_rss_bytes).max().unwrap_or(0),
            runs: outcomes.iter().map(|o| o.ops_per_s).collect(),
            seconds: outcomes.iter().map(|o| o.seconds).collect(),
            fastmap: outcomes.iter().filter_map(|o| o.fastmap).collect(),
            hits: median_of(outcomes, |o| o.hits),
            readahead: median_of(outcomes, |o| o.readahead),
            writeback: median_of(outcomes, |o| o.writeback),
            device: median_of(outcomes, |o| o.device),
        }
    }

    /// Slowest and fastest repetition, operations a second.
    pub fn spread(&self) -> (f64, f64) {
        spread(&self.runs)
    }
}

/// The fastest kernel mmap of some results.
pub fn best_mmap<'a>(results: impl IntoIterator<Item = &'a Summary>) -> Option<&'a Summary> {
    results.into_iter().filter(|s| s.engine.is_mmap()).max_by(|a, b| a.ops_per_s.total_cmp(&b.ops_per_s))
}

/// The median, figure by figure, of a part of each outcome; None where an outcome has no such part. It works on the
/// part's JSON, so that a new figure needs nothing here.
pub fn median_of<O, T: Serialize + DeserializeOwned>(outcomes: &[O], part: fn(&O) -> Option<T>) -> Option<T> {
    let parts: Vec<Value> = outcomes.iter().map(|o| serde_json::to_value(part(o)?).ok()).collect::<Option<_>>()?;
    let mut medians = parts.first()?.as_object()?.clone();
    for (name, figure) in &mut medians {
        let middle = median(parts.iter().map(|part| part[name].as_f64()).collect::<Option<_>>()?);
        // What counts stays whole.
        *figure = if figure.is_u64() { (middle as u64).into() } else { middle.into() };
    }
    serde_json::from_value(medians.into()).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_are_summed_up_figure_by_figure() {
        let outcome = |misses, hit_ratio, p50| Outcome {
            hits: Some(Hits { misses, hit_ratio }),
            latency_us: LatencyUs { p50, ..LatencyUs::default() },
            ..Outcome::default()
        };
        let mut outcomes = [outcome(1, 0.9, 2.0), outcome(8, 0.1, 1.0), outcome(5, 0.25, 7.5), outcome(4, 0.5, 3.0)];
        let hits = median_of(&outcomes, |o| o.hits).unwrap();
        assert_eq!((hits.misses, hits.hit_ratio), (4, 0.375), "counts stay whole");
        assert_eq!(median_of(&outcomes, |o| Some(o.latency_us)).unwrap().p50, 2.5);
        assert!(median_of(&outcomes, |o| o.writeback).is_none());
        outcomes[2].hits = None;
        assert!(median_of(&outcomes, |o| o.hits).is_none());
        assert!(median_of(&[], |o: &Outcome| o.hits).is_none());
    }
}
