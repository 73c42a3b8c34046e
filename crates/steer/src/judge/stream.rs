//! Which pages to read ahead of a walk in strides.

use super::{Front, Run};
use std::time::Duration;

/// Follows one walk in strides, forward or backward.
#[derive(Debug)]
pub struct Stream {
    /// Pages from one touch to the next; below zero where the walk is backward.
    stride: i64,
    /// The page touched last.
    front: i64,
    /// The page asked for last.
    ahead: i64,
    /// The mapping's length in pages.
    pages: i64,
    /// Touches to be ahead by: doubled while the walk keeps up.
    depth: i64,
    most: i64,
    /// The walk has come to the mapping's end, and may begin anew: a column follows another.
    is_over: bool,
    moved: Duration,
    began: Duration,
    steps: u64,
}

/// From this stride on single pages are read. The kernel, or blocks, serve shorter ones.
pub const WIDE: i64 = 8;
/// Touches to be ahead by at first, and at most.
const DEPTH: i64 = 64;
const DEEPEST: i64 = 512;
/// Requests that one [`Stream::ask`] returns at most.
const AT_ONCE: usize = 256;
/// Touches that may be missing in a row: another thread made them, or the look was too early.
const MISSING: i64 = 4;
/// A walk that has not moved for so long has ended.
const PATIENCE: Duration = Duration::from_millis(20);
/// A walk that is at the mapping's end, and has not begun anew for so long, has ended.
const BREATH: Duration = Duration::from_millis(200);
/// So many new touches in strides begin a walk anew.
const AGAIN: i64 = 4;

impl Stream {
    /// A walk that was found just now, in a mapping of `pages`; at most `most` pages may be read ahead.
    pub fn new(front: &Front, pages: u64, most: u64, now: Duration) -> Stream {
        let most = (most as i64).clamp(1, DEEPEST);
        Stream {
            stride: front.stride,
            front: front.at as i64,
            ahead: front.at as i64,
            pages: pages as i64,
            depth: DEPTH.min(most),
            most,
            is_over: false,
            moved: now,
            began: now,
            steps: 0,
        }
    }

    /// Where to look for the next touches.
    pub fn ahead(&self) -> Run {
        let reach = (self.depth * 2 * self.stride.abs()).clamp(1024, self.pages);
        let (from, to) = match (self.stride > 0, self.is_over) {
            (true, false) => (self.front, self.front + reach),
            (false, false) => (self.front - reach, self.front),
            (true, true) => (0, reach),
            (false, true) => (self.pages - reach, self.pages),
        };
        let (from, to) = (from.clamp(0, self.pages), (to + 1).clamp(0, self.pages));
        Run { at: from as u64, len: (to - from) as u64 }
    }

    /// Moves on to the last touch, in the walk's order, for which `is_touched` is true. `new` has the pages that no look has seen
    /// before. Returns `false` once the walk has ended.
    pub fn follow(&mut self, new: &[Run], is_touched: impl Fn(u64) -> bool, now: Duration) -> bool {
        if self.is_over && !self.begins_anew(new) {
            return now.saturating_sub(self.moved) < BREATH;
        }
        let before = self.front;
        let mut missing = 0;
        let mut page = self.front;
        while missing < MISSING {
            page += self.stride;
            if !(0..self.pages).contains(&page) {
                break;
            }
            if is_touched(page as u64) {
                self.front = page;
                missing = 0;
            } else {
                missing += 1;
            }
        }
        if self.front != before {
            self.steps += ((self.front - before) / self.stride) as u64;
            self.moved = now;
            // More than a quarter of the depth was used since the last look: a greater depth pays.
            if self.lead() * 4 < self.depth * 3 {
                self.depth = (self.depth * 2).min(self.most);
            }
        }
        self.is_over = !(0..self.pages).contains(&(self.front + self.stride * MISSING));
        now.saturating_sub(self.moved) < PATIENCE
    }

    /// Finds the walk at the mapping's other end.
    fn begins_anew(&mut self, new: &[Run]) -> bool {
        let is_new = |page: i64| {
            let before = new.partition_point(|run| run.at as i64 <= page);
            before > 0 && page < new[before - 1].end() as i64
        };
        let is_first = |run: &&Run| (1..AGAIN).all(|step| is_new(run.at as i64 + step * self.stride));
        let Some(first) = new.iter().find(is_first) else { return false };
        self.front = first.at as i64;
        self.ahead = self.front;
        self.is_over = false;
        true
    }

    /// Touches that reading is ahead by.
    fn lead(&self) -> i64 {
        ((self.ahead - self.front) / self.stride).max(0)
    }

    /// Pages to read now, each in a request of its own.
    pub fn ask(&mut self) -> Vec<Run> {
        let mut ask = Vec::new();
        if self.is_over {
            return ask;
        }
        if (self.ahead - self.front) * self.stride.signum() < 0 {
            self.ahead = self.front;
        }
        while self.lead() < self.depth && ask.len() < AT_ONCE {
            let next = self.ahead + self.stride;
            if !(0..self.pages).contains(&next) {
                break;
            }
            self.ahead = next;
            ask.push(Run { at: next as u64, len: 1 });
        }
        ask
    }

    /// How long to wait until the next look: until about a quarter of the depth is used.
    pub fn pause(&self, now: Duration) -> Duration {
        let seconds = now.saturating_sub(self.began).as_secs_f64();
        if self.steps == 0 || seconds <= 0.0 {
            return Duration::from_micros(500);
        }
        let a_second = self.steps as f64 / seconds;
        Duration::from_secs_f64((self.depth as f64 / 4.0 / a_second).clamp(0.0003, 0.005))
    }

    /// Touches that were followed, and touches that were asked for and have not come.
    pub fn account(&self) -> (u64, u64) {
        (self.steps, self.lead() as u64)
    }

    /// The page touched last.
    pub fn front(&self) -> u64 {
        self.front as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAGES: u64 = 100_000;

    fn at(millis: u64) -> Duration {
        Duration::from_millis(millis)
    }

    fn strides(at: u64) -> Stream {
        Stream::new(&Front { at, stride: 16, span: 160 }, PAGES, 8192, Duration::ZERO)
    }

    #[test]
    fn a_stride_is_asked_for_page_by_page_and_deeper_while_the_walk_keeps_up() {
        let mut stream = strides(160);
        let ask = stream.ask();
        assert_eq!(ask.len(), 64);
        assert_eq!((ask[0], ask[1]), (Run { at: 176, len: 1 }, Run { at: 192, len: 1 }));
        assert!(stream.ask().is_empty());
        assert!(stream.follow(&[], |page| page <= 400, at(1)));
        assert_eq!(stream.front(), 400);
        assert!(!stream.ask().is_empty());
        for step in 2..9 {
            let reached = stream.ahead as u64;
            assert!(stream.follow(&[], |page| page <= reached, at(step)));
            stream.ask();
        }
        assert!(stream.account().1 >= 256, "{stream:?}");
    }

    #[test]
    fn a_walk_that_stands_has_ended() {
        let mut stream = strides(160);
        stream.ask();
        assert!(stream.follow(&[], |_| false, at(10)));
        assert!(!stream.follow(&[], |_| false, at(30)));
        assert_eq!(stream.account(), (0, 64));
    }

    #[test]
    fn a_walk_that_comes_to_the_end_is_found_again_at_the_beginning() {
        for (stride, end, again) in [(16, PAGES - 10, 5), (-16, 9, PAGES - 3)] {
            let mut stream = Stream::new(&Front { at: end, stride, span: 160 }, PAGES, 8192, at(0));
            assert!(stream.follow(&[], |_| false, at(1)));
            assert!(stream.ask().is_empty());
            assert!(stream.ahead().at <= again && again < stream.ahead().end(), "{stream:?}");
            let mut new: Vec<Run> =
                (0..6).map(|step| Run { at: again.wrapping_add_signed(step * stride), len: 1 }).collect();
            new.sort_by_key(|run| run.at);
            let is_touched = |page| new.iter().any(|run| run.at == page);
            assert!(stream.follow(&new, is_touched, at(2)));
            assert_eq!(stream.front(), again.wrapping_add_signed(5 * stride));
            assert_eq!(stream.ask().first().map(|run| run.at), Some(again.wrapping_add_signed(6 * stride)));
            assert!(!stream.follow(&[], |_| false, at(300)));
        }
    }

    #[test]
    fn nothing_beyond_what_memory_allows_is_asked_for() {
        let mut stream = Stream::new(&Front { at: 160, stride: 16, span: 160 }, PAGES, 10, at(0));
        assert_eq!(stream.ask().len(), 10);
    }
}
