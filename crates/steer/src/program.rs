//! The program that is watched, with all that is known of it: its mappings, what the patterns make of them, and what is done.

use crate::PAGE;
use crate::act::{Advice, Hand};
use crate::given::{Given, OurAdvice};
use crate::mapping::{MappingState, listed};
use crate::observe::{Spent, Waited};
use crate::patterns::{Patterns, Reach};
use crate::report::Report;
use crate::run::Run;
use crate::sampler::Samples;
use crate::sampling::{Cadence, EFFORT, Looks, Sample, Whole, fills, is_slow, pages_read};
use crate::settings::Settings;
use crate::trial::Trial;
use std::sync::Arc;
use std::time::Duration;

/// One program, and what steers it.
#[derive(Debug)]
pub struct Program<S, H> {
    pub settings: Settings,
    pub samples: S,
    hand: H,
    pub patterns: Patterns,
    pub mappings: Vec<MappingState>,
    pub given: OurAdvice,
    lists_next: Duration,
    /// Pages of files that fit into memory, and when that was read.
    available: u64,
    asked: Duration,
    report: Arc<Report>,
    /// Things that would be done, in a dry run. Also advice that could not be taken back.
    notes: Vec<String>,
}

/// Mappings are listed anew after so long, and advice of ours is looked for.
const LISTS: Duration = Duration::from_secs(1);
/// Memory is asked for after so long.
const ASKS: Duration = Duration::from_millis(500);
/// For how long it is tried to take advice back at the end.
const UNDONE: Duration = Duration::from_secs(3);
/// Minor faults in a second below which nothing is slow. A fault that waits for a page that is being read ahead is a minor one.
const MINOR_FAULTS: f64 = 100.0;

impl<S: Samples, H: Hand> Program<S, H> {
    pub fn new(samples: S, hand: H, settings: Settings, report: Arc<Report>, given: OurAdvice) -> Program<S, H> {
        Program {
            settings,
            patterns: Patterns::new(samples.now()),
            samples,
            hand,
            mappings: Vec::new(),
            given,
            lists_next: Duration::ZERO,
            available: 0,
            asked: Duration::ZERO,
            report,
            notes: Vec::new(),
        }
    }

    /// Whether a pattern follows something.
    pub fn is_followed(&self) -> bool {
        self.patterns.pause(&self.mappings, self.asked).is_some()
    }

    /// Whether something is done that has to be looked after.
    pub fn is_acting(&self) -> bool {
        self.given.count() > 0 || self.mappings.iter().any(|one| one.trial.is_on()) || self.is_followed()
    }

    /// Whether threads wait for pages that are being read ahead, and readers could help.
    pub fn is_waiting(&mut self, cost: &Spent, lasted: Duration) -> bool {
        cost.minor_faults as f64 > MINOR_FAULTS * lasted.as_secs_f64()
            && self.hand.readers().is_some()
            && self.samples.is_blocked()
    }

    /// Lets go of what was looked at.
    pub fn let_go(&mut self) {
        self.mappings.iter_mut().for_each(MappingState::forget);
        if let Some(readers) = self.hand.readers() {
            // Nobody else could unmount their file systems, or get their space back.
            readers.keep(&|_, _| false);
        }
    }

    /// The first look is only a base for the next: the pages mapped and the time waited until now. Returns what it cost.
    pub fn base(&mut self) -> Duration {
        self.mappings.iter_mut().for_each(MappingState::forget);
        let cost = self.look(|_, _| {});
        // Only readers need the waits.
        if self.hand.readers().is_some() {
            self.samples.waited();
        }
        cost
    }

    /// Looks at all mappings, and hands the new pages of each to `keep`. Returns what that cost of a processor.
    pub fn look(&mut self, keep: impl Fn(&mut MappingState, Vec<Run>)) -> Duration {
        let (began, spent) = (self.samples.now(), self.samples.processor_time());
        for one in &mut self.mappings {
            let new = one.look(&mut self.samples);
            if let Some(new) = &new {
                self.patterns.saw(&one.id, new, began);
            }
            keep(one, new.unwrap_or_default());
        }
        self.samples.processor_time() - spent
    }

    /// Whether new advice may do harm.
    pub fn is_tried(&self) -> bool {
        let at = self.samples.now();
        self.mappings.iter().any(|one| one.trial.is_new(at))
    }

    /// What the looks of a round have shown.
    pub fn looks(&mut self) -> Vec<&mut Looks> {
        self.mappings.iter_mut().map(|one| &mut one.looks).collect()
    }

    /// Learns what is mapped and how much memory there is. `false` where there is nothing to look at.
    pub fn prepare(&mut self) -> bool {
        if self.samples.now() >= self.lists_next {
            let spent = self.samples.processor_time();
            self.list();
            self.lists_next = self.samples.now() + LISTS.max((self.samples.processor_time() - spent) * EFFORT);
        }
        if self.asked.is_zero() || self.samples.now() - self.asked > ASKS {
            self.asked = self.samples.now();
            self.available = self.samples.for_files() / PAGE;
        }
        self.samples.has_pages() && !self.mappings.is_empty()
    }

    fn list(&mut self) {
        let known = self.mappings.iter().map(|one| one.mapping.at.start).collect::<Vec<u64>>();
        self.mappings = listed(std::mem::take(&mut self.mappings), &mut self.samples);
        self.given.find(&known, &mut self.samples);
        let mappings = &self.mappings;
        if let Some(readers) = self.hand.readers() {
            let is_of = |one: &MappingState, file| (one.mapping.device, one.mapping.inode) == file;
            readers.keep(&|device, inode| mappings.iter().any(|one| is_of(one, (device, inode))));
        }
    }

    /// Classifies what the looks have shown, and asks the patterns. The round has `cost` this and has `lasted` so long; `spent`: since the program
    /// began.
    pub fn judge(&mut self, cost: &Spent, lasted: Duration, spent: &Spent, cadence: &mut Cadence) {
        let at = self.samples.now();
        let touched = self.mappings.iter().map(|one| one.looks.windows()).sum();
        let waited = if self.hand.readers().is_some() { self.samples.waited() } else { Waited::default() };
        let mut whole = Whole { at, lasted, cost: *cost, waited, touched, ..Whole::default() };
        let mut samples: Vec<Sample> = self.mappings.iter_mut().map(|one| one.sample(whole)).collect();
        self.reach_at(at, |patterns, all, reach| {
            all.iter_mut().zip(&mut samples).for_each(|(one, sample)| patterns.learn(one, sample, reach));
        });
        let windows: u64 = samples.iter().map(|sample| sample.windows).sum();
        cadence.adapt(&samples, windows, lasted);
        if self.settings.only_loads {
            return;
        }
        let extent = samples.iter().map(|sample| sample.looks.extent()).sum();
        whole.is_short = extent > self.available;
        let readahead = self.mappings.iter().map(|one| one.readahead).max().unwrap_or(0);
        let read = |cost| pages_read(cost, readahead);
        whole.read = read(cost);
        whole.is_slow = is_slow(whole.read, lasted);
        whole.fills = fills(self.available, extent, read(spent), whole.read, lasted);
        for (index, sample) in samples.iter_mut().enumerate().filter(|(_, sample)| !sample.is_loaded) {
            (sample.whole, sample.share) = (whole, sample.windows as f64 / windows.max(1) as f64);
            self.ask(index, sample);
        }
    }

    /// Asks the patterns what a sample of a mapping shows, and what to do.
    fn ask(&mut self, index: usize, sample: &Sample) {
        let is_explained = sample.goes_backward && sample.shape.is_backward();
        let one = &mut self.mappings[index];
        match if is_explained { None } else { self.patterns.judge(one, sample) } {
            Some(Advice::Normal) => {
                self.take_back();
            }
            Some(Advice::Random) => self.reach_at(sample.whole.at, |patterns, all, reach| {
                patterns.advise(&mut all[index], reach);
            }),
            None => {}
        }
        self.reach_at(sample.whole.at, |patterns, all, reach| patterns.begin(&mut all[index], sample, reach));
    }

    /// Gives the patterns what they can look at and do, now.
    pub fn reach<T>(&mut self, ask: impl FnOnce(&mut Patterns, &mut [MappingState], &mut Reach) -> T) -> T {
        self.reach_at(self.samples.now(), ask)
    }

    fn reach_at<T>(
        &mut self,
        now: Duration,
        ask: impl FnOnce(&mut Patterns, &mut [MappingState], &mut Reach) -> T,
    ) -> T {
        let mut reach = Reach {
            samples: &mut self.samples,
            hand: &mut self.hand,
            given: &mut self.given,
            notes: &mut self.notes,
            settings: self.settings,
            available: self.available,
            now,
            needs_readers: false,
        };
        ask(&mut self.patterns, &mut self.mappings, &mut reach)
    }

    /// Takes back all advice. From outside this may take a moment: not every thread can be stopped at every time. The report names
    /// advice that could not be taken back.
    pub fn undo(&mut self) {
        self.mappings.iter_mut().for_each(|one| one.trial = Trial::default());
        let until = self.samples.now() + UNDONE;
        while !self.take_back() && self.samples.now() < until {
            self.samples.sleep(UNDONE / 300);
        }
        let bytes = self.given.bytes();
        if bytes > 0 {
            let line = format!("MADV_RANDOM stays on {} MiB: no thread could be stopped to take it back", bytes >> 20);
            self.notes.push(line);
        }
        self.tell();
    }

    /// Takes back advice that no pattern asks for any more. Returns whether none of that is left.
    pub fn take_back(&mut self) -> bool {
        let mappings = &self.mappings;
        let is_wanted =
            |given: &Given| mappings.iter().any(|one| one.trial.is_on() && given.within(&one.mapping).is_some());
        self.given.take_back(is_wanted, &mut self.samples, &mut self.hand)
    }

    /// Renews the report.
    pub fn tell(&mut self) {
        let done = self.patterns.tell(&self.mappings, self.samples.now());
        let mapped: u64 = self.mappings.iter().map(|one| one.mapping.bytes()).sum();
        self.report.tell(&done, &self.notes, (self.available * PAGE * 3 / 4).min(mapped));
    }
}
