//! The watcher's loop. It sleeps while nothing is wrong; else it looks at the mappings, judges what it saw, and acts.
//!
//! * `held`: what the watcher knows of each mapping.
//! * `given`: advice that lies on mappings.
//! * `follow`: strides and loops, which are followed.
//! * `loads`: finds loads from slow storage, and gives the readers work.
//! * `done`: writes the report.

mod done;
mod follow;
mod given;
mod held;
mod loads;

use self::done::{Advised, Done};
use self::held::{Held, add, merge};

pub use self::given::{Image, Ledger};

use self::given::Given;
use crate::PAGE;
use crate::act::{Hand, Made};
use crate::judge::{Advice, Case, Depth, Look, Run, Shape, shape, windows};
use crate::observe::{Mapping, Seen, Spent};
use crate::report::Report;
use crate::sampler::Samples;
use std::ops::Range;
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
    depth: Depth,
    /// The device of the last load that was found.
    loaded_from: Option<(u64, u64)>,
    /// When loads are looked at next.
    loads_next: Duration,
    held: Vec<Held>,
    /// Our advice that lies on mappings now.
    given: Vec<Given>,
    /// Bytes of advice that the program lets nobody take back any more.
    stays: u64,
    /// Advice that related watchers have given, and what tells this program in it.
    ledger: Ledger,
    image: Image,
    /// Whether inherited advice was looked for.
    has_inherited: bool,
    /// Counts at the last look, and when that was.
    spent: Spent,
    turned: Duration,
    lists_next: Duration,
    /// When a part of mappings that are advised random is looked at next.
    glances_next: Duration,
    /// Pages of files that fit into memory (`asked`: when that was read).
    room: u64,
    /// Pages that the program has had read from devices since it began.
    read: u64,
    asked: Duration,
    began: Duration,
    /// How long the last look took.
    cost: Duration,
    /// How long short looks wait.
    short: Duration,
    report: Arc<Report>,
    done: Done,
}

/// While nothing is wrong: sleep between looks at what faults cost. It grows from `CALM` to `CALMEST`.
pub(crate) const CALM: Duration = Duration::from_millis(100);
pub(crate) const CALMEST: Duration = Duration::from_millis(400);
/// Nothing is watched any more when nothing was wrong for so long.
const QUIET: Duration = Duration::from_secs(1);
/// For so long advice is tried to be given, until a thread can be stopped. A look at single touches is of use only at once.
const GIVING: Duration = Duration::from_millis(40);
/// A *turn* has three looks. The first comes after `LONG` or longer, and tells how much is touched. The other two come after `SHORT`
/// each, and tell the order; later, up to `SHORT_AT_MOST`, where storage is so slow that they do not. Right after a walk has ended another may
/// have begun: then a turn has no long look.
const LONG: Duration = Duration::from_millis(80);
const SHORT: Duration = Duration::from_millis(6);
const SHORT_AT_MOST: Duration = Duration::from_millis(100);
/// The wait for a long look is cut into steps. After each step, a part of every mapping that is advised random is looked at: if new
/// pages stay away where they are usual, the wait is over.
const STEP: Duration = Duration::from_millis(80);
/// A step looks at one part in so many.
const PARTS: u64 = 8;
/// New pages that must be usual in a part, to tell that they stay away.
const USUAL: f64 = 24.0;
/// Looks of a turn.
const LOOKS: u32 = 3;
/// A turn lasts so many times as long as its looks take: they cost 0.7 % of a processor.
const EFFORT: u32 = 150;
/// Mappings are listed anew after so long, and advice of ours is looked for.
const LISTS: Duration = Duration::from_secs(1);
/// After so many turns without a fault the program is idle: nothing is looked at until there are faults.
const IDLE: u32 = 20;
/// The first turns after a calm time: they are short, whatever their looks cost.
const FIRST: u32 = 4;
/// A turn with few touches is carried into the next for so long; where single pages may be read (MADV_RANDOM), for the second of the two.
const PATIENCE: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(10));
/// Windows in the two short looks that tell the order without the long one. A turn with fewer has few touches.
const ENOUGH: u64 = 20;
/// For how long the watcher tries to take advice back at its end.
const UNDONE: Duration = Duration::from_secs(3);
/// Faults that waited for a device, in a second, below which nothing is wrong.
const FAULTS: f64 = 30.0;
/// Pages read in a second, below which nothing is wrong.
const READ: f64 = 2000.0;
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
            turned: at,
            given: Vec::new(),
            stays: 0,
            ledger,
            image,
            has_inherited: false,
            depth: Depth::new(at),
            loaded_from: None,
            loads_next: Duration::ZERO,
            held: Vec::new(),
            lists_next: Duration::ZERO,
            glances_next: Duration::ZERO,
            room: 0,
            read: 0,
            asked: Duration::ZERO,
            began: at,
            cost: Duration::ZERO,
            short: SHORT,
            report,
            done: Done::default(),
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
        let may_inherit = !self.has_inherited && !self.ledger.of(self.image).is_empty();
        Some(may_inherit || is_wrong(&cost, lasted) || self.is_waiting(&cost, lasted))
    }

    /// What was spent since the last look, and how long ago that was.
    fn spend(&mut self) -> Option<(Spent, Duration)> {
        let spent = self.samples.spent()?;
        let at = self.samples.now();
        let found = (spent.since(&self.spent), at.saturating_sub(self.turned));
        (self.spent, self.turned) = (spent, at);
        Some(found)
    }

    /// Watches as long as something is wrong. Returns `false` once the program is gone, or `nap` has returned `false`.
    pub fn serve(&mut self, nap: impl FnMut(Duration) -> bool) -> bool {
        let goes_on = self.watch(nap);
        // A load may end in the middle of a turn: the last report includes it.
        self.tell();
        goes_on
    }

    fn watch(&mut self, mut nap: impl FnMut(Duration) -> bool) -> bool {
        let (mut is_watching, mut quiet) = (false, Duration::ZERO);
        let (mut soon, mut turns, mut idle) = (0u32, 0u32, 0u32);
        let mut carried = (Spent::default(), Duration::ZERO);
        loop {
            let is_soon = soon > 0 && is_watching;
            let long = match is_watching {
                _ if idle >= IDLE => CALMEST,
                _ if is_soon => Duration::ZERO,
                // The first look is only a base for the next: the sooner the better.
                false if quiet.is_zero() => Duration::from_millis(1),
                false => CALM,
                // A round, a load, or a look at single touches may be over in a moment.
                true if self.held.iter().any(Held::is_short_lived) => LONG,
                // At first a quick answer matters more than its cost.
                true if turns < FIRST => LONG,
                true => LONG.max(self.cost * LOOKS * EFFORT),
            };
            let until = self.samples.now() + long;
            let (mut ended, mut has_changed) = (false, false);
            while !has_changed {
                let Some(has_ended) = self.rest(STEP.min(until.saturating_sub(self.samples.now())), &mut nap) else {
                    return false;
                };
                ended |= has_ended;
                if self.samples.now() >= until {
                    break;
                }
                has_changed = self.has_changed();
            }
            soon = if ended { 20 } else { soon.saturating_sub(1) };
            let is_first = !is_watching && quiet.is_zero();
            let Some((cost, lasted)) = self.spend() else { return false };
            idle = if cost.major_faults + cost.minor_faults == 0 { idle.saturating_add(1) } else { 0 };
            if idle > IDLE && !self.held.iter().any(Held::is_followed) {
                // What is advised stays so. The first looks after this are only a base, as at the beginning.
                is_watching = false;
                continue;
            }
            self.take_back();
            if !is_first && !is_wrong(&cost, lasted) && !self.is_acting() && !self.is_waiting(&cost, lasted) {
                self.held.iter_mut().for_each(Held::forget);
                if let Some(readers) = self.hand.readers() {
                    // Nobody else could unmount their file systems, or get their space back.
                    readers.keep(&|_, _| false);
                }
                (is_watching, carried) = (false, Default::default());
                quiet += lasted;
                if quiet >= QUIET {
                    return true;
                }
                continue;
            }
            quiet = Duration::ZERO;
            if !self.prepare() {
                (is_watching, carried, quiet) = (false, Default::default(), lasted.max(CALM));
                if !is_wrong(&cost, lasted) {
                    return true;
                }
                continue;
            }
            if !is_watching {
                // The first look is only a base for the next: the pages mapped and the time waited until now.
                self.held.iter_mut().for_each(Held::forget);
                self.look();
                // Only readers need the waits.
                if self.hand.readers().is_some() {
                    self.samples.waited();
                }
                (is_watching, turns, self.short) = (true, 0, SHORT);
                continue;
            }
            if !is_soon {
                let before = self.look();
                for (one, new) in self.held.iter_mut().zip(before) {
                    let new = one.merged(new);
                    // Touches from before the change would hide the walk that has begun.
                    if !has_changed {
                        one.before = merge(std::mem::take(&mut one.before), new);
                    }
                }
            }
            let Some(_) = self.rest(self.short, &mut nap) else { return false };
            let first = self.look();
            self.held.iter_mut().zip(first).for_each(|(one, new)| one.first = one.merged(new));
            let Some(_) = self.rest(self.short, &mut nap) else { return false };
            let second = self.look();
            let Some((last_cost, last)) = self.spend() else { return false };
            let lasted = last + lasted + carried.1;
            let cost = last_cost.and(&cost).and(&carried.0);
            self.read = self.spent.read_bytes / PAGE;
            // Too few touches tell nothing. The device may be slow: the next turn adds its touches.
            let may_be_single = self.settings.overrides || self.held.iter().any(|one| one.case.is_random());
            let patience = if may_be_single { PATIENCE.1 } else { PATIENCE.0 };
            if lasted < patience && self.carry(&second) {
                carried = (cost, lasted);
                continue;
            }
            carried = Default::default();
            turns = turns.saturating_add(1);
            let given = self.given.len();
            self.judge(second, &cost, lasted);
            self.tell();
            if self.given.len() > given {
                // Touches from before the advice tell nothing of it.
                self.look();
                if self.spend().is_none() {
                    return false;
                }
            }
        }
    }

    /// Takes back all advice. From outside this may take a moment: not every thread can be stopped at every time. The report names
    /// advice that could not be taken back.
    pub fn undo(&mut self) {
        self.held.iter_mut().for_each(|one| one.case = Case::default());
        let until = self.samples.now() + UNDONE;
        while !self.take_back() && self.samples.now() < until {
            self.samples.sleep(UNDONE / 300);
        }
        let bytes = self.stays + self.given.iter().map(|given| given.at.end - given.at.start).sum::<u64>();
        if bytes > 0 {
            let line = format!("MADV_RANDOM stays on {} MiB: no thread could be stopped to take it back", bytes >> 20);
            self.done.would.push(line);
        }
        self.tell();
    }

    /// Takes back advice that no [`Case`] asks for any more. Returns whether none of that is left.
    fn take_back(&mut self) -> bool {
        let is_wanted = |given: &Given, held: &[Held]| {
            held.iter().any(|one| one.case.is_on() && given.within(&one.mapping).is_some())
        };
        let all = std::mem::take(&mut self.given);
        let (wanted, others): (Vec<Given>, Vec<Given>) =
            all.into_iter().partition(|given| is_wanted(given, &self.held));
        self.given = wanted;
        if others.is_empty() {
            return true;
        }
        let ranges: Vec<Range<u64>> = others.iter().map(|given| given.at.clone()).collect();
        let Some(flags) = self.samples.flags(&ranges) else {
            self.given.extend(others);
            return false;
        };
        // Where it is gone the program has given advice of its own, or has unmapped the file.
        let mut is_done = true;
        for (given, _) in others.into_iter().zip(flags).filter(|(_, flags)| flags.random) {
            match self.hand.advise(&given.mapping(), Advice::Normal) {
                Made::Given(_) => {}
                Made::NotNow => {
                    is_done = false;
                    self.given.push(given);
                }
                Made::Refused => self.stays += given.at.end - given.at.start,
            }
        }
        is_done
    }

    /// Sleeps, and meanwhile serves the walks and loads that are followed. Returns `None` once the program has ended, else whether a
    /// stream has ended.
    fn rest(&mut self, time: Duration, nap: &mut impl FnMut(Duration) -> bool) -> Option<bool> {
        let until = self.samples.now() + time;
        let mut ended = false;
        loop {
            let at = self.samples.now();
            let left = until.saturating_sub(at);
            if left.is_zero() {
                return Some(ended);
            }
            let pause = self.held.iter().flat_map(|one| one.pauses(at)).min().unwrap_or(left);
            if !nap(pause.min(left)) {
                return None;
            }
            ended |= self.follow();
            self.load();
        }
    }

    /// Whether touches at random have stopped where they were usual: a walk may have begun. Only a part of each mapping is looked at.
    fn has_changed(&mut self) -> bool {
        let spent = self.samples.processor_time();
        if self.samples.now() < self.glances_next {
            return false;
        }
        let mut has_changed = false;
        for one in self.held.iter_mut().filter(|one| one.case.is_random()) {
            let Some(seen) = &mut one.seen else { continue };
            let part = one.mapping.pages / PARTS;
            let new = self.samples.pages(seen, part..2 * part);
            let count = new.iter().map(|run| run.len).sum::<u64>() as f64;
            has_changed |= one.usual >= USUAL && count * 4.0 < one.usual;
            one.usual = if one.usual == 0.0 { count } else { one.usual * 0.8 + count * 0.2 };
            add(&mut one.pending, new);
        }
        self.glances_next = self.samples.now() + (self.samples.processor_time() - spent) * EFFORT;
        has_changed
    }

    fn is_acting(&self) -> bool {
        !self.given.is_empty() || self.held.iter().any(|one| one.case.is_on() || one.is_followed())
    }

    /// Whether threads wait for pages that are being read ahead, and readers could help.
    fn is_waiting(&mut self, cost: &Spent, lasted: Duration) -> bool {
        cost.minor_faults as f64 > MINOR_FAULTS * lasted.as_secs_f64()
            && self.hand.readers().is_some()
            && self.samples.is_blocked()
    }

    /// Learns what is mapped and how much memory there is. `false` where there is nothing to look at.
    fn prepare(&mut self) -> bool {
        if self.samples.now() >= self.lists_next {
            let spent = self.samples.processor_time();
            let found = self.samples.mappings();
            let mut before = std::mem::take(&mut self.held);
            let known: Vec<u64> = before.iter().map(|one| one.mapping.at.start).collect();
            for mapping in found {
                let key = |of: &Mapping| (of.at.clone(), of.device, of.inode, of.offset);
                match before.iter().position(|one| key(&one.mapping) == key(&mapping)) {
                    Some(index) => {
                        let mut one = before.swap_remove(index);
                        if one.mapping.pages != mapping.pages {
                            one.mapping.pages = mapping.pages;
                            one.forget();
                        }
                        self.held.push(one);
                    }
                    None => self.held.push(Held::new(self.samples.readahead(mapping.device), mapping)),
                }
            }
            self.find_given(&known);
            let held = &self.held;
            if let Some(readers) = self.hand.readers() {
                readers.keep(&|device, inode| {
                    held.iter().any(|one| (one.mapping.device, one.mapping.inode) == (device, inode))
                });
            }
            self.lists_next = self.samples.now() + LISTS.max((self.samples.processor_time() - spent) * EFFORT);
        }
        if self.asked.is_zero() || self.samples.now() - self.asked > Duration::from_millis(500) {
            self.asked = self.samples.now();
            self.room = self.samples.for_files() / PAGE;
        }
        self.samples.has_pages() && !self.held.is_empty()
    }

    /// Looks where our advice lies by now. `known`: where mappings began at the last look that are gone, or were there before.
    fn find_given(&mut self, known: &[u64]) {
        if !self.has_inherited {
            self.has_inherited = true;
            self.given.extend(self.ledger.of(self.image));
        } else if self.given.is_empty() {
            return;
        }
        let mut found: Vec<Given> = Vec::new();
        for given in std::mem::take(&mut self.given) {
            let (device, inode) = given.file();
            let mapped = self.samples.mappings_of(device, inode);
            // All of a mapping of the kernel's has the same advice, also where it has grown meanwhile (mremap(2)).
            let stays = mapped.iter().filter(|mapping| given.within(mapping).is_some());
            let stays: Vec<Given> = stays.map(|mapping| Given::of(mapping, mapping.at.clone())).collect();
            if stays.is_empty() {
                let is_new = |mapping: &&Mapping| given.has_moved_to(mapping) && !known.contains(&mapping.at.start);
                let moved = mapped.iter().filter(is_new);
                found.extend(moved.map(|mapping| Given::of(mapping, mapping.at.clone())));
            }
            found.extend(stays);
        }
        found.sort_by_key(|given| given.at.start);
        found.dedup();
        // What has no advice (any more) is not ours.
        let ranges: Vec<Range<u64>> = found.iter().map(|given| given.at.clone()).collect();
        let flags = if found.is_empty() { Some(Vec::new()) } else { self.samples.flags(&ranges) };
        let Some(flags) = flags else {
            self.given = found;
            return;
        };
        self.given = found.into_iter().zip(flags).filter(|(_, flags)| flags.random).map(|(given, _)| given).collect();
    }

    /// Whether advice of ours lies on a mapping.
    fn is_advised(&self, index: usize) -> bool {
        self.given.iter().any(|given| given.within(&self.held[index].mapping).is_some())
    }

    /// Looks at all mappings. Returns the new pages of each.
    fn look(&mut self) -> Vec<Vec<Run>> {
        let (began, spent) = (self.samples.now(), self.samples.processor_time());
        let mut found = Vec::with_capacity(self.held.len());
        for one in &mut self.held {
            let all = 0..one.mapping.pages;
            match &mut one.seen {
                Some(seen) => {
                    let new = self.samples.pages(seen, all);
                    if let Some(load) = &mut one.load {
                        // This keeps the load up to date. `Watcher::load` decides whether it goes on.
                        load.follow(&new, began);
                    }
                    found.push(new);
                }
                none => {
                    self.samples.pages(none.insert(Seen::nothing(one.mapping.at.start, one.mapping.pages)), all);
                    found.push(Vec::new());
                }
            }
        }
        self.cost = self.samples.processor_time() - spent;
        found
    }

    /// If the looks of this turn have few touches, keeps them for the next. Returns whether it does.
    fn carry(&mut self, second: &[Vec<Run>]) -> bool {
        let all = self.held.iter().zip(second).flat_map(|(one, second)| [&one.before, &one.first, second]);
        if all.map(|runs| windows(runs)).sum::<u64>() >= ENOUGH {
            return false;
        }
        for (one, second) in self.held.iter_mut().zip(second) {
            let first = merge(std::mem::take(&mut one.first), second.clone());
            one.before = merge(std::mem::take(&mut one.before), first);
        }
        true
    }

    fn judge(&mut self, second: Vec<Vec<Run>>, cost: &Spent, lasted: Duration) {
        let at = self.samples.now();
        self.find_loads(&second, cost, at);
        let mut shapes: Vec<(Shape, u64, (f64, f64))> = Vec::with_capacity(second.len());
        let mut extent = 0;
        for (one, second) in self.held.iter_mut().zip(second) {
            let (before, first) = (std::mem::take(&mut one.before), std::mem::take(&mut one.first));
            let second = one.merged(second);
            let ends =
                [&before, &first, &second].into_iter().filter_map(|runs| Some((runs.first()?.at, runs.last()?.end())));
            if let Some((from, to)) = ends.reduce(|one, other| (one.0.min(other.0), one.1.max(other.1))) {
                extent += to - from;
            }
            if let Some(round) = &mut one.round {
                let mut goes_on = true;
                for new in [&before, &first, &second] {
                    if round.is_loop() {
                        round.learn(new);
                    } else {
                        goes_on &= round.follow(new, 0, at);
                    }
                }
                if !goes_on {
                    one.round = None;
                }
            }
            let in_pieces = if one.case.is_random() {
                let all = merge(merge(before.clone(), first.clone()), second.clone());
                touched_in_pieces(&all, one.mapping.pages)
            } else {
                (0.0, 0.0)
            };
            let mut found = shape(&first, &second);
            let mut touched = windows(&before) + found.windows;
            if found.windows < ENOUGH && !before.is_empty() {
                found = shape(&merge(before, first), &second);
                touched = found.windows;
            }
            if at < one.no_strides_until {
                found = found.without_strides();
            }
            shapes.push((found, touched, in_pieces));
        }
        let all: u64 = shapes.iter().map(|(_, touched, ..)| touched).sum();
        let is_untold = |(shape, ..): &(Shape, _, _)| shape.fronts.is_empty() && !shape.is_scattered();
        if all as f64 * (2 * SHORT).as_secs_f64() >= ENOUGH as f64 * lasted.as_secs_f64() {
            self.short = SHORT;
        } else if shapes.iter().any(is_untold) {
            self.short = (self.short * 2).min(SHORT_AT_MOST);
        }
        let is_short = extent > self.room;
        let fills = fills(self.room, extent, self.read, cost.read_bytes / PAGE, lasted);
        if self.settings.only_loads {
            return;
        }
        for (index, (shape, windows, in_pieces)) in shapes.iter().enumerate() {
            // Readers are ahead of it.
            if self.held[index].load.is_some() {
                continue;
            }
            let (windows, share) = (*windows, *windows as f64 / all.max(1) as f64);
            let look = Look {
                at,
                lasted,
                shape,
                windows,
                is_short,
                touched: *in_pieces,
                fills,
                read: cost.read_bytes / PAGE,
                waited: cost.major_faults,
                faults: cost.major_faults + cost.minor_faults,
                share,
                is_followed: self.held[index].round.is_some() || self.held[index].backward.is_some(),
            };
            let goes_backward = self.held[index].backward.is_some() && shape.is_backward();
            if !goes_backward && let Some(advice) = self.held[index].case.judge(&look) {
                self.advise(index, advice, at);
            }
            if !self.held[index].case.is_random() {
                self.find_walks(index, &look, at);
            }
        }
    }

    fn advise(&mut self, index: usize, advice: Advice, at: Duration) {
        if advice == Advice::Normal {
            self.take_back();
            return;
        }
        let is_given = self.is_advised(index)
            || self.may_act(index) && !self.only_notes(index, self.held[index].case.why()) && self.give(index);
        let one = &mut self.held[index];
        if !is_given {
            one.case = Case::default();
            one.rests_until = at + Duration::from_secs(1);
            return;
        }
        one.usual = 0.0;
        if one.case.is_random() {
            one.streams.clear();
            one.round = None;
            one.backward = None;
        }
        if one.case.is_random() {
            let since = at - self.began;
            let done = self.done.random.get_or_insert(Advised { at: since, mappings: 0, before: 0.0, after: 0.0 });
            done.mappings += u32::from(!one.was_random);
            one.was_random = true;
        }
    }

    /// Gives MADV_RANDOM. Returns whether a part of the mapping has it now.
    fn give(&mut self, index: usize) -> bool {
        let until = self.samples.now() + GIVING;
        loop {
            match self.hand.advise(&self.held[index].mapping, Advice::Random) {
                Made::Given(parts) => {
                    let mapping = &self.held[index].mapping;
                    for given in parts.into_iter().map(|part| Given::of(mapping, part)) {
                        self.ledger.note(self.image, &given);
                        self.given.push(given);
                    }
                    return self.is_advised(index);
                }
                Made::NotNow if self.samples.now() < until => self.samples.sleep(GIVING / 40),
                Made::NotNow | Made::Refused => return false,
            }
        }
    }

    /// In a dry run, notes what would be done. Returns whether this is one.
    fn only_notes(&mut self, index: usize, what: &str) -> bool {
        if self.settings.is_dry {
            let line = format!("{}: {what}", self.held[index].mapping.path);
            if !self.done.would.contains(&line) && self.done.would.len() < 8 {
                self.done.would.push(line);
            }
        }
        self.settings.is_dry
    }

    /// Whether steering may advise a mapping. One that the program has locked is left alone, and one that it has advised itself, unless
    /// `overrides` is set: its flags tell, now.
    fn may_act(&mut self, index: usize) -> bool {
        let is_ours = self.is_advised(index);
        let mapping = &self.held[index].mapping;
        let flags = self.samples.flags(std::slice::from_ref(&mapping.at)).and_then(|flags| flags.first().copied());
        let Some(flags) = flags else { return false };
        !mapping.may_grow
            && !flags.locked
            && (self.settings.overrides || is_ours || !(flags.random || flags.sequential))
    }
}

/// Whether faults cost enough to look at what is touched.
fn is_wrong(cost: &Spent, lasted: Duration) -> bool {
    let seconds = lasted.as_secs_f64().max(1e-3);
    cost.major_faults as f64 > FAULTS * seconds || (cost.read_bytes / PAGE) as f64 > READ * seconds
}

/// Pages of runs, in order, without those that adjoin others by chance, as touches at random of a mapping of `pages` do; and the pieces that they
/// lie in.
fn touched_in_pieces(runs: &[Run], pages: u64) -> (f64, f64) {
    let mut end = None;
    let (mut count, mut pieces) = (0, 0);
    for run in runs {
        pieces += u64::from(end != Some(run.at));
        count += run.len;
        end = Some(run.end());
    }
    (count as f64 * (1.0 - count as f64 / pages.max(count).max(1) as f64), pieces as f64)
}

/// Whether memory is about to be full of a program's files, of which it can hold a good part. `room`: pages of files that fit into memory; `extent`:
/// pages that the touches extend over; `all`: pages that the program has had read since it began, of which `read` in the time `lasted`. Until memory
/// is full, what is read around a touch displaces nothing, and is touched later with the likelihood with which it stays.
fn fills(room: u64, extent: u64, all: u64, read: u64, lasted: Duration) -> bool {
    /// Touches at single pages hit less often than with read-around as long as memory fills. At a quarter that costs as much as smaller reads save.
    const GOOD_PART: f64 = 3.0 / 8.0;
    /// It pays only if it is over soon.
    const SOON: f64 = 1.0;
    let left = room.saturating_sub(all) as f64;
    left > 0.0 && room as f64 >= extent as f64 * GOOD_PART && left * lasted.as_secs_f64() <= read as f64 * SOON
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_that_is_soon_full_of_a_good_part_of_what_is_touched_fills() {
        let tenth = Duration::from_millis(100);
        assert!(fills(60_000, 120_000, 10_000, 10_000, tenth));
        assert!(!fills(60_000, 120_000, 60_000, 10_000, tenth), "it is full");
        assert!(!fills(30_000, 120_000, 10_000, 10_000, tenth), "of a quarter");
        assert!(!fills(60_000, 120_000, 1000, 1000, tenth), "not soon");
        assert!(!fills(60_000, 120_000, 0, 0, tenth), "what is read is not told");
    }
}
