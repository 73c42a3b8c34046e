//! The thread that looks, asks the controller, and has done what that says (`act.rs`).
//!
//! One a process, from its first large mapping of a file on, shared or private and not to be stored to; in a process of one thread from
//! the mapping on with which there is more mapped than a quarter of the memory left. While memory is not short it looks once a second, and
//! at nothing but the group's memory and the process's own account (getrusage(2)); without mappings it sleeps.
//! Which mappings there are is read from proc_pid_maps(5) when it matters, so that mmap(2) and munmap(2) cost the program nothing.

use super::act::advise_again;
use super::controller::Controller;
use super::known::{self, Noted};
use super::look::{Allowed, Look, Way};
use crate::by_address;
use crate::live;
use crate::live::placement::{self, PlacedBy, Placement};
use crate::map::cache::Cache;
use crate::store::one_writer;
use crate::sys::engine_fd;
use crate::sys::file::{self, Identity};
use crate::sys::lock::Guarded;
use crate::sys::maps::{self, FileMapping};
use crate::sys::memory_look::{MemoryLook, MemoryWatch};
use crate::sys::signal::Blocked;
use crate::sys::{fork, futex, threads};
use std::fmt;
use std::fs::File;
use std::mem::{ManuallyDrop, MaybeUninit};
use std::ops::Range;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd};
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// A file of which fewer bytes than this are mapped, by all mappings together, stays the kernel's.
const WORTH: u64 = 4 << 20;
/// And with no more than this its mappings are not looked after.
pub const SMALL: usize = 1 << 20;
/// Between two looks while memory is short, and while it is not.
const SOON: Duration = Duration::from_millis(250);
const LATER: Duration = Duration::from_secs(1);
/// So long after files were mapped looks are as frequent as while memory is short: it soon may be.
const NEW: Duration = Duration::from_secs(2);
/// And in the first second more so: what is read around in vain then is half of what a short-lived program does.
const AT_ONCE: Duration = Duration::from_millis(100);
const FIRST: Duration = Duration::from_secs(1);
/// Between two readings of the list of mappings.
const LIST: Duration = Duration::from_secs(2);

/// What is done with the cache.
pub type Then<'a> = &'a mut dyn FnMut(&Cache);

/// What the library around the engine has to do with it.
#[derive(Clone, Copy)]
pub struct Face {
    /// Calls its argument with the cache that files go to, unless the engine cannot be had (any more).
    pub with_cache: fn(Then<'_>),
    /// Says what was decided, a line each time.
    pub say: Option<fn(fmt::Arguments<'_>)>,
    /// For tests: the ways take turns, each for so long, and nothing is judged.
    pub turns: Option<Duration>,
    /// Only mappings that were made by the library are its business, and a file that has others too stays the kernel's: the library does
    /// not see what the program does with those.
    pub only_noted: bool,
    /// Mappings that are stored to are the engine's also where it may lose what is not flushed (`sys/survival.rs`).
    pub risks_stores: bool,
}

/// Counts what is mapped anew; a futex(2) word.
static NEWS: AtomicU32 = AtomicU32::new(0);
/// The process whose mappings are looked after; zero: none.
static WATCHED: AtomicU32 = AtomicU32::new(0);
/// The process whose thread looks; zero: none.
static WATCHER: AtomicU32 = AtomicU32::new(0);
/// The list of mappings is to be read anew.
static IS_OLD: AtomicBool = AtomicBool::new(false);
static DISMISSED: AtomicBool = AtomicBool::new(false);
/// A thread of the program has, or is about to have, a descriptor table of its own.
pub(super) static DIVIDED: AtomicBool = AtomicBool::new(false);

/// Looks after a file from now on that the kernel has mapped at `at`, `MAP_SHARED`, or `MAP_PRIVATE` and not to be stored to.
/// True: a thread looks. False: none does, since this process is another's child, or has no room for a thread, or is of one thread and
/// what it has mapped is little beside the memory that is left ([`is_put_off`]).
pub fn watch(fd: BorrowedFd<'_>, at: Range<usize>, face: Face) -> bool {
    if !may_watch() {
        return false;
    }
    // SAFETY: borrowed for as long as it is used here; never closed.
    let from = ManuallyDrop::new(unsafe { File::from_raw_fd(fd.as_raw_fd()) });
    let Ok(facts) = file::facts(&from) else { return false };
    // What a program that was killed had stored is there first.
    one_writer::wait_for_keeper(&from);
    let may_write = file::access_mode(&from) == libc::O_RDWR;
    known::forget_asked(&at);
    known::note(facts.identity, may_write);
    count_mapped(facts.size.min(at.len() as u64), face)
}

/// Looks after the file of a mapping that has grown (mremap(2)) by so many bytes, if it `is_wanted` by its path. Returns what [`watch`]
/// does.
pub fn watch_grown(at: usize, by: usize, face: Face, is_wanted: impl Fn(&Path) -> bool) -> bool {
    let all = if may_watch() { maps::own().unwrap_or_default() } else { Vec::new() };
    let path = all.iter().find(|one| one.at.contains(&at)).and_then(|one| one.path.as_deref());
    let Some(identity) = path.filter(|path| is_wanted(path)).and_then(file::identity_of) else { return false };
    // As far as is known here.
    known::note(identity, true);
    count_mapped(by as u64, face)
}

fn may_watch() -> bool {
    // From here on children are told from this process.
    !fork::is_child() && !DISMISSED.load(Ordering::Acquire) && fork::claim().is_ok()
}

/// Counts bytes of mappings that are looked after, and sees to it that a thread looks where that is worth it; whether one does.
fn count_mapped(bytes: u64, face: Face) -> bool {
    static MAPPED: AtomicU64 = AtomicU64::new(0);
    let own = std::process::id();
    WATCHED.store(own, Ordering::SeqCst);
    NEWS.fetch_add(1, Ordering::SeqCst);
    if WATCHER.load(Ordering::SeqCst) == own {
        futex::wake_all_shared(&NEWS);
        return true;
    }
    let mapped = MAPPED.fetch_add(bytes, Ordering::Relaxed) + bytes;
    (face.turns.is_some() || is_worth_a_thread(mapped)) && begin(face)
}

/// Whether to look after so many bytes of mappings is worth the process's second thread: from then on the C library's locks, and the
/// kernel's of the descriptor table, are real ones. Not unless memory could become short soon.
fn is_worth_a_thread(mapped: u64) -> bool {
    static MEMORY: OnceLock<Guarded<MemoryWatch>> = OnceLock::new();
    if threads::count() != Some(1) {
        return true;
    }
    let memory = MEMORY.get_or_init(|| Guarded::new(MemoryWatch::new()));
    mapped > memory.with(|memory| memory.look().headroom()) / 4
}

/// Has the mappings listed anew at the next look: what the program advised is left to us.
pub(super) fn list_anew() {
    IS_OLD.store(true, Ordering::Relaxed);
}

/// Starts the thread that looks, unless there is one. False: there is no room for it.
pub fn begin(face: Face) -> bool {
    let own = std::process::id();
    if WATCHER.swap(own, Ordering::SeqCst) == own {
        return true;
    }
    // It inherits the mask: no signal of the program's comes to it.
    let _blocked = Blocked::all();
    // It opens files and looks at other processes as the program's threads may.
    let body = threads::named_with_rights(move || Watch::new(face).run());
    let thread = std::thread::Builder::new().name("fastmap-place".into()).stack_size(256 << 10);
    let started = thread.spawn(body).is_ok();
    if !started {
        WATCHER.store(0, Ordering::SeqCst);
    }
    started
}

/// Whether anything is looked after: then calls of madvise(2) and its kin are to be told.
#[inline]
pub fn is_watching() -> bool {
    // In a child the thread is not, and may have held the lock when it was made.
    WATCHED.load(Ordering::Relaxed) != 0 && !fork::is_child()
}

/// Whether mappings are looked after by no thread yet, which is to [`begin`] once the program makes one itself.
#[inline]
pub fn is_put_off() -> bool {
    is_watching() && WATCHER.load(Ordering::Relaxed) == 0 && !DISMISSED.load(Ordering::Relaxed)
}

/// Before a thread of the program gets a descriptor table of its own (unshare(2)): files that the engine opens from then on could not be
/// given back by it. No more are taken over.
pub fn divide() {
    DIVIDED.store(true, Ordering::SeqCst);
}

/// Ends the thread; what it has done stays.
pub fn dismiss() {
    DISMISSED.store(true, Ordering::SeqCst);
    NEWS.fetch_add(1, Ordering::SeqCst);
    futex::wake_all_shared(&NEWS);
}

/// A file with mappings that are worth it.
pub(super) struct Candidate {
    pub(super) noted: Noted,
    pub(super) parts: Vec<FileMapping>,
    /// Bytes that there are of what is mapped.
    pub(super) bytes: u64,
    /// Bytes that the kernel reads around a miss.
    pub(super) around: u64,
}

impl Candidate {
    /// Whether the engine may have it.
    pub(super) fn is_fit(&self, face: Face) -> bool {
        !self.noted.unfit && (self.bytes >= WORTH || face.turns.is_some())
    }
}

/// What getrusage(2) says.
#[derive(Default, Clone, Copy)]
struct Account {
    user: Duration,
    major: u64,
    minor: u64,
    blocks: u64,
    misses: u64,
    refaults: u64,
}

pub(super) struct Watch {
    pub(super) face: Face,
    start: Instant,
    pub(super) controller: Controller,
    memory: MemoryWatch,
    now: MemoryLook,
    before: Account,
    pub(super) candidates: Vec<Candidate>,
    pub(super) listed: Option<Instant>,
    /// How long that took, and advice on it; and nothing has been done about what it found.
    pub(super) listing: Duration,
    pub(super) is_fresh: bool,
    news: u32,
    pub(super) way: Way,
    pub(super) taken: Vec<Identity>,
    resident: u64,
    pub(super) switches: u64,
    looking: Duration,
}

impl Watch {
    fn new(face: Face) -> Self {
        let _low = engine_fd::low();
        Watch {
            face,
            start: Instant::now(),
            controller: Controller::new(),
            memory: MemoryWatch::new(),
            now: MemoryLook::default(),
            before: Account::default(),
            candidates: Vec::new(),
            listed: None,
            listing: Duration::ZERO,
            is_fresh: false,
            news: 0,
            way: Way::Kernel,
            taken: Vec::new(),
            resident: 0,
            switches: 0,
            looking: Duration::ZERO,
        }
    }

    fn run(&mut self) {
        live::offer();
        self.note(0);
        self.before = self.account();
        let (mut seen, mut seen_at) = (0, self.start);
        while !DISMISSED.load(Ordering::Acquire) {
            let news = NEWS.load(Ordering::SeqCst);
            if std::mem::replace(&mut seen, news) != news {
                seen_at = Instant::now();
            }
            let mut nap = Some(LATER);
            if let Some(turn) = self.face.turns {
                self.take_turns(turn);
                std::thread::sleep(turn);
                continue;
            }
            let is_short = self.look(news);
            if seen_at.elapsed() < FIRST {
                nap = Some(AT_ONCE);
            } else if is_short || seen_at.elapsed() < NEW && !self.candidates.is_empty() {
                nap = Some(SOON);
            } else if self.listed.is_some() && self.candidates.is_empty() && self.taken.is_empty() {
                nap = None;
            }
            if let Some(nap @ (SOON | AT_ONCE)) = nap {
                // Not woken by each new mapping.
                std::thread::sleep(nap);
            } else {
                futex::wait_shared(&NEWS, news, nap);
                if nap.is_none() {
                    self.before = self.account();
                }
            }
        }
    }

    /// Lets others know what is so now.
    fn note(&self, watched_bytes: u64) {
        placement::note(Placement {
            way: Some(placed_by(self.way)),
            switches: self.switches,
            watched_bytes,
            taken_files: self.taken.len() as u64,
            looking: self.looking,
        });
    }

    /// Says a line, if lines are wanted.
    pub(super) fn tell(&self, what: fmt::Arguments<'_>) {
        if let Some(say) = self.face.say {
            say(format_args!("placement: {what}"));
        }
    }

    /// The next way, for tests.
    fn take_turns(&mut self, turn: Duration) {
        self.list();
        let turns = self.start.elapsed().as_nanos() / turn.as_nanos().max(1);
        self.act([Way::Engine, Way::Kernel, Way::Engine, Way::Advised][turns as usize % 4]);
    }

    /// One look; whether memory is short.
    fn look(&mut self, news: u32) -> bool {
        self.now = self.memory.look();
        let account = self.account();
        let since = Account {
            user: account.user.saturating_sub(self.before.user),
            major: account.major - self.before.major,
            minor: account.minor - self.before.minor,
            blocks: account.blocks - self.before.blocks,
            misses: account.misses.saturating_sub(self.before.misses),
            refaults: account.refaults.saturating_sub(self.before.refaults),
        };
        self.before = account;
        let reserve = (self.now.limit / 16).clamp(8 << 20, 256 << 20);
        let is_full = self.now.limit.saturating_sub(self.now.used) < reserve;
        let is_news = news != self.news;
        // Once in a while, to learn that nothing is left; and when it matters.
        let age = self.listed.map_or(Duration::MAX, |listed| listed.elapsed());
        // Of many mappings the list takes long: a twentieth of the time at most.
        let is_old = is_news || IS_OLD.load(Ordering::Relaxed);
        let is_due = age > LIST.max(self.listing * 20) || is_old && age > self.listing * 20;
        if age > LIST * 15 || (is_full || self.way != Way::Kernel) && is_due {
            self.list();
            if is_news {
                self.controller.mapped_anew();
            }
            self.news = news;
        }
        let mapped: u64 = self.candidates.iter().map(|one| one.bytes).sum();
        let others = self.now.used.saturating_sub(self.now.file + self.resident);
        let fits = mapped + others + reserve <= self.now.limit;
        let short = !fits && (is_full || self.way == Way::Engine) && !self.candidates.is_empty();
        let look = Look {
            at: self.start.elapsed(),
            user: since.user,
            major_faults: since.major,
            minor_faults: since.minor,
            misses: since.misses,
            refaults: since.refaults,
            read: since.blocks * 512,
            short,
            fits,
            mapped,
            around: self.candidates.iter().map(|one| one.around).max().unwrap_or(0),
        };
        let allowed = Allowed {
            advised: self.candidates.iter().any(|one| one.parts.is_empty() || known::may_learn(&one.parts)),
            engine: !DIVIDED.load(Ordering::SeqCst) && self.candidates.iter().any(|one| one.is_fit(self.face)),
        };
        let decision = self.controller.look(&look, allowed);
        if let Some(why) = &decision.why {
            let way = placed_by(decision.way).name();
            let (files, mebibytes, limit) = (self.candidates.len(), mapped >> 20, self.now.limit >> 20);
            self.tell(format_args!("{way}: {why} ({files} files, {mebibytes} MiB mapped, limit {limit} MiB)"));
        }
        self.act(decision.way);
        self.note(mapped);
        short || self.way != Way::Kernel
    }

    /// Reads which mappings there are of the files that are known.
    pub(super) fn list(&mut self) {
        self.listed = Some(Instant::now());
        IS_OLD.store(false, Ordering::Relaxed);
        let notes = known::notes();
        let Ok(all) = maps::own() else { return };
        self.candidates.clear();
        let is_engines = |identity: &Identity| by_address::bytes_of(*identity) > 0;
        let (taken, given_back): (Vec<_>, Vec<_>) = std::mem::take(&mut self.taken).into_iter().partition(is_engines);
        self.taken = taken;
        let noted = known::retain(notes, &all, &self.taken);
        for noted in noted {
            if self.taken.contains(&noted.identity) {
                // Its mappings are not in the list: they are the engine's.
                let bytes = by_address::bytes_of(noted.identity);
                self.candidates.extend((bytes > 0).then_some(Candidate { noted, parts: Vec::new(), bytes, around: 0 }));
                continue;
            }
            let Some(first) = known::first_of(&all, noted.identity) else { continue };
            let Some(Ok(status)) = first.path.as_deref().map(std::fs::metadata) else { continue };
            let parts: Vec<_> = all.iter().filter(|one| one.file == first.file).cloned().collect();
            let are_noted = || by_address::are_looked_after(noted.identity, parts.iter().map(|part| part.at.clone()));
            if self.face.only_noted && !are_noted() {
                continue;
            }
            if given_back.contains(&noted.identity) {
                advise_again(&parts);
            }
            let there = |one: &FileMapping| (one.at.len() as u64).min(status.size().saturating_sub(one.offset));
            let bytes = parts.iter().filter(|one| is_looked_after(one)).map(there).sum();
            if bytes > SMALL as u64 || self.face.turns.is_some() && bytes > 0 {
                let around = file::readahead(status.dev());
                self.candidates.push(Candidate { noted, parts, bytes, around });
            }
        }
        self.is_fresh = true;
        self.listing = self.listed.map_or(Duration::ZERO, |begun| begun.elapsed());
    }

    /// What the process has used so far, this thread apart.
    fn account(&mut self) -> Account {
        let usage = |who| {
            let mut usage = MaybeUninit::<libc::rusage>::zeroed();
            // SAFETY: getrusage(2) fills the structure.
            unsafe {
                libc::getrusage(who, usage.as_mut_ptr());
                usage.assume_init()
            }
        };
        let (all, own) = (usage(libc::RUSAGE_SELF), usage(libc::RUSAGE_THREAD));
        let time =
            |time: libc::timeval| Duration::from_secs(time.tv_sec as u64) + Duration::from_micros(time.tv_usec as u64);
        let user = |usage: &libc::rusage| time(usage.ru_utime);
        let system = |usage: &libc::rusage| time(usage.ru_stime);
        self.looking = user(&own) + system(&own);
        let mut misses = self.before.misses;
        if !self.taken.is_empty() {
            (self.face.with_cache)(&mut |cache| {
                let stats = cache.stats();
                misses = stats.misses + stats.ahead_chunks;
                self.resident = stats.resident_pages * crate::sys::PAGE as u64;
            });
        } else {
            self.resident = 0;
        }
        Account {
            user: user(&all).saturating_sub(user(&own)),
            major: all.ru_majflt as u64,
            minor: all.ru_minflt as u64,
            blocks: all.ru_inblock as u64,
            misses,
            refaults: self.now.refaults,
        }
    }
}

/// Whether a mapping is of a kind that is looked after.
pub(super) fn is_looked_after(one: &FileMapping) -> bool {
    one.prot & libc::PROT_EXEC == 0 && (one.is_shared || one.prot & libc::PROT_WRITE == 0)
}

/// As others are told.
fn placed_by(way: Way) -> PlacedBy {
    match way {
        Way::Kernel => PlacedBy::Kernel,
        Way::Advised => PlacedBy::Advised,
        Way::Engine => PlacedBy::Engine,
    }
}
