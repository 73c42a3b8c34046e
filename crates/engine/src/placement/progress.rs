//! Progress: what the program achieves in a second, as far as its user-mode time shows it, and when that of one way is better than
//! that of another.

use super::look::Look;

/// User-mode time that a fault brings along without any progress, in seconds: refilling what the kernel took from caches and predictors.
/// Measured with numpy at a quarter under `MADV_RANDOM`: 20,000 major faults a second, and user time up by 2 % of a core while it
/// got slower. A minor fault is shorter and displaces less. A miss is a signal and several system calls, and the handler between them:
/// measured with a binary search and Kyoto Cabinet, whose user time in memory is known, 2.2 µs (Xeon).
const MAJOR_FAULT: f64 = 1e-6;
const MINOR_FAULT: f64 = 0.3e-6;
const MISS: f64 = 2.2e-6;
/// Other processors and programs differ from that by such a part, one standard error.
const DIFFERS: f64 = 0.25;
/// User time is sampled this often where the kernel's `HZ` is 250: so many seconds hang on one hit of chance.
const TICK: f64 = 0.004;

/// Faults, or pages refaulted, a second, below which nobody waits for memory to speak of.
pub(super) const FAULTS: f64 = 100.0;
/// A way must be better than a simpler one by this factor.
const PAYS: f64 = 1.1;

/// Sums over a window, times in seconds.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Window {
    pub(super) length: f64,
    pub(super) user: f64,
    /// The part of `user` that faults brought along.
    brought: f64,
    /// Major ones and misses.
    pub(super) faults: f64,
    major: f64,
    /// Bytes: read; read around major faults, at most; mapped by faults, at most.
    read: f64,
    around: f64,
    touched: f64,
}

/// Bytes for each major fault from which on the kernel reads around them.
const AROUND: f64 = 16384.0;
/// Bytes that the kernel maps around a fault (`fault_around_bytes`).
const MAPPED: f64 = 65536.0;

impl Window {
    pub(super) fn of(look: &Look, length: f64) -> Self {
        let [major, minor, misses] = [look.major_faults, look.minor_faults, look.misses].map(|count| count as f64);
        let brought = major * MAJOR_FAULT + minor * MINOR_FAULT + misses * MISS;
        Self {
            length,
            user: look.user.as_secs_f64(),
            brought,
            faults: major + misses,
            major,
            read: look.read as f64,
            around: major * look.around as f64,
            touched: (major + minor) * MAPPED,
        }
    }

    pub(super) fn plus(self, other: Self) -> Self {
        Self {
            length: self.length + other.length,
            user: self.user + other.user,
            brought: self.brought + other.brought,
            faults: self.faults + other.faults,
            major: self.major + other.major,
            read: self.read + other.read,
            around: self.around + other.around,
            touched: self.touched + other.touched,
        }
    }

    /// Whether what was read is what the kernel reads around misses. A walk reads far more for each: it misses when it begins, and is
    /// read ahead of from there on. With advice of the program's own it is a page.
    pub(super) fn reads_around(&self) -> bool {
        self.read <= 1.5 * self.around && self.read > AROUND * self.major
    }

    /// Whether what was read is what was missed: so the kernel serves a file of which it has seen a hundred misses more than hits.
    pub(super) fn reads_singly(&self) -> bool {
        self.read <= AROUND * self.major
    }

    /// Whether the most of it was not touched, beyond doubt.
    pub(super) fn in_vain(&self) -> bool {
        self.reads_around() && self.read > 4.0 * self.touched
    }

    fn progress(&self) -> f64 {
        ((self.user - self.brought) / self.length).max(0.0)
    }
}

/// Standard error that sampling makes in a second's worth of `user` seconds, over `length` seconds.
fn sampling(user: f64, length: f64) -> f64 {
    (TICK * (user * length + TICK)).sqrt() / length
}

/// What several windows say together; all but how many by the second.
#[derive(Debug, Clone, Copy)]
pub(super) struct Measured {
    pub(super) windows: usize,
    length: f64,
    user: f64,
    pub(super) progress: f64,
    /// Standard error of `progress`: what the windows show, and no less than sampling makes; and what is not known of `brought`.
    pub(super) error: f64,
    faults: f64,
}

impl Measured {
    pub(super) fn of<'a>(windows: impl Iterator<Item = &'a Window> + Clone) -> Self {
        let count = windows.clone().count();
        let sum = windows.clone().copied().fold(Window::default(), Window::plus);
        let (length, user, progress) = (sum.length, sum.user / sum.length, sum.progress());
        let spread = windows.map(|window| (window.progress() - progress).powi(2)).sum::<f64>();
        let error = (spread / count.saturating_sub(1).max(1) as f64 / count as f64).sqrt().max(sampling(user, length));
        let error = error.hypot(DIFFERS * sum.brought / length);
        Self { windows: count, length, user, progress, error, faults: sum.faults / length }
    }

    /// Another program, as it were: progress or faults off by a factor of 2, and not by chance. Were it the same, the lower of the two
    /// would have been as uncertain as the higher: a few ticks less look more certain than they are.
    pub(super) fn is_unlike(&self, other: &Self) -> bool {
        let (low, high) = if self.progress < other.progress { (self, other) } else { (other, self) };
        let chance = low.error.max(sampling(high.user, low.length)).hypot(high.error);
        let (few, many) = (self.faults.min(other.faults), self.faults.max(other.faults));
        high.progress > (2.0 * low.progress).max(low.progress + 3.0 * chance) || many > FAULTS.max(2.0 * few)
    }
}

/// Whether the less simple way pays: by three standard errors, or half as many in the `last` window; `None` while it cannot be said.
/// What falls short by half an error is not waited for. The mean counts, and not the median: who is fast every other second is faster.
pub(super) fn pays(simple: &Measured, other: &Measured, last: bool) -> Option<bool> {
    match apart(simple, other) {
        apart if apart >= 3.0 => Some(true),
        apart if apart <= -0.5 => Some(false),
        apart => last.then_some(apart >= 1.5),
    }
}

/// By how many standard errors the less simple way is better than it must be.
pub(super) fn apart(simple: &Measured, other: &Measured) -> f64 {
    (other.progress - PAYS * simple.progress) / other.error.hypot(PAYS * simple.error)
}
