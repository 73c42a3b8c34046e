//! How a file is mapped: the builder in front of `map.rs`.

use crate::cache::Cache;
use crate::error::{Error, Result};
use crate::files::{self, Fallback, How};
use crate::kernel::KernelMapping;
use crate::map::{Kind, Map, MapMut, Mapping, Source, pages};
use crate::region::Place;
use crate::store;
use crate::sys::file;
use crate::sys::own::Own;
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
}

impl Default for MapOptions {
    fn default() -> Self {
        let fallback = Fallback::default();
        MapOptions { offset: 0, len: None, cache: None, fallback, one_writer: true, reserve: false, scratch: false }
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
    /// As for [`MapOptions::map`]; and two mutable maps of the same bytes alias.
    ///
    /// # Errors
    /// As for [`MapOptions::map`]; [`Error::ReadOnlyFile`]; [`Error::Locked`] while another process writes the file; with
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
            let source = || Ok(Box::new(Source { file: Own::new(from.try_clone()?), options: self.clone() }));
            writable.then(source).transpose().map_err(io("duplicate its descriptor"))
        };
        if len == 0 {
            return Ok(Mapping { start: std::ptr::dangling_mut(), len, kind: Kind::Empty(source()?) });
        }
        let facts = facts_of(from)?;
        let (cache, one_writer, fallback, scratch) =
            (self.cache.as_ref(), self.one_writer, self.fallback, self.scratch);
        let how = How { cache, writable, one_writer, fallback, place: Place::Room(0), scratch };
        match files::attach(from, &facts, end, how, open_store)? {
            Some(region) => {
                let start = region.address_of(0).wrapping_add(self.offset as usize);
                region.extents().add(pages(self.offset as usize, len));
                let (identity, offset, reserve) = (facts.identity, self.offset as usize, self.reserve && writable);
                Ok(Mapping { start, len, kind: Kind::Cached { region, identity, offset, reserve } })
            }
            None => {
                let kernel = KernelMapping::new(from, self.offset, len, writable).map_err(io("map it (mmap)"))?;
                Ok(Mapping { start: kernel.start(), len, kind: Kind::Kernel(Arc::new(kernel), source()?) })
            }
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
