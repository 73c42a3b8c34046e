//! redb as a buffer pool: a table from page numbers to records, which is read and updated through redb's own interface.
//!
//! A record is a page without 64 bytes of its body, so that it fits into one of redb's own pages of 4 KiB. A whole page would take two of
//! them, and redb's cache would hold half as many.

use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use redb::{Durability, ReadOnlyTable, ReadableTable, TableDefinition};

use crate::substrates::engine::Access;
use crate::substrates::measure::Shadow;
use crate::substrates::{Error, PAGE, Result, Spec, prepare, stamp};

const TABLE: TableDefinition<'static, u64, &'static [u8]> = TableDefinition::new("pages");

/// The bytes of a page that its record leaves out. They belong to the body.
const CUT: std::ops::Range<usize> = 24..88;

const RECORD: usize = PAGE - (CUT.end - CUT.start);

/// Records of each transaction that makes the database.
const BATCH: u64 = 4096;

/// Updates from one durable update to the next. redb frees pages only at durable updates, so its file would grow without bound if there
/// were none. One in so many costs little beside what redb writes anyway.
const DURABLE: u64 = 256;

/// The share of its memory that redb's own cache has. The rest is for the page cache, through which redb reads and writes. Without that
/// room each read would wait until the kernel has found some.
const OWN_SHARE: f64 = 0.75;

/// An open database.
pub struct Database {
    database: redb::Database,
    label: String,
    writes: bool,
    updates: AtomicU64,
}

/// Makes a database with the records of `pages` pages. `go_on` is asked before each transaction.
///
/// # Errors
///
/// [`Error::Refused`], or [`Error::Interrupted`] if `go_on` returns false.
pub fn make_database(path: &Path, label: &str, pages: u64, go_on: impl Fn() -> bool) -> Result<()> {
    let refused = |e: redb::Error| failed(label, &e);
    let database = redb::Database::create(path).map_err(|e| refused(e.into()))?;
    let mut bytes = vec![0; PAGE];
    let mut page = 0;
    while page < pages {
        if !go_on() {
            return Err(Error::Interrupted);
        }
        let transaction = database.begin_write().map_err(|e| refused(e.into()))?;
        {
            let mut table = transaction.open_table(TABLE).map_err(|e| refused(e.into()))?;
            for page in page..pages.min(page + BATCH) {
                prepare::stamp_page(&mut bytes, page);
                table.insert(page, record(&bytes).as_slice()).map_err(|e| refused(e.into()))?;
            }
        }
        transaction.commit().map_err(|e| refused(e.into()))?;
        page += BATCH;
    }
    Ok(())
}

/// The record of a page.
fn record(bytes: &[u8]) -> Vec<u8> {
    [&bytes[..CUT.start], &bytes[CUT.end..]].concat()
}

/// Checks the stamp in a record.
#[inline]
fn check(page: u64, record: &[u8]) -> Result<()> {
    stamp::check_stamp(page, |offset| {
        let at = if offset < CUT.start { offset } else { offset - (CUT.end - CUT.start) };
        let word = record.get(at..at + 8).and_then(|word| word.try_into().ok());
        word.map_or(0, u64::from_le_bytes)
    })
}

/// Checks every byte of a record except its generation. Returns the generation.
fn check_all(page: u64, record: &[u8]) -> Result<u64> {
    let mut bytes = vec![0; PAGE];
    stamp::fill(&mut bytes, page, stamp::FIRST_GENERATION);
    // A record of another length leaves zeros here, which are never right.
    let head = record.len().min(CUT.start);
    let tail = record.len().min(RECORD) - head;
    bytes[CUT.end..].fill(0);
    bytes[..head].copy_from_slice(&record[..head]);
    bytes[CUT.end..CUT.end + tail].copy_from_slice(&record[head..head + tail]);
    stamp::check_page(page, &bytes)
}

/// Reads every record back and checks every byte. Also checks that there is a record for each page.
///
/// # Errors
///
/// [`Error::Stamp`] or [`Error::Generation`] for the first wrong record, [`Error::Answer`] for a missing record, [`Error::Refused`].
pub fn read_back(spec: &Spec, capacity: usize, shadow: &Shadow) -> Result<()> {
    let refused = |e: redb::Error| failed(&spec.label, &e);
    let database = Database::open(spec, capacity)?;
    let table = database.table()?;
    let mut expected = 0..spec.pages;
    for entry in table.iter().map_err(|e| refused(e.into()))? {
        let (page, bytes) = entry.map_err(|e| refused(e.into()))?;
        let page = page.value();
        shadow.check(page, check_all(page, bytes.value())?)?;
        if expected.next() != Some(page) {
            return Err(missing(&spec.label, page));
        }
    }
    expected.next().map_or(Ok(()), |page| Err(missing(&spec.label, page)))
}

fn missing(label: &str, page: u64) -> Error {
    Error::Answer { thing: label.to_owned(), what: format!("the record of page {page} is not where it belongs") }
}

fn failed(label: &str, error: &redb::Error) -> Error {
    let remedy = "check the file and its device, or leave redb out of --engines";
    Error::Refused { thing: label.to_owned(), what: error.to_string(), remedy }
}

impl Database {
    /// Opens the spec's database. `capacity` is for its cache and the page cache together, bytes.
    pub fn open(spec: &Spec, capacity: usize) -> Result<Database> {
        let own = (capacity as f64 * OWN_SHARE) as usize;
        let database = redb::Builder::new().set_cache_size(own).open(&spec.path);
        let database = database.map_err(|e| failed(&spec.label, &e.into()))?;
        Ok(Database { database, label: spec.label.clone(), writes: spec.op.writes(), updates: AtomicU64::new(0) })
    }

    fn refused(&self, error: redb::Error) -> Error {
        failed(&self.label, &error)
    }

    fn table(&self) -> Result<ReadOnlyTable<u64, &'static [u8]>> {
        let transaction = self.database.begin_read().map_err(|e| self.refused(e.into()))?;
        transaction.open_table(TABLE).map_err(|e| self.refused(e.into()))
    }

    /// Updates a record in a transaction of its own. `change` turns the old record into the new one.
    fn update(&self, page: u64, change: impl FnOnce(&mut [u8]) -> Result<()>) -> Result<()> {
        let durable = (self.updates.fetch_add(1, Relaxed) + 1).is_multiple_of(DURABLE);
        self.transact(if durable { Durability::Immediate } else { Durability::None }, |table| {
            let mut bytes = match table.get(page).map_err(|e| self.refused(e.into()))? {
                Some(bytes) if bytes.value().len() == RECORD => bytes.value().to_vec(),
                _ => return Err(missing(&self.label, page)),
            };
            change(&mut bytes)?;
            table.insert(page, bytes.as_slice()).map(drop).map_err(|e| self.refused(e.into()))
        })
    }

    fn transact(
        &self,
        durability: Durability,
        work: impl FnOnce(&mut redb::Table<'_, u64, &'static [u8]>) -> Result<()>,
    ) -> Result<()> {
        let mut transaction = self.database.begin_write().map_err(|e| self.refused(e.into()))?;
        transaction.set_durability(durability);
        {
            let mut table = transaction.open_table(TABLE).map_err(|e| self.refused(e.into()))?;
            work(&mut table)?;
        }
        transaction.commit().map_err(|e| self.refused(e.into()))
    }
}

impl Access for Database {
    /// A table to read from, in a load that only reads. It shows the database as it was when the table was opened.
    type Local = Option<ReadOnlyTable<u64, &'static [u8]>>;

    fn local(&self) -> Result<Self::Local> {
        (!self.writes).then(|| self.table()).transpose()
    }

    #[inline]
    fn read(&self, local: &mut Self::Local, page: u64) -> Result<()> {
        let fresh;
        let table = match local {
            Some(table) => table,
            None => {
                fresh = self.table()?;
                &fresh
            }
        };
        let bytes = table.get(page).map_err(|e| self.refused(e.into()))?;
        check(page, bytes.ok_or_else(|| missing(&self.label, page))?.value())
    }

    fn write(&self, _local: &mut Self::Local, page: u64, shadow: &Shadow) -> Result<()> {
        self.update(page, |bytes| {
            stamp::set_generation(bytes, shadow.next(page));
            check(page, bytes)
        })
    }

    fn rmw(&self, _local: &mut Self::Local, page: u64, shadow: &Shadow) -> Result<()> {
        self.update(page, |bytes| {
            shadow.check(page, stamp::generation(bytes))?;
            stamp::set_generation(bytes, shadow.next(page));
            Ok(())
        })
    }

    fn fill(&self, _local: &mut Self::Local, page: u64, _last: bool, shadow: &Shadow) -> Result<()> {
        self.transact(Durability::None, |table| {
            let mut bytes = vec![0; PAGE];
            stamp::fill(&mut bytes, page, shadow.next(page));
            table.insert(page, record(&bytes).as_slice()).map(drop).map_err(|e| self.refused(e.into()))
        })
    }

    fn flush(&self) -> Result<()> {
        self.transact(Durability::Immediate, |_| Ok(()))
    }
}

/// Changes a byte of a record, which every check of the record finds.
#[cfg(test)]
pub fn damage(path: &Path, page: u64) {
    let database = redb::Database::open(path).unwrap();
    let transaction = database.begin_write().unwrap();
    {
        let mut table = transaction.open_table(TABLE).unwrap();
        let mut bytes = table.get(page).unwrap().unwrap().value().to_vec();
        *bytes.last_mut().unwrap() ^= 1;
        table.insert(page, bytes.as_slice()).unwrap();
    }
    transaction.commit().unwrap();
}
