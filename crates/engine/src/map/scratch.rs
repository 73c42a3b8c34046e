//! Maps of scratch files, which give their space only: what may be done with them beside using them.

use crate::deferred::protocol;
#[cfg(doc)]
use crate::error::Error;
use crate::error::Result;
use crate::files::length;
use crate::map::map_mut::MapMut;
#[cfg(doc)]
use crate::map::options::MapOptions;
use crate::region::install::unclaim;
use crate::region::region::Region;
use crate::sys::signal::Blocked;
use crate::sys::{PAGE, file};
use crate::writeback::{flush, sweep};
use std::fs::File;
use std::ops::Range;

impl MapMut {
    /// Gives up what a range of a scratch map ([`MapOptions::scratch`]) holds: bytes of the whole pages in it are zeros
    /// afterwards, and what was stored there is never written. On other maps it does nothing.
    ///
    /// # Errors
    /// [`Error::RangeOutside`]; [`Error::WriteBack`] for a page that was stored to before it was read, and cannot be
    /// read; [`Error::Missing`] in a child made by fork(2).
    ///
    /// ```
    /// # fn main() -> std::io::Result<()> {
    /// # let file = tempfile::tempfile()?;
    /// # file.set_len(1 << 20)?;
    /// // SAFETY: nobody else changes the file.
    /// let mut map = unsafe { fastmap::MapOptions::new().scratch(true).map_mut(&file)? };
    /// map[..8192].fill(1);
    /// map.discard(0, 8192)?;
    /// map[0] = 2;
    /// assert!(map.engine() == fastmap::Engine::Kernel || map[..2] == [2, 0]);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// Nobody has a reference into the map meanwhile:
    ///
    /// ```compile_fail,E0502
    /// # fn discards(mut map: fastmap::MapMut) {
    /// let text = &map[..8192];
    /// map.discard(0, 8192).unwrap();
    /// println!("{text:?}");
    /// # }
    /// ```
    pub fn discard(&mut self, offset: usize, len: usize) -> Result<()> {
        let Some((region, pages)) = self.mapping.scratch_pages(offset, len)? else { return Ok(()) };
        protocol::settle(region, pages.clone()).map_err(|failure| failure.into_error(&**region.store()))?;
        sweep::discard(region, pages.clone());
        // Out of memory at once: what a clean page holds that the file lacks would be there until it is evicted.
        let gone = {
            let _length = region.lock_length();
            length::leave_memory(region, pages.clone())
        };
        match gone {
            Ok(true) => Ok(()),
            // Another map has pinned some of it.
            Ok(false) | Err(_) => {
                let start = region.address_of(pages.start) as usize - self.mapping.start as usize;
                self.clear(start, pages.len() * PAGE)
            }
        }
    }

    /// Says that nobody needs what a range of a scratch map holds, at less cost than [`MapMut::discard`]: its pages are
    /// not written when their room is needed. Until something is stored there, bytes of the whole pages in the range
    /// are as they were, as they were earlier, or zeros, from one moment to the next. Stores that run at the same time
    /// may be lost. Pages that are pinned for writing stay as they are. On other maps it does nothing.
    ///
    /// # Safety
    /// Nobody has a reference to these bytes, now or before they are stored to (through pointers,
    /// [`MapMut::as_mut_ptr`]) or cleared.
    ///
    /// # Errors
    /// [`Error::RangeOutside`]; [`Error::Missing`] in a child made by fork(2).
    ///
    /// ```
    /// # fn main() -> std::io::Result<()> {
    /// # let file = tempfile::tempfile()?;
    /// # file.set_len(1 << 20)?;
    /// // SAFETY: nobody else changes the file.
    /// let mut map = unsafe { fastmap::MapOptions::new().scratch(true).map_mut(&file)? };
    /// map[..8192].fill(1);
    /// // SAFETY: cleared before anybody looks.
    /// unsafe { map.abandon(0, 8192)? };
    /// map.clear(0, 8192)?;
    /// assert_eq!(map[0], 0);
    /// # Ok(())
    /// # }
    /// ```
    pub unsafe fn abandon(&self, offset: usize, len: usize) -> Result<()> {
        if let Some((region, pages)) = self.mapping.scratch_pages(offset, len)? {
            sweep::discard(region, pages);
        }
        Ok(())
    }

    /// Makes bytes of the map zeros. On a scratch map ([`MapOptions::scratch`]) pages that are not in memory are
    /// neither read nor written for it.
    ///
    /// # Errors
    /// As for [`MapMut::write_at`].
    ///
    /// ```
    /// # fn main() -> std::io::Result<()> {
    /// # let file = tempfile::tempfile()?;
    /// # file.set_len(1 << 20)?;
    /// // SAFETY: nobody else changes the file.
    /// let mut map = unsafe { fastmap::MapOptions::new().scratch(true).map_mut(&file)? };
    /// map[..10_000].fill(1);
    /// map.clear(1, 9_998)?;
    /// assert_eq!(map[..10_000].iter().map(|byte| usize::from(*byte)).sum::<usize>(), 2);
    /// # Ok(())
    /// # }
    /// ```
    pub fn clear(&mut self, offset: usize, len: usize) -> Result<()> {
        const ZEROS: [u8; PAGE] = [0; PAGE];
        self.mapping.check(offset, len)?;
        let mut at = offset;
        while at < offset + len {
            let here = (PAGE - (self.mapping.start as usize + at) % PAGE).min(offset + len - at);
            let absent = match self.mapping.scratch_pages(at, here)? {
                Some((region, page)) if !page.is_empty() => clear_absent(region, page.start),
                _ => false,
            };
            if !absent {
                self.write_at(&ZEROS[..here], at)?;
            }
            at += here;
        }
        Ok(())
    }

    /// Copies what a scratch map ([`MapOptions::scratch`]) holds to the same places of another file, which is empty:
    /// where the map is zeros, or was discarded, the file keeps its holes. File systems that can share the blocks do.
    /// Stores that run at the same time are in the copy or not. On other maps it does nothing.
    ///
    /// # Errors
    /// [`Error::WriteBack`]; [`Error::Io`] when the file cannot be written; [`Error::Missing`] in a child made by
    /// fork(2).
    ///
    /// ```
    /// # fn main() -> std::io::Result<()> {
    /// # let file = tempfile::tempfile()?;
    /// # file.set_len(1 << 20)?;
    /// // SAFETY: nobody else changes the file.
    /// let mut map = unsafe { fastmap::MapOptions::new().scratch(true).map_mut(&file)? };
    /// map[5000] = 1;
    /// let copy = tempfile::tempfile()?;
    /// map.snapshot(&copy)?;
    /// let mut byte = [0];
    /// std::os::unix::fs::FileExt::read_exact_at(&copy, &mut byte, 5000)?;
    /// assert!(byte == [1] || map.engine() == fastmap::Engine::Kernel);
    /// # Ok(())
    /// # }
    /// ```
    pub fn snapshot(&self, to: &File) -> Result<()> {
        match self.mapping.scratch_pages(0, self.mapping.len)? {
            Some((region, pages)) => snapshot(region, pages, to),
            None => Ok(()),
        }
    }
}

/// Makes a page of a scratch region that is not in memory zeros; false: it is in memory, or on its way.
fn clear_absent(region: &Region, page: usize) -> bool {
    let Some(saved) = region.scratch() else { return false };
    let word = region.word(page);
    let _blocked = Blocked::all();
    let claimed = word.begin_load(word.look());
    if claimed {
        saved.forget(page..page + 1);
        unclaim(region, page);
    }
    claimed
}

/// Copies pages of a scratch region to the same places of a file that has holes there.
fn snapshot(region: &Region, pages: Range<usize>, to: &File) -> Result<()> {
    let (Some(saved), Some(from)) = (region.scratch(), region.store().writer()) else { return Ok(()) };
    // A clean page has what the file has, or zeros, or nothing that anybody needs.
    flush::write_out(region, pages.clone())?;
    let mut rest = pages;
    while let Some(run) = saved.run_from(rest.clone()) {
        rest.start = run.end;
        file::copy_range(from, to, run.start as u64 * PAGE as u64, run.len() * PAGE)
            .map_err(|source| region.io_error("copy it for a child (copy_file_range)", source))?;
    }
    Ok(())
}
