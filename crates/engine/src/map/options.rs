//! How a file is to be mapped: the builder. `open.rs` does it.

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
            steer: true,
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

    /// The cache to hold the pages: the engine serves the map, from the first touch. Default: none, and the kernel serves it.
    ///
    /// What only the engine has means the engine, in [`Cache::global`], without a cache too: [`MapOptions::scratch`],
    /// [`MapOptions::async_stores`], [`MapOptions::async_read`], [`Mode::Cached`]. A file that is mapped already stays with the cache it
    /// is in: there is one copy of each page. And a file that the kernel serves here stays the kernel's while it is mapped, so that its
    /// maps agree; [`Map::engine`](crate::Map::engine) tells who serves a map.
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

    /// Whether a map that the kernel serves has the kernel's file mappings of this process steered: a thread looks at what is touched, and
    /// tells the kernel what to read ahead, what to keep, and where not to read around a miss, while memory is short or loads are slow. The
    /// first such map starts it. Default: yes.
    ///
    /// ```
    /// # fn main() -> std::io::Result<()> {
    /// # let file = tempfile::tempfile()?;
    /// # file.set_len(100)?;
    /// // SAFETY: nobody else changes the file.
    /// let map = unsafe { fastmap::MapOptions::new().steer(false).map(&file)? };
    /// # Ok(())
    /// # }
    /// ```
    pub fn steer(&mut self, on: bool) -> &mut Self {
        self.steer = on;
        self
    }

    /// What to do where the engine lacks something it needs, such as userfaultfd in a container. Default: [`Fallback::Refuse`], an error
    /// that says what is missing, so that no budget is left out silently.
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
    /// file would write their pages over each other's. The lock is advisory and lasts until the file's last map in this
    /// process is dropped; maps for reading take none and are not refused, and kernel mappings ([`Fallback::Kernel`])
    /// do without. A file whose last writer has died is waited for, up to half a minute, until that program's keeper
    /// ([`CacheBuilder::keeper`](crate::CacheBuilder::keeper)) has saved it.
    ///
    /// It is an open-file-description lock on one byte at the far end of the file (fcntl(2)). It does not meet other
    /// locks but those on the *whole* file: a program that takes such a lock with fcntl(2) takes it before it maps the
    /// file, or passes false here.
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
    /// full disk. Without it a store to a hole of the file takes its space when it is made, and where there is none raises SIGBUS, as with
    /// mmap(2); calls that store fail with ENOSPC. A map that reaches past the file's end then extends the file, and
    /// [`MapMut::grow`] allocates what it adds. Default: no.
    ///
    /// It does not help on file systems that write elsewhere what is overwritten (btrfs, files that share blocks after
    /// `cp --reflink`, snapshots), nor against quotas met by other blocks of the file system's own. Block devices have
    /// their space anyway.
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

    /// Whether the file is scratch space only: the map is memory that may be larger than memory. It begins with zeros,
    /// whatever the file holds; its pages are written for want of room alone, not at a flush, in time, nor when the map
    /// goes or the program dies, and what the file holds afterwards means nothing. [`MapMut::discard`] says what is not
    /// needed any more. Default: no. A file that is mapped already stays what it is; a scratch map cannot grow past
    /// twice the length that the file or the map had at first ([`Error::Outgrown`]).
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

    /// Whether the file is mapped straight or behind the cache. Default: straight where it is in memory already (tmpfs,
    /// ramfs, hugetlbfs, DAX): there is no second copy then, no cache is used, and [`MapOptions::one_writer`] does
    /// without a lock, as there is nothing that could be written over. A file in the cache stays there, and so do
    /// scratch maps.
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

    /// What makes stores to a direct map last. Default: what its file needs. On DAX, where the kernel can (`MAP_SYNC`),
    /// a flush of up to 64 KiB is then a matter of user space: its cache lines are written to memory (CLWB, CLFLUSHOPT
    /// or CLFLUSH, and a fence). Larger ones are msync(2)'s, which knows what is dirty.
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
    /// *Longer*: pages past the old end can be touched at once. On the page that holds the old end, if it is in memory,
    /// what others wrote behind that end is seen once the change is noticed. Bytes there that a map covers are the
    /// map's, though: they are written as it has them when the page is written.
    ///
    /// *Shorter*: touching a page that lies wholly past the new end and is not in memory raises SIGBUS, with the file
    /// and the offset on standard error, as with mmap(2). Unlike with mmap(2), pages in memory keep their bytes until
    /// the change is noticed; then what lies past the end is dropped, and reads as zeros should the file become longer
    /// again. It is never written, with one exception: a write of dirty pages that is on its way to the kernel at the
    /// moment of the cut may make the file reach to their end again, with what they held. mmap(2) has no such moment:
    /// flush before a cut where that matters.
    ///
    /// A change is noticed by [`MapMut::flush`] and [`MapMut::flush_range`], by [`MapMut::grow`], by `advise`, and by a
    /// new map of the file, if of no less than a byte; the last one that goes leaves nothing in memory. What counts is
    /// the length found then: of a file that was cut and made longer again before, all below its end counts as never
    /// cut. Pages that are pinned ([`Map::pin`]) stay as they are until a change is noticed after that.
    ///
    /// # Safety
    /// As with `memmap2`: nobody may change the mapped bytes while the map exists, inside or outside the process,
    /// except through maps of this crate made with the same care; of a file that is cut, bytes past the new end must
    /// not be touched. Bytes that were mapped count as mapped, here, until the file's last map in this process is
    /// dropped: they stay cached. The pages of a map are not resident at all times: a *system call* handed a slice of
    /// it may fail with EFAULT, so pin the slice's range first ([`Map::pin`]), or copy. Threads that touch the map must
    /// not block SIGBUS, and the program must not replace the SIGBUS handler.
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

    /// Maps a file that is filled while it is read: the local copy of an object ([`Origin`]), which is read-only and known by
    /// [`Origin::name`]. All of it goes through the cache: where the engine cannot run that is an error, whatever
    /// [`fallback`](Self::fallback) says. Each such map has pages of its own.
    ///
    /// # Errors
    /// As for [`map`](Self::map); [`Error::Missing`] where the engine lacks something.
    pub fn map_origin(&self, file: &File, origin: Arc<dyn Origin>) -> Result<Map> {
        let mut options = self.clone();
        (options.mode, options.fallback) = (Mode::Cached, Fallback::Buffered);
        Ok(Map { mapping: options.open_origin(file, origin)? })
    }

    /// Maps a file for reading and writing. Stores reach the file by write-back, at the latest when the last map of the
    /// file is dropped or the process exits; [`MapMut::flush`] says when they are on stable storage. Stores that were not flushed are lost
    /// where the OOM killer, or the end of a PID namespace, ends the process ([`CacheBuilder::keeper`](crate::CacheBuilder::keeper)). What a change of
    /// the file's length means is said at [`MapOptions::map`]; [`MapMut::grow`] makes map and file longer.
    ///
    /// # Safety
    /// As for [`MapOptions::map`]; and two mutable maps of the same bytes alias. With [`MapOptions::async_read`], by
    /// this map or another of the file, all users of its maps keep the three duties that its description names: a line
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
