//! `libfastmap.so`: FastMap for C and C++, shaped like mmap(2).
//!
//! C programs call the functions here. cbindgen makes `fastmap.h` from them and from their comments (`make header`). The crate `fastmap` does
//! the work, mostly in its module `by_address`. This crate checks the arguments that the engine takes for granted. It turns errors into errno
//! and a text, and panics into errors (`boundary.rs`).
//!
//! * `maps.rs`: mmap(2) and its kin
//! * `reach.rs`: functions that mmap(2) has no counterpart of
//! * `objects.rs`: objects of a store; `store.rs`: the library that opens them
//! * `caches.rs`: caches and their counters
//! * `said.rs`: messages about files that the kernel serves although a cache was asked for
//! * `processes.rs`: fork(2)

#![expect(clippy::missing_safety_doc, reason = "for C everything is unsafe, and the comments are the header's")]
#![expect(non_camel_case_types, reason = "C's names")]

// The header has them in this order.
mod maps;

mod reach;
mod said;

mod objects;

mod store;

mod caches;

mod boundary;

mod processes;

pub use boundary::fm_last_error;
pub use caches::{fm_cache, fm_cache_create, fm_cache_destroy, fm_cache_resize, fm_stats};
pub use maps::*;
pub use objects::{fm_object_stats, fm_open_url, fm_url_options, version_at};
pub use reach::*;
