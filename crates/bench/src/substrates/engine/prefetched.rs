//! `fastmap-prefetch`: each thread knows which pages it touches next and asks for them ahead; the touch itself is a plain
//! load or store.

use std::collections::VecDeque;
use std::ops::Range;

use super::{Access, Mapped};
use crate::substrates::measure::Shadow;
use crate::substrates::{PAGE, Result, Sequence};

/// Pages a thread knows ahead. A disk gives four fifths of its random reads at a queue depth of 32 and nine tenths at 64
/// (NVMe behind virtio, fio: 102, 115 and 121 thousand a second at 32, 64 and 128); beyond, latency is all that grows.
const AHEAD: usize = 64;

/// Operations between two calls of `prefetch`: a quarter of what is known ahead, so that three quarters of it are under
/// way when the next batch is handed over, at a sixteenth of a call an operation.
const BATCH: usize = 16;

/// A fastmap map with pages prefetched. A fresh file that is filled has nothing to prefetch; it is filled as without.
pub struct Prefetched<'a> {
    /// Touches pages.
    pub mapped: Mapped<'a>,
    /// [`fastmap::Map::prefetch`].
    pub prefetch: &'a (dyn Fn(&[Range<usize>]) -> Result<usize> + Sync),
}

/// The pages that a thread touches next.
#[derive(Default)]
pub struct Ahead {
    pages: VecDeque<u64>,
    /// How many at its front were taken for prefetching. The rest was not, for want of room, and is offered again.
    taken: usize,
    /// Operations until the next batch.
    due: usize,
    /// Reused from batch to batch.
    ranges: Vec<Range<usize>>,
}

impl Ahead {
    /// The next page of `sequence`; every [`BATCH`] operations, offers what was not taken yet of the [`AHEAD`] pages after it
    /// to `prefetch`, which answers how many it took.
    #[inline]
    fn next(
        &mut self,
        sequence: &mut Sequence,
        prefetch: &(dyn Fn(&[Range<usize>]) -> Result<usize> + Sync),
    ) -> Result<u64> {
        if self.due == 0 {
            while self.pages.len() <= AHEAD {
                self.pages.push_back(sequence.next_page());
            }
            self.ranges.clear();
            // The page touched now is no use to offer.
            let first = self.taken.max(1);
            let bytes = |page: &u64| *page as usize * PAGE..(*page as usize + 1) * PAGE;
            self.ranges.extend(self.pages.range(first..=AHEAD).map(bytes));
            self.taken = first + prefetch(&self.ranges)?;
            self.due = BATCH;
        }
        self.due -= 1;
        self.taken = self.taken.saturating_sub(1);
        Ok(self.pages.pop_front().expect("a batch is due before the pages run out"))
    }
}

impl Access for Prefetched<'_> {
    type Local = Ahead;

    fn local(&self) -> Result<Ahead> {
        Ok(Ahead::default())
    }

    #[inline]
    fn next_page(&self, local: &mut Ahead, sequence: &mut Sequence) -> Result<u64> {
        local.next(sequence, self.prefetch)
    }

    #[inline]
    fn read(&self, _local: &mut Ahead, page: u64) -> Result<()> {
        self.mapped.read(&mut (), page)
    }

    #[inline]
    fn write(&self, _local: &mut Ahead, page: u64, shadow: &Shadow) -> Result<()> {
        self.mapped.write(&mut (), page, shadow)
    }

    #[inline]
    fn rmw(&self, _local: &mut Ahead, page: u64, shadow: &Shadow) -> Result<()> {
        self.mapped.rmw(&mut (), page, shadow)
    }

    #[inline]
    fn fill(&self, _local: &mut Ahead, page: u64, last: bool, shadow: &Shadow) -> Result<()> {
        self.mapped.fill(&mut (), page, last, shadow)
    }

    fn flush(&self) -> Result<()> {
        self.mapped.flush()
    }
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;
    use std::sync::Mutex;

    use super::*;
    use crate::substrates::Pattern;

    /// Draws `count` pages; `takes` says how many ranges a call takes of those offered. Returns pages drawn and, call by
    /// call, how many pages were drawn before it and which were offered.
    fn draw(count: usize, takes: impl Fn(usize) -> usize + Sync) -> (Vec<u64>, Vec<(usize, Vec<u64>)>) {
        let mut sequence = Sequence::of_all(Pattern::Random, 1 << 20, 1, false).remove(0);
        let (drawn, calls) = (Mutex::new(Vec::new()), Mutex::new(Vec::new()));
        let prefetch = |ranges: &[Range<usize>]| {
            assert!(ranges.iter().all(|r| r.len() == PAGE && r.start.is_multiple_of(PAGE)));
            let pages = ranges.iter().map(|r| (r.start / PAGE) as u64).collect();
            calls.lock().unwrap().push((drawn.lock().unwrap().len(), pages));
            Ok(takes(ranges.len()))
        };
        let ahead = RefCell::new(Ahead::default());
        for _ in 0..count {
            let page = ahead.borrow_mut().next(&mut sequence, &prefetch).unwrap();
            drawn.lock().unwrap().push(page);
        }
        (drawn.into_inner().unwrap(), calls.into_inner().unwrap())
    }

    #[test]
    fn every_page_comes_in_order_and_was_offered_once_before_if_all_are_taken() {
        let (drawn, calls) = draw(1000, |offered| offered);
        let mut sequence = Sequence::of_all(Pattern::Random, 1 << 20, 1, false).remove(0);
        assert!(drawn.iter().all(|&page| page == sequence.next_page()));
        let offered: Vec<u64> = calls.iter().flat_map(|(_, pages)| pages.iter().copied()).collect();
        assert_eq!(&drawn[1..], &offered[..drawn.len() - 1]);
        assert_eq!(calls[0].1.len(), AHEAD);
        assert!(calls[1..].iter().all(|(_, pages)| pages.len() == BATCH));
        assert!(calls.windows(2).all(|two| two[1].0 - two[0].0 == BATCH));
    }

    #[test]
    fn what_is_not_taken_is_offered_again_until_it_is_touched() {
        for limit in [0, 3, 20] {
            let (drawn, calls) = draw(1000, |offered| offered.min(limit));
            for (at, pages) in &calls[..calls.len() - 5] {
                let end = at + 1 + AHEAD;
                assert_eq!(pages, &drawn[end - pages.len()..end], "up to {AHEAD} pages after the {at}th");
            }
            if limit < BATCH {
                assert!(calls.iter().all(|(_, pages)| pages.len() == AHEAD), "all but the one touched now");
            }
        }
    }
}
