//! Watches programs with a FastMap cache, and processes whose files the kernel serves. Rates are taken between the last two looks at each.

use std::collections::BTreeMap;
use std::io::ErrorKind;
use std::time::Duration;

use fastmap::Stats;
use fastmap::live::{CacheSnapshot, MapSnapshot, MapStats, Objects, Program, Snapshot, programs};
use fastmap_steer::observe::WORTH;

use super::observed::Observed;
use super::processes::Processes;
use crate::failure::Failure;

/// The time that a program may take to answer. A program that is stopped does not answer.
const PATIENCE: Duration = Duration::from_millis(200);

/// The programs and processes that are watched.
pub struct Watch {
    only: Option<u32>,
    programs: BTreeMap<u32, Watched>,
    processes: Processes,
}

/// A program with a FastMap cache, and the last two looks at it.
pub struct Watched {
    program: Program,
    before: Option<Snapshot>,
    now: Snapshot,
    /// The program answered the last look.
    pub answers: bool,
}

impl Watch {
    /// Finds all programs, or the program `only`, and takes a first look.
    pub fn new(only: Option<u32>) -> Result<Watch, Failure> {
        let mut programs = BTreeMap::new();
        if let Some(program) = only.map(open).transpose()?.flatten() {
            programs.insert(program.pid(), Watched::new(program));
        }
        // A process that was asked for is shown however little it maps. If it has a cache, it is shown for that anyway, so the usual limit counts.
        let least = if only.is_some() && programs.is_empty() { 1 } else { WORTH };
        let mut watch = Watch { only, programs, processes: Processes::new(only, least) };
        if only.is_none() {
            watch.find()?;
        }
        watch.processes.look();
        Ok(watch)
    }

    fn find(&mut self) -> Result<(), Failure> {
        let found = programs().map_err(|error| Failure::new("/proc", error, "mount it: programs are found there"))?;
        for program in found {
            self.programs.entry(program.pid()).or_insert_with(|| Watched::new(program));
        }
        Ok(())
    }

    /// Looks again: removes programs that have ended, and adds new ones.
    pub fn look(&mut self) {
        self.programs.retain(|_, watched| watched.program.is_alive());
        for watched in self.programs.values_mut() {
            let next = watched.program.look(PATIENCE);
            watched.answers = next.is_some();
            if let Some(next) = next {
                // If the program did not answer before, there is no earlier look to compare with.
                let before = std::mem::replace(&mut watched.now, next);
                watched.before = (!before.taken.is_zero()).then_some(before);
            }
        }
        if self.only.is_none() {
            // If the search fails now, there is nothing to add.
            let _ = self.find();
        }
        // This removes programs that ended while they were looked at.
        self.programs.retain(|_, watched| watched.answers || watched.program.is_alive());
        self.processes.look();
    }

    /// Whether there is nothing to show.
    pub fn is_empty(&self) -> bool {
        self.programs.is_empty() && self.processes().is_empty()
    }

    /// The process that was asked for.
    pub fn only(&self) -> Option<u32> {
        self.only
    }

    /// The programs, in order of their process ids.
    pub fn programs(&self) -> Vec<&Watched> {
        self.programs.values().collect()
    }

    /// The processes that have large files mapped, those with the most faults that waited first.
    pub fn processes(&self) -> Vec<&Observed> {
        self.processes.all()
    }

    /// The number of processes that this user may not look at, and that could have large files mapped.
    pub fn hidden(&self) -> usize {
        self.processes.hidden()
    }
}

/// The program with this process id. `None` if it has no FastMap cache.
fn open(pid: u32) -> Result<Option<Program>, Failure> {
    let process = || format!("process {pid}");
    match Program::open(pid) {
        Ok(found) => Ok(found),
        Err(error) if error.kind() == ErrorKind::NotFound => {
            Err(Failure::new(process(), "is not running", "see ps(1) for those that are"))
        }
        Err(error) if error.kind() == ErrorKind::PermissionDenied => {
            Err(Failure::new(process(), "you may not look at it", "be its user, or root"))
        }
        Err(error) => Err(Failure::new(process(), error, "use the version of fastmap that the process uses")),
    }
}

impl Watched {
    /// Takes the first look.
    fn new(program: Program) -> Watched {
        let now = program.look(PATIENCE);
        let answers = now.is_some();
        Watched { program, before: None, now: now.unwrap_or_default(), answers }
    }

    pub fn pid(&self) -> u32 {
        self.program.pid()
    }

    pub fn name(&self) -> &str {
        self.program.name()
    }

    /// Seconds between the last two looks. `None` after the first look.
    pub fn seconds(&self) -> Option<f64> {
        let seconds = self.now.taken.saturating_sub(self.before.as_ref()?.taken).as_secs_f64();
        (seconds > 0.0).then_some(seconds)
    }

    /// The caches of the program, each with its counts since the look before.
    pub fn caches(&self) -> impl Iterator<Item = (&CacheSnapshot, Stats)> {
        self.now.caches.iter().enumerate().map(|(index, cache)| {
            let before = self.before.as_ref().and_then(|before| before.caches.get(index));
            (cache, since(cache.stats, before.map(|before| before.stats)))
        })
    }

    /// The sum of all caches, and its counts since the look before. The read size is the largest of the caches'.
    pub fn total(&self) -> (CacheSnapshot, Stats) {
        self.caches().fold(Default::default(), |(mut total, since): (CacheSnapshot, Stats), (cache, more)| {
            total.capacity_bytes += cache.capacity_bytes;
            total.writes_in_flight += cache.writes_in_flight;
            let read_size = total.stats.read_size.max(cache.stats.read_size);
            total.stats = sum(total.stats, cache.stats);
            total.stats.read_size = read_size;
            (total, sum(since, more))
        })
    }

    /// The files of the program, each with its counts since the look before.
    pub fn maps(&self) -> impl Iterator<Item = (&MapSnapshot, MapStats)> {
        let before = self.before.as_ref().map(|before| &before.maps[..]).unwrap_or_default();
        self.now.maps.iter().map(move |map| {
            let same = |one: &&MapSnapshot| one.cache == map.cache && one.path == map.path;
            let before = before.iter().find(same).map(|one| one.stats);
            (map, since(map.stats, before.or(self.before.is_some().then(MapStats::default))))
        })
    }

    /// Bytes that direct mappings flushed by cache line: in all, and since the look before.
    pub fn flushed_bytes(&self) -> (u64, u64) {
        let now = self.now.flushed_bytes;
        (now, self.before.as_ref().map_or(0, |before| now.saturating_sub(before.flushed_bytes)))
    }

    /// Bytes of objects: in all, and since the look before.
    pub fn objects(&self) -> (Objects, Objects) {
        let now = self.now.objects;
        let since = |of: fn(&Objects) -> u64| {
            self.before.as_ref().map_or(0, |before| of(&now).saturating_sub(of(&before.objects)))
        };
        let since = Objects {
            fetched_bytes: since(|of| of.fetched_bytes),
            hit_bytes: since(|of| of.hit_bytes),
            wasted_bytes: since(|of| of.wasted_bytes),
        };
        (now, since)
    }

    /// The number of files for which the page of counters has no room.
    pub fn maps_left_out(&self) -> u64 {
        self.now.maps_left_out
    }
}

/// A struct whose fields are all numbers.
pub trait Numbers: Copy + Default {
    fn map(self, other: Self, with: impl Fn(u64, u64) -> u64) -> Self;
}

impl Numbers for Stats {
    fn map(self, other: Stats, with: impl Fn(u64, u64) -> u64) -> Stats {
        Stats::from_numbers(self.numbers().zip(other.numbers()).map(|((_, one), (_, other))| with(one, other)))
    }
}

impl Numbers for MapStats {
    fn map(self, other: MapStats, with: impl Fn(u64, u64) -> u64) -> MapStats {
        MapStats::from_numbers(self.numbers().zip(other.numbers()).map(|((_, one), (_, other))| with(one, other)))
    }
}

fn since<T: Numbers>(now: T, before: Option<T>) -> T {
    before.map_or_else(T::default, |before| now.map(before, u64::saturating_sub))
}

fn sum<T: Numbers>(one: T, other: T) -> T {
    one.map(other, |one, other| one + other)
}
