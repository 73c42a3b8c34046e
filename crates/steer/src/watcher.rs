//! The watcher's loop: sample, classify, ask the patterns, act. It sleeps while nothing is wrong.

use crate::PAGE;
use crate::act::{Advice, Hand};
use crate::given::{Given, Image, Ledger, OurAdvice};
use crate::mapping::MappingState;
use crate::observe::{Seen, Spent, Waited};
use crate::patterns::{Patterns, Reach, Trial};
use crate::report::Report;
use crate::run::Run;
use crate::sampler::Samples;
use crate::sampling::{CALM, CALMEST, Cadence, EFFORT, Sample, Whole, fills, is_wrong};
use std::sync::Arc;
use std::time::Duration;

/// Permissions of a watcher.
#[derive(Debug, Clone, Copy, Default)]
pub struct Settings {
    /// Advice of the program's own that is plainly wrong may be replaced.
    pub overrides: bool,
    /// Only loads from slow storage are helped.
    pub only_loads: bool,
    /// A dry run: nothing is done, and the report says what would be.
    pub is_dry: bool,
    /// The processes descend from the calling one.
    pub descends: bool,
}

/// Watches one program and steers its mappings.
#[derive(Debug)]
pub struct Watcher<S, H> {
    settings: Settings,
    samples: S,
    hand: H,
    patterns: Patterns,
    mappings: Vec<MappingState>,
    given: OurAdvice,
    cadence: Cadence,
    /// Counts at the last look, and when that was.
    spent: Spent,
    looked: Duration,
    lists_next: Duration,
    /// When a glance comes next.
    glances_next: Duration,
    /// Pages of files that fit into memory, and when that was read.
    available: u64,
    asked: Duration,
    report: Arc<Report>,
    /// Things that would be done, in a dry run. Also advice that could not be taken back.
    notes: Vec<String>,
}

/// The wait for a long look is cut into steps. After each step there is a glance: what has plainly stopped ends the wait.
const STEP: Duration = Duration::from_millis(80);
/// Mappings are listed anew after so long, and advice of ours is looked for.
const LISTS: Duration = Duration::from_secs(1);
/// Memory is asked for after so long.
const ASKS: Duration = Duration::from_millis(500);
/// For how long the watcher tries to take advice back at its end.
const UNDONE: Duration = Duration::from_secs(3);
/// Minor faults in a second below which nothing is slow. A fault that waits for a page that is being read ahead is a minor one.
const MINOR_FAULTS: f64 = 100.0;

impl<S: Samples, H: Hand> Watcher<S, H> {
    /// Watches the program of `samples`, whose mappings `hand` can reach. `ledger` is shared by the watchers of its family, in which `image` tells
    /// its program.
    pub fn new(
        mut samples: S,
        hand: H,
        settings: Settings,
        report: Arc<Report>,
        ledger: Ledger,
        image: Image,
    ) -> Watcher<S, H> {
        let at = samples.now();
        Watcher {
            settings,
            spent: samples.spent().unwrap_or_default(),
            samples,
            hand,
            patterns: Patterns::new(at),
            mappings: Vec::new(),
            given: OurAdvice::new(ledger, image),
            cadence: Cadence::default(),
            looked: at,
            lists_next: Duration::ZERO,
            glances_next: Duration::ZERO,
            available: 0,
            asked: Duration::ZERO,
            report,
            notes: Vec::new(),
        }
    }

    /// Watches until the program is gone, or `nap` returns `false`. `nap` sleeps for the given time.
    pub fn run(&mut self, mut nap: impl FnMut(Duration) -> bool) {
        // A program that has just mapped a file is likely to load it.
        let mut calm = CALM / 4;
        while nap(calm) {
            calm = match self.is_called() {
                None => return,
                Some(false) => (calm + CALM / 10).min(CALMEST),
                Some(true) if self.serve(&mut nap) => CALM,
                Some(true) => return,
            };
        }
    }

    /// Looks at what faults have cost since the last look. Returns whether [`serve`](Self::serve) has something to do; `None` once the
    /// process is gone.
    pub fn is_called(&mut self) -> Option<bool> {
        let (cost, lasted) = self.spend()?;
        Some(self.given.may_inherit() || is_wrong(&cost, lasted) || self.is_waiting(&cost, lasted))
    }

    /// Watches as long as something is wrong. Returns `false` once the program is gone, or `nap` has returned `false`.
    pub fn serve(&mut self, mut nap: impl FnMut(Duration) -> bool) -> bool {
        self.cadence.begin();
        let goes_on = loop {
            match self.round(&mut nap) {
                Some(true) => {}
                ended => break ended.is_some(),
            }
        };
        // A load may end in the middle of a round: the last report includes it.
        self.tell();
        goes_on
    }

    /// One sampling round. Returns whether another is to follow; `None` once the program is gone.
    fn round(&mut self, nap: &mut impl FnMut(Duration) -> bool) -> Option<bool> {
        let is_soon = self.cadence.is_soon();
        let has_changed = self.wait(nap)?;
        let (cost, lasted) = self.spend()?;
        if self.cadence.is_idle(&cost) && self.patterns.pause(&self.mappings, self.looked).is_none() {
            // What is advised stays so. The first looks after this are only a base, as at the beginning.
            self.cadence.is_watching = false;
            return Some(true);
        }
        self.take_back();
        if !self.cadence.is_first() && self.is_calm(&cost, lasted) {
            return Some(self.calm(lasted));
        }
        self.cadence.alarm();
        if !self.prepare() {
            self.cadence.stop(lasted.max(CALM));
            return Some(is_wrong(&cost, lasted));
        }
        if !self.cadence.is_watching {
            self.begin();
            return Some(true);
        }
        self.look_thrice(is_soon, has_changed, nap)?;
        let (last_cost, last) = self.spend()?;
        let is_single = self.settings.overrides || self.mappings.iter().any(|one| one.trial.is_alone());
        let cost = last_cost.and(&cost);
        if let Some((cost, lasted)) = self.cadence.complete(&mut self.mappings, &cost, last + lasted, is_single) {
            let given = self.given.count();
            self.judge(&cost, lasted);
            self.tell();
            if self.given.count() > given {
                // Touches from before the advice tell nothing of it.
                self.look(|_, _| {});
                self.spend()?;
            }
        }
        Some(true)
    }

    /// What was spent since the last look, and how long ago that was.
    fn spend(&mut self) -> Option<(Spent, Duration)> {
        let spent = self.samples.spent()?;
        let at = self.samples.now();
        let found = (spent.since(&self.spent), at.saturating_sub(self.looked));
        (self.spent, self.looked) = (spent, at);
        Some(found)
    }

    /// Waits for the long look. Returns whether touches have plainly changed, and `None` once the program has ended.
    fn wait(&mut self, nap: &mut impl FnMut(Duration) -> bool) -> Option<bool> {
        let until = self.samples.now() + self.cadence.long(self.patterns.is_short_lived(&self.mappings));
        let (mut ended, mut has_changed) = (false, false);
        while !has_changed {
            ended |= self.rest(STEP.min(until.saturating_sub(self.samples.now())), nap)?;
            if self.samples.now() >= until {
                break;
            }
            has_changed = self.glance();
        }
        self.cadence.waited(ended);
        Some(has_changed)
    }

    /// Sleeps, and meanwhile follows what is followed. Returns `None` once the program has ended, else whether a walk has ended.
    fn rest(&mut self, time: Duration, nap: &mut impl FnMut(Duration) -> bool) -> Option<bool> {
        let until = self.samples.now() + time;
        let mut ended = false;
        loop {
            let at = self.samples.now();
            let left = until.saturating_sub(at);
            if left.is_zero() {
                return Some(ended);
            }
            let pause = self.patterns.pause(&self.mappings, at).unwrap_or(left);
            if !nap(pause.min(left)) {
                return None;
            }
            let (has_ended, has_news) = self.reach(|patterns, all, reach| patterns.step(all, reach));
            ended |= has_ended;
            if has_news {
                self.tell();
            }
        }
    }

    /// Whether what a pattern was seen to do has plainly stopped. Glances cost no more than looks.
    fn glance(&mut self) -> bool {
        let spent = self.samples.processor_time();
        if self.samples.now() < self.glances_next {
            return false;
        }
        let has_changed = self.reach(|patterns, all, reach| patterns.glance(all, reach));
        self.glances_next = self.samples.now() + (self.samples.processor_time() - spent) * EFFORT;
        has_changed
    }

    /// Whether nothing is wrong, and nothing is done that would have to be looked after.
    fn is_calm(&mut self, cost: &Spent, lasted: Duration) -> bool {
        let is_acting = self.given.count() > 0
            || self.mappings.iter().any(|one| one.trial.is_on())
            || self.patterns.pause(&self.mappings, self.looked).is_some();
        !is_wrong(cost, lasted) && !is_acting && !self.is_waiting(cost, lasted)
    }

    /// Whether threads wait for pages that are being read ahead, and readers could help.
    fn is_waiting(&mut self, cost: &Spent, lasted: Duration) -> bool {
        cost.minor_faults as f64 > MINOR_FAULTS * lasted.as_secs_f64()
            && self.hand.readers().is_some()
            && self.samples.is_blocked()
    }

    /// Lets go of what was looked at. Returns whether to go on all the same for a time.
    fn calm(&mut self, lasted: Duration) -> bool {
        self.mappings.iter_mut().for_each(MappingState::forget);
        if let Some(readers) = self.hand.readers() {
            // Nobody else could unmount their file systems, or get their space back.
            readers.keep(&|_, _| false);
        }
        self.cadence.calm(lasted)
    }

    /// The first look is only a base for the next: the pages mapped and the time waited until now.
    fn begin(&mut self) {
        self.mappings.iter_mut().for_each(MappingState::forget);
        self.look(|_, _| {});
        // Only readers need the waits.
        if self.hand.readers().is_some() {
            self.samples.waited();
        }
        self.cadence.base();
    }

    fn look_thrice(&mut self, is_soon: bool, has_changed: bool, nap: &mut impl FnMut(Duration) -> bool) -> Option<()> {
        if !is_soon {
            // Touches from before the change would hide the walk that has begun.
            self.look(|one, new| one.add_long(new, !has_changed));
        }
        self.rest(self.cadence.short, nap)?;
        self.look(|one, new| one.looks.first = one.merged(new));
        self.rest(self.cadence.short, nap)?;
        self.look(|one, new| one.looks.second = new);
        Some(())
    }

    /// Looks at all mappings, and hands the new pages of each to `keep`.
    fn look(&mut self, keep: impl Fn(&mut MappingState, Vec<Run>)) {
        let (began, spent) = (self.samples.now(), self.samples.processor_time());
        for one in &mut self.mappings {
            let all = 0..one.mapping.pages;
            let new = if let Some(seen) = &mut one.seen {
                let new = self.samples.pages(seen, all);
                self.patterns.saw(&one.id, &new, began);
                new
            } else {
                let seen = one.seen.insert(Seen::nothing(one.mapping.at.start, one.mapping.pages));
                self.samples.pages(seen, all);
                Vec::new()
            };
            keep(one, new);
        }
        self.cadence.cost = self.samples.processor_time() - spent;
    }

    /// Learns what is mapped and how much memory there is. `false` where there is nothing to look at.
    fn prepare(&mut self) -> bool {
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
        let found = self.samples.mappings();
        let mut before = std::mem::take(&mut self.mappings);
        let known: Vec<u64> = before.iter().map(|one| one.mapping.at.start).collect();
        for mapping in found {
            if let Some(index) = before.iter().position(|one| one.is_of(&mapping)) {
                let mut one = before.swap_remove(index);
                one.renew(mapping.pages);
                self.mappings.push(one);
            } else {
                let readahead = self.samples.readahead(mapping.device);
                self.mappings.push(MappingState::new(readahead, mapping));
            }
        }
        self.given.find(&known, &mut self.samples);
        let mappings = &self.mappings;
        if let Some(readers) = self.hand.readers() {
            let is_of = |one: &MappingState, file| (one.mapping.device, one.mapping.inode) == file;
            readers.keep(&|device, inode| mappings.iter().any(|one| is_of(one, (device, inode))));
        }
    }

    /// Classifies what the looks have shown, and asks the patterns.
    fn judge(&mut self, cost: &Spent, lasted: Duration) {
        let at = self.samples.now();
        let touched = self.mappings.iter().map(|one| one.looks.windows()).sum();
        let waited = if self.hand.readers().is_some() { self.samples.waited() } else { Waited::default() };
        let mut whole = Whole { at, lasted, cost: *cost, waited, touched, ..Whole::default() };
        let mut samples: Vec<Sample> = self.mappings.iter_mut().map(|one| Sample::of(one, whole)).collect();
        self.reach(|patterns, all, reach| {
            all.iter_mut().zip(&mut samples).for_each(|(one, sample)| patterns.learn(one, sample, reach));
        });
        let windows: u64 = samples.iter().map(|sample| sample.windows).sum();
        self.cadence.adapt(&samples, windows, lasted);
        if self.settings.only_loads {
            return;
        }
        let (extent, read) = (samples.iter().map(|sample| sample.looks.extent()).sum(), cost.read_bytes / PAGE);
        whole.is_short = extent > self.available;
        whole.fills = fills(self.available, extent, self.spent.read_bytes / PAGE, read, lasted);
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
    fn reach<T>(&mut self, ask: impl FnOnce(&mut Patterns, &mut [MappingState], &mut Reach) -> T) -> T {
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
    fn take_back(&mut self) -> bool {
        let mappings = &self.mappings;
        let is_wanted =
            |given: &Given| mappings.iter().any(|one| one.trial.is_on() && given.within(&one.mapping).is_some());
        self.given.take_back(is_wanted, &mut self.samples, &mut self.hand)
    }

    /// Renews the report.
    fn tell(&mut self) {
        let done = self.patterns.tell(&self.mappings, self.samples.now());
        let may_be_cached = done.iter().any(|(_, may_be_cached)| *may_be_cached);
        let mut words: Vec<String> =
            done.into_iter().map(|(words, _)| words).chain(self.notes.iter().cloned()).collect();
        if may_be_cached {
            let mapped: u64 = self.mappings.iter().map(|one| one.mapping.bytes()).sum();
            let size = (self.available * PAGE * 3 / 4).min(mapped) >> 20;
            words.push(format!("--cache {size}MiB may serve it faster"));
        }
        if !words.is_empty() {
            self.report.set(&words.join("; "));
        }
    }
}
