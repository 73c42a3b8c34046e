//! Dirty pages to the file.
//!
//! Owns batches of writes, the sweep over dirty blocks, flushes, and the threads that write in the background. May
//! call: `deferred`, `region` and the rooms above it.
//!
//! # Who writes
//!
//! The unit is a block of 4096 pages. A region has 64 write locks; lock `n` guards the blocks whose number modulo 64 is
//! `n`. A *flight* is the writes that one thread has under way in one region. It holds the locks of its blocks until their
//! last writes have ended, and goes on with the next block meanwhile.
//!
//! * *The writers*: one a processor, four at most; 16 where io_uring is not allowed. Each owns a stripe of the blocks
//!   (number modulo the count of writers), so no two want one lock. They have four tasks:
//!   * They sweep from the high mark down to the low one (two thirds of it), in file order from where they stopped.
//!   * They write blocks that were dirty at four ticks in 30 s (`CacheBuilder::dirty_expire`), and blocks that were filled
//!     from front to back.
//!   * They carry out large flushes.
//!   * Every 200 ms they try again to write what could not be written.
//! * *A fault* that finds neither a free frame nor a clean page writes 32 pages, in blocks that no other thread is
//!   writing (direct reclaim).
//! * *A flush*: the calling thread writes up to 256 dirty pages. More are a request to the writers, one part each.
//!   `MapMut::flush_async` always is such a request. Locks are waited for in ascending order, or only tried.
//!
//! # Write pins
//!
//! A flush, and expiry, write a page with write pins without protecting it (Dirty+WRITING, then Dirty, its bit set again
//! before the lock is released). So stores from before the flush are in the file, and the next flush writes the page again.
//! A sweep wants clean pages, so it passes such a page over and does not count it.
//!
//! # The file's end
//!
//! Nothing past the file's end is written: the length is asked for before each run, and before each batch of at most 32
//! runs that goes into a ring. (The kernel holds the inode's lock instead.) A truncation may fall between the question and
//! the write, and is then undone. The time for that is microseconds, or as long as the kernel puts off a write of a ring.
//!
//! A device that has shrunk or gone refuses writes behind its end (ENOSPC, EIO). A truncated file is different: its
//! cut-off pages are not wanted.
//!
//! # Scratch regions
//!
//! Pages of a scratch region are written only to make room: above the high mark, in direct reclaim, in a resize. `discard`
//! is write-back without the write: bits are taken, pages are claimed, protected and finished as if they were saved, and
//! the file's bits are cleared. Every transition is one that write-back has anyway.

pub mod flight;
pub mod flush;
pub mod sweep;
pub mod threads;
