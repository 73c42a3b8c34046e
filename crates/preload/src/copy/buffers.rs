//! Memory for what is copied out of and into mappings.
//!
//! A wrapper may run in a signal handler, inside `malloc`, on a small stack: no allocator, no lock. Buffers come from a
//! fixed set that any thread may claim, or, if larger or all taken, from the kernel for the one call. A thread that is
//! thrown out of a call (longjmp(3) from a handler) leaves its buffer claimed for good.

use crate::next;
use crate::own::PAGE;
use std::sync::atomic::{AtomicBool, AtomicPtr, Ordering};

/// Bytes of a buffer of the set, and so the most that is copied at a time. The whole set takes 8 MiB, once used.
pub const CHUNK: usize = 256 << 10;

struct Shared {
    taken: AtomicBool,
    memory: AtomicPtr<u8>,
}

static SHARED: [Shared; 32] =
    [const { Shared { taken: AtomicBool::new(false), memory: AtomicPtr::new(std::ptr::null_mut()) } }; 32];

/// Ordinary memory for one call, aligned to pages, of any content.
pub struct Buffer {
    memory: *mut u8,
    len: usize,
    shared: Option<&'static Shared>,
}

impl Buffer {
    /// A buffer of at least `len` bytes; `None`: the kernel has no memory.
    pub fn new(len: usize) -> Option<Buffer> {
        if len > CHUNK + PAGE {
            return Buffer::unshared(len);
        }
        // Acquire pairs with the release in `drop`: the last call's copies are over.
        let shared = SHARED.iter().find(|shared| {
            !shared.taken.load(Ordering::Relaxed)
                && shared.taken.compare_exchange(false, true, Ordering::Acquire, Ordering::Relaxed).is_ok()
        });
        let Some(shared) = shared else { return Buffer::unshared(len) };
        let mut memory = shared.memory.load(Ordering::Relaxed);
        if memory.is_null() {
            let Some(new) = map(CHUNK + PAGE) else {
                shared.taken.store(false, Ordering::Release);
                return None;
            };
            shared.memory.store(new, Ordering::Relaxed);
            memory = new;
        }
        Some(Buffer { memory, len: CHUNK + PAGE, shared: Some(shared) })
    }

    /// A buffer that no other call uses afterwards: the kernel may go on reading it after the call (`MSG_ZEROCOPY`,
    /// vmsplice(2)), and keeps its pages for that when it is unmapped.
    pub fn unshared(len: usize) -> Option<Buffer> {
        Some(Buffer { memory: map(len)?, len, shared: None })
    }

    pub fn start(&self) -> *mut u8 {
        self.memory
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        match self.shared {
            Some(shared) => shared.taken.store(false, Ordering::Release),
            // SAFETY: mapped by `map` for this buffer alone.
            None => unsafe {
                next::munmap(self.memory.cast(), self.len);
            },
        }
    }
}

fn map(len: usize) -> Option<*mut u8> {
    let (prot, flags) =
        (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE);
    // SAFETY: the kernel chooses the place, so nothing that is mapped changes.
    let memory = unsafe { next::mmap(std::ptr::null_mut(), len, prot, flags, -1, 0) };
    (memory != libc::MAP_FAILED).then_some(memory.cast())
}
