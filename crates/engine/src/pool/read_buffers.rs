//! Pages to read into before they are installed.

use crate::sys::PAGE;
use crate::sys::memory::Zeroed;
use crate::sys::sync::{AtomicU64, Ordering, Padded};
use std::io;

/// Pages read at a time by threads of one core. A thread asleep in a read keeps its buffer, so there are more than
/// cores.
const BUFFERS: usize = 64;

/// The buffers of a pool, [`BUFFERS`] for each core.
#[derive(Debug)]
pub struct ReadBuffers {
    memory: Zeroed<[u8; PAGE]>,
    /// For each core, one bit per buffer in use.
    used: Box<[Padded<AtomicU64>]>,
}

/// A read buffer, a page; free again when dropped.
#[derive(Debug)]
pub struct Buffer<'a> {
    /// Start of the page.
    pub at: *mut u8,
    used: &'a AtomicU64,
    bit: u64,
}

impl ReadBuffers {
    /// Those of so many cores.
    pub fn new(cores: usize) -> io::Result<Self> {
        let used = (0..cores).map(|_| Padded(AtomicU64::new(0))).collect();
        Ok(ReadBuffers { memory: Zeroed::new(cores * BUFFERS)?, used })
    }

    /// A free buffer, this core's if one is.
    #[inline]
    pub fn take(&self, core: usize) -> Option<Buffer<'_>> {
        self.take_of(core).or_else(|| self.take_any())
    }

    #[cold]
    fn take_any(&self) -> Option<Buffer<'_>> {
        (0..self.used.len()).find_map(|core| self.take_of(core))
    }

    #[inline]
    fn take_of(&self, core: usize) -> Option<Buffer<'_>> {
        let used = &self.used[core].0;
        let lowest_free = |used: u64| (used != u64::MAX).then(|| used | (used + 1));
        let before = used.fetch_update(Ordering::Acquire, Ordering::Relaxed, lowest_free).ok()?;
        let number = before.trailing_ones() as usize;
        // SAFETY: below `cores * BUFFERS`; the bit makes it this thread's.
        let at = unsafe { self.memory.as_mut_ptr().add(core * BUFFERS + number).cast() };
        Some(Buffer { at, used, bit: 1 << number })
    }
}

impl Drop for Buffer<'_> {
    fn drop(&mut self) {
        self.used.fetch_and(!self.bit, Ordering::Release);
    }
}
