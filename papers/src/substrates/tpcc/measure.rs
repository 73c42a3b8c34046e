//! The terminals of a run: warm up together, then count for a given time.

use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Barrier, OnceLock};
use std::thread;
use std::time::{Duration, Instant};

use hdrhistogram::Histogram;

use super::check::Tally;
use super::database::Database;
use super::input::Terminal;
use super::transactions::{Answer, Transaction};
use super::{Order, now};
use crate::substrates::measure::histogram;
use crate::substrates::{LatencyUs, Meter, Reading, Result};

/// Figures of the time that counts, but for `ever`, `rolled_back` and `tally`, which are of all the time.
pub struct Measured {
    /// Of the window; operations are transactions.
    pub reading: Reading,
    /// New orders in it that were not rolled back.
    pub ordered: u64,
    /// Of each kind.
    pub kinds: Vec<LatencyUs>,
    /// Transactions with the warm-up.
    pub ever: u64,
    /// Of these, new orders rolled back.
    pub rolled_back: u64,
    /// What the tables must hold then.
    pub tally: Tally,
}

/// What the threads share.
struct Shared<'a> {
    database: &'a Database,
    warm_until: Instant,
    /// Passed twice: when all are warm, and when the end is set.
    barrier: Barrier,
    end: OnceLock<Instant>,
    failed: AtomicBool,
}

/// What a thread did.
struct Done {
    end: Instant,
    kinds: [Histogram<u32>; 5],
    /// New orders that count.
    ordered: u64,
    ever: u64,
    rolled_back: u64,
    tally: Tally,
}

/// Runs transactions over the database.
///
/// # Errors
///
/// The first transaction that finds a wrong row, which stops all threads.
pub fn measure(order: &Order, database: &Database, meter: &Meter) -> Result<Measured> {
    let shared = Shared {
        database,
        warm_until: Instant::now() + Duration::from_secs_f64(order.warmup),
        barrier: Barrier::new(order.threads as usize + 1),
        end: OnceLock::new(),
        failed: AtomicBool::new(false),
    };
    thread::scope(|scope| {
        let terminal = |number| Terminal::new(order.scale, number, order.threads, order.seed);
        let shared = &shared;
        let threads: Vec<_> =
            (0..order.threads).map(|number| scope.spawn(move || one_thread(shared, terminal(number)))).collect();
        shared.barrier.wait();
        let open = meter.start(&order.device);
        let start = open.at;
        shared.end.get_or_init(|| start + Duration::from_secs_f64(order.seconds));
        shared.barrier.wait();
        let done: Vec<Result<Done>> =
            threads.into_iter().map(|t| t.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))).collect();
        let closed = open.end();
        let mut done = done.into_iter().collect::<Result<Vec<Done>>>()?.into_iter();
        let mut sum = done.next().expect("at least one thread");
        for one in done {
            sum.end = sum.end.max(one.end);
            for (kind, more) in sum.kinds.iter_mut().zip(one.kinds) {
                kind.add(more).expect("all histograms have the same bounds");
            }
            sum.ordered += one.ordered;
            sum.ever += one.ever;
            sum.rolled_back += one.rolled_back;
            sum.tally = sum.tally.and(one.tally);
        }
        let mut all = histogram();
        sum.kinds.iter().for_each(|kind| all.add(kind).expect("all histograms have the same bounds"));
        Ok(Measured {
            reading: closed.counting(all.len(), sum.end - start, Some(&all)),
            ordered: sum.ordered,
            kinds: sum.kinds.iter().map(LatencyUs::of).collect(),
            ever: sum.ever,
            rolled_back: sum.rolled_back,
            tally: sum.tally,
        })
    })
}

fn one_thread(shared: &Shared<'_>, mut terminal: Terminal) -> Result<Done> {
    let mut done = Done {
        end: Instant::now(),
        kinds: std::array::from_fn(|_| histogram()),
        ordered: 0,
        ever: 0,
        rolled_back: 0,
        tally: Tally::default(),
    };
    let warm = until(shared, shared.warm_until, &mut terminal, &mut done);
    shared.failed.fetch_or(warm.is_err(), Relaxed);
    shared.barrier.wait();
    shared.barrier.wait();
    warm?;
    done.kinds.iter_mut().for_each(|kind| kind.reset());
    done.ordered = 0;
    let end = *shared.end.get().expect("set between the two barriers");
    let counted = until(shared, end, &mut terminal, &mut done);
    shared.failed.fetch_or(counted.is_err(), Relaxed);
    done.end = Instant::now();
    counted.map(|()| done)
}

/// Runs one thread's transactions until some time; one at least.
fn until(shared: &Shared<'_>, end: Instant, terminal: &mut Terminal, done: &mut Done) -> Result<()> {
    loop {
        let (kind, transaction) = terminal.next();
        let (date, begun) = (now(), Instant::now());
        let answer = shared.database.run(&transaction, date)?;
        let ended = Instant::now();
        done.kinds[kind as usize].saturating_record((ended - begun).as_nanos() as u64);
        done.ever += 1;
        done.count(&transaction, &answer);
        if ended >= end || shared.failed.load(Relaxed) {
            return Ok(());
        }
    }
}

impl Done {
    fn count(&mut self, transaction: &Transaction, answer: &Answer) {
        let tally = &mut self.tally;
        match (transaction, answer) {
            (_, Answer::Ordered { .. }) => {
                tally.ordered += 1;
                self.ordered += 1;
            }
            (_, Answer::RolledBack) => self.rolled_back += 1,
            (_, Answer::Delivered(orders)) => tally.delivered += u64::from(*orders),
            (Transaction::Payment { amount, .. }, _) => {
                tally.payments += 1;
                tally.paid += amount;
            }
            _ => {}
        }
    }
}
