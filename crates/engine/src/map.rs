//! The face: maps of files, shaped like `memmap2`'s. How to make one is in `options.rs`.

use crate::behind::{self, LINE};
use crate::error::{Error, Result};
use crate::evict;
use crate::files;
use crate::flush::{Flush, Unsaved, Way};
use crate::kernel::KernelMapping;
use crate::lookahead::Lookahead;
use crate::options::{self, MapOptions};
use crate::prefetch;
use crate::region::Region;
use crate::scratch;
use crate::sizes;
use crate::store;
use crate::streams::{Expect, MOST_WINDOW};
use crate::sys::own::Own;
use crate::sys::{PAGE, file};
use crate::writeback;
use crate::writers;
use std::fmt;
use std::fs::File;
use std::ops::{Deref, DerefMut, Range};
use std::sync::Arc;

/// Which path serves a map.
///
/// ```
/// # fn main() -> std::io::Result<()> {
/// # let file = tempfile::tempfile()?;
/// # file.set_len(1)?;
/// # // SAFETY: nobody else changes the file.
/// # let map = unsafe { fastmap::Map::map(&file)? };
/// match map.engine() {
///     fastmap::Engine::Cached => println!("behind the cache"),
///     fastmap::Engine::Direct => println!("straight: the file is memory already"),
///     fastmap::Engine::Kernel => println!("mmap(2): run `fastmap doctor` to learn why"),
/// }
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Engine {
    /// The engine's cache: misses are served in user space, within the cache's budget.
    Cached,
    /// None: the file is in memory already, and mapped straight ([`Mode`](crate::Mode)).
    Direct,
    /// The kernel's page cache: the [`Fallback`](crate::Fallback) was taken.
    Kernel,
}

/// Advice on a range of a map ([`Map::advise`]), after madvise(2).
///
/// The first four are remembered for the file, whichever map they came by, in units of 2 MiB; the others are acted upon.
///
/// ```
/// # fn main() -> std::io::Result<()> {
/// use fastmap::{Advice, Map};
///
/// # let file = tempfile::tempfile()?;
/// # file.set_len(1 << 16)?;
/// // SAFETY: nobody else changes the file.
/// let map = unsafe { Map::map(&file)? };
/// map.advise(Advice::WillNeed)?;
/// map.advise_range(Advice::DontNeed, 0, 4096)?;
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Advice {
    /// Nothing in particular: walks with a constant step are recognised and read ahead of. The default, and what takes the
    /// next three back.
    Normal,
    /// It will be accessed at random: nothing is read ahead.
    Random,
    /// It will be walked forward: reading ahead begins with the first page that is missed.
    Sequential,
    /// It will be walked backward, likewise. (madvise(2) has no such advice.)
    Backward,
    /// Bring the range into memory now, as far as it fits the cache.
    WillNeed,
    /// Write the range's dirty pages back and drop it from memory, less what is pinned. Unlike madvise(2) on private memory
    /// it loses nothing.
    DontNeed,
}

/// What both kinds of map are inside.
pub(crate) struct Mapping {
    pub(crate) start: *mut u8,
    pub(crate) len: usize,
    pub(crate) kind: Kind,
}

pub(crate) enum Kind {
    /// Zero bytes: nothing is mapped.
    Empty(Option<Box<Source>>),
    Cached {
        region: Arc<Region>,
        identity: file::Identity,
        /// Of the map in the file, bytes.
        offset: usize,
        /// Disk space is allocated for what it covers.
        reserve: bool,
    },
    Kernel(Arc<KernelMapping>, Option<Box<Source>>),
}

/// What a mutable map that is not in the cache grows by.
pub(crate) struct Source {
    /// For its length only.
    pub(crate) file: Own<File>,
    pub(crate) options: MapOptions,
}

// SAFETY: a range of memory that may be read from any thread; a mutable map hands out `&mut` through `&mut` only.
unsafe impl Send for Mapping {}
// SAFETY: likewise.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Whether something may be done with a range: it is inside the map, and the map is this process's.
    #[inline]
    pub(crate) fn check(&self, offset: usize, len: usize) -> Result<()> {
        if offset.checked_add(len).is_none_or(|end| end > self.len) {
            return Err(Error::RangeOutside { offset, len, map_len: self.len });
        }
        match &self.kind {
            Kind::Cached { region, .. } if !region.is_ours() => Err(files::in_a_child(region.store().path())),
            _ => Ok(()),
        }
    }

    fn engine(&self) -> Engine {
        match &self.kind {
            Kind::Kernel(kernel, _) if kernel.persist().is_some() => Engine::Direct,
            Kind::Kernel(..) => Engine::Kernel,
            Kind::Empty(_) | Kind::Cached { .. } => Engine::Cached,
        }
    }

    fn flush(&self, offset: usize, len: usize) -> Result<()> {
        self.check(offset, len)?;
        match &self.kind {
            Kind::Empty(_) => Ok(()),
            Kind::Cached { region, offset: base, .. } => {
                sizes::follow(region)?;
                writers::flush(region, pages(base + offset, len), true)
            }
            Kind::Kernel(kernel, _) => kernel.flush(offset, len, true),
        }
    }

    /// What absent pages are filled with for a store.
    #[inline]
    fn initial(&self) -> Option<&[u8; LINE]> {
        match &self.kind {
            Kind::Cached { region, .. } => region.behind()?.initial(),
            Kind::Empty(_) | Kind::Kernel(..) => None,
        }
    }

    fn synchronise(&self, offset: usize, len: usize) -> Result<()> {
        self.check(offset, len)?;
        match &self.kind {
            Kind::Cached { region, offset: base, .. } => {
                behind::settle(region, pages(base + offset, len)).map_err(|failure| failure.into_error(region))
            }
            Kind::Empty(_) | Kind::Kernel(..) => Ok(()),
        }
    }

    fn flush_async(&self) -> Flush {
        let done = || Way::Done(self.flush(0, self.len));
        Flush(match &self.kind {
            Kind::Cached { region, offset, .. } if region.is_ours() => match sizes::follow(region) {
                Ok(()) => writers::flush_later(region, pages(*offset, self.len)).map_or_else(done, Way::Writers),
                Err(error) => Way::Done(Err(error)),
            },
            Kind::Kernel(kernel, _) if kernel.persist().is_none() => match kernel.flush(0, self.len, false) {
                Ok(()) => Way::Kernel(kernel.clone(), 0, self.len),
                Err(error) => Way::Done(Err(error)),
            },
            Kind::Empty(_) | Kind::Cached { .. } | Kind::Kernel(..) => done(),
        })
    }

    /// Writes what is dirty to the file, which need not reach stable storage.
    fn save(&self) -> Result<()> {
        self.check(0, self.len)?;
        match &self.kind {
            Kind::Cached { region, offset, .. } => {
                sizes::follow(region)?;
                writers::flush(region, pages(*offset, self.len), false)
            }
            // The kernel saves its own.
            Kind::Empty(_) | Kind::Kernel(..) => Ok(()),
        }
    }

    /// Has the file reach to the end of a part of the map, and disk space allocated for the part if the map wants that.
    pub(crate) fn extend(&self, part: Range<usize>) -> Result<()> {
        match &self.kind {
            Kind::Cached { region, offset, reserve, .. } => {
                let path = region.store().path();
                sizes::extend(region, options::part_of_file(path, *offset as u64, part)?, *reserve)
            }
            Kind::Kernel(_, Some(source)) => {
                let Source { file, options } = &**source;
                let part = options::part_of_file(&file::path_of(file), options.offset, part)?;
                sizes::extend_file(file, part, options.reserve)
            }
            Kind::Kernel(_, None) | Kind::Empty(_) => Ok(()),
        }
    }

    /// Nothing changes but, perhaps, the file's length before all that can fail is done.
    fn grow(&mut self, new_len: usize) -> Result<()> {
        self.check(0, self.len)?;
        if new_len < self.len {
            return Err(Error::Shrinking { len: self.len, new_len });
        }
        let part = self.len..new_len;
        if let Kind::Cached { region, identity, offset, reserve } = &mut self.kind {
            let of_file = options::part_of_file(region.store().path(), *offset as u64, part)?;
            let end = of_file.end as usize;
            let before = pages(*offset, self.len);
            if end > region.span() {
                *region = files::replace(*identity, region, end, Some((of_file, *reserve)))?;
                self.start = region.address_of(0).wrapping_add(*offset);
            } else {
                sizes::extend(region, of_file, *reserve)?;
            }
            files::note_grown(*identity, region, end);
            // With a new region, which knows nothing of this map, there is nothing to remove.
            region.extents().remove(&before);
            region.extents().add(pages(*offset, new_len));
        } else if let Kind::Empty(Some(source)) = &self.kind
            && new_len > 0
        {
            let mapping = source.options.place(&source.file, new_len, true, &store::open)?;
            mapping.extend(part)?;
            *self = mapping;
        } else {
            self.extend(part)?;
            if let Kind::Kernel(kernel, Some(source)) = &mut self.kind {
                // A flush under way may use the old one.
                let path = || file::path_of(&source.file);
                let part = source.options.part(&source.file, &options::facts_of(&source.file)?, new_len, true);
                let anew = KernelMapping::new(part, kernel.persist()).map_err(|source| Error::Io {
                    path: path(),
                    operation: "map it (mmap)",
                    source,
                })?;
                anew.continue_count(kernel);
                *kernel = Arc::new(anew);
                self.start = kernel.start();
            }
        }
        self.len = new_len;
        Ok(())
    }

    fn advise(&self, advice: Advice, offset: usize, len: usize) -> Result<()> {
        self.check(offset, len)?;
        match &self.kind {
            Kind::Empty(_) => Ok(()),
            Kind::Cached { region, offset: base, .. } => {
                let pages = pages(base + offset, len);
                sizes::follow(region)?;
                match advice {
                    Advice::Normal => region.expect(pages, Expect::Normal),
                    Advice::Random => region.expect(pages, Expect::Random),
                    Advice::Sequential => region.expect(pages, Expect::Forward),
                    Advice::Backward => region.expect(pages, Expect::Backward),
                    Advice::WillNeed => {
                        // Past the file's end there is nothing to bring in.
                        let end = (region.store().size() as usize).div_ceil(PAGE).min(pages.end);
                        let end = end.min(pages.start + region.cache().capacity());
                        prefetch::fetch(region, std::slice::from_ref(&(pages.start..end.max(pages.start))))?;
                    }
                    Advice::DontNeed => {
                        if region.is_writable() {
                            writers::flush(region, pages.clone(), false)?;
                        }
                        let _length = region.lock_length();
                        evict::evict_range(region, pages);
                    }
                }
                Ok(())
            }
            Kind::Kernel(kernel, _) => {
                let number = match advice {
                    Advice::Normal => libc::MADV_NORMAL,
                    Advice::Random => libc::MADV_RANDOM,
                    Advice::Sequential => libc::MADV_SEQUENTIAL,
                    // The kernel has no such advice, and reads ahead only forward.
                    Advice::Backward => libc::MADV_NORMAL,
                    Advice::WillNeed => libc::MADV_WILLNEED,
                    Advice::DontNeed => libc::MADV_DONTNEED,
                };
                kernel.advise(offset, len, number).map_err(kernel_refuses)
            }
        }
    }

    /// The whole pages in a range of a scratch map that is this process's.
    fn scratch_pages(&self, offset: usize, len: usize) -> Result<Option<(&Arc<Region>, Range<usize>)>> {
        self.check(offset, len)?;
        let Kind::Cached { region, offset: base, .. } = &self.kind else { return Ok(None) };
        let (start, end) = ((base + offset).div_ceil(PAGE), (base + offset + len) / PAGE);
        Ok(region.scratch().is_some().then_some((region, start..end.max(start))))
    }

    fn set_readahead(&self, bytes: usize) -> Result<()> {
        self.check(0, 0)?;
        if let Kind::Cached { region, .. } = &self.kind {
            region.set_readahead((bytes / PAGE).min(MOST_WINDOW));
        }
        Ok(())
    }

    /// Checks ranges of bytes.
    fn check_all(&self, ranges: &[Range<usize>]) -> Result<()> {
        self.check(0, 0)?;
        ranges.iter().try_for_each(|range| match range.end.checked_sub(range.start) {
            Some(len) => self.check(range.start, len),
            None => Err(Error::RangeOutside { offset: range.start, len: 0, map_len: self.len }),
        })
    }

    pub(crate) fn prefetch(&self, ranges: &[Range<usize>]) -> Result<usize> {
        self.check_all(ranges)?;
        match &self.kind {
            Kind::Cached { region, offset, .. } => Ok(prefetch::offer(region, &pages_of(*offset, ranges))),
            Kind::Kernel(kernel, _) => advise_all(kernel, ranges, libc::MADV_WILLNEED).map(|()| ranges.len()),
            Kind::Empty(_) => Ok(ranges.len()),
        }
    }

    fn prefetch_wait(&self, ranges: &[Range<usize>]) -> Result<()> {
        self.check_all(ranges)?;
        match &self.kind {
            Kind::Cached { region, offset, .. } => {
                sizes::follow(region)?;
                prefetch::fetch(region, &pages_of(*offset, ranges))
            }
            Kind::Kernel(kernel, _) => advise_all(kernel, ranges, libc::MADV_POPULATE_READ),
            Kind::Empty(_) => Ok(()),
        }
    }
}

/// The pages of ranges of a map that begins at `offset`.
fn pages_of(offset: usize, ranges: &[Range<usize>]) -> Vec<Range<usize>> {
    ranges.iter().map(|range| pages(offset + range.start, range.len())).collect()
}

fn advise_all(kernel: &KernelMapping, ranges: &[Range<usize>], advice: i32) -> Result<()> {
    let mut ranges = ranges.iter().filter(|range| !range.is_empty());
    ranges.try_for_each(|range| kernel.advise(range.start, range.len(), advice)).map_err(kernel_refuses)
}

fn kernel_refuses(source: std::io::Error) -> Error {
    Error::Io { path: "kernel mapping".into(), operation: "advise on it (madvise)", source }
}

/// The pages that a range of bytes touches.
#[inline]
pub(crate) fn pages(offset: usize, len: usize) -> Range<usize> {
    if len == 0 { 0..0 } else { offset / PAGE..(offset + len).div_ceil(PAGE) }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        if let Kind::Cached { region, identity, offset, .. } = std::mem::replace(&mut self.kind, Kind::Empty(None)) {
            if region.is_ours() {
                region.extents().remove(&pages(offset, self.len));
            }
            files::detach(identity, region);
        }
    }
}

/// A file mapped for reading: a slice of its bytes.
///
/// ```
/// # fn main() -> std::io::Result<()> {
/// use fastmap::Map;
///
/// # let file = tempfile::tempfile()?;
/// std::os::unix::fs::FileExt::write_all_at(&file, b"hello", 0)?;
/// // SAFETY: nobody else changes the file.
/// let map = unsafe { Map::map(&file)? };
/// assert_eq!(&map[..], b"hello");
/// # Ok(())
/// # }
/// ```
pub struct Map {
    pub(crate) mapping: Mapping,
}

/// A file mapped for reading and writing.
///
/// ```
/// # fn main() -> std::io::Result<()> {
/// use fastmap::MapMut;
///
/// # let file = tempfile::tempfile()?;
/// file.set_len(8)?;
/// // SAFETY: nobody else changes the file.
/// let mut map = unsafe { MapMut::map_mut(&file)? };
/// map[..5].copy_from_slice(b"hello");
/// map.flush()?; // on stable storage
/// assert_eq!(std::io::read_to_string(&file)?, "hello\0\0\0");
/// # Ok(())
/// # }
/// ```
pub struct MapMut {
    pub(crate) mapping: Mapping,
}

impl Map {
    /// Maps a whole file with default options.
    ///
    /// # Safety
    /// As for [`MapOptions::map`].
    ///
    /// # Errors
    /// As for [`MapOptions::map`].
    ///
    /// ```
    /// # fn main() -> std::io::Result<()> {
    /// # let file = tempfile::tempfile()?;
    /// // SAFETY: nobody else changes the file.
    /// let map = unsafe { fastmap::Map::map(&file)? };
    /// assert!(map.is_empty());
    /// # Ok(())
    /// # }
    /// ```
    #[expect(clippy::self_named_constructors, reason = "memmap2's name")]
    pub unsafe fn map(file: &File) -> Result<Map> {
        // SAFETY: the caller's contract.
        unsafe { MapOptions::new().map(file) }
    }
}

impl MapMut {
    /// Maps a whole file with default options.
    ///
    /// # Safety
    /// As for [`MapOptions::map_mut`].
    ///
    /// # Errors
    /// As for [`MapOptions::map_mut`].
    ///
    /// ```
    /// # fn main() -> std::io::Result<()> {
    /// # let file = tempfile::tempfile()?;
    /// # file.set_len(1)?;
    /// // SAFETY: nobody else changes the file.
    /// let mut map = unsafe { fastmap::MapMut::map_mut(&file)? };
    /// map[0] = 1;
    /// # Ok(())
    /// # }
    /// ```
    #[expect(clippy::self_named_constructors, reason = "memmap2's name")]
    pub unsafe fn map_mut(file: &File) -> Result<MapMut> {
        // SAFETY: the caller's contract.
        unsafe { MapOptions::new().map_mut(file) }
    }

    /// Whether a line, 64 bytes, holds the initial value of [`MapOptions::async_read`] in one of its words of 8 bytes at least: the
    /// file's bytes may not have come yet, or came between two moves of the load. To be asked of what was loaded: in the
    /// map, bytes may leave memory, and the page be filled anew, after they were looked at.
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
        line.len() == LINE && self.mapping.initial().is_some_and(|initial| behind::holds_initial(initial, line))
    }

    /// Waits until the file's bytes are in every page of the map, from `offset` on and `len` bytes long, that was stored to before
    /// it was read ([`MapOptions::async_read`]).
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

    /// Writes every byte that is dirty at the call to the file and waits until it is on stable storage (fdatasync(2)).
    ///
    /// # Errors
    /// [`Error::WriteBack`] when bytes could not be written: they stay in memory, dirty, and every later flush tries them
    /// again. [`Error::Io`] when fdatasync fails, then and ever after.
    ///
    /// ```
    /// # fn main() -> std::io::Result<()> {
    /// # let file = tempfile::tempfile()?;
    /// # file.set_len(1)?;
    /// # // SAFETY: nobody else changes the file.
    /// # let mut map = unsafe { fastmap::MapMut::map_mut(&file)? };
    /// map[0] = 1;
    /// map.flush()?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn flush(&self) -> Result<()> {
        self.mapping.flush(0, self.mapping.len)
    }

    /// Like [`MapMut::flush`], for `len` bytes of the map from `offset`. Works in pages of 4096: neighbours of the range
    /// on its first and last page are written too. (In cache lines of 64 on a direct map whose file is persistent memory, and up to
    /// 64 KiB without a system call, whatever the size of the pages it is mapped by.)
    ///
    /// # Errors
    /// As for [`MapMut::flush`], and [`Error::RangeOutside`].
    ///
    /// ```
    /// # fn main() -> std::io::Result<()> {
    /// # let file = tempfile::tempfile()?;
    /// # file.set_len(100)?;
    /// # // SAFETY: nobody else changes the file.
    /// # let mut map = unsafe { fastmap::MapMut::map_mut(&file)? };
    /// map[20] = 1;
    /// map.flush_range(20, 1)?;
    /// assert!(map.flush_range(99, 2).is_err());
    /// # Ok(())
    /// # }
    /// ```
    pub fn flush_range(&self, offset: usize, len: usize) -> Result<()> {
        self.mapping.flush(offset, len)
    }

    /// Bytes that flushes of this map wrote to memory by cache line: of a direct map ([`Engine::Direct`]) on DAX, or one made with
    /// [`Persist::CacheLines`](crate::Persist::CacheLines). What other maps write is counted by their caches
    /// ([`Stats::writeback_bytes`](crate::Stats::writeback_bytes)), and by the kernel.
    ///
    /// ```
    /// # fn main() -> std::io::Result<()> {
    /// use fastmap::{Engine, MapOptions, Persist};
    ///
    /// # let file = tempfile::tempfile()?;
    /// # file.set_len(1 << 20)?;
    /// // SAFETY: nobody else changes the file.
    /// let mut map = unsafe { MapOptions::new().persist(Persist::CacheLines).map_mut(&file)? };
    /// map[5000] = 1;
    /// map.flush_range(4096, 4096)?;
    /// assert_eq!(map.flushed_bytes(), if map.engine() == Engine::Direct { 4096 } else { 0 });
    /// # Ok(())
    /// # }
    /// ```
    pub fn flushed_bytes(&self) -> u64 {
        if let Kind::Kernel(kernel, _) = &self.mapping.kind { kernel.flushed_bytes() } else { 0 }
    }

    /// Starts what [`MapMut::flush`] does, in the background, and returns a handle to wait for it. Errors come with the
    /// handle's [`wait`](Flush::wait), and with the next `flush`.
    ///
    /// ```
    /// # fn main() -> std::io::Result<()> {
    /// # let file = tempfile::tempfile()?;
    /// # file.set_len(1)?;
    /// # // SAFETY: nobody else changes the file.
    /// # let mut map = unsafe { fastmap::MapMut::map_mut(&file)? };
    /// map[0] = 1;
    /// let flush = map.flush_async();
    /// // … something else meanwhile …
    /// flush.wait()?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn flush_async(&self) -> Flush {
        self.mapping.flush_async()
    }

    /// Writes the map's dirty pages to the file and unmaps it, with an answer. (Dropping it does the same if it is the
    /// file's last map; else its pages stay in the cache as they are.) The bytes need not be
    /// on stable storage afterwards (munmap(2) makes no such promise): call [`MapMut::flush`] before.
    ///
    /// # Errors
    /// [`Unsaved`], which holds the map, when pages could not be written.
    ///
    /// ```
    /// # fn main() -> std::io::Result<()> {
    /// # let file = tempfile::tempfile()?;
    /// # file.set_len(1)?;
    /// # // SAFETY: nobody else changes the file.
    /// # let mut map = unsafe { fastmap::MapMut::map_mut(&file)? };
    /// map[0] = 1;
    /// map.unmap()?;
    /// # Ok(())
    /// # }
    /// ```
    #[expect(clippy::result_large_err, reason = "it returns the map")]
    pub fn unmap(self) -> std::result::Result<(), Unsaved> {
        match self.mapping.save() {
            Ok(()) => Ok(()),
            Err(error) => Err(Unsaved { error, map: self }),
        }
    }

    /// Like [`MapMut::unmap`], but where pages cannot be written it waits until they can (somebody makes room on the
    /// disk), and tries five times a second. The first error goes to `tracing`.
    ///
    /// ```
    /// # fn main() -> std::io::Result<()> {
    /// # let file = tempfile::tempfile()?;
    /// # file.set_len(1)?;
    /// # // SAFETY: nobody else changes the file.
    /// # let mut map = unsafe { fastmap::MapMut::map_mut(&file)? };
    /// map[0] = 1;
    /// map.unmap_blocking();
    /// # Ok(())
    /// # }
    /// ```
    pub fn unmap_blocking(self) {
        let mut told = false;
        while let Err(error @ Error::WriteBack { .. }) = self.mapping.save() {
            if !std::mem::replace(&mut told, true) {
                tracing::error!(%error, "unmapping waits until the pages can be written");
            }
            std::thread::sleep(writers::AGAIN);
        }
    }

    /// Makes the map `new_len` bytes long, and its file at least as long as the map then reaches; neither is made shorter.
    /// New bytes of the file are zero, also where somebody stored past the old end.
    ///
    /// The map may move, like mremap(2) with `MREMAP_MAYMOVE`: pointers into it from before are void. It stays where it is
    /// up to twice what was mapped or the file had, whichever was more, when it was first mapped. A larger one gets a new
    /// place, with all its dirty pages written back first and all its pages to be read anew.
    ///
    /// # Errors
    /// The map is then as it was, though the file may be longer already. [`Error::Shrinking`] when `new_len` is less than
    /// the map has; [`Error::LengthOverflow`]; [`Error::FixedSize`] past the end of a block device; [`Error::Outgrown`] when
    /// the map would have to move and the file has other maps; [`Error::WriteBack`] when it would have to move, or others
    /// changed the file's length, and pages cannot be written back; [`Error::Reserve`] when it was mapped with
    /// [`MapOptions::reserve`] and there is no room; [`Error::Io`] from ftruncate(2), mmap(2) and their kin.
    ///
    /// ```
    /// # fn main() -> std::io::Result<()> {
    /// # let file = tempfile::tempfile()?;
    /// // SAFETY: nobody else changes the file.
    /// let mut map = unsafe { fastmap::MapMut::map_mut(&file)? }; // an empty file
    /// map.grow(10_000)?;
    /// map[9_999] = 1;
    /// assert_eq!((map.len(), file.metadata()?.len()), (10_000, 10_000));
    /// assert!(map.grow(100).is_err());
    /// # Ok(())
    /// # }
    /// ```
    pub fn grow(&mut self, new_len: usize) -> Result<()> {
        self.mapping.grow(new_len)
    }

    /// The map's first byte, for stores through raw pointers.
    ///
    /// ```
    /// # fn main() -> std::io::Result<()> {
    /// # let file = tempfile::tempfile()?;
    /// # file.set_len(1)?;
    /// # // SAFETY: nobody else changes the file.
    /// # let mut map = unsafe { fastmap::MapMut::map_mut(&file)? };
    /// // SAFETY: inside the map.
    /// unsafe { map.as_mut_ptr().write(3) };
    /// assert_eq!(map[0], 3);
    /// # Ok(())
    /// # }
    /// ```
    pub fn as_mut_ptr(&mut self) -> *mut u8 {
        self.mapping.start
    }
}

/// What both kinds of map have.
macro_rules! shared_face {
    ($type:ident, $make:ident) => {
        impl $type {
            /// Which path serves this map.
            ///
            /// ```
            /// # fn main() -> std::io::Result<()> {
            /// # let file = tempfile::tempfile()?;
            #[doc = concat!("# let map = unsafe { fastmap::", stringify!($type), "::", stringify!($make), "(&file)? };")]
            /// println!("{:?}", map.engine());
            /// # Ok(())
            /// # }
            /// ```
            pub fn engine(&self) -> Engine {
                self.mapping.engine()
            }

            /// The map's first byte.
            ///
            /// ```
            /// # fn main() -> std::io::Result<()> {
            /// # let file = tempfile::tempfile()?;
            /// # file.set_len(1)?;
            #[doc = concat!("# let map = unsafe { fastmap::", stringify!($type), "::", stringify!($make), "(&file)? };")]
            /// // SAFETY: inside the map.
            /// assert_eq!(unsafe { map.as_ptr().read() }, 0);
            /// # Ok(())
            /// # }
            /// ```
            pub fn as_ptr(&self) -> *const u8 {
                self.mapping.start
            }

            /// Advises on the whole map (madvise(2)).
            ///
            /// # Errors
            /// [`Error::WriteBack`] when [`Advice::DontNeed`] cannot save dirty pages: they stay in memory.
            ///
            /// ```
            /// # fn main() -> std::io::Result<()> {
            /// # let file = tempfile::tempfile()?;
            #[doc = concat!("# let map = unsafe { fastmap::", stringify!($type), "::", stringify!($make), "(&file)? };")]
            /// map.advise(fastmap::Advice::WillNeed)?;
            /// # Ok(())
            /// # }
            /// ```
            pub fn advise(&self, advice: Advice) -> Result<()> {
                self.mapping.advise(advice, 0, self.mapping.len)
            }

            /// Advises on `len` bytes of the map from `offset`, in whole pages.
            ///
            /// # Errors
            /// As for `advise`, and [`Error::RangeOutside`].
            ///
            /// ```
            /// # fn main() -> std::io::Result<()> {
            /// # let file = tempfile::tempfile()?;
            #[doc = concat!("# let map = unsafe { fastmap::", stringify!($type), "::", stringify!($make), "(&file)? };")]
            /// assert!(map.advise_range(fastmap::Advice::WillNeed, 0, 1).is_err()); // the map is empty
            /// # Ok(())
            /// # }
            /// ```
            pub fn advise_range(&self, advice: Advice, offset: usize, len: usize) -> Result<()> {
                self.mapping.advise(advice, offset, len)
            }

            /// Sets how far ahead of a walk the file is read, bytes: at most 8 MiB, the default, in whole pages, and an
            /// eighth of the cache's capacity. 0 turns it off. It holds for all maps of the file. A window begins with 128 KiB
            /// and doubles while what was read is used.
            ///
            /// # Errors
            /// [`Error::Missing`] in a child made by fork(2).
            ///
            /// ```
            /// # fn main() -> std::io::Result<()> {
            /// # let file = tempfile::tempfile()?;
            #[doc = concat!("# let map = unsafe { fastmap::", stringify!($type), "::", stringify!($make), "(&file)? };")]
            /// map.set_readahead(1 << 20)?;
            /// # Ok(())
            /// # }
            /// ```
            pub fn set_readahead(&self, bytes: usize) -> Result<()> {
                self.mapping.set_readahead(bytes)
            }

            /// Asks for ranges of bytes to be brought into memory, and returns at once: how many of them, from the first on,
            /// were taken. Fewer than all: the queue is full (2048 pages, or an eighth of the cache); touch the first ones,
            /// then ask for the rest again. A range that is longer than the queue is taken when the queue is empty, as far as
            /// it fits.
            ///
            /// The reads go to the device side by side, as many as it takes, from however few threads. What was brought in
            /// is mapped and traps no more, but may be evicted again like any page: ask for what comes soon.
            ///
            /// # Errors
            /// [`Error::RangeOutside`] if any range is not inside the map; nothing is asked for then. Reads that fail are
            /// told to whoever touches the page.
            ///
            /// ```
            /// # fn main() -> std::io::Result<()> {
            /// # let file = tempfile::tempfile()?;
            /// # file.set_len(1 << 20)?;
            #[doc = concat!("# let map = unsafe { fastmap::", stringify!($type), "::", stringify!($make), "(&file)? };")]
            /// let wanted = [0..10, 500_000..500_100, 8192..16384];
            /// let taken = map.prefetch(&wanted)?;
            /// assert!(taken >= 1);
            /// # Ok(())
            /// # }
            /// ```
            pub fn prefetch(&self, ranges: &[Range<usize>]) -> Result<usize> {
                self.mapping.prefetch(ranges)
            }

            /// Brings ranges of bytes into memory like `prefetch`, and returns when all of them have been there: they still
            /// are if they fit the cache together, with what others bring in.
            ///
            /// # Errors
            /// As for `prefetch`; [`Error::PastEnd`] and [`Error::Load`] for bytes that cannot be read.
            ///
            /// ```
            /// # fn main() -> std::io::Result<()> {
            /// # let file = tempfile::tempfile()?;
            /// # file.set_len(1 << 20)?;
            #[doc = concat!("# let map = unsafe { fastmap::", stringify!($type), "::", stringify!($make), "(&file)? };")]
            /// map.prefetch_wait(&[0..10, 500_000..500_100])?;
            /// # Ok(())
            /// # }
            /// ```
            pub fn prefetch_wait(&self, ranges: &[Range<usize>]) -> Result<()> {
                self.mapping.prefetch_wait(ranges)
            }

            /// For code that knows what it will access next: hands the ranges of `accesses` on, and keeps up to `depth` of
            /// those that follow prefetched. Ranges that are not inside the map are handed on and not prefetched.
            ///
            /// ```
            /// # fn main() -> std::io::Result<()> {
            /// # let file = tempfile::tempfile()?;
            /// # file.set_len(1 << 20)?;
            #[doc = concat!("# let map = unsafe { fastmap::", stringify!($type), "::", stringify!($make), "(&file)? };")]
            /// let records = [7usize, 3, 11, 200];
            /// let mut sum = 0u64;
            /// for record in map.lookahead(32, records.iter().map(|number| number * 4096..number * 4096 + 100)) {
            ///     sum += map[record].iter().map(|byte| u64::from(*byte)).sum::<u64>();
            /// }
            /// # Ok(())
            /// # }
            /// ```
            pub fn lookahead<I>(&self, depth: usize, accesses: I) -> Lookahead<'_, I::IntoIter>
            where
                I: IntoIterator<Item = Range<usize>>,
            {
                Lookahead::new(&self.mapping, depth, accesses.into_iter())
            }
        }

        impl Deref for $type {
            type Target = [u8];

            fn deref(&self) -> &[u8] {
                // SAFETY: mapped for as long as self is; the contract of `MapOptions::map` covers the contents.
                unsafe { std::slice::from_raw_parts(self.mapping.start, self.mapping.len) }
            }
        }

        impl AsRef<[u8]> for $type {
            fn as_ref(&self) -> &[u8] {
                self
            }
        }

        impl fmt::Debug for $type {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.debug_struct(stringify!($type))
                    .field("ptr", &self.as_ptr())
                    .field("len", &self.len())
                    .field("engine", &self.engine())
                    .finish()
            }
        }
    };
}

shared_face!(Map, map);
shared_face!(MapMut, map_mut);

impl MapMut {
    /// Gives up what a range of a scratch map ([`MapOptions::scratch`]) holds: bytes of the whole pages in it are zeros afterwards,
    /// and what was stored there is never written. On other maps it does nothing.
    ///
    /// # Errors
    /// [`Error::RangeOutside`]; [`Error::WriteBack`] for a page that was stored to before it was read, and cannot be read;
    /// [`Error::Missing`] in a child made by fork(2).
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
        behind::settle(region, pages.clone()).map_err(|failure| failure.into_error(region))?;
        writeback::discard(region, pages.clone());
        // Out of memory at once: what a clean page holds that the file lacks would be there until it is evicted.
        let gone = {
            let _length = region.lock_length();
            sizes::leave_memory(region, pages.clone())
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

    /// Says that nobody needs what a range of a scratch map holds, at less cost than [`MapMut::discard`]: its pages are not written
    /// when their room is needed. Until something is stored there, bytes of the whole pages in the range are as they were, as
    /// they were earlier, or zeros, from one moment to the next. Stores that run at the same time may be lost. Pages that are
    /// pinned for writing stay as they are. On other maps it does nothing.
    ///
    /// # Safety
    /// Nobody has a reference to these bytes, now or before they are stored to (through pointers, [`MapMut::as_mut_ptr`]) or cleared.
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
            writeback::discard(region, pages);
        }
        Ok(())
    }

    /// Makes bytes of the map zeros. On a scratch map ([`MapOptions::scratch`]) pages that are not in memory are neither read
    /// nor written for it.
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
                Some((region, page)) if !page.is_empty() => scratch::clear_absent(region, page.start),
                _ => false,
            };
            if !absent {
                self.write_at(&ZEROS[..here], at)?;
            }
            at += here;
        }
        Ok(())
    }

    /// Copies what a scratch map ([`MapOptions::scratch`]) holds to the same places of another file, which is empty: where the
    /// map is zeros, or was discarded, the file keeps its holes. File systems that can share the blocks do. Stores that run at the
    /// same time are in the copy or not. On other maps it does nothing.
    ///
    /// # Errors
    /// [`Error::WriteBack`]; [`Error::Io`] when the file cannot be written; [`Error::Missing`] in a child made by fork(2).
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
            Some((region, pages)) => scratch::snapshot(region, pages, to),
            None => Ok(()),
        }
    }
}

impl DerefMut for MapMut {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as for `deref`; mapped writable.
        unsafe { std::slice::from_raw_parts_mut(self.mapping.start, self.mapping.len) }
    }
}

impl AsMut<[u8]> for MapMut {
    fn as_mut(&mut self) -> &mut [u8] {
        self
    }
}
