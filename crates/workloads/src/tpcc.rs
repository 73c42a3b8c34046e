//! TPC-C in memory: the transactions of an order-entry business over tables on the program's ordinary heap, as Silo has them.
//!
//! One call of [`run`] is one measurement in the calling process: it fills the tables, runs transactions for some time, and
//! checks that the database is what they must leave. Whether the heap is in memory or in a file, and who pages it, is
//! decided by whoever starts the process (`fastmap run --heap`); nothing here knows of it but for the advice that kernel mmap is
//! given.

mod check;
mod database;
mod input;
mod load;
mod measure;
mod random;
mod rows;
mod table;
#[cfg(test)]
mod testing;
mod times;
mod transactions;

use std::path::PathBuf;
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use serde::{Deserialize, Serialize};

pub use database::Scale;
pub use times::Times;

use crate::spec::names;
use crate::{DeviceReport, Result, heap};

/// Who pages the heap.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Engine {
    /// The kernel: a file it maps, without advice.
    Mmap,
    /// The same with `MADV_RANDOM`.
    MmapRandom,
    /// This project.
    Fastmap,
}

names!(Engine, "engine", { Mmap => "mmap", MmapRandom => "mmap-random", Fastmap => "fastmap" });

impl Engine {
    /// Whether this is kernel mmap, with whatever advice.
    pub fn is_mmap(self) -> bool {
        self != Engine::Fastmap
    }
}

/// The five transactions.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Kind {
    /// Of 5 to 15 items; 1 in 100 rolls back.
    NewOrder,
    /// Of a customer, 15 in 100 of another warehouse.
    Payment,
    /// The last order of a customer.
    OrderStatus,
    /// The oldest order of each district.
    Delivery,
    /// The items of a district's last 20 orders.
    StockLevel,
}

names!(Kind, "transaction", {
    NewOrder => "new-order", Payment => "payment", OrderStatus => "order-status", Delivery => "delivery",
    StockLevel => "stock-level",
});

impl Kind {
    /// All of them.
    pub const ALL: [Kind; 5] = [Kind::NewOrder, Kind::Payment, Kind::OrderStatus, Kind::Delivery, Kind::StockLevel];
}

/// One run.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Order {
    /// Who pages the heap: what the process was started for.
    pub engine: Engine,
    /// How large the tables are.
    pub scale: Scale,
    /// Threads, each a terminal without thinking time.
    pub threads: u32,
    /// Seconds of transactions before those that count.
    pub warmup: f64,
    /// Seconds that count.
    pub seconds: f64,
    /// Which of the random sequences.
    pub seed: u64,
    /// A block device, or a file on it, whose requests are counted.
    pub device: PathBuf,
}

/// Latencies of some transactions, microseconds.
#[derive(Debug, Clone, Copy, Default, Serialize, Deserialize)]
pub struct Latency {
    /// How many there were.
    pub count: u64,
    /// On average.
    pub mean: f64,
    /// Half of them took no longer.
    pub p50: f64,
    /// 99 % took no longer.
    pub p99: f64,
    /// 99.9 % took no longer.
    pub p999: f64,
    /// The longest.
    pub max: f64,
}

/// What one run gave.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct Outcome {
    /// Transactions a second, of all kinds.
    pub transactions_per_s: f64,
    /// New orders a minute, those that rolled back left out: the specification's tpmC, but for its rules of thinking time and
    /// durability.
    pub new_orders_per_min: f64,
    /// Of all transactions.
    pub latency_us: Latency,
    /// Of each kind, in the order of [`Kind::ALL`].
    pub kinds: Vec<Latency>,
    /// Where the processors' time went.
    pub times: Times,
    /// Faults that waited for a read, as the kernel counts them: none of FastMap's.
    pub major_faults: u64,
    /// Transactions that count and those before.
    pub transactions: u64,
    /// New orders that rolled back, of all.
    pub rolled_back: u64,
    /// Seconds it took to fill the tables.
    pub load_seconds: f64,
    /// Seconds it took to check them.
    pub check_seconds: f64,
    /// Rows in them when they were checked.
    pub rows: u64,
    /// The memory cgroup's peak; without a cgroup, the process's peak resident set.
    pub peak_rss_bytes: u64,
    /// What the device under the heap did while it counted.
    pub device: Option<DeviceReport>,
}

/// Runs `order` in this process. `peak` is asked for the peak of memory once, at the end.
///
/// # Errors
///
/// A row that is not as it was left, be it met by a transaction or when all are checked at the end; a condition of
/// consistency that does not hold; advice that the kernel refuses.
pub fn run(order: &Order, peak: impl FnOnce() -> u64) -> Result<Outcome> {
    let begun = Instant::now();
    let database = load::load(order.scale, order.threads)?;
    // Any large block leads to the mapping that all of them are in.
    let block = database.items.first_row().cast();
    if order.engine == Engine::MmapRandom {
        heap::advise_random(block)?;
    }
    let load_seconds = begun.elapsed().as_secs_f64();
    let measured = measure::measure(order, &database)?;
    let begun = Instant::now();
    if order.engine == Engine::MmapRandom {
        // The check goes from one end to the other.
        heap::advise_normal(block)?;
    }
    let rows = check::check(&database, measured.tally, order.threads)?;
    Ok(Outcome {
        transactions_per_s: measured.transactions as f64 / measured.window,
        new_orders_per_min: measured.ordered as f64 / measured.window * 60.0,
        latency_us: measured.latency,
        kinds: measured.kinds,
        times: measured.times,
        major_faults: measured.major_faults,
        transactions: measured.ever,
        rolled_back: measured.rolled_back,
        load_seconds,
        check_seconds: begun.elapsed().as_secs_f64(),
        rows,
        peak_rss_bytes: peak(),
        device: measured.device,
    })
}

/// Microseconds since 1970.
fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_micros() as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_run_says_what_it_did() {
        let order = Order {
            engine: Engine::Mmap,
            scale: testing::SMALL,
            threads: 3,
            warmup: 0.05,
            seconds: 0.2,
            seed: 1,
            device: PathBuf::from("."),
        };
        let outcome = run(&order, || 77).unwrap();
        assert!(outcome.transactions_per_s > 0.0 && outcome.new_orders_per_min > 0.0);
        assert_eq!((outcome.kinds.len(), outcome.peak_rss_bytes), (5, 77));
        assert_eq!(outcome.kinds.iter().map(|kind| kind.count).sum::<u64>(), outcome.latency_us.count);
        assert!(outcome.transactions >= outcome.latency_us.count);
        assert!(outcome.latency_us.p50 <= outcome.latency_us.p99 && outcome.latency_us.mean > 0.0);
        assert!(outcome.rows > 10_000);
    }
}
