//! Maps of a file become kernel mappings, in place, while threads use them; or a region gives up a range of addresses,
//! which is foreign to it from then on.
//!
//! All pages that are mapped are invalidated (`evict/invalidate.rs`): saved, dropped, and every access waits. Then
//! mmap(2) puts mappings of the file where the region's memory was, and the pages are let go: a thread that
//! waited finds the region converted, and repeats the access, which the kernel serves. What is left of the region,
//! without those addresses, goes like any when its maps are given back (`files/closing.rs`); its values stay, since a
//! thread that trapped may be anywhere in them.
//!
//! From then on nothing of the engine reaches those addresses: no page there is in memory to be evicted, written or
//! saved by the keeper, a load finds the region converted, and a look-up of the address finds no region
//! (`region/registry.rs`).

use crate::evict::invalidate::{self, Invalidated};
use crate::fault::late;
use crate::region::region::Region;
use crate::sys::signal::Blocked;
use crate::sys::{PAGE, errno, memory};
use crate::writeback::sweep::{self, Stripe};
use std::ops::Range;
use std::os::fd::RawFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// How long pages that are pinned are waited for.
const PATIENCE: Duration = Duration::from_secs(1);
/// Pause between two looks at them.
const NAP: Duration = Duration::from_millis(2);

/// What is mapped of a region.
#[derive(Debug)]
pub struct MappedPages {
    pub pages: Range<usize>,
    /// What may be done to it: `PROT_READ`, perhaps with `PROT_WRITE`.
    pub prot: i32,
    /// `MAP_SHARED` or `MAP_PRIVATE`.
    pub kind: i32,
    /// What to map it by: of one that mprotect(2) may allow stores later a descriptor that may write, and else none
    /// such.
    pub fd: RawFd,
}

/// Tries something that pinned pages are in the way of, which others let go soon: again and again, for a while, then
/// the error is EBUSY. `attempt` says whether it has done.
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

/// A pause of a thread that waits until a file is converted, or stays.
pub fn nap() {
    std::thread::sleep(NAP);
}

/// Makes parts of a region, in ascending order, kernel mappings of the same bytes of the file: all that is mapped. The
/// caller keeps the region's maps as they are, and gives them back afterwards; unless they are `replaced` then, for
/// good, the region's values stay. False: pages are pinned. On failure, an error number, and then everything is as
/// before.
pub fn to_kernel(region: &Arc<Region>, parts: &[MappedPages], replaced: bool) -> Result<bool, i32> {
    if parts.iter().any(|part| is_pinned(region, &part.pages)) {
        // Before anything leaves memory for nothing.
        return Ok(false);
    }
    // Now, and not with pages held.
    crate::evict::batch::forbid_frames(region);
    // The kernel's mappings would not see what is dirty beside them.
    sweep::write_out(region, 0..region.span() / PAGE, Stripe::ALL).map_err(|failure| failure.error())?;
    let _blocked = Blocked::all();
    let mut held = All(Vec::with_capacity(parts.len()));
    for part in parts {
        // Neighbours are one: their edges would be looked at twice.
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
                    // Where there was one mapping the kernel has refused another.
                    crate::region::report::die(
                        region,
                        "the kernel refuses both its own mapping and the former one (mmap)",
                    );
                }
            }
            return Err(error);
        }
    }
    if !replaced {
        region.keep_for_good();
    }
    region.note_converted(parts.iter().map(|part| part.pages.start * PAGE..part.pages.end * PAGE));
    late::expect_late();
    Ok(true)
}

/// Makes a region give up a range of its own addresses that no map by address covers, for other memory: nothing of it
/// is in memory then, and what the program stored there before it was unmapped is in the file, or lost, as it should
/// be, where the file is only scratch. False: pages are pinned. On failure, an error number, everything is as before.
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
    // While they are held, so that a thread that waits for one of them finds nothing there, as after munmap(2), and
    // brings nothing in.
    // SAFETY: addresses that the caller has no use for. Should it fail, what is there goes with the caller's mapping.
    let _ = unsafe { memory::reserve_at(region.address_of(pages.start), pages.len() * PAGE) };
    invalidated.cut();
    Ok(true)
}

fn is_pinned(region: &Region, pages: &Range<usize>) -> bool {
    // A page behind that is not in memory.
    (pages.start..pages.end.min(region.reach().end())).any(|page| region.word(page).look().is_pinned())
}

/// Pages held, the last first to be let go: each of them restores the signal mask that it found.
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
