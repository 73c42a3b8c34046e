//! Which pages to bring of a file that a program reads from slow storage: all of them while memory is free, else those that a walk
//! forward comes to next.

use super::*;
use crate::act::{Opened, PIECE};
use crate::classify::{is_dense, shape};
use crate::observe::{Flags, may_load};
use crate::run::{WINDOW, merge};
use crate::sampling::Whole;

/// Loads.
#[derive(Debug)]
pub struct Loads {
    each: Each<Loaded>,
    depth: Depth,
    /// The device of the last load that was found.
    device: Option<(u64, u64)>,
    /// When loads are looked at next.
    next: Duration,
    /// Pages that readers brought, and the most requests at a time.
    told: (u64, usize),
}

/// What is known of one mapping.
#[derive(Debug, Default)]
struct Loaded {
    load: Option<Load>,
    /// A load that did not go on rests until then.
    rests_until: Duration,
}

/// How often loads are looked at.
const OFTEN: Duration = Duration::from_millis(10);
/// A look at a long mapping takes long: looks take a twentieth of the time at most.
const LOOKS: u32 = 20;
/// Rests after a load that was none, and after one that has ended.
const NONE: Duration = Duration::from_secs(10);
const ENDED: Duration = Duration::from_secs(1);

impl Loads {
    /// `at`: now.
    pub fn new(at: Duration) -> Loads {
        Loads { each: Each::default(), depth: Depth::new(at), device: None, next: Duration::ZERO, told: (0, 0) }
    }

    /// Begins a load where the program reads densely from slow storage. Ends one where it does not read densely.
    fn find(&mut self, one: &mut MappingState, sample: &Sample, reach: &mut Reach) {
        let Whole { waited, touched, cost, lasted, .. } = sample.whole;
        // Where much comes in all, threads wait for one another, and readers would wait, too.
        let is_busy = (cost.read_bytes / PAGE) as f64 > BUSY * lasted.as_secs_f64();
        let is_slow = !is_busy && is_slow(waited.slept, waited.faults, touched, cost.read_bytes);
        if !is_slow && self.each.of(&one.id).load.is_none() {
            return;
        }
        let begun = merge(sample.looks.before.clone(), sample.looks.first.clone());
        let runs = merge(begun.clone(), sample.last.clone());
        // After a load from this device its next file is likely to be loaded, too: touches that are too few to tell count as dense.
        let goes_on = self.device == Some(one.mapping.device) && !runs.is_empty();
        let is_dense = is_dense(&runs).or(goes_on.then_some(true));
        let own = self.each.of(&one.id);
        match is_dense {
            Some(false) if own.load.take().is_some() => {
                own.rests_until = reach.now + NONE;
                if let Some(readers) = reach.hand.readers() {
                    readers.clear();
                }
            }
            Some(true) if is_slow && own.load.is_none() && own.rests_until <= reach.now && !one.trial.is_on() => {
                self.begin_at(one, sample, [&begun, &runs], reach);
            }
            _ => {}
        }
    }

    fn begin_at(&mut self, one: &MappingState, sample: &Sample, [begun, runs]: [&[Run]; 2], reach: &mut Reach) {
        // Any storage is slow for a walk by single pages: where that advice may be replaced it is not helped, but ended.
        let is_single = |flags: Vec<Flags>| flags.iter().any(|flags| flags.random);
        let at = std::slice::from_ref(&one.mapping.at);
        if reach.settings.overrides && reach.samples.flags(at).is_none_or(is_single) {
            return;
        }
        let needed: u64 = self.each.all().filter_map(|own| own.load.as_ref()).map(Load::needs).sum();
        let (free, pages, now) = (may_load(reach.available).saturating_sub(needed), one.mapping.pages, reach.now);
        let load = if pages <= free {
            let front = sample.last.last().or(runs.last()).map_or(0, Run::end);
            Some(Load::new(front, pages, now))
        } else {
            // A walk that waits may be one in strides, for which whole pieces are in vain: single touches are looked at first, and the advice rests
            // after that.
            let is_served = sample.whole.cost.major_faults * 10 < sample.whole.touched;
            let is_known = is_served || one.trial.is_resting() || one.rests_until > now;
            let walk = shape(begun, &sample.last).walk_forward();
            let walk = walk.filter(|_| is_known || reach.settings.only_loads);
            walk.map(|front| Load::of_walk(front, pages, window(free), now))
        };
        if load.is_some() && !reach.only_notes(one, "a load from slow storage, for which readers would be ahead") {
            self.device = Some(one.mapping.device);
            self.each.of(&one.id).load = load;
        }
    }

    /// Has the readers read what comes next of one load. `most`: requests at a time, of which `waiting` are not done.
    fn follow(&mut self, one: &mut MappingState, now: Duration, most: usize, waiting: &mut usize, reach: &mut Reach) {
        let own = self.each.of(&one.id);
        let Some(load) = own.load.as_mut().filter(|_| one.seen.is_some()) else { return };
        let new = reach.look(one, load.ahead());
        self.next = now + OFTEN.max((reach.samples.now() - now) * LOOKS);
        let goes_on = load.follow(&new, now);
        one.note(new);
        let Some(readers) = reach.hand.readers() else { return };
        match readers.open(&one.mapping) {
            Opened::Yes => {}
            Opened::NotYet => return,
            Opened::No => {
                own.load = None;
                return;
            }
        }
        for run in load.ask(may_load(reach.available), (4 * most).saturating_sub(*waiting)) {
            readers.bring(&one.mapping, &run, false);
            *waiting += 1;
        }
        if !goes_on {
            own.load = None;
            own.rests_until = now + ENDED;
        }
    }
}

impl Pattern for Loads {
    fn learn(&mut self, one: &mut MappingState, sample: &mut Sample, reach: &mut Reach) {
        if reach.hand.readers().is_some() {
            self.find(one, sample, reach);
            sample.is_loaded = self.each.of(&one.id).load.is_some();
        }
    }

    /// Keeps the readers busy.
    fn step_all(&mut self, all: &mut [MappingState], reach: &mut Reach) -> bool {
        let now = reach.samples.now();
        if now < self.next {
            return false;
        }
        let Some(readers) = reach.hand.readers() else { return false };
        if self.each.all().all(|own| own.load.is_none()) {
            if !reach.needs_readers {
                readers.rest();
            }
            return false;
        }
        let (mut waiting, brought) = readers.state();
        // Memory that is being read into cannot be reclaimed: at most a sixteenth of what may be loaded may be.
        let most = (may_load(reach.available) / 16 / PIECE) as usize;
        let most = self.depth.judge(brought, now).min(most).max(1);
        readers.allow(most);
        self.told = (brought / PAGE, self.told.1.max(most));
        for one in all {
            self.follow(one, now, most, &mut waiting, reach);
        }
        true
    }

    /// Keeps the load up to date. A step decides whether it goes on.
    fn saw(&mut self, id: &Id, new: &[Run], at: Duration) {
        if let Some(load) = &mut self.each.of(id).load {
            load.follow(new, at);
        }
    }

    fn pause(&self, id: &Id, _: Duration) -> Option<Duration> {
        self.each.get(id)?.load.as_ref().map(|_| OFTEN)
    }

    fn is_short_lived(&self, one: &MappingState) -> bool {
        self.each.get(&one.id).is_some_and(|own| own.load.is_some())
    }

    fn end(&mut self, id: &Id) {
        self.each.of(id).load = None;
    }

    fn tell(&mut self, _: &[MappingState], _: Duration) -> Option<(String, bool)> {
        let (pages, most) = self.told;
        let size = (pages * PAGE) >> 20;
        (pages > 0).then(|| (format!("a load from slow storage: {size} MiB brought, {most} requests at a time"), false))
    }
}

/// Follows the load of one mapping. Readers beside the program bring its pages before the program touches them.
#[derive(Debug)]
struct Load {
    /// The mapping's length in pages.
    pages: u64,
    /// The page to bring next.
    next: u64,
    what: What,
    moved: Duration,
}

/// The pages that are brought.
#[derive(Debug)]
enum What {
    /// All pages of a mapping that fits into memory; after the last comes the first. `left`: not asked for yet. `brought`: asked for.
    /// `touched`: touched by the program meanwhile.
    Whole { left: u64, brought: u64, touched: u64 },
    /// The pages ahead of a walk forward, `window` pages ahead of its `front` at most.
    Walk { front: u64, window: u64 },
}

/// Pages in a second from which on storage gives what it has: 400 MiB.
const BUSY: f64 = 100_000.0;
/// Storage is slow for a program that waits longer than this for each window.
const SLOW: Duration = Duration::from_micros(130);
/// A load that has not gone on for so long has ended.
const PATIENCE: Duration = Duration::from_secs(5);
/// A walk that has not gone on for so long has ended.
const WALKS: Duration = Duration::from_millis(500);
/// A walk may leave out so many pages. A look may not show them either: they are gone again.
const NEAR: u64 = 4 * PIECE;
impl Load {
    /// A load that goes on after page `front` of a mapping of `pages`.
    fn new(front: u64, pages: u64, now: Duration) -> Load {
        let what = What::Whole { left: pages, brought: 0, touched: 0 };
        Load { pages, next: front.min(pages), what, moved: now }
    }

    /// A walk forward that has come to page `front` of a mapping of `pages`. At most `window` pages are brought ahead of it.
    fn of_walk(front: u64, pages: u64, window: u64, now: Duration) -> Load {
        Load { pages, next: front.min(pages), what: What::Walk { front, window: window.max(PIECE) }, moved: now }
    }

    /// Pages of memory that it needs.
    fn needs(&self) -> u64 {
        match self.what {
            What::Whole { .. } => self.pages,
            What::Walk { window, .. } => window,
        }
    }

    /// Where to look for the next touches.
    fn ahead(&self) -> Range<u64> {
        match self.what {
            What::Whole { .. } => 0..self.pages,
            // It may begin anew.
            What::Walk { front, window } if front + WINDOW >= self.pages => 0..(4 * window).min(self.pages),
            What::Walk { front, window } => front..(front + 4 * window).min(self.pages),
        }
    }

    /// Notes what the program has touched, in order. `false` once all is asked for, or if the load does not go on.
    fn follow(&mut self, new: &[Run], now: Duration) -> bool {
        let next = self.next;
        match &mut self.what {
            What::Whole { touched, .. } => {
                if let Some(last) = new.last() {
                    self.moved = now;
                    *touched += new.iter().map(|run| run.len).sum::<u64>();
                    // The program has passed the readers.
                    let is_near = |run: &&Run| run.at <= next + PIECE && next < run.end();
                    if let Some(run) = new.iter().find(is_near).filter(|run| run.end() <= last.end()) {
                        self.skip(run.end() - next);
                    }
                }
                !self.is_all_asked() && now.saturating_sub(self.moved) < PATIENCE
            }
            What::Walk { front, .. } => {
                if *front + WINDOW >= self.pages
                    && let Some(first) = new.first().filter(|run| run.len >= WINDOW)
                {
                    (*front, self.next) = (first.at, first.end());
                }
                for run in new.iter().filter(|run| run.len > 1) {
                    if run.at <= *front + NEAR && *front < run.end() {
                        *front = run.end();
                        self.moved = now;
                    }
                }
                self.next = self.next.max(*front);
                now.saturating_sub(self.moved) < WALKS
            }
        }
    }

    fn is_all_asked(&self) -> bool {
        matches!(self.what, What::Whole { left: 0, .. })
    }

    fn skip(&mut self, pages: u64) {
        let What::Whole { left, .. } = &mut self.what else {
            self.next += pages;
            return;
        };
        let pages = pages.min(*left);
        *left -= pages;
        self.next = if self.next + pages >= self.pages { 0 } else { self.next + pages };
    }

    /// Pages that may be asked for now, from the next one on. At most `available` pages of a load may be asked for and not touched yet.
    fn may_ask(&mut self, available: u64) -> u64 {
        match self.what {
            What::Whole { left, brought, touched } => {
                if self.next >= self.pages {
                    self.next = 0;
                }
                if brought < touched + available { left.min(self.pages - self.next) } else { 0 }
            }
            What::Walk { front, window } if self.next < front + window => self.pages.saturating_sub(self.next),
            What::Walk { .. } => 0,
        }
    }

    /// Pieces to bring now, at most `count`. At most `available` pages of a load may be asked for and not touched yet.
    fn ask(&mut self, available: u64, count: usize) -> Vec<Run> {
        let mut ask = Vec::new();
        while ask.len() < count {
            let len = PIECE.min(self.may_ask(available));
            if len == 0 {
                break;
            }
            ask.push(Run { at: self.next, len });
            if let What::Whole { brought, .. } = &mut self.what {
                *brought += len;
            }
            self.skip(len);
        }
        ask
    }
}

/// Pages that may be brought ahead of a walk: an eighth of those that are `available` to files, and 32 MiB at most, which keep the fastest
/// of slow storage busy.
fn window(available: u64) -> u64 {
    (available / 8).min(8192)
}

/// Whether storage is slow for a program whose threads slept so long in `faults` faults, which touched so many windows and read so many
/// bytes. By windows, not by faults: a program that copies what it loads also faults on new memory, which waits for nothing, and a fault on a
/// large folio maps two. No look has shown what was touched and is gone again, but it was read. At most two windows for each fault count so,
/// since read(2) reads, too.
fn is_slow(slept: Duration, faults: u64, touched: u64, read: u64) -> bool {
    let windows = touched.max((read / (WINDOW * PAGE)).min(2 * faults));
    slept > SLOW * u32::try_from(windows).unwrap_or(u32::MAX).max(1)
}

/// Requests of readers at a time: as many as pay.
#[derive(Debug)]
struct Depth {
    now: usize,
    /// When the last trial began, and the bytes brought until then.
    since: (Duration, u64),
    /// Bytes a second in the trial before.
    before: f64,
}

const LEAST: usize = 8;
const MOST: usize = 64;
/// How long each depth is tried.
const TRIAL: Duration = Duration::from_millis(60);

impl Depth {
    /// Begins with the least number of requests.
    fn new(now: Duration) -> Depth {
        Depth { now: LEAST, since: (now, 0), before: 0.0 }
    }

    /// Requests that there may be, now that `brought` bytes are read in all.
    fn judge(&mut self, brought: u64, now: Duration) -> usize {
        let lasted = now.saturating_sub(self.since.0);
        if lasted >= TRIAL {
            let rate = (brought - self.since.1) as f64 / lasted.as_secs_f64();
            if rate > self.before * 1.15 {
                self.now = (self.now * 2).min(MOST);
            } else if rate < self.before * 0.7 {
                self.now = (self.now / 2).max(LEAST);
            }
            self.before = rate;
            self.since = (now, brought);
        }
        self.now
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(millis: u64) -> Duration {
        Duration::from_millis(millis)
    }

    #[test]
    fn all_of_a_file_is_brought_once_from_where_the_program_is() {
        let mut load = Load::new(300, 1000, at(0));
        let asked = load.ask(10_000, 100);
        assert_eq!(asked[0], Run { at: 300, len: 64 });
        assert_eq!(asked.iter().map(|run| run.len).sum::<u64>(), 1000);
        let mut pages: Vec<u64> = asked.iter().flat_map(|run| run.at..run.end()).collect();
        pages.sort_unstable();
        assert!(pages.into_iter().eq(0..1000));
        assert!(!load.follow(&[], at(1)));
    }

    #[test]
    fn no_more_is_ahead_than_there_is_room_and_readers_that_are_passed_go_on_ahead() {
        let mut load = Load::new(0, 100_000, at(0));
        assert_eq!(load.ask(640, 100).len(), 10);
        assert!(load.ask(640, 100).is_empty());
        assert!(load.follow(&[Run { at: 0, len: 128 }], at(1)));
        assert_eq!(load.ask(640, 100), [Run { at: 640, len: 64 }, Run { at: 704, len: 64 }]);
        assert!(load.follow(&[Run { at: 700, len: 5000 }], at(2)));
        assert_eq!(load.ask(6400, 1), [Run { at: 5700, len: 64 }]);
        assert!(load.follow(&[], at(4000)) && !load.follow(&[], at(6000)));
    }

    #[test]
    fn a_walk_has_what_it_comes_to_next_and_no_more_and_is_found_again_at_the_beginning() {
        let mut load = Load::of_walk(1000, 2000, 256, at(0));
        let next = |load: &mut Load| -> Vec<u64> { load.ask(0, 100).iter().map(|run| run.at).collect() };
        assert_eq!(next(&mut load), [1000, 1064, 1128, 1192]);
        assert!(next(&mut load).is_empty());
        assert_eq!(load.ahead(), 1000..2000);
        assert!(load.follow(&[Run { at: 1000, len: 100 }], at(1)));
        assert_eq!(next(&mut load), [1256, 1320]);
        // It is faster than the readers; what others touch elsewhere is no part of it.
        assert!(load.follow(&[Run { at: 1090, len: 510 }, Run { at: 1950, len: 20 }], at(2)));
        assert_eq!(load.ask(0, 1), [Run { at: 1600, len: 64 }]);
        assert!(load.follow(&[Run { at: 1600, len: 399 }], at(3)));
        assert_eq!(next(&mut load), [1999]);
        assert_eq!(load.ahead(), 0..1024);
        assert!(load.follow(&[Run { at: 0, len: 40 }], at(4)));
        assert_eq!(next(&mut load)[0], 40);
        assert!(load.follow(&[], at(400)) && !load.follow(&[], at(600)));
    }

    #[test]
    fn storage_is_slow_by_what_a_window_waits_for_it() {
        let after = |slept: u64, faults, touched, read: u64| is_slow(at(slept), faults, touched, read << 20);
        // FUSE, half a millisecond a request: a fault maps a window, and no bytes are counted.
        assert!(after(82, 552, 552, 0));
        // The same, copied into new memory.
        assert!(after(82, 5520, 552, 0));
        // A disk: a fault maps two windows. Most of what was touched between long looks is gone again.
        assert!(!after(80, 1028, 2052, 128) && !after(437, 2356, 2526, 294) && !after(697, 3732, 1066, 466));
        // 2 ms a request, and read(2) of another file beside it.
        assert!(after(552, 552, 552, 1000));
        assert!(!after(0, 0, 0, 0));
    }

    #[test]
    fn requests_become_more_while_that_pays() {
        let storage = |most: usize| {
            let (mut depth, mut brought, mut now) = (Depth::new(at(0)), 0, 0);
            let mut count = 8;
            for _ in 0..100 {
                now += 20;
                brought += count.min(most) as u64 * 1000;
                count = depth.judge(brought, at(now));
            }
            count
        };
        assert_eq!((storage(64), storage(8)), (64, 16));
    }
}
