//! The readers of a cache: threads that read ahead, for streams and on request.
//!
//! Each serves the streams whose number is its own modulo their count, and has an io_uring of its own; where there is none,
//! or the store is not to be read so, it reads with pread(2), and there are more of them. Here is what the others see of them;
//! what one does is in `reader.rs`, and how it goes on with a stream in `walks.rs`.

use crate::ahead::Ahead;
use crate::cache::Inner;
use crate::prefetch::{Pages, Prefetches};
use crate::reader::Reader;
use crate::registry::InUse;
use crate::staging::{Chunk, SlotNumber, Staging};
use crate::streams::{STREAMS, Streams};
use crate::sync::{AtomicU64, Mutex, Ordering};
use crate::sys::uring::{Bell, Ring};
use crate::sys::userfaultfd::Userfaultfd;
use crate::sys::{cpu, process};
use std::collections::VecDeque;
use std::io;
use std::sync::atomic::{AtomicBool, AtomicUsize};
use std::sync::{Arc, Weak};

/// Readers with rings, at most.
const MOST_READERS: usize = 4;
/// Readers without: each has one read under way.
const READERS_WITHOUT_RINGS: usize = 16;

/// What a reader is asked to read.
#[derive(Debug)]
pub enum Order {
    /// Pages that the program prefetches.
    Pages(Pages),
    /// A chunk whose pages are claimed, into a slot that is taken.
    Chunk(InUse<'static>, SlotNumber, Chunk),
}

/// A reader, as others see it.
#[derive(Debug, Default)]
pub struct Desk {
    /// Streams it should look at, a bit each.
    pub pending: AtomicU64,
    /// It waits, or is about to, and wants the bell rung.
    pub asleep: AtomicBool,
    pub bell: Bell,
    /// What it is asked to read.
    pub orders: Mutex<VecDeque<Order>>,
}

const _: () = assert!(STREAMS == u64::BITS as usize);

impl Desk {
    /// Has the reader look at a stream. Called by fault handlers.
    pub fn call(&self, stream: usize) {
        self.pending.fetch_or(1 << stream, Ordering::SeqCst);
        self.wake();
    }

    /// Has it look at its orders. SeqCst pairs with `Reader::rest`: either this sees it asleep, or it sees what is new.
    pub fn wake(&self) {
        if self.asleep.swap(false, Ordering::SeqCst) {
            self.bell.ring();
        }
    }

    /// Whether there is something for it to do.
    pub fn has_work(&self) -> bool {
        self.pending.load(Ordering::SeqCst) != 0 || !self.lock_orders().is_empty()
    }

    /// Its orders. Signals are blocked: a reader waits for the lock, and a fault may wait for the reader.
    pub fn lock_orders(&self) -> crate::sync::MutexGuard<'_, VecDeque<Order>> {
        self.orders.lock().unwrap_or_else(|poison| poison.into_inner())
    }
}

/// The readers, for the cache that they belong to.
#[derive(Debug)]
pub struct Readers(Arc<Ahead>);

impl Readers {
    /// Starts the threads. Where that is not possible nothing is read ahead.
    pub fn start(cache: Weak<Inner>, userfaultfd: &'static Userfaultfd) -> Option<Self> {
        // Only to see whether it works: each thread opens its own.
        let rings = Ring::try_out(Ring::open_for_this_thread).is_ok();
        let count = if rings { cpu::count().min(MOST_READERS) } else { READERS_WITHOUT_RINGS };
        let ahead = || {
            Ok::<_, io::Error>(Arc::new(Ahead {
                staging: Staging::new(userfaultfd)?,
                streams: Streams::default(),
                desks: (0..count).map(|_| Desk::default()).collect(),
                stop: AtomicBool::new(false),
                clock: AtomicUsize::new(0),
                prefetches: Prefetches::default(),
                quiet: AtomicUsize::new(0),
            }))
        };
        let failed = |error: &io::Error| tracing::warn!(%error, "nothing is read ahead in this cache");
        let readers = Readers(ahead().inspect_err(failed).ok()?);
        for number in 0..count {
            let (cache, ahead) = (cache.clone(), readers.0.clone());
            let buffers = Reader::buffers().inspect_err(failed).ok()?;
            let body = move || {
                let ring = if rings { Ring::open_for_this_thread().ok() } else { None };
                Reader::new(ahead, number, buffers, ring).run(&cache);
            };
            if std::thread::Builder::new()
                .name(format!("fastmap-read{number}"))
                .spawn(process::named(body))
                .inspect_err(failed)
                .is_err()
            {
                return None; // those already started see `stop`
            }
        }
        Some(readers)
    }

    /// What they share with the threads that trap.
    pub fn ahead(&self) -> &Ahead {
        &self.0
    }

    /// Has the threads end, for good.
    pub fn stop(&self) {
        self.0.stop.store(true, Ordering::SeqCst);
        self.0.desks.iter().for_each(Desk::wake);
    }
}

impl Drop for Readers {
    fn drop(&mut self) {
        self.stop();
    }
}
