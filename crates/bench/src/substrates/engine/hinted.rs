//! Tells an engine its next pages, through the hints that the engine has.
//!
//! Engines whose names say so are told all the time (`fastmap-prefetch`, `mmap-willneed` and others). The other engines are told only while
//! memory is filled, before anything is measured. On a walk they are told nothing: a walk fills memory as fast by itself, with the pages
//! and in the frames that it meets when it is measured. The touch itself is the engine's own.

use std::collections::VecDeque;
use std::ops::Range;

use super::Access;
use crate::substrates::measure::Shadow;
use crate::substrates::{PAGE, Pattern, Result, Sequence, Spec};

/// How many pages are told in advance, and how often. It is the same for all engines.
#[derive(Debug, Clone, Copy)]
struct Window {
    /// Pages that are known in advance.
    ahead: usize,
    /// Operations between two hints.
    batch: usize,
}

/// A disk reaches four fifths of its random reads at a queue depth of 32, and nine tenths at 64. Beyond that only the latency grows. (NVMe
/// behind virtio, fio: 102, 115 and 121 thousand reads a second at 32, 64 and 128.) Each hint tells a quarter of the known pages, so three
/// quarters of them are under way at that moment. There is one hint in 16 operations.
const SCATTERED: Window = Window { ahead: 64, batch: 16 };

/// On a walk neighbours are read together: each hint tells 1 MiB, and 3 MiB are under way.
const WALK: Window = Window { ahead: 1024, batch: 256 };

/// Tells an engine pages, as ranges of offsets in the file. `near` are the pages that come at once. `far` are pages that it has not taken
/// yet. Returns how many of the far pages it took.
pub type Tell<'a> = &'a (dyn Fn(&[Range<usize>], &[Range<usize>]) -> Result<usize> + Sync);

/// An engine that can be told its next pages. In a fill nothing is told, since a fresh file has nothing to be read.
pub struct Hinted<'a, A> {
    inner: A,
    tell: Tell<'a>,
    window: Window,
    always: bool,
    to_fill: bool,
}

impl<'a, A: Access> Hinted<'a, A> {
    /// A wrapper around `inner` for the spec's engine and pattern.
    pub fn new(spec: &Spec, inner: A, tell: Tell<'a>) -> Hinted<'a, A> {
        let is_walk = matches!(spec.pattern, Pattern::Forward | Pattern::Backward);
        let always = spec.engine.is_told_ahead();
        Hinted { inner, tell, window: if is_walk { WALK } else { SCATTERED }, always, to_fill: always || !is_walk }
    }
}

/// The pages that a thread touches next.
#[derive(Default)]
pub struct Ahead {
    pages: VecDeque<u64>,
    /// How many pages at the front were taken. There was no room for the rest, which is offered again.
    taken: usize,
    /// Operations until the next hint.
    due: usize,
    /// The buffer for ranges, which is used again for each hint.
    ranges: Vec<Range<usize>>,
}

impl Ahead {
    /// The next page of `sequence`. Once in `window.batch` operations, it offers those of the next `window.ahead` pages that were not taken
    /// yet.
    #[inline]
    fn next(&mut self, sequence: &mut Sequence, window: Window, tell: Tell<'_>) -> Result<u64> {
        if self.due == 0 {
            while self.pages.len() <= window.ahead {
                self.pages.push_back(sequence.next_page());
            }
            self.ranges.clear();
            let bytes = |page: &u64| *page as usize * PAGE..(*page as usize + 1) * PAGE;
            self.ranges.extend(self.pages.range(..=window.ahead).map(bytes));
            // The page that is touched now is not offered: that would be too late.
            let first = self.taken.max(1);
            self.taken = first + tell(&self.ranges[..window.batch], &self.ranges[first..])?;
            self.due = window.batch;
        }
        self.due -= 1;
        self.taken = self.taken.saturating_sub(1);
        Ok(self.pages.pop_front().expect("a batch is due before the pages run out"))
    }
}

impl<A: Access> Access for Hinted<'_, A> {
    type Local = (A::Local, Ahead);

    fn local(&self) -> Result<Self::Local> {
        Ok((self.inner.local()?, Ahead::default()))
    }

    #[inline]
    fn next_page(&self, (_, ahead): &mut Self::Local, sequence: &mut Sequence) -> Result<u64> {
        if self.always {
            return ahead.next(sequence, self.window, self.tell);
        }
        // Pages that became known while memory was filled come first.
        Ok(ahead.pages.pop_front().unwrap_or_else(|| sequence.next_page()))
    }

    #[inline]
    fn warm_page(&self, (_, ahead): &mut Self::Local, sequence: &mut Sequence) -> Result<u64> {
        if self.to_fill { ahead.next(sequence, self.window, self.tell) } else { Ok(sequence.next_page()) }
    }

    #[inline]
    fn read(&self, (local, _): &mut Self::Local, page: u64) -> Result<()> {
        self.inner.read(local, page)
    }

    #[inline]
    fn write(&self, (local, _): &mut Self::Local, page: u64, shadow: &Shadow) -> Result<()> {
        self.inner.write(local, page, shadow)
    }

    #[inline]
    fn rmw(&self, (local, _): &mut Self::Local, page: u64, shadow: &Shadow) -> Result<()> {
        self.inner.rmw(local, page, shadow)
    }

    #[inline]
    fn fill(&self, (local, _): &mut Self::Local, page: u64, last: bool, shadow: &Shadow) -> Result<()> {
        self.inner.fill(local, page, last, shadow)
    }

    fn flush(&self) -> Result<()> {
        self.inner.flush()
    }
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;
    use std::sync::Mutex;

    use super::*;
    use crate::substrates::Pattern;

    /// Draws `count` pages. `takes` says how many of the offered ranges a hint takes. Returns the drawn pages. For each hint it also
    /// returns how many pages were drawn before it, and which pages it offered.
    fn draw(count: usize, takes: impl Fn(usize) -> usize + Sync) -> (Vec<u64>, Vec<(usize, Vec<u64>)>) {
        let mut sequence = Sequence::of_all(Pattern::Random, 1 << 20, 1, false).remove(0);
        let window = SCATTERED;
        let (drawn, calls) = (Mutex::new(Vec::new()), Mutex::new(Vec::new()));
        let tell = |near: &[Range<usize>], ranges: &[Range<usize>]| {
            assert_eq!(near.len(), window.batch, "those of the next batch, which are due");
            assert!(ranges.iter().all(|r| r.len() == PAGE && r.start.is_multiple_of(PAGE)));
            let pages = ranges.iter().map(|r| (r.start / PAGE) as u64).collect();
            calls.lock().unwrap().push((drawn.lock().unwrap().len(), pages));
            Ok(takes(ranges.len()))
        };
        let ahead = RefCell::new(Ahead::default());
        for _ in 0..count {
            let page = ahead.borrow_mut().next(&mut sequence, window, &tell).unwrap();
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
        assert_eq!(calls[0].1.len(), SCATTERED.ahead);
        assert!(calls[1..].iter().all(|(_, pages)| pages.len() == SCATTERED.batch));
        assert!(calls.windows(2).all(|two| two[1].0 - two[0].0 == SCATTERED.batch));
    }

    #[test]
    fn what_is_not_taken_is_offered_again_until_it_is_touched() {
        for limit in [0, 3, 20] {
            let (drawn, calls) = draw(1000, |offered| offered.min(limit));
            for (at, pages) in &calls[..calls.len() - 5] {
                let end = at + 1 + SCATTERED.ahead;
                assert_eq!(pages, &drawn[end - pages.len()..end], "up to {} pages after the {at}th", SCATTERED.ahead);
            }
            if limit < SCATTERED.batch {
                assert!(calls.iter().all(|(_, pages)| pages.len() == SCATTERED.ahead), "all but the one touched now");
            }
        }
    }
}
