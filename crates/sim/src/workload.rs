//! What threads touch.

use crate::Time;
use crate::random::Random;

/// What a thread does next.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Step {
    /// An access.
    Touch {
        /// The mapping.
        area: usize,
        /// Its page.
        page: u64,
        /// Whether it stores.
        is_store: bool,
        /// Processor time that it takes until its next step.
        work: Time,
    },
    /// Nothing for so long.
    Sleep(Time),
    /// It unmaps a mapping, and maps the same pages anew.
    Remap(usize),
}

/// An order of accesses to one mapping.
#[allow(missing_docs)] // of the fields: each variant names its own
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Pattern {
    /// Pieces at random places, the hot ones more often: `skew` is Zipf's exponent. Each has `least` to `most` pages. `are_aligned`: a place is a
    /// multiple of the longest.
    Scattered { skew: f64, least: u64, most: u64, are_aligned: bool },
    /// Every `step`-th page (below zero: backward), of which the first `of.0` of each `of.1` are touched. At the end it begins anew.
    Walk { step: i64, of: (u64, u64) },
    /// Tiles of a 2-D array with rows of `row` pages: `rows` rows of `wide` pages each, at random or one after another.
    Tiles { row: u64, rows: u64, wide: u64, are_random: bool },
    /// A path from the root of a tree to a leaf, and `leaf` pages there.
    Descent { fan: u64, leaf: u64, skew: f64 },
}

/// One phase of a thread.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Phase {
    /// The mapping.
    pub area: usize,
    /// The part of it that is touched: first page and pages.
    pub part: (u64, u64),
    /// The order.
    pub pattern: Pattern,
    /// Accesses until the next phase.
    pub touches: u64,
    /// Processor time for each access.
    pub work: Time,
    /// One access in so many stores. 0: none.
    pub stores: u64,
    /// After so many accesses, a sleep. 0: none.
    pub bursts: (u64, Time),
    /// After so many accesses the mapping is replaced. 0: never.
    pub remaps: u64,
}

/// A thread's accesses, without end.
#[derive(Debug, Clone)]
pub struct Plan {
    phases: Vec<Phase>,
    random: Random,
    phase: usize,
    /// Accesses of this phase.
    done: u64,
    /// The page to touch next, and how many follow it.
    next: u64,
    left: u64,
    /// The place in the order: of a walk, a tile, a descent.
    place: u64,
    /// What a sleep or a new mapping came before.
    is_due: bool,
}

impl Plan {
    /// Phases, one after another, from the first again after the last.
    pub fn new(phases: Vec<Phase>, seed: u64) -> Plan {
        Plan { phases, random: Random::new(seed), phase: 0, done: 0, next: 0, left: 0, place: 0, is_due: false }
    }

    /// A walk begins at this part of its way: threads are apart.
    pub fn beginning(mut self, place: u64) -> Plan {
        self.place = place;
        self
    }

    /// The next step.
    pub fn step(&mut self) -> Step {
        let mut phase = self.phases[self.phase];
        if self.done >= phase.touches {
            self.phase = (self.phase + 1) % self.phases.len();
            (self.done, self.left, self.is_due) = (0, 0, false);
            phase = self.phases[self.phase];
        }
        let is_at = |every: u64| every > 0 && self.done > 0 && self.done.is_multiple_of(every);
        if !self.is_due && is_at(phase.bursts.0) {
            self.is_due = true;
            return Step::Sleep(phase.bursts.1);
        }
        if !self.is_due && is_at(phase.remaps) {
            self.is_due = true;
            return Step::Remap(phase.area);
        }
        self.is_due = false;
        self.done += 1;
        let page = phase.part.0 + self.page(&phase) % phase.part.1;
        let is_store = phase.stores > 0 && self.random.once_in(phase.stores);
        Step::Touch { area: phase.area, page, is_store, work: phase.work }
    }

    fn page(&mut self, phase: &Phase) -> u64 {
        let pages = phase.part.1;
        if self.left > 0 {
            self.left -= 1;
            self.next += 1;
            return self.next;
        }
        match phase.pattern {
            Pattern::Scattered { skew, least, most, are_aligned } => {
                let align = if are_aligned { most } else { 1 };
                let place = zipf(&mut self.random, (pages / align).max(1), skew);
                self.left = self.random.within(least, most) - 1;
                self.next = place * align;
            }
            Pattern::Walk { step, of: (some, all) } => {
                let count = (pages / step.unsigned_abs()).max(1);
                let mut place = self.place % count;
                if place % all >= some {
                    place += all - place % all;
                    place %= count;
                }
                self.place = place + 1;
                let place = if step < 0 { count - 1 - place } else { place };
                self.next = place * step.unsigned_abs();
            }
            Pattern::Tiles { row, rows, wide, are_random } => {
                let (across, down) = ((row / wide).max(1), (pages / row / rows).max(1));
                let inside = self.place % rows;
                if inside == 0 {
                    let tile = self.place / rows;
                    let tile = if are_random { self.random.below(across * down) } else { tile % (across * down) };
                    self.place = tile * rows;
                }
                let tile = self.place / rows;
                self.next = (tile / across * rows + inside) * row + tile % across * wide;
                self.left = wide - 1;
                self.place += 1;
            }
            Pattern::Descent { fan, leaf, skew } => {
                // Level `place` has fan^place nodes, each a page, one level behind the other.
                let (mut nodes, mut first, mut level) = (1, 0, 0);
                while level < self.place && first + nodes < pages {
                    first += nodes;
                    nodes *= fan;
                    level += 1;
                }
                let is_leaf = first + nodes >= pages;
                let count = if is_leaf { pages - first } else { nodes };
                self.next = first + zipf(&mut self.random, count, skew);
                self.left = if is_leaf { leaf - 1 } else { 0 };
                self.place = if is_leaf { 0 } else { self.place + 1 };
            }
        }
        self.next
    }
}

/// A number below `count`, the hot ones more often; the hot ones lie anywhere.
fn zipf(random: &mut Random, count: u64, skew: f64) -> u64 {
    if skew == 0.0 {
        return random.below(count);
    }
    let (all, part) = (count as f64, random.part());
    let rank = if (skew - 1.0).abs() < 1e-3 {
        all.powf(part)
    } else {
        ((all.powf(1.0 - skew) - 1.0) * part + 1.0).powf(1.0 / (1.0 - skew))
    };
    let rank = (rank as u64).min(count) - 1;
    (u128::from(rank) * 2_654_435_761 % u128::from(count)) as u64
}
