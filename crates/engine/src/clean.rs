//! Clean queues: per core, the pages that may be evicted, oldest first (the paper's `clean_queue`, section 3.3).
//!
//! Each core's queue has a lock of its own that loads and stores only ever try: a thread that finds it taken (it was moved to
//! another core in the middle) uses the next core's queue. Entries lie in chunks of 512 that the queues share, so the
//! memory is 8 bytes a page of the budget whatever the split between cores. A chunk that was used is used again before a
//! fresh one is touched, so a budget that may grow costs memory only once it has grown. A page has at most one entry
//! (`QUEUED` in its word).

use crate::credits::Padded;
use crate::lock::Lock;
use crate::region::{Entry, SlotIndex};
use crate::sync::{AtomicU32, AtomicU64, Ordering, UnsafeCell, spin};
use crate::sys::memory::{Growing, Zeroed};
use crate::sys::signal::Blocked;
use std::io;
use std::ops::Range;

const CHUNK: usize = 512;
const NONE: u32 = u32::MAX;

/// One core's queue: a list of chunks, filled at the tail and emptied at the head.
#[derive(Debug, Default)]
struct Queue {
    head: u32,
    tail: u32,
    /// Next entry to pop, in the head chunk.
    read: usize,
    /// Next free place, in the tail chunk.
    written: usize,
    len: usize,
}

#[derive(Debug)]
struct Guarded {
    lock: Lock,
    queue: UnsafeCell<Queue>,
}

/// Chunks that queues of `cores` cores need for this many entries. The first and the last chunk of a queue may be partly
/// empty; and a thread at each queue may take a fresh chunk because it found none free a moment before another put one back.
fn chunks_for(pages: usize, cores: usize) -> usize {
    pages.div_ceil(CHUNK) + 3 * cores
}

/// The queues of all cores.
#[derive(Debug)]
pub struct CleanQueues {
    queues: Box<[Padded<Guarded>]>,
    chunks: Growing,
    /// The chunk after each one, in a queue or in the list of free chunks.
    next: Zeroed<AtomicU32>,
    /// Free chunks: a stack, its top in the low half, a counter against ABA in the high half.
    free: AtomicU64,
    /// Chunks that were ever in use.
    used: AtomicU32,
}

// SAFETY: a queue is reached only under its lock, a chunk only by the queue that holds it.
unsafe impl Sync for CleanQueues {}
// SAFETY: nothing in it belongs to a thread.
unsafe impl Send for CleanQueues {}

impl CleanQueues {
    /// Queues with room for `pages` entries in any split, and address space for `most`.
    pub fn new(pages: usize, most: usize, cores: usize) -> io::Result<Self> {
        let guarded = || Guarded {
            lock: Lock::new(),
            queue: UnsafeCell::new(Queue { head: NONE, tail: NONE, ..Queue::default() }),
        };
        let queues = CleanQueues {
            queues: (0..cores).map(|_| Padded(guarded())).collect(),
            chunks: Growing::new(chunks_for(most, cores) * CHUNK)?,
            next: Zeroed::new(chunks_for(most, cores))?,
            free: AtomicU64::new(NONE.into()),
            used: AtomicU32::new(0),
        };
        queues.make_room(pages)?;
        Ok(queues)
    }

    /// Makes room for `pages` entries, at most as many as there is address space for.
    pub fn make_room(&self, pages: usize) -> io::Result<()> {
        self.chunks.commit(chunks_for(pages, self.queues.len()) * CHUNK)
    }

    /// Appends a page to a core's queue, or to the next one that is not in use at this moment.
    #[inline]
    pub fn push(&self, core: usize, entry: Entry) {
        let count = self.queues.len();
        let mut at = core;
        loop {
            let Guarded { lock, queue } = &self.queues[at].0;
            if let Some(_held) = lock.try_lock() {
                // SAFETY: under the queue's lock.
                return queue.with_mut(|queue| unsafe { self.append(&mut *queue, entry.into()) });
            }
            at = (at + 1) % count;
            if at == core {
                spin();
            }
        }
    }

    /// Removes the oldest entries of a core's queue into `batch`; the count. Zero also when the queue is in use.
    pub fn pop(&self, core: usize, batch: &mut [u64]) -> usize {
        let Guarded { lock, queue } = &self.queues[core].0;
        let Some(_held) = lock.try_lock() else { return 0 };
        // SAFETY: under the queue's lock.
        queue.with_mut(|queue| unsafe { self.take(&mut *queue, batch) })
    }

    /// Removes the entries of some pages of a region from all queues.
    pub fn purge(&self, slot: SlotIndex, pages: Range<usize>) -> Vec<Entry> {
        let mut purged = Vec::new();
        for Padded(Guarded { lock, queue }) in &self.queues {
            let _blocked = Blocked::all();
            let _held = lock.lock();
            queue.with_mut(|queue| {
                // SAFETY: under the queue's lock.
                let queue = unsafe { &mut *queue };
                for _ in 0..queue.len {
                    let mut one = [0];
                    self.take(queue, &mut one);
                    let entry = Entry::from(one[0]);
                    if entry.slot() == slot && pages.contains(&entry.page()) {
                        purged.push(entry);
                    } else {
                        self.append(queue, one[0]);
                    }
                }
            });
        }
        purged
    }

    fn append(&self, queue: &mut Queue, entry: u64) {
        if queue.tail == NONE || queue.written == CHUNK {
            let chunk = self.pop_free();
            self.next[chunk as usize].store(NONE, Ordering::Relaxed);
            if queue.tail == NONE {
                (queue.head, queue.read) = (chunk, 0);
            } else {
                self.next[queue.tail as usize].store(chunk, Ordering::Relaxed);
            }
            (queue.tail, queue.written) = (chunk, 0);
        }
        // SAFETY: the tail chunk belongs to this queue, whose lock the caller holds.
        unsafe { *self.chunks.as_mut_ptr().add(queue.tail as usize * CHUNK + queue.written) = entry };
        queue.written += 1;
        queue.len += 1;
    }

    fn take(&self, queue: &mut Queue, batch: &mut [u64]) -> usize {
        let mut taken = 0;
        while taken < batch.len() && queue.len > 0 {
            let end = if queue.head == queue.tail { queue.written } else { CHUNK };
            let count = (end - queue.read).min(batch.len() - taken);
            let from = queue.head as usize * CHUNK + queue.read;
            // SAFETY: entries of the head chunk, which belongs to this queue, whose lock the caller holds.
            let entries = unsafe { std::slice::from_raw_parts(self.chunks.as_mut_ptr().add(from), count) };
            batch[taken..taken + count].copy_from_slice(entries);
            taken += count;
            queue.read += count;
            queue.len -= count;
            if queue.read == end && (queue.len > 0 || end == CHUNK) {
                let empty = queue.head;
                queue.head = self.next[empty as usize].load(Ordering::Relaxed);
                queue.read = 0;
                if queue.head == NONE {
                    queue.tail = NONE;
                }
                self.push_free(empty);
            }
        }
        taken
    }

    fn pop_free(&self) -> u32 {
        let top = self.free.fetch_update(Ordering::AcqRel, Ordering::Acquire, |top| {
            // No chunk has the number NONE.
            let next = self.next.get(top as u32 as usize)?.load(Ordering::Relaxed);
            Some((top >> 32).wrapping_add(1) << 32 | u64::from(next))
        });
        // There is always a fresh one: see `chunks_for`.
        top.map_or_else(|_| self.used.fetch_add(1, Ordering::Relaxed), |top| top as u32)
    }

    fn push_free(&self, chunk: u32) {
        let _ = self.free.fetch_update(Ordering::AcqRel, Ordering::Acquire, |top| {
            self.next[chunk as usize].store(top as u32, Ordering::Relaxed);
            Some((top >> 32).wrapping_add(1) << 32 | u64::from(chunk))
        });
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use std::collections::VecDeque;

    #[test]
    fn keeps_order_in_each_queue_and_reuses_chunks() {
        let queues = CleanQueues::new(1000, 3000, 2).unwrap();
        let mut model = [VecDeque::new(), VecDeque::new()];
        let mut random = 1u64;
        for step in 0..200_000u64 {
            random = random.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            let core = (random >> 33) as usize % 2;
            if step == 20_000 {
                queues.make_room(3000).unwrap();
            }
            let most = if step < 20_000 { 1000 } else { 3000 };
            if random >> 40 & 1 == 0 && model[0].len() + model[1].len() < most {
                queues.push(core, Entry::new(SlotIndex(1 + step as u32 % 2), step as usize));
                model[core].push_back(step);
            } else {
                let mut batch = [0; 700];
                let want = (random >> 41) as usize % 700;
                let got = queues.pop(core, &mut batch[..want]);
                assert_eq!(got, want.min(model[core].len()));
                for entry in &batch[..got] {
                    assert_eq!(Entry::from(*entry).page() as u64, model[core].pop_front().unwrap());
                }
            }
        }
        assert!(queues.used.load(Ordering::Relaxed) as usize <= chunks_for(3000, 2), "chunks are used again");
        let of_slot = |slot| model.iter().flatten().filter(|step| 1 + *step % 2 == slot).count();
        assert!(queues.purge(SlotIndex(1), 0..1).len() <= 1);
        assert_eq!(queues.purge(SlotIndex(1), 1..usize::MAX).len(), of_slot(1));
        assert_eq!(queues.purge(SlotIndex(2), 0..usize::MAX).len(), of_slot(2));
    }
}
