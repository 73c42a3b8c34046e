//! jemalloc over the heap's pieces.
//!
//! Its arenas are this library's: one for each processor, 8 at most. Their memory comes from `space.rs` through extent
//! hooks (jemalloc(3), `arena.<i>.extent_hooks`), their tables from mmap(2). Nothing else in this process uses this
//! jemalloc. So the blocks in threads' caches are the heap's memory as well, and go back when the threads end. Memory
//! that has been free for a second is given back (`dirty_decay_ms`). After that it is not written any more.

use super::{give_back, take};
use crate::own::set_errno;
use libc::{c_char, c_int, c_uint, c_void, size_t};
use std::ptr::null_mut;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};
use tikv_jemalloc_sys as jemalloc;

/// The most arenas.
const MOST: usize = 8;

static ARENAS: [AtomicU32; MOST] = [const { AtomicU32::new(0) }; MOST];
static COUNT: AtomicUsize = AtomicUsize::new(0);

/// jemalloc's options, under the name by which jemalloc looks for them. Because of `retain:false`, pieces go back to
/// `space.rs`, where every arena finds them.
#[repr(transparent)]
struct Options(*const c_char);
// SAFETY: the pointer leads to a constant.
unsafe impl Sync for Options {}
#[unsafe(export_name = "_rjem_malloc_conf")]
static OPTIONS: Options = Options(
    c"narenas:1,retain:false,background_thread:false,dirty_decay_ms:1000,muzzy_decay_ms:0,metadata_thp:disabled"
        .as_ptr(),
);

/// The argument of `experimental.arenas_create_ext`.
#[repr(C)]
struct ArenaConfig {
    extent_hooks: *const jemalloc::extent_hooks_t,
    metadata_use_hooks: bool,
}

static HOOKS: jemalloc::extent_hooks_t = jemalloc::extent_hooks_t {
    alloc: Some(alloc),
    dalloc: Some(dalloc),
    destroy: None,
    commit: None,
    decommit: None,
    purge_lazy: None,
    purge_forced: None,
    split: Some(split),
    merge: Some(merge),
};

/// Makes the arenas.
pub fn make() -> Result<(), c_int> {
    let count = std::thread::available_parallelism().map_or(1, |count| count.get()).min(MOST);
    for arena in &ARENAS[..count] {
        let mut number: c_uint = 0;
        let mut config = ArenaConfig { extent_hooks: &HOOKS, metadata_use_hooks: false };
        let mut len = size_of::<c_uint>();
        // SAFETY: the types that jemalloc wants for this name.
        let error = unsafe {
            jemalloc::mallctl(
                c"experimental.arenas_create_ext".as_ptr(),
                (&raw mut number).cast(),
                &mut len,
                (&raw mut config).cast(),
                size_of::<ArenaConfig>(),
            )
        };
        if error != 0 {
            return Err(error);
        }
        arena.store(number, Ordering::Relaxed);
    }
    COUNT.store(count, Ordering::Release);
    Ok(())
}

/// jemalloc's flags for a block of this alignment, from the arena for this processor.
#[inline]
fn flags(align: usize, zero: bool) -> c_int {
    // SAFETY: sched_getcpu has no preconditions.
    let here = unsafe { libc::sched_getcpu() } as usize % COUNT.load(Ordering::Relaxed).max(1);
    let arena = ARENAS[here % MOST].load(Ordering::Relaxed) as usize;
    let zero = if zero { jemalloc::MALLOCX_ZERO } else { 0 };
    jemalloc::MALLOCX_ALIGN(align) | jemalloc::MALLOCX_ARENA(arena) | zero
}

/// Allocates a block of the heap. Returns null, with ENOMEM in errno, if there is no room.
///
/// # Safety
/// There is a heap; `align` is a power of two.
pub unsafe fn allocate(size: usize, align: usize, zero: bool) -> *mut c_void {
    // SAFETY: the size is not zero, and the arenas exist.
    try_twice(|| unsafe { jemalloc::mallocx(size.max(1), flags(align, zero)) })
}

/// Gives a block of the heap another size. Returns null, with ENOMEM in errno, if there is no room.
///
/// # Safety
/// `block` is one of the heap, and is not used after a success, as with realloc(3).
pub unsafe fn resize(block: *mut c_void, size: usize) -> *mut c_void {
    // SAFETY: the contract. If it fails the block is unchanged.
    try_twice(|| unsafe { jemalloc::rallocx(block, size.max(1), flags(1, false)) })
}

/// Frees a block of the heap.
///
/// # Safety
/// `block` is one of the heap, and not used afterwards.
pub unsafe fn free(block: *mut c_void) {
    // SAFETY: the contract.
    unsafe { jemalloc::dallocx(block, 0) }
}

/// Bytes that a block of the heap has room for.
///
/// # Safety
/// `block` is one of the heap.
pub unsafe fn room(block: *const c_void) -> usize {
    // SAFETY: the contract.
    unsafe { jemalloc::sallocx(block, 0) }
}

/// Allocates. If there is no room, the arenas give back what is free in them, and it tries once more: one arena may
/// hold the room that another lacks.
#[inline]
fn try_twice(allocate: impl Fn() -> *mut c_void) -> *mut c_void {
    let block = allocate();
    if block.is_null() { try_again(allocate) } else { block }
}

#[cold]
fn try_again(allocate: impl Fn() -> *mut c_void) -> *mut c_void {
    // 4096 is MALLCTL_ARENAS_ALL: all arenas.
    for name in [c"thread.tcache.flush", c"arena.4096.purge"] {
        // SAFETY: neither name takes or gives a value.
        unsafe { jemalloc::mallctl(name.as_ptr(), null_mut(), null_mut(), null_mut(), 0) };
    }
    let block = allocate();
    if block.is_null() {
        set_errno(libc::ENOMEM);
    }
    block
}

unsafe extern "C" fn alloc(
    _: *mut jemalloc::extent_hooks_t,
    wanted: *mut c_void,
    size: size_t,
    align: size_t,
    zero: *mut bool,
    commit: *mut bool,
    _: c_uint,
) -> *mut c_void {
    // SAFETY: jemalloc passes places for its two answers.
    let (zero, commit) = unsafe { (&mut *zero, &mut *commit) };
    let at = (!wanted.is_null()).then_some(wanted as usize);
    match take(at, size, align, *zero) {
        Some((start, is_zero)) => {
            (*zero, *commit) = (is_zero, true);
            start as *mut c_void
        }
        None => null_mut(),
    }
}

/// Takes an extent back. It never refuses, and says so with false.
unsafe extern "C" fn dalloc(
    _: *mut jemalloc::extent_hooks_t,
    at: *mut c_void,
    size: size_t,
    _: bool,
    _: c_uint,
) -> bool {
    give_back(at as usize, size);
    false
}

/// Allows every cut, since extents are ranges of pages. False means that it allows it.
unsafe extern "C" fn split(
    _: *mut jemalloc::extent_hooks_t,
    _: *mut c_void,
    _: size_t,
    _: size_t,
    _: size_t,
    _: bool,
    _: c_uint,
) -> bool {
    false
}

/// Allows every join, since extents are ranges of pages. False means that it allows it.
unsafe extern "C" fn merge(
    _: *mut jemalloc::extent_hooks_t,
    _: *mut c_void,
    _: size_t,
    _: *mut c_void,
    _: size_t,
    _: bool,
    _: c_uint,
) -> bool {
    false
}
