//! Pins, as maps offer them: bytes that stay in memory until a guard is dropped. `pin/pin.rs` explains how pins work.

#[cfg(doc)]
use crate::error::Error;
use crate::error::Result;
use crate::map::cached::Cached;
#[cfg(doc)]
use crate::map::map::Map;
use crate::map::map_mut::MapMut;
use crate::map::mapping::{Backing, Mapping, pages};
use crate::pin::pin::Hold;
use crate::sys::PAGE;
use std::fmt;
use std::ops::{Deref, DerefMut};

/// Bytes of a map that stay in memory, where they are, until this is dropped ([`Map::pin`]).
///
/// It may be given to system calls that read from it (write(2), io_uring(7) and their kin), and be sent to another
/// thread and dropped there. If it is never dropped ([`std::mem::forget`]), it keeps its part of the cache's budget for
/// good; nothing else happens.
///
/// ```
/// # fn main() -> std::io::Result<()> {
/// use std::io::Write;
///
/// # let file = tempfile::tempfile()?;
/// # std::os::unix::fs::FileExt::write_all_at(&file, b"some bytes", 0)?;
/// // SAFETY: nobody else changes the file.
/// let map = unsafe { fastmap::Map::map(&file)? };
/// let pinned = map.pin(5, 5)?;
/// tempfile::tempfile()?.write_all(&pinned)?; // straight from the map
/// assert_eq!(*pinned, *b"bytes");
/// # Ok(())
/// # }
/// ```
pub struct Pinned<'a> {
    bytes: &'a [u8],
    _held: Held<'a>,
}

/// Bytes of a mutable map that stay in memory, writable, where they are, until this is dropped ([`MapMut::pin_mut`]).
///
/// It may be given to system calls that write into it (read(2), io_uring(7) and their kin). Direct I/O into it must
/// have ended before it is dropped. Otherwise it is as [`Pinned`].
///
/// ```
/// # fn main() -> std::io::Result<()> {
/// use std::io::Read;
///
/// # let file = tempfile::tempfile()?;
/// # file.set_len(1 << 16)?;
/// // SAFETY: nobody else changes the file.
/// let mut map = unsafe { fastmap::MapMut::map_mut(&file)? };
/// let mut pinned = map.pin_mut(100, 16)?;
/// std::fs::File::open("/dev/urandom")?.read_exact(&mut pinned)?; // straight into the map
/// drop(pinned);
/// map.flush()?;
/// # Ok(())
/// # }
/// ```
pub struct PinnedMut<'a> {
    bytes: &'a mut [u8],
    _held: Held<'a>,
}

/// The hold that keeps bytes in memory.
pub(super) enum Held<'a> {
    /// None: there are no bytes, or the kernel has brought them in and keeps them as it likes.
    Not,
    Pages(#[expect(dead_code, reason = "kept for its drop")] Hold<'a>),
}

impl Mapping {
    #[inline(always)]
    pub fn pin(&self, offset: usize, len: usize) -> Result<Pinned<'_>> {
        let held = match self.hold_resident(offset, len) {
            Some(hold) => Held::Pages(hold),
            None => self.hold(offset, len, false)?,
        };
        // SAFETY: both found the range inside the map, which outlives the guard; the contract of `MapOptions::map`
        // covers the contents.
        let bytes = unsafe { std::slice::from_raw_parts(self.start.add(offset), len) };
        Ok(Pinned { bytes, _held: held })
    }

    /// Pins a range if it is on one page that is in memory. `None`: it is not, or that takes more than the fast path.
    #[inline(always)]
    fn hold_resident(&self, offset: usize, len: usize) -> Option<Hold<'_>> {
        let Backing::Cached(cached) = &self.backing else { return None };
        let is_inside = offset < self.len && len <= self.len - offset;
        if is_inside { cached.hold_resident(offset, len) } else { None }
    }

    /// Pins a range.
    #[inline(never)]
    pub(super) fn hold(&self, offset: usize, len: usize, writing: bool) -> Result<Held<'_>> {
        self.check(offset, len)?;
        match &self.backing {
            Backing::Cached(cached) if len > 0 => {
                Hold::new(&cached.region, pages(cached.offset + offset, len), writing).map(Held::Pages)
            }
            Backing::Kernel(kernel) if len > 0 => kernel.mapping.populate(offset, len, writing).map(|()| Held::Not),
            _ => Ok(Held::Not),
        }
    }
}

impl Cached {
    #[inline(always)]
    fn hold_resident(&self, offset: usize, len: usize) -> Option<Hold<'_>> {
        if self.is_on_one_page(offset, len) && self.region.is_ours() {
            Hold::of_resident(&self.region, (self.offset + offset) / PAGE)
        } else {
            None
        }
    }
}

impl MapMut {
    /// Keeps `len` bytes of the map from `offset` in memory, and writable, until the guard is dropped: neither loads
    /// nor stores trap, and system calls may write into them. Otherwise as [`MapMut::pin`].
    ///
    /// Its pages count as dirty while they are pinned, since the kernel's stores are not seen. Each flush writes them
    /// again, as they are then. Other write-back leaves them alone until they are unpinned, or get too old
    /// ([`CacheBuilder::dirty_expire`](crate::CacheBuilder::dirty_expire)).
    ///
    /// # Errors
    /// As for [`MapMut::pin`].
    ///
    /// ```
    /// # fn main() -> std::io::Result<()> {
    /// # let file = tempfile::tempfile()?;
    /// # file.set_len(1 << 16)?;
    /// # // SAFETY: nobody else changes the file.
    /// # let mut map = unsafe { fastmap::MapMut::map_mut(&file)? };
    /// let mut pinned = map.pin_mut(4000, 200)?;
    /// pinned.fill(7);
    /// drop(pinned);
    /// assert_eq!(map[4199], 7);
    /// # Ok(())
    /// # }
    /// ```
    pub fn pin_mut(&mut self, offset: usize, len: usize) -> Result<PinnedMut<'_>> {
        let held = self.mapping.hold(offset, len, true)?;
        // SAFETY: `hold` found the range inside the map, which is borrowed mutable for as long as the guard lives.
        let bytes = unsafe { std::slice::from_raw_parts_mut(self.mapping.start.add(offset), len) };
        Ok(PinnedMut { bytes, _held: held })
    }
}

impl Deref for Pinned<'_> {
    type Target = [u8];

    #[inline]
    fn deref(&self) -> &[u8] {
        self.bytes
    }
}

impl Deref for PinnedMut<'_> {
    type Target = [u8];

    #[inline]
    fn deref(&self) -> &[u8] {
        self.bytes
    }
}

impl DerefMut for PinnedMut<'_> {
    #[inline]
    fn deref_mut(&mut self) -> &mut [u8] {
        self.bytes
    }
}

impl AsRef<[u8]> for Pinned<'_> {
    fn as_ref(&self) -> &[u8] {
        self
    }
}

impl AsRef<[u8]> for PinnedMut<'_> {
    fn as_ref(&self) -> &[u8] {
        self
    }
}

impl AsMut<[u8]> for PinnedMut<'_> {
    fn as_mut(&mut self) -> &mut [u8] {
        self
    }
}

impl fmt::Debug for Pinned<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pinned").field("ptr", &self.as_ptr()).field("len", &self.len()).finish()
    }
}

impl fmt::Debug for PinnedMut<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PinnedMut").field("ptr", &self.as_ptr()).field("len", &self.len()).finish()
    }
}
