//! The page word: one atomic per page of a file, its states, and every legal transition.
//!
//! ```text
//! Absent ─begin_load─▶ Loading ─finish_load─▶ Clean ─begin_upgrade…finish_upgrade─▶ Dirty
//!    ▲                                          │ ▲                                  │
//!    └─finish_evict─ Evicting ◀─begin_evict─────┘ └─finish_write─ Clean+WRITING ◀────┘ begin_write
//! ```
//!
//! Beside these, `begin_expel` takes a Clean or Dirty page to Evicting when the file's length changes.
//!
//! Invariant that makes eviction safe: a page that is `Clean` with neither `WRITING` nor `UPGRADING` is
//! write-protected, so every store to it traps and finds the word first. Nothing outside this file changes a word.
//!
//! The word is 32 bits because threads sleep on it (futex(2)). A word of zero is `Absent`, so a fresh anonymous
//! mapping is an array of absent pages.

use crate::sync::{AtomicU32, Ordering};

const STATE: u32 = 0b111;
const ABSENT: u32 = 0;
const LOADING: u32 = 1;
const CLEAN: u32 = 2;
const DIRTY: u32 = 3;
const EVICTING: u32 = 4;
/// A thread sleeps until the state in flight (Loading, Evicting, UPGRADING) ends.
const WAITERS: u32 = 1 << 3;
/// A clean queue holds an entry for the page: at most one ever does.
const QUEUED: u32 = 1 << 4;
/// A thread is making the page writable; nobody else may drop it or begin to write it.
const UPGRADING: u32 = 1 << 5;
/// A write of the page to the file is in flight.
const WRITING: u32 = 1 << 6;

/// Loaded by a read as a control of a guess (see `habits.rs`), and not stored to since.
const CONTROL: u32 = 1 << 7;

/// Where a page is in its life.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum State {
    /// Not in memory.
    Absent,
    /// Claimed by a thread that reads it.
    Loading,
    /// In memory, same as the file.
    Clean,
    /// In memory, newer than the file.
    Dirty,
    /// Claimed by a thread that drops it.
    Evicting,
}

/// A value read from a page word.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Seen(u32);

impl Seen {
    /// The state part.
    pub fn state(self) -> State {
        match self.0 & STATE {
            ABSENT => State::Absent,
            LOADING => State::Loading,
            CLEAN => State::Clean,
            DIRTY => State::Dirty,
            _ => State::Evicting,
        }
    }

    /// The page may hold stores that the file does not: it is dirty, on its way to the file, being made writable, or saved
    /// and taken out of memory in one go (`begin_expel`). For whoever finds the word after the threads that moved it have
    /// died.
    pub fn may_hold_stores(self) -> bool {
        matches!(self.state(), State::Dirty | State::Evicting) || self.0 & (WRITING | UPGRADING) != 0
    }

    /// Another thread is making the page writable.
    pub fn is_upgrading(self) -> bool {
        self.0 & UPGRADING != 0
    }
}

/// What a page's owner has to do after giving it back.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct After {
    /// Threads sleep on the word: wake them.
    pub wake: bool,
    /// The page is clean and no queue knows it: push it.
    pub enqueue: bool,
    /// The page became dirty with this transition: count it.
    pub newly_dirty: bool,
    /// It was the first store to a control page.
    pub control_stored: bool,
}

/// The state of one page of a file.
#[derive(Debug)]
#[repr(transparent)]
pub struct PageWord(AtomicU32);

impl PageWord {
    /// An absent page.
    #[cfg(loom)]
    pub fn new() -> Self {
        PageWord(AtomicU32::new(ABSENT))
    }

    /// The current value. Acquire: pairs with the release of whichever transition made it.
    #[inline]
    pub fn look(&self) -> Seen {
        Seen(self.0.load(Ordering::Acquire))
    }

    /// Absent → Loading, by a thread that missed. On true the caller alone reads and installs the page, then calls
    /// `finish_load` or `abort_load`. Acquire pairs with `finish_evict`: the old mapping is gone.
    #[inline]
    pub fn begin_load(&self) -> bool {
        self.0.compare_exchange(ABSENT, LOADING, Ordering::Acquire, Ordering::Relaxed).is_ok()
    }

    /// Announces, by the loader, that it installs the page writable. From here on a writer that finds the page's dirty bit
    /// waits for `finish_load`: another thread may store to the page, and flush, before this thread gets there.
    #[inline]
    pub fn begin_writable_install(&self) {
        let old = self.0.fetch_or(UPGRADING, Ordering::AcqRel);
        debug_assert_eq!(old & (STATE | UPGRADING), LOADING);
    }

    /// Loading → Clean (installed write-protected) or Dirty (installed writable, for a store or in expectation of one), by
    /// the loader. Release hands the installed page to whoever looks.
    #[inline]
    pub fn finish_load(&self, writable: bool, control: bool) -> After {
        let next = match (writable, control) {
            (true, _) => DIRTY,
            (false, false) => CLEAN | QUEUED,
            (false, true) => CLEAN | QUEUED | CONTROL,
        };
        let old = self.0.swap(next, Ordering::AcqRel);
        debug_assert_eq!(old & STATE, LOADING);
        After { wake: old & WAITERS != 0, enqueue: !writable, newly_dirty: writable, ..After::default() }
    }

    /// Loading → Absent, by the loader whose read failed.
    pub fn abort_load(&self) -> After {
        let old = self.0.swap(ABSENT, Ordering::AcqRel);
        debug_assert_eq!(old & STATE, LOADING);
        After { wake: old & WAITERS != 0, ..After::default() }
    }

    /// Sets UPGRADING on a resident page, by a thread whose store trapped and that saw `seen`. On true the caller sets
    /// the dirty bit, makes the page writable and calls `finish_upgrade`; until then no write or eviction begins. A page
    /// already dirty can trap once more (a trap taken before another thread's upgrade and a write in between), so
    /// dirty pages are accepted.
    #[inline]
    pub fn begin_upgrade(&self, seen: Seen) -> bool {
        debug_assert!(matches!(seen.state(), State::Clean | State::Dirty) && !seen.is_upgrading());
        self.0.compare_exchange(seen.0, seen.0 | UPGRADING, Ordering::AcqRel, Ordering::Relaxed).is_ok()
    }

    /// Ends `begin_upgrade`: the page is writable and Dirty. Release: a writer that sees Dirty without UPGRADING
    /// protects after this thread's unprotect, never before.
    #[inline]
    pub fn finish_upgrade(&self) -> After {
        let next = |word: u32| word & !(STATE | UPGRADING | WAITERS | CONTROL) | DIRTY;
        let old = self.update(|word| Some(next(word))).unwrap_or_else(|word| word);
        debug_assert!(old & UPGRADING != 0);
        After {
            wake: old & WAITERS != 0,
            enqueue: false,
            newly_dirty: old & STATE == CLEAN,
            control_stored: old & CONTROL != 0,
        }
    }

    /// Dirty → Clean+WRITING, by a writer that holds the block's lock and took the page's dirty bit. On true the
    /// caller write-protects the page, writes it to the file and calls `finish_write`; a store after the protection
    /// makes it Dirty again while the write is in flight. On false someone upgrades the page at this moment, or it is
    /// not dirty.
    pub fn begin_write(&self) -> bool {
        self.update(|word| (word & (STATE | UPGRADING | WRITING) == DIRTY).then_some(word & !STATE | CLEAN | WRITING))
            .is_ok()
    }

    /// Ends `begin_write`. Saved: drops WRITING, and if no store came meanwhile the page may be evicted. Not saved: the
    /// page is Dirty again, whatever came meanwhile.
    pub fn finish_write(&self, saved: bool) -> After {
        let next = |word: u32| match (saved, word & STATE) {
            (true, CLEAN) if word & UPGRADING == 0 => word & !WRITING | QUEUED,
            (true, _) => word & !WRITING,
            (false, _) => word & !(WRITING | STATE) | DIRTY,
        };
        let old = self.update(|word| Some(next(word))).unwrap_or_else(|word| word);
        debug_assert!(old & WRITING != 0);
        After {
            wake: false,
            enqueue: next(old) & QUEUED != 0 && old & QUEUED == 0,
            newly_dirty: next(old) & STATE == DIRTY && old & STATE == CLEAN,
            control_stored: false,
        }
    }

    /// Clean → Evicting, by a thread that popped the page's entry from a clean queue; the entry is spent either way. On true
    /// the caller drops the memory and calls `finish_evict`. On false the page may not go (dirty, being written, being
    /// stored to); it comes back to a queue when its write ends.
    #[inline]
    pub fn begin_evict(&self) -> bool {
        let may_go = |word: u32| word & (STATE | UPGRADING | WRITING) == CLEAN;
        let old = self.update(|word| Some(if may_go(word) { EVICTING } else { word & !QUEUED }));
        may_go(old.unwrap_or_else(|word| word))
    }

    /// Evicting → Absent, by the evictor, after the memory is gone. Release pairs with `begin_load`.
    #[inline]
    pub fn finish_evict(&self) -> After {
        let old = self.0.swap(ABSENT, Ordering::AcqRel);
        debug_assert_eq!(old & STATE, EVICTING);
        After { wake: old & WAITERS != 0, ..After::default() }
    }

    /// Clean or Dirty → Evicting, for a page that must leave memory however often it is stored to; true when it was Dirty.
    /// By a thread that holds the block's lock and keeps every evictor out; it removes the page's queue entry, protects the
    /// page, writes what was dirty, drops the memory and calls `finish_evict`, or `abort_expel`. A store after the protection
    /// traps and waits. Whether it was dirty, and whether it has an entry, or will have in a moment; `None` when someone else is
    /// at work on the page, or it is not there.
    pub fn begin_expel(&self) -> Option<(bool, bool)> {
        let may_go = |word: u32| matches!(word & STATE, CLEAN | DIRTY) && word & (UPGRADING | WRITING) == 0;
        let old = self.update(|word| may_go(word).then_some(word & !(STATE | QUEUED) | EVICTING));
        old.ok().map(|old| (old & STATE == DIRTY, old & QUEUED != 0))
    }

    /// Evicting → Dirty, by the thread of `begin_expel` that could not save the page; it sets the dirty bit before.
    pub fn abort_expel(&self) -> After {
        let old = self.0.swap(DIRTY, Ordering::AcqRel);
        debug_assert_eq!(old & STATE, EVICTING);
        After { wake: old & WAITERS != 0, newly_dirty: true, ..After::default() }
    }

    /// Announces a sleeper on the value `seen`, whose transition in flight will wake it; returns the value to sleep on,
    /// or `None` when the word has moved on.
    pub fn announce_waiter(&self, seen: Seen) -> Option<u32> {
        debug_assert!(matches!(seen.state(), State::Loading | State::Evicting) || seen.is_upgrading());
        let waiting = seen.0 | WAITERS;
        self.0.compare_exchange(seen.0, waiting, Ordering::AcqRel, Ordering::Relaxed).ok().map(|_| waiting)
    }

    /// The word itself, to sleep on and wake.
    pub fn futex(&self) -> &AtomicU32 {
        &self.0
    }

    #[inline]
    fn update(&self, next: impl Fn(u32) -> Option<u32>) -> Result<u32, u32> {
        self.0.fetch_update(Ordering::AcqRel, Ordering::Acquire, next)
    }
}
