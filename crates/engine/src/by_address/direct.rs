//! Direct mappings by address: msync(2) of files in memory, from user space.
//!
//! They are ordinary kernel mappings, at addresses of their own. The engine only keeps a table of those that user space can flush
//! (`direct/table.rs`), until they are unmapped, moved, or may not be read any more. In a child made by fork(2) the kernel does msync(2).

use super::lookup::{check, range_of};
use super::map::{CLEARING, Request};
use super::unmap::make_way;
use crate::direct::mapping::{Durability, Wanted};
use crate::direct::table::Span;
use crate::direct::{mapping, table as direct_table};
use crate::error::{Error, Result};
use crate::files::facts::facts_of;
use crate::files::table as files;
use crate::live;
use crate::modes::{Mode, Persist};
use crate::sys::file::Medium;
use crate::sys::{PAGE, file, fork};
use std::fs::File;
use std::mem::ManuallyDrop;
use std::ops::Range;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd};

/// What [`map_direct`] has done.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Direct {
    /// Mapped the file there.
    At(*mut u8),
    /// Nothing: the file is in memory, and there is nothing to gain over mmap(2).
    InMemory,
    /// Nothing: the file is not in memory, or it is in the cache.
    No,
}

/// mmap(2) of a file in memory that is flushed from user space: on DAX with `MAP_SYNC`, where the kernel can do that; on tmpfs and hugetlbfs
/// with [`Persist::CacheLines`]. All of the request's flags count, and none of its other wishes. No place is cleared for another result than
/// [`Direct::At`].
///
/// With `small_pages` the mapping has no huge pages on DAX. Where a flush is left to the kernel, it then writes 4 KiB for each page that was
/// stored to, and not 2 MiB: for programs that flush more than they stored to.
///
/// # Safety
/// As for [`map`](super::map).
///
/// # Errors
/// [`Error::NotMappable`]; [`Error::Missing`] with [`Mode::Direct`] for a file that is not in memory; [`Error::Io`]
/// from mmap(2).
pub unsafe fn map_direct(
    fd: BorrowedFd<'_>,
    request: &Request,
    mode: Mode,
    persist: Persist,
    small_pages: bool,
) -> Result<Direct> {
    // SAFETY: borrowed for as long as it is used here; never closed.
    let from = ManuallyDrop::new(unsafe { File::from_raw_fd(fd.as_raw_fd()) });
    let medium = file::medium(&from);
    match medium {
        _ if mode == Mode::Cached => return Ok(Direct::No),
        Medium::Storage if mode == Mode::Direct => return Err(mapping::not_in_memory(&from)),
        Medium::Storage => return Ok(Direct::No),
        Medium::Memory { .. } if persist != Persist::CacheLines => return Ok(Direct::InMemory),
        _ if fork::is_child() => return Ok(Direct::InMemory),
        Medium::Memory { .. } | Medium::Dax => {}
    }
    let facts = facts_of(&from)?;
    if mode == Mode::Automatic && files::is_cached(facts.identity) {
        return Ok(Direct::No);
    }
    let Request { addr, len, prot, flags, offset, .. } = *request;
    if flags & libc::MAP_FIXED != 0 {
        // SAFETY: the caller's contract.
        let way = unsafe { make_way(addr, len) };
        way.map_err(|error| Error::Io {
            path: file::path_of(&from),
            operation: CLEARING,
            source: std::io::Error::from_raw_os_error(error),
        })?;
    }
    let wanted = Wanted { addr, len, prot, flags, offset: offset as i64 };
    // SAFETY: the caller's contract; a fixed place has been cleared of cached maps.
    let mapped = unsafe { mapping::map(&from, medium, persist, wanted) };
    let io = |source| Error::Io { path: file::path_of(&from), operation: "map it (mmap)", source };
    let (at, durability) = mapped.map_err(io)?;
    if durability.is_by_line() {
        live::offer();
    }
    if small_pages && durability == Durability::Synchronous {
        // SAFETY: mapped just now. Without it the kernel writes more than it must.
        unsafe { libc::madvise(at as *mut _, len, libc::MADV_NOHUGEPAGE) };
    }
    let unit = if let Medium::Memory { unit } = medium { unit } else { PAGE };
    let span = Span { at: at..at + len.next_multiple_of(unit), file: facts.identity, offset, durability };
    // The cache lines of memory that may not be read cannot be written.
    let is_flushed = !matches!(durability, Durability::Kernel | Durability::Nothing) && prot & libc::PROT_READ != 0;
    if is_flushed && !direct_table::add(&span) {
        let (path, most) = (file::path_of(&from), direct_table::MOST);
        tracing::warn!(path = %path.display(), "more direct mappings than {most}: msync(2) of this one is the kernel's");
    }
    Ok(Direct::At(at as *mut u8))
}

/// Whether any byte of a range lies in a mapping that is flushed from user space. A few nanoseconds, no lock; may be
/// asked in signal handlers.
///
/// ```
/// assert!(!fastmap::by_address::holds_direct(&0 as *const i32 as usize, 4));
/// ```
#[inline]
pub fn holds_direct(addr: usize, len: usize) -> bool {
    !fork::is_child() && direct_table::meets(addr..addr.saturating_add(len.max(1)))
}

/// Whether a file is in memory (tmpfs, ramfs, hugetlbfs, DAX), so that a cache above it would be a second copy.
///
/// ```
/// use std::os::fd::AsFd;
/// # let file = tempfile::tempfile()?;
/// println!("{}", if fastmap::by_address::is_in_memory(file.as_fd()) { "in memory" } else { "on a device" });
/// # Ok::<(), std::io::Error>(())
/// ```
pub fn is_in_memory(fd: BorrowedFd<'_>) -> bool {
    // SAFETY: borrowed for as long as it is used here; never closed.
    let from = ManuallyDrop::new(unsafe { File::from_raw_fd(fd.as_raw_fd()) });
    file::medium(&from) != Medium::Storage
}

/// Whether a store to a block of a file takes another block, so that a full disk has no room for what is stored: on btrfs (but for files without copies,
/// chattr(1) `+C`), ZFS and bcachefs, and where a file shares blocks with another (a reflink). A flush of such a map can fail with ENOSPC where a
/// store to a kernel mapping raises SIGBUS.
///
/// ```
/// use std::os::fd::AsFd;
/// # let file = tempfile::tempfile()?;
/// println!("{}", if fastmap::by_address::is_copied_on_write(file.as_fd()) { "flush, and look at the result" } else { "" });
/// # Ok::<(), std::io::Error>(())
/// ```
pub fn is_copied_on_write(fd: BorrowedFd<'_>) -> bool {
    // SAFETY: borrowed for as long as it is used here; never closed.
    let from = ManuallyDrop::new(unsafe { File::from_raw_fd(fd.as_raw_fd()) });
    file::is_copied_on_write(&from)
}

/// Bytes that this process has written to memory by cache line: through direct mappings made by address, and through direct
/// [`Map`](crate::Map)s.
///
/// ```
/// println!("{} bytes flushed from user space", fastmap::by_address::flushed_bytes());
/// ```
pub fn flushed_bytes() -> u64 {
    mapping::written_bytes()
}

/// msync(2) of memory that is not cached.
#[inline]
pub(super) fn sync(range: Range<usize>, flags: i32) -> std::result::Result<(), i32> {
    let kernel = |part: Range<usize>| {
        // SAFETY: it writes to files only.
        let call = |flags| check(unsafe { libc::msync(part.start as *mut _, part.len(), flags) });
        match call(flags) {
            // The arguments are good: something there cannot be flushed, such as the engine's rings (io_uring(7)), which are a hole to the
            // program. Whoever syncs those asks for more than it has, and so for other holes, which MS_ASYNC looks for, too.
            Err(libc::EINVAL) if call(libc::MS_ASYNC) == Err(libc::ENOMEM) => Err(libc::ENOMEM),
            done => done,
        }
    };
    if flags & !libc::MS_INVALIDATE != libc::MS_SYNC || !holds_direct(range.start, range.len()) {
        return kernel(range);
    }
    let (mut at, mut result) = (range.start, Ok(()));
    for span in direct_table::meeting(range.clone()) {
        let part = span.at.start.max(at)..span.at.end.min(range.end);
        if at < part.start {
            // As msync(2) does, it writes the rest of a range with holes all the same.
            result = result.and(kernel(at..part.start));
        }
        mapping::flush(&span, part.clone())?;
        at = part.end;
    }
    if at < range.end { result.and(kernel(at..range.end)) } else { result }
}

/// Leaves msync(2) of a range to the kernel from now on. Called before a system call that may close the range to this process's loads, such as
/// pkey_mprotect(2).
///
/// ```
/// fastmap::by_address::leave_to_kernel(0x1000, 4096); // nothing is there
/// ```
pub fn leave_to_kernel(addr: usize, len: usize) {
    forget(&(addr..addr.saturating_add(len)));
}

/// Called before a range is unmapped, or mapped otherwise.
pub(super) fn forget(range: &Range<usize>) {
    if holds_direct(range.start, range.len()) {
        mapping::retire(range);
    }
}

/// Called before mprotect(2). If the range may not be read any more, its msync(2) is the kernel's.
pub(super) fn protecting(range: &Range<usize>, prot: i32) {
    if holds_direct(range.start, range.len()) {
        if prot & libc::PROT_READ == 0 { mapping::retire(range) } else { mapping::settle(range) }
    }
}

/// Called before madvise(2). Page tables that go take with them what is known of stores.
pub(super) fn advising(range: &Range<usize>, advice: i32) {
    let harmless = [libc::MADV_NORMAL, libc::MADV_RANDOM, libc::MADV_SEQUENTIAL, libc::MADV_WILLNEED];
    if !harmless.contains(&advice) && holds_direct(range.start, range.len()) {
        mapping::settle(range);
    }
}

/// mremap(2), by `call`, which returns where the mapping is now.
pub(super) fn moving(
    from: &Range<usize>,
    new_len: usize,
    call: impl FnOnce() -> std::result::Result<*mut u8, i32>,
) -> std::result::Result<*mut u8, i32> {
    let old = range_of(from.start, from.len().max(PAGE), libc::EINVAL)?;
    if !holds_direct(old.start, old.len()) {
        return call();
    }
    let spans: Vec<Span> = direct_table::meeting(old.clone()).collect();
    // mremap(2) of an empty range makes a second mapping.
    if from.is_empty() {
        mapping::settle(&old)
    } else {
        mapping::retire(&old)
    }
    let moved = call();
    for span in &spans {
        let before = span.at.start.max(old.start)..span.at.end.min(old.end);
        let offset = span.in_file(&before).start;
        let at = match moved {
            Err(_) if from.is_empty() => continue,
            Err(_) => before,
            // This span is the only one: mremap(2) takes no range over two mappings.
            Ok(at) => at as usize..at as usize + new_len.next_multiple_of(PAGE),
        };
        direct_table::add(&Span { at, offset, ..span.clone() });
        if moved.is_ok() {
            break;
        }
    }
    moved
}
