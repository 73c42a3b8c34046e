//! Stores to absent pages that do not wait for the read: what a program asks for, and what AR-MMAP asks of it.

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
    /// Whether a store to a page that is not in memory completes at once, on a page filled with this line of 64 bytes,
    /// again and again, while the file's bytes are read behind it (AR-MMAP: Imamura and Yoshida, "AR-MMAP: Write
    /// Performance Improvement of Memory-Mapped File"). When they are there, the lines of the page that still hold the
    /// initial value are replaced by them, never under a store; nothing is written to the file before that. For mutable
    /// maps; all maps of a file in a process share one value. Default: stores wait for the read.
    ///
    /// The program has three duties (section III of the paper):
    ///
    /// 1. It stores whole lines: 64 bytes at a multiple of 64 in the file. What a line holds beside them would be
    ///    written as it is.
    /// 2. It takes notice of lines that hold the initial value when it has loaded them ([`MapMut::is_initial`]), has
    ///    them read ([`MapMut::synchronise`]), and loads them again. The file's bytes may come between two moves of a
    ///    load.
    /// 3. It never stores the initial value, nor, in a word of 8 bytes of the line, what the initial value has there:
    ///    lines are stored and loaded in pieces, and the page may be looked at between two.
    ///
    /// Without the duties bytes of the file are lost; so are those of a line that the program was storing in pieces
    /// when it was killed. What can be seen of a violation is counted
    /// ([`Stats::partial_lines`](crate::Stats::partial_lines)). Bytes drawn at random make a good value. Pins and
    /// copies ([`Map::pin`], [`Map::read_at`]) need none of this: they wait.
    ///
    /// Where a page is in a hole of the file, holds the file's end, or half of memory is being read behind, and where
    /// io_uring(7) is not allowed, stores wait as ever.
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

    /// Whether a store to a page that is not in memory is kept, and the thread goes on, while the page is read behind
    /// it: then the store is made. The program has no duties: a load from the page waits. Default: no.
    ///
    /// Kept are up to eight moves of 1 to 64 bytes a page, `rep stos` and `rep movs` included, for 256 pages a cache at
    /// a time. Any other instruction that stores (one that loads the same bytes, say), a move across the border of two
    /// pages, one that goes on with a copy of 64 bytes and more, and every further store to the page wait for the read.
    /// Where threads mostly come back and wait, most stores wait at once. It pays for scattered small stores to a slow
    /// device; a store whose page is loaded right after costs a trap more than one that waits. With
    /// [`MapOptions::async_read`] this has no effect.
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
    /// What absent pages are filled with for a store.
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
    /// Whether a line, 64 bytes, holds the initial value of [`MapOptions::async_read`] in one of its words of 8 bytes
    /// at least: the file's bytes may not have come yet, or came between two moves of the load. To be asked of what was
    /// loaded: in the map, bytes may leave memory, and the page be filled anew, after they were looked at.
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

    /// Waits until the file's bytes are in every page of the map, from `offset` on and `len` bytes long, that was
    /// stored to before it was read ([`MapOptions::async_read`]).
    ///
    /// # Errors
    /// [`Error::WriteBack`] when a page cannot be read: what was stored to it is kept, and the read is tried again;
    /// [`Error::RangeOutside`].
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
