//! The state of reading ahead: streams, chunks that are read and not yet mapped, and requests to the readers. Which thread may change the words of
//! a chunk's pages is said in `readahead/map_chunk.rs`.

use crate::pool::reader::Reader;
use crate::pool::runs::OpenRuns;
use crate::pool::staging::{SlotNumber, Staging};
use crate::pool::streams::Streams;
use crate::sys::aio::Aio;
use crate::sys::preads::Preads;
use crate::sys::sync::{AtomicU64, Ordering, fence};
use crate::sys::userfaultfd::Userfaultfd;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize};

/// When so many batches were evicted since a chunk was staged or touched, staging memory goes before pages do.
const QUIET: usize = 8;

/// A pool's streams, staged chunks, and the queues of its readers.
#[derive(Debug)]
pub struct Ahead {
    /// Dropped before `staging`: the memory that they read into stays until the device is done with it.
    pub readers: Box<[Reader]>,
    pub staging: Staging,
    /// Reads that threads do (`sys/preads.rs`).
    pub preads: Arc<Preads>,
    pub streams: Streams,
    pub runs: OpenRuns,
    pub stop: AtomicBool,
    /// Chunks staged so far. It goes on, too, when there was no slot for a chunk.
    pub clock: AtomicUsize,
    pub prefetches: Prefetches,
    /// Batches evicted for misses since a chunk was staged or touched.
    pub quiet: AtomicUsize,
}

impl Ahead {
    /// With nothing read yet. `contexts`: one for each reader, or `None`. `userfaultfd`: that of staging memory.
    pub fn new(contexts: Vec<Option<Aio>>, userfaultfd: &'static Userfaultfd) -> io::Result<Self> {
        let preads = Preads::new(contexts.len());
        let readers = contexts.into_iter().enumerate().map(|(number, aio)| Reader::new(number, aio, &preads));
        Ok(Ahead {
            readers: readers.collect::<io::Result<_>>()?,
            preads,
            staging: Staging::new(userfaultfd)?,
            streams: Streams::default(),
            runs: OpenRuns::default(),
            stop: AtomicBool::new(false),
            clock: AtomicUsize::new(0),
            prefetches: Prefetches::default(),
            quiet: AtomicUsize::new(0),
        })
    }

    /// Ends the readers' threads, for good.
    pub fn stop(&self) {
        self.stop.store(true, Ordering::SeqCst);
        self.readers.iter().for_each(Reader::wake);
        self.preads.stop();
    }

    /// The reader of a stream.
    pub fn reader_of(&self, stream: usize) -> &Reader {
        &self.readers[stream % self.readers.len()]
    }

    /// Whether nothing was staged or touched for a while: then staging memory serves pages better. Asked by a thread that is about to evict
    /// pages.
    pub fn is_quiet(&self) -> bool {
        self.quiet.fetch_add(1, Ordering::Relaxed) >= QUIET
    }

    /// Notes that something was staged or touched.
    pub fn note_work(&self) {
        if self.quiet.load(Ordering::Relaxed) != 0 {
            self.quiet.store(0, Ordering::Relaxed);
        }
    }

    /// Whether a slot can be claimed: asked by a thread that found it taken and has announced itself as a waiter. Pairs with `publish`:
    /// either this sees the slot ready, or `publish` sees the waiter.
    pub fn is_claimable(&self, slot: usize) -> bool {
        fence(Ordering::SeqCst);
        self.staging.is_ready(SlotNumber(slot))
    }
}

/// Pages that a cache's readers were asked for, and those of them that are done.
#[derive(Debug, Default)]
pub struct Prefetches {
    asked: AtomicU64,
    done: AtomicU64,
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

    /// Pages asked for so far.
    pub fn asked(&self) -> u64 {
        self.asked.load(Ordering::SeqCst)
    }

    /// Whether so many pages are done.
    pub fn are_done(&self, asked: u64) -> bool {
        self.done.load(Ordering::SeqCst) >= asked
    }

    /// Notes pages that are in memory, or that no reader will bring there.
    pub fn note_done(&self, pages: usize) {
        self.done.fetch_add(pages as u64, Ordering::SeqCst);
    }
}
