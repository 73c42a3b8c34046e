//! mmap(2) and its kin by address: what `libfastmap.so` and `libfastmap_preload.so` are made of.
//!
//! The functions have the arguments and the error numbers of the calls that they are named after, and do the kernel's part, too: a range may lie
//! across maps of the cache and other memory.
//!
//! All maps of a file have the same addresses for the same bytes of the file. A file that is mapped twice has the same address twice, and is to
//! be unmapped twice: its maps lie in *layers*. Maps share addresses only if they may be used alike, so that none can be told from another, and
//! only where the caller wants it ([`Request::layers`]).
//!
//! The cache does not imitate
//!
//! * a file mapped at two places;
//! * a part that is protected otherwise than the rest of its map, or mapped over;
//! * executable pages;
//! * advice that changes what memory is;
//! * a map that outgrows its addresses while the file has others.
//!
//! Each of these *converts* the file: all of its maps become ordinary kernel mappings, in place (`convert.rs`), and the kernel does the rest.

mod access;
mod advice;
mod convert;
mod direct;
mod fork;
mod gather;
mod keep;
mod kernel_mappings;
mod leave;
mod locks;
mod lookup;
mod map;
mod own;
mod prefetch;
mod protect;
mod remap;
mod sync;
mod table;
mod unmap;
mod why;

pub use crate::files::keeper::register_in as register_keeper_in;
pub use access::{is_cached, read, write};
pub use advice::{advise, residency};
pub use convert::{alone, await_stores, is_kernels, note_kernel, note_replaced};
pub use direct::{Direct, flushed_bytes, holds_direct, is_copied_on_write, is_in_memory, leave_to_kernel, map_direct};
pub use fork::{
    before_fork, in_child, in_parent, is_object_in_child, leave_descriptor_to_kernel, resolve_in_child, save_all,
    to_be_written,
};
pub use gather::gather;
pub use keep::{keep, let_go};
pub use kernel_mappings::Made;
pub use leave::{follow_rights, is_alone, is_in_child, leave, leave_all_to_kernel, own_thread};
pub use locks::{PinnedRange, lock, pin, unlock, unlock_all};
pub use lookup::{concerns, holds};
#[cfg(all(test, not(loom)))]
pub(crate) use map::map_as;
pub use map::{Request, await_closing, map, map_origin};
pub use own::{Owner, own};
pub use prefetch::{expect_backward, populate, prefetch, prefetch_wait, set_readahead};
pub use protect::{leave_file_to_kernel, protect};
pub use remap::remap;
pub use sync::{async_read, initial_line, sync, synchronise};
pub use unmap::{make_way, unmap};
pub use why::{Served, Why, listen, say_kernels, say_no_engine};
