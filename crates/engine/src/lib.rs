//! Memory-mapped files behind ordinary pointers, in user space, with a hard memory budget.
//!
//! A [`Map`] derefs to the bytes of a file, as `memmap2`'s does, but its pages come from a [`Cache`] of this crate and
//! not from the kernel's page cache: they never exceed the cache's capacity, are read past the page cache, evicted in
//! batches, and written back in sorted, merged runs. No privilege and no kernel module is needed; misses are served in
//! the faulting thread through userfaultfd(2). The design follows FastMap (Papagiannis et al., USENIX ATC 2020).
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
//!   come and go, or, reading with direct I/O into it, succeed and have its bytes lost: pin the range first ([`Map::pin`],
//!   [`MapMut::pin_mut`]), or copy ([`Map::read_at`], [`MapMut::write_at`]).
//! * A load or store that cannot be served raises SIGBUS. [`Map::pin`], [`Map::read_at`] and [`Map::get_at`] return an error.
//! * The crate installs a SIGBUS handler with the first map and hands on what is not its own. A thread that blocks
//!   SIGBUS, or a handler installed later without handing on, ends the process at the first miss.
//! * A child made by fork(2) has no maps (touching one is a fault or worse); after exec(2) nothing is left to care about.
//! * A store reaches the file by write-back, when the last map is dropped, at exit, or by [`MapMut::flush`], which alone
//!   waits for stable storage. When the program is killed, crashes or calls exec(2), its keeper writes the rest
//!   ([`CacheBuilder::keeper`], which also says what it cannot do).
//! * One process at a time maps a file mutable; another is refused ([`MapOptions::one_writer`]).

#[cfg(not(all(target_os = "linux", target_arch = "x86_64")))]
compile_error!("fastmap needs Linux on x86-64: it reads the kind of a page fault from the signal's saved context");

mod ahead;
mod behind;
mod cache;
pub mod calls;
mod children;
mod clean;
pub mod coherent;
mod contents;
mod credits;
mod decode;
#[cfg(all(test, not(loom)))]
mod decode_tests;
pub mod descriptors;
mod direct;
mod dirty;
mod dirty_pages;
mod error;
mod evict;
mod extents;
mod fault;
pub mod faults;
#[cfg(all(test, not(loom)))]
mod faulty_tests;
mod file_lock;
mod files;
mod flush;
mod ghosts;
mod habits;
mod handover;
mod holes;
mod keeper;
mod kernel;
pub mod live;
mod lock;
mod lookahead;
mod map;
mod mechanism;
mod merger;
#[cfg(all(test, loom))]
mod models;
mod options;
mod others;
mod page;
mod pinning;
mod pins;
mod prefetch;
mod reader;
mod readers;
mod region;
mod registry;
pub mod requirements;
mod resizes;
mod rings;
mod scratch;
mod seize;
mod service;
pub mod signals;
mod sizes;
mod slots;
mod spans;
mod staging;
mod stats;
mod store;
mod streams;
mod sync;
mod sys;
mod tally;
mod walks;
mod writeback;
mod writers;

pub use cache::{Cache, CacheBuilder};
pub use direct::{Mode, Persist};
pub use error::{Error, Result};
pub use files::Fallback;
pub use flush::{Flush, Unsaved};
pub use lookahead::Lookahead;
pub use map::{Advice, Engine, Map, MapMut};
#[doc(hidden)]
pub use mechanism::Mechanism;
pub use options::MapOptions;
pub use pins::{Pinned, PinnedMut};
pub use stats::Stats;
