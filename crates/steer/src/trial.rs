//! MADV_RANDOM on trial: the advice that one mapping has of ours. One pattern at a time is in charge of it.

use crate::sampling::Sample;
use std::time::Duration;

/// The advice of a mapping, and what is known of its use.
#[derive(Debug, Default)]
pub struct Trial {
    /// The place of the pattern in charge in the list, and what it wants the advice for. `None`: there is no advice of ours.
    pub held: Option<(usize, Wish)>,
    /// The mapping is left to the kernel until then: advice did not pay, or has just ended, or single touches showed nothing.
    rests_until: Option<Duration>,
    /// How long it rests after advice that did not pay: doubled each time.
    rest: Duration,
    /// Rates without advice, and under it.
    pub before: Rate,
    pub now: Rate,
    /// When the pattern in charge began.
    since: Duration,
    /// Whether storage was slow then: it gains nothing by reading less.
    is_slow: bool,
}

/// What a pattern wants MADV_RANDOM for.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Wish {
    /// What was seen, in words.
    pub why: &'static str,
    /// Whether meanwhile no other pattern is followed in this mapping.
    pub is_alone: bool,
}

/// What a pattern in charge makes of a sample. After all but the first it is in charge no longer.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Verdict {
    /// The advice stays.
    Stays,
    /// The pattern has ended.
    Over,
    /// The advice does not pay.
    InVain,
    /// The advice stays if another pattern wants it; else it does not pay.
    Yields,
}

/// Advice that does not pay shows so after this time.
pub const TRIAL: Duration = Duration::from_millis(500);
/// A pattern that is not seen for so long has ended.
pub const PAUSE: Duration = Duration::from_millis(300);
const FIRST_REST: Duration = Duration::from_secs(2);
const LONGEST_REST: Duration = Duration::from_secs(64);

impl Trial {
    /// The pattern at this place of the list is in charge, for what the sample shows.
    pub fn begin(&mut self, by: usize, wish: Wish, sample: &Sample) {
        self.held = Some((by, wish));
        (self.since, self.is_slow, self.now) = (sample.whole.at, sample.whole.is_slow, Rate::default());
    }

    /// Whether the advice is so new that it may still do harm.
    pub fn is_new(&self, at: Duration) -> bool {
        self.is_on() && at < self.since + TRIAL
    }

    /// Whether the mapping has advice of ours.
    pub fn is_on(&self) -> bool {
        self.held.is_some()
    }

    /// Whether it has for this.
    pub fn is_for(&self, wish: Wish) -> bool {
        self.held.is_some_and(|(_, held)| held == wish)
    }

    /// Whether it has, for a pattern that is alone.
    pub fn is_alone(&self) -> bool {
        self.held.is_some_and(|(_, wish)| wish.is_alone)
    }

    /// Whether it is left to the kernel for a time.
    pub fn is_resting(&self) -> bool {
        self.rests_until.is_some()
    }

    /// Whether advice may be given now. Faults under advice that has ended are not a new pattern's.
    pub fn is_free(&mut self, at: Duration) -> bool {
        if self.rests_until.is_some_and(|until| until <= at) {
            (self.rests_until, self.before) = (None, Rate::default());
        }
        self.rests_until.is_none()
    }

    /// Ends the advice: the pattern has ended.
    pub fn end(&mut self, at: Duration) {
        (self.held, self.rests_until) = (None, Some(at + PAUSE));
    }

    /// Ends the advice: it does not pay. The rest is twice as long each time, and longer where storage is slow: there is less to gain, and a trial
    /// takes longer.
    pub fn give_up(&mut self, at: Duration) {
        let first = if self.is_slow { FIRST_REST * 4 } else { FIRST_REST };
        self.rest = (self.rest * 2).clamp(first, LONGEST_REST);
        (self.held, self.rests_until) = (None, Some(at + self.rest));
    }

    /// It has paid: if it does not some day, the rest is a short one again.
    pub fn has_paid(&mut self) {
        self.rest = Duration::ZERO;
    }

    /// Touches a second, before the advice and now.
    pub fn progress(&self) -> (f64, f64) {
        (self.before.touches(), self.now.touches())
    }

    /// Whether the advice plainly does harm: what is counted falls by a third, and what may be chance.
    pub fn harms(&self, rates: (f64, f64)) -> bool {
        self.falls(rates, 2.0 / 3.0)
    }

    /// Whether what is counted falls to a part of what it was, and what may be chance.
    pub fn falls(&self, (before, now): (f64, f64), to: f64) -> bool {
        now < before * (to - self.before.chance().hypot(self.now.chance()))
    }

    /// Whether the advice pays: what is counted rises by a tenth, or, where `are_single`, does not fall but by what may be chance, while half as much is
    /// read for each window. Slow storage gains nothing by reading less.
    pub fn pays(&self, (before, now): (f64, f64), are_single: bool) -> bool {
        let least = 0.97 - self.before.chance().hypot(self.now.chance());
        let reads_less = are_single && !self.is_slow;
        now >= before * 1.1 || reads_less && now >= before * least && self.now.price() * 2.0 <= self.before.price()
    }
}

/// Windows touched, faults, pages read, pages touched and pieces that they lie in, in a time.
#[derive(Debug, Default, Clone, Copy, PartialEq)]
pub struct Rate {
    windows: f64,
    faults: f64,
    read: f64,
    pages: f64,
    pieces: f64,
    seconds: f64,
}

impl Rate {
    pub fn and(self, sample: &Sample) -> Rate {
        // Older samples count less: after a second the sums are halved.
        let part = if self.seconds > 1.0 { 0.5 } else { 1.0 };
        let Sample { whole, share, touched, .. } = sample;
        Rate {
            windows: self.windows * part + sample.windows as f64,
            faults: self.faults * part + sample.faults() as f64 * share,
            read: self.read * part + whole.read as f64 * share,
            pages: self.pages * part + touched.0,
            pieces: self.pieces * part + touched.1,
            seconds: self.seconds * part + whole.lasted.as_secs_f64(),
        }
    }

    /// Pages of a piece. Under MADV_RANDOM each is a fault; pages beyond that were in memory, and the kernel has mapped them around a touch.
    pub fn piece(&self) -> f64 {
        (self.pages.min(self.faults) / self.pieces.max(1.0)).max(1.0)
    }

    /// Faults a second: each is a touch, where pages are mapped one by one.
    pub fn touches(&self) -> f64 {
        self.faults / self.seconds.max(1e-3)
    }

    /// Windows a second.
    pub fn places(&self) -> f64 {
        self.windows / self.seconds.max(1e-3)
    }

    /// How far a rate may be off by chance, as a part of it: touches come as they like.
    fn chance(&self) -> f64 {
        1.0 / self.faults.max(1.0).sqrt()
    }

    /// Pages read for each window.
    pub fn price(&self) -> f64 {
        self.read / self.windows.max(1.0)
    }
}
