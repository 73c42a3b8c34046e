//! How a file is mapped: the builder in front of `map.rs`.

use crate::cache::Cache;
use crate::error::{Error, Result};
use crate::files::{self, Fallback, How};
use crate::kernel::KernelMapping;
use crate::map::{Kind, Map, MapMut, Mapping};
use crate::store;
use crate::sys::file;
use std::fs::File;
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
    offset: u64,
    len: Option<usize>,
    cache: Option<Cache>,
    fallback: Fallback,
    one_writer: bool,
}

impl Default for MapOptions {
    fn default() -> Self {
        MapOptions { offset: 0, len: None, cache: None, fallback: Fallback::default(), one_writer: true }
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

    /// Maps a file for reading. The file may be closed afterwards.
    ///
    /// # Safety
    /// As with `memmap2`: nobody may change or truncate the mapped bytes while the map exists, inside or outside the
    /// process, except through maps of this crate made with the same care. The pages of a map are not resident at all
    /// times: a *system call* handed a slice of it may fail with EFAULT, so copy bytes for the kernel out first. Threads
    /// that touch the map must not block SIGBUS, and the program must not replace the SIGBUS handler.
    ///
    /// # Errors
    /// [`Error::NotMappable`], [`Error::OffsetPastEnd`], [`Error::LengthOverflow`], [`Error::WriteOnlyFile`],
    /// [`Error::Outgrown`]; [`Error::Missing`] if the fall-back forbids the kernel; [`Error::Io`] from the system.
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
    /// file is dropped or the process exits; [`MapMut::flush`] says when they are on stable storage.
    ///
    /// # Safety
    /// As for [`MapOptions::map`]; and two mutable maps of the same bytes alias.
    ///
    /// # Errors
    /// As for [`MapOptions::map`]; [`Error::ReadOnlyFile`]; [`Error::Locked`] while another process writes the file.
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
        let io = |operation| move |source| Error::Io { path: file::path_of(from), operation, source };
        let facts = file::facts(from).map_err(|why| match why {
            Ok(kind) => Error::NotMappable { path: path(), kind },
            Err(source) => io("look at it")(source),
        })?;
        match file::access_mode(from) {
            libc::O_WRONLY => return Err(Error::WriteOnlyFile { path: path() }),
            libc::O_RDONLY if writable => return Err(Error::ReadOnlyFile { path: path() }),
            _ => {}
        }
        if self.offset > facts.size {
            return Err(Error::OffsetPastEnd { path: path(), offset: self.offset, size: facts.size });
        }
        let len = self.len.map_or(facts.size - self.offset, |len| len as u64);
        let overflow = || Error::LengthOverflow { path: path(), offset: self.offset, len };
        let end = self.offset.checked_add(len).filter(|end| *end <= 1 << 46).ok_or_else(overflow)? as usize;
        let len = len as usize;
        if len == 0 {
            return Ok(Mapping { start: std::ptr::dangling_mut(), len, kind: Kind::Empty });
        }
        let (cache, one_writer, fallback) = (self.cache.as_ref(), self.one_writer, self.fallback);
        match files::attach(from, &facts, end, How { cache, writable, one_writer, fallback }, open_store)? {
            Some(region) => {
                let start = region.address_of(0).wrapping_add(self.offset as usize);
                let offset = self.offset as usize;
                Ok(Mapping { start, len, kind: Kind::Cached { region, identity: facts.identity, offset } })
            }
            None => {
                let kernel = KernelMapping::new(from, self.offset, len, writable).map_err(io("map it (mmap)"))?;
                Ok(Mapping { start: kernel.start(), len, kind: Kind::Kernel(Arc::new(kernel)) })
            }
        }
    }
}
