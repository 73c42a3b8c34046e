//! Touches at random of more than memory holds. The kernel reads around each miss in vain: MADV_RANDOM, as long as it pays.

use super::*;
use crate::run::WINDOW;
use crate::trial::{Rate, TRIAL};

/// Scattered touches.
#[derive(Debug)]
pub struct Random {
    each: Each<Scattered>,
    began: Duration,
    told: Option<Told>,
}

/// What is known of one mapping.
#[derive(Debug, Default)]
struct Scattered {
    /// Advised since then, and not judged yet: it is when [`TRIAL`] has passed.
    tried: Option<Duration>,
    /// Samples in a row that showed larger pieces than the trial did.
    larger: u32,
    /// New pages that a step of touches at random usually shows in a part of the mapping.
    usual: f64,
    /// Whether it was ever advised.
    was_advised: bool,
}

/// When it was advised first, in how many mappings, and touches a second before and after.
#[derive(Debug)]
struct Told {
    at: Duration,
    mappings: u32,
    before: f64,
    after: f64,
}

const WISH: Wish =
    Wish { why: "scattered touches, most of what is read around them unused: MADV_RANDOM", is_alone: true };
/// Pages of a piece from which on pieces are no single touches.
const PIECE: f64 = 2.0;
/// Pages read for each window touched from which on the kernel reads in vain.
const DEAR: f64 = 6.0;
/// Pages of a run of new pages, in the mean, from which on pieces are touched: around single touches the kernel maps a window each.
const LONG: f64 = 24.0;
/// Touches that have become so much fewer are no gain.
const FEWER: f64 = 0.8;
/// A glance looks at one part in so many.
const PARTS: u64 = 8;
/// New pages that must be usual in a part, to tell that they stay away.
const USUAL: f64 = 24.0;

impl Random {
    /// `at`: now.
    pub fn new(at: Duration) -> Random {
        Random { each: Each::default(), began: at, told: None }
    }
}

impl Scattered {
    fn try_on(&mut self, since: Duration, trial: &mut Trial, sample: &Sample) -> Verdict {
        trial.now = trial.now.and(sample);
        // Pieces lose several times over, which shows at once.
        let are_pieces = sample.says_something() && trial.now.piece() >= PIECE;
        if sample.whole.at < since + TRIAL && (!are_pieces || pays(trial)) && !trial.harms(rates(trial)) {
            return Verdict::Stays;
        }
        if !pays(trial) {
            return Verdict::InVain;
        }
        self.tried = None;
        trial.has_paid();
        Verdict::Stays
    }

    fn watch(&mut self, trial: &mut Trial, sample: &Sample) -> Verdict {
        let (tried, piece) = (trial.now.piece(), Rate::default().and(sample).piece());
        let is_larger = sample.says_something() && piece >= PIECE && piece >= tried * 1.5;
        self.larger = if is_larger { self.larger + 1 } else { 0 };
        if self.larger >= 2 {
            // The kernel may serve these better: that is measured anew.
            return Verdict::Over;
        }
        if self.larger == 0 {
            trial.now = trial.now.and(sample);
        }
        // It may do something else by now: that is measured anew.
        if trial.falls(trial.progress(), FEWER) { Verdict::Over } else { Verdict::Stays }
    }
}

/// Whether more is touched. Under MADV_RANDOM each page of a piece is a fault; before, each window of it.
fn pays(trial: &Trial) -> bool {
    trial.pays(rates(trial), trial.now.piece() < PIECE)
}

fn rates(trial: &Trial) -> (f64, f64) {
    let (piece, (before, now)) = (trial.now.piece(), trial.progress());
    (before / (1.0 + (piece - 1.0) / WINDOW as f64), now / piece)
}

impl Pattern for Random {
    fn learn(&mut self, one: &mut MappingState, sample: &mut Sample, _: &mut Reach) {
        if one.trial.is_for(WISH) {
            sample.touched = touched_in_pieces(&sample.looks.all(), one.mapping.pages);
        }
    }

    fn wants(&mut self, one: &mut MappingState, sample: &Sample) -> Option<Wish> {
        let (pages, pieces) = in_pieces(&sample.looks.all());
        let are_pieces = pages as f64 > LONG * pieces as f64 || sample.whole.is_slow && sample.has_neighbours();
        let is_dear = one.trial.before.price() >= DEAR;
        if !sample.shape.is_scattered() || !is_dear || are_pieces || !sample.whole.is_short || sample.whole.fills {
            return None;
        }
        let own = self.each.of(&one.id);
        (own.tried, own.larger) = (Some(sample.whole.at), 0);
        Some(WISH)
    }

    fn keeps(&mut self, one: &mut MappingState, sample: &Sample) -> Verdict {
        let own = self.each.of(&one.id);
        match own.tried {
            // A walk gains by the kernel's reading ahead, whatever the touches between it cost.
            _ if sample.says_something() && sample.shape.is_walked() => Verdict::Over,
            Some(since) => own.try_on(since, &mut one.trial, sample),
            None => own.watch(&mut one.trial, sample),
        }
    }

    fn given(&mut self, one: &MappingState, now: Duration) {
        let own = self.each.of(&one.id);
        own.usual = 0.0;
        let at = now - self.began;
        let told = self.told.get_or_insert(Told { at, mappings: 0, before: 0.0, after: 0.0 });
        told.mappings += u32::from(!std::mem::replace(&mut own.was_advised, true));
    }

    /// Touches at random that have stopped where they were usual: a walk may have begun. Only a part of the mapping is looked at.
    fn glance(&mut self, one: &mut MappingState, reach: &mut Reach) -> bool {
        let own = self.each.of(&one.id);
        if !one.trial.is_for(WISH) || one.seen.is_none() {
            return false;
        }
        let part = one.mapping.pages / PARTS;
        let new = reach.look(one, part..2 * part);
        let count = new.iter().map(|run| run.len).sum::<u64>() as f64;
        let has_stopped = own.usual >= USUAL && count * 4.0 < own.usual;
        own.usual = if own.usual == 0.0 { count } else { own.usual * 0.8 + count * 0.2 };
        one.note(new);
        has_stopped
    }

    fn tell(&mut self, all: &[MappingState], _: Duration) -> Option<(String, bool)> {
        let told = self.told.as_mut()?;
        for one in all.iter().filter(|one| one.trial.is_for(WISH)) {
            let (before, after) = one.trial.progress();
            // Nothing is known yet of advice just given.
            (told.before, told.after) = (before, if after > 0.0 { after } else { told.after });
        }
        let Told { at, mappings, before, after } = told;
        let (at, several) = (at.as_secs_f64(), if *mappings == 1 { "" } else { "s" });
        let now = if *after > 0.0 { format!(" -> {:.1}", *after / 1e3) } else { String::new() };
        let before = *before / 1e3;
        let place = format!("random at {at:.1} s in {mappings} mapping{several}");
        Some((format!("{place}: {before:.1}{now} thousand touches a second"), false))
    }
}

/// Pages of runs, in order, without those that adjoin others by chance, as touches at random of a mapping of `pages` do; and the pieces that they
/// lie in.
fn touched_in_pieces(runs: &[Run], pages: u64) -> (f64, f64) {
    let (count, pieces) = in_pieces(runs);
    (count as f64 * (1.0 - count as f64 / pages.max(count).max(1) as f64), pieces as f64)
}

/// Pages of runs, in order, and the pieces that they lie in.
fn in_pieces(runs: &[Run]) -> (u64, u64) {
    let mut end = None;
    let (mut count, mut pieces) = (0, 0);
    for run in runs {
        pieces += u64::from(end != Some(run.at));
        count += run.len;
        end = Some(run.end());
    }
    (count, pieces)
}
