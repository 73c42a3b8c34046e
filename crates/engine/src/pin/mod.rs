//! Pages kept in memory.
//!
//! Owns pins and what is copied under them. May call: `fault` and the rooms above it.
//!
//! # What a pin costs
//!
//! A page that is there: no system call, no signal mask, no allocation, no lock; four atomic operations, two for a page
//! that others have pinned. All but a sixteenth of the capacity may be pinned, and 16 pages at least always go round
//! (in the smallest caches a quarter may be pinned), so a fault that waits for a page waits for one that can go. A
//! range that finds no pinnable frame is let go again, and that is an error. Copies (`read_at`, `get_at`, `write_at`)
//! pin one page at a time and may overdraw their core's share; then they go through a page on the stack, for a thread
//! that holds a pin beyond the budget must touch no other memory of the cache. An evictor that meets a pinned page
//! drops its queue entry, so `unpin` requeues a page that is left clean without pins, flags and entry; of several such
//! threads one sets QUEUED and pushes.

#[allow(clippy::module_inception)]
pub mod fetch;
pub mod gather;
#[allow(clippy::module_inception)] // the room is named after what it is about
pub mod pin;
