//! A store opened over an engine, and how much memory a cache may take beside it.

use std::path::Path;

use super::lmdb::Lmdb;
use super::rocksdb::{self, Rocksdb};
use super::{Kind, Order, Store, own};
use crate::substrates::{Engine, Error, PAGE, Result};

/// Bytes of a record: key and value.
pub const RECORD: u64 = (crate::substrates::ycsb::KEY + crate::substrates::ycsb::VALUE) as u64;

/// Opens an order's store in a directory, or makes it there.
pub fn open(order: &Order, path: &Path, make: bool) -> Result<Box<dyn Store>> {
    let mapped = mapped_bytes(order.store, order.most_records());
    match order.store {
        Kind::Own => own::open(order, &path.join("store"), mapped, make),
        Kind::Lmdb => Ok(Box::new(Lmdb::open(path, mapped, order.engine == Engine::MmapRandom)?)),
        Kind::Rocksdb => Ok(Box::new(Rocksdb::open(path, order.engine == Engine::MmapRandom)?)),
    }
}

/// Bytes that a store of so many records takes on the device, about.
pub fn stored_bytes(store: Kind, records: u64) -> u64 {
    let data = records * RECORD;
    match store {
        Kind::Own | Kind::Rocksdb => data + data / 16,
        // Records that came scattered leave pages half empty.
        Kind::Lmdb => data * 2,
    }
}

/// How much a store of so many records may map.
fn mapped_bytes(store: Kind, most_records: u64) -> u64 {
    let data = most_records * RECORD;
    let bytes = match store {
        // Records of 1040 bytes, nodes of 24 a record that are at least half full, a segment for each thread.
        Kind::Own => data + data / 8 + (64 << 20),
        // Two or three records a page, and pages that are free for a while.
        Kind::Lmdb => data * 4 + (64 << 20),
        // Tables before and after a compaction.
        Kind::Rocksdb => data * 2 + (64 << 20),
    };
    bytes.next_multiple_of(1 << 20)
}

/// Memory with room for all of a store, its bookkeeping and what it writes anew.
pub fn room_for(store: Kind, most_records: u64) -> u64 {
    mapped_bytes(store, most_records) * 5 / 4 + (256 << 20)
}

/// Capacity in bytes of a fastmap cache beside a store in a process that may use `memory` bytes for everything.
///
/// # Errors
///
/// [`Error::Memory`] with the least memory that works.
pub fn capacity_for(store: Kind, memory: u64, most_records: u64) -> Result<u64> {
    let pages = mapped_bytes(store, most_records) / PAGE as u64;
    // The versions; histograms and locks.
    let own = most_records * 4 + (1 << 20);
    let beside = own + if store == Kind::Rocksdb { rocksdb::MEMORY } else { 0 };
    let capacity = crate::substrates::capacity_for(memory.saturating_sub(beside), pages, false);
    capacity
        .map(|capacity| capacity as u64)
        .map_err(|_| Error::Memory { memory, least: crate::substrates::least_memory(pages, false) + beside })
}
