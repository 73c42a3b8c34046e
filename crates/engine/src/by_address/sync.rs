//! msync(2) by address, and calls of programs that ask for deferred stores.

use super::access::is_cached;
use super::direct;
use super::lookup::{Kind, holds, kinds_in, range_of, rounded, shares_in};
use super::own::look;
use super::table::pages_at;
use crate::deferred::protocol::{self, DeferredMode};
use crate::files::length;
use crate::region::report;
use crate::sys::PAGE;
use crate::writeback::flush;
use std::ops::Range;

/// msync(2). `MS_ASYNC` leaves it to the writers, as the kernel does.
///
/// # Errors
/// Those of msync(2); EIO, ENOSPC and their kin as [`MapMut::flush`](crate::MapMut::flush) has them.
pub fn sync(addr: usize, len: usize, flags: i32) -> Result<(), i32> {
    let both = libc::MS_ASYNC | libc::MS_SYNC;
    if flags & !(both | libc::MS_INVALIDATE) != 0 || flags & both == both {
        return Err(libc::EINVAL);
    }
    let range = range_of(addr, rounded(len), libc::ENOMEM)?;
    if !range.is_empty() && !holds(addr, range.len()) {
        // Without `kinds_in`, which allocates: a flush makes no system call.
        return direct::sync(range, flags);
    }
    let mut holes = Ok(());
    for (part, kind) in kinds_in(&range) {
        // Of a range with holes the rest is written all the same, unless the call does not wait.
        let done = match kind {
            Kind::Unmapped => Err(libc::ENOMEM),
            Kind::Other => direct::sync(part, flags),
            Kind::Cached if flags & libc::MS_INVALIDATE != 0 && look(|table| table.is_locked(&part)) => {
                return Err(libc::EBUSY);
            }
            Kind::Cached if flags & libc::MS_SYNC == 0 || look(|table| !table.has_kind(&part, libc::MAP_SHARED)) => {
                Ok(())
            }
            // The kernel flushes a part that has become its own meanwhile.
            Kind::Cached => sync_cached(&part).and_then(|()| match is_cached(part.start, part.len()) {
                true => Ok(()),
                false => direct::sync(part, flags),
            }),
        };
        match done {
            Err(libc::ENOMEM) if flags != libc::MS_ASYNC => holes = Err(libc::ENOMEM),
            done => done?,
        }
    }
    holes
}

/// With the table free: it may take long, and others unmap meanwhile, which saves too.
fn sync_cached(range: &Range<usize>) -> Result<(), i32> {
    for (share, part) in shares_in(range) {
        let region = &share.region;
        length::follow(region).and_then(|()| flush::flush(region, pages_at(region, &part), true)).map_err(|error| {
            report::say(region, region.address().page_at(part.start), format_args!("and others: {error}"));
            error.errno()
        })?;
    }
    Ok(())
}

/// Makes stores to absent pages of a range complete, before the read, on a page filled with copies of a line, as
/// [`MapOptions::async_read`](crate::MapOptions::async_read). This is so for the whole file, for as long as it is mapped. Kernel mappings stay
/// what they are.
///
/// # Safety
/// All code that stores to the file's maps, or has references into them, keeps the duties that `MapOptions::async_read`
/// names.
///
/// # Errors
/// EINVAL: no map of the file is writable, or it has another such line; ENOMEM.
pub unsafe fn async_read(addr: usize, len: usize, initial_line: [u8; 64]) -> Result<(), i32> {
    let wish = DeferredMode { initial: Some(initial_line), keep: false };
    for (share, _) in shares_in(&range_of(addr, len, libc::EINVAL)?) {
        let region = &share.region;
        if !region.is_writable() {
            return Err(libc::EINVAL);
        }
        protocol::grant(region, wish).map_err(|error| error.errno())?;
    }
    Ok(())
}

/// The line given to [`async_read`] for the map at an address.
pub fn initial_line(addr: usize) -> Option<[u8; 64]> {
    let (share, _) = shares_in(&(addr..addr.checked_add(1)?)).pop()?;
    protocol::of(&share.region)?.initial().copied()
}

/// Waits until the file's bytes are in every page of a range that was stored to before it was read.
///
/// # Errors
/// Those of the read.
pub fn synchronise(addr: usize, len: usize) -> Result<(), i32> {
    let end = addr.checked_add(len).ok_or(libc::EINVAL)?;
    for (share, part) in shares_in(&range_of(addr / PAGE * PAGE, end - addr / PAGE * PAGE, libc::EINVAL)?) {
        let region = &share.region;
        protocol::settle(region, pages_at(region, &part)).map_err(|failure| failure.error)?;
    }
    Ok(())
}
