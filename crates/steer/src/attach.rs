//! Steering from outside. One thread looks what the faults of all processes cost. A process in which they cost something gets a thread of
//! its own, for as long as that is so.

use crate::act::{Outside, Refusal, may_trace_all, yama_scope};
use crate::clock::{now, processor_time};
use crate::observe::Process;
use crate::sampling::{CALM, CALMEST};
use crate::{Ledger, Report, Sampler, Settings, Watcher};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::Thread;
use std::time::Duration;

/// The processes that are watched now.
#[derive(Debug)]
pub struct Party {
    settings: Settings,
    watched: BTreeMap<Process, Arc<Watched>>,
    /// The last reports of processes that are not watched any more.
    last: BTreeMap<Process, String>,
    ledger: Ledger,
    /// The thread that looks at all of them, once there is one to look at.
    shared: Option<Arc<Shared>>,
}

#[derive(Debug, Default)]
struct Shared {
    watched: Mutex<Vec<Arc<Watched>>>,
    changed: Condvar,
    has_ended: AtomicBool,
}

#[derive(Debug)]
struct Watched {
    process: Process,
    image: Option<(u64, u64)>,
    /// When it is tried again to advise it: a debugger had it.
    again: Option<Duration>,
    report: Arc<Report>,
    place: Mutex<Place>,
    has_ended: AtomicBool,
    /// Whether advice is taken back at the end.
    gives_back: AtomicBool,
}

/// Where the watcher of a process is.
#[derive(Debug)]
enum Place {
    /// Nothing is wrong: the thread that looks at all processes calls it now and then.
    Calm(Box<Watcher<Sampler, Outside>>, Pace),
    /// Something is wrong: a thread of its own has it.
    Busy(Thread),
    /// The process is gone, or the watcher was ended.
    Over,
}

/// When a calm process is looked at next, and after which pause.
#[derive(Debug, Clone, Copy)]
struct Pace {
    next: Duration,
    pause: Duration,
}

/// A process that a library steers, or a debugger has, is looked at again after so long.
const OTHERS: Duration = Duration::from_secs(5);
/// Looks at calm processes cost this part of a processor at most.
const SHARE: u32 = 600;
/// How long the end of busy threads is waited for: each may be taking advice back, or it has only to be told.
const TAKES_BACK: Duration = Duration::from_secs(4);
const IS_TOLD: Duration = Duration::from_secs(1);

impl Party {
    /// No process yet.
    pub fn new(settings: Settings) -> Party {
        Party::with(settings, Ledger::default())
    }

    fn with(settings: Settings, ledger: Ledger) -> Party {
        Party { settings, watched: BTreeMap::new(), last: BTreeMap::new(), ledger, shared: None }
    }

    /// Watches these processes and no others. Returns those that cannot be advised, with the reason.
    pub fn watch(&mut self, wanted: &BTreeSet<Process>) -> Vec<(Process, Refusal)> {
        self.watched.retain(|process, watched| {
            // One that has executed another program is watched anew.
            let is_due = watched.again.is_some_and(|at| now() >= at);
            let stays = wanted.contains(process) && !watched.is_over() && !is_due && process.image() == watched.image;
            if !stays {
                watched.end(true);
                self.last.extend(watched.report.text().map(|line| (*process, line)));
            }
            stays
        });
        let mut refused = Vec::new();
        for process in wanted.iter().filter(|process| !self.watched.contains_key(process)).copied().collect::<Vec<_>>()
        {
            match self.begin(process) {
                Ok((watched, refusal)) => {
                    self.watched.insert(process, Arc::new(watched));
                    refused.extend(refusal.map(|refusal| (process, refusal)));
                }
                Err(refusal) => refused.push((process, refusal)),
            }
        }
        self.share();
        refused
    }

    fn begin(&self, process: Process) -> Result<(Watched, Option<Refusal>), Refusal> {
        let Settings { only_loads, descends, .. } = self.settings;
        let image = process.image();
        let (hand, refusal) = match Outside::of(process.pid, only_loads, descends) {
            Ok(hand) => (hand, None),
            Err(refusal) => (Outside::of(process.pid, true, descends)?, Some(refusal)),
        };
        if !process.is_there() {
            // The number may be another's by now.
            return Err(Refusal::NoProcess(process.pid));
        }
        let settings = Settings { only_loads: only_loads || refusal.is_some(), ..self.settings };
        let report = Arc::new(Report::new());
        let ledger = self.ledger.clone();
        let sampler = Sampler::of(process.pid);
        let watcher = Watcher::new(sampler, hand, settings, Arc::clone(&report), ledger, image.unwrap_or_default());
        let pace = Pace { next: now() + CALM / 4, pause: CALM / 4 };
        let place = Mutex::new(Place::Calm(Box::new(watcher), pace));
        let (has_ended, gives_back) = (AtomicBool::new(false), AtomicBool::new(true));
        let again = matches!(refusal, Some(Refusal::Traced { .. })).then(|| now() + OTHERS);
        Ok((Watched { process, image, again, report, place, has_ended, gives_back }, refusal))
    }

    /// Tells the thread that looks at all processes which these are, and starts it with the first.
    fn share(&mut self) {
        if self.watched.is_empty() && self.shared.is_none() {
            return;
        }
        let is_new = self.shared.is_none();
        let shared = self.shared.get_or_insert_with(Arc::default);
        *lock(&shared.watched) = self.watched.values().cloned().collect();
        shared.changed.notify_one();
        if is_new {
            let looks = Arc::clone(shared);
            // Without the thread nothing is steered, and with the next process it is tried again.
            if spawn("fastmap-watch", move || looks.look()).is_none() {
                self.shared = None;
            }
        }
    }

    /// The report of each process of which anything was seen or done. A process that is not watched any more is reported once.
    pub fn reports(&mut self) -> BTreeMap<Process, String> {
        let mut lines = std::mem::take(&mut self.last);
        let told = |(process, watched): (&Process, &Arc<Watched>)| Some((*process, watched.report.text()?));
        lines.extend(self.watched.iter().filter_map(told));
        lines
    }

    /// Ends without taking advice back, for another party that goes on: one in a child of fork(2) of the calling process. What was given is
    /// in its list.
    pub fn hand_over(mut self) -> Party {
        self.stop(false);
        let mut other = Party::with(self.settings, self.ledger.clone());
        other.last = std::mem::take(&mut self.last);
        other
    }

    /// Ends the watching, and takes advice back.
    pub fn end(&mut self) {
        self.stop(true);
    }

    fn stop(&mut self, gives_back: bool) {
        if let Some(shared) = self.shared.take() {
            shared.has_ended.store(true, Ordering::Relaxed);
            shared.changed.notify_one();
        }
        self.watched.values().for_each(|watched| watched.end(gives_back));
        let until = now() + if gives_back { TAKES_BACK } else { IS_TOLD };
        while now() < until && self.watched.values().any(|watched| !watched.is_over()) {
            std::thread::sleep(Duration::from_millis(2));
        }
        self.last.extend(self.watched.iter().filter_map(|(process, one)| Some((*process, one.report.text()?))));
        self.watched.clear();
    }
}

impl Drop for Party {
    fn drop(&mut self) {
        self.stop(true);
    }
}

impl Watched {
    /// `false` also while a thread has the lock: one that has come to grief may have it for good.
    fn is_over(&self) -> bool {
        self.place.try_lock().is_ok_and(|place| matches!(*place, Place::Over))
    }

    /// Ends the watching. A busy thread takes its advice back.
    fn end(&self, gives_back: bool) {
        self.gives_back.store(gives_back, Ordering::Relaxed);
        self.has_ended.store(true, Ordering::Relaxed);
        let Ok(mut place) = self.place.try_lock() else { return };
        match &*place {
            // A calm process has no advice of ours.
            Place::Calm(..) => *place = Place::Over,
            Place::Busy(thread) => thread.unpark(),
            Place::Over => {}
        }
    }

    /// Looks whether something is wrong, if it is time to. Returns when it is to be looked at next.
    fn look(self: &Arc<Watched>) -> Option<Duration> {
        let mut place = lock(&self.place);
        let Place::Calm(watcher, pace) = &mut *place else { return None };
        let at = now();
        if at < pace.next {
            return Some(pace.next);
        }
        match watcher.is_called() {
            None => {
                *place = Place::Over;
                None
            }
            Some(false) => {
                let pause = (pace.pause + CALM / 10).min(CALMEST);
                *pace = Pace { next: at + pause, pause };
                Some(pace.next)
            }
            Some(true) => {
                // The thread takes the watcher as soon as the lock, which is held here, is free. Where there can be no thread, it is tried
                // again.
                pace.next = at + CALMEST;
                let next = pace.next;
                let own = Arc::clone(self);
                spawn("fastmap-steer", move || own.serve());
                Some(next)
            }
        }
    }

    /// Serves the process in a thread of its own, until nothing is wrong any more.
    fn serve(&self) {
        let mut place = lock(&self.place);
        let taken = std::mem::replace(&mut *place, Place::Busy(std::thread::current()));
        let Place::Calm(mut watcher, _) = taken else {
            *place = taken;
            return;
        };
        drop(place);
        let is_wanted = || !self.has_ended.load(Ordering::Relaxed);
        // A library steers the process from inside.
        if self.process.has_thread("fastmap-steer") {
            let pace = Pace { next: now() + OTHERS, pause: CALMEST };
            *lock(&self.place) = if is_wanted() { Place::Calm(watcher, pace) } else { Place::Over };
            return;
        }
        let goes_on = watcher.serve(|pause| {
            if is_wanted() {
                std::thread::park_timeout(pause);
            }
            is_wanted()
        });
        if !goes_on && self.gives_back.load(Ordering::Relaxed) && self.process.is_there() {
            watcher.undo();
        }
        let next = now() + CALM;
        let mut place = lock(&self.place);
        *place = if goes_on && is_wanted() { Place::Calm(watcher, Pace { next, pause: CALM }) } else { Place::Over };
    }
}

impl Shared {
    /// Looks at the calm processes until the party ends.
    fn look(&self) {
        let mut watched = lock(&self.watched);
        while !self.has_ended.load(Ordering::Relaxed) {
            let all = watched.clone();
            drop(watched);
            let began = processor_time();
            let next = all.iter().filter_map(Watched::look).min().unwrap_or(now() + CALMEST);
            let cost = processor_time() - began;
            let pause = next.saturating_sub(now()).max(cost * SHARE).max(Duration::from_millis(1));
            watched = lock(&self.watched);
            if !self.has_ended.load(Ordering::Relaxed) {
                watched = self.changed.wait_timeout(watched, pause).unwrap_or_else(PoisonError::into_inner).0;
            }
        }
    }
}

/// Whether processes may be traced that do not descend from this one, or not any more: whose parent has ended.
pub fn may_trace_strangers() -> bool {
    yama_scope() == 0 || may_trace_all()
}

fn lock<T>(of: &Mutex<T>) -> MutexGuard<'_, T> {
    of.lock().unwrap_or_else(PoisonError::into_inner)
}

fn spawn(name: &str, body: impl FnOnce() + Send + 'static) -> Option<Thread> {
    let thread = std::thread::Builder::new().name(name.into()).stack_size(256 << 10).spawn(body).ok()?;
    Some(thread.thread().clone())
}
