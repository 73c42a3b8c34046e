//! How a file is mapped: the builder in front of `map.rs`.

use crate::behind::Wish;
use crate::cache::Cache;
use crate::direct::{self, Mode, Persist};
use crate::error::{Error, Result};
use crate::files::{self, Fallback, How};
use crate::kernel::{KernelMapping, Part};
use crate::map::{Kind, Map, MapMut, Mapping, Source, pages};
use crate::region::Place;
use crate::store;
use crate::sys::file::{self, Facts, Medium};
use std::fs::File;
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

/// How a file is to be mapped: a builder, as `memmap2::MmapOptions` is.
///
/// ```
/// use fastmap::{Cache, MapOptions};
///
/// # fn main() -> std::io::Result<()> {
/// let file = tempfile::tempfile()?;
/// file.set_len(1 << 20)?;
/// let cache = Cache::new(256 << 10)?; // a quarter of the file
/// // SAFETY: nobody else changes the file.
/// let map = unsafe { MapOptions::new().cache(&cache).offset(10).len(5000).map(&file)? };
/// assert_eq!(map.len(), 5000);
/// assert!(map.iter().all(|byte| *byte == 0));
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone)]
pub struct MapOptions {
    pub(crate) offset: u64,
    len: Option<usize>,
    cache: Option<Cache>,
    fallback: Fallback,
    one_writer: bool,
    pub(crate) reserve: bool,
    scratch: bool,
    behind: Wish,
    mode: Mode,
    persist: Persist,
}

impl Default for MapOptions {
    fn default() -> Self {
        MapOptions {
            offset: 0,
            len: None,
            cache: None,
            fallback: Fallback::default(),
            one_writer: true,
            reserve: false,
            scratch: false,
            behind: Wish::default(),
            mode: Mode::default(),
            persist: Persist::default(),
        }
    }
}

impl MapOptions {
    /// Options for a map of a whole file through the process's own cache.
    ///
    /// ```
    /// let options = fastmap::MapOptions::new();
    /// ```
    pub fn new() -> Self {
        Self::default()
    }

    /// First byte of the file to map; any offset, not only page multiples. Default 0.
    ///
    /// ```
    /// # fn main() -> std::io::Result<()> {
    /// # let file = tempfile::tempfile()?;
    /// std::os::unix::fs::FileExt::write_all_at(&file, b"head body", 0)?;
    /// // SAFETY: nobody else changes the file.
    /// let map = unsafe { fastmap::MapOptions::new().offset(5).map(&file)? };
    /// assert_eq!(&map[..], b"body");
    /// # Ok(())
    /// # }
    /// ```
    pub fn offset(&mut self, bytes: u64) -> &mut Self {
        self.offset = bytes;
        self
    }

    /// Bytes to map. Default: from the offset to the end of the file. Bytes past the end may be mapped; touching a page
    /// that lies wholly past it raises SIGBUS, as with mmap(2).
    ///
    /// ```
    /// # fn main() -> std::io::Result<()> {
    /// # let file = tempfile::tempfile()?;
    /// # file.set_len(100)?;
    /// // SAFETY: nobody else changes the file.
    /// let map = unsafe { fastmap::MapOptions::new().len(10).map(&file)? };
    /// assert_eq!(map.len(), 10);
    /// # Ok(())
    /// # }
    /// ```
    pub fn len(&mut self, bytes: usize) -> &mut Self {
        self.len = Some(bytes);
        self
    }

    /// The cache to hold the pages. Default: [`Cache::global`]. A file that is mapped already stays with the cache it is
    /// in: there is one copy of each page.
    ///
    /// ```
    /// # fn main() -> std::io::Result<()> {
    /// # let file = tempfile::tempfile()?;
    /// # file.set_len(100)?;
    /// let cache = fastmap::Cache::new(1 << 20)?;
    /// // SAFETY: nobody else changes the file.
    /// let map = unsafe { fastmap::MapOptions::new().cache(&cache).map(&file)? };
    /// # Ok(())
    /// # }
    /// ```
    pub fn cache(&mut self, cache: &Cache) -> &mut Self {
        self.cache = Some(cache.clone());
        self
    }

    /// What to do where the engine lacks something it needs. Default: [`Fallback::Kernel`].
    ///
    /// ```
    /// use fastmap::{Fallback, MapOptions};
    ///
    /// let options = MapOptions::new().fallback(Fallback::Refuse).clone();
    /// ```
    pub fn fallback(&mut self, fallback: Fallback) -> &mut Self {
        self.fallback = fallback;
        self
    }

    /// Whether a mutable map keeps other processes from mapping the file mutable (default true): two caches over one file
    /// would write their pages over each other's. The lock is advisory and lasts until the file's last map in this process
    /// is dropped; maps for reading take none and are not refused, and kernel mappings ([`Fallback::Kernel`]) do without.
    /// A file whose last writer has died is waited for, up to half a minute, until that program's keeper
    /// ([`CacheBuilder::keeper`](crate::CacheBuilder::keeper)) has saved it.
    ///
    /// It is an open-file-description lock on one byte at the far end of the file (fcntl(2)). It does not meet other locks
    /// but those on the *whole* file: a program that takes such a lock with fcntl(2) takes it before it maps the file, or
    /// passes false here.
    ///
    /// ```
    /// # fn main() -> std::io::Result<()> {
    /// # let file = tempfile::tempfile()?;
    /// # file.set_len(100)?;
    /// // SAFETY: several processes write, each a part of its own, in whole pages.
    /// let map = unsafe { fastmap::MapOptions::new().one_writer(false).map_mut(&file)? };
    /// # Ok(())
    /// # }
    /// ```
    pub fn one_writer(&mut self, on: bool) -> &mut Self {
        self.one_writer = on;
        self
    }

    /// Whether a mutable map allocates disk space for all it covers (fallocate(2)), so that no store to it can meet a full
    /// disk when it is written back. A map that reaches past the file's end then extends the file, and [`MapMut::grow`]
    /// allocates what it adds. Default: no.
    ///
    /// It does not help on file systems that write elsewhere what is overwritten (btrfs, files that share blocks after
    /// `cp --reflink`, snapshots), nor against quotas met by other blocks of the file system's own. Block devices have their
    /// space anyway.
    ///
    /// ```
    /// # fn main() -> std::io::Result<()> {
    /// # let file = tempfile::tempfile()?;
    /// // SAFETY: nobody else changes the file.
    /// let map = unsafe { fastmap::MapOptions::new().len(1 << 20).reserve(true).map_mut(&file)? };
    /// assert_eq!((map.len(), file.metadata()?.len()), (1 << 20, 1 << 20));
    /// # Ok(())
    /// # }
    /// ```
    pub fn reserve(&mut self, reserve: bool) -> &mut Self {
        self.reserve = reserve;
        self
    }

    /// Whether the file only lends its space: the map is memory that may be larger than memory. It begins with zeros, whatever
    /// the file holds; its pages are written for want of room alone, not at a flush, in time, nor when the map goes or the
    /// program dies, and what the file holds afterwards means nothing. [`MapMut::discard`] says what is not needed any more.
    /// Default: no. A file that is mapped already stays what it is; a scratch map cannot grow past twice the length that the
    /// file or the map had at first ([`Error::Outgrown`]).
    ///
    /// ```
    /// # fn main() -> std::io::Result<()> {
    /// let file = tempfile::tempfile()?;
    /// file.set_len(1 << 20)?;
    /// // SAFETY: nobody else changes the file.
    /// let mut map = unsafe { fastmap::MapOptions::new().scratch(true).map_mut(&file)? };
    /// map[5000] = 1;
    /// assert_eq!((map[4999], map[5000]), (0, 1));
    /// # Ok(())
    /// # }
    /// ```
    pub fn scratch(&mut self, on: bool) -> &mut Self {
        self.scratch = on;
        self
    }

    /// Whether a store to a page that is not in memory completes at once, on a page filled with this line of 64 bytes, again and
    /// again, while the file's bytes are read behind it (AR-MMAP: Imamura and Yoshida, "AR-MMAP: Write Performance
    /// Improvement of Memory-Mapped File"). When they are there, the lines of the page that still hold the initial value are
    /// replaced by them, never under a store; nothing is written to the file before that. For mutable maps; all maps of a file
    /// in a process share one value. Default: stores wait for the read.
    ///
    /// The program has three duties (section III there):
    ///
    /// 1. It stores whole lines: 64 bytes at a multiple of 64 in the file. What a line holds beside them would be written as it
    ///    is.
    /// 2. It takes notice of lines that hold the initial value when it has loaded them ([`MapMut::is_initial`]), has them read
    ///    ([`MapMut::synchronise`]), and loads them again. The file's bytes may come between two moves of a load.
    /// 3. It never stores the initial value, nor, in a word of 8 bytes of the line, what the initial value has there: lines are
    ///    stored and loaded in pieces, and the page may be looked at between two.
    ///
    /// Without the duties bytes of the file are lost; so are those of a line that the program was storing in pieces when it was
    /// killed. What can be seen of a violation is counted
    /// ([`Stats::partial_lines`](crate::Stats::partial_lines)). Bytes drawn at random make a good value. Pins and copies
    /// ([`Map::pin`], [`Map::read_at`]) need none of this: they wait.
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
        self.behind.initial = Some(initial_line);
        self
    }

    /// Whether a store to a page that is not in memory is kept, and the thread goes on, while the page is read behind it: then
    /// the store is made. The program has no duties: whoever loads the page waits. Default: no.
    ///
    /// Kept are up to eight moves of 1 to 64 bytes a page, `rep stos` and `rep movs` included, for 256 pages a cache at a
    /// time. Any other instruction that stores (one that loads the same bytes, say), a move across the border of two pages, one that goes
    /// on with a copy of 64 bytes and more, and every further store to the page wait for the read. Where threads mostly come back and
    /// wait, most stores wait at once. It pays for scattered small stores to a slow device; a store
    /// whose page is loaded right after costs a trap more than one that waits. With [`MapOptions::async_read`] this has no
    /// effect.
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
        self.behind.keep = on;
        self
    }

    /// Whether the file is mapped straight or behind the cache. Default: straight where it is in memory already (tmpfs, ramfs,
    /// hugetlbfs, DAX): there is no second copy then, no cache is used, and [`MapOptions::one_writer`] does without a lock, as
    /// there is nothing that could be written over. A file in the cache stays there, and so do scratch maps.
    ///
    /// Do not map a file in both ways at a time: the two would not agree.
    ///
    /// ```
    /// # fn main() -> std::io::Result<()> {
    /// # let file = tempfile::tempfile()?;
    /// # file.set_len(100)?;
    /// use fastmap::{Engine, MapOptions, Mode};
    ///
    /// // SAFETY: nobody else changes the file.
    /// let map = unsafe { MapOptions::new().mode(Mode::Cached).map(&file)? };
    /// assert_ne!(map.engine(), Engine::Direct);
    /// # Ok(())
    /// # }
    /// ```
    pub fn mode(&mut self, mode: Mode) -> &mut Self {
        self.mode = mode;
        self
    }

    /// What makes stores to a direct map last. Default: what its file needs. On DAX, where the kernel can (`MAP_SYNC`), a flush of
    /// up to 64 KiB is then a matter of user space: its cache lines are written to memory (CLWB, CLFLUSHOPT or CLFLUSH, and a
    /// fence). Larger ones are msync(2)'s, which knows what is dirty.
    ///
    /// ```
    /// # fn main() -> std::io::Result<()> {
    /// # let file = tempfile::tempfile()?;
    /// # file.set_len(1 << 20)?;
    /// use fastmap::{MapOptions, Persist};
    ///
    /// // SAFETY: nobody else changes the file.
    /// let mut map = unsafe { MapOptions::new().persist(Persist::CacheLines).map_mut(&file)? };
    /// map[7] = 1;
    /// map.flush()?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn persist(&mut self, persist: Persist) -> &mut Self {
        self.persist = persist;
        self
    }

    /// Maps a file for reading. The file may be closed afterwards.
    ///
    /// # When the file's length changes
    /// *Longer*: pages past the old end can be touched at once. On the page that holds the old end, if it is in memory, what
    /// others wrote behind that end is seen once the change is noticed. Bytes there that a map covers are the map's, though:
    /// they are written as it has them when the page is written.
    ///
    /// *Shorter*: touching a page that lies wholly past the new end and is not in memory raises SIGBUS, with the file
    /// and the offset on standard error, as with mmap(2). Unlike there, pages in memory keep their bytes until the
    /// change is noticed; then what lies past the end is dropped, and reads as zeros should the file become longer
    /// again. It is never written, with one exception: a write of dirty pages that is being handed to the kernel at the
    /// moment of the cut may make the file reach to their end again, with what they held. mmap(2) has no such moment:
    /// flush before a cut where that matters.
    ///
    /// A change is noticed by [`MapMut::flush`] and [`MapMut::flush_range`], by [`MapMut::grow`], by `advise`, and by a new
    /// map of the file, if of no less than a byte; the last one that goes leaves nothing in memory. What
    /// counts is the length found then: of a file that was cut and made longer again before, all below its end counts as
    /// never cut. Pages that are pinned ([`Map::pin`]) stay as they are until a change is noticed after that.
    ///
    /// # Safety
    /// As with `memmap2`: nobody may change the mapped bytes while the map exists, inside or outside the process, except
    /// through maps of this crate made with the same care; of a file that is cut, bytes past the new end must not be touched.
    /// Bytes that were mapped count as mapped, here, until the file's last map in this process is dropped: they stay cached.
    /// The pages of a map are not resident at all times: a *system call* handed a slice of it may fail with EFAULT, so pin
    /// the slice's range first ([`Map::pin`]), or copy. Threads that touch the map must not block SIGBUS, and the program must not replace
    /// the SIGBUS handler.
    ///
    /// # Errors
    /// [`Error::NotMappable`], [`Error::OffsetPastEnd`], [`Error::LengthOverflow`], [`Error::WriteOnlyFile`],
    /// [`Error::Outgrown`]; [`Error::Missing`] if the fall-back forbids the kernel; [`Error::WriteBack`] when the file's length
    /// changed under other maps and their pages cannot be saved; [`Error::Io`] from the system.
    ///
    /// ```
    /// # fn main() -> std::io::Result<()> {
    /// # let file = tempfile::tempfile()?;
    /// # file.set_len(100)?;
    /// // SAFETY: nobody else changes the file.
    /// let map = unsafe { fastmap::MapOptions::new().map(&file)? };
    /// # Ok(())
    /// # }
    /// ```
    pub unsafe fn map(&self, file: &File) -> Result<Map> {
        Ok(Map { mapping: self.open(file, false, &store::open)? })
    }

    /// Maps a file for reading and writing. Stores reach the file by write-back, at the latest when the last map of the
    /// file is dropped or the process exits; [`MapMut::flush`] says when they are on stable storage. What a change of the
    /// file's length means is said at [`MapOptions::map`]; [`MapMut::grow`] makes map and file longer.
    ///
    /// # Safety
    /// As for [`MapOptions::map`]; and two mutable maps of the same bytes alias. With [`MapOptions::async_read`], by this map or
    /// another of the file, whoever uses a map of it keeps the three duties that are told of there: a line that was not stored to
    /// may hold the initial value, and become the file's while somebody has a reference to it.
    ///
    /// # Errors
    /// As for [`MapOptions::map`]; [`Error::ReadOnlyFile`]; [`Error::Locked`] while another process writes the file;
    /// [`Error::InitialValue`]; with
    /// [`MapOptions::reserve`], [`Error::Reserve`], and [`Error::FixedSize`] past the end of a block device.
    ///
    /// ```
    /// # fn main() -> std::io::Result<()> {
    /// # let file = tempfile::tempfile()?;
    /// # file.set_len(100)?;
    /// // SAFETY: nobody else changes the file.
    /// let mut map = unsafe { fastmap::MapOptions::new().map_mut(&file)? };
    /// map[7] = 1;
    /// map.flush()?;
    /// # Ok(())
    /// # }
    /// ```
    pub unsafe fn map_mut(&self, file: &File) -> Result<MapMut> {
        Ok(MapMut { mapping: self.open(file, true, &store::open)? })
    }

    /// Maps a file; `open_store` opens its store if it is not mapped yet.
    pub(crate) fn open(&self, from: &File, writable: bool, open_store: store::Open<'_>) -> Result<Mapping> {
        let path = || file::path_of(from);
        let facts = facts_of(from)?;
        match file::access_mode(from) {
            libc::O_WRONLY => return Err(Error::WriteOnlyFile { path: path() }),
            libc::O_RDONLY if writable => return Err(Error::ReadOnlyFile { path: path() }),
            _ => {}
        }
        if self.offset > facts.size {
            return Err(Error::OffsetPastEnd { path: path(), offset: self.offset, size: facts.size });
        }
        let len = self.len.unwrap_or((facts.size - self.offset) as usize);
        let mapping = self.place(from, len, writable, open_store)?;
        if self.reserve && writable {
            mapping.extend(0..len)?;
        }
        Ok(mapping)
    }

    /// Maps so many bytes from the offset, wherever the file ends.
    pub(crate) fn place(
        &self,
        from: &File,
        len: usize,
        writable: bool,
        open_store: store::Open<'_>,
    ) -> Result<Mapping> {
        let io = |operation| move |source| Error::Io { path: file::path_of(from), operation, source };
        let end = part_of_file(&file::path_of(from), self.offset, 0..len)?.end as usize;
        let source = || {
            let source = || Ok(Box::new(Source { file: file::another(from)?, options: self.clone() }));
            writable.then(source).transpose().map_err(io("open it anew"))
        };
        if len == 0 {
            return Ok(Mapping { start: std::ptr::dangling_mut(), len, kind: Kind::Empty(source()?) });
        }
        let facts = facts_of(from)?;
        let by_kernel = |persist| {
            let kernel =
                KernelMapping::new(self.part(from, &facts, len, writable), persist).map_err(io("map it (mmap)"))?;
            Ok(Mapping { start: kernel.start(), len, kind: Kind::Kernel(Arc::new(kernel), source()?) })
        };
        if let Some(persist) = self.without_cache(from, &facts)? {
            return by_kernel(persist);
        }
        let (cache, one_writer, fallback, scratch, behind) =
            (self.cache.as_ref(), self.one_writer, self.fallback, self.scratch, self.behind);
        let how =
            How { cache, writable, one_writer, fallback, place: Place::Room(0), scratch, by_address: false, behind };
        match files::attach(from, &facts, end, how, open_store)? {
            Some(region) => {
                let start = region.address_of(0).wrapping_add(self.offset as usize);
                region.extents().add(pages(self.offset as usize, len));
                let (identity, offset, reserve) = (facts.identity, self.offset as usize, self.reserve && writable);
                Ok(Mapping { start, len, kind: Kind::Cached { region, identity, offset, reserve } })
            }
            None => by_kernel(None),
        }
    }

    /// What a kernel mapping of so many bytes from the offset is made of.
    pub(crate) fn part<'a>(&self, file: &'a File, facts: &Facts, len: usize, writable: bool) -> Part<'a> {
        let (identity, medium) = (facts.identity, file::medium(file));
        Part { file, identity, medium, offset: self.offset, len, writable }
    }

    /// Whether a file is mapped without the cache, and if so how its stores last; `Some(None)`: as the kernel has it.
    fn without_cache(&self, from: &File, facts: &Facts) -> Result<Option<Option<Persist>>> {
        let is_wanted = match self.mode {
            Mode::Cached => false,
            Mode::Automatic => !self.scratch && !files::is_cached(facts.identity),
            Mode::Direct => true,
        };
        let is_in_memory = || file::medium(from) != Medium::Storage;
        match self.mode {
            _ if is_wanted && is_in_memory() => Ok(Some(Some(self.persist))),
            Mode::Direct if self.fallback == Fallback::Kernel => {
                tracing::warn!(error = %direct::not_in_memory(from), "mapped through the kernel instead");
                Ok(Some(None))
            }
            Mode::Direct => Err(direct::not_in_memory(from)),
            _ => Ok(None),
        }
    }
}

/// Looks at a file that is to be mapped.
pub(crate) fn facts_of(from: &File) -> Result<file::Facts> {
    file::facts(from).map_err(|why| match why {
        Ok(kind) => Error::NotMappable { path: file::path_of(from), kind },
        Err(source) => Error::Io { path: file::path_of(from), operation: "look at it", source },
    })
}

/// Where a part of a map that begins at `offset` lies in the file, if there is address space for it.
pub(crate) fn part_of_file(path: &Path, offset: u64, part: Range<usize>) -> Result<Range<u64>> {
    const MOST: u64 = 1 << 46;
    let end = offset.checked_add(part.end as u64).filter(|end| *end <= MOST);
    let overflow = || Error::LengthOverflow { path: path.to_owned(), offset, len: part.end as u64 };
    end.map(|end| offset + part.start as u64..end).ok_or_else(overflow)
}
