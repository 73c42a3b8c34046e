//! One workload as it is, with each single advice for all of its life, and steered.

use crate::kernel::{Advice, Counts, Kernel, Rules};
use crate::program::World;
use crate::steered::{self, Steered};
use crate::workload::Plan;
use crate::{SECOND, Time, device, seed};
use std::fmt::Write;

/// A machine.
#[derive(Debug, Clone, Copy)]
pub struct Machine {
    /// Its kernel.
    pub rules: Rules,
    /// The kernel's name.
    pub kernel: &'static str,
    /// Pages of files that fit.
    pub memory: u64,
    /// Pages of readahead.
    pub readahead: u64,
    /// Its storage.
    pub device: device::Kind,
}

/// A mapping: file, first page, pages, and whether it may be stored to.
pub type Mapped = (usize, u64, u64, bool);

/// A workload on a machine.
#[derive(Debug, Clone)]
pub struct Case {
    /// In words.
    pub name: String,
    /// The machine.
    pub machine: Machine,
    /// Pages of each file.
    pub files: Vec<u64>,
    /// The mappings.
    pub mapped: Vec<Mapped>,
    /// A plan for each thread.
    pub plans: Vec<Plan>,
    /// How long the program runs as it is.
    pub length: Time,
}

/// How a run ended.
#[derive(Debug, Clone, Copy)]
pub struct Run {
    /// When.
    pub time: Time,
    /// What was counted.
    pub counts: Counts,
}

/// A workload in all ways.
#[derive(Debug)]
pub struct Outcome {
    /// As it is.
    pub as_is: Run,
    /// With the single advice that is best.
    pub best: (Advice, Run),
    /// Steered.
    pub steered: Run,
    /// What the watcher did.
    pub watcher: Steered,
}

impl Outcome {
    /// How many times as fast as it is.
    pub fn of_as_is(&self) -> f64 {
        self.as_is.time as f64 / self.steered.time as f64
    }

    /// How many times as fast as with the best advice, which may be none.
    pub fn of_best(&self) -> f64 {
        self.best.1.time as f64 / self.steered.time as f64
    }

    /// The part of a processor that the watcher took.
    pub fn share(&self) -> f64 {
        self.watcher.cost as f64 / self.steered.time as f64
    }
}

/// A run as it is ends after so many pages were read or accessed: what is real for a second is long enough for the model.
const MOST_READ: u64 = 400_000;
const MOST_TOUCHES: u64 = 300_000;
const SLICE: Time = SECOND / 100;
/// Pages of the smallest mapping that is steered: 4 MiB.
const LEAST: u64 = 1024;

impl Case {
    /// The program, each of whose threads ends after its `quota`.
    pub fn world(&self, advice: Advice, quota: &[u64]) -> World {
        let Machine { rules, memory, readahead, device, .. } = self.machine;
        let mut kernel = Kernel::new(rules, memory, readahead, device);
        kernel.standing = advice;
        let files: Vec<usize> = self.files.iter().map(|pages| kernel.add_file(*pages)).collect();
        let handles: Vec<usize> = files.iter().map(|_| kernel.open()).collect();
        for (file, offset, pages, is_writable) in &self.mapped {
            let area = kernel.map(files[*file], handles[*file], *offset, *pages, *is_writable);
            kernel.advise(area, advice, 0);
        }
        World::new(kernel, self.plans.iter().cloned().zip(quota.iter().copied()).collect())
    }

    /// The program as it is, and the accesses of each thread.
    pub fn as_it_is(&self) -> (Run, Vec<u64>) {
        let mut world = self.world(Advice::Normal, &vec![u64::MAX; self.plans.len()]);
        while world.now < self.length
            && world.kernel.counts.read < MOST_READ
            && world.kernel.counts.touches < MOST_TOUCHES
        {
            world.run(world.now + SLICE);
        }
        let quota = world.done();
        (self.advised(Advice::Normal, &quota, Time::MAX).unwrap_or(end(&world)), quota)
    }

    /// The program with one advice. `None` if it takes longer than `limit`.
    pub fn advised(&self, advice: Advice, quota: &[u64], limit: Time) -> Option<Run> {
        let mut world = self.world(advice, quota);
        while !world.is_over() && world.now < limit {
            world.run(world.now.saturating_add(SLICE).min(limit));
        }
        world.is_over().then(|| end(&world))
    }

    /// All of it.
    pub fn outcome(&self, is_told: bool) -> Outcome {
        let (as_is, quota) = self.as_it_is();
        let mut best = (Advice::Normal, as_is);
        for advice in [Advice::Random, Advice::Sequential, Advice::WillNeed, Advice::Huge] {
            if let Some(run) = self.advised(advice, &quota, best.1.time) {
                best = (advice, run);
            }
        }
        let (world, watcher) = steered::run(self.world(Advice::Normal, &quota), LEAST, is_told);
        Outcome { as_is, best, steered: end(&world), watcher }
    }
}

/// What happened to the workload of a seed over time, and what was counted in each way.
pub fn told(seed: u64) -> String {
    let case = seed::case(seed);
    let outcome = case.outcome(true);
    let mut text = format!("{}\n", case.name);
    for (at, event) in outcome.watcher.events.iter().flatten() {
        let _ = writeln!(text, "{:9.3} s  {event}", *at as f64 / SECOND as f64);
    }
    let best = format!("with {:?}", outcome.best.0);
    for (name, run) in [("as it is", outcome.as_is), (&best, outcome.best.1), ("steered", outcome.steered)] {
        let Counts { touches, minor, major, read, brought, evicted } = run.counts;
        let time = run.time as f64 / SECOND as f64;
        let _ = writeln!(
            text,
            "{name:>16}: {time:.3} s, {touches} touches, {major} major and {minor} minor faults, {read} pages read, {brought} brought, {evicted} evicted",
        );
    }
    let share = outcome.share() * 100.0;
    let report = outcome.watcher.report.unwrap_or_default();
    let _ = writeln!(text, "the watcher: {share:.2} % of a processor; {report}");
    text
}

fn end(world: &World) -> Run {
    Run { time: world.now.max(1), counts: world.kernel.counts }
}
