//! The program's heap in a map over a file: `fastmap run --heap FILE[:SIZE]`.
//!
//! malloc(3) and its kin hand out blocks from two places: the C library's own heap in memory (`next::malloc`), and a
//! scratch map, which is a map whose file only gives space. It shares the cache with the program's files. There is one
//! scratch map, at one range of addresses, so one comparison tells where a block belongs. jemalloc divides the map
//! (`arenas.rs`) in pieces that `space.rs` keeps account of. It keeps its own tables in memory, so freed memory is
//! never touched.
//!
//! A piece is handed out only if the file system has room for all pieces that are handed out (`file.rs`). If it has no
//! room, the arenas give back what they hold, and after that a call fails with ENOMEM. Other programs may take the room
//! away afterwards. Then dirty pages stay in memory, and a program that needs more memory ends, as when swap is full.
//!
//! Not covered: system calls that a program makes without the C library (syscall instructions, io_uring(7) buffers).
//! They fail with EFAULT if a page of their block is absent.
//!
//! `allocate.rs` decides where a block comes from. This room calls `own`, `next`, `copy`, `config` and `report`.

mod allocate;
mod arenas;
mod callers;
mod file;
mod fork;
mod mappings;
mod space;

pub(crate) use fork::{before_fork, in_child, in_parent};
pub(crate) use mappings::{advise, forget, lock, map_anonymous, part_of_heap, protect, release, remap, unlock, unmap};

use crate::own::owner;
use crate::{cache, config, next, say};
use fastmap::{Cache, MapMut};
use space::Space;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard};

/// The first address of the heap's range. `LEN` is its length in bytes, zero while there is no heap.
static START: AtomicUsize = AtomicUsize::new(0);
static LEN: AtomicUsize = AtomicUsize::new(0);
static MAP: AtomicPtr<MapMut> = AtomicPtr::new(std::ptr::null_mut());
static SPACE: Mutex<Space> = Mutex::new(Space::new());

/// Whether an address lies in the heap.
#[inline(always)]
pub fn holds(address: usize) -> bool {
    // START never changes once LEN is not zero.
    address.wrapping_sub(START.load(Ordering::Relaxed)) < LEN.load(Ordering::Relaxed)
}

/// The heap's first address, and the address past its last.
fn addresses() -> (usize, usize) {
    let start = START.load(Ordering::Relaxed);
    (start, start + LEN.load(Ordering::Relaxed))
}

/// Whether setting up io_uring(7) or Linux AIO is to fail: if a page of the heap is evicted after the kernel has read data into it, the data is
/// lost. The first refusal is said on standard error.
pub(crate) fn refuses_async_io() -> bool {
    static SAID: AtomicBool = AtomicBool::new(false);
    let refuses = is_up() && !fork::is_child();
    if refuses && !SAID.swap(true, Ordering::Relaxed) {
        say(format_args!("io_uring and Linux AIO are refused (ENOSYS): they cannot use a heap in a file"));
    }
    refuses
}

/// Whether there is a heap.
#[inline(always)]
pub fn is_up() -> bool {
    LEN.load(Ordering::Relaxed) != 0
}

/// Makes the heap that the user asked for, before the program begins. If it cannot be made, the process ends: without
/// it the program might not fit into memory.
pub(crate) fn begin() {
    let Some((path, size)) = &config().heap else { return };
    // A cache that cannot be made has been reported.
    let made = cache().map(|cache| start(path, *size, cache));
    if !matches!(made, Some(Ok(()))) {
        if let Some(Err(what)) = made {
            say(format_args!("{what}"));
        }
        // SAFETY: nothing of the program has run, so nothing is cut short.
        unsafe { next::_exit(1) };
    }
    // The result is not needed: the first thread is this one, and has not ended.
    let _ = owner::note_maps();
}

/// Makes the heap. The error's message says what is wrong, and what to do.
fn start(path: &Path, size: Option<u64>, cache: &Cache) -> Result<(), String> {
    let map = file::map(path, size, cache)?;
    let (start, len) = (map.as_ptr() as usize, map.len());
    lock_space().give(start..start + len, true);
    MAP.store(Box::into_raw(Box::new(map)), Ordering::Release);
    callers::learn();
    allocate::allow(cache.capacity() / 8);
    arenas::make()
        .map_err(|error| format!("{}: the heap cannot be set up: jemalloc says error {error}", path.display()))?;
    START.store(start, Ordering::Relaxed);
    LEN.store(len, Ordering::Release);
    Ok(())
}

fn lock_space() -> MutexGuard<'static, Space> {
    SPACE.lock().unwrap_or_else(|poison| poison.into_inner())
}

/// The heap's map, which is there by now.
fn map() -> &'static MapMut {
    // SAFETY: called only for memory of the map, which is never dropped.
    unsafe { &*MAP.load(Ordering::Acquire) }
}

/// Takes a piece of `len` bytes, in whole pages. With `zero` its bytes are zeros. Returns its address, and whether its
/// bytes are zeros.
fn take(at: Option<usize>, len: usize, align: usize, zero: bool) -> Option<(usize, bool)> {
    if !fork::is_child() && !file::has_room_for(len) {
        return None;
    }
    let taken = match at {
        Some(at) => lock_space().take_at(at, len),
        None => lock_space().take(len, align),
    };
    let Some((start, is_zero)) = taken else {
        file::note_back(len);
        return None;
    };
    if zero && !is_zero {
        clear(start, len);
    }
    Some((start, zero || is_zero))
}

/// Fills a piece with zeros.
fn clear(start: usize, len: usize) {
    if fork::is_child() {
        // SAFETY: the piece is the caller's alone.
        return unsafe { std::ptr::without_provenance_mut::<u8>(start).write_bytes(0, len) };
    }
    let map = MAP.load(Ordering::Acquire);
    // SAFETY: the piece is the caller's alone, and nothing else of the map is changed.
    let _ = unsafe { (*map).clear(start - (*map).as_ptr() as usize, len) };
}

/// Gives a piece back. Its contents are lost.
fn give_back(start: usize, len: usize) {
    let map = map();
    // SAFETY: the piece is the caller's alone, and `take` clears it for the next one where that matters.
    let _ = unsafe { map.abandon(start - map.as_ptr() as usize, len) };
    lock_space().give(start..start + len, false);
    file::note_back(len);
}
