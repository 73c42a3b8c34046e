//! madvise(2) and mincore(2) by address.

use super::access::is_cached;
use super::convert::convert_range;
use super::direct;
use super::lookup::{Kind, check, holds, kinds_in, range_of, shares_in};
use super::own::{look, own};
use super::table::{intersection, pages_at};
use super::why::Why;
use crate::evict::batch;
use crate::files::length;
use crate::page::word::State;
use crate::pin::fetch;
use crate::pool::streams::Expect;
use crate::readahead::prefetch;
use crate::region::region::Region;
use crate::sys::PAGE;
use crate::writeback::flush;
use std::ops::Range;
use std::sync::Arc;

/// madvise(2). The engine follows advice on how pages will be accessed, which are needed and which are not, and whether children get them. Hints
/// on how the kernel should keep pages change nothing. Any other advice converts the whole file.
///
/// # Safety
/// As for madvise(2): some advice destroys.
///
/// # Errors
/// Those of madvise(2); what keeps a file from being converted to kernel mappings.
pub unsafe fn advise(addr: usize, len: usize, advice: i32) -> Result<(), i32> {
    let kernel = |part: Range<usize>| {
        direct::advising(&part, advice);
        // SAFETY: the caller's contract.
        check(unsafe { libc::madvise(part.start as *mut _, part.len(), advice) })
    };
    let range = range_of(addr, len, libc::EINVAL)?;
    if !holds(addr, range.len()) {
        return kernel(range);
    }
    // The kernel knows which advice there is. On an empty range it only checks that.
    kernel(range.start..range.start)?;
    let is_populating = matches!(advice, libc::MADV_POPULATE_READ | libc::MADV_POPULATE_WRITE);
    let mut holes = Ok(());
    for (part, kind) in kinds_in(&range) {
        let done = match kind {
            Kind::Unmapped => Err(libc::ENOMEM),
            Kind::Other => kernel(part),
            Kind::Cached if FOLLOWED.contains(&advice) => match advise_cached(&part, advice) {
                // It has become the kernel's meanwhile.
                Err(libc::ESTALE) if !is_cached(part.start, part.len()) => kernel(part),
                done => done,
            },
            Kind::Cached if HINTS.contains(&advice) => Ok(()),
            Kind::Cached => {
                let owner = own();
                convert_range(&owner, &part, Why::Advice(advice)).and_then(|()| kernel(part))
            }
        };
        match done {
            // Of a range with holes the rest is done all the same.
            Err(libc::ENOMEM) if !is_populating => holes = Err(libc::ENOMEM),
            done => done?,
        }
    }
    holes
}

/// Advice that the engine follows.
const FOLLOWED: [i32; 11] = [
    libc::MADV_NORMAL,
    libc::MADV_RANDOM,
    libc::MADV_SEQUENTIAL,
    libc::MADV_WILLNEED,
    libc::MADV_DONTNEED,
    libc::MADV_COLD,
    libc::MADV_PAGEOUT,
    libc::MADV_POPULATE_READ,
    libc::MADV_POPULATE_WRITE,
    libc::MADV_DONTFORK,
    libc::MADV_DOFORK,
];

/// Advice that no program can see the effect of.
const HINTS: [i32; 4] = [libc::MADV_HUGEPAGE, libc::MADV_NOHUGEPAGE, libc::MADV_DONTDUMP, libc::MADV_DODUMP];

fn advise_cached(range: &Range<usize>, advice: i32) -> Result<(), i32> {
    match advice {
        libc::MADV_DONTFORK | libc::MADV_DOFORK => {
            let owner = own();
            // It may have become the kernel's.
            if !is_cached(range.start, range.len()) {
                return Err(libc::ESTALE);
            }
            owner.change(|table| table.set_in_children(range, advice == libc::MADV_DOFORK));
            return Ok(());
        }
        libc::MADV_POPULATE_WRITE if look(|table| table.forbids_stores(range)) => return Err(libc::EINVAL),
        _ => {}
    }
    // Locked pages are not let go; pages that lie before the first of them are.
    let drops = matches!(advice, libc::MADV_DONTNEED | libc::MADV_COLD | libc::MADV_PAGEOUT);
    let lock =
        look(|table| table.locked.iter().filter_map(|one| intersection(&one.at, range)).map(|at| at.start).min());
    let end = lock.filter(|_| drops).unwrap_or(range.end);
    for (share, part) in shares_in(&(range.start..end)) {
        advise_region(&share.region, pages_at(&share.region, &part), advice).map_err(|error| error.errno())?;
    }
    if end == range.end { Ok(()) } else { Err(libc::EINVAL) }
}

fn advise_region(region: &Arc<Region>, pages: Range<usize>, advice: i32) -> crate::error::Result<()> {
    length::follow(region)?;
    match advice {
        libc::MADV_NORMAL => region.hints().expect(pages, Expect::Normal),
        libc::MADV_RANDOM => region.hints().expect(pages, Expect::Random),
        libc::MADV_SEQUENTIAL => region.hints().expect(pages, Expect::Forward),
        libc::MADV_WILLNEED => drop(prefetch::offer(region, &[pages])),
        libc::MADV_POPULATE_READ | libc::MADV_POPULATE_WRITE => {
            let end = (region.store().size() as usize).div_ceil(PAGE).clamp(pages.start, pages.end);
            fetch::fetch(region, std::slice::from_ref(&(pages.start..end)))?;
            if end < pages.end {
                // As madvise(2) does, once the pages before the end are in memory.
                return Err(
                    region.io_error("populate it past its end", std::io::Error::from_raw_os_error(libc::EFAULT))
                );
            }
        }
        _ => {
            if region.is_writable() {
                flush::flush(region, pages.clone(), false)?;
            }
            let _length = region.lock_length();
            batch::evict_range(region, pages);
        }
    }
    Ok(())
}

/// mincore(2): the lowest bit of a byte for each page. A page that is read ahead and not touched yet counts as
/// resident, and so does one that is waiting to be read with its stores buffered.
///
/// # Safety
/// `out` has a byte for each page of the range.
///
/// # Errors
/// Those of mincore(2).
pub unsafe fn residency(addr: usize, len: usize, out: *mut u8) -> Result<(), i32> {
    let range = range_of(addr, len, libc::ENOMEM)?;
    let byte_of = |at: usize| out.wrapping_add((at - addr) / PAGE);
    for (part, kind) in kinds_in(&range) {
        if kind == Kind::Unmapped {
            return Err(libc::ENOMEM);
        }
        // The kernel, too, sees a page of ours that is in memory.
        if !holds(byte_of(part.start) as usize, part.len() / PAGE) {
            // SAFETY: it finds out itself whether the bytes may be stored to.
            check(unsafe { libc::mincore(part.start as *mut _, part.len(), byte_of(part.start)) })?;
        } else {
            // The answer goes to a map of ours, in which the kernel may not find all pages.
            let mut there = vec![0; part.len() / PAGE];
            // SAFETY: as many bytes are there; the caller has room for them.
            unsafe {
                check(libc::mincore(part.start as *mut _, part.len(), there.as_mut_ptr()))?;
                there.as_ptr().copy_to(byte_of(part.start), there.len());
            }
        }
        if kind == Kind::Cached {
            for (share, part) in shares_in(&part) {
                let region = &share.region;
                // Staged; or come since the kernel was asked; or stores to it are being laid over what was read.
                let is_there = |at: &usize| {
                    let seen = region.word(region.address().page_at(*at)).look();
                    seen.is_upgrading() || !matches!(seen.state(), State::Absent | State::Loading | State::Evicting)
                };
                // SAFETY: bytes that have been stored to.
                part.step_by(PAGE).filter(is_there).for_each(|at| unsafe { byte_of(at).write(1) });
            }
        }
    }
    Ok(())
}
