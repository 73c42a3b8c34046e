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
            /// eighth of the cache's capacity. 0 turns it off. It holds for all maps of the file. A window begins with
            /// 128 KiB and doubles while what was read is used.
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

            /// Asks for ranges of bytes to be brought into memory, and returns at once: how many of them, from the
            /// first on, were taken. Fewer than all: the queue is full (2048 pages, or an eighth of the cache); touch
            /// the first ones, then ask for the rest again. A range that is longer than the queue is taken when the
            /// queue is empty, as far as it fits.
            ///
            /// The reads go to the device side by side, as many as it takes, from however few threads. What was brought
            /// in is mapped and traps no more, but may be evicted again like any page: ask for what comes soon.
            ///
            /// # Errors
            /// [`Error::RangeOutside`] if any range is not inside the map; nothing is asked for then. A read that
            /// fails is reported by the next touch of its page.
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

            /// Brings ranges of bytes into memory like `prefetch`, and returns when all of them have been there: they
            /// still are if they fit the cache together, with what others bring in.
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

            /// Copies ranges of bytes, each an offset in the map and a length, to `output`, one after the other in the order
            /// given. They may be of any length, sorted or not, overlap and repeat. In one call it does what
            /// `prefetch` and loads do: what is absent is read side by side, as much as the device takes, in windows ahead of the
            /// copy, so that all of it together may be larger than the cache; what is there is copied. Ranges beside
            /// each other on a page cost little more than their bytes.
            ///
            /// As with `read_at` no SIGBUS is raised: what cannot be read is an error. Bytes that other threads store to
            /// meanwhile are as before or after, each by itself. Of a map that the kernel serves ([`Engine::Kernel`]), the
            /// kernel reads ahead and copies.
            ///
            /// [`Engine::Kernel`]: crate::Engine::Kernel
            ///
            /// # Errors
            /// [`Error::RangeOutside`], with the first range that is not inside the map, and [`Error::OutputLength`] unless
            /// `output` has exactly the bytes of all ranges; nothing is read then. As for `read_at` while it copies; the
            /// output's bytes are unspecified then.
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

            /// For code that knows what it will access next: yields the ranges of `accesses`, and keeps up to `depth`
            /// of those that follow prefetched. Ranges that are not inside the map are yielded and not prefetched.
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

            /// Keeps `len` bytes of the map from `offset` in memory until the guard is dropped, reading first what is
            /// not there. Loads from them do not trap, and system calls may be handed them. All of the range is pinned,
            /// or nothing.
            ///
            /// A page that is there costs a few atomic operations and no system call. Pages of the range that are not
            /// are read one after another.
            ///
            /// Pages pinned at a time are limited, so that other pages can go round: to all of a cache's but a
            /// sixteenth, and but 64 KiB; in caches smaller than 85 KiB, to a quarter. A page with several pins counts
            /// once. What exceeds that is an error, at once.
            ///
            /// The file may be cut while some of it is pinned: the bytes stay as they were for as long as the guard is
            /// there, and what lies past the file's end is not written. A file that is not cached ([`Engine::Kernel`])
            /// has its pages brought in, and is left to the kernel, which may take them out again and lets system calls
            /// wait for them.
            ///
            /// [`Engine::Kernel`]: crate::Engine::Kernel
            ///
            /// # Errors
            /// [`Error::RangeOutside`]; [`Error::PinBudget`]; [`Error::PastEnd`] for pages wholly past the file's end;
            /// [`Error::Load`] when one cannot be read, or no room be made for it; [`Error::TooManyPins`];
            /// [`Error::Io`] from a kernel mapping; [`Error::Missing`] in a child made by fork(2).
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

            /// Copies bytes of the map, from `offset`, as many as the buffer takes. Unlike a slice, it raises no
            /// SIGBUS: what cannot be read is an error. The buffer's bytes are unspecified then.
            ///
            /// # Errors
            /// [`Error::RangeOutside`]; [`Error::PastEnd`] for pages wholly past the file's end (on the page that holds
            /// the end, bytes behind it are zeros); [`Error::Load`]; [`Error::Io`] from a kernel mapping;
            /// [`Error::Missing`] in a child made by fork(2). A budget full of pins is none.
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

            /// The value whose bytes are at `offset`, in the machine's order, aligned or not; for types of which any
            /// bits are a value ([`bytemuck::AnyBitPattern`]).
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
