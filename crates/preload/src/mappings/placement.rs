//! Mappings that begin as the kernel's: what the engine's placement is told of them.

use super::whole_pages;
use crate::own::{owner, undisturbed};
use crate::{config, say};
use fastmap::placement::{self, Face, Then};
use libc::{c_int, c_void, size_t};
use std::os::fd::BorrowedFd;

/// Looks after the mappings of a file, if the user named it.
pub(super) fn look_after(fd: c_int) {
    if owner::is_child_of_owner() || super::choice::identity(fd).is_none() || !super::choice::is_named(fd, true) {
        return;
    }
    let face = Face { with_cache, say: config().log.then_some(say), turns: config().turns, only_noted: false };
    // SAFETY: the program's descriptor, open during its call.
    if placement::watch(unsafe { BorrowedFd::borrow_raw(fd) }, face) {
        // There is a thread of the engine's now.
        owner::note_maps();
    }
}

/// Calls `then` with the cache, while the engine may take files over.
fn with_cache(then: Then<'_>) {
    let mapping = owner::Mapping::begin();
    if let (Some(_), Some(cache)) = (&mapping, crate::cache()) {
        then(cache);
    }
}

/// Notes what the program asks of memory that may be looked after: advice on how it will be used, or what only the kernel does.
pub(super) fn note_advice(addr: *const c_void, len: size_t, advice: c_int) {
    if placement::is_watching() {
        undisturbed((), || placement::note_advice(whole_pages(addr, len), advice));
    }
}

/// Notes that the program locks memory.
pub(super) fn note_locked(addr: *const c_void, len: size_t) {
    if placement::is_watching() && len > 0 {
        undisturbed((), || placement::note_asked(whole_pages(addr, len), None));
    }
}
