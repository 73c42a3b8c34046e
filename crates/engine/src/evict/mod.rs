//! Pages out of memory: to make room, and to take them out of reach of a file operation.
//!
//! Owns the search for a free frame, batches of evictions, the thread that adapts a cache's capacity to memory, the dropping of staged
//! chunks, and invalidation. May call: `writeback`, `deferred`, `region` and the rooms above it.
//!
//! # Why no store is lost
//!
//! A page that is Clean without UPGRADING or WRITING is always write-protected. Once its word says Evicting, a store
//! traps, finds that state and sleeps until the page is Absent. Then it loads the page anew from the file. Loads
//! go on hitting the page until it is dropped; its contents equal the file's.
//!
//! # Queue entries
//!
//! A page has at most one entry in the clean queues (flag QUEUED), so their memory is bounded. A page that may not be
//! evicted loses its entry, and gets a new one when its write ends or its last pin goes.
//!
//! The entry of an invalidated page stays in its queue, since to find it would take as long as the queue is. The word
//! remembers it (QUEUED, also in Absent, Loading and Staged). As long as the page is not in memory the entry is *void*.
//! When there may be more void entries than an eighth of the capacity they are looked for and removed
//! (`CleanQueues::note_void`), before the frames of those pages are given up.
//!
//! # Batches
//!
//! A batch is 512 pages, or a 64th of a cache below 128 MiB. Each core may evict from any core's queues. When each core
//! emptied its own queues first, a thread that was moved to another core lived on the 512 pages that it had got there, and
//! never touched those it had left behind (a run of the shifting trace: 62 % of hits instead of 84 %).

pub mod batch;
mod bookkeeping;
pub mod follow;
pub mod invalidate;
pub mod room;
pub mod staged;
