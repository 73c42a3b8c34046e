//! Objects of a store that appear as files at paths (`fastmap run --object URL=PATH`). They are read-only, and their mappings are the engine's.
//!
//! `fastmap run` has started a server and left a session. The session is a folder that an environment variable names. It says which objects there
//! are, and holds the memory through which parts of them are asked for (`session.rs`).
//!
//! The path of an object stands for its local copy: a sparse file of the object's length in the tier's folder (`fastmap_tier`). The C library
//! opens this file, and tells about it (`paths.rs`). So descriptors, positions, dup(2), fork(2) and exec(2) are the kernel's. Device and inode
//! tell whether an open file is an object's.
//!
//! Parts that nobody has fetched yet are holes in the local copy. So every read has its range fetched first, and checks page by page what it has
//! read (`read.rs`). A mapping is the engine's, or a copy (`mappings/objects.rs`).
//!
//! Without a session each call costs one load. This room calls `own`, `next` and `copy`. The tables of `copy` call this room.

mod paths;
mod read;
mod session;

pub(crate) use paths::{is_denied, is_fixed, is_kept, is_there, reached, shown, tell};
pub(crate) use read::{Read, ask, fill, read};
pub(crate) use session::{begin, is_hidden, next_hidden};

use crate::next;
use crate::own::remembered::Seen;
use crate::own::{errno, set_errno};
use fastmap_tier::TierOrigin;
use libc::c_int;
use std::ffi::CString;
use std::mem::MaybeUninit;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// One object.
pub(crate) struct Object {
    /// The folder in which it appears, with its slash. `name` is its name there.
    folder: CString,
    name: Vec<u8>,
    /// Its local copy, which the session's server fills. `copy` is that file's path, `identity` its device and inode.
    pub origin: Arc<TierOrigin>,
    copy: CString,
    identity: (u64, u64),
    pub len: u64,
    /// When it was last modified, seconds since 1970.
    modified: i64,
    /// For reading ahead: `ends` is where the last read ended, `asked` how far the object has been asked for, `window` how many bytes are asked
    /// for ahead.
    ends: AtomicU64,
    asked: AtomicU64,
    window: AtomicU64,
}

/// Whether the process has a session with objects.
static ANY: AtomicBool = AtomicBool::new(false);

/// Whether there are objects.
#[inline]
pub(crate) fn any() -> bool {
    ANY.load(Ordering::Relaxed)
}

fn by_identity(identity: (u64, u64)) -> Option<&'static Object> {
    session::objects().iter().find(|object| object.identity == identity)
}

/// The object behind a descriptor; errno stays as it is.
#[inline]
pub(crate) fn of(fd: c_int) -> Option<&'static Object> {
    if any() { find(fd) } else { None }
}

fn find(fd: c_int) -> Option<&'static Object> {
    let seen = Seen::of(fd);
    if seen.is_plain() {
        return None;
    }
    let before = errno();
    let mut stat = MaybeUninit::<libc::stat>::uninit();
    // SAFETY: the kernel fills the structure where the call returns 0.
    let identity = unsafe {
        (next::syscall(libc::SYS_fstat, fd.into(), stat.as_mut_ptr() as libc::c_long, 0, 0, 0, 0) == 0)
            .then(|| (stat.assume_init_ref().st_dev, stat.assume_init_ref().st_ino))
    };
    set_errno(before);
    let found = by_identity(identity?);
    if found.is_none() {
        seen.note_plain();
    }
    found
}
