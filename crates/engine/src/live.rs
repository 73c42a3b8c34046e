//! What a program's caches and maps have done, for whoever asks: the program itself ([`snapshot_of_self`]), or another
//! process ([`programs`], [`Program`]), as `fastmap top` does.
//!
//! Counters stay where they are counted, per core. With its first cached file, or the first it flushes by cache line, a process makes a page that others can map
//! (`page.rs`) and a thread that copies the counters into it when somebody asks through that page: while nobody looks,
//! nothing is copied and the thread sleeps.
//!
//! **Hits cannot be counted.** A load or store that finds its page in memory does not trap and runs no code of the engine; the
//! kernel shows no accessed bits of such memory to user space. So there is no hit rate here. What can be known: misses (each a
//! trap, or a pin that found nothing), traps that found their page read ahead ([`Stats::ahead_chunks`]), first stores to
//! clean pages ([`Stats::upgrades`]), and misses on pages that were evicted a short while before ([`Stats::ghost_hits`]):
//! where these are many, a larger cache would have kept them.

mod page;
mod programs;

pub use programs::{Program, programs};

use crate::cache::{Cache, Inner};
use crate::credits::Padded;
use crate::direct;
use crate::region::Region;
use crate::registry;
use crate::stats::{Counter, Stats};
use crate::sync::Ordering;
use crate::sys::{PAGE, cpu, fork};
use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, Weak};
use std::time::Duration;

/// All that a process's caches and maps have done and hold.
#[derive(Debug, Clone, Default, PartialEq)]
#[non_exhaustive]
pub struct Snapshot {
    /// The process, by its own count (in a container another than outside).
    pub pid: u32,
    /// When this was so: since the machine started (`CLOCK_MONOTONIC`), the same for all processes.
    pub taken: Duration,
    /// The caches that hold or have held files.
    pub caches: Vec<CacheSnapshot>,
    /// The files that are mapped or were, by cache and path.
    pub maps: Vec<MapSnapshot>,
    /// Files beyond those in `maps`: there is room for so many in the page that others see.
    pub maps_left_out: u64,
    /// Bytes that flushes of direct mappings wrote to memory by cache line.
    pub flushed_bytes: u64,
}

/// A cache.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct CacheSnapshot {
    /// Its capacity, bytes.
    pub capacity_bytes: u64,
    /// Writes under way now.
    pub writes_in_flight: u64,
    /// What it has done and holds.
    pub stats: Stats,
}

/// A file in a cache, all its maps together.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct MapSnapshot {
    /// The file. In a snapshot of another process the beginning of a long path is left out.
    pub path: PathBuf,
    /// Which of the snapshot's caches holds it.
    pub cache: usize,
    /// Bytes of it that are mapped; zero: no more, and the counters say what was.
    pub mapped_bytes: u64,
    /// Whether one of its maps is mutable.
    pub writable: bool,
    /// What it has done and holds.
    pub stats: MapStats,
}

/// What happened to the pages of one file, as in [`Stats`].
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct MapStats {
    /// Pages in memory.
    pub resident_pages: u64,
    /// Loads, stores and pins that found their page absent.
    pub misses: u64,
    /// Of these, those on pages that had been evicted a short while ago.
    pub ghost_hits: u64,
    /// Pages read ahead that a trap mapped.
    pub ahead_used: u64,
    /// Pages read ahead and dropped untouched.
    pub ahead_wasted: u64,
    /// Pages dropped, to make room or on advice.
    pub evicted_pages: u64,
    /// Pages written back.
    pub writeback_pages: u64,
}

/// One core's counters of a region.
#[derive(Debug, Default)]
pub(crate) struct MapCounters {
    pub misses: Counter,
    pub ghost_hits: Counter,
    /// Pages that came into memory otherwise than by a miss of their own.
    pub brought: Counter,
    pub ahead_used: Counter,
    pub ahead_wasted: Counter,
    /// Pages that left memory, the region's end apart.
    pub dropped: Counter,
    pub writeback_pages: Counter,
}

impl MapCounters {
    /// A set for each core: a miss touches no other core's line.
    pub fn per_core() -> Box<[Padded<MapCounters>]> {
        (0..cpu::count()).map(|_| Padded::default()).collect()
    }
}

impl MapStats {
    fn add(&mut self, other: MapStats) {
        let sums = self.numbers().zip(other.numbers()).map(|((_, one), (_, other))| one + other);
        *self = MapStats::from_numbers(sums);
    }

    fn of(region: &Region) -> MapStats {
        let sum =
            |of: fn(&MapCounters) -> &Counter| region.counters().iter().map(|core| of(&core.0).get()).sum::<u64>();
        // First: a page that comes and goes in between would be one too many.
        let dropped = sum(|of| &of.dropped);
        let misses = sum(|of| &of.misses);
        MapStats {
            resident_pages: (misses + sum(|of| &of.brought)).saturating_sub(dropped),
            misses,
            ghost_hits: sum(|of| &of.ghost_hits),
            ahead_used: sum(|of| &of.ahead_used),
            ahead_wasted: sum(|of| &of.ahead_wasted),
            evicted_pages: dropped,
            writeback_pages: sum(|of| &of.writeback_pages),
        }
    }
}

/// Gives a struct of numbers an order and names, the same in the shared page, in JSON and in documents.
macro_rules! numbers {
    ($type:ident: $($field:ident),+ $(,)?) => {
        impl $type {
            pub(crate) const NUMBERS: usize = [$(stringify!($field)),+].len();

            /// Each number with its name, for tables and JSON.
            ///
            /// ```
            /// let mut numbers = fastmap::Stats::default().numbers();
            /// assert!(numbers.any(|(name, number)| name == "misses" && number == 0));
            /// ```
            pub fn numbers(&self) -> impl Iterator<Item = (&'static str, u64)> + use<> {
                let $type { $($field),+ } = *self;
                [$((stringify!($field), $field)),+].into_iter()
            }

            /// The struct of such numbers, in the same order.
            ///
            /// ```
            /// let stats = fastmap::Stats::from_numbers([7, 5].into_iter());
            /// assert_eq!((stats.misses, stats.ghost_hits, stats.born_zero), (7, 5, 0));
            /// ```
            pub fn from_numbers(mut numbers: impl Iterator<Item = u64>) -> Self {
                let mut next = || numbers.next().unwrap_or_default();
                $type { $($field: next()),+ }
            }
        }
    };
}

numbers!(MapStats: resident_pages, misses, ghost_hits, ahead_used, ahead_wasted, evicted_pages, writeback_pages);
numbers!(
    Stats: misses, ghost_hits, born_zero, guessed_stores, wrong_guesses, upgrades, waits, streams, ahead_pages, ahead_chunks,
    ahead_used, ahead_wasted, async_loads, kept_stores, partial_lines, prefetched_pages, evicted_pages, eviction_batches, writeback_pages, writeback_runs,
    writeback_depth, writeback_errors, syncs, resident_pages, dirty_pages, pinned_pages,
);

/// What files did that are not mapped any more.
#[derive(Debug, Default)]
pub(crate) struct Ended(Mutex<HashMap<PathBuf, MapStats>>);

impl Ended {
    /// Files that are told apart; what others did is under one name.
    const MOST: usize = 1024;
    const OTHERS: &str = "(other files)";

    /// Held while a region ends, so that a snapshot finds it or what it did, and never both.
    pub fn lock(&self) -> MutexGuard<'_, HashMap<PathBuf, MapStats>> {
        self.0.lock().unwrap_or_else(|poison| poison.into_inner())
    }

    /// Keeps what a region did, whose pages are gone.
    pub fn keep(ended: &mut HashMap<PathBuf, MapStats>, region: &Region) {
        let path = region.store().path();
        let path = if ended.len() < Self::MOST || ended.contains_key(path) { path } else { Path::new(Self::OTHERS) };
        let gone = MapStats { resident_pages: 0, ..MapStats::of(region) };
        ended.entry(path.to_owned()).or_default().add(gone);
    }
}

/// Caches that have held a file, in the order of their first.
static CACHES: Mutex<Vec<Weak<Inner>>> = Mutex::new(Vec::new());

/// Notes a cache that holds a file; with the first, others can see what this process does.
pub(crate) fn note(cache: &Arc<Inner>) {
    {
        let mut caches = CACHES.lock().unwrap_or_else(|poison| poison.into_inner());
        caches.retain(|one| one.strong_count() > 0);
        if !caches.iter().any(|one| std::ptr::eq(one.as_ptr(), Arc::as_ptr(cache))) {
            caches.push(Arc::downgrade(cache));
        }
    }
    offer();
}

/// Lets others see what this process does.
pub(crate) fn offer() {
    page::offer();
}

/// Ends what [`offer`] began.
pub(crate) fn withdraw() {
    page::withdraw();
}

/// What this process has done and holds: every cache that is in use or whose [`Cache`] is kept. Empty before the first cached
/// file and in a child made by fork(2).
///
/// ```
/// # fn main() -> std::io::Result<()> {
/// use fastmap::{Cache, MapOptions, live};
///
/// # let file = tempfile::NamedTempFile::new()?;
/// # file.as_file().set_len(1 << 20)?;
/// # let path = file.path().canonicalize()?;
/// let cache = Cache::new(256 << 10)?;
/// // SAFETY: nobody else changes the file.
/// let map = unsafe { MapOptions::new().cache(&cache).map(file.as_file())? };
/// assert_eq!(map[4096], 0);
/// let now = live::snapshot_of_self();
/// let one = now.maps.iter().find(|one| one.path == path);
/// assert!(map.engine() == fastmap::Engine::Kernel || one.is_some_and(|one| one.stats.misses == 1));
/// # Ok(())
/// # }
/// ```
pub fn snapshot_of_self() -> Snapshot {
    let mut snapshot = Snapshot { pid: std::process::id(), taken: page::now(), ..Snapshot::default() };
    if fork::is_child() {
        return snapshot;
    }
    snapshot.flushed_bytes = direct::written_bytes();
    let caches: Vec<_> = {
        let caches = CACHES.lock().unwrap_or_else(|poison| poison.into_inner());
        caches.iter().filter_map(Weak::upgrade).collect()
    };
    for (index, inner) in caches.into_iter().enumerate() {
        snapshot.maps.extend(maps_of(&inner, index));
        let writes_in_flight = inner.writes_in_flight.load(Ordering::Relaxed) as u64;
        let capacity_bytes = (inner.capacity() * PAGE) as u64;
        snapshot.caches.push(CacheSnapshot { capacity_bytes, writes_in_flight, stats: Cache { inner }.stats() });
    }
    snapshot
}

/// The files of a cache, by path.
fn maps_of(cache: &Inner, index: usize) -> Vec<MapSnapshot> {
    let ended = cache.ended.lock();
    let row = |(path, stats): (&PathBuf, &MapStats)| {
        (path.clone(), MapSnapshot { path: path.clone(), cache: index, stats: *stats, ..MapSnapshot::default() })
    };
    let mut maps: HashMap<_, _> = ended.iter().map(row).collect();
    for region in registry::all().filter(|region| std::ptr::eq(&**region.cache(), cache)) {
        let path = region.store().path().to_owned();
        let fresh = || MapSnapshot { path: path.clone(), cache: index, ..MapSnapshot::default() };
        let map = maps.entry(path.clone()).or_insert_with(fresh);
        map.mapped_bytes += mapped_bytes(&region);
        map.writable |= region.is_writable();
        map.stats.add(MapStats::of(&region));
    }
    drop(ended);
    let mut maps: Vec<_> = maps.into_values().collect();
    maps.sort_by(|one, other| one.path.cmp(&other.path));
    maps
}

/// How much of a file its maps cover, up to the file's end.
fn mapped_bytes(region: &Region) -> u64 {
    let end = (region.store().size() as usize).div_ceil(PAGE);
    (region.extents().covered(0..end) * PAGE) as u64
}
