//! System calls on a region's file that are under way (`coherence/`): threads *at work*, for which a region waits before it ends, and
//! changes of the file's length, for which flushes wait.
//!
//! A thread may be in such a call without being at work. Then it only *visits* the region (`by_file::visit`): the region's values stay
//! valid for it, but nobody waits for it. It may be waiting for a socket, or a handler may have taken it out of the call by longjmp(3), for
//! good.
//!
//! While a truncation is under way, the pages that it is to cut off have no dirty bits, and their stores are not in the file either. If the
//! call fails, they are dirty again. A flush that looked at the bits meanwhile would miss them. So a flush that promises that everything is
//! in the file waits until no change of the length is under way, flushes, and flushes once more if a change has begun since.
//!
//! No deadlock: a thread that changes a length waits for pages that others hold, and for the writers' locks, never for a flush. Nobody
//! waits here while it holds a page, such a lock or a region's length: `sweep::write_out` (`writeback/sweep.rs`) and all beneath it do not
//! wait here.

use crate::sys::futex;
use crate::sys::lock::{Held, Lock};
use crate::sys::signal::{Blocked, Uncancelled};
use crate::sys::sync::{AtomicU32, Ordering};
use libc::pthread_t;
use std::sync::atomic::{AtomicU64, AtomicUsize};

/// Flag in the count of threads at work: the region is about to end.
const DRAINING: usize = 1 << (usize::BITS - 1);

/// The system calls on a region's file that are under way.
#[derive(Debug)]
#[repr(align(128))] // written by all cores: on lines of its own, beside what they only read
pub struct InFlight {
    /// Threads at work, and [`DRAINING`].
    at_work: AtomicUsize,
    positions: Positions,
    resizes: Resizes,
}

/// A thread at work in a region for a system call on its file. The region does not end before this is dropped. Signals are blocked, so no
/// handler leaves this behind by longjmp(3), and the region can wait for it. Unlike a thread that has entered the region
/// (`registry::enter`), this thread may wait for anything but the end of a map of the file.
#[derive(Debug)]
pub struct AtWork<'a> {
    in_flight: &'a InFlight,
    _uncancelled: Uncancelled,
    _blocked: Option<Blocked>,
}

impl Drop for AtWork<'_> {
    fn drop(&mut self) {
        self.in_flight.at_work.fetch_sub(1, Ordering::AcqRel);
    }
}

impl InFlight {
    /// None.
    pub fn new() -> Self {
        InFlight { at_work: AtomicUsize::new(0), positions: Positions::new(), resizes: Resizes::new() }
    }

    /// Begins work. The result takes over `blocked`, the caller's blocked signals. `None`: the region has ended or is about to, and
    /// `blocked` stays the caller's. A thread that `insists` is let in even so while others are at work, since it may be one of them.
    pub fn begin_work(&self, blocked: &mut Option<Blocked>, insists: bool) -> Option<AtWork<'_>> {
        let admits = |now: usize| now & DRAINING == 0 || insists && now != DRAINING;
        let one_more = |now: usize| admits(now).then(|| now + 1);
        self.at_work.fetch_update(Ordering::AcqRel, Ordering::Acquire, one_more).ok()?;
        Some(AtWork { in_flight: self, _uncancelled: Uncancelled::begin(), _blocked: blocked.take() })
    }

    /// Whether the region is about to end, and admits nobody any more.
    pub fn is_draining(&self) -> bool {
        self.at_work.load(Ordering::Acquire) & DRAINING != 0
    }

    /// Admits nobody any more, and waits until nobody is at work. The caller holds nothing: a thread at work may want any lock.
    pub fn drain(&self) {
        self.at_work.fetch_or(DRAINING, Ordering::AcqRel);
        while self.at_work.load(Ordering::Acquire) != DRAINING {
            std::thread::sleep(std::time::Duration::from_micros(50));
        }
    }

    /// Admits threads again: the region stays after all.
    pub fn readmit(&self) {
        self.at_work.fetch_and(!DRAINING, Ordering::AcqRel);
    }

    /// Held by system calls on the file that use a descriptor's position, or append.
    pub fn positions(&self) -> &Positions {
        &self.positions
    }

    /// Changes of the file's length that are under way by system calls.
    pub fn resizes(&self) -> &Resizes {
        &self.resizes
    }
}

/// The number of open file descriptions of a file that are told apart by calls at their positions.
///
/// ```
/// assert!(fastmap::coherence::DESCRIPTIONS > 1);
/// ```
pub const DESCRIPTIONS: usize = 8;

/// The positions of a file's open file descriptions.
#[derive(Debug)]
pub struct Positions([OnItsLine; DESCRIPTIONS]);

#[derive(Debug)]
#[repr(align(64))]
struct OnItsLine(Lock);

/// One position or all of them, until dropped. Taken and kept with signals blocked.
#[derive(Debug)]
pub struct PositionsHeld<'a> {
    _held: [Option<Held<'a>>; DESCRIPTIONS],
}

impl Positions {
    fn new() -> Self {
        Positions(std::array::from_fn(|_| OnItsLine(Lock::new())))
    }

    /// Holds the position of one description.
    pub fn one(&self, description: usize) -> PositionsHeld<'_> {
        let at = description % DESCRIPTIONS;
        let mut held = [const { None }; DESCRIPTIONS];
        held[at] = Some(self.0[at].0.lock());
        PositionsHeld { _held: held }
    }

    /// Holds all positions: for a description that is not known, or for the end of the file.
    pub fn all(&self) -> PositionsHeld<'_> {
        // In one order, so that two threads do not wait for each other.
        PositionsHeld { _held: std::array::from_fn(|at| Some(self.0[at].0.lock())) }
    }
}

/// Changes of a file's length that are under way.
#[derive(Debug)]
pub struct Resizes {
    /// One at a time.
    lock: Lock,
    /// Incremented when a change begins and when it ends, so odd while one is under way. Threads sleep on it.
    count: AtomicU32,
    /// The thread whose change is under way; 0: none.
    owner: AtomicU64,
}

/// A change that is under way. It is dropped once the pages are as they will be.
#[derive(Debug)]
pub struct UnderWay<'a> {
    resizes: &'a Resizes,
    // In this order: a lock is held only with signals blocked.
    _held: Held<'a>,
    _blocked: Blocked,
}

/// A moment, as the count of [`Resizes`]: even if no change was under way.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Mark(pub u32);

fn this_thread() -> pthread_t {
    // SAFETY: no preconditions.
    unsafe { libc::pthread_self() }
}

impl Resizes {
    /// None.
    pub fn new() -> Self {
        Resizes { lock: Lock::new(), count: AtomicU32::new(0), owner: AtomicU64::new(0) }
    }

    /// Begins a change, before it takes any page.
    pub fn begin(&self) -> UnderWay<'_> {
        let blocked = Blocked::all();
        let held = self.lock.lock();
        self.owner.store(this_thread(), Ordering::Relaxed);
        // If this thread takes a dirty bit and a flush misses it, the flush sees the count: the block's lock is between the two.
        self.count.fetch_add(1, Ordering::AcqRel);
        UnderWay { resizes: self, _held: held, _blocked: blocked }
    }

    /// Whether the change under way is this thread's, so that it would wait for itself.
    pub fn is_mine(&self) -> bool {
        self.owner.load(Ordering::Relaxed) == this_thread()
    }

    /// This moment. It is no mark to compare with if a change is under way.
    pub fn moment(&self) -> Mark {
        Mark(self.count.load(Ordering::Acquire))
    }

    /// Waits until no change is under way. EDEADLK: the change is this thread's.
    pub fn await_end(&self) -> Result<Mark, i32> {
        loop {
            let now = self.moment();
            if now.0.is_multiple_of(2) {
                return Ok(now);
            }
            if self.is_mine() {
                return Err(libc::EDEADLK);
            }
            futex::wait(&self.count, now.0, None);
        }
    }

    /// Whether no change has been under way since a mark.
    pub fn none_since(&self, mark: Mark) -> bool {
        mark.0.is_multiple_of(2) && self.moment() == mark
    }
}

impl Drop for UnderWay<'_> {
    fn drop(&mut self) {
        self.resizes.owner.store(0, Ordering::Relaxed);
        self.resizes.count.fetch_add(1, Ordering::AcqRel);
        futex::wake_all(&self.resizes.count);
    }
}
