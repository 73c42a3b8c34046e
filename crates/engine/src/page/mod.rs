//! The state of one page of a file: its word, its dirty bit, its name in a queue.
//!
//! Owns the page words' transitions ([`word`] alone changes a state), the dirty bitmap, and how a region and its pages are named.
//! May call: `sys`.

pub mod claims;
pub mod dirty;
pub mod entry;
pub mod word;
