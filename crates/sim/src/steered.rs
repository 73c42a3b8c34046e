//! The watcher's samples of the model, and its actuator.

use crate::Time;
use crate::kernel::Advice;
use crate::program::World;
use fastmap_steer::Run;
use fastmap_steer::act::{Hand, Made, Opened, Reading};
use fastmap_steer::observe::{Flags, Mapping, Seen, Spent, Waited};
use fastmap_steer::{Ledger, Report, Samples, Settings, Watcher};
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::ops::Range;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

const PAGE: u64 = 4096;
/// Mappings lie so far apart.
const APART: u64 = 1 << 40;
/// Processor time of a system call of the watcher, of a word of page tables, of a run that is told, and of a stop of the program.
const CALL: Time = 2000;
const WORD: Time = 12;
const RUN: Time = 50;
const STOP: Time = 60_000;

/// What a steered run has shown.
#[derive(Debug, Default)]
pub struct Steered {
    /// Processor time of the watcher.
    pub cost: Time,
    /// What it did, with times, if that was asked for.
    pub events: Option<Vec<(Time, String)>>,
    /// Its report.
    pub report: Option<String>,
}

#[derive(Debug)]
struct Shared {
    world: World,
    steered: Steered,
    /// The least size of a mapping that is steered.
    least: u64,
    since: Time,
    /// Faults and processor time of each thread when waits were asked for last.
    before: Vec<(u64, Time)>,
    begun: BTreeMap<u64, u64>,
}

impl Shared {
    /// The watcher is busy for so long.
    fn spend(&mut self, time: Time) {
        self.steered.cost += time;
        let until = self.world.now + time;
        self.world.run(until);
    }

    fn note(&mut self, event: impl FnOnce() -> String) {
        if let Some(events) = &mut self.steered.events {
            events.push((self.world.now, event()));
        }
    }

    fn mapping(&self, area: usize) -> Mapping {
        let one = &self.world.kernel.areas[area];
        let start = APART * (area as u64 + 1);
        Mapping {
            at: start..start + one.pages * PAGE,
            offset: one.offset * PAGE,
            device: (8, 1),
            inode: one.file as u64 + 1,
            is_shared: true,
            is_writable: one.is_writable,
            path: format!("/file{}", one.file),
            pages: one.pages,
            may_grow: false,
        }
    }

    fn mappings(&self) -> Vec<Mapping> {
        let areas = &self.world.kernel.areas;
        (0..areas.len()).filter(|area| areas[*area].is_mapped).map(|area| self.mapping(area)).collect()
    }
}

fn area(mapping: &Mapping) -> usize {
    (mapping.at.start / APART) as usize - 1
}

/// Pages of the file.
fn in_file(mapping: &Mapping, pages: &Run) -> Range<u64> {
    let first = mapping.offset / PAGE;
    first + pages.at..first + pages.end()
}

#[derive(Debug, Clone)]
struct Model(Rc<RefCell<Shared>>);

impl Samples for Model {
    fn now(&self) -> Duration {
        Duration::from_nanos(self.0.borrow().world.now)
    }

    fn processor_time(&self) -> Duration {
        Duration::from_nanos(self.0.borrow().steered.cost)
    }

    fn sleep(&mut self, time: Duration) {
        let mut all = self.0.borrow_mut();
        let until = all.world.now + time.as_nanos() as Time;
        all.world.run(until);
    }

    fn spent(&mut self) -> Option<Spent> {
        let mut all = self.0.borrow_mut();
        all.spend(2 * CALL);
        let counts = all.world.kernel.counts;
        let read = if all.world.kernel.device.kind().counts { counts.read } else { 0 };
        let spent = Spent { major_faults: counts.major, minor_faults: counts.minor, read_bytes: read * PAGE };
        (!all.world.is_over()).then_some(spent)
    }

    fn mappings(&mut self) -> Vec<Mapping> {
        let mut all = self.0.borrow_mut();
        all.spend(10 * CALL);
        let least = all.least;
        all.mappings().into_iter().filter(|one| one.pages >= least).collect()
    }

    fn mappings_of(&mut self, _: (u64, u64), inode: u64) -> Vec<Mapping> {
        let mut all = self.0.borrow_mut();
        all.spend(5 * CALL);
        all.mappings().into_iter().filter(|one| one.inode == inode).collect()
    }

    fn flags(&mut self, at: &[Range<u64>]) -> Option<Vec<Flags>> {
        let mut all = self.0.borrow_mut();
        all.spend(50 * CALL);
        let flags = |at: &Range<u64>| {
            let advice = all.world.kernel.areas[(at.start / APART) as usize - 1].advice;
            let (random, sequential) = (advice == Advice::Random, advice == Advice::Sequential);
            Flags { random, sequential, locked: false }
        };
        Some(at.iter().map(flags).collect())
    }

    fn has_pages(&mut self) -> bool {
        true
    }

    fn pages(&mut self, seen: &mut Seen, range: Range<u64>) -> Vec<Run> {
        let mut all = self.0.borrow_mut();
        let area = (seen.start() / APART) as usize - 1;
        let mut new = Vec::new();
        let words = all.world.kernel.areas[area].words();
        let range = range.start..range.end.min(all.world.kernel.areas[area].pages);
        let mut page = range.start;
        while page < range.end {
            let word = words[(page / 64) as usize] >> (page % 64);
            let count = (64 - page % 64).min(range.end - page);
            let is_there = word & 1 != 0;
            let len = if is_there { u64::from(word.trailing_ones()) } else { u64::from(word.trailing_zeros()) };
            let len = len.min(count);
            seen.note(page..page + len, is_there, &mut new);
            page += len;
        }
        let cost = CALL + range.end.saturating_sub(range.start) / 64 * WORD + new.len() as u64 * RUN;
        all.spend(cost);
        new
    }

    fn for_files(&mut self) -> u64 {
        let mut all = self.0.borrow_mut();
        all.spend(2 * CALL);
        all.world.kernel.memory * PAGE
    }

    fn readahead(&self, _: (u64, u64)) -> u64 {
        self.0.borrow().world.kernel.readahead
    }

    fn waited(&mut self) -> Waited {
        let mut all = self.0.borrow_mut();
        let count = all.world.threads.len() as u64;
        all.spend(3 * CALL * count);
        let now: Vec<(u64, Time)> = all.world.threads.iter().map(|thread| (thread.faults, thread.busy)).collect();
        let before = std::mem::replace(&mut all.before, now.clone());
        let at = all.world.now;
        let lasted = at - std::mem::replace(&mut all.since, at);
        let mut waited = Waited { faults: 0, slept: Duration::ZERO, blocked: None };
        for (now, before) in now.iter().zip(before).filter(|(now, before)| now.0 > before.0) {
            waited.faults += now.0 - before.0;
            waited.slept += Duration::from_nanos(lasted.saturating_sub(now.1 - before.1));
        }
        waited
    }

    fn is_blocked(&mut self) -> bool {
        let mut all = self.0.borrow_mut();
        all.spend(CALL);
        let now = all.world.now;
        all.world.threads.iter().any(|thread| thread.waits > now)
    }
}

impl Hand for Model {
    fn advise(&mut self, mapping: &Mapping, advice: fastmap_steer::Advice) -> Made {
        let mut all = self.0.borrow_mut();
        let now = all.world.now;
        all.note(|| format!("{advice:?} for mapping {}", area(mapping)));
        let advice = if advice == fastmap_steer::Advice::Random { Advice::Random } else { Advice::Normal };
        all.world.kernel.advise(area(mapping), advice, now);
        all.world.hold(0, STOP);
        all.spend(STOP);
        Made::Given(vec![mapping.at.clone()])
    }

    fn read_ahead(&mut self, mapping: &Mapping, pages: &Run) -> bool {
        let mut all = self.0.borrow_mut();
        let now = all.world.now;
        let pages = in_file(mapping, pages);
        if let Some(events) = &mut all.steered.events {
            match events.last_mut() {
                Some((_, text)) if text.starts_with("reads ahead") => {}
                _ => events.push((now, format!("reads ahead in mapping {} from page {}", area(mapping), pages.start))),
            }
        }
        if all.world.kernel.device.kind().counts {
            all.world.kernel.will_need(mapping.inode as usize - 1, pages, now, false);
        }
        all.spend(CALL);
        true
    }

    fn drop(&mut self, mapping: &Mapping, pages: &Run) -> bool {
        let mut all = self.0.borrow_mut();
        let now = all.world.now;
        all.note(|| format!("drops {} pages of mapping {} from {}", pages.len, area(mapping), pages.at));
        all.world.kernel.drop(area(mapping), pages.at..pages.end(), now);
        all.world.hold(0, STOP + pages.len * 150);
        all.spend(STOP);
        true
    }

    fn readers(&mut self) -> Option<&mut dyn Reading> {
        Some(self)
    }
}

impl Reading for Model {
    fn open(&mut self, mapping: &Mapping) -> Opened {
        let mut all = self.0.borrow_mut();
        // The first time its thread is asked.
        let count = all.begun.entry(mapping.inode).or_insert(0);
        *count += 1;
        if *count > 1 { Opened::Yes } else { Opened::NotYet }
    }

    fn bring(&mut self, mapping: &Mapping, pages: &Run, is_block: bool) {
        let mut all = self.0.borrow_mut();
        if all.world.readers.waiting() == 0 {
            all.note(|| format!("readers bring mapping {} from page {}", area(mapping), pages.at));
        }
        let pages = in_file(mapping, pages);
        all.world.readers.bring(mapping.inode as usize - 1, pages, is_block);
    }

    fn allow(&mut self, most: usize) {
        self.0.borrow_mut().world.readers.most = most;
    }

    fn state(&self) -> (usize, u64) {
        let all = self.0.borrow();
        (all.world.readers.waiting(), all.world.readers.brought)
    }

    fn clear(&mut self) {
        self.0.borrow_mut().world.readers.clear();
    }

    fn rest(&mut self) {}

    fn keep(&mut self, _: &dyn Fn((u64, u64), u64) -> bool) {}
}

/// Runs a program to its end with a watcher beside it. `least`: pages of the smallest mapping that is steered.
pub fn run(world: World, least: u64, is_told: bool) -> (World, Steered) {
    let before = vec![(0, 0); world.threads.len()];
    let steered = Steered { events: is_told.then(Vec::new), ..Steered::default() };
    let shared = Shared { world, steered, least, since: 0, before, begun: BTreeMap::new() };
    let model = Model(Rc::new(RefCell::new(shared)));
    let report = Arc::new(Report::new());
    let (settings, ledger) = (Settings::default(), Ledger::default());
    let mut watcher = Watcher::new(model.clone(), model.clone(), settings, Arc::clone(&report), ledger, (1, 1));
    watcher.run(|pause| {
        let mut all = model.0.borrow_mut();
        let until = all.world.now + pause.as_nanos() as Time;
        all.world.run(until);
        !all.world.is_over()
    });
    drop(watcher);
    let shared = Rc::into_inner(model.0).map(RefCell::into_inner);
    let Some(Shared { mut world, mut steered, .. }) = shared else { unreachable!("the watcher is gone") };
    world.run(Time::MAX);
    steered.report = report.text();
    (world, steered)
}
