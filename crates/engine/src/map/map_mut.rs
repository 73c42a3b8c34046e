//! The mutable map: its methods beside those of every map (`face.rs`).

use crate::error::{Error, Result};
use crate::map::flush::{Flush, Unsaved};
#[cfg(doc)]
use crate::map::map::Engine;
use crate::map::mapping::Mapping;
use crate::map::options::MapOptions;
use std::fs::File;
use std::ops::DerefMut;

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

    /// Writes every byte that is dirty at the call to the file and waits until it is on stable storage (fdatasync(2)).
    ///
    /// # Errors
    /// [`Error::WriteBack`] when bytes could not be written: they stay in memory, dirty, and every later flush tries
    /// them again. [`Error::Io`] when fdatasync(2) fails, then and ever after; also from fstat(2), and from msync(2) on
    /// a map that the kernel serves. [`Error::Missing`] in a child made by fork(2).
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

    /// Like [`MapMut::flush`], for `len` bytes of the map from `offset`. It writes whole pages of 4096 bytes, so
    /// neighbours of the range on its first and last page, too. A direct map whose file is persistent memory is flushed
    /// in cache lines of 64 bytes, and up to 64 KiB without a system call, whatever the size of its pages.
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

    /// Bytes that flushes of this map wrote to memory by cache line: more than 0 only for a direct map
    /// ([`Engine::Direct`]) on DAX, or one made with [`Persist::CacheLines`](crate::Persist::CacheLines). The cache
    /// counts the bytes of cached maps ([`Stats::writeback_bytes`](crate::Stats::writeback_bytes)), the kernel those of
    /// its own.
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
        self.mapping.flushed_bytes()
    }

    /// Starts a [`MapMut::flush`] in the background, and returns a handle to wait for it. The handle's
    /// [`wait`](Flush::wait) returns its errors, and so does the next `flush`.
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

    /// Writes the map's dirty pages to the file, unmaps it, and returns errors. Dropping a map also writes them if it
    /// is the file's last map; else its pages stay in the cache as they are. The bytes need not be on stable storage
    /// afterwards (munmap(2) makes no such promise): call [`MapMut::flush`] before.
    ///
    /// # Errors
    /// [`Unsaved`], which holds the error and the map, when pages could not be written.
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

    /// Like [`MapMut::unmap`], but while pages cannot be written ([`Error::WriteBack`]) it tries again, five times a
    /// second, until somebody has made room on the disk, for example. The first error goes to `tracing`.
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
        const AGAIN: std::time::Duration = std::time::Duration::from_millis(200);
        let mut told = false;
        while let Err(error @ Error::WriteBack { .. }) = self.mapping.save() {
            if !std::mem::replace(&mut told, true) {
                tracing::error!(%error, "unmapping waits until the pages can be written");
            }
            std::thread::sleep(AGAIN);
        }
    }

    /// Makes the map `new_len` bytes long, and its file at least as long as the map then reaches; neither is made
    /// shorter. New bytes of the file are zero, also where somebody stored past the old end.
    ///
    /// The map may move, as by mremap(2) with `MREMAP_MAYMOVE`: pointers into it from before are void. A map that is
    /// not cached always moves. A cached one stays where it is up to twice the length that was mapped, or that the file
    /// had, when it was first mapped, whichever was more. Beyond that it gets a new place: its dirty pages are written
    /// back first, and all its pages are read anew.
    ///
    /// # Errors
    /// The map is then as it was, though the file may be longer already. [`Error::Shrinking`] when `new_len` is less
    /// than the map has; [`Error::LengthOverflow`]; [`Error::FixedSize`] past the end of a block device;
    /// [`Error::Outgrown`] when the map would have to move and the file has other maps; [`Error::WriteBack`] when it
    /// would have to move, or others changed the file's length, and pages cannot be written back; [`Error::Reserve`]
    /// when it was mapped with [`MapOptions::reserve`] and there is no room; [`Error::Io`] from ftruncate(2), mmap(2)
    /// and their kin; [`Error::Missing`] in a child made by fork(2).
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

impl DerefMut for MapMut {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: mapped writable for as long as self is, and borrowed mutable; the contract of `MapOptions::map_mut`
        // covers the contents.
        unsafe { std::slice::from_raw_parts_mut(self.mapping.start, self.mapping.len) }
    }
}

impl AsMut<[u8]> for MapMut {
    fn as_mut(&mut self) -> &mut [u8] {
        self
    }
}
