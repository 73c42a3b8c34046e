//! One run: the work of the fresh process, and its answer to the bench that started it.

use std::fs;
use std::panic;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use fastmap_cli::cgroup::REMEDY;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::experiment::Experiment;
use crate::experiments::Known;
use crate::substrates::{Meter, resident_peak};

/// The bench's order to a worker, as JSON in the worker's argument.
#[derive(Debug, Serialize, Deserialize)]
pub struct Order {
    /// The name of the experiment.
    pub experiment: String,
    /// The case of the experiment.
    pub case: Value,
    /// The file of the memory cgroup into which the worker writes "0" to join it, before anything else.
    pub join: Option<PathBuf>,
    /// The file of the memory cgroup that holds the peak of its memory use.
    pub peak: Option<PathBuf>,
    /// The bench's process id, if the bench is the worker's parent. The worker ends when its parent ends.
    pub parent: Option<u32>,
}

/// The answer of a worker, as JSON on standard output.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Answer {
    /// The parts of the run.
    Done(Value),
    /// The reason of the failure, in one line.
    Failed(String),
}

/// Obeys an order.
pub fn run(order: &str, known: &[Known]) -> ExitCode {
    // A panic in any thread ends the process, since the other threads may wait for that thread.
    panic::set_hook(Box::new(|panicked| {
        eprintln!("{}", panicked.to_string().replace('\n', " "));
        std::process::exit(101);
    }));
    let answer = match serde_json::from_str::<Order>(order) {
        Ok(order) => obey(order, known).map_or_else(Answer::Failed, Answer::Done),
        Err(error) => Answer::Failed(format!("bench worker: {error}: it is started by `fastmap bench`, not by hand")),
    };
    let failed = matches!(answer, Answer::Failed(_));
    fastmap_cli::print(&serde_json::to_string(&answer).unwrap_or_default());
    ExitCode::from(u8::from(failed))
}

fn obey(order: Order, known: &[Known]) -> Result<Value, String> {
    if let Some(join) = &order.join {
        fs::write(join, "0").map_err(|error| format!("{}: cannot join: {error}: {REMEDY}", join.display()))?;
    }
    // The bench may have ended before the kernel was told what to do then.
    if order.parent.is_some_and(|parent| std::os::unix::process::parent_id() != parent) {
        std::process::exit(1);
    }
    let peak = order.peak;
    let meter = Meter::new(move || peak_of(peak.as_deref()));
    let known = known.iter().find(|known| known.name == order.experiment);
    let known = known.ok_or_else(|| format!("{}: no such experiment", order.experiment))?;
    (known.work)(order.case, &meter)
}

/// Runs a case of an experiment.
///
/// # Errors
///
/// The reason of the failure, in one line.
pub fn work<E: Experiment>(case: Value, meter: &Meter) -> Result<Value, String> {
    let case: E::Case = serde_json::from_value(case).map_err(|error| error.to_string())?;
    let mut parts = E::run(&case, meter).map_err(|error| error.to_string())?;
    parts.iter_mut().for_each(|part| meter.complete(&mut part.reading));
    serde_json::to_value(parts).map_err(|error| error.to_string())
}

/// The peak of the cgroup's memory use. Without a cgroup, the peak resident set of this process.
fn peak_of(file: Option<&Path>) -> u64 {
    let of_group = file.and_then(|f| fs::read_to_string(f).ok()?.trim().parse().ok());
    of_group.unwrap_or_else(resident_peak)
}
