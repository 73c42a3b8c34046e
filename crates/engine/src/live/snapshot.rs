//! Snapshots of what a process has done and holds.

use super::objects::Objects;
use super::page;
use crate::counters::per_map::MapStats;
use crate::counters::stats::Stats;
use crate::direct::mapping;
use crate::pool::pool::Pool;
use crate::region::region::Region;
use crate::region::registry;
use crate::sys::sync::Ordering;
use crate::sys::{PAGE, fork};
use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

/// All that a process's caches and maps have done and hold.
#[derive(Debug, Clone, Default, PartialEq)]
#[non_exhaustive]
pub struct Snapshot {
    /// The process's id, as it sees it itself (in a container it is another one than outside).
    pub pid: u32,
    /// The time of the snapshot since the machine started (`CLOCK_MONOTONIC`), the same for all processes.
    pub taken: Duration,
    /// The caches that hold or have held files.
    pub caches: Vec<CacheSnapshot>,
    /// The files that are mapped or were, by cache and path.
    pub maps: Vec<MapSnapshot>,
    /// Files that are not in `maps`, because the page that other processes see has no room for more.
    pub maps_left_out: u64,
    /// Bytes that flushes of direct mappings wrote to memory by cache line.
    pub flushed_bytes: u64,
    /// Bytes of objects that were fetched and used.
    pub objects: Objects,
}

/// A cache.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct CacheSnapshot {
    /// Its capacity, bytes.
    pub capacity_bytes: u64,
    /// Writes under way now.
    pub writes_in_flight: u64,
    /// Its counters.
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
    /// Bytes of it that are mapped. Zero: it is not mapped any more, and the counters are those from when it was.
    pub mapped_bytes: u64,
    /// Whether one of its maps is mutable.
    pub writable: bool,
    /// Its counters.
    pub stats: MapStats,
}

/// Caches that have held a file, in the order of their first files.
static CACHES: Mutex<Vec<Weak<Pool>>> = Mutex::new(Vec::new());

/// Notes a cache that holds a file. From the first one on, others can see what this process does.
pub(crate) fn note(pool: &Arc<Pool>) {
    {
        let mut caches = CACHES.lock().unwrap_or_else(|poison| poison.into_inner());
        caches.retain(|one| one.strong_count() > 0);
        if !caches.iter().any(|one| std::ptr::eq(one.as_ptr(), Arc::as_ptr(pool))) {
            caches.push(Arc::downgrade(pool));
        }
    }
    offer();
}

/// Lets others see what this process does ([`programs`](super::programs)). The first mapped file does that, too, so only a process that
/// maps no file and counts objects for others has to call this. Where it cannot be (no descriptors, a seccomp filter), everything else
/// works, and other processes do not see this one.
///
/// ```
/// fastmap::live::offer();
/// assert!(fastmap::live::Program::open(std::process::id())?.is_some());
/// # Ok::<(), std::io::Error>(())
/// ```
pub fn offer() {
    page::offer();
}

/// Ends what [`offer`] began.
pub(crate) fn withdraw() {
    page::withdraw();
}

/// A snapshot of this process: every cache that is in use or whose [`Cache`](crate::Cache) is kept. Empty before the first cached file and
/// in a child made by fork(2).
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
    snapshot.flushed_bytes = mapping::written_bytes();
    snapshot.objects = Objects::now();
    let caches: Vec<_> = {
        let caches = CACHES.lock().unwrap_or_else(|poison| poison.into_inner());
        caches.iter().filter_map(Weak::upgrade).collect()
    };
    for (index, inner) in caches.into_iter().enumerate() {
        snapshot.maps.extend(maps_of(&inner, index));
        let writes_in_flight = inner.writes_in_flight.0.load(Ordering::Relaxed) as u64;
        let capacity_bytes = (inner.capacity() * PAGE) as u64;
        snapshot.caches.push(CacheSnapshot { capacity_bytes, writes_in_flight, stats: registry::stats_of(&inner) });
    }
    snapshot
}

/// The files of a cache, by path.
fn maps_of(pool: &Pool, index: usize) -> Vec<MapSnapshot> {
    let ended = pool.ended.lock();
    let row = |(path, stats): (&PathBuf, &MapStats)| {
        (path.clone(), MapSnapshot { path: path.clone(), cache: index, stats: *stats, ..MapSnapshot::default() })
    };
    let mut maps: HashMap<_, _> = ended.iter().map(row).collect();
    for region in registry::regions_of(pool) {
        let path = region.store().path().to_owned();
        let fresh = || MapSnapshot { path: path.clone(), cache: index, ..MapSnapshot::default() };
        let map = maps.entry(path.clone()).or_insert_with(fresh);
        map.mapped_bytes += mapped_bytes(&region);
        map.writable |= region.is_writable();
        map.stats.add(MapStats { read_size: region.hints().read_size(), ..MapStats::of(region.counters()) });
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
