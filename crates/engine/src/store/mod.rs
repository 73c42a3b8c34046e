//! Where the bytes of a region live.

mod file;

pub use file::{FileStore, ReadEnd};
