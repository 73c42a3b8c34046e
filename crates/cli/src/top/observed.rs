//! Observes in /proc one process that has large files mapped: the last two looks, and the rates between them.
//!
//! An observation is one long look, which counts what came since the last one, and two short looks after it, which tell the order of touches.

use std::time::{Duration, Instant};

use fastmap_steer::Looks;
use fastmap_steer::observe::{Effort, Mapping, Mappings, Memory, Pages, Process, Seen, Spent, Waits};

use super::advice::Facts;
use super::pattern::Pattern;

/// A long look that took this long or longer has no short looks after it.
const CHEAP: Duration = Duration::from_millis(5);
/// The pause between long looks is at least this many times as long as a look, so that looks take at most a hundredth of a processor.
const EFFORT: u32 = 100;
/// Bytes of a page.
pub const PAGE: u64 = 4096;

/// The thread or process that steers a process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Steered {
    /// A thread of the process itself.
    Thread,
    /// The FastMap process with this number, from outside.
    By(u32),
}

/// The counters of a process at a look.
#[derive(Debug, Clone, Copy)]
pub struct Totals {
    taken: Instant,
    /// Faults and bytes read since the process began.
    pub spent: Spent,
    /// Since the watch began: for each interval, the pages that were newly mapped, or the faults that waited, whichever is more.
    pub touched_pages: u64,
    /// Since the watch began: minor and major faults, and the time that threads with faults waited.
    pub faults: u64,
    pub blocked: Duration,
    /// Since its memory group was made: pages that the group read again soon after they were dropped.
    pub refaults: Option<u64>,
}

/// The rates between two looks, per second.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Rates {
    pub seconds: f64,
    pub waited_faults: f64,
    pub read_bytes: f64,
    pub touched_bytes: f64,
    pub refaults: Option<f64>,
    /// Seconds per second that threads with faults waited.
    pub blocked: f64,
    /// The time that one fault waited, on average.
    pub wait: Option<Duration>,
}

/// A mapping, with the pages that are mapped and the runs that were new in the three looks.
pub struct Mapped {
    pub mapping: Mapping,
    seen: Seen,
    new: Looks,
}

/// A file of a process, with all mappings of the file.
#[derive(Debug, Clone, PartialEq)]
pub struct OfFile {
    pub path: String,
    pub is_writable: bool,
    pub mapped_bytes: u64,
    /// Bytes that are mapped in the page tables now, and so in memory. `None` if the page tables may not be read.
    pub resident_bytes: Option<u64>,
}

/// One process and the last two looks at it.
pub struct Observed {
    process: Process,
    name: String,
    effort: Effort,
    waits: Waits,
    memory: Memory,
    mappings: Mappings,
    pages: Option<Pages>,
    files: Vec<Mapped>,
    now: Totals,
    before: Option<Totals>,
    /// Pages that were newly mapped since the last count.
    new_pages: u64,
    /// The number of the last looks, one long and two short, that saw a thread wait for storage.
    blocked_looks: u32,
    /// Since the last long look, a fault waited, or a thread was seen to wait for storage. Otherwise threads have slept for other reasons.
    may_have_waited: bool,
    room_bytes: u64,
    pattern: Pattern,
    pub steered: Option<Steered>,
    /// The time that the last long look took.
    cost: Duration,
    /// The last long look was made. It is left out if looks would cost too much.
    is_fresh: bool,
    looks: u32,
}

/// The mappings of data files. The program's own file is left out, although a part of it is mapped as data.
fn data_of(process: Process, mut found: Vec<Mapping>) -> Vec<Mapping> {
    if let Ok(program) = std::fs::read_link(format!("/proc/{}/exe", process.pid)) {
        found.retain(|one| std::path::Path::new(&one.path) != program);
    }
    found
}

fn bytes_of(found: &[Mapping]) -> u64 {
    found.iter().map(Mapping::bytes).sum()
}

impl Observed {
    /// `None` if the process maps less than `least` bytes, or this user may not look at it.
    pub fn new(process: Process, least: u64) -> Option<Observed> {
        let mut mappings = Mappings::of(&process.pid.to_string());
        if bytes_of(&data_of(process, mappings.look())) < least {
            return None;
        }
        let spent = Spent::default();
        let taken = Instant::now();
        let now = Totals { taken, spent, touched_pages: 0, faults: 0, blocked: Duration::ZERO, refaults: None };
        Some(Observed {
            process,
            name: process.name(),
            effort: Effort::of(process.pid),
            waits: Waits::of(process.pid),
            memory: Memory::of(process.pid),
            mappings,
            pages: Pages::of(&process.pid.to_string()),
            files: Vec::new(),
            now,
            before: None,
            new_pages: 0,
            blocked_looks: 0,
            may_have_waited: false,
            room_bytes: u64::MAX,
            pattern: Pattern::Idle,
            steered: None,
            cost: Duration::ZERO,
            is_fresh: false,
            looks: 0,
        })
    }

    /// Reads the list of mappings. Returns `false` if they have less than `least` bytes.
    pub fn list(&mut self, least: u64) -> bool {
        let found = data_of(self.process, self.mappings.look());
        let is_large = bytes_of(&found) >= least;
        let mut before = std::mem::take(&mut self.files);
        for mapping in found {
            // A mapping whose file has grown counts as a new mapping.
            let key = |one: &Mapping| (one.at.clone(), one.inode, one.pages);
            let is_same = |one: &Mapped| key(&one.mapping) == key(&mapping);
            match before.iter().position(is_same) {
                Some(index) => self.files.push(before.swap_remove(index)),
                None => {
                    let mut seen = Seen::nothing(mapping.at.start, mapping.pages);
                    // Pages that are mapped before the first look do not count as new.
                    if let Some(pages) = &mut self.pages {
                        pages.look(&mut seen, 0..mapping.pages);
                    }
                    self.files.push(Mapped { mapping, seen, new: Looks::default() });
                }
            }
        }
        is_large
    }

    /// Takes the long look. Returns `false` if the process has ended.
    pub fn look(&mut self) -> bool {
        let began = Instant::now();
        self.files.iter_mut().for_each(|one| one.new = Looks::default());
        // The first two looks are always made, so that there are figures soon.
        self.is_fresh = self.looks < 2 || began >= self.now.taken + self.cost * EFFORT;
        if !self.is_fresh {
            return self.process.is_there();
        }
        let Some(spent) = self.effort.look() else { return false };
        self.name = self.process.name();
        self.new_pages += self.look_at_pages(0);
        let before = (self.looks > 0).then_some(self.now);
        let since = spent.since(&self.now.spent);
        let is_blocked = since.major_faults + since.minor_faults > 0 && self.waits.is_blocked();
        self.may_have_waited = since.major_faults > 0 || is_blocked || self.blocked_looks > 0;
        self.now = self.count(spent);
        self.before = before;
        self.room_bytes = self.memory.for_files();
        self.blocked_looks = u32::from(is_blocked);
        self.cost = began.elapsed();
        self.looks += 1;
        true
    }

    /// The counters now: the last ones, and what came since.
    fn count(&mut self, spent: Spent) -> Totals {
        let (before, waited) = (self.now, self.waits.waited());
        let taken = Instant::now();
        let refaults = self.memory.refaults();
        if self.looks == 0 {
            self.new_pages = 0;
            return Totals { taken, spent, refaults, ..before };
        }
        let slept = if self.may_have_waited { waited.slept } else { Duration::ZERO };
        let touched = std::mem::take(&mut self.new_pages).max(spent.since(&before.spent).major_faults);
        Totals {
            taken,
            spent,
            touched_pages: before.touched_pages + touched,
            faults: before.faults + waited.faults,
            blocked: before.blocked + waited.blocked.unwrap_or(slept),
            refaults,
        }
    }

    fn look_at_pages(&mut self, look: usize) -> u64 {
        let Some(pages) = &mut self.pages else { return 0 };
        let mut count = 0;
        for one in &mut self.files {
            let new = pages.look(&mut one.seen, 0..one.mapping.pages);
            count += new.iter().map(|run| run.len).sum::<u64>();
            match look {
                0 => one.new.before = new,
                1 => one.new.first = new,
                _ => one.new.second = new,
            }
        }
        count
    }

    /// Takes the first (1) or the second (2) short look.
    pub fn look_shortly(&mut self, look: usize) {
        self.new_pages += self.look_at_pages(look);
        self.blocked_looks += u32::from(self.waits.is_blocked());
    }

    /// Whether the process had faults between the last two long looks.
    fn is_busy(&self) -> bool {
        let since = |before: Totals| self.now.spent.since(&before.spent);
        self.before.map(since).is_some_and(|since| since.major_faults + since.minor_faults > 0)
    }

    /// Whether short looks may show something, and are cheap.
    pub fn is_at_work(&self) -> bool {
        self.is_fresh && self.is_busy() && self.cost < CHEAP
    }

    /// Determines the pattern, after the three looks. It is the pattern of the mapping with the most new pages.
    pub fn judge(&mut self) {
        if self.before.is_none() || !self.is_fresh {
            return;
        }
        let is_slow = self.is_slow();
        let most = self.files.iter().max_by_key(|one| one.new.pages());
        self.pattern = most.map_or(Pattern::Idle, |one| {
            Pattern::of(&one.new, is_slow, one.mapping.offset / PAGE, |page| one.seen.has(page))
        });
    }

    fn is_slow(&self) -> bool {
        let facts = self.facts();
        facts.fits() && facts.is_slow()
    }

    /// Whether the process was not looked at yet.
    pub fn is_new(&self) -> bool {
        self.looks == 0
    }

    pub fn pid(&self) -> u32 {
        self.process.pid
    }

    pub fn name(&self) -> &str {
        &self.name
    }

    pub fn totals(&self) -> &Totals {
        &self.now
    }

    pub fn pattern(&self) -> Pattern {
        self.pattern
    }

    pub fn mapped_bytes(&self) -> u64 {
        self.files.iter().map(|one| one.mapping.bytes()).sum()
    }

    /// Bytes of data files that are mapped in the page tables now. `None` if the page tables may not be read.
    pub fn resident_bytes(&self) -> Option<u64> {
        self.pages.as_ref().map(|_| self.files.iter().map(|one| one.seen.count() * PAGE).sum())
    }

    /// The files of the process, those with the most mapped bytes first.
    pub fn files(&self) -> Vec<OfFile> {
        let mut all: Vec<OfFile> = Vec::new();
        for one in &self.files {
            let mapped = one.mapping.bytes();
            let resident = self.pages.as_ref().map(|_| one.seen.count() * PAGE);
            match all.iter_mut().find(|file| file.path == one.mapping.path) {
                Some(file) => {
                    file.mapped_bytes += mapped;
                    file.resident_bytes = file.resident_bytes.zip(resident).map(|(one, other)| one + other);
                    file.is_writable |= one.mapping.is_writable;
                }
                None => all.push(OfFile {
                    path: one.mapping.path.clone(),
                    is_writable: one.mapping.is_writable,
                    mapped_bytes: mapped,
                    resident_bytes: resident,
                }),
            }
        }
        all.sort_by_key(|file| std::cmp::Reverse(file.mapped_bytes));
        all
    }

    /// The rates between the last two looks. `None` after the first look.
    pub fn rates(&self) -> Option<Rates> {
        rates(&self.now, self.before.as_ref()?)
    }

    /// The facts that advice depends on.
    fn facts(&self) -> Facts {
        let rates = self.rates();
        let of = |rate: fn(&Rates) -> f64| rates.as_ref().map_or(0.0, rate);
        Facts {
            pid: self.pid(),
            pattern: self.pattern,
            waited_faults: of(|rates| rates.waited_faults),
            read_bytes: of(|rates| rates.read_bytes),
            read_per_touched: rates.and_then(|rates| rates.read_per_touched()),
            wait: rates.and_then(|rates| rates.wait),
            is_blocked: self.blocked_looks >= 2,
            refaults: rates.and_then(|rates| rates.refaults),
            mapped_bytes: self.mapped_bytes(),
            room_bytes: self.room_bytes,
            is_steered: self.steered.is_some(),
        }
    }

    /// The line of advice, if there is any.
    pub fn advice(&self) -> Option<String> {
        self.facts().advice()
    }
}

fn rates(now: &Totals, before: &Totals) -> Option<Rates> {
    let seconds = now.taken.saturating_duration_since(before.taken).as_secs_f64();
    if seconds <= 0.0 {
        return None;
    }
    let spent = now.spent.since(&before.spent);
    let blocked = now.blocked.saturating_sub(before.blocked);
    let faults = u32::try_from(now.faults.saturating_sub(before.faults)).unwrap_or(u32::MAX);
    let refaults = now.refaults.zip(before.refaults).map(|(now, before)| now.saturating_sub(before) as f64 / seconds);
    Some(Rates {
        seconds,
        waited_faults: spent.major_faults as f64 / seconds,
        read_bytes: spent.read_bytes as f64 / seconds,
        touched_bytes: (now.touched_pages.saturating_sub(before.touched_pages) * PAGE) as f64 / seconds,
        refaults,
        blocked: blocked.as_secs_f64() / seconds,
        wait: (faults > 0).then(|| blocked / faults),
    })
}

impl Rates {
    /// Bytes read for each byte touched.
    pub fn read_per_touched(&self) -> Option<f64> {
        (self.touched_bytes > 0.0).then(|| self.read_bytes / self.touched_bytes)
    }
}

#[cfg(test)]
pub mod tests {
    use super::*;

    /// A process that maps one file, with two looks a second apart.
    pub fn made_up(pid: u32, name: &str) -> Observed {
        let process = Process { pid, began: 7 };
        let at = 0x7f00_0000_0000..0x7f00_0400_0000;
        let mapping = Mapping {
            at: at.clone(),
            offset: 0,
            device: (8, 1),
            inode: 12,
            is_shared: true,
            is_writable: false,
            path: "/data/db".into(),
            pages: 16384,
            may_grow: false,
        };
        let spent = |major_faults, read_bytes| Spent { major_faults, minor_faults: 0, read_bytes };
        let later = Instant::now();
        let before = Totals {
            taken: later,
            spent: spent(1000, 1 << 30),
            touched_pages: 0,
            faults: 0,
            blocked: Duration::ZERO,
            refaults: Some(50),
        };
        let now = Totals {
            taken: later + Duration::from_secs(1),
            spent: spent(1512, (1 << 30) + (64 << 20)),
            touched_pages: 1024,
            faults: 512,
            blocked: Duration::from_millis(512),
            refaults: Some(250),
        };
        Observed {
            process,
            name: name.into(),
            effort: Effort::of(pid),
            waits: Waits::of(pid),
            memory: Memory::of(pid),
            mappings: Mappings::of("none"),
            pages: Pages::of("self"),
            files: vec![Mapped { mapping, seen: Seen::nothing(at.start, 16384), new: Looks::default() }],
            now,
            before: Some(before),
            new_pages: 0,
            blocked_looks: 2,
            may_have_waited: true,
            room_bytes: 16 << 20,
            pattern: Pattern::Scattered,
            steered: None,
            cost: Duration::ZERO,
            is_fresh: true,
            looks: 2,
        }
    }

    #[test]
    fn rates_are_what_came_between_two_looks() {
        let one = made_up(7, "db");
        let rates = one.rates().unwrap();
        assert_eq!((rates.seconds, rates.waited_faults), (1.0, 512.0));
        assert_eq!((rates.read_bytes, rates.touched_bytes), ((64 << 20) as f64, (4 << 20) as f64));
        assert_eq!((rates.read_per_touched(), rates.refaults), (Some(16.0), Some(200.0)));
        assert_eq!((rates.blocked, rates.wait), (0.512, Some(Duration::from_millis(1))));
        assert_eq!(one.advice().unwrap(), "reads 16 MB for each MB touched: `fastmap attach 7`");
        assert_eq!(Observed { before: None, ..made_up(7, "db") }.rates(), None);
        let steered = Observed { steered: Some(Steered::Thread), ..made_up(7, "db") };
        assert_eq!(steered.advice(), None);
    }

    #[test]
    fn mappings_of_one_file_are_one() {
        let mut one = made_up(7, "db");
        one.files.extend(made_up(7, "db").files);
        assert_eq!((one.files().len(), one.files()[0].mapped_bytes), (1, 128 << 20));
    }
}
