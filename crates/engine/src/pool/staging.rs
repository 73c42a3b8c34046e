//! Staging: memory into which pages are read ahead of the program. A *chunk* is pages that were read together; it lies there until one of
//! them is touched.
//!
//! The memory is divided into slots, of two kinds:
//!
//! * *Buffers* of 128 KiB. Their pages are copied when they are mapped (UFFDIO_COPY).
//! * *Frames*, huge pages of 2 MiB. They are moved into the file's place (UFFDIO_MOVE), and moved back when their pages are evicted, so
//!   nothing is allocated, cleared or copied. A frame has two addresses: one in ordinary memory, where a fresh frame comes into being, and
//!   one registered with a userfaultfd, to which a frame that comes back is moved.
//!
//! All of it is within the budget. A slot that has memory holds free frames for it. The pages of a chunk in a buffer have free frames as
//! well, for the moment when both the buffer and the pages are in memory.

use crate::page::entry::{FRAME_PAGES, RegionId};
use crate::sys::sync::{AtomicU32, AtomicUsize, Ordering, Padded};
use crate::sys::userfaultfd::Userfaultfd;
use crate::sys::{PAGE, madvise, memory};
use std::io;
use std::sync::atomic::{AtomicBool, AtomicU64};

/// Pages of a buffer, 128 KiB.
pub const BUFFER_PAGES: usize = 32;
/// Buffers of a large cache: a full window of the widest stream that has no frames.
const BUFFERS: usize = 64;
/// Frames of a large cache: full windows of eight streams.
const FRAMES: usize = 32;
/// A buffer costs its memory and its chunk's pages; at most a quarter of the capacity goes there.
const PAGES_PER_BUFFER: usize = 8 * BUFFER_PAGES;
/// At most a sixteenth of the capacity is frames that are not mapped; an eighth where that would be a single one.
const PAGES_PER_FRAME: usize = 16 * FRAME_PAGES;

/// The number of a slot, as page words hold it: buffers first, then frames.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SlotNumber(pub usize);

impl SlotNumber {
    /// Whether it is a frame.
    pub fn is_frame(self) -> bool {
        self.0 >= BUFFERS
    }

    /// Pages that fit.
    pub fn pages(self) -> usize {
        if self.is_frame() { FRAME_PAGES } else { BUFFER_PAGES }
    }
}

/// Free, without memory.
const EMPTY: u32 = 0;
/// Free, with memory and free frames for it.
const FULL: u32 = 1;
/// Taken by a thread, which fills it, or maps or drops its chunk.
const TAKEN: u32 = 2;
/// Holds a chunk whose pages are Staged.
const READY: u32 = 3;

/// Pages read ahead together, evenly spaced, in file order.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Chunk {
    pub region: RegionId,
    /// The first page.
    pub first: usize,
    /// Pages from one to the next.
    pub step: usize,
    pub count: usize,
    /// The tag of the stream that it was read for (`pool/streams.rs`).
    pub stream: u64,
    /// A bit for each page, in file order, that came back soon after it was evicted.
    pub soon: u64,
}

impl Chunk {
    /// Its pages.
    pub fn pages(self) -> impl DoubleEndedIterator<Item = usize> + ExactSizeIterator {
        (0..self.count).map(move |index| self.first + index * self.step)
    }
}

/// One slot.
#[derive(Debug, Default)]
struct Slot {
    state: AtomicU32,
    /// Of a frame: its memory is at the address for frames that come back.
    came_back: AtomicBool,
    region: AtomicU32,
    first: AtomicUsize,
    step: AtomicUsize,
    count: AtomicUsize,
    stream: AtomicU64,
    soon: AtomicU64,
    /// The value of `Ahead::clock` when its chunk was staged.
    staged_at: AtomicUsize,
}

/// The slots of a cache and their memory.
#[derive(Debug)]
pub struct Staging {
    slots: Box<[Padded<Slot>]>,
    buffers: *mut u8,
    fresh: *mut u8,
    back: *mut u8,
    /// The userfaultfd of `back`.
    userfaultfd: &'static Userfaultfd,
    /// Frames cannot be moved here: all chunks are copied.
    no_moves: AtomicBool,
    cursor: AtomicUsize,
}

// SAFETY: the memory belongs to no thread: it is reserved and released with the value.
unsafe impl Send for Staging {}
// SAFETY: a slot's memory is reached only by the thread that has taken the slot; the rest is atomics and constants.
unsafe impl Sync for Staging {}

const FRAME: usize = FRAME_PAGES * PAGE;
const BUFFER: usize = BUFFER_PAGES * PAGE;

impl Staging {
    /// Reserves address space; memory comes with use.
    pub fn new(userfaultfd: &'static Userfaultfd) -> io::Result<Self> {
        let slots = (0..BUFFERS + FRAMES).map(|_| Padded(Slot::default())).collect();
        let mut areas = [std::ptr::null_mut(); 3];
        for (area, (len, huge)) in
            areas.iter_mut().zip([(BUFFERS * BUFFER, false), (FRAMES * FRAME, true), (FRAMES * FRAME, true)])
        {
            *area = memory::reserve(len, FRAME)?;
            // SAFETY: reserved just now.
            unsafe {
                memory::protect(*area, len, true)?;
                madvise::prepare_staging(*area, len, huge);
            }
        }
        let [buffers, fresh, back] = areas;
        // SAFETY: our own memory, with nothing in it.
        unsafe { userfaultfd.register_missing(back, FRAMES * FRAME)? };
        Ok(Staging {
            slots,
            buffers,
            fresh,
            back,
            userfaultfd,
            no_moves: AtomicBool::new(false),
            cursor: AtomicUsize::new(0),
        })
    }

    /// Buffers that a cache of so many pages uses.
    pub fn most_buffers(capacity: usize) -> usize {
        (capacity / PAGES_PER_BUFFER).min(BUFFERS)
    }

    /// Frames that a cache of so many pages uses; a single one would be no use, so a cache with room for one has two.
    pub fn most_frames(capacity: usize) -> usize {
        match capacity / PAGES_PER_FRAME {
            0 => 0,
            frames => frames.clamp(2, FRAMES),
        }
    }

    /// Whether chunks can be moved.
    pub fn moves(&self) -> bool {
        !self.no_moves.load(Ordering::Relaxed)
    }

    /// Gives up moving: all chunks are copied from now on.
    pub fn give_up_moves(&self) {
        self.no_moves.store(true, Ordering::Relaxed);
    }

    fn slot(&self, number: SlotNumber) -> &Slot {
        &self.slots[number.0].0
    }

    /// Takes a free slot, preferably one that has memory; the slot, and whether it has. `most`: [`Staging::most_buffers`] or
    /// [`Staging::most_frames`].
    pub fn take(&self, frame: bool, most: usize) -> Option<(SlotNumber, bool)> {
        let first = if frame { BUFFERS } else { 0 };
        let take = |from: u32| {
            (first..first + most)
                .map(SlotNumber)
                .find(|number| self.change(*number, from, TAKEN))
                .map(|it| (it, from == FULL))
        };
        take(FULL).or_else(|| take(EMPTY))
    }

    fn change(&self, number: SlotNumber, from: u32, to: u32) -> bool {
        let state = &self.slot(number).state;
        state.load(Ordering::Relaxed) == from
            && state.compare_exchange(from, to, Ordering::Acquire, Ordering::Relaxed).is_ok()
    }

    /// Claims a slot for mapping or dropping its chunk.
    pub fn claim(&self, number: SlotNumber) -> bool {
        self.change(number, READY, TAKEN)
    }

    /// Says which chunk is, or is about to be, in a slot that this thread has taken.
    pub fn fill(&self, number: SlotNumber, chunk: Chunk, now: usize) {
        let slot = self.slot(number);
        slot.staged_at.store(now, Ordering::Relaxed);
        slot.region.store(chunk.region.0, Ordering::Relaxed);
        slot.first.store(chunk.first, Ordering::Relaxed);
        slot.step.store(chunk.step, Ordering::Relaxed);
        slot.count.store(chunk.count, Ordering::Relaxed);
        slot.stream.store(chunk.stream, Ordering::Relaxed);
        slot.soon.store(chunk.soon, Ordering::Relaxed);
    }

    /// When the chunk of a slot was staged.
    pub fn staged_at(&self, number: SlotNumber) -> usize {
        self.slot(number).staged_at.load(Ordering::Relaxed)
    }

    /// Whether a slot can be claimed.
    pub fn is_ready(&self, number: SlotNumber) -> bool {
        self.slot(number).state.load(Ordering::Acquire) == READY
    }

    /// Makes a filled slot claimable.
    pub fn ready(&self, number: SlotNumber) {
        self.slot(number).state.store(READY, Ordering::Release);
    }

    /// The chunk in a slot. A hint, unless this thread has claimed the slot.
    pub fn chunk(&self, number: SlotNumber) -> Chunk {
        let slot = self.slot(number);
        Chunk {
            region: RegionId(slot.region.load(Ordering::Relaxed)),
            first: slot.first.load(Ordering::Relaxed),
            step: slot.step.load(Ordering::Relaxed),
            count: slot.count.load(Ordering::Relaxed),
            stream: slot.stream.load(Ordering::Relaxed),
            soon: slot.soon.load(Ordering::Relaxed),
        }
    }

    /// Gives back a slot that this thread has taken, with or without its memory.
    pub fn free(&self, number: SlotNumber, with_memory: bool) {
        self.slot(number).state.store(if with_memory { FULL } else { EMPTY }, Ordering::Release);
    }

    /// The address of the memory of a slot that this thread has taken.
    pub fn memory(&self, number: SlotNumber) -> *mut u8 {
        if !number.is_frame() {
            return self.buffers.wrapping_add(number.0 * BUFFER);
        }
        let area = if self.slot(number).came_back.load(Ordering::Relaxed) { self.back } else { self.fresh };
        area.wrapping_add((number.0 - BUFFERS) * FRAME)
    }

    /// Touches a fresh frame's memory, so that the kernel brings its huge page before several threads read parts of it. If these touched it
    /// first, at the same time, each would get a huge page, charged to the process's group, until it found that another had been faster.
    pub fn bring_huge(&self, number: SlotNumber) {
        if number.is_frame() && !self.slot(number).came_back.load(Ordering::Relaxed) {
            // SAFETY: the slot is this thread's, and ordinary memory; what is in it is about to be read anew.
            unsafe { self.memory(number).write_volatile(0) };
        }
    }

    /// Sets which of its two addresses the memory of an empty frame, which this thread has taken, will be at.
    pub fn expect(&self, number: SlotNumber, back: bool) {
        self.slot(number).came_back.store(back, Ordering::Relaxed);
    }

    /// Moves a mapped frame's memory back into an empty slot, which this thread has taken and prepared with [`Staging::expect`]. The slot's
    /// page table, if it has one, goes first: beside it the kernel moves no huge page, but 512 small ones.
    ///
    /// # Safety
    /// `from` is a frame in a region, whose pages the state Evicting gives to this thread.
    pub unsafe fn move_back(&self, number: SlotNumber, from: *mut u8) -> Result<(), i32> {
        self.drop_memory(number);
        // SAFETY: nothing is in the slot; the caller's contract covers the frame.
        unsafe { self.userfaultfd.move_pages(self.memory(number), from, FRAME) }
    }

    /// Gives the memory of a slot that this thread has taken back to the kernel; whether the kernel took it.
    pub fn drop_memory(&self, number: SlotNumber) -> bool {
        let range = libc::iovec { iov_base: self.memory(number).cast(), iov_len: number.pages() * PAGE };
        // SAFETY: the slot is this thread's, and what is in it is not needed any more.
        unsafe { madvise::drop_pages(&[range]) }
    }

    /// Takes a slot that is free and holds memory, frames first.
    pub fn take_idle(&self) -> Option<SlotNumber> {
        (0..self.slots.len()).rev().map(SlotNumber).find(|number| self.change(*number, FULL, TAKEN))
    }

    /// Every slot that seems to hold a chunk, with the chunk, beginning behind the one that was last noted (`note_asked`).
    pub fn ready_chunks(&self) -> impl Iterator<Item = (SlotNumber, Chunk)> {
        let count = self.slots.len();
        let start = self.cursor.load(Ordering::Relaxed);
        let numbers = (1..=count).map(move |step| SlotNumber((start + step) % count));
        numbers.filter(|number| self.is_ready(*number)).map(|number| (number, self.chunk(number)))
    }

    /// Notes the slot that `ready_chunks` begins behind.
    pub fn note_asked(&self, number: SlotNumber) {
        self.cursor.store(number.0, Ordering::Relaxed);
    }

    /// Whether some slot is being mapped, dropped or filled.
    pub fn is_taken(&self) -> bool {
        self.slots.iter().any(|Padded(slot)| slot.state.load(Ordering::Acquire) == TAKEN)
    }

    /// Whether some slot holds a chunk of a region, or one that is being mapped, dropped or filled.
    pub fn may_hold(&self, region: RegionId) -> bool {
        self.slots.iter().any(|Padded(slot)| {
            matches!(slot.state.load(Ordering::Acquire), TAKEN | READY)
                && slot.region.load(Ordering::Relaxed) == region.0
        })
    }
}

impl Drop for Staging {
    fn drop(&mut self) {
        // SAFETY: the slots go with this value: no reference to their memory is left.
        unsafe {
            memory::release(self.buffers, BUFFERS * BUFFER);
            memory::release(self.fresh, FRAMES * FRAME);
            memory::release(self.back, FRAMES * FRAME);
        }
    }
}
