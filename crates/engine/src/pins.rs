//! Pins and copies, as maps offer them: bytes that are there to be used, or an error that says why not. How it is done is in
//! `pinning.rs`.

#[cfg(doc)]
use crate::error::Error;
use crate::error::Result;
use crate::map::{Kind, Map, MapMut, Mapping, pages};
use crate::pinning::{self, Hold};
use crate::region::Region;
use crate::sys::PAGE;
use bytemuck::AnyBitPattern;
use std::fmt;
use std::mem::MaybeUninit;
use std::ops::{Deref, DerefMut};
use std::ptr;

/// Bytes of a map that stay in memory, where they are, until this is dropped ([`Map::pin`]).
///
/// It may be handed to system calls that read from it (write(2), io_uring(7) and its kin), and sent to and dropped in
/// another thread. One that is never dropped ([`std::mem::forget`]) keeps its part of the cache's budget for good, and nothing else.
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
    _hold: Option<Hold<'a>>,
}

/// Bytes of a mutable map that stay in memory, writable, where they are, until this is dropped ([`MapMut::pin_mut`]).
///
/// It may be handed to system calls that write into it (read(2), io_uring(7) and its kin; direct I/O into it must have ended
/// before it is dropped). Otherwise it is as [`Pinned`].
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
    _hold: Option<Hold<'a>>,
}

impl Mapping {
    /// Pins a range on one page that is in memory; `None`: it takes more than that.
    #[inline(always)]
    fn hold_resident(&self, offset: usize, len: usize) -> Option<Hold<'_>> {
        let Kind::Cached { region, offset: base, .. } = &self.kind else { return None };
        let start = base.wrapping_add(offset);
        let on_one_page = (1..=PAGE - start % PAGE).contains(&len) && offset < self.len && len <= self.len - offset;
        if on_one_page && region.is_ours() { Hold::of_resident(region, start / PAGE) } else { None }
    }

    #[inline(never)]
    fn hold(&self, offset: usize, len: usize, writing: bool) -> Result<Option<Hold<'_>>> {
        self.check(offset, len)?;
        match &self.kind {
            Kind::Cached { region, offset: base, .. } if len > 0 => {
                Hold::new(region, pages(base + offset, len), writing).map(Some)
            }
            Kind::Kernel(kernel, _) if len > 0 => kernel.populate(offset, len, writing).map(|()| None),
            _ => Ok(None),
        }
    }

    fn read_at(&self, buffer: &mut [u8], offset: usize) -> Result<()> {
        self.check(offset, buffer.len())?;
        match &self.kind {
            Kind::Cached { region, offset: base, .. } => copy_out(region, base + offset, buffer),
            _ => {
                drop(self.hold(offset, buffer.len(), false)?);
                // SAFETY: inside the map, and not the buffer, which is the caller's alone.
                unsafe { self.start.add(offset).copy_to_nonoverlapping(buffer.as_mut_ptr(), buffer.len()) };
                Ok(())
            }
        }
    }

    fn write_at(&mut self, data: &[u8], offset: usize) -> Result<()> {
        self.check(offset, data.len())?;
        match &self.kind {
            Kind::Cached { region, offset: base, .. } => copy_in(region, base + offset, data),
            _ => {
                drop(self.hold(offset, data.len(), true)?);
                // SAFETY: inside the map, which is borrowed mutable; the data may come from another map of the same bytes.
                unsafe { self.start.add(offset).copy_from(data.as_ptr(), data.len()) };
                Ok(())
            }
        }
    }

    #[inline]
    fn get_at<T: AnyBitPattern>(&self, offset: usize) -> Result<T> {
        let len = size_of::<T>();
        if let Kind::Cached { region, offset: base, .. } = &self.kind
            && let start = base.wrapping_add(offset)
            && (1..=PAGE - start % PAGE).contains(&len)
        {
            self.check(offset, len)?;
            let from = region.address_of(start / PAGE).wrapping_add(start % PAGE).cast::<T>();
            // SAFETY: of any bits, on one page inside the map, which is pinned meanwhile. The copy is on the stack or in
            // registers.
            return pinning::with_page(region, start / PAGE, false, |_| unsafe { from.read_unaligned() });
        }
        let mut value = MaybeUninit::<T>::zeroed();
        // SAFETY: initialised bytes, which any others may replace.
        self.read_at(unsafe { std::slice::from_raw_parts_mut(value.as_mut_ptr().cast(), len) }, offset)?;
        // SAFETY: any bits are a value.
        Ok(unsafe { value.assume_init() })
    }
}

/// The part of a copy that lies on one page: which, its first byte there, and how many bytes of `rest`.
fn part(region: &Region, at: usize, rest: usize) -> (usize, *mut u8, usize) {
    let (page, within) = (at / PAGE, at % PAGE);
    (page, region.address_of(page).wrapping_add(within), rest.min(PAGE - within))
}

/// Copies bytes of a region, from `at` on.
pub(crate) fn copy_out(region: &Region, at: usize, buffer: &mut [u8]) -> Result<()> {
    let mut done = 0;
    while done < buffer.len() {
        let (page, from, count) = part(region, at + done, buffer.len() - done);
        let to = buffer[done..].as_mut_ptr();
        let mut aside = MaybeUninit::<[u8; PAGE]>::uninit();
        let copied = pinning::with_page(region, page, false, |room| {
            // The buffer may be part of another map.
            let to = if room { to } else { aside.as_mut_ptr().cast() };
            // SAFETY: `count` bytes of a pinned page, to as many of the buffer or of a page on the stack. Another map of the
            // same bytes may be the buffer.
            unsafe { ptr::copy(from, to, count) };
            room
        })?;
        if !copied {
            // SAFETY: as many bytes as were put aside.
            unsafe { ptr::copy_nonoverlapping(aside.as_ptr().cast(), to, count) };
        }
        done += count;
    }
    Ok(())
}

/// Copies bytes into a region, from `at` on.
pub(crate) fn copy_in(region: &Region, at: usize, data: &[u8]) -> Result<()> {
    let mut done = 0;
    while done < data.len() {
        let (page, to, count) = part(region, at + done, data.len() - done);
        let from = data[done..].as_ptr();
        let copied = pinning::with_page(region, page, true, |room| {
            if room {
                // SAFETY: as many bytes of the data and of a pinned page; a store may trap all the same. Another map of the same
                // bytes may be where the data is.
                unsafe { ptr::copy(from, to, count) };
            }
            room
        })?;
        if !copied {
            let mut aside = MaybeUninit::<[u8; PAGE]>::uninit();
            // SAFETY: at most a page.
            unsafe { ptr::copy_nonoverlapping(from, aside.as_mut_ptr().cast(), count) };
            // SAFETY: what was put aside, to a pinned page.
            pinning::with_page(region, page, true, |_| unsafe {
                ptr::copy_nonoverlapping(aside.as_ptr().cast(), to, count);
            })?;
        }
        done += count;
    }
    Ok(())
}

/// What both kinds of map have.
macro_rules! shared_face {
    ($type:ident, $make:ident) => {
        impl $type {
            /// Keeps `len` bytes of the map from `offset` in memory until the guard is dropped, reading first what is not
            /// there. Loads from them do not trap, and system calls may be handed them. All of the range is pinned, or nothing.
            ///
            /// A page that is there costs a few atomic operations and no system call. Pages of the range that are not are read
            /// one after another.
            ///
            /// Pages pinned at a time are limited, so that other pages can go round: to all of a cache's but a sixteenth, and
            /// but 64 KiB; in caches smaller than 85 KiB, to a quarter. A page with several pins counts once. What exceeds that
            /// is an error, at once.
            ///
            /// The file may be cut while some of it is pinned: the bytes stay as they were for as long as the guard is there,
            /// and what lies past the file's end is not written. A file that is not cached ([`Engine::Kernel`]) has its pages
            /// brought in, and is left to the kernel, which may take them out again and lets system calls wait for them.
            ///
            /// [`Engine::Kernel`]: crate::Engine::Kernel
            ///
            /// # Errors
            /// [`Error::RangeOutside`]; [`Error::PinBudget`]; [`Error::PastEnd`] for pages wholly past the file's end;
            /// [`Error::Load`] when one cannot be read, or no room be made for it; [`Error::TooManyPins`]; [`Error::Io`] from
            /// a kernel mapping; [`Error::Missing`] in a child made by fork(2).
            ///
            /// ```
            /// # fn main() -> std::io::Result<()> {
            /// # let file = tempfile::tempfile()?;
            /// # file.set_len(1 << 16)?;
            #[doc = concat!("# let map = unsafe { fastmap::", stringify!($type), "::", stringify!($make), "(&file)? };")]
            /// let pinned = map.pin(4000, 200)?; // on two pages
            /// assert_eq!((pinned.len(), pinned[0]), (200, 0));
            /// assert!(map.pin(1 << 16, 1).is_err()); // outside
            /// # Ok(())
            /// # }
            /// ```
            #[inline(always)]
            pub fn pin(&self, offset: usize, len: usize) -> Result<Pinned<'_>> {
                let hold = match self.mapping.hold_resident(offset, len) {
                    Some(hold) => Some(hold),
                    None => self.mapping.hold(offset, len, false)?,
                };
                // SAFETY: inside the map, which outlives the guard; the contract of `MapOptions::map` covers the contents.
                let bytes = unsafe { std::slice::from_raw_parts(self.mapping.start.add(offset), len) };
                Ok(Pinned { bytes, _hold: hold })
            }

            /// Copies bytes of the map, from `offset`, as many as the buffer takes. Unlike a slice, it raises no SIGBUS: what
            /// cannot be read is an error. The buffer's bytes are unspecified then.
            ///
            /// # Errors
            /// [`Error::RangeOutside`]; [`Error::PastEnd`] for pages wholly past the file's end (on the page that holds the
            /// end, bytes behind it are zeros); [`Error::Load`]; [`Error::Io`] from a kernel mapping; [`Error::Missing`] in a
            /// child made by fork(2). A budget full of pins is none.
            ///
            /// ```
            /// # fn main() -> std::io::Result<()> {
            /// # let file = tempfile::tempfile()?;
            /// # std::os::unix::fs::FileExt::write_all_at(&file, b"some bytes", 0)?;
            #[doc = concat!("# let map = unsafe { fastmap::", stringify!($type), "::", stringify!($make), "(&file)? };")]
            /// let mut buffer = [0; 4];
            /// map.read_at(&mut buffer, 5)?;
            /// assert_eq!(&buffer, b"byte");
            /// # Ok(())
            /// # }
            /// ```
            pub fn read_at(&self, buffer: &mut [u8], offset: usize) -> Result<()> {
                self.mapping.read_at(buffer, offset)
            }

            /// The value whose bytes are at `offset`, in the machine's order, aligned or not; for types of which any bits are a
            /// value ([`bytemuck::AnyBitPattern`]).
            ///
            /// # Errors
            /// As for `read_at`.
            ///
            /// ```
            /// # fn main() -> std::io::Result<()> {
            /// # let file = tempfile::tempfile()?;
            /// # std::os::unix::fs::FileExt::write_all_at(&file, &[7, 1, 0, 0, 0], 0)?;
            #[doc = concat!("# let map = unsafe { fastmap::", stringify!($type), "::", stringify!($make), "(&file)? };")]
            /// assert_eq!(map.get_at::<u32>(1)?, u32::from_ne_bytes([1, 0, 0, 0]));
            /// assert_eq!(map.get_at::<[u8; 2]>(0)?, [7, 1]);
            /// assert!(map.get_at::<u64>(0).is_err()); // the map has five bytes
            /// # Ok(())
            /// # }
            /// ```
            #[inline]
            pub fn get_at<T: AnyBitPattern>(&self, offset: usize) -> Result<T> {
                self.mapping.get_at(offset)
            }
        }
    };
}

shared_face!(Map, map);
shared_face!(MapMut, map_mut);

impl MapMut {
    /// Keeps `len` bytes of the map from `offset` in memory, and writable, until the guard is dropped: neither loads nor
    /// stores trap, and system calls may write into them. Otherwise as [`MapMut::pin`].
    ///
    /// Its pages count as dirty all the while, whatever is stored, since the kernel's stores are not seen: each flush writes
    /// them again, with what they hold then. Other write-back leaves them until they are unpinned, unless they get too old
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
        let hold = self.mapping.hold(offset, len, true)?;
        // SAFETY: as for `pin`; the map is borrowed mutable.
        let bytes = unsafe { std::slice::from_raw_parts_mut(self.mapping.start.add(offset), len) };
        Ok(PinnedMut { bytes, _hold: hold })
    }

    /// Copies data into the map, to `offset`. Unlike a store through a slice it raises no SIGBUS: what cannot be stored is an
    /// error; part of the data may have been stored then. It reaches the file as any store does ([`MapMut::flush`]).
    ///
    /// # Errors
    /// As for [`MapMut::read_at`].
    ///
    /// ```
    /// # fn main() -> std::io::Result<()> {
    /// # let file = tempfile::tempfile()?;
    /// # file.set_len(10)?;
    /// # // SAFETY: nobody else changes the file.
    /// # let mut map = unsafe { fastmap::MapMut::map_mut(&file)? };
    /// map.write_at(b"bytes", 5)?;
    /// assert_eq!(&map[..], b"\0\0\0\0\0bytes");
    /// assert!(map.write_at(b"bytes", 6).is_err());
    /// # Ok(())
    /// # }
    /// ```
    pub fn write_at(&mut self, data: &[u8], offset: usize) -> Result<()> {
        self.mapping.write_at(data, offset)
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
