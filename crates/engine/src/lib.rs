//! Memory-mapped files behind ordinary pointers, in user space, with a hard memory budget.
//!
//! A [`Map`] derefs to the bytes of a file, as `memmap2`'s does. With a [`Cache`] its pages come from that and
//! not from the kernel's page cache: they never exceed the cache's capacity, are read past the page cache, evicted in
//! batches, and written back in sorted, merged runs. No privilege and no kernel module is needed; misses are served in
//! the faulting thread through userfaultfd(2). The design follows FastMap (Papagiannis et al., USENIX ATC 2020).
//! Without a cache the kernel serves the map, and is steered ([`MapOptions::steer`]): the rest of this page is not about that.
//!
//! ```
//! # fn main() -> std::io::Result<()> {
//! use fastmap::{Cache, MapOptions};
//!
//! # let folder = tempfile::tempdir()?;
//! # let path = folder.path().join("data");
//! # std::fs::write(&path, vec![0; 1 << 20])?;
//! let file = std::fs::OpenOptions::new().read(true).write(true).open(&path)?;
//! let cache = Cache::new(256 << 10)?;
//! // SAFETY: nobody else changes the file while it is mapped.
//! let mut map = unsafe { MapOptions::new().cache(&cache).map_mut(&file)? };
//! map[123_456] = 7;
//! map.flush()?;
//! assert!(cache.stats().misses >= 1 || map.engine() == fastmap::Engine::Kernel);
//! # Ok(())
//! # }
//! ```
//!
//! # What a program must know
//!
//! * A system call given a slice of a map (`write(2)` from it, `read(2)` into it) can fail with EFAULT, since its pages
//!   come and go, or, reading with direct I/O into it, succeed and have its bytes lost: pin the range first
//!   ([`Map::pin`], [`MapMut::pin_mut`]), or copy ([`Map::read_at`], [`MapMut::write_at`]).
//! * A load or store that cannot be served raises SIGBUS. [`Map::pin`], [`Map::read_at`] and [`Map::get_at`] return an
//!   error.
//! * The crate installs a SIGBUS handler with the first map and chains to the one before it for what is not its own. A
//!   thread that blocks SIGBUS, or a handler installed later without chaining, ends the process at the first miss.
//! * A child made by fork(2) has no maps (touching one is a fault or worse); after exec(2) nothing is left to care
//!   about.
//! * A store reaches the file by write-back, when the last map is dropped, at exit, or by [`MapMut::flush`], which
//!   alone waits for stable storage. When the program is killed, crashes or calls exec(2), its keeper writes the rest
//!   ([`CacheBuilder::keeper`], which also says what it cannot do).
//! * One process at a time maps a file mutable; another is refused ([`MapOptions::one_writer`]). By address ([`by_address`]) the file
//!   becomes the kernel's instead when another process opens it to write.

#[cfg(not(all(target_os = "linux", target_arch = "x86_64")))]
compile_error!("fastmap needs Linux on x86-64: it reads the kind of a page fault from the signal's saved context");

pub mod by_address;
pub mod coherence;
mod counters;
mod deferred;
pub mod descriptors;
mod direct;
#[cfg(test)]
#[path = "../tests/suite/effort.rs"]
mod effort;
mod error;
mod evict;
mod fault;
mod files;
pub mod live;
mod map;
mod mechanism;
mod modes;
mod page;
mod pin;
mod pool;
mod readahead;
mod region;
pub mod requirements;
pub mod signals;
mod store;
mod sys;
#[cfg(test)]
mod tests;
mod writeback;

/// The package's page on crates.io: its example compiles.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;

/// What serves page faults of cached maps: the faulting thread itself, in a signal handler, or threads of the engine's.
pub mod faults {
    pub use crate::modes::Faults;
    pub use crate::region::userfaultfds::choose;
}

pub use counters::stats::Stats;
pub use error::{Error, Result};
pub use map::cache::{Cache, CacheBuilder};
pub use map::flush::{Flush, Unsaved};
pub use map::lookahead::Lookahead;
pub use map::map::{Engine, Map};
pub use map::map_mut::MapMut;
pub use map::options::MapOptions;
pub use map::pins::{Pinned, PinnedMut};
#[doc(hidden)]
pub use mechanism::Mechanism;
pub use modes::{Advice, Fallback, Mode, Persist};
pub use store::Origin;
#[doc(hidden)]
pub use sys::leaks::Unseen;
