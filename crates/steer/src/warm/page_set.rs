//! A set of pages of one file: a bit a page.

use std::ops::Range;

/// Pages that a set can have: 1 TiB, 32 MiB of bits. Pages beyond are not remembered.
pub const MOST: u64 = 1 << 28;

/// Pages of one file.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct PageSet {
    bits: Vec<u64>,
}

impl PageSet {
    /// Whether `page` is in it.
    pub fn has(&self, page: u64) -> bool {
        self.bits.get((page / 64) as usize).is_some_and(|word| word >> (page % 64) & 1 != 0)
    }

    /// Adds `pages`.
    pub fn add(&mut self, pages: Range<u64>) {
        let pages = pages.start..pages.end.min(MOST);
        if pages.start >= pages.end {
            return;
        }
        let words = pages.end.div_ceil(64) as usize;
        if self.bits.len() < words {
            self.bits.resize(words, 0);
        }
        let mut page = pages.start;
        while page < pages.end {
            let count = (64 - page % 64).min(pages.end - page);
            self.bits[(page / 64) as usize] |= (!0 >> (64 - count)) << (page % 64);
            page += count;
        }
    }

    /// How many there are.
    pub fn count(&self) -> u64 {
        self.bits.iter().map(|word| u64::from(word.count_ones())).sum()
    }

    /// The runs of adjoining pages, in order.
    pub fn runs(&self) -> impl Iterator<Item = Range<u64>> + '_ {
        let mut from = 0;
        std::iter::from_fn(move || {
            let start = self.next(from, true)?;
            from = self.next(start, false).unwrap_or(self.bits.len() as u64 * 64);
            Some(start..from)
        })
    }

    /// The first page from `from` on that is in the set, or that is not.
    fn next(&self, from: u64, is_in: bool) -> Option<u64> {
        let first = (from / 64) as usize;
        let words = self.bits.get(first..)?.iter().zip(first as u64..);
        let mut mask = !0 << (from % 64);
        words.into_iter().find_map(|(word, index)| {
            let found = (if is_in { *word } else { !*word }) & std::mem::replace(&mut mask, !0);
            (found != 0).then(|| index * 64 + u64::from(found.trailing_zeros()))
        })
    }
}

impl FromIterator<Range<u64>> for PageSet {
    fn from_iter<I: IntoIterator<Item = Range<u64>>>(runs: I) -> PageSet {
        let mut set = PageSet::default();
        runs.into_iter().for_each(|run| set.add(run));
        set
    }
}

#[cfg(test)]
// Sets of one run are meant.
#[allow(clippy::single_range_in_vec_init)]
mod tests {
    use super::*;

    #[test]
    fn runs_come_back_as_they_were_added() {
        for runs in [vec![], vec![0..1], vec![0..64], vec![3..7, 60..70, 127..128, 192..321], vec![1000..1_000_000]] {
            let set: PageSet = runs.iter().cloned().collect();
            assert_eq!(set.runs().collect::<Vec<_>>(), runs);
            assert_eq!(set.count(), runs.iter().map(|run| run.end - run.start).sum::<u64>());
            assert!(runs.iter().all(|run| set.has(run.start) && set.has(run.end - 1) && !set.has(run.end)));
        }
        assert_eq!([0..3, 3..5, 4..9].into_iter().collect::<PageSet>().runs().collect::<Vec<_>>(), [0..9]);
    }
}
