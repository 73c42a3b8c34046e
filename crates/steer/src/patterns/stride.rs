//! Walks in strides, of which the kernel finds none. Single touches show under MADV_RANDOM only; then page by page is read ahead.

use super::*;
use crate::classify::{Front, WIDE};
use crate::trial::{PAUSE, Rate, TRIAL};

/// Strides.
#[derive(Debug, Default)]
pub struct Stride {
    each: Each<Strides>,
    /// Touches of walks that have ended.
    told: u64,
}

/// What is known of one mapping.
#[derive(Debug, Default)]
struct Strides {
    /// Advised so that single touches show, or as a walk in strides was seen, since then.
    since: Duration,
    is_seen: bool,
    /// When strides were seen last.
    ordered: Duration,
    streams: Vec<Stream>,
    /// How often the window of the next stream was halved: reading ahead was in vain.
    halved: u32,
    /// Streams in a row that were no walk.
    in_vain: u32,
    /// Until when strides are taken for chance, and how often they were.
    chance_until: Duration,
    chances: u32,
}

const WISH: Wish = Wish { why: "a walk that waits: single touches looked at under MADV_RANDOM", is_alone: false };
/// A look under MADV_RANDOM lasts so long at most; where it showed neither order nor chance, so much longer.
const LONGEST_LOOK: Duration = Duration::from_millis(100);
const LONGER_LOOK: Duration = Duration::from_millis(200);
/// Touches to read ahead of a walk, at least and at most, and how often the most may be halved.
const WINDOW: u64 = 64;
const WIDEST: u64 = 4096;
const HALVED: u32 = (WIDEST / WINDOW).ilog2();
/// Streams of one mapping at a time.
const STREAMS: usize = 16;
/// Touches that make sure of a stride.
const SURE: u64 = 16;
/// After so many streams in a row with fewer touches than [`SURE`], strides are taken for chance.
const CHANCES: u32 = 4;
/// For how long at first. It doubles each time, up to 16 times this.
const CHANCE: Duration = Duration::from_secs(4);
/// Where nothing can be read ahead, it is tried again after so long.
const REST: Duration = Duration::from_secs(10);

impl Strides {
    fn look(&self, trial: &mut Trial, sample: &Sample) -> Verdict {
        trial.now = trial.now.and(sample);
        if trial.harms(places(trial)) {
            return Verdict::InVain;
        }
        let (at, shape) = (sample.whole.at, &sample.shape);
        if sample.says_something() && shape.is_scattered() && sample.whole.is_short && !sample.whole.fills {
            // Touches at random, perhaps.
            return Verdict::Yields;
        }
        let is_told = shape.is_scattered() || !shape.fronts.is_empty();
        match at < self.since + if is_told { LONGEST_LOOK } else { LONGER_LOOK } {
            true => Verdict::Stays,
            // Pages that are in memory already show no single touches.
            false if !sample.waits() => Verdict::Over,
            false => Verdict::InVain,
        }
    }

    /// Strides are seen.
    fn go_on(&mut self, trial: &mut Trial, sample: &Sample) -> Verdict {
        let at = sample.whole.at;
        self.ordered = at;
        if !std::mem::replace(&mut self.is_seen, true) {
            trial.now = Rate::default();
            self.since = at;
        }
        trial.now = trial.now.and(sample);
        let is_tried = at < self.since + TRIAL;
        let stays = if is_tried { !trial.harms(places(trial)) } else { trial.pays(places(trial), true) };
        if stays { Verdict::Stays } else { Verdict::InVain }
    }

    fn is_new(&self, front: &Front) -> bool {
        let is_near = |stream: &Stream| stream.front().abs_diff(front.at) < 4096 + front.span;
        front.stride.abs() >= WIDE && self.streams.len() < STREAMS && !self.streams.iter().any(is_near)
    }

    /// A stream has ended.
    fn account(&mut self, (steps, unused): (u64, u64)) {
        self.in_vain = if steps < SURE { self.in_vain + 1 } else { 0 };
        // Reading in vain makes the next walk's window smaller.
        self.halved = if unused > steps { (self.halved + 1).min(HALVED) } else { self.halved.saturating_sub(1) };
    }

    /// Takes strides for chance for a time, if too many were no walk.
    fn doubt(&mut self, now: Duration) {
        if self.in_vain >= CHANCES {
            self.streams.clear();
            self.in_vain = 0;
            self.chance_until = now + CHANCE * 2u32.pow(self.chances.min(4));
            self.chances += 1;
        }
    }
}

/// Places a second, before the advice and now. Before, each fault maps the place around a touch, and looks miss places that came and went; under
/// MADV_RANDOM each page of a place is a fault.
fn places(trial: &Trial) -> (f64, f64) {
    (trial.before.touches(), trial.now.places())
}

/// Whether strides gain nothing by what the kernel reads: it does not find them, no walk beside them does, and not all of it stays in memory.
fn needs_help(sample: &Sample) -> bool {
    sample.whole.is_short && sample.waits_often() && sample.shape.fronts.iter().all(|front| front.stride != 1)
}

impl Pattern for Stride {
    fn learn(&mut self, one: &mut MappingState, sample: &mut Sample, _: &mut Reach) {
        if sample.whole.at < self.each.of(&one.id).chance_until {
            sample.shape = std::mem::take(&mut sample.shape).without_strides();
        }
    }

    /// The kernel reads ahead of a walk forward in time. One that waits all the same may be something else.
    fn wants(&mut self, one: &mut MappingState, sample: &Sample) -> Option<Wish> {
        let shape = &sample.shape;
        let is_seen = if shape.has_strides() { needs_help(sample) } else { shape.is_one_walk() && sample.waits() };
        if shape.is_scattered() || !is_seen {
            return None;
        }
        let own = self.each.of(&one.id);
        (own.since, own.is_seen) = (sample.whole.at, false);
        Some(WISH)
    }

    fn keeps(&mut self, one: &mut MappingState, sample: &Sample) -> Verdict {
        let (own, shape) = (self.each.of(&one.id), &sample.shape);
        match own.is_seen {
            _ if sample.says_something() && shape.has_strides() && !shape.is_blurred => {
                own.go_on(&mut one.trial, sample)
            }
            false => own.look(&mut one.trial, sample),
            // The walk may have come to an end of the file, and may begin anew.
            true if sample.whole.at < own.ordered + PAUSE => Verdict::Stays,
            true => Verdict::Over,
        }
    }

    fn begin(&mut self, one: &mut MappingState, sample: &Sample, reach: &mut Reach) {
        let own = self.each.of(&one.id);
        if one.rests_until > reach.now {
            return;
        }
        let is_wanted = one.trial.is_on() || needs_help(sample);
        for front in &sample.shape.fronts {
            if own.is_new(front)
                && is_wanted
                && reach.may_act(one)
                && !reach.only_notes(one, "strides, which would be read ahead")
            {
                let most = (reach.available / 8).max(WINDOW) / (own.streams.len() as u64 + 1);
                own.streams.push(Stream::new(front, one.mapping.pages, most.min(WIDEST >> own.halved), reach.now));
            }
        }
    }

    fn step(&mut self, one: &mut MappingState, reach: &mut Reach) -> bool {
        let (own, mut ended) = (self.each.of(&one.id), false);
        for mut stream in std::mem::take(&mut own.streams) {
            let ahead = stream.ahead();
            let new = reach.look(one, ahead.at..ahead.end());
            let goes_on = stream.follow(&new, |page| one.has(page), reach.now);
            one.note(new);
            if !stream.ask().iter().all(|run| reach.hand.read_ahead(&one.mapping, run)) {
                one.rests_until = reach.now + REST;
            } else if goes_on {
                own.streams.push(stream);
            } else {
                ended = true;
                own.account(stream.account());
                self.told += stream.account().0;
            }
        }
        own.doubt(reach.now);
        ended
    }

    fn pause(&self, id: &Id, now: Duration) -> Option<Duration> {
        self.each.get(id)?.streams.iter().map(|stream| stream.pause(now)).min()
    }

    fn is_short_lived(&self, one: &MappingState) -> bool {
        one.trial.is_for(WISH) && self.each.get(&one.id).is_some_and(|own| !own.is_seen)
    }

    fn end(&mut self, id: &Id) {
        self.each.of(id).streams.clear();
    }

    fn tell(&mut self, _: &[MappingState], _: Duration) -> Option<(String, bool)> {
        let streams = self.each.all().flat_map(|own| &own.streams);
        let touches = self.told + streams.map(|stream| stream.account().0).sum::<u64>();
        (touches > 0).then(|| (format!("strides, read ahead: {touches} touches"), true))
    }
}

/// Follows one walk in strides, forward or backward.
#[derive(Debug)]
struct Stream {
    /// Pages from one touch to the next; below zero where the walk is backward.
    stride: i64,
    /// Pages of a touch.
    width: i64,
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
    fn new(front: &Front, pages: u64, most: u64, now: Duration) -> Stream {
        let most = (most as i64).clamp(1, DEEPEST);
        Stream {
            stride: front.stride,
            width: front.width as i64,
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
    fn ahead(&self) -> Run {
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
    fn follow(&mut self, new: &[Run], is_touched: impl Fn(u64) -> bool, now: Duration) -> bool {
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
    fn ask(&mut self) -> Vec<Run> {
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
            let first = if self.stride > 0 { next - (self.width - 1).min(next) } else { next };
            ask.push(Run { at: first as u64, len: self.width as u64 });
        }
        ask
    }

    /// How long to wait until the next look: until about a quarter of the depth is used.
    fn pause(&self, now: Duration) -> Duration {
        let seconds = now.saturating_sub(self.began).as_secs_f64();
        if self.steps == 0 || seconds <= 0.0 {
            return Duration::from_micros(500);
        }
        let a_second = self.steps as f64 / seconds;
        Duration::from_secs_f64((self.depth as f64 / 4.0 / a_second).clamp(0.0003, 0.005))
    }

    /// Touches that were followed, and touches that were asked for and have not come.
    fn account(&self) -> (u64, u64) {
        (self.steps, self.lead() as u64)
    }

    /// The page touched last.
    fn front(&self) -> u64 {
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
        Stream::new(&Front { at, stride: 16, span: 160, width: 1 }, PAGES, 8192, Duration::ZERO)
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
            let mut stream = Stream::new(&Front { at: end, stride, span: 160, width: 1 }, PAGES, 8192, at(0));
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
        let mut stream = Stream::new(&Front { at: 160, stride: 16, span: 160, width: 1 }, PAGES, 10, at(0));
        assert_eq!(stream.ask().len(), 10);
    }
}
