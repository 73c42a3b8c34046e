//! System calls on files that are mapped: what to do before and after them, so that they and the mapping see and change the
//! same bytes.
//!
//! The cache is not the page cache. A program that both maps a file through this crate and calls read(2), write(2),
//! ftruncate(2) or the like on it sees one file only if these calls are accompanied: before a read, stores that the file
//! lacks are written to it; before a write, the pages that it changes are taken out of memory, and every thread that touches
//! one waits until the call is over. That is what the preload library does for programs that know nothing of this crate. A
//! program that does know can do the same, for its own calls or those of a library that it hands the file to.
//!
//! ```
//! # fn main() -> std::io::Result<()> {
//! use fastmap::{MapOptions, coherent};
//! use std::os::{fd::AsRawFd, unix::fs::FileExt};
//!
//! # let folder = tempfile::tempdir_in(".")?;
//! # let file = std::fs::OpenOptions::new().read(true).write(true).create(true).open(folder.path().join("data"))?;
//! file.set_len(1 << 20)?;
//! // SAFETY: nobody else changes the file.
//! let mut map = unsafe { MapOptions::new().map_mut(&file)? };
//! map[100] = 1;
//! if let Some(mapped) = coherent::file(file.as_raw_fd()) {
//!     mapped.before_read(0..4096).map_err(std::io::Error::from_raw_os_error)?;
//! }
//! let mut byte = [0];
//! file.read_exact_at(&mut byte, 100)?;
//! assert_eq!(byte, [1]);
//!
//! let mapped = coherent::file(file.as_raw_fd());
//! let writing = mapped.as_ref().map(|mapped| mapped.writing(100..101)).transpose();
//! let writing = writing.map_err(std::io::Error::from_raw_os_error)?;
//! file.write_all_at(&[2], 100)?;
//! // SAFETY: no reference into the map lives.
//! writing.into_iter().for_each(|writing| unsafe { writing.done() });
//! assert_eq!(map[100], 2);
//! # Ok(())
//! # }
//! ```
//!
//! # Rules
//!
//! Reads and writes may be accompanied in signal handlers too: nothing there allocates memory, but for the first write to a
//! file that is mapped for reading only. Signals are blocked in the calling
//! thread while a [`Writing`], [`Resizing`] or [`Position`] lives, so whatever the call reads from or writes to must not lie in
//! a mapping of this crate: copy it through other memory. Large calls are best made in pieces ([`PIECE`]). Of several,
//! a [`Position`] comes first, and a thread has one [`Writing`] or [`Resizing`] at a time: two threads that each wait for the
//! other's would do so for ever. Flushes of the file by other threads wait while a [`Resizing`] lives; the thread that has one or
//! the other flushes and maps nothing of the file until it is gone (with a [`Resizing`] that fails with EDEADLK).
//!
//! Errors are error numbers (errno(3)).

use crate::children;
use crate::lock;
use crate::map;
use crate::page::State;
use crate::region::{Region, SlotIndex};
use crate::registry::{self, MOST_REGIONS};
use crate::resizes::UnderWay;
use crate::seize::{self, Fill, Seized};
use crate::sizes;
use crate::sys::file::Identity;
use crate::sys::signal::Blocked;
use crate::sys::{PAGE, fork};
use crate::writeback::{self, Stripe};
use crate::writers;
use std::cell::Cell;
use std::fmt;
use std::ops::Range;
use std::os::fd::RawFd;
use std::ptr;
use std::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering};

/// Bytes that a call had better not exceed while a [`Writing`] is held: what it covers is out of every thread's reach for as
/// long.
///
/// ```
/// assert_eq!(fastmap::coherent::PIECE % 4096, 0);
/// ```
pub const PIECE: usize = 8 << 20;

/// Pages whose words are looked at, one by one, before their blocks' locks are asked for.
const FEW: usize = 1024;

/// Files in the engine.
static FILES: AtomicUsize = AtomicUsize::new(0);
/// How many of them have a name with this hash: of a file that is not among them, this says so at once.
static HASHES: [AtomicU32; 1024] = [const { AtomicU32::new(0) }; 1024];
/// The names, by the region's slot. Changed before the region can be entered and when it cannot be any more.
static NAMES: [[AtomicU64; 2]; MOST_REGIONS] = [const { [const { AtomicU64::new(0) }; 2] }; MOST_REGIONS];

fn hash_of([device, inode]: [u64; 2]) -> &'static AtomicU32 {
    let mixed = (device ^ inode.rotate_left(32)).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    &HASHES[(mixed >> 32) as usize % HASHES.len()]
}

/// Makes a region known by its file; by whoever publishes it, in whose turn nobody else does.
pub(crate) fn note(region: &Region) {
    let numbers = region.store().identity().numbers();
    let name = &NAMES[region.slot().0 as usize];
    name.iter().zip(numbers).for_each(|(word, number)| word.store(number, Ordering::Relaxed));
    // Release: who finds the count finds the name.
    hash_of(numbers).fetch_add(1, Ordering::Release);
    FILES.fetch_add(1, Ordering::Release);
}

/// Takes `note` back, likewise. The name stays until the slot's next one.
pub(crate) fn forget(region: &Region) {
    hash_of(region.store().identity().numbers()).fetch_sub(1, Ordering::Release);
    FILES.fetch_sub(1, Ordering::Release);
}

/// Whether any file is in the engine. One load.
///
/// ```
/// # fn main() -> fastmap::Result<()> {
/// # let file = tempfile::tempfile().unwrap();
/// # file.set_len(4096).unwrap();
/// // SAFETY: nobody else changes the file.
/// let map = unsafe { fastmap::Map::map(&file)? };
/// assert!(fastmap::coherent::any() || map.engine() == fastmap::Engine::Kernel);
/// # Ok(())
/// # }
/// ```
#[inline]
pub fn any() -> bool {
    FILES.load(Ordering::Relaxed) > 0
}

/// The file behind a descriptor, if it is in the engine; asked by fstat(2), unless none is. errno(3) may change.
///
/// ```
/// assert!(fastmap::coherent::file(0).is_none());
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
/// assert!(fastmap::coherent::by_stat(&stat).is_none());
/// ```
pub fn by_stat(stat: &libc::stat) -> Option<MappedFile> {
    let numbers = Identity::of(stat)?.numbers();
    if hash_of(numbers).load(Ordering::Acquire) == 0 {
        return None;
    }
    if fork::is_child() {
        if children::has(Identity::from_numbers(numbers)) {
            children::resolve();
        }
        return None;
    }
    let is_named = |slot: &u32| {
        let words = &NAMES[*slot as usize];
        [0, 1].map(|at: usize| words[at].load(Ordering::Relaxed)) == numbers
    };
    let slots = (0..registry::slots() as u32).filter(is_named);
    // Once more: the slot may have had another file's region by then.
    let mut found = slots.filter_map(|slot| registry::enter(SlotIndex(slot)));
    let region = found.find(|region| region.store().identity().numbers() == numbers && region.visit())?;
    // SAFETY: whoever ends the region waits for its visitors first.
    Some(MappedFile { region: unsafe { &*ptr::from_ref::<Region>(&*region) } })
}

/// A file in the engine. As long as this exists its pages do, so whoever unmaps it last waits: not the thread that has this.
///
/// See the [module](self) for an example.
#[derive(Debug)]
pub struct MappedFile {
    region: &'static Region,
}

impl MappedFile {
    /// Its region.
    pub(crate) fn region(&self) -> &Region {
        self.region
    }
}

impl Drop for MappedFile {
    fn drop(&mut self) {
        self.region.leave();
    }
}

impl MappedFile {
    /// Writes to the file what was stored to a range of bytes, so that a system call reads it; not to stable storage. Where
    /// nothing is dirty it looks and returns.
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
        loop {
            let mark = region.resizes().await_end()?;
            writeback::write_out(region, pages.clone(), Stripe::ALL).map_err(|failure| failure.error())?;
            if region.resizes().none_since(mark) {
                return Ok(());
            }
        }
    }

    /// Takes the pages of a range of bytes out of everybody's reach, for a system call that writes there: write(2) and its
    /// kin, fallocate(2), copy_file_range(2). The range may reach past the file's end, and past all that is mapped. Loads and
    /// stores there wait until the [`Writing`] is gone.
    ///
    /// # Errors
    /// Of saving what was stored there: ENOSPC, EIO, EDQUOT; nothing is lost then. EBUSY for a page with 4095 pins.
    pub fn writing(&self, range: Range<u64>) -> Result<Writing<'_>, i32> {
        let region = self.region;
        let length = length_of(region)?;
        let within = length % PAGE as u64;
        if range.end > length && range.start > length && within != 0 {
            // What the page of the old end has in memory behind it would be in the file.
            let page = (length / PAGE as u64) as usize;
            drop(seize::seize(region, page..page + 1, usize::MAX)?);
        }
        let pages = pages_of(region, &range);
        let is_resident = |page: usize| {
            page < region.span() / PAGE && matches!(region.word(page).look().state(), State::Clean | State::Dirty)
        };
        let edges = [pages.start, pages.end.saturating_sub(1)];
        let resident = edges.map(|page| !pages.is_empty() && is_resident(page));
        let seized = Some(seize::seize(region, pages, usize::MAX)?);
        Ok(Writing { region, seized, range, edges, resident })
    }

    /// Prepares for a change of the file's length: ftruncate(2), truncate(2), open(2) with O_TRUNC. What is to be cut off is
    /// out of everybody's reach until the [`Resizing`] is gone; what was stored below the new end stays.
    ///
    /// # Errors
    /// As for [`MappedFile::writing`], of saving the page that holds the new end; of what is cut off only EIO, for a page that was
    /// stored to before it was read, and cannot be read.
    pub fn resizing(&self, new_len: u64) -> Result<Resizing<'_>, i32> {
        let region = self.region;
        // What others have done before this, as far as it can be met.
        let _ = sizes::follow(region);
        let under_way = region.resizes().begin();
        let length = length_of(region)?;
        let known = region.store().size().max(length);
        let page_after = |end: u64| usize::try_from(end.div_ceil(PAGE as u64)).unwrap_or(usize::MAX);
        let least = new_len.min(length);
        // Behind an end that moves up nothing is in memory but on the page that holds it.
        let end = if new_len < known { page_after(known) } else { page_after(length) };
        let pages = (least / PAGE as u64) as usize..end;
        let seized = Some(seize::seize(region, pages, page_after(new_len))?);
        Ok(Resizing { region, seized, under_way: Some(under_way), least })
    }

    /// Writes everything that was stored to the file and puts it on stable storage: for fsync(2) and its kin, before the call
    /// itself.
    ///
    /// # Errors
    /// Of the writes, and of the sync, also of one that failed before: EIO then, for good. EDEADLK in a thread that has a
    /// [`Resizing`].
    pub fn sync(&self) -> Result<(), i32> {
        let region = self.region;
        // By this thread: the writers may be about to end the region, and wait for it to leave.
        let saved = sizes::follow(region).and_then(|()| writers::write_out(region, 0..region.span() / PAGE));
        saved.and_then(|()| writers::sync(region)).map_err(|error| error.errno())
    }

    /// Keeps every other thread from having this, for a call that reads or writes at the descriptor's position or appends:
    /// where it will be is known only if no other call moves it meanwhile.
    pub fn position(&self) -> Position<'_> {
        let blocked = Blocked::all();
        Position { _held: self.region.position().lock(), _blocked: blocked }
    }
}

/// The file's position, or its end, is this thread's ([`MappedFile::position`]).
#[derive(Debug)]
pub struct Position<'a> {
    // In this order: a lock is held only with signals blocked.
    _held: lock::Held<'a>,
    _blocked: Blocked,
}

/// Pages of a file that are out of everybody's reach while a system call writes there ([`MappedFile::writing`]). Dropped, it
/// lets them go as they were: for a call that was not made.
pub struct Writing<'a> {
    region: &'a Region,
    seized: Option<Seized<'a>>,
    range: Range<u64>,
    /// The first and the last page, and whether they were in memory.
    edges: [usize; 2],
    resident: [bool; 2],
}

impl Writing<'_> {
    /// Lets go after a call that wrote the first `count` bytes of `data` at `offset`: pages that it wrote whole are put into
    /// memory from there, without a read, as far as there is room that nobody needs.
    ///
    /// # Safety
    /// Each part of `data` is memory that can be read, or its use is an error that the kernel reports. It has what the file has
    /// there now. Nobody has a reference to these bytes of the map.
    pub unsafe fn written(mut self, offset: u64, data: &[libc::iovec], count: usize) {
        let Some(seized) = self.seized.take() else { return };
        let region = self.region;
        let end = offset + count as u64;
        let pages = pages_of(region, &(offset..end));
        region.holes().forget(pages.clone());
        if end > region.store().size() {
            region.store().refresh_size();
        }
        seized.patch(offset..end);
        // What nobody has mapped may be changed by others later.
        let mapped = [self.edges[0], self.edges[1]].map(|page| region.extents().around(page));
        let parts = Parts { data, at: Cell::new((0, 0)) };
        seized.put_back(|page| {
            let start = (page * PAGE) as u64;
            if !mapped.iter().any(|part| part.contains(&page)) {
                return Fill::Absent;
            }
            if start >= offset && start + PAGE as u64 <= end {
                return parts.page_at((start - offset) as usize).map_or(Fill::Read, Fill::From);
            }
            let was_resident = self.edges.iter().zip(self.resident).any(|(edge, there)| *edge == page && there);
            if was_resident { Fill::Read } else { Fill::Absent }
        });
    }

    /// Lets go after a call whose bytes are not known, or that failed half-way: what was in memory is read anew when it is touched,
    /// and pages that are pinned get what the file has in the range.
    ///
    /// # Safety
    /// Nobody has a reference to bytes that the call may have changed, or that were stored to a pinned page meanwhile.
    pub unsafe fn done(mut self) {
        if let Some(seized) = self.seized.take() {
            self.region.holes().forget(pages_of(self.region, &self.range));
            seized.patch(self.range.clone());
        }
    }
}

impl Drop for Writing<'_> {
    fn drop(&mut self) {
        self.region.holes().forget(pages_of(self.region, &self.range));
    }
}

impl fmt::Debug for Writing<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Writing").field("range", &self.range).finish()
    }
}

/// The parts of a write's data, walked in ascending order.
struct Parts<'a> {
    data: &'a [libc::iovec],
    /// A part and where it begins.
    at: Cell<(usize, usize)>,
}

impl Parts<'_> {
    /// The page of data from a place on, if it lies in one part.
    fn page_at(&self, place: usize) -> Option<*const u8> {
        let (mut part, mut start) = self.at.get();
        if place < start {
            (part, start) = (0, 0);
        }
        while part < self.data.len() && start + self.data[part].iov_len <= place {
            start += self.data[part].iov_len;
            part += 1;
        }
        self.at.set((part, start));
        let iovec = self.data.get(part)?;
        let whole = place + PAGE <= start + iovec.iov_len;
        whole.then(|| iovec.iov_base.cast::<u8>().cast_const().wrapping_add(place - start))
    }
}

/// A file whose length is being changed ([`MappedFile::resizing`]). Dropped, it leaves all as it was: for a call that failed.
pub struct Resizing<'a> {
    region: &'a Region,
    // In this order: its end is when the pages are as they will be.
    seized: Option<Seized<'a>>,
    under_way: Option<UnderWay<'a>>,
    /// The lesser of the two lengths.
    least: u64,
}

impl Resizing<'_> {
    /// Follows the new length, after the call has succeeded: what was cut off is gone, and will be zeros should the file become
    /// longer again.
    ///
    /// # Safety
    /// The file has the length that was announced, and nobody has a reference to what was cut off: what was stored there is lost.
    ///
    /// That is for the caller to say:
    ///
    /// ```compile_fail,E0133
    /// # fn follow(resizing: fastmap::coherent::Resizing<'_>) {
    /// resizing.done();
    /// # }
    /// ```
    pub unsafe fn done(mut self) {
        let Some(seized) = self.seized.take() else { return };
        self.region.holes().distrust((self.least / PAGE as u64) as usize);
        seized.cut();
        self.under_way = None;
        // What cannot be met now, as pages that are pinned, the next look meets.
        let _ = sizes::follow(self.region);
    }
}

impl fmt::Debug for Resizing<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Resizing").field("least", &self.least).finish()
    }
}

/// The pages of a region that a range of bytes touches, as far as it reaches.
fn pages_of(region: &Region, range: &Range<u64>) -> Range<usize> {
    let clip = |at: u64| at.min(region.span() as u64) as usize;
    let (start, end) = (clip(range.start), clip(range.end));
    map::pages(start, end.saturating_sub(start))
}

fn length_of(region: &Region) -> Result<u64, i32> {
    region.store().length().map_err(|error| error.raw_os_error().unwrap_or(libc::EIO))
}
