//! The two types that a program holds, shaped as `memmap2`'s are: [`Map`] here, [`MapMut`](super::map_mut::MapMut) in
//! `map_mut.rs`.

use crate::error::Result;
use crate::map::mapping::Mapping;
use crate::map::options::MapOptions;
use std::fs::File;

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
///     fastmap::Engine::Kernel => println!("mmap(2): no cache was asked for, or `fastmap doctor` tells what is missing"),
/// }
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Engine {
    /// The engine's cache: misses are served in user space, within the cache's budget. A map of no bytes says so, too.
    Cached,
    /// No cache: the file is in memory already, and mapped straight ([`Mode`](crate::Mode)).
    Direct,
    /// The kernel's page cache: no cache was asked for, other maps of the file are the kernel's, or the
    /// [`Fallback`](crate::Fallback) was taken.
    Kernel,
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
