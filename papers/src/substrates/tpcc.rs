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
mod transactions;

use std::path::PathBuf;
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use serde::{Deserialize, Serialize};

pub use database::Scale;

use crate::substrates::{Engine, LatencyUs, Meter, Reading, Result, heap};
use fastmap_bench::names;

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

names!(Kind, "a transaction", {
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

/// What one run gave.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct Outcome {
    /// New orders a minute, without those that rolled back.
    pub new_orders_per_min: f64,
    /// Latencies of each kind of transaction, as [`Kind::ALL`] has them.
    pub kinds: Vec<LatencyUs>,
    /// Transactions ever, the warm-up included.
    pub transactions: u64,
    /// New orders rolled back, of all of these.
    pub rolled_back: u64,
    /// To fill the tables.
    pub load_seconds: f64,
    /// To check them.
    pub check_seconds: f64,
    /// Rows checked at the end.
    pub rows: u64,
}

/// Runs `order` in this process. `peak` is asked for the peak of memory once, at the end.
///
/// # Errors
///
/// A row that is not as it was left, be it met by a transaction or when all are checked at the end; a condition of
/// consistency that does not hold; advice that the kernel refuses.
pub fn run(order: &Order, meter: &Meter) -> Result<(Reading, Outcome)> {
    let begun = Instant::now();
    let database = load::load(order.scale, order.threads)?;
    // Any large block leads to the mapping that all of them are in.
    let block = database.items.first_row().cast();
    if order.engine == Engine::MmapRandom {
        heap::advise_random(block)?;
    }
    let load_seconds = begun.elapsed().as_secs_f64();
    let measured = measure::measure(order, &database, meter)?;
    let begun = Instant::now();
    if order.engine == Engine::MmapRandom {
        // The check goes from one end to the other.
        heap::advise_normal(block)?;
    }
    let rows = check::check(&database, measured.tally, order.threads)?;
    let outcome = Outcome {
        new_orders_per_min: measured.ordered as f64 / measured.reading.seconds * 60.0,
        kinds: measured.kinds,
        transactions: measured.ever,
        rolled_back: measured.rolled_back,
        load_seconds,
        check_seconds: begun.elapsed().as_secs_f64(),
        rows,
    };
    Ok((measured.reading, outcome))
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
        let (reading, outcome) = run(&order, &Meter::default()).unwrap();
        assert!(reading.ops_per_s > 0.0 && outcome.new_orders_per_min > 0.0);
        assert!(outcome.kinds.len() == 5 && outcome.transactions >= reading.ops);
        assert!(reading.latency_us.is_some_and(|l| l.p50 <= l.p99 && l.mean > 0.0), "{reading:?}");
        assert!(outcome.rows > 10_000);
    }
}
