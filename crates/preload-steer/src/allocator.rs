//! The watcher's own memory. It does not use the program's malloc(3): the watcher must not wait for locks of the program.

use dlmalloc::Dlmalloc;
use rustix::mm::{MapFlags, MremapFlags, ProtFlags, mmap_anonymous, mremap, munmap};
use std::alloc::{GlobalAlloc, Layout};
use std::cell::UnsafeCell;
use std::hint::spin_loop;
use std::ptr;
use std::sync::atomic::{AtomicBool, Ordering};

/// dlmalloc's source of memory: bare system calls.
struct Kernel;

// SAFETY: memory of this process, of at least the size that was asked for.
unsafe impl dlmalloc::Allocator for Kernel {
    fn alloc(&self, size: usize) -> (*mut u8, usize, u32) {
        let access = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: the kernel chooses the place, so nothing that is mapped changes.
        let at = unsafe { mmap_anonymous(ptr::null_mut(), size, access, MapFlags::PRIVATE) };
        (at.map_or(ptr::null_mut(), |at| at.cast()), size, 0)
    }

    fn remap(&self, block: *mut u8, size: usize, new: usize, can_move: bool) -> *mut u8 {
        let flags = if can_move { MremapFlags::MAYMOVE } else { MremapFlags::empty() };
        // SAFETY: the block is dlmalloc's, and it uses only the address that comes back.
        unsafe { mremap(block.cast(), size, new, flags).map_or(ptr::null_mut(), |at| at.cast()) }
    }

    fn free_part(&self, block: *mut u8, size: usize, new: usize) -> bool {
        self.free(block.wrapping_add(new), size - new)
    }

    fn free(&self, block: *mut u8, size: usize) -> bool {
        // SAFETY: dlmalloc gives back a block that it had from here.
        unsafe { munmap(block.cast(), size).is_ok() }
    }

    fn can_release_part(&self, _: u32) -> bool {
        true
    }

    fn allocates_zeros(&self) -> bool {
        true
    }

    fn page_size(&self) -> usize {
        4096
    }
}

/// dlmalloc under a spin lock. Once the program runs, only the watcher uses this heap. There are two exceptions: a moment before the watcher starts
/// (`mapped::begin`), and the exit.
struct Own {
    is_held: AtomicBool,
    heap: UnsafeCell<Dlmalloc<Kernel>>,
}

// SAFETY: `with` lets one thread at a time in.
unsafe impl Sync for Own {}

#[global_allocator]
static ALLOCATOR: Own =
    Own { is_held: AtomicBool::new(false), heap: UnsafeCell::new(Dlmalloc::new_with_allocator(Kernel)) };

impl Own {
    fn with<T>(&self, body: impl FnOnce(&mut Dlmalloc<Kernel>) -> T) -> T {
        while self.is_held.compare_exchange_weak(false, true, Ordering::Acquire, Ordering::Relaxed).is_err() {
            spin_loop();
        }
        // SAFETY: the lock is held.
        let result = body(unsafe { &mut *self.heap.get() });
        self.is_held.store(false, Ordering::Release);
        result
    }
}

/// Called in a child of fork(2), which has no watcher yet. Gives up the copy of the parent's heap, which the parent's watcher may have been
/// changing at the fork.
pub(crate) fn begin_anew() {
    // SAFETY: the child has one thread, which is here.
    unsafe { *ALLOCATOR.heap.get() = Dlmalloc::new_with_allocator(Kernel) };
    ALLOCATOR.is_held.store(false, Ordering::Relaxed);
}

// SAFETY: dlmalloc keeps GlobalAlloc's contract, and `with` lets one thread at a time call it.
unsafe impl GlobalAlloc for Own {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the layout is the caller's.
        self.with(|heap| unsafe { heap.malloc(layout.size(), layout.align()) })
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the layout is the caller's.
        self.with(|heap| unsafe { heap.calloc(layout.size(), layout.align()) })
    }

    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        // SAFETY: the caller's block came from this heap with this layout.
        self.with(|heap| unsafe { heap.free(block, layout.size(), layout.align()) });
    }

    unsafe fn realloc(&self, block: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        // SAFETY: the caller's block came from this heap with this layout.
        self.with(|heap| unsafe { heap.realloc(block, layout.size(), layout.align(), size) })
    }
}
