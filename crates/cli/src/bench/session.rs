//! Running one engine once, fairly: cold file, fresh process, fresh memory cgroup.

use std::cell::Cell;
use std::fs::File;
use std::io::{self, Read};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::thread;
use std::time::Duration;

use fastmap_workloads::{
    Advice, Engine, Op, Outcome, PAGE, Pattern, Replay, Replayed, Spec, SyncSpec, SyncWork, Synced, Syncer, Trace,
    cold, prepare, updates,
};

use super::target::Target;
use super::worker::{Answer, Job, Order};
use crate::cgroup::{Controller, REMEDY};
use crate::failure::Failure;
use crate::size::{Memory, Size};
use crate::{cgroup, interrupt, machine};

/// How often the bench looks whether a worker has ended or a signal has come.
const POLL: Duration = Duration::from_millis(10);

/// One thing to measure.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Load {
    /// Through which engine.
    pub engine: Engine,
    /// In which order.
    pub pattern: Pattern,
    /// Doing what.
    pub op: Op,
    /// With how many threads.
    pub threads: u32,
    /// What the fastmap engines are told about the order.
    pub advice: Advice,
}

/// One trace to replay; the fields are those of [`Replay`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Traced {
    /// Through which engine.
    pub engine: Engine,
    /// Which touches.
    pub trace: Trace,
    /// Pages that fit into memory, for the trace.
    pub frames: u64,
    /// Touches before the window, and in it.
    pub touches: (u64, u64),
    /// Which of the trace's random sequences.
    pub seed: u64,
}

/// The limit of each run, and the place to make its cgroup: what is `asked` for, else `default`. None for no limit. `suits` says
/// whether the engines can work within some limit.
///
/// # Errors
///
/// What `suits` answers; no cgroup to be made where a limit was asked for.
pub fn limit_for(
    asked: Option<Memory>,
    default: u64,
    suits: impl FnOnce(u64) -> Result<(), Failure>,
) -> Result<Option<(Controller, u64)>, Failure> {
    let limit = match asked {
        Some(Memory::Unlimited) => return Ok(None),
        Some(Memory::Limit(size)) => size.0,
        None => default,
    };
    suits(limit)?;
    match Controller::find() {
        Ok(controller) => Ok(Some((controller, limit))),
        Err(why) if asked.is_some() => Err(Failure::told(format!("{why}: {REMEDY}, or give --memory none"))),
        Err(why) => {
            eprintln!("fastmap: {why}: no run is limited: {REMEDY}, or give --memory none to say so");
            Ok(None)
        }
    }
}

/// Everything that stays the same over the runs of a command.
pub struct Session<'a> {
    target: &'a Target,
    /// Where memory is limited: the cgroups' place and the limit.
    limit: Option<(Controller, u64)>,
    warned_warm: Cell<bool>,
}

impl<'a> Session<'a> {
    /// A session on `target`, with every run limited if `limit` is given.
    pub fn new(target: &'a Target, limit: Option<(Controller, u64)>) -> Session<'a> {
        Session { target, limit, warned_warm: Cell::new(false) }
    }

    /// The limit of each run in bytes.
    pub fn memory(&self) -> Option<u64> {
        self.limit.as_ref().map(|(_, bytes)| *bytes)
    }

    /// What limits it.
    pub fn version(&self) -> Option<cgroup::Version> {
        self.limit.as_ref().map(|(controller, _)| controller.version())
    }

    /// Touches, once, as much memory as the runs will: on a virtual machine the first touch of guest memory can take
    /// the host longer than a page fault, and would be paid by whoever runs first.
    ///
    /// # Errors
    ///
    /// Only an interruption; with less memory to be had, less is touched.
    pub fn touch_memory(&self) -> Result<(), Failure> {
        let wanted = self.memory().unwrap_or(self.target.bytes() / 4);
        let bytes = wanted.min(machine::meminfo("MemAvailable") / 2).min(cgroup::own_limit() / 2) as usize;
        let Ok(mut memory) = memmap2::MmapMut::map_anon(bytes.max(1)) else {
            return Ok(());
        };
        for chunk in memory.chunks_mut(64 << 20) {
            chunk.iter_mut().step_by(PAGE).for_each(|byte| *byte = 1);
            interrupt::check()?;
        }
        Ok(())
    }

    /// Runs `load` once.
    ///
    /// # Errors
    ///
    /// Whatever the worker failed with, an unusable cgroup, or an interruption. Nothing is left behind; a file that was
    /// being filled is left empty unless the worker told what was wrong with it.
    pub fn run(&self, load: Load, seconds: f64) -> Result<Outcome, Failure> {
        interrupt::check()?;
        let Target { file, path, label, pages, .. } = self.target;
        let epoch = if load.op.writes() { prepare::next_epoch(file, label)? } else { 0 };
        let half_filled = match load.pattern {
            Pattern::Fill => {
                prepare::make_sparse(file, label, *pages)?;
                Some(HalfFilled(file))
            }
            _ => None,
        };
        let Load { engine, pattern, op, threads, advice } = load;
        let memory = self.memory();
        let (path, label, pages) = (path.clone(), label.clone(), *pages);
        let spec = Spec { engine, pattern, op, threads, advice, path, label, pages, memory, seconds, epoch };
        let engine = engine.name();
        self.make_cold()?;
        let answer = self.obey(engine, Job::Run(spec), memory)?;
        std::mem::forget(half_filled);
        match answer {
            Answer::Done(outcome) => Ok(*outcome),
            other => Err(failed(engine, other)),
        }
    }

    /// Replays a trace once, with `memory` bytes for everything it uses, if memory is limited.
    ///
    /// # Errors
    ///
    /// As [`Session::run`].
    pub fn replay(&self, traced: &Traced, memory: Option<u64>) -> Result<Replayed, Failure> {
        interrupt::check()?;
        let Target { path, label, pages, .. } = self.target;
        let Traced { engine, trace, frames, touches, seed } = *traced;
        let (pattern, op, path, label) = (Pattern::Random, Op::Read, path.clone(), label.clone());
        // Pages read ahead would blur what is compared.
        let (advice, pages) = (Advice::Random, *pages);
        let spec = Spec { engine, pattern, op, threads: 1, advice, path, label, pages, memory, seconds: 0.0, epoch: 0 };
        self.make_cold()?;
        match self.obey(engine.name(), Job::Replay(Replay { spec, trace, frames, touches, seed }), memory)? {
            Answer::Replayed(replayed) => Ok(*replayed),
            other => Err(failed(engine.name(), other)),
        }
    }

    /// Does updates once; `epoch` counts the runs over the file.
    ///
    /// # Errors
    ///
    /// As [`Session::run`].
    pub fn update(&self, load: updates::Load, epoch: u32) -> Result<updates::Outcome, Failure> {
        interrupt::check()?;
        let Target { path, label, pages, .. } = self.target;
        let (engine, memory) = (load.engine.name(), self.memory());
        let order = updates::Order { load, path: path.clone(), label: label.clone(), pages: *pages, memory, epoch };
        self.make_cold()?;
        match self.obey(engine, Job::Update(order), memory)? {
            Answer::Updated(outcome) => Ok(*outcome),
            other => Err(failed(engine, other)),
        }
    }

    /// Stores and flushes for some time. The file is not made cold: all of it is stored to before the measurement.
    ///
    /// # Errors
    ///
    /// As [`Session::run`].
    pub fn sync(&self, engine: Syncer, work: SyncWork, seconds: f64) -> Result<Synced, Failure> {
        interrupt::check()?;
        let Target { file, path, label, pages, .. } = self.target;
        let epoch = prepare::next_epoch(file, label)?;
        let (path, label, pages) = (path.clone(), label.clone(), *pages);
        let spec = SyncSpec { engine, work, path, label, pages, seconds, epoch };
        let engine = engine.name();
        match self.obey(engine, Job::Sync(spec), self.memory())? {
            Answer::Synced(synced) => Ok(*synced),
            other => Err(failed(engine, other)),
        }
    }

    /// Has a fresh process do a job in a cgroup of its own limited to `memory`.
    fn obey(&self, engine: &str, job: Job, memory: Option<u64>) -> Result<Answer, Failure> {
        let group = match (&self.limit, memory) {
            (Some((controller, _)), Some(bytes)) => {
                Some(controller.group(bytes).map_err(|e| Failure::told(format!("{e}: {REMEDY}")))?)
            }
            _ => None,
        };
        let order = Order {
            job,
            join: group.as_ref().map(|g| g.join_file()),
            peak: group.as_ref().and_then(|g| g.peak_file()),
            parent: std::process::id(),
        };
        let ended = in_fresh_process(&order)?;
        interrupt::check()?;
        serde_json::from_slice(&ended.stdout).map_err(|_| self.died(engine, memory, &ended))
    }

    fn make_cold(&self) -> Result<(), Failure> {
        let label = &self.target.label;
        let left = cold::make_cold(&self.target.file, self.target.bytes()).map_err(|e| {
            Failure::new(label, format!("cannot be dropped from the page cache: {e}"), "check the file and its device")
        })?;
        if left > 0 && !self.warned_warm.replace(true) {
            eprintln!(
                "fastmap: {label}: {left} of its pages stay in the page cache and favour mmap and pread: \
                 close other users of the file, and do not put it on a memory file system"
            );
        }
        Ok(())
    }

    /// A worker that ended without an answer.
    fn died(&self, engine: &str, memory: Option<u64>, ended: &Ended) -> Failure {
        let last_words = ended.stderr.lines().rfind(|l| !l.trim().is_empty()).unwrap_or("it said nothing").trim();
        match (ended.status.signal(), memory) {
            (Some(libc::SIGKILL), Some(bytes)) => Failure::new(
                engine,
                format!("killed, most likely since it used more memory than {}", Size(bytes)),
                "give more --memory or fewer --threads",
            ),
            (Some(libc::SIGBUS), _) => Failure::new(
                engine,
                format!("a page of {} could not be read, or has no room (SIGBUS): {last_words}", self.target.label),
                "check the file and its device",
            ),
            _ => Failure::new(
                engine,
                format!("ended without a result ({}): {last_words}", ended.status),
                "this is an error in fastmap: please report it",
            ),
        }
    }
}

/// An answer that is no result.
fn failed(engine: &str, answer: Answer) -> Failure {
    match answer {
        Answer::Failed(why) => Failure::told(format!("{engine}: {why}")),
        other => Failure::new(engine, format!("answered {other:?}"), "this is an error in fastmap: please report it"),
    }
}

/// A file that a worker is filling. Dropped, it empties the file: holes among its pages would be taken for damage when the
/// file is used again.
struct HalfFilled<'a>(&'a File);

impl Drop for HalfFilled<'_> {
    fn drop(&mut self) {
        // At worst the file stays, and is refused with a message that says so.
        let _ = self.0.set_len(0);
    }
}

/// What is left of a worker process.
struct Ended {
    status: ExitStatus,
    stdout: Vec<u8>,
    stderr: String,
}

/// Runs this executable again as a worker, and kills it when a signal asks the bench to stop.
fn in_fresh_process(order: &Order) -> Result<Ended, Failure> {
    let failed =
        |e: io::Error| Failure::new("bench worker", format!("cannot run: {e}"), "check `ulimit -u` and free memory");
    let order = serde_json::to_string(order).map_err(|e| failed(e.into()))?;
    let mut child = Command::new("/proc/self/exe")
        .arg0("fastmap")
        .args(["bench", "worker", &order])
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(failed)?;
    // Both pipes are drained while it runs, so that it can never block on one.
    let stdout = drain(child.stdout.take());
    let stderr = drain(child.stderr.take());
    let status = wait(&mut child).map_err(failed)?;
    let stdout = stdout.join().unwrap_or_default();
    let stderr = String::from_utf8_lossy(&stderr.join().unwrap_or_default()).into_owned();
    Ok(Ended { status, stdout, stderr })
}

fn drain(pipe: Option<impl Read + Send + 'static>) -> thread::JoinHandle<Vec<u8>> {
    thread::spawn(move || {
        let mut bytes = Vec::new();
        if let Some(mut pipe) = pipe {
            // What came before an error is what there is.
            let _ = pipe.read_to_end(&mut bytes);
        }
        bytes
    })
}

fn wait(child: &mut Child) -> io::Result<ExitStatus> {
    loop {
        if let Some(status) = child.try_wait()? {
            return Ok(status);
        }
        if interrupt::requested() {
            child.kill()?;
            return child.wait();
        }
        thread::sleep(POLL);
    }
}
