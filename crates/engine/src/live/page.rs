//! The page that other processes see: a memfd named `fastmap-stats`, its layout, and the thread that fills it.
//!
//! The page is an array of 64-bit words (`asked` and `answered` share one). A reader that wants present numbers increments `asked` and
//! wakes the thread. The thread copies all counters, sets `answered` to the `asked` that it saw, and wakes the readers that wait for this.
//! `sequence` is odd while words change.

use super::objects::{self, Objects};
use super::snapshot::{CacheSnapshot, MapSnapshot, Snapshot, snapshot_of_self};
use crate::counters::per_map::MapStats;
use crate::counters::stats::Stats;
use crate::sys::engine_fd::{self, EngineFd};
use crate::sys::memfd::Shared;
use crate::sys::signal::Blocked;
use crate::sys::{futex, memfd, threads};
use std::ffi::{CStr, OsString};
use std::fs::File;
use std::io;
use std::mem::offset_of;

use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering, fence};
use std::sync::{Once, OnceLock};
use std::time::Duration;

/// Its name; as a link in /proc/PID/fd it is [`LINK`].
const NAME: &CStr = c"fastmap-stats";
/// The link in /proc of a descriptor of it.
pub const LINK: &str = "/memfd:fastmap-stats (deleted)";

/// "fastmap" and a zero.
const MAGIC: u64 = u64::from_le_bytes(*b"fastmap\0");
/// Changes with the layout.
const VERSION: u64 = 7;

const MOST_CACHES: usize = 16;
const MOST_MAPS: usize = 1024;
/// Bytes of a path that are kept, the last ones.
const PATH_BYTES: usize = 256;
const CACHE_WORDS: usize = 2 + Stats::NUMBERS;
const MAP_WORDS: usize = 4 + MapStats::NUMBERS + PATH_BYTES / 8;

/// The page.
#[repr(C)]
pub struct Layout {
    magic: AtomicU64,
    version: AtomicU64,
    /// The process that fills it. The keeper has the page's descriptor, too, and a child may have it.
    pub pid: AtomicU64,
    /// When that process started, as in its line in /proc/PID/stat.
    pub started: AtomicU64,
    asked: AtomicU32,
    answered: AtomicU32,
    sequence: AtomicU64,
    /// `CLOCK_MONOTONIC`, ns.
    taken: AtomicU64,
    caches: AtomicU64,
    maps: AtomicU64,
    maps_left_out: AtomicU64,
    flushed_bytes: AtomicU64,
    objects: [AtomicU64; objects::WORDS],
    cache_words: [[AtomicU64; CACHE_WORDS]; MOST_CACHES],
    map_words: [[AtomicU64; MAP_WORDS]; MOST_MAPS],
}

const _: () = assert!(offset_of!(Layout, cache_words) == 112);

/// The page in memory.
#[derive(Debug)]
pub struct Page(Shared);

impl std::ops::Deref for Page {
    type Target = Layout;

    fn deref(&self) -> &Layout {
        // SAFETY: mapped for as long as self, as long as a Layout, which is atomics: any bytes are valid.
        unsafe { &*self.0.start().cast() }
    }
}

impl Page {
    fn create() -> io::Result<(Page, EngineFd<File>)> {
        let _low = engine_fd::low();
        let memory = EngineFd::new(File::from(memfd::create(NAME, size_of::<Layout>())?));
        let shared = Shared::map(&memory, size_of::<Layout>())?;
        shared.keep_from_children()?;
        Ok((Page(shared), memory))
    }

    /// Maps another process's page.
    pub fn open(memory: &File) -> io::Result<Page> {
        let other = |_| io::Error::other("its page of counters is of another version of FastMap than this command");
        let page = Page(Shared::map(memory, size_of::<Layout>()).map_err(other)?);
        let (magic, version) = (page.magic.load(Ordering::Acquire), page.version.load(Ordering::Relaxed));
        if (magic, version) == (MAGIC, VERSION) { Ok(page) } else { Err(other(io::ErrorKind::InvalidData.into())) }
    }

    /// Asks for present numbers and waits for them. False: there was no answer in time.
    pub fn ask(&self, patience: Duration) -> bool {
        let wanted = self.asked.fetch_add(1, Ordering::SeqCst).wrapping_add(1);
        futex::wake_all_shared(&self.asked);
        let end = now() + patience;
        loop {
            let answered = self.answered.load(Ordering::SeqCst);
            if answered.wrapping_sub(wanted) as i32 >= 0 {
                return true;
            }
            match end.checked_sub(now()) {
                Some(left) if !left.is_zero() => futex::wait_shared(&self.answered, answered, Some(left)),
                _ => return false,
            }
        }
    }

    /// The numbers that were written last. `None`: they are being changed, and have been for long (the process was stopped or killed).
    pub fn read(&self) -> Option<Snapshot> {
        const TRIES: usize = 1000;
        for _ in 0..TRIES {
            let before = self.sequence.load(Ordering::Acquire);
            if before.is_multiple_of(2) {
                let snapshot = self.read_words();
                fence(Ordering::Acquire);
                if self.sequence.load(Ordering::Relaxed) == before {
                    return Some(snapshot);
                }
            }
            std::thread::yield_now();
        }
        None
    }

    fn read_words(&self) -> Snapshot {
        let get = |word: &AtomicU64| word.load(Ordering::Relaxed);
        let cache = |words: &[AtomicU64; CACHE_WORDS]| CacheSnapshot {
            capacity_bytes: get(&words[0]),
            writes_in_flight: get(&words[1]),
            stats: Stats::from_numbers(words[2..].iter().map(get)),
        };
        let map = |words: &[AtomicU64; MAP_WORDS]| {
            let mut path: Vec<u8> =
                words[4 + MapStats::NUMBERS..].iter().flat_map(|word| get(word).to_le_bytes()).collect();
            path.truncate(get(&words[3]) as usize);
            MapSnapshot {
                path: PathBuf::from(OsString::from_vec(path)),
                cache: get(&words[0]) as usize,
                mapped_bytes: get(&words[1]),
                writable: get(&words[2]) != 0,
                stats: MapStats::from_numbers(words[4..4 + MapStats::NUMBERS].iter().map(get)),
            }
        };
        let caches = (get(&self.caches) as usize).min(MOST_CACHES);
        let maps = (get(&self.maps) as usize).min(MOST_MAPS);
        Snapshot {
            pid: get(&self.pid) as u32,
            taken: Duration::from_nanos(get(&self.taken)),
            caches: self.cache_words[..caches].iter().map(cache).collect(),
            maps: self.map_words[..maps].iter().map(map).filter(|map| map.cache < caches).collect(),
            maps_left_out: get(&self.maps_left_out),
            flushed_bytes: get(&self.flushed_bytes),
            objects: Objects::of_words(std::array::from_fn(|at| get(&self.objects[at]))),
        }
    }

    /// Writes a snapshot into the page.
    fn fill(&self, snapshot: &Snapshot) {
        let set = |word: &AtomicU64, value: u64| word.store(value, Ordering::Relaxed);
        let sequence = self.sequence.load(Ordering::Relaxed);
        self.sequence.store(sequence + 1, Ordering::Relaxed);
        fence(Ordering::Release);
        set(&self.taken, snapshot.taken.as_nanos() as u64);
        let (caches, maps) = (snapshot.caches.len().min(MOST_CACHES), snapshot.maps.len().min(MOST_MAPS));
        set(&self.caches, caches as u64);
        set(&self.maps, maps as u64);
        set(&self.maps_left_out, (snapshot.maps.len() - maps) as u64);
        set(&self.flushed_bytes, snapshot.flushed_bytes);
        self.objects.iter().zip(snapshot.objects.words()).for_each(|(word, value)| set(word, value));
        for (words, cache) in self.cache_words.iter().zip(&snapshot.caches) {
            let numbers = cache.stats.numbers().map(|(_, number)| number);
            let values = [cache.capacity_bytes, cache.writes_in_flight].into_iter().chain(numbers);
            words.iter().zip(values).for_each(|(word, value)| set(word, value));
        }
        for (words, map) in self.map_words.iter().zip(&snapshot.maps) {
            let path = shortened(map.path.as_os_str().as_bytes());
            let head = [map.cache as u64, map.mapped_bytes, map.writable.into(), path.len() as u64];
            let numbers = map.stats.numbers().map(|(_, number)| number);
            let path_words = path.chunks(8).map(|part| {
                let mut bytes = [0; 8];
                bytes[..part.len()].copy_from_slice(part);
                u64::from_le_bytes(bytes)
            });
            words
                .iter()
                .zip(head.into_iter().chain(numbers).chain(path_words))
                .for_each(|(word, value)| set(word, value));
        }
        self.sequence.store(sequence + 2, Ordering::Release);
    }

    /// The thread's main function.
    fn serve(&self) {
        loop {
            let asked = self.asked.load(Ordering::SeqCst);
            if WITHDRAWN.load(Ordering::SeqCst) {
                return;
            }
            self.fill(&snapshot_of_self());
            self.answered.store(asked, Ordering::SeqCst);
            futex::wake_all_shared(&self.answered);
            futex::wait_shared(&self.asked, asked, None);
        }
    }
}

/// A path, or the end of one that is too long: the end tells it from others.
fn shortened(path: &[u8]) -> Vec<u8> {
    const CUT: &[u8] = "…".as_bytes();
    match path.len().checked_sub(PATH_BYTES) {
        None | Some(0) => path.to_vec(),
        Some(over) => [CUT, &path[over + CUT.len()..]].concat(),
    }
}

/// This process's page, if it has one.
static OWN: OnceLock<Page> = OnceLock::new();
/// The process has withdrawn its page.
static WITHDRAWN: AtomicBool = AtomicBool::new(false);

/// Ends the thread: from here on this process is not seen.
pub fn withdraw() {
    WITHDRAWN.store(true, Ordering::SeqCst);
    if let Some(page) = OWN.get() {
        page.pid.store(0, Ordering::SeqCst);
        page.asked.fetch_add(1, Ordering::SeqCst);
        futex::wake_all_shared(&page.asked);
    }
}

/// Makes this process's page, once. Where that cannot be (no descriptors, a seccomp filter), everything else works, and other processes do
/// not see this one.
pub fn offer() {
    static OFFERED: Once = Once::new();
    OFFERED.call_once(|| {
        if let Err(error) = start() {
            tracing::warn!(%error, "`fastmap top` will not see this process");
        }
    });
}

fn start() -> io::Result<()> {
    let (page, memory) = Page::create()?;
    page.pid.store(std::process::id().into(), Ordering::Relaxed);
    page.started.store(super::programs::start_of("self").unwrap_or_default(), Ordering::Relaxed);
    page.version.store(VERSION, Ordering::Relaxed);
    page.magic.store(MAGIC, Ordering::Release);
    // The thread inherits the mask: no signal of the program's comes to it.
    let _blocked = Blocked::all();
    let page = OWN.get_or_init(|| page);
    std::thread::Builder::new()
        .name("fastmap-stats".into())
        .stack_size(256 << 10)
        .spawn(threads::named(|| page.serve()))?;
    // Open for as long as the process lives: others find it by the descriptor.
    memory.leak();
    Ok(())
}

/// Time since the machine started.
pub fn now() -> Duration {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: fills the struct.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &mut time) };
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read() {
        let (page, memory) = Page::create().unwrap();
        assert!(Page::open(&memory.try_clone().unwrap()).is_err(), "not ready yet");
        page.version.store(VERSION, Ordering::Relaxed);
        page.magic.store(MAGIC, Ordering::Release);
        let mut snapshot = Snapshot { taken: Duration::from_millis(1500), flushed_bytes: 8192, ..Snapshot::default() };
        snapshot.objects = Objects { fetched_bytes: 3, hit_bytes: 1 << 40, wasted_bytes: 5 };
        let stats = Stats::from_numbers((0..).map(|number| number * 7));
        snapshot.caches = vec![CacheSnapshot { capacity_bytes: 1 << 20, writes_in_flight: 3, stats }; 2];
        let long = format!("/{}/end", "x".repeat(400));
        for (cache, path) in ["/plain", &long].into_iter().enumerate() {
            let stats = MapStats::from_numbers((1..).map(|number| number * 11));
            let map = MapSnapshot { path: path.into(), cache, mapped_bytes: 4096, writable: cache == 1, stats };
            snapshot.maps.push(map);
        }
        page.fill(&snapshot);
        let seen = Page::open(&memory).unwrap().read().unwrap();
        let cut = seen.maps[1].path.to_str().unwrap().to_owned();
        assert!(cut.len() == PATH_BYTES && cut.starts_with('…') && cut.ends_with("xx/end"), "{cut}");
        snapshot.maps[1].path = cut.into();
        assert_eq!(seen, snapshot);
        page.sequence.fetch_add(1, Ordering::Relaxed);
        assert_eq!(page.read(), None, "being changed");
    }

    #[test]
    fn more_maps_than_there_is_room_for_are_counted() {
        let (page, _memory) = Page::create().unwrap();
        let mut snapshot = Snapshot { caches: vec![CacheSnapshot::default()], ..Snapshot::default() };
        snapshot.maps = vec![MapSnapshot::default(); MOST_MAPS + 5];
        page.fill(&snapshot);
        let seen = page.read().unwrap();
        assert_eq!((seen.maps.len(), seen.maps_left_out), (MOST_MAPS, 5));
    }
}
