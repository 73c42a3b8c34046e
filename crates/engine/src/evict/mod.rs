//! Pages out of memory: to make room, and to take them out of reach of a file operation.
//!
//! Owns the search for a free frame, batches of evictions, the thread that has a cache's capacity follow memory, staged chunks that are given up, and invalidation. May call:
//! `writeback`, `deferred`, `region` and the rooms above it.
//!
//! # Why no store is lost
//!
//! A page that is Clean without UPGRADING or WRITING is write-protected, always. Once its word says Evicting, a store
//! traps, finds that state and sleeps until the page is Absent; then it loads it anew, with what the file holds. Loads
//! go on hitting the page until it is dropped; its contents equal the file's. A page that was refused loses its queue
//! entry (flag QUEUED) and gets a new one when its write ends or its last pin goes, so it has at most one entry and the
//! queues' memory is bounded.
//!
//! A batch is 512 pages, in caches below 128 MiB a 64th of them. Each core may evict from any core's queues: before,
//! each emptied its own first, and a thread that was moved to another core lived on the 512 pages it had got there and
//! never touched those it left behind (a run of the shifting trace: 62 % of hits instead of 84 %).
//!
//! An invalidated page's entry stays in its clean queue: to find it would take as long as the queue is. The word
//! remembers it (QUEUED, also in Absent, Loading and Staged). Entries of pages that stay away are *void*; when there
//! may be more of them than an eighth of the capacity they are looked for and removed (`CleanQueues::note_void`),
//! before the frames of those pages are given up.

pub mod batch;
mod bookkeeping;
pub mod follow;
pub mod invalidate;
pub mod room;
pub mod staged;
