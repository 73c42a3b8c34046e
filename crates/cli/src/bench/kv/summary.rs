//! Repetitions of a sequence into medians, workload by workload.

use fastmap_workloads::kv::{Checked, Engine, Kind, Outcome, Phase};
use fastmap_workloads::ycsb::Workload;
use fastmap_workloads::{DeviceReport, FastmapReport, LatencyUs};
use serde::Serialize;

use super::Group;
use crate::args::Room;
use crate::bench::summary::median_of;
use crate::results::{Spread, median};

/// One run and what came of its check.
#[derive(Debug, Clone)]
pub struct Ran {
    /// What it measured.
    pub outcome: Outcome,
    /// What it left.
    pub checked: Checked,
    /// Misses that FastMap served.
    pub misses: Option<u64>,
}

/// One store over one engine; figures are medians over the repetitions, each by itself.
#[derive(Debug, Clone, Serialize)]
pub struct Sequence {
    /// The store.
    pub store: Kind,
    /// Whose memory it lies in.
    pub engine: Engine,
    /// Of a load.
    pub records: u64,
    /// Threads on it.
    pub threads: u32,
    /// `all`, `sixth`, a size, or `none`.
    pub memory: String,
    /// The limit of each run, where it was limited.
    pub memory_limit_bytes: Option<u64>,
    /// Of FastMap's cache.
    pub capacity_bytes: Option<u64>,
    /// Of the first store's files, in the end.
    pub store_bytes: u64,
    /// Read and compared after the runs, of all repetitions.
    pub records_checked: u64,
    pub peak_rss_bytes: u64,
    /// Misses that FastMap served in each repetition.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub misses: Vec<u64>,
    /// Its counters at the end of Run D, where the store is linked with it.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub fastmap: Vec<FastmapReport>,
    /// In the order they were done.
    pub workloads: Vec<Row>,
}

/// One workload.
#[derive(Debug, Clone, Serialize)]
pub struct Row {
    pub workload: Workload,
    /// Of each repetition.
    pub ops: Vec<u64>,
    pub ops_per_s: f64,
    /// `ops_per_s` of each repetition, in order.
    pub runs: Vec<f64>,
    /// After a load, and at a store's end: how long the flush took.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub flush_seconds: Option<f64>,
    pub user_us_per_op: f64,
    pub system_us_per_op: f64,
    /// The share of the threads' time that no processor was theirs.
    pub waiting: f64,
    pub latency_us: LatencyUs,
    /// What the device did, everybody's requests together.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub device: Option<DeviceReport>,
    /// Bytes a request of it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub request_bytes: Option<f64>,
}

impl Sequence {
    /// Of the repetitions of one engine; there is at least one.
    pub fn of(group: &Group, engine: Engine, ran: &[Ran]) -> Sequence {
        let workloads = (0..ran[0].outcome.phases.len()).map(|n| {
            let phases: Vec<&Phase> = ran.iter().map(|ran| &ran.outcome.phases[n]).collect();
            Row::of(&phases)
        });
        Sequence {
            store: group.store,
            engine,
            records: group.records,
            threads: group.threads,
            memory: group.room.to_string(),
            memory_limit_bytes: group.memory,
            capacity_bytes: (engine == Engine::Fastmap).then_some(group.capacity),
            store_bytes: median(ran.iter().map(|ran| ran.checked.bytes as f64).collect()) as u64,
            records_checked: ran.iter().map(|ran| ran.checked.records).sum(),
            peak_rss_bytes: median(ran.iter().map(|ran| ran.outcome.peak_rss_bytes as f64).collect()) as u64,
            misses: ran.iter().filter_map(|ran| ran.misses).collect(),
            fastmap: ran.iter().filter_map(|ran| ran.outcome.fastmap).collect(),
            workloads: workloads.collect(),
        }
    }

    /// Whether it had memory for all of the store.
    pub fn has_room(&self) -> bool {
        self.memory == Room::All.to_string()
    }

    /// Sequences of one group have this in common.
    pub fn group(&self) -> (Kind, &str, u32) {
        (self.store, &self.memory, self.threads)
    }

    /// One workload of it.
    pub fn row(&self, workload: Workload) -> Option<&Row> {
        self.workloads.iter().find(|row| row.workload == workload)
    }
}

impl Row {
    fn of(phases: &[&Phase]) -> Row {
        let by = |figure: fn(&Phase) -> f64| median(phases.iter().map(|phase| figure(phase)).collect());
        let flushes: Vec<f64> = phases.iter().filter_map(|phase| phase.flush_seconds).collect();
        let device = median_of(phases, |phase| phase.device);
        let requests = device.map(|device| (device.reads + device.writes, device.read_bytes + device.write_bytes));
        Row {
            workload: phases[0].workload,
            ops: phases.iter().map(|phase| phase.ops).collect(),
            ops_per_s: by(|phase| phase.ops_per_s),
            runs: phases.iter().map(|phase| phase.ops_per_s).collect(),
            flush_seconds: (!flushes.is_empty()).then(|| median(flushes)),
            user_us_per_op: by(|phase| phase.user_us_per_op),
            system_us_per_op: by(|phase| phase.system_us_per_op),
            waiting: by(|phase| phase.waiting),
            latency_us: median_of(phases, |phase| Some(phase.latency_us)).unwrap_or_default(),
            device,
            request_bytes: requests.filter(|(count, _)| *count > 0).map(|(count, bytes)| bytes as f64 / count as f64),
        }
    }
}

/// FastMap's sequence in a group and the kernel's others.
pub fn sides(group: &[Sequence]) -> (Option<&Sequence>, Vec<&Sequence>) {
    let (ours, theirs): (Vec<_>, Vec<_>) = group.iter().partition(|sequence| sequence.engine == Engine::Fastmap);
    (ours.first().copied(), theirs)
}

/// FastMap's rate to the kernel's, of whose engines the best in this workload counts.
pub fn ratio(group: &[Sequence], workload: Workload) -> Option<Spread> {
    Some(Spread::of(&ratios(group, workload)?))
}

/// The same repetition by repetition.
fn ratios(group: &[Sequence], workload: Workload) -> Option<Vec<f64>> {
    let (ours, theirs) = sides(group);
    let rows = theirs.into_iter().filter_map(|sequence| sequence.row(workload));
    let best = rows.max_by(|a, b| a.ops_per_s.total_cmp(&b.ops_per_s))?;
    Some(ours?.row(workload)?.runs.iter().zip(&best.runs).map(|(ours, theirs)| ours / theirs).collect())
}

/// The geometric mean of all workloads' ratios, repetition by repetition, and the least and greatest of the workloads' own.
pub fn mean_ratio(group: &[Sequence]) -> Option<(Spread, (f64, f64))> {
    let workloads: Vec<Workload> = group.first()?.workloads.iter().map(|row| row.workload).collect();
    let all = workloads.iter().map(|&workload| ratios(group, workload)).collect::<Option<Vec<_>>>()?;
    let mean = |n: usize| (all.iter().map(|ratios| ratios[n].ln()).sum::<f64>() / all.len() as f64).exp();
    let means: Vec<f64> = (0..all.first()?.len()).map(mean).collect();
    let medians: Vec<f64> = all.into_iter().map(median).collect();
    Some((Spread::of(&means), crate::results::spread(&medians)))
}
