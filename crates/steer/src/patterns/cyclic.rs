//! A loop: a walk forward over more pages than memory holds, which starts again at its beginning each time it reaches its end. One such pass is a
//! round. A part of the pages is kept. The rest is read ahead of the walk, and dropped behind it. The kernel alone would drop each page just before it
//! is wanted again.

use super::*;

/// Loops.
#[derive(Debug, Default)]
pub struct Cyclic {
    each: Each<Loop>,
    /// Pages a second, before and after.
    told: Option<(f64, f64)>,
}

/// What is known of one mapping.
#[derive(Debug, Default)]
struct Loop {
    round: Option<Round>,
    /// Loops in a row that did not pay.
    in_vain: u32,
}

/// The first rest after a loop that did not pay. Each rest is twice as long as the one before, up to 32 of the first.
const REST: Duration = Duration::from_secs(10);
/// Pages that are read ahead of a loop by one call at least: 128 KiB.
const LEAST_PIECE: u64 = 32;
/// How long a loop can be left alone.
const STEP: Duration = Duration::from_millis(4);

impl Loop {
    /// Ends a loop that does not pay, or is none. Returns how long to rest.
    fn give_up(&mut self, now: Duration) -> Duration {
        let paid = self.round.take().and_then(|round| round.progress(now)).is_some_and(|(before, now)| now > before);
        let times = if paid { 0 } else { self.in_vain.min(5) };
        self.in_vain = times + 1;
        REST * 2u32.pow(times)
    }
}

impl Pattern for Cyclic {
    fn learn(&mut self, one: &mut MappingState, sample: &mut Sample, _: &mut Reach) {
        let own = self.each.of(&one.id);
        let Some(round) = &mut own.round else { return };
        let mut goes_on = true;
        for new in [&sample.looks.before, &sample.looks.first, &sample.looks.second] {
            if round.is_loop() {
                round.learn(new);
            } else {
                goes_on &= round.follow(new, 0, sample.whole.at);
            }
        }
        if !goes_on {
            own.round = None;
        }
        sample.is_followed |= goes_on;
    }

    fn begin(&mut self, one: &mut MappingState, sample: &Sample, reach: &mut Reach) {
        let own = self.each.of(&one.id);
        let [front] = &sample.shape.fronts[..] else { return };
        let pages = one.mapping.pages;
        let is_fit = pages > reach.available && Round::is_worth(pages, may_keep(reach.available, one.readahead));
        let may_come_round = !one.mapping.is_writable && is_fit && own.round.is_none();
        // A walk that waits may be something else: single touches are looked at first, and after that the advice rests.
        let is_walk = !sample.waits() || one.trial.is_resting() && sample.shape.is_one_walk();
        let is_loop = front.stride == 1 && may_come_round && is_walk && !one.trial.is_on();
        if is_loop && one.rests_until <= reach.now && reach.may_act(one) && !reach.settings.is_dry {
            own.round = Some(Round::new(front.at, front.span, reach.now));
        }
    }

    fn step(&mut self, one: &mut MappingState, reach: &mut Reach) -> bool {
        let (own, now) = (self.each.of(&one.id), reach.now);
        let Some(round) = own.round.as_mut().filter(|round| round.is_loop()) else { return false };
        let mut new = Vec::new();
        for part in round.ahead() {
            new.extend(reach.look(one, part));
        }
        let keep = may_keep(reach.available, one.readahead);
        let mut goes_on = round.follow(&new, keep, now) && Round::is_worth(round.pages(), keep);
        one.note(new);
        if goes_on {
            let (drop, ask) = (round.drop(), round.ask(spare(reach.available, one.readahead) / 2));
            if let Some(run) = drop {
                self.told = round.progress(now).or(self.told);
                goes_on = drop_behind(one, &run, reach);
            }
            if let Some(run) = ask.filter(|_| goes_on) {
                read_ahead(one, &run, reach);
            }
        }
        if !goes_on {
            one.rests_until = now + own.give_up(now);
        }
        false
    }

    /// A walk that has not come round yet is left to the samples.
    fn pause(&self, id: &Id, _: Duration) -> Option<Duration> {
        let round = self.each.get(id)?.round.as_ref()?;
        Some(if round.is_loop() { STEP } else { Duration::MAX })
    }

    fn is_short_lived(&self, one: &MappingState) -> bool {
        self.each.get(&one.id).is_some_and(|own| own.round.is_some())
    }

    fn end(&mut self, id: &Id) {
        self.each.of(id).round = None;
    }

    fn tell(&mut self, _: &[MappingState], _: Duration) -> Option<(String, bool)> {
        let (before, after) = self.told.map(|(before, after)| (before / 1e3, after / 1e3))?;
        Some((format!("a loop, a part of it kept: {before:.0} -> {after:.0} thousand pages a second"), true))
    }
}

fn drop_behind(one: &mut MappingState, run: &Run, reach: &mut Reach) -> bool {
    let is_dropped = reach.hand.drop(&one.mapping, run);
    if let Some(seen) = one.seen.as_mut().filter(|_| is_dropped) {
        seen.forget(run.at..run.end());
    }
    is_dropped
}

/// Where nothing can be read ahead, a part is kept all the same.
fn read_ahead(one: &MappingState, run: &Run, reach: &mut Reach) {
    // The kernel reads no more than so much for one call.
    let piece = one.readahead.max(LEAST_PIECE);
    let mut pieces = (run.at..run.end()).step_by(piece as usize);
    pieces.all(|at| reach.hand.read_ahead(&one.mapping, &Run { at, len: piece.min(run.end() - at) }));
}

/// Pages of a loop that may be kept.
fn may_keep(available: u64, readahead: u64) -> u64 {
    available.saturating_sub(spare(available, readahead))
}

/// The rest of the memory. A half is for pages that are read ahead of the walk, the other for pages that are dropped late and for everything
/// else in memory. The kernel reads ahead, too: four of its windows fit.
fn spare(available: u64, readahead: u64) -> u64 {
    (available / 8).max((16 << 20) / PAGE).max(4 * readahead)
}

/// Follows one walk over a part of a mapping.
#[derive(Debug)]
struct Round {
    front: u64,
    /// The walk's pages from its beginning to its end, as far as they are known.
    covered: Range<u64>,
    /// Pages from the beginning that are kept. 0 until the walk has started again.
    keep: u64,
    /// The most pages that were kept in this round: they are mapped, and do not show as new.
    kept: u64,
    /// How often the walk has started again at its beginning.
    rounds: u32,
    /// The page up to which this round has dropped what lies behind the walk. 0 at the beginning of a round.
    dropped: u64,
    /// The page up to which this round has asked for what lies ahead of the walk, and up to which it has asked for the next round.
    asked: u64,
    asked_anew: u64,
    /// From the second round on: pages of the part that is not kept that this round has passed, and those of them that were touched.
    density: (u64, u64),
    moved: Duration,
    began: Duration,
    /// Pages passed since `began`.
    passed: u64,
    /// The speed, in pages per second, while nothing was kept.
    before: f64,
}

/// The least number of pages that are dropped at a time behind the walk: 4 MiB.
const PIECE: u64 = 1024;
/// The least number of pages that are asked for at a time ahead of it: 1 MiB.
const ASKED: u64 = 256;
/// Pages just behind the walk that are not dropped: other threads of the program may follow it.
const BEHIND: u64 = 512;
/// Pages in a row that begin a new round.
const WALK: u64 = 64;
/// The most pages that a walk may pass between two looks: 256 MiB.
const REACH: u64 = 65536;
/// A walk that has not moved for this long has ended.
const PATIENCE: Duration = Duration::from_millis(500);
/// After this many rounds it is judged whether keeping pays.
const TRIAL: u32 = 4;
/// It pays if the walk is so many times as fast.
const PAYS: f64 = 1.1;

impl Round {
    /// A walk forward that was found with its front at `front`, `span` pages after its beginning.
    fn new(front: u64, span: u64, now: Duration) -> Round {
        let covered = front.saturating_sub(span)..front + 1;
        Round {
            front,
            covered,
            keep: 0,
            kept: 0,
            rounds: 0,
            dropped: 0,
            asked: 0,
            asked_anew: 0,
            density: (0, 0),
            moved: now,
            began: now,
            passed: 0,
            before: 0.0,
        }
    }

    /// The two ranges to look for new pages in: ahead of the walk, and where a new round would show first. Until the walk has started again once,
    /// that is anywhere far behind it. Later it is just after the kept part, since kept pages do not show as new.
    fn ahead(&self) -> [Range<u64>; 2] {
        let behind = self.front.saturating_sub(REACH / 16);
        if self.rounds == 0 {
            return [self.front + 1..self.front + REACH, 0..behind];
        }
        let again = self.first_dropped();
        let reach = self.front.max(again) + REACH;
        [self.front + 1..reach.min(self.covered.end), again..(again + REACH).min(behind)]
    }

    /// Follows the walk to the pages that are new. `false`: the walk has ended, or keeping a part of it does not pay.
    fn follow(&mut self, new: &[Run], keep: u64, now: Duration) -> bool {
        let [ahead, again] = self.ahead();
        let in_range = |range: &Range<u64>, least: u64| {
            let (from, to) = (range.start, range.end);
            let inside = new.iter().filter(move |run| run.len >= least && run.at < to && from < run.end());
            inside.map(|run| run.at.max(from)..run.end().min(to)).reduce(|one, other| one.start..other.end)
        };
        let (ahead, again) = (in_range(&ahead, 1), in_range(&again, WALK));
        let has_moved = ahead.is_some() || again.is_some() && self.is_at_the_end();
        if let Some(Range { end, .. }) = ahead {
            self.density.0 += end.saturating_sub(self.first_dropped().max(self.front + 1));
            self.note_touched(new);
            self.passed += end - 1 - self.front;
            self.front = end - 1;
            self.covered.end = self.covered.end.max(end);
        }
        let mut is_dense = true;
        // One look may show the end of a round and the beginning of the next.
        if let Some(anew) = again.filter(|_| self.is_at_the_end()) {
            let front = anew.end - 1;
            if self.rounds == 0 {
                self.covered.start = self.covered.start.min(anew.start);
            }
            self.passed += self.covered.end - self.front + front.saturating_sub(self.covered.start);
            self.front = front;
            let (passed, touched) = std::mem::take(&mut self.density);
            is_dense = self.rounds < 2 || touched * 2 >= passed;
            self.dropped = 0;
            self.kept = self.keep;
            self.asked = std::mem::take(&mut self.asked_anew);
            self.rounds += 1;
            if self.rounds == 1 {
                self.before = self.speed(now);
            }
            // The first round in which a part is kept serves only to fill that part. Speed is measured from the next round on.
            if self.rounds <= 2 {
                (self.began, self.passed) = (now, 0);
            }
        }
        if !has_moved {
            // Over the part that is kept nothing moves.
            let over_kept = Duration::from_secs_f64(self.kept as f64 / self.before.max(1.0));
            return now.saturating_sub(self.moved) < PATIENCE + over_kept;
        }
        self.moved = now;
        self.covered.end = self.covered.end.max(self.front + 1);
        self.keep = if self.rounds > 0 { keep } else { 0 };
        self.kept = self.kept.max(self.keep);
        is_dense && (self.rounds < TRIAL || self.speed(now) >= self.before * PAYS)
    }

    /// The first page that is dropped in this round.
    fn first_dropped(&self) -> u64 {
        self.covered.start + self.keep.max(self.kept)
    }

    fn note_touched(&mut self, new: &[Run]) {
        let from = self.first_dropped();
        self.density.1 += new.iter().map(|run| run.end().saturating_sub(run.at.max(from))).sum::<u64>();
    }

    /// Whether the walk is so near its end that it may start again next.
    fn is_at_the_end(&self) -> bool {
        let len = self.covered.end - self.covered.start;
        self.front + len / 8 >= self.covered.end
    }

    fn speed(&self, now: Duration) -> f64 {
        self.passed as f64 / now.saturating_sub(self.began).as_secs_f64().max(1e-3)
    }

    /// The speed in pages per second before a part was kept, and now. `None` until a whole round has passed since the
    /// part was filled.
    fn progress(&self, now: Duration) -> Option<(f64, f64)> {
        (self.rounds > 2).then(|| (self.before, self.speed(now)))
    }

    /// Whether the walk has started again at its beginning.
    fn is_loop(&self) -> bool {
        self.rounds > 0
    }

    /// Whether keeping `keep` pages of a walk over `pages` can pay.
    fn is_worth(pages: u64, keep: u64) -> bool {
        keep * 3 >= pages
    }

    /// Learns from a look at the whole mapping where the walk begins and ends. The first look at a new round may have come late, and so may have
    /// missed the end of the one before and the beginning.
    fn learn(&mut self, new: &[Run]) {
        self.note_touched(new);
        let beyond = |run: &&Run| run.len >= WALK && run.at < self.covered.end + BEHIND && run.end() > self.covered.end;
        self.covered.end = new.iter().rev().find(beyond).map_or(self.covered.end, Run::end);
        let below = new.iter().find(|run| run.len >= WALK && run.at < self.covered.start);
        self.covered.start = below.map_or(self.covered.start, |run| run.at);
    }

    /// The number of pages from the walk's beginning to its end.
    fn pages(&self) -> u64 {
        self.covered.end - self.covered.start
    }

    /// Pages to read now: those ahead of the walk that are not kept, `window` at most. At the end of a round they are the next round's first.
    fn ask(&mut self, window: u64) -> Option<Run> {
        let kept = self.covered.start + self.keep;
        if self.rounds == 0 || kept >= self.covered.end {
            return None;
        }
        let (to, end) = (self.front + window, self.covered.end);
        let from = self.asked.max(self.front + 1).max(kept);
        if from < end {
            let to = to.min(end);
            let is_enough = to >= from + ASKED || to == end && to > from;
            return is_enough.then(|| {
                self.asked = to;
                Run { at: from, len: to - from }
            });
        }
        let (from, to) = (kept.max(self.asked_anew), (kept + to.saturating_sub(end)).min(end));
        (to >= from + ASKED).then(|| {
            self.asked_anew = to;
            Run { at: from, len: to - from }
        })
    }

    /// Pages to drop now: those that lie behind the walk and are not kept, or at the start of a round those that the last round has not dropped.
    fn drop(&mut self) -> Option<Run> {
        let kept = self.covered.start + self.keep;
        if self.rounds == 0 || kept >= self.covered.end {
            return None;
        }
        if self.dropped == 0 {
            // A new round has begun. The pages that are left from the end of the last round are dropped.
            self.dropped = kept;
            let from = (self.front + REACH / 4).max(kept);
            return (from < self.covered.end).then(|| Run { at: from, len: self.covered.end - from });
        }
        let to = self.front.saturating_sub(BEHIND) / PIECE * PIECE;
        if to < self.dropped + PIECE {
            return None;
        }
        let run = Run { at: self.dropped, len: to - self.dropped };
        self.dropped = to;
        Some(run)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAGES: u64 = 100_000;

    /// Makes one round in steps. Returns what was dropped in it.
    fn go_round(round: &mut Round, from: u64, keep: u64, now: &mut u64, millis: u64) -> Vec<Run> {
        let mut dropped = Vec::new();
        for at in (from..PAGES).step_by(1000) {
            *now += millis;
            assert!(round.follow(&[Run { at, len: 1000 }], keep, Duration::from_millis(*now)));
            dropped.extend(round.drop());
        }
        dropped
    }

    #[test]
    fn a_loop_keeps_a_part_and_drops_the_rest_behind_the_reader() {
        let (mut round, mut now) = (Round::new(1000, 1000, Duration::ZERO), 0);
        assert_eq!(go_round(&mut round, 2000, 30_000, &mut now, 5), []);
        assert!(!round.is_loop());
        go_round(&mut round, 0, 30_000, &mut now, 5);
        assert!(round.is_loop());
        for _ in 0..4 {
            // Pages that are kept are not new when the walk comes again.
            let dropped = go_round(&mut round, 30_000, 30_000, &mut now, 3);
            assert!(dropped.iter().all(|run| run.at >= 30_000), "{dropped:?}");
            let pages: u64 = dropped.iter().map(|run| run.len).sum();
            assert!(pages > 60_000, "{pages}");
        }
        let (before, after) = round.progress(Duration::from_millis(now)).unwrap();
        assert!(after > before);
    }

    #[test]
    fn what_is_not_kept_is_asked_for_ahead_of_the_walk_once_a_round() {
        let (mut round, mut now) = (Round::new(1000, 1000, Duration::ZERO), 0);
        go_round(&mut round, 2000, 30_000, &mut now, 5);
        assert_eq!(round.ask(5000), None);
        go_round(&mut round, 0, 30_000, &mut now, 5);
        let mut asked = vec![0; PAGES as usize];
        for _ in 0..3 {
            for at in (30_000..PAGES).step_by(1000) {
                now += 3;
                assert!(round.follow(&[Run { at, len: 1000 }], 30_000, Duration::from_millis(now)));
                while let Some(run) = round.ask(5000) {
                    assert!(run.at >= 30_000 && run.end() <= PAGES);
                    let lead = if run.at > at { run.end() - at } else { run.end() - 30_000 + PAGES - at };
                    assert!(lead <= 6000, "{run:?} at {at}");
                    (run.at..run.end()).for_each(|page| asked[page as usize] += 1);
                }
            }
        }
        assert!(asked[..30_000].iter().all(|times| *times == 0));
        let often = &asked[40_000..];
        assert!(often.iter().all(|times| *times == 3), "{:?}", often.iter().position(|times| *times != 3));
    }

    #[test]
    fn nothing_is_dropped_of_a_loop_that_fits() {
        let (mut round, mut now) = (Round::new(1000, 1000, Duration::ZERO), 0);
        go_round(&mut round, 2000, 200_000, &mut now, 5);
        assert_eq!(go_round(&mut round, 0, 200_000, &mut now, 5), []);
    }

    #[test]
    fn an_end_that_was_missed_is_learnt() {
        let mut round = Round::new(90_000, 90_000, Duration::ZERO);
        assert!(round.follow(&[Run { at: 0, len: 1000 }], 30_000, Duration::from_millis(5)));
        assert_eq!(round.pages(), 90_001);
        round.learn(&[Run { at: 99_000, len: 1000 }]);
        assert_eq!(round.pages(), 90_001, "touches elsewhere");
        round.learn(&[Run { at: 90_100, len: 9900 }]);
        assert_eq!(round.pages(), PAGES);
    }

    #[test]
    fn what_is_not_faster_ends() {
        let (mut round, mut now) = (Round::new(1000, 1000, Duration::ZERO), 0);
        go_round(&mut round, 2000, 1000, &mut now, 5);
        let mut goes_on = true;
        for at in (0..6 * PAGES).step_by(1000) {
            now += 5;
            goes_on &= round.follow(&[Run { at: at % PAGES, len: 1000 }], 1000, Duration::from_millis(now));
            round.drop();
        }
        assert!(!goes_on);
    }

    #[test]
    fn pieces_with_gaps_that_come_round_are_no_loop() {
        let (mut round, mut now) = (Round::new(1000, 1000, Duration::ZERO), 0);
        let mut goes_on = true;
        for at in (2000..4 * PAGES).step_by(2000) {
            now += 5;
            goes_on &= round.follow(&[Run { at: at % PAGES, len: 500 }], 1000, Duration::from_millis(now));
        }
        assert!(!goes_on);
    }

    #[test]
    fn a_kept_part_may_take_its_time() {
        let (mut round, mut now) = (Round::new(1000, 1000, Duration::ZERO), 0);
        go_round(&mut round, 2000, 50_000, &mut now, 50);
        go_round(&mut round, 0, 50_000, &mut now, 50);
        go_round(&mut round, 50_000, 50_000, &mut now, 50);
        // Half of a round of five seconds.
        assert!(round.follow(&[], 50_000, Duration::from_millis(now + 2500)));
        assert!(!round.follow(&[], 50_000, Duration::from_millis(now + 5000)));
    }

    #[test]
    fn a_jump_elsewhere_is_another_walk() {
        let mut round = Round::new(50_000, 40_000, Duration::ZERO);
        round.follow(&[Run { at: 900_000, len: 10 }], 1000, Duration::from_millis(5));
        assert!(!round.is_loop());
        assert!(!round.follow(&[], 1000, Duration::from_secs(1)));
    }
}
