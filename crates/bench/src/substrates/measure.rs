//! The measuring loop, which is the same for every engine. It warms up, then measures for a given time, or until a file is filled and
//! flushed. It reads the clock once per operation.

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering::Relaxed};
use std::sync::{Barrier, OnceLock};
use std::thread;
use std::time::{Duration, Instant};

use hdrhistogram::Histogram;

use crate::substrates::engine::{Access, Cached};
use crate::substrates::{Error, Meter, Op, PAGE, Pattern, Reading, Result, Sequence, Spec, stamp};

/// Operations between two checks whether the warm-up is over.
const WARMUP_BATCH: u64 = 16;

/// The pause between two questions to the kernel how many bytes were read.
const WARMUP_LOOK: Duration = Duration::from_millis(2);

/// The warm-up takes at most this many times the measurement, or this many seconds if that is longer.
const WARMUP_TIMES: f64 = 4.0;
const WARMUP_SECONDS: f64 = 2.0;

/// The warm-up ends after this many operations for each page that it is to read, even if fewer pages were read: then nearly all operations find
/// their pages in memory.
const WARMUP_HITS: u64 = 16;

/// The longest latency that is recorded, in nanoseconds. Longer ones count as this one.
const LONGEST_NS: u64 = 60_000_000_000;

/// The expected generation of each page of a file: the base of this run's epoch, plus the number of this run's stores to the page.
///
/// Only one thread stores to each page, so relaxed ordering is enough. The thread that reads the values at the end has joined that thread
/// first.
pub struct Shadow {
    base: u64,
    stores: Vec<AtomicU32>,
}

impl Shadow {
    /// The expected generations of `pages` pages, before the first store of the write run `epoch`.
    pub fn new(epoch: u32, pages: u64) -> Shadow {
        Shadow { base: stamp::base_generation(epoch), stores: (0..pages).map(|_| AtomicU32::new(0)).collect() }
    }

    /// Counts a store to `page` and returns the generation to store.
    #[inline]
    pub fn next(&self, page: u64) -> u64 {
        let stores = &self.stores[page as usize];
        let count = stores.load(Relaxed).wrapping_add(1);
        stores.store(count, Relaxed);
        self.base + u64::from(count)
    }

    /// Checks a generation found in `page`. It must be the one that was stored last. If none was stored, it may be any from before this
    /// run.
    ///
    /// # Errors
    ///
    /// [`Error::Generation`].
    #[inline]
    pub fn check(&self, page: u64, found: u64) -> Result<()> {
        let expected = match self.stored(page) {
            Some(stored) if found == stored => return Ok(()),
            Some(stored) => format!("{stored:#x}"),
            None if found <= self.base => return Ok(()),
            None => format!("at most {:#x}", self.base),
        };
        Err(Error::Generation { page, offset: page * PAGE as u64 + stamp::GENERATION_OFFSET as u64, found, expected })
    }

    /// The generation that was stored last to `page`. None: this run has stored none.
    #[inline]
    pub fn stored(&self, page: u64) -> Option<u64> {
        let stores = self.stores[page as usize].load(Relaxed);
        (stores > 0).then_some(self.base + u64::from(stores))
    }

    /// The highest generation from before this run.
    #[inline]
    pub fn base(&self) -> u64 {
        self.base
    }
}

/// State that the threads of a run share.
struct Shared<'a, A> {
    access: &'a A,
    op: Op,
    shadow: &'a Shadow,
    warmup: Warmup,
    /// At its end, the warm-up runs operations like those to be measured for this long. Zero if they do not store. The engine learns by them which
    /// pages are stored to.
    stores_before: Duration,
    /// Passed twice: when all threads are warm, and when the window's end is set.
    barrier: Barrier,
    /// None: the window ends when the work is done.
    window_end: OnceLock<Option<Instant>>,
    failed: AtomicBool,
}

/// The warm-up. It reads until [`Spec::warmup_bytes`] have come from storage. Usually memory is then full, and everything in it has been replaced
/// once. Nothing is measured meanwhile.
struct Warmup {
    /// Operations so far.
    done: AtomicU64,
    over: AtomicBool,
}

impl Warmup {
    /// Waits until this process has read as many bytes from storage as the spec asks for, or has made enough operations ([`WARMUP_HITS`]). If the
    /// kernel does not count the bytes that were read, each operation counts as a page. Returns false if time ran out before, or a thread failed.
    fn wait(&self, spec: &Spec, failed: &AtomicBool) -> bool {
        let (enough, deadline) = (
            spec.warmup_bytes(),
            Instant::now() + Duration::from_secs_f64((spec.seconds * WARMUP_TIMES).max(WARMUP_SECONDS)),
        );
        let begin = fetched();
        let read = || match fetched().zip(begin) {
            Some((now, begin)) => now - begin,
            None => self.done.load(Relaxed) * PAGE as u64,
        };
        let most = enough / PAGE as u64 * WARMUP_HITS;
        let full = loop {
            if read() >= enough || self.done.load(Relaxed) >= most {
                break true;
            }
            if Instant::now() >= deadline || failed.load(Relaxed) {
                break false;
            }
            thread::sleep(WARMUP_LOOK);
        };
        self.over.store(true, Relaxed);
        full
    }
}

/// Runs the spec's load through `access` and measures it.
///
/// # Errors
///
/// An operation fails or finds a wrong byte. That stops all threads.
pub fn measure<A: Access>(
    spec: &Spec,
    access: &A,
    shadow: &Shadow,
    cached: Option<&Cached<'_>>,
    meter: &Meter,
) -> Result<Reading> {
    let fills = spec.pattern == Pattern::Fill;
    let seconds = Duration::from_secs_f64(spec.seconds);
    let sequences = Sequence::of_all(spec.pattern, spec.pages, u64::from(spec.threads), spec.op.writes());
    let shared = Shared {
        access,
        op: spec.op,
        shadow,
        warmup: Warmup { done: AtomicU64::new(0), over: AtomicBool::new(spec.warmup_bytes() == 0) },
        stores_before: if spec.op.writes() && !fills && !spec.cold { seconds } else { Duration::ZERO },
        barrier: Barrier::new(spec.threads as usize + 1),
        window_end: OnceLock::new(),
        failed: AtomicBool::new(false),
    };
    thread::scope(|scope| {
        let threads: Vec<_> = sequences.into_iter().map(|s| scope.spawn(|| one_thread(&shared, s))).collect();
        let full = spec.warmup_bytes() == 0 || shared.warmup.wait(spec, &shared.failed);
        shared.barrier.wait();
        let flushed = if shared.stores_before.is_zero() { Ok(()) } else { access.flush() };
        shared.failed.fetch_or(flushed.is_err(), Relaxed);
        let stats = cached.map(Cached::stats);
        let open = meter.start(&spec.path);
        let start = open.at;
        shared.window_end.get_or_init(|| (!fills).then(|| start + seconds));
        shared.barrier.wait();
        let ended: Vec<Result<(Instant, Histogram<u32>)>> =
            threads.into_iter().map(|t| t.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))).collect();
        let (mut window, mut latency) = (Duration::ZERO, histogram());
        for one in ended {
            let (end, histogram) = one?;
            window = window.max(end - start);
            latency.add(histogram).expect("all histograms have the same bounds");
        }
        flushed?;
        if spec.op.writes() {
            // Stores count when they are on stable storage.
            access.flush()?;
            window = start.elapsed();
        }
        let reading = Reading { cold: !full, ..open.end().counting(latency.len(), window, Some(&latency)) };
        Ok(reading.cached(cached, stats.zip(cached.map(Cached::stats)), spec.op.writes()))
    })
}

/// Bytes that this process has fetched from storage, in advance or not. proc_pid_io(5).
fn fetched() -> Option<u64> {
    procfs::process::Process::myself().and_then(|me| me.io()).ok().map(|io| io.read_bytes)
}

fn one_thread<A: Access>(shared: &Shared<'_, A>, mut sequence: Sequence) -> Result<(Instant, Histogram<u32>)> {
    let mut latency = histogram();
    let mut local = shared.access.local();
    let warm = match &mut local {
        Ok(local) => warm_up(shared, local, &mut sequence).and_then(|()| store_before(shared, local, &mut sequence)),
        Err(_) => Ok(()),
    };
    shared.failed.fetch_or(warm.is_err() || local.is_err(), Relaxed);
    shared.barrier.wait();
    shared.barrier.wait();
    warm?;
    let mut local = local?;
    let end = *shared.window_end.get().expect("set between the two barriers");
    let mut before = Instant::now();
    let mut left = sequence.once();
    loop {
        left = left.map(|pages| pages - 1);
        let done = left == Some(0);
        let operated = match left {
            Some(_) => shared.access.fill(&mut local, sequence.next_page(), done, shared.shadow),
            None => operate(shared, &mut local, &mut sequence),
        };
        if let Err(error) = operated {
            shared.failed.store(true, Relaxed);
            return Err(error);
        }
        let now = Instant::now();
        latency.saturating_record((now - before).as_nanos() as u64);
        before = now;
        if done || end.is_some_and(|end| now >= end) || shared.failed.load(Relaxed) {
            return Ok((now, latency));
        }
    }
}

/// Reads pages until the warm-up is over.
fn warm_up<A: Access>(shared: &Shared<'_, A>, local: &mut A::Local, sequence: &mut Sequence) -> Result<()> {
    let warmup = &shared.warmup;
    while !warmup.over.load(Relaxed) && !shared.failed.load(Relaxed) {
        for _ in 0..WARMUP_BATCH {
            let page = shared.access.warm_page(local, sequence)?;
            shared.access.read(local, page)?;
        }
        warmup.done.fetch_add(WARMUP_BATCH, Relaxed);
    }
    Ok(())
}

/// Runs operations like those to be measured, without measuring them ([`Shared::stores_before`]).
fn store_before<A: Access>(shared: &Shared<'_, A>, local: &mut A::Local, sequence: &mut Sequence) -> Result<()> {
    let end = Instant::now() + shared.stores_before;
    while Instant::now() < end && !shared.failed.load(Relaxed) {
        operate(shared, local, sequence)?;
    }
    Ok(())
}

#[inline]
fn operate<A: Access>(shared: &Shared<'_, A>, local: &mut A::Local, sequence: &mut Sequence) -> Result<()> {
    let page = shared.access.next_page(local, sequence)?;
    match shared.op {
        Op::Read => shared.access.read(local, page),
        Op::Write => shared.access.write(local, page, shared.shadow),
        Op::Rmw => shared.access.rmw(local, page, shared.shadow),
    }
}

/// A histogram with three significant digits, from 1 ns to a minute. Counts of 32 bits suffice for a thread, which makes fewer than 2^32 operations
/// in a run. In the sum of all threads, a count that would be higher stays at 2^32 - 1. The total number of operations has 64 bits.
pub fn histogram() -> Histogram<u32> {
    Histogram::new_with_bounds(1, LONGEST_NS, 3).expect("constant bounds are legal")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shadow_knows_the_last_store_and_nothing_else() {
        let shadow = Shadow::new(3, 10);
        shadow.check(4, 0).unwrap();
        shadow.check(4, 3 << 32).unwrap();
        assert!(shadow.check(4, (3 << 32) + 1).is_err(), "a generation of this run that nobody stored");
        assert_eq!(shadow.next(4), (3 << 32) + 1);
        assert_eq!(shadow.next(4), (3 << 32) + 2);
        shadow.check(4, (3 << 32) + 2).unwrap();
        assert!(shadow.check(4, (3 << 32) + 1).is_err(), "the last store was lost");
        assert!(shadow.check(4, 0).is_err());
        shadow.check(5, 0).unwrap();
    }
}
