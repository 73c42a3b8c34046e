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

/// The settings of a pool.
#[derive(Debug, Clone)]
pub struct Settings {
    /// Pages.
    pub capacity: usize,
    pub evict_batch: usize,
    /// Percentage of the capacity that may be dirty; `None`: 25 if the cache `follows`, else 75.
    pub high_water: Option<u8>,
    pub dirty_expire: Option<Duration>,
    pub keeper: bool,
    /// The capacity follows what the process's group leaves.
    pub follows: bool,
    pub without: Without,
}

impl Default for Settings {
    /// The capacity is a quarter of the smaller of physical memory and the process's cgroup limits; the rest is as in the kernel and in the
    /// paper.
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

/// The state that the clones of a [`Cache`](crate::Cache) and its regions share.
#[derive(Debug)]
pub struct Pool {
    /// Pages: the free frames issued. Changed under `resizing` only.
    capacity: AtomicUsize,
    /// The capacity it can grow to, pages.
    most: usize,
    /// Pages per eviction in a large pool.
    evict_batch: usize,
    /// Percentage of the capacity that may be dirty, if the settings say it.
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
    /// Pinnable frames: each is the right to have one page pinned. They are fewer than the free frames, so that faults always find pages to
    /// evict.
    pub pins: FreeFrames,
    /// Pinnable frames issued. Changed under `resizing` only.
    most_pins: AtomicUsize,
    pub clean: CleanQueues,
    pub ghosts: Ghosts,
    loops: Loops,
    pub cores: Box<[Padded<Core>]>,
    buffers: ReadBuffers,
    /// Buffers for pages that are read together (`runs.rs`).
    run_buffers: ReadBuffers,
    /// Never written: all of it is the kernel's one page of zeros.
    zeros: Zeroed<[u8; PAGE]>,
    waiting: Waiting,
    /// The queue of the writers, if they could be started.
    writes: OnceLock<Option<Arc<WriteQueue>>>,
    /// The readers and what they read ahead, if they could be started.
    reads: OnceLock<Option<Arc<Ahead>>>,
    /// Wakes the thread that changes the capacity, if it could be started.
    follower: OnceLock<Option<Arc<Follower>>>,
    /// The state of the room `deferred`.
    pub deferred: Attachment,
    /// Writes, each of a row of neighbouring pages, that have begun and not ended.
    pub writes_in_flight: Padded<AtomicUsize>,
    /// Counters of the files that are not mapped any more.
    pub ended: Ended,
}

/// A run has at most this part of the capacity.
const RUN_SHARE: usize = 64;

/// Sets of 64 buffers for runs. A set has room for one piece of a long run, or for two other runs.
const RUN_BUFFERS: usize = 8;

/// The state of one core.
#[derive(Debug)]
pub struct Core {
    pub counters: Counters,
    pub misses: MissHistory,
    away: TimesAway,
    /// Dirty pages: a page is added on the core where it becomes dirty and subtracted on the core where it ceases to be. Only the sum over
    /// the cores means something.
    dirty: AtomicIsize,
    /// Votes on the probationary queues' share, by pages that came back soon, since this core last evicted.
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

    /// A pool with these settings.
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
        // A quarter where the capacity follows: only clean pages can leave memory as fast as a program allocates it. 75 is the paper's.
        let percent = self.high_water.unwrap_or(if self.follows.load(Ordering::Relaxed) { 25 } else { 75 });
        (self.capacity() * usize::from(percent) / 100).max(1)
    }

    /// Dirty pages at which background write-back stops.
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

    /// Issues or destroys pinnable frames until there are as many as a capacity allows. If too many pages are pinned it fails with their
    /// number, and nothing has changed. The caller holds `resizing`.
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
    pub fn enqueue(&self, core: usize, region: RegionId, page: usize, returns: u32) {
        let entry = Entry::new(region, page).with_turns(Ghosts::turns(returns));
        self.clean.push(core, entry, returns > 0, self.ghosts.birth());
    }

    /// Whether the protected queues give the next batch, once `after` pages have left the probationary ones. The queues of all cores count
    /// together: on which core a page is queued, and on which a thread runs, is chance.
    pub fn takes_protected(&self, after: usize) -> bool {
        let [probationary, protected] = self.clean.pages();
        self.ghosts.takes_protected(probationary.saturating_sub(after), protected)
    }

    /// Notes that so many pages were evicted together.
    pub fn note_evicted(&self, pages: usize) {
        self.loops.note_full(self.takes_protected(2 * pages.max(self.batch())));
        if self.ghosts.advance(pages, self.capacity()) {
            self.loops.decide(self.cores.iter().map(|core| &core.0.away), self.capacity());
        }
    }

    /// Notes that a page was missed, and what its word remembered; whether it goes to the protected queue.
    #[inline]
    pub fn note_missed(&self, core: usize, ghost: Option<Ghost>) -> bool {
        let soon = self.note_came_back(core, ghost);
        self.note_brought(core, ghost.map(|ghost| ghost.stamp), 1).unwrap_or(soon)
    }

    /// Notes what a page's word remembered; whether the page comes back soon, and so goes to the protected queue.
    #[inline]
    pub fn note_came_back(&self, core: usize, ghost: Option<Ghost>) -> bool {
        let Some(young) = ghost.filter(|ghost| self.ghosts.is_young(*ghost)) else { return false };
        self.cores[core].0.counters.ghost_hits.add(1);
        self.cores[core].0.votes.fetch_add(Ghosts::vote(young), Ordering::Relaxed);
        true
    }

    /// Notes that pages come in together, and when they were evicted; whether they go to the protected queue, if that is for a loop to decide.
    #[inline]
    pub fn note_brought(&self, core: usize, gone_since: Option<u32>, pages: usize) -> Option<bool> {
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

    /// Starts the readers with `start`, the first time only. If it returns `None` there are none, for good.
    pub fn start_reads(&self, start: impl FnOnce() -> Option<Arc<Ahead>>) {
        self.reads.get_or_init(start);
    }

    /// The readers and what they read ahead, if they could be started.
    #[inline]
    pub fn ahead(&self) -> Option<&Ahead> {
        self.reads.get()?.as_deref()
    }

    /// Starts the writers with `start`, the first time only. If it returns `None` there are none, for good.
    pub fn start_writes(&self, start: impl FnOnce() -> Option<Arc<WriteQueue>>) {
        self.writes.get_or_init(start);
    }

    /// The queue of the background writers, if they could be started.
    pub fn writers(&self) -> Option<&WriteQueue> {
        self.writes.get()?.as_deref()
    }

    /// Wakes the thread with which the capacity follows, now that a file is mapped. `start` starts it, the first time only. If it returns
    /// `None` the capacity stays as it is, for good.
    pub fn follow(&self, start: impl FnOnce() -> Option<Arc<Follower>>) {
        self.follower.get_or_init(start).iter().for_each(|follower| follower.wake());
    }

    /// Ends the thread with which the capacity follows, for good.
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

    /// Counts of what the pool has done and of what it holds.
    pub fn stats(&self) -> Stats {
        let mut stats = Stats::default();
        for core in &self.cores {
            stats.add(&core.0.counters);
        }
        stats.resident_pages = self.resident_pages() as u64;
        stats.pinned_pages = self.pinned_pages() as u64;
        // The numbers are sums of different moments.
        stats.dirty_pages = (self.dirty_pages() as u64).min(stats.resident_pages);
        stats
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        self.end_threads();
    }
}

/// Pages that may be pinned in a pool of `capacity` pages: all but a sixteenth, or all but [`MIN_CAPACITY`] where that is more than a
/// sixteenth; but at least a quarter.
fn most_pins(capacity: usize) -> usize {
    capacity.saturating_sub((capacity / 16).max(MIN_CAPACITY)).max(capacity / 4)
}
