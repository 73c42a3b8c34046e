//! Running one engine once, fairly: cold file, fresh process, fresh memory cgroup.

use std::fs::File;
use std::sync::atomic::{AtomicBool, Ordering};

use fastmap_workloads::{
    Advice, Engine, Op, Outcome, PAGE, Pattern, Replay, Replayed, Spec, SyncSpec, SyncWork, Synced, Syncer, Trace,
    ablation, cold, prepare, updates,
};
use serde::de::DeserializeOwned;

use super::runner::Limit;
use super::target::Target;
use super::worker::Job;
use crate::failure::Failure;
use crate::results::Report;
use crate::{cgroup, interrupt, machine};

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

/// Everything that stays the same over the runs of a command.
pub struct Session<'a> {
    target: &'a Target,
    limit: &'a Limit,
}

impl<'a> Session<'a> {
    /// A session on `target`, with every run limited by `limit`.
    pub fn new(target: &'a Target, limit: &'a Limit) -> Session<'a> {
        Session { target, limit }
    }

    /// The limit of each run in bytes.
    pub fn memory(&self) -> Option<u64> {
        self.limit.bytes()
    }

    /// A report on the session's file without results yet.
    pub fn report<R>(&self, experiment: &str) -> Report<R> {
        Report::new(experiment, &self.target.place, &self.target.label, self.target.bytes(), self.limit)
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
        self.run_as(load, seconds, Job::Run)
    }

    /// Runs a load of `fastmap bench ablation` once; its fastmap engine does without `off`.
    ///
    /// # Errors
    ///
    /// As [`Session::run`].
    pub fn ablate(
        &self,
        work: ablation::Work,
        load: Load,
        off: Option<ablation::Off>,
        seconds: f64,
    ) -> Result<ablation::Outcome, Failure> {
        self.run_as(load, seconds, |spec| Job::Ablate(ablation::Order { spec, work, off }))
    }

    /// Does `load` once, as some job.
    fn run_as<A: DeserializeOwned>(
        &self,
        load: Load,
        seconds: f64,
        job: impl FnOnce(Spec) -> Job,
    ) -> Result<A, Failure> {
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
        make_cold(&self.target.file, &self.target.label, self.target.bytes())?;
        let outcome = self.limit.obey(engine, job(spec), memory, None)?;
        std::mem::forget(half_filled);
        Ok(outcome)
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
        make_cold(&self.target.file, &self.target.label, self.target.bytes())?;
        let order = Job::Replay(Replay { spec, trace, frames, touches, seed });
        self.limit.obey(engine.name(), order, memory, None)
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
        make_cold(&self.target.file, &self.target.label, self.target.bytes())?;
        self.limit.obey(engine, Job::Update(order), memory, None)
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
        self.limit.obey(engine, Job::Sync(spec), self.memory(), None)
    }
}

/// Drops a file's first `bytes` from the page cache; says once, if some of them stay there.
///
/// # Errors
///
/// What the system answers.
pub fn make_cold(file: &File, label: &str, bytes: u64) -> Result<(), Failure> {
    static WARNED: AtomicBool = AtomicBool::new(false);
    let left = cold::make_cold(file, bytes).map_err(|e| {
        Failure::new(label, format!("cannot be dropped from the page cache: {e}"), "check the file and its device")
    })?;
    if left > 0 && !WARNED.swap(true, Ordering::Relaxed) {
        eprintln!(
            "fastmap: {label}: {left} of its pages stay in the page cache and favour mmap and pread: \
             close other users of the file, and do not put it on a memory file system"
        );
    }
    Ok(())
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
