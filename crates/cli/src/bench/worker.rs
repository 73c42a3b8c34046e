//! One run of one engine: what the fresh process does, and what it says to the bench that started it.

use std::fmt::Display;
use std::fs;
use std::panic;
use std::path::PathBuf;
use std::process::ExitCode;

use fastmap_workloads::{Replay, Spec, SyncSpec, ablation, faults, graph, kv, olap, peers, study, tpcc, updates};
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
    /// Fault pages in.
    Fault(faults::Order),
    /// Run a load with a mechanism of the engine left out.
    Ablate(ablation::Order),
    /// Run a load through FastMap or what people use instead.
    Peer(peers::Order),
    /// Pass over a file, or over many.
    Study(study::Order),
    /// Run YCSB over a key-value store.
    Kv(kv::Order),
    /// Read what that left behind.
    KvCheck(kv::Order),
    /// Work on a graph.
    Graph(graph::Order),
    /// Run transactions.
    Oltp(tpcc::Order),
    /// Load a database.
    OlapLoad(olap::Load),
    /// Query it.
    Olap(olap::Order),
}

/// What a worker answers, as JSON on standard output.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Answer {
    /// The figures, as the job's kind has them.
    Done(serde_json::Value),
    /// Why it failed, one line.
    Failed(String),
}

/// Does what `order` says.
pub fn run(order: &str) -> ExitCode {
    // Whatever fails in one thread ends the run: the others may wait for it.
    panic::set_hook(Box::new(|panicked| {
        eprintln!("{}", panicked.to_string().replace('\n', " "));
        std::process::exit(101);
    }));
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
    match &order.job {
        Job::Run(spec) => answer(fastmap_workloads::run(spec, peak)),
        Job::Sync(spec) => answer(fastmap_workloads::sync(spec, peak)),
        Job::Replay(order) => answer(fastmap_workloads::replay(order, peak)),
        Job::Update(order) => answer(updates::run(order, peak)),
        Job::Fault(order) => answer(faults::run(order, peak)),
        Job::Ablate(order) => answer(ablation::run(order, peak)),
        Job::Peer(order) => answer(peers::run(order, peak)),
        Job::Study(order) => answer(study::run(order, peak)),
        Job::Kv(order) => answer(kv::run(order, peak)),
        Job::KvCheck(order) => answer(kv::check(order)),
        Job::Graph(order) => answer(graph::run(order, peak)),
        Job::Oltp(order) => answer(tpcc::run(order, peak)),
        Job::OlapLoad(order) => answer(olap::load(order)),
        Job::Olap(order) => answer(olap::run(order, peak)),
    }
}

fn answer<T: Serialize, E: Display>(outcome: Result<T, E>) -> Answer {
    let outcome = outcome.map_err(|error| error.to_string());
    let value = outcome.and_then(|done| serde_json::to_value(done).map_err(|error| error.to_string()));
    value.map_or_else(Answer::Failed, Answer::Done)
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
