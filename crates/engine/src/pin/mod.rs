//! Pages kept in memory.
//!
//! Owns pins and what is copied under them. May call: `fault` and the rooms above it.
//!
//! # What a pin costs
//!
//! To pin a page that is in memory, and let it go, takes four atomic operations, or two if others have pinned it. It takes
//! no system call, signal mask, allocation or lock.
//!
//! # How many pages may be pinned
//!
//! All but a sixteenth of the capacity, but never the last 16 pages; in the smallest caches a quarter. So a fault that waits
//! for room waits for pages that can go. If there is no pinnable frame for a page of a range, the range is let go again, and
//! that is an error.
//!
//! Copies (`read_at`, `get_at`, `write_at`) pin one page at a time and may overdraw their core's share. A thread that holds a
//! pin beyond the budget must touch no other memory of the cache, so such a copy goes through a page on the stack.
//!
//! # Queue entries
//!
//! A thread that evicts drops the queue entry of a pinned page that it meets. So a thread that lets a page go queues it
//! again if it is clean, without pins, flags and entry. Of several such threads the one that sets QUEUED does so.

#[allow(clippy::module_inception)]
pub mod fetch;
pub mod gather;
#[allow(clippy::module_inception)] // the room is named after what it is about
pub mod pin;
