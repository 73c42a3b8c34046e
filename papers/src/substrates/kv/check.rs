//! What a run left behind, read by a process that had no part in it, through kernel mmap and with all memory there is.

use std::fs::File;
use std::io::{self, Read};
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use serde::{Deserialize, Serialize};

use super::ledger::Ledger;
use super::{Kind, Order, Store, engine, failed, files_of, ledger_of, parts, store_of};
use crate::substrates::{Engine, Error, Result, ycsb};

/// What was found in order.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Checked {
    /// Records of both stores.
    pub records: u64,
    /// Bytes of the first store's files.
    pub bytes: u64,
}

/// Reads both stores of a run in the order of keys: each record must be there once, with its last version, and no other.
///
/// # Errors
///
/// The first record that is wrong or missing, or a store that cannot be opened.
pub fn check(order: &Order) -> Result<Checked> {
    let order = Order { engine: Engine::Mmap, ..order.clone() };
    let mut checked = Checked { records: 0, bytes: 0 };
    for (part, _) in parts() {
        let path = store_of(&order.dir, part);
        let bytes = read_ahead(&path)?;
        checked.bytes = if checked.bytes == 0 { bytes } else { checked.bytes };
        let versions = Ledger::read(&ledger_of(&order.dir, part))?;
        let store = engine::open(&order, &path, false)?;
        checked.records += compare(order.store, &*store, &versions)?;
    }
    Ok(checked)
}

/// Reads every file into the page cache, since the scan follows no file's order. Returns how much there is on the device.
fn read_ahead(path: &Path) -> Result<u64> {
    let mut sum = 0;
    for file in files_of(path)? {
        let read = File::open(&file).and_then(|opened| {
            // LMDB's file reaches as far as its map; behind the data is a hole.
            let bytes = opened.metadata()?.blocks() * 512;
            io::copy(&mut opened.take(bytes), &mut io::sink())?;
            Ok(bytes)
        });
        sum += read.map_err(|source| failed(&file, "cannot be read", source))?;
    }
    Ok(sum)
}

/// Compares a store with the versions its records must have; returns how many there are.
pub(super) fn compare(kind: Kind, store: &dyn Store, versions: &[u32]) -> Result<u64> {
    let mut missing: Vec<u32> = versions.to_vec();
    let (mut records, mut fault) = (0u64, None);
    let mut before: Vec<u8> = Vec::new();
    store.scan(b"", &mut |key, value| {
        fault = match ycsb::check(value) {
            _ if !before.is_empty() && key <= &before[..] => Some(format!("gave {} out of order", key.escape_ascii())),
            Err(what) => Some(format!("{}: gave {what}", key.escape_ascii())),
            Ok((number, _)) if ycsb::key(number) != key => Some(format!("gave the value of record {number} elsewhere")),
            Ok((number, version)) => match missing.get_mut(number as usize) {
                Some(expected) if *expected == version => {
                    *expected = 0;
                    None
                }
                expected => {
                    let expected = expected.map_or(0, |expected| *expected);
                    Some(format!("record {number}: gave version {version} where {expected} is the last"))
                }
            },
        };
        before = key.to_vec();
        records += u64::from(fault.is_none());
        fault.is_none()
    })?;
    let answer = |what: String| Error::Answer { thing: kind.title().to_owned(), what: format!("in the end: {what}") };
    if let Some(fault) = fault {
        return Err(answer(fault));
    }
    match missing.iter().position(|version| *version != 0) {
        None => Ok(records),
        Some(number) => {
            Err(answer(format!("record {number} is missing, and {records} of {} are there", versions.len())))
        }
    }
}
