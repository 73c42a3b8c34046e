//! What the store must hold: the version of every record, and which are there.
//!
//! One thread at a time updates a record, so that its last version is known; a read that meets an update may give
//! either version. Two threads rarely want the same record: even YCSB's hottest is one of 26 requests, and stores lock
//! it themselves.

use std::path::Path;
use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicU32, AtomicU64};
use std::thread;
use std::{hint, mem};

use super::failed;
use crate::substrates::Result;

/// Set in a record's word while a thread writes its next version.
const BUSY: u32 = 1 << 31;

/// All records that there can be. A record's word is its version, 0 if it is not there.
pub struct Ledger {
    words: Vec<AtomicU32>,
    /// The next record to insert.
    next: AtomicU64,
    /// Records below are there: YCSB's acknowledged counter.
    inserted: AtomicU64,
}

/// A record that this thread alone writes.
pub struct Writing<'a> {
    ledger: &'a Ledger,
    /// Which.
    pub number: u64,
    /// The version to write.
    pub version: u32,
}

impl Ledger {
    /// Of at most `most` records, none of which is there.
    pub fn new(most: u64) -> Ledger {
        let words = (0..most).map(|_| AtomicU32::new(0)).collect();
        Ledger { words, next: AtomicU64::new(0), inserted: AtomicU64::new(0) }
    }

    /// Records below this one are there.
    #[inline]
    pub fn inserted(&self) -> u64 {
        self.inserted.load(Acquire)
    }

    /// A record to insert; None if there are `most`.
    #[inline]
    pub fn insert(&self, most: u64) -> Option<Writing<'_>> {
        let most = most.min(self.words.len() as u64);
        let number = self.next.fetch_update(Relaxed, Relaxed, |next| (next < most).then_some(next + 1)).ok()?;
        self.words[number as usize].store(BUSY, Relaxed);
        Some(Writing { ledger: self, number, version: 1 })
    }

    /// The next version of a record; waits for a thread that writes one.
    #[inline]
    pub fn update(&self, number: u64) -> Writing<'_> {
        let word = &self.words[number as usize];
        let mut tries = 0u32;
        loop {
            let version = word.load(Relaxed);
            if version & BUSY == 0 && word.compare_exchange_weak(version, version | BUSY, Acquire, Relaxed).is_ok() {
                return Writing { ledger: self, number, version: version + 1 };
            }
            tries += 1;
            if tries < 100 { hint::spin_loop() } else { thread::yield_now() }
        }
    }

    /// The version that a read that begins now gives at least.
    #[inline]
    pub fn at_least(&self, number: u64) -> u32 {
        self.words[number as usize].load(Acquire) & !BUSY
    }

    /// The version that a read that has ended gives at most; none of a record that never was.
    #[inline]
    pub fn at_most(&self, number: u64) -> Option<u32> {
        let word = self.words.get(usize::try_from(number).ok()?)?.load(Acquire);
        (word != 0).then_some((word & !BUSY) + u32::from(word & BUSY != 0))
    }

    /// Writes the versions of all records to a file.
    ///
    /// # Errors
    ///
    /// What the system answers.
    pub fn save(&self, path: &Path) -> Result<()> {
        let words = self.words.iter().take(self.next.load(Acquire) as usize);
        let bytes: Vec<u8> = words.flat_map(|word| word.load(Acquire).to_le_bytes()).collect();
        std::fs::write(path, bytes).map_err(|source| failed(path, "cannot write it", source))
    }

    /// Reads what [`Ledger::save`] wrote: versions by record.
    ///
    /// # Errors
    ///
    /// What the system answers.
    pub fn read(path: &Path) -> Result<Vec<u32>> {
        let bytes = std::fs::read(path).map_err(|source| failed(path, "cannot read it", source))?;
        Ok(bytes.chunks_exact(4).map(|word| u32::from_le_bytes(word.try_into().expect("4 bytes"))).collect())
    }
}

impl Writing<'_> {
    /// The store has it.
    #[inline]
    pub fn done(self) {
        let (Ledger { words, inserted, .. }, version) = (self.ledger, self.version);
        words[self.number as usize].store(version, Release);
        mem::forget(self);
        if version > 1 {
            return;
        }
        // Whoever inserted the first that was missing makes all behind it known.
        let is_there = |number: u64| words.get(number as usize).is_some_and(|word| word.load(Acquire) & !BUSY > 0);
        let mut first = inserted.load(Acquire);
        while is_there(first) {
            match inserted.compare_exchange(first, first + 1, AcqRel, Acquire) {
                Ok(_) => first += 1,
                Err(other) => first = other,
            }
        }
    }
}

/// The store refused it, and the run fails: whoever waits for the record goes on, and finds that out.
impl Drop for Writing<'_> {
    fn drop(&mut self) {
        self.ledger.words[self.number as usize].store(self.version - 1, Release);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn inserts_are_known_once_all_before_them_are() {
        let ledger = Ledger::new(3);
        let (first, second) = (ledger.insert(3).unwrap(), ledger.insert(3).unwrap());
        assert_eq!((first.number, second.number, second.version), (0, 1, 1));
        assert_eq!((ledger.at_least(1), ledger.at_most(1), ledger.at_most(2)), (0, Some(1), None));
        second.done();
        assert_eq!((ledger.inserted(), ledger.at_least(1)), (0, 1));
        first.done();
        assert_eq!(ledger.inserted(), 2);
        assert!(ledger.insert(2).is_none() && ledger.insert(9).is_some() && ledger.insert(9).is_none());
        assert_eq!(ledger.at_most(9), None);
    }

    #[test]
    fn a_record_has_one_writer_and_its_last_version_is_known() {
        let ledger = Ledger::new(1);
        ledger.insert(1).unwrap().done();
        thread::scope(|scope| {
            for _ in 0..3 {
                scope.spawn(|| {
                    for _ in 0..1000 {
                        let writing = ledger.update(0);
                        assert_eq!(
                            (ledger.at_least(0), ledger.at_most(0)),
                            (writing.version - 1, Some(writing.version))
                        );
                        writing.done();
                    }
                });
            }
        });
        let file = tempfile::NamedTempFile::new().unwrap();
        ledger.save(file.path()).unwrap();
        assert_eq!(Ledger::read(file.path()).unwrap(), [3001]);
    }
}
