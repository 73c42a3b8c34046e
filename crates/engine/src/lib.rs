//! Memory-mapped files behind ordinary pointers, in user space, with a hard memory budget.
//!
//! A [`Map`] dereferences to the bytes of a file, like `memmap2`'s. Without a cache the kernel serves it, and FastMap
//! advises the kernel if it is asked to ([`MapOptions::steer`]). With a [`Cache`] the engine serves it; the rest of this
//! page is about that.
//!
//! * Pages in memory never exceed the cache's capacity.
//! * Pages are read past the kernel's page cache, evicted in batches, and written back in sorted, merged runs.
//! * Misses are served in the faulting thread, through userfaultfd(2). No privilege and no kernel module is needed.
//!
//! The design follows FastMap (Papagiannis et al., USENIX ATC 2020).
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
//! * A system call that is given a slice of a map (`write(2)` from it, `read(2)` into it) can fail with EFAULT, since
//!   pages come and go. A read with direct I/O into a slice can succeed and its bytes be lost. Pin the range first
//!   ([`Map::pin`], [`MapMut::pin_mut`]), or copy ([`Map::read_at`], [`MapMut::write_at`]).
//! * A load or store that cannot be served raises SIGBUS. [`Map::pin`], [`Map::read_at`] and [`Map::get_at`] return an
//!   error instead.
//! * The first cached map installs a SIGBUS handler. It chains to the handler before it for signals that are not its
//!   own. The first miss ends the process if its thread blocks SIGBUS, or if a handler was installed later that does
//!   not chain.
//! * A child made by fork(2) has no maps: touching one is a fault or worse. After exec(2) nothing is left to care
//!   about.
//! * A store reaches the file by write-back, when the file's last map is dropped, at exit, or by [`MapMut::flush`].
//!   Only the flush waits for stable storage. When the program is killed, crashes or calls exec(2), a process beside
//!   it, the keeper, writes the rest; [`CacheBuilder::keeper`] says when it cannot.
//! * One process at a time maps a file mutable; another gets [`Error::Locked`] ([`MapOptions::one_writer`]). A file
//!   that is mapped by address ([`by_address`]) to be read becomes the kernel's when somebody opens it to write.

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
pub mod size;
mod store;
mod sys;
#[cfg(test)]
mod tests;
mod writeback;

/// The package's page on crates.io: its example compiles.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;

/// Chooses how page faults of cached maps are served: by the faulting thread, in a signal handler, or by threads of
/// the engine.
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
