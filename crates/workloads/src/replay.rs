//! One trace replayed through one engine: how many of its touches found their page in memory.

use std::fs::File;
use std::time::Instant;

use serde::{Deserialize, Serialize};

use crate::engine::{self, Access, Cached, Load};
use crate::{Counters, Error, PAGE, Result, Spec, Touches, Trace, cold, sys};

/// One run.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Replay {
    /// Engine, file and memory. The pattern, the seconds and the number of threads are not looked at: one thread replays.
    pub spec: Spec,
    /// The trace.
    pub trace: Trace,
    /// Pages that fit into memory, for the trace's sizes: the same for every engine.
    pub frames: u64,
    /// Touches before the window, and in it.
    pub touches: (u64, u64),
    /// Which of the trace's random sequences.
    pub seed: u64,
}

/// What one run gave.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Replayed {
    /// Touches in the window.
    pub touches: u64,
    /// Of these, how many waited for their page to be read: major faults of kernel mmap, misses of the fastmap engine.
    pub misses: u64,
    /// Pages of the file in memory at the end of the window.
    pub resident_pages: u64,
    /// Length of the window.
    pub seconds: f64,
    /// The fastmap engine's counters, from the map's creation to the end of the window.
    pub counters: Option<Counters>,
    /// The peak of memory, as [`crate::Outcome::peak_rss_bytes`].
    pub peak_rss_bytes: u64,
}

impl Replayed {
    /// Touches that found their page in memory, per cent.
    pub fn hit_percent(&self) -> f64 {
        100.0 - 100.0 * self.misses as f64 / self.touches.max(1) as f64
    }
}

/// Replays a trace in this process, checking the stamp of every page it touches. `peak` is asked for the peak of memory
/// once, after the map is let go.
///
/// # Errors
///
/// Whatever kept the engine from running, and the first wrong byte.
pub fn replay(order: &Replay, peak: impl FnOnce() -> u64) -> Result<Replayed> {
    let mut replayed = engine::with(&order.spec, order)?;
    replayed.peak_rss_bytes = peak();
    Ok(replayed)
}

impl Load for &Replay {
    type Output = Replayed;

    fn over<A: Access>(self, access: &A, cached: Option<&Cached<'_>>) -> Result<Replayed> {
        let (before, within) = self.touches;
        let mut touches = Touches::new(self.trace, self.spec.pages, self.frames, self.seed);
        let mut local = access.local()?;
        let mut touch = |count| (0..count).try_for_each(|_| access.read(&mut local, touches.next_page()));
        let misses = || cached.map_or_else(sys::major_faults, |cached| cached.stats().misses);
        touch(before)?;
        let (start, missed) = (Instant::now(), misses());
        touch(within)?;
        let seconds = start.elapsed().as_secs_f64();
        let missed = misses() - missed;
        let counters = cached.map(|cached| Counters::from(cached.stats()));
        let resident_pages = match &counters {
            Some(counters) => counters.resident_pages,
            None => self.in_page_cache()?,
        };
        Ok(Replayed { touches: within, misses: missed, resident_pages, seconds, counters, peak_rss_bytes: 0 })
    }
}

impl Replay {
    fn in_page_cache(&self) -> Result<u64> {
        let file = File::open(&self.spec.path);
        let pages = file.and_then(|file| cold::cached_pages(&file, self.spec.pages * PAGE as u64));
        pages.map_err(|source| Error::Io {
            thing: self.spec.label.clone(),
            what: "cannot count its pages in the page cache",
            source,
            remedy: "check the file",
        })
    }
}
