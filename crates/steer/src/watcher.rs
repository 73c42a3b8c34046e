//! The watcher's loop: sample, classify, ask the patterns, act. It sleeps while nothing is wrong.

use crate::act::Hand;
use crate::given::{Image, Ledger, OurAdvice};
use crate::mapping::MappingState;
use crate::observe::Spent;
use crate::program::Program;
use crate::report::Report;
use crate::run::Run;
use crate::sampler::Samples;
use crate::sampling::{CALM, CALMEST, Cadence, EFFORT, is_wrong};
use crate::settings::Settings;
use std::sync::Arc;
use std::time::Duration;

/// Watches one program and steers its mappings.
#[derive(Debug)]
pub struct Watcher<S, H> {
    program: Program<S, H>,
    cadence: Cadence,
    /// Counts at the last look, and when that was.
    spent: Spent,
    looked: Duration,
    /// When a glance comes next.
    glances_next: Duration,
}

/// The wait for a long look is cut into steps. After each step there is a glance: what has plainly stopped ends the wait.
const STEP: Duration = Duration::from_millis(80);

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
        let (looked, spent) = (samples.now(), samples.spent().unwrap_or_default());
        let program = Program::new(samples, hand, settings, report, OurAdvice::new(ledger, image));
        Watcher { program, cadence: Cadence::default(), spent, looked, glances_next: Duration::ZERO }
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
        Some(self.program.given.may_inherit() || is_wrong(&cost, lasted) || self.program.is_waiting(&cost, lasted))
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
        self.program.tell();
        goes_on
    }

    /// One sampling round. Returns whether another is to follow; `None` once the program is gone.
    fn round(&mut self, nap: &mut impl FnMut(Duration) -> bool) -> Option<bool> {
        let is_soon = self.cadence.is_soon();
        let has_changed = self.wait(nap)?;
        let (cost, lasted) = self.spend()?;
        if self.cadence.is_idle(&cost) && !self.program.is_followed() {
            // What is advised stays so. The first looks after this are only a base, as at the beginning.
            self.cadence.is_watching = false;
            return Some(true);
        }
        self.program.take_back();
        let is_acting = is_wrong(&cost, lasted) || self.program.is_acting();
        if !self.cadence.is_first() && !is_acting && !self.program.is_waiting(&cost, lasted) {
            self.program.let_go();
            return Some(self.cadence.calm(lasted));
        }
        self.cadence.alarm();
        if !self.program.prepare() {
            self.cadence.stop(lasted.max(CALM));
            return Some(is_wrong(&cost, lasted));
        }
        if !self.cadence.is_watching {
            self.cadence.cost = self.program.base();
            self.cadence.base();
            return Some(true);
        }
        self.look_thrice(is_soon, has_changed, nap)?;
        let (last_cost, last) = self.spend()?;
        let is_single = self.program.settings.overrides || self.program.mappings.iter().any(|one| one.trial.is_alone());
        let cost = last_cost.and(&cost);
        if let Some((cost, lasted)) = self.cadence.complete(self.program.looks(), &cost, last + lasted, is_single) {
            let given = self.program.given.count();
            self.program.judge(&cost, lasted, &self.spent, &mut self.cadence);
            self.program.tell();
            if self.program.given.count() > given {
                // Touches from before the advice tell nothing of it.
                self.look(|_, _| {});
                self.spend()?;
            }
        }
        Some(true)
    }

    /// What was spent since the last look, and how long ago that was.
    fn spend(&mut self) -> Option<(Spent, Duration)> {
        let spent = self.program.samples.spent()?;
        let at = self.program.samples.now();
        let found = (spent.since(&self.spent), at.saturating_sub(self.looked));
        (self.spent, self.looked) = (spent, at);
        Some(found)
    }

    /// Waits for the long look. Returns whether touches have plainly changed, and `None` once the program has ended.
    fn wait(&mut self, nap: &mut impl FnMut(Duration) -> bool) -> Option<bool> {
        let until = self.program.samples.now()
            + self.cadence.long(self.program.patterns.is_short_lived(&self.program.mappings), self.program.is_tried());
        let (mut ended, mut has_changed) = (false, false);
        while !has_changed {
            ended |= self.rest(STEP.min(until.saturating_sub(self.program.samples.now())), nap)?;
            if self.program.samples.now() >= until {
                break;
            }
            has_changed = self.glance();
        }
        self.cadence.waited(ended);
        Some(has_changed)
    }

    /// Sleeps, and meanwhile follows what is followed. Returns `None` once the program has ended, else whether a walk has ended.
    fn rest(&mut self, time: Duration, nap: &mut impl FnMut(Duration) -> bool) -> Option<bool> {
        let until = self.program.samples.now() + time;
        let mut ended = false;
        loop {
            let at = self.program.samples.now();
            let left = until.saturating_sub(at);
            if left.is_zero() {
                return Some(ended);
            }
            let pause = self.program.patterns.pause(&self.program.mappings, at).unwrap_or(left);
            if !nap(pause.min(left)) {
                return None;
            }
            let (has_ended, has_news) = self.program.reach(|patterns, all, reach| patterns.step(all, reach));
            ended |= has_ended;
            if has_news {
                self.program.tell();
            }
        }
    }

    /// Whether what a pattern was seen to do has plainly stopped. Glances cost no more than looks.
    fn glance(&mut self) -> bool {
        let spent = self.program.samples.processor_time();
        if self.program.samples.now() < self.glances_next {
            return false;
        }
        let has_changed = self.program.reach(|patterns, all, reach| patterns.glance(all, reach));
        self.glances_next = self.program.samples.now() + (self.program.samples.processor_time() - spent) * EFFORT;
        has_changed
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
        self.cadence.cost = self.program.look(keep);
    }

    /// Takes back all advice. From outside this may take a moment: not every thread can be stopped at every time. The report names
    /// advice that could not be taken back.
    pub fn undo(&mut self) {
        self.program.undo();
    }
}
