//! Replays a trace through an engine, and counts the touches that found their page in memory.

use std::fs::File;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use crate::substrates::engine::{self, Access, Cached, Load};
use crate::substrates::{Error, Meter, PAGE, Reading, Result, Spec, Touches, Trace, cold, sys};

/// Touches between two readings of the clock.
const BETWEEN: u64 = 16;

/// One run.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Replay {
    /// Engine, file and memory. `seconds` bounds the touches in the window, and those before it. The pattern and the number of threads are
    /// ignored: one thread replays.
    pub spec: Spec,
    /// The trace.
    pub trace: Trace,
    /// Pages that fit into memory, from which the trace takes its sizes. It is the same for every engine.
    pub frames: u64,
    /// The most touches before the window, and the most touches in it.
    pub touches: (u64, u64),
    /// The seed of the trace's random numbers.
    pub seed: u64,
}

/// The result of a run.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct Replayed {
    /// Touches in the window that waited for a read.
    pub misses: u64,
    /// Touches in the window that found their page in memory, per cent.
    pub hit_percent: f64,
    /// Pages of the file in memory at the end of the window.
    pub resident_pages: u64,
}

/// Replays a trace in this process.
///
/// # Errors
///
/// The engine cannot run, or a stamp is wrong.
pub fn replay(order: &Replay, meter: &Meter) -> Result<(Reading, Replayed)> {
    let replayed = engine::with(&order.spec, Replaying { order, meter })?;
    meter.let_go();
    Ok(replayed)
}

struct Replaying<'a> {
    order: &'a Replay,
    meter: &'a Meter,
}

impl Load for Replaying<'_> {
    type Output = (Reading, Replayed);

    fn over<A: Access>(self, access: &A, cached: Option<&Cached<'_>>) -> Result<(Reading, Replayed)> {
        let Replaying { order, meter } = self;
        let (before, within) = order.touches;
        let mut touches = Touches::new(order.trace, order.spec.pages, order.frames, order.seed);
        let mut local = access.local()?;
        let most = Duration::from_secs_f64(order.spec.seconds);
        let mut touch = |count| {
            let until = Instant::now() + most;
            for done in 0..count {
                if done % BETWEEN == 0 && Instant::now() >= until {
                    return Ok(done);
                }
                access.read(&mut local, touches.next_page())?;
            }
            Result::Ok(count)
        };
        let misses = || cached.map_or_else(sys::major_faults, |cached| cached.stats().misses);
        touch(before)?;
        let (missed, stats, open) = (misses(), cached.map(Cached::stats), meter.start(&order.spec.path));
        let start = open.at;
        let within = touch(within)?;
        let window = start.elapsed();
        let reading =
            open.end().counting(within, window, None).cached(cached, stats.zip(cached.map(Cached::stats)), false);
        let misses = misses() - missed;
        let resident_pages = match &reading.fastmap {
            Some(fastmap) => fastmap.counters.resident_pages,
            None => order.in_page_cache()?,
        };
        let hit_percent = 100.0 - 100.0 * misses as f64 / within.max(1) as f64;
        Ok((reading, Replayed { misses, hit_percent, resident_pages }))
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
