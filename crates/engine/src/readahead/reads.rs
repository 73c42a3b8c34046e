//! The work that a thread does with a reader's turn: it asks the device for the reads of streams and of requests.
//!
//! Nothing here waits for other threads, or for room. Where there is no room without writing dirty pages back, nothing is read ahead.

use crate::evict::room::Room;
use crate::page::entry::FRAME_PAGES;
use crate::page::word::State;
use crate::pool::ahead::Ahead;
use crate::pool::pool::Pool;
use crate::pool::reader::{
    Destination, INLINE, LARGE_PIECE_PAGES, OnTurn, PIECE_PAGES, Pages, ReadRequest, Reader, Reading,
};
use crate::pool::staging::{BUFFER_PAGES, Chunk, SlotNumber};
use crate::pool::streams::Expect;
use crate::region::install::claim_run;
use crate::region::page_ref::PageRef;
use crate::region::registry::{self, InUse};
use crate::region::userfaultfds;
use crate::sys::PAGE;
use crate::sys::aio::Aio;
use crate::sys::signal::Blocked;
use crate::sys::sync::Ordering;
use std::sync::Weak;
use std::time::{Duration, Instant};

/// Pieces of files that are read whole which a thread begins in one turn, at most. If the page cache has them all, a thread would otherwise go
/// on to the file's end.
const MOST_FILLS: usize = 32;

impl Ahead {
    /// Reads on for a stream. Called by fault handlers.
    pub fn go_on_with(&self, pool: &Pool, stream: usize) {
        let reader = self.reader_of(stream);
        reader.pending.fetch_or(1 << stream, Ordering::SeqCst);
        self.go_on(pool, reader);
    }

    /// Sees to it that a reader's work is done: by this thread, by the one that has the turn, or by the reader's thread. Called by fault
    /// handlers, and with signals blocked.
    pub fn go_on(&self, pool: &Pool, reader: &Reader) {
        if reader.reads_inline.load(Ordering::Relaxed) {
            reader.wake();
        } else if let Some(turn) = reader.take_turn_or_call(self, pool) {
            turn.work_and_let_go();
        }
    }

    /// Waits for a page that a reader has claimed, and reads on with what has become free. Called by fault handlers.
    pub fn await_claimed(&self, page: PageRef<'_>, reader: usize) {
        self.await_page(page, reader, |turn| {
            // Work that the reader's thread has not begun is done here: that is quicker than to wait for it. Without work the program goes
            // on, and asks for more before all that has arrived is mapped.
            let is_inline = turn.reader.reads_inline.load(Ordering::Relaxed);
            if turn.reader.has_work() && (!is_inline || turn.reading.in_flight() == 0) {
                turn.work_and_let_go();
            }
        });
    }

    /// Waits until as many prefetched pages are done as had been asked for at the time of the call.
    pub fn await_prefetched(&self, pool: &Pool) {
        let asked = self.prefetches.asked();
        let is_over = || self.prefetches.are_done(asked);
        // Another reader each time: the one that has much to do for others may not be the one that has the pages.
        let from = |at: usize| self.readers.iter().cycle().skip(at).take(self.readers.len());
        let mut at = 0;
        while !is_over()
            && let Some(reader) = from(at).find(|reader| reader.is_at_work())
        {
            at = reader.number + 1;
            let _blocked = Blocked::all();
            match reader.take_turn_or_call(self, pool) {
                Some(turn) => turn.work_and_wait(),
                None => reader.sleep_unless(is_over),
            }
        }
    }

    /// Whether reads are under way, or requests wait.
    pub fn is_reading(&self, pool: &Pool) -> bool {
        let _blocked = Blocked::all();
        self.take_notice(pool, |_| true);
        // A reader whose turn is taken counts too: that thread is about to begin a read, or has just begun one.
        let is_at_work = |reader: &Reader| reader.take_turn(self, pool).is_none_or(|_turn| reader.is_at_work());
        self.readers.iter().any(is_at_work) || self.staging.is_taken()
    }
}

/// How long a fetch for pages that are read ahead may take. A region that ends waits for it.
const PATIENCE: Duration = Duration::from_millis(500);

/// Capacity, pages, for each thread that reads: a MiB. The thread's stacks take some 40 KiB beside the budget.
const PAGES_PER_THREAD: usize = (1 << 20) / PAGE;
const LEAST_THREADS: usize = 4;

/// The life of a reader's thread.
pub fn run(ahead: &Ahead, number: usize, pool: &Weak<Pool>) {
    // Engine locks are taken here, and no signal of the program's is this thread's business.
    let _blocked = Blocked::all();
    let reader = &ahead.readers[number];
    while !ahead.stop.load(Ordering::SeqCst) {
        let pool_now = pool.upgrade();
        if ahead.preads.are_wanted()
            && let Some(pool) = &pool_now
        {
            ahead.preads.start((pool.capacity() / PAGES_PER_THREAD).max(LEAST_THREADS));
        }
        match pool_now.filter(|_| reader.needs_thread()) {
            Some(pool) => {
                reader.note_looked();
                match reader.take_turn_or_call(ahead, &pool) {
                    Some(turn) => turn.work_and_wait(),
                    None => reader.sleep_unless(|| !reader.needs_thread()),
                }
            }
            None => {
                let are_wanted = || ahead.preads.are_wanted() && pool.strong_count() > 0;
                reader.rest(|| ahead.stop.load(Ordering::SeqCst) || are_wanted());
            }
        }
    }
    // Here, and not in the thread that drops the cache.
    reader.close();
}

impl OnTurn<'_> {
    /// Does the work that there is room for, and lets the turn go. After a few rounds it leaves new work to the reader's thread, since this
    /// thread has a program to run.
    pub fn work_and_let_go(mut self) {
        const ROUNDS: usize = 8;
        self.waits = false;
        for _ in 0..ROUNDS {
            self.work();
            match self.let_go() {
                Some(called) => self = called,
                None => return,
            }
        }
    }

    /// Does the same in a thread that has time: it waits for a read that is under way to end.
    fn work_and_wait(mut self) {
        self.waits = true;
        self.work();
        if self.reading.in_flight() > 0 {
            self.await_some(1);
        }
        self.work_and_let_go();
    }

    fn work(&mut self) {
        let mut pending = self.reader.pending.swap(0, Ordering::SeqCst);
        while pending != 0 {
            if !self.has_room() {
                // When something has ended there is room for them.
                self.reader.pending.fetch_or(pending, Ordering::SeqCst);
                break;
            }
            let stream = pending.trailing_zeros() as usize;
            if self.top_up(stream) {
                pending &= pending - 1;
            }
        }
        let mut fills = 0;
        // While threads for pread(2) are wanted and not there yet, requests wait. The reader's thread starts them, and then goes on.
        while self.has_room() && !self.ahead.preads.are_wanted() {
            if fills >= MOST_FILLS && self.reading.in_flight() == 0 {
                // The page cache has all of it. The rest is the reader's thread's.
                self.reader.wake();
                break;
            }
            let Some(request) = self.reader.next_request() else { break };
            if self.leaves(&request) && self.reader.ask(&mut std::iter::once(request.clone()), true) {
                self.reader.wake();
                break;
            }
            let goes_on = match request {
                ReadRequest::Chunk(held, number, chunk) => {
                    // The region is there: the request holds it.
                    if let Some(region) = registry::resume(held) {
                        self.read_chunk(&region, number, chunk);
                    }
                    true
                }
                ReadRequest::Pages(pages) => self.carry_out(pages, true),
                ReadRequest::Fill(pages) => {
                    fills += 1;
                    self.carry_out(pages, false)
                }
            };
            if !goes_on {
                break;
            }
        }
        if self.ahead.preads.are_wanted() && self.reader.has_work() {
            self.reader.wake();
        }
        loop {
            // In this order: what has ended is mapped while the device works.
            self.submit();
            self.finish_ended();
            // Reads behind one that the kernel refused are still queued: once more.
            if !self.reading.aio.as_ref().is_some_and(Aio::has_queued) {
                break;
            }
        }
    }

    /// Whether a request needs a fetch, and so is left to a thread that may wait for that.
    fn leaves(&self, request: &ReadRequest) -> bool {
        let (ReadRequest::Pages(pages) | ReadRequest::Fill(pages)) = request else { return false };
        let is_far = |region: InUse<'_>| {
            let most = if region.hints().read_times().are_long() { LARGE_PIECE_PAGES } else { PIECE_PAGES };
            !region.store().is_near(pages.first, pages.count.min(most))
        };
        !self.waits && registry::enter(pages.region).is_some_and(is_far)
    }

    /// Whether there is room for a chunk of any kind. If there seems to be none, takes notice of ended reads first.
    pub fn has_room(&mut self) -> bool {
        let has_room = |reading: &Reading| reading.room_for(BUFFER_PAGES).is_some();
        if !has_room(self.reading) {
            self.finish_ended();
        }
        has_room(self.reading)
    }

    /// Submits the queued reads. Returns, and notes, whether all reads under way ended in this call.
    pub fn submit(&mut self) -> bool {
        self.reading.asked.submit();
        let Some(aio) = self.reading.aio.as_mut() else { return false };
        if !aio.submit() {
            return false;
        }
        let is_inline = aio.has_all_done();
        self.note_inline(is_inline);
        if is_inline {
            self.finish_ended();
        }
        is_inline
    }

    /// Learns from a call whether this device reads inside the calls that ask for reads.
    fn note_inline(&mut self, is_inline: bool) {
        let calls = &mut self.reading.inline_calls;
        *calls = if is_inline { (*calls + 1).min(INLINE) } else { (*calls - 2).max(0) };
        self.reader.reads_inline.store(*calls == INLINE, Ordering::Relaxed);
    }

    /// Starts reading a chunk into a slot. Its pages are claimed, and the slot is taken.
    pub fn read_chunk(&mut self, region: &InUse<'static>, number: SlotNumber, chunk: Chunk) {
        // From here on a region that ends waits for the slot (`Staging::may_hold`).
        self.ahead.staging.fill(number, chunk, 0);
        let memory = self.ahead.staging.memory(number);
        // Where reads take long, in parts: one large request would be cut into small ones that go one after the other.
        let most = if region.hints().read_times().are_long() { BUFFER_PAGES } else { chunk.count };
        let each = if chunk.step == 1 { most } else { 1 };
        if each < chunk.count {
            self.ahead.staging.bring_huge(number);
        }
        let places = (0..chunk.count).step_by(each).map(|index| {
            let pages = each.min(chunk.count - index);
            (chunk.first + index * chunk.step, pages, memory.wrapping_add(index * PAGE))
        });
        let place = self.reading.room_for(places.len()).expect("there is room for a chunk of any kind");
        self.read(region, place, Destination::Chunk(number, chunk), each, places);
    }

    /// Reads some of the pages of a request, and queues the rest as a new request. `is_awaited`: the program asked for the pages, so others are
    /// evicted for them. False: nothing was done, and the request waits until a large piece has ended.
    fn carry_out(&mut self, request: Pages, is_awaited: bool) -> bool {
        let (pool, reader) = (self.pool, self.reader);
        let all = request.first..request.first + request.count;
        let done = |pages: usize| {
            self.ahead.prefetches.note_done(if is_awaited { pages } else { 0 });
            true
        };
        let again = |request| if is_awaited { ReadRequest::Pages(request) } else { ReadRequest::Fill(request) };
        let region = registry::enter(request.region).filter(|region| std::ptr::eq(&**region.pool(), pool));
        let Some(region) = region else { return done(all.len()) };
        let are_long = region.hints().read_times().are_long();
        // A file is read whole only while memory is free: more of it where reads are short, since left-out pages cost less there.
        let idle = pool.free_frames.idle();
        if !is_awaited && idle <= pool.capacity() / if are_long { 64 } else { 8 } {
            return true;
        }
        let end = region.ahead_of(all.start).end.min(all.end);
        let is_wanted = |page: &usize| is_awaited || region.hints().expect_at(*page) != Expect::Random;
        let is_absent = |page: &usize| region.word(*page).look().state() == State::Absent;
        let absent = |page: &usize| region.is_in_file(*page) && is_wanted(page) && is_absent(page);
        let Some(first) = (all.start..end).find(absent) else { return done(all.len()) };
        // All of the piece lies in one stripe of the region.
        let most = (end - first).min(FRAME_PAGES - first % FRAME_PAGES);
        // Large buffers take a 32nd of the cache, at most.
        let most_large = pool.capacity() / 32 / LARGE_PIECE_PAGES;
        let large = if are_long && most > PIECE_PAGES && most_large > 0 { most.min(LARGE_PIECE_PAGES) } else { 0 };
        let place = if large > 0 { self.reading.room_for_large(most_large) } else { self.reading.room_for(1) };
        let Some(place) = place else {
            // When a large piece has ended the reader's thread goes on.
            return !reader.ask(&mut std::iter::once(again(request)), true) && done(all.len());
        };
        let for_buffer = if large > 0 { self.reading.frames_for_large(place) } else { 0 };
        // A file that is read whole evicts nothing for it.
        let fits = large > 0 && (is_awaited || idle >= large + for_buffer);
        let is_large = fits && pool.take_ahead(pool.here(), large + for_buffer, None) != Room::None;
        let most = if is_large { large } else { most.min(PIECE_PAGES) };
        if !is_large && pool.take_ahead(pool.here(), most, None) == Room::None {
            return done(all.len());
        }
        let (count, protected_queue) = claim_run(&region, first, most, Some(reader.number), pool.here());
        // A page that cannot be claimed now is passed over: nobody waits with the turn.
        let passed_over = usize::from(count == 0);
        let rest = first + count + passed_over..all.end;
        done(first - all.start + passed_over);
        if is_large && count > PIECE_PAGES {
            self.note_large_begun(place);
        } else if is_large {
            pool.give_free_frames(pool.here(), for_buffer);
        }
        if count > 0 {
            let memory = self.reading.piece_memory(place, count);
            let destination = Destination::Piece { first, count, protected_queue, is_awaited };
            self.read(&region, place, destination, count, std::iter::once((first, count, memory)));
        }
        let rest_of_it = Pages { first: rest.start, count: rest.len(), ..request };
        if !rest.is_empty() && !reader.ask(&mut std::iter::once(again(rest_of_it)), is_awaited) {
            done(rest.len());
        }
        if self.waits && region.store().origin().is_some() {
            // Only the reader's thread goes on with pages that have to be fetched.
            reader.wake();
        }
        true
    }

    /// Queues the reads of a transfer. `places` has a read's first page, its count of pages and its memory; each has `each` pages, the last
    /// may have fewer. Reads that cannot be queued are done at once.
    fn read(
        &mut self,
        region: &InUse<'static>,
        place: usize,
        destination: Destination,
        each: usize,
        places: impl ExactSizeIterator<Item = (usize, usize, *mut u8)>,
    ) {
        let store = region.store();
        // With service threads no call may wait for the file's lock: the thread that writes to the file, and holds that lock, may have a fault
        // in another file which waits for this reader.
        let waits = !userfaultfds::by_service();
        let hits = &self.pool.counters_at(self.pool.here()).page_cache_hits;
        // For the same reason no pread(2) thread is used there if there is Linux AIO: it would wait for the lock, and others' requests with it.
        let suits_threads = self.reading.aio.is_none() || waits && region.hints().read_times().are_long();
        let by_threads = suits_threads && self.ahead.preads.are_there_or_wanted();
        if self.ahead.preads.are_wanted() {
            self.reader.wake();
        }
        self.begin(place, region.held(), destination, each, places.len());
        for (index, (page, pages, memory)) in places.enumerate() {
            if !store.is_near(page, pages) && (!self.waits || store.bring(page, pages, Some(PATIENCE)).is_err()) {
                // The thread that needs the page fetches it, and learns why that fails.
                self.note_read(region, place, 0);
                continue;
            }
            match (&mut self.reading.aio, store.direct_reads()) {
                (aio, Some(file)) if by_threads || aio.is_some() => {
                    // SAFETY: the slot, or the transfer's buffer, belongs to this turn, and has room for as many pages.
                    if let Some(filled) = unsafe { store.read_cached(page, pages, memory, hits) } {
                        self.note_read(region, place, filled);
                        continue;
                    }
                    let (len, offset, tag) = (pages * PAGE, (page * PAGE) as u64, (place * FRAME_PAGES + index) as u64);
                    match aio.as_mut().filter(|_| !by_threads) {
                        Some(aio) => {
                            let times = region.hints().read_times();
                            let is_alone = times.is_untried() && !aio.has_queued();
                            // SAFETY: as above, until the transfer ends.
                            unsafe { aio.read(file, memory, len, offset, tag, waits) };
                            if is_alone {
                                let began = Instant::now();
                                times.note_tried(pages, self.submit().then(|| began.elapsed()));
                            }
                        }
                        None => {
                            // SAFETY: as above; the region, and so the file, stays until the transfer ends.
                            unsafe { self.reading.asked.read(file, memory, len, offset, tag) };
                            self.note_inline(false);
                        }
                    }
                }
                _ => {
                    // SAFETY: as above.
                    let read = unsafe { store.read_pages(page, pages, memory, hits) };
                    self.note_read(region, place, read.unwrap_or(0));
                    self.note_inline(true);
                }
            }
        }
    }
}
