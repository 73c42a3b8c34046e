//! The heap of a child made by fork(2): a copy of its parent's heap at that moment.
//!
//! A child has nothing of the engine. So this is done:
//!
//! 1. Before the fork, dirty pages are written back, and the file's data is copied to another file without a name. File
//!    systems that can share the blocks do (xfs, btrfs).
//! 2. The child maps the other file privately at the heap's addresses. The kernel does the rest.
//!
//! jemalloc's tables are ordinary memory, which the child has anyway.
//!
//! The cost is the write-back, the copy, and the copy's space until the child ends. posix_spawn(3), system(3), popen(3)
//! and vfork(2) cost none of this, since their child shares the memory until it executes a program.

use super::mappings::{Mappings, lock_mappings};
use super::{Space, addresses, file, lock_space, map};
use crate::{next, say};
use fastmap::Engine;
use std::cell::Cell;
use std::fs::File;
use std::mem::ManuallyDrop;
use std::os::fd::AsRawFd;
use std::ptr;
use std::sync::MutexGuard;
use std::sync::atomic::{AtomicBool, Ordering};

static IS_CHILD: AtomicBool = AtomicBool::new(false);

thread_local! {
    // The guards of the thread that forks, from before the fork until after it. They have no destructors: the C library
    // registers a destructor with calloc(3), which may be locked for the fork already.
    static SPACE: Cell<Option<ManuallyDrop<MutexGuard<'static, Space>>>> = const { Cell::new(None) };
    static MAPPINGS: Cell<Option<ManuallyDrop<MutexGuard<'static, Mappings>>>> = const { Cell::new(None) };
    static COPY: Cell<Option<ManuallyDrop<File>>> = const { Cell::new(None) };
}

/// Whether the heap is a child's: ordinary memory.
#[inline]
pub fn is_child() -> bool {
    IS_CHILD.load(Ordering::Relaxed)
}

/// Before fork(2), in the thread that calls it.
pub(crate) fn before_fork() {
    if !super::is_up() || is_child() {
        return;
    }
    SPACE.set(Some(ManuallyDrop::new(lock_space())));
    let mappings = lock_mappings();
    mappings.open();
    let copied = file::make_another().map_err(|error| error.to_string()).and_then(|copy| {
        match map().engine() {
            Engine::Cached => map().snapshot(&copy).map_err(|error| error.to_string())?,
            _ => file::copy(&copy).map_err(|error| error.to_string())?,
        }
        Ok(copy)
    });
    mappings.protect_again();
    MAPPINGS.set(Some(ManuallyDrop::new(mappings)));
    match copied {
        Ok(copy) => COPY.set(Some(ManuallyDrop::new(copy))),
        Err(error) => say(format_args!("the heap cannot be copied for a child: {error}; the child has no heap")),
    }
}

/// After fork(2), in the parent; also after a fork(2) that failed.
pub(crate) fn in_parent() {
    drop(COPY.take().map(ManuallyDrop::into_inner));
    drop(MAPPINGS.take().map(ManuallyDrop::into_inner));
    drop(SPACE.take().map(ManuallyDrop::into_inner));
}

/// After fork(2), in the child.
pub(crate) fn in_child() {
    if !super::is_up() || is_child() {
        return;
    }
    IS_CHILD.store(true, Ordering::Relaxed);
    if let Some(copy) = COPY.take().map(ManuallyDrop::into_inner) {
        let (start, end) = addresses();
        let flags = libc::MAP_PRIVATE | libc::MAP_FIXED | libc::MAP_NORESERVE;
        let access = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: nothing is mapped there. A child inherits neither regions of the engine nor a heap that the kernel
        // maps.
        let at =
            unsafe { next::mmap(ptr::without_provenance_mut(start), end - start, access, flags, copy.as_raw_fd(), 0) };
        if at == libc::MAP_FAILED {
            say(format_args!("a child has no heap: mmap: {}", std::io::Error::last_os_error()));
        }
    }
    if let Some(mappings) = MAPPINGS.take().map(ManuallyDrop::into_inner) {
        mappings.protect_again();
    }
    drop(SPACE.take().map(ManuallyDrop::into_inner));
}
