//! Store buffers: the stores to a page that is not in memory, and the page's bytes of the file once they are read.
//!
//! A buffer is called a slot here. A slot belongs to a page from `take` to `give_back`. The fill thread has slots of its own, in which it puts
//! Unfilled pages together. When the program has died the keeper reads a slot's `holds`, and what that says the slot has: those bytes are not in
//! the file.

use crate::deferred::decode;
use crate::deferred::protocol::LINE;
use crate::page::entry::{Entry, RegionId};
use crate::sys::PAGE;
use crate::sys::lock::{Held, Lock};
use crate::sys::memory::Zeroed;
use crate::sys::registers::Registers;
use crate::sys::signal::Trap;
use crate::sys::sync::{AtomicU32, AtomicU64, Ordering};
use crate::sys::uring::DEPTH;
use std::io;
use std::ops::Range;

/// Slots for buffered stores: twice the reads that the device is asked for at a time. 3 MiB with the fill thread's, if all are used.
const KEPT: usize = 2 * DEPTH;
/// The most stores that are buffered for a page; the next one waits. A trap costs a twentieth of a read from a fast disk.
const MOST_TRAPS: u32 = 8;
const WORDS: usize = PAGE / 64;

/// The contents of a slot that the file does not have.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Holds {
    /// Stores, to be laid over the file's bytes.
    Stores,
    /// The whole page.
    Page,
}

const NOTHING: u32 = 0;
const STORES: u32 = 1;
const WHOLE: u32 = 2;

#[derive(Debug)]
struct Slot {
    /// Held, with signals blocked, by a thread that puts a store in, and by the fill thread when it takes the stores.
    lock: Lock,
    holds: AtomicU32,
    /// [`Entry`] of the page.
    page: AtomicU64,
    traps: AtomicU32,
    /// A bit for each byte that was stored.
    mask: [AtomicU64; WORDS],
}

/// All slots of a fill thread.
#[derive(Debug)]
pub struct StoreBuffers {
    slots: Box<[Slot]>,
    /// A bit for each of the first [`KEPT`] that is taken.
    taken: [AtomicU64; KEPT / 64],
    stores: Zeroed<[u8; PAGE]>,
    /// The file's bytes. The second is used once the first is lost ([`StoreBuffers::lose_pages`]).
    pages: [Zeroed<[u8; PAGE]>; 2],
    lost: AtomicU32,
}

impl StoreBuffers {
    /// Makes them.
    pub fn new() -> io::Result<Self> {
        let slot = |_| Slot {
            lock: Lock::new(),
            holds: AtomicU32::new(NOTHING),
            page: AtomicU64::new(0),
            traps: AtomicU32::new(0),
            mask: std::array::from_fn(|_| AtomicU64::new(0)),
        };
        Ok(StoreBuffers {
            slots: (0..KEPT + DEPTH).map(slot).collect(),
            taken: std::array::from_fn(|_| AtomicU64::new(0)),
            stores: Zeroed::new(KEPT)?,
            // One more, for the keeper.
            pages: [Zeroed::new(KEPT + DEPTH + 1)?, Zeroed::new(KEPT + DEPTH + 1)?],
            lost: AtomicU32::new(0),
        })
    }

    /// The fill thread's own slots, by number.
    pub fn own(number: usize) -> usize {
        KEPT + number
    }

    /// Takes a slot for a page's stores, if one is free, and puts the first one in, if that is possible. Called by fault handlers.
    pub fn take_for(&self, region: RegionId, page: usize, trap: Trap) -> Option<usize> {
        let number = self.take(region, page)?;
        if self.put(number, trap) {
            return Some(number);
        }
        self.give_back(number);
        None
    }

    fn take(&self, region: RegionId, page: usize) -> Option<usize> {
        let lowest_free = |taken: u64| (taken != u64::MAX).then(|| taken | (taken + 1));
        let number = self.taken.iter().enumerate().find_map(|(word, taken)| {
            let before = taken.fetch_update(Ordering::Acquire, Ordering::Relaxed, lowest_free).ok()?;
            Some(word * 64 + before.trailing_ones() as usize)
        })?;
        self.slots[number].page.store(Entry::new(region, page).into(), Ordering::Relaxed);
        Some(number)
    }

    /// Gives a slot back, its stores in the page or not wanted.
    pub fn give_back(&self, number: usize) {
        self.note_saved(number);
        let slot = &self.slots[number];
        slot.traps.store(0, Ordering::Relaxed);
        slot.mask.iter().for_each(|word| word.store(0, Ordering::Relaxed));
        self.taken[number / 64].fetch_and(!(1 << (number % 64)), Ordering::Release);
    }

    /// The slot's lock; signals are blocked.
    pub fn lock(&self, number: usize) -> Held<'_> {
        self.slots[number].lock.lock()
    }

    /// Puts a thread's store into a slot, and makes the thread go on behind its instruction. False: the store cannot be decoded, is not all in
    /// this page, goes on with an earlier one (a long copy), or is one too many. The caller alone has the slot, or has its lock. Called by fault
    /// handlers.
    pub fn put(&self, number: usize, trap: Trap) -> bool {
        let slot = &self.slots[number];
        if slot.traps.fetch_add(1, Ordering::Relaxed) >= MOST_TRAPS {
            return false;
        }
        // SAFETY: the trap is of this thread, whose handler has not returned.
        let mut registers = unsafe { Registers::new(trap.context.cast()) };
        let Some(store) = decode::store_at(trap.address, &registers) else { return false };
        let from = store.at % PAGE;
        if continues_copy(&slot.mask, from..from + store.len()) {
            slot.traps.store(MOST_TRAPS, Ordering::Relaxed);
            return false;
        }
        // SAFETY: the rest of the slot's page, which is the caller's.
        let to = unsafe { std::slice::from_raw_parts_mut(self.stores_of(number).add(from), PAGE - from) };
        let stored = store.put(to);
        if stored == 0 {
            return false;
        }
        note_range(&slot.mask, from..from + stored);
        slot.holds.store(STORES, Ordering::Release);
        store.advance(&mut registers, stored);
        true
    }

    /// Whether all bytes of the slot's page were stored.
    pub fn is_whole(&self, number: usize) -> bool {
        self.slots[number].mask.iter().all(|word| word.load(Ordering::Relaxed) == u64::MAX)
    }

    /// The stores of a slot, where they go in its page.
    pub fn stores_of(&self, number: usize) -> *mut u8 {
        self.stores.as_mut_ptr().wrapping_add(number).cast()
    }

    /// Where the file's bytes of a slot's page go.
    pub fn page(&self, number: usize) -> *mut u8 {
        self.pages[self.lost.load(Ordering::Acquire) as usize].as_mut_ptr().wrapping_add(number).cast()
    }

    /// Uses other memory for reads from now on: a ring that broke may still write to the former. No page is being merged.
    pub fn lose_pages(&self) {
        self.lost.store(1, Ordering::Release);
    }

    /// A page for the keeper.
    pub fn keepers(&self) -> *mut u8 {
        self.page(KEPT + DEPTH)
    }

    /// Lays the stores of a slot over the bytes of its page.
    ///
    /// # Safety
    /// `onto` is a page of the caller's; nobody puts stores into the slot meanwhile.
    pub unsafe fn lay_over(&self, number: usize, onto: *mut u8) {
        let stores = self.stores_of(number);
        for (word, mask) in self.slots[number].mask.iter().enumerate() {
            let mut mask = mask.load(Ordering::Relaxed);
            while mask != 0 {
                let start = mask.trailing_zeros();
                let len = (mask >> start).trailing_ones();
                let at = word * 64 + start as usize;
                // SAFETY: within both pages.
                unsafe { onto.add(at).copy_from(stores.add(at), len as usize) };
                mask &= u64::MAX.checked_shl(start + len).unwrap_or(0);
            }
        }
    }

    /// Notes that a slot of the fill thread's has all of a page, which is out of memory from now on.
    pub fn note_whole(&self, number: usize, page: Entry) {
        self.slots[number].page.store(page.into(), Ordering::Relaxed);
        self.slots[number].holds.store(WHOLE, Ordering::Release);
    }

    /// Notes that the page is in memory: what the slot has means nothing any more.
    pub fn note_saved(&self, number: usize) {
        self.slots[number].holds.store(NOTHING, Ordering::Release);
    }

    /// The contents of each slot that the file does not have, and their page. For the keeper.
    pub fn contents(&self) -> impl Iterator<Item = (usize, Entry, Holds)> {
        self.slots.iter().enumerate().filter_map(|(number, slot)| {
            let holds = match slot.holds.load(Ordering::Acquire) {
                STORES => Holds::Stores,
                WHOLE => Holds::Page,
                _ => return None,
            };
            Some((number, Entry::from(slot.page.load(Ordering::Relaxed)), holds))
        })
    }
}

/// Whether the line right before or right behind a store has been stored already. Then the store is part of a copy in many moves, which would
/// trap with each of them, and have to wait in the end. So after four moves of 16 bytes it waits at once.
fn continues_copy(mask: &[AtomicU64; WORDS], bytes: Range<usize>) -> bool {
    let is_stored = |at: usize| mask[at / 64].load(Ordering::Relaxed) >> (at % 64) & 1 != 0;
    let is_line = |mut line: Range<usize>| line.all(is_stored);
    bytes.start >= LINE && is_line(bytes.start - LINE..bytes.start)
        || bytes.end + LINE <= PAGE && is_line(bytes.end..bytes.end + LINE)
}

/// Sets the bits of a range of bytes.
fn note_range(mask: &[AtomicU64; WORDS], bytes: Range<usize>) {
    for (word, bits) in mask.iter().enumerate().take(bytes.end.div_ceil(64)).skip(bytes.start / 64) {
        let start = bytes.start.saturating_sub(word * 64);
        let end = (bytes.end - word * 64).min(64);
        bits.fetch_or(u64::MAX >> (64 - (end - start)) << start, Ordering::Relaxed);
    }
}
