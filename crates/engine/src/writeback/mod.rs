//! Dirty pages to the file.
//!
//! Owns batches of writes, the sweep over dirty blocks, flushes, and the threads that write in the background. May
//! call: `deferred`, `region` and the rooms above it.
//!
//! # Who writes
//!
//! The unit is a block of 4096 pages; a write lock guards every 64th block, and a flight holds the locks of its blocks
//! until the last of their writes has ended. A flight goes on with the next block while writes of the one before are
//! under way.
//!
//! * *The writers*: one a processor, four at most, 16 where io_uring is not allowed. Each owns a stripe of the blocks
//!   (number modulo their count), so no two want one lock. They sweep from the high mark to the low one (two thirds of
//!   it), in file order from where they stopped; they write what was dirty at four ticks in 30 s
//!   (`CacheBuilder::dirty_expire`) and what was filled from front to back; they carry out large flushes; and every 200
//!   ms they try again what could not be written.
//! * *A fault* that finds neither a free frame nor a clean page writes 512 pages, in blocks that no other thread is
//!   writing (direct reclaim).
//! * *A flush*: up to 256 dirty pages by the calling thread; more are a request for the writers, one part each.
//!   `MapMut::flush_async` always is one. Locks are waited for in ascending order, or only tried.
//!
//! A page with write pins is written without protecting it by a flush and by expiry (Dirty+WRITING, then Dirty, its bit
//! set again before the lock is released), so what was stored before the flush is in the file, and the next flush
//! writes it again. A sweep, which wants clean pages, passes it over and does not count it.
//!
//! Nothing past the file's end is written: the length is asked for before each run, and before each batch of at most 32
//! that goes into a ring. The kernel holds the inode's lock instead; here a cut may fall between the question and the
//! write, for microseconds, or for as long as the kernel puts a write of a ring off, and is then undone. A device that
//! has shrunk or gone refuses what lies behind its end (ENOSPC, EIO), unlike a file that was truncated, whose cut-off
//! pages are not wanted.
//!
//! A scratch region's pages are written for room alone: the high mark, direct reclaim, a resize. `discard` is a
//! write-back without the write: bits taken, pages claimed, protected and finished as if saved, the file's bits
//! cleared. Every transition is one that write-back has anyway.

pub mod flight;
pub mod flush;
pub mod sweep;
pub mod threads;
