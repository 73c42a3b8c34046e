//! This library's own memory. None of it comes from the program's malloc(3).
//!
//! Allocators call munmap(2) and similar functions with locks held. A wrapper of these that called malloc(3) would wait
//! for its own thread. So this library takes its memory straight from the kernel, and dlmalloc divides it under one
//! lock. It does not use the C library's mmap(2): the first look-up of a function waits for the dynamic linker's lock,
//! and a thread in dlopen(3) may hold that lock.
//!
//! Rust's collections end the process where there is no memory. So that this does not happen in somebody else's program, there is a reserve. It is
//! for the call that meets the lack; from then on files are the kernel's ([`is_short`]). What takes more than the reserve has allocates fallibly.
//!
//! The C library's own allocations still come from the program's malloc(3): above all a table for each thread
//! (pthread_create(3)). Threads are started with the first map and with the first writable map, never when a map is
//! unmapped.

use super::guard::Guarded;
use super::{PAGE, kernel, owner};
use dlmalloc::Dlmalloc;
use libc::c_int;
use std::alloc::{GlobalAlloc, Layout};
use std::cell::UnsafeCell;
use std::ptr;
use std::sync::atomic::{AtomicUsize, Ordering};

/// dlmalloc's source of memory.
pub(crate) struct Kernel;

/// The reserve: more than what a call takes that maps or unmaps one file.
const RESERVE: usize = 1 << 20;

#[repr(align(4096))]
struct Reserve(UnsafeCell<[u8; RESERVE]>);

// SAFETY: `take_reserve` gives each byte to one caller.
unsafe impl Sync for Reserve {}

/// In the library's data, which costs no memory before it is used.
static RESERVED: Reserve = Reserve(UnsafeCell::new([0; RESERVE]));
static RESERVE_TAKEN: AtomicUsize = AtomicUsize::new(0);

/// Whether there has been no memory: nothing more is to be begun that needs some.
pub(crate) fn is_short() -> bool {
    RESERVE_TAKEN.load(Ordering::Relaxed) != 0
}

/// Memory of the reserve; null if it has no more.
fn take_reserve(size: usize) -> *mut u8 {
    let size = size.next_multiple_of(PAGE);
    let taken = RESERVE_TAKEN.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |taken| {
        taken.checked_add(size).filter(|taken| *taken <= RESERVE)
    });
    taken.map_or(ptr::null_mut(), |at| RESERVED.0.get().cast::<u8>().wrapping_add(at))
}

/// Whether a block is of the reserve, which keeps what it gave.
fn is_reserve(block: *mut u8) -> bool {
    block.addr().wrapping_sub(RESERVED.0.get().addr()) < RESERVE
}

/// The address that a call returned; null if the call failed.
fn address(result: Result<usize, c_int>) -> *mut u8 {
    result.map_or(ptr::null_mut(), ptr::with_exposed_provenance_mut)
}

// SAFETY: `alloc` returns memory of this process, of at least the size that was asked for.
unsafe impl dlmalloc::Allocator for Kernel {
    fn alloc(&self, size: usize) -> (*mut u8, usize, u32) {
        let (access, kind) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
        // SAFETY: the kernel chooses the place, so no existing mapping changes.
        let at = unsafe { kernel::call(libc::SYS_mmap, [0, size, access as usize, kind as usize, usize::MAX, 0]) };
        (if at.is_ok() { address(at) } else { take_reserve(size) }, size, 0)
    }

    fn remap(&self, block: *mut u8, size: usize, new: usize, can_move: bool) -> *mut u8 {
        if is_reserve(block) {
            return ptr::null_mut();
        }
        let flags = if can_move { libc::MREMAP_MAYMOVE } else { 0 };
        // SAFETY: the block is dlmalloc's, which uses only the returned address afterwards.
        address(unsafe { kernel::call(libc::SYS_mremap, [block.expose_provenance(), size, new, flags as usize]) })
    }

    fn free_part(&self, block: *mut u8, size: usize, new: usize) -> bool {
        self.free(block.wrapping_add(new), size - new)
    }

    fn free(&self, block: *mut u8, size: usize) -> bool {
        // SAFETY: dlmalloc gives back a block that this allocator gave it.
        !is_reserve(block) && unsafe { kernel::call(libc::SYS_munmap, [block.expose_provenance(), size]) }.is_ok()
    }

    fn can_release_part(&self, _: u32) -> bool {
        true
    }

    fn allocates_zeros(&self) -> bool {
        true
    }

    fn page_size(&self) -> usize {
        PAGE
    }
}

struct Own;

#[global_allocator]
static ALLOCATOR: Own = Own;

/// The heap of this library. Around fork(2) it is locked last and unlocked first, since every other part of this library
/// may allocate.
pub(crate) static HEAP: Guarded<Dlmalloc<Kernel>> = Guarded::new(Dlmalloc::new_with_allocator(Kernel));

// SAFETY: dlmalloc keeps GlobalAlloc's contract, and `Guarded` lets one thread at a time call it.
unsafe impl GlobalAlloc for Own {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the layout is the caller's, and `Guarded` lets one thread at a time in.
        HEAP.with(|heap| unsafe { heap.malloc(layout.size(), layout.align()) })
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the layout is the caller's, and `Guarded` lets one thread at a time in.
        HEAP.with(|heap| unsafe { heap.calloc(layout.size(), layout.align()) })
    }

    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        // Threads that end after the engine has left still free memory here. A filter may forbid system calls then, so
        // the block is kept.
        if owner::has_left() {
            return;
        }
        // SAFETY: the caller's block came from this heap with this layout.
        HEAP.with(|heap| unsafe { heap.free(block, layout.size(), layout.align()) });
    }

    unsafe fn realloc(&self, block: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        // SAFETY: the caller's block came from this heap with this layout.
        HEAP.with(|heap| unsafe { heap.realloc(block, layout.size(), layout.align(), size) })
    }
}
