//! Which way pays: a trial of each while memory is short, kept where progress is better by a tenth, undone where it is not.
//!
//! *Progress* is the program's user-mode time a second, less what faults bring along. It is looked at in windows: half a second, or
//! three quarters where user time is scarce (it is sampled, a tick at a time). The last windows of the present way are the baseline. A
//! trial changes the way, leaves out what follows at once, and takes windows until the difference is plain. After a verdict the loser
//! waits, three times as long each time it loses; when the program changes its character, all may be tried again, and advice also if what it
//! lost to turns out to give less: the program slowed down by itself meanwhile.
//!
//! Three things bound the harm. A way that halves progress in its first window is undone there. A trial ends after [`TRIAL`]. And
//! switches cost [`Controller::credit`]: whatever a program does, there are at most [`CREDIT`] + 3600 / [`CREDIT_EVERY`] + 2 an hour.
//!
//! What cannot be seen: a walk under advice that takes as much user time and as many faults as the random accesses before it. It is found
//! when the kernel as it is gets its next trial.

use super::look::{Allowed, Decision, Look, Way, Why};
use super::progress::{FAULTS, Measured, Window, apart, pays};
use std::collections::VecDeque;
use std::time::Duration;

/// Bytes a second: refaults are the whole cgroup's, but whoever waits for them reads.
const READ: f64 = 1e6;
/// So long after memory became short, or the engine lost, it is tried where the kernel does not read around misses in vain: a walk, say.
const LATER: Duration = Duration::from_secs(10);
/// And where it reads what is missed alone, by advice of ours or the program's own: a trial takes seconds at a part of the speed, and will not bring as much again.
const AFTER_ADVICE: Duration = Duration::from_secs(30);
/// Looks of trouble before anything is tried.
const TROUBLE: u32 = 3;
/// A window is at least this long,
const SHORTEST: f64 = 0.5;
/// and ends when it has that much user time (ten ticks), or would have had by what was there before,
const ENOUGH: f64 = 0.04;
/// or at this length. With 2 % of a core three windows hold eleven ticks then: enough to see that 15 % is more. What is less plain takes
/// more windows.
const LONGEST: f64 = 0.75;
/// In the first second of a mapping, or where advice has ended that before, reading around in vain for so long is evidence enough: more makes it no
/// plainer.
const EARLIEST: f64 = 0.3;
/// A mapping's first second.
const NEW: Duration = Duration::from_secs(1);
/// Windows that are remembered; as few as this are judged.
const WINDOWS: usize = 12;
const FEWEST: usize = 3;
/// A trial is decided after so many windows, plain or not.
const MOST: usize = 16;
/// Or after this time, if the program stood still meanwhile.
const TRIAL: Duration = Duration::from_secs(30);
/// So long after it lost, a way is tried again; each time three times as long, up to the second.
const WAIT: Duration = Duration::from_secs(60);
/// What was tried and is worse by this factor has lost twice.
const PLAINLY: f64 = 1.5;
/// But advice that pays after all, by so many standard errors, is tried again.
const AFTER_ALL: f64 = 2.25;
const LONGEST_WAIT: Duration = Duration::from_secs(600);
/// A way that the actor could not do so often is not asked for again.
const REFUSALS: u32 = 3;
/// After this long with everything fitting, the kernel has the mappings back.
const FITS: Duration = Duration::from_secs(3);
/// Switches in stock (a trial takes two: there, and back), and the seconds in which another comes.
pub(super) const CREDIT: f64 = 16.0;
pub(super) const CREDIT_EVERY: f64 = 60.0;

/// What is known of a way.
#[derive(Debug, Clone, Copy)]
struct Record {
    lost_at: Duration,
    not_before: Duration,
    wait: Duration,
    refusals: u32,
}

impl Record {
    fn lost(&mut self, at: Duration) {
        self.lost_at = at;
        self.not_before = at + self.wait;
        self.wait = (self.wait * 3).min(LONGEST_WAIT);
    }
}

/// A way on trial: the one that had the mappings before, and its windows.
#[derive(Debug)]
struct Trial {
    from: Way,
    before: VecDeque<Window>,
    /// What was before was in vain beyond doubt, and looked at no longer than that took.
    was_plain: bool,
    until: Duration,
    /// Windows so far.
    seen: usize,
}

/// See the head of this file.
#[derive(Debug)]
pub struct Controller {
    way: Way,
    trial: Option<Trial>,
    records: [Record; 3],
    /// The present way's: the one that is being filled, and the last ones.
    open: Window,
    windows: VecDeque<Window>,
    /// What the program was like since its way was decided, when that was first known well.
    character: Option<Measured>,
    /// What advice gave that has just lost.
    lost_advice: Option<Measured>,
    /// Looks with trouble, less those without.
    trouble: u32,
    at: Option<Duration>,
    /// What comes before is a transient.
    quiet_until: Duration,
    /// Before, nothing is decided but what is plain: a mapping is in its first second.
    new_until: Option<Duration>,
    /// Before, some file's mapping is in its first second: the engine is not tried, whose cache would begin cold with each.
    new_files_until: Duration,
    /// What the kernel read, when it last served mappings without advice, it read around misses.
    reads_around: bool,
    /// Or it read what was missed, and no more.
    reads_singly: bool,
    troubled_since: Option<Duration>,
    fits_since: Option<Duration>,
    /// Leaving the kernel pays for coming back, so that the kernel can be had at any time.
    credit: f64,
}

impl Controller {
    /// The kernel serves.
    pub fn new() -> Self {
        Self {
            way: Way::Kernel,
            trial: None,
            records: [Record { lost_at: Duration::ZERO, not_before: Duration::ZERO, wait: WAIT, refusals: 0 }; 3],
            open: Window::default(),
            windows: VecDeque::with_capacity(WINDOWS + 1),
            character: None,
            lost_advice: None,
            trouble: 0,
            at: None,
            quiet_until: Duration::ZERO,
            new_until: None,
            new_files_until: Duration::ZERO,
            reads_around: false,
            reads_singly: false,
            troubled_since: None,
            fits_since: None,
            credit: CREDIT,
        }
    }

    /// The way until the next look.
    pub fn look(&mut self, look: &Look, allowed: Allowed) -> Decision {
        let length = look.at.saturating_sub(self.at.replace(look.at).unwrap_or(look.at)).as_secs_f64();
        self.credit = (self.credit + length / CREDIT_EVERY).min(CREDIT);
        let why = self.leave(look, allowed).or_else(|| self.judge(look, length, allowed));
        Decision { way: self.way, why }
    }

    /// The program mapped files: what it does in the next second says little, unless that is in vain beyond doubt, and nothing else is decided
    /// meanwhile. But under advice new mappings are served as the others are at once; and a trial goes on: programs that map anew all the time
    /// would never be judged, and are to be judged by what they do.
    pub fn mapped_anew(&mut self) {
        let at = self.at.unwrap_or_default();
        self.new_files_until = at + NEW;
        if self.way == Way::Advised || self.trial.is_some() {
            return;
        }
        if !self.open.in_vain() {
            self.clear();
        }
        self.new_until = Some(at + NEW);
    }

    /// The actor could not do it, and has the mappings as they were. To give them back to the kernel cannot be refused: it is asked
    /// for again at each look.
    pub fn refused(&mut self, way: Way) {
        if way == Way::Kernel {
            return;
        }
        let record = &mut self.records[way as usize];
        record.refusals += 1;
        record.lost(self.at.unwrap_or_default());
        if self.way == way {
            let to = self.trial.take().map_or(Way::Kernel, |trial| trial.from);
            self.switch(to);
        }
    }

    /// What is decided without measuring.
    fn leave(&mut self, look: &Look, allowed: Allowed) -> Option<Why> {
        if let Some(trial) = &mut self.trial
            && !allowed.lets_keep(trial.from)
        {
            trial.from = Way::Kernel;
        }
        let fits_since = self.fits_since.take().unwrap_or(look.at);
        self.fits_since = look.fits.then_some(fits_since);
        let reason = if self.way == Way::Kernel && self.trial.is_none() {
            return None;
        } else if look.fits && look.at.saturating_sub(fits_since) >= FITS {
            self.trial = None;
            self.all_may_try();
            "the files fit into memory"
        } else if !allowed.lets_keep(self.way) {
            "not allowed any more"
        } else if self.trial.as_ref().is_some_and(|trial| look.at > trial.until) {
            self.records[self.way as usize].lost(look.at);
            "the program stood still: nothing to judge by"
        } else {
            return None;
        };
        let to = self.trial.take().map_or(Way::Kernel, |trial| trial.from);
        self.switch(to);
        Some(Why { reason, progress: None })
    }

    fn judge(&mut self, look: &Look, length: f64, allowed: Allowed) -> Option<Why> {
        let was_new = self.new_until.is_some();
        self.new_until = self.new_until.filter(|until| look.at <= *until);
        let is_new = self.new_until.is_some();
        let looks_on = !is_new || self.way == Way::Kernel && self.trial.is_none();
        if !look.short || look.mapped == 0 || look.at <= self.quiet_until || length == 0.0 || !looks_on {
            return None;
        }
        let window = Window::of(look, length);
        let refaulting = look.refaults as f64 > FAULTS * length && look.read as f64 > READ * length;
        let troubled = window.faults > FAULTS * length || refaulting;
        self.trouble = if troubled { (self.trouble + 1).min(2 * TROUBLE) } else { self.trouble.saturating_sub(1) };
        if self.trouble == 0 && self.trial.is_none() {
            self.clear();
            self.troubled_since = None;
            return None;
        }
        let _ = self.troubled_since.get_or_insert(look.at);
        if !troubled && window.user < 0.001 * length {
            return None; // Idle.
        }
        self.open = self.open.plus(window);
        let before = self.trial.as_ref().map(|trial| Measured::of(trial.before.iter())).or(self.character);
        let expected = before.map_or(0.0, |before| before.progress * self.open.length);
        let enough = self.open.length >= SHORTEST && self.open.user.max(expected) >= ENOUGH;
        let full = enough || self.open.length >= LONGEST;
        let is_kernels_trial =
            self.trial.as_ref().is_some_and(|trial| trial.from == Way::Advised) && self.way == Way::Kernel;
        let is_plain_already = (is_new || is_kernels_trial)
            && self.trouble >= TROUBLE
            && self.open.length >= EARLIEST
            && self.open.in_vain()
            && allowed.advised;
        if full || is_plain_already {
            self.windows.push_back(std::mem::take(&mut self.open));
            if self.windows.len() > WINDOWS {
                self.windows.pop_front();
            }
        }
        let first_second_is_over = was_new && !is_new;
        if first_second_is_over && !self.is_plain(allowed) {
            self.clear();
            return None;
        }
        if !is_plain_already && (is_new || !full && !first_second_is_over) {
            return None;
        }
        if self.trial.is_some() { self.judge_trial(look.at, allowed) } else { self.begin_trial(look.at, allowed) }
    }

    fn recent(&self) -> Window {
        self.windows.iter().rev().take(FEWEST).fold(Window::default(), |sum, one| sum.plus(*one))
    }

    /// Whether the evidence is plain: then advice costs nothing to try.
    fn is_plain(&self, allowed: Allowed) -> bool {
        self.way == Way::Kernel && allowed.advised && self.recent().in_vain()
    }

    fn begin_trial(&mut self, at: Duration, allowed: Allowed) -> Option<Why> {
        let recent = self.recent();
        if self.way == Way::Kernel {
            self.reads_around = recent.reads_around();
            self.reads_singly = recent.reads_singly();
        }
        if self.windows.len() < if self.is_plain(allowed) { 1 } else { FEWEST } {
            return None;
        }
        let lately = Measured::of(self.windows.iter().rev().take(FEWEST));
        let was = *self.character.get_or_insert(lately);
        let changed = was.is_unlike(&lately);
        if changed {
            self.character = Some(lately);
            self.windows.drain(..self.windows.len().saturating_sub(FEWEST));
            self.all_may_try();
        } else if self.windows.len() > was.windows {
            self.character = Some(Measured::of(self.windows.iter()));
        }
        // The program had slowed down by itself while advice was on trial: it gave more than what it lost to does now. (Not so the engine:
        // it leaves no page cache behind, and what is slow after it is so by that.)
        if self.lost_advice.is_some_and(|advised| apart(&lately, &advised) >= AFTER_ALL) {
            self.records[Way::Advised as usize].not_before = at;
        }
        self.lost_advice = self.lost_advice.filter(|_| self.windows.len() < FEWEST);
        let may_try = |way: &Way| {
            let record = &self.records[*way as usize];
            let is_early = match *way {
                Way::Kernel => false,
                Way::Advised => !self.reads_around,
                // Its cache begins cold: not in the short life of a program that the kernel serves well.
                Way::Engine => {
                    let since = at.saturating_sub(self.troubled_since.unwrap_or(at).max(record.lost_at));
                    let after = match self.way {
                        Way::Kernel if self.reads_around => Duration::ZERO,
                        Way::Kernel if !self.reads_singly => LATER,
                        _ => AFTER_ADVICE,
                    };
                    since < after || at < self.new_files_until
                }
            };
            *way != self.way && !is_early && allowed.has(*way) && record.refusals < REFUSALS && at >= record.not_before
        };
        let next = [Way::Kernel, Way::Advised, Way::Engine].into_iter().find(may_try)?;
        let progress = changed.then_some((was.progress, lately.progress));
        if self.trouble < TROUBLE {
            return None;
        }
        if self.credit < 2.0 {
            let back = changed && self.way != Way::Kernel;
            return back.then(|| {
                self.switch(Way::Kernel);
                Why { reason: "the program has changed, and there were many switches", progress }
            });
        }
        self.credit -= 2.0;
        let was_plain = next == Way::Advised && self.is_plain(allowed);
        let (from, before) = (self.way, std::mem::take(&mut self.windows));
        self.switch(next);
        self.trial = Some(Trial { from, before, was_plain, until: at + TRIAL, seen: 0 });
        Some(Why { reason: if changed { "on trial: the program has changed" } else { "on trial" }, progress })
    }

    fn judge_trial(&mut self, at: Duration, allowed: Allowed) -> Option<Why> {
        self.trial.as_mut()?.seen += 1;
        let trial = self.trial.as_ref()?;
        let (before, now) = (Measured::of(trial.before.iter()), Measured::of(self.windows.iter()));
        let last = trial.seen >= MOST;
        // The kernel anew, since the program looked like another, by chance perhaps: it was not, and twelve seconds are long at a hundredth.
        let is_in_vain = trial.from == Way::Advised && self.is_plain(allowed);
        let pays = match self.windows.len() {
            _ if is_in_vain => false,
            1 if now.progress + now.error < before.progress / 2.0 => false,
            few if few < FEWEST => return None,
            // Progress before is not known well, and no longer trial makes that better: what is not worse for certain stays.
            _ if last && trial.was_plain => now.progress + now.error.hypot(before.error) >= before.progress,
            _ if self.way > trial.from => pays(&before, &now, last)?,
            _ => !pays(&now, &before, last)?,
        };
        let from = trial.from;
        let loser = &mut self.records[if pays { from } else { self.way } as usize];
        loser.lost(at);
        if !pays && PLAINLY * now.progress < before.progress {
            loser.lost(at);
        }
        self.trial = None;
        self.character = None;
        if !pays {
            // To the kernel what comes back is a new file: it would read around the first hundred misses again, as it had ceased to do.
            let as_it_was = self.way == Way::Engine && from == Way::Kernel && self.reads_singly && allowed.advised;
            if as_it_was {
                self.records[Way::Kernel as usize].lost(at);
            }
            let was_advice = self.way == Way::Advised;
            self.switch(if as_it_was { Way::Advised } else { from });
            self.lost_advice = was_advice.then_some(now);
        }
        let reason = if pays { "pays, and stays" } else { "what was tried does not pay" };
        Some(Why { reason, progress: Some((before.progress, now.progress)) })
    }

    fn switch(&mut self, to: Way) {
        // Readahead that was under way ends in no time; a cache begins cold.
        let transient = if self.way.max(to) == Way::Engine { 1000 } else { 250 };
        self.way = to;
        self.lost_advice = None;
        self.quiet_until = self.quiet_until.max(self.at.unwrap_or_default() + Duration::from_millis(transient));
        self.clear();
    }

    fn clear(&mut self) {
        self.open = Window::default();
        self.windows.clear();
    }

    fn all_may_try(&mut self) {
        let may = self.records.iter_mut().filter(|record| record.refusals == 0);
        may.for_each(|record| (record.not_before, record.wait) = (Duration::ZERO, WAIT));
    }
}
