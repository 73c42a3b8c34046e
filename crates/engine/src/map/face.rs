//! The methods that both kinds of map have.

#[cfg(doc)]
use crate::error::Error;
use crate::error::Result;
use crate::map::lookahead::Lookahead;
use crate::map::map::{Engine, Map};
use crate::map::map_mut::MapMut;
use crate::map::pins::Pinned;
use crate::modes::Advice;
use bytemuck::AnyBitPattern;
use std::fmt;
use std::ops::{Deref, Range};

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
            /// [`Error::WriteBack`] when dirty pages cannot be saved, for [`Advice::DontNeed`] or after others changed
            /// the file's length: they stay in memory. [`Error::Load`], or [`Error::Fetch`] for an object, when
            /// [`Advice::WillNeed`] cannot read a page. [`Error::Io`] from fstat(2), or from madvise(2) on a map that
            /// the kernel serves; [`Error::Missing`] in a child made by fork(2).
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

            /// Sets how far ahead of a walk the file is read, bytes, in whole pages, for all maps of the file. The
            /// most, and the default, is 8 MiB, or an eighth of the cache's capacity if that is less. 0 turns it off. A
            /// window begins with 128 KiB and doubles while the program uses the pages that were read. On a map that is
            /// not cached it does nothing.
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

            /// Asks for ranges of bytes to be brought into memory, and returns at once the number of ranges, from the
            /// first on, that were taken. If these are not all, the queue is full (2048 pages, or an eighth of the
            /// cache if that is less): touch the first ones, then ask for the rest again. A range that is longer than
            /// the queue is taken when the queue is empty, as far as it fits.
            ///
            /// The reads go to the device side by side, as many as it takes, from however few threads. Pages that were
            /// brought in are mapped and do not trap, but may be evicted again like any page: ask only for bytes that
            /// are needed soon.
            ///
            /// # Errors
            /// [`Error::RangeOutside`] if any range is not inside the map; nothing is asked for then. A read that fails
            /// is reported by the next touch of its page. [`Error::Io`] from madvise(2) on a map that the kernel
            /// serves; [`Error::Missing`] in a child made by fork(2).
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

            /// Brings ranges of bytes into memory like `prefetch`, and returns when each page has been there. All of
            /// them still are, if they fit the cache together with pages that others bring in.
            ///
            /// # Errors
            /// As for `prefetch`; [`Error::PastEnd`], [`Error::Load`] and [`Error::Fetch`] for bytes that cannot be
            /// read; [`Error::WriteBack`] when the file's length changed and dirty pages cannot be saved.
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

            /// Copies ranges of bytes, each an offset in the map and a length, to `output`, one after the other in the
            /// order given. They may be of any length, sorted or not, overlap and repeat. In one call it does the work
            /// of `prefetch` and loads: absent pages are read side by side, as many as the device takes, in windows
            /// ahead of the copy. So all ranges together may be larger than the cache. Ranges beside each other on a
            /// page cost little more than their bytes.
            ///
            /// As with `read_at`, no SIGBUS is raised: bytes that cannot be read are an error. While other threads
            /// store to the ranges, each byte is copied as before or after such a store. On a map that the kernel
            /// serves ([`Engine::Kernel`]), the kernel reads ahead and copies.
            ///
            /// [`Engine::Kernel`]: crate::Engine::Kernel
            ///
            /// # Errors
            /// [`Error::RangeOutside`], with the first range that is not inside the map, and [`Error::OutputLength`]
            /// unless `output` has exactly the length of all ranges together; nothing is read then. While it copies, as
            /// for `read_at`; the output's bytes are unspecified then.
            ///
            /// ```
            /// # fn main() -> std::io::Result<()> {
            /// # let file = tempfile::tempfile()?;
            /// # std::os::unix::fs::FileExt::write_all_at(&file, b"rows of a table", 0)?;
            #[doc = concat!("# let map = unsafe { fastmap::", stringify!($type), "::", stringify!($make), "(&file)? };")]
            /// let mut rows = [0; 11];
            /// map.gather(&[(10, 5), (5, 2), (0, 4)], &mut rows)?;
            /// assert_eq!(&rows, b"tableofrows");
            /// assert!(map.gather(&[(14, 2)], &mut [0; 2]).is_err()); // outside
            /// # Ok(())
            /// # }
            /// ```
            pub fn gather(&self, ranges: &[(usize, usize)], output: &mut [u8]) -> Result<()> {
                self.mapping.gather(ranges, output)
            }

            /// Yields the ranges of `accesses`, and keeps up to `depth` (2048 at most) of those that follow prefetched:
            /// for code that knows its next accesses. Ranges that are not inside the map are yielded and not
            /// prefetched.
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

            /// Keeps `len` bytes of the map from `offset` in memory until the guard is dropped; absent pages are read
            /// first. Loads from the range do not trap, and it may be given to system calls. All of it is pinned, or
            /// nothing.
            ///
            /// A page that is in memory costs a few atomic operations and no system call. Absent pages are read one
            /// after another.
            ///
            /// The number of pages pinned at a time is limited, so that other pages can come and go: to the cache's
            /// capacity less a sixteenth of it (at least 64 KiB); in caches smaller than 85 KiB, to a quarter. A page
            /// with several pins counts once. A pin beyond the limit is an error, at once.
            ///
            /// The file may be cut while some of it is pinned: the bytes stay as they were as long as the guard is
            /// there, and those past the file's end are not written. On a map that is not cached
            /// ([`Map::engine`](crate::Map::engine)) the pages are brought in and left to the kernel, which may take
            /// them out again and lets system calls wait for them.
            ///
            /// # Errors
            /// [`Error::RangeOutside`]; [`Error::PinBudget`]; [`Error::PastEnd`] for pages wholly past the file's end;
            /// [`Error::Load`], or [`Error::Fetch`] for an object, when a page cannot be read, or no room can be made
            /// for it; [`Error::TooManyPins`]; [`Error::Io`] from a kernel mapping; [`Error::Missing`] in a child made
            /// by fork(2).
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
                self.mapping.pin(offset, len)
            }

            /// Copies bytes of the map, from `offset` on, to fill the buffer. Unlike a slice, it raises no SIGBUS:
            /// bytes that cannot be read are an error, and the buffer's bytes are unspecified then.
            ///
            /// # Errors
            /// [`Error::RangeOutside`]; [`Error::PastEnd`] for pages wholly past the file's end (on the page that holds
            /// the end, bytes behind it are zeros); [`Error::Load`], or [`Error::Fetch`] for an object; [`Error::Io`]
            /// from a kernel mapping; [`Error::Missing`] in a child made by fork(2). It works when the pin budget is
            /// used up, too.
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

            /// The value whose bytes are at `offset`, in the machine's byte order, aligned or not. `T` is a type of
            /// which any bits are a value ([`bytemuck::AnyBitPattern`]).
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
