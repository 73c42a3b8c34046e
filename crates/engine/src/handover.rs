//! Maps of a file become the kernel's own, in place, under the feet of the threads that use them.
//!
//! All pages that are mapped are seized (`seize.rs`): saved, dropped, and every access waits. Then mmap(2) puts shared mappings
//! of the file where the region's memory was, and the pages are let go: whoever waits finds the region handed over,
//! and repeats the access, which the kernel serves. What is left of the region, without those addresses, goes like any when
//! its maps are given back (`files.rs`); its values stay, since a thread that trapped may be anywhere in them.

use crate::region::Region;
use crate::seize::{self, Seized};
use crate::sys::signal::{Blocked, Trap};
use crate::sys::{PAGE, errno};
use crate::writeback::{self, Stripe};
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

/// How long pages that are pinned are waited for.
const PATIENCE: Duration = Duration::from_secs(1);
/// Pause between two looks at them.
const NAP: Duration = Duration::from_millis(5);

/// Any region was handed over.
static ANY: AtomicBool = AtomicBool::new(false);

/// Makes parts of a region, pages with what may be done to them (`PROT_READ`, `PROT_WRITE`), in ascending order, kernel mappings of
/// the same bytes of the file: all that is mapped. The caller keeps the region's maps as they are, and gives them back
/// afterwards. On failure, an error number, everything is as before: EBUSY where pages are pinned.
pub fn to_kernel(region: &Arc<Region>, parts: &[(Range<usize>, i32)]) -> Result<(), i32> {
    let start = Instant::now();
    // Now, and not with pages held.
    region.forbid_frames();
    loop {
        // The kernel's mappings would not see what is dirty beside them.
        writeback::write_out(region, 0..region.span() / PAGE, Stripe::ALL).map_err(|failure| failure.error())?;
        if try_once(region, parts)? {
            return Ok(());
        }
        if start.elapsed() > PATIENCE {
            return Err(libc::EBUSY);
        }
        std::thread::sleep(NAP);
    }
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

/// False: pages are pinned.
fn try_once(region: &Arc<Region>, parts: &[(Range<usize>, i32)]) -> Result<bool, i32> {
    let _blocked = Blocked::all();
    let mut held = All(Vec::with_capacity(parts.len()));
    for (pages, _) in parts {
        // Neighbours are one: their edges would be looked at twice.
        let seized = seize::seize(region, pages.clone(), usize::MAX)?;
        let is_pinned = seized.pinned().next().is_some();
        held.0.push(seized);
        if is_pinned {
            return Ok(false);
        }
    }
    for (done, (pages, prot)) in parts.iter().enumerate() {
        if let Err(error) = map_over(region, pages, *prot) {
            for (pages, prot) in &parts[..done] {
                // SAFETY: the file has all of it.
                if unsafe { region.take_back(pages.start * PAGE..pages.end * PAGE, *prot) }.is_err() {
                    // Where there was one mapping the kernel has refused another.
                    crate::fault::die(region, "the kernel refuses both its own mapping and the former one (mmap)");
                }
            }
            return Err(error);
        }
    }
    parts.iter().for_each(|(pages, _)| region.lend(pages.start * PAGE..pages.end * PAGE));
    // For good: threads that trapped may still look at it, and nobody counts them.
    std::mem::forget(region.clone());
    region.note_handed_over();
    expect_late();
    Ok(true)
}

fn map_over(region: &Region, pages: &Range<usize>, prot: i32) -> Result<(), i32> {
    let [reading, writing, ..] = region.store().descriptors();
    let fd = writing.or(reading).ok_or(libc::EBADF)?;
    let (at, len) = (region.address_of(pages.start), pages.len() * PAGE);
    let flags = libc::MAP_SHARED | libc::MAP_FIXED;
    // SAFETY: addresses of the region whose pages are all this thread's, absent and saved.
    let got = unsafe { libc::mmap(at.cast(), len, prot, flags, fd, (pages.start * PAGE) as i64) };
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
