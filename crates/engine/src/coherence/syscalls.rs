//! Finds the mapped file of a system call, and prepares for the call.

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

/// Bytes that a call should not exceed while a [`Writing`] is held: the pages that it covers are out of every thread's reach
/// meanwhile.
///
/// ```
/// assert_eq!(fastmap::coherence::PIECE % 4096, 0);
/// ```
pub const PIECE: usize = 8 << 20;

/// For up to so many pages the words are looked at first, one by one. Their blocks' locks may not be needed.
const FEW: usize = 1024;

/// Whether any file is in the engine. It costs one load.
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

/// A number that grows whenever a file comes to the engine. While it stays the same, a file for which [`may_know`] said false
/// is not in the engine. It costs one load.
///
/// ```
/// assert_eq!(fastmap::coherence::epoch(), fastmap::coherence::epoch());
/// ```
#[inline]
pub fn epoch() -> u64 {
    by_file::epoch()
}

/// Whether the file with this stat(2) may be in the engine. True for a few files that are not, too. Remember a false answer
/// together with the [`epoch`] from before the stat(2).
///
/// ```
/// // SAFETY: an all-zero stat is one, of no file.
/// let stat: libc::stat = unsafe { std::mem::zeroed() };
/// assert!(!fastmap::coherence::may_know(&stat));
/// ```
pub fn may_know(stat: &libc::stat) -> bool {
    Identity::of(stat).is_some_and(|identity| by_file::may_know(identity.numbers()))
}

/// The file behind a descriptor, if it is in the engine. Calls fstat(2), unless no file is in the engine. errno(3) may change.
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

/// The file with this stat(2), if it is in the engine: for calls that name it by a path.
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
    // A region that is about to end is passed over if another has taken its place. Otherwise `MappedFile::work` waits for its end.
    let is_draining = |(region, _): &(&Region, RegionVisit)| region.in_flight().is_draining();
    let other = if is_draining(&first) { visits.find(|one| !is_draining(one)) } else { None };
    let (region, visit) = other.unwrap_or(first);
    Some(MappedFile { region, _visit: visit })
}

/// A file in the engine. If it is unmapped while this exists, it is a file like any other from then on. This may be left behind in a call that
/// a signal handler has left by longjmp(3): nobody waits for it.
///
/// See the [module](crate::coherence) for an example.
#[derive(Debug)]
pub struct MappedFile {
    /// The values stay as long as the visit, though the region may have ended. For more than a look at them a thread has to be at work there
    /// (`MappedFile::work`).
    region: &'static Region,
    _visit: RegionVisit,
}

impl MappedFile {
    /// The file's region.
    pub(crate) fn region(&self) -> &Region {
        self.region
    }

    /// Begins work in the file's region, or in one that has taken its place. `None`: the file has no region any more. Waits for a region that is
    /// about to end, since the call must not come before that region's last write. After a while it insists on being let in: the region's end
    /// may wait for this very thread, which is at work there already.
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
                // SAFETY: if the work does not begin, the region is not used any more.
                let region = unsafe { entered.outlived() };
                if let Some(at_work) = region.in_flight().begin_work(&mut blocked, start.elapsed() > PATIENCE) {
                    return Some(Work { region, _at_work: at_work });
                }
            }
            to_kernel::nap();
        }
    }
}

/// This thread is at work in a region.
#[derive(Debug)]
pub(super) struct Work {
    pub region: &'static Region,
    _at_work: AtWork<'static>,
}

impl MappedFile {
    /// Writes the stores to a range of bytes to the file, so that a system call reads them. It does not put them on stable
    /// storage. If nothing is dirty it only looks.
    ///
    /// # Errors
    /// Those of the write: ENOSPC, EIO, EDQUOT. Nothing is lost. EDEADLK in a thread that has a [`Resizing`].
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
            sweep::write_out(region, pages.clone(), Stripe::ALL).map_err(|failure| failure.error)?;
            if region.in_flight().resizes().none_since(mark) {
                return Ok(());
            }
        }
    }

    /// Takes the pages of a range of bytes out of every thread's reach, for a system call that writes there: write(2) and
    /// its kin, fallocate(2), copy_file_range(2). The range may reach past the file's end, and past all that is mapped.
    /// Loads and stores there wait until the [`Writing`] is gone.
    ///
    /// # Errors
    /// Those of saving the stores there: ENOSPC, EIO, EDQUOT; nothing is lost then. EBUSY for a page with 2047 pins.
    pub fn writing(&self, range: Range<u64>) -> Result<Writing<'_>, i32> {
        Writing::begin(self.work(Blocked::all()), range)
    }

    /// Prepares for a change of the file's length: ftruncate(2), truncate(2), open(2) with O_TRUNC. The pages that are to be
    /// cut off are out of every thread's reach until the [`Resizing`] is gone. Stores below the new end stay.
    ///
    /// # Errors
    /// Those of [`MappedFile::writing`], when the page that holds the new end is saved. For the part that is cut off only EIO:
    /// a page of it was stored to before it was read, and cannot be read.
    pub fn resizing(&self, new_len: u64) -> Result<Resizing<'_>, i32> {
        Resizing::begin(self.work(Blocked::all()), new_len)
    }

    /// Writes all stores to the file and puts them on stable storage: for fsync(2) and its kin, before the call itself.
    ///
    /// # Errors
    /// Those of the writes and of the sync. Once a sync has failed, EIO for good. EDEADLK in a thread that has a [`Resizing`].
    pub fn sync(&self) -> Result<(), i32> {
        let Some(Work { region, .. }) = &self.work(Blocked::but_sigbus()) else { return Ok(()) };
        // By this thread: the writers may be about to end the region, and wait for it to leave.
        let saved = length::follow(region).and_then(|()| flush::write_out(region, 0..region.span() / PAGE));
        saved.and_then(|()| flush::sync(region)).map_err(|error| error.errno())
    }

    /// Takes the file's positions, which one thread has at a time. For a call that reads or writes at the descriptor's
    /// position, or appends: its place in the file is known only if no other call moves the position meanwhile.
    pub fn position(&self) -> Position<'_> {
        Position::of(self.work(Blocked::all()), Positions::all)
    }

    /// The same, for a caller that can tell open file descriptions (open(2)) apart. Calls on descriptions with another number,
    /// modulo [`DESCRIPTIONS`](crate::coherence::DESCRIPTIONS), go on. Not for appending.
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

/// The pages of a region that a range of bytes touches, clipped to the region.
pub(super) fn pages_of(region: &Region, range: &Range<u64>) -> Range<usize> {
    let clip = |at: u64| at.min(region.span() as u64) as usize;
    let (start, end) = (clip(range.start), clip(range.end));
    mapping::pages(start, end.saturating_sub(start))
}

pub(super) fn length_of(region: &Region) -> Result<u64, i32> {
    region.store().length().map_err(|error| error.raw_os_error().unwrap_or(libc::EIO))
}
