//! The engine's own descriptors. They have high numbers (fcntl(2) `F_DUPFD_CLOEXEC`), and a bitmap marks these numbers.
//!
//! Programs close descriptors that they have not opened: everything above 2, for example, before exec(2) or when they become daemons. They
//! also put a file of theirs at a fixed number (dup2(2)). So the engine moves each of its descriptors to a high number as soon as it is open,
//! and marks the number in a bitmap. The preload library's close(2) and related functions ask the bitmap.

use super::process::pause_for;
use super::{descriptor_table, fork, record_locks};
use std::fs::File;
use std::mem::ManuallyDrop;
use std::ops::{Deref, DerefMut};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

/// Numbers below this can be marked. The engine gets a higher number only if the program itself has about this many files open.
const MOST: usize = 1 << 16;
/// The engine's numbers begin here, or lower under a small limit of descriptors. This is above the numbers that programs name (shells use
/// 255). It is no higher, since the kernel has a table of pointers up to the highest number, and fork(2) copies the table.
const MOST_LEAST: libc::rlim_t = 3072;

/// A set of descriptor numbers, one bit each. All zeros is the empty set.
#[derive(Debug)]
pub struct Numbers([AtomicU64; MOST / 64]);

static MARKED: Numbers = Numbers::new();
/// Those of `MARKED` that the engine opened itself: nobody else has their open file descriptions.
static ANEW: Numbers = Numbers::new();

impl Numbers {
    const fn new() -> Self {
        Numbers([const { AtomicU64::new(0) }; MOST / 64])
    }

    /// Whether the set has a bit for a number.
    pub fn has_room_for(number: RawFd) -> bool {
        usize::try_from(number).is_ok_and(|number| number < MOST)
    }

    fn word_of(&self, number: RawFd) -> Option<(&AtomicU64, u64)> {
        let number = usize::try_from(number).ok()?;
        Some((self.0.get(number / 64)?, 1 << (number % 64)))
    }

    /// Puts a number in. A number that the set has no bit for is ignored.
    pub fn insert(&self, number: RawFd) {
        if let Some((word, bit)) = self.word_of(number) {
            word.fetch_or(bit, Ordering::AcqRel);
        }
    }

    /// Takes a number out. Returns whether it was in the set.
    pub fn remove(&self, number: RawFd) -> bool {
        self.word_of(number).is_some_and(|(word, bit)| word.fetch_and(!bit, Ordering::AcqRel) & bit != 0)
    }

    #[inline]
    fn has(&self, number: RawFd) -> bool {
        self.word_of(number).is_some_and(|(word, bit)| word.load(Ordering::Acquire) & bit != 0)
    }

    /// The first number in the set at or after `from`.
    pub fn next(&self, from: RawFd) -> Option<RawFd> {
        let from = from.max(0) as usize;
        let mut ignored = (1u64 << (from % 64)) - 1;
        for (index, word) in self.0.iter().enumerate().skip(from / 64) {
            let left = word.load(Ordering::Acquire) & !std::mem::take(&mut ignored);
            if left != 0 {
                return Some((index * 64) as RawFd + left.trailing_zeros() as RawFd);
            }
        }
        None
    }
}

/// Whether a number is a descriptor of the engine's. In a child made by fork(2) the answer is no, once the child's maps have become kernel
/// mappings: the engine does not run there, and the descriptors that it left there may be closed.
#[inline]
pub fn is_engine_fd(number: RawFd) -> bool {
    MARKED.has(number) && are_kept()
}

/// Whether this child made by fork(2) still needs the engine's descriptors that it has inherited (`files/children.rs`).
static KEPT_IN_CHILD: AtomicBool = AtomicBool::new(false);

/// Sets whether this child still needs the engine's descriptors that it has inherited.
pub fn keep_in_child(kept: bool) {
    KEPT_IN_CHILD.store(kept, Ordering::Release);
}

fn are_kept() -> bool {
    !fork::is_child() || KEPT_IN_CHILD.load(Ordering::Acquire)
}

/// The first descriptor of the engine's at or after `from`.
pub fn next_engine_fd(from: RawFd) -> Option<RawFd> {
    MARKED.next(from).filter(|_| are_kept())
}

/// Whether the engine opened a descriptor itself, so that nobody else has its open file description.
pub fn is_opened_anew(number: RawFd) -> bool {
    ANEW.has(number)
}

/// Takes ownership of a descriptor that the engine opened itself, and marks it as such.
///
/// # Safety
/// Nobody else owns the descriptor.
pub unsafe fn opened_anew(number: RawFd) -> EngineFd<File> {
    // SAFETY: the caller's contract.
    let owner = EngineFd::marked(unsafe { File::from_raw_fd(number) });
    ANEW.insert(number);
    owner
}

/// The number of engine threads that may have a descriptor at a low number. The kernel opens every descriptor at the lowest free number.
static LOW: AtomicU32 = AtomicU32::new(0);

/// The number of calls under way in which the program closes or replaces descriptors, perhaps some that it has not opened.
static CLOSING: AtomicU32 = AtomicU32::new(0);

/// How often a thread of the program looks whether the engine's descriptors have left the low numbers. It sleeps 50 us, and the overhead of a
/// sleep, between two looks: about a tenth of a second in all.
const LOOKS: u32 = 1000;
/// How often a thread of the engine looks whether the program's calls have ended. It does not wait for long: a close(2) may itself wait, and
/// a thread may end in it.
const LOOKS_OF_OURS: u32 = 200;

/// Held by a thread of the engine while it has a descriptor at a low number: until the descriptor has moved up, or is closed.
#[must_use]
#[derive(Debug)]
pub struct Low(());

/// Announces that this thread is about to open a descriptor. Waits, but not for long, for calls of the program that close or replace
/// descriptors. Later calls of the program wait until the guard is dropped.
pub fn low() -> Low {
    LOW.fetch_add(1, Ordering::SeqCst);
    for _ in 0..LOOKS_OF_OURS {
        if CLOSING.load(Ordering::SeqCst) == 0 {
            break;
        }
        pause();
    }
    Low(())
}

impl Drop for Low {
    fn drop(&mut self) {
        LOW.fetch_sub(1, Ordering::SeqCst);
    }
}

/// Resets both counts in a child made by fork(2), which does not have the threads that they count.
pub fn in_child() {
    LOW.store(0, Ordering::SeqCst);
    CLOSING.store(0, Ordering::SeqCst);
}

/// Held while the program closes or replaces descriptors. A thread of the engine that wants to open a
/// descriptor waits meanwhile, but not for long.
#[must_use]
#[derive(Debug)]
pub struct Closing(());

/// Called before the program closes or replaces a descriptor. Waits, but not for long, until no descriptor of the engine's is at a low number.
/// Async-signal-safe.
#[inline]
pub fn closing() -> Closing {
    CLOSING.fetch_add(1, Ordering::SeqCst);
    if LOW.load(Ordering::SeqCst) != 0 {
        wait_for_low();
    }
    Closing(())
}

impl Drop for Closing {
    #[inline]
    fn drop(&mut self) {
        CLOSING.fetch_sub(1, Ordering::SeqCst);
    }
}

#[cold]
fn wait_for_low() {
    for _ in 0..LOOKS {
        CLOSING.fetch_sub(1, Ordering::SeqCst);
        pause();
        CLOSING.fetch_add(1, Ordering::SeqCst);
        if LOW.load(Ordering::SeqCst) == 0 {
            return;
        }
    }
}

fn pause() {
    pause_for(50_000);
}

/// Closes a descriptor of the engine's.
///
/// # Safety
/// Nobody owns the descriptor.
pub unsafe fn close(number: RawFd) {
    unmark(number);
    // SAFETY: the caller's contract.
    unsafe { libc::syscall(libc::SYS_close, number) };
}

fn mark(number: RawFd) {
    ANEW.remove(number);
    MARKED.insert(number);
}

/// Called before the descriptor is closed: right after the close, another thread may open a descriptor of the engine's with the same number.
fn unmark(number: RawFd) {
    ANEW.remove(number);
    MARKED.remove(number);
}

/// The engine's least number: three quarters of the limit of descriptors (`RLIMIT_NOFILE`), and at most [`MOST_LEAST`]. The numbers below it
/// are the program's alone.
fn least() -> RawFd {
    static LEAST: OnceLock<RawFd> = OnceLock::new();
    *LEAST.get_or_init(|| {
        let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
        // SAFETY: the call fills the structure.
        unsafe { libc::getrlimit(libc::RLIMIT_NOFILE, &mut limit) };
        (limit.rlim_cur / 4 * 3).min(MOST_LEAST) as RawFd
    })
}

/// Duplicates a descriptor to one of the engine's numbers. `None` if none is free. The new number is not marked yet.
pub fn copy_up(descriptor: BorrowedFd<'_>) -> Option<OwnedFd> {
    // SAFETY: the call only makes a descriptor.
    let number = unsafe { libc::fcntl(descriptor.as_raw_fd(), libc::F_DUPFD_CLOEXEC, least()) };
    // SAFETY: the descriptor was made just now, so nobody else owns it.
    (number >= 0).then(|| unsafe { OwnedFd::from_raw_fd(number) })
}

/// Owns a descriptor of the engine's. Its number is marked until the descriptor is closed.
pub struct EngineFd<T: AsRawFd>(ManuallyDrop<T>);

impl<T: AsRawFd> EngineFd<T> {
    /// Marks a descriptor at the number that it has.
    pub fn marked(owner: T) -> Self {
        mark(owner.as_raw_fd());
        EngineFd(ManuallyDrop::new(owner))
    }
}

impl<T: AsRawFd + From<OwnedFd> + Into<OwnedFd>> EngineFd<T> {
    /// Moves a descriptor that was opened just now to one of the engine's numbers, and marks it. It keeps its number if no number of the
    /// engine's is free, or if closing the lower number would take record locks of the program away (`record_locks.rs`). In a thread with
    /// another descriptor table than the engine's (`descriptor_table.rs`), it keeps its number and is not marked.
    pub fn new(opened: T) -> Self {
        if !descriptor_table::is_engines() {
            return EngineFd(ManuallyDrop::new(opened));
        }
        record_locks::look_again();
        if record_locks::hold(opened.as_raw_fd()) {
            return Self::marked(opened);
        }
        let opened = opened.into();
        Self::marked(copy_up(opened.as_fd()).unwrap_or(opened).into())
    }

    /// Keeps the descriptor open for good. Returns its number.
    pub fn leak(self) -> RawFd {
        let number = self.as_raw_fd();
        std::mem::forget(self);
        number
    }
}

impl EngineFd<File> {
    /// The same as `new`, for a file that the engine opened itself. If the program's record locks keep the descriptor from being closed later,
    /// [`record_locks::take`] can hand it to another owner.
    pub fn opened(file: File) -> Self {
        let own = EngineFd::new(file);
        ANEW.insert(own.as_raw_fd());
        own
    }
}

impl<T: AsRawFd> Drop for EngineFd<T> {
    fn drop(&mut self) {
        let number = self.as_raw_fd();
        // A thread with another descriptor table must not close a descriptor of the engine's: the number may stand for another file in that
        // table.
        if MARKED.has(number) && !descriptor_table::is_engines() || record_locks::hold(number) {
            return record_locks::put_aside(number);
        }
        unmark(number);
        // SAFETY: the field is dropped once, here.
        unsafe { ManuallyDrop::drop(&mut self.0) };
        record_locks::look_again();
    }
}

impl<T: AsRawFd> Deref for EngineFd<T> {
    type Target = T;

    #[inline]
    fn deref(&self) -> &T {
        &self.0
    }
}

impl<T: AsRawFd> DerefMut for EngineFd<T> {
    fn deref_mut(&mut self) -> &mut T {
        &mut self.0
    }
}

impl<T: AsRawFd> std::fmt::Debug for EngineFd<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "EngineFd({})", self.as_raw_fd())
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn ours_are_found_by_number_until_they_are_closed() {
        let one = EngineFd::new(File::open("/dev/null").unwrap());
        let number = one.as_raw_fd();
        assert!(
            number >= least().min(64)
                && is_engine_fd(number)
                && !is_engine_fd(2)
                && !is_engine_fd(-1)
                && !is_engine_fd(RawFd::MAX)
        );
        let two = EngineFd::new(one.try_clone().unwrap());
        assert!(two.as_raw_fd() != number && is_engine_fd(two.as_raw_fd()));
        // Other tests in this process have descriptors of the engine's as well.
        let all: Vec<_> = std::iter::successors(next_engine_fd(0), |last| next_engine_fd(last + 1)).collect();
        assert!(all.is_sorted() && all.contains(&number) && all.contains(&two.as_raw_fd()), "{all:?}");
        assert_eq!((next_engine_fd(number), next_engine_fd(MOST as RawFd)), (Some(number), None));
        // SAFETY: the call reads a descriptor's flags.
        assert_eq!(unsafe { libc::fcntl(number, libc::F_GETFD) }, libc::FD_CLOEXEC);
        drop(two);
        let kept = one.leak();
        assert!(is_engine_fd(kept));
        // SAFETY: the descriptor was leaked just now, so nobody owns it.
        drop(EngineFd::<File>::marked(unsafe { File::from_raw_fd(kept) }));
    }

    #[test]
    fn one_that_finds_no_room_stays_where_it_is() {
        let file = File::open("/dev/null").unwrap();
        let before = file.as_raw_fd();
        let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
        let least = least();
        // SAFETY: changes this process's own limit, and restores it at once. Other tests' descriptors keep their numbers meanwhile.
        let moved = unsafe {
            libc::getrlimit(libc::RLIMIT_NOFILE, &mut limit);
            let low = libc::rlimit { rlim_cur: least as libc::rlim_t, ..limit };
            libc::setrlimit(libc::RLIMIT_NOFILE, &low);
            let moved = EngineFd::new(file);
            libc::setrlimit(libc::RLIMIT_NOFILE, &limit);
            moved
        };
        assert!(moved.as_raw_fd() == before && is_engine_fd(before));
    }
}
