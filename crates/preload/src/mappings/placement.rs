//! Mappings that begin as the kernel's: what the engine's placement is told of them.

use super::choice::SMALL;
use super::{note_maps, whole_pages};
use crate::own::{owner, undisturbed};
use crate::{config, say};
use fastmap::placement::{self, Face, Then};
use libc::{c_int, c_void, size_t};
use std::os::fd::BorrowedFd;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

/// Looks after a mapping of a file, if the user named that.
pub(super) fn look_after(fd: c_int, at: *const c_void, len: size_t) {
    if owner::is_child_of_owner() || super::choice::identity(fd).is_none() || !super::choice::is_named(fd, true) {
        return;
    }
    // SAFETY: the program's descriptor, open during its call.
    if placement::watch(unsafe { BorrowedFd::borrow_raw(fd) }, whole_pages(at, len), face()) {
        // There is a thread of the engine's now.
        note_maps();
    }
}

/// Looks after a kernel mapping that has grown, if the user named its file: at the latest once it is large.
pub(super) fn look_after_grown(at: usize, from: size_t, to: size_t) {
    let is_named = |path: &Path| config().matches(path.as_os_str().as_bytes());
    // What was large before is known.
    let is_news = from <= SMALL || placement::is_put_off();
    if is_news && !owner::is_child_of_owner() && placement::watch_grown(at, to - from, face(), is_named) {
        note_maps();
    }
}

fn face() -> Face {
    let config = config();
    Face {
        with_cache,
        say: config.log.placement.then_some(say),
        turns: config.turns,
        only_noted: false,
        risks_stores: config.risk_stores,
    }
}

/// Before the program makes a thread: what waited for its second begins.
pub(crate) fn before_thread() {
    if placement::is_put_off() && undisturbed(false, || placement::begin(face())) {
        note_maps();
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

/// Notes that the program asks for what only the kernel does: it locks memory, or gives it a key. Nothing takes that back.
pub(super) fn note_kernels(addr: *const c_void, len: size_t) {
    if placement::is_watching() {
        undisturbed((), || placement::note_kernels(whole_pages(addr, len)));
    }
}
