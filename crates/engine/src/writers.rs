//! The background writers of a cache: threads that keep dirty pages below the high-water mark, write what has been dirty
//! for long, and carry out large flushes.
//!
//! Each owns a stripe of every region's blocks, so two of them never want one lock. Where io_uring works a few writers keep
//! a deep queue each; where it is not allowed there are more of them, each with one pwrite(2) under way.

use crate::cache::Inner;
use crate::error::Result;
use crate::files;
use crate::region::Region;
use crate::registry;
use crate::resizes::Mark;
use crate::rings::{Rings, Taken};
use crate::sync::{AtomicU32, Ordering};
use crate::sys::signal::Blocked;
use crate::sys::{PAGE, cpu, futex, process, record_locks};
use crate::writeback::{self, Failure, Help, RIPE, Stripe, regions_of};
use std::collections::VecDeque;
use std::io;
use std::ops::Range;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex, Weak};
use std::time::{Duration, Instant};

/// Writers, at most; a region keeps a cursor for each.
pub const MOST_WRITERS: usize = 16;
/// Pages from which on a flush is shared out between the writers: below, handing it over takes longer.
const MANY_PAGES: usize = 256;
/// Pause after which writes that failed are tried again.
pub const AGAIN: Duration = Duration::from_millis(200);

/// The writers of a cache.
#[derive(Debug)]
pub struct Writers {
    shared: Arc<Shared>,
    rings: Option<Rings>,
}

#[derive(Debug)]
struct Shared {
    /// Raised to make the writers look at their cache.
    calls: AtomicU32,
    stop: AtomicBool,
    /// Flushes to carry out, by writer.
    inboxes: Box<[Mutex<VecDeque<Arc<Job>>>]>,
}

/// A flush shared out between the writers.
#[derive(Debug)]
pub struct Job {
    region: Arc<Region>,
    pages: Range<usize>,
    /// The last writer puts the file on stable storage.
    stable: bool,
    /// When it was asked for.
    asked: Mark,
    failure: Mutex<Option<Failure>>,
    /// Writers that have not done their part.
    left: AtomicU32,
    /// 1 when all is done; slept on.
    done: AtomicU32,
    /// What came of it, for the one who waits.
    outcome: Mutex<Result<()>>,
}

impl Writers {
    /// Starts the threads. Where none can be started, pages are written by the threads that need room and by flushes.
    pub fn start(cache: Weak<Inner>, age: Option<Duration>) -> Option<Self> {
        let cores = cpu::count().next_power_of_two();
        let rings = Rings::open((2 * cores).min(MOST_WRITERS))
            .inspect_err(|error| tracing::info!(%error, "no io_uring: more threads write, one page run each at a time"))
            .ok();
        let count = if rings.is_some() { cores.min(4) } else { MOST_WRITERS };
        let shared = Arc::new(Shared {
            calls: AtomicU32::new(0),
            stop: AtomicBool::new(false),
            inboxes: (0..count).map(|_| Mutex::default()).collect(),
        });
        let writers = Writers { shared: shared.clone(), rings };
        for index in 0..count {
            let (cache, shared) = (cache.clone(), shared.clone());
            let body = move || shared.run(&cache, Stripe { index, count }, age);
            if let Err(error) =
                std::thread::Builder::new().name(format!("fastmap-write{index}")).spawn(process::named(body))
            {
                tracing::warn!(%error, "no background writers: threads that need room write dirty pages themselves");
                return None; // those already started see `stop`
            }
        }
        Some(writers)
    }

    /// How many there are.
    pub fn count(&self) -> usize {
        self.shared.inboxes.len()
    }

    /// A ring to write with, if there is one. Signals are blocked.
    pub fn take_ring(&self) -> Option<Taken<'_>> {
        self.rings.as_ref()?.take()
    }

    /// The rings, if there are any.
    pub fn rings(&self) -> Option<&Rings> {
        self.rings.as_ref()
    }

    /// Makes the threads look at their cache.
    pub fn wake(&self) {
        self.shared.calls.fetch_add(1, Ordering::AcqRel);
        futex::wake_all(&self.shared.calls);
    }

    /// Has the threads end, for good.
    pub fn stop(&self) {
        self.shared.stop.store(true, Ordering::Release);
        self.wake();
    }

    fn post(&self, region: &Arc<Region>, pages: Range<usize>, stable: bool) -> Arc<Job> {
        let job = Arc::new(Job {
            region: region.clone(),
            pages,
            stable,
            asked: region.resizes().moment(),
            failure: Mutex::default(),
            left: AtomicU32::new(self.count() as u32),
            done: AtomicU32::new(0),
            outcome: Mutex::new(Ok(())),
        });
        for inbox in &self.shared.inboxes {
            inbox.lock().unwrap_or_else(|poison| poison.into_inner()).push_back(job.clone());
        }
        self.wake();
        job
    }
}

impl Drop for Writers {
    fn drop(&mut self) {
        self.stop();
    }
}

impl Shared {
    /// The life of one writer.
    fn run(&self, cache: &Weak<Inner>, stripe: Stripe, age: Option<Duration>) {
        let _blocked = Blocked::all();
        let interval = age.map(|age| (age / u32::from(RIPE)).max(Duration::from_millis(1)));
        let mut next_look = Instant::now();
        let mut seen = 0;
        while !self.stop.load(Ordering::Acquire) {
            let again = match cache.upgrade() {
                Some(cache) => {
                    self.carry_out(stripe);
                    if stripe.index == 0 {
                        record_locks::look_again();
                    }
                    let mut again = stripe.index == 0 && close_unsaved(&cache);
                    let look = interval.filter(|_| Instant::now() >= next_look);
                    if let Some(interval) = look {
                        next_look = Instant::now() + interval;
                    }
                    again |= write_ripe(&cache, stripe, look.is_some());
                    again | self.write_down(&cache, stripe)
                }
                None => return,
            };
            let pause = interval.map(|_| next_look.saturating_duration_since(Instant::now()));
            let pause = if again { Some(pause.map_or(AGAIN, |pause| pause.min(AGAIN))) } else { pause };
            futex::wait(&self.calls, seen, pause);
            seen = self.calls.load(Ordering::Acquire);
        }
    }

    fn next_job(&self, writer: usize) -> Option<Arc<Job>> {
        self.inboxes[writer].lock().unwrap_or_else(|poison| poison.into_inner()).pop_front()
    }

    /// Does this writer's part of the flushes that wait.
    fn carry_out(&self, stripe: Stripe) {
        while let Some(job) = self.next_job(stripe.index) {
            // Once the last map is dropped the region has been saved and its memory is gone.
            let region = registry::enter(job.region.slot()).filter(|region| std::ptr::eq(&**region, &*job.region));
            if let Some(Err(failure)) = region.map(|region| writeback::write_out(&region, job.pages.clone(), stripe)) {
                job.failure.lock().unwrap_or_else(|poison| poison.into_inner()).get_or_insert(failure);
            }
            if job.left.fetch_sub(1, Ordering::AcqRel) == 1 {
                job.end();
            }
        }
    }

    /// Brings the dirty pages from above the high-water mark down to the low one; true: some cannot be written.
    fn write_down(&self, cache: &Inner, stripe: Stripe) -> bool {
        if cache.dirty_pages() <= cache.high_water() {
            return false;
        }
        let mut failed = false;
        let mut progress = true;
        while progress && cache.dirty_pages() > cache.low_water() {
            progress = false;
            for region in regions_of(cache) {
                // A flush that somebody asks for meanwhile is served first: its call starts the next round at once.
                let enough = || cache.dirty_pages() <= cache.low_water() || self.has_job(stripe.index);
                match writeback::sweep(&region, stripe, usize::MAX, enough) {
                    Help::Wrote => progress = true,
                    Help::Failed(error) => {
                        failed = true;
                        tell(&region, &io::Error::from_raw_os_error(error));
                    }
                    Help::Nothing => {}
                }
            }
            if self.has_job(stripe.index) {
                break;
            }
        }
        failed
    }

    fn has_job(&self, writer: usize) -> bool {
        !self.inboxes[writer].lock().unwrap_or_else(|poison| poison.into_inner()).is_empty()
    }
}

impl Job {
    /// Says what came of it, by the writer that is the last.
    fn end(&self) {
        let failure = self.failure.lock().unwrap_or_else(|poison| poison.into_inner()).take();
        let outcome = match failure {
            Some(failure) => {
                self.region.unsaved().store(true, Ordering::Release);
                self.region.cache().wake_writers();
                Err(failure.into_error(&self.region))
            }
            None if self.stable => sync(&self.region),
            None => Ok(()),
        };
        *self.outcome.lock().unwrap_or_else(|poison| poison.into_inner()) = outcome;
        self.done.store(1, Ordering::Release);
        futex::wake_all(&self.done);
    }

    /// Whether all is done.
    pub fn is_done(&self) -> bool {
        self.done.load(Ordering::Acquire) == 1
    }

    /// Waits for the end and takes the outcome.
    pub fn wait(&self) -> Result<()> {
        if !self.region.is_ours() {
            return Err(files::in_a_child(self.region.store().path()));
        }
        while !self.is_done() {
            futex::wait(&self.done, 0, None);
        }
        std::mem::replace(&mut *self.outcome.lock().unwrap_or_else(|poison| poison.into_inner()), Ok(()))
    }

    /// Likewise, and flushes again what a change of the file's length has put back meanwhile, after it was asked for.
    pub fn finish(&self) -> Result<()> {
        self.wait()?;
        let region = &self.region;
        if region.resizes().none_since(self.asked) {
            return Ok(());
        }
        // Once the last map is dropped the region has been saved, and whoever changes a length has left it.
        match registry::enter(region.slot()).filter(|entered| std::ptr::eq(&**entered, &**region) && entered.visit()) {
            Some(entered) => {
                drop(entered);
                let flushed = write_out(region, self.pages.clone());
                region.leave();
                flushed.and_then(|()| if self.stable { sync(region) } else { Ok(()) })
            }
            None => Ok(()),
        }
    }
}

/// Writes every page of the range that is dirty at the time of the call, and waits for writes in flight there. With
/// `stable`, the file is then put on stable storage.
///
/// A scratch region is never saved.
pub fn flush(region: &Arc<Region>, pages: Range<usize>, stable: bool) -> Result<()> {
    if region.scratch().is_some() {
        return Ok(());
    }
    // The cache's count first: it is only a sum.
    let cache = region.cache();
    let many = || cache.dirty_pages() > MANY_PAGES && region.dirty().count(pages.clone(), MANY_PAGES) > MANY_PAGES;
    match cache.writers().filter(|_| many()) {
        Some(writers) => complete(region, || writers.post(region, pages.clone(), false).wait())?,
        None => write_out(region, pages)?,
    }
    if stable { sync(region) } else { Ok(()) }
}

/// Starts a flush to stable storage. `None`: there is nobody to carry it out.
pub fn flush_later(region: &Arc<Region>, pages: Range<usize>) -> Option<Arc<Job>> {
    Some(region.cache().writers().filter(|_| region.scratch().is_none())?.post(region, pages, true))
}

/// A flush by this thread alone, without stable storage.
pub fn write_out(region: &Region, pages: Range<usize>) -> Result<()> {
    complete(region, || {
        writeback::write_out(region, pages.clone(), Stripe::ALL).map_err(|failure| failure.into_error(region))
    })
}

/// Flushes until no change of the file's length was under way meanwhile (`resizes.rs`).
fn complete(region: &Region, mut flush: impl FnMut() -> Result<()>) -> Result<()> {
    loop {
        let mark = region.resizes().await_end().map_err(|error| {
            let operation = "flush it in a thread that is changing its length (coherent::Resizing)";
            region.io_error(operation, io::Error::from_raw_os_error(error))
        })?;
        flush()?;
        if region.resizes().none_since(mark) {
            return Ok(());
        }
    }
}

/// Writes every dirty page of a cache, or says which file refuses.
pub fn write_out_all(cache: &Inner) -> Result<()> {
    regions_of(cache).try_for_each(|region| write_out(&region, 0..region.span() / PAGE))
}

/// Puts what was written of a file on stable storage.
pub fn sync(region: &Region) -> Result<()> {
    let cache = region.cache();
    let syncs = &cache.cores[cache.here()].0.counters.syncs;
    region.store().sync(syncs).map_err(|source| region.io_error("put it on stable storage (fdatasync)", source))
}

/// Writes what has been dirty for as long as the cache allows, or is not likely to change any more; true: some cannot be
/// written.
fn write_ripe(cache: &Inner, stripe: Stripe, look: bool) -> bool {
    let mut failed = false;
    for region in regions_of(cache) {
        if let Help::Failed(error) = writeback::write_ripe(&region, stripe, look) {
            failed = true;
            tell(&region, &io::Error::from_raw_os_error(error));
        }
    }
    failed
}

/// Tries again to save files whose last map went while they could not be written; true: some still cannot.
fn close_unsaved(cache: &Inner) -> bool {
    let (mut failed, mut saved) = (false, false);
    // Taken down first: whoever raises it after that has seen a failure that this try may not meet.
    for region in regions_of(cache).filter(|region| region.unsaved().swap(false, Ordering::AcqRel)) {
        match write_out(&region, 0..region.span() / PAGE) {
            Ok(()) => saved = true,
            Err(error) => {
                region.unsaved().store(true, Ordering::Release);
                tell(&region, &error);
                failed = true;
            }
        }
    }
    if saved {
        files::close_abandoned(cache);
    }
    failed
}

/// Says once a region that background writing fails; the next flush returns the error.
fn tell(region: &Region, error: &dyn std::fmt::Display) {
    if region.complain() {
        tracing::error!(file = %region.store().path().display(), %error, "write-back fails; the pages stay in memory");
    }
}
