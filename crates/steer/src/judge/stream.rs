//! What to read ahead of a walk that the kernel does not read ahead of.

use super::{Front, Run};
use std::time::Duration;

/// Follows one walk: backward, or in strides.
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
    moved: Duration,
    began: Duration,
    steps: u64,
}

/// Strides up to this are read with what lies between.
const DENSE: i64 = 4;
/// Pages that one request has at most: 1 MiB.
const REQUEST: i64 = 256;
/// Requests of single pages at a time.
const AT_ONCE: usize = 256;
/// Touches that may be missing in a row: another thread's, or what the look was too early for.
const MISSING: i64 = 4;
/// Touches in order, after it was found, that make a walk without a stride sure: more than the kernel maps for one.
const SURE: u64 = 32;
/// A walk that has not moved for so long has ended.
const PATIENCE: Duration = Duration::from_millis(20);

impl Stream {
    /// A walk that was found just now, in a mapping of `pages`; at most `most` pages may be read ahead.
    pub fn new(front: &Front, pages: u64, most: u64, now: Duration) -> Stream {
        let stride = front.stride;
        let depth = if stride.abs() > DENSE { 64 } else { REQUEST / stride.abs() };
        let most = (most as i64).min(if stride.abs() > DENSE { 512 } else { 4096 / stride.abs() });
        Stream {
            stride,
            front: front.at as i64,
            ahead: front.at as i64,
            pages: pages as i64,
            depth: depth.min(most.max(1)),
            most: most.max(1),
            moved: now,
            began: now,
            steps: 0,
        }
    }

    /// Where the next touches are to be looked for.
    pub fn ahead(&self) -> Run {
        let reach = (self.depth * 2 * self.stride.abs()).clamp(1024, self.pages);
        let (from, to) =
            if self.stride > 0 { (self.front, self.front + reach) } else { (self.front - reach, self.front) };
        let (from, to) = (from.clamp(0, self.pages), (to + 1).clamp(0, self.pages));
        Run { at: from as u64, len: (to - from) as u64 }
    }

    /// Moves on to the last touch in order that `is_touched` knows. `false` once the walk has ended.
    pub fn follow(&mut self, is_touched: impl Fn(u64) -> bool, now: Duration) -> bool {
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
            // Nearly all that was read ahead is used: more pays.
            if self.lead() * 4 < self.depth * 3 {
                self.depth = (self.depth * 2).min(self.most);
            }
        }
        now.saturating_sub(self.moved) < PATIENCE && (0..self.pages).contains(&(self.front + self.stride))
    }

    /// Touches by which reading is ahead.
    fn lead(&self) -> i64 {
        ((self.ahead - self.front) / self.stride).max(0)
    }

    /// Whether it has moved on since it was found. Pieces that are read forward one after the other, each below the one
    /// before, look like a walk backward.
    pub fn is_sure(&self) -> bool {
        self.stride.abs() > 1 || self.steps >= SURE
    }

    /// Pages to read now, each run in one request.
    pub fn ask(&mut self) -> Vec<Run> {
        let mut ask = Vec::new();
        if !self.is_sure() {
            return ask;
        }
        if (self.ahead - self.front) * self.stride.signum() < 0 {
            self.ahead = self.front;
        }
        if self.stride.abs() > DENSE {
            while self.lead() < self.depth && ask.len() < AT_ONCE {
                let next = self.ahead + self.stride;
                if !(0..self.pages).contains(&next) {
                    break;
                }
                self.ahead = next;
                ask.push(Run { at: next as u64, len: 1 });
            }
            return ask;
        }
        while self.lead() + REQUEST / self.stride.abs() <= self.depth {
            let next = self.ahead + REQUEST * self.stride.signum();
            let (from, to) = if self.stride > 0 { (self.ahead + 1, next + 1) } else { (next, self.ahead) };
            let (from, to) = (from.clamp(0, self.pages), to.clamp(0, self.pages));
            if from >= to {
                break;
            }
            self.ahead = next;
            ask.push(Run { at: from as u64, len: (to - from) as u64 });
        }
        ask
    }

    /// How long to wait until the next look: while a quarter of what is ahead is used.
    pub fn pause(&self, now: Duration) -> Duration {
        let seconds = now.saturating_sub(self.began).as_secs_f64();
        if self.steps == 0 || seconds <= 0.0 {
            return Duration::from_micros(500);
        }
        let a_second = self.steps as f64 / seconds;
        Duration::from_secs_f64((self.depth as f64 / 4.0 / a_second).clamp(0.0003, 0.005))
    }

    /// Touches that were followed, and those that were asked for and have not come.
    pub fn account(&self) -> (u64, u64) {
        (self.steps, self.lead() as u64)
    }

    /// Pages from one touch to the next.
    pub fn stride(&self) -> i64 {
        self.stride
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

    #[test]
    fn a_backward_walk_is_read_ahead_of_in_order_and_deeper_while_it_keeps_up() {
        let mut stream = Stream::new(&Front { at: 50_000, stride: -1, span: 700 }, PAGES, 8192, at(0));
        let (mut asked, mut reached) = (50_000 - 40, 50_000);
        assert!(stream.ask().is_empty());
        assert!(stream.follow(|page| page >= 50_000 - 40, at(0)));
        for step in 0..9 {
            for run in stream.ask() {
                assert_eq!(run.end(), asked);
                asked = run.at;
            }
            // All that was read ahead is used.
            reached = asked;
            assert!(stream.follow(|page| page >= asked, at(step)), "step {step}");
            assert_eq!(stream.front(), reached);
        }
        let more: u64 = stream.ask().iter().map(|run| run.len).sum();
        assert_eq!(more, 4096, "{reached}");
    }

    #[test]
    fn a_stride_is_asked_for_page_by_page() {
        let mut stream = Stream::new(&Front { at: 160, stride: 16, span: 160 }, PAGES, 8192, at(0));
        let ask = stream.ask();
        assert_eq!(ask.len(), 64);
        assert_eq!((ask[0], ask[1]), (Run { at: 176, len: 1 }, Run { at: 192, len: 1 }));
        assert!(stream.ask().is_empty());
        assert!(stream.follow(|page| page <= 400, at(1)));
        assert_eq!(stream.front(), 400);
        assert!(!stream.ask().is_empty());
    }

    #[test]
    fn a_walk_that_stands_has_ended() {
        let mut stream = Stream::new(&Front { at: 160, stride: 16, span: 160 }, PAGES, 8192, at(0));
        stream.ask();
        assert!(stream.follow(|_| false, at(10)));
        assert!(!stream.follow(|_| false, at(30)));
        assert_eq!(stream.account(), (0, 64));
    }

    #[test]
    fn nothing_beyond_the_mapping_or_beyond_what_memory_allows_is_asked_for() {
        let mut stream = Stream::new(&Front { at: 300, stride: -1, span: 700 }, PAGES, 8192, at(0));
        stream.follow(|page| page >= 260, at(1));
        assert_eq!(stream.ask(), [Run { at: 4, len: 256 }, Run { at: 0, len: 4 }]);
        stream.follow(|page| page >= 20, at(1));
        assert!(stream.ask().is_empty());
        let mut stream = Stream::new(&Front { at: 160, stride: 16, span: 160 }, PAGES, 10, at(0));
        assert_eq!(stream.ask().len(), 10);
    }
}
