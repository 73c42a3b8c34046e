//! Calls on files: read(2), write(2) and what else changes a file. Buffers in mappings are copied (`copy`), and a file
//! that the engine has mapped is kept coherent (`coherence.rs`): before a call reads, what was stored is written to the
//! file; while a call writes, the pages that it changes are out of every thread's reach.
//!
//! Functions that are called from elsewhere in this library have a name of their own inside the exported one: the
//! linker would take a call of `read` in here for one of the C library's (`next`). Calls `own`, `next`, `copy` and
//! `processes`.

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

/// Where a call reads or writes.
#[derive(Clone, Copy)]
pub enum At {
    /// At the descriptor's position, which moves.
    Position,
    Offset(off_t),
}

impl At {
    /// preadv2(2)'s offset, of which -1 means the descriptor's position.
    fn or_position(offset: off_t) -> At {
        if offset == -1 { At::Position } else { At::Offset(offset) }
    }

    /// The offset argument after `done` bytes.
    pub fn after(self, done: usize) -> off_t {
        match self {
            At::Position => -1,
            At::Offset(offset) => offset.wrapping_add(done as off_t),
        }
    }
}
