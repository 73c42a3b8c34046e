//! Objects of a store that are as files at paths (`fastmap run --object URL=PATH`): read-only, and the engine's when they are mapped.
//!
//! `fastmap run` has started a server, and left a session: a folder, named in the environment, that says which objects there are, and
//! holds the memory in which parts of them are asked for (`session.rs`). The path of an object stands for its local copy, a sparse file of
//! the object's length in the tier's folder (`fastmap_tier`): that is what the C library opens and tells about (`paths.rs`), so that
//! descriptors, positions, dup(2), fork(2) and exec(2) are the kernel's. Which open file is an object's is known by device and inode.
//! What nobody has fetched yet is a hole there. So all reading has the range brought first, and what was read is looked at page by page
//! (`read.rs`); a mapping is the engine's, or a copy (`mappings/objects.rs`).
//!
//! Without a session each call costs one load. Calls `own`, `next` and `copy`, whose tables call it.

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
    /// Where it appears: the folder, with its slash, and the name in it.
    folder: CString,
    name: Vec<u8>,
    /// Its local copy, filled by the session's server, and that file's path and identity.
    pub origin: Arc<TierOrigin>,
    copy: CString,
    identity: (u64, u64),
    pub len: u64,
    /// When it was last modified, seconds since 1970.
    modified: i64,
    /// Where the last read ended, how far was asked ahead of it, and how far is asked ahead now, bytes.
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
