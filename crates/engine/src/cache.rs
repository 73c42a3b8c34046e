//! The cache: a budget of pages shared by any number of maps, and the per-core structures behind it.

use crate::ahead::Ahead;
use crate::clean::CleanQueues;
use crate::credits::{Credits, Padded};
use crate::error::{Error, Result};
use crate::evict;
use crate::files;
use crate::ghosts::Ghosts;
use crate::live::Ended;
use crate::lock::Lock;
use crate::mechanism::{Mechanism, Without};
use crate::merger::Merger;
use crate::page::Ghost;
use crate::readers::Readers;
use crate::region::{Entry, Region};
use crate::stats::{Counters, Stats};
use crate::streams::Traces;
use crate::sync::{AtomicIsize, AtomicU32, AtomicU64, AtomicUsize, Ordering, fence};
use crate::sys::memory::Zeroed;
use crate::sys::signal::Blocked;
use crate::sys::userfaultfd::Userfaultfd;
use crate::sys::{PAGE, cgroup, cpu, fork, futex};
use crate::writeback::{self, Help};
use crate::writers::{self, Writers};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;

/// Pages dropped with one system call, at most; the paper's batch (section 3.3).
pub const MOST_BATCH: usize = 512;
/// Pages read at a time by threads of one core. A thread asleep in a read keeps its buffer, so there are more than cores.
const BUFFERS: usize = 64;
/// Pages installed at a time ahead of a program that fills a hole.
pub const MOST_AHEAD: usize = 64;
/// Age at which a dirty page is written, unless the cache's maker says otherwise: the kernel's own (`dirty_expire_centisecs`).
const DIRTY_EXPIRE: Duration = Duration::from_secs(30);

/// A cache of pages of mapped files, with a hard limit.
///
/// Cloning is cheap and shares the cache; it lives as long as a clone or a map of it does. Pages in memory never exceed
/// the capacity, whatever the number of maps and threads; bookkeeping comes on top: 4 bytes a page of each file touched
/// and 8 bytes a page of the largest capacity it had, beside the kernel's page tables (8 bytes a page of each file
/// touched). [`Cache::resize`] changes the capacity while the cache is in use.
///
/// ```
/// # fn main() -> fastmap::Result<()> {
/// use fastmap::Cache;
///
/// let cache = Cache::new(64 << 20)?; // 64 MiB
/// assert_eq!(cache.capacity(), 64 << 20);
/// assert_eq!(cache.stats().resident_pages, 0);
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone)]
pub struct Cache {
    pub(crate) inner: Arc<Inner>,
}

/// Settings of a [`Cache`] to be made.
///
/// ```
/// # fn main() -> fastmap::Result<()> {
/// use fastmap::Cache;
///
/// let cache = Cache::builder().capacity(1 << 20).evict_batch(64).high_water(50).build()?;
/// assert_eq!(cache.capacity(), 1 << 20);
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone)]
pub struct CacheBuilder {
    capacity: Option<usize>,
    evict_batch: usize,
    high_water: u8,
    dirty_expire: Option<Duration>,
    keeper: bool,
    without: Without,
}

impl Cache {
    /// Smallest capacity, bytes: one instruction may touch four pages, and four threads must be able to. More threads need
    /// more: with less than four pages a thread, accesses that cross page borders take each other's pages away again and
    /// again, and get on slowly.
    pub const MIN_CAPACITY: usize = 16 * PAGE;

    /// Makes a cache that holds up to `capacity` bytes, rounded down to pages of 4096.
    ///
    /// # Errors
    /// [`Error::CapacityTooSmall`] below [`Cache::MIN_CAPACITY`]; [`Error::Io`] when the bookkeeping (0.2 % of the
    /// capacity) cannot be mapped.
    pub fn new(capacity: usize) -> Result<Cache> {
        Cache::builder().capacity(capacity).build()
    }

    /// A builder, for settings beside the capacity.
    ///
    /// ```
    /// let cache = fastmap::Cache::builder().capacity(1 << 20).build()?;
    /// # Ok::<(), fastmap::Error>(())
    /// ```
    pub fn builder() -> CacheBuilder {
        CacheBuilder {
            capacity: None,
            evict_batch: MOST_BATCH,
            high_water: 75,
            dirty_expire: Some(DIRTY_EXPIRE),
            keeper: true,
            without: Without::default(),
        }
    }

    /// The process's own cache, of [`Cache::default_capacity`] bytes: the one that maps use when none is given.
    ///
    /// # Errors
    /// As [`Cache::new`]; not remembered, so a later call may succeed.
    ///
    /// ```
    /// let cache = fastmap::Cache::global()?;
    /// assert_eq!(cache.capacity(), fastmap::Cache::default_capacity());
    /// # Ok::<(), fastmap::Error>(())
    /// ```
    pub fn global() -> Result<Cache> {
        static GLOBAL: OnceLock<Cache> = OnceLock::new();
        if let Some(cache) = GLOBAL.get() {
            return Ok(cache.clone());
        }
        let cache = Cache::builder().build()?;
        Ok(GLOBAL.get_or_init(|| cache).clone())
    }

    /// A quarter of the smaller of physical memory and the process's cgroup limits (versions 1 and 2, ancestors
    /// included), bytes.
    ///
    /// ```
    /// assert!(fastmap::Cache::default_capacity() >= fastmap::Cache::MIN_CAPACITY);
    /// ```
    pub fn default_capacity() -> usize {
        static DEFAULT: OnceLock<usize> = OnceLock::new();
        *DEFAULT.get_or_init(|| (cgroup::memory_limit() / 4 / PAGE * PAGE).max(Cache::MIN_CAPACITY))
    }

    /// The smaller of physical memory and the memory limits of the process's cgroup and its ancestors, bytes: a cache should
    /// be smaller.
    ///
    /// ```
    /// assert!(fastmap::Cache::default_capacity() <= fastmap::Cache::memory_limit());
    /// ```
    pub fn memory_limit() -> usize {
        cgroup::memory_limit()
    }

    /// The limit on pages in memory, bytes.
    ///
    /// ```
    /// assert_eq!(fastmap::Cache::new(1_000_000)?.capacity(), 999_424); // whole pages
    /// # Ok::<(), fastmap::Error>(())
    /// ```
    pub fn capacity(&self) -> usize {
        self.inner.capacity() * PAGE
    }

    /// Changes the capacity to `capacity` bytes, rounded down to pages of 4096, while other threads load, store and flush.
    ///
    /// More is there at once. Less takes as long as pages need to leave memory, dirty ones to be written back first: when
    /// this returns, pages in memory are within the new capacity. [`Cache::capacity`] goes down with the pages. One call
    /// runs at a time, others wait for it.
    ///
    /// # Errors
    /// [`Error::CapacityTooSmall`] below [`Cache::MIN_CAPACITY`]; [`Error::CapacityTooLarge`] above physical memory and
    /// above what the cache was made with; [`Error::WriteBack`] when dirty pages that would have to leave cannot be
    /// written: the capacity is then what was reached ([`Cache::capacity`]), and a later call goes on from there.
    /// [`Error::PinsHold`] when more pages are pinned than the new capacity allows ([`Map::pin`](crate::Map::pin)): the
    /// capacity is then as before.
    /// [`Error::Io`] when memory for the bookkeeping cannot be had; [`Error::Missing`] in a child made by fork(2).
    ///
    /// ```
    /// let cache = fastmap::Cache::new(1 << 20)?;
    /// cache.resize(4 << 20)?;
    /// assert_eq!(cache.capacity(), 4 << 20);
    /// cache.resize(fastmap::Cache::MIN_CAPACITY)?;
    /// assert!(cache.stats().resident_pages <= 16);
    /// # Ok::<(), fastmap::Error>(())
    /// ```
    pub fn resize(&self, capacity: usize) -> Result<()> {
        if capacity < Cache::MIN_CAPACITY {
            return Err(Error::CapacityTooSmall { capacity, minimum: Cache::MIN_CAPACITY });
        }
        self.inner.resize(capacity / PAGE)
    }

    /// What the cache has done and what it holds.
    ///
    /// ```
    /// let stats = fastmap::Cache::new(1 << 20)?.stats();
    /// assert_eq!((stats.misses, stats.dirty_pages), (0, 0));
    /// # Ok::<(), fastmap::Error>(())
    /// ```
    pub fn stats(&self) -> Stats {
        let mut stats = Stats::default();
        for core in &self.inner.cores {
            stats.add(&core.0.counters);
        }
        stats.resident_pages = self.inner.resident_pages() as u64;
        stats.pinned_pages = self.inner.pinned_pages() as u64;
        // The two are sums of different moments.
        stats.dirty_pages = (self.inner.dirty_pages() as u64).min(stats.resident_pages);
        stats
    }
}

impl CacheBuilder {
    /// Limit on pages in memory, bytes, rounded down to pages of 4096. Default: [`Cache::default_capacity`].
    ///
    /// ```
    /// assert!(fastmap::Cache::builder().capacity(100).build().is_err()); // below the minimum
    /// ```
    pub fn capacity(mut self, bytes: usize) -> Self {
        self.capacity = Some(bytes);
        self
    }

    /// Pages dropped with one system call when room is needed, 1 to 512 (default). Caches below 128 MiB use smaller batches,
    /// a 64th of their pages: half a batch of room is unused at any time.
    ///
    /// ```
    /// let cache = fastmap::Cache::builder().capacity(1 << 20).evict_batch(8).build()?;
    /// # Ok::<(), fastmap::Error>(())
    /// ```
    pub fn evict_batch(mut self, pages: usize) -> Self {
        self.evict_batch = pages.clamp(1, MOST_BATCH);
        self
    }

    /// Percentage of the capacity that may be dirty before background write-back starts, 1 to 99 (default 75, as in the
    /// paper, section 3.3). It stops at two thirds of that.
    ///
    /// ```
    /// let cache = fastmap::Cache::builder().capacity(1 << 20).high_water(25).build()?;
    /// # Ok::<(), fastmap::Error>(())
    /// ```
    pub fn high_water(mut self, percent: u8) -> Self {
        self.high_water = percent.clamp(1, 99);
        self
    }

    /// How long a page may stay dirty before it is written in the background, to within a quarter of it; `None`: as long
    /// as there is room. Default 30 s, as the kernel's `vm.dirty_expire_centisecs`. It bounds what a power failure can cost a
    /// program that never flushes; it is no promise, which only [`MapMut::flush`](crate::MapMut::flush) gives.
    ///
    /// ```
    /// use std::time::Duration;
    ///
    /// let cache = fastmap::Cache::builder().capacity(1 << 20).dirty_expire(Some(Duration::from_secs(5))).build()?;
    /// # Ok::<(), fastmap::Error>(())
    /// ```
    pub fn dirty_expire(mut self, age: Option<Duration>) -> Self {
        self.dirty_expire = age;
        self
    }

    /// Whether stores to this cache's files survive the sudden end of the program (default true). With the first mutable
    /// map of such a cache the process starts a *keeper*: a process `fastmap-keeper` that shares its memory, sleeps, and
    /// when the program is killed, crashes, exits without unmapping or calls exec(2), writes to the files what is not
    /// there yet. It costs nothing meanwhile and wait(2) does not see it, though tools that add up processes count the
    /// memory twice. A file read right after the program's end may not be complete yet: a map of it waits for the keeper.
    ///
    /// The keeper cannot help when the power fails, when everything that shares the memory is killed (out of memory, a
    /// whole cgroup, PID 1 of a container), or when it is killed itself: there, what counts is
    /// [`MapMut::flush`](crate::MapMut::flush).
    ///
    /// ```
    /// let scratch = fastmap::Cache::builder().capacity(1 << 20).keeper(false).build()?;
    /// # Ok::<(), fastmap::Error>(())
    /// ```
    pub fn keeper(mut self, on: bool) -> Self {
        self.keeper = on;
        self
    }

    /// Leaves a mechanism out, to measure what it is worth.
    #[doc(hidden)]
    pub fn without(mut self, mechanism: Mechanism) -> Self {
        self.without = self.without.and(mechanism);
        self
    }

    /// Makes the cache.
    ///
    /// # Errors
    /// As [`Cache::new`].
    ///
    /// ```
    /// let cache = fastmap::Cache::builder().build()?; // default capacity
    /// # Ok::<(), fastmap::Error>(())
    /// ```
    pub fn build(self) -> Result<Cache> {
        let bytes = self.capacity.unwrap_or_else(Cache::default_capacity);
        if bytes < Cache::MIN_CAPACITY {
            return Err(Error::CapacityTooSmall { capacity: bytes, minimum: Cache::MIN_CAPACITY });
        }
        let inner = Inner::new(bytes / PAGE, &self).map_err(no_bookkeeping)?;
        Ok(Cache { inner: Arc::new(inner) })
    }
}

fn no_bookkeeping(source: io::Error) -> Error {
    Error::Io { path: PathBuf::from("cache"), operation: "map memory for its bookkeeping", source }
}

/// Pages that may be pinned in a cache of so many: all but a sixteenth, and but what a smallest cache has; in caches hardly
/// larger than that, a quarter.
fn most_pins(capacity: usize) -> usize {
    capacity.saturating_sub((capacity / 16).max(Cache::MIN_CAPACITY / PAGE)).max(capacity / 4)
}

/// What the clones of a [`Cache`] and its regions share.
#[derive(Debug)]
pub struct Inner {
    /// Pages: the credits issued. Changed under `resizing` only.
    capacity: AtomicUsize,
    /// The capacity it can grow to, pages.
    most: usize,
    /// Pages per eviction in a large cache.
    evict_batch: usize,
    /// Percentage of the capacity that may be dirty.
    high_water: u8,
    dirty_expire: Option<Duration>,
    /// The keeper saves its regions.
    pub keeper: bool,
    without: Without,
    resizing: Mutex<()>,
    pub credits: Credits,
    /// The right to have one page pinned each: so many that faults always have pages to go round.
    pub pins: Credits,
    /// Pin credits issued. Changed under `resizing` only.
    most_pins: AtomicUsize,
    pub clean: CleanQueues,
    pub ghosts: Ghosts,
    pub cores: Box<[Padded<Core>]>,
    buffers: Zeroed<[u8; PAGE]>,
    /// Never written: all of it is the kernel's one page of zeros.
    zeros: Zeroed<[u8; PAGE]>,
    /// Raised whenever a credit or a clean page appears while a thread starves.
    progress: AtomicU32,
    starving: AtomicU32,
    writers: OnceLock<Option<Writers>>,
    readers: OnceLock<Option<Readers>>,
    merger: OnceLock<Option<Merger>>,
    /// Runs that writers have started and not finished.
    pub writes_in_flight: AtomicUsize,
    /// What its files did that are not mapped any more.
    pub ended: Ended,
}

/// What came of looking for room for pages read ahead.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Room {
    /// Nothing: only writing dirty pages back would make some.
    None,
    /// Credits.
    Credits,
    /// Credits, and a frame's memory in the slot.
    Frame,
}

/// What belongs to one core.
#[derive(Debug)]
pub struct Core {
    pub counters: Counters,
    pub traces: Traces,
    /// Dirty pages, counted where they became so and where they ceased to be: only the sum means something.
    dirty: AtomicIsize,
    /// What the pages that came back soon say about the short queues' share, since this core evicted last.
    pub votes: AtomicIsize,
    /// One bit per read buffer in use.
    buffers_used: AtomicU64,
    /// Held by the thread that evicts with this core's scratch space.
    pub evicting: Lock,
    pub scratch: evict::Scratch,
}

/// A read buffer, a page; free again when dropped.
#[derive(Debug)]
pub struct Buffer<'a> {
    /// Start of the page.
    pub at: *mut u8,
    used: &'a AtomicU64,
    bit: u64,
}

impl Drop for Buffer<'_> {
    fn drop(&mut self) {
        self.used.fetch_and(!self.bit, Ordering::Release);
    }
}

impl Inner {
    fn new(capacity: usize, settings: &CacheBuilder) -> io::Result<Self> {
        let cores = if settings.without.has(Mechanism::PerCore) { 1 } else { cpu::count() };
        let core = |_| {
            Ok(Padded(Core {
                counters: Counters::default(),
                traces: Traces::default(),
                dirty: AtomicIsize::new(0),
                votes: AtomicIsize::new(0),
                buffers_used: AtomicU64::new(0),
                evicting: Lock::new(),
                scratch: evict::Scratch::new()?,
            }))
        };
        let most = capacity.max(cgroup::physical_memory() / PAGE);
        Ok(Inner {
            capacity: AtomicUsize::new(capacity),
            most,
            evict_batch: settings.evict_batch,
            high_water: settings.high_water,
            dirty_expire: settings.dirty_expire,
            keeper: settings.keeper,
            without: settings.without,
            resizing: Mutex::new(()),
            credits: Credits::new(capacity, cores),
            pins: Credits::new(most_pins(capacity), cores),
            most_pins: AtomicUsize::new(most_pins(capacity)),
            clean: CleanQueues::new(capacity, most, cores)?,
            ghosts: Ghosts::new(),
            cores: (0..cores).map(core).collect::<io::Result<_>>()?,
            buffers: Zeroed::new(cores * BUFFERS)?,
            zeros: Zeroed::new(MOST_AHEAD)?,
            progress: AtomicU32::new(0),
            starving: AtomicU32::new(0),
            writers: OnceLock::new(),
            readers: OnceLock::new(),
            merger: OnceLock::new(),
            writes_in_flight: AtomicUsize::new(0),
            ended: Ended::default(),
        })
    }

    /// Pages that may be in memory.
    pub fn capacity(&self) -> usize {
        self.capacity.load(Ordering::Relaxed)
    }

    /// Whether it has a mechanism.
    #[inline]
    pub fn has(&self, mechanism: Mechanism) -> bool {
        !self.without.has(mechanism)
    }

    /// Pages per eviction.
    pub fn batch(&self) -> usize {
        self.evict_batch.min(self.capacity() / 64).max(1)
    }

    /// Pages that are filled ahead of a program at a time, at most.
    pub fn most_ahead(&self) -> usize {
        self.evict_batch.min(self.capacity() / 16).max(1)
    }

    /// Dirty pages at which background write-back starts.
    pub fn high_water(&self) -> usize {
        (self.capacity() * usize::from(self.high_water) / 100).max(1)
    }

    /// Dirty pages at which it stops.
    pub fn low_water(&self) -> usize {
        self.high_water() * 2 / 3
    }

    /// Pages in memory, those being read or dropped included.
    fn resident_pages(&self) -> usize {
        loop {
            let capacity = self.capacity.load(Ordering::Acquire);
            let idle = self.credits.idle();
            // Between the two a resize may have issued or destroyed credits.
            if self.capacity.load(Ordering::Acquire) == capacity {
                return capacity.saturating_sub(idle);
            }
        }
    }

    /// Pages pinned now, with those about to be.
    pub fn pinned_pages(&self) -> usize {
        loop {
            let most = self.most_pins();
            let idle = self.pins.idle();
            if self.most_pins() == most {
                return most.saturating_sub(idle);
            }
        }
    }

    /// Pages that may be pinned.
    pub fn most_pins(&self) -> usize {
        self.most_pins.load(Ordering::Acquire)
    }

    /// Has as many pin credits issued as a capacity allows, or fails with the number of pages whose pins are in the way. The
    /// caller resizes.
    fn fit_pins(&self, capacity: usize) -> std::result::Result<(), usize> {
        let (before, after) = (self.most_pins(), most_pins(capacity));
        if after >= before {
            self.most_pins.store(after, Ordering::Release);
            self.pins.issue(after - before);
            return Ok(());
        }
        let withdrawn = self.pins.withdraw(before - after);
        if withdrawn < before - after {
            self.pins.issue(withdrawn);
            return Err(before - withdrawn);
        }
        self.most_pins.store(after, Ordering::Release);
        Ok(())
    }

    /// See [`Cache::resize`].
    fn resize(&self, capacity: usize) -> Result<()> {
        if fork::is_child() {
            // Dropping pages by address would reach into the parent.
            return Err(files::in_a_child(Path::new("cache")));
        }
        if capacity > self.most {
            return Err(Error::CapacityTooLarge { capacity: capacity * PAGE, maximum: self.most * PAGE });
        }
        let _resizing = self.resizing.lock().unwrap_or_else(|poison| poison.into_inner());
        let before = self.capacity();
        if capacity > before {
            self.clean.make_room(capacity).map_err(no_bookkeeping)?;
            // Before the credits: what they will hold never seems to be more than the capacity.
            self.capacity.store(capacity, Ordering::Release);
            self.credits.issue(capacity - before);
            self.note_progress();
        }
        // Before any page leaves: those that stay pinned must fit.
        self.fit_pins(capacity)
            .map_err(|pinned| Error::PinsHold { capacity: capacity * PAGE, pinned: pinned * PAGE })?;
        while self.capacity() > capacity {
            let excess = self.capacity() - capacity;
            match self.collect_credits(excess) {
                Ok(collected) => drop(self.capacity.fetch_sub(collected, Ordering::Release)),
                // A flush says which file it is, or saves what another try could not.
                Err(_) => writers::write_out_all(self).inspect_err(|_| {
                    // As many pins as fit what was reached; more fit than did.
                    let _ = self.fit_pins(self.capacity());
                })?,
            }
        }
        // The marks of the writer have moved.
        self.wake_writers();
        Ok(())
    }

    /// Takes 1 to `most` credits, to be destroyed, as `find_credit` takes one: what is idle, else by evicting a batch, else
    /// by writing dirty pages back.
    fn collect_credits(&self, most: usize) -> std::result::Result<usize, i32> {
        let _blocked = Blocked::all();
        let core = self.here();
        self.make_room(|_| {
            let idle = self.credits.withdraw(most);
            if idle > 0 {
                return Some(idle);
            }
            let freed = match evict::evict_batch(self, core, &mut None) {
                0 => self.reclaim_staging(),
                freed => freed,
            };
            if freed > most {
                self.release_credits(core, freed - most);
            }
            (freed > 0).then_some(freed.min(most))
        })
    }

    /// The core this thread runs on, as an index into `cores`.
    #[inline]
    pub fn here(&self) -> usize {
        let core = cpu::current();
        if core < self.cores.len() { core } else { core % self.cores.len() }
    }

    /// Takes a credit: from this core's share, else another's, else by evicting, else by writing dirty pages back, else
    /// by waiting for whoever holds them all. Fails with an error number when memory is full of pages that cannot be
    /// written.
    #[inline]
    pub fn take_credit(&self, core: usize) -> std::result::Result<(), i32> {
        if self.credits.take(core) { Ok(()) } else { self.find_credit(core) }
    }

    /// Takes a credit of this core's share, for a page that nobody waits for.
    #[inline]
    pub fn take_spare_credit(&self, core: usize) -> bool {
        self.credits.take(core)
    }

    /// [`MOST_AHEAD`] pages of zeros.
    pub fn zeros(&self) -> *const u8 {
        self.zeros.as_mut_ptr().cast()
    }

    #[cold]
    fn find_credit(&self, core: usize) -> std::result::Result<(), i32> {
        self.make_room(|failures| {
            if self.credits.take(core) || self.credits.steal(core, core + failures + 1) {
                return Some(());
            }
            let reclaim = || {
                let freed = self.reclaim_staging();
                if freed > 1 {
                    self.release_credits(core, freed - 1);
                }
                freed > 0
            };
            let found = self.ahead().is_some_and(Ahead::is_quiet) && reclaim() || evict::evict(self, core) || reclaim();
            found.then_some(())
        })
    }

    /// Gives up staging memory for credits, which are the caller's.
    fn reclaim_staging(&self) -> usize {
        self.ahead().map_or(0, Ahead::reclaim)
    }

    /// Takes credits for reading ahead, without waiting: idle ones, else by evicting. With an empty frame, that one gets the
    /// memory of the first frame that is evicted, and the credits are those of its pages.
    pub fn take_ahead(&self, core: usize, credits: usize, frame: evict::Spare<'_>) -> Room {
        let mut spare = frame;
        let mut have = self.credits.withdraw(credits);
        while have < credits {
            let freed = evict::evict_batch(self, core, &mut spare);
            if freed == 0 {
                break;
            }
            have += freed;
        }
        let room = match (have >= credits, frame.is_some() && spare.is_none()) {
            (true, true) => Room::Frame,
            (true, false) => Room::Credits,
            (false, false) => Room::None,
            // The frame's credits are there at least.
            (false, true) => unreachable!("an evicted frame is as many credits as a frame needs"),
        };
        let left = if room == Room::None { have } else { have - credits };
        if left > 0 {
            self.release_credits(core, left);
        }
        room
    }

    /// Repeats `attempt`, which is told how many writes failed in a row, writing dirty pages back in between, until it
    /// finds room. Signals are blocked.
    fn make_room<T>(&self, attempt: impl Fn(usize) -> Option<T>) -> std::result::Result<T, i32> {
        /// Failed writes in a row before it is given up: with a pause after every second one, a second.
        const PATIENCE: usize = 40;
        let mut failures = 0;
        self.starve(|| {
            loop {
                if let Some(found) = attempt(failures) {
                    return Some(Ok(found));
                }
                match writeback::help(self, self.here()) {
                    Help::Wrote => failures = 0,
                    Help::Nothing => return None,
                    Help::Failed(error) if failures == PATIENCE => return Some(Err(error)),
                    Help::Failed(_) => {
                        failures += 1;
                        return None;
                    }
                }
            }
        })
    }

    /// Takes a read buffer, this core's if one is free.
    #[inline]
    pub fn buffer(&self, core: usize) -> Buffer<'_> {
        match self.buffer_of(core) {
            Some(buffer) => buffer,
            None => self.starve(|| (0..self.cores.len()).find_map(|core| self.buffer_of(core))),
        }
    }

    #[inline]
    fn buffer_of(&self, core: usize) -> Option<Buffer<'_>> {
        let used = &self.cores[core].0.buffers_used;
        let lowest_free = |used: u64| (used != u64::MAX).then(|| used | (used + 1));
        let before = used.fetch_update(Ordering::Acquire, Ordering::Relaxed, lowest_free).ok()?;
        let number = before.trailing_ones() as usize;
        // SAFETY: below `cores * BUFFERS`; the bit makes it this thread's.
        let at = unsafe { self.buffers.as_mut_ptr().add(core * BUFFERS + number).cast() };
        Some(Buffer { at, used, bit: 1 << number })
    }

    /// Repeats `attempt` until it gives something, asleep between tries. Whoever frees a credit, a clean page or a buffer
    /// calls `note_progress`; a sleeper that announced itself before its last try cannot miss it.
    fn starve<T>(&self, mut attempt: impl FnMut() -> Option<T>) -> T {
        /// A bound on the sleep, for what makes no progress of its own accord: a full disk that somebody clears.
        const NAP: Duration = Duration::from_millis(50);
        loop {
            if let Some(found) = attempt() {
                return found;
            }
            self.starving.fetch_add(1, Ordering::SeqCst);
            let before = self.progress.load(Ordering::SeqCst);
            let found = attempt();
            if found.is_none() {
                futex::wait(&self.progress, before, Some(NAP));
            }
            self.starving.fetch_sub(1, Ordering::SeqCst);
            if let Some(found) = found {
                return found;
            }
        }
    }

    /// Tells starving threads that something was freed. The fence pairs with `starve`: either this thread sees it
    /// announced, or its last try sees what was freed.
    #[inline]
    pub fn note_progress(&self) {
        fence(Ordering::SeqCst);
        if self.starving.load(Ordering::Relaxed) > 0 {
            self.progress.fetch_add(1, Ordering::SeqCst);
            futex::wake_all(&self.progress);
        }
    }

    /// Gives credits back; the pages behind them are out of memory.
    pub fn release_credits(&self, core: usize, credits: usize) {
        self.credits.give(core, credits);
        self.note_progress();
    }

    /// Makes a frame known to the evictors.
    pub fn enqueue_frame(&self, region: &Region, first: usize) {
        self.requeue_frame(Entry::of_frame(region.slot(), first));
    }

    /// Makes a frame that could not go known to them again.
    pub fn requeue_frame(&self, frame: Entry) {
        self.clean.push(self.here(), frame, false, self.ghosts.birth());
    }

    /// Starts the readers, once.
    pub fn start_readers(self: &Arc<Self>, userfaultfd: &'static Userfaultfd) {
        self.readers.get_or_init(|| Readers::start(Arc::downgrade(self), userfaultfd));
    }

    /// What is ahead of the programs, if there are readers.
    #[inline]
    pub fn ahead(&self) -> Option<&Ahead> {
        self.readers.get()?.as_ref().map(Readers::ahead)
    }

    /// Starts the merger, once.
    pub fn start_merger(self: &Arc<Self>) {
        self.merger.get_or_init(|| Merger::start(Arc::downgrade(self)));
    }

    /// Who reads behind stores, if that was asked for and is possible.
    #[inline]
    pub fn merger(&self) -> Option<&Merger> {
        self.merger.get()?.as_ref()
    }

    /// Makes a clean page known to the evictors.
    #[inline]
    pub fn enqueue(&self, core: usize, region: &Region, page: usize, long: bool) {
        self.clean.push(core, Entry::new(region.slot(), page), long, self.ghosts.birth());
    }

    /// Notes that a page that was evicted is back; whether it belongs into the long queue.
    #[inline]
    pub fn note_return(&self, core: usize, ghost: Ghost) -> bool {
        let young = self.ghosts.is_young(ghost);
        if young {
            let core = &self.cores[core].0;
            core.counters.ghost_hits.add(1);
            core.votes.fetch_add(Ghosts::vote(ghost), Ordering::Relaxed);
        }
        young
    }

    /// Counts a page that became dirty, and wakes the writers at the high-water mark. The sum over the cores is taken now
    /// and then only.
    #[inline]
    pub fn count_dirty(&self, core: usize) {
        let high_water = self.high_water();
        let interval = (high_water / 8).clamp(1, 64) as isize;
        let dirty = self.cores[core].0.dirty.fetch_add(1, Ordering::Relaxed) + 1;
        if dirty % interval == 0 && self.dirty_pages() > high_water {
            self.wake_writers();
        }
    }

    /// Counts a page that is dirty again because its write failed. The writer is not woken: it would wake itself with each
    /// write that fails, and never pause before it tries again.
    pub fn recount_dirty(&self, core: usize) {
        self.cores[core].0.dirty.fetch_add(1, Ordering::Relaxed);
    }

    /// Counts pages that ceased to be dirty.
    pub fn discount_dirty(&self, core: usize, pages: usize) {
        self.cores[core].0.dirty.fetch_sub(pages as isize, Ordering::Relaxed);
    }

    /// Dirty pages now.
    pub fn dirty_pages(&self) -> usize {
        self.cores.iter().map(|core| core.0.dirty.load(Ordering::Relaxed)).sum::<isize>().max(0) as usize
    }

    /// Starts the background writers, once.
    pub fn start_writers(self: &Arc<Self>) {
        self.writers.get_or_init(|| Writers::start(Arc::downgrade(self), self.dirty_expire));
    }

    /// The background writers, if they could be started.
    pub fn writers(&self) -> Option<&Writers> {
        self.writers.get()?.as_ref()
    }

    /// Has its threads end, for good: no file is mapped any more, and none will be.
    pub fn end_threads(&self) {
        self.readers.get().iter().for_each(|readers| readers.iter().for_each(Readers::stop));
        self.writers().into_iter().for_each(Writers::stop);
        self.merger().into_iter().for_each(Merger::stop);
    }

    /// Gives the background writers a look at the cache.
    pub fn wake_writers(&self) {
        if let Some(writers) = self.writers() {
            writers.wake();
        }
    }
}
