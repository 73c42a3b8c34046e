//! System calls on mapped files: the work before and after them that makes them and the mapping see and change the same
//! bytes.
//!
//! The cache is not the page cache. A program that maps a file through this crate, and also calls read(2), write(2),
//! ftruncate(2) or the like on it, sees one file only if these calls are accompanied:
//!
//! * Before a read, stores that are not in the file yet are written to it.
//! * Before a write, the pages that it changes are taken out of memory. A thread that touches one waits until the call is
//!   over.
//!
//! The preload library does this for programs that know nothing of this crate. Other programs can do it themselves, for
//! their own calls or for those of a library that they hand the file to.
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
//! * Signals are blocked in the calling thread while a [`Writing`], [`Resizing`] or [`Position`] lives. So the memory that
//!   the call reads from or writes to must not lie in a mapping of this crate: copy through other memory.
//! * Large calls are best made in pieces ([`PIECE`]).
//! * A thread has one [`Writing`] or [`Resizing`] at a time. With more, two threads might wait for each other for ever. A
//!   [`Position`] comes before either.
//! * A thread that has a [`Writing`] or [`Resizing`] flushes and maps nothing of the file until that is gone. (With a
//!   [`Resizing`] this fails with EDEADLK.) Flushes of the file by other threads wait while a [`Resizing`] lives.
//! * Reads and writes may be accompanied in signal handlers too. Nothing there allocates memory, except for the first write
//!   to a file that is mapped for reading only.
//! * Errors are error numbers (errno(3)).
//!
//! May call: `files` and the rooms above it.
//!
//! # How it is done
//!
//! *Finding the file.* A file is found by its numbers from stat(2), without a lock. A static table counts the hashes of
//! these numbers for all files in the engine, so any other file costs one load.
//!
//! *Reads.* Before a read the range's dirty pages are written. If no page word of the range shows a store that may be
//! missing in the file, nothing is done.
//!
//! *Writes.* After a write, pages that it wrote whole are installed from its data where there are free frames. The others
//! are let go, absent.
//!
//! *Truncations.* Pages that are to be cut off are not saved, so a file on a full disk can be truncated. They stay in
//! Evicting, protected, until the call has succeeded and they are dropped, or has failed and they are Dirty again.
//!
//! *Conversions* make maps the kernel's (`to_kernel`). A trap that was taken before may come to the handler when the region
//! is gone. The kernel is then asked to do the access (`MADV_POPULATE_READ`, `_WRITE`), which tells it from a trap past the
//! file's end. A converted region's values stay for good: nobody knows when the last thread has left the handler.

mod resizing;
mod syscalls;
pub(crate) mod to_kernel;
mod writing;

pub use crate::region::in_flight::DESCRIPTIONS;
pub use resizing::Resizing;
pub use syscalls::{MappedFile, PIECE, Position, any, by_stat, epoch, file, may_know};
pub use writing::Writing;
