//! The watcher's loop. It sleeps while nothing is wrong; else it looks at the mappings, judges what it saw, and acts.
//!
//! * `held`: what the watcher knows of each mapping.
//! * `follow`: strides and loops, which are followed.
//! * `loads`: finds loads from slow storage, and gives the readers work.
//! * `done`: writes the report.

mod done;
mod follow;
mod held;
mod loads;

use self::done::{Advised, Done};
use self::held::{Held, add, merge};

use crate::PAGE;
use crate::act::Hand;
use crate::clock::now;
use crate::judge::{Advice, Case, Depth, Look, Pieces, Run, Shape, pieces, shape, windows};
use crate::observe::{Effort, Mapping, Mappings, Memory, Pages, Seen, Spent, Waits};
use crate::report::Report;
use std::ops::Range;
use std::time::Duration;

/// Permissions of a watcher.
#[derive(Debug, Clone, Copy, Default)]
pub struct Settings {
    /// Advice of the program's own that is plainly wrong may be replaced.
    pub overrides: bool,
    /// Only loads from slow storage are helped: another watcher does the rest.
    pub only_loads: bool,
    /// A dry run: nothing is done, and the report says what would be.
    pub is_dry: bool,
}

/// Watches one program and steers its mappings.
#[derive(Debug)]
pub struct Watcher<'a, H> {
    settings: Settings,
    hand: H,
    /// The process's number, for /proc.
    process: String,
    effort: Effort,
    mappings: Mappings,
    memory: Memory,
    waits: Waits,
    depth: Depth,
    /// The device of the last load that was found.
    loaded_from: Option<(u64, u64)>,
    /// When loads are looked at next.
    loads_next: Duration,
    pages: Option<Pages>,
    held: Vec<Held>,
    listed: Duration,
    /// Pages of files that fit into memory (`asked`: when that was read).
    room: u64,
    /// Pages that the program has had read from devices since it began.
    read: u64,
    asked: Duration,
    began: Duration,
    /// How long the last look took.
    cost: Duration,
    report: &'a Report,
    done: Done,
}

/// While nothing is wrong: sleep between looks at what faults cost. It grows from `CALM` to `CALMEST`.
const CALM: Duration = Duration::from_millis(100);
const CALMEST: Duration = Duration::from_millis(400);
/// A *turn* has three looks. The first comes after `LONG` or longer, and tells how much is touched. The other two come after `SHORT`
/// each, and tell the order. Right after a walk has ended another may have begun: then a turn has no long look.
const LONG: Duration = Duration::from_millis(80);
const SHORT: Duration = Duration::from_millis(6);
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
/// The first turns after a calm time: they are short, whatever their looks cost.
const FIRST: u32 = 4;
/// A turn with few touches is carried into the next for so long.
const PATIENCE: Duration = Duration::from_secs(1);
/// A turn with fewer windows has few touches.
const FEW: u64 = 12;
/// Windows in the two short looks that tell the order without the long one.
const ENOUGH: u64 = 20;
/// For how long the watcher tries to take advice back at its end.
const UNDONE: Duration = Duration::from_secs(3);
/// Faults that waited for a device, in a second, below which nothing is wrong.
const FAULTS: f64 = 30.0;
/// Pages read in a second, below which nothing is wrong.
const READ: f64 = 2000.0;
/// Minor faults in a second below which nothing is slow. A fault that waits for a page that is being read ahead is a minor one.
const MINOR_FAULTS: f64 = 100.0;
/// How long a mapping's flags are taken for current: to read them costs all of proc_pid_smaps(5).
const FLAGS: Duration = Duration::from_secs(10);

impl<'a, H: Hand> Watcher<'a, H> {
    /// Watches process `pid`, whose mappings `hand` can reach.
    pub fn new(pid: u32, hand: H, settings: Settings, report: &'a Report) -> Watcher<'a, H> {
        let process = pid.to_string();
        Watcher {
            settings,
            hand,
            effort: Effort::of(pid),
            mappings: Mappings::of(&process),
            memory: Memory::of(pid),
            waits: Waits::of(pid),
            depth: Depth::new(now()),
            loaded_from: None,
            loads_next: Duration::ZERO,
            pages: None,
            process,
            held: Vec::new(),
            listed: Duration::ZERO,
            room: 0,
            read: 0,
            asked: Duration::ZERO,
            began: now(),
            cost: Duration::ZERO,
            report,
            done: Done::default(),
        }
    }

    /// Watches until the program is gone, or `nap` returns `false`. `nap` sleeps for the given time.
    pub fn run(&mut self, nap: impl FnMut(Duration) -> bool) {
        self.watch(nap);
        // A load may end in the middle of a turn: the last report includes it.
        self.tell();
    }

    fn watch(&mut self, mut nap: impl FnMut(Duration) -> bool) {
        let Some(mut spent) = self.effort.look() else { return };
        // A program that has just mapped a file is likely to load it.
        let (mut turned, mut calm, mut is_watching) = (now(), CALM / 4, false);
        let (mut soon, mut turns) = (0u32, 0u32);
        let mut carried = (Spent::default(), Duration::ZERO);
        loop {
            let is_soon = soon > 0 && is_watching;
            let long = match is_watching {
                _ if is_soon => Duration::ZERO,
                // A round, a load, or a look at single touches may be over in a moment.
                true if self.held.iter().any(Held::is_short_lived) => LONG,
                // At first a quick answer matters more than its cost.
                true if turns < FIRST => LONG,
                true => LONG.max(self.cost * LOOKS * EFFORT),
                false => calm,
            };
            let until = now() + long;
            let (mut ended, mut has_changed) = (false, false);
            while !has_changed {
                let Some(has_ended) = self.rest(STEP.min(until.saturating_sub(now())), &mut nap) else { return };
                ended |= has_ended;
                if now() >= until {
                    break;
                }
                has_changed = self.has_changed();
            }
            soon = if ended { 20 } else { soon.saturating_sub(1) };
            let Some(now_spent) = self.effort.look() else { return };
            let (cost, lasted) = (now_spent.since(&spent), now() - turned);
            (spent, turned) = (now_spent, now());
            self.take_back();
            if !is_wrong(&cost, lasted) && !self.is_acting() && !self.is_waiting(&cost, lasted) {
                calm = (calm + CALM / 10).min(CALMEST);
                self.held.iter_mut().for_each(Held::forget);
                if let Some((_, files)) = self.hand.readers() {
                    // Nobody else could unmount their file systems, or get their space back.
                    files.keep(|_, _| false);
                }
                (is_watching, carried) = (false, Default::default());
                continue;
            }
            calm = CALM;
            if !self.prepare() {
                (is_watching, carried) = (false, Default::default());
                continue;
            }
            if !is_watching {
                // The first look is only a base for the next: the pages mapped and the time waited until now.
                self.held.iter_mut().for_each(Held::forget);
                self.look();
                // Only readers need the waits. The hand `Own` has none, and must not ask: its thread is unknown to the C library, by
                // which `waited` lists a folder.
                if self.hand.readers().is_some() {
                    self.waits.waited();
                }
                (is_watching, turns) = (true, 0);
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
            let Some(_) = self.rest(SHORT, &mut nap) else { return };
            let first = self.look();
            self.held.iter_mut().zip(first).for_each(|(one, new)| one.first = one.merged(new));
            let Some(_) = self.rest(SHORT, &mut nap) else { return };
            let second = self.look();
            let Some(last_spent) = self.effort.look() else { return };
            let lasted = now() - turned + lasted + carried.1;
            let cost = last_spent.since(&spent).and(&cost).and(&carried.0);
            (spent, turned) = (last_spent, now());
            self.read = last_spent.read_bytes / PAGE;
            // Too few touches tell nothing. The device may be slow: the next turn adds its touches.
            if lasted < PATIENCE && self.carry(&second) {
                carried = (cost, lasted);
                continue;
            }
            carried = Default::default();
            turns = turns.saturating_add(1);
            self.judge(second, &cost, lasted);
            self.tell();
        }
    }

    /// Takes back all advice. From outside this may take a moment: not every thread can be stopped at every time. The report names
    /// advice that could not be taken back.
    pub fn undo(&mut self) {
        let until = now() + UNDONE;
        while !self.let_go() && now() < until {
            std::thread::sleep(UNDONE / 60);
        }
        for one in self.held.iter().filter(|one| one.advice != Advice::Normal) {
            self.done.would.push(format!("{}: its advice could not be taken back", one.mapping.path));
        }
        self.tell();
    }

    /// Takes back all advice, as far as that is possible at once. Returns whether none is left.
    pub fn let_go(&mut self) -> bool {
        self.held.iter_mut().for_each(|one| one.case = Case::default());
        self.take_back()
    }

    /// Takes back advice that no [`Case`] asks for any more. Returns whether none of that is left.
    fn take_back(&mut self) -> bool {
        for one in self.held.iter_mut().filter(|one| one.advice != Advice::Normal && !one.case.is_on()) {
            if self.hand.advise(&one.mapping, Advice::Normal, one.advice == Advice::Blocks) {
                one.advice = Advice::Normal;
            }
        }
        self.held.iter().all(|one| one.advice == Advice::Normal || one.case.is_on())
    }

    /// Sleeps, and meanwhile serves the walks and loads that are followed. Returns `None` once the program has ended, else whether a
    /// stream has ended.
    fn rest(&mut self, time: Duration, nap: &mut impl FnMut(Duration) -> bool) -> Option<bool> {
        let until = now() + time;
        let mut ended = false;
        loop {
            let left = until.saturating_sub(now());
            if left.is_zero() {
                return Some(ended);
            }
            let pause = self.held.iter().flat_map(Held::pauses).min().unwrap_or(left);
            if !nap(pause.min(left)) {
                return None;
            }
            ended |= self.follow();
            self.load();
        }
    }

    /// Whether touches at random have stopped where they were usual: a walk may have begun. Only a part of each mapping is looked at.
    fn has_changed(&mut self) -> bool {
        let Some(pages) = &mut self.pages else { return false };
        let mut has_changed = false;
        for one in self.held.iter_mut().filter(|one| one.case.is_random()) {
            let Some(seen) = &mut one.seen else { continue };
            let part = one.mapping.pages / PARTS;
            let new = pages.look(seen, part..2 * part);
            let count = new.iter().map(|run| run.len).sum::<u64>() as f64;
            has_changed |= one.usual >= USUAL && count * 4.0 < one.usual;
            one.usual = if one.usual == 0.0 { count } else { one.usual * 0.8 + count * 0.2 };
            add(&mut one.pending, new);
        }
        has_changed
    }

    fn is_acting(&self) -> bool {
        self.held.iter().any(|one| one.case.is_on() || one.is_followed() || one.advice != Advice::Normal)
    }

    /// Whether threads wait for pages that are being read ahead, and readers could help.
    fn is_waiting(&mut self, cost: &Spent, lasted: Duration) -> bool {
        cost.minor_faults as f64 > MINOR_FAULTS * lasted.as_secs_f64()
            && self.hand.readers().is_some()
            && self.waits.is_blocked()
    }

    /// Learns what is mapped and how much memory there is. `false` where there is nothing to look at.
    fn prepare(&mut self) -> bool {
        if self.pages.is_none() {
            self.pages = Pages::of(&self.process);
        }
        if self.listed.is_zero() || now() - self.listed > Duration::from_secs(1) {
            self.listed = now();
            let found = self.mappings.look();
            let mut before = std::mem::take(&mut self.held);
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
                    None => self.held.push(Held::new(mapping)),
                }
            }
            // Our advice stays on what is left of a mapping that was changed.
            for old in before.iter().filter(|old| old.advice != Advice::Normal) {
                let is_part = |one: &&mut Held| {
                    let (one, old) = (&one.mapping, &old.mapping);
                    let overlaps = one.at.start < old.at.end && old.at.start < one.at.end;
                    overlaps && (one.device, one.inode) == (old.device, old.inode)
                };
                for one in self.held.iter_mut().filter(is_part) {
                    (one.advice, one.flags) = (old.advice, old.flags);
                    one.had_blocks |= old.had_blocks;
                }
            }
            let held = &self.held;
            if let Some((_, files)) = self.hand.readers() {
                files.keep(|device, inode| {
                    held.iter().any(|one| (one.mapping.device, one.mapping.inode) == (device, inode))
                });
            }
        }
        if self.asked.is_zero() || now() - self.asked > Duration::from_millis(500) {
            self.asked = now();
            self.room = self.memory.for_files() / PAGE;
        }
        self.pages.is_some() && !self.held.is_empty()
    }

    /// Looks at all mappings. Returns the new pages of each.
    fn look(&mut self) -> Vec<Vec<Run>> {
        let began = now();
        let Some(pages) = &mut self.pages else { return Vec::new() };
        let mut found = Vec::with_capacity(self.held.len());
        for one in &mut self.held {
            let all = 0..one.mapping.pages;
            match &mut one.seen {
                Some(seen) => {
                    let new = pages.look(seen, all);
                    if let Some(load) = &mut one.load {
                        // This keeps the load up to date. `Watcher::load` decides whether it goes on.
                        load.follow(&new, began);
                    }
                    found.push(new);
                }
                none => {
                    pages.look(none.insert(Seen::nothing(one.mapping.at.start, one.mapping.pages)), all);
                    found.push(Vec::new());
                }
            }
        }
        self.cost = now() - began;
        found
    }

    /// If the looks of this turn have few touches, keeps them for the next. Returns whether it does.
    fn carry(&mut self, second: &[Vec<Run>]) -> bool {
        let all = self.held.iter().zip(second).flat_map(|(one, second)| [&one.before, &one.first, second]);
        if all.map(|runs| windows(runs)).sum::<u64>() >= FEW {
            return false;
        }
        for (one, second) in self.held.iter_mut().zip(second) {
            let first = merge(std::mem::take(&mut one.first), second.clone());
            one.before = merge(std::mem::take(&mut one.before), first);
        }
        true
    }

    fn judge(&mut self, second: Vec<Vec<Run>>, cost: &Spent, lasted: Duration) {
        let at = now();
        self.find_loads(&second, cost, at);
        let mut shapes: Vec<(Shape, u64, Pieces, (f64, f64))> = Vec::with_capacity(second.len());
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
            let is_few = found.windows < ENOUGH && !before.is_empty();
            let mut begun = Pieces::default();
            // Touches at single places are no pieces.
            if is_few || !found.is_scattered() {
                let first = merge(before, first);
                if is_few {
                    found = shape(&first, &second);
                    touched = found.windows;
                }
                if let Some(seen) = &one.seen {
                    begun = pieces(&merge(first, second), one.mapping.offset / PAGE, |page| seen.has(page));
                }
            }
            if at < one.no_strides_until {
                found = found.without_strides();
            }
            shapes.push((found, touched, begun, in_pieces));
        }
        let all: u64 = shapes.iter().map(|(_, touched, ..)| touched).sum();
        let is_short = extent > self.room;
        let fills = fills(self.room, extent, self.read, cost.read_bytes / PAGE, lasted);
        if self.settings.only_loads {
            return;
        }
        for (index, (shape, windows, pieces, in_pieces)) in shapes.iter().enumerate() {
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
                pieces: *pieces,
                is_short,
                touched: *in_pieces,
                fills,
                read: cost.read_bytes / PAGE,
                waited: cost.major_faults,
                faults: cost.major_faults + cost.minor_faults,
                share,
                is_followed: self.held[index].round.is_some(),
            };
            if let Some(advice) = self.held[index].case.judge(&look) {
                self.advise(index, advice, at);
            }
            if !self.held[index].case.is_random() && self.held[index].advice != Advice::Blocks {
                self.find_walks(index, shape, look.waits(), at);
            }
        }
    }

    fn advise(&mut self, index: usize, advice: Advice, at: Duration) {
        let is_possible = advice == Advice::Normal
            || self.may_act(index) && !(advice == Advice::Blocks && self.held[index].has_huge());
        let is_possible = is_possible && !self.only_notes(index, self.held[index].case.why());
        let one = &mut self.held[index];
        if !is_possible || !self.hand.advise(&one.mapping, advice, one.advice == Advice::Blocks) {
            if advice == Advice::Normal {
                // `take_back` tries again.
                return;
            }
            one.case = Case::default();
            one.rests_until = at + Duration::from_secs(10);
            return;
        }
        one.advice = advice;
        one.usual = 0.0;
        one.had_blocks |= advice == Advice::Blocks;
        if advice == Advice::Blocks || one.case.is_random() {
            one.streams.clear();
            one.round = None;
        }
        if one.case.is_random() {
            let since = at - self.began;
            let done = self.done.random.get_or_insert(Advised { at: since, mappings: 0, before: 0.0, after: 0.0 });
            done.mappings += u32::from(!one.was_random);
            one.was_random = true;
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
    /// `overrides` is set.
    fn may_act(&mut self, index: usize) -> bool {
        let at = now();
        if self.held[index].flags.is_none_or(|(_, asked)| asked + FLAGS < at) {
            let ranges: Vec<Range<u64>> = self.held.iter().map(|one| one.mapping.at.clone()).collect();
            for (one, flags) in self.held.iter_mut().zip(self.mappings.flags(&ranges)) {
                // While our advice is on a mapping, its flags are not the program's.
                if one.advice == Advice::Normal {
                    one.flags = Some((flags, at));
                }
            }
        }
        let flags = self.held[index].flags.map(|(flags, _)| flags).unwrap_or_default();
        !flags.locked && (self.settings.overrides || !(flags.random || flags.sequential))
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
