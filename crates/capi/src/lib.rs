//! `libfastmap.so`: FastMap for C and C++, shaped like mmap(2).
//!
//! Every function here is C's, and its comment is what `fastmap.h` says of it (cbindgen makes the one from the other: `make
//! header`). What they do is in the crate `fastmap`, mostly in its module `by_address`; here arguments are checked that the engine takes
//! for granted, errors become errno and a text, and panics become errors (`boundary.rs`).
//!
//! `caches.rs` has the handles, `maps.rs` mmap(2) and its kin, `reach.rs` what goes beyond them, `objects.rs` objects of a store, `store.rs`
//! the library that they are opened with, `processes.rs` fork(2).

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
