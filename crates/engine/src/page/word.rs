//! The page word: one atomic per page of a file, its states, and every legal transition.
//!
//! ```text
//! Absent ─begin_load─▶ Loading ─finish_load─▶ Clean ─begin_upgrade…finish_upgrade─▶ Dirty
//!    ▲                                          │ ▲                                  │
//!    └─finish_evict─ Evicting ◀─begin_evict─────┘ └─finish_write─ Clean+WRITING ◀────┘ begin_write
//! ```
//!
//! There are more transitions:
//!
//! * `begin_invalidate` takes a Clean or Dirty page to Evicting, for a file operation; `hold` takes it on to Loading.
//! * A page that is read ahead goes from Loading to Staged (`stage`), and from there to Clean or Dirty (`finish_load`, `finish_huge`) or
//!   back to Absent (`unstage`). The word of a Staged page names a slot (`pool/staging.rs`). Only the thread that has claimed this slot
//!   takes the page out of Staged.
//! * A page that is stored to before it is read (`deferred/`) goes from Loading to Unfilled (`publish_unfilled`) or Buffered (`buffer`).
//!   From there the fill thread alone takes it to Dirty: from Unfilled by `begin_merge`, `hold` and `finish_load`, from Buffered by
//!   `begin_fill` and `finish_load`.
//!
//! Invariant that makes eviction safe: a page that is `Clean` with neither `WRITING` nor `UPGRADING` is
//! write-protected, so every store to it traps and finds the word first. Nothing outside this file changes a word.
//!
//! *Pins* are counted in Clean and Dirty words, and only there. `begin_evict` and `begin_invalidate` refuse a pinned page, and every other
//! transition of such a page keeps its counts; so no transition out of another state meets a pin. A page with *write pins* is always Dirty
//! and writable: write pins are taken under the write lock of the page's block only (`pin_for_writing`), and writers leave the page Dirty.
//!
//! Invariant that lets evictors find a page: a page that is `Clean` with neither flag and without pins has an entry in a clean queue, or a
//! thread is about to push one (`QUEUED`). An entry may outlive the page: `begin_invalidate`, which claims a page for a file operation,
//! leaves its entry in the queue. Then `QUEUED` stays set, also in Absent, Loading and Staged words, until a thread takes the entry out of
//! the queue, or the page is back and the entry is valid again.
//!
//! The word is 32 bits because threads sleep on it (futex(2)). A word of zero is `Absent`, so a fresh anonymous mapping is an array of
//! absent pages. The word of a page that was evicted keeps a *ghost*: when the page was evicted, and from which queue
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
/// Threads sleep on the word until the page leaves its present state (Loading, Evicting, Staged, Unfilled, Buffered), or UPGRADING ends.
const WAITERS: u32 = 1 << 3;
/// A clean queue holds an entry for the page: at most one ever does.
const QUEUED: u32 = 1 << 4;
/// A thread is making the page writable; nobody else may drop it or begin to write it.
const UPGRADING: u32 = 1 << 5;
/// A write of the page to the file is in flight. In an Evicting word: the page was dirty, and is saved before it leaves memory.
const WRITING: u32 = 1 << 6;

/// Loaded by a read as a sample of a prediction (see `region/prediction.rs`), and not stored to since.
const SAMPLE: u32 = 1 << 7;
/// In Unfilled and Buffered words: the last read failed.
const FAILED: u32 = 1 << 7;
/// The page is part of a huge frame and leaves memory with it: the frame has the queue entry, the page has none. In a Loading word: nobody
/// loads the page. The memory of the word is being given back to the kernel; then the word is zero, so the page is Absent.
const HUGE: u32 = 1 << 8;
/// How often in a row the page came back soon after it was evicted, 3 for more, in bits 9 and 10. Not zero: its queue is the protected one. In
/// an absent word: it was. In a Loading or Staged word: before this load.
const RETURN: u32 = 1 << 9;
const RETURNS: u32 = 0b11 * RETURN;
/// First bit of the ghost's stamp, in an absent word. A stamp of zero: no ghost.
const STAMP_SHIFT: u32 = 11;
/// First bit of the slot's number, in a Staged or Buffered word. In a Loading word, of the reader's number plus one; zero: no reader.
const SLOT_SHIFT: u32 = 11;

/// Pins that keep the page in memory, counted in bits 11 to 21.
const PIN: u32 = 1 << 11;
const PINS: u32 = 0x7FF * PIN;
/// Pins that keep the page in memory and writable, counted in bits 22 to 31 and not in bits 11 to 21.
const WRITE_PIN: u32 = 1 << 22;
const WRITE_PINS: u32 = 0x3FF * WRITE_PIN;
/// If a word is `CLEAN` under this mask, its page is not dirty, not being written, not being made writable, and not pinned.
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

/// The ghost of an evicted page.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ghost {
    /// When it was evicted; never zero.
    pub stamp: u32,
    /// From the protected queue.
    pub protected: bool,
}

impl Ghost {
    /// The largest stamp: 21 bits.
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

    /// The slot that holds a Staged page. `None` in other states.
    pub fn slot(self) -> Option<usize> {
        (self.0 & STATE == STAGED).then_some((self.0 >> SLOT_SHIFT) as usize)
    }

    /// The reader (`pool/reader.rs`) that reads a Loading page. `None`: the page is not Loading, or no reader reads it.
    pub fn reader(self) -> Option<usize> {
        (self.0 & STATE == LOADING).then_some((self.0 >> SLOT_SHIFT) as usize)?.checked_sub(1)
    }

    /// The slot that holds the stores to a Buffered page.
    pub fn buffered_in(self) -> Option<usize> {
        (self.0 & STATE == BUFFERED).then_some((self.0 >> SLOT_SHIFT) as usize)
    }

    /// The page waits for a read, and the last one failed.
    pub fn has_failed(self) -> bool {
        matches!(self.0 & STATE, UNFILLED | BUFFERED) && self.0 & FAILED != 0
    }

    /// The memory of this word and its neighbours is being given back to the kernel (`begin_return`). Threads do not sleep on such a word:
    /// it becomes zero soon, and nobody is woken.
    pub fn is_returning(self) -> bool {
        self.0 & (STATE | HUGE) == LOADING | HUGE
    }

    /// It is part of a huge frame.
    pub fn is_huge(self) -> bool {
        self.0 & HUGE != 0
    }

    /// The page may hold stores that the file lacks: it is Dirty, being written to the file, being made writable, not read yet, or being
    /// saved and taken out of memory in one go (`begin_invalidate`). The keeper asks this, too, after the threads that changed the word
    /// have died. A clean page that is being evicted holds none: if it lies in a hole, the disk may have no room for it.
    pub fn may_hold_stores(self) -> bool {
        matches!(self.state(), State::Dirty | State::Unfilled | State::Buffered) || self.0 & (WRITING | UPGRADING) != 0
    }

    /// The ghost of an absent page.
    #[inline]
    pub fn ghost(self) -> Option<Ghost> {
        let ghost = Ghost { stamp: self.0 >> STAMP_SHIFT, protected: self.0 & RETURNS != 0 };
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

    /// The page may become writable together with a neighbour that is stored to: it is Clean and not pinned, no thread is at work on it, it
    /// is not part of a huge frame, and it is no sample.
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
    /// The page is pinned for writing: write it without protecting it. It stays Dirty, and its dirty bit is set again before the block's
    /// lock is released.
    Keep,
}

/// The work that is left for the thread that has ended a transition.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct After {
    /// Threads sleep on the word: wake them.
    pub wake: bool,
    /// The page is clean and no queue knows it: push it.
    pub enqueue: bool,
    /// How often in a row it came back soon, 3 at most ([`Pool::enqueue`](crate::pool::pool::Pool::enqueue)).
    pub returns: u32,
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

    /// Absent → Loading, as `begin_load`, by the thread that has the turn of a reader (`pool/reader.rs`). The word names the reader, so
    /// that a thread that needs the page knows which reader has to get on.
    pub fn begin_read(&self, seen: Seen, reader: usize) -> bool {
        self.claim(seen, (reader as u32 + 1) << SLOT_SHIFT)
    }

    #[inline]
    fn claim(&self, seen: Seen, reader: u32) -> bool {
        let loading = LOADING | seen.0 & (QUEUED | RETURNS) | reader;
        seen.state() == State::Absent
            && self.0.compare_exchange(seen.0, loading, Ordering::Acquire, Ordering::Relaxed).is_ok()
    }

    /// Whether the word's memory may go back to the kernel: the page is absent, and no queue has an entry for it. The word's ghost is lost
    /// then.
    #[inline]
    pub fn may_return(&self) -> bool {
        self.0.load(Ordering::Relaxed) & (STATE | QUEUED) == ABSENT
    }

    /// Absent → Loading with HUGE, by a thread that gives the memory of this word and its neighbours back to the kernel, and claims all of
    /// them so. The claim ends when the kernel puts zeros in their place, or by `abort_return`. Until then no other thread changes such a
    /// word or sleeps on it.
    pub fn begin_return(&self) -> bool {
        self.update(|word| (word & (STATE | QUEUED) == ABSENT).then_some(LOADING | HUGE)).is_ok()
    }

    /// Ends `begin_return`: the page is Absent.
    pub fn abort_return(&self) {
        let old = self.0.swap(ABSENT, Ordering::AcqRel);
        debug_assert_eq!(old, LOADING | HUGE);
    }

    /// Announces that the caller, which loads the page or maps a Staged one, installs it writable. From here on a writer that finds the
    /// page's dirty bit waits for `finish_load`: another thread may store to the page and flush it before the caller gets there.
    #[inline]
    pub fn begin_writable_install(&self) {
        let old = self.0.fetch_or(UPGRADING, Ordering::AcqRel);
        debug_assert!(matches!(old & (STATE | UPGRADING), LOADING | STAGED));
    }

    /// Loading → Staged, by the reader: the page's bytes are in a slot. Release hands them to the thread that claims the slot. If threads
    /// wait for the page, the caller wakes them; one of them maps it.
    pub fn stage(&self, slot: usize) -> After {
        let staged = STAGED | (slot as u32) << SLOT_SHIFT;
        let old = self.update(|word| Some(staged | word & (QUEUED | RETURNS))).unwrap_or_else(|word| word);
        debug_assert_eq!(old & STATE, LOADING);
        After { wake: old & WAITERS != 0, ..After::default() }
    }

    /// Loading → Unfilled, by the loader, which has installed the initial value, writable. The fill thread does the read; Release hands the
    /// page over to it. If threads wait for the page, the caller wakes them.
    pub fn publish_unfilled(&self) -> After {
        let old = self.update(|word| Some(UNFILLED | word & QUEUED)).unwrap_or_else(|word| word);
        debug_assert_eq!(old & (STATE | UPGRADING), LOADING | UPGRADING);
        After { wake: old & WAITERS != 0, ..After::default() }
    }

    /// Loading → Buffered, by the loader, which has put its store into a store buffer. Release hands the page to the fill thread. If
    /// threads wait for the page, the caller wakes them.
    pub fn buffer(&self, slot: usize) -> After {
        let kept = BUFFERED | (slot as u32) << SLOT_SHIFT;
        let old = self.update(|word| Some(kept | word & QUEUED)).unwrap_or_else(|word| word);
        debug_assert_eq!(old & STATE, LOADING);
        After { wake: old & WAITERS != 0, ..After::default() }
    }

    /// Unfilled → Evicting, by the fill thread once it has the file's bytes. It then protects the page, takes over the lines that do not
    /// hold the initial value, drops the memory, and calls `hold` and `finish_load`. A store after the protection waits. Flushes wait as
    /// well, because of UPGRADING. False: another thread is lifting the page's protection (`begin_lift`).
    pub fn begin_merge(&self) -> bool {
        let next = |word: u32| word & (WAITERS | QUEUED) | EVICTING | UPGRADING;
        let merged = self.update(|word| (word & UPGRADING == 0).then(|| next(word)));
        debug_assert_eq!(merged.unwrap_or_else(|word| word) & STATE, UNFILLED);
        merged.is_ok()
    }

    /// Sets UPGRADING on an Unfilled page. The caller's store trapped on the page's protection, and the caller saw `seen`. On true the
    /// caller makes the page writable again and calls `finish_lift`; until then nobody takes the page out of memory.
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

    /// Buffered → Loading, by the fill thread, which has the file's bytes and the slot's lock: no more stores are buffered. It installs the
    /// page and calls `finish_load`. UPGRADING makes flushes wait.
    pub fn begin_fill(&self) {
        let next = |word: u32| word & (WAITERS | QUEUED) | LOADING | UPGRADING;
        let old = self.update(|word| Some(next(word))).unwrap_or_else(|word| word);
        debug_assert_eq!(old & STATE, BUFFERED);
    }

    /// Notes that an Unfilled or Buffered page could not be read; called by the fill thread. True: threads are to be woken; they fail then.
    pub fn note_failed(&self) -> bool {
        let old = self.update(|word| Some(word & !WAITERS | FAILED)).unwrap_or_else(|word| word);
        debug_assert!(matches!(old & STATE, UNFILLED | BUFFERED));
        old & WAITERS != 0
    }

    /// Clears WAITERS in the word of a Staged page, for a thread that has made the page's slot ready. True: threads sleep on the word, and
    /// the caller wakes them. The word has changed, so a thread that was about to sleep does not fall asleep.
    pub fn call_waiters(&self) -> bool {
        let is_waited_for = |word: u32| word & (STATE | WAITERS) == STAGED | WAITERS;
        // Looks before it writes: there are hardly ever sleepers.
        is_waited_for(self.0.load(Ordering::Relaxed))
            && self.update(|word| is_waited_for(word).then_some(word & !WAITERS)).is_ok()
    }

    /// Staged → Absent, by the thread that has claimed the slot and gives up the page that was read ahead.
    pub fn unstage(&self) -> After {
        let old = self.update(|word| Some(ABSENT | word & QUEUED)).unwrap_or_else(|word| word);
        debug_assert_eq!(old & STATE, STAGED);
        After { wake: old & WAITERS != 0, ..After::default() }
    }

    /// Staged → Clean, by the thread that has claimed the slot and moved its huge frame here, write-protected.
    pub fn finish_huge(&self) -> After {
        let old = self.update(|word| Some(CLEAN | HUGE | word & QUEUED)).unwrap_or_else(|word| word);
        debug_assert_eq!(old & STATE, STAGED);
        After { wake: old & WAITERS != 0, ..After::default() }
    }

    /// Clean → Evicting for one page of a huge frame, by a thread that has the frame's queue entry. The frame leaves memory only if all of
    /// its pages can be claimed; otherwise each claimed page goes back (`abort_evict_huge`).
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

    /// Takes a page out of its huge frame: from here on it leaves memory by itself. The caller has the frame's queue entry and keeps every
    /// evictor out. The page gets an entry of its own, now or when it is clean.
    pub fn leave_huge(&self) -> After {
        let alone = |word: u32| word & (STATE | UPGRADING | WRITING | QUEUED) == CLEAN;
        let next = |word: u32| word & !HUGE | if alone(word) { QUEUED } else { 0 };
        let old = self.update(|word| Some(next(word))).unwrap_or_else(|word| word);
        After { enqueue: alone(old), ..After::default() }
    }

    /// Loading or Staged → Clean (installed write-protected) or Dirty (installed writable, for a store or in expectation of one), by the
    /// loader, or by the thread that has claimed the slot. Release: a thread that sees the new word sees the installed page.
    #[inline]
    pub fn finish_load(&self, writable: bool, sample: bool, protected: bool) -> After {
        let next = match (writable, sample) {
            (true, _) => DIRTY,
            (false, false) => CLEAN | QUEUED,
            (false, true) => CLEAN | QUEUED | SAMPLE,
        };
        let returns = |word: u32| if protected { ((word & RETURNS) + RETURN).min(RETURNS) } else { 0 };
        let old = self.update(|word| Some(next | word & QUEUED | returns(word))).unwrap_or_else(|word| word);
        debug_assert!(matches!(old & STATE, LOADING | STAGED));
        let enqueue = !writable && old & QUEUED == 0;
        After {
            wake: old & WAITERS != 0,
            enqueue,
            returns: returns(old) / RETURN,
            newly_dirty: writable,
            ..After::default()
        }
    }

    /// Loading → Absent, by the loader whose read failed.
    pub fn abort_load(&self) -> After {
        let old = self.update(|word| Some(ABSENT | word & QUEUED)).unwrap_or_else(|word| word);
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

    /// Takes `begin_upgrade` back. A page that an evictor met meanwhile gets a queue entry again.
    pub fn abort_upgrade(&self) -> After {
        let next = |word: u32| {
            let now = word & !(UPGRADING | WAITERS);
            now | if now & (AT_REST | HUGE) == CLEAN { QUEUED } else { 0 }
        };
        let old = self.update(|word| Some(next(word))).unwrap_or_else(|word| word);
        debug_assert!(old & UPGRADING != 0);
        let enqueue = next(old) & QUEUED != 0 && old & QUEUED == 0;
        After { wake: old & WAITERS != 0, enqueue, ..After::default() }
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

    /// Ends `begin_write`. Saved: clears WRITING. If no store came meanwhile the page may be evicted; if it is pinned, once its last pin is
    /// gone. Not saved: the page is Dirty again, whatever came meanwhile.
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
            returns: (old & RETURNS) / RETURN,
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
        let old = self.update(|word| Some(if may_go(word) { EVICTING | word & RETURNS } else { word & !QUEUED }));
        may_go(old.unwrap_or_else(|word| word))
    }

    /// Evicting → Absent, by the evictor, after the memory is gone; with a stamp, the page leaves a ghost. Until then only the evictor, and
    /// threads that announce that they wait, touch the word. Release pairs with `begin_load`.
    #[inline]
    pub fn finish_evict(&self, stamp: Option<u32>) -> After {
        // A page that leaves with its frame may have a void entry of its own.
        let next =
            |word: u32| word & QUEUED | stamp.map_or(ABSENT, |stamp| ABSENT | word & RETURNS | stamp << STAMP_SHIFT);
        let old = self.update(|word| Some(next(word))).unwrap_or_else(|word| word);
        debug_assert_eq!(old & STATE, EVICTING);
        After { wake: old & WAITERS != 0, ..After::default() }
    }

    /// Clean or Dirty → Evicting, for a page that must leave memory however often it is stored to (`evict/invalidate.rs`). The caller holds
    /// the block's lock. It protects the page, saves it if it was dirty, drops the memory and calls `hold`; or it calls `abort_invalidate`.
    /// A store after the protection traps and waits. An entry in a queue stays there. Returns whether the page was dirty, and whether it
    /// has an entry. `None`: the page is not in memory, is pinned or part of a huge frame, or another thread is at work on it.
    pub fn begin_invalidate(&self) -> Option<(bool, bool)> {
        let may_go = |word: u32| matches!(word & (AT_REST | HUGE), CLEAN | DIRTY);
        let kept = |word: u32| if word & STATE == DIRTY { WRITING } else { 0 };
        let old = self.update(|word| may_go(word).then_some(word & QUEUED | EVICTING | kept(word)));
        old.ok().map(|old| (old & STATE == DIRTY, old & QUEUED != 0))
    }

    /// Evicting → Loading, by the thread of `begin_invalidate` or `begin_merge` once the memory is gone: nobody else loads the page
    /// until `finish_load` or `abort_load`, which also wake the threads that came meanwhile.
    pub fn hold(&self) {
        let next = |word: u32| word & (WAITERS | QUEUED | UPGRADING) | LOADING;
        let old = self.update(|word| Some(next(word))).unwrap_or_else(|word| word);
        debug_assert_eq!(old & STATE, EVICTING);
    }

    /// Clears QUEUED for a page that is not in memory, by a thread that holds the queue's lock and takes the page's entry out of it. False:
    /// the page is in memory, and the entry stays.
    pub fn void_entry(&self) -> bool {
        let is_void = |word: u32| matches!(word & STATE, ABSENT | LOADING | STAGED) && word & QUEUED != 0;
        self.update(|word| is_void(word).then_some(word & !QUEUED)).is_ok()
    }

    /// Evicting → Dirty, by the thread of `begin_invalidate` that could not save the page, or need not drop it. The caller sets the dirty
    /// bit first.
    pub fn abort_invalidate(&self) -> After {
        let old = self.update(|word| Some(DIRTY | word & QUEUED)).unwrap_or_else(|word| word);
        debug_assert_eq!(old & STATE, EVICTING);
        After { wake: old & WAITERS != 0, dirty_again: true, ..After::default() }
    }

    /// Pins a resident page that was seen as `seen`, and not as full ([`Seen::is_full`]). False: the word has changed. If the page was seen
    /// without pins, the caller holds a *pinnable frame*: the right to have one more page pinned. Acquire pairs with the release of the
    /// thread that brought the page in.
    #[inline]
    pub fn try_pin(&self, seen: Seen) -> bool {
        debug_assert!(matches!(seen.state(), State::Clean | State::Dirty) && !seen.is_full());
        self.0.compare_exchange(seen.0, seen.0 + PIN, Ordering::AcqRel, Ordering::Relaxed).is_ok()
    }

    /// Makes the caller's pin a write pin. The caller holds the block's lock and, under it, has made the page writable and Dirty
    /// (`begin_upgrade`, `finish_upgrade`): no writer can have come between. False: the page has as many write pins as its word can count.
    pub fn pin_for_writing(&self) -> bool {
        let old = self.update(|word| (word & WRITE_PINS != WRITE_PINS).then(|| word + WRITE_PIN - PIN));
        debug_assert!(old.is_err() || old.is_ok_and(|old| old & STATE == DIRTY && old & PINS != 0));
        old.is_ok()
    }

    /// Takes back a pin, or with `writing` a write pin. True: it was the page's last pin, and the pinnable frame is the caller's.
    /// `After::enqueue` says that the page is at rest and has no queue entry; then the caller calls `requeue`. Release pairs with
    /// `begin_evict`: what was done under the pin comes before the eviction.
    #[inline]
    pub fn unpin(&self, writing: bool) -> (bool, After) {
        let one = if writing { WRITE_PIN } else { PIN };
        let old = self.0.fetch_sub(one, Ordering::AcqRel);
        debug_assert!(matches!(old & STATE, CLEAN | DIRTY) && old & (if writing { WRITE_PINS } else { PINS }) != 0);
        let now = old - one;
        let enqueue = now & (AT_REST | QUEUED | HUGE) == CLEAN;
        (now & (PINS | WRITE_PINS) == 0, After { enqueue, ..After::default() })
    }

    /// Claims the right to push an entry for a page that `unpin` left at rest without one. (An evictor met the page while it was pinned,
    /// and dropped its entry.) Returns how often in a row the page came back soon. `None`: another thread has pinned, stored to or
    /// claimed the page meanwhile, and sees to it. Signals are blocked from before this call until the entry is in a queue.
    pub fn requeue(&self) -> Option<u32> {
        let old = self.update(|word| (word & (AT_REST | QUEUED | HUGE) == CLEAN).then_some(word | QUEUED));
        old.ok().map(|old| (old & RETURNS) / RETURN)
    }

    /// Announces that this thread is about to sleep while the word is `seen`; the end of the transition under way wakes it. Returns the
    /// value to sleep on. `None`: the word has changed, or nobody may sleep on it ([`Seen::is_returning`]).
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

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    /// A page that left memory for a file operation, and whose entry is still in a queue.
    fn with_void_entry() -> PageWord {
        let word = PageWord(AtomicU32::new(CLEAN | QUEUED));
        assert_eq!(word.begin_invalidate(), Some((false, true)));
        word.hold();
        word.abort_load();
        word
    }

    #[test]
    fn a_page_of_a_frame_keeps_the_entry_that_it_has() {
        let word = with_void_entry();
        assert!(word.begin_load(word.look()));
        word.stage(5);
        word.finish_huge();
        assert!(!word.leave_huge().enqueue, "a second entry");
        let word = with_void_entry();
        assert!(word.begin_load(word.look()));
        word.stage(5);
        word.finish_huge();
        assert!(word.begin_evict_huge());
        word.finish_evict(Some(3));
        assert!(word.look().ghost().is_some() && word.void_entry() && !word.void_entry());
    }

    #[test]
    fn only_a_dirty_page_that_leaves_memory_may_hold_stores() {
        let evicted = PageWord(AtomicU32::new(CLEAN | QUEUED));
        assert!(evicted.begin_evict() && !evicted.look().may_hold_stores());
        for (state, may) in [(CLEAN, false), (DIRTY, true)] {
            let word = PageWord(AtomicU32::new(state | QUEUED));
            assert_eq!(word.begin_invalidate(), Some((may, true)));
            assert_eq!(word.look().may_hold_stores(), may);
            word.hold();
            assert!(!word.look().may_hold_stores());
            word.abort_load();
            assert_eq!(word.look().state(), State::Absent);
        }
    }

    #[test]
    fn a_store_that_is_refused_leaves_the_page_as_it_was() {
        let word = PageWord(AtomicU32::new(CLEAN | QUEUED));
        assert!(word.begin_upgrade(word.look()));
        assert!(!word.abort_upgrade().enqueue && word.0.load(Ordering::Relaxed) == CLEAN | QUEUED);
        // An evictor meets it meanwhile.
        assert!(word.begin_upgrade(word.look()) && !word.begin_evict());
        assert!(word.abort_upgrade().enqueue && word.0.load(Ordering::Relaxed) == CLEAN | QUEUED);
    }
}
