//! The fill thread of a cache: a thread that reads the pages which were stored to before they were read, many at a
//! time, and puts the stores and the file's bytes together (`protocol.rs`).
//!
//! It waits for its ring, its bell, and threads that lift a page's protection. It needs no room: each page has its free frame. If the program
//! dies, the keeper finds the pages that the thread has out of memory in its slots (`store_buffers.rs`). A slot says that it holds a page before
//! the page leaves memory. It no longer says so once the page is back, before any thread may write the page to the file.

use crate::deferred::protocol::{self, DeferredStores};
use crate::deferred::store_buffers::StoreBuffers;
use crate::page::claims::{Loading, PageAccess};
use crate::page::entry::{Entry, RegionId};
use crate::pool::pool::Pool;
use crate::region::region::Region;
use crate::region::registry::InUse;
use crate::region::{install, registry, report};
use crate::store::ReadEnd;
use crate::sys::signal::Blocked;
use crate::sys::sync::{AtomicUsize, Ordering};
use crate::sys::uring::{Bell, DEPTH, Ring};
use crate::sys::{PAGE, threads};
use std::io;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

/// Pause after which reads that failed are tried again.
const AGAIN: Duration = Duration::from_millis(200);
/// The most Unfilled pages that are out of everybody's reach together.
const MOST_MERGED: usize = 32;

/// The fill thread, for the cache that it belongs to.
#[derive(Debug)]
pub struct FillThread(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    buffers: StoreBuffers,
    bell: Bell,
    /// The thread waits, or is about to, and wants the bell rung.
    asleep: AtomicBool,
    stop: AtomicBool,
    /// Pages asked for that the thread has not begun to read.
    asked: AtomicUsize,
    /// Pages that are Unfilled or Buffered, or about to be.
    behind: AtomicUsize,
}

/// A page that is being read.
struct Flight {
    region: InUse<'static>,
    page: usize,
    /// Its bytes go here.
    slot: usize,
    kept: bool,
}

/// The thread's own state.
struct Worker {
    shared: Arc<Shared>,
    ring: Option<Ring>,
    flights: Vec<Option<Flight>>,
    in_flight: usize,
    /// Flights that have ended, and whether the page was read.
    read: Vec<(usize, bool)>,
    /// To be read again, and when.
    failed: Vec<(RegionId, usize)>,
    again: Instant,
}

/// Starts the thread of a pool, once.
pub fn start(pool: &Arc<Pool>) {
    pool.deferred.set_once(|| FillThread::start(Arc::downgrade(pool)));
}

/// Ends the thread of a pool, for good.
pub fn stop(pool: &Pool) {
    FillThread::of(pool).into_iter().for_each(FillThread::stop);
}

impl FillThread {
    /// The fill thread of a pool, if it was asked for and is possible.
    #[inline]
    pub fn of(pool: &Pool) -> Option<&FillThread> {
        pool.deferred.get()
    }

    /// Starts the thread. Where that is not possible every store waits for its read.
    fn start(pool: Weak<Pool>) -> Option<Self> {
        let failed = |error: &io::Error| tracing::warn!(%error, "stores to absent pages wait for reads in this cache");
        Ring::try_out(Ring::open_for_this_thread).inspect_err(failed).ok()?;
        let shared = Arc::new(Shared {
            buffers: StoreBuffers::new().inspect_err(failed).ok()?,
            bell: Bell::default(),
            asleep: AtomicBool::new(false),
            stop: AtomicBool::new(false),
            asked: AtomicUsize::new(0),
            behind: AtomicUsize::new(0),
        });
        let fill_thread = FillThread(shared.clone());
        let body = move || {
            Worker {
                shared,
                ring: Ring::open_for_this_thread().ok(),
                flights: (0..DEPTH).map(|_| None).collect(),
                in_flight: 0,
                read: Vec::with_capacity(DEPTH),
                failed: Vec::new(),
                again: Instant::now(),
            }
            .run(&pool);
        };
        std::thread::Builder::new()
            .name("fastmap-merge".into())
            .spawn(threads::named(body))
            .inspect_err(failed)
            .ok()?;
        Some(fill_thread)
    }

    /// The slots for buffered stores, and the fill thread's own.
    pub fn buffers(&self) -> &StoreBuffers {
        &self.0.buffers
    }

    /// Takes the right to have one page more Unfilled or Buffered. False: such pages fill half of the cache. The rest is for loads, should reads
    /// take long or fail.
    pub fn take_place(&self, pool: &Pool) -> bool {
        let most = pool.capacity() / 2;
        let more = |behind: usize| (behind < most).then_some(behind + 1);
        self.0.behind.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more).is_ok()
    }

    /// Gives the right back.
    pub fn give_place(&self) {
        self.0.behind.fetch_sub(1, Ordering::Relaxed);
    }

    /// Makes the thread look for one page more. Called by fault handlers. SeqCst pairs with `rest`: either this sees it asleep, or it sees that
    /// there is something to do.
    pub fn call(&self) {
        self.0.asked.fetch_add(1, Ordering::SeqCst);
        self.0.wake();
    }

    /// Ends the thread, for good.
    fn stop(&self) {
        self.0.stop.store(true, Ordering::SeqCst);
        self.0.wake();
    }
}

impl Drop for FillThread {
    fn drop(&mut self) {
        self.stop();
    }
}

impl Shared {
    fn wake(&self) {
        if self.asleep.swap(false, Ordering::SeqCst) {
            self.bell.ring();
        }
    }
}

impl Worker {
    /// The thread's life.
    fn run(mut self, pool: &Weak<Pool>) {
        let _blocked = Blocked::all();
        let mut held: Option<Arc<Pool>> = None;
        loop {
            if let Some(pool) = held.take().or_else(|| pool.upgrade()) {
                self.begin_reads(&pool);
                self.finish_reads();
                self.merge(&pool);
                // The cache may go while nothing of it is on its way.
                held = (self.in_flight > 0).then_some(pool);
            }
            if held.is_none() {
                if self.shared.stop.load(Ordering::SeqCst) {
                    return;
                }
                self.rest();
            }
        }
    }

    /// Sleeps until there is something to do.
    fn rest(&self) {
        let shared = &*self.shared;
        let rung = shared.bell.rung();
        shared.asleep.store(true, Ordering::SeqCst);
        let now = Instant::now();
        let is_due = !self.failed.is_empty() && self.again <= now;
        if shared.asked.load(Ordering::SeqCst) == 0 && !shared.stop.load(Ordering::SeqCst) && !is_due {
            let pause = (!self.failed.is_empty()).then(|| self.again.saturating_duration_since(now));
            shared.bell.wait(rung, pause.map(|pause| pause.max(Duration::from_millis(1))));
        }
        shared.asleep.store(false, Ordering::SeqCst);
    }

    /// Begins to read what is asked for, as much as the ring takes.
    fn begin_reads(&mut self, pool: &Pool) {
        let now = Instant::now();
        if !self.failed.is_empty() && self.again <= now {
            self.again = now + AGAIN;
            let room = DEPTH - self.in_flight - self.read.len();
            let rest = self.failed.split_off(room.min(self.failed.len()));
            for (slot, page) in std::mem::replace(&mut self.failed, rest) {
                // The region is not gone: it goes once its pages are in the file.
                let region = registry::enter(slot).filter(|region| page < region.span() / PAGE);
                if let Some(region) = region.filter(|region| region.word(page).look().has_failed()) {
                    self.begin_read(pool, region, page);
                }
            }
        }
        if self.shared.asked.load(Ordering::SeqCst) == 0 {
            return;
        }
        for region in registry::regions_of(pool) {
            let mut at = 0;
            while self.in_flight + self.read.len() < DEPTH
                && let Some(page) = protocol::of(&region).and_then(|behind| behind.take_asked(at))
            {
                self.shared.asked.fetch_sub(1, Ordering::SeqCst);
                self.begin_read(pool, region.clone(), page);
                at = page + 1;
            }
        }
    }

    fn begin_read(&mut self, pool: &Pool, region: InUse<'static>, page: usize) {
        let Some(number) = self.flights.iter().position(Option::is_none) else {
            return self.failed.push((region.id(), page));
        };
        let kept = region.word(page).look().buffered_in();
        let slot = kept.unwrap_or(StoreBuffers::own(number));
        let to = self.shared.buffers.page(slot);
        let store = region.store();
        // SAFETY: the slot's page is this thread's.
        let is_cached =
            || unsafe { store.read_cached(page, 1, to, &pool.counters_at(pool.here()).page_cache_hits) } == Some(PAGE);
        match store.direct_reads().zip(self.ring.as_mut()) {
            Some(_) if is_cached() => self.read.push((number, true)),
            Some((file, ring)) => {
                // SAFETY: the slot's page is this thread's; lost if the ring breaks.
                unsafe { ring.read(file, to, PAGE, (page * PAGE) as u64, number as u64) };
                self.in_flight += 1;
            }
            None => self.read.push((number, false)),
        }
        self.flights[number] = Some(Flight { region, page, slot, kept: kept.is_some() });
    }

    /// Waits until one read has ended, if any is under way, and takes notice of those that have.
    fn finish_reads(&mut self) {
        let Some(ring) = self.ring.as_mut().filter(|_| self.in_flight > 0) else { return };
        ring.submit(1);
        while let Some((tag, result)) = ring.next_done() {
            self.in_flight -= 1;
            // Results of a broken ring are not relied upon.
            self.read.push((tag as usize, ring.works() && result == PAGE as i32));
        }
        if !ring.works() {
            tracing::warn!("io_uring fails: pages that were stored to are read one at a time from now on");
            self.ring = None;
            self.shared.buffers.lose_pages();
        }
    }

    /// Puts together what was read and what was stored.
    fn merge(&mut self, pool: &Pool) {
        let mut unread = Vec::new();
        let hits = &pool.counters_at(pool.here()).page_cache_hits;
        for (number, is_read) in std::mem::take(&mut self.read) {
            let Some(flight) = &self.flights[number] else { continue };
            let to = self.shared.buffers.page(flight.slot);
            let end = if is_read {
                ReadEnd::Filled
            } else {
                // SAFETY: the slot's page is this thread's.
                unsafe { flight.region.store().read_page(flight.page, to, hits) }
            };
            match end {
                ReadEnd::Failed(error) => {
                    self.fail(number, error);
                    continue;
                }
                // Stores there are lost, as all that lies past the file's end.
                // SAFETY: the store buffer's page, which is this thread's.
                ReadEnd::PastEnd => unsafe { to.write_bytes(0, PAGE) },
                ReadEnd::Filled => {}
            }
            if flight.kept {
                self.fill(number);
            } else {
                unread.push(number);
            }
        }
        let mut unread: Vec<_> = unread.into_iter().filter_map(|number: usize| self.flights[number].take()).collect();
        unread.sort_unstable_by_key(|flight| (flight.region.id().0, flight.page));
        for of_region in unread.chunk_by(|one, next| one.region.id() == next.region.id()) {
            of_region.chunks(MOST_MERGED).for_each(|flights| self.merge_unfilled(pool, flights));
        }
    }

    /// Installs a page with its buffered stores, and gives its slot back.
    fn fill(&mut self, number: usize) {
        let Some(Flight { region, page, slot, .. }) = self.flights[number].take() else { return };
        let slots = &self.shared.buffers;
        {
            let _held = slots.lock(slot);
            region.word(page).begin_fill();
        }
        let bytes = slots.page(slot);
        // SAFETY: this thread's page; no more stores are put into the slot.
        unsafe { slots.lay_over(slot, bytes) };
        install(&region, page, bytes);
        slots.give_back(slot);
        self.shared.behind.fetch_sub(1, Ordering::Relaxed);
        protocol::of(&region).inspect(|behind| behind.note_filled());
        publish(&region, page);
    }

    /// Replaces the lines that still hold the initial value, in pages of one region in ascending order.
    fn merge_unfilled(&self, pool: &Pool, flights: &[Flight]) {
        let Some(region) = flights.first().map(|flight| &flight.region) else { return };
        let Some(initial) = protocol::of(region).and_then(DeferredStores::initial) else { return };
        let slots = &self.shared.buffers;
        flights.iter().for_each(|flight| begin_merge(region, flight.page));
        let follows = |one: &Flight, next: &Flight| {
            one.page + 1 == next.page && next.page < region.address().stripe_end(one.page)
        };
        let runs = || flights.chunk_by(follows).map(|run| (run[0].page, run.len()));
        for (first, count) in runs() {
            // SAFETY: resident pages of one stripe that the state Evicting gives to this thread.
            let protected =
                unsafe { region.userfaultfd(first).write_protect(region.address_of(first), count * PAGE, true) };
            if protected.is_err() {
                report::die(region, "the kernel refuses to protect pages (UFFDIO_WRITEPROTECT)");
            }
        }
        let mut partial = 0;
        for flight in flights {
            // SAFETY: from here on nobody stores to the page; the slot's is this thread's.
            partial += unsafe { protocol::take_over(initial, region.address_of(flight.page), slots.page(flight.slot)) };
            slots.note_whole(flight.slot, Entry::new(region.id(), flight.page));
        }
        // Before the pages are there: a flush that has waited for them sees it.
        pool.counters_at(pool.here()).partial_lines.add(partial);
        let memory: Vec<_> = runs()
            .map(|(first, count)| libc::iovec { iov_base: region.address_of(first).cast(), iov_len: count * PAGE })
            .collect();
        install::drop_memory(region, &memory);
        for Flight { page, slot, .. } in flights {
            region.word(*page).hold();
            install(region, *page, slots.page(*slot));
            slots.note_saved(*slot);
            self.shared.behind.fetch_sub(1, Ordering::Relaxed);
            publish(region, *page);
        }
    }

    /// Handles a page that could not be read: threads that wait for it fail, its stores stay, and it will be read again.
    fn fail(&mut self, number: usize, error: i32) {
        let Some(Flight { region, page, .. }) = self.flights[number].take() else { return };
        if let Some(behind) = protocol::of(&region) {
            behind.note_error(error);
        }
        if region.word(page).note_failed() {
            region.page(page).wake();
        }
        if region.writes().complain() {
            let error = io::Error::from_raw_os_error(error);
            tracing::error!(file = %region.store().path().display(), %error, "reading fails; what was stored is kept");
        }
        if self.failed.is_empty() {
            self.again = Instant::now() + AGAIN;
        }
        self.failed.push((region.id(), page));
    }
}

/// Takes an Unfilled page out of everybody's reach. A thread that lifts its protection waits for nothing, so it is waited for.
fn begin_merge(region: &Region, page: usize) {
    let word = region.word(page);
    while !word.begin_merge() {
        let seen = word.look();
        if seen.is_upgrading() {
            region.page(page).wait(seen);
        }
    }
}

/// Makes a page that this thread has in Loading resident and writable. Until then its contents are in a slot only.
fn install(region: &Region, page: usize, bytes: *const u8) {
    /// Tries, a millisecond each, while the kernel has no memory for it.
    const TRIES: usize = 10_000;
    // The bit comes before the page: another thread may store to it, and flush, before this one goes on.
    region.dirty().set(page);
    for _ in 0..TRIES {
        // SAFETY: an absent page that is this thread's; the bytes are a page.
        if unsafe { region.page(page).copy(bytes, false) }.is_ok() {
            return;
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    report::die(region, "the kernel takes no page (UFFDIO_COPY)");
}

/// Publishes a page that was installed and needs its slot no more.
fn publish(region: &Region, page: usize) {
    if let Some(behind) = protocol::of(region) {
        behind.note_done(page);
    }
    Loading::adopt(region.page(page)).finish(true, false, false, region.pool().here());
    region.pool().waiting().wake_waiters();
}
