//! Sorted ranges of addresses with a few words for each, under a sequence lock.
//!
//! Fault handlers and signal handlers look addresses up in the table. A lookup takes no lock and no heap memory, and stores nothing. A change takes
//! no heap memory either, since allocators call munmap(2).

use crate::sys::signal::Blocked;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering, fence};

/// A table of at most `ROWS` ranges that do not overlap, with `WORDS` words for each.
#[derive(Debug)]
pub struct RangeTable<const ROWS: usize, const WORDS: usize> {
    /// Odd while the table changes.
    sequence: AtomicUsize,
    rows: Rows<ROWS, WORDS>,
}

/// The rows, which [`RangeTable::change`] hands to its caller.
#[derive(Debug)]
pub struct Rows<const ROWS: usize, const WORDS: usize> {
    count: AtomicUsize,
    rows: [Row<WORDS>; ROWS],
}

#[derive(Debug)]
struct Row<const WORDS: usize> {
    start: AtomicUsize,
    end: AtomicUsize,
    words: [AtomicU64; WORDS],
}

impl<const WORDS: usize> Row<WORDS> {
    const fn new() -> Self {
        Row { start: AtomicUsize::new(0), end: AtomicUsize::new(0), words: [const { AtomicU64::new(0) }; WORDS] }
    }

    fn at(&self) -> Range<usize> {
        self.start.load(Ordering::Relaxed)..self.end.load(Ordering::Relaxed)
    }

    fn words(&self) -> [u64; WORDS] {
        std::array::from_fn(|word| self.words[word].load(Ordering::Relaxed))
    }
}

impl<const ROWS: usize, const WORDS: usize> RangeTable<ROWS, WORDS> {
    /// An empty table.
    pub const fn new() -> Self {
        let rows = Rows { count: AtomicUsize::new(0), rows: [const { Row::new() }; ROWS] };
        RangeTable { sequence: AtomicUsize::new(0), rows }
    }

    /// Returns the range that holds an address, or else the next range above it, with its words.
    #[inline]
    pub fn from(&self, address: usize) -> Option<(Range<usize>, [u64; WORDS])> {
        loop {
            let before = self.sequence.load(Ordering::Acquire);
            let place = self.rows.place(address);
            let found = (place < self.rows.len()).then(|| (self.rows.rows[place].at(), self.rows.rows[place].words()));
            // Pairs with the fence and the stores in `change`: if the number is the same, all that was read is of one version of the table.
            fence(Ordering::Acquire);
            if before.is_multiple_of(2) && self.sequence.load(Ordering::Relaxed) == before {
                return found;
            }
            std::thread::yield_now();
        }
    }

    /// Whether the table is empty. This costs one load.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.rows.len() == 0
    }

    /// A number that changes with the table.
    pub fn version(&self) -> usize {
        self.sequence.load(Ordering::Acquire)
    }

    /// Runs `edit` on the rows while lookups wait. The caller lets one thread at a time change the table. Signals are blocked, and `edit` touches
    /// nothing but the rows: if this thread faulted on a map now, its fault handler would wait for ever.
    pub fn change<R>(&self, edit: impl FnOnce(&Rows<ROWS, WORDS>) -> R) -> R {
        let _blocked = Blocked::all();
        self.sequence.fetch_add(1, Ordering::Relaxed);
        fence(Ordering::Release);
        let result = edit(&self.rows);
        self.sequence.fetch_add(1, Ordering::Release);
        result
    }

    /// Ends a change that a thread of the parent had begun. Called in a child made by fork(2).
    pub fn in_child(&self) {
        self.sequence.store((self.sequence.load(Ordering::Relaxed) | 1) + 1, Ordering::Relaxed);
    }
}

impl<const ROWS: usize, const WORDS: usize> Rows<ROWS, WORDS> {
    /// How many rows there are.
    #[inline]
    pub fn len(&self) -> usize {
        self.count.load(Ordering::Relaxed)
    }

    /// The number of the first row that ends behind an address.
    #[inline]
    pub fn place(&self, address: usize) -> usize {
        let (mut low, mut high) = (0, self.len());
        while low < high {
            let middle = (low + high) / 2;
            if self.rows[middle].end.load(Ordering::Relaxed) <= address { low = middle + 1 } else { high = middle }
        }
        low
    }

    /// A row's range.
    pub fn at(&self, row: usize) -> Range<usize> {
        self.rows[row].at()
    }

    /// A row's words.
    pub fn words(&self, row: usize) -> [u64; WORDS] {
        self.rows[row].words()
    }

    /// Replaces a row. The new range must keep the rows in order.
    pub fn set(&self, row: usize, at: Range<usize>, words: [u64; WORDS]) {
        let to = &self.rows[row];
        to.start.store(at.start, Ordering::Relaxed);
        to.end.store(at.end, Ordering::Relaxed);
        to.words.iter().zip(words).for_each(|(word, value)| word.store(value, Ordering::Relaxed));
    }

    /// Adds a range at its place in the order. The caller makes sure that there is room.
    pub fn insert(&self, at: Range<usize>, words: [u64; WORDS]) {
        let (place, count) = (self.place(at.start), self.len());
        (place..count).rev().for_each(|row| self.set(row + 1, self.at(row), self.words(row)));
        self.set(place, at, words);
        self.count.store(count + 1, Ordering::Relaxed);
    }

    /// Removes a row.
    pub fn remove(&self, row: usize) {
        let count = self.len();
        (row + 1..count).for_each(|next| self.set(next - 1, self.at(next), self.words(next)));
        self.count.store(count - 1, Ordering::Relaxed);
    }

    /// Keeps the rows whose words are wanted, and removes the others.
    pub fn retain(&self, wanted: impl Fn([u64; WORDS]) -> bool) {
        let kept = (0..self.len()).filter(|row| wanted(self.words(*row))).fold(0, |kept, row| {
            self.set(kept, self.at(row), self.words(row));
            kept + 1
        });
        self.count.store(kept, Ordering::Relaxed);
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use std::sync::atomic::AtomicBool;

    #[test]
    fn ranges_stay_sorted() {
        let table = RangeTable::<8, 1>::new();
        let at = |start: usize| start..start + 10;
        table.change(|rows| [30, 10, 50, 20].into_iter().for_each(|start| rows.insert(at(start), [start as u64])));
        let starts = || (0..table.rows.len()).map(|row| table.rows.at(row).start).collect::<Vec<_>>();
        assert_eq!(starts(), [10, 20, 30, 50]);
        assert_eq!(table.from(25), Some((at(20), [20])));
        assert_eq!(table.from(40), Some((at(50), [50])));
        assert_eq!(table.from(60), None);
        table.change(|rows| rows.remove(rows.place(20)));
        table.change(|rows| rows.retain(|[start]| start != 50));
        assert_eq!(starts(), [10, 30]);
        table.change(|rows| rows.retain(|_| false));
        assert!(table.is_empty() && table.from(0).is_none());
    }

    /// Rows move while threads look them up. The words of a row say where its range begins and ends.
    #[test]
    fn a_lookup_sees_one_version() {
        static TABLE: RangeTable<64, 2> = RangeTable::new();
        const FIXED: Range<usize> = 1_000_000..1_000_100;
        let words = |at: &Range<usize>| [at.start as u64, !(at.end as u64)];
        let add = |at: Range<usize>| TABLE.change(|rows| rows.insert(at.clone(), words(&at)));
        add(FIXED);
        let stop = AtomicBool::new(false);
        std::thread::scope(|scope| {
            for thread in 0..3 {
                let stop = &stop;
                scope.spawn(move || {
                    let mut address = thread;
                    while !stop.load(Ordering::Relaxed) {
                        address = (address * 31 + 7) % 100_000;
                        let (at, found) = TABLE.from(address).expect("one is above all of these");
                        assert!(at.end > address && found == words(&at), "{at:?} {found:?}");
                        assert_eq!(TABLE.from(FIXED.start + 5), Some((FIXED, words(&FIXED))));
                    }
                });
            }
            for round in 0..20_000_usize {
                let start = round * 7919 % 90_000;
                if TABLE.rows.len() < 60 && TABLE.from(start).is_none_or(|(at, _)| at.start >= start + 40) {
                    add(start..start + 40);
                } else {
                    TABLE.change(|rows| rows.remove(round % (rows.len() - 1).max(1)));
                }
                if TABLE.is_empty() || TABLE.from(FIXED.start).is_none() {
                    add(FIXED);
                }
            }
            stop.store(true, Ordering::Relaxed);
        });
    }
}
