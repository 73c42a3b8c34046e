//! Steering from outside: one thread here watches each process.

use crate::act::{Outside, Refusal};
use crate::observe::Process;
use crate::{Report, Settings, Watcher};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;

/// The processes that are watched now.
#[derive(Debug)]
pub struct Party {
    settings: Settings,
    watched: BTreeMap<Process, Watched>,
    /// The last reports of processes that are not watched any more.
    last: BTreeMap<Process, String>,
}

#[derive(Debug)]
struct Watched {
    only_loads: bool,
    /// The process cannot be advised, so it gets readers only.
    is_refused: bool,
    image: Option<(u64, u64)>,
    report: Arc<Report>,
    has_ended: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Party {
    /// No process yet.
    pub fn new(settings: Settings) -> Party {
        Party { settings, watched: BTreeMap::new(), last: BTreeMap::new() }
    }

    /// Watches these processes and no others. Returns those that cannot be advised, with the reason.
    pub fn watch(&mut self, wanted: &BTreeSet<Process>) -> Vec<(Process, Refusal)> {
        self.watched.retain(|process, watched| {
            // A process that has a watcher of its own needs readers only. One that has executed another program is watched anew.
            let stays = wanted.contains(process)
                && !watched.is_over()
                && (watched.is_refused
                    || (self.settings.only_loads || has_own_watcher(*process)) == watched.only_loads)
                && process.image() == watched.image;
            if !stays {
                watched.end();
                self.last.extend(watched.report.text().map(|line| (*process, line)));
            }
            stays
        });
        let mut refused = Vec::new();
        for process in wanted {
            if !self.watched.contains_key(process) {
                match self.begin(*process) {
                    Ok((watched, refusal)) => {
                        self.watched.insert(*process, watched);
                        refused.extend(refusal.map(|refusal| (*process, refusal)));
                    }
                    Err(refusal) => refused.push((*process, refusal)),
                }
            }
        }
        refused
    }

    fn begin(&self, process: Process) -> Result<(Watched, Option<Refusal>), Refusal> {
        let only_loads = self.settings.only_loads || has_own_watcher(process);
        let image = process.image();
        let report = Arc::new(Report::new());
        let has_ended = Arc::new(AtomicBool::new(false));
        let (hand, refusal) = match Outside::of(process.pid, only_loads) {
            Ok(hand) => (hand, None),
            Err(refusal) => (Outside::of(process.pid, true)?, Some(refusal)),
        };
        let (only_loads, is_refused) = (only_loads || refusal.is_some(), refusal.is_some());
        let settings = Settings { only_loads, ..self.settings };
        let (to_report, ends) = (Arc::clone(&report), Arc::clone(&has_ended));
        let body = move || {
            let mut watcher = Watcher::new(process.pid, hand, settings, &to_report);
            watcher.run(|pause| {
                std::thread::park_timeout(pause);
                !ends.load(Ordering::Relaxed)
            });
            if process.is_there() {
                watcher.undo();
            }
        };
        let thread = std::thread::Builder::new().name("fastmap-watch".into()).stack_size(256 << 10).spawn(body).ok();
        Ok((Watched { only_loads, is_refused, image, report, has_ended, thread }, refusal))
    }

    /// The report of each process of which anything was seen or done. A process that is not watched any more is reported once.
    pub fn reports(&mut self) -> BTreeMap<Process, String> {
        let mut lines = std::mem::take(&mut self.last);
        let told = |(process, watched): (&Process, &Watched)| Some((*process, watched.report.text()?));
        lines.extend(self.watched.iter().filter_map(told));
        lines
    }
}

impl Drop for Party {
    fn drop(&mut self) {
        self.watched.values_mut().for_each(Watched::end);
    }
}

impl Watched {
    fn is_over(&self) -> bool {
        self.thread.as_ref().is_none_or(JoinHandle::is_finished)
    }

    /// Ends the thread, which takes its advice back.
    fn end(&mut self) {
        self.has_ended.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            thread.thread().unpark();
            let _ = thread.join();
        }
    }
}

/// Whether the process has a watcher's thread already, of `libfastmap_steer.so` or of this crate.
fn has_own_watcher(process: Process) -> bool {
    process.has_thread("fastmap-steer")
}
