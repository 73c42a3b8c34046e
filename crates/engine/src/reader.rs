//! One reader: its life, what it has on its way, and what becomes of it.
//!
//! It waits for nothing but its ring and its bell: where there is no room without writing dirty pages back, it does not read
//! ahead.

use crate::ahead::Ahead;
use crate::cache::{Inner, Room};
use crate::fault::{self, unclaim};
use crate::page::{Seen, State};
use crate::prefetch::{PIECE_PAGES, Pages};
use crate::readers::{Desk, Order};
use crate::region::{Region, SlotIndex};
use crate::registry::{self, InUse};
use crate::staging::{Chunk, FRAME_PAGES, SlotNumber};
use crate::streams::{STREAMS, Start};
use crate::sync::Ordering;
use crate::sys::PAGE;
use crate::sys::memory::Zeroed;
use crate::sys::signal::Blocked;
use crate::sys::uring::{DEPTH, Ring};
use crate::walks::{LEAST_CHUNK, Run};
use std::io;
use std::ops::Range;
use std::sync::{Arc, Weak};

/// A chunk or a piece on its way, in a region that stays until it is there.
struct Flight {
    region: InUse<'static>,
    what: What,
    /// Requests that have not ended.
    left: usize,
    /// Bytes that are there: from the front, where there is one request.
    filled: usize,
}

#[derive(Debug, Clone, Copy)]
enum What {
    /// Into a slot, to be Staged.
    Chunk(SlotNumber, Chunk),
    /// Neighbouring pages that are mapped as soon as they are there; into the flight's own buffer. A bit of `long` for each
    /// whose queue is the long one.
    Piece { first: usize, count: usize, long: u32 },
}

/// One reader.
pub struct Reader {
    pub ahead: Arc<Ahead>,
    number: usize,
    pub ring: Option<Ring>,
    /// The ring will say when the bell rings.
    listens: bool,
    pub runs: Vec<Run>,
    flights: Vec<Option<Flight>>,
    /// A buffer for each flight.
    pieces: Zeroed<[u8; PAGE]>,
    /// Requests in the ring.
    pub requests: usize,
    /// The device did what was last asked for in the system call that asked for it.
    pub reads_inline: bool,
}

impl Reader {
    /// Memory for pages on their way that have no slot: for each flight, and for a reader without a ring.
    pub fn buffers() -> io::Result<Zeroed<[u8; PAGE]>> {
        Zeroed::new((DEPTH + 1) * PIECE_PAGES)
    }

    /// Makes one, without its thread.
    pub fn new(ahead: Arc<Ahead>, number: usize, pieces: Zeroed<[u8; PAGE]>, ring: Option<Ring>) -> Self {
        let start = Start { region: SlotIndex(0), next: 0, step: 1, window: 0, tag: u64::MAX };
        let idle = Run { start, next: -1, window: 0, outstanding: 0, in_frames: false, live: false };
        let flights = (0..DEPTH).map(|_| None).collect();
        Reader {
            ahead,
            number,
            ring,
            listens: false,
            runs: vec![idle; STREAMS],
            flights,
            pieces,
            requests: 0,
            reads_inline: false,
        }
    }

    /// Its life.
    pub fn run(mut self, cache: &Weak<Inner>) {
        // Engine locks are taken here, and no signal of the program's is this thread's business.
        let _blocked = Blocked::all();
        let ahead = self.ahead.clone();
        let desk = &ahead.desks[self.number];
        let mut held: Option<Arc<Inner>> = None;
        loop {
            if let Some(cache) = held.take().or_else(|| cache.upgrade()) {
                self.work(&cache, desk);
                // The cache may go while nothing of it is on its way.
                held = (self.requests > 0).then_some(cache);
            }
            if held.is_none() && ahead.stop.load(Ordering::SeqCst) {
                return;
            }
            self.rest(held.as_deref(), desk);
        }
    }

    fn work(&mut self, cache: &Inner, desk: &Desk) {
        let mut pending = desk.pending.swap(0, Ordering::SeqCst);
        while pending != 0 {
            if !self.has_room() {
                // When something has ended there is room for them.
                desk.pending.fetch_or(pending, Ordering::SeqCst);
                return;
            }
            let stream = pending.trailing_zeros() as usize;
            if self.top_up(cache, stream) {
                pending &= pending - 1;
            }
        }
        while self.has_room() {
            let Some(order) = desk.lock_orders().pop_front() else { break };
            match order {
                Order::Chunk(region, number, chunk) => self.read_chunk(cache, &region, number, chunk),
                Order::Pages(pages) => self.carry_out(cache, desk, pages),
            }
        }
    }

    /// Whether the ring takes a chunk of any kind.
    pub fn has_room(&self) -> bool {
        self.requests + LEAST_CHUNK <= DEPTH
    }

    /// Sleeps until the bell rings or a request has ended, and finishes what has.
    fn rest(&mut self, cache: Option<&Inner>, desk: &Desk) {
        // Before this thread says that it sleeps: a ring of the bell that comes after that is not missed.
        let rung = desk.bell.rung();
        if let Some(ring) = &mut self.ring {
            self.listens &= !ring.heard();
            if !std::mem::replace(&mut self.listens, true) {
                ring.listen(&desk.bell, rung);
            }
        }
        desk.asleep.store(true, Ordering::SeqCst);
        // What came before that was not rung for.
        let stops = self.requests == 0 && self.ahead.stop.load(Ordering::SeqCst);
        if desk.has_work() && self.has_room() || stops {
            desk.asleep.store(false, Ordering::SeqCst);
            return;
        }
        let Some(ring) = &mut self.ring else { return desk.bell.wait(rung, None) };
        ring.submit(1);
        desk.asleep.store(false, Ordering::SeqCst);
        self.finish_ended(cache);
        if self.ring.as_ref().is_some_and(|ring| !ring.works()) {
            tracing::warn!("io_uring fails: this thread reads ahead with pread from now on");
            self.ring = None;
            // The kernel may still write to what was in flight: those slots and buffers are never used again.
        }
    }

    /// Takes notice of what the ring has: requests that have ended, and the bell. Requests are in flight only while the cache
    /// is held.
    pub fn finish_ended(&mut self, cache: Option<&Inner>) {
        while let Some((tag, result)) = self.ring.as_mut().and_then(Ring::next_done) {
            if let Some(cache) = cache {
                self.ended(cache, tag as usize, result);
            }
        }
    }

    /// Starts reading a chunk whose pages are claimed into a slot that is taken.
    pub fn read_chunk(&mut self, cache: &Inner, region: &InUse<'static>, number: SlotNumber, chunk: Chunk) {
        // Whoever ends the region waits for the slot.
        self.ahead.staging.fill(number, chunk, 0);
        let memory = self.ahead.staging.memory(number);
        let (requests, pages) = if chunk.step == 1 { (1, chunk.count) } else { (chunk.count, 1) };
        let places =
            (0..requests).map(|index| (chunk.first + index * chunk.step, pages, memory.wrapping_add(index * PAGE)));
        self.read(cache, region, What::Chunk(number, chunk), places);
    }

    /// Reads some of the pages that were asked for, and leaves the rest as an order of its own.
    fn carry_out(&mut self, cache: &Inner, desk: &Desk, order: Pages) {
        let all = order.first..order.first + order.count;
        let done = |pages: usize| self.ahead.prefetches.note_done(pages);
        let region = registry::enter(order.region).filter(|region| std::ptr::eq(&**region.cache(), cache));
        let Some(region) = region else { return done(all.len()) };
        let end = region.ahead_of(all.start).end.min(all.end);
        let absent = |page: &usize| region.is_in_file(*page) && region.word(*page).look().state() == State::Absent;
        let Some(first) = (all.start..end).find(absent) else { return done(all.len()) };
        // All of it in one stripe of the region.
        let most = (end - first).min(PIECE_PAGES).min(FRAME_PAGES - first % FRAME_PAGES);
        if cache.take_ahead(cache.here(), most, None) == Room::None {
            return done(all.len());
        }
        let (mut count, mut long, core) = (0, 0, cache.here());
        while let Some(seen) = (count < most).then(|| claim(&region, first + count)).flatten() {
            long |= u32::from(seen.ghost().is_some_and(|ghost| cache.note_return(core, ghost))) << count;
            count += 1;
        }
        cache.release_credits(cache.here(), most - count);
        done(first - all.start);
        if count > 0 {
            let flight = self.free_flight();
            let memory = self.piece_memory(flight);
            self.read(cache, &region, What::Piece { first, count, long }, std::iter::once((first, count, memory)));
        }
        let rest = first + count..all.end;
        if !rest.is_empty() {
            desk.lock_orders().push_front(Order::Pages(Pages { first: rest.start, count: rest.len(), ..order }));
        }
    }

    fn free_flight(&self) -> usize {
        self.flights.iter().position(Option::is_none).expect("as many as requests, and there is room")
    }

    fn piece_memory(&self, flight: usize) -> *mut u8 {
        // The last place is for a reader without a ring, which reads one at a time.
        let place = if self.ring.as_ref().is_some_and(Ring::works) { flight } else { DEPTH };
        self.pieces.as_mut_ptr().wrapping_add(place * PIECE_PAGES).cast()
    }

    /// Starts reads, each of some pages from one on to a place in memory; without a ring, does them.
    fn read(
        &mut self,
        cache: &Inner,
        region: &InUse<'static>,
        what: What,
        places: impl ExactSizeIterator<Item = (usize, usize, *mut u8)>,
    ) {
        let store = region.store();
        let flight = self.free_flight();
        self.flights[flight] = Some(Flight { region: region.clone(), what, left: places.len(), filled: 0 });
        for (index, (page, pages, memory)) in places.enumerate() {
            match (&mut self.ring, store.direct_reads()) {
                (Some(ring), Some(file)) if ring.works() => {
                    let tag = (flight * FRAME_PAGES + index) as u64;
                    // SAFETY: the slot, or the flight's buffer, is this reader's until `ended`; lost if the ring breaks.
                    unsafe { ring.read(file, memory, pages * PAGE, (page * PAGE) as u64, tag) };
                    self.requests += 1;
                }
                _ => {
                    // SAFETY: likewise.
                    let read = unsafe { store.read_pages(page, pages, memory) };
                    self.note_read(cache, flight, read.unwrap_or(0), true);
                }
            }
        }
    }

    /// A request has ended, with a count of bytes or a negative error number.
    fn ended(&mut self, cache: &Inner, tag: usize, result: i32) {
        self.requests -= 1;
        let (flight, index) = (tag / FRAME_PAGES, tag % FRAME_PAGES);
        let Some(Flight { region, what, .. }) = &self.flights[flight] else { return };
        let (page, pages, memory) = match *what {
            What::Chunk(number, Chunk { first, step: 1, count, .. }) => {
                (first, count, self.ahead.staging.memory(number))
            }
            What::Chunk(number, Chunk { first, step, .. }) => {
                (first + index * step, 1, self.ahead.staging.memory(number).wrapping_add(index * PAGE))
            }
            What::Piece { first, count, .. } => (first, count, self.piece_memory(flight)),
        };
        let is_ours = self.ring.as_ref().is_some_and(Ring::works);
        let filled = match result {
            // Nothing that a broken ring says is relied upon.
            _ if !is_ours => 0,
            _ if result == (pages * PAGE) as i32 => result as usize,
            // Cut short, put off or failed: the ordinary path says how it really ends.
            // SAFETY: the kernel has ended with the memory.
            _ => unsafe { region.store().read_pages(page, pages, memory) }.unwrap_or(0),
        };
        self.note_read(cache, flight, filled, is_ours);
    }

    /// Notes that one request of a flight has ended, and finishes the flight with its last one. `is_ours`: the kernel does not
    /// write to its memory any more.
    fn note_read(&mut self, cache: &Inner, number: usize, filled: usize, is_ours: bool) {
        let Some(flight) = &mut self.flights[number] else { return };
        flight.filled += filled;
        flight.left -= 1;
        if flight.left > 0 {
            return;
        }
        let Some(flight) = self.flights[number].take() else { return };
        match flight.what {
            What::Chunk(slot, chunk) => self.stage(cache, &flight.region, slot, chunk, flight.filled, is_ours),
            What::Piece { first, count, long } => {
                let memory = self.piece_memory(number);
                self.map_piece(cache, &flight.region, first..first + count, long, flight.filled, memory);
            }
        }
    }

    /// Makes a chunk that was read Staged, as far as the file reaches.
    fn stage(
        &mut self,
        cache: &Inner,
        region: &Region,
        number: SlotNumber,
        chunk: Chunk,
        filled: usize,
        is_ours: bool,
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
            cache.release_credits(cache.here(), chunk.count - count);
        }
        cache.cores[cache.here()].0.counters.ahead_pages.add(count);
        if count > 0 {
            self.ahead.publish(region, number, staged);
        } else if is_ours {
            self.ahead.staging.free(number, true);
        } else {
            // Its memory is nobody's now, and no longer counted.
            self.ahead.staging.lose(number);
            cache.release_credits(cache.here(), number.pages());
        }
    }

    /// Maps pages that were asked for.
    fn map_piece(
        &mut self,
        cache: &Inner,
        region: &Region,
        pages: Range<usize>,
        long: u32,
        filled: usize,
        memory: *mut u8,
    ) {
        let core = cache.here();
        let count = filled.div_ceil(PAGE);
        if count > 0 {
            clear_tail(memory, filled, count);
        }
        let mapped = fault::install_run(region, pages.start..pages.start + count, memory, core, false, long);
        (pages.start + mapped..pages.end).for_each(|page| unclaim(region, page));
        cache.release_credits(core, pages.len() - mapped);
        cache.cores[core].0.counters.prefetched_pages.add(mapped);
        self.ahead.prefetches.note_done(pages.len());
    }
}

/// Claims an absent page for reading it ahead; as it was seen.
pub fn claim(region: &Region, page: usize) -> Option<Seen> {
    let word = region.word(page);
    let seen = word.look();
    if !word.begin_load(seen) {
        return None;
    }
    // A hole is read like any page; what is known of it is void once the page is here. But what the file has there of a
    // scratch region is not what the page holds.
    region.take_hole(page);
    if !region.is_in_file(page) {
        unclaim(region, page);
        return None;
    }
    Some(seen)
}

/// Clears what lies behind the last byte that was read, up to the end of its page.
fn clear_tail(memory: *mut u8, filled: usize, pages: usize) {
    // SAFETY: inside the last page that was read into.
    unsafe { memory.add(filled).write_bytes(0, pages * PAGE - filled) };
}
