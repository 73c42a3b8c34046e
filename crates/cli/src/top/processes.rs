//! Finds the processes that have large files mapped, FastMap's or not, and which process steers them.

use std::collections::{BTreeMap, BTreeSet};
use std::io::ErrorKind;
use std::time::Duration;

use fastmap_steer::observe::{Glance, Process, glances};

use super::observed::{Observed, Steered};

/// The pause before each short look. Short looks tell the order of touches.
const SHORT: Duration = Duration::from_millis(8);
/// Processes that mapped little are checked again every this many looks.
const SELDOM: u32 = 10;

/// The processes that are shown, and those that are passed over.
pub struct Processes {
    only: Option<u32>,
    least: u64,
    shown: BTreeMap<Process, Observed>,
    /// Processes that map less, or may not be looked at.
    small: BTreeMap<Process, Small>,
    looks: u32,
}

#[derive(Clone, Copy)]
struct Small {
    virtual_bytes: u64,
    /// This user may not look at the process.
    is_hidden: bool,
}

impl Processes {
    /// Processes that map `least` bytes of data files or more; of these, only process `only`, if given. This takes no look yet.
    pub fn new(only: Option<u32>, least: u64) -> Processes {
        Processes { only, least, shown: BTreeMap::new(), small: BTreeMap::new(), looks: 0 }
    }

    /// Looks at all processes: removes those that have ended, and adds new ones. Sleeps for [`SHORT`] twice if any process is at work.
    pub fn look(&mut self) {
        let all = glances();
        let is_anew = self.looks.is_multiple_of(SELDOM);
        let steered = steered_by(&all);
        self.find(&all, &steered, is_anew);
        self.tell_steered(&steered, is_anew);
        self.shown.retain(|_, one| one.look());
        for look in 1..3 {
            if self.shown.values().any(Observed::is_at_work) {
                std::thread::sleep(SHORT);
                self.shown.values_mut().filter(|one| one.is_at_work()).for_each(|one| one.look_shortly(look));
            }
        }
        self.shown.values_mut().for_each(Observed::judge);
        self.looks += 1;
    }

    /// Updates the processes that are shown. Those that steer others are not: they map files to read ahead. A process that was passed over is checked again if the size of its address space has changed. With
    /// `is_anew`, all are checked again: a process may map more at the same size.
    fn find(&mut self, all: &[Glance], steered: &BTreeMap<u32, u32>, is_anew: bool) {
        let ours: BTreeSet<u32> = steered.values().copied().chain([std::process::id()]).collect();
        let is_wanted =
            |one: &&Glance| !ours.contains(&one.process.pid) && self.only.is_none_or(|only| one.process.pid == only);
        let found: Vec<&Glance> = all.iter().filter(is_wanted).collect();
        let there: BTreeSet<Process> = found.iter().map(|one| one.process).collect();
        self.shown.retain(|process, _| there.contains(process));
        self.small.retain(|process, _| there.contains(process));
        for one in found {
            let is_known = self.small.get(&one.process).is_some_and(|known| known.virtual_bytes == one.virtual_bytes);
            if one.virtual_bytes < self.least || is_known && !is_anew || self.shown.contains_key(&one.process) {
                continue;
            }
            match Observed::new(one.process, self.least) {
                Some(new) => {
                    self.small.remove(&one.process);
                    self.shown.insert(one.process, new);
                }
                None => {
                    let small = Small { virtual_bytes: one.virtual_bytes, is_hidden: is_hidden(one.process.pid) };
                    self.small.insert(one.process, small);
                }
            }
        }
        self.shown.retain(|process, one| {
            let is_large = one.list(self.least);
            if !is_large {
                self.small.insert(*process, Small { virtual_bytes: 0, is_hidden: false });
            }
            is_large
        });
    }

    fn tell_steered(&mut self, by: &BTreeMap<u32, u32>, is_anew: bool) {
        for (process, one) in &mut self.shown {
            one.steered = match by.get(&process.pid) {
                Some(pid) => Some(Steered::By(*pid)),
                // Looking for the thread is expensive: it reads the names of all threads.
                None if is_anew || one.is_new() => process.has_thread("fastmap-steer").then_some(Steered::Thread),
                None => one.steered.filter(|steered| *steered == Steered::Thread),
            };
        }
    }

    /// The processes that are shown, those with the most faults that waited first.
    pub fn all(&self) -> Vec<&Observed> {
        let mut all: Vec<&Observed> = self.shown.values().collect();
        let suffers = |one: &Observed| one.rates().map_or((0.0, 0.0), |rates| (rates.waited_faults, rates.read_bytes));
        all.sort_by(|one, other| {
            let by = suffers(other).partial_cmp(&suffers(one)).unwrap_or(std::cmp::Ordering::Equal);
            by.then(other.mapped_bytes().cmp(&one.mapped_bytes()))
        });
        all
    }

    /// The number of processes that this user may not look at, and whose address space is large enough for `least` bytes.
    pub fn hidden(&self) -> usize {
        self.small.values().filter(|small| small.is_hidden).count()
    }
}

/// Whether this user may not read the mappings of a process.
pub fn is_hidden(pid: u32) -> bool {
    std::fs::File::open(format!("/proc/{pid}/maps")).is_err_and(|error| error.kind() == ErrorKind::PermissionDenied)
}

/// The processes that are steered from outside, each with the process that steers it: `fastmap run` or `fastmap attach`, or `fastmap-beside` for
/// what the program has left behind. The descriptors that a steering process holds show this.
fn steered_by(all: &[Glance]) -> BTreeMap<u32, u32> {
    let ours = all.iter().filter(|one| one.name == "fastmap" || one.name == "fastmap-beside");
    let steer = ours.filter(|one| one.process.has_thread("fastmap-watch"));
    steer.flat_map(|one| held_by(one.process.pid).into_iter().map(|held| (held, one.process.pid))).collect()
}

/// The processes of which process `pid` has a pidfd or a pagemap open.
fn held_by(pid: u32) -> Vec<u32> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(format!("/proc/{pid}/fd")).into_iter().flatten().flatten() {
        let Ok(link) = std::fs::read_link(entry.path()) else { continue };
        let link = link.to_string_lossy();
        if let Some(held) = link.strip_prefix("/proc/").and_then(|link| link.strip_suffix("/pagemap")) {
            found.extend(held.parse::<u32>().ok());
        } else if link.contains("pidfd") {
            let info = format!("/proc/{pid}/fdinfo/{}", entry.file_name().to_string_lossy());
            let text = std::fs::read_to_string(info).unwrap_or_default();
            found.extend(text.lines().filter_map(|line| line.strip_prefix("Pid:")?.trim().parse::<u32>().ok()));
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_process_is_not_looked_at_and_one_that_maps_little_is_passed_over() {
        let mut processes = Processes::new(Some(std::process::id()), 0);
        processes.look();
        assert!(processes.all().is_empty() && processes.hidden() == 0);
        assert!(Observed::new(Process::of(std::process::id()).unwrap(), u64::MAX).is_none());
    }
}
