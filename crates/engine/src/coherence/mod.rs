//! System calls on files that are mapped: what to do before and after them, so that they and the mapping see and change
//! the same bytes.
//!
//! The cache is not the page cache. A program that both maps a file through this crate and calls read(2), write(2),
//! ftruncate(2) or the like on it sees one file only if these calls are accompanied: before a read, stores that are not
//! in the file yet are written to it; before a write, the pages that it changes are taken out of memory, and every
//! thread that touches one waits until the call is over. That is what the preload library does for programs that know
//! nothing of this crate. A program that does know can do the same, for its own calls or those of a library that it
//! hands the file to.
//!
//! ```
//! # fn main() -> std::io::Result<()> {
//! use fastmap::{MapOptions, coherence};
//! use std::os::{fd::AsRawFd, unix::fs::FileExt};
//!
//! # let folder = tempfile::tempdir_in(".")?;
//! # let file = std::fs::OpenOptions::new().read(true).write(true).create(true).open(folder.path().join("data"))?;
//! file.set_len(1 << 20)?;
//! // SAFETY: nobody else changes the file.
//! let mut map = unsafe { MapOptions::new().map_mut(&file)? };
//! map[100] = 1;
//! if let Some(mapped) = coherence::file(file.as_raw_fd()) {
//!     mapped.before_read(0..4096).map_err(std::io::Error::from_raw_os_error)?;
//! }
//! let mut byte = [0];
//! file.read_exact_at(&mut byte, 100)?;
//! assert_eq!(byte, [1]);
//!
//! let mapped = coherence::file(file.as_raw_fd());
//! let writing = mapped.as_ref().map(|mapped| mapped.writing(100..101)).transpose();
//! let writing = writing.map_err(std::io::Error::from_raw_os_error)?;
//! file.write_all_at(&[2], 100)?;
//! // SAFETY: no reference into the map lives.
//! writing.into_iter().for_each(|writing| unsafe { writing.done() });
//! assert_eq!(map[100], 2);
//! # Ok(())
//! # }
//! ```
//!
//! # Rules
//!
//! Reads and writes may be accompanied in signal handlers too: nothing there allocates memory, but for the first write
//! to a file that is mapped for reading only. Signals are blocked in the calling
//! thread while a [`Writing`], [`Resizing`] or [`Position`] lives, so whatever the call reads from or writes to must
//! not lie in a mapping of this crate: copy it through other memory. Large calls are best made in pieces ([`PIECE`]).
//! Of several, a [`Position`] comes first, and a thread has one [`Writing`] or [`Resizing`] at a time: two threads that
//! each wait for the other's would do so for ever. Flushes of the file by other threads wait while a [`Resizing`]
//! lives; the thread that has one or the other flushes and maps nothing of the file until it is gone (with a
//! [`Resizing`] that fails with EDEADLK).
//!
//! Errors are error numbers (errno(3)).
//!
//! May call: `files` and the rooms above it.
//!
//! # How it is done
//!
//! A file is found by what stat(2) says of it, without a lock: a static table counts the hashes of the names of all
//! files in the engine, so that any other file costs one load. Before a read the range's dirty pages are written; if no
//! word of it shows a store on its way, nothing is done. After a write, pages that it wrote whole are installed from
//! its data where there are free frames; the others are let go, absent. What a truncation is to cut off is not saved:
//! it stays in Evicting, protected, until the call has succeeded and it is dropped, or has failed and it is Dirty
//! again, so a file on a full disk can be truncated. A trap that was taken before a conversion and comes to the handler
//! when the region is gone is told from one past the end by asking the kernel to do the access (`MADV_POPULATE_READ`,
//! `_WRITE`). A converted region's values stay for good: nobody knows when the last thread has left the handler.

mod resizing;
mod syscalls;
pub(crate) mod to_kernel;
mod writing;

pub use crate::region::in_flight::DESCRIPTIONS;
pub use resizing::Resizing;
pub use syscalls::{MappedFile, PIECE, Position, any, by_stat, epoch, file, may_know};
pub use writing::Writing;
