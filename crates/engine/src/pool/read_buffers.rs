//! Buffers: pages that are read into before they are installed.

use crate::sys::PAGE;
use crate::sys::memory::Zeroed;
use crate::sys::sync::{AtomicU64, Ordering, Padded};
use std::io;

/// Pages read at a time by threads of one core. A thread asleep in a read keeps its buffer, so there are more than
/// cores.
pub const BUFFERS: usize = 64;

/// The buffers of a pool, [`BUFFERS`] for each core.
#[derive(Debug)]
pub struct ReadBuffers {
    memory: Zeroed<[u8; PAGE]>,
    /// For each core, one bit per buffer in use.
    used: Box<[Padded<AtomicU64>]>,
}

/// A read buffer, a page or several; free again when dropped.
#[derive(Debug)]
pub struct Buffer<'a> {
    /// Start of the first page.
    pub at: *mut u8,
    used: &'a AtomicU64,
    bits: u64,
}

impl ReadBuffers {
    /// Buffers for so many cores.
    pub fn new(cores: usize) -> io::Result<Self> {
        let used = (0..cores).map(|_| Padded(AtomicU64::new(0))).collect();
        // Without huge pages: few of the buffers are ever in use, of those for runs above all.
        Ok(ReadBuffers { memory: Zeroed::sparse(cores * BUFFERS, 0)?, used })
    }

    /// A free buffer, this core's if it has one.
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
        Some(Buffer { at: self.at(core, number), used, bits: 1 << number })
    }

    /// So many neighbouring buffers, of this core's if they are free; [`BUFFERS`] at most.
    pub fn take_run(&self, core: usize, pages: usize) -> Option<Buffer<'_>> {
        let sets = self.used.len();
        (0..sets).find_map(|set| self.take_run_of((core + set) % sets, pages))
    }

    fn take_run_of(&self, core: usize, pages: usize) -> Option<Buffer<'_>> {
        let used = &self.used[core].0;
        let wanted = u64::MAX >> (BUFFERS - pages);
        let mut found = 0;
        let take = |used: u64| {
            found = (0..=BUFFERS - pages).find(|place| used >> place & wanted == 0)?;
            Some(used | wanted << found)
        };
        used.fetch_update(Ordering::Acquire, Ordering::Relaxed, take).ok()?;
        Some(Buffer { at: self.at(core, found), used, bits: wanted << found })
    }

    fn at(&self, core: usize, number: usize) -> *mut u8 {
        // SAFETY: below `cores * BUFFERS`; the bit makes it this thread's.
        unsafe { self.memory.as_mut_ptr().add(core * BUFFERS + number).cast() }
    }
}

impl Drop for Buffer<'_> {
    fn drop(&mut self) {
        self.used.fetch_and(!self.bits, Ordering::Release);
    }
}
