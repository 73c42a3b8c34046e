//! What the memory budget owns, and no act: free frames, clean queues, replacement, buffers, the queues of the threads
//! that serve it.
//!
//! Owns the counts of frames and pins, the queues of clean pages, staging memory, streams, rings. May call: `sys`,
//! `page`, `counters`, `store`.
//!
//! # Memory that the engine takes
//!
//! Per page of a mapped file that was touched: 4 bytes of page word, a dirty bit and a bit of summaries, and the
//! kernel's 8 bytes of page table. Nothing takes page words back while the file is mapped: a file much larger than the
//! cache, touched everywhere, costs 0.3 % of its size. Per block of 16 MiB: 9 bytes of age and predictions, 512 of
//! holes; per 2 MiB: 4 bytes that say when it was last evicted. Per page of the largest capacity so far: 8 bytes of clean queue. Per core: 256 KiB of read buffers if 64
//! threads read at once (2 MiB at a time from eight cores on, in huge pages), 12 KiB to put batches together; for runs (`runs.rs`) 2 MiB
//! of read buffers if 8 of 64 pages or more are read at once, and 16 KiB of notes; with each
//! mapped file 128 bytes of counters. Per ring, two a core and 16 at most: 24 KiB. Per reader: a context of 32 KiB for its reads, and once
//! something was prefetched 2 MiB of buffers and up to 256 KiB of requests. Large pieces from storage far away have free frames for their buffers; the 64
//! threads that read from there have stacks of 64 KiB, of which a page or two is used. Per fill thread: a ring, and up to 3 MiB of store buffers; per region that
//! uses it a bit a page and 4 bytes a block. Large tables use huge pages.
//!
//! A cache needs two pages for every thread that stores or loads across a page border at the same time, better four:
//! with fewer such threads take each other's pages away, and get on, but slowly.
//!
//! # Another capacity
//!
//! `Cache::resize` (`evict/room.rs`) issues free frames or destroys them. To destroy, it takes idle ones from all
//! shares at once, else evicts a batch and keeps its frames, else writes dirty pages back. Pinnable frames that the
//! smaller capacity has no room for are taken back before that, or it is an error and nothing has changed. The capacity
//! goes down with each batch destroyed, so it is always the number of frames issued.
//!
//! That of a cache without a budget of its own follows what the process's group leaves: `auto_capacity.rs` decides, a
//! thread looks and resizes (`evict/follow.rs`).

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
