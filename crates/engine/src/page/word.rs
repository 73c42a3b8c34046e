//! The page word: one atomic per page of a file, its states, and every legal transition.
//!
//! ```text
//! Absent ─begin_load─▶ Loading ─finish_load─▶ Clean ─begin_upgrade…finish_upgrade─▶ Dirty
//!    ▲                                          │ ▲                                  │
//!    └─finish_evict─ Evicting ◀─begin_evict─────┘ └─finish_write─ Clean+WRITING ◀────┘ begin_write
//! ```
//!
//! Beside these, `begin_invalidate` takes a Clean or Dirty page to Evicting for a file operation, and a page that is
//! read ahead goes from Loading to Staged (`stage`), and from there to Clean or Dirty (`finish_load`) or back to Absent
//! (`unstage`). Who may do that to a Staged page is who has claimed the slot that its word names (`staging.rs`).
//!
//! A page that is stored to before it is read (`deferred/`) goes from Loading to Unfilled (`publish_unfilled`) or Buffered (`buffer`), and
//! by the fill thread alone from there, through Loading, to Dirty: `begin_merge`, `hold` and `begin_fill`, `finish_load`.
//!
//! Invariant that makes eviction safe: a page that is `Clean` with neither `WRITING` nor `UPGRADING` is
//! write-protected, so every store to it traps and finds the word first. Nothing outside this file changes a word.
//!
//! *Pins* are counted in Clean and Dirty words, and only there: `begin_evict` and `begin_invalidate` refuse a pinned page, all
//! that happens to one keeps its counts, and so no transition out of another state ever meets any. A page with *write pins*
//! is Dirty and writable, always: they come under its block's write lock only (`pin_for_writing`), and writers leave it so.
//!
//! Invariant that makes it found: a page that is `Clean` with neither flag and without pins has an entry in a clean queue,
//! or somebody who is about to push it (`QUEUED`). An entry may outlive the page: what is claimed for a file operation
//! (`begin_invalidate`) leaves its entry where it is, and the word says so (`QUEUED`, also in Absent, Loading and Staged words)
//! until somebody pops the entry or the page is back.
//!
//! The word is 32 bits because threads sleep on it (futex(2)). A word of zero is `Absent`, so a fresh anonymous
//! mapping is an array of absent pages. An absent page that was evicted keeps a ghost in the bits above the flags
//! (`pool/replacement.rs`).

use crate::sys::sync::{AtomicU32, Ordering};

const STATE: u32 = 0b111;
const ABSENT: u32 = 0;
const LOADING: u32 = 1;
const CLEAN: u32 = 2;
const DIRTY: u32 = 3;
const EVICTING: u32 = 4;
const STAGED: u32 = 5;
const UNFILLED: u32 = 6;
const BUFFERED: u32 = 7;
/// A thread sleeps until the state in flight (Loading, Evicting, UPGRADING) ends.
const WAITERS: u32 = 1 << 3;
/// A clean queue holds an entry for the page: at most one ever does.
const QUEUED: u32 = 1 << 4;
/// A thread is making the page writable; nobody else may drop it or begin to write it.
const UPGRADING: u32 = 1 << 5;
/// A write of the page to the file is in flight.
const WRITING: u32 = 1 << 6;

/// Loaded by a read as a sample of a prediction (see `region/prediction.rs`), and not stored to since.
const SAMPLE: u32 = 1 << 7;
/// In Unfilled and Buffered words: the last read failed.
const FAILED: u32 = 1 << 7;
/// Mapped with a huge frame, and leaves memory with it: the frame has the queue entry, the page has none. In a Loading word: nobody loads
/// the page; the memory of its word goes back to the kernel, and with that it is Absent.
const HUGE: u32 = 1 << 8;
/// The page came back soon after it was evicted: its queue is the long one. In an absent page: it was.
const PROTECTED: u32 = 1 << 9;
/// Where an absent page's ghost has its stamp; zero is none.
const STAMP_SHIFT: u32 = 10;
/// Where the number of a Staged or Buffered page's slot begins, or one more than that of a Loading page's reader.
const SLOT_SHIFT: u32 = 10;

/// Pins that keep the page in memory, counted in bits 10 to 21.
const PIN: u32 = 1 << 10;
const PINS: u32 = 0xFFF * PIN;
/// Pins that keep it writable, too, counted in bits 22 to 31 and nowhere else.
const WRITE_PIN: u32 = 1 << 22;
const WRITE_PINS: u32 = 0x3FF * WRITE_PIN;
/// Neither dirty, nor written, nor stored to, nor pinned when a word under this mask is `CLEAN`.
const AT_REST: u32 = STATE | UPGRADING | WRITING | PINS | WRITE_PINS;

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
    /// Read ahead of the program: in a buffer, not in its memory.
    Staged,
    /// In memory and writable, with the initial value where nobody has stored; the file's bytes come later.
    Unfilled,
    /// Not in memory; stores to it are kept in a slot until it has been read.
    Buffered,
}

/// What the word of an evicted page remembers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ghost {
    /// When it was evicted; never zero.
    pub stamp: u32,
    /// From the protected queue.
    pub protected: bool,
}

impl Ghost {
    /// The largest stamp: 22 bits.
    pub const MOST: u32 = u32::MAX >> STAMP_SHIFT;
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
            STAGED => State::Staged,
            UNFILLED => State::Unfilled,
            BUFFERED => State::Buffered,
            _ => State::Evicting,
        }
    }

    /// The slot that holds it, of a Staged page.
    pub fn slot(self) -> Option<usize> {
        (self.0 & STATE == STAGED).then_some((self.0 >> SLOT_SHIFT) as usize)
    }

    /// The reader (`pool/reader.rs`) that reads a Loading page ahead, or on request.
    pub fn reader(self) -> Option<usize> {
        (self.0 & STATE == LOADING).then_some((self.0 >> SLOT_SHIFT) as usize)?.checked_sub(1)
    }

    /// The slot that has the stores to it, of a Buffered page.
    pub fn buffered_in(self) -> Option<usize> {
        (self.0 & STATE == BUFFERED).then_some((self.0 >> SLOT_SHIFT) as usize)
    }

    /// The page waits for a read, and the last one failed.
    pub fn has_failed(self) -> bool {
        matches!(self.0 & STATE, UNFILLED | BUFFERED) && self.0 & FAILED != 0
    }

    /// The memory of its word, and of its neighbours', is on its way back to the kernel (`begin_return`). Nobody sleeps on it: it will be zero
    /// without a wake, in a moment.
    pub fn is_returning(self) -> bool {
        self.0 & (STATE | HUGE) == LOADING | HUGE
    }

    /// It is part of a huge frame.
    pub fn is_huge(self) -> bool {
        self.0 & HUGE != 0
    }

    /// The page may hold stores that the file does not: it is dirty, on its way to the file, being made writable, not read yet, or
    /// saved and taken out of memory in one go (`begin_invalidate`). For the keeper, which finds the word after the threads that moved it have
    /// died.
    pub fn may_hold_stores(self) -> bool {
        matches!(self.state(), State::Dirty | State::Evicting | State::Unfilled | State::Buffered)
            || self.0 & (WRITING | UPGRADING) != 0
    }

    /// What an absent page remembers of its eviction.
    #[inline]
    pub fn ghost(self) -> Option<Ghost> {
        let ghost = Ghost { stamp: self.0 >> STAMP_SHIFT, protected: self.0 & PROTECTED != 0 };
        (self.0 & STATE == ABSENT && ghost.stamp != 0).then_some(ghost)
    }

    /// Another thread is making the page writable.
    pub fn is_upgrading(self) -> bool {
        self.0 & UPGRADING != 0
    }

    /// The page is in memory and has room for another pin.
    #[inline]
    pub fn can_be_pinned(self) -> bool {
        matches!(self.0 & STATE, CLEAN | DIRTY) && self.0 & PINS != PINS
    }

    /// Nobody may take the page out of memory.
    #[inline]
    pub fn is_pinned(self) -> bool {
        matches!(self.0 & STATE, CLEAN | DIRTY) && self.0 & (PINS | WRITE_PINS) != 0
    }

    /// It is Clean, nobody does anything with it, it leaves memory by itself, and no prediction waits for its next store: it may
    /// become writable with a neighbour.
    #[inline]
    pub fn may_accompany(self) -> bool {
        self.0 & (AT_REST | HUGE | SAMPLE) == CLEAN
    }

    /// The page is writable and stays so.
    #[inline]
    pub fn is_pinned_for_writing(self) -> bool {
        self.0 & STATE == DIRTY && self.0 & WRITE_PINS != 0
    }

    /// It has as many pins as a word can count.
    pub fn is_full(self) -> bool {
        matches!(self.0 & STATE, CLEAN | DIRTY) && self.0 & PINS == PINS
    }
}

/// How a writer that has claimed a page goes about it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Claim {
    /// Write-protect it first: it is Clean unless a store comes after that.
    Protect,
    /// It is pinned for writing: write it as it is, with its protection lifted. It stays Dirty, and its dirty bit is set
    /// again before the block's lock is released.
    Keep,
}

/// What a page's owner has to do after giving it back.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct After {
    /// Threads sleep on the word: wake them.
    pub wake: bool,
    /// The page is clean and no queue knows it: push it.
    pub enqueue: bool,
    /// Onto the protected queue.
    pub protected: bool,
    /// The page became dirty with this transition: count it.
    pub newly_dirty: bool,
    /// It is dirty again, since it could not be written: count it, and wake no writer.
    pub dirty_again: bool,
    /// It was the first store to a sample page.
    pub sample_stored: bool,
}

/// The state of one page of a file.
#[derive(Debug)]
#[repr(transparent)]
pub struct PageWord(AtomicU32);

// SAFETY: a word of zero is an absent page.
unsafe impl crate::sys::memory::Zeroable for PageWord {}

impl PageWord {
    /// An absent page.
    #[cfg(all(loom, test))]
    pub fn new() -> Self {
        PageWord(AtomicU32::new(ABSENT))
    }

    /// The current value. Acquire: pairs with the release of whichever transition made it.
    #[inline]
    pub fn look(&self) -> Seen {
        Seen(self.0.load(Ordering::Acquire))
    }

    /// Absent → Loading, by a thread that missed and saw `seen`. On true the caller alone reads and installs the page, then calls
    /// `finish_load` or `abort_load`. Acquire pairs with `finish_evict`: the old mapping is gone.
    #[inline]
    pub fn begin_load(&self, seen: Seen) -> bool {
        self.claim(seen, 0)
    }

    /// Absent → Loading, likewise, by who has a reader's turn (`pool/reader.rs`). Threads that need the page see to it that the reader gets
    /// on: so they learn which with the claim.
    pub fn begin_read(&self, seen: Seen, reader: usize) -> bool {
        self.claim(seen, (reader as u32 + 1) << SLOT_SHIFT)
    }

    #[inline]
    fn claim(&self, seen: Seen, reader: u32) -> bool {
        let loading = LOADING | seen.0 & QUEUED | reader;
        seen.state() == State::Absent
            && self.0.compare_exchange(seen.0, loading, Ordering::Acquire, Ordering::Relaxed).is_ok()
    }

    /// Whether the word's memory may go back to the kernel: the page is absent, and no queue has an entry for it. What a ghost says is
    /// forgotten.
    #[inline]
    pub fn may_return(&self) -> bool {
        self.0.load(Ordering::Relaxed) & (STATE | QUEUED) == ABSENT
    }

    /// Absent → Loading, by who gives the memory of the word and its neighbours back to the kernel, all of which it claims so. Zeros in their
    /// place, or `abort_return`, end that: no other thread changes such a word, and none sleeps on it.
    pub fn begin_return(&self) -> bool {
        self.update(|word| (word & (STATE | QUEUED) == ABSENT).then_some(LOADING | HUGE)).is_ok()
    }

    /// Ends `begin_return`: the page is Absent.
    pub fn abort_return(&self) {
        let old = self.0.swap(ABSENT, Ordering::AcqRel);
        debug_assert_eq!(old, LOADING | HUGE);
    }

    /// Announces, by the loader (or who maps a Staged page), that it installs the page writable. From here on a writer that
    /// finds the page's dirty bit waits for `finish_load`: another thread may store to the page, and flush, before this thread
    /// gets there.
    #[inline]
    pub fn begin_writable_install(&self) {
        let old = self.0.fetch_or(UPGRADING, Ordering::AcqRel);
        debug_assert!(matches!(old & (STATE | UPGRADING), LOADING | STAGED));
    }

    /// Loading → Staged, by the reader: the page's bytes are in a slot. Release hands them to the thread that claims the slot.
    /// Threads that wait for the page are to be woken: one of them maps it.
    pub fn stage(&self, slot: usize) -> After {
        let staged = STAGED | (slot as u32) << SLOT_SHIFT;
        let old = self.update(|word| Some(staged | word & QUEUED)).unwrap_or_else(|word| word);
        debug_assert_eq!(old & STATE, LOADING);
        After { wake: old & WAITERS != 0, ..After::default() }
    }

    /// Loading → Unfilled, by the loader that has installed the initial value, writable: the read is the fill thread's business. Release
    /// hands it over. Threads that wait for the page are to be woken.
    pub fn publish_unfilled(&self) -> After {
        let old = self.update(|word| Some(UNFILLED | word & QUEUED)).unwrap_or_else(|word| word);
        debug_assert_eq!(old & (STATE | UPGRADING), LOADING | UPGRADING);
        After { wake: old & WAITERS != 0, ..After::default() }
    }

    /// Loading → Buffered, by the loader that has put its store into a store buffer. Release hands it to the fill thread. Threads that wait for the page are to be woken.
    pub fn buffer(&self, slot: usize) -> After {
        let kept = BUFFERED | (slot as u32) << SLOT_SHIFT;
        let old = self.update(|word| Some(kept | word & QUEUED)).unwrap_or_else(|word| word);
        debug_assert_eq!(old & STATE, LOADING);
        After { wake: old & WAITERS != 0, ..After::default() }
    }

    /// Unfilled → Evicting, by the fill thread, which has the file's bytes: it protects the page, takes over what is not the initial value,
    /// drops the memory, and calls `hold` and `finish_load`. A store after the protection waits. Flushes wait as well: UPGRADING.
    /// False: another thread lifts the page's protection at this moment (`begin_lift`).
    pub fn begin_merge(&self) -> bool {
        let next = |word: u32| word & (WAITERS | QUEUED) | EVICTING | UPGRADING;
        let merged = self.update(|word| (word & UPGRADING == 0).then(|| next(word)));
        debug_assert_eq!(merged.unwrap_or_else(|word| word) & STATE, UNFILLED);
        merged.is_ok()
    }

    /// Sets UPGRADING on an Unfilled page, by a thread whose store trapped on its protection and that saw `seen`. On true the caller
    /// makes the page writable again and calls `finish_lift`; until then nobody takes it out of memory.
    pub fn begin_lift(&self, seen: Seen) -> bool {
        debug_assert_eq!(seen.state(), State::Unfilled);
        !seen.is_upgrading()
            && self.0.compare_exchange(seen.0, seen.0 | UPGRADING, Ordering::AcqRel, Ordering::Relaxed).is_ok()
    }

    /// Ends `begin_lift`; true: threads are to be woken.
    pub fn finish_lift(&self) -> bool {
        let old = self.update(|word| Some(word & !(UPGRADING | WAITERS))).unwrap_or_else(|word| word);
        debug_assert_eq!(old & (STATE | UPGRADING), UNFILLED | UPGRADING);
        old & WAITERS != 0
    }

    /// Buffered → Loading, by the fill thread, which has the file's bytes and the slot's lock: no more stores are kept. It installs the page
    /// and calls `finish_load`. UPGRADING makes flushes wait.
    pub fn begin_fill(&self) {
        let next = |word: u32| word & (WAITERS | QUEUED) | LOADING | UPGRADING;
        let old = self.update(|word| Some(next(word))).unwrap_or_else(|word| word);
        debug_assert_eq!(old & STATE, BUFFERED);
    }

    /// Notes, by the fill thread, that an Unfilled or Buffered page could not be read; true: threads are to be woken, to fail.
    pub fn note_failed(&self) -> bool {
        let old = self.update(|word| Some(word & !WAITERS | FAILED)).unwrap_or_else(|word| word);
        debug_assert!(matches!(old & STATE, UNFILLED | BUFFERED));
        old & WAITERS != 0
    }

    /// Takes the sleepers on a Staged page off its word, for a thread that has made its slot ready: true when there are some,
    /// to be woken. The word changes with it, so a thread that was only about to sleep does not.
    pub fn call_waiters(&self) -> bool {
        let is_waited_for = |word: u32| word & (STATE | WAITERS) == STAGED | WAITERS;
        // Looks before it writes: hardly ever is there one.
        is_waited_for(self.0.load(Ordering::Relaxed))
            && self.update(|word| is_waited_for(word).then_some(word & !WAITERS)).is_ok()
    }

    /// Staged → Absent, by who has claimed the slot: what was read ahead is given up.
    pub fn unstage(&self) -> After {
        let old = self.update(|word| Some(ABSENT | word & QUEUED)).unwrap_or_else(|word| word);
        debug_assert_eq!(old & STATE, STAGED);
        After { wake: old & WAITERS != 0, ..After::default() }
    }

    /// Staged → Clean, by who has claimed the slot and moved its huge frame here, write-protected.
    pub fn finish_huge(&self) -> After {
        let old = self.0.swap(CLEAN | HUGE, Ordering::AcqRel);
        debug_assert_eq!(old & STATE, STAGED);
        After { wake: old & WAITERS != 0, ..After::default() }
    }

    /// Clean → Evicting for one page of a huge frame, by a thread that has the frame's queue entry. The frame goes when all of
    /// its pages do; else each goes back (`abort_evict_huge`).
    pub fn begin_evict_huge(&self) -> bool {
        let may_go = |word: u32| word & (AT_REST | HUGE) == CLEAN | HUGE;
        self.update(|word| may_go(word).then_some(word & !STATE | EVICTING)).is_ok()
    }

    /// Takes `begin_evict_huge` back.
    pub fn abort_evict_huge(&self) -> After {
        let old = self.update(|word| Some(word & !(STATE | WAITERS) | CLEAN)).unwrap_or_else(|word| word);
        debug_assert_eq!(old & (STATE | HUGE), EVICTING | HUGE);
        After { wake: old & WAITERS != 0, ..After::default() }
    }

    /// Makes a page of a huge frame one that leaves memory by itself, by a thread that has the frame's queue entry and keeps
    /// every evictor out. The page gets an entry, now or when it is clean.
    pub fn leave_huge(&self) -> After {
        let alone = |word: u32| word & (STATE | UPGRADING | WRITING | QUEUED) == CLEAN;
        let next = |word: u32| word & !HUGE | if alone(word) { QUEUED } else { 0 };
        let old = self.update(|word| Some(next(word))).unwrap_or_else(|word| word);
        After { enqueue: alone(old), ..After::default() }
    }

    /// Loading or Staged → Clean (installed write-protected) or Dirty (installed writable, for a store or in
    /// expectation of one), by the loader, or by who has claimed the slot. Release hands the installed page to whoever
    /// looks.
    #[inline]
    pub fn finish_load(&self, writable: bool, sample: bool, protected: bool) -> After {
        let next = match (writable, sample) {
            (true, _) => DIRTY,
            (false, false) => CLEAN | QUEUED,
            (false, true) => CLEAN | QUEUED | SAMPLE,
        };
        let next = next | if protected { PROTECTED } else { 0 };
        let old = self.update(|word| Some(next | word & QUEUED)).unwrap_or_else(|word| word);
        debug_assert!(matches!(old & STATE, LOADING | STAGED));
        let enqueue = !writable && old & QUEUED == 0;
        After { wake: old & WAITERS != 0, enqueue, protected, newly_dirty: writable, ..After::default() }
    }

    /// Loading → Absent, by the loader whose read failed.
    pub fn abort_load(&self) -> After {
        let old = self.update(|word| Some(ABSENT | word & QUEUED)).unwrap_or_else(|word| word);
        debug_assert_eq!(old & STATE, LOADING);
        After { wake: old & WAITERS != 0, ..After::default() }
    }

    /// Ends a claim of a page whose region has become the kernel's, by a thread that trapped before that. The word may have been cleared
    /// since, with the note of who sleeps on it, and may be another thread's claim by now, which ends in the same way.
    pub fn abort_late(&self) -> After {
        let old = self.update(|word| Some(ABSENT | word & QUEUED)).unwrap_or_else(|word| word);
        debug_assert!(matches!(old & STATE, LOADING | ABSENT));
        After { wake: true, ..After::default() }
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
        let next = |word: u32| word & !(STATE | UPGRADING | WAITERS | SAMPLE) | DIRTY;
        let old = self.update(|word| Some(next(word))).unwrap_or_else(|word| word);
        debug_assert!(old & UPGRADING != 0);
        After {
            wake: old & WAITERS != 0,
            newly_dirty: old & STATE == CLEAN,
            sample_stored: old & SAMPLE != 0,
            ..After::default()
        }
    }

    /// Dirty → Clean+WRITING, by a writer that holds the block's lock and took the page's dirty bit. The caller
    /// write-protects the page, writes it to the file and calls `finish_write`; a store after the protection makes it Dirty
    /// again while the write is in flight. A page pinned for writing becomes Dirty+WRITING instead and is not protected
    /// ([`Claim::Keep`]). `None`: someone upgrades the page at this moment, or it is not dirty.
    pub fn begin_write(&self) -> Option<Claim> {
        let next = |word: u32| if word & WRITE_PINS != 0 { word | WRITING } else { word & !STATE | CLEAN | WRITING };
        let old = self.update(|word| (word & (STATE | UPGRADING | WRITING) == DIRTY).then(|| next(word)));
        old.ok().map(|old| if old & WRITE_PINS != 0 { Claim::Keep } else { Claim::Protect })
    }

    /// Ends `begin_write`. Saved: drops WRITING, and if no store came meanwhile the page may be evicted, or if it is pinned,
    /// once its last pin goes. Not saved: the page is Dirty again, whatever came meanwhile.
    pub fn finish_write(&self, saved: bool) -> After {
        let next = |word: u32| match (saved, word & STATE) {
            (true, CLEAN) if word & (AT_REST & !WRITING) == CLEAN => word & !WRITING | QUEUED,
            (true, _) => word & !WRITING,
            (false, _) => word & !(WRITING | STATE) | DIRTY,
        };
        let old = self.update(|word| Some(next(word))).unwrap_or_else(|word| word);
        debug_assert!(old & WRITING != 0);
        After {
            wake: false,
            enqueue: next(old) & QUEUED != 0 && old & QUEUED == 0,
            protected: old & PROTECTED != 0,
            dirty_again: next(old) & STATE == DIRTY && old & STATE == CLEAN,
            ..After::default()
        }
    }

    /// Clean → Evicting, by a thread that popped the page's entry from a clean queue; the entry is spent either way. On true
    /// the caller drops the memory and calls `finish_evict`. On false the page may not go (dirty, being written, being
    /// stored to, pinned); it comes back to a queue when its write ends or its last pin goes.
    #[inline]
    pub fn begin_evict(&self) -> bool {
        let may_go = |word: u32| word & (AT_REST | HUGE) == CLEAN;
        let old = self.update(|word| Some(if may_go(word) { EVICTING | word & PROTECTED } else { word & !QUEUED }));
        may_go(old.unwrap_or_else(|word| word))
    }

    /// Evicting → Absent, by the evictor, after the memory is gone; with a stamp, the page leaves a ghost. Only the evictor
    /// and those who announce themselves touch the word meanwhile. Release pairs with `begin_load`.
    #[inline]
    pub fn finish_evict(&self, stamp: Option<u32>) -> After {
        let protected = self.0.load(Ordering::Relaxed) & PROTECTED;
        let old =
            self.0.swap(stamp.map_or(ABSENT, |stamp| ABSENT | protected | stamp << STAMP_SHIFT), Ordering::AcqRel);
        debug_assert_eq!(old & STATE, EVICTING);
        After { wake: old & WAITERS != 0, ..After::default() }
    }

    /// Clean or Dirty → Evicting, for a page that must leave memory however often it is stored to (`evict/invalidate.rs`), by a
    /// thread that holds the block's lock: it protects and saves what was dirty, drops the memory and calls `hold`, or
    /// `abort_invalidate`. A store after the protection traps and waits. The queue's entry stays where it is. Whether the page was
    /// dirty, and whether it has an entry; `None` when another thread is at work on the page, or has it pinned, or it is not there.
    pub fn begin_invalidate(&self) -> Option<(bool, bool)> {
        let may_go = |word: u32| matches!(word & (AT_REST | HUGE), CLEAN | DIRTY);
        let old = self.update(|word| may_go(word).then_some(word & QUEUED | EVICTING));
        old.ok().map(|old| (old & STATE == DIRTY, old & QUEUED != 0))
    }

    /// Evicting → Loading, by the thread of `begin_invalidate` or `begin_merge` once the memory is gone: nobody else loads the page
    /// until `finish_load` or `abort_load`, which also wake the threads that came meanwhile.
    pub fn hold(&self) {
        let next = |word: u32| word & (WAITERS | QUEUED | UPGRADING) | LOADING;
        let old = self.update(|word| Some(next(word))).unwrap_or_else(|word| word);
        debug_assert_eq!(old & STATE, EVICTING);
    }

    /// Notes that the entry of a page that is not in memory is taken out of its queue, by a thread that holds the queue's
    /// lock; false: the page is in memory, and the entry stays.
    pub fn void_entry(&self) -> bool {
        let is_void = |word: u32| matches!(word & STATE, ABSENT | LOADING | STAGED) && word & QUEUED != 0;
        self.update(|word| is_void(word).then_some(word & !QUEUED)).is_ok()
    }

    /// Evicting → Dirty, by the thread of `begin_invalidate` that could not save the page, or need not drop it; it
    /// sets the dirty bit before.
    pub fn abort_invalidate(&self) -> After {
        let old = self.update(|word| Some(DIRTY | word & QUEUED)).unwrap_or_else(|word| word);
        debug_assert_eq!(old & STATE, EVICTING);
        After { wake: old & WAITERS != 0, dirty_again: true, ..After::default() }
    }

    /// Pins a resident page that was seen so, and not as full ([`Seen::is_full`]); false when the word has moved on. The
    /// caller holds a pinnable frame if the page was seen without pins. Acquire pairs with the release of whoever
    /// brought it in.
    #[inline]
    pub fn try_pin(&self, seen: Seen) -> bool {
        debug_assert!(matches!(seen.state(), State::Clean | State::Dirty) && !seen.is_full());
        self.0.compare_exchange(seen.0, seen.0 + PIN, Ordering::AcqRel, Ordering::Relaxed).is_ok()
    }

    /// Makes the caller's pin a write pin. The caller holds the block's lock and, under it, has made the page writable and
    /// Dirty (`begin_upgrade`, `finish_upgrade`): no writer can have come between. False: it has as many as can be counted.
    pub fn pin_for_writing(&self) -> bool {
        let old = self.update(|word| (word & WRITE_PINS != WRITE_PINS).then(|| word + WRITE_PIN - PIN));
        debug_assert!(old.is_err() || old.is_ok_and(|old| old & STATE == DIRTY && old & PINS != 0));
        old.is_ok()
    }

    /// Takes back a pin, or with `writing` a write pin; true when it was the page's last: the pinnable frame is the
    /// caller's. `After::enqueue` says that the page is at rest and no queue knows it; then `requeue` comes next.
    /// Release pairs with `begin_evict`: what was done under the pin comes before.
    #[inline]
    pub fn unpin(&self, writing: bool) -> (bool, After) {
        let one = if writing { WRITE_PIN } else { PIN };
        let old = self.0.fetch_sub(one, Ordering::AcqRel);
        debug_assert!(matches!(old & STATE, CLEAN | DIRTY) && old & (if writing { WRITE_PINS } else { PINS }) != 0);
        let now = old - one;
        let enqueue = now & (AT_REST | QUEUED | HUGE) == CLEAN;
        (now & (PINS | WRITE_PINS) == 0, After { enqueue, ..After::default() })
    }

    /// Claims, for a page that `unpin` left at rest, the right to push its entry: an evictor met the page under its pin and
    /// dropped the one it had; onto the protected queue or not. `None`: another thread has pinned, stored to or claimed the page meanwhile, and sees to it.
    /// Signals are blocked from before this until the entry is in a queue.
    pub fn requeue(&self) -> Option<bool> {
        let old = self.update(|word| (word & (AT_REST | QUEUED | HUGE) == CLEAN).then_some(word | QUEUED));
        old.ok().map(|old| old & PROTECTED != 0)
    }

    /// Announces a sleeper on the value `seen`, whose transition in flight will wake it; returns the value to sleep on,
    /// or `None` when the word has moved on.
    pub fn announce_waiter(&self, seen: Seen) -> Option<u32> {
        let is_under_way = !matches!(seen.state(), State::Absent | State::Clean | State::Dirty);
        debug_assert!(is_under_way || seen.is_upgrading());
        if seen.is_returning() {
            return None;
        }
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
