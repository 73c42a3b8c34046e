//! One run of one engine: what the fresh process does, and what it says to the bench that started it.

use std::fs;
use std::path::PathBuf;
use std::process::ExitCode;

use fastmap_workloads::{Outcome, Replay, Replayed, Spec, SyncSpec, Synced, updates};
use serde::{Deserialize, Serialize};

/// What the bench asks of a worker, as JSON in its argument.
#[derive(Debug, Serialize, Deserialize)]
pub struct Order {
    /// The run.
    pub job: Job,
    /// The memory cgroup's file to write "0" into before anything else.
    pub join: Option<PathBuf>,
    /// The memory cgroup's file that tells its peak.
    pub peak: Option<PathBuf>,
    /// The bench's process id: the worker ends when it does.
    pub parent: u32,
}

/// What a worker can do.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Job {
    /// Run a load for a time.
    Run(Spec),
    /// Replay a trace.
    Replay(Replay),
    /// Store and flush for a time.
    Sync(SyncSpec),
    /// Update a file.
    Update(updates::Order),
}

/// What a worker answers, as JSON on standard output.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Answer {
    /// The figures of [`Job::Run`].
    Done(Box<Outcome>),
    /// Those of [`Job::Replay`].
    Replayed(Box<Replayed>),
    /// Those of [`Job::Sync`].
    Synced(Box<Synced>),
    /// Those of [`Job::Update`].
    Updated(Box<updates::Outcome>),
    /// Why it failed, one line.
    Failed(String),
}

/// Does what `order` says.
pub fn run(order: &str) -> ExitCode {
    let answer = match serde_json::from_str::<Order>(order) {
        Ok(order) => obey(&order),
        Err(error) => Answer::Failed(format!("bench worker: {error}: it is started by `fastmap bench`, not by hand")),
    };
    let failed = matches!(answer, Answer::Failed(_));
    crate::print(&serde_json::to_string(&answer).unwrap_or_default());
    ExitCode::from(u8::from(failed))
}

fn obey(order: &Order) -> Answer {
    if let Some(join) = &order.join
        && let Err(error) = fs::write(join, "0")
    {
        return Answer::Failed(format!("{}: cannot join: {error}: {}", join.display(), crate::cgroup::REMEDY));
    }
    die_with_parent(order.parent);
    let peak = || peak_of(order.peak.as_deref());
    let answer = match &order.job {
        Job::Run(spec) => fastmap_workloads::run(spec, peak).map(|outcome| Answer::Done(Box::new(outcome))),
        Job::Sync(spec) => fastmap_workloads::sync(spec, peak).map(|done| Answer::Synced(Box::new(done))),
        Job::Replay(order) => fastmap_workloads::replay(order, peak).map(|done| Answer::Replayed(Box::new(done))),
        Job::Update(order) => updates::run(order, peak).map(|outcome| Answer::Updated(Box::new(outcome))),
    };
    answer.unwrap_or_else(|error| Answer::Failed(error.to_string()))
}

/// The cgroup's peak; without one, this process's peak resident set (VmHWM).
fn peak_of(file: Option<&std::path::Path>) -> u64 {
    let of_group = file.and_then(|f| fs::read_to_string(f).ok()?.trim().parse().ok());
    of_group.unwrap_or_else(|| {
        let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
        let kib = status
            .lines()
            .find_map(|l| l.strip_prefix("VmHWM:")?.trim().strip_suffix("kB")?.trim().parse::<u64>().ok());
        kib.unwrap_or(0) * 1024
    })
}

/// Has the kernel kill this process when the bench ends, however it ends. PR_SET_PDEATHSIG(2const).
fn die_with_parent(parent: u32) {
    // SAFETY: no memory is handed over.
    unsafe {
        libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
    }
    if std::os::unix::process::parent_id() != parent {
        std::process::exit(1);
    }
}
