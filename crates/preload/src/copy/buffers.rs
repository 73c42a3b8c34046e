//! Buffers for bytes that are copied out of and into mappings.
//!
//! A wrapper may run in a signal handler, inside `malloc` or on a small stack. So it uses no allocator and no lock.
//! Buffers come from a fixed set that any thread may claim. If a buffer must be larger, or all are taken, it comes from
//! the kernel for this one call. A thread that leaves a call by longjmp(3) from a handler leaves its buffer claimed for
//! good.

use crate::next;
use crate::own::PAGE;
use std::sync::atomic::{AtomicBool, AtomicPtr, Ordering};

/// The bytes that a buffer of the set has room for, beside one page for alignment. A call that may be split copies at most
/// this many bytes at a time. The whole set takes 8 MiB, once used.
pub const CHUNK: usize = 256 << 10;

struct Shared {
    taken: AtomicBool,
    memory: AtomicPtr<u8>,
}

static SHARED: [Shared; 32] =
    [const { Shared { taken: AtomicBool::new(false), memory: AtomicPtr::new(std::ptr::null_mut()) } }; 32];

/// Ordinary memory for one call, page-aligned, with any content.
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
        // Acquire pairs with the release in `drop`: the copies of the call that had the buffer before are over.
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

    /// A buffer that no other call uses afterwards. The kernel may go on reading it after the call (`MSG_ZEROCOPY`,
    /// vmsplice(2)), and keeps its pages for that even when the buffer is unmapped.
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
            // SAFETY: `map` mapped this memory for this buffer alone.
            None => unsafe {
                next::munmap(self.memory.cast(), self.len);
            },
        }
    }
}

fn map(len: usize) -> Option<*mut u8> {
    let (prot, flags) =
        (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE);
    // SAFETY: the kernel chooses the place, so no existing mapping changes.
    let memory = unsafe { next::mmap(std::ptr::null_mut(), len, prot, flags, -1, 0) };
    (memory != libc::MAP_FAILED).then_some(memory.cast())
}
