//! Calls on files: read(2), write(2) and all other calls that read or change a file.
//!
//! Buffers in engine mappings are copied (`copy`). A file that the engine maps is kept coherent (`coherence.rs`): before
//! a call reads, the stores to its mappings are written to the file; while a call writes, no thread can reach the pages
//! that it changes.
//!
//! Some functions are also called from elsewhere in this library. Each of these is an ordinary function here, and
//! `exported!` makes an exported wrapper of it, with the C library's name. The library calls the ordinary function: the
//! linker would redirect a call by the exported name to the C library (`next`).
//!
//! This room calls `own`, `next`, `copy`, `objects`, `mappings` and `processes`.

mod between;
pub(crate) mod coherence;
pub(crate) mod descriptors;
mod lengths;
mod memory;
mod open;
mod read_write;

pub(crate) use between::{cloning, copy_file_range, sendfile64, splice};
pub(crate) use lengths::seeking_object;
pub(crate) use memory::{process_vm_readv, process_vm_writev, vmsplice};
pub(crate) use open::opening;
pub(crate) use read_write::{
    pread64, preadv64, preadv64v2, pwrite64, pwritev64, pwritev64v2, read, readv, write, writev,
};

use libc::off_t;

/// The place where a call reads or writes.
#[derive(Clone, Copy)]
pub enum At {
    /// The descriptor's position, which the call moves.
    Position,
    Offset(off_t),
}

impl At {
    /// The place that preadv2(2) means by an offset: -1 is the descriptor's position.
    fn or_position(offset: off_t) -> At {
        if offset == -1 { At::Position } else { At::Offset(offset) }
    }

    /// The offset argument of the next call, after `done` bytes.
    pub fn after(self, done: usize) -> off_t {
        match self {
            At::Position => -1,
            At::Offset(offset) => offset.wrapping_add(done as off_t),
        }
    }
}
