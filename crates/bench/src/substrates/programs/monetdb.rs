//! MonetDB as one of the programs: a process of this command's that holds MonetDB, unchanged, and is told and says what `program.h` has.
//!
//! Its data are a database with the tables of TPC-H. A batch is the 22 queries, one after the other, since they differ too much for a window
//! to hold some of them. All runs work on one database: while it is made the queries are answered once, so that the indexes that they leave
//! in it are there from the first run on.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use super::*;
use crate::substrates::olap::{self, Load, QUERIES, query};

/// What the command is called, which is not for people.
pub const NAME: &str = "monetdb";

/// TPC-H has no smaller tables.
const LEAST_SCALE: f64 = 0.01;

/// Does what the words say: the folder of MonetDB, and then as in `program.h`.
///
/// # Errors
///
/// Other words, or what MonetDB says.
pub fn main(words: &[String]) -> Result<()> {
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    match words[..] {
        [monetdb, "make", data, bytes] if bytes.parse::<u64>().is_ok() => {
            make_tables(monetdb.as_ref(), data.as_ref(), bytes.parse().unwrap_or_default())
        }
        [monetdb, "run", data, seconds, ref warm @ ..] if warm.is_empty() || warm == ["warm"] => {
            work(monetdb.as_ref(), data.as_ref(), seconds.parse().unwrap_or(1.0), !warm.is_empty())
        }
        _ => Err(Error::Refused {
            thing: NAME.to_owned(),
            what: words.join(" "),
            remedy: "it is started by `fastmap bench programs`, not by hand",
        }),
    }
}

fn database(data: &Path) -> PathBuf {
    data.join("database")
}

fn threads() -> u32 {
    thread::available_parallelism().map_or(1, |n| n.get() as u32)
}

/// The columns of a database take about as much as the tables do as text.
fn make_tables(monetdb: &Path, data: &Path, bytes: u64) -> Result<()> {
    let scale = (bytes as f64 / olap::TEXT_BYTES).max(LEAST_SCALE);
    let (monetdb, database, scratch) = (monetdb.to_owned(), database(data), data.to_owned());
    olap::load(&Load { monetdb: monetdb.clone(), database: database.clone(), scratch, scale, threads: threads() })?;
    let opened = olap::Database::open(&monetdb, &database, threads())?;
    round(&opened)?;
    opened.close()
}

/// A batch: all queries; the sum of their answers.
fn round(database: &olap::Database) -> Result<u64> {
    let mut sum = DefaultHasher::new();
    for number in 1..=QUERIES {
        database.query(query(number))?.hash(&mut sum);
    }
    Ok(sum.finish())
}

fn work(monetdb: &Path, data: &Path, seconds: f64, warm: bool) -> Result<()> {
    let database = olap::Database::open(monetdb, &database(data), threads())?;
    let mut sums = Vec::new();
    // Operations are queries.
    let mut rounds = |done: &dyn Fn(f64) -> bool| -> Result<String> {
        let (began, before) = (Instant::now(), sums.len());
        loop {
            sums.push(format!("{:x}", round(&database)?));
            let took = began.elapsed().as_secs_f64();
            if done(took) {
                return Ok(format!("{} {took:.9}", (sums.len() - before) * QUERIES as usize));
            }
        }
    };
    let timed = |took: f64| took >= seconds;
    if warm {
        say("start");
        say(&format!("cold {}", rounds(&timed)?));
        static TOLD: AtomicBool = AtomicBool::new(false);
        thread::spawn(|| {
            // The end of the bench tells it, too.
            let _ = io::stdin().read_line(&mut String::new());
            TOLD.store(true, Relaxed);
        });
        rounds(&|_| TOLD.load(Relaxed))?;
    }
    say("begin");
    let last = rounds(&timed)?;
    say(&format!("end {last} {}", sums.join(" ")));
    database.close()
}

fn say(line: &str) {
    fastmap_cli::print(&format!("{line}\n"));
}
