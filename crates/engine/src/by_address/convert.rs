//! Conversion: all maps of a file become ordinary kernel mappings, in place. And notes of kernel mappings.

use super::keep::{Locked, Unlocked};
use super::kernel_mappings::Made;
use super::lookup::range_of;
use super::map::await_closing;
use super::own::{Owner, look, note_kept, own};
use super::table::{Table, intersection, pages_at, rest};
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

/// Makes every map of a file an ordinary kernel mapping. New maps are the kernel's, too, until the last of them goes.
pub(super) fn convert(owner: &Owner, identity: file::Identity, why: Why) -> crate::error::Result<()> {
    convert_for(owner, identity, &(0..0), why)
}

/// Converts all maps of a file before other memory replaces a range. Pins that are asked for by an address in the range end, as with munmap(2).
/// The kernel keeps locked what mlock(2) has locked outside the range. On failure all is as before.
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
    // Maps that were unmapped just now may have left stores that are on their way to the file: the kernel would not see them.
    let Some(region) = look(region_in) else { return closing::await_end(identity) };
    if region.store().origin().is_some() {
        // The kernel would show zeros for bytes that have not come yet.
        return Err(region.io_error(CONVERTING, std::io::Error::from_raw_os_error(libc::EOPNOTSUPP)));
    }
    // A file that cannot be saved stays, with its locks.
    flush::flush(&region, 0..region.span() / PAGE, false)?;
    let mut unlocked = Vec::new();
    let mut shares = Vec::new();
    let attempt = || {
        owner.change(|table| {
            unlocked.extend(table.unlock_file(identity, replaced));
            shares = match convert_region(table, &region, identity, replaced)? {
                true => table.make_kernels(identity),
                false => return Ok(false),
            };
            for part in unlocked.iter().filter(|one| one.key.is_none()).flat_map(|lock| rest(&lock.at, replaced)) {
                // SAFETY: it brings memory in.
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
    // Nothing is left of a file whose maps were all replaced.
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
fn convert_region(
    table: &Table,
    region: &Arc<Region>,
    identity: file::Identity,
    replaced: &Range<usize>,
) -> Result<bool, i32> {
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
    let all = of_file().all(|piece| intersection(&piece.at, replaced).as_ref() == Some(&piece.at));
    let done = to_kernel::to_kernel(region, &parts, all)?;
    for piece in of_file().filter(|piece| done && piece.not_in_children) {
        // SAFETY: a mapping of the file.
        unsafe { libc::madvise(piece.at.start as *mut _, piece.at.len(), libc::MADV_DONTFORK) };
    }
    Ok(done)
}

/// Locks and pins again what a conversion that failed has let go.
fn lock_again(unlocked: Vec<Unlocked>) {
    for Unlocked { at, share, key } in unlocked {
        // SAFETY: the share beside it keeps the region.
        let region: &'static Region = unsafe { &*Arc::as_ptr(&share.region) };
        let pages = pages_at(region, &at);
        let hold = match Hold::new(region, pages.clone(), key.is_some_and(|key| key.writing)) {
            Ok(hold) => hold,
            Err(error) => {
                report::say(region, pages.start, format_args!("and others are not locked any more: {error}"));
                continue;
            }
        };
        let lock = Locked { at, hold, share };
        note_kept(|table| match key {
            None => table.locked.push(lock),
            // Unless it has been let go meanwhile.
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

/// Waits, before the kernel maps a file by a descriptor, until what was stored to it through an engine is in the file: through this process's,
/// or that of a program that was killed, whose keeper writes it.
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

/// Notes a kernel mapping of a file that the engine could have mapped. While it is there all maps of the file are the kernel's,
/// and so agree. The note ends by [`unmap`](super::unmap()), [`remap`](super::remap()) and [`make_way`](super::make_way). A caller that gives
/// the arguments it was `made` with may ask for them by [`alone`]. Does nothing in a child made by fork(2) of a process that the engine runs in:
/// all maps there are the kernel's.
pub fn note_kernel(fd: BorrowedFd<'_>, addr: usize, len: usize, made: Option<Made>) {
    if let (Some(identity), Ok(at)) = (identity(fd), range_of(addr, len, libc::EINVAL)) {
        own().change(|table| table.kernel_mappings.add(at, identity, made));
    }
}

/// Whether a kernel mapping of a file is noted.
///
/// ```
/// use std::os::fd::AsFd;
/// assert!(!fastmap::by_address::is_kernels(std::io::stdin().as_fd())); // nothing of it is mapped
/// ```
pub fn is_kernels(fd: BorrowedFd<'_>) -> bool {
    identity(fd).is_some_and(|identity| look(|table| table.kernel_mappings.has(identity, &(0..0))))
}

/// The arguments by which a kernel mapping of exactly this range was made, if it was not changed since, no other kernel mapping of its file is
/// noted, and the descriptor is still open on that file.
///
/// ```
/// assert!(fastmap::by_address::alone(0x1000, 4096).is_none()); // nothing is there
/// ```
pub fn alone(addr: usize, len: usize) -> Option<Made> {
    let at = range_of(addr, len, libc::EINVAL).ok()?;
    let (file, made) = look(|table| table.kernel_mappings.alone(&at))?;
    // SAFETY: a number that the program may have closed: another file there is told apart.
    let is_open = made.fd >= 0 && identity(unsafe { BorrowedFd::borrow_raw(made.fd) }) == Some(file);
    is_open.then_some(made)
}

/// The file behind a descriptor, if it is of a kind that the engine maps; `None` in a child.
fn identity(fd: BorrowedFd<'_>) -> Option<file::Identity> {
    if fork::is_child() {
        return None;
    }
    // SAFETY: fstat(2) fills the zeroed structure.
    let stat = unsafe {
        let mut stat: libc::stat = std::mem::zeroed();
        (libc::fstat(fd.as_raw_fd(), &mut stat) == 0).then_some(stat)?
    };
    file::Identity::of(&stat)
}

/// Notes that the kernel has mapped something else at a place that the caller fixed, over other kernel mappings perhaps.
pub fn note_replaced(addr: usize, len: usize) {
    if let Ok(at) = range_of(addr, len, libc::EINVAL) {
        own().change(|table| table.kernel_mappings.forget(&at));
    }
}
