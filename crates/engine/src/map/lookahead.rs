//! An iterator that prefetches ahead of itself.

use crate::map::mapping::Mapping;
use crate::readahead::prefetch::MOST_QUEUED;
use std::collections::VecDeque;
use std::ops::Range;

/// Yields accesses in order, and prefetches those that follow: see [`Map::lookahead`](crate::Map::lookahead).
pub struct Lookahead<'a, I> {
    mapping: &'a Mapping,
    accesses: I,
    depth: usize,
    /// Ranges that are drawn and not returned yet. The first `offered` of them need no more prefetching.
    coming: VecDeque<Range<usize>>,
    offered: usize,
}

impl<'a, I: Iterator<Item = Range<usize>>> Lookahead<'a, I> {
    pub(crate) fn new(mapping: &'a Mapping, depth: usize, accesses: I) -> Self {
        // More than the queue takes is no use.
        let depth = depth.min(MOST_QUEUED);
        Lookahead { mapping, accesses, depth, coming: VecDeque::new(), offered: 0 }
    }

    /// Prefetches when more than a quarter of the depth is not prefetched: a call for each range would wake a reader
    /// for each.
    fn look_ahead(&mut self) {
        let missing = self.depth.saturating_sub(self.coming.len());
        self.coming.extend(self.accesses.by_ref().take(missing));
        while self.coming.len() - self.offered > self.depth / 4 {
            let rest = &self.coming.make_contiguous()[self.offered..];
            self.offered += match self.mapping.prefetch(rest) {
                Ok(0) => return,
                Ok(taken) => taken,
                // One range is not inside the map: count those before it, or it alone, which is passed over.
                Err(_) => {
                    let sound =
                        rest.iter().take_while(|range| self.mapping.prefetch(&[(*range).clone()]).is_ok()).count();
                    sound.max(1)
                }
            };
        }
    }
}

impl<I: Iterator<Item = Range<usize>>> Iterator for Lookahead<'_, I> {
    type Item = Range<usize>;

    fn next(&mut self) -> Option<Range<usize>> {
        self.look_ahead();
        match self.coming.pop_front() {
            Some(next) => {
                self.offered = self.offered.saturating_sub(1);
                Some(next)
            }
            None => self.accesses.next(),
        }
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        let (least, most) = self.accesses.size_hint();
        (least.saturating_add(self.coming.len()), most.and_then(|most| most.checked_add(self.coming.len())))
    }
}
