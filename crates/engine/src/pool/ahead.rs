//! What lies ahead of the programs: streams, chunks that are read and not yet mapped, and what the readers are asked
//! for.
//!
//! A chunk's slot says which thread may touch its pages' words. A reader takes a slot, claims pages (Loading), reads
//! them, makes them Staged and the slot ready. A thread that traps on a Staged page claims the slot and maps all of the
//! chunk (`readahead/`); a thread that needs the slot, the memory or the pages' absence claims it and makes the pages
//! Absent again (`evict/staged.rs`).

use crate::page::entry::{RegionId, RegionUse};
use crate::pool::staging::{Chunk, SlotNumber, Staging};
use crate::pool::streams::{STREAMS, Streams};
use crate::sys::futex;
use crate::sys::sync::{AtomicU32, AtomicU64, Mutex, MutexGuard, Ordering, fence};
use crate::sys::uring::Bell;
use crate::sys::userfaultfd::Userfaultfd;
use std::collections::VecDeque;
use std::io;
use std::sync::atomic::{AtomicBool, AtomicUsize};
use std::time::{Duration, Instant};

/// Batches evicted for misses since anything was staged or touched, after which staging memory goes before pages do.
const QUIET: usize = 8;

/// A pool's streams, staged chunks, and the queues of its readers.
#[derive(Debug)]
pub struct Ahead {
    pub staging: Staging,
    pub streams: Streams,
    pub queues: Box<[ReaderQueue]>,
    pub stop: AtomicBool,
    /// Chunks staged so far, and more when there was no slot for one.
    pub clock: AtomicUsize,
    pub prefetches: Prefetches,
    /// Batches evicted for misses since a chunk was staged or touched.
    pub quiet: AtomicUsize,
}

/// What a reader is asked to read.
#[derive(Debug)]
pub enum ReadRequest {
    /// Pages that the program prefetches.
    Pages(Pages),
    /// A chunk whose pages are claimed, into a slot that is taken, of a region in use.
    Chunk(RegionUse, SlotNumber, Chunk),
}

/// Neighbouring pages that a reader is asked for.
#[derive(Debug, Clone, Copy)]
pub struct Pages {
    pub region: RegionId,
    pub first: usize,
    pub count: usize,
}

/// The part of a reader that other threads reach.
#[derive(Debug, Default)]
pub struct ReaderQueue {
    /// Streams that it has to go on with, a bit each.
    pub pending: AtomicU64,
    /// It waits, or is about to, and wants the bell rung.
    pub asleep: AtomicBool,
    pub bell: Bell,
    /// What it is asked to read.
    pub requests: Mutex<VecDeque<ReadRequest>>,
}

const _: () = assert!(STREAMS == u64::BITS as usize);

impl ReaderQueue {
    /// Wakes the reader for one of its streams. Called by fault handlers.
    pub fn wake_for(&self, stream: usize) {
        self.pending.fetch_or(1 << stream, Ordering::SeqCst);
        self.wake();
    }

    /// Wakes the reader for its requests. SeqCst pairs with `Reader::rest`: either this sees the reader asleep, or the
    /// reader sees what is new.
    pub fn wake(&self) {
        if self.asleep.swap(false, Ordering::SeqCst) {
            self.bell.ring();
        }
    }

    /// Whether there is something for it to do.
    pub fn has_work(&self) -> bool {
        self.pending.load(Ordering::SeqCst) != 0 || !self.lock_requests().is_empty()
    }

    /// Its requests. Signals are blocked: a reader waits for the lock, and a fault may wait for the reader.
    pub fn lock_requests(&self) -> MutexGuard<'_, VecDeque<ReadRequest>> {
        self.requests.lock().unwrap_or_else(|poison| poison.into_inner())
    }
}

impl Ahead {
    /// Nothing yet, for so many readers; `userfaultfd`: of staging memory.
    pub fn new(readers: usize, userfaultfd: &'static Userfaultfd) -> io::Result<Self> {
        Ok(Ahead {
            staging: Staging::new(userfaultfd)?,
            streams: Streams::default(),
            queues: (0..readers).map(|_| ReaderQueue::default()).collect(),
            stop: AtomicBool::new(false),
            clock: AtomicUsize::new(0),
            prefetches: Prefetches::default(),
            quiet: AtomicUsize::new(0),
        })
    }

    /// Ends the readers, for good.
    pub fn stop(&self) {
        self.stop.store(true, Ordering::SeqCst);
        self.queues.iter().for_each(ReaderQueue::wake);
    }

    /// Wakes the reader of a stream for it.
    pub fn wake_for(&self, stream: usize) {
        self.queues[stream % self.queues.len()].wake_for(stream);
    }

    /// Whether nothing was staged or touched for a while: then the memory serves pages better. Asked by a thread that
    /// is about to evict pages for a miss.
    pub fn is_quiet(&self) -> bool {
        self.quiet.fetch_add(1, Ordering::Relaxed) >= QUIET
    }

    /// Notes that something was staged or touched.
    pub fn note_work(&self) {
        if self.quiet.load(Ordering::Relaxed) != 0 {
            self.quiet.store(0, Ordering::Relaxed);
        }
    }

    /// Whether a reader is at work, or will be without being asked once more. A reader that sleeps has taken slots only for what is on
    /// its way: they are looked at last.
    pub fn is_reading(&self) -> bool {
        let rests = |queue: &ReaderQueue| queue.asleep.load(Ordering::SeqCst) && !queue.has_work();
        !self.queues.iter().all(rests) || self.prefetches.queued() > 0 || self.staging.is_taken()
    }

    /// Whether a slot can be claimed: asked by a thread that found it taken and has announced itself as a waiter. Pairs
    /// with `publish`: either this sees it ready, or that sees the waiter.
    pub fn is_claimable(&self, slot: usize) -> bool {
        fence(Ordering::SeqCst);
        self.staging.is_ready(SlotNumber(slot))
    }
}

/// How far a cache's readers are with what they were asked for, pages.
#[derive(Debug, Default)]
pub struct Prefetches {
    asked: AtomicU64,
    done: AtomicU64,
    /// Raised with `done` while threads wait.
    progress: AtomicU32,
    waiting: AtomicU32,
}

impl Prefetches {
    /// Notes pages that a reader was asked for.
    pub fn note_asked(&self, pages: usize) {
        self.asked.fetch_add(pages as u64, Ordering::AcqRel);
    }

    /// Pages asked for and not done.
    pub fn queued(&self) -> usize {
        let done = self.done.load(Ordering::Acquire);
        self.asked.load(Ordering::Acquire).saturating_sub(done) as usize
    }

    /// Notes pages that are in memory, or that no reader will bring there.
    pub fn note_done(&self, pages: usize) {
        if pages > 0 {
            self.done.fetch_add(pages as u64, Ordering::SeqCst);
            if self.waiting.load(Ordering::SeqCst) > 0 {
                self.progress.fetch_add(1, Ordering::SeqCst);
                futex::wake_all(&self.progress);
            }
        }
    }

    /// Waits until as many pages are done as were asked for at the call; not for a reader that has died, or a device
    /// that has given nothing for seconds: a thread that touches the pages will meet the error.
    pub fn wait(&self) {
        const PATIENCE: Duration = Duration::from_secs(2);
        let asked = self.asked.load(Ordering::SeqCst);
        self.waiting.fetch_add(1, Ordering::SeqCst);
        loop {
            let before = self.progress.load(Ordering::SeqCst);
            let done = self.done.load(Ordering::SeqCst);
            if done >= asked {
                break;
            }
            let start = Instant::now();
            futex::wait(&self.progress, before, Some(PATIENCE));
            if start.elapsed() >= PATIENCE && self.done.load(Ordering::SeqCst) == done {
                break;
            }
        }
        self.waiting.fetch_sub(1, Ordering::SeqCst);
    }
}
