//! Walks backward, which the kernel reads ahead of in the wrong direction. Readers bring blocks of 2 MiB ahead of them.

use super::*;
use crate::act::Opened;
use crate::run::{BLOCK, WINDOW};

/// Walks backward.
#[derive(Debug, Default)]
pub struct Back {
    each: Each<Walk>,
    /// Pages a second, before and after.
    told: Option<(f64, f64)>,
}

/// What is known of one mapping.
#[derive(Debug, Default)]
struct Walk {
    now: Option<Backward>,
    /// The front of the walk that the last sample showed, if it did.
    last: Option<u64>,
}

/// Looks miss pages that came and went between them: a walk is at most so many times as long as what they show of it.
const MISSED: u64 = 8;
/// Readers ahead of a walk: while one block is read the next is asked for.
const READERS: usize = 4;
/// After a walk that was not read ahead, or was not faster for it.
const REST: Duration = Duration::from_secs(10);

impl Walk {
    /// The front of a walk that two samples in a row showed, the second one a little farther back: threads that take turns at pieces of a walk
    /// forward may seem to go backward, but not twice so.
    fn shown(&mut self, sample: &Sample) -> Option<u64> {
        let is_one = sample.shape.is_backward() && !sample.is_followed;
        let now = sample.shape.fronts.first().filter(|_| is_one).map(|front| front.at);
        let (now, then) = now.zip(std::mem::replace(&mut self.last, now))?;
        (now < then && then - now <= sample.windows * WINDOW * MISSED).then_some(now)
    }
}

impl Pattern for Back {
    fn learn(&mut self, one: &mut MappingState, sample: &mut Sample, _: &mut Reach) {
        sample.goes_backward = self.each.of(&one.id).now.is_some();
        sample.is_followed |= sample.goes_backward;
    }

    fn begin(&mut self, one: &mut MappingState, sample: &Sample, reach: &mut Reach) {
        let own = self.each.of(&one.id);
        let Some(front) = own.shown(sample) else { return };
        if own.now.is_some()
            || one.rests_until > reach.now
            || reach.only_notes(one, "a walk backward, which would be read ahead")
        {
            return;
        }
        let before = (sample.windows * WINDOW) as f64 / sample.whole.lasted.as_secs_f64().max(1e-3);
        own.now = Some(Backward::new(front, one.mapping.pages, before, reach.available / 8, reach.now));
    }

    fn step(&mut self, one: &mut MappingState, reach: &mut Reach) -> bool {
        let own = self.each.of(&one.id);
        let Some(walk) = &mut own.now else { return false };
        let mut new = Vec::new();
        for part in walk.ahead().into_iter().filter(|part| part.len > 0) {
            new.extend(reach.look(one, part.at..part.end()));
        }
        let goes_on = walk.follow(&new, reach.now);
        let can_read = read_ahead(walk, one, reach);
        if !goes_on || !can_read {
            let (before, now) = walk.progress(reach.now);
            one.rests_until = reach.now + if can_read && now > before { Duration::ZERO } else { REST };
            self.told = Some((before, now));
            own.now = None;
        }
        reach.needs_readers |= own.now.is_some();
        one.note(new);
        false
    }

    fn pause(&self, id: &Id, now: Duration) -> Option<Duration> {
        Some(self.each.get(id)?.now.as_ref()?.pause(now))
    }

    fn end(&mut self, id: &Id) {
        self.each.of(id).now = None;
    }

    fn tell(&mut self, all: &[MappingState], now: Duration) -> Option<(String, bool)> {
        let walk = all.iter().find_map(|one| self.each.get(&one.id)?.now.as_ref());
        self.told = walk.map(|walk| walk.progress(now)).or(self.told);
        let (before, after) = self.told.map(|(before, after)| (before / 1e3, after / 1e3))?;
        Some((format!("a walk backward, read ahead: {before:.0} -> {after:.0} thousand pages a second"), true))
    }
}

/// Has the readers read what comes next. Returns whether they can.
fn read_ahead(walk: &mut Backward, one: &MappingState, reach: &mut Reach) -> bool {
    let Some(readers) = reach.hand.readers() else { return false };
    let opened = readers.open(&one.mapping);
    if opened == Opened::Yes {
        let runs = walk.ask(one.mapping.offset / PAGE);
        runs.iter().for_each(|run| readers.bring(&one.mapping, run, true));
        readers.allow(READERS);
    }
    opened != Opened::No
}

/// Follows one walk backward over most pages of a part of a mapping.
#[derive(Debug)]
struct Backward {
    /// The page touched last.
    front: u64,
    /// The first page that was asked for: all from here to the front were.
    asked: u64,
    /// The first page that was asked for again: all from here to the front were.
    again: u64,
    /// The mapping's length in pages.
    pages: u64,
    /// Pages to be ahead by: doubled while the walk keeps up.
    depth: u64,
    most: u64,
    moved: Duration,
    began: Duration,
    /// Pages passed since `began`.
    passed: u64,
    /// Pages a second before.
    before: f64,
}

/// Pages to be ahead by at first, and at most: 4 and 64 MiB.
const DEPTH: u64 = 1024;
const DEEPEST: u64 = 16384;
/// A walk may be so many times the depth ahead of the last look at it.
const REACH: u64 = 8;
/// A walk that has not moved for so long has ended.
const PATIENCE: Duration = Duration::from_millis(150);
/// After so long it is judged whether it pays: pages a second must rise by a tenth.
const TRIAL: Duration = Duration::from_millis(500);
const PAYS: f64 = 1.1;

impl Backward {
    /// A walk whose last touch was at `front`, in a mapping of `pages`. `before`: pages a second until now. At most `most` pages may be
    /// read ahead.
    fn new(front: u64, pages: u64, before: f64, most: u64, now: Duration) -> Backward {
        let most = most.clamp(BLOCK, DEEPEST);
        let depth = DEPTH.min(most);
        Backward { front, asked: front, again: front, pages, depth, most, moved: now, began: now, passed: 0, before }
    }

    /// Where to look for the next touches: ahead of the walk, and at the mapping's end, where it may begin anew.
    fn ahead(&self) -> [Run; 2] {
        let reach = self.depth * REACH;
        let from = self.front.saturating_sub(reach);
        let again = if from == 0 { reach.min(self.pages - self.front) } else { 0 };
        [Run { at: from, len: self.front - from }, Run { at: self.pages - again, len: again }]
    }

    /// Follows the walk to the pages that are new. Returns `false` once it has ended, or does not pay.
    fn follow(&mut self, new: &[Run], now: Duration) -> bool {
        let [ahead, again] = self.ahead();
        if let Some(front) = walked(&ahead, new) {
            self.passed += self.front - front;
            self.front = front;
            self.moved = now;
            // More than a quarter of the depth was used since the last look: a greater depth pays.
            if self.lead() * 4 < self.depth * 3 {
                self.depth = (self.depth * 2).min(self.most);
            }
        } else if let Some(front) = walked(&again, new) {
            (self.front, self.asked, self.again, self.moved) = (front, front, front, now);
        }
        let pays = now < self.began + TRIAL || self.progress(now).1 >= self.before * PAYS;
        pays && now.saturating_sub(self.moved) < PATIENCE
    }

    /// Pages that reading is ahead by.
    fn lead(&self) -> u64 {
        self.front.saturating_sub(self.asked)
    }

    /// Pages to read now: each run is what is missing of one block of 2 MiB of the file, in which the mapping begins at page `offset`.
    fn ask(&mut self, offset: u64) -> Vec<Run> {
        let mut ask = self.ask_again(offset);
        ask.extend(self.ask_ahead(offset));
        ask
    }

    fn ask_ahead(&mut self, offset: u64) -> Vec<Run> {
        let to = self.front.saturating_sub(self.depth);
        self.asked = self.asked.min(self.front);
        blocks(&mut self.asked, to, offset)
    }

    /// Pages that were asked for, and may be gone again before the walk gets there: of memory that has just become full the kernel takes what
    /// nobody has touched yet.
    fn ask_again(&mut self, offset: u64) -> Vec<Run> {
        let to = self.front.saturating_sub(self.depth / 2);
        self.again = self.again.min(self.front);
        let mut again = blocks(&mut self.again, to, offset);
        again.retain(|run| run.at >= self.asked);
        again
    }

    /// Pages a second, before and now.
    fn progress(&self, now: Duration) -> (f64, f64) {
        (self.before, self.passed as f64 / now.saturating_sub(self.began).as_secs_f64().max(1e-3))
    }

    /// How long to wait until the next look: until about a quarter of the depth is used.
    fn pause(&self, now: Duration) -> Duration {
        let (_, a_second) = self.progress(now);
        if self.passed == 0 {
            return Duration::from_millis(1);
        }
        Duration::from_secs_f64((self.depth as f64 / 4.0 / a_second.max(1.0)).clamp(0.001, 0.01))
    }
}

/// How far a walk backward came that began at a range's end: a page behind which one page in eight is new, up to where the last such page was.
/// Touches at random beside the walk, or after it, are no front of it.
fn walked(range: &Run, new: &[Run]) -> Option<u64> {
    /// Of the pages that a walk passed, it may leave out seven of eight; a look misses some that came and went.
    const DENSE: u64 = 8;
    let within = new.iter().rev().filter(|run| run.end() > range.at && run.at < range.end());
    let (mut count, mut front) = (0, range.end());
    for run in within {
        let at = run.at.max(range.at);
        count += run.end().min(range.end()) - at;
        if count * DENSE >= front - at {
            (count, front) = (0, at);
        }
    }
    (front < range.end()).then_some(front)
}

/// The parts of blocks from `done` back to `to`.
fn blocks(done: &mut u64, to: u64, offset: u64) -> Vec<Run> {
    let mut found = Vec::new();
    while *done > to {
        let at = ((*done + offset - 1) / BLOCK * BLOCK).saturating_sub(offset);
        found.push(Run { at, len: *done - at });
        *done = at;
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(millis: u64) -> Duration {
        Duration::from_millis(millis)
    }

    #[test]
    fn blocks_before_the_front_are_asked_for_once_and_more_while_the_walk_keeps_up() {
        let mut walk = Backward::new(50_000, 100_000, 10_000.0, 100_000, at(0));
        let (mut asked, mut front, mut again) = (50_000, 50_000, Vec::new());
        for step in 1..20 {
            again.extend(walk.ask_again(100));
            assert!(again.iter().all(|run| run.at >= asked));
            let runs = walk.ask_ahead(100);
            assert!(runs.iter().all(|run| std::mem::replace(&mut asked, run.at) == run.end()), "{runs:?}");
            assert!(runs.iter().all(|run| (run.at + 100).is_multiple_of(BLOCK) && run.len <= BLOCK), "{runs:?}");
            assert!(front - asked >= DEPTH);
            front -= 900;
            assert!(walk.follow(&[Run { at: front, len: 900 }], at(step * 5)));
        }
        assert!(walk.depth > DEPTH && walk.depth <= DEEPEST);
        // Once each, but for those that the walk was close to when they were asked for first.
        assert!(again.windows(2).all(|two| two[1].end() <= two[0].at) && again.len() > 10, "{} {again:?}", again.len());
        assert!(!walk.follow(&[], at(1000)), "it stands");
    }

    #[test]
    fn a_walk_that_is_no_faster_is_given_up() {
        let mut walk = Backward::new(90_000, 100_000, 100_000.0, 1000, at(0));
        let mut ends = None;
        for step in 1..100 {
            let front = 90_000 - step * 500;
            if !walk.follow(&[Run { at: front, len: 500 }], at(step * 10)) {
                ends = Some(step);
                break;
            }
        }
        assert_eq!(ends, Some(50));
    }

    #[test]
    fn touches_at_random_are_not_its_front() {
        let mut walk = Backward::new(90_000, 100_000, 1.0, 1000, at(0));
        let single = |page| Run { at: page, len: 1 };
        // Beside the walk, some behind its front and some far ahead.
        assert!(walk.follow(&[single(84_000), single(88_000), Run { at: 89_500, len: 500 }, single(95_000)], at(1)));
        assert_eq!((walk.front, walk.passed), (89_500, 500));
        // After it: wherever they are, it has ended.
        let mut goes_on =
            |step: u64| walk.follow(&[single(82_000 + step * 7), single(86_000 + step * 11)], at(step * 10));
        assert_eq!((1..100).take_while(|step| goes_on(*step)).count(), 15);
        assert_eq!(walk.front, 89_500);
        // At the mapping's end, too.
        let mut walk = Backward::new(0, 100_000, 1.0, 1000, at(0));
        assert!(walk.follow(&[single(95_000), single(99_000)], at(1)));
        assert_eq!(walk.front, 0);
    }

    #[test]
    fn at_the_beginning_it_may_begin_anew_at_the_end() {
        let mut walk = Backward::new(100, 100_000, 1.0, 1000, at(0));
        assert_eq!(walk.ask(0), [Run { at: 0, len: 100 }]);
        assert!(walk.follow(&[Run { at: 0, len: 100 }], at(1)));
        assert_eq!((walk.ahead()[0].len, walk.ask(0)), (0, Vec::new()));
        assert!(walk.follow(&[Run { at: 99_900, len: 100 }], at(2)));
        assert_eq!(walk.ask(0)[0], Run { at: 99_840, len: 60 });
        // A mapping that is shorter than the reach, and begins inside a block.
        let mut walk = Backward::new(10, 60, 1.0, 1000, at(0));
        assert_eq!(walk.ahead(), [Run { at: 0, len: 10 }, Run { at: 10, len: 50 }]);
        assert_eq!(walk.ask(700), [Run { at: 0, len: 10 }]);
    }
}
