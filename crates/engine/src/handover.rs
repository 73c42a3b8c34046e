//! Maps of a file become the kernel's own, in place, under the feet of the threads that use them; or a region gives up addresses
//! that others have a use for.
//!
//! All pages that are mapped are seized (`seize.rs`): saved, dropped, and every access waits. Then mmap(2) puts shared mappings
//! of the file where the region's memory was, and the pages are let go: whoever waited finds the region handed over,
//! and repeats the access, which the kernel serves. What is left of the region, without those addresses, goes like any when
//! its maps are given back (`files.rs`); its values stay, since a thread that trapped may be anywhere in them.
//!
//! From then on nothing of the engine reaches those addresses: no page there is in memory to be evicted, written or saved by the
//! keeper, who loads one finds the region handed over, and who looks the address up finds no region (`registry.rs`).

use crate::region::Region;
use crate::seize::{self, Seized};
use crate::sys::signal::{Blocked, Trap};
use crate::sys::{PAGE, errno, memory};
use crate::writeback::{self, Stripe};
use std::ops::Range;
use std::os::fd::RawFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

/// How long pages that are pinned are waited for.
const PATIENCE: Duration = Duration::from_secs(1);
/// Pause between two looks at them.
const NAP: Duration = Duration::from_millis(2);

/// Any region was handed over.
static ANY: AtomicBool = AtomicBool::new(false);

/// What is mapped of a region.
#[derive(Debug)]
pub struct Part {
    pub pages: Range<usize>,
    /// What may be done to it: `PROT_READ`, perhaps with `PROT_WRITE`.
    pub prot: i32,
    /// What to map it by: of one that mprotect(2) may allow stores later a descriptor that may write, and else none such.
    pub fd: RawFd,
}

/// Tries something that pinned pages are in the way of, which others let go soon: again and again, for a while, then the error is
/// EBUSY. `attempt` says whether it has done.
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

/// A pause for whoever waits until a file has been handed over, or stays.
pub fn nap() {
    std::thread::sleep(NAP);
}

/// Makes parts of a region, in ascending order, kernel mappings of the same bytes of the file: all that is mapped. The caller keeps
/// the region's maps as they are, and gives them back afterwards; unless they are `replaced` then, for good, the region's values
/// stay. False: pages are pinned. On failure, an error number, and then everything is as before.
pub fn to_kernel(region: &Arc<Region>, parts: &[Part], replaced: bool) -> Result<bool, i32> {
    if parts.iter().any(|part| is_pinned(region, &part.pages)) {
        // Before anything leaves memory for nothing.
        return Ok(false);
    }
    // Now, and not with pages held.
    region.forbid_frames();
    // The kernel's mappings would not see what is dirty beside them.
    writeback::write_out(region, 0..region.span() / PAGE, Stripe::ALL).map_err(|failure| failure.error())?;
    let _blocked = Blocked::all();
    let mut held = All(Vec::with_capacity(parts.len()));
    for part in parts {
        // Neighbours are one: their edges would be looked at twice.
        let seized = seize::seize(region, part.pages.clone(), usize::MAX)?;
        let is_pinned = seized.pinned().next().is_some();
        held.0.push(seized);
        if is_pinned {
            return Ok(false);
        }
    }
    for (done, part) in parts.iter().enumerate() {
        if let Err(error) = map_over(region, part) {
            for Part { pages, prot, .. } in &parts[..done] {
                // SAFETY: the file has all of it.
                if unsafe { region.take_back(pages.start * PAGE..pages.end * PAGE, *prot) }.is_err() {
                    // Where there was one mapping the kernel has refused another.
                    crate::fault::die(region, "the kernel refuses both its own mapping and the former one (mmap)");
                }
            }
            return Err(error);
        }
    }
    if !replaced {
        region.keep_for_good();
    }
    region.note_handed_over(parts.iter().map(|part| part.pages.start * PAGE..part.pages.end * PAGE));
    expect_late();
    Ok(true)
}

/// Has a region give up a range of its own addresses that no map by address covers, for other memory: nothing of it is in memory
/// then, and what the program stored there before it was unmapped is in the file, or lost as it wishes where the file is only
/// scratch. False: pages are pinned. On failure, an error number, everything is as before.
pub fn lend(region: &Region, pages: Range<usize>) -> Result<bool, i32> {
    if is_pinned(region, &pages) {
        return Ok(false);
    }
    region.forbid_frames();
    let doomed = if region.scratch().is_some() { pages.start } else { usize::MAX };
    let seized = seize::seize(region, pages.clone(), doomed)?;
    if seized.pinned().next().is_some() {
        return Ok(false);
    }
    if !region.lend(pages.start * PAGE..pages.end * PAGE) {
        return Err(libc::ENOMEM);
    }
    // While they are held, so that whoever waits for one of them finds nothing there, as after munmap(2), and brings nothing in.
    // SAFETY: addresses that the caller has no use for. Should it fail, what is there goes with the caller's mapping.
    let _ = unsafe { memory::reserve_at(region.address_of(pages.start), pages.len() * PAGE) };
    seized.cut();
    Ok(true)
}

fn is_pinned(region: &Region, pages: &Range<usize>) -> bool {
    pages.clone().any(|page| region.word(page).look().is_pinned())
}

/// Pages held, the last first to be let go: each of them restores the signal mask that it found.
struct All<'a>(Vec<Seized<'a>>);

impl Drop for All<'_> {
    fn drop(&mut self) {
        while let Some(last) = self.0.pop() {
            drop(last);
        }
    }
}

fn map_over(region: &Region, part: &Part) -> Result<(), i32> {
    let Part { pages, prot, fd } = part;
    let (at, len) = (region.address_of(pages.start), pages.len() * PAGE);
    let flags = libc::MAP_SHARED | libc::MAP_FIXED;
    // SAFETY: addresses of the region whose pages are all this thread's, absent and saved.
    let got = unsafe { libc::mmap(at.cast(), len, *prot, flags, *fd, (pages.start * PAGE) as i64) };
    if got == libc::MAP_FAILED { Err(errno()) } else { Ok(()) }
}

/// Notes that traps may have been taken on memory that is the kernel's now.
pub fn expect_late() {
    ANY.store(true, Ordering::Release);
}

/// Whether a trap on an address that is no region's was taken before the region there was handed over, so that the access
/// succeeds now; false: it is the kernel's own (past the end of the file, say), and the program's to deal with.
pub fn is_late(trap: Trap) -> bool {
    /// Traps believed where the kernel cannot be asked.
    static CREDULITY: AtomicUsize = AtomicUsize::new(10_000);
    if !ANY.load(Ordering::Acquire) {
        return false;
    }
    let advice = if trap.is_store { libc::MADV_POPULATE_WRITE } else { libc::MADV_POPULATE_READ };
    // SAFETY: does what the program's own access does, and says how it ends (Linux 5.14).
    let populated = unsafe { libc::madvise((trap.address / PAGE * PAGE) as *mut _, PAGE, advice) } == 0;
    let one_less = |left: usize| left.checked_sub(1);
    populated
        || errno() == libc::EINVAL && CREDULITY.fetch_update(Ordering::Relaxed, Ordering::Relaxed, one_less).is_ok()
}
