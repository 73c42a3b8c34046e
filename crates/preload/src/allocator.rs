//! This library's own memory: none of it is the program's malloc(3).
//!
//! Allocators call munmap(2) and its kin with locks held, and a wrapper that called malloc(3) would wait for its own thread. So
//! all that is allocated in here comes straight from the kernel (`next::mmap`), shared out by dlmalloc under one lock. Signals
//! are blocked while a thread has it: a handler that calls a wrapper finds the lock free, or held by a thread that goes on.
//! It is taken across fork(2), so that a child finds it free and what it guards whole.
//!
//! What the C library itself allocates stays the program's: above all a table for each thread (pthread_create(3)). Threads
//! are started when the first map, and the first that is to be written, is made; never when one goes.

use crate::guard::{KernelMask, real_mask};
use dlmalloc::Dlmalloc;
use std::alloc::{GlobalAlloc, Layout};
use std::cell::UnsafeCell;
use std::sync::{Mutex, MutexGuard};

struct Own;

#[global_allocator]
static ALLOCATOR: Own = Own;

static HEAP: Mutex<Dlmalloc> = Mutex::new(Dlmalloc::new());

/// The heap in one thread's hands, which is not interrupted. Nothing here touches a map, so SIGBUS is blocked with the rest.
struct Open {
    heap: MutexGuard<'static, Dlmalloc>,
    mask: KernelMask,
}

impl Open {
    fn wait() -> Open {
        let mask = real_mask(libc::SIG_SETMASK, KernelMask::MAX);
        Open { heap: HEAP.lock().unwrap_or_else(|poison| poison.into_inner()), mask }
    }

    fn with<R>(self, call: impl FnOnce(&mut Dlmalloc) -> R) -> R {
        let Open { mut heap, mask } = self;
        let result = call(&mut heap);
        drop(heap);
        real_mask(libc::SIG_SETMASK, mask);
        result
    }
}

// SAFETY: dlmalloc keeps to the contract; one thread at a time calls it.
unsafe impl GlobalAlloc for Own {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the caller's contract, as in all below.
        Open::wait().with(|heap| unsafe { heap.malloc(layout.size(), layout.align()) })
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        // SAFETY: as above.
        Open::wait().with(|heap| unsafe { heap.calloc(layout.size(), layout.align()) })
    }

    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        // SAFETY: as above.
        Open::wait().with(|heap| unsafe { heap.free(block, layout.size(), layout.align()) });
    }

    unsafe fn realloc(&self, block: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        // SAFETY: as above.
        Open::wait().with(|heap| unsafe { heap.realloc(block, layout.size(), layout.align(), size) })
    }
}

/// What the thread that forks holds from before until after.
struct Held(UnsafeCell<Option<Open>>);

// SAFETY: only touched by the thread that has the heap.
unsafe impl Sync for Held {}

static HELD: Held = Held(UnsafeCell::new(None));

/// Before fork(2), last of all, in the thread that calls it: nothing in here allocates until it is over.
pub(crate) fn before_fork() {
    let open = Open::wait();
    // SAFETY: this thread has the heap.
    unsafe { *HELD.0.get() = Some(open) };
}

/// After it, first of all, in the parent, or when it failed, and in the child.
pub(crate) fn after_fork() {
    // SAFETY: `before_fork` came before, in this thread, or the one that this child is made of.
    if let Some(open) = unsafe { (*HELD.0.get()).take() } {
        open.with(|_| ());
    }
}
