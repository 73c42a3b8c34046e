//! The measuring loop of updates: a number of operations, or as many as there is time for, then the flush, each timed by itself.

use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Barrier};
use std::thread;
use std::time::{Duration, Instant};

use hdrhistogram::Histogram;
use rand::{RngExt, SeedableRng};
use rand_pcg::Pcg64Mcg;

use super::engine::Mapped;
use super::lines::{self, LINE};
use super::{Order, Outcome, RECORD, RECORD_LINES, Work, check};
use crate::substrates::engine::Cached;
use crate::substrates::measure::{Shadow, histogram};
use crate::substrates::pattern::Scatter;
use crate::substrates::{Meter, Reading, Result, Sequence};

/// What the threads of a run share.
struct Shared<'a> {
    mapped: &'a Mapped<'a>,
    work: Work,
    shadow: &'a Shadow,
    /// Passed twice: when all are warm, and when the clock runs.
    barrier: Barrier,
    failed: AtomicBool,
    /// The operations take no longer than this, those before them neither.
    most: Duration,
}

/// What a thread does next, and where.
enum Steps {
    /// Each page once.
    Pages { order: Arc<Scatter>, next: u64 },
    /// Reads and updates of its own records, half and half.
    Records { sequence: Sequence, coin: Pcg64Mcg },
}

/// Runs the order's load over `mapped`, counting every store in `shadow`.
///
/// # Errors
///
/// The first operation that fails or finds a wrong byte, which stops all threads; what the flush answers.
pub fn measure(order: &Order, mapped: &Mapped<'_>, shadow: &Shadow, meter: &Meter) -> Result<(Reading, Outcome)> {
    let threads = u64::from(order.load.threads);
    let shared = Shared {
        mapped,
        work: order.load.work,
        shadow,
        barrier: Barrier::new(threads as usize + 1),
        failed: AtomicBool::new(false),
        most: Duration::from_secs_f64(order.load.seconds),
    };
    let part = |all: u64, thread: u64| all * thread / threads..all * (thread + 1) / threads;
    let steps = steps(order, |thread| part(order.load.ops, thread).start);
    thread::scope(|scope| {
        let running: Vec<_> = (0..threads)
            .zip(steps)
            .map(|(thread, steps)| {
                let count = |all| part(all, thread).count() as u64;
                let (warmup, ops, shared) = (count(order.load.warmup), count(order.load.ops), &shared);
                scope.spawn(move || one_thread(shared, steps, warmup, ops))
            })
            .collect();
        shared.barrier.wait();
        let stats = mapped.cached.as_ref().map(Cached::stats);
        let synchronised = mapped.synchronised.load(Relaxed);
        let open = meter.start(&order.path);
        let start = open.at;
        shared.barrier.wait();
        let ended: Vec<Result<(Instant, Histogram<u32>)>> =
            running.into_iter().map(|t| t.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))).collect();
        let (mut window, mut latency) = (Duration::ZERO, histogram());
        for one in ended {
            let (end, histogram) = one?;
            window = window.max(end - start);
            latency.add(histogram).expect("all histograms have the same bounds");
        }
        let flush = Instant::now();
        mapped.flush()?;
        let flush = flush.elapsed();
        // Processor time and the device's work of the flush are the operations' too.
        let ops = latency.len();
        let cached = mapped.cached.as_ref();
        let reading = open.end().counting(ops, window, Some(&latency));
        let reading = reading.cached(cached, stats.zip(cached.map(Cached::stats)), true);
        let outcome = Outcome {
            flush_seconds: flush.as_secs_f64(),
            flushed_ops_per_s: ops as f64 / (window + flush).as_secs_f64(),
            synchronised: mapped.synchronised.load(Relaxed) - synchronised,
        };
        Ok((reading, outcome))
    })
}

/// The threads' steps; `first` says where in the order of pages a thread begins.
fn steps(order: &Order, first: impl Fn(u64) -> u64) -> Vec<Steps> {
    let threads = u64::from(order.load.threads);
    if order.load.work == Work::Record {
        let sequences = Sequence::of_all(order.load.pattern, order.load.work.units(order.pages), threads, true);
        let coin = |thread: u64| Pcg64Mcg::seed_from_u64(0xc014_0000 + thread);
        return sequences
            .into_iter()
            .zip(0..)
            .map(|(sequence, n)| Steps::Records { sequence, coin: coin(n) })
            .collect();
    }
    let scatter = Arc::new(Scatter::over(order.pages));
    (0..threads).map(|thread| Steps::Pages { order: Arc::clone(&scatter), next: first(thread) }).collect()
}

fn one_thread(shared: &Shared<'_>, mut steps: Steps, warmup: u64, ops: u64) -> Result<(Instant, Histogram<u32>)> {
    let mut latency = histogram();
    let until = Instant::now() + shared.most;
    let warm = (0..warmup).take_while(|_| Instant::now() < until).try_for_each(|_| step(shared, &mut steps));
    shared.failed.fetch_or(warm.is_err(), Relaxed);
    shared.barrier.wait();
    shared.barrier.wait();
    warm?;
    let mut before = Instant::now();
    let until = before + shared.most;
    for _ in 0..ops {
        if shared.failed.load(Relaxed) || before >= until {
            break;
        }
        step(shared, &mut steps).inspect_err(|_| shared.failed.store(true, Relaxed))?;
        let now = Instant::now();
        latency.saturating_record((now - before).as_nanos() as u64);
        before = now;
    }
    Ok((before, latency))
}

/// One operation.
#[inline]
fn step(shared: &Shared<'_>, steps: &mut Steps) -> Result<()> {
    let Shared { mapped, shadow, .. } = *shared;
    match steps {
        Steps::Pages { order, next } => {
            let page = order.page_of(*next);
            *next += 1;
            let (line, generation) = (lines::target(page), shadow.next(page));
            let offset = line * LINE as u64;
            if shared.work == Work::Store8 {
                mapped.store_word(offset + lines::LAST as u64 * 8, generation);
            } else {
                let mut bytes = [0; LINE];
                lines::fill(&mut bytes, line, generation);
                mapped.store(offset, &bytes);
            }
        }
        Steps::Records { sequence, coin } => {
            let record = sequence.next_page();
            let (offset, line) = (record * RECORD as u64, record * RECORD_LINES);
            let mut bytes = [0; RECORD];
            if coin.random() {
                lines::fill(&mut bytes, line, shadow.next(record));
                mapped.store(offset, &bytes);
            } else {
                mapped.load(offset, &mut bytes)?;
                check(Work::Record, line, &bytes, shadow)?;
            }
        }
    }
    Ok(())
}
