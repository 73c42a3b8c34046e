//! Conversion: all maps of a file become ordinary kernel mappings, in place. Also: functions that record kernel mappings (`kernel_mappings.rs`).

use super::keep::{Locked, Unlocked};
use super::kernel_mappings::Made;
use super::lookup::{range_of, widen};
use super::map::await_closing;
use super::own::{Owner, look, note_kept, own};
use super::table::{Table, pages_at, rest};
use super::why::{self, Why};
use crate::coherence::to_kernel;
use crate::files::closing;
use crate::files::facts::facts_of;
use crate::pin::pin::Hold;
use crate::region::region::Region;
use crate::region::report;
use crate::store::one_writer;
use crate::sys::{PAGE, file, fork};
use crate::writeback::flush;
use std::fs::File;
use std::mem::ManuallyDrop;
use std::ops::Range;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd};
use std::sync::Arc;

const CONVERTING: &str = "map it through the kernel instead";

/// Makes every map of a file an ordinary kernel mapping. New maps of the file are the kernel's, too, until no kernel mapping of it is left.
pub(super) fn convert(owner: &Owner, identity: file::Identity, why: Why) -> crate::error::Result<()> {
    convert_for(owner, identity, &(0..0), why)
}

/// Converts all maps of a file before other memory replaces a range. Pins that were taken by address and meet it are released, as by munmap(2).
/// Pages outside the range that were locked with mlock(2) stay locked, now by the kernel. On failure the maps are as before, and locks and pins are
/// taken again. If one cannot be taken again, standard error says so.
pub(super) fn convert_for(
    owner: &Owner,
    identity: file::Identity,
    replaced: &Range<usize>,
    why: Why,
) -> crate::error::Result<()> {
    let region_in = |table: &Table| {
        let piece = table.pieces().iter().find(|piece| piece.share.identity == identity)?;
        Some(piece.share.region.clone())
    };
    // Stores to maps that were unmapped just now may still be on their way to the file. Kernel mappings would not show them.
    let Some(region) = look(region_in) else { return closing::await_end(identity) };
    if region.store().origin().is_some() {
        // A kernel mapping would show zeros for bytes that have not been fetched yet.
        return Err(region.io_error(CONVERTING, std::io::Error::from_raw_os_error(libc::EOPNOTSUPP)));
    }
    // A file that cannot be written stays with the engine, and keeps its locks.
    flush::flush(&region, 0..region.span() / PAGE, false)?;
    let mut unlocked = Vec::new();
    let mut shares = Vec::new();
    let attempt = || {
        owner.change(|table| {
            widen(region.address().addresses());
            unlocked.extend(table.unlock_file(identity, replaced));
            shares = match convert_region(table, &region, identity)? {
                true => table.make_kernels(identity),
                false => return Ok(false),
            };
            for part in unlocked.iter().filter(|one| one.key.is_none()).flat_map(|lock| rest(&lock.at, replaced)) {
                // SAFETY: the call only brings pages into memory.
                unsafe { libc::mlock(part.start as *const _, part.len()) };
            }
            Ok(true)
        })
    };
    region.set_leaving(true);
    let done = to_kernel::patiently(attempt);
    if done.is_err() {
        region.set_leaving(false);
        lock_again(unlocked);
    }
    // If all maps of the file were replaced, no kernel mapping of it is left, and there is nothing to tell.
    if done.is_ok() && look(|table| table.kernel_mappings.has(identity, replaced)) {
        why::tell(&region, Some(why));
    }
    drop(shares);
    done.map_err(|error| {
        let source = std::io::Error::from_raw_os_error(error);
        region.io_error(CONVERTING, source)
    })
}

/// The region's part of the conversion.
fn convert_region(table: &Table, region: &Arc<Region>, identity: file::Identity) -> Result<bool, i32> {
    let of_file = || table.pieces().iter().filter(|piece| piece.share.identity == identity);
    let (start, end) = region.address().addresses();
    let part = |(at, prot): (Range<usize>, i32)| {
        // Other files' maps may lie between the parts of a region.
        let share = &table.meeting(&at).next()?.0.share;
        if share.identity != identity {
            return None;
        }
        Some(to_kernel::MappedPages { pages: pages_at(region, &at), prot, kind: share.kind, fd: share.descriptor()? })
    };
    let parts: Vec<_> = table.protections(&(start..end)).into_iter().filter_map(part).collect();
    let done = to_kernel::to_kernel(region, &parts)?;
    for piece in of_file().filter(|piece| done && piece.not_in_children) {
        // SAFETY: a mapping of the file.
        unsafe { libc::madvise(piece.at.start as *mut _, piece.at.len(), libc::MADV_DONTFORK) };
    }
    Ok(done)
}

/// Takes the locks and pins again that a failed conversion has released.
fn lock_again(unlocked: Vec<Unlocked>) {
    for Unlocked { at, share, key } in unlocked {
        // SAFETY: `share` owns the region. It goes into the same `Locked` as the hold, which is dropped before it.
        let region: &'static Region = unsafe { &*Arc::as_ptr(&share.region) };
        let pages = pages_at(region, &at);
        let hold = match Hold::new(region, pages.clone(), key.is_some_and(|key| key.writing)) {
            Ok(hold) => hold,
            Err(error) => {
                report::say(region, pages.start, format_args!("and others are no longer locked or pinned: {error}"));
                continue;
            }
        };
        let lock = Locked { at, hold, share };
        note_kept(|table| match key {
            None => table.locked.push(lock),
            // Not if the pin was released meanwhile.
            Some(key) => {
                if let Some(pins) = table.pins.get_mut(&key) {
                    pins.holds.push(lock);
                }
            }
        });
    }
}

/// Converts every file that is mapped in a range.
pub(super) fn convert_range(owner: &Owner, range: &Range<usize>, why: Why) -> Result<(), i32> {
    let identities = look(|table| table.meeting(range).map(|(piece, _)| piece.share.identity).collect::<Vec<_>>());
    identities.into_iter().try_for_each(|identity| convert(owner, identity, why).map_err(|error| error.errno()))
}

/// Waits until stores to a file that were made through an engine are in the file. To be called before the kernel maps the file. The engine may be
/// this process's, or that of a program that was killed. Then the program's keeper, a process beside it, writes the stores.
///
/// ```
/// use std::os::fd::AsFd;
/// fastmap::by_address::await_stores(std::io::stdin().as_fd()); // nothing of it was in an engine
/// ```
pub fn await_stores(fd: BorrowedFd<'_>) {
    if fork::is_child() {
        return;
    }
    // SAFETY: borrowed for as long as it is used here; never closed.
    let from = ManuallyDrop::new(unsafe { File::from_raw_fd(fd.as_raw_fd()) });
    if facts_of(&from).is_ok() {
        one_writer::wait_for_keeper(&from);
        await_closing(fd);
    }
}

/// Records a kernel mapping of a file that the engine could have mapped. While the record is there, all maps of the file are the kernel's, and so
/// agree. [`unmap`](super::unmap()), [`remap`](super::remap()) and [`make_way`](super::make_way) change or end it. If `made` holds the arguments
/// that the mapping was made with, [`alone`] can return them later. Does nothing in a child made by fork(2) of a process that the engine runs in:
/// all maps there are the kernel's.
pub fn note_kernel(owner: &Owner, fd: BorrowedFd<'_>, addr: usize, len: usize, made: Option<Made>) {
    if let (Some(identity), Ok(at)) = (identity(fd), range_of(addr, len, libc::EINVAL)) {
        owner.change(|table| table.kernel_mappings.add(at, identity, made));
    }
}

/// Whether a kernel mapping of a file is recorded.
///
/// ```
/// use std::os::fd::AsFd;
/// assert!(!fastmap::by_address::is_kernels(std::io::stdin().as_fd())); // nothing of it is mapped
/// ```
pub fn is_kernels(fd: BorrowedFd<'_>) -> bool {
    identity(fd).is_some_and(|identity| look(|table| table.kernel_mappings.has(identity, &(0..0))))
}

/// The arguments that a kernel mapping of exactly this range was made with. `None`: there is none, it was changed since, another kernel mapping
/// of its file is recorded, or the descriptor is not open on that file any more.
///
/// ```
/// assert!(fastmap::by_address::alone(0x1000, 4096).is_none()); // nothing is there
/// ```
pub fn alone(addr: usize, len: usize) -> Option<Made> {
    let at = range_of(addr, len, libc::EINVAL).ok()?;
    let (file, made) = look(|table| table.kernel_mappings.alone(&at))?;
    // SAFETY: used for fstat(2) only. The program may have closed the descriptor, and another file may have its number. The comparison with `file`
    // finds that out.
    let is_open = made.fd >= 0 && identity(unsafe { BorrowedFd::borrow_raw(made.fd) }) == Some(file);
    is_open.then_some(made)
}

/// The file behind a descriptor, if it is of a kind that the engine maps; `None` in a child.
fn identity(fd: BorrowedFd<'_>) -> Option<file::Identity> {
    if fork::is_child() { None } else { file::Identity::of_descriptor(fd.as_raw_fd()) }
}

/// Forgets the kernel mappings that are recorded in a range. To be called after a mmap(2) with MAP_FIXED that has replaced them.
pub fn note_replaced(addr: usize, len: usize) {
    if let Ok(at) = range_of(addr, len, libc::EINVAL) {
        own().change(|table| table.kernel_mappings.forget(&at));
    }
}
