//! The public face for Rust: caches, options and maps.
//!
//! May call: `files`, `pin`, `direct` and the rooms above them.

mod agree;
pub mod cache;
pub mod cached;
pub mod copies;
mod deferred;
mod face;
pub mod flush;
pub mod gather;
pub mod kernel;
pub mod lookahead;
#[allow(clippy::module_inception)]
pub mod map;
pub mod map_mut;
pub mod mapping;
mod open;
pub mod options;
pub mod pins;
mod scratch;
