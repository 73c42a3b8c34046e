//! What a system call on a file does before and after itself.

use super::resizing::Resizing;
use super::to_kernel;
use super::writing::Writing;
use crate::files::{children, length};
use crate::map::mapping;
use crate::page::entry::RegionVisit;
use crate::region::by_file;
use crate::region::in_flight::{AtWork, Positions, PositionsHeld};
use crate::region::region::Region;
use crate::sys::file::Identity;
use crate::sys::signal::Blocked;
use crate::sys::{PAGE, fork};
use crate::writeback::sweep::Stripe;
use crate::writeback::{flush, sweep};
use std::ops::Range;
use std::os::fd::RawFd;
use std::time::{Duration, Instant};

/// Bytes that a call had better not exceed while a [`Writing`] is held: what it covers is out of every thread's reach
/// for as long.
///
/// ```
/// assert_eq!(fastmap::coherence::PIECE % 4096, 0);
/// ```
pub const PIECE: usize = 8 << 20;

/// Up to so many pages their words are looked at, one by one, before their blocks' locks are asked for.
const FEW: usize = 1024;

/// Whether any file is in the engine. One load.
///
/// ```
/// # fn main() -> fastmap::Result<()> {
/// # let file = tempfile::tempfile().unwrap();
/// # file.set_len(4096).unwrap();
/// // SAFETY: nobody else changes the file.
/// let map = unsafe { fastmap::Map::map(&file)? };
/// assert!(fastmap::coherence::any() || map.engine() == fastmap::Engine::Kernel);
/// # Ok(())
/// # }
/// ```
#[inline]
pub fn any() -> bool {
    by_file::any()
}

/// Raised whenever a file comes to the engine: what [`may_know`] has denied is true until this changes. One load.
///
/// ```
/// assert_eq!(fastmap::coherence::epoch(), fastmap::coherence::epoch());
/// ```
#[inline]
pub fn epoch() -> u64 {
    by_file::epoch()
}

/// Whether the file of which stat(2) says this may be in the engine; of a few that are not it says so too. To be
/// remembered with the [`epoch`] from before the stat(2).
///
/// ```
/// // SAFETY: an all-zero stat is one, of no file.
/// let stat: libc::stat = unsafe { std::mem::zeroed() };
/// assert!(!fastmap::coherence::may_know(&stat));
/// ```
pub fn may_know(stat: &libc::stat) -> bool {
    Identity::of(stat).is_some_and(|identity| by_file::may_know(identity.numbers()))
}

/// The file behind a descriptor, if it is in the engine; asked by fstat(2), unless none is. errno(3) may change.
///
/// ```
/// assert!(fastmap::coherence::file(0).is_none());
/// ```
pub fn file(fd: RawFd) -> Option<MappedFile> {
    if !any() {
        return None;
    }
    // SAFETY: fstat fills the zeroed structure.
    let stat = unsafe {
        let mut stat: libc::stat = std::mem::zeroed();
        (libc::fstat(fd, &mut stat) == 0).then_some(stat)
    };
    by_stat(&stat?)
}

/// The file of which stat(2) says this, if it is in the engine: for calls that name it by a path.
///
/// ```
/// // SAFETY: an all-zero stat is one, of no file.
/// let stat: libc::stat = unsafe { std::mem::zeroed() };
/// assert!(fastmap::coherence::by_stat(&stat).is_none());
/// ```
pub fn by_stat(stat: &libc::stat) -> Option<MappedFile> {
    if !may_know(stat) {
        return None;
    }
    let numbers = Identity::of(stat)?.numbers();
    if fork::is_child() {
        if children::has(Identity::from_numbers(numbers)) {
            children::resolve();
        }
        return None;
    }
    let mut visits = by_file::visit(numbers);
    let first = visits.next()?;
    // One that is about to end is waited for by whoever works in it (`MappedFile::work`), unless another has taken its place.
    let is_draining = |(region, _): &(&Region, RegionVisit)| region.in_flight().is_draining();
    let other = if is_draining(&first) { visits.find(|one| !is_draining(one)) } else { None };
    let (region, visit) = other.unwrap_or(first);
    Some(MappedFile { region, _visit: visit })
}

/// A file in the engine. It may be unmapped while this exists; the file that was is then as any other. This may be left behind, in a call that a
/// signal handler has left by longjmp(3): nobody waits for it.
///
/// See the [module](crate::coherence) for an example.
#[derive(Debug)]
pub struct MappedFile {
    /// The values stay as long as the visit, though the region may have ended: all that is more than a look at them is done by a thread
    /// `at_work`.
    region: &'static Region,
    _visit: RegionVisit,
}

impl MappedFile {
    /// Its region.
    pub(crate) fn region(&self) -> &Region {
        self.region
    }

    /// Begins work in the file's region, also in one that has taken this one's place; `None`: it has none any more. One that is about to end is
    /// waited for: what the call does next must not come before its last write. A thread that is at work there already, on which that end waits,
    /// insists after a while.
    fn work(&self, blocked: Blocked) -> Option<Work> {
        const PATIENCE: Duration = Duration::from_millis(100);
        let numbers = self.region.store().identity().numbers();
        let mut blocked = Some(blocked);
        if let Some(at_work) = self.region.in_flight().begin_work(&mut blocked, false) {
            return Some(Work { region: self.region, _at_work: at_work });
        }
        let start = Instant::now();
        loop {
            {
                let entered = by_file::find(numbers).next()?;
                // SAFETY: used no more where the work does not begin.
                let region = unsafe { entered.outlived() };
                if let Some(at_work) = region.in_flight().begin_work(&mut blocked, start.elapsed() > PATIENCE) {
                    return Some(Work { region, _at_work: at_work });
                }
            }
            to_kernel::nap();
        }
    }
}

/// This thread at work in a region.
#[derive(Debug)]
pub(super) struct Work {
    pub region: &'static Region,
    _at_work: AtWork<'static>,
}

impl MappedFile {
    /// Writes to the file what was stored to a range of bytes, so that a system call reads it; not to stable storage.
    /// Where nothing is dirty it looks and returns.
    ///
    /// # Errors
    /// Of the write: ENOSPC, EIO, EDQUOT. Nothing is lost. EDEADLK in a thread that has a [`Resizing`].
    pub fn before_read(&self, range: Range<u64>) -> Result<(), i32> {
        let region = self.region;
        if !region.is_writable() {
            return Ok(());
        }
        let pages = pages_of(region, &range);
        // A page that is being written is not in the file yet, and has no dirty bit any more.
        let is_saved = |page: usize| !region.word(page).look().may_hold_stores();
        if pages.len() <= FEW && pages.clone().all(is_saved) {
            return Ok(());
        }
        let Some(Work { region, .. }) = &self.work(Blocked::but_sigbus()) else { return Ok(()) };
        loop {
            let mark = region.in_flight().resizes().await_end()?;
            sweep::write_out(region, pages.clone(), Stripe::ALL).map_err(|failure| failure.error())?;
            if region.in_flight().resizes().none_since(mark) {
                return Ok(());
            }
        }
    }

    /// Takes the pages of a range of bytes out of everybody's reach, for a system call that writes there: write(2) and
    /// its kin, fallocate(2), copy_file_range(2). The range may reach past the file's end, and past all that is mapped.
    /// Loads and stores there wait until the [`Writing`] is gone.
    ///
    /// # Errors
    /// Of saving what was stored there: ENOSPC, EIO, EDQUOT; nothing is lost then. EBUSY for a page with 4095 pins.
    pub fn writing(&self, range: Range<u64>) -> Result<Writing<'_>, i32> {
        Writing::begin(self.work(Blocked::all()), range)
    }

    /// Prepares for a change of the file's length: ftruncate(2), truncate(2), open(2) with O_TRUNC. What is to be cut
    /// off is out of everybody's reach until the [`Resizing`] is gone; what was stored below the new end stays.
    ///
    /// # Errors
    /// As for [`MappedFile::writing`], of saving the page that holds the new end; of what is cut off only EIO, for a
    /// page that was stored to before it was read, and cannot be read.
    pub fn resizing(&self, new_len: u64) -> Result<Resizing<'_>, i32> {
        Resizing::begin(self.work(Blocked::all()), new_len)
    }

    /// Writes everything that was stored to the file and puts it on stable storage: for fsync(2) and its kin, before
    /// the call itself.
    ///
    /// # Errors
    /// Of the writes, and of the sync, also of one that failed before: EIO then, for good. EDEADLK in a thread that has
    /// a [`Resizing`].
    pub fn sync(&self) -> Result<(), i32> {
        let Some(Work { region, .. }) = &self.work(Blocked::but_sigbus()) else { return Ok(()) };
        // By this thread: the writers may be about to end the region, and wait for it to leave.
        let saved = length::follow(region).and_then(|()| flush::write_out(region, 0..region.span() / PAGE));
        saved.and_then(|()| flush::sync(region)).map_err(|error| error.errno())
    }

    /// Keeps every other thread from having this, for a call that reads or writes at the descriptor's position or
    /// appends: where it will be is known only if no other call moves it meanwhile.
    pub fn position(&self) -> Position<'_> {
        Position::of(self.work(Blocked::all()), Positions::all)
    }

    /// The same for a caller who knows open file descriptions apart (open(2)): those of other numbers, modulo
    /// [`DESCRIPTIONS`](crate::coherence::DESCRIPTIONS), go on. Not for appending.
    pub fn position_of(&self, description: usize) -> Position<'_> {
        Position::of(self.work(Blocked::all()), |positions| positions.one(description))
    }

    /// Whether there may be stores that are not in the file: false while it is mapped for reading only. Then
    /// [`MappedFile::before_read`] does nothing.
    pub fn may_be_stored_to(&self) -> bool {
        self.region.is_writable()
    }
}

/// The file's position, or its end, is this thread's ([`MappedFile::position`]).
#[derive(Debug)]
pub struct Position<'a> {
    // In this order: a lock is held only with signals blocked.
    _held: Option<PositionsHeld<'a>>,
    _work: Option<Work>,
}

impl Position<'_> {
    fn of(work: Option<Work>, hold: impl FnOnce(&'static Positions) -> PositionsHeld<'static>) -> Self {
        Position { _held: work.as_ref().map(|work| hold(work.region.in_flight().positions())), _work: work }
    }
}

/// The pages of a region that a range of bytes touches, as far as it reaches.
pub(super) fn pages_of(region: &Region, range: &Range<u64>) -> Range<usize> {
    let clip = |at: u64| at.min(region.span() as u64) as usize;
    let (start, end) = (clip(range.start), clip(range.end));
    mapping::pages(start, end.saturating_sub(start))
}

pub(super) fn length_of(region: &Region) -> Result<u64, i32> {
    region.store().length().map_err(|error| error.raw_os_error().unwrap_or(libc::EIO))
}
