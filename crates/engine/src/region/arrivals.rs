//! The end of reads ahead: chunks become Staged, pieces are mapped (`pool/reader.rs`). The thread that has the reader's turn does this: one
//! that reads on, or one that waits for a page.

use crate::page::claims::PageAccess;
use crate::page::entry::{FRAME_PAGES, RegionId};
use crate::page::word::Seen;
use crate::pool::ahead::Ahead;
use crate::pool::pool::Pool;
use crate::pool::reader::{Destination, OnTurn, PIECE_PAGES, Transfer};
use crate::pool::staging::{Chunk, SlotNumber};
use crate::region::install::{self, unclaim};
use crate::region::page_ref::PageRef;
use crate::region::region::Region;
use crate::region::registry::{self, InUse};
use crate::region::userfaultfds;
use crate::sys::PAGE;
use crate::sys::signal::Blocked;
use crate::sys::sync::{Ordering, fence};

/// Reads that a waiting thread finishes once its page is there: about as many as the program asks for at a time.
const MORE: usize = 16;

impl OnTurn<'_> {
    /// Finishes all reads that have ended.
    pub fn finish_ended(&mut self) {
        while let Some((tag, result)) = self.reading.next_done() {
            self.ended(tag as usize, result);
        }
    }

    /// Finishes reads that have ended until `is_over`, and then a few more ([`MORE`]). The rest is left for later, when its pages are
    /// touched or asked for: meanwhile a program that prefetches asks for the next ones.
    fn finish_until(&mut self, is_over: impl Fn() -> bool) {
        let mut more = MORE;
        while more > 0
            && let Some((tag, result)) = self.reading.next_done()
        {
            self.ended(tag as usize, result);
            more -= usize::from(is_over());
        }
    }

    /// Waits until `wanted` reads have ended, or all if fewer are under way, and finishes those that have ended.
    pub fn await_some(&mut self, wanted: usize) {
        self.reading.wait(wanted);
        self.finish_ended();
    }

    /// Requests under way for a page's file, up to those that bring the page: about as many end before the page is there.
    fn requests_until(&self, page: PageRef<'_>) -> usize {
        let has_it = |transfer: &&Transfer| transfer.held.region() == page.region().id() && transfer.has(page.number());
        let all = || self.reading.transfers.iter().flatten();
        let Some(its) = all().find(has_it) else { return 1 };
        let is_before =
            |transfer: &&Transfer| transfer.order <= its.order && transfer.held.region() == page.region().id();
        all().filter(is_before).map(|transfer| transfer.left).sum()
    }

    /// Finishes a request that has ended. `result` is a count of bytes or a negative error number.
    fn ended(&mut self, tag: usize, result: i32) {
        let (number, index) = (tag / FRAME_PAGES, tag % FRAME_PAGES);
        let Some(transfer) = &self.reading.transfers[number] else { return };
        let Some(region) = registry::resume(transfer.held.clone()) else { return };
        let staging = &self.ahead.staging;
        let (first, step, count, memory) = match transfer.destination {
            Destination::Chunk(slot, Chunk { first, step, count, .. }) => (first, step, count, staging.memory(slot)),
            Destination::Piece { first, count, .. } => (first, 1, count, self.reading.piece_memory(number, count)),
        };
        let before = index * transfer.each;
        let (page, pages) = (first + before * step, transfer.each.min(count - before));
        let memory = memory.wrapping_add(before * PAGE);
        // SAFETY: the kernel has ended with the memory, all of which it has filled.
        let is_right = || unsafe { region.store().is_right(page, memory, pages * PAGE) };
        let filled = if result == (pages * PAGE) as i32 && is_right() {
            result as usize
        } else if userfaultfds::by_service() || region.store().origin().is_some() {
            // A read here might wait (`OnTurn::read`): the thread that needs the page reads it.
            0
        } else {
            // Cut short, put off or failed: an ordinary read gives the real result.
            let hits = &self.pool.counters_at(self.pool.here()).page_cache_hits;
            // SAFETY: the kernel has ended with the memory.
            unsafe { region.store().read_pages(page, pages, memory, hits) }.unwrap_or(0)
        };
        self.note_read(&region, number, filled);
    }

    /// Notes that one request of a transfer has ended, and finishes the transfer with its last one.
    pub fn note_read(&mut self, region: &InUse<'static>, number: usize, filled: usize) {
        let Some(transfer) = &mut self.reading.transfers[number] else { return };
        transfer.filled += filled;
        transfer.left -= 1;
        if transfer.left > 0 {
            return;
        }
        let (destination, filled) = (transfer.destination, transfer.filled);
        match destination {
            Destination::Chunk(slot, chunk) => self.stage(region, slot, chunk, filled),
            Destination::Piece { first, count, protected_queue, is_awaited } => {
                let memory = self.reading.piece_memory(number, count);
                let there = filled.div_ceil(PAGE);
                clear_tail(memory, filled, there);
                let mapped = install::install_claimed(region, first..first + count, there, memory, protected_queue);
                if count > PIECE_PAGES {
                    self.note_large_ended();
                }
                let counters = self.pool.counters_at(self.pool.here());
                if is_awaited {
                    counters.prefetched_pages.add(mapped);
                    self.ahead.prefetches.note_done(count);
                } else {
                    counters.filled_pages.add(mapped);
                }
            }
        }
        self.reading.transfers[number] = None;
        self.end();
    }

    /// Makes the pages of a chunk Staged, as far as the file reaches. A chunk of a frame or with a step is Staged whole or not at all.
    fn stage(&mut self, region: &Region, number: SlotNumber, chunk: Chunk, filled: usize) {
        let (ahead, pool) = (self.ahead, self.pool);
        let is_whole = filled == chunk.count * PAGE;
        let count = if is_whole || chunk.step == 1 && !number.is_frame() { filled.div_ceil(PAGE) } else { 0 };
        if count > 0 {
            clear_tail(ahead.staging.memory(number), filled, count);
        }
        let staged = Chunk { count, ..chunk };
        chunk.pages().skip(count).for_each(|page| unclaim(region, page));
        if count < chunk.count {
            ahead.streams.note_wasted(chunk.stream, chunk.count - count);
        }
        if !number.is_frame() {
            pool.give_free_frames(pool.here(), chunk.count - count);
        }
        pool.counters_at(pool.here()).ahead_pages.add(count);
        if count > 0 {
            ahead.publish(region, number, staged);
        } else {
            ahead.staging.free(number, true);
        }
    }
}

impl Ahead {
    /// Makes the pages of a chunk, which are claimed and read, Staged, and the chunk's slot ready.
    pub fn publish(&self, region: &Region, number: SlotNumber, chunk: Chunk) {
        self.note_work();
        self.staging.fill(number, chunk, self.clock.fetch_add(1, Ordering::Relaxed));
        // Pages that were waited for while they were Loading, a bit each: nobody is woken before the slot is ready.
        let mut waited_for = [0u64; FRAME_PAGES / 64];
        for (index, page) in chunk.pages().enumerate() {
            waited_for[index / 64] |= u64::from(region.word(page).stage(number.0).wake) << (index % 64);
        }
        self.staging.ready(number);
        fence(Ordering::SeqCst);
        for (index, page) in chunk.pages().enumerate() {
            let page = region.page(page);
            // Threads that came while the page was Loading sleep on the word as it was then.
            if page.word().call_waiters() || waited_for[index / 64] & 1 << (index % 64) != 0 {
                page.wake();
            }
        }
    }

    /// Waits until a reader is done with a page that it has claimed. Whenever this thread has taken the reader's turn, it hands the turn to
    /// `then` afterwards.
    pub fn await_page<'a>(&'a self, page: PageRef<'a>, reader: usize, then: impl Fn(OnTurn<'a>)) {
        let is_over = || page.look().reader() != Some(reader);
        let reader = &self.readers[reader];
        while !is_over() {
            match reader.take_turn(self, page.region().pool()) {
                Some(mut turn) => {
                    turn.finish_until(is_over);
                    if !is_over() && turn.reading.in_flight() == 0 {
                        // Another thread is about to have it read.
                        std::thread::yield_now();
                    } else if !is_over() {
                        // Reads end in about the order in which they began. The thread sleeps until half of those that come first have
                        // ended, then until half of the rest have: that is few sleeps.
                        let wanted = turn.requests_until(page) / 2;
                        turn.reading.wait(wanted);
                        turn.finish_until(is_over);
                    }
                    then(turn);
                }
                None => reader.sleep_unless(is_over),
            }
        }
    }

    /// Finishes the reads that have ended, of all readers, for a thread that needs their pages to be there or gone. Returns whether
    /// anything arrived. If nothing has arrived at a reader, and `waits_for` holds for the region of one of its transfers, waits for one
    /// read.
    pub fn take_notice(&self, pool: &Pool, waits_for: impl Fn(RegionId) -> bool) -> bool {
        let mut any = false;
        for reader in self.readers.iter().filter(|reader| reader.is_under_way()) {
            if let Some(mut turn) = reader.take_turn(self, pool) {
                let before = turn.reading.in_flight();
                turn.finish_ended();
                let is_wanted = |transfer: &Transfer| waits_for(transfer.held.region());
                if turn.reading.in_flight() == before && turn.reading.transfers.iter().flatten().any(is_wanted) {
                    turn.await_some(1);
                }
                any |= turn.reading.in_flight() < before;
            }
        }
        any
    }
}

/// Waits until the reader or the thread that has claimed a page, which was seen as `seen`, is done with it. The reader's further work is
/// left to its own thread.
pub fn await_page(page: PageRef<'_>, seen: Seen) {
    let _blocked = Blocked::all();
    match (seen.reader(), page.region().pool().ahead()) {
        (Some(reader), Some(ahead)) => ahead.await_page(page, reader, drop),
        _ => page.wait(seen),
    }
}

/// Clears what lies behind the last byte that was read, up to the end of its page.
pub fn clear_tail(memory: *mut u8, filled: usize, pages: usize) {
    // SAFETY: inside the last page that was read into.
    unsafe { memory.add(filled).write_bytes(0, pages * PAGE - filled) };
}
