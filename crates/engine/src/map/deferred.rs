//! Stores to absent pages that do not wait for the read: the options for them, and the program's part in AR-MMAP.

use crate::deferred::protocol::{self, LINE};
#[cfg(doc)]
use crate::error::Error;
use crate::error::Result;
use crate::map::cached::Cached;
#[cfg(doc)]
use crate::map::map::Map;
use crate::map::map_mut::MapMut;
use crate::map::mapping::{Backing, Mapping, pages};
use crate::map::options::MapOptions;

impl MapOptions {
    /// Lets a store to a page that is not in memory complete at once, before the page is read (AR-MMAP: Imamura and
    /// Yoshida, "AR-MMAP: Write Performance Improvement of Memory-Mapped File"). Default: stores wait for the read.
    ///
    /// The page is filled with this line of 64 bytes, the *initial value*, again and again, and the file's bytes are
    /// read meanwhile. When they are there, they replace the lines of the page that still hold the initial value, but
    /// never during a store. Nothing is written to the file before that. The option is for mutable maps; all maps of a
    /// file in a process share one value ([`Error::InitialValue`]).
    ///
    /// The program has three duties (section III of the paper):
    ///
    /// 1. It stores whole lines: 64 bytes at a multiple of 64 in the file. If it stores part of a line, the rest is
    ///    written to the file as it is, initial value included.
    /// 2. It checks lines that it has loaded for the initial value ([`MapMut::is_initial`]). If it finds that, it waits
    ///    for the file's bytes ([`MapMut::synchronise`]), and loads the lines again. The file's bytes may come between
    ///    two moves of a load.
    /// 3. It never stores the initial value, nor, in a word of 8 bytes of the line, the bytes that the initial value
    ///    has there: lines are stored and loaded in pieces, and the page may be looked at between two.
    ///
    /// If the program neglects a duty, bytes of the file are lost. So are those of a line that the program was storing
    /// in pieces when it was killed. Violations are counted as far as they can be seen
    /// ([`Stats::partial_lines`](crate::Stats::partial_lines)). Random bytes make a good initial value. Pins and copies
    /// ([`Map::pin`], [`Map::read_at`]) need none of this: they wait.
    ///
    /// Stores wait for the read all the same:
    ///
    /// * to a page in a hole of the file, and to the page that holds the file's end;
    /// * while pages that were stored to and are not read yet fill half of the cache;
    /// * where io_uring(7) is not allowed.
    ///
    /// ```
    /// # fn main() -> std::io::Result<()> {
    /// # let file = tempfile::tempfile()?;
    /// std::os::unix::fs::FileExt::write_all_at(&file, &[7; 8192], 0)?;
    /// let initial = *b"no line of this program's ever holds these sixty-four bytes 4711";
    /// // SAFETY: nobody else changes the file.
    /// let mut map = unsafe { fastmap::MapOptions::new().async_read(initial).map_mut(&file)? };
    /// map[4096..4160].fill(1); // does not wait
    /// if map.is_initial(&map[4160..4224]) {
    ///     map.synchronise(4160, 64)?;
    /// }
    /// assert_eq!(map[4160..4224], [7; 64]);
    /// # Ok(())
    /// # }
    /// ```
    pub fn async_read(&mut self, initial_line: [u8; 64]) -> &mut Self {
        self.deferred.initial = Some(initial_line);
        self
    }

    /// Lets the thread of a store to a page that is not in memory go on. The store is kept while the page is read, and
    /// made when the page is there. The program has no duties: a load from the page waits. Default: no.
    ///
    /// Up to eight stores are kept for each page, for 256 pages of a cache at a time: moves of 1 to 64 bytes, and
    /// repeated ones (`rep stos`, `rep movs`). These wait for the read:
    ///
    /// * any other instruction that stores, such as one that loads the same bytes first;
    /// * a move across the border of two pages;
    /// * a move right before or behind 64 stored bytes: part of a copy, which would have to wait in the end;
    /// * every further store to the page.
    ///
    /// If threads wait for one in four pages with kept stores, most stores wait at once. Keeping pays for scattered
    /// small stores to a slow device. A store whose page is loaded right after costs a trap more than one that waits.
    /// With [`MapOptions::async_read`] this option has no effect.
    ///
    /// ```
    /// # fn main() -> std::io::Result<()> {
    /// # let file = tempfile::tempfile()?;
    /// std::os::unix::fs::FileExt::write_all_at(&file, &[7; 8192], 0)?;
    /// // SAFETY: nobody else changes the file.
    /// let mut map = unsafe { fastmap::MapOptions::new().async_stores(true).map_mut(&file)? };
    /// map[4100] = 1; // does not wait
    /// assert_eq!((map[4099], map[4100]), (7, 1)); // does
    /// # Ok(())
    /// # }
    /// ```
    pub fn async_stores(&mut self, on: bool) -> &mut Self {
        self.deferred.keep = on;
        self
    }
}

impl Mapping {
    /// The line with which absent pages are filled for a store.
    #[inline]
    fn initial(&self) -> Option<&[u8; LINE]> {
        let Backing::Cached(cached) = &self.backing else { return None };
        protocol::of(&cached.region)?.initial()
    }

    fn synchronise(&self, offset: usize, len: usize) -> Result<()> {
        self.check(offset, len)?;
        if let Backing::Cached(cached) = &self.backing { cached.synchronise(offset, len) } else { Ok(()) }
    }
}

impl Cached {
    fn synchronise(&self, offset: usize, len: usize) -> Result<()> {
        protocol::settle(&self.region, pages(self.offset + offset, len))
            .map_err(|failure| failure.into_error(&**self.region.store()))
    }
}

impl MapMut {
    /// Whether a line, 64 bytes, holds the initial value of [`MapOptions::async_read`] in at least one of its words of
    /// 8 bytes: the file's bytes may not have come yet, or have come between two moves of the load. Pass the bytes that
    /// were loaded: those in the map may leave memory, and the page be filled anew, after this call has looked at them.
    ///
    /// ```
    /// # fn main() -> std::io::Result<()> {
    /// # let file = tempfile::tempfile()?;
    /// # file.set_len(4096)?;
    /// // SAFETY: nobody else changes the file.
    /// let map = unsafe { fastmap::MapOptions::new().async_read([0xA5; 64]).map_mut(&file)? };
    /// let mut line = [0xA5; 64];
    /// assert!(!map.is_initial(&map[..64]) && map.is_initial(&line));
    /// line[..56].fill(0);
    /// assert!(map.is_initial(&line), "in part");
    /// # Ok(())
    /// # }
    /// ```
    #[inline]
    pub fn is_initial(&self, line: &[u8]) -> bool {
        line.len() == LINE && self.mapping.initial().is_some_and(|initial| protocol::holds_initial(initial, line))
    }

    /// Waits until all pages of a range of the map hold the file's bytes, if they were stored to before they were read
    /// ([`MapOptions::async_read`], [`MapOptions::async_stores`]). The range is `len` bytes from `offset`, in whole
    /// pages.
    ///
    /// # Errors
    /// [`Error::WriteBack`] when a page cannot be read: bytes that were stored to it are kept, and the read is tried
    /// again; [`Error::RangeOutside`]; [`Error::Missing`] in a child made by fork(2).
    ///
    /// ```
    /// # fn main() -> std::io::Result<()> {
    /// # let file = tempfile::tempfile()?;
    /// # file.set_len(4096)?;
    /// # // SAFETY: nobody else changes the file.
    /// # let map = unsafe { fastmap::MapOptions::new().async_read([0xA5; 64]).map_mut(&file)? };
    /// map.synchronise(0, 4096)?;
    /// assert!(map.chunks(64).all(|line| !map.is_initial(line)));
    /// # Ok(())
    /// # }
    /// ```
    pub fn synchronise(&self, offset: usize, len: usize) -> Result<()> {
        self.mapping.synchronise(offset, len)
    }
}
