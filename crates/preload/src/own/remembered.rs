//! What is remembered of the program's descriptors: that a descriptor's file is not in the engine, so that a call on it
//! asks nobody; and which of them may have one open file description.
//!
//! A number is all that a call gives, and the file behind it may change. So a number is remembered only from a call that
//! opened it here on (`opened`, `copied`, `received`) until one that may close it (`closing`), and what is remembered
//! goes at any of these. A program that closes or opens by an instruction of its own (Go, io_uring) is seen by neither:
//! what it opened is asked about each time, and what it closed is forgotten when the number is given out anew by a call
//! of the C library. Only a number that is closed *and* given to an older file of the engine behind our back, and read
//! through the C library in between and afterwards, is not told apart (docs/intercepted.md).
//!
//! The same of a number whose file is no object's (`objects`): that is true for as long as it is open.
//!
//! That a file is not in the engine is true until another comes there: `fastmap::coherence::epoch`.
//!
//! A descriptor is closed before its number can be given out, and given out before it can be used. So its word is
//! changed by one thread at a time but for `Seen::note_foreign`, which does nothing if it has changed meanwhile.

use libc::{c_int, c_uint};
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering};

/// Numbers above are asked about each time.
const NUMBERS: usize = 8192;

/// A word for each number: whether it is known (`OPEN`) and its open file description is read only; the description; whether
/// it is no object's (`PLAIN`); the epoch at which its file was not in the engine, and one more; and how often all that has changed.
static WORDS: [AtomicU64; NUMBERS] = [const { AtomicU64::new(0) }; NUMBERS];

const OPEN: u64 = 1;
const READ_ONLY: u64 = 2;
const DESCRIPTION: u32 = 2;
const DESCRIPTION_BITS: u64 = 15;
const PLAIN: u64 = 1 << 6;
const EPOCH: u32 = 8;
const EPOCH_BITS: u64 = u32::MAX as u64;
const CHANGE: u32 = 40;

/// Threads may have tables of their own: one number is several files.
static DIVIDED: AtomicBool = AtomicBool::new(false);

fn word(fd: c_int) -> Option<&'static AtomicU64> {
    usize::try_from(fd).ok().and_then(|number| WORDS.get(number))
}

fn change(fd: c_int, to: u64) {
    if let Some(word) = word(fd) {
        let next = (word.load(Ordering::Relaxed) >> CHANGE).wrapping_add(1) << CHANGE;
        word.store(next | to, Ordering::Release);
    }
}

/// A call has opened this, with an open file description that no other number has. Negative: it has failed.
pub(crate) fn opened(fd: c_int, reads_only: bool) {
    static TURN: AtomicU8 = AtomicU8::new(0);
    if fd >= 0 {
        let turn = TURN.fetch_add(1, Ordering::Relaxed);
        let description = 1 + u64::from(turn) % fastmap::coherence::DESCRIPTIONS as u64;
        change(fd, OPEN | description << DESCRIPTION | if reads_only { READ_ONLY } else { 0 });
    }
}

/// A call has made `new` a copy of `old`.
pub(crate) fn copied(old: c_int, new: c_int) {
    if new >= 0 && old != new {
        const ALIKE: u64 = OPEN | READ_ONLY | PLAIN | DESCRIPTION_BITS << DESCRIPTION;
        let alike = word(old).map_or(0, |word| word.load(Ordering::Relaxed) & ALIKE);
        // Without a description, where that of `old` is not known.
        change(new, alike | OPEN);
    }
}

/// A call has returned this, whose open file description others may have.
pub(crate) fn received(fd: c_int) {
    change(fd, OPEN);
}

/// A call is about to close this, or has given it out in a way that is not followed.
#[inline]
pub(crate) fn closing(fd: c_int) {
    change(fd, 0);
}

/// A call is about to close these.
pub(crate) fn closing_all(first: c_uint, last: c_uint) {
    for number in first..=last.min(NUMBERS as c_uint - 1) {
        if WORDS[number as usize].load(Ordering::Relaxed) & OPEN != 0 {
            closing(number as c_int);
        }
    }
}

/// A thread is about to have a table of its own: nothing is remembered any more.
pub(crate) fn divide() {
    DIVIDED.store(true, Ordering::SeqCst);
}

/// The standard descriptors, which the process has had from the start.
pub(crate) fn begin() {
    for fd in 0..3 {
        // SAFETY: F_GETFD takes no memory.
        if unsafe { libc::syscall(libc::SYS_fcntl, fd, libc::F_GETFD) } >= 0 {
            received(fd);
        }
    }
}

/// Whether the file behind this descriptor is known not to be in the engine. A few loads.
#[inline]
pub(crate) fn is_foreign(fd: c_int) -> bool {
    Seen::of(fd).is_foreign()
}

/// What is remembered of a descriptor at some moment.
#[derive(Clone, Copy)]
pub(crate) struct Seen {
    fd: c_int,
    word: u64,
    /// The epoch, as it is noted.
    now: u64,
}

impl Seen {
    #[inline]
    pub fn of(fd: c_int) -> Seen {
        // In this order: the file is looked at in an epoch that is not newer.
        let now = fastmap::coherence::epoch().wrapping_add(1);
        let word = word(fd).map_or(0, |word| word.load(Ordering::Acquire));
        Seen { fd, word, now }
    }

    #[inline]
    pub fn is_foreign(self) -> bool {
        self.word >> EPOCH & EPOCH_BITS == self.now && self.word & OPEN != 0 && !DIVIDED.load(Ordering::Relaxed)
    }

    /// Notes that fstat(2), since, has told of a file that is not in the engine.
    pub fn note_foreign(self) {
        if self.word & OPEN == 0 || self.now > EPOCH_BITS {
            return;
        }
        if let Some(word) = word(self.fd) {
            let known = self.word & !(EPOCH_BITS << EPOCH) | self.now << EPOCH;
            // It fails if the number was closed meanwhile.
            let _ = word.compare_exchange(self.word, known, Ordering::Relaxed, Ordering::Relaxed);
        }
    }

    /// Whether its file is known to be no object's.
    #[inline]
    pub fn is_plain(self) -> bool {
        self.word & (OPEN | PLAIN) == OPEN | PLAIN && !DIVIDED.load(Ordering::Relaxed)
    }

    /// Notes that fstat(2), since, has told of a file that is no object's.
    pub fn note_plain(self) {
        if self.word & OPEN != 0
            && let Some(word) = word(self.fd)
        {
            // As below.
            let _ = word.compare_exchange(self.word, self.word | PLAIN, Ordering::Relaxed, Ordering::Relaxed);
        }
    }

    /// Which open file description it has: two descriptors with one have one number. `None`: not known.
    pub fn description(self) -> Option<usize> {
        let number = (self.word >> DESCRIPTION & DESCRIPTION_BITS) as usize;
        if self.word & OPEN == 0 || DIVIDED.load(Ordering::Relaxed) { None } else { number.checked_sub(1) }
    }

    /// Whether nobody writes through its open file description.
    pub fn reads_only(self) -> bool {
        self.word & (OPEN | READ_ONLY) == OPEN | READ_ONLY && !DIVIDED.load(Ordering::Relaxed)
    }
}
