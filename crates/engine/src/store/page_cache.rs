//! The page cache as the second tier of a file that is read past it: pages that it has are copied from there, not read from the device.
//!
//! The page cache has pages that the kernel mapped or read before the engine took the file. It also has pages that write(2) has just written;
//! a direct read of those would wait until the device has them. Asking costs a twentieth of a read from a fast device, so where nothing is
//! found for a while it is asked for one page in sixteen only.
//!
//! A copy has the bytes that a direct read would have found: the kernel writes dirty pages back before such a read, and takes pages out
//! before and after a direct write. The engine never reads a page while it writes it: a page that it reads is Absent, and one that it writes
//! is in memory.

use crate::counters::stats::Counter;
use crate::sys::{PAGE, page_cache};
use std::fs::File;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

/// Whether the page cache lets go of what was copied from it: the engine's copy serves, and memory that holds both serves
/// less.
pub static DROP_BEHIND: AtomicBool = AtomicBool::new(true);

/// Whether it pays to ask the page cache for a file's pages, and to drop them there.
#[derive(Debug, Default)]
pub struct SecondTier {
    asking: Trial,
    dropping: Trial,
    /// The kernel does not answer, here or for this file.
    refused: AtomicBool,
}

impl SecondTier {
    /// Reads a range, from a page's start on, if the page cache has all of it; how many bytes there were before the file's
    /// end. `size`: the file's, as far as known. `file` reads through the page cache. Called by fault handlers.
    ///
    /// # Safety
    /// `to` is valid for `len` writes.
    pub unsafe fn read(
        &self,
        file: &File,
        to: *mut u8,
        len: usize,
        offset: u64,
        size: u64,
        hits: &Counter,
    ) -> Option<usize> {
        if self.refused.load(Ordering::Relaxed) || !self.asking.is_due(offset) {
            return None;
        }
        let pages = size.saturating_sub(offset).min(len as u64).div_ceil(PAGE as u64);
        let cached = self.count(file, offset, len).filter(|cached| pages > 0 && cached.pages >= pages);
        self.asking.note(cached.is_some());
        let cached = cached?;
        // SAFETY: the caller's buffer.
        let filled = match unsafe { page_cache::copy(file, to, len, offset) } {
            Ok(filled) => filled,
            // It has gone, or is still being read.
            Err(libc::EAGAIN) => return None,
            Err(_) => {
                self.refused.store(true, Ordering::Relaxed);
                return None;
            }
        };
        hits.add(filled.div_ceil(PAGE));
        if cached.unsaved == 0 && DROP_BEHIND.load(Ordering::Relaxed) && self.dropping.is_due(offset) {
            page_cache::drop_clean(file, offset, len);
            // Asking for pages that cannot go costs more: the kernel looks for them in every processor's lists.
            self.dropping.note(self.count(file, offset, len).is_some_and(|left| left.pages < cached.pages));
        }
        Some(filled)
    }

    /// The page cache has just got pages of the file: it is worth asking.
    pub fn rearm(&self) {
        self.asking.note(true);
    }

    fn count(&self, file: &File, offset: u64, len: usize) -> Option<page_cache::Cached> {
        page_cache::count(file, offset, len).inspect_err(|_| self.refused.store(true, Ordering::Relaxed)).ok()
    }
}

/// Something that is tried as long as it pays.
#[derive(Debug, Default)]
struct Trial {
    /// Failures in a row, up to `PATIENCE`. Threads may overwrite each other's: one more or less does not matter. Where it does not pay
    /// nobody writes here.
    failures: AtomicU32,
}

impl Trial {
    const PATIENCE: u32 = 32;

    /// Whether to try: after a run of failures, for the pages of one place in sixteen.
    fn is_due(&self, offset: u64) -> bool {
        let is_sample = || (offset / PAGE as u64).wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 60 == 0;
        self.failures.load(Ordering::Relaxed) < Self::PATIENCE || is_sample()
    }

    fn note(&self, pays: bool) {
        match (self.failures.load(Ordering::Relaxed), pays) {
            (1.., true) => self.failures.store(0, Ordering::Relaxed),
            (failures @ 0..Self::PATIENCE, false) => self.failures.store(failures + 1, Ordering::Relaxed),
            _ => {}
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn what_does_not_pay_is_tried_for_few_pages_until_it_does() {
        let trial = Trial::default();
        let due = || (0..16_000).filter(|page| trial.is_due(page * PAGE as u64)).count();
        (1..Trial::PATIENCE).for_each(|_| trial.note(false));
        assert_eq!(due(), 16_000);
        (0..2 * Trial::PATIENCE).for_each(|_| trial.note(false));
        assert!((500..2000).contains(&due()), "{}", due());
        trial.note(true);
        assert_eq!(due(), 16_000);
    }
}
