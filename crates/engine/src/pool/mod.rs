//! State that belongs to the memory budget: free frames, clean queues, replacement, buffers, and the queues of the threads that serve it.
//! Nothing in this room acts on a page.
//!
//! Owns the counts of frames and pins, the queues of clean pages, staging memory, streams, rings. May call: `sys`,
//! `page`, `counters`, `store`.
//!
//! # Memory that the engine takes
//!
//! * Per page of a mapped file that was touched: 4 bytes of page word, a dirty bit and a bit of summaries, and the kernel's 8 bytes of page
//!   table. A file that is touched everywhere costs 0.3 % of its size. Nothing takes this back while the file is mapped, unless the file is
//!   more than 64 times as large as the cache (`evict/bookkeeping.rs`).
//! * Per block of 16 MiB: 9 bytes of age and predictions, 512 bytes of holes.
//! * Per 2 MiB of a file: 4 bytes that say when pages there were last evicted.
//! * Per page of the largest capacity so far: 8 bytes of clean queue.
//! * Per core: 256 KiB of read buffers if 64 threads read at once (2 MiB at a time from eight cores on, in huge pages); 12 KiB to put batches
//!   together; 128 bytes of counters for each mapped file.
//! * Per cache, for runs (`runs.rs`): 16 KiB of notes, and 2 MiB of read buffers if 8 runs of 64 pages or more are read at once.
//! * Per ring, two a core and 16 at most: 24 KiB.
//! * Per reader: a context of 32 KiB for its reads. Once something was prefetched: 2 MiB of buffers and up to 256 KiB of requests.
//! * For storage far away: the stacks of the 64 threads that read from there, 64 KiB each, of which a page or two is used. Large pieces have
//!   free frames for their buffers.
//! * Per fill thread: a ring, and up to 3 MiB of store buffers. Per region that uses it: a bit a page and 4 bytes a block.
//!
//! Large tables use huge pages.
//!
//! A cache needs two pages, better four, for every thread that loads or stores across a page border at the same time. With fewer, such
//! threads take each other's pages away; they get on, but slowly.
//!
//! # Another capacity
//!
//! `Cache::resize` (`evict/room.rs`) issues free frames or destroys them. To destroy, it takes idle ones from all shares at once, else evicts
//! a batch and keeps its frames, else writes dirty pages back. Before that it takes back the pinnable frames that the smaller capacity has no
//! room for; if it cannot, it fails, and nothing has changed. The capacity goes down with each batch destroyed, so it is always the number of
//! frames issued.
//!
//! The capacity of a cache without a budget of its own follows the memory that the process's group (cgroups(7)) leaves: `auto_capacity.rs`
//! decides, and a thread looks and resizes (`evict/follow.rs`).

pub mod ahead;
pub mod attachment;
pub mod auto_capacity;
pub mod clean_queues;
pub mod free_frames;
pub mod loops;
pub mod mailbox;
#[allow(clippy::module_inception)] // the room is named after the type that it is about
pub mod pool;
pub mod read_buffers;
pub mod read_times;
pub mod reader;
pub mod replacement;
pub mod rings;
pub mod runs;
pub mod staging;
pub mod streams;
pub mod turn;
pub mod waiting;
