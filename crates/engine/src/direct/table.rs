//! The table of direct mappings that are flushed from user space: their addresses, and the part of a file that each maps.
//!
//! Every msync(2) and munmap(2) of a program looks at it, so a look takes no lock, system call or heap memory (`sys/range_table.rs`).
//! A child made by fork(2) does not use it (`by_address/direct.rs`).

use crate::direct::mapping::Durability;
use crate::sys::file::Identity;
use crate::sys::lock::Guarded;
use crate::sys::range_table::{RangeTable, Rows};
use std::ops::Range;

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

/// The words of a span are its file's numbers, its offset, and its durability.
static SPANS: RangeTable<MOST, 4> = RangeTable::new();
/// Serialises changes.
static CHANGES: Guarded<()> = Guarded::new(());

impl Span {
    fn words(&self) -> [u64; 4] {
        let [device, inode] = self.file.numbers();
        [device, inode, self.offset, self.durability as u64]
    }

    fn from_words(at: Range<usize>, [device, inode, offset, durability]: [u64; 4]) -> Self {
        let durability = Durability::from_number(durability as usize);
        Span { at, file: Identity::from_numbers([device, inode]), offset, durability }
    }
}

/// The span that holds an address, or else the next one above it.
#[inline]
pub fn from(address: usize) -> Option<Span> {
    if SPANS.is_empty() {
        return None;
    }
    SPANS.from(address).map(|(at, words)| Span::from_words(at, words))
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

/// Notes a mapping. False: the table is full.
pub fn add(span: &Span) -> bool {
    CHANGES.with(|()| {
        SPANS.change(|rows| {
            let fits = rows.len() < MOST;
            if fits {
                rows.insert(span.at.clone(), span.words());
            }
            fits
        })
    })
}

/// Forgets the spans in a range. A span that reaches out of the range on both sides becomes two. If the table has no room for the second, the
/// smaller one goes as well.
pub fn remove(range: &Range<usize>) {
    let edit = |rows: &Rows<MOST, 4>| {
        let mut row = rows.place(range.start);
        while row < rows.len() && rows.at(row).start < range.end {
            let span = Span::from_words(rows.at(row), rows.words(row));
            match (span.cut(0, range.start), span.cut(range.end, usize::MAX)) {
                (None, None) => rows.remove(row),
                (Some(before), Some(after)) if rows.len() < MOST => {
                    rows.set(row, before.at.clone(), before.words());
                    rows.insert(after.at.clone(), after.words());
                    row += 2;
                }
                (before, after) => {
                    let larger = [before, after].into_iter().flatten().max_by_key(|part| part.at.len());
                    larger.iter().for_each(|part| rows.set(row, part.at.clone(), part.words()));
                    row += 1;
                }
            }
        }
    };
    CHANGES.with(|()| SPANS.change(edit));
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
