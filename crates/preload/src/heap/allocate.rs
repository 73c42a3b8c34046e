//! malloc(3) and its kin. They choose for each block whether it comes from the heap or from memory.
//!
//! These blocks come from memory, which is the C library's own heap:
//!
//! * blocks from before there is a heap;
//! * blocks that the C library and the dynamic linker want for themselves (`callers.rs`);
//! * blocks below [`LARGE`], while all blocks in memory take no more than an eighth of the cache. They are the small
//!   and early blocks, which tend to be the hot ones.
//!
//! A block's address tells where it belongs. A function that needs its caller is two instructions of assembly: they
//! pass the return address to the function behind it.

use super::{arenas, callers, holds, is_up};
use crate::next;
use crate::own::{errno, set_errno};
use libc::{c_int, c_void, size_t};
use std::arch::naked_asm;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicBool, AtomicIsize, Ordering};

/// Blocks of at least so many bytes go to the heap.
const LARGE: usize = 1024;
const PAGE: usize = 4096;
/// The alignment that malloc(3) promises.
const ALIGN: usize = 16;

/// The bytes of blocks in memory that a processor has counted, on cache lines of its own. A block may be freed on
/// another processor, so only the sum of all shares has a meaning.
#[repr(align(128))]
struct Share(AtomicIsize);

const SHARES: usize = 64;
static IN_MEMORY: [Share; SHARES] = [const { Share(AtomicIsize::new(0)) }; SHARES];
/// The sum is taken again when a share crosses a multiple of so many bytes.
const LOOK: isize = 64 << 10;
static ALLOWED: AtomicIsize = AtomicIsize::new(isize::MAX);
/// Whether the blocks in memory take as much as is allowed.
static IS_FULL: AtomicBool = AtomicBool::new(false);

/// Says how many bytes of small blocks may stay in memory.
pub fn allow(bytes: usize) {
    ALLOWED.store(bytes as isize, Ordering::Relaxed);
    look();
}

fn look() {
    let sum: isize = IN_MEMORY.iter().map(|share| share.0.load(Ordering::Relaxed)).sum();
    IS_FULL.store(sum > ALLOWED.load(Ordering::Relaxed), Ordering::Relaxed);
}

/// Adds to the bytes of blocks in memory, or subtracts.
#[inline]
fn count(bytes: isize) {
    // SAFETY: sched_getcpu has no preconditions.
    let here = unsafe { libc::sched_getcpu() } as usize % SHARES;
    let before = IN_MEMORY[here].0.fetch_add(bytes, Ordering::Relaxed);
    if before / LOOK != (before + bytes) / LOOK {
        look();
    }
}

/// Whether a block for this caller comes from the heap, if there is a heap.
#[inline]
fn is_for_heap(size: usize, caller: usize) -> bool {
    (size >= LARGE || IS_FULL.load(Ordering::Relaxed)) && !callers::is_system(caller)
}

/// Counts a block in memory, and returns it.
#[inline]
fn counted(block: *mut c_void) -> *mut c_void {
    if !block.is_null() {
        // SAFETY: the block has just come from the C library.
        count(unsafe { next::malloc_usable_size(block) } as isize);
    }
    block
}

fn refuse(error: c_int) -> *mut c_void {
    set_errno(error);
    null_mut()
}

/// Defines a function that passes its caller's address on, as one more argument.
macro_rules! with_caller {
    ($(#[$about:meta])* $name:ident($($argument:ident: $type:ty),*) -> $result:ty, $register:literal, $to:ident) => {
        $(#[$about])*
        ///
        /// # Safety
        /// The caller keeps the contract of the C library's function of this name.
        #[unsafe(no_mangle)]
        #[unsafe(naked)]
        pub unsafe extern "C" fn $name($($argument: $type),*) -> $result {
            naked_asm!(concat!("mov ", $register, ", [rsp]"), "jmp {}", sym $to)
        }
    };
}

with_caller!(/** malloc(3). */ malloc(size: size_t) -> *mut c_void, "rsi", malloc_for);
with_caller!(/** calloc(3). */ calloc(number: size_t, size: size_t) -> *mut c_void, "rdx", calloc_for);
with_caller!(/** realloc(3). */ realloc(block: *mut c_void, size: size_t) -> *mut c_void, "rdx", realloc_for);
with_caller!(
    /** reallocarray(3). */ reallocarray(block: *mut c_void, number: size_t, size: size_t) -> *mut c_void,
    "rcx", reallocarray_for
);
with_caller!(
    /** posix_memalign(3). */ posix_memalign(to: *mut *mut c_void, align: size_t, size: size_t) -> c_int,
    "rcx", posix_memalign_for
);
with_caller!(/** aligned_alloc(3). */ aligned_alloc(align: size_t, size: size_t) -> *mut c_void, "rdx", aligned_alloc_for);
with_caller!(/** memalign(3). */ memalign(align: size_t, size: size_t) -> *mut c_void, "rdx", memalign_for);
with_caller!(/** valloc(3). */ valloc(size: size_t) -> *mut c_void, "rsi", valloc_for);
with_caller!(/** pvalloc(3). */ pvalloc(size: size_t) -> *mut c_void, "rsi", pvalloc_for);

unsafe extern "C" fn malloc_for(size: size_t, caller: usize) -> *mut c_void {
    // SAFETY: the arenas are asked only where there is a heap.
    unsafe {
        if !is_up() {
            return counted(next::malloc(size));
        }
        if is_for_heap(size, caller) { arenas::allocate(size, 1, false) } else { counted(next::malloc(size)) }
    }
}

unsafe extern "C" fn calloc_for(number: size_t, size: size_t, caller: usize) -> *mut c_void {
    let Some(total) = number.checked_mul(size) else { return refuse(libc::ENOMEM) };
    // SAFETY: the arenas are asked only where there is a heap.
    unsafe {
        if is_up() && is_for_heap(total, caller) {
            arenas::allocate(total, 1, true)
        } else {
            counted(next::calloc(number, size))
        }
    }
}

unsafe extern "C" fn realloc_for(block: *mut c_void, size: size_t, caller: usize) -> *mut c_void {
    // SAFETY: the caller's block is the heap's or the C library's, and goes back where it came from.
    unsafe {
        if block.is_null() {
            return malloc_for(size, caller);
        }
        if holds(block as usize) {
            if size == 0 {
                // The C library's realloc(3) frees too.
                arenas::free(block);
                return null_mut();
            }
            return arenas::resize(block, size);
        }
        let before = next::malloc_usable_size(block);
        if size == 0 || !is_up() || !is_for_heap(size, caller) {
            let moved = next::realloc(block, size);
            if !moved.is_null() || size == 0 {
                count(-(before as isize));
            }
            return counted(moved);
        }
        let moved = arenas::allocate(size, 1, false);
        if !moved.is_null() {
            moved.copy_from_nonoverlapping(block, before.min(size));
            count(-(before as isize));
            next::free(block);
        }
        moved
    }
}

unsafe extern "C" fn reallocarray_for(block: *mut c_void, number: size_t, size: size_t, caller: usize) -> *mut c_void {
    let Some(total) = number.checked_mul(size) else { return refuse(libc::ENOMEM) };
    // SAFETY: the caller's contract.
    unsafe { realloc_for(block, total, caller) }
}

/// A block at an address that is a multiple of `align`, a power of two.
unsafe fn aligned(align: usize, size: usize, caller: usize) -> *mut c_void {
    // SAFETY: the arenas are asked only where there is a heap.
    unsafe {
        if is_up() && is_for_heap(size, caller) {
            arenas::allocate(size, align, false)
        } else {
            counted(next::memalign(align, size))
        }
    }
}

unsafe extern "C" fn posix_memalign_for(to: *mut *mut c_void, align: size_t, size: size_t, caller: usize) -> c_int {
    if !align.is_power_of_two() || align < size_of::<usize>() {
        return libc::EINVAL;
    }
    // SAFETY: `to` is the caller's. posix_memalign(3) leaves errno as it was.
    unsafe {
        let before = errno();
        let block = aligned(align, size, caller);
        set_errno(before);
        if block.is_null() {
            return libc::ENOMEM;
        }
        *to = block;
    }
    0
}

unsafe extern "C" fn aligned_alloc_for(align: size_t, size: size_t, caller: usize) -> *mut c_void {
    if !align.is_power_of_two() {
        return refuse(libc::EINVAL);
    }
    // SAFETY: the alignment is a power of two.
    unsafe { aligned(align, size, caller) }
}

unsafe extern "C" fn memalign_for(align: size_t, size: size_t, caller: usize) -> *mut c_void {
    // The C library rounds an alignment up to a power of two.
    let Some(align) = align.max(ALIGN).checked_next_power_of_two() else { return refuse(libc::EINVAL) };
    // SAFETY: the alignment is a power of two.
    unsafe { aligned(align, size, caller) }
}

unsafe extern "C" fn valloc_for(size: size_t, caller: usize) -> *mut c_void {
    // SAFETY: the alignment is a power of two.
    unsafe { aligned(PAGE, size, caller) }
}

unsafe extern "C" fn pvalloc_for(size: size_t, caller: usize) -> *mut c_void {
    let Some(size) = size.checked_next_multiple_of(PAGE) else { return refuse(libc::ENOMEM) };
    // SAFETY: the alignment is a power of two.
    unsafe { aligned(PAGE, size, caller) }
}

/// free(3).
///
/// # Safety
/// The caller keeps the contract of free(3).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn free(block: *mut c_void) {
    // SAFETY: the caller's block goes back where it came from.
    unsafe {
        if holds(block as usize) {
            return arenas::free(block);
        }
        if !block.is_null() {
            count(-(next::malloc_usable_size(block) as isize));
            next::free(block);
        }
    }
}

/// malloc_usable_size(3).
///
/// # Safety
/// The caller keeps the contract of malloc_usable_size(3).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn malloc_usable_size(block: *mut c_void) -> size_t {
    // SAFETY: the caller's block is one of the heap or of the C library, as `holds` says.
    unsafe { if holds(block as usize) { arenas::room(block) } else { next::malloc_usable_size(block) } }
}
