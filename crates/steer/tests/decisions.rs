//! What a watcher decides, recorded: programs with a small model of the kernel under them are steered, and `traces/decisions` has what was done to
//! them, by tenths of a second. The watcher's structure may change; what it decides may not, unless that is what a change is for.
//!
//! `FASTMAP_RECORD=1 cargo test -p fastmap-steer --test decisions` records anew.

use fastmap_steer::act::{Hand, Made, Opened, Reading};
use fastmap_steer::observe::{Flags, Mapping, Seen, Spent, Waited};
use fastmap_steer::{Advice, Ledger, Report, Run, Samples, Settings, Watcher};
use std::cell::RefCell;
use std::collections::{BTreeMap, VecDeque};
use std::fmt::Write;
use std::ops::Range;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

const PAGE: u64 = 4096;
const MICRO: Duration = Duration::from_micros(1);

fn ms(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

/// What a program does for a time, with one of its files.
#[derive(Debug, Clone, Copy)]
enum Does {
    /// Single pages at random.
    Random,
    /// So many pages at a time, at random.
    Pieces(u64),
    /// From one touch to the next so many pages. At the end it begins anew, one page further where it goes in strides.
    Walk(i64),
    /// A walk forward over the first pages, again and again.
    Loop(u64),
    /// Touches of a walk and others at random, by turns.
    Both(i64),
    /// Mostly the first tenth.
    Skewed,
    Nothing,
    Unmap,
    Map,
}

#[derive(Debug, Clone, Copy)]
struct Phase {
    file: usize,
    does: Does,
    lasts: Duration,
}

fn phase(file: usize, does: Does, millis: u64) -> Phase {
    Phase { file, does, lasts: ms(millis) }
}

#[derive(Debug, Default)]
struct File {
    cached: Vec<bool>,
    mapped: Vec<bool>,
    used: Vec<bool>,
    flags: Flags,
    /// The page after the last that was read: a miss there is a walk's.
    next: u64,
    is_mapped: bool,
}

/// A program of one thread, its kernel, and a clock.
struct World {
    now: Duration,
    /// When the touch that is being made is done, and whether it waits.
    busy: Duration,
    waits: bool,
    files: Vec<File>,
    queue: VecDeque<(usize, u64)>,
    count: u64,
    /// Pages that fit.
    room: u64,
    readahead: u64,
    latency: Duration,
    counts_reads: bool,
    phases: VecDeque<Phase>,
    ends: Duration,
    place: u64,
    left: u64,
    random: u64,
    spent: Spent,
    waited: Waited,
    processor: Duration,
    readers: bool,
    made: Option<Made>,
    asked: VecDeque<(usize, Run)>,
    most: usize,
    served: Duration,
    brought: u64,
    log: BTreeMap<(u64, usize, &'static str), (u64, u64, u64)>,
}

impl World {
    fn of(files: &[u64], room: u64, phases: Vec<Phase>, seed: u64) -> World {
        let file = |pages: &u64| File {
            cached: vec![false; *pages as usize],
            mapped: vec![false; *pages as usize],
            used: vec![false; *pages as usize],
            is_mapped: true,
            ..File::default()
        };
        World {
            now: ms(1000),
            busy: ms(1000),
            waits: false,
            files: files.iter().map(file).collect(),
            queue: VecDeque::new(),
            count: 0,
            room,
            readahead: 32,
            latency: 100 * MICRO,
            counts_reads: true,
            phases: phases.into(),
            ends: Duration::ZERO,
            place: 0,
            left: 0,
            random: seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1,
            spent: Spent::default(),
            waited: Waited::default(),
            processor: Duration::ZERO,
            readers: true,
            made: None,
            asked: VecDeque::new(),
            most: 1,
            served: Duration::ZERO,
            brought: 0,
            log: BTreeMap::new(),
        }
    }

    fn rand(&mut self, below: u64) -> u64 {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        self.random % below
    }

    fn note(&mut self, file: usize, what: &'static str, at: u64, len: u64) {
        let key = (self.now.as_millis() as u64 / 100, file, what);
        let found = self.log.entry(key).or_insert((0, 0, 0xcbf2_9ce4_8422_2325));
        found.0 += 1;
        found.1 += len;
        for word in [self.now.as_nanos() as u64, at, len] {
            found.2 = (found.2 ^ word).wrapping_mul(0x0100_0000_01b3).rotate_left(17);
        }
    }

    fn bring(&mut self, file: usize, pages: Range<u64>) -> u64 {
        let mut brought = 0;
        for page in pages.start..pages.end.min(self.files[file].cached.len() as u64) {
            if !std::mem::replace(&mut self.files[file].cached[page as usize], true) {
                brought += 1;
                self.count += 1;
                self.queue.push_back((file, page));
            }
        }
        while self.count > self.room {
            let Some((file, page)) = self.queue.pop_front() else { break };
            let of = &mut self.files[file];
            if !of.cached[page as usize] {
                continue;
            }
            if std::mem::replace(&mut of.used[page as usize], false) {
                self.queue.push_back((file, page));
                continue;
            }
            (of.cached[page as usize], of.mapped[page as usize]) = (false, false);
            self.count -= 1;
        }
        brought
    }

    fn touch(&mut self, file: usize, page: u64) -> Duration {
        self.waits = false;
        if self.files[file].mapped[page as usize] {
            self.files[file].used[page as usize] = true;
            return MICRO;
        }
        self.waited.faults += 1;
        let mut cost = 2 * MICRO;
        if self.files[file].cached[page as usize] {
            self.spent.minor_faults += 1;
        } else {
            self.waits = true;
            let is_walk = self.files[file].next == page && !self.files[file].flags.random;
            let pages = match (self.files[file].flags.random, is_walk) {
                (true, _) => page..page + 1,
                (false, true) => page..page + self.readahead * 2,
                (false, false) => page.saturating_sub(self.readahead / 2)..page + self.readahead / 2,
            };
            self.files[file].next = pages.end;
            let read = self.bring(file, pages);
            if self.counts_reads {
                self.spent.read_bytes += read * PAGE;
            }
            cost = self.latency + 3 * MICRO * read as u32;
            if is_walk && self.latency < ms(1) {
                (cost, self.waits) = (3 * MICRO * read as u32, false);
                self.spent.minor_faults += 1;
            } else {
                self.spent.major_faults += 1;
                self.waited.slept += cost;
            }
        }
        let window = page / 16 * 16;
        for near in window..(window + 16).min(self.files[file].cached.len() as u64) {
            if self.files[file].cached[near as usize] && (near == page || !self.files[file].flags.random) {
                self.files[file].mapped[near as usize] = true;
            }
        }
        cost
    }

    fn does(&mut self) -> Duration {
        let Some(Phase { file, does, .. }) = self.phases.front().copied() else { return ms(1) };
        let pages = self.files[file].cached.len() as u64;
        let page = match does {
            Does::Nothing => return ms(1),
            Does::Unmap => {
                self.files[file].is_mapped = false;
                self.files[file].mapped.fill(false);
                self.files[file].flags = Flags::default();
                return ms(1);
            }
            Does::Map => {
                self.files[file].is_mapped = true;
                return ms(1);
            }
            Does::Random => self.rand(pages),
            Does::Pieces(len) => {
                self.left = self.left.saturating_sub(1);
                if self.left == 0 {
                    (self.left, self.place) = (len, self.rand(pages - len));
                }
                self.place += 1;
                self.place
            }
            Does::Walk(step) => self.walk(step, pages),
            Does::Loop(of) => self.walk(1, of.min(pages)),
            Does::Both(step) if self.rand(4) > 0 => self.walk(step, pages),
            Does::Both(_) => self.rand(pages),
            Does::Skewed if self.rand(4) > 0 => self.rand(pages / 10),
            Does::Skewed => self.rand(pages),
        };
        self.touch(file, page)
    }

    fn walk(&mut self, step: i64, pages: u64) -> u64 {
        let next = self.place as i64 + step;
        let is_wide = u64::from(step.abs() > 7);
        self.left += is_wide * u64::from(!(0..pages as i64).contains(&next));
        self.place = match next {
            next if next < 0 => pages - 1 - self.left % 16,
            next if next as u64 >= pages => self.left % 16,
            next => next as u64,
        };
        self.place
    }

    /// Goes on for a time, in which the program and the readers do.
    fn pass(&mut self, time: Duration) {
        let until = self.now + time;
        while self.busy <= until {
            while self.phases.front().is_some_and(|_| self.busy >= self.ends) {
                if !self.ends.is_zero() {
                    self.phases.pop_front();
                }
                let Some(next) = self.phases.front() else { break };
                self.ends = self.busy + next.lasts;
                self.place = self.files[next.file].cached.len() as u64 / 3;
                self.left = 0;
            }
            self.serve(self.busy);
            let cost = self.does();
            self.busy += cost;
        }
        self.serve(until);
        self.now = until;
    }

    fn serve(&mut self, until: Duration) {
        while let Some((file, run)) = self.asked.front().copied().filter(|_| self.served <= until) {
            self.asked.pop_front();
            let brought = self.bring(file, run.at..run.end());
            self.brought += brought * PAGE;
            let cost = (self.latency + MICRO * brought as u32) / self.most.max(1) as u32;
            self.served = self.served.max(self.now) + if brought > 0 { cost } else { MICRO };
        }
    }

    fn mapping(&self, file: usize) -> Mapping {
        let (pages, start) = (self.files[file].cached.len() as u64, (file as u64 + 1) << 36);
        Mapping {
            at: start..start + pages * PAGE,
            offset: 0,
            device: (8, 1),
            inode: file as u64 + 1,
            is_shared: true,
            is_writable: false,
            path: format!("/data/{file}"),
            pages,
            may_grow: false,
        }
    }

    fn file(&self, at: &Range<u64>) -> usize {
        (at.start >> 36) as usize - 1
    }
}

/// Where the mapping begins that this is of. Only its text has that, of which the beginning is enough.
fn begins_at(seen: &Seen) -> u64 {
    struct First(String);
    impl Write for First {
        fn write_str(&mut self, text: &str) -> std::fmt::Result {
            self.0.push_str(text);
            if self.0.len() < 40 { Ok(()) } else { Err(std::fmt::Error) }
        }
    }
    let mut first = First(String::new());
    let _ = write!(first, "{seen:?}");
    let mut numbers = first.0.split(|one: char| !one.is_ascii_digit()).filter(|word| !word.is_empty());
    numbers.next().unwrap().parse().unwrap()
}

#[derive(Clone)]
struct Shared(Rc<RefCell<World>>);

impl Samples for Shared {
    fn now(&self) -> Duration {
        self.0.borrow().now
    }

    fn processor_time(&self) -> Duration {
        self.0.borrow().processor
    }

    fn sleep(&mut self, time: Duration) {
        self.0.borrow_mut().pass(time);
    }

    fn spent(&mut self) -> Option<Spent> {
        let world = self.0.borrow();
        (!world.phases.is_empty()).then_some(world.spent)
    }

    fn mappings(&mut self) -> Vec<Mapping> {
        let world = self.0.borrow();
        (0..world.files.len()).filter(|file| world.files[*file].is_mapped).map(|file| world.mapping(file)).collect()
    }

    fn mappings_of(&mut self, device: (u64, u64), inode: u64) -> Vec<Mapping> {
        let mut found = self.mappings();
        found.retain(|one| (one.device, one.inode) == (device, inode));
        found
    }

    fn flags(&mut self, at: &[Range<u64>]) -> Option<Vec<Flags>> {
        let world = self.0.borrow();
        Some(at.iter().map(|at| world.files[world.file(at)].flags).collect())
    }

    fn has_pages(&mut self) -> bool {
        true
    }

    fn pages(&mut self, seen: &mut Seen, range: Range<u64>) -> Vec<Run> {
        let mut world = self.0.borrow_mut();
        let file = (begins_at(seen) >> 36) as usize - 1;
        let range = range.start..range.end.min(world.files[file].mapped.len() as u64);
        let (mut new, mut at) = (Vec::new(), range.start);
        while at < range.end {
            let is_mapped = world.files[file].mapped[at as usize];
            let alike = world.files[file].mapped[at as usize..range.end as usize].iter();
            let end = at + alike.take_while(|one| **one == is_mapped).count() as u64;
            seen.note(at..end, is_mapped, &mut new);
            at = end;
        }
        let cost = Duration::from_nanos(2000 + range.end.saturating_sub(range.start) / 2);
        world.processor += cost;
        world.pass(cost);
        new
    }

    fn for_files(&mut self) -> u64 {
        self.0.borrow().room * PAGE
    }

    fn readahead(&self, _: (u64, u64)) -> u64 {
        self.0.borrow().readahead
    }

    fn waited(&mut self) -> Waited {
        std::mem::take(&mut self.0.borrow_mut().waited)
    }

    fn is_blocked(&mut self) -> bool {
        self.0.borrow().waits
    }
}

impl Hand for Shared {
    fn advise(&mut self, mapping: &Mapping, advice: Advice) -> Made {
        let mut world = self.0.borrow_mut();
        let file = world.file(&mapping.at);
        let what = if advice == Advice::Random { "random" } else { "normal" };
        world.note(file, what, 0, mapping.pages);
        world.pass(80 * MICRO);
        if let Some(made) = &world.made {
            return made.clone();
        }
        world.files[file].flags.random = advice == Advice::Random;
        Made::Given(vec![mapping.at.clone()])
    }

    fn read_ahead(&mut self, mapping: &Mapping, pages: &Run) -> bool {
        let mut world = self.0.borrow_mut();
        let file = world.file(&mapping.at);
        world.note(file, "read ahead", pages.at, pages.len);
        world.bring(file, pages.at..pages.end());
        world.pass(3 * MICRO);
        !matches!(world.made, Some(Made::NotNow))
    }

    fn drop(&mut self, mapping: &Mapping, pages: &Run) -> bool {
        let mut world = self.0.borrow_mut();
        let file = world.file(&mapping.at);
        world.note(file, "drop", pages.at, pages.len);
        for page in pages.at..pages.end() {
            let of = &mut world.files[file];
            of.mapped[page as usize] = false;
            if std::mem::replace(&mut of.cached[page as usize], false) {
                world.count -= 1;
            }
        }
        world.made.is_none()
    }

    fn readers(&mut self) -> Option<&mut dyn Reading> {
        if self.0.borrow().readers { Some(self) } else { None }
    }
}

impl Reading for Shared {
    fn open(&mut self, _: &Mapping) -> Opened {
        Opened::Yes
    }

    fn bring(&mut self, mapping: &Mapping, pages: &Run, is_block: bool) {
        let mut world = self.0.borrow_mut();
        let file = world.file(&mapping.at);
        world.note(file, if is_block { "block" } else { "bring" }, pages.at, pages.len);
        world.asked.push_back((file, *pages));
    }

    fn allow(&mut self, most: usize) {
        let mut world = self.0.borrow_mut();
        if world.most != most {
            world.note(9, "at a time", 0, most as u64);
        }
        world.most = most;
    }

    fn state(&self) -> (usize, u64) {
        let world = self.0.borrow();
        (world.asked.len(), world.brought)
    }

    fn clear(&mut self) {
        let mut world = self.0.borrow_mut();
        world.note(9, "clear", 0, 0);
        world.asked.clear();
    }

    fn rest(&mut self) {}

    fn keep(&mut self, _: &dyn Fn((u64, u64), u64) -> bool) {}
}

/// Steers a program to its end. Returns what was done, in words.
fn steer(name: &str, world: World, settings: Settings) -> String {
    let shared = Shared(Rc::new(RefCell::new(world)));
    let report = Arc::new(Report::new());
    let ledger = Ledger::default();
    let (samples, hand) = (shared.clone(), shared.clone());
    let mut watcher = Watcher::new(samples, hand, settings, Arc::clone(&report), ledger, (1, 1));
    let (told, naps) = (RefCell::new(Vec::<String>::new()), shared.clone());
    watcher.run(|time| {
        naps.0.borrow_mut().pass(time.max(10 * MICRO));
        let (now, line) = (naps.0.borrow().now.as_millis() / 1000, report.text().unwrap_or_default());
        let line = format!("{now} s: {line}");
        if !line.ends_with(": ")
            && told.borrow().last().is_none_or(|last| last.split(' ').next() != line.split(' ').next())
        {
            told.borrow_mut().push(line);
        }
        true
    });
    watcher.undo();
    let (mut text, world) = (format!("== {name}\n"), shared.0.borrow());
    for ((tenth, file, what), (count, pages, hash)) in &world.log {
        let _ = writeln!(text, "{}.{} {file} {what} {count} {pages} {hash:016x}", tenth / 10, tenth % 10);
    }
    for line in told.borrow().iter() {
        let _ = writeln!(text, "{line}");
    }
    let (spent, pages) = (&world.spent, world.brought / PAGE);
    let _ = writeln!(text, "at {} ms: {spent:?}, {pages} brought", world.now.as_millis());
    let _ = writeln!(text, "{}", report.text().unwrap_or_default());
    text
}

/// Programs of phases that come from a seed.
fn mixed(seed: u64) -> World {
    let mut world = World::of(&[40_000, 25_000], 14_000, Vec::new(), seed);
    for _ in 0..7 {
        let (file, millis) = (world.rand(4) as usize / 3, 800 + world.rand(2500));
        let does = match world.rand(9) {
            0 | 1 => Does::Random,
            2 => Does::Walk(1),
            3 => Does::Walk(-1 - world.rand(3) as i64),
            4 => Does::Walk(8 + world.rand(40) as i64),
            5 => Does::Loop(17_000),
            6 => Does::Pieces(2 + world.rand(60)),
            7 => Does::Skewed,
            _ => Does::Both(1),
        };
        world.phases.push_back(phase(file, does, millis));
    }
    world.latency = MICRO * [60, 100, 400, 2000][world.rand(4) as usize];
    world.readahead = [32, 32, 128][world.rand(3) as usize];
    world
}

fn all() -> String {
    let of = |does, millis| World::of(&[60_000], 15_000, vec![phase(0, does, millis)], 7);
    let slow = |world: World| World { latency: ms(2), counts_reads: false, ..world };
    let plain = Settings::default();
    let fits = |does, millis| World::of(&[60_000], 90_000, vec![phase(0, does, millis)], 7);
    let dry = Settings { is_dry: true, ..plain };
    let mut text = String::new();
    let mut add = |name: &str, world, settings| text.push_str(&steer(name, world, settings));
    add("random", of(Does::Random, 6000), plain);
    add("random, dry", of(Does::Random, 3000), dry);
    add("random, refused", World { made: Some(Made::Refused), ..of(Does::Random, 6000) }, plain);
    add("random, not now", World { made: Some(Made::NotNow), ..of(Does::Random, 4000) }, plain);
    add("random in what fits", fits(Does::Random, 4000), plain);
    add("skewed", of(Does::Skewed, 6000), plain);
    add("walk", of(Does::Walk(1), 4000), plain);
    add("backward", of(Does::Walk(-1), 5000), plain);
    add("backward by three", of(Does::Walk(-3), 4000), plain);
    add("backward, dry", of(Does::Walk(-1), 2000), dry);
    add("backward, slow", World { latency: ms(1), ..of(Does::Walk(-1), 6000) }, plain);
    add("stride", of(Does::Walk(16), 6000), plain);
    add("stride of 40", of(Does::Walk(40), 6000), plain);
    add("stride backward", of(Does::Walk(-24), 6000), plain);
    add("stride, slow", World { latency: MICRO * 800, ..of(Does::Walk(16), 6000) }, plain);
    add("stride, dry", of(Does::Walk(16), 2000), dry);
    add("stride, that cannot be read ahead", World { made: Some(Made::NotNow), ..of(Does::Walk(16), 3000) }, plain);
    add("loop", of(Does::Loop(19_000), 8000), plain);
    add("loop of all", of(Does::Walk(1), 9000), plain);
    add("loop of a smaller file", World::of(&[19_000], 15_000, vec![phase(0, Does::Walk(1), 9000)], 7), plain);
    add(
        "loop, slow",
        World {
            latency: MICRO * 700,
            readahead: 8,
            ..World::of(&[22_000], 15_000, vec![phase(0, Does::Walk(1), 9000)], 7)
        },
        plain,
    );
    add(
        "loop without readers",
        World {
            readers: false,
            latency: ms(2),
            ..World::of(&[22_000], 15_000, vec![phase(0, Does::Walk(1), 9000)], 7)
        },
        plain,
    );
    add(
        "loop, refused",
        World { made: Some(Made::Refused), ..World::of(&[22_000], 15_000, vec![phase(0, Does::Walk(1), 9000)], 7) },
        plain,
    );
    add("load", slow(fits(Does::Walk(1), 5000)), plain);
    add("load, dry", slow(fits(Does::Walk(1), 2000)), dry);
    add("load, only", slow(fits(Does::Walk(1), 5000)), Settings { only_loads: true, ..plain });
    add("slow walk", slow(of(Does::Walk(1), 6000)), plain);
    add("slow walk, only loads", slow(of(Does::Walk(1), 5000)), Settings { only_loads: true, ..plain });
    add("slow random", slow(of(Does::Random, 8000)), plain);
    for len in [2, 8, 64, 512] {
        add(&format!("pieces of {len}"), of(Does::Pieces(len), 5000), plain);
    }
    add("both", of(Does::Both(1), 5000), plain);
    add("stride and random", of(Does::Both(16), 5000), plain);
    let overrides = Settings { overrides: true, ..plain };
    let mut advised = of(Does::Walk(1), 4000);
    advised.files[0].flags.random = true;
    add("walk, advised random, overridden", advised, overrides);
    let mut advised = of(Does::Random, 2000);
    advised.files[0].flags.random = true;
    add("random, advised", advised, plain);
    let turns = vec![
        phase(0, Does::Random, 2500),
        phase(0, Does::Walk(1), 1500),
        phase(0, Does::Random, 1500),
        phase(0, Does::Nothing, 5000),
        phase(0, Does::Random, 1500),
        phase(0, Does::Unmap, 1),
        phase(1, Does::Random, 1500),
        phase(0, Does::Map, 1),
        phase(0, Does::Random, 2000),
        phase(1, Does::Walk(-1), 2000),
    ];
    add("one after the other", World::of(&[60_000, 30_000], 15_000, turns, 3), plain);
    for seed in 1..=24 {
        add(&format!("seed {seed}"), mixed(seed), plain);
    }
    text
}

#[test]
fn what_was_decided_is_decided() {
    let place = concat!(env!("CARGO_MANIFEST_DIR"), "/traces/decisions");
    let found = all();
    if std::env::var_os("FASTMAP_RECORD").is_some() {
        std::fs::write(place, &found).unwrap();
    }
    let known = std::fs::read_to_string(place).unwrap();
    let mut of = "";
    for (index, (now, then)) in found.lines().zip(known.lines()).enumerate() {
        of = if now.starts_with("==") { now } else { of };
        assert_eq!(now, then, "line {} of {of}", index + 1);
    }
    assert_eq!(found.lines().count(), known.lines().count());
}
