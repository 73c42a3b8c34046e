//! Where does memory come from for what is copied out of and into mappings?
//!
//! A wrapper may run in a signal handler, inside `malloc`, on a small stack: no allocator, no lock. Buffers come from a
//! fixed set that any thread may claim, or, if larger or all taken, from the kernel for the one call. A thread that is
//! thrown out of a call (longjmp(3) from a handler) leaves its buffer claimed: one fewer.

use crate::next;
use std::sync::atomic::{AtomicBool, AtomicPtr, Ordering};

/// Bytes of a buffer of the set, and so the most of a file that is copied at a time: 8 MiB for the whole set, once used.
pub const CHUNK: usize = 256 << 10;

const PAGE: usize = 4096;

struct Slot {
    taken: AtomicBool,
    memory: AtomicPtr<u8>,
}

static SLOTS: [Slot; 32] =
    [const { Slot { taken: AtomicBool::new(false), memory: AtomicPtr::new(std::ptr::null_mut()) } }; 32];

/// Ordinary memory for one call, aligned to pages, of any content.
pub struct Buffer {
    memory: *mut u8,
    len: usize,
    slot: Option<&'static Slot>,
}

impl Buffer {
    /// At least `len` bytes; `None`: the kernel has no memory.
    pub fn new(len: usize) -> Option<Buffer> {
        if len > CHUNK + PAGE {
            return Buffer::unshared(len);
        }
        // Acquire pairs with the release in `drop`: the last call's copies are over.
        let slot = SLOTS.iter().find(|slot| {
            !slot.taken.load(Ordering::Relaxed)
                && slot.taken.compare_exchange(false, true, Ordering::Acquire, Ordering::Relaxed).is_ok()
        });
        let Some(slot) = slot else { return Buffer::unshared(len) };
        let mut memory = slot.memory.load(Ordering::Relaxed);
        if memory.is_null() {
            let Some(new) = map(CHUNK + PAGE) else {
                slot.taken.store(false, Ordering::Release);
                return None;
            };
            slot.memory.store(new, Ordering::Relaxed);
            memory = new;
        }
        Some(Buffer { memory, len: CHUNK + PAGE, slot: Some(slot) })
    }

    /// The same, never used by another call: the kernel may go on reading it after the call (`MSG_ZEROCOPY`, vmsplice(2)),
    /// and keeps its pages for that when it is unmapped.
    pub fn unshared(len: usize) -> Option<Buffer> {
        Some(Buffer { memory: map(len)?, len, slot: None })
    }

    pub fn start(&self) -> *mut u8 {
        self.memory
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        match self.slot {
            Some(slot) => slot.taken.store(false, Ordering::Release),
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
    // SAFETY: new memory.
    let memory = unsafe { next::mmap(std::ptr::null_mut(), len, prot, flags, -1, 0) };
    (memory != libc::MAP_FAILED).then_some(memory.cast())
}
