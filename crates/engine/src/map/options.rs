//! The builder that says how a file is to be mapped. `open.rs` maps it.

use crate::deferred::protocol::DeferredMode;
#[cfg(doc)]
use crate::error::Error;
use crate::error::Result;
use crate::map::cache::Cache;
use crate::map::map::Map;
use crate::map::map_mut::MapMut;
use crate::modes::{Fallback, Mode, Persist};
use crate::store::{self, Origin};
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
    pub(super) offset: u64,
    pub(super) len: Option<usize>,
    pub(super) cache: Option<Cache>,
    pub(super) fallback: Fallback,
    pub(super) one_writer: bool,
    pub(super) reserve: bool,
    pub(super) scratch: bool,
    pub(super) deferred: DeferredMode,
    pub(super) mode: Mode,
    pub(super) persist: Persist,
    pub(super) steer: bool,
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
            deferred: DeferredMode::default(),
            mode: Mode::default(),
            persist: Persist::default(),
            steer: false,
        }
    }
}

impl MapOptions {
    /// Options for a map of a whole file that the kernel serves.
    ///
    /// ```
    /// let options = fastmap::MapOptions::new();
    /// ```
    pub fn new() -> Self {
        Self::default()
    }

    /// First byte of the file to map. It need not be a multiple of the page size. Default 0.
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

    /// Length of the map, bytes. Default: from the offset to the end of the file. Bytes past the end may be mapped.
    /// Touching a page that lies wholly past it raises SIGBUS, as with mmap(2).
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

    /// The cache that holds the pages: the engine then serves the map. Default: none, and the kernel serves it.
    ///
    /// Some options need the engine: [`MapOptions::scratch`], [`MapOptions::async_stores`], [`MapOptions::async_read`]
    /// and [`Mode::Cached`]. With one of them and no cache, the engine serves the map in [`Cache::global`].
    ///
    /// All maps of a file in a process are served alike, since there is one copy of each page. A file that is in a
    /// cache stays in that cache while it is mapped, whatever is given here. A file that the kernel serves stays the
    /// kernel's while it is mapped. [`Map::engine`](crate::Map::engine) tells who serves a map.
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

    /// Whether the kernel is advised, if it serves this map. A thread, which the first such map starts, looks at which
    /// pages of the process's kernel mappings of files are touched. While memory is short or loads are slow it tells
    /// the kernel what to read ahead, what to keep, and where not to read around a miss. Default: no.
    ///
    /// It is an ordinary thread of the process, until the process ends: `fastmap_steer::start` says what else that
    /// means. Where the program changes its user, capabilities or system call filters, or has no memory left, the
    /// thread ends.
    ///
    /// ```
    /// # fn main() -> std::io::Result<()> {
    /// # let file = tempfile::tempfile()?;
    /// # file.set_len(100)?;
    /// // SAFETY: nobody else changes the file.
    /// let map = unsafe { fastmap::MapOptions::new().steer(true).map(&file)? };
    /// # Ok(())
    /// # }
    /// ```
    pub fn steer(&mut self, on: bool) -> &mut Self {
        self.steer = on;
        self
    }

    /// How to go on where the engine lacks something it needs, such as userfaultfd in a container. Default:
    /// [`Fallback::Refuse`], an error that says what is missing, so that no budget is left out silently.
    ///
    /// ```
    /// use fastmap::{Fallback, MapOptions};
    ///
    /// let options = MapOptions::new().fallback(Fallback::Kernel).clone();
    /// ```
    pub fn fallback(&mut self, fallback: Fallback) -> &mut Self {
        self.fallback = fallback;
        self
    }

    /// Whether a mutable map keeps other processes from mapping the file mutable (default true): two caches over one
    /// file would write their pages over each other's. The other process gets [`Error::Locked`]. The lock is advisory
    /// and lasts until the file's last map in this process is dropped. Maps for reading, and kernel mappings, take no
    /// lock and are not refused.
    ///
    /// When a file's last writer has died, a map waits, up to half a minute, until that program's keeper
    /// ([`CacheBuilder::keeper`](crate::CacheBuilder::keeper)) has saved the file.
    ///
    /// The lock is an open-file-description lock on one byte at the far end of the file (fcntl(2), `F_OFD_SETLK`). Of
    /// other locks it meets only those on the *whole* file. A program that takes such a lock with fcntl(2) takes it
    /// before it maps the file, or passes false here.
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

    /// Whether a mutable map allocates disk space for all it covers (fallocate(2)), so that no store to it can meet a
    /// full disk. A map that reaches past the file's end extends the file, and [`MapMut::grow`] allocates what it adds.
    /// Default: no.
    ///
    /// Without it, space for a hole of the file is allocated at the first store there. If there is none, the store
    /// raises SIGBUS, as with mmap(2), and methods that store fail with ENOSPC.
    ///
    /// It does not help on file systems that write overwritten blocks elsewhere (btrfs, files that share blocks after
    /// `cp --reflink`, snapshots), nor against quotas that the file system's own blocks meet. Block devices have their
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

    /// Whether the file is scratch space only: the map is memory that may be larger than RAM. Default: no.
    ///
    /// * The map begins with zeros, whatever the file holds.
    /// * Its pages are written only for want of room: not at a flush, not because of their age, not when the map goes
    ///   or the program dies. The file's contents afterwards mean nothing.
    /// * [`MapMut::discard`] gives up contents that are no longer needed.
    /// * A scratch map cannot grow past twice the length that the file or the map had at first ([`Error::Outgrown`]).
    /// * A file that is mapped already stays what it is.
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

    /// Whether the file is mapped straight or behind the cache ([`Mode`]). Default: straight where it is in memory
    /// already (tmpfs, ramfs, hugetlbfs, DAX), except for scratch maps and files that are in a cache. A straight map
    /// makes no second copy, so it uses no cache, and no lock ([`MapOptions::one_writer`]).
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

    /// How a flush makes stores to a direct map last. Default: as its file needs. On DAX, where the kernel can
    /// (`MAP_SYNC`), a flush of up to 64 KiB makes no system call: it writes cache lines to memory (CLWB, CLFLUSHOPT or
    /// CLFLUSH, and a fence). A larger one is msync(2)'s, since the kernel knows which pages are dirty.
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
    /// *Longer*: pages past the old end can be touched at once. If the page that holds the old end is in memory, bytes
    /// that others wrote behind that end are seen once the change is noticed. If a map covers those bytes, they are the
    /// map's: when the page is written, they are written as the map has them.
    ///
    /// *Shorter*: touching a page that lies wholly past the new end and is not in memory raises SIGBUS, as with
    /// mmap(2), with the file and the offset on standard error. Unlike with mmap(2), pages in memory keep their bytes
    /// until the change is noticed. Then bytes past the end are dropped: should the file become longer again, they are
    /// zeros. They are never written, with one exception: a write of dirty pages that is on its way to the kernel at
    /// the moment of the cut may extend the file to their end again, with their bytes. mmap(2) has no such moment:
    /// flush before a cut where that matters.
    ///
    /// A change is noticed by [`MapMut::flush`], [`MapMut::flush_range`], [`MapMut::flush_async`], [`MapMut::unmap`],
    /// [`MapMut::grow`], `advise`, `prefetch_wait`, and a new map of the file of at least one byte. Once the file's
    /// last map is dropped, nothing of it is in memory. Only the length at that time counts: if the file was cut and
    /// extended again before, bytes below its end count as never cut. Pinned pages ([`Map::pin`]) stay as they are
    /// until one of these calls is made after their last pin is gone.
    ///
    /// # Safety
    /// As with `memmap2`, nobody may change the mapped bytes while the map exists, inside or outside the process,
    /// except through maps of this crate made with the same care. If the file is cut, bytes past the new end must not
    /// be touched. Bytes that were mapped count as mapped until the file's last map in this process is dropped, since
    /// they stay cached. Pages of a map are not resident at all times, so a *system call* that is given a slice of it
    /// may fail with EFAULT: pin the range first ([`Map::pin`]), or copy. Threads that touch the map must not block
    /// SIGBUS, and the program must not replace the SIGBUS handler.
    ///
    /// # Errors
    /// [`Error::NotMappable`], [`Error::OffsetPastEnd`], [`Error::LengthOverflow`], [`Error::WriteOnlyFile`],
    /// [`Error::Outgrown`]; [`Error::Missing`] unless the [fall-back](Self::fallback) is the kernel; [`Error::WriteBack`] when the
    /// file's length changed under other maps and their pages cannot be saved; [`Error::Io`] from the system.
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

    /// Maps a file that is filled while it is read: the local copy of an object ([`Origin`]). The map is read-only, and
    /// messages name it by [`Origin::name`]. It always goes through the cache: where the engine cannot run, that is an
    /// error, whatever [`fallback`](Self::fallback) says. Each such map has pages of its own.
    ///
    /// # Errors
    /// As for [`map`](Self::map); [`Error::Missing`] where the engine lacks something.
    pub fn map_origin(&self, file: &File, origin: Arc<dyn Origin>) -> Result<Map> {
        let mut options = self.clone();
        (options.mode, options.fallback) = (Mode::Cached, Fallback::Buffered);
        Ok(Map { mapping: options.open_origin(file, origin)? })
    }

    /// Maps a file for reading and writing. Stores reach the file by write-back, at the latest when the file's last map
    /// is dropped or the process exits. [`MapMut::flush`] returns when they are on stable storage. Stores that were not
    /// flushed are lost where the OOM killer, or the end of a PID namespace, ends the process
    /// ([`CacheBuilder::keeper`](crate::CacheBuilder::keeper)). [`MapOptions::map`] explains changes of the file's
    /// length; [`MapMut::grow`] makes map and file longer.
    ///
    /// # Safety
    /// As for [`MapOptions::map`]; besides, two mutable maps of the same bytes alias. If this map or another of the
    /// file was made with [`MapOptions::async_read`], all users of its maps keep the three duties named there: a line
    /// that was not stored to may hold the initial value, and become the file's while somebody has a reference to it.
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
}
