//! Which parts of the heap's addresses are free, and which of these are zeros.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

const PAGE: usize = 4096;

/// Free pieces. Neighbours are joined, unless only one of the two is zeros.
#[derive(Debug, Default)]
pub struct Space {
    /// By first address: the address past the last, and whether all of it is zeros.
    pieces: BTreeMap<usize, (usize, bool)>,
    /// By length and first address.
    by_len: BTreeSet<(usize, usize)>,
}

impl Space {
    /// A space in which nothing is free.
    pub const fn new() -> Self {
        Space { pieces: BTreeMap::new(), by_len: BTreeSet::new() }
    }

    /// Gives a range back.
    pub fn give(&mut self, range: Range<usize>, zero: bool) {
        let Range { mut start, mut end } = range;
        if let Some((&before, &(until, same))) = self.pieces.range(..start).next_back()
            && until == start
            && same == zero
        {
            self.remove(before);
            start = before;
        }
        if let Some(&(after, same)) = self.pieces.get(&end)
            && same == zero
        {
            self.remove(end);
            end = after;
        }
        self.insert(start..end, zero);
    }

    /// Takes `len` bytes at an aligned address out of a small piece that has room. Returns the address, and whether the
    /// bytes are zeros.
    pub fn take(&mut self, len: usize, align: usize) -> Option<(usize, bool)> {
        let fits = |&&(have, start): &&(usize, usize)| start.next_multiple_of(align) - start + len <= have;
        // First the smallest piece that is large enough wherever it begins. If there is none, a piece whose beginning
        // happens to fit.
        let sure = self.by_len.range((len + align - PAGE, 0)..).next();
        let (_, start) = *sure.or_else(|| self.by_len.range((len, 0)..).find(fits))?;
        self.take_at(start.next_multiple_of(align), len)
    }

    /// Takes `len` bytes at an address, if one free piece has them. Returns the address, and whether the bytes are
    /// zeros.
    pub fn take_at(&mut self, at: usize, len: usize) -> Option<(usize, bool)> {
        let (&start, &(end, zero)) = self.pieces.range(..=at).next_back()?;
        if end < at.checked_add(len)? {
            return None;
        }
        self.remove(start);
        if start < at {
            self.insert(start..at, zero);
        }
        if at + len < end {
            self.insert(at + len..end, zero);
        }
        Some((at, zero))
    }

    fn insert(&mut self, range: Range<usize>, zero: bool) {
        self.pieces.insert(range.start, (range.end, zero));
        self.by_len.insert((range.len(), range.start));
    }

    fn remove(&mut self, start: usize) {
        if let Some((end, _)) = self.pieces.remove(&start) {
            self.by_len.remove(&(end - start, start));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gives_out_each_byte_once_and_takes_it_back() {
        let mut space = Space::new();
        space.give(0..1 << 30, true);
        let mut held: Vec<Range<usize>> = Vec::new();
        let mut random = 7u64;
        for _ in 0..20_000 {
            random = random.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            let pick = (random >> 40) as usize;
            if random >> 33 & 1 == 0 || held.is_empty() {
                let (len, align) = ((1 + pick % 64) * PAGE, PAGE << (pick % 5));
                let Some((at, _)) = space.take(len, align) else { continue };
                assert!(at.is_multiple_of(align));
                assert!(held.iter().all(|other| at + len <= other.start || at >= other.end));
                held.push(at..at + len);
            } else {
                let range = held.swap_remove(pick % held.len());
                space.give(range, false);
            }
        }
        held.drain(..).for_each(|range| space.give(range, false));
        let free: usize = space.pieces.iter().map(|(start, (end, _))| end - start).sum();
        assert_eq!((free, space.by_len.len()), (1 << 30, space.pieces.len()));
        // Neighbours of one kind are one piece.
        let pieces: Vec<_> = space.pieces.iter().collect();
        let is_joined = |pair: &[(&usize, &(usize, bool))]| pair[0].1.0 < *pair[1].0 || pair[0].1.1 != pair[1].1.1;
        assert!(pieces.windows(2).all(is_joined), "{pieces:?}");
        assert_eq!(space.take(1 << 31, PAGE), None);
    }

    #[test]
    fn takes_a_place_that_is_asked_for() {
        let mut space = Space::new();
        space.give(0..10 * PAGE, false);
        assert_eq!(space.take_at(4 * PAGE, PAGE), Some((4 * PAGE, false)));
        assert_eq!(space.take_at(4 * PAGE, PAGE), None);
        assert_eq!(space.take_at(3 * PAGE, 2 * PAGE), None);
        assert_eq!(space.take(5 * PAGE, PAGE), Some((5 * PAGE, false)));
        assert_eq!(space.take(5 * PAGE, PAGE), None);
    }
}
