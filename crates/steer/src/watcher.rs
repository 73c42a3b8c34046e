//! The loop: sleeps while nothing is wrong, looks, has it judged, acts.

use crate::PAGE;
use crate::act::Hand;
use crate::clock::now;
use crate::judge::{
    Advice, Case, Depth, Front, Load, Look, PIECE, Pieces, Round, Run, SLOW, Shape, Stream, WIDE, is_dense, may_load,
    pieces, shape, windows,
};
use crate::observe::{Effort, Flags, Mapping, Mappings, Memory, Pages, Seen, Spent, Waited, Waits, readahead};
use crate::report::Report;
use std::fmt::Write;
use std::ops::Range;
use std::time::Duration;

/// What may be done.
#[derive(Debug, Clone, Copy, Default)]
pub struct Settings {
    /// Advice of the program's own that is plainly wrong may be replaced.
    pub overrides: bool,
    /// Loads from slow storage are all that is helped: another watcher does the rest.
    pub only_loads: bool,
    /// Nothing is done, and the report says what would be.
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
    /// The device that a load was found on last.
    loaded_from: Option<(u64, u64)>,
    /// When loads are looked at next.
    loads_next: Duration,
    pages: Option<Pages>,
    held: Vec<Held>,
    listed: Duration,
    /// Pages of files that fit into memory, and when that was asked.
    room: u64,
    asked: Duration,
    began: Duration,
    /// What the last look took.
    cost: Duration,
    report: &'a Report,
    done: Done,
}

/// One mapping, and what is known of it.
#[derive(Debug)]
struct Held {
    mapping: Mapping,
    seen: Option<Seen>,
    case: Case,
    flags: Option<(Flags, Duration)>,
    /// Pages that the kernel reads ahead on the file's device.
    readahead: u64,
    /// Touches to read ahead of a walk at most.
    window: u64,
    /// What of ours is on it; and what has ever been.
    advice: Advice,
    /// New pages that a step of touches at random usually shows in a part of the mapping.
    usual: f64,
    had_blocks: bool,
    was_random: bool,
    streams: Vec<Stream>,
    round: Option<Round>,
    load: Option<Load>,
    /// A load that did not go on rests until then.
    loads_rest_until: Duration,
    /// New pages that streams and rounds came upon.
    pending: Vec<Run>,
    before: Vec<Run>,
    first: Vec<Run>,
    /// Streams and rounds that did not pay rest until then.
    rests_until: Duration,
    /// Streams in a row whose walk was none; until when strides are taken for chance, and for how long the next time.
    in_vain: u32,
    no_strides_until: Duration,
    no_strides_for: Duration,
}

/// What was done, for the report.
#[derive(Debug, Default)]
struct Done {
    random: Option<Advised>,
    /// Pages a second, before and after.
    backward: Option<(f64, f64)>,
    strided: u64,
    /// What would be, where nothing may be done.
    would: Vec<String>,
    kept: Option<(f64, f64)>,
    /// Pages that readers brought, and the most requests at a time.
    loaded: (u64, usize),
    blocks: Option<(f64, f64)>,
}

#[derive(Debug)]
struct Advised {
    at: Duration,
    mappings: u32,
    before: f64,
    after: f64,
}

/// Sleep between looks at what faults cost, while nothing is wrong; longer when nothing has been for a while.
const CALM: Duration = Duration::from_millis(100);
const CALMEST: Duration = Duration::from_millis(400);
/// The looks of a turn: a long one, which tells how much is touched, and two short ones, which tell the order. Right
/// after a walk has ended another may have begun: then there is no long one.
const LONG: Duration = Duration::from_millis(80);
const SHORT: Duration = Duration::from_millis(6);
/// A long look that lasts longer is cut into steps, in which one of so many parts of what is advised random is looked at, where so many new pages are
/// usual: enough to tell that they stay away.
const STEP: Duration = Duration::from_millis(80);
const PARTS: u64 = 8;
const USUAL: f64 = 24.0;
/// Looks of a turn, and how much longer than they take it lasts: 0.7 % of a processor.
const LOOKS: u32 = 3;
const EFFORT: u32 = 150;
/// Turns that are short, after nothing was wrong.
const FIRST: u32 = 4;
/// How long few touches are waited for to be more, and how many are few.
const PATIENCE: Duration = Duration::from_secs(1);
const FEW: u64 = 12;
/// Windows in two short looks that tell the order.
const ENOUGH: u64 = 20;
/// How long it is tried to take advice back at the end.
const UNDONE: Duration = Duration::from_secs(3);
/// A second's faults, or pages read, below which nothing is wrong.
const FAULTS: f64 = 30.0;
const READ: f64 = 2000.0;
/// A second's faults that may wait without a request of their own, below which nothing is slow.
const MINOR_FAULTS: f64 = 100.0;
/// How long what is known of a mapping's advice holds: all of smaps(5) is read for it.
const FLAGS: Duration = Duration::from_secs(10);
/// Touches to read ahead of a walk, at least and at most.
const WINDOW: u64 = 64;
const WIDEST: u64 = 4096;
/// Streams of one mapping at a time.
const STREAMS: usize = 16;
/// Touches that make sure of a stride, streams without as many after which strides are taken for chance, and for how long.
const SURE: u64 = 16;
const CHANCES: u32 = 4;
const NO_STRIDES: Duration = Duration::from_secs(4);

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
            asked: Duration::ZERO,
            began: now(),
            cost: Duration::ZERO,
            report,
            done: Done::default(),
        }
    }

    /// Watches until `nap`, which sleeps for a time, says that the program has ended, or the program is gone.
    pub fn run(&mut self, nap: impl FnMut(Duration) -> bool) {
        self.watch(nap);
        // A load may be over before the turn is.
        self.tell();
    }

    fn watch(&mut self, mut nap: impl FnMut(Duration) -> bool) {
        let Some(mut spent) = self.effort.look() else { return };
        // Who has just mapped a file is likely to load it.
        let (mut turned, mut calm, mut is_watching) = (now(), CALM / 4, false);
        let (mut soon, mut turns) = (0u32, 0u32);
        let mut carried = (Spent::default(), Duration::ZERO);
        loop {
            let is_soon = soon > 0 && is_watching;
            let long = match is_watching {
                _ if is_soon => Duration::ZERO,
                // A round may be over in a moment.
                true if self.held.iter().any(Held::is_short_lived) => LONG,
                // At first it matters more to find out soon.
                true if turns < FIRST => LONG,
                true => LONG.max(self.cost * LOOKS * EFFORT),
                false => calm,
            };
            let until = now() + long;
            let mut ended = false;
            loop {
                let Some(has_ended) = self.rest(STEP.min(until.saturating_sub(now())), &mut nap) else { return };
                ended |= has_ended;
                if now() >= until || self.has_changed() {
                    break;
                }
            }
            soon = if ended { 20 } else { soon.saturating_sub(1) };
            let Some(now_spent) = self.effort.look() else { return };
            let (cost, lasted) = (now_spent.since(&spent), now() - turned);
            (spent, turned) = (now_spent, now());
            self.take_back();
            if !is_wrong(&cost, lasted) && !self.is_acting() && !self.is_waiting(&cost, lasted) {
                calm = (calm + CALM / 10).min(CALMEST);
                self.held.iter_mut().for_each(Held::forget);
                (is_watching, carried) = (false, Default::default());
                continue;
            }
            calm = CALM;
            if !self.prepare() {
                is_watching = false;
                continue;
            }
            if !is_watching {
                // The first look only tells what was mapped before, and how long was waited.
                self.held.iter_mut().for_each(Held::forget);
                self.look();
                // (Not in a program whose C library does not know of this thread: folders are read by the standard library.)
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
                    one.before = merge(std::mem::take(&mut one.before), new);
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
            // Too few touches tell nothing: more are waited for, of a device that is slow.
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

    /// Takes back what was advised. From outside that may take a moment: not every thread can be stopped at every time. What stays
    /// is told.
    pub fn undo(&mut self) {
        let until = now() + UNDONE;
        self.held.iter_mut().for_each(|one| one.case = Case::default());
        while !self.take_back() && now() < until {
            std::thread::sleep(UNDONE / 60);
        }
        for one in self.held.iter().filter(|one| one.advice != Advice::Normal) {
            self.done.would.push(format!("{}: its advice could not be taken back", one.mapping.path));
        }
        self.tell();
    }

    /// Takes back advice that nothing asks for any more. Whether none is left.
    fn take_back(&mut self) -> bool {
        for one in self.held.iter_mut().filter(|one| one.advice != Advice::Normal && !one.case.is_on()) {
            if self.hand.advise(&one.mapping, Advice::Normal, one.advice == Advice::Blocks) {
                one.advice = Advice::Normal;
            }
        }
        self.held.iter().all(|one| one.advice == Advice::Normal || one.case.is_on())
    }

    /// Sleeps, following what is followed meanwhile. `None` once the program has ended; else whether a walk did.
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

    /// Whether touches at random have stopped where they were usual: a walk may have begun. A part of each mapping tells.
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
        self.held.iter().any(|one| one.case.is_on() || one.is_followed())
    }

    /// Whether loads wait for what is being read ahead, and readers could help.
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
                match before.iter().position(|one| one.mapping.at == mapping.at && one.mapping.inode == mapping.inode) {
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
            // Advice stays on what is left of a mapping that was changed.
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

    /// What is new in each mapping.
    fn look(&mut self) -> Vec<Vec<Run>> {
        let began = now();
        let Some(pages) = &mut self.pages else { return Vec::new() };
        let mut found = Vec::with_capacity(self.held.len());
        for one in &mut self.held {
            let all = 0..one.mapping.pages;
            match &mut one.seen {
                Some(seen) => found.push(pages.look(seen, all)),
                none => {
                    pages.look(none.insert(Seen::nothing(one.mapping.at.start, one.mapping.pages)), all);
                    found.push(Vec::new());
                }
            }
        }
        self.cost = now() - began;
        found
    }

    /// Keeps the looks of this turn for the next, if they have few touches.
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
        self.find_loads(&second, at);
        let mut shapes: Vec<(Shape, u64, Pieces)> = Vec::with_capacity(second.len());
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
            shapes.push((found, touched, begun));
        }
        let all: u64 = shapes.iter().map(|(_, touched, _)| touched).sum();
        let is_short = extent > self.room;
        if self.settings.only_loads {
            return;
        }
        for (index, (shape, windows, pieces)) in shapes.iter().enumerate() {
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
                read: cost.read_bytes / PAGE,
                waited: cost.major_faults,
                faults: cost.major_faults + cost.minor_faults,
                share,
            };
            if let Some(advice) = self.held[index].case.judge(&look) {
                self.advise(index, advice, at);
            }
            if !self.held[index].case.is_random() && self.held[index].advice != Advice::Blocks {
                self.find_walks(index, shape, look.waits(), at);
            }
        }
    }

    /// Begins to load what the program reads densely from slow storage, and ends what it does not.
    fn find_loads(&mut self, second: &[Vec<Run>], at: Duration) {
        if self.hand.readers().is_none() {
            return;
        }
        let looks = self.held.iter().zip(second).flat_map(|(one, second)| [&one.before, &one.first, second]);
        let touched: u64 = looks.map(|runs| windows(runs)).sum();
        let Waited { faults, slept, .. } = self.waits.waited();
        // Who copies what it loads has faults of new memory, too, which wait for nothing.
        let is_slow = faults > 0 && slept > SLOW * u32::try_from(faults.min(touched)).unwrap_or(u32::MAX).max(1);
        let loaded = |one: &Held| if one.load.is_some() { one.mapping.pages } else { 0 };
        for (index, second) in second.iter().enumerate() {
            let free = may_load(self.room).saturating_sub(self.held.iter().map(loaded).sum());
            let one = &mut self.held[index];
            if !is_slow && one.load.is_none() {
                continue;
            }
            let runs = merge(merge(one.before.clone(), one.first.clone()), second.clone());
            let pages = one.mapping.pages;
            // After one file of a device the next is wanted as a whole, too.
            let goes_on = self.loaded_from == Some(one.mapping.device) && !runs.is_empty();
            match is_dense(&runs).or(goes_on.then_some(true)) {
                Some(false) if one.load.take().is_some() => {
                    one.loads_rest_until = at + Duration::from_secs(10);
                    if let Some((readers, _)) = self.hand.readers() {
                        readers.clear();
                    }
                }
                Some(true) if is_slow && one.may_load(at) && pages <= free => {
                    let front = second.last().or(runs.last()).map_or(0, Run::end);
                    if !self.only_notes(index, "a load from slow storage, for which readers would be ahead") {
                        self.loaded_from = Some(self.held[index].mapping.device);
                        self.held[index].load = Some(Load::new(front, pages, at));
                    }
                }
                _ => {}
            }
        }
    }

    /// Keeps the readers busy.
    fn load(&mut self) {
        let at = now();
        if at < self.loads_next {
            return;
        }
        let room = may_load(self.room);
        let Some((readers, files)) = self.hand.readers() else { return };
        if self.held.iter().all(|one| one.load.is_none()) {
            readers.rest();
            return;
        }
        let (mut waiting, brought) = readers.state();
        // What they are reading cannot be let go of.
        let most = self.depth.judge(brought, at).min((room / 16 / PIECE) as usize).max(1);
        readers.allow(most);
        self.done.loaded = (brought / PAGE, self.done.loaded.1.max(most));
        for one in &mut self.held {
            let (Some(load), Some(seen), Some(pages)) = (&mut one.load, &mut one.seen, &mut self.pages) else {
                continue;
            };
            let new = pages.look(seen, 0..one.mapping.pages);
            // Of a long mapping a look takes long.
            self.loads_next = at + LOADS.max((now() - at) * 20);
            let goes_on = load.follow(&new, at);
            add(&mut one.pending, new);
            let Some(file) = files.get(&one.mapping) else {
                one.load = None;
                continue;
            };
            for run in load.ask(room, (4 * most).saturating_sub(waiting)) {
                readers.bring(file, one.mapping.offset + run.at * PAGE, (run.len * PAGE) as usize);
                waiting += 1;
            }
            if !goes_on {
                one.load = None;
                one.loads_rest_until = at + Duration::from_secs(1);
            }
        }
        self.tell();
    }

    fn advise(&mut self, index: usize, advice: Advice, at: Duration) {
        let is_possible = advice == Advice::Normal
            || self.may_act(index) && !(advice == Advice::Blocks && self.held[index].has_huge());
        let is_possible = is_possible && !self.only_notes(index, self.held[index].case.why());
        let one = &mut self.held[index];
        if !is_possible || !self.hand.advise(&one.mapping, advice, one.advice == Advice::Blocks) {
            if advice == Advice::Normal {
                // It is asked for again.
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

    /// Where nothing may be done, notes what would be.
    fn only_notes(&mut self, index: usize, what: &str) -> bool {
        if self.settings.is_dry {
            let line = format!("{}: {what}", self.held[index].mapping.path);
            if !self.done.would.contains(&line) && self.done.would.len() < 8 {
                self.done.would.push(line);
            }
        }
        self.settings.is_dry
    }

    /// Whether the program has left the mapping's advice to others.
    fn may_act(&mut self, index: usize) -> bool {
        let at = now();
        if self.held[index].flags.is_none_or(|(_, asked)| asked + FLAGS < at) {
            let ranges: Vec<Range<u64>> = self.held.iter().map(|one| one.mapping.at.clone()).collect();
            for (one, flags) in self.held.iter_mut().zip(self.mappings.flags(&ranges)) {
                // Advice of ours is not the program's.
                if one.advice == Advice::Normal {
                    one.flags = Some((flags, at));
                }
            }
        }
        let flags = self.held[index].flags.map(|(flags, _)| flags).unwrap_or_default();
        !flags.locked && (self.settings.overrides || !(flags.random || flags.sequential))
    }

    /// Begins to follow walks that the kernel does not serve well.
    fn find_walks(&mut self, index: usize, shape: &Shape, waits: bool, at: Duration) {
        if self.held[index].rests_until > at || shape.fronts.is_empty() {
            return;
        }
        let pages = self.held[index].mapping.pages;
        let is_new = |one: &Held, front: &Front| {
            let near = |stream: &Stream| stream.front().abs_diff(front.at) < 4096 + front.span;
            !one.streams.iter().any(near)
        };
        for front in &shape.fronts {
            let one = &self.held[index];
            if front.stride == 1 {
                let is_fit = pages > self.room && Round::is_worth(pages, may_keep(self.room, one.readahead));
                let may_come_round = !one.mapping.is_writable && is_fit && one.round.is_none();
                let is_loop = may_come_round && !waits && !one.case.is_on();
                if is_loop && shape.fronts.len() == 1 && self.may_act(index) && !self.settings.is_dry {
                    self.held[index].round = Some(Round::new(front.at, front.span, at));
                }
            } else if front.stride.abs() >= WIDE
                && one.streams.len() < STREAMS
                && is_new(one, front)
                && self.may_act(index)
                && !self.only_notes(index, "strides, which would be read ahead")
            {
                let most = (self.room / 8).max(WINDOW) / (self.held[index].streams.len() as u64 + 1);
                let most = most.min(self.held[index].window);
                self.held[index].streams.push(Stream::new(front, pages, most, at));
            }
        }
    }

    /// Follows streams and loops by a step. Whether a stream has ended.
    fn follow(&mut self) -> bool {
        let Some(pages) = &mut self.pages else { return false };
        let (mut ended, at) = (false, now());
        for one in &mut self.held {
            let Some(seen) = &mut one.seen else { continue };
            one.streams.retain_mut(|stream| {
                let look = stream.ahead();
                let new = pages.look(seen, look.at..look.end());
                let goes_on = stream.follow(&new, |page| seen.has(page), at);
                add(&mut one.pending, new);
                if !stream.ask().iter().all(|run| self.hand.read_ahead(&one.mapping, run)) {
                    one.rests_until = at + Duration::from_secs(10);
                    return false;
                }
                if !goes_on {
                    ended = true;
                    let (steps, in_vain) = stream.account();
                    one.in_vain = if steps < SURE { one.in_vain + 1 } else { 0 };
                    // Reading in vain makes the next walk's window smaller.
                    one.window =
                        if in_vain > steps { (one.window / 2).max(WINDOW) } else { (one.window * 2).min(WIDEST) };
                    self.done.strided += steps;
                }
                goes_on
            });
            if one.in_vain >= CHANCES {
                one.streams.clear();
                one.in_vain = 0;
                one.no_strides_until = at + one.no_strides_for;
                one.no_strides_for = (one.no_strides_for * 2).min(NO_STRIDES * 16);
            }
            let Some(round) = one.round.as_mut().filter(|round| round.is_loop()) else { continue };
            let mut new = Vec::new();
            for part in round.ahead() {
                new.extend(pages.look(seen, part));
            }
            let keep = may_keep(self.room, one.readahead);
            let goes_on = round.follow(&new, keep, at) && Round::is_worth(round.pages(), keep);
            add(&mut one.pending, new);
            if !goes_on {
                one.round = None;
                one.rests_until = at + Duration::from_secs(10);
                continue;
            }
            if let Some(run) = round.drop() {
                if self.hand.drop(&one.mapping, &run) {
                    self.done.kept = round.progress(at).or(self.done.kept);
                    seen.forget(run.at..run.end());
                } else {
                    one.round = None;
                    one.rests_until = at + Duration::from_secs(10);
                }
            }
        }
        ended
    }

    /// Renews the report.
    fn tell(&mut self) {
        if let Some(done) = &mut self.done.random {
            for one in self.held.iter().filter(|one| one.case.is_random()) {
                (done.before, done.after) = one.case.progress();
            }
        }
        let mut line = String::new();
        if let Some(Advised { at, mappings, before, after }) = &self.done.random {
            let _ = write!(
                line,
                "random at {:.1} s in {mappings} mapping{}: {:.1} -> {:.1} thousand touches a second; ",
                at.as_secs_f64(),
                if *mappings == 1 { "" } else { "s" },
                before / 1e3,
                after / 1e3
            );
        }
        self.done.blocks = self.held.iter().find_map(|one| one.case.blocks()).or(self.done.blocks);
        if let Some((before, after)) = self.done.blocks {
            let (before, after) = (before / 1e3, after / 1e3);
            let _ = write!(line, "pieces of 2 MiB, read at once: {before:.0} -> {after:.0} thousand pages a second; ");
        }
        self.done.backward = self.held.iter().find_map(|one| one.case.backward()).or(self.done.backward);
        if let Some((before, after)) = self.done.backward {
            let (before, after) = (before / 1e3, after / 1e3);
            let _ = write!(
                line,
                "a walk backward, read in pieces of 2 MiB: {before:.0} -> {after:.0} thousand pages a second; "
            );
        }
        let streams = self.held.iter().flat_map(|one| &one.streams);
        let strided = self.done.strided + streams.map(|stream| stream.account().0).sum::<u64>();
        if strided > 0 {
            let _ = write!(line, "strides, read ahead: {strided} touches; ");
        }
        if let Some((before, after)) = self.done.kept {
            let _ = write!(
                line,
                "a loop, a part of it kept: {:.0} -> {:.0} thousand pages a second; ",
                before / 1e3,
                after / 1e3
            );
        }
        for would in &self.done.would {
            let _ = write!(line, "{would}; ");
        }
        if let (pages @ 1.., most) = self.done.loaded {
            let _ = write!(
                line,
                "a load from slow storage: {} MiB brought, {most} requests at a time; ",
                (pages * PAGE) >> 20
            );
        }
        if self.done.kept.is_some() || self.done.backward.is_some() || strided > 0 {
            // The engine has such walks at the device's speed.
            let mapped: u64 = self.held.iter().map(|one| one.mapping.bytes()).sum();
            let room = (self.room * PAGE * 3 / 4).min(mapped) >> 20;
            let _ = write!(line, "--cache {room}MiB may serve it faster; ");
        }
        if !line.is_empty() {
            self.report.set(line.trim_end_matches("; "));
        }
    }
}

impl Held {
    fn new(mapping: Mapping) -> Held {
        Held {
            readahead: readahead(mapping.device).unwrap_or(0),
            mapping,
            seen: None,
            case: Case::default(),
            flags: None,
            window: WIDEST,
            advice: Advice::Normal,
            usual: 0.0,
            had_blocks: false,
            was_random: false,
            streams: Vec::new(),
            round: None,
            load: None,
            loads_rest_until: Duration::ZERO,
            pending: Vec::new(),
            before: Vec::new(),
            first: Vec::new(),
            rests_until: Duration::ZERO,
            in_vain: 0,
            no_strides_until: Duration::ZERO,
            no_strides_for: NO_STRIDES,
        }
    }

    /// Nothing is known of what was touched any more.
    fn forget(&mut self) {
        self.seen = None;
        self.pending.clear();
        self.before.clear();
    }

    /// What a look found, with what streams and rounds came upon before.
    fn merged(&mut self, new: Vec<Run>) -> Vec<Run> {
        merge(std::mem::take(&mut self.pending), new)
    }

    /// Whether the program has given advice on huge pages: what was here before is ours.
    fn has_huge(&self) -> bool {
        !self.had_blocks && self.flags.is_some_and(|(flags, _)| flags.huge)
    }

    fn may_load(&self, at: Duration) -> bool {
        self.load.is_none() && self.loads_rest_until <= at && !self.case.is_on()
    }

    /// Whether what it needs may be over in a moment.
    fn is_short_lived(&self) -> bool {
        self.round.is_some() || self.load.is_some() || self.case.is_looked_at()
    }

    fn is_followed(&self) -> bool {
        !self.streams.is_empty() || self.round.is_some() || self.load.is_some()
    }

    /// How long each of what is followed can be left alone.
    fn pauses(&self) -> impl Iterator<Item = Duration> {
        let at = now();
        let loops = self.round.iter().filter(|round| round.is_loop()).map(|_| Duration::from_millis(4));
        let loads = self.load.iter().map(|_| LOADS);
        self.streams.iter().map(move |stream| stream.pause(at)).chain(loops).chain(loads)
    }
}

/// Pages of a loop that may be kept: the rest is for what the kernel reads ahead, two windows at the end of a round and two at
/// the beginning of the next, for what is dropped late, and for what else there is.
fn may_keep(room: u64, readahead: u64) -> u64 {
    room.saturating_sub((room / 8).max((16 << 20) / PAGE).max(4 * readahead))
}

/// How often loads are looked at.
const LOADS: Duration = Duration::from_millis(10);

/// Whether faults cost enough to look at what is touched.
fn is_wrong(cost: &Spent, lasted: Duration) -> bool {
    let seconds = lasted.as_secs_f64().max(1e-3);
    cost.major_faults as f64 > FAULTS * seconds || (cost.read_bytes / PAGE) as f64 > READ * seconds
}

/// Pages that are kept for the next look at most.
const PENDING: usize = 16384;

fn add(pending: &mut Vec<Run>, new: Vec<Run>) {
    if pending.len() < PENDING {
        pending.extend(new);
    }
}

/// Both, in order.
fn merge(mut one: Vec<Run>, other: Vec<Run>) -> Vec<Run> {
    if one.is_empty() {
        return other;
    }
    one.extend(other);
    one.sort_unstable_by_key(|run| run.at);
    one
}
