//! The pool: a budget of frames shared by any number of regions, and the per-core structures behind it. Nothing here
//! acts on a page.

use crate::counters::per_map::Ended;
use crate::counters::stats::{Counters, Stats};
use crate::error::{Error, Result};
use crate::mechanism::{Mechanism, Without};
use crate::page::entry::{Entry, RegionId};
use crate::page::word::Ghost;
use crate::pool::ahead::Ahead;
use crate::pool::attachment::Attachment;
use crate::pool::clean_queues::CleanQueues;
use crate::pool::free_frames::FreeFrames;
use crate::pool::loops::{Loops, TimesAway};
use crate::pool::mailbox::{Follower, WriteQueue};
use crate::pool::read_buffers::{Buffer, ReadBuffers};
use crate::pool::replacement::Ghosts;
use crate::pool::streams::MissHistory;
use crate::pool::waiting::Waiting;
use crate::sys::lock::Lock;
use crate::sys::memory::Zeroed;
use crate::sys::sync::{AtomicIsize, AtomicUsize, Ordering, Padded};
use crate::sys::{PAGE, cgroup, cpu};
use std::io;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;

/// Pages dropped with one system call, at most; the paper's batch (section 3.3).
pub const MOST_BATCH: usize = 512;
/// Pages installed at a time ahead of a program that fills a hole.
pub const MOST_AHEAD: usize = 64;
/// Age at which a dirty page is written, unless the cache's maker says otherwise: the kernel's own
/// (`dirty_expire_centisecs`).
const DIRTY_EXPIRE: Duration = Duration::from_secs(30);
/// Smallest capacity, pages.
pub const MIN_CAPACITY: usize = 16;

/// How a pool is to be.
#[derive(Debug, Clone)]
pub struct Settings {
    /// Pages.
    pub capacity: usize,
    pub evict_batch: usize,
    /// Percentage of the capacity that may be dirty; `None`: as suits a cache that follows, or does not.
    pub high_water: Option<u8>,
    pub dirty_expire: Option<Duration>,
    pub keeper: bool,
    /// The capacity follows what the process's group leaves.
    pub follows: bool,
    pub without: Without,
}

impl Default for Settings {
    /// A quarter of the smaller of physical memory and the process's cgroup limits; the rest as the kernel's and the
    /// paper's.
    fn default() -> Self {
        static DEFAULT: OnceLock<usize> = OnceLock::new();
        Settings {
            capacity: *DEFAULT.get_or_init(|| (cgroup::memory_limit() / 4 / PAGE).max(MIN_CAPACITY)),
            evict_batch: MOST_BATCH,
            high_water: None,
            dirty_expire: Some(DIRTY_EXPIRE),
            keeper: true,
            follows: false,
            without: Without::default(),
        }
    }
}

/// Space to put a batch of evictions together, one per core, held under the core's `evicting` lock. A fault handler may
/// run on a small stack, which has no room for it.
#[derive(Debug)]
pub struct BatchSpace {
    pub entries: Zeroed<u64>,
    pub ranges: Zeroed<libc::iovec>,
}

// SAFETY: the addresses in it are only passed to the kernel, by the thread that holds the lock.
unsafe impl Send for BatchSpace {}
// SAFETY: what is shared is reached under the core's lock only.
unsafe impl Sync for BatchSpace {}

impl BatchSpace {
    /// Space for the largest batch.
    fn new() -> io::Result<Self> {
        Ok(BatchSpace { entries: Zeroed::new(MOST_BATCH)?, ranges: Zeroed::new(MOST_BATCH)? })
    }
}

/// What the clones of a [`Cache`](crate::Cache) and its regions share.
#[derive(Debug)]
pub struct Pool {
    /// Pages: the free frames issued. Changed under `resizing` only.
    capacity: AtomicUsize,
    /// The capacity it can grow to, pages.
    most: usize,
    /// Pages per eviction in a large pool.
    evict_batch: usize,
    /// Percentage of the capacity that may be dirty, if it was said.
    high_water: Option<u8>,
    pub dirty_expire: Option<Duration>,
    /// The keeper saves its regions.
    pub keeper: bool,
    /// Its capacity follows what the process's group leaves. Ends under `resizing` only.
    pub follows: AtomicBool,
    without: Without,
    /// Held by a change of the capacity.
    pub resizing: Mutex<()>,
    pub free_frames: FreeFrames,
    /// The right to have one page pinned each: so many that faults always have pages to go round.
    pub pins: FreeFrames,
    /// Pinnable frames issued. Changed under `resizing` only.
    most_pins: AtomicUsize,
    pub clean: CleanQueues,
    pub ghosts: Ghosts,
    loops: Loops,
    pub cores: Box<[Padded<Core>]>,
    buffers: ReadBuffers,
    /// Pages that are read together (`runs.rs`).
    run_buffers: ReadBuffers,
    /// Never written: all of it is the kernel's one page of zeros.
    zeros: Zeroed<[u8; PAGE]>,
    waiting: Waiting,
    /// What the writers are asked for, if they could be started.
    writes: OnceLock<Option<Arc<WriteQueue>>>,
    /// What is read ahead, if the readers could be started.
    reads: OnceLock<Option<Arc<Ahead>>>,
    /// What wakes the thread that changes its capacity, if it could be started.
    follower: OnceLock<Option<Arc<Follower>>>,
    /// Of `deferred`.
    pub deferred: Attachment,
    /// Runs that writers have started and not finished.
    pub writes_in_flight: Padded<AtomicUsize>,
    /// What its files did that are not mapped any more.
    pub ended: Ended,
}

/// Of small caches a run is this part at most.
const RUN_SHARE: usize = 64;

/// Sets of buffers for runs: as many pieces of long ones can be read at a time, or twice as many of others.
const RUN_BUFFERS: usize = 8;

/// What belongs to one core.
#[derive(Debug)]
pub struct Core {
    pub counters: Counters,
    pub misses: MissHistory,
    away: TimesAway,
    /// Dirty pages, counted where they became so and where they ceased to be: only the sum means something.
    dirty: AtomicIsize,
    /// What the pages that came back soon say about the probationary queues' share, since this core evicted last.
    pub votes: AtomicIsize,
    /// Held by the thread that evicts with this core's space for a batch.
    pub evicting: Lock,
    pub batch: BatchSpace,
}

impl Pool {
    /// The process's default pool, made when it is first asked for.
    pub fn global() -> Result<Arc<Self>> {
        static GLOBAL: OnceLock<Arc<Pool>> = OnceLock::new();
        if let Some(pool) = GLOBAL.get() {
            return Ok(pool.clone());
        }
        let pool = Pool::new(&Settings::default()).map_err(Error::no_bookkeeping)?;
        Ok(GLOBAL.get_or_init(|| Arc::new(pool)).clone())
    }

    /// A pool of so many frames.
    pub fn new(settings: &Settings) -> io::Result<Self> {
        let capacity = settings.capacity;
        let cores = if settings.without.has(Mechanism::PerCore) { 1 } else { cpu::count() };
        let core = |_| {
            Ok(Padded(Core {
                counters: Counters::default(),
                misses: MissHistory::default(),
                away: TimesAway::default(),
                dirty: AtomicIsize::new(0),
                votes: AtomicIsize::new(0),
                evicting: Lock::new(),
                batch: BatchSpace::new()?,
            }))
        };
        let most = capacity.max(cgroup::physical_memory() / PAGE);
        Ok(Pool {
            capacity: AtomicUsize::new(capacity),
            most,
            evict_batch: settings.evict_batch,
            high_water: settings.high_water,
            dirty_expire: settings.dirty_expire,
            keeper: settings.keeper,
            follows: AtomicBool::new(settings.follows),
            without: settings.without,
            resizing: Mutex::new(()),
            free_frames: FreeFrames::new(capacity, cores),
            pins: FreeFrames::new(most_pins(capacity), cores),
            most_pins: AtomicUsize::new(most_pins(capacity)),
            clean: CleanQueues::new(capacity, most, cores)?,
            ghosts: Ghosts::new(),
            loops: Loops::new(),
            cores: (0..cores).map(core).collect::<io::Result<_>>()?,
            buffers: ReadBuffers::new(cores)?,
            run_buffers: ReadBuffers::new(RUN_BUFFERS)?,
            zeros: Zeroed::new(MOST_AHEAD)?,
            waiting: Waiting::default(),
            writes: OnceLock::new(),
            reads: OnceLock::new(),
            follower: OnceLock::new(),
            deferred: Attachment::default(),
            writes_in_flight: Padded(AtomicUsize::new(0)),
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
        // Only clean pages can leave memory as fast as a program allocates it. The other is the paper's.
        let percent = self.high_water.unwrap_or(if self.follows.load(Ordering::Relaxed) { 25 } else { 75 });
        (self.capacity() * usize::from(percent) / 100).max(1)
    }

    /// Dirty pages at which it stops.
    pub fn low_water(&self) -> usize {
        self.high_water() * 2 / 3
    }

    /// Pages in memory, those being read or dropped included.
    pub fn resident_pages(&self) -> usize {
        loop {
            let capacity = self.capacity.load(Ordering::Acquire);
            let idle = self.free_frames.idle();
            // Between the two a resize may have issued or destroyed free frames.
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

    /// Issues or destroys pinnable frames until there are as many as a capacity allows, or fails with the number of
    /// pages whose pins are in the way. The caller resizes.
    pub fn fit_pins(&self, capacity: usize) -> std::result::Result<(), usize> {
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

    /// The core this thread runs on, as an index into `cores`.
    #[inline]
    pub fn here(&self) -> usize {
        let core = cpu::current();
        if core < self.cores.len() { core } else { core % self.cores.len() }
    }

    /// [`MOST_AHEAD`] pages of zeros.
    pub fn zeros(&self) -> *const u8 {
        self.zeros.as_mut_ptr().cast()
    }

    /// Gives free frames back; the pages behind them are out of memory.
    pub fn give_free_frames(&self, core: usize, count: usize) {
        self.free_frames.give(core, count);
        self.waiting.wake_waiters();
    }

    /// Queues a frame for eviction.
    pub fn enqueue_frame(&self, frame: Entry, protected_queue: bool) {
        self.clean.push(self.here(), frame, protected_queue, self.ghosts.birth());
    }

    /// Queues a clean page for eviction.
    #[inline]
    pub fn enqueue(&self, core: usize, region: RegionId, page: usize, protected_queue: bool) {
        self.clean.push(core, Entry::new(region, page), protected_queue, self.ghosts.birth());
    }

    /// Whether the protected queues give the next batch, once so many pages have left the probationary ones. What is kept is a share of what
    /// all cores have: where it lies, and where the thread runs, is chance.
    pub fn takes_protected(&self, after: usize) -> bool {
        let [probationary, protected] = self.clean.pages();
        self.ghosts.takes_protected(probationary.saturating_sub(after), protected)
    }

    /// Notes that so many pages were evicted, together.
    pub fn note_evicted(&self, pages: usize) {
        self.loops.note_full(self.takes_protected(2 * pages.max(self.batch())));
        if self.ghosts.advance(pages, self.capacity()) {
            self.loops.decide(self.cores.iter().map(|core| &core.0.away), self.capacity());
        }
    }

    /// Notes that a page was missed, and what its word remembered; whether it belongs into the protected queue.
    #[inline]
    pub fn note_missed(&self, core: usize, ghost: Option<Ghost>) -> bool {
        let young = ghost.filter(|ghost| self.ghosts.is_young(*ghost));
        if young.is_some() {
            self.cores[core].0.counters.ghost_hits.add(1);
        }
        self.kept_of_loop(core, ghost.map(|ghost| ghost.stamp), 1).unwrap_or_else(|| {
            let vote = young.map_or(0, Ghosts::vote);
            self.cores[core].0.votes.fetch_add(vote, Ordering::Relaxed);
            young.is_some()
        })
    }

    /// Notes that pages were brought together before they were missed, and when they were evicted; whether they belong into the protected
    /// queue. That they come back soon says nothing of them: a walk does.
    pub fn note_brought(&self, core: usize, gone_since: Option<u32>, pages: usize) -> bool {
        self.kept_of_loop(core, gone_since, pages).unwrap_or(false)
    }

    #[inline]
    fn kept_of_loop(&self, core: usize, gone_since: Option<u32>, pages: usize) -> Option<bool> {
        let here = &self.cores[core].0;
        let away = gone_since.map(|stamp| self.ghosts.away(stamp));
        here.away.note(away, pages);
        let kept = self.loops.keep(away, pages, &here.away)?;
        here.votes.fetch_add(Ghosts::OF_LOOP * pages as isize, Ordering::Relaxed);
        Some(kept)
    }

    /// Counts a page that became dirty, and wakes the writers at the high-water mark. The sum over the cores is taken
    /// now and then only.
    #[inline]
    pub fn count_dirty(&self, core: usize) {
        let high_water = self.high_water();
        let interval = (high_water / 8).clamp(1, 64) as isize;
        let dirty = self.cores[core].0.dirty.fetch_add(1, Ordering::Relaxed) + 1;
        if dirty % interval == 0 && self.dirty_pages() > high_water {
            self.wake_writers();
        }
    }

    /// Counts a page that is dirty again because its write failed. The writer is not woken: it would wake itself with
    /// each write that fails, and never pause before it tries again.
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

    /// Changes the capacity by `change`, for a thread that holds `resizing` and issues or destroys as many free frames.
    pub fn change_capacity(&self, change: isize) {
        // Two's complement: adding a negative number as an unsigned one subtracts.
        self.capacity.fetch_add(change as usize, Ordering::Release);
    }

    /// The capacity it can grow to, pages.
    pub fn most(&self) -> usize {
        self.most
    }

    /// Threads that wait for room.
    #[inline]
    pub fn waiting(&self) -> &Waiting {
        &self.waiting
    }

    /// Takes a read buffer, this core's if one is free; waits for one.
    #[inline]
    pub fn buffer(&self, core: usize) -> Buffer<'_> {
        match self.buffers.take(core) {
            Some(buffer) => buffer,
            None => self.waiting.wait_for_room(|| self.buffers.take(core)),
        }
    }

    /// Pages that are read together in one run, at most.
    pub fn most_run(&self) -> usize {
        1 + self.capacity() / RUN_SHARE
    }

    /// Takes neighbouring read buffers for a run, if as many are free.
    pub fn run_buffer(&self, core: usize, pages: usize) -> Option<Buffer<'_>> {
        self.run_buffers.take_run(core, pages)
    }

    /// The counters of this core.
    #[inline]
    pub fn counters_at(&self, core: usize) -> &Counters {
        &self.cores[core].0.counters
    }

    /// The queue of the readers, once `start` has started them; `None` from it: there are none, for good.
    pub fn start_reads(&self, start: impl FnOnce() -> Option<Arc<Ahead>>) {
        self.reads.get_or_init(start);
    }

    /// What is ahead of the programs, if there are readers.
    #[inline]
    pub fn ahead(&self) -> Option<&Ahead> {
        self.reads.get()?.as_deref()
    }

    /// The queue of the writers, once `start` has started them; `None` from it: there are none, for good.
    pub fn start_writes(&self, start: impl FnOnce() -> Option<Arc<WriteQueue>>) {
        self.writes.get_or_init(start);
    }

    /// What the background writers are asked for, if they could be started.
    pub fn writers(&self) -> Option<&WriteQueue> {
        self.writes.get()?.as_deref()
    }

    /// Has the capacity follow, by a thread that `start` starts, now that a file is mapped; `None` from it: it cannot be,
    /// for good.
    pub fn follow(&self, start: impl FnOnce() -> Option<Arc<Follower>>) {
        self.follower.get_or_init(start).iter().for_each(|follower| follower.wake());
    }

    /// Ends the thread that has the capacity follow, for good.
    pub fn end_following(&self) {
        self.follower.get().into_iter().flatten().for_each(|follower| follower.stop());
    }

    /// Ends its threads, for good.
    pub fn end_threads(&self) {
        self.ahead().into_iter().for_each(Ahead::stop);
        self.writers().into_iter().for_each(WriteQueue::stop);
        self.end_following();
    }

    /// Wakes the background writers.
    pub fn wake_writers(&self) {
        if let Some(writers) = self.writers() {
            writers.wake();
        }
    }

    /// What it has done and what it holds.
    pub fn stats(&self) -> Stats {
        let mut stats = Stats::default();
        for core in &self.cores {
            stats.add(&core.0.counters);
        }
        stats.resident_pages = self.resident_pages() as u64;
        stats.pinned_pages = self.pinned_pages() as u64;
        // The two are sums of different moments.
        stats.dirty_pages = (self.dirty_pages() as u64).min(stats.resident_pages);
        stats
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        self.end_threads();
    }
}

/// Pages that may be pinned in a pool of so many: all but a sixteenth, and but what a smallest pool has; in pools
/// hardly larger than that, a quarter.
fn most_pins(capacity: usize) -> usize {
    capacity.saturating_sub((capacity / 16).max(MIN_CAPACITY)).max(capacity / 4)
}
