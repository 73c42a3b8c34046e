//! Sampling rounds. A round has three looks: one long, which tells how much is touched, and two short ones, which tell the order. A round with too few
//! touches is carried into the next. What a round shows of a mapping is a [`Sample`].

use crate::PAGE;
use crate::classify::{Shape, shape};
use crate::observe::{Spent, Waited};
use crate::run::{Run, merge, windows};
use std::time::Duration;

/// The new pages of a round's three looks at one mapping.
#[derive(Debug, Clone, Default)]
pub struct Looks {
    /// Of the long look, and of rounds that were carried into this one.
    pub before: Vec<Run>,
    /// Of the first short look.
    pub first: Vec<Run>,
    /// Of the second one.
    pub second: Vec<Run>,
}

impl Looks {
    /// All new pages, in order.
    pub fn all(&self) -> Vec<Run> {
        merge(merge(self.before.clone(), self.first.clone()), self.second.clone())
    }

    /// The signs of a pattern, and the windows that were touched. The long look is used, too, where the short ones have too few touches.
    pub fn shape(&self) -> (Shape, u64) {
        let short = shape(&self.first, &self.second);
        if short.windows >= ENOUGH || self.before.is_empty() {
            let touched = windows(&self.before) + short.windows;
            return (short, touched);
        }
        let all = shape(&merge(self.before.clone(), self.first.clone()), &self.second);
        let touched = all.windows;
        (all, touched)
    }

    fn each(&self) -> [&Vec<Run>; 3] {
        [&self.before, &self.first, &self.second]
    }

    /// Pages that all looks showed.
    pub fn pages(&self) -> u64 {
        self.each().into_iter().flatten().map(|run| run.len).sum()
    }

    /// Windows that they showed.
    pub(crate) fn windows(&self) -> u64 {
        self.each().into_iter().map(|runs| windows(runs)).sum()
    }

    /// Adds the short looks to the long one of the next round.
    fn carry(&mut self) {
        let short = merge(std::mem::take(&mut self.first), std::mem::take(&mut self.second));
        self.before = merge(std::mem::take(&mut self.before), short);
    }

    /// Pages from the first to the last.
    pub(crate) fn extent(&self) -> u64 {
        let ends = self.each().into_iter().filter_map(|runs| Some((runs.first()?.at, runs.last()?.end())));
        ends.reduce(|one, other| (one.0.min(other.0), one.1.max(other.1))).map_or(0, |(from, to)| to - from)
    }
}

/// What a round showed of the whole program.
#[derive(Debug, Clone, Copy, Default)]
pub struct Whole {
    /// When it ended.
    pub at: Duration,
    /// How long it took.
    pub lasted: Duration,
    /// What the program's faults cost meanwhile.
    pub cost: Spent,
    /// Pages that it had read meanwhile ([`pages_read`]).
    pub read: u64,
    /// How long its threads waited, if there are readers to help.
    pub waited: Waited,
    /// Windows that its looks showed, of all mappings.
    pub touched: u64,
    /// Whether the touches extend over more pages than fit into memory.
    pub is_short: bool,
    /// Whether memory is about to be full ([`fills`]).
    pub fills: bool,
    /// Whether storage makes wait for each request, not for each page ([`is_slow`]).
    pub is_slow: bool,
}

/// What a round showed of one mapping.
#[derive(Debug, Clone, Default)]
pub struct Sample {
    pub whole: Whole,
    pub looks: Looks,
    /// The second short look alone, without what was found between the looks.
    pub last: Vec<Run>,
    /// The signs of a pattern.
    pub shape: Shape,
    /// Windows that were touched.
    pub windows: u64,
    /// This mapping's share of the windows that were touched in all mappings.
    pub share: f64,
    /// Pages that were touched, without those that adjoin others by chance, and pieces that they lie in: only under MADV_RANDOM, where these tell how
    /// many pages the program touches at one place.
    pub touched: (f64, f64),
    /// Whether a walk is followed that explains why the program waits.
    pub is_followed: bool,
    /// Whether a walk backward is followed.
    pub goes_backward: bool,
    /// Whether readers are ahead of the program: no other pattern is asked.
    pub is_loaded: bool,
}

/// Windows below which a sample says nothing.
const FEW: u64 = 10;
/// A walk forward that the kernel serves well waits less than once in so many windows.
const WAITS: f64 = 10.0;

impl Sample {
    /// Of the looks at a mapping. `last`: the second short one alone.
    pub fn of(looks: Looks, last: Vec<Run>, whole: Whole) -> Sample {
        let (shape, windows) = looks.shape();
        Sample { whole, looks, last, shape, windows, ..Sample::default() }
    }

    /// Whether the touches are many enough.
    pub fn says_something(&self) -> bool {
        self.shape.windows >= FEW
    }

    /// Whether the program waits once in ten windows or more, and why is not known. In a walk forward that the kernel reads ahead of, it waits less often.
    pub fn waits(&self) -> bool {
        let waited = self.whole.cost.major_faults as f64 * self.share;
        !self.is_followed && waited * WAITS >= self.windows as f64
    }

    /// Whether the program waits at half of the windows: the kernel does not find what it touches next.
    pub fn waits_often(&self) -> bool {
        self.whole.cost.major_faults as f64 * self.share * 2.0 >= self.windows as f64
    }

    /// Whether windows beside one that was waited for are touched, too.
    pub fn has_neighbours(&self) -> bool {
        self.windows as f64 > self.whole.cost.major_faults as f64 * self.share * 1.25
    }

    /// All faults of the program. (Windows tell less: in a window that was touched before, a new page may be gone again by the next look.)
    pub fn faults(&self) -> u64 {
        self.whole.cost.major_faults + self.whole.cost.minor_faults
    }

    /// Whether it shows neither order nor chance.
    pub fn is_untold(&self) -> bool {
        self.shape.fronts.is_empty() && !self.shape.is_scattered()
    }
}

/// While nothing is wrong: sleep between looks at what faults cost. It grows from `CALM` to `CALMEST`.
pub(crate) const CALM: Duration = Duration::from_millis(100);
pub(crate) const CALMEST: Duration = Duration::from_millis(400);
/// Nothing is watched any more when nothing was wrong for so long.
const QUIET: Duration = Duration::from_secs(1);
/// The long look comes after so long, or longer. Right after a walk has ended another may have begun: then a round has no long look.
const LONG: Duration = Duration::from_millis(80);
/// Each short look comes after `SHORT`; later, up to `SHORT_AT_MOST`, where storage is so slow that they do not tell the order.
const SHORT: Duration = Duration::from_millis(6);
const SHORT_AT_MOST: Duration = Duration::from_millis(100);
/// Rounds without a long look after a walk has ended.
const SOON: u32 = 20;
/// Looks of a round.
const LOOKS: u32 = 3;
/// A round lasts so many times as long as its looks take: they cost 0.7 % of a processor.
pub(crate) const EFFORT: u32 = 150;
/// The same while advice is tried.
const EAGER: u32 = 10;
/// After so many rounds without a fault the program is idle: nothing is looked at until there are faults.
const IDLE: u32 = 20;
/// The first rounds after a calm time: they are short, whatever their looks cost.
const FIRST: u32 = 4;
/// A round with few touches is carried into the next for so long; where single pages may be read (MADV_RANDOM), for the second of the two.
const PATIENCE: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(10));
/// Windows in the two short looks that tell the order without the long one. A round with fewer has few touches.
const ENOUGH: u64 = 20;
/// Faults that waited for a device, in a second, below which nothing is wrong.
const FAULTS: f64 = 30.0;
/// Pages read in a second, below which nothing is wrong.
const READ: f64 = 2000.0;

/// When the looks of a program come.
#[derive(Debug, Default)]
pub struct Cadence {
    /// Whether there was a look that the next can be compared with.
    pub is_watching: bool,
    /// For how long nothing has been wrong.
    quiet: Duration,
    /// Rounds that have no long look, from now on.
    soon: u32,
    rounds: u32,
    /// Rounds in a row without a fault.
    idle: u32,
    /// What the rounds before cost that are carried into this one, and how long they took.
    carried: (Spent, Duration),
    /// How long the short looks wait.
    pub short: Duration,
    /// What the last look cost of a processor.
    pub cost: Duration,
}

impl Cadence {
    /// Begins anew, after a calm time.
    pub fn begin(&mut self) {
        *self = Cadence { cost: self.cost, short: self.short, ..Cadence::default() };
    }

    /// Whether the next round has no long look.
    pub fn is_soon(&self) -> bool {
        self.soon > 0 && self.is_watching
    }

    /// How long to wait before the long look. `is_short_lived`: what is followed may be over in a moment; `is_tried`: advice may do harm.
    pub fn long(&self, is_short_lived: bool, is_tried: bool) -> Duration {
        match self.is_watching {
            _ if self.idle >= IDLE => CALMEST,
            true if self.soon > 0 => Duration::ZERO,
            // The first look is only a base for the next: the sooner the better.
            false if self.quiet.is_zero() => Duration::from_millis(1),
            false => CALM,
            true if is_tried => SHORT.max(self.cost * LOOKS * EAGER).min(LONG),
            // At first a quick answer matters more than its cost.
            true if is_short_lived || self.rounds < FIRST => LONG,
            true => LONG.max(self.cost * LOOKS * EFFORT),
        }
    }

    /// The long wait is over. `ended`: so is a walk that was followed.
    pub fn waited(&mut self, ended: bool) {
        self.soon = if ended { SOON } else { self.soon.saturating_sub(1) };
    }

    /// Whether it is the first look after a calm time.
    pub fn is_first(&self) -> bool {
        !self.is_watching && self.quiet.is_zero()
    }

    /// Counts the rounds without a fault. Returns whether the program is idle.
    pub fn is_idle(&mut self, cost: &Spent) -> bool {
        let has_faults = cost.major_faults + cost.minor_faults > 0;
        self.idle = if has_faults { 0 } else { self.idle.saturating_add(1) };
        self.idle > IDLE
    }

    /// Nothing was wrong for `lasted`. Returns whether it goes on: it may become wrong again soon.
    pub fn calm(&mut self, lasted: Duration) -> bool {
        let quiet = self.quiet + lasted;
        self.stop(quiet);
        quiet < QUIET
    }

    /// The next look is a base again.
    pub fn stop(&mut self, quiet: Duration) {
        (self.is_watching, self.carried, self.quiet) = (false, Default::default(), quiet);
    }

    /// Something is wrong.
    pub fn alarm(&mut self) {
        self.quiet = Duration::ZERO;
    }

    /// The base was looked at.
    pub fn base(&mut self) {
        (self.is_watching, self.rounds, self.short) = (true, 0, SHORT);
    }

    /// A round is complete, which cost this and took so long. Returns both, with what was carried into it; `None` if its looks have too few touches
    /// to tell anything, and are carried into the next: the device may be slow. `is_single`: single pages may be read.
    pub fn complete(
        &mut self,
        looks: Vec<&mut Looks>,
        cost: &Spent,
        lasted: Duration,
        is_single: bool,
    ) -> Option<(Spent, Duration)> {
        let (cost, lasted) = (cost.and(&self.carried.0), lasted + self.carried.1);
        let patience = if is_single { PATIENCE.1 } else { PATIENCE.0 };
        if lasted < patience && looks.iter().map(|looks| looks.windows()).sum::<u64>() < ENOUGH {
            looks.into_iter().for_each(Looks::carry);
            self.carried = (cost, lasted);
            return None;
        }
        self.carried = Default::default();
        self.rounds = self.rounds.saturating_add(1);
        Some((cost, lasted))
    }

    /// Short looks wait longer where they have few touches and tell nothing.
    pub fn adapt(&mut self, samples: &[Sample], windows: u64, lasted: Duration) {
        if windows as f64 * (2 * SHORT).as_secs_f64() >= ENOUGH as f64 * lasted.as_secs_f64() {
            self.short = SHORT;
        } else if samples.iter().any(Sample::is_untold) {
            self.short = (self.short * 2).min(SHORT_AT_MOST);
        }
    }
}

/// Whether faults cost enough to look at what is touched.
pub fn is_wrong(cost: &Spent, lasted: Duration) -> bool {
    let seconds = lasted.as_secs_f64().max(1e-3);
    cost.major_faults as f64 > FAULTS * seconds || (cost.read_bytes / PAGE) as f64 > READ * seconds
}

/// Pages that a program had read. A file system that counts no reads (FUSE) is not one without: there each fault that waits reads as much as the
/// kernel reads ahead. Where reads are counted such a fault reads a page at least; the two counts are not of quite the same moment. Told from the
/// time that was spent: what the program read at its start, from a disk, says nothing of what it touches now.
pub fn pages_read(cost: &Spent, readahead: u64) -> u64 {
    let pages = cost.read_bytes / PAGE;
    if pages >= cost.major_faults / 2 { pages } else { cost.major_faults * readahead.max(1) }
}

/// Whether memory is not full yet, and it is better to wait until it is. `available`: pages of files that fit into memory; `extent`:
/// pages that the touches extend over; `all`: pages that the program has had read since it began, of which `read` in the time `lasted`. Until memory
/// is full, what is read around a touch displaces nothing, and is touched later with the likelihood with which it stays.
pub fn fills(available: u64, extent: u64, all: u64, read: u64, lasted: Duration) -> bool {
    /// Touches at single pages hit less often than with read-around as long as memory fills. At a quarter that costs as much as smaller reads save.
    const GOOD_PART: f64 = 3.0 / 8.0;
    /// Of less, next to nothing that is read around a touch is touched before it is gone.
    const SMALL_PART: f64 = 1.0 / 16.0;
    /// It pays only if it is over soon.
    const SOON: f64 = 1.0;
    let left = available.saturating_sub(all) as f64;
    let is_soon = available as f64 >= extent as f64 * GOOD_PART && left * lasted.as_secs_f64() <= read as f64 * SOON;
    let may_hit = available as f64 >= extent as f64 * SMALL_PART;
    left > 0.0 && (is_soon || may_hit && is_slow(read, lasted))
}

/// Whether storage makes wait for each request, not for each page, where so many pages were read: to read one page takes about as long as to read
/// around it.
pub fn is_slow(read: u64, lasted: Duration) -> bool {
    /// Pages in a second.
    const FAST: f64 = 60_000.0;
    read > 0 && (read as f64) < FAST * lasted.as_secs_f64()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_that_are_not_counted_are_told_from_the_faults_of_the_same_time() {
        let spent = |major_faults, pages: u64| Spent { major_faults, read_bytes: pages * PAGE, ..Spent::default() };
        assert_eq!(pages_read(&spent(100, 3200), 32), 3200, "a disk");
        assert_eq!(pages_read(&spent(100, 98), 32), 98, "each fault a page, counted a moment earlier");
        assert_eq!(pages_read(&spent(100, 0), 32), 3200, "FUSE");
        assert_eq!(pages_read(&spent(100, 20), 32), 3200, "FUSE, and a little of a disk");
        assert_eq!(pages_read(&spent(0, 0), 32), 0);
    }

    #[test]
    fn memory_that_is_soon_full_of_a_good_part_of_what_is_touched_fills() {
        let tenth = Duration::from_millis(100);
        assert!(fills(60_000, 120_000, 10_000, 10_000, tenth));
        assert!(!fills(60_000, 120_000, 60_000, 10_000, tenth), "it is full");
        assert!(!fills(30_000, 120_000, 10_000, 10_000, tenth), "of a quarter");
        assert!(fills(30_000, 120_000, 1000, 1000, tenth), "slow storage");
        assert!(!fills(3_000_000, 6_000_000, 8000, 8000, tenth), "not soon");
        assert!(!fills(60_000, 120_000, 0, 0, tenth), "what is read is not told");
    }
}
