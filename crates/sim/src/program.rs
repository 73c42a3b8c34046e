//! Threads that run on the model, and readers beside them.

use crate::Time;
use crate::kernel::Kernel;
use crate::workload::{Plan, Step};
use std::collections::VecDeque;
use std::ops::Range;

/// A thread of the program.
#[derive(Debug)]
pub struct Thread {
    plan: Plan,
    /// When its next step comes.
    at: Time,
    /// Until when it waits for storage.
    pub waits: Time,
    /// Accesses that are left, and done.
    left: u64,
    done: u64,
    /// Its faults.
    pub faults: u64,
    /// Its processor time.
    pub busy: Time,
}

/// Pages that a reader is to bring.
#[derive(Debug)]
struct Piece {
    file: usize,
    pages: Range<u64>,
    is_block: bool,
}

/// Readers beside the program.
#[derive(Debug, Default)]
pub struct Readers {
    queue: VecDeque<Piece>,
    /// When each request that is made is done.
    active: Vec<Time>,
    /// Requests that there may be.
    pub most: usize,
    /// Bytes that were read.
    pub brought: u64,
}

impl Readers {
    /// Queues pages of a file.
    pub fn bring(&mut self, file: usize, pages: Range<u64>, is_block: bool) {
        self.queue.push_back(Piece { file, pages, is_block });
    }

    /// Forgets what no reader has begun.
    pub fn clear(&mut self) {
        self.queue.clear();
    }

    /// Requests that are not done yet.
    pub fn waiting(&self) -> usize {
        self.queue.len() + self.active.len()
    }
}

/// A program on the model.
#[derive(Debug)]
pub struct World {
    /// The kernel.
    pub kernel: Kernel,
    /// The program's threads.
    pub threads: Vec<Thread>,
    /// Readers beside it.
    pub readers: Readers,
    /// The time.
    pub now: Time,
}

impl World {
    /// A program whose threads follow these plans. Each ends after so many accesses.
    pub fn new(kernel: Kernel, plans: Vec<(Plan, u64)>) -> World {
        let threads =
            plans.into_iter().map(|(plan, left)| Thread { plan, at: 0, waits: 0, left, done: 0, faults: 0, busy: 0 });
        World { kernel, threads: threads.collect(), readers: Readers::default(), now: 0 }
    }

    /// Accesses of each thread until now.
    pub fn done(&self) -> Vec<u64> {
        self.threads.iter().map(|thread| thread.done).collect()
    }

    /// Whether all threads have ended.
    pub fn is_over(&self) -> bool {
        self.threads.iter().all(|thread| thread.left == 0)
    }

    /// When the next thing happens; `None` once the program is over.
    pub fn next(&self) -> Option<Time> {
        self.threads.iter().filter(|thread| thread.left > 0).map(|thread| thread.at).min()
    }

    /// Holds all threads for a moment: one of them is stopped, and what it would do waits.
    pub fn hold(&mut self, thread: usize, time: Time) {
        let thread = &mut self.threads[thread];
        thread.at = thread.at.max(self.now) + time;
    }

    /// Goes on until `until`, or until the program is over.
    pub fn run(&mut self, until: Time) {
        while let Some((index, at)) = self.first()
            && at < until
        {
            self.read(at);
            self.now = self.now.max(at);
            self.step(index);
        }
        if !self.is_over() {
            self.read(until);
            self.now = self.now.max(until);
        }
    }

    fn first(&self) -> Option<(usize, Time)> {
        let alive = self.threads.iter().enumerate().filter(|(_, thread)| thread.left > 0);
        alive.map(|(index, thread)| (index, thread.at)).min_by_key(|(_, at)| *at)
    }

    fn step(&mut self, index: usize) {
        let thread = &mut self.threads[index];
        let at = thread.at;
        match thread.plan.step() {
            Step::Touch { area, page, is_store, work } => {
                let cost = self.kernel.touch(area, page, is_store, at);
                thread.faults += u64::from(cost.busy > crate::kernel::ACCESS);
                thread.busy += cost.busy + work;
                thread.waits = cost.until;
                thread.at = (at + cost.busy).max(cost.until) + work;
                thread.left -= 1;
                thread.done += 1;
            }
            Step::Sleep(time) => thread.at += time,
            Step::Remap(area) => {
                self.kernel.remap(area, at);
                thread.at += 20_000;
            }
        }
    }

    /// Readers make and end their requests until `until`.
    fn read(&mut self, until: Time) {
        let readers = &mut self.readers;
        if readers.queue.is_empty() && readers.active.is_empty() {
            return;
        }
        let mut at = self.now;
        loop {
            while readers.active.len() < readers.most
                && let Some(Piece { file, pages, is_block }) = readers.queue.pop_front()
            {
                if self.kernel.has_all(file, pages.clone()) {
                    continue;
                }
                readers.brought += (pages.end - pages.start) * 4096;
                readers.active.push(self.kernel.bring(file, pages, is_block, at));
            }
            let Some(first) = readers.active.iter().copied().min().filter(|first| *first <= until) else { return };
            at = at.max(first);
            readers.active.retain(|done| *done > first);
        }
    }
}
