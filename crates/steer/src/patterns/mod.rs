//! Patterns of touches, a file each. A pattern owns what it knows: of each mapping ([`Each`]), and of the program. It is given samples, and acts by
//! [`Reach`].
//!
//! * `random.rs`: scattered touches, for which the kernel reads around in vain.
//! * `backward.rs`: a walk backward, which the kernel reads ahead of in the wrong direction.
//! * `stride.rs`: touches at equal distances, of which the kernel finds none.
//! * `cyclic.rs`: a walk forward that starts again at its beginning, over more than memory holds.
//! * `load.rs`: dense touches of files on slow storage.
//!
//! A new pattern is a file here, a line in [`Patterns::new`], and a row in docs/steering.md. It implements [`Pattern`], of which most need `begin`,
//! `step`, `pause`, `end` and `tell` only: see `backward.rs`. What a sample shows stands in `classify.rs`. One that needs MADV_RANDOM on its
//! mapping has `wants` and `keeps`, too. The parts that decide (`Stream`, `Backward`, `Round`, `Load`) do without [`Reach`], so that they can
//! be tested on made-up touches.

mod backward;
mod cyclic;
mod load;
mod random;
mod stride;
#[cfg(test)]
mod tests;

use crate::PAGE;
use crate::act::{Advice, Hand};
use crate::given::OurAdvice;
use crate::mapping::{Id, MappingState};
use crate::run::Run;
use crate::sampler::Samples;
use crate::sampling::Sample;
use crate::settings::Settings;
use crate::trial::{Trial, Verdict, Wish};
use std::collections::BTreeMap;
use std::fmt::Debug;
use std::ops::Range;
use std::sync::Weak;
use std::time::Duration;

/// One pattern, in all mappings of a program.
pub trait Pattern: Debug + Send {
    /// Learns from a sample, of every mapping, before any pattern decides on it. It may correct what the sample says.
    fn learn(&mut self, _: &mut MappingState, _: &mut Sample, _: &mut Reach) {}

    /// Whether the sample shows it, and MADV_RANDOM would help. The first pattern in the list that wants it is in charge.
    fn wants(&mut self, _: &mut MappingState, _: &Sample) -> Option<Wish> {
        None
    }

    /// Whether the advice that it is in charge of stays.
    fn keeps(&mut self, _: &mut MappingState, _: &Sample) -> Verdict {
        Verdict::Over
    }

    /// The mapping has the advice that it wants.
    fn given(&mut self, _: &MappingState, _: Duration) {}

    /// Begins to follow what the sample shows.
    fn begin(&mut self, _: &mut MappingState, _: &Sample, _: &mut Reach) {}

    /// Follows by a step. Returns whether a walk has ended after which another may begin at once.
    fn step(&mut self, _: &mut MappingState, _: &mut Reach) -> bool {
        false
    }

    /// Follows all mappings by a step. Returns whether there is something new to tell.
    fn step_all(&mut self, _: &mut [MappingState], _: &mut Reach) -> bool {
        false
    }

    /// Learns of a look at a whole mapping, between two steps.
    fn saw(&mut self, _: &Id, _: &[Run], _: Duration) {}

    /// A glance between two samples: whether it has plainly stopped.
    fn glance(&mut self, _: &mut MappingState, _: &mut Reach) -> bool {
        false
    }

    /// For how long a mapping in which it follows something can be left alone.
    fn pause(&self, _: &Id, _: Duration) -> Option<Duration> {
        None
    }

    /// Whether what it does in a mapping may be over in a moment.
    fn is_short_lived(&self, _: &MappingState) -> bool {
        false
    }

    /// Ends what is followed in a mapping.
    fn end(&mut self, _: &Id) {}

    /// What was done, in words, if anything was; and whether the engine, which serves such walks at the device's speed, may do better.
    fn tell(&mut self, _: &[MappingState], _: Duration) -> Option<(String, bool)>;
}

/// What a pattern knows of each mapping. What it knew of those that are gone is forgotten with the next that comes.
#[derive(Debug, Default)]
pub struct Each<T>(BTreeMap<usize, (Weak<()>, T)>);

impl<T: Default> Each<T> {
    fn of(&mut self, id: &Id) -> &mut T {
        if !self.0.contains_key(&id.key()) {
            self.0.retain(|_, (id, _)| id.strong_count() > 0);
        }
        &mut self.0.entry(id.key()).or_insert_with(|| (id.weak(), T::default())).1
    }

    fn get(&self, id: &Id) -> Option<&T> {
        self.0.get(&id.key()).map(|(_, own)| own)
    }

    fn all(&self) -> impl Iterator<Item = &T> {
        self.0.values().filter(|(id, _)| id.strong_count() > 0).map(|(_, own)| own)
    }
}

/// What a pattern can look at and do.
pub struct Reach<'a> {
    pub samples: &'a mut dyn Samples,
    pub hand: &'a mut dyn Hand,
    pub given: &'a mut OurAdvice,
    pub notes: &'a mut Vec<String>,
    pub settings: Settings,
    /// Pages of files that fit into memory.
    pub available: u64,
    /// When this sample or step began.
    pub now: Duration,
    /// Whether readers are needed by a pattern that does not follow a load.
    pub needs_readers: bool,
}

/// Notes that a dry run has at most.
const NOTES: usize = 8;

impl Reach<'_> {
    /// New pages of a part of a mapping.
    pub fn look(&mut self, one: &mut MappingState, range: Range<u64>) -> Vec<Run> {
        one.seen.as_mut().map_or_else(Vec::new, |seen| self.samples.pages(seen, range))
    }

    /// In a dry run, notes what would be done. Returns whether this is one.
    pub fn only_notes(&mut self, one: &MappingState, what: &str) -> bool {
        if self.settings.is_dry && self.notes.len() < NOTES {
            let line = format!("{}: {what}", one.mapping.path);
            self.notes.extend((!self.notes.contains(&line)).then_some(line));
        }
        self.settings.is_dry
    }

    /// Whether steering may advise a mapping. One that the program has locked is left alone, and one that it has advised itself, unless
    /// `overrides` is set: its flags tell, now.
    pub fn may_act(&mut self, one: &MappingState) -> bool {
        let is_ours = self.given.is_on(&one.mapping);
        let at = std::slice::from_ref(&one.mapping.at);
        let Some(flags) = self.samples.flags(at).and_then(|flags| flags.first().copied()) else { return false };
        !one.mapping.may_grow
            && !flags.locked
            && (self.settings.overrides || is_ours || !(flags.random || flags.sequential))
    }
}

/// All patterns.
#[derive(Debug)]
pub struct Patterns(Vec<Box<dyn Pattern>>);

/// Advice is wanted again so long after it could not be given.
const AGAIN: Duration = Duration::from_secs(1);

impl Patterns {
    /// The list, in the order in which they are asked. `at`: now.
    pub fn new(at: Duration) -> Patterns {
        Patterns(vec![
            Box::new(random::Random::new(at)),
            Box::<backward::Back>::default(),
            Box::<stride::Stride>::default(),
            Box::<cyclic::Cyclic>::default(),
            Box::new(load::Loads::new(at)),
        ])
    }

    /// Each learns from a sample.
    pub fn learn(&mut self, one: &mut MappingState, sample: &mut Sample, reach: &mut Reach) {
        self.0.iter_mut().for_each(|pattern| pattern.learn(one, sample, reach));
    }

    /// New advice, if the mapping should have another.
    pub fn judge(&mut self, one: &mut MappingState, sample: &Sample) -> Option<Advice> {
        let at = sample.whole.at;
        let Some((by, _)) = one.trial.held else {
            if !one.trial.is_free(at) || !sample.says_something() {
                return None;
            }
            one.trial.before = one.trial.before.and(sample);
            return self.is_wanted(one, sample).then_some(Advice::Random);
        };
        match self.0[by].keeps(one, sample) {
            Verdict::Stays => return None,
            Verdict::Yields if self.is_wanted(one, sample) => return None,
            Verdict::Over => one.trial.end(at),
            Verdict::InVain | Verdict::Yields => one.trial.give_up(at),
        }
        Some(Advice::Normal)
    }

    fn is_wanted(&mut self, one: &mut MappingState, sample: &Sample) -> bool {
        let found = self.0.iter_mut().enumerate().find_map(|(by, pattern)| Some((by, pattern.wants(one, sample)?)));
        found.inspect(|(by, wish)| one.trial.begin(*by, *wish, sample)).is_some()
    }

    /// Gives the mapping the advice that a pattern wants.
    pub fn advise(&mut self, one: &mut MappingState, reach: &mut Reach) {
        let Some((by, wish)) = one.trial.held else { return };
        let is_given = reach.given.is_on(&one.mapping)
            || reach.may_act(one)
                && !reach.only_notes(one, wish.why)
                && reach.given.give(&one.mapping, reach.samples, reach.hand);
        if !is_given {
            one.trial = Trial::default();
            one.rests_until = reach.now + AGAIN;
            return;
        }
        self.0[by].given(one, reach.now);
        if wish.is_alone {
            self.0.iter_mut().for_each(|pattern| pattern.end(&one.id));
        }
    }

    /// Begins to follow what a sample shows.
    pub fn begin(&mut self, one: &mut MappingState, sample: &Sample, reach: &mut Reach) {
        if !one.trial.is_alone() {
            self.0.iter_mut().for_each(|pattern| pattern.begin(one, sample, reach));
        }
    }

    /// Follows all by a step. Returns whether a walk has ended, and whether there is something new to tell.
    pub fn step(&mut self, all: &mut [MappingState], reach: &mut Reach) -> (bool, bool) {
        let mut ended = false;
        for one in all.iter_mut().filter(|one| one.seen.is_some()) {
            self.0.iter_mut().for_each(|pattern| ended |= pattern.step(one, reach));
        }
        let tells = self.0.iter_mut().map(|pattern| pattern.step_all(all, reach));
        (ended, tells.fold(false, |one, other| one | other))
    }

    /// Each learns of a look at a whole mapping.
    pub fn saw(&mut self, id: &Id, new: &[Run], at: Duration) {
        self.0.iter_mut().for_each(|pattern| pattern.saw(id, new, at));
    }

    /// Whether one has plainly stopped.
    pub fn glance(&mut self, all: &mut [MappingState], reach: &mut Reach) -> bool {
        let mut has_stopped = false;
        for one in all {
            self.0.iter_mut().for_each(|pattern| has_stopped |= pattern.glance(one, reach));
        }
        has_stopped
    }

    /// How long all that is followed can be left alone. `None` if nothing is followed.
    pub fn pause(&self, all: &[MappingState], at: Duration) -> Option<Duration> {
        all.iter().flat_map(|one| self.0.iter().filter_map(move |pattern| pattern.pause(&one.id, at))).min()
    }

    /// Whether something may be over in a moment.
    pub fn is_short_lived(&self, all: &[MappingState]) -> bool {
        all.iter().any(|one| self.0.iter().any(|pattern| pattern.is_short_lived(one)))
    }

    /// What was done, in words, and of each whether the engine may do better.
    pub fn tell(&mut self, all: &[MappingState], at: Duration) -> Vec<(String, bool)> {
        self.0.iter_mut().filter_map(|pattern| pattern.tell(all, at)).collect()
    }
}
