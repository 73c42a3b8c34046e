//! Clean queues: per core, the pages that may be evicted, oldest first (the paper's `clean_queue`, section 3.3), in a
//! probationary and a protected queue (`replacement.rs`).
//!
//! Each core's queues have a lock, which loads and stores only try: a thread that finds it taken (one of the two was moved to another core
//! meanwhile) uses the next core's queues. Entries lie in chunks of 512 that all queues share, so the memory is 8 bytes a page of the budget
//! whatever the split between cores. A chunk that was used is used again before a fresh one is touched, so a budget that may grow costs
//! memory only once it has grown. A page has at most one entry (`QUEUED` in its word).

use crate::page::entry::{Entry, RegionId};
use crate::sys::lock::Lock;
use crate::sys::memory::{Growing, Zeroed};
use crate::sys::signal::Blocked;
use crate::sys::sync::{AtomicU32, AtomicU64, AtomicUsize, Ordering, Padded, UnsafeCell, spin};
use std::io;
use std::ops::Range;

const CHUNK: usize = 512;
const NONE: u32 = u32::MAX;
/// So many entries share one note of when the first of them was queued, their *birth*.
const DATED: usize = 64;

/// A queue: a list of chunks, filled at the tail and emptied at the head.
#[derive(Debug, Default)]
struct Queue {
    head: u32,
    tail: u32,
    /// Next entry to pop, in the head chunk.
    read: usize,
    /// Next free place, in the tail chunk.
    written: usize,
    len: usize,
    /// Pages that the entries stand for.
    pages: usize,
}

#[derive(Debug)]
struct Guarded {
    lock: Lock,
    /// The probationary one and the protected one.
    queues: UnsafeCell<[Queue; 2]>,
    seen: [Seen; 2],
}

/// Numbers of a queue that are read without its lock, and changed under it.
#[derive(Debug)]
struct Seen {
    pages: AtomicUsize,
    /// When the oldest entry was queued, made odd; zero: there is none.
    oldest: AtomicU32,
}

impl Seen {
    fn new() -> Self {
        Seen { pages: AtomicUsize::new(0), oldest: AtomicU32::new(0) }
    }
}

/// How many *void* entries there may be before they are looked for and removed. The page of a void entry has left memory by another way.
fn most_void(pages: usize) -> usize {
    pages / 8 + 256
}

/// Chunks that the queues of `cores` cores need for so many pages. Each page has an entry. There are void entries as well, of which threads
/// note a few before they look. The first and the last chunk of a queue may be partly empty. On each core a thread may take a fresh chunk
/// because it found none free a moment before another put one back.
fn chunks_for(pages: usize, cores: usize) -> usize {
    (pages + most_void(pages) + 4 * CHUNK).div_ceil(CHUNK) + 5 * cores
}

/// The queues of all cores.
#[derive(Debug)]
pub struct CleanQueues {
    cores: Box<[Padded<Guarded>]>,
    chunks: Growing,
    /// When the first of each [`DATED`] entries of the chunks was queued.
    births: Zeroed<AtomicU32>,
    /// The chunk after each one, in a queue or in the list of free chunks.
    next: Zeroed<AtomicU32>,
    /// Free chunks: a stack, its top in the low half, a counter against ABA in the high half.
    free: AtomicU64,
    /// Chunks that were ever in use.
    used: AtomicU32,
    /// Void entries noted since they were last looked for: not fewer than there are.
    void: AtomicUsize,
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
            queues: UnsafeCell::new([(); 2].map(|()| Queue { head: NONE, tail: NONE, ..Queue::default() })),
            seen: [Seen::new(), Seen::new()],
        };
        let queues = CleanQueues {
            cores: (0..cores).map(|_| Padded(guarded())).collect(),
            chunks: Growing::new(chunks_for(most, cores) * CHUNK)?,
            // Without huge pages: a cache that stays small touches the first few KiB.
            births: Zeroed::sparse(chunks_for(most, cores) * (CHUNK / DATED), 0)?,
            next: Zeroed::sparse(chunks_for(most, cores), 0)?,
            free: AtomicU64::new(NONE.into()),
            used: AtomicU32::new(0),
            void: AtomicUsize::new(0),
        };
        queues.make_room(pages)?;
        Ok(queues)
    }

    /// Makes room for `pages` entries, at most as many as there is address space for.
    pub fn make_room(&self, pages: usize) -> io::Result<()> {
        self.chunks.commit(chunks_for(pages, self.cores.len()) * CHUNK)
    }

    /// Appends a page to a core's probationary or protected queue, or to the next core's if its are in use at this moment. `birth`: the time
    /// now.
    #[inline]
    pub fn push(&self, core: usize, entry: Entry, protected_queue: bool, birth: u32) {
        let count = self.cores.len();
        let mut at = core;
        loop {
            let Guarded { lock, queues, seen } = &self.cores[at].0;
            if let Some(_held) = lock.try_lock() {
                return queues.with_mut(|queues| {
                    // SAFETY: under the queues' lock.
                    let queues = unsafe { &mut *queues };
                    let queue = &mut queues[usize::from(protected_queue)];
                    self.append(queue, entry.into(), birth);
                    self.show(queue, &seen[usize::from(protected_queue)]);
                });
            }
            at = (at + 1) % count;
            if at == core {
                spin();
            }
        }
    }

    /// Removes the oldest entries of a core's probationary or protected queue into `batch`, until they stand for as many pages as it has
    /// places; their count. Zero also when the core's queues are in use. Entries that have turns left go to the end of the queue instead, with
    /// one turn less, as long as it is not many at once. `birth`: the time now.
    pub fn pop(&self, core: usize, protected_queue: bool, batch: &mut [u64], birth: u32) -> usize {
        /// So many entries for each place of the batch are passed over at most: then turns do not count.
        const MOST_PASSED: usize = 8;
        let Guarded { lock, queues, seen } = &self.cores[core].0;
        let Some(_held) = lock.try_lock() else { return 0 };
        queues.with_mut(|queues| {
            // SAFETY: under the queues' lock.
            let queue = unsafe { &mut (*queues)[usize::from(protected_queue)] };
            let (mut taken, mut passed) = (0, 0);
            loop {
                let more = self.take(queue, &mut batch[taken..]);
                let mut kept = taken;
                for at in taken..taken + more {
                    match Entry::from(batch[at]).next_turn() {
                        Some(later) if passed < MOST_PASSED * batch.len() => {
                            self.append(queue, later.into(), birth);
                            passed += 1;
                        }
                        _ => {
                            batch[kept] = batch[at];
                            kept += 1;
                        }
                    }
                }
                let is_over = kept == taken + more;
                taken = kept;
                // Half a batch will do. A frame has no turns, and is as much as a batch.
                if is_over || 2 * taken >= batch.len() || taken > 0 && Entry::from(batch[taken - 1]).is_frame() {
                    break;
                }
            }
            self.show(queue, &seen[usize::from(protected_queue)]);
            taken
        })
    }

    /// Pages in the probationary queues of all cores and in the protected ones, about.
    pub fn pages(&self) -> [usize; 2] {
        let of_all = |kind: usize| self.cores.iter().map(|core| core.0.seen[kind].pages.load(Ordering::Relaxed)).sum();
        [of_all(0), of_all(1)]
    }

    /// How long ago, in units of births, the oldest entry of a core's probationary or protected queue was queued, about. Zero if that was
    /// after `now`: another thread may have queued it since the time was looked at.
    #[inline]
    pub fn age(&self, core: usize, protected_queue: bool, now: u32) -> Option<u32> {
        match self.cores[core].0.seen[usize::from(protected_queue)].oldest.load(Ordering::Relaxed) {
            0 => None,
            // An odd birth may be one ahead of the time.
            birth => Some(((now | 1).wrapping_sub(birth) as i32).max(0) as u32),
        }
    }

    #[inline]
    fn show(&self, queue: &Queue, seen: &Seen) {
        let born = || self.birth(queue.head, queue.read).load(Ordering::Relaxed) | 1;
        seen.oldest.store(if queue.len > 0 { born() } else { 0 }, Ordering::Relaxed);
        seen.pages.store(queue.pages, Ordering::Relaxed);
    }

    fn birth(&self, chunk: u32, place: usize) -> &AtomicU32 {
        &self.births[chunk as usize * (CHUNK / DATED) + place / DATED]
    }

    /// Removes the entries of some pages of a region from all queues, and of frames that hold some of them.
    pub fn purge(&self, region: RegionId, pages: Range<usize>) -> Vec<Entry> {
        let overlaps = |entry: Entry| entry.page() < pages.end && entry.page() + entry.pages() > pages.start;
        // An entry a page, and frames that begin before or end behind.
        self.remove(pages.len().saturating_add(2), |entry| entry.region() == region && overlaps(entry))
    }

    /// Removes the entries of a region's frames from all queues.
    pub fn purge_frames(&self, region: RegionId) -> Vec<Entry> {
        self.remove(usize::MAX, |entry| entry.region() == region && entry.is_frame())
    }

    /// Notes entries that are void; the caller has not given up the pages' free frames yet. When there may be too many for a cache of
    /// `pages`, removes those that `is_void` is true for. This is in time: once the free frames are used again there might be no room for
    /// entries. Nothing is allocated.
    pub fn note_void(&self, entries: usize, pages: usize, is_void: impl Fn(Entry) -> bool) {
        if self.void.fetch_add(entries, Ordering::Relaxed) + entries > most_void(pages) {
            self.void.store(0, Ordering::Relaxed);
            self.retain(|entry| entry.is_frame() || !is_void(entry));
        }
    }

    /// `most`: so many entries can meet the condition.
    fn remove(&self, most: usize, condition: impl Fn(Entry) -> bool) -> Vec<Entry> {
        const FEW: usize = 256;
        // Room for all, since nothing may be allocated under a queue's lock: the program's allocator may touch pages, and wait for the lock.
        // Where memory is limited (setrlimit(2)) there may be room for some, and there are hardly ever more.
        let (mut removed, mut room) = (Vec::new(), most.min(self.next.len() * CHUNK));
        while removed.try_reserve_exact(room).is_err() {
            room /= 2;
        }
        loop {
            self.retain(|entry| {
                let goes = removed.len() < removed.capacity() && condition(entry);
                if goes {
                    removed.push(entry);
                }
                !goes
            });
            if removed.len() < removed.capacity() {
                return removed;
            }
            removed.reserve(FEW);
        }
    }

    fn retain(&self, mut stays: impl FnMut(Entry) -> bool) {
        for Padded(Guarded { lock, queues, seen }) in &self.cores {
            let _blocked = Blocked::all();
            let _held = lock.lock();
            queues.with_mut(|queues| {
                // SAFETY: under the queues' lock.
                let queues = unsafe { &mut *queues };
                for (queue, seen) in queues.iter_mut().zip(seen) {
                    for _ in 0..queue.len {
                        let birth = self.birth(queue.head, queue.read).load(Ordering::Relaxed);
                        let mut one = [0];
                        self.take(queue, &mut one);
                        if stays(Entry::from(one[0])) {
                            self.append(queue, one[0], birth);
                        }
                    }
                    self.show(queue, seen);
                }
            });
        }
    }

    fn append(&self, queue: &mut Queue, entry: u64, birth: u32) {
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
        if queue.len == 0 || queue.written.is_multiple_of(DATED) {
            self.birth(queue.tail, queue.written).store(birth, Ordering::Relaxed);
        }
        // SAFETY: the tail chunk belongs to this queue, whose lock the caller holds.
        unsafe { *self.chunks.as_mut_ptr().add(queue.tail as usize * CHUNK + queue.written) = entry };
        queue.written += 1;
        queue.len += 1;
        queue.pages += Entry::from(entry).pages();
    }

    fn take(&self, queue: &mut Queue, batch: &mut [u64]) -> usize {
        let mut taken = 0;
        // Entries that the batch takes, at most. It takes as many pages as it has places, and a frame counts for all of its pages.
        let mut wanted = batch.len();
        while taken < wanted && queue.len > 0 {
            let end = if queue.head == queue.tail { queue.written } else { CHUNK };
            let most = (end - queue.read).min(wanted - taken);
            let from = queue.head as usize * CHUNK + queue.read;
            // SAFETY: entries of the head chunk, which belongs to this queue, whose lock the caller holds.
            let entries = unsafe { std::slice::from_raw_parts(self.chunks.as_mut_ptr().add(from), most) };
            let mut count = 0;
            while count < most && taken + count < wanted {
                batch[taken + count] = entries[count];
                let pages = Entry::from(entries[count]).pages();
                wanted = wanted.saturating_sub(pages - 1);
                queue.pages -= pages;
                count += 1;
            }
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
        let mut model: [[VecDeque<u64>; 2]; 2] = Default::default();
        let mut random = 1u64;
        for step in 0..200_000u64 {
            random = random.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            let core = (random >> 33) as usize % 2;
            if step == 20_000 {
                queues.make_room(3000).unwrap();
            }
            let most = if step < 20_000 { 1000 } else { 3000 };
            if random >> 40 & 1 == 0 && model.iter().flatten().map(VecDeque::len).sum::<usize>() < most {
                let protected_queue = random >> 52 & 3 == 0;
                queues.push(
                    core,
                    Entry::new(RegionId(1 + step as u32 % 2), step as usize),
                    protected_queue,
                    step as u32,
                );
                model[core][usize::from(protected_queue)].push_back(step);
            } else {
                let mut batch = [0; 700];
                let want = (random >> 41) as usize % 700;
                let protected_queue = random >> 52 & 3 == 0;
                let from = &mut model[core][usize::from(protected_queue)];
                let got = queues.pop(core, protected_queue, &mut batch[..want], step as u32);
                assert_eq!(got, want.min(from.len()));
                for entry in &batch[..got] {
                    assert_eq!(Entry::from(*entry).page() as u64, from.pop_front().unwrap());
                }
            }
            // The age of the oldest: known to within the entries that share a note of it.
            for (kind, queue) in model[core].iter().enumerate() {
                match (queues.age(core, kind == 1, step as u32), queue.front()) {
                    (None, None) => {}
                    (Some(age), Some(queued)) => {
                        assert!(u64::from(age) + 1 >= step - queued, "{age} at {step}: {queued}");
                    }
                    other => panic!("{other:?}"),
                }
            }
            let lengths = |kind: usize| model.iter().map(|of_core| of_core[kind].len()).sum::<usize>();
            assert_eq!(queues.pages(), [lengths(0), lengths(1)]);
        }
        assert!(queues.used.load(Ordering::Relaxed) as usize <= chunks_for(3000, 2), "chunks are used again");
        let of_region = |region| model.iter().flatten().flatten().filter(|step| 1 + *step % 2 == region).count();
        assert!(queues.purge(RegionId(1), 0..1).len() <= 1);
        assert_eq!(queues.purge(RegionId(1), 1..usize::MAX).len(), of_region(1));
        assert_eq!(queues.purge(RegionId(2), 0..usize::MAX).len(), of_region(2));
        assert!([0, 1].iter().all(|core| queues.age(*core, false, 0).or(queues.age(*core, true, 0)).is_none()));
    }

    #[test]
    fn entries_with_turns_go_to_the_end_but_not_too_many_at_once() {
        let queues = CleanQueues::new(10_000, 10_000, 1).unwrap();
        let entry = |page: usize| Entry::new(RegionId(1), page).with_turns((page % 4) as u32);
        let pop = |most: usize| {
            let mut batch = [0; 512];
            let count = queues.pop(0, true, &mut batch[..most], 0);
            batch[..count].iter().map(|entry| Entry::from(*entry).page()).collect::<Vec<_>>()
        };
        (0..400).for_each(|page| queues.push(0, entry(page), true, 0));
        let order: Vec<usize> =
            std::iter::from_fn(|| Some(pop(64)).filter(|pages| !pages.is_empty())).flatten().collect();
        let by_turns: Vec<usize> = (0..4).flat_map(|turns| (0..400).filter(move |page| page % 4 == turns)).collect();
        assert_eq!(order, by_turns);
        // A thread that waits for room does not go round a queue of pages that have all proved themselves.
        (0..1000).for_each(|page| queues.push(0, entry(3), true, page));
        assert_eq!(pop(64).len(), 64);
        assert_eq!(queues.pages(), [0, 1000 - 64]);
    }

    #[test]
    fn ages_tell_an_old_queue_from_a_young_one() {
        let queues = CleanQueues::new(10_000, 10_000, 2).unwrap();
        (0..1000).for_each(|page| queues.push(0, Entry::new(RegionId(1), page), false, 10));
        (0..1000).for_each(|page| queues.push(1, Entry::new(RegionId(1), 1000 + page), false, 10 + page as u32 / 100));
        let mut batch = [0; 512];
        assert_eq!(queues.pop(1, false, &mut batch, 30), 512);
        let now = 30;
        assert!(queues.age(0, false, now).unwrap() >= 19 && queues.age(1, false, now).unwrap() <= 16);
        // A queue that was empty begins anew, in the middle of a chunk too.
        (0..2).for_each(|_| _ = queues.pop(1, false, &mut batch, 30));
        assert_eq!(queues.age(1, false, now), None);
        queues.push(1, Entry::new(RegionId(1), 0), false, now);
        assert!(queues.age(1, false, now).unwrap() <= 1);
        assert_eq!(queues.age(1, false, now - 10), Some(0), "queued by another thread since the time was looked at");
    }
}
