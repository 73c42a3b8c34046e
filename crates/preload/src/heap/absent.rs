//! The library without the heap. `heap/mod.rs` takes the place of this file in `libfastmap_preload_heap.so`.

use crate::{config, next, say};
use libc::{c_int, c_void};
use std::ops::Range;

/// Ends the process if the environment asks for a heap.
pub(crate) fn begin() {
    if config().heap.is_some() {
        say(format_args!("FASTMAP_HEAP needs libfastmap_preload_heap.so in LD_PRELOAD: use `fastmap run --heap`"));
        // SAFETY: nothing of the program has run, so nothing is cut short.
        unsafe { next::_exit(1) };
    }
}

pub(crate) fn is_up() -> bool {
    false
}

pub(crate) fn refuses_async_io() -> bool {
    false
}

pub(crate) fn before_fork() {}

pub(crate) fn in_parent() {}

pub(crate) fn in_child() {}

/// Here no range lies in the heap. So the functions below that take a range are never called.
pub(crate) fn part_of_heap(_: usize, _: usize) -> Option<Range<usize>> {
    None
}

pub(crate) fn map_anonymous(_: *mut c_void, _: usize, _: c_int, _: c_int) -> Option<*mut c_void> {
    None
}

pub(crate) fn unmap(_: &Range<usize>) {}

pub(crate) fn forget(_: &Range<usize>) {}
pub(crate) fn release(_: &Range<usize>) {}

pub(crate) fn unlock(_: &Range<usize>) {}

pub(crate) unsafe fn remap(_: Range<usize>, _: usize, _: c_int, _: *mut c_void) -> Result<usize, c_int> {
    Err(libc::EFAULT)
}

pub(crate) fn protect(_: &Range<usize>, _: c_int) -> Result<(), c_int> {
    Err(libc::EFAULT)
}

pub(crate) fn advise(_: &Range<usize>, _: c_int) -> Result<(), c_int> {
    Err(libc::EFAULT)
}

pub(crate) fn lock(_: &Range<usize>) -> Result<(), c_int> {
    Err(libc::EFAULT)
}
