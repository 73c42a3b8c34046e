//! The public cache: a budget of memory shared by any number of maps.

use crate::counters::stats::Stats;
use crate::error::{Error, Result};
use crate::pool::auto_capacity;
use crate::pool::pool::{self, MOST_BATCH, Pool, Settings};
use crate::region::registry;
use crate::sys::memory_look::MemoryWatch;
use crate::sys::{PAGE, cgroup};
use std::sync::Arc;
use std::time::Duration;

/// A cache of pages of mapped files, with a hard limit.
///
/// Cloning is cheap, and a clone is the same cache; it lives as long as a clone or a map of it does. Pages in memory
/// never exceed the capacity, whatever the number of maps and threads. [`Cache::resize`] changes the capacity while the
/// cache is in use.
///
/// Bookkeeping comes on top: 4 bytes for each page of each file touched, 8 bytes for each page of the largest capacity
/// it had, and the kernel's page tables (8 bytes for each page of each file touched).
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
    pub(crate) pool: Arc<Pool>,
}

/// Builder of a [`Cache`].
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
    /// Capacity as asked for, bytes, for messages.
    bytes: usize,
    settings: Settings,
}

impl Cache {
    /// Smallest capacity, bytes: 16 pages, since one instruction may touch four pages, and four threads must be able
    /// to. More threads need more. With less than four pages a thread, accesses that cross page borders evict each
    /// other's pages again and again, and progress is slow.
    pub const MIN_CAPACITY: usize = pool::MIN_CAPACITY * PAGE;

    /// Makes a cache that holds up to `capacity` bytes, rounded down to pages of 4096.
    ///
    /// # Errors
    /// [`Error::CapacityTooSmall`] below [`Cache::MIN_CAPACITY`]; [`Error::CapacityTooLarge`] above
    /// [`Cache::memory_limit`]; [`Error::Io`] when the bookkeeping (0.2 % of the capacity) cannot be mapped.
    pub fn new(capacity: usize) -> Result<Cache> {
        Cache::builder().capacity(capacity).build()
    }

    /// Makes a cache that follows the memory left to the process. It takes what the process's cgroup, or the machine,
    /// has left, less a reserve: a sixteenth of the limit and at least 64 MiB, or a quarter of a limit below 256 MiB.
    /// It shrinks at once when others need the memory, this program's own allocations included. It grows in steps while
    /// pages come back that a larger cache would have kept. [`CacheBuilder::auto`] allows other settings.
    ///
    /// A thread looks 20 times a second, 100 times when memory is short. Memory that is allocated and touched between
    /// two looks has to fit into the reserve. Memory that is mapped before it is touched is seen sooner.
    ///
    /// # Errors
    /// As [`Cache::new`].
    ///
    /// ```
    /// let cache = fastmap::Cache::auto()?;
    /// assert!(cache.capacity() < fastmap::Cache::memory_limit());
    /// # Ok::<(), fastmap::Error>(())
    /// ```
    pub fn auto() -> Result<Cache> {
        Cache::builder().auto().build()
    }

    /// A builder, for settings beside the capacity.
    ///
    /// ```
    /// let cache = fastmap::Cache::builder().capacity(1 << 20).build()?;
    /// # Ok::<(), fastmap::Error>(())
    /// ```
    pub fn builder() -> CacheBuilder {
        let settings = Settings::default();
        CacheBuilder { bytes: settings.capacity * PAGE, settings }
    }

    /// Whether something is being read ahead or prefetched. For tests, which otherwise would have to guess how long
    /// that takes.
    #[doc(hidden)]
    pub fn is_reading_ahead(&self) -> bool {
        self.pool.ahead().is_some_and(|ahead| ahead.is_reading(&self.pool))
    }

    /// The process's own cache, of [`Cache::default_capacity`] bytes. Maps use it that need the engine and name no
    /// cache ([`MapOptions::cache`](crate::MapOptions::cache)).
    ///
    /// # Errors
    /// As [`Cache::new`]. A failure is not remembered: a later call may succeed.
    ///
    /// ```
    /// let cache = fastmap::Cache::global()?;
    /// assert_eq!(cache.capacity(), fastmap::Cache::default_capacity());
    /// # Ok::<(), fastmap::Error>(())
    /// ```
    pub fn global() -> Result<Cache> {
        Ok(Cache { pool: Pool::global()? })
    }

    /// A quarter of the smaller of physical memory and the process's cgroup limits (versions 1 and 2, ancestors
    /// included), bytes.
    ///
    /// ```
    /// assert!(fastmap::Cache::default_capacity() >= fastmap::Cache::MIN_CAPACITY);
    /// ```
    pub fn default_capacity() -> usize {
        Settings::default().capacity * PAGE
    }

    /// The smaller of physical memory and the memory limits of the process's cgroup and its ancestors, bytes. A cache
    /// should be smaller.
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
        self.pool.capacity() * PAGE
    }

    /// Changes the capacity to `capacity` bytes, rounded down to pages of 4096, while other threads load, store and
    /// flush.
    ///
    /// A larger capacity holds at once. A smaller one takes as long as pages need to leave memory; dirty ones are
    /// written back first. When this returns, pages in memory are within the new capacity. [`Cache::capacity`] goes
    /// down with the pages. One call runs at a time; others wait for it. A cache made by [`Cache::auto`] keeps this
    /// capacity from then on, and no longer follows the memory that is left.
    ///
    /// # Errors
    /// [`Error::CapacityTooSmall`] below [`Cache::MIN_CAPACITY`]; [`Error::CapacityTooLarge`] above both physical
    /// memory and the capacity the cache was made with. [`Error::WriteBack`] when dirty pages that would have to leave
    /// cannot be written: the capacity is then the one that was reached ([`Cache::capacity`]), and a later call goes on
    /// from there. [`Error::PinsHold`] when more pages are pinned than the new capacity allows
    /// ([`Map::pin`](crate::Map::pin)): the capacity is then as before. [`Error::Io`] when memory for the bookkeeping
    /// cannot be had; [`Error::Missing`] in a child made by fork(2).
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
        self.pool.resize(capacity / PAGE)
    }

    /// Counts of the cache's work, and of the pages it holds.
    ///
    /// ```
    /// let stats = fastmap::Cache::new(1 << 20)?.stats();
    /// assert_eq!((stats.misses, stats.dirty_pages), (0, 0));
    /// # Ok::<(), fastmap::Error>(())
    /// ```
    pub fn stats(&self) -> Stats {
        registry::stats_of(&self.pool)
    }
}

impl CacheBuilder {
    /// Limit on pages in memory, bytes, rounded down to pages of 4096. Default: [`Cache::default_capacity`].
    ///
    /// ```
    /// assert!(fastmap::Cache::builder().capacity(100).build().is_err()); // below the minimum
    /// ```
    pub fn capacity(mut self, bytes: usize) -> Self {
        self.settings.follows = false;
        self.bytes = bytes;
        self.settings.capacity = bytes / PAGE;
        self
    }

    /// A capacity that follows the memory that is left ([`Cache::auto`]). It implies `high_water(25)`, unless
    /// [`high_water`](Self::high_water) is called: only clean pages can leave memory as fast as a program allocates it,
    /// so three quarters of the cache are to be clean.
    ///
    /// ```
    /// let cache = fastmap::Cache::builder().auto().high_water(10).build()?;
    /// # Ok::<(), fastmap::Error>(())
    /// ```
    pub fn auto(mut self) -> Self {
        let room = auto_capacity::target(&MemoryWatch::new().look(), 0, 0) as usize;
        self = self.capacity(room);
        self.settings.follows = true;
        self
    }

    /// Pages evicted with one system call when room is needed, 1 to 512 (default). Caches below 128 MiB use at most a
    /// 64th of their pages: half a batch of room is unused at any time.
    ///
    /// ```
    /// let cache = fastmap::Cache::builder().capacity(1 << 20).evict_batch(8).build()?;
    /// # Ok::<(), fastmap::Error>(())
    /// ```
    pub fn evict_batch(mut self, pages: usize) -> Self {
        self.settings.evict_batch = pages.clamp(1, MOST_BATCH);
        self
    }

    /// Percentage of the capacity that may be dirty before background write-back starts, 1 to 99 (default 75, as in the
    /// FastMap paper, section 3.3; 25 with [`auto`](Self::auto)). It stops at two thirds of that.
    ///
    /// ```
    /// let cache = fastmap::Cache::builder().capacity(1 << 20).high_water(25).build()?;
    /// # Ok::<(), fastmap::Error>(())
    /// ```
    pub fn high_water(mut self, percent: u8) -> Self {
        self.settings.high_water = Some(percent.clamp(1, 99));
        self
    }

    /// How long a page may stay dirty before it is written in the background, to within a quarter of that time. `None`:
    /// as long as there is room. Default 30 s, as the kernel's `vm.dirty_expire_centisecs`. It limits the loss that a
    /// power failure can cause to a program that never flushes. It is no promise; only
    /// [`MapMut::flush`](crate::MapMut::flush) gives one.
    ///
    /// ```
    /// use std::time::Duration;
    ///
    /// let cache = fastmap::Cache::builder().capacity(1 << 20).dirty_expire(Some(Duration::from_secs(5))).build()?;
    /// # Ok::<(), fastmap::Error>(())
    /// ```
    pub fn dirty_expire(mut self, age: Option<Duration>) -> Self {
        self.settings.dirty_expire = age;
        self
    }

    /// Whether stores to this cache's files survive the sudden end of the program (default true). The first mutable map
    /// of such a cache starts a *keeper*: a process `fastmap-keeper` that shares the program's memory and sleeps. When
    /// the program is killed, crashes, exits without unmapping or calls exec(2), the keeper writes to the files what is
    /// not there yet. It costs nothing meanwhile, and wait(2) does not see it; but tools that add up processes count
    /// the memory twice. A file that is read right after the program's end may not be complete yet. A map of it waits
    /// for the keeper.
    ///
    /// The keeper cannot help in these cases:
    ///
    /// * The power fails.
    /// * Everything that shares the memory is killed: by the OOM killer, the machine's or that of a memory cgroup, or
    ///   with PID 1 of a container.
    /// * The keeper itself is killed.
    ///
    /// Stores that were not flushed are lost then; only [`MapMut::flush`](crate::MapMut::flush) makes them last.
    /// [`risk_to_stores`](crate::requirements::risk_to_stores) says whether a cgroup's OOM killer or the end of a PID
    /// namespace can do that here.
    ///
    /// ```
    /// let scratch = fastmap::Cache::builder().capacity(1 << 20).keeper(false).build()?;
    /// # Ok::<(), fastmap::Error>(())
    /// ```
    pub fn keeper(mut self, on: bool) -> Self {
        self.settings.keeper = on;
        self
    }

    /// Leaves a mechanism out, to measure what it is worth.
    #[doc(hidden)]
    pub fn without(mut self, mechanism: crate::mechanism::Mechanism) -> Self {
        self.settings.without = self.settings.without.and(mechanism);
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
        let settings = self.settings;
        if settings.capacity < pool::MIN_CAPACITY {
            return Err(Error::CapacityTooSmall { capacity: self.bytes, minimum: Cache::MIN_CAPACITY });
        }
        let maximum = Cache::memory_limit();
        if self.bytes > maximum {
            return Err(Error::CapacityTooLarge { capacity: self.bytes, maximum });
        }
        let pool = Pool::new(&settings).map_err(Error::no_bookkeeping)?;
        Ok(Cache { pool: Arc::new(pool) })
    }
}
