//! The table of direct mappings that are flushed from user space: their addresses, and the part of a file that each maps.
//!
//! It is a static sorted table under a sequence lock, as in `region/registry.rs`. Every msync(2) and munmap(2) of a program
//! looks at it, so a look takes no lock, system call or heap memory. Changes take no heap memory either, since allocators
//! call munmap(2). A child made by fork(2) does not use it (`by_address/direct.rs`).

use crate::direct::mapping::Durability;
use crate::sys::file::Identity;
use crate::sys::lock::Guarded;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering, fence};

/// Mappings, and parts of mappings, in the table at a time, at most.
pub const MOST: usize = 1024;

/// One mapping, or a part that is left of one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Span {
    /// Its addresses, whole pages.
    pub at: Range<usize>,
    pub file: Identity,
    /// The offset in the file of its first byte.
    pub offset: u64,
    pub durability: Durability,
}

impl Span {
    /// The addresses at which it maps a range of its file. `None`: it maps none of it.
    pub fn part(&self, of_file: &Range<u64>) -> Option<Range<usize>> {
        let end = self.offset + self.at.len() as u64;
        let (start, end) = (of_file.start.max(self.offset), of_file.end.min(end));
        (start < end)
            .then(|| self.at.start + (start - self.offset) as usize..self.at.start + (end - self.offset) as usize)
    }

    /// Where a range of its addresses lies in the file.
    pub fn in_file(&self, at: &Range<usize>) -> Range<u64> {
        let offset = |address: usize| self.offset + (address - self.at.start) as u64;
        offset(at.start)..offset(at.end)
    }

    /// Its part between two addresses. `None`: it has none.
    fn cut(&self, from: usize, to: usize) -> Option<Span> {
        let at = from.max(self.at.start)..to.min(self.at.end);
        (at.start < at.end).then(|| Span { offset: self.in_file(&at).start, at, ..self.clone() })
    }
}

struct Row {
    start: AtomicUsize,
    end: AtomicUsize,
    file: [AtomicU64; 2],
    offset: AtomicU64,
    durability: AtomicUsize,
}

/// Odd while the table changes.
static SEQUENCE: AtomicUsize = AtomicUsize::new(0);
static COUNT: AtomicUsize = AtomicUsize::new(0);
static ROWS: [Row; MOST] = [const {
    Row {
        start: AtomicUsize::new(0),
        end: AtomicUsize::new(0),
        file: [const { AtomicU64::new(0) }; 2],
        offset: AtomicU64::new(0),
        durability: AtomicUsize::new(0),
    }
}; MOST];
/// Serialises changes.
static CHANGES: Guarded<()> = Guarded::new(());

impl Row {
    fn read(&self) -> Span {
        let word = |word: &AtomicU64| word.load(Ordering::Relaxed);
        Span {
            at: self.start.load(Ordering::Relaxed)..self.end.load(Ordering::Relaxed),
            file: Identity::from_numbers([word(&self.file[0]), word(&self.file[1])]),
            offset: word(&self.offset),
            durability: Durability::from_number(self.durability.load(Ordering::Relaxed)),
        }
    }

    fn write(&self, span: &Span) {
        self.start.store(span.at.start, Ordering::Relaxed);
        self.end.store(span.at.end, Ordering::Relaxed);
        for (word, number) in self.file.iter().zip(span.file.numbers()) {
            word.store(number, Ordering::Relaxed);
        }
        self.offset.store(span.offset, Ordering::Relaxed);
        self.durability.store(span.durability as usize, Ordering::Relaxed);
    }
}

/// The number of the first row that ends behind an address.
fn place(address: usize) -> usize {
    let (mut low, mut high) = (0, COUNT.load(Ordering::Relaxed));
    while low < high {
        let middle = (low + high) / 2;
        if ROWS[middle].end.load(Ordering::Relaxed) <= address { low = middle + 1 } else { high = middle }
    }
    low
}

/// The span that holds an address, or else the next one above it.
#[inline]
pub fn from(address: usize) -> Option<Span> {
    if COUNT.load(Ordering::Relaxed) == 0 {
        return None;
    }
    loop {
        let before = SEQUENCE.load(Ordering::Acquire);
        let found = place(address);
        let found = (found < COUNT.load(Ordering::Relaxed)).then(|| ROWS[found].read());
        // Pairs with the fence and the stores in `change`: if the number is the same, all that was read is of one version of the table.
        fence(Ordering::Acquire);
        if before.is_multiple_of(2) && SEQUENCE.load(Ordering::Relaxed) == before {
            return found;
        }
        std::thread::yield_now();
    }
}

/// The spans in a range, in order.
pub fn meeting(range: Range<usize>) -> impl Iterator<Item = Span> {
    let mut at = range.start;
    std::iter::from_fn(move || {
        let span = from(at).filter(|span| span.at.start < range.end)?;
        at = span.at.end;
        Some(span)
    })
}

/// Whether any span lies in a range.
#[inline]
pub fn meets(range: Range<usize>) -> bool {
    from(range.start).is_some_and(|span| span.at.start < range.end)
}

/// Changes the table, with readers kept out and signals blocked. `edit` is given the count of rows, and returns the new one.
fn change(edit: impl FnOnce(usize) -> usize) {
    CHANGES.with(|()| {
        SEQUENCE.fetch_add(1, Ordering::Relaxed);
        fence(Ordering::Release);
        COUNT.store(edit(COUNT.load(Ordering::Relaxed)), Ordering::Relaxed);
        SEQUENCE.fetch_add(1, Ordering::Release);
    });
}

/// Puts a span at a row and moves the rows from there on up. Returns the new count.
fn insert(place: usize, count: usize, span: &Span) -> usize {
    (place..count).rev().for_each(|row| ROWS[row + 1].write(&ROWS[row].read()));
    ROWS[place].write(span);
    count + 1
}

/// Notes a mapping. False: the table is full.
pub fn add(span: &Span) -> bool {
    let mut fits = false;
    change(|count| {
        fits = count < MOST;
        if fits { insert(place(span.at.start), count, span) } else { count }
    });
    fits
}

/// Forgets the spans in a range. A span that reaches out of the range on both sides becomes two. If the table has no room for the second, the
/// smaller one goes as well.
pub fn remove(range: &Range<usize>) {
    change(|mut count| {
        let mut row = place(range.start);
        while row < count {
            let span = ROWS[row].read();
            if range.end <= span.at.start {
                break;
            }
            match (span.cut(0, range.start), span.cut(range.end, usize::MAX)) {
                (None, None) => {
                    (row + 1..count).for_each(|next| ROWS[next - 1].write(&ROWS[next].read()));
                    count -= 1;
                }
                (Some(before), Some(after)) if count < MOST => {
                    ROWS[row].write(&before);
                    count = insert(row + 1, count, &after);
                    row += 2;
                }
                (before, after) => {
                    let larger = [before, after].into_iter().flatten().max_by_key(|part| part.at.len());
                    larger.iter().for_each(|part| ROWS[row].write(part));
                    row += 1;
                }
            }
        }
        count
    });
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn spans_are_found_cut_and_removed() {
        let file = Identity::from_numbers([1, 2]);
        let span = |at: Range<usize>, offset| Span { at, file, offset, durability: Durability::Tracked };
        // Where no other test of this process maps anything.
        let base = 0x1000_0000;
        let at = |pages: Range<usize>| base + pages.start * 4096..base + pages.end * 4096;
        assert!(add(&span(at(10..20), 0)) && add(&span(at(2..5), 8192)));
        assert!(meets(at(4..11)) && meets(at(19..30)) && !meets(at(5..10)) && !meets(at(0..2)));
        assert_eq!(meeting(at(0..15)).collect::<Vec<_>>(), [span(at(2..5), 8192), span(at(10..20), 0)]);
        remove(&at(12..14));
        let left = [span(at(2..5), 8192), span(at(10..12), 0), span(at(14..20), 4 * 4096)];
        assert_eq!(meeting(at(0..30)).collect::<Vec<_>>(), left);
        assert_eq!(left[2].part(&(0..5 * 4096)), Some(at(14..15)));
        assert_eq!(left[2].part(&(0..4 * 4096)), None);
        assert_eq!(left[2].in_file(&at(15..16)), 5 * 4096..6 * 4096);
        remove(&at(3..15));
        assert_eq!(meeting(at(0..30)).collect::<Vec<_>>(), [span(at(2..3), 8192), span(at(15..20), 5 * 4096)]);
        remove(&at(0..30));
        assert!(!meets(at(0..30)));
    }
}
