//! Descriptors of the engine's own, kept where programs do not look, and known by their numbers: fcntl(2)
//! `F_DUPFD_CLOEXEC`.
//!
//! Programs close what they have not opened (everything above 2, before exec(2) or as daemons do), or put a file of
//! theirs at a fixed number (dup2(2)). So a descriptor of ours moves up as soon as it is there, and its number is
//! marked in a bitmap, which the preload library's close(2) and its kin ask.

use super::process::pause_for;
use super::{descriptor_table, fork, record_locks};
use std::fs::File;
use std::mem::ManuallyDrop;
use std::ops::{Deref, DerefMut};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

/// Numbers that can be marked. A descriptor beyond them is one of a program that has opened as many files itself.
const MOST: usize = 1 << 16;
/// Where ours begin at most: above what programs name (shells use 255), and no higher, since the kernel has a table of
/// pointers up to the highest number, and fork(2) copies it.
const MOST_LEAST: libc::rlim_t = 3072;

/// A set of descriptors, a bit each. All zeros is the empty one.
#[derive(Debug)]
pub struct Numbers([AtomicU64; MOST / 64]);

static MARKED: Numbers = Numbers::new();
/// Of these, those that the engine opened: their open file descriptions are nobody else's.
static ANEW: Numbers = Numbers::new();

impl Numbers {
    const fn new() -> Self {
        Numbers([const { AtomicU64::new(0) }; MOST / 64])
    }

    /// Whether a number can be in it.
    pub fn has_room_for(number: RawFd) -> bool {
        usize::try_from(number).is_ok_and(|number| number < MOST)
    }

    fn word_of(&self, number: RawFd) -> Option<(&AtomicU64, u64)> {
        let number = usize::try_from(number).ok()?;
        Some((self.0.get(number / 64)?, 1 << (number % 64)))
    }

    /// Puts a number in.
    pub fn insert(&self, number: RawFd) {
        if let Some((word, bit)) = self.word_of(number) {
            word.fetch_or(bit, Ordering::AcqRel);
        }
    }

    /// Takes a number out; whether it was there.
    pub fn remove(&self, number: RawFd) -> bool {
        self.word_of(number).is_some_and(|(word, bit)| word.fetch_and(!bit, Ordering::AcqRel) & bit != 0)
    }

    #[inline]
    fn has(&self, number: RawFd) -> bool {
        self.word_of(number).is_some_and(|(word, bit)| word.load(Ordering::Acquire) & bit != 0)
    }

    /// The first of them at or after `from`.
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

/// Whether a number is that of a descriptor of the engine's. In a child made by fork(2) none is, once its maps are the
/// kernel's: the engine does not run there, and what it left there may be closed.
#[inline]
pub fn is_engine_fd(number: RawFd) -> bool {
    MARKED.has(number) && are_kept()
}

/// A child still needs what it has inherited (`files/children.rs`).
static KEPT_IN_CHILD: AtomicBool = AtomicBool::new(false);

/// Notes that, or that it does not any more.
pub fn keep_in_child(kept: bool) {
    KEPT_IN_CHILD.store(kept, Ordering::Release);
}

fn are_kept() -> bool {
    !fork::is_child() || KEPT_IN_CHILD.load(Ordering::Acquire)
}

/// The first of them at or after `from`.
pub fn next_engine_fd(from: RawFd) -> Option<RawFd> {
    MARKED.next(from).filter(|_| are_kept())
}

/// Whether a descriptor's open file description is the engine's own.
pub fn is_opened_anew(number: RawFd) -> bool {
    ANEW.has(number)
}

/// Owns a descriptor that the engine opened, and says so.
///
/// # Safety
/// Nobody else owns it.
pub unsafe fn opened_anew(number: RawFd) -> EngineFd<File> {
    // SAFETY: the caller's contract.
    let owner = EngineFd::marked(unsafe { File::from_raw_fd(number) });
    ANEW.insert(number);
    owner
}

/// Threads that have a descriptor open at a low number, where the kernel puts every new one.
static LOW: AtomicU32 = AtomicU32::new(0);

/// Calls of the program's that close or replace descriptors, perhaps such that it has not opened.
static CLOSING: AtomicU32 = AtomicU32::new(0);

/// How often the program's thread looks whether none of ours is there any more, at intervals of 50 us and what a sleep takes more: about a
/// tenth of a second in all.
const LOOKS: u32 = 1000;
/// The same of ours, for calls that have begun: a close(2) may itself wait, and a thread may end there.
const LOOKS_OF_OURS: u32 = 200;

/// Held by a thread of the engine while it has one there: until it has moved up, or is closed.
#[must_use]
#[derive(Debug)]
pub struct Low(());

/// Says that this thread is about to open a descriptor. Waits for the program's calls that are closing or replacing one, but not for long;
/// those that come later wait for this.
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

/// In a child made by fork(2), where these threads are not.
pub fn in_child() {
    LOW.store(0, Ordering::SeqCst);
    CLOSING.store(0, Ordering::SeqCst);
}

/// Held while the program closes or replaces descriptors: none of ours comes to a low number meanwhile.
#[must_use]
#[derive(Debug)]
pub struct Closing(());

/// Before the program closes or replaces a descriptor: waits until none of ours is at a low number, but not for long.
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
/// Nobody owns it.
pub unsafe fn close(number: RawFd) {
    unmark(number);
    // SAFETY: the caller's contract.
    unsafe { libc::syscall(libc::SYS_close, number) };
}

fn mark(number: RawFd) {
    ANEW.remove(number);
    MARKED.insert(number);
}

/// Before it is closed: another thread may open one of ours by the same number right after that.
fn unmark(number: RawFd) {
    ANEW.remove(number);
    MARKED.remove(number);
}

/// The least number that is ours to take: three quarters of the numbers there may be are the program's alone.
fn least() -> RawFd {
    static LEAST: OnceLock<RawFd> = OnceLock::new();
    *LEAST.get_or_init(|| {
        let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
        // SAFETY: fills the structure.
        unsafe { libc::getrlimit(libc::RLIMIT_NOFILE, &mut limit) };
        (limit.rlim_cur / 4 * 3).min(MOST_LEAST) as RawFd
    })
}

/// A second descriptor at a number of ours, if there is room; it is not marked yet.
pub fn copy_up(descriptor: BorrowedFd<'_>) -> Option<OwnedFd> {
    // SAFETY: makes a descriptor.
    let number = unsafe { libc::fcntl(descriptor.as_raw_fd(), libc::F_DUPFD_CLOEXEC, least()) };
    // SAFETY: made just now.
    (number >= 0).then(|| unsafe { OwnedFd::from_raw_fd(number) })
}

/// Owner of a descriptor of the engine's. Its number is marked until it is closed.
pub struct EngineFd<T: AsRawFd>(ManuallyDrop<T>);

impl<T: AsRawFd> EngineFd<T> {
    /// Marks the number that it has.
    pub fn marked(owner: T) -> Self {
        mark(owner.as_raw_fd());
        EngineFd(ManuallyDrop::new(owner))
    }
}

impl<T: AsRawFd + From<OwnedFd> + Into<OwnedFd>> EngineFd<T> {
    /// Moves up and marks what was opened just now. Where there is no room it stays, and where closing the lower number
    /// would take the program's locks away. In another descriptor table than the engine's numbers are not the engine's:
    /// there it stays, unmarked.
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

    /// Keeps the descriptor for good; its number.
    pub fn leak(self) -> RawFd {
        let number = self.as_raw_fd();
        std::mem::forget(self);
        number
    }
}

impl EngineFd<File> {
    /// As `new`, for a file that the engine opened itself: another may have the descriptor after this, should the
    /// program's locks keep it from being closed.
    pub fn opened(file: File) -> Self {
        let own = EngineFd::new(file);
        ANEW.insert(own.as_raw_fd());
        own
    }
}

impl<T: AsRawFd> Drop for EngineFd<T> {
    fn drop(&mut self) {
        let number = self.as_raw_fd();
        // One of the engine's is not this thread's to close if its table is another: its number may be another file's
        // there.
        if MARKED.has(number) && !descriptor_table::is_engines() || record_locks::hold(number) {
            return record_locks::put_aside(number);
        }
        unmark(number);
        // SAFETY: dropped once, here.
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
        // Other tests of this process have some as well.
        let all: Vec<_> = std::iter::successors(next_engine_fd(0), |last| next_engine_fd(last + 1)).collect();
        assert!(all.is_sorted() && all.contains(&number) && all.contains(&two.as_raw_fd()), "{all:?}");
        assert_eq!((next_engine_fd(number), next_engine_fd(MOST as RawFd)), (Some(number), None));
        // SAFETY: reads a descriptor's flags.
        assert_eq!(unsafe { libc::fcntl(number, libc::F_GETFD) }, libc::FD_CLOEXEC);
        drop(two);
        let kept = one.leak();
        assert!(is_engine_fd(kept));
        // SAFETY: leaked just now.
        drop(EngineFd::<File>::marked(unsafe { File::from_raw_fd(kept) }));
    }

    #[test]
    fn one_that_finds_no_room_stays_where_it_is() {
        let file = File::open("/dev/null").unwrap();
        let before = file.as_raw_fd();
        let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
        let least = least();
        // SAFETY: this process's own limit, put back at once; other tests' descriptors stay where they are meanwhile.
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
