//! Decides on the advice of one mapping.

use super::{Shape, WINDOW};
use std::time::Duration;

/// Advice on a mapping: madvise(2).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Advice {
    /// MADV_NORMAL: the kernel reads around and ahead.
    Normal,
    /// MADV_RANDOM: it reads only what is touched.
    Random,
}

/// One look at one mapping, and at what it cost.
#[derive(Debug, Clone)]
pub struct Look<'a> {
    /// When it ended.
    pub at: Duration,
    /// How long it took.
    pub lasted: Duration,
    /// The pattern of the touches at its end.
    pub shape: &'a Shape,
    /// Windows touched in all this time.
    pub windows: u64,
    /// Whether the touches, of all mappings, extend over more pages than fit into memory.
    pub is_short: bool,
    /// Pages that the program had read from devices meanwhile.
    pub read: u64,
    /// Faults of the program that waited for a device meanwhile.
    pub waited: u64,
    /// All its faults. (Windows tell less: in a window that was touched before, a new page may be gone again by the next look.)
    pub faults: u64,
    /// Pages that were touched, without those that adjoin others by chance, and pieces that they lie in. Under MADV_RANDOM these tell how many
    /// pages the program touches at one place.
    pub touched: (f64, f64),
    /// Whether memory is about to be full (`watcher.rs`).
    pub fills: bool,
    /// This mapping's share of the windows that were touched in all mappings.
    pub share: f64,
    /// Whether a walk forward that may come round is followed (`Round`).
    pub is_followed: bool,
}

impl Look<'_> {
    /// Whether the program waits once in ten windows or more, and why is not known. In a walk forward that the kernel reads ahead of, it waits less often.
    pub fn waits(&self) -> bool {
        !self.is_followed && self.waited as f64 * self.share * WAITS >= self.windows as f64
    }
}

/// Follows one mapping, and decides on its advice.
#[derive(Debug, Default)]
pub struct Case {
    state: State,
    /// How long it rests after advice that did not pay: doubled each time.
    rest: Duration,
    /// Rates without advice, and under it.
    before: Rate,
    now: Rate,
    /// When strides were seen last.
    ordered: Duration,
    /// Looks in a row that showed larger pieces than the trial of MADV_RANDOM did.
    larger: u32,
}

#[derive(Debug, Default, Clone, Copy, PartialEq)]
enum State {
    #[default]
    Normal,
    /// Advised random so that single touches show, since then.
    Looked(Duration),
    /// Walked in strides, read ahead of page by page, since then.
    Strided(Duration),
    /// Advised random since then; judged when half a second has passed.
    Tried(Duration),
    Random,
    /// Left to the kernel, until then.
    Resting(Duration),
}

/// Windows touched, faults, pages read, pages touched and pieces that they lie in, in a time.
#[derive(Debug, Default, Clone, Copy, PartialEq)]
struct Rate {
    windows: f64,
    faults: f64,
    read: f64,
    pages: f64,
    pieces: f64,
    seconds: f64,
}

impl Rate {
    fn add(&mut self, look: &Look) {
        // Older looks count less: after a second the sums are halved.
        if self.seconds > 1.0 {
            let half = |sum| sum / 2.0;
            *self = Rate {
                windows: half(self.windows),
                faults: half(self.faults),
                read: half(self.read),
                pages: half(self.pages),
                pieces: half(self.pieces),
                seconds: half(self.seconds),
            };
        }
        self.windows += look.windows as f64;
        self.faults += look.faults as f64 * look.share;
        self.read += look.read as f64 * look.share;
        self.pages += look.touched.0;
        self.pieces += look.touched.1;
        self.seconds += look.lasted.as_secs_f64();
    }

    /// Pages of a piece. Under MADV_RANDOM each is a fault; pages beyond that were in memory, and the kernel has mapped them around a touch.
    fn piece(&self) -> f64 {
        (self.pages.min(self.faults) / self.pieces.max(1.0)).max(1.0)
    }

    /// Faults a second: each is a touch, where pages are mapped one by one.
    fn touches(&self) -> f64 {
        self.faults / self.seconds.max(1e-3)
    }

    /// How far a rate may be off by chance, as a part of it: touches come as they like.
    fn chance(&self) -> f64 {
        1.0 / self.faults.max(1.0).sqrt()
    }

    /// Pages read for each window.
    fn price(&self) -> f64 {
        self.read / self.windows.max(1.0)
    }
}

/// Windows below which a look says nothing.
const FEW: u64 = 10;
/// A walk forward that the kernel serves well waits less than once in so many windows.
const WAITS: f64 = 10.0;
/// A look under MADV_RANDOM lasts so long at most; where it showed neither order nor chance, so much longer.
const LONGEST_LOOK: Duration = Duration::from_millis(100);
const LONGER_LOOK: Duration = Duration::from_millis(200);
/// Pages of a piece from which on pieces are no single touches.
const PIECE: f64 = 2.0;
/// Pages read for each window touched from which on the kernel reads in vain.
const DEAR: f64 = 4.0;
/// Strides that are not seen for so long have ended.
const PAUSE: Duration = Duration::from_millis(300);
/// Advice is tried for so long.
const TRIAL: Duration = Duration::from_millis(500);
const FIRST_REST: Duration = Duration::from_secs(2);
const LONGEST_REST: Duration = Duration::from_secs(64);

impl Case {
    /// Whether the mapping is advised random for scattered touches.
    pub fn is_random(&self) -> bool {
        matches!(self.state, State::Tried(_) | State::Random)
    }

    /// Whether it has any advice of ours.
    pub fn is_on(&self) -> bool {
        self.is_random() || matches!(self.state, State::Looked(_) | State::Strided(_))
    }

    /// Whether it is advised random for a short time, to look at single touches.
    pub fn is_looked_at(&self) -> bool {
        matches!(self.state, State::Looked(_))
    }

    /// Whether it is left to the kernel for a time: advice did not pay, or has just ended, or single touches showed nothing.
    pub fn is_resting(&self) -> bool {
        matches!(self.state, State::Resting(_))
    }

    /// The pattern that was seen, and the advice for it, in words.
    pub fn why(&self) -> &'static str {
        match self.state {
            State::Normal | State::Resting(_) => "nothing that needs advice",
            State::Looked(_) | State::Strided(_) => "a walk that waits: single touches looked at under MADV_RANDOM",
            State::Tried(_) | State::Random => {
                "scattered touches, most of what is read around them unused: MADV_RANDOM"
            }
        }
    }

    /// Touches a second, before the advice and now.
    pub fn progress(&self) -> (f64, f64) {
        (self.before.touches(), self.now.touches())
    }

    /// New advice, if the mapping should have another.
    pub fn judge(&mut self, look: &Look) -> Option<Advice> {
        let shape = look.shape;
        let says_something = shape.windows >= FEW;
        match self.state {
            State::Resting(until) if look.at < until => None,
            State::Normal | State::Resting(_) => {
                if self.state != State::Normal {
                    self.before = Rate::default();
                    self.state = State::Normal;
                }
                if !says_something {
                    return None;
                }
                self.before.add(look);
                self.begin(look)
            }
            State::Looked(_) | State::Strided(_) if says_something && shape.has_strides() && !shape.is_blurred => {
                self.ordered = look.at;
                let since = match self.state {
                    State::Strided(since) => since,
                    _ => {
                        self.now = Rate::default();
                        self.state = State::Strided(look.at);
                        look.at
                    }
                };
                self.now.add(look);
                if look.at < since + TRIAL || self.pays() { None } else { self.give_up(look.at) }
            }
            State::Looked(since) => {
                if says_something && shape.is_scattered() && look.is_short && !look.fills {
                    return self.begin(look).map_or_else(|| self.give_up(look.at), |_| None);
                }
                let is_told = shape.is_scattered() || !shape.fronts.is_empty();
                match look.at < since + if is_told { LONGEST_LOOK } else { LONGER_LOOK } {
                    true => None,
                    // Pages that are in memory already show no single touches.
                    false if !look.waits() => self.normal(look.at),
                    false => self.give_up(look.at),
                }
            }
            // The walk may have come to an end of the file, and may begin anew.
            State::Strided(_) if look.at < self.ordered + PAUSE => None,
            State::Strided(_) => self.normal(look.at),
            // A walk gains by the kernel's reading ahead, whatever the touches between it cost.
            State::Tried(_) | State::Random if says_something && shape.is_walked() => self.normal(look.at),
            State::Tried(since) => {
                self.now.add(look);
                // Pieces lose several times over, which shows at once.
                let are_pieces = says_something && self.now.piece() >= PIECE;
                if look.at < since + TRIAL && (!are_pieces || self.pays()) {
                    return None;
                }
                if !self.pays() {
                    return self.give_up(look.at);
                }
                self.state = State::Random;
                self.rest = Duration::ZERO;
                None
            }
            State::Random => {
                let trial = self.now.piece();
                let mut alone = Rate::default();
                alone.add(look);
                let piece = alone.piece();
                self.larger =
                    if says_something && piece >= PIECE && piece >= trial * 1.5 { self.larger + 1 } else { 0 };
                if self.larger >= 2 {
                    // The kernel may serve these better: that is measured anew.
                    return self.normal(look.at);
                }
                if self.larger == 0 {
                    self.now.add(look);
                }
                None
            }
        }
    }

    /// New advice for a mapping that has none of ours, or is under a look.
    fn begin(&mut self, look: &Look) -> Option<Advice> {
        let shape = look.shape;
        if shape.is_scattered() {
            let is_dear = self.before.read == 0.0 || self.before.price() >= DEAR;
            if !is_dear || !look.is_short || look.fills {
                return None;
            }
            self.now = Rate::default();
            self.larger = 0;
            self.state = State::Tried(look.at);
            return Some(Advice::Random);
        }
        // The kernel reads ahead of a walk forward in time. One that waits all the same may be something else.
        if shape.has_strides() || shape.is_one_walk() && look.waits() {
            self.state = State::Looked(look.at);
            return Some(Advice::Random);
        }
        None
    }

    /// Whether the advice pays: touches rise by a tenth, or single ones fall by a tenth at most, and what may be chance, while half as much is read
    /// for each window.
    fn pays(&self) -> bool {
        let piece = self.now.piece();
        let (before, now) = match self.state {
            // Under MADV_RANDOM each page of a piece is a fault; before, each window of it.
            State::Tried(_) => {
                (self.before.touches() / (1.0 + (piece - 1.0) / WINDOW as f64), self.now.touches() / piece)
            }
            _ => self.progress(),
        };
        let are_single = !matches!(self.state, State::Tried(_)) || piece < PIECE;
        let least = 0.9 - self.before.chance().hypot(self.now.chance());
        now >= before * 1.1 || are_single && now >= before * least && self.now.price() * 2.0 <= self.before.price()
    }

    /// Takes the advice back: the pattern has ended.
    fn normal(&mut self, at: Duration) -> Option<Advice> {
        // Faults under the old advice are not the new pattern's.
        self.state = State::Resting(at + PAUSE);
        Some(Advice::Normal)
    }

    /// Takes the advice back: it does not pay. The rest is twice as long each time.
    fn give_up(&mut self, at: Duration) -> Option<Advice> {
        self.rest = (self.rest * 2).clamp(FIRST_REST, LONGEST_REST);
        self.state = State::Resting(at + self.rest);
        Some(Advice::Normal)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::judge::Front;

    fn scattered(windows: u64) -> Shape {
        Shape { windows, scattered: windows, ..Shape::default() }
    }

    fn walk(windows: u64) -> Shape {
        Shape { windows, ..Shape::default() }
    }

    /// A look of 100 ms, at a time in milliseconds, where memory is short and each window is one touch.
    fn at_work(at: u64, shape: &Shape, read: u64) -> Look<'_> {
        Look {
            at: Duration::from_millis(at),
            lasted: Duration::from_millis(100),
            shape,
            windows: shape.windows,
            is_short: true,
            read,
            waited: 0,
            faults: shape.windows,
            touched: (shape.windows as f64, shape.windows as f64),
            fills: false,
            share: 1.0,
            is_followed: false,
        }
    }

    /// Looks of 100 ms, each of (shape, pages read), and what was decided in each.
    fn decisions(case: &mut Case, looks: &[(Shape, u64)], is_short: bool, from: u64) -> Vec<Option<Advice>> {
        let look = |(index, (shape, read)): (usize, &(Shape, u64))| {
            case.judge(&Look { is_short, ..at_work(from + 100 * index as u64, shape, *read) })
        };
        looks.iter().enumerate().map(look).collect()
    }

    #[test]
    fn scattered_touches_are_advised_at_the_first_look_and_kept_if_they_become_more() {
        let mut case = Case::default();
        let looks: Vec<_> =
            std::iter::once((scattered(50), 1600)).chain((0..20).map(|_| (scattered(400), 400))).collect();
        let made = decisions(&mut case, &looks, true, 0);
        assert_eq!(made[0], Some(Advice::Random));
        assert!(made[1..].iter().all(Option::is_none));
        assert_eq!(case.state, State::Random);
    }

    #[test]
    fn what_does_not_pay_is_undone_after_half_a_second_and_tried_more_seldom() {
        let mut case = Case::default();
        let mut tried = Vec::new();
        for at in 0..600 {
            let (windows, read) = if case.is_random() { (30, 400) } else { (50, 1600) };
            let shape = scattered(windows);
            match case.judge(&at_work(100 * at, &shape, read)) {
                Some(Advice::Random) => tried.push(at),
                Some(Advice::Normal) => assert!(at - tried[tried.len() - 1] <= 5),
                None => {}
            }
        }
        assert_eq!(tried.len(), 5, "{tried:?}");
        assert!(tried.windows(3).all(|three| three[2] - three[1] > three[1] - three[0]), "{tried:?}");
    }

    /// Looks of 100 ms at pieces of `pages` pages at random places, of which the program touches so many as it is and under MADV_RANDOM.
    fn pieces(case: &mut Case, pages: u64, as_it_is: u64, random: u64, looks: u64) -> Vec<(u64, Advice)> {
        let mut made = Vec::new();
        for index in 0..looks {
            let count = if case.is_random() { random } else { as_it_is };
            let windows = count * (pages.div_ceil(WINDOW));
            let (faults, read) = if case.is_random() {
                (count * pages, count * pages)
            } else {
                (windows, count * 32 * pages.div_ceil(32))
            };
            let touched = if case.is_random() { ((count * pages) as f64, count as f64) } else { (0.0, 0.0) };
            let shape = scattered(windows);
            let look = Look { faults, touched, ..at_work(100 * index, &shape, read) };
            made.extend(case.judge(&look).map(|advice| (index, advice)));
        }
        made
    }

    #[test]
    fn pieces_that_are_touched_more_seldom_are_given_back_at_once() {
        // More pages are touched in more faults, and fewer pieces.
        let made = pieces(&mut Case::default(), 8, 600, 250, 20);
        assert_eq!(made, [(0, Advice::Random), (1, Advice::Normal)]);
        // On a disk that reads 8 MiB around each of them they gain.
        assert_eq!(pieces(&mut Case::default(), 8, 50, 250, 40), [(0, Advice::Random)]);
    }

    #[test]
    fn single_touches_that_become_pieces_are_measured_anew() {
        let mut case = Case::default();
        assert_eq!(pieces(&mut case, 1, 300, 600, 10), [(0, Advice::Random)]);
        let made = pieces(&mut case, 8, 600, 250, 5);
        assert_eq!(made[0], (1, Advice::Normal));
    }

    #[test]
    fn neither_chance_nor_what_was_in_memory_ends_a_trial_on_a_busy_disk() {
        let mut case = Case::default();
        // Ten touches a look; a few fewer in the trial, some of them at pages in memory, of which the kernel maps sixteen around each.
        for index in 0..20 {
            let shape = scattered(10);
            let (read, faults, touched) = if case.is_random() { (6, 7, (50.0, 8.0)) } else { (20_480, 10, (0.0, 0.0)) };
            let made = case.judge(&Look { faults, touched, ..at_work(100 * index, &shape, read) });
            assert_eq!(made, (index == 0).then_some(Advice::Random), "{index}");
        }
        assert_eq!(case.state, State::Random);
    }

    #[test]
    fn a_walk_is_never_advised_and_ends_the_advice_at_once() {
        let mut case = Case::default();
        assert!(decisions(&mut case, &vec![(walk(500), 8000); 20], true, 0).iter().all(Option::is_none));
        let mut case = Case::default();
        decisions(&mut case, &[(scattered(50), 1600)], true, 0);
        assert!(case.is_random());
        assert_eq!(decisions(&mut case, &[(walk(20), 320)], true, 100), [Some(Advice::Normal)]);
        assert_eq!(decisions(&mut case, &[(scattered(50), 1600)], true, 500), [Some(Advice::Random)]);
    }

    #[test]
    fn nothing_is_advised_where_memory_suffices_or_little_is_read_in_vain() {
        let mut case = Case::default();
        let looks = vec![(scattered(50), 1600); 20];
        assert!(decisions(&mut case, &looks, false, 0).iter().all(Option::is_none));
        let mut case = Case::default();
        let looks = vec![(scattered(50), 60); 20];
        assert!(decisions(&mut case, &looks, true, 0).iter().all(Option::is_none));
    }

    #[test]
    fn a_look_at_single_touches_that_shows_neither_order_nor_chance_lasts_longer() {
        let walk = Shape { windows: 100, fronts: vec![Front { at: 1600, stride: 1, span: 1600 }], ..Shape::default() };
        let untold = Shape { windows: 100, scattered: 20, ..Shape::default() };
        for (shape, looks) in [(&walk, 1), (&untold, 2)] {
            let mut case = Case::default();
            let made: Vec<_> = (0..4)
                .map(|index| {
                    let shape = if case.is_looked_at() { shape } else { &walk };
                    case.judge(&Look { waited: 50, ..at_work(100 * index, shape, 3200) })
                })
                .collect();
            assert_eq!(made[0], Some(Advice::Random));
            let ends = made.iter().position(|made| *made == Some(Advice::Normal));
            assert_eq!(ends, Some(looks), "{made:?}");
        }
    }

    #[test]
    fn few_touches_say_nothing() {
        let mut case = Case::default();
        assert!(decisions(&mut case, &vec![(scattered(5), 1000); 20], true, 0).iter().all(Option::is_none));
    }
}
