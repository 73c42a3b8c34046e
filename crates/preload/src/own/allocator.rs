//! This library's own memory. None of it comes from the program's malloc(3).
//!
//! Allocators call munmap(2) and similar functions with locks held. A wrapper of these that called malloc(3) would wait
//! for its own thread. So this library takes its memory straight from the kernel, and dlmalloc divides it under one
//! lock. It does not use the C library's mmap(2): the first look-up of a function waits for the dynamic linker's lock,
//! and a thread in dlopen(3) may hold that lock.
//!
//! The C library's own allocations still come from the program's malloc(3): above all a table for each thread
//! (pthread_create(3)). Threads are started with the first map and with the first writable map, never when a map is
//! unmapped.

use super::guard::Guarded;
use super::{PAGE, kernel, owner};
use dlmalloc::Dlmalloc;
use libc::c_int;
use std::alloc::{GlobalAlloc, Layout};
use std::ptr;

/// dlmalloc's source of memory.
pub(crate) struct Kernel;

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
        (address(at), size, 0)
    }

    fn remap(&self, block: *mut u8, size: usize, new: usize, can_move: bool) -> *mut u8 {
        let flags = if can_move { libc::MREMAP_MAYMOVE } else { 0 };
        // SAFETY: the block is dlmalloc's, which uses only the returned address afterwards.
        address(unsafe { kernel::call(libc::SYS_mremap, [block.expose_provenance(), size, new, flags as usize]) })
    }

    fn free_part(&self, block: *mut u8, size: usize, new: usize) -> bool {
        self.free(block.wrapping_add(new), size - new)
    }

    fn free(&self, block: *mut u8, size: usize) -> bool {
        // SAFETY: dlmalloc gives back a block that this allocator gave it.
        unsafe { kernel::call(libc::SYS_munmap, [block.expose_provenance(), size]) }.is_ok()
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
