//! The Yahoo! Cloud Serving Benchmark (Cooper et al., SoCC '10): which operation comes next, on which key, with which
//! value.
//!
//! Keys are 30 bytes: `user`, the FNV hash of the record's number in 20 digits, and six digits of the number; so
//! records that were inserted one after the other lie scattered, as YCSB's `insertorder=hashed` has it. Requests choose
//! records by a scrambled Zipf distribution (exponent 0.99, over ten thousand million ranks, hashed onto the records,
//! as `ScrambledZipfianGenerator`), the latest by their age (as `SkewedLatestGenerator`, over as many ages as there
//! were records at first). A value is 1000 bytes, all of them written by an update, and made of its record's number and
//! version alone, so that every read can be checked.

use std::fmt;

use rand::{RngExt, SeedableRng};
use rand_pcg::Pcg64Mcg;
use serde::{Deserialize, Serialize};

use crate::substrates::Zipf;
use fastmap_bench::names;

/// Bytes of a key.
pub const KEY: usize = 30;

/// Bytes of a value.
pub const VALUE: usize = 1000;

/// Most records of a scan; it reads 1 to as many.
pub const LONGEST_SCAN: usize = 100;

/// Ranks of the scrambled distribution: YCSB's `ITEM_COUNT`.
const RANKS: u64 = 10_000_000_000;

/// YCSB's `ZIPFIAN_CONSTANT`.
const THETA: f64 = 0.99;

/// What is done to a store: YCSB's core workloads, and the two loads before them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Workload {
    /// Inserts all records into an empty store, for A, B, C, F and D.
    LoadA,
    /// Half reads, half updates.
    A,
    /// 95 % reads, 5 % updates.
    B,
    /// Reads.
    C,
    /// Half reads, half reads with a write of the same record after them.
    F,
    /// 95 % reads of what was inserted last, 5 % inserts.
    D,
    /// Inserts all records into an empty store, for E.
    LoadE,
    /// 95 % scans of 1 to 100 records, 5 % inserts.
    E,
}

names!(Workload, "workload", {
    LoadA => "load-a", A => "a", B => "b", C => "c", F => "f", D => "d", LoadE => "load-e", E => "e",
});

/// The order in which YCSB's authors want them done; before [`Workload::LoadE`] the store is emptied.
pub const SEQUENCE: [Workload; 8] =
    [Workload::LoadA, Workload::A, Workload::B, Workload::C, Workload::F, Workload::D, Workload::LoadE, Workload::E];

impl Workload {
    /// Whether it fills an empty store.
    pub fn is_load(self) -> bool {
        matches!(self, Workload::LoadA | Workload::LoadE)
    }

    /// As the papers call it.
    pub fn title(self) -> String {
        match self {
            Workload::LoadA => "Load A".to_owned(),
            Workload::LoadE => "Load E".to_owned(),
            run => format!("Run {}", run.name().to_uppercase()),
        }
    }

    /// How often, of a hundred operations, something other than the read or scan is done, and what.
    fn other(self) -> (u32, Kind) {
        match self {
            Workload::LoadA | Workload::LoadE => (100, Kind::Insert),
            Workload::A => (50, Kind::Update),
            Workload::B => (5, Kind::Update),
            Workload::C => (0, Kind::Update),
            Workload::F => (50, Kind::Modify),
            Workload::D | Workload::E => (5, Kind::Insert),
        }
    }
}

/// What an operation does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Update,
    Modify,
    Insert,
}

/// One operation; records by their numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Step {
    /// Reads a record.
    Read(u64),
    /// Gives a record a new value.
    Update(u64),
    /// Reads a record and gives it a new value.
    Modify(u64),
    /// Inserts a new record.
    Insert,
    /// Reads so many records in the order of keys, beginning with this one.
    Scan(u64, usize),
}

/// One thread's operations.
pub struct Steps<'a> {
    workload: Workload,
    zipf: &'a Distributions,
    /// Requests are spread over so many records, of which the last may not be there yet.
    span: u64,
    chance: Pcg64Mcg,
}

/// What the threads of a run share; making it costs more than an operation.
pub struct Distributions {
    scrambled: Zipf,
    ages: Zipf,
}

impl Distributions {
    /// For a store of `records` at first.
    pub fn of(records: u64) -> Distributions {
        Distributions { scrambled: Zipf::new(RANKS, THETA), ages: Zipf::new(records, THETA) }
    }
}

impl<'a> Steps<'a> {
    /// The operations of the thread `thread` in a workload, the same in every run; `records` are there at first. Where
    /// inserts are among `ops` operations, requests are for records that come too, as in YCSB (for twice the inserts
    /// expected); those that have not come yet are passed over.
    pub fn of(workload: Workload, zipf: &'a Distributions, records: u64, ops: u64, thread: u64) -> Steps<'a> {
        let chance = Pcg64Mcg::seed_from_u64(fnv(thread << 8 | workload as u64));
        let span = if workload == Workload::E { records + ops / 10 } else { records };
        Steps { workload, zipf, span, chance }
    }

    /// The next one; records below `inserted` are there.
    #[inline]
    pub fn next_step(&mut self, inserted: u64) -> Step {
        let (share, kind) = self.workload.other();
        if self.chance.random_range(0..100) < share {
            return match kind {
                Kind::Insert => Step::Insert,
                Kind::Update => Step::Update(self.record(inserted)),
                Kind::Modify => Step::Modify(self.record(inserted)),
            };
        }
        let record = self.record(inserted);
        match self.workload {
            Workload::E => Step::Scan(record, self.chance.random_range(1..=LONGEST_SCAN)),
            _ => Step::Read(record),
        }
    }

    #[inline]
    fn record(&mut self, inserted: u64) -> u64 {
        match self.workload {
            Workload::D => inserted - 1 - self.zipf.ages.sample(&mut self.chance).min(inserted - 1),
            _ => loop {
                let record = fnv(self.zipf.scrambled.sample(&mut self.chance)) % self.span;
                if record < inserted {
                    break record;
                }
            },
        }
    }
}

/// YCSB's `fnvhash64`: FNV-1 of a number's bytes, lowest first.
#[inline]
pub fn fnv(number: u64) -> u64 {
    let bytes = number.to_le_bytes();
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3))
}

/// A record's key.
#[inline]
pub fn key(number: u64) -> [u8; KEY] {
    let mut key = *b"user00000000000000000000000000";
    digits(&mut key[4..24], fnv(number));
    digits(&mut key[24..], number % 1_000_000);
    key
}

fn digits(text: &mut [u8], mut number: u64) {
    for digit in text.iter_mut().rev() {
        *digit = b'0' + (number % 10) as u8;
        number /= 10;
    }
}

/// Bytes in front of a value's filler.
const HEAD: usize = 16;

/// Writes a record's value of some version, counted from 1.
#[inline]
pub fn fill(value: &mut [u8; VALUE], number: u64, version: u32) {
    value[..8].copy_from_slice(&number.to_le_bytes());
    value[8..HEAD].copy_from_slice(&u64::from(version).to_le_bytes());
    let (seed, step) = words_of(number, version);
    for (word, n) in value[HEAD..].chunks_exact_mut(8).zip(1u64..) {
        word.copy_from_slice(&seed.wrapping_add(step.wrapping_mul(n)).to_le_bytes());
    }
}

/// The filler's words are seed + n steps: different in every word of every version of every record.
#[inline]
fn words_of(number: u64, version: u32) -> (u64, u64) {
    let seed = (number ^ u64::from(version).rotate_left(40)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    (seed ^ seed >> 29, seed | 1)
}

/// A value that is not one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Wrong {
    /// It has so many bytes.
    Length(usize),
    /// It belongs to another record.
    Record(u64),
    /// This word of it is not what its number and version make.
    Word(usize),
}

impl fmt::Display for Wrong {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Wrong::Length(bytes) => write!(f, "a value of {bytes} bytes"),
            Wrong::Record(number) => write!(f, "the value of record {number}"),
            Wrong::Word(word) => write!(f, "a value whose word {word} is wrong"),
        }
    }
}

/// Checks every byte of a value; returns its record's number and its version.
#[inline]
pub fn check(value: &[u8]) -> Result<(u64, u32), Wrong> {
    let Ok(value) = <&[u8; VALUE]>::try_from(value) else { return Err(Wrong::Length(value.len())) };
    let word = |at: usize| u64::from_le_bytes(value[at..at + 8].try_into().expect("8 bytes"));
    let (number, version) = (word(0), word(8));
    let Ok(version) = u32::try_from(version) else { return Err(Wrong::Word(1)) };
    let (seed, step) = words_of(number, version);
    let right = |n: usize| seed.wrapping_add(step.wrapping_mul(n as u64));
    let wrong = (1..=(VALUE - HEAD) / 8).fold(0, |sum, n| sum | (word(HEAD + (n - 1) * 8) ^ right(n)));
    if wrong == 0 {
        return Ok((number, version));
    }
    let first = (1..).find(|n| word(HEAD + (n - 1) * 8) != right(*n));
    Err(Wrong::Word(first.unwrap_or(0) + 1))
}

/// Checks a value that a key's read gave; returns its version.
#[inline]
pub fn check_of(number: u64, value: &[u8]) -> Result<u32, Wrong> {
    match check(value)? {
        (found, version) if found == number => Ok(version),
        (other, _) => Err(Wrong::Record(other)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::{HashMap, HashSet};

    const RECORDS: u64 = 10_000;

    fn shares(workload: Workload) -> HashMap<&'static str, f64> {
        let (zipf, draws) = (Distributions::of(RECORDS), 100_000);
        let mut steps = Steps::of(workload, &zipf, RECORDS, 1000, 0);
        let mut counts = HashMap::new();
        for _ in 0..draws {
            let name = match steps.next_step(RECORDS) {
                Step::Read(record) => (record < RECORDS).then_some("read"),
                Step::Update(record) => (record < RECORDS).then_some("update"),
                Step::Modify(record) => (record < RECORDS).then_some("modify"),
                Step::Scan(record, 1..=LONGEST_SCAN) => (record < RECORDS).then_some("scan"),
                Step::Scan(..) => None,
                Step::Insert => Some("insert"),
            };
            *counts.entry(name.expect("in range")).or_insert(0.0) += 1.0 / f64::from(draws);
        }
        counts
    }

    #[test]
    fn operations_have_their_shares() {
        for (workload, expected) in [
            (Workload::LoadA, &[("insert", 1.0)][..]),
            (Workload::A, &[("read", 0.5), ("update", 0.5)]),
            (Workload::B, &[("read", 0.95), ("update", 0.05)]),
            (Workload::C, &[("read", 1.0)]),
            (Workload::F, &[("read", 0.5), ("modify", 0.5)]),
            (Workload::D, &[("read", 0.95), ("insert", 0.05)]),
            (Workload::LoadE, &[("insert", 1.0)]),
            (Workload::E, &[("scan", 0.95), ("insert", 0.05)]),
        ] {
            let found = shares(workload);
            assert_eq!(found.len(), expected.len(), "{workload}: {found:?}");
            for (name, share) in expected {
                assert!((found[name] - share).abs() < 0.01, "{workload}: {found:?}");
            }
        }
    }

    #[test]
    fn requests_are_skewed_and_scattered_and_the_latest_are_read_most() {
        let zipf = Distributions::of(RECORDS);
        let frequencies = |workload| {
            let mut steps = Steps::of(workload, &zipf, RECORDS, 1000, 3);
            let mut counts = vec![0u32; RECORDS as usize];
            for _ in 0..200_000 {
                if let Step::Read(record) = steps.next_step(RECORDS) {
                    counts[record as usize] += 1;
                }
            }
            counts
        };
        let scrambled = frequencies(Workload::C);
        let hottest = fnv(0) % RECORDS;
        let most = scrambled.iter().max().unwrap();
        assert_eq!(scrambled[hottest as usize], *most, "the first rank, wherever it is hashed to");
        // 1 / zeta of YCSB: 1 / 26.47 of all, and little more from the long tail.
        assert!((7_400..8_000).contains(most), "{most}");
        let latest = frequencies(Workload::D);
        let share = |range: std::ops::Range<usize>| latest[range].iter().sum::<u32>() as f64 / 190_000.0;
        assert_eq!(latest.iter().max(), latest.last());
        assert!(share(9_900..10_000) > 0.5 && share(0..5_000) < 0.1, "{} {}", share(9_900..10_000), share(0..5_000));
    }

    #[test]
    fn keys_have_thirty_bytes_and_are_scattered() {
        // FNV-1 with xor first, of eight zero bytes: as YCSB's Utils.fnvhash64(0) without its sign.
        assert_eq!(fnv(0), 0xa8c7_f832_281a_39c5);
        let keys: Vec<_> = (0..RECORDS).map(key).collect();
        assert_eq!(keys.iter().collect::<HashSet<_>>().len() as u64, RECORDS);
        assert!(keys.iter().all(|key| key.starts_with(b"user") && key[4..].iter().all(u8::is_ascii_digit)));
        assert_eq!(&keys[1234][24..], b"001234");
        let rising = keys.windows(2).filter(|pair| pair[0] < pair[1]).count();
        assert!((4_500..5_500).contains(&rising), "{rising}");
    }

    #[test]
    fn every_byte_of_a_value_is_checked() {
        let mut value = [0; VALUE];
        fill(&mut value, 77, 3);
        assert_eq!((check(&value), check_of(77, &value)), (Ok((77, 3)), Ok(3)));
        assert_eq!(check_of(78, &value), Err(Wrong::Record(77)));
        assert_eq!(check(&value[1..]), Err(Wrong::Length(999)));
        for at in 0..VALUE {
            for bit in [1, 128] {
                value[at] ^= bit;
                assert!(check_of(77, &value).is_err(), "byte {at}");
                value[at] ^= bit;
            }
        }
        let (mut one, mut other) = ([0; VALUE], [0; VALUE]);
        fill(&mut one, 5, 1);
        fill(&mut other, 5, 2);
        assert!(one.chunks(8).zip(other.chunks(8)).skip(1).all(|(one, other)| one != other), "versions share no word");
    }
}
