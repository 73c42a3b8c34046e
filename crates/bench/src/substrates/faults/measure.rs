//! The measuring loop. If memory is to be full, [`WARMERS`] threads fill it first. Then the threads that are measured touch pages. Each of
//! them has pages of its own, and touches each page once a round.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Barrier, OnceLock};
use std::thread;
use std::time::{Duration, Instant};

use hdrhistogram::Histogram;

use super::usage::{Threads, Time};
use super::{Order, Outcome, Room};
use crate::substrates::engine::{Access, Cached, Load};
use crate::substrates::measure::{Shadow, histogram};
use crate::substrates::pattern::Scatter;
use crate::substrates::{Error, Hits, Meter, Op, Reading, Result, sys};

/// The name of the threads that operate, for other tools that look at them.
const LOAD_THREAD: &str = "load";

/// Threads that fill memory before the window. They are enough to keep a disk busy.
const WARMERS: u64 = 16;

/// Memory is filled for at most so many times the seconds to be measured.
const LONGEST_WARMUP: f64 = 4.0;

/// A load on one engine.
pub struct Measure<'a> {
    pub order: &'a Order,
    pub shadow: &'a Shadow,
    pub meter: &'a Meter,
}

/// State that the threads of a run share.
struct Window {
    /// Passed twice: when all threads are there, and when the window's end is set.
    barrier: Barrier,
    end: OnceLock<Instant>,
    failed: AtomicBool,
}

impl Window {
    /// Waits until the window is open. Returns its end.
    fn open(&self) -> Instant {
        self.barrier.wait();
        self.barrier.wait();
        *self.end.get().expect("set between the two")
    }
}

/// The result of one thread.
struct Driven {
    tid: u32,
    end: Instant,
    latency: Histogram<u32>,
    used: Threads,
}

impl Load for Measure<'_> {
    type Output = (Reading, Outcome);

    fn over<A: Access>(self, access: &A, cached: Option<&Cached<'_>>) -> Result<(Reading, Outcome)> {
        let spec = &self.order.spec;
        let scatter = Scatter::over(spec.pages);
        let warm = super::warmup(self.order);
        let filled = self.warm_up(access, &scatter, warm)?;

        let threads = u64::from(spec.threads);
        let window = Window {
            barrier: Barrier::new(spec.threads as usize + 1),
            end: OnceLock::new(),
            failed: AtomicBool::new(false),
        };
        let drive = |thread: u64| {
            let (local, latency) = (access.local(), histogram());
            let end = window.open();
            let driven = local.and_then(|mut local| {
                self.drive(
                    access,
                    &mut local,
                    &scatter,
                    (thread, threads, warm / threads),
                    latency,
                    (end, &window.failed),
                )
            });
            driven.inspect_err(|_| window.failed.store(true, Relaxed))
        };
        let drive = &drive;
        thread::scope(|scope| {
            let named = || thread::Builder::new().name(LOAD_THREAD.to_owned());
            let spawn =
                |thread| named().spawn_scoped(scope, move || drive(thread)).expect("the system has a thread to give");
            let spawned: Vec<_> = (0..threads).map(spawn).collect();
            // Counters are read while every thread stands still. Otherwise the threads could already work, and change the counters, while this
            // thread waits for a processor.
            window.barrier.wait();
            let stats = cached.map(Cached::stats);
            let open = self.meter.start(&spec.path);
            let start = open.at;
            window.end.get_or_init(|| start + self.seconds());
            window.barrier.wait();
            let driven: Vec<Result<Driven>> = spawned.into_iter().map(join).collect();
            let closed = open.end();
            let stats = stats.zip(cached.map(Cached::stats));
            let (mut length, mut latency, mut used) = (Duration::ZERO, histogram(), Threads::default());
            let mut load_tids = Vec::new();
            for one in driven {
                let one = one?;
                length = length.max(one.end - start);
                latency.add(one.latency).expect("all histograms have the same bounds");
                used.add(one.used);
                load_tids.push(one.tid);
            }
            if spec.op.writes() {
                access.flush()?;
            }
            let ops = latency.len();
            let trapped = |(before, after)| {
                let hits = Hits::between(&before, &after, ops);
                (hits.misses + after.ahead_chunks - before.ahead_chunks) as f64
            };
            let whole = Duration::from_secs_f64(closed.user_s + closed.system_s);
            let mut reading = closed.counting(ops, length, Some(&latency)).cached(cached, stats, spec.op.writes());
            if self.order.hole {
                // No device takes part.
                reading.device = None;
            }
            let outcome = Outcome {
                pid: std::process::id(),
                load_tids,
                filled,
                faults_per_op: stats.map_or(reading.faults as f64, trapped) / ops.max(1) as f64,
                time: Time::of(spec.threads, length, used, whole),
            };
            Ok((reading, outcome))
        })
    }
}

impl Measure<'_> {
    /// Touches the first `count` pages in the order of `scatter`, with [`WARMERS`] threads. Returns false if that took too long.
    fn warm_up<A: Access>(&self, access: &A, scatter: &Scatter, count: u64) -> Result<bool> {
        let (next, deadline) = (AtomicU64::new(0), Instant::now() + self.seconds().mul_f64(LONGEST_WARMUP));
        let warm = || -> Result<bool> {
            let mut local = access.local()?;
            loop {
                let rank = next.fetch_add(1, Relaxed);
                if rank >= count {
                    return Ok(true);
                }
                if rank.is_multiple_of(64) && Instant::now() >= deadline {
                    // The other threads stop, too.
                    next.fetch_max(count, Relaxed);
                    return Ok(false);
                }
                self.operate(access, &mut local, scatter.page_of(rank))?;
            }
        };
        if count == 0 {
            return Ok(true);
        }
        thread::scope(|scope| {
            let warmers: Vec<_> = (0..WARMERS).map(|_| scope.spawn(warm)).collect();
            warmers.into_iter().try_fold(true, |all, warmer| Ok(join(warmer)? && all))
        })
    }

    /// The part of `thread`, one of `threads` threads. It touches its own pages in the order of `scatter`, round and round, and begins with its
    /// page number `first`. It ends when time is up or, if the data fit, when each of its pages was touched once.
    fn drive<A: Access>(
        &self,
        access: &A,
        local: &mut A::Local,
        scatter: &Scatter,
        (thread, threads, first): (u64, u64, u64),
        mut latency: Histogram<u32>,
        (deadline, failed): (Instant, &AtomicBool),
    ) -> Result<Driven> {
        let own = self.order.spec.pages / threads;
        let ends = match self.order.room {
            Room::InMemory => own,
            Room::OutOfMemory => u64::MAX,
        };
        let used = Threads::of_this();
        let mut before = Instant::now();
        for index in 0..ends {
            let rank = (first + index) % own * threads + thread;
            self.operate(access, local, scatter.page_of(rank))?;
            let now = Instant::now();
            latency.saturating_record((now - before).as_nanos() as u64);
            before = now;
            if now >= deadline || failed.load(Relaxed) {
                break;
            }
        }
        Ok(Driven { tid: sys::thread_id(), end: before, latency, used: Threads::of_this().since(used) })
    }

    #[inline]
    fn operate<A: Access>(&self, access: &A, local: &mut A::Local, page: u64) -> Result<()> {
        match (self.order.hole, self.order.spec.op) {
            (false, Op::Read) => access.read(local, page),
            (false, Op::Write) => access.write(local, page, self.shadow),
            (false, Op::Rmw) => access.rmw(local, page, self.shadow),
            // No stamp begins with a zero word, so a page of zeros fails the check with a zero word. That is the right answer in a hole.
            (true, _) => match access.read(local, page) {
                Err(Error::Stamp { found: 0, .. }) => Ok(()),
                Ok(()) => Err(Error::Foreign { thing: self.order.spec.label.clone() }),
                other => other,
            },
        }
    }

    fn seconds(&self) -> Duration {
        Duration::from_secs_f64(self.order.spec.seconds)
    }
}

fn join<T>(thread: thread::ScopedJoinHandle<'_, T>) -> T {
    thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
}
