//! The advice of one mapping, decided by all patterns on made-up samples.

use super::*;
use crate::PAGE;
use crate::classify::{Front, Shape};
use crate::observe::{Mapping, Spent};
use crate::run::WINDOW;
use crate::sampling::Whole;

/// One mapping, and the patterns.
struct Case {
    patterns: Patterns,
    one: MappingState,
}

impl Default for Case {
    fn default() -> Case {
        let mapping = Mapping {
            at: 0..1 << 30,
            offset: 0,
            device: (8, 1),
            inode: 7,
            is_shared: true,
            is_writable: false,
            path: String::new(),
            pages: 1 << 18,
            may_grow: false,
        };
        Case { patterns: Patterns::new(Duration::ZERO), one: MappingState::new(32, mapping) }
    }
}

impl Case {
    fn judge(&mut self, sample: &Sample) -> Option<Advice> {
        self.patterns.judge(&mut self.one, sample)
    }

    fn is_random(&self) -> bool {
        self.one.trial.is_alone()
    }

    fn is_looked_at(&self) -> bool {
        self.one.trial.is_on() && !self.is_random()
    }
}

fn scattered(windows: u64) -> Shape {
    Shape { windows, scattered: windows, ..Shape::default() }
}

fn walk(windows: u64) -> Shape {
    Shape { windows, ..Shape::default() }
}

/// A sample of 100 ms, at a time in milliseconds, where memory is short and each window is one touch.
fn at_work(at: u64, shape: &Shape, read: u64) -> Sample {
    let cost = Spent { minor_faults: shape.windows, read_bytes: read * PAGE, ..Spent::default() };
    let (at, lasted) = (Duration::from_millis(at), Duration::from_millis(100));
    Sample {
        whole: Whole { at, lasted, cost, read, is_short: true, ..Whole::default() },
        shape: shape.clone(),
        windows: shape.windows,
        touched: (shape.windows as f64, shape.windows as f64),
        share: 1.0,
        ..Sample::default()
    }
}

/// The same, of so many faults at other pages.
fn of_pieces(at: u64, shape: &Shape, read: u64, faults: u64, touched: (f64, f64)) -> Sample {
    let mut sample = Sample { touched, ..at_work(at, shape, read) };
    sample.whole.cost.minor_faults = faults;
    sample
}

/// Looks of 100 ms, each of (shape, pages read), and what was decided in each.
fn decisions(case: &mut Case, looks: &[(Shape, u64)], is_short: bool, from: u64) -> Vec<Option<Advice>> {
    let look = |(index, (shape, read)): (usize, &(Shape, u64))| {
        let mut sample = at_work(from + 100 * index as u64, shape, *read);
        sample.whole.is_short = is_short;
        case.judge(&sample)
    };
    looks.iter().enumerate().map(look).collect()
}

#[test]
fn scattered_touches_are_advised_at_the_first_look_and_kept_if_they_become_more() {
    let mut case = Case::default();
    let looks: Vec<_> = std::iter::once((scattered(50), 1600)).chain((0..20).map(|_| (scattered(400), 400))).collect();
    let made = decisions(&mut case, &looks, true, 0);
    assert_eq!(made[0], Some(Advice::Random));
    assert!(made[1..].iter().all(Option::is_none));
    assert!(case.is_random());
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
        let (faults, read) =
            if case.is_random() { (count * pages, count * pages) } else { (windows, count * 32 * pages.div_ceil(32)) };
        let touched = if case.is_random() { ((count * pages) as f64, count as f64) } else { (0.0, 0.0) };
        let shape = scattered(windows);
        let sample = of_pieces(100 * index, &shape, read, faults, touched);
        made.extend(case.judge(&sample).map(|advice| (index, advice)));
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
        let made = case.judge(&of_pieces(100 * index, &shape, read, faults, touched));
        assert_eq!(made, (index == 0).then_some(Advice::Random), "{index}");
    }
    assert!(case.is_random());
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
    let walk =
        Shape { windows: 100, fronts: vec![Front { at: 1600, stride: 1, span: 1600, width: 1 }], ..Shape::default() };
    let untold = Shape { windows: 100, scattered: 20, ..Shape::default() };
    for (shape, looks) in [(&walk, 1), (&untold, 2)] {
        let mut case = Case::default();
        let made: Vec<_> = (0..4)
            .map(|index| {
                let shape = if case.is_looked_at() { shape } else { &walk };
                let mut sample = at_work(100 * index, shape, 3200);
                sample.whole.cost.major_faults = 50;
                case.judge(&sample)
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
