//! Which units are fetched beyond those that were asked for: ahead of a program that reads on (*streams*), and around one that reads here and
//! there (*chunks*). Both grow and shrink by how much of them is used. Sizes are counted in units of 256 KiB ([`UNIT`]) unless bytes are named.

use fastmap_tier::UNIT;
use std::collections::VecDeque;
use std::ops::Range;

/// Misses that are remembered.
const REMEMBERED: usize = 32;
/// Streams at a time.
const STREAMS: usize = 8;
/// A stream can begin where one of the last few misses ended. In a small object, older misses are neighbours by chance.
const STEPS: usize = 8;
/// A stream's first window, and its longest, units. A small tier has a lower limit ([`Plan::ahead`]).
const FIRST_WINDOW: u64 = 2;
pub(crate) const LONGEST_WINDOW: u64 = (32 << 20) / UNIT;
/// The parts that a stream's window is divided into: a request fetches one.
pub(crate) const PIECES: u64 = 4;

/// One object's streams and chunks.
#[derive(Debug)]
pub(crate) struct Plan {
    /// Units of the object.
    units: u64,
    /// The last misses that were no stream's.
    recent: VecDeque<Miss>,
    streams: VecDeque<Stream>,
    next_stream: u64,
    /// How many units are fetched for a miss: 1, 2, 4, …
    chunk: u64,
    /// The part of the last misses that had a recent miss beside them, 0 to 1.
    near: f64,
    /// The units that were fetched around recent misses. When the list is full, those that were used are counted, and it begins anew.
    around: VecDeque<Range<u64>>,
}

/// A walk from one unit to the next. A backward stream counts units from the object's end.
#[derive(Debug)]
struct Stream {
    number: u64,
    is_forward: bool,
    /// The next unit that the program will read.
    at: u64,
    /// The end of what was fetched for it.
    front: u64,
    window: u64,
}

/// A miss that was no stream's.
#[derive(Debug)]
struct Miss {
    wanted: Range<u64>,
    fetched: Range<u64>,
}

/// The units to fetch for a miss.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Answer {
    /// The missed units, and maybe more.
    pub units: Range<u64>,
    /// The stream that the miss belongs to.
    pub stream: Option<u64>,
}

impl Plan {
    pub fn new(units: u64) -> Self {
        Plan {
            units,
            recent: VecDeque::new(),
            streams: VecDeque::new(),
            next_stream: 0,
            chunk: 1,
            near: 0.0,
            around: VecDeque::new(),
        }
    }

    /// Notes that units are missed, and says which to fetch. `largest`: the largest number of bytes worth fetching at once. `is_awaited`:
    /// whether a thread waits for the missed units. `is_used`: whether a unit was read.
    pub fn missed(
        &mut self,
        missed: Range<u64>,
        largest: u64,
        is_awaited: bool,
        is_used: &impl Fn(u64) -> bool,
    ) -> Answer {
        if let Some(stream) = self.streams.iter_mut().find(|stream| stream.is_continued_by(&missed, self.units)) {
            let here = stream.map(&missed, self.units);
            // The program has caught up with what was fetched: the window was too small.
            stream.window = (stream.window * 2).min(LONGEST_WINDOW);
            stream.front = stream.front.max(here.end);
            if is_awaited {
                stream.at = stream.at.max(here.start);
            }
            return Answer { units: missed, stream: Some(stream.number) };
        }
        if let Some((is_forward, at)) = self.walk(&missed, is_used) {
            let mut stream = Stream { number: self.next_stream, is_forward, at: 0, front: 0, window: FIRST_WINDOW };
            stream.at = stream.map(&(at..at + 1), self.units).end;
            stream.front = stream.map(&missed, self.units).end;
            self.next_stream += 1;
            if self.streams.len() == STREAMS {
                self.streams.pop_front();
            }
            self.streams.push_back(stream);
            return Answer { units: missed, stream: Some(self.next_stream - 1) };
        }
        let fetched = self.chunk_around(missed.clone(), largest, is_used);
        if self.recent.len() == REMEMBERED {
            self.recent.pop_front();
        }
        self.recent.push_back(Miss { wanted: missed, fetched: fetched.clone() });
        Answer { units: fetched, stream: None }
    }

    /// Whether a miss continues an earlier one of which a unit was used since. Returns the direction (true: forward) and that unit. The stream
    /// begins behind it.
    fn walk(&self, missed: &Range<u64>, is_used: &impl Fn(u64) -> bool) -> Option<(bool, u64)> {
        self.recent.iter().rev().take(STEPS).find_map(|Miss { wanted, fetched }| {
            // Units that were fetched around a miss and not used are no step of a walk.
            let last = |range: &Range<u64>| range.end - 1;
            let steps = [
                (true, wanted.end == missed.start, wanted.start),
                (true, fetched.end == missed.start, last(fetched)),
                (false, wanted.start == missed.end, last(wanted)),
                (false, fetched.start == missed.end, fetched.start),
            ];
            steps.into_iter().find(|(_, is_next, used)| *is_next && is_used(*used)).map(|(way, _, used)| (way, used))
        })
    }

    /// The chunk around a lone miss. First learns from the misses until now how long chunks are to be.
    fn chunk_around(&mut self, missed: Range<u64>, largest: u64, is_used: &impl Fn(u64) -> bool) -> Range<u64> {
        let is_near = self.recent.iter().any(|Miss { fetched, .. }| {
            fetched.start < missed.end + self.chunk && missed.start < fetched.end + self.chunk
        });
        self.near += (if is_near { 1.0 } else { 0.0 } - self.near) / 8.0;
        if self.near > 0.4 && self.chunk * 2 * UNIT <= largest.max(UNIT) {
            self.chunk *= 2;
            self.near = 0.0;
        }
        if self.around.len() == REMEMBERED {
            let used = self.around.iter().flat_map(Range::clone).filter(|unit| is_used(*unit)).count();
            let all: u64 = self.around.iter().map(|around| around.end - around.start).sum();
            if (used as u64) * 2 < all {
                self.chunk = (self.chunk / 2).max(1);
            }
            self.around.clear();
        }
        if missed.end - missed.start >= self.chunk {
            return missed;
        }
        let start = missed.start / self.chunk * self.chunk;
        let end = (start + self.chunk).max(missed.end).min(self.units);
        // Only the others: the missed units themselves are used in any case.
        self.around.extend([start..missed.start, missed.end..end].into_iter().filter(|around| !around.is_empty()));
        self.around.truncate(REMEMBERED);
        start..end
    }

    /// The units to fetch for a stream now, with a window of at most `longest`, and whether the program has read on since the last call. `None`:
    /// the stream is gone.
    pub fn ahead(&mut self, number: u64, longest: u64, is_used: impl Fn(u64) -> bool) -> Option<(Range<u64>, bool)> {
        let units = self.units;
        let stream = self.streams.iter_mut().find(|stream| stream.number == number)?;
        let before = stream.at;
        while stream.at < stream.front && is_used(stream.map(&(stream.at..stream.at + 1), units).start) {
            stream.at += 1;
        }
        let longest = longest.clamp(1, LONGEST_WINDOW);
        if stream.at > before {
            stream.window = (stream.window * 2).min(longest);
        }
        let window = stream.window.min(longest);
        // Rounded down to a quarter of the window, so that the object store gets a few large requests. Many small ones would cost it more.
        let piece = (window / PIECES).max(1);
        let wanted = stream.at + window;
        let front = if wanted >= units { units } else { wanted / piece * piece };
        let ahead = stream.map(&(stream.front..front.max(stream.front)), units);
        stream.front = stream.front.max(front);
        Some((ahead, stream.at > before))
    }
}

impl Stream {
    /// Converts units to the stream's way of counting, and back.
    fn map(&self, range: &Range<u64>, units: u64) -> Range<u64> {
        if self.is_forward { range.clone() } else { units - range.end..units - range.start }
    }

    fn is_continued_by(&self, missed: &Range<u64>, units: u64) -> bool {
        let here = self.map(missed, units);
        here.start + 1 >= self.at && here.start <= self.front + 1
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const UNITS: u64 = 4096;

    fn missed(plan: &mut Plan, unit: u64, used: impl Fn(u64) -> bool) -> Answer {
        plan.missed(unit..unit + 1, 16 * UNIT, true, &used)
    }

    #[test]
    fn a_walk_becomes_a_stream() {
        for is_forward in [true, false] {
            let unit = |step: u64| if is_forward { 100 + step } else { 3000 - step };
            let mut plan = Plan::new(UNITS);
            assert_eq!(missed(&mut plan, unit(0), |_| true).stream, None);
            assert_eq!(missed(&mut plan, unit(1), |_| true).stream, Some(0));
            let mut read = 2;
            let mut windows = Vec::new();
            for _ in 0..8 {
                let used = |other: u64| (0..read).any(|step| unit(step) == other);
                let (ahead, _) = plan.ahead(0, LONGEST_WINDOW, used).unwrap();
                windows.push(ahead.end - ahead.start);
                read += windows.last().unwrap();
            }
            // The program has read on since the stream began, which doubles the window.
            assert!(windows[0] <= 2 * FIRST_WINDOW, "{windows:?}");
            let longest = windows.iter().max().unwrap();
            assert!((LONGEST_WINDOW / 2..=LONGEST_WINDOW).contains(longest), "{windows:?}");
            // When the program stops, nothing more is fetched.
            assert!(plan.ahead(0, LONGEST_WINDOW, |_| false).unwrap().0.is_empty());
        }
    }

    #[test]
    fn a_stream_ends_with_the_object() {
        let mut plan = Plan::new(10);
        missed(&mut plan, 7, |_| true);
        missed(&mut plan, 8, |_| true);
        assert_eq!(plan.ahead(0, LONGEST_WINDOW, |_| false), Some((9..10, false)));
        assert_eq!(plan.ahead(0, LONGEST_WINDOW, |_| true), Some((10..10, true)));
        assert_eq!(plan.ahead(1, LONGEST_WINDOW, |_| true), None);
    }

    #[test]
    fn random_misses_fetch_a_unit_each() {
        let mut plan = Plan::new(UNITS);
        let mut random = 1_u64;
        let mut fetched = 0;
        for _ in 0..1000 {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            let unit = (random >> 33) % UNITS;
            let answer = missed(&mut plan, unit, |_| true);
            fetched += answer.units.end - answer.units.start;
        }
        assert!(fetched < 1100, "{fetched}");
    }

    #[test]
    fn chunks_grow_with_neighbours_and_shrink_without() {
        let mut plan = Plan::new(UNITS);
        let (mut at, mut largest) = (0, 0);
        // Scattered pairs of neighbours. None is used, or they would be walks.
        for step in 0..200 {
            at += if step % 2 == 0 { 40 } else { 1 };
            missed(&mut plan, at % UNITS, |_| false);
            largest = largest.max(plan.chunk);
        }
        assert!(largest > 1);
        for step in 0..400_u64 {
            missed(&mut plan, step * 997 % UNITS, |_| false);
        }
        assert_eq!(plan.chunk, 1);
    }
}
