//! A memory of the program's descriptors. It saves calls on most descriptors an fstat(2). For each descriptor number it
//! holds:
//!
//! * whether the descriptor's file is known not to be in the engine. This holds until another file comes into the
//!   engine, which changes `fastmap::coherence::epoch`;
//! * whether the file is known not to be an object's (`objects`). This holds for as long as the descriptor is open;
//! * which open file description (open(2)) the descriptor has, and whether that is read-only.
//!
//! A call gives only a number, and the file behind the number may change. So a number is known only from the call that
//! opened it (`opened`, `copied`, `received`) until a call that may close it (`closing`). Each of these calls erases
//! what was known of the number before.
//!
//! A program may open and close descriptors without the C library (Go, io_uring), and then none of these functions runs.
//! A descriptor opened so is not known, and every call on it asks the kernel. A descriptor closed so is forgotten when
//! the C library gives its number out again. One case goes wrong (docs/intercepted.md): a number is closed without the C
//! library, then opened without it as a file that was in the engine already, and the program uses it through the C
//! library both before and after.
//!
//! A descriptor is closed before its number can be given out, and given out before it can be used. So one thread at a
//! time changes a number's word. The exceptions are `Seen::note_foreign` and `Seen::note_plain`, which do nothing if the
//! word has changed meanwhile.

use super::kernel;
use libc::{c_int, c_uint};
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering};

/// The words are for numbers below this. Calls on higher numbers ask the kernel each time.
const NUMBERS: usize = 8192;

/// A word for each number. From the lowest bit up:
///
/// * `OPEN`: the number is known;
/// * `READ_ONLY`: its open file description is read-only;
/// * the number of the open file description, from 1 on; zero: not known;
/// * `PLAIN`: its file is not an object's;
/// * the epoch at which its file was not in the engine, plus one; zero: not known;
/// * how often the number was opened or closed.
static WORDS: [AtomicU64; NUMBERS] = [const { AtomicU64::new(0) }; NUMBERS];

const OPEN: u64 = 1;
const READ_ONLY: u64 = 2;
const DESCRIPTION: u32 = 2;
const DESCRIPTION_BITS: u64 = 15;
const PLAIN: u64 = 1 << 6;
const EPOCH: u32 = 8;
const EPOCH_BITS: u64 = u32::MAX as u64;
const CHANGE: u32 = 40;

/// Threads may have descriptor tables of their own, so a number may mean several files. Then no word is used.
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

/// Notes that a call has opened this descriptor, with an open file description that no other number has. A negative number
/// is a call that failed.
pub(crate) fn opened(fd: c_int, reads_only: bool) {
    static TURN: AtomicU8 = AtomicU8::new(0);
    if fd >= 0 {
        let turn = TURN.fetch_add(1, Ordering::Relaxed);
        let description = 1 + u64::from(turn) % fastmap::coherence::DESCRIPTIONS as u64;
        change(fd, OPEN | description << DESCRIPTION | if reads_only { READ_ONLY } else { 0 });
    }
}

/// Notes that a call has made `new` a copy of `old`.
pub(crate) fn copied(old: c_int, new: c_int) {
    if new >= 0 && old != new {
        const ALIKE: u64 = OPEN | READ_ONLY | PLAIN | DESCRIPTION_BITS << DESCRIPTION;
        let alike = word(old).map_or(0, |word| word.load(Ordering::Relaxed) & ALIKE);
        // If the description of `old` is not known, neither is that of `new`.
        change(new, alike | OPEN);
    }
}

/// Notes that a call has returned this descriptor. Other numbers may have its open file description.
pub(crate) fn received(fd: c_int) {
    change(fd, OPEN);
}

/// Forgets a descriptor: a call is about to close it.
#[inline]
pub(crate) fn closing(fd: c_int) {
    change(fd, 0);
}

/// Forgets the descriptors from `first` to `last`: a call is about to close them.
pub(crate) fn closing_all(first: c_uint, last: c_uint) {
    for number in first..=last.min(NUMBERS as c_uint - 1) {
        if WORDS[number as usize].load(Ordering::Relaxed) & OPEN != 0 {
            closing(number as c_int);
        }
    }
}

/// Notes that a thread is about to have a descriptor table of its own. From then on nothing is remembered.
pub(crate) fn divide() {
    DIVIDED.store(true, Ordering::SeqCst);
}

/// Notes the standard descriptors, which the process has had from the start.
pub(crate) fn begin() {
    for fd in 0..3 {
        // SAFETY: F_GETFD takes no memory.
        if unsafe { kernel::call(libc::SYS_fcntl, [fd as usize, libc::F_GETFD as usize]) }.is_ok() {
            received(fd);
        }
    }
}

/// Whether the file behind this descriptor is known not to be in the engine. It costs a few loads.
#[inline]
pub(crate) fn is_foreign(fd: c_int) -> bool {
    Seen::of(fd).is_foreign()
}

/// A copy of a descriptor's word.
#[derive(Clone, Copy)]
pub(crate) struct Seen {
    fd: c_int,
    word: u64,
    /// The epoch when the word was copied, plus one.
    now: u64,
}

impl Seen {
    #[inline]
    pub fn of(fd: c_int) -> Seen {
        // The epoch is read first. So the caller looks at the file in this epoch or a later one, and never notes an epoch that
        // began after its look.
        let now = fastmap::coherence::epoch().wrapping_add(1);
        let word = word(fd).map_or(0, |word| word.load(Ordering::Acquire));
        Seen { fd, word, now }
    }

    #[inline]
    pub fn is_foreign(self) -> bool {
        self.word >> EPOCH & EPOCH_BITS == self.now && self.word & OPEN != 0 && !DIVIDED.load(Ordering::Relaxed)
    }

    /// Notes that the descriptor's file is not in the engine. The caller has called fstat(2) after it made this copy.
    pub fn note_foreign(self) {
        if self.word & OPEN == 0 || self.now > EPOCH_BITS {
            return;
        }
        if let Some(word) = word(self.fd) {
            let known = self.word & !(EPOCH_BITS << EPOCH) | self.now << EPOCH;
            // This fails if the number was closed meanwhile.
            let _ = word.compare_exchange(self.word, known, Ordering::Relaxed, Ordering::Relaxed);
        }
    }

    /// Whether the descriptor's file is known not to be an object's.
    #[inline]
    pub fn is_plain(self) -> bool {
        self.word & (OPEN | PLAIN) == OPEN | PLAIN && !DIVIDED.load(Ordering::Relaxed)
    }

    /// Notes that the descriptor's file is not an object's. The caller has called fstat(2) after it made this copy.
    pub fn note_plain(self) {
        if self.word & OPEN != 0
            && let Some(word) = word(self.fd)
        {
            // This fails if the number was closed meanwhile.
            let _ = word.compare_exchange(self.word, self.word | PLAIN, Ordering::Relaxed, Ordering::Relaxed);
        }
    }

    /// The number of the descriptor's open file description; `None`: not known. Descriptors with the same description have the
    /// same number. Different descriptions may have the same number too.
    pub fn description(self) -> Option<usize> {
        let number = (self.word >> DESCRIPTION & DESCRIPTION_BITS) as usize;
        if self.word & OPEN == 0 || DIVIDED.load(Ordering::Relaxed) { None } else { number.checked_sub(1) }
    }

    /// Whether the descriptor's open file description is known to be read-only.
    pub fn reads_only(self) -> bool {
        self.word & (OPEN | READ_ONLY) == OPEN | READ_ONLY && !DIVIDED.load(Ordering::Relaxed)
    }
}
