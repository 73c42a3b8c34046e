//! Scratch maps, whose files only give space: their contents are discarded, cleared and copied here.

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
    /// Gives up the contents of the whole pages in a range of a scratch map ([`MapOptions::scratch`]). Their bytes are
    /// zeros afterwards, and earlier stores to them are never written. On other maps it does nothing.
    ///
    /// # Errors
    /// [`Error::RangeOutside`]; [`Error::WriteBack`] for a page that was stored to before it was read, and cannot be
    /// read; those of [`MapMut::write_at`] for pages that another map has pinned; [`Error::Missing`] in a child made by
    /// fork(2).
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
    /// The compiler refuses a reference into the map that outlives the call:
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
        // They leave memory at once: a clean page that holds what the file lacks would show it until it is evicted.
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

    /// Gives up the contents of the whole pages in a range of a scratch map ([`MapOptions::scratch`]), at less cost
    /// than [`MapMut::discard`]: they are not written when their room is needed. Until something is stored there, each
    /// byte is as it was, as it was earlier, or zero, and may change from one moment to the next. Stores that run at
    /// the same time may be lost. Pages that are pinned for writing stay as they are. On other maps it does nothing.
    ///
    /// # Safety
    /// Nobody has a reference to these bytes, from now until they are cleared or stored to (through pointers,
    /// [`MapMut::as_mut_ptr`]).
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

    /// Fills `len` bytes of the map from `offset` with zeros. On a scratch map ([`MapOptions::scratch`]) pages that are
    /// not in memory are neither read nor written for it.
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

    /// Copies the contents of a scratch map ([`MapOptions::scratch`]) to the same offsets of another file, which is
    /// empty (copy_file_range(2)). Where the map is zeros, or was discarded, that file keeps its holes. File systems
    /// that can share the blocks do. Stores that run at the same time are in the copy or not. On other maps it does
    /// nothing.
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

/// Makes an absent page of a scratch region zeros. False: it is in memory, or on its way.
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
    // A clean page holds the file's bytes, zeros, or bytes that nobody needs.
    flush::write_out(region, pages.clone())?;
    let mut rest = pages;
    while let Some(run) = saved.run_from(rest.clone()) {
        rest.start = run.end;
        file::copy_range(from, to, run.start as u64 * PAGE as u64, run.len() * PAGE)
            .map_err(|source| region.io_error("copy it for a child (copy_file_range)", source))?;
    }
    Ok(())
}
