//! One reader: its life, what it has on its way, and what becomes of it.
//!
//! It waits for nothing but its ring and its bell: where there is no room without writing dirty pages back, it does not
//! read ahead.

use crate::evict::room::Room;
use crate::page::entry::{FRAME_PAGES, RegionId};
use crate::page::word::State;
use crate::pool::ahead::{Ahead, Pages, ReadRequest, ReaderQueue};
use crate::pool::pool::Pool;
use crate::pool::staging::{Chunk, SlotNumber};
use crate::pool::streams::{STREAMS, Start};
use crate::readahead::prefetch::PIECE_PAGES;
use crate::readahead::window::{LEAST_CHUNK, Position};
use crate::region::install::{claim, unclaim};
use crate::region::region::Region;
use crate::region::registry::InUse;
use crate::region::{install, registry};
use crate::sys::PAGE;
use crate::sys::memory::Zeroed;
use crate::sys::signal::Blocked;
use crate::sys::sync::Ordering;
use crate::sys::uring::{DEPTH, Ring};
use std::io;
use std::ops::Range;
use std::sync::{Arc, Weak};

/// A chunk or a piece on its way, in a region that stays until it is there.
struct Transfer {
    region: InUse<'static>,
    destination: Destination,
    /// Requests that have not ended.
    left: usize,
    /// Bytes that are there: from the front, where there is one request.
    filled: usize,
}

#[derive(Debug, Clone, Copy)]
enum Destination {
    /// Into a slot, to be Staged.
    Chunk(SlotNumber, Chunk),
    /// Neighbouring pages that are mapped as soon as they are there; into the transfer's own buffer. A bit of
    /// `protected_queue` for each whose queue is the protected one.
    Piece { first: usize, count: usize, protected_queue: u32 },
}

/// One reader.
pub struct Reader {
    pub ahead: Arc<Ahead>,
    number: usize,
    pub ring: Option<Ring>,
    /// The ring will say when the bell rings.
    listens: bool,
    pub positions: Vec<Position>,
    transfers: Vec<Option<Transfer>>,
    /// A buffer for each transfer.
    pieces: Zeroed<[u8; PAGE]>,
    /// Requests in the ring.
    pub requests: usize,
    /// The device did what was last asked for in the system call that asked for it.
    pub reads_inline: bool,
}

impl Reader {
    /// Memory for pages on their way that have no slot: for each transfer, and for a reader without a ring.
    pub fn buffers() -> io::Result<Zeroed<[u8; PAGE]>> {
        Zeroed::new((DEPTH + 1) * PIECE_PAGES)
    }

    /// Makes one, without its thread.
    pub fn new(ahead: Arc<Ahead>, number: usize, pieces: Zeroed<[u8; PAGE]>, ring: Option<Ring>) -> Self {
        let start = Start { region: RegionId(0), next: 0, step: 1, window: 0, tag: u64::MAX };
        let idle =
            Position { start, next: -1, window: 0, outstanding: 0, in_frames: false, live: false, starved: None };
        let transfers = (0..DEPTH).map(|_| None).collect();
        Reader {
            ahead,
            number,
            ring,
            listens: false,
            positions: vec![idle; STREAMS],
            transfers,
            pieces,
            requests: 0,
            reads_inline: false,
        }
    }

    /// Its life.
    pub fn run(mut self, pool: &Weak<Pool>) {
        // Engine locks are taken here, and no signal of the program's is this thread's business.
        let _blocked = Blocked::all();
        let ahead = self.ahead.clone();
        let queue = &ahead.queues[self.number];
        let mut held: Option<Arc<Pool>> = None;
        loop {
            if let Some(pool) = held.take().or_else(|| pool.upgrade()) {
                self.work(&pool, queue);
                // The cache may go while nothing of it is on its way.
                held = (self.requests > 0).then_some(pool);
            }
            if held.is_none() && ahead.stop.load(Ordering::SeqCst) {
                return;
            }
            self.rest(held.as_deref(), queue);
        }
    }

    fn work(&mut self, pool: &Pool, queue: &ReaderQueue) {
        let mut pending = queue.pending.swap(0, Ordering::SeqCst);
        while pending != 0 {
            if !self.has_room() {
                // When something has ended there is room for them.
                queue.pending.fetch_or(pending, Ordering::SeqCst);
                return;
            }
            let stream = pending.trailing_zeros() as usize;
            if self.top_up(pool, stream) {
                pending &= pending - 1;
            }
        }
        while self.has_room() {
            let Some(request) = queue.lock_requests().pop_front() else { break };
            match request {
                ReadRequest::Chunk(held, number, chunk) => {
                    // There, since it is in use.
                    if let Some(region) = registry::resume(held) {
                        self.read_chunk(pool, &region, number, chunk);
                    }
                }
                ReadRequest::Pages(pages) => self.carry_out(pool, queue, pages),
            }
        }
    }

    /// Whether the ring takes a chunk of any kind.
    pub fn has_room(&self) -> bool {
        self.requests + LEAST_CHUNK <= DEPTH
    }

    /// Sleeps until the bell rings or a request has ended, and finishes what has.
    fn rest(&mut self, pool: Option<&Pool>, queue: &ReaderQueue) {
        // Before this thread says that it sleeps: a ring of the bell that comes after that is not missed.
        let rung = queue.bell.rung();
        if let Some(ring) = &mut self.ring {
            self.listens &= !ring.heard();
            if !std::mem::replace(&mut self.listens, true) {
                ring.listen(&queue.bell, rung);
            }
        }
        queue.asleep.store(true, Ordering::SeqCst);
        // Destination came before that was not rung for.
        let stops = self.requests == 0 && self.ahead.stop.load(Ordering::SeqCst);
        if queue.has_work() && self.has_room() || stops {
            queue.asleep.store(false, Ordering::SeqCst);
            return;
        }
        let Some(ring) = &mut self.ring else { return queue.bell.wait(rung, None) };
        ring.submit(1);
        queue.asleep.store(false, Ordering::SeqCst);
        self.finish_ended(pool);
        if self.ring.as_ref().is_some_and(|ring| !ring.works()) {
            tracing::warn!("io_uring fails: this thread reads ahead with pread from now on");
            self.ring = None;
            // The kernel may still write to what was in flight: those slots and buffers are never used again.
        }
    }

    /// Takes notice of what the ring has: requests that have ended, and the bell. Requests are in flight only while the
    /// cache is held.
    pub fn finish_ended(&mut self, pool: Option<&Pool>) {
        while let Some((tag, result)) = self.ring.as_mut().and_then(Ring::next_done) {
            if let Some(pool) = pool {
                self.ended(pool, tag as usize, result);
            }
        }
    }

    /// Starts reading a chunk whose pages are claimed into a slot that is taken.
    pub fn read_chunk(&mut self, pool: &Pool, region: &InUse<'static>, number: SlotNumber, chunk: Chunk) {
        // From here on a region that ends waits for the slot (`Staging::may_hold`).
        self.ahead.staging.fill(number, chunk, 0);
        let memory = self.ahead.staging.memory(number);
        let (requests, pages) = if chunk.step == 1 { (1, chunk.count) } else { (chunk.count, 1) };
        let places =
            (0..requests).map(|index| (chunk.first + index * chunk.step, pages, memory.wrapping_add(index * PAGE)));
        self.read(pool, region, Destination::Chunk(number, chunk), places);
    }

    /// Reads some of the pages that were asked for, and leaves the rest as a request of its own.
    fn carry_out(&mut self, pool: &Pool, queue: &ReaderQueue, request: Pages) {
        let all = request.first..request.first + request.count;
        let done = |pages: usize| self.ahead.prefetches.note_done(pages);
        let region = registry::enter(request.region).filter(|region| std::ptr::eq(&**region.pool(), pool));
        let Some(region) = region else { return done(all.len()) };
        let end = region.ahead_of(all.start).end.min(all.end);
        let absent = |page: &usize| region.is_in_file(*page) && region.word(*page).look().state() == State::Absent;
        let Some(first) = (all.start..end).find(absent) else { return done(all.len()) };
        // All of it in one stripe of the region.
        let most = (end - first).min(PIECE_PAGES).min(FRAME_PAGES - first % FRAME_PAGES);
        if pool.take_ahead(pool.here(), most, None) == Room::None {
            return done(all.len());
        }
        let (mut count, mut protected_queue, core) = (0, 0, pool.here());
        while let Some(seen) = (count < most).then(|| claim(&region, first + count)).flatten() {
            protected_queue |= u32::from(seen.ghost().is_some_and(|ghost| pool.note_return(core, ghost))) << count;
            count += 1;
        }
        pool.give_free_frames(pool.here(), most - count);
        done(first - all.start);
        if count > 0 {
            let transfer = self.free_transfer();
            let memory = self.piece_memory(transfer);
            self.read(
                pool,
                &region,
                Destination::Piece { first, count, protected_queue },
                std::iter::once((first, count, memory)),
            );
        }
        let rest = first + count..all.end;
        if !rest.is_empty() {
            queue.lock_requests().push_front(ReadRequest::Pages(Pages {
                first: rest.start,
                count: rest.len(),
                ..request
            }));
        }
    }

    fn free_transfer(&self) -> usize {
        self.transfers.iter().position(Option::is_none).expect("as many as requests, and there is room")
    }

    fn piece_memory(&self, transfer: usize) -> *mut u8 {
        // The last place is for a reader without a ring, which reads one at a time.
        let place = if self.ring.as_ref().is_some_and(Ring::works) { transfer } else { DEPTH };
        self.pieces.as_mut_ptr().wrapping_add(place * PIECE_PAGES).cast()
    }

    /// Starts reads, each of some pages from one on to a place in memory; without a ring, does them.
    fn read(
        &mut self,
        pool: &Pool,
        region: &InUse<'static>,
        destination: Destination,
        places: impl ExactSizeIterator<Item = (usize, usize, *mut u8)>,
    ) {
        let store = region.store();
        let hits = &pool.counters_at(pool.here()).page_cache_hits;
        let transfer = self.free_transfer();
        self.transfers[transfer] =
            Some(Transfer { region: region.clone(), destination, left: places.len(), filled: 0 });
        for (index, (page, pages, memory)) in places.enumerate() {
            match (&mut self.ring, store.direct_reads()) {
                (Some(ring), Some(file)) if ring.works() => {
                    // SAFETY: the memory is this reader's, and valid for as many pages.
                    if let Some(filled) = unsafe { store.read_cached(page, pages, memory, hits) } {
                        self.note_read(pool, transfer, filled, true);
                        continue;
                    }
                    let tag = (transfer * FRAME_PAGES + index) as u64;
                    // SAFETY: the slot, or the transfer's buffer, is this reader's until `ended`; lost if the ring
                    // breaks.
                    unsafe { ring.read(file, memory, pages * PAGE, (page * PAGE) as u64, tag) };
                    self.requests += 1;
                }
                _ => {
                    // SAFETY: likewise.
                    let read = unsafe { store.read_pages(page, pages, memory, hits) };
                    self.note_read(pool, transfer, read.unwrap_or(0), true);
                }
            }
        }
    }

    /// A request has ended, with a count of bytes or a negative error number.
    fn ended(&mut self, pool: &Pool, tag: usize, result: i32) {
        self.requests -= 1;
        let (transfer, index) = (tag / FRAME_PAGES, tag % FRAME_PAGES);
        let Some(Transfer { region, destination, .. }) = &self.transfers[transfer] else { return };
        let (page, pages, memory) = match *destination {
            Destination::Chunk(number, Chunk { first, step: 1, count, .. }) => {
                (first, count, self.ahead.staging.memory(number))
            }
            Destination::Chunk(number, Chunk { first, step, .. }) => {
                (first + index * step, 1, self.ahead.staging.memory(number).wrapping_add(index * PAGE))
            }
            Destination::Piece { first, count, .. } => (first, count, self.piece_memory(transfer)),
        };
        let kernel_is_done = self.ring.as_ref().is_some_and(Ring::works);
        let filled = match result {
            // Nothing that a broken ring says is relied upon.
            _ if !kernel_is_done => 0,
            _ if result == (pages * PAGE) as i32 => result as usize,
            // Cut short, put off or failed: the ordinary path says how it really ends.
            _ => {
                let hits = &pool.counters_at(pool.here()).page_cache_hits;
                // SAFETY: the kernel has ended with the memory.
                unsafe { region.store().read_pages(page, pages, memory, hits) }.unwrap_or(0)
            }
        };
        self.note_read(pool, transfer, filled, kernel_is_done);
    }

    /// Notes that one request of a transfer has ended, and finishes the transfer with its last one. `kernel_is_done`:
    /// the kernel does not write to its memory any more.
    fn note_read(&mut self, pool: &Pool, number: usize, filled: usize, kernel_is_done: bool) {
        let Some(transfer) = &mut self.transfers[number] else { return };
        transfer.filled += filled;
        transfer.left -= 1;
        if transfer.left > 0 {
            return;
        }
        let Some(transfer) = self.transfers[number].take() else { return };
        match transfer.destination {
            Destination::Chunk(slot, chunk) => {
                self.stage(pool, &transfer.region, slot, chunk, transfer.filled, kernel_is_done)
            }
            Destination::Piece { first, count, protected_queue } => {
                let memory = self.piece_memory(number);
                self.map_piece(pool, &transfer.region, first..first + count, protected_queue, transfer.filled, memory);
            }
        }
    }

    /// Makes a chunk that was read Staged, as far as the file reaches.
    fn stage(
        &mut self,
        pool: &Pool,
        region: &Region,
        number: SlotNumber,
        chunk: Chunk,
        filled: usize,
        kernel_is_done: bool,
    ) {
        let is_whole = filled == chunk.count * PAGE;
        let count = if is_whole || chunk.step == 1 && !number.is_frame() { filled.div_ceil(PAGE) } else { 0 };
        if count > 0 {
            clear_tail(self.ahead.staging.memory(number), filled, count);
        }
        let staged = Chunk { count, ..chunk };
        chunk.pages().skip(count).for_each(|page| unclaim(region, page));
        if count < chunk.count {
            self.ahead.streams.note_wasted(chunk.stream, chunk.count - count);
        }
        if !number.is_frame() {
            pool.give_free_frames(pool.here(), chunk.count - count);
        }
        pool.counters_at(pool.here()).ahead_pages.add(count);
        if count > 0 {
            self.ahead.publish(region, number, staged);
        } else if kernel_is_done {
            self.ahead.staging.free(number, true);
        } else {
            // Its memory is given up, and no longer counted.
            self.ahead.staging.lose(number);
            pool.give_free_frames(pool.here(), number.pages());
        }
    }

    /// Maps pages that were asked for.
    fn map_piece(
        &mut self,
        pool: &Pool,
        region: &Region,
        pages: Range<usize>,
        protected_queue: u32,
        filled: usize,
        memory: *mut u8,
    ) {
        let core = pool.here();
        let count = filled.div_ceil(PAGE);
        if count > 0 {
            clear_tail(memory, filled, count);
        }
        let mapped =
            install::install_run(region, pages.start..pages.start + count, memory, core, false, protected_queue);
        (pages.start + mapped..pages.end).for_each(|page| unclaim(region, page));
        pool.give_free_frames(core, pages.len() - mapped);
        pool.counters_at(core).prefetched_pages.add(mapped);
        self.ahead.prefetches.note_done(pages.len());
    }
}

/// Clears what lies behind the last byte that was read, up to the end of its page.
fn clear_tail(memory: *mut u8, filled: usize, pages: usize) {
    // SAFETY: inside the last page that was read into.
    unsafe { memory.add(filled).write_bytes(0, pages * PAGE - filled) };
}
