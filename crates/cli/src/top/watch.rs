//! The programs that are watched, and the processes whose files the kernel serves: two looks at each, and what lies between.

use std::collections::BTreeMap;
use std::io::ErrorKind;
use std::time::Duration;

use fastmap::Stats;
use fastmap::live::{CacheSnapshot, MapSnapshot, MapStats, Objects, Program, Snapshot, programs};
use fastmap_steer::observe::WORTH;

use super::observed::Observed;
use super::processes::Processes;
use crate::failure::Failure;

/// How long a program may take to answer. One that is stopped does not.
const PATIENCE: Duration = Duration::from_millis(200);

/// Programs being watched.
pub struct Watch {
    only: Option<u32>,
    programs: BTreeMap<u32, Watched>,
    processes: Processes,
}

/// A program and the last two looks at it.
pub struct Watched {
    program: Program,
    before: Option<Snapshot>,
    now: Snapshot,
    /// It answered the last look.
    pub answers: bool,
}

impl Watch {
    /// Finds the programs, or the one, and has a first look.
    pub fn new(only: Option<u32>) -> Result<Watch, Failure> {
        let mut programs = BTreeMap::new();
        if let Some(program) = only.map(open).transpose()?.flatten() {
            programs.insert(program.pid(), Watched::new(program));
        }
        // The one that was asked for is shown however little it maps, unless it has a cache to be shown.
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

    /// Looks again: programs that have ended go, new ones come.
    pub fn look(&mut self) {
        self.programs.retain(|_, watched| watched.program.is_alive());
        for watched in self.programs.values_mut() {
            let next = watched.program.look(PATIENCE);
            watched.answers = next.is_some();
            if let Some(next) = next {
                // What was never answered is no beginning.
                let before = std::mem::replace(&mut watched.now, next);
                watched.before = (!before.taken.is_zero()).then_some(before);
            }
        }
        if self.only.is_none() {
            // Nothing found now is nothing to add.
            let _ = self.find();
        }
        // Those that ended while they were looked at.
        self.programs.retain(|_, watched| watched.answers || watched.program.is_alive());
        self.processes.look();
    }

    /// Whether there is nothing to show.
    pub fn is_empty(&self) -> bool {
        self.programs.is_empty() && self.processes().is_empty()
    }

    /// The one that was asked for.
    pub fn only(&self) -> Option<u32> {
        self.only
    }

    /// By process id.
    pub fn programs(&self) -> Vec<&Watched> {
        self.programs.values().collect()
    }

    /// Processes that have large files mapped, those that suffer most first.
    pub fn processes(&self) -> Vec<&Observed> {
        self.processes.all()
    }

    /// How many more there may be, which this user may not look at.
    pub fn hidden(&self) -> usize {
        self.processes.hidden()
    }
}

/// The program with this number; `None` if it has no FastMap cache.
fn open(pid: u32) -> Result<Option<Program>, Failure> {
    let process = || format!("process {pid}");
    match Program::open(pid) {
        Ok(found) => Ok(found),
        Err(error) if error.kind() == ErrorKind::NotFound => {
            Err(Failure::new(process(), "there is none", "see ps(1) for those that run"))
        }
        Err(error) if error.kind() == ErrorKind::PermissionDenied => {
            Err(Failure::new(process(), "you may not look at it", "be its user, or root"))
        }
        Err(error) => Err(Failure::new(process(), error, "use the fastmap of the same version")),
    }
}

impl Watched {
    /// The first look.
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

    /// Seconds between the two looks; `None` after the first.
    pub fn seconds(&self) -> Option<f64> {
        let seconds = self.now.taken.saturating_sub(self.before.as_ref()?.taken).as_secs_f64();
        (seconds > 0.0).then_some(seconds)
    }

    /// Its caches, each with what it counted since the look before.
    pub fn caches(&self) -> impl Iterator<Item = (&CacheSnapshot, Stats)> {
        self.now.caches.iter().enumerate().map(|(index, cache)| {
            let before = self.before.as_ref().and_then(|before| before.caches.get(index));
            (cache, since(cache.stats, before.map(|before| before.stats)))
        })
    }

    /// All caches as one.
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

    /// Its files, likewise.
    pub fn maps(&self) -> impl Iterator<Item = (&MapSnapshot, MapStats)> {
        let before = self.before.as_ref().map(|before| &before.maps[..]).unwrap_or_default();
        self.now.maps.iter().map(move |map| {
            let same = |one: &&MapSnapshot| one.cache == map.cache && one.path == map.path;
            let before = before.iter().find(same).map(|one| one.stats);
            (map, since(map.stats, before.or(self.before.is_some().then(MapStats::default))))
        })
    }

    /// Bytes that direct mappings flushed by cache line, and those of them since the look before.
    pub fn flushed_bytes(&self) -> (u64, u64) {
        let now = self.now.flushed_bytes;
        (now, self.before.as_ref().map_or(0, |before| now.saturating_sub(before.flushed_bytes)))
    }

    /// Bytes of objects, and those of them since the look before.
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

    /// Files that there was no room for.
    pub fn maps_left_out(&self) -> u64 {
        self.now.maps_left_out
    }
}

/// Numbers that are counted, or were.
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
