//! Requests to a pool's threads: to its writers, which `writeback` runs, and to the thread that changes its capacity, which `evict` runs.

use crate::error::{Error, Result};
use crate::page::entry::RegionId;
use crate::pool::pool::Pool;
use crate::pool::rings::{Rings, Taken};
use crate::store::Store;
use crate::sys::sync::{AtomicU32, Ordering};
use crate::sys::{PAGE, fork, futex};
use std::collections::VecDeque;
use std::io;
use std::ops::Range;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

/// Writers, at most; a region keeps a cursor for each.
pub const MOST_WRITERS: usize = 16;

type ToFlush = (Arc<FlushRequest>, Arc<Pool>);

/// The queue of a pool's writers.
#[derive(Debug)]
pub struct WriteQueue {
    /// Raised to wake the writers; slept on.
    wakes: AtomicU32,
    stop: AtomicBool,
    /// Flushes to carry out, by writer. Each keeps the pool, and so the writers, until it has been carried out.
    flushes: Box<[Mutex<VecDeque<ToFlush>>]>,
    rings: Option<Rings>,
}

/// A flush shared out between the writers.
#[derive(Debug)]
pub struct FlushRequest {
    pub region: RegionId,
    /// The region's. If the region is gone, all of it has been saved.
    pub serial: u64,
    pub store: Arc<dyn Store>,
    pub pages: Range<usize>,
    /// The last writer puts the file on stable storage.
    pub stable: bool,
    /// When it was asked for (`region/in_flight.rs`).
    pub asked: u32,
    failure: Mutex<Option<Failure>>,
    /// Writers that have not done their part.
    left: AtomicU32,
    /// 1 when all is done; slept on.
    done: AtomicU32,
    /// The outcome, for the thread that waits.
    outcome: Mutex<Result<()>>,
}

/// Bytes that could not be written.
#[derive(Debug, Clone, Copy)]
pub struct Failure {
    pub page: usize,
    pub pages: usize,
    pub error: i32,
}

impl Failure {
    /// The failure of a page that was stored to before it was read, and could not be read.
    pub fn new(page: usize, error: i32) -> Self {
        Failure { page, pages: 1, error }
    }

    /// The error that a flush returns for it.
    pub fn into_error(self, store: &dyn Store) -> Error {
        Error::WriteBack {
            path: store.path().to_owned(),
            offset: (self.page * PAGE) as u64,
            len: (self.pages * PAGE) as u64,
            source: io::Error::from_raw_os_error(self.error),
        }
    }
}

impl WriteQueue {
    /// A queue for so many writers.
    pub fn new(writers: usize, rings: Option<Rings>) -> Self {
        let flushes = (0..writers).map(|_| Mutex::default()).collect();
        WriteQueue { wakes: AtomicU32::new(0), stop: AtomicBool::new(false), flushes, rings }
    }

    /// How many writers there are.
    pub fn writers(&self) -> usize {
        self.flushes.len()
    }

    /// A ring to write with, if there is one. Signals are blocked.
    pub fn take_ring(&self) -> Option<Taken<'_>> {
        self.rings.as_ref()?.take()
    }

    /// The rings, if there are any.
    pub fn rings(&self) -> Option<&Rings> {
        self.rings.as_ref()
    }

    /// Wakes the writers.
    pub fn wake(&self) {
        self.wakes.fetch_add(1, Ordering::AcqRel);
        futex::wake_all(&self.wakes);
    }

    /// Sleeps until `wake` is called, for `pause` at most, and not if it was called since `seen` was read. Returns the `seen` of the next
    /// call.
    pub fn sleep(&self, seen: u32, pause: Option<Duration>) -> u32 {
        futex::wait(&self.wakes, seen, pause);
        self.wakes.load(Ordering::Acquire)
    }

    /// Ends the threads, for good.
    pub fn stop(&self) {
        self.stop.store(true, Ordering::Release);
        self.wake();
    }

    /// Whether they are to end.
    pub fn is_stopped(&self) -> bool {
        self.stop.load(Ordering::Acquire)
    }

    fn lock(&self, writer: usize) -> MutexGuard<'_, VecDeque<ToFlush>> {
        self.flushes[writer].lock().unwrap_or_else(|poison| poison.into_inner())
    }

    /// The next flush that a writer has to do its part of.
    pub fn next_flush(&self, writer: usize) -> Option<ToFlush> {
        self.lock(writer).pop_front()
    }

    /// Whether there is one.
    pub fn has_flush(&self, writer: usize) -> bool {
        !self.lock(writer).is_empty()
    }
}

impl Pool {
    /// Asks every writer for its part of a flush. `None`: there are no writers.
    pub fn post_flush(
        self: &Arc<Self>,
        region: RegionId,
        serial: u64,
        store: Arc<dyn Store>,
        pages: Range<usize>,
        stable: bool,
        asked: u32,
    ) -> Option<Arc<FlushRequest>> {
        let queue = self.writers()?;
        let request = Arc::new(FlushRequest {
            region,
            serial,
            store,
            pages,
            stable,
            asked,
            failure: Mutex::default(),
            left: AtomicU32::new(queue.writers() as u32),
            done: AtomicU32::new(0),
            outcome: Mutex::new(Ok(())),
        });
        (0..queue.writers()).for_each(|writer| queue.lock(writer).push_back((request.clone(), self.clone())));
        queue.wake();
        Some(request)
    }
}

/// Wakes the thread that changes a pool's capacity.
#[derive(Debug, Default)]
pub struct Follower {
    /// Raised to wake it; slept on.
    wakes: AtomicU32,
    stop: AtomicBool,
}

impl Follower {
    /// Tells it that there is something to look after.
    pub fn wake(&self) {
        self.wakes.fetch_add(1, Ordering::AcqRel);
        futex::wake_all(&self.wakes);
    }

    /// How often it was woken.
    pub fn wakes(&self) -> u32 {
        self.wakes.load(Ordering::Acquire)
    }

    /// Sleeps until `wake` is called, for `pause` at most, and not if it was called since `seen` was read.
    pub fn sleep(&self, seen: u32, pause: Option<Duration>) {
        futex::wait(&self.wakes, seen, pause);
    }

    /// Ends it, for good.
    pub fn stop(&self) {
        self.stop.store(true, Ordering::Release);
        self.wake();
    }

    /// Whether it is to end.
    pub fn is_stopped(&self) -> bool {
        self.stop.load(Ordering::Acquire)
    }
}

impl FlushRequest {
    /// Notes bytes that a writer could not write. The first failure stays.
    pub fn note_failure(&self, failure: Failure) {
        self.failure.lock().unwrap_or_else(|poison| poison.into_inner()).get_or_insert(failure);
    }

    /// Ends a writer's part; true: it was the last one, which calls `end`.
    pub fn end_part(&self) -> bool {
        self.left.fetch_sub(1, Ordering::AcqRel) == 1
    }

    /// The first failure.
    pub fn take_failure(&self) -> Option<Failure> {
        self.failure.lock().unwrap_or_else(|poison| poison.into_inner()).take()
    }

    /// Ends the flush with an outcome, and wakes the thread that waits.
    pub fn end(&self, outcome: Result<()>) {
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
        if fork::is_child() {
            return Err(Error::in_a_child(self.store.path()));
        }
        while !self.is_done() {
            futex::wait(&self.done, 0, None);
        }
        std::mem::replace(&mut *self.outcome.lock().unwrap_or_else(|poison| poison.into_inner()), Ok(()))
    }
}
