//! Turns maps of a file into kernel mappings, in place, while threads use them. Also makes a region give up a range of
//! addresses, which is foreign to it from then on.
//!
//! A conversion has three steps:
//!
//! 1. All mapped pages are invalidated (`evict/invalidate.rs`): saved and dropped. Every access waits.
//! 2. mmap(2) puts mappings of the file where the region's memory was.
//! 3. The pages are let go. A thread that waited finds the region converted and repeats the access, which the kernel serves.
//!
//! The rest of the region ends like any other when its maps are given back (`files/closing.rs`). A thread that trapped may
//! still be anywhere in its values: the region waits for it (`region/seats.rs`).
//!
//! After a conversion the engine does not touch those addresses. None of their pages is in memory, so none is evicted,
//! written, or saved by the keeper. A load finds the region converted, and a look-up of the address finds no region
//! (`region/registry.rs`).

use crate::evict::invalidate::{self, Invalidated};
use crate::fault::late;
use crate::region::region::Region;
use crate::sys::signal::Blocked;
use crate::sys::{PAGE, errno, memory};
use crate::writeback::sweep::{self, Stripe};
use std::ops::Range;
use std::os::fd::RawFd;
use std::time::{Duration, Instant};

/// How long an attempt waits for pages that are pinned.
const PATIENCE: Duration = Duration::from_secs(1);
/// Pause between two looks at them.
const NAP: Duration = Duration::from_millis(2);

/// A mapped part of a region.
#[derive(Debug)]
pub struct MappedPages {
    pub pages: Range<usize>,
    /// `PROT_READ`, perhaps with `PROT_WRITE`.
    pub prot: i32,
    /// `MAP_SHARED` or `MAP_PRIVATE`.
    pub kind: i32,
    /// The descriptor to map it by. It is open for writing if mprotect(2) may later allow stores to the mapping, and only
    /// then.
    pub fd: RawFd,
}

/// Repeats `attempt` until it returns true, for a while; then the error is EBUSY. For attempts that fail while pages are
/// pinned, which others soon let go.
pub fn patiently(mut attempt: impl FnMut() -> Result<bool, i32>) -> Result<(), i32> {
    let start = Instant::now();
    while !attempt()? {
        if start.elapsed() > PATIENCE {
            return Err(libc::EBUSY);
        }
        nap();
    }
    Ok(())
}

/// A short sleep, for a thread that waits until a file has been converted or is known to stay.
pub fn nap() {
    std::thread::sleep(NAP);
}

/// Makes all mapped parts of a region kernel mappings of the same bytes of the file. The parts are in ascending order. The
/// caller keeps the region's maps meanwhile, and gives them back afterwards. False: pages are pinned. On failure, an error
/// number, everything is as before.
pub fn to_kernel(region: &Region, parts: &[MappedPages]) -> Result<bool, i32> {
    if parts.iter().any(|part| is_pinned(region, &part.pages)) {
        // Looked at first, so that no page leaves memory for nothing.
        return Ok(false);
    }
    // Now, since it may not be done with pages held.
    crate::evict::batch::forbid_frames(region);
    // The kernel's mappings would not see what is dirty beside them.
    sweep::write_out(region, 0..region.span() / PAGE, Stripe::ALL).map_err(|failure| failure.error)?;
    let _blocked = Blocked::all();
    let mut held = All(Vec::with_capacity(parts.len()));
    for part in parts {
        // Neighbouring parts have been joined: otherwise the pages at their edges would be looked at twice.
        let invalidated = invalidate::invalidate(region, part.pages.clone(), usize::MAX)?;
        let is_pinned = invalidated.pinned().next().is_some();
        held.0.push(invalidated);
        if is_pinned {
            return Ok(false);
        }
    }
    for (done, part) in parts.iter().enumerate() {
        if let Err(error) = map_over(region, part) {
            for MappedPages { pages, prot, .. } in &parts[..done] {
                // SAFETY: the file has all of it.
                if unsafe { region.address().take_back(pages.start * PAGE..pages.end * PAGE, *prot) }.is_err() {
                    // The kernel refuses to restore a mapping where there was one.
                    crate::region::report::die(
                        region,
                        "the kernel refuses both its own mapping and the former one (mmap)",
                    );
                }
            }
            return Err(error);
        }
    }
    region.note_converted(parts.iter().map(|part| part.pages.start * PAGE..part.pages.end * PAGE));
    late::expect_late();
    Ok(true)
}

/// Makes a region give up a range of its own addresses, which no map by address covers, for other memory. Its pages leave
/// memory. Stores from before it was unmapped are in the file; those to a scratch region are lost, as they should be. False:
/// pages are pinned. On failure, an error number, everything is as before.
pub fn make_foreign(region: &Region, pages: Range<usize>) -> Result<bool, i32> {
    if is_pinned(region, &pages) {
        return Ok(false);
    }
    crate::evict::batch::forbid_frames(region);
    let truncated = if region.scratch().is_some() { pages.start } else { usize::MAX };
    let invalidated = invalidate::invalidate(region, pages.clone(), truncated)?;
    if invalidated.pinned().next().is_some() {
        return Ok(false);
    }
    if !region.make_foreign(pages.start * PAGE..pages.end * PAGE) {
        return Err(libc::ENOMEM);
    }
    // While the pages are held: a thread that waits for one of them then finds nothing there, as after munmap(2), and
    // brings nothing in.
    // SAFETY: addresses that the caller has no use for. If this fails, the caller's mapping replaces the memory there.
    let _ = unsafe { memory::reserve_at(region.address_of(pages.start), pages.len() * PAGE) };
    invalidated.cut();
    Ok(true)
}

fn is_pinned(region: &Region, pages: &Range<usize>) -> bool {
    // Pages behind the reach are not in memory.
    (pages.start..pages.end.min(region.reach().end())).any(|page| region.word(page).look().is_pinned())
}

/// Pages held. The last are let go first, since each restores the signal mask that it found.
struct All<'a>(Vec<Invalidated<'a>>);

impl Drop for All<'_> {
    fn drop(&mut self) {
        while let Some(last) = self.0.pop() {
            drop(last);
        }
    }
}

fn map_over(region: &Region, part: &MappedPages) -> Result<(), i32> {
    let MappedPages { pages, prot, kind, fd } = part;
    let (at, len) = (region.address_of(pages.start), pages.len() * PAGE);
    // SAFETY: addresses of the region; all their pages are this thread's, absent and saved.
    let got = unsafe { libc::mmap(at.cast(), len, *prot, kind | libc::MAP_FIXED, *fd, (pages.start * PAGE) as i64) };
    if got == libc::MAP_FAILED { Err(errno()) } else { Ok(()) }
}
