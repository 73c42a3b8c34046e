//! TPC-H over MonetDB, an engine that maps the files of its tables and that nobody changes: one process opens a database,
//! cold, and answers queries one after the other.
//!
//! The process is on kernel mmap, or under `fastmap run`, and cannot tell. What MonetDB maps, and so what FastMap serves, are
//! the columns and heaps of tables from 256 KiB on, shared and writable, and intermediate results from a sixteenth of the memory
//! on that it may use. Smaller ones are on its heap, and count against the same limit.

use std::path::PathBuf;
use std::time::Instant;

use serde::{Deserialize, Serialize};

use crate::substrates::{Meter, Reading, Result};

mod monetdb;
mod queries;
mod tables;
#[cfg(test)]
mod tests;

pub use monetdb::{Database, Rows, check as check_monetdb, usual_folder};
pub use queries::{QUERIES, difference, from_official, query};
pub use tables::TEXT_BYTES;

/// A database to make.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Load {
    /// Where MonetDB is.
    pub monetdb: PathBuf,
    /// The database's directory; not there yet.
    pub database: PathBuf,
    /// A directory for the tables as text, each until it is loaded.
    pub scratch: PathBuf,
    /// TPC-H's scale factor: 1 is 6 million rows of LINEITEM.
    pub scale: f64,
    /// MonetDB's threads.
    pub threads: u32,
}

/// What was loaded.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub struct Loaded {
    /// Seconds it took.
    pub seconds: f64,
    /// Bytes of the tables as text.
    pub text_bytes: u64,
}

/// Queries to answer.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Order {
    /// Where MonetDB is.
    pub monetdb: PathBuf,
    /// The database's directory. Opening it writes to it.
    pub database: PathBuf,
    /// MonetDB's threads.
    pub threads: u32,
    /// Which, from 1 to 22, in this order.
    pub queries: Vec<u32>,
}

/// What came of it.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Outcome {
    /// To open the database.
    pub open_seconds: f64,
    /// Of each query, in order.
    pub answers: Vec<Answer>,
    /// All queries together; operations are queries.
    pub all: Reading,
}

/// One query's.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Answer {
    /// Its number.
    pub query: u32,
    /// From the question to the last column fetched.
    pub seconds: f64,
    /// All of it.
    pub rows: Rows,
}

/// Makes a database.
///
/// # Errors
///
/// No MonetDB, no room, or what MonetDB says.
pub fn load(order: &Load) -> Result<Loaded> {
    let began = Instant::now();
    let database = Database::open(&order.monetdb, &order.database, order.threads)?;
    let text_bytes = tables::load(&database, &order.scratch, order.scale)?;
    database.close()?;
    // What was loaded is in MonetDB's log until it is opened once more: the first run would read all of it there.
    Database::open(&order.monetdb, &order.database, order.threads)?.close()?;
    Ok(Loaded { seconds: began.elapsed().as_secs_f64(), text_bytes })
}

/// Opens the database and answers the queries; `peak` tells the most memory used so far.
///
/// # Errors
///
/// No MonetDB, or what it says.
pub fn run(order: &Order, meter: &Meter) -> Result<Outcome> {
    let began = Instant::now();
    let database = Database::open(&order.monetdb, &order.database, order.threads)?;
    let open_seconds = began.elapsed().as_secs_f64();
    let open = meter.start(&order.database);
    let start = open.at;
    let mut answers = Vec::new();
    for &number in &order.queries {
        let began = Instant::now();
        let rows = database.query(query(number))?;
        answers.push(Answer { query: number, seconds: began.elapsed().as_secs_f64(), rows });
    }
    let window = start.elapsed();
    let all = open.end().counting(answers.len() as u64, window, None);
    meter.let_go();
    database.close()?;
    Ok(Outcome { open_seconds, answers, all })
}
