//! Maps chunks: pages that have been read ahead, and not mapped yet.
//!
//! A chunk's slot says which thread may change its pages' words:
//!
//! * The thread with a reader's turn takes a slot, claims pages (Loading), reads them, makes them Staged and the slot ready.
//! * A thread that traps on a Staged page claims the slot and maps all of the chunk.
//! * A thread that needs the slot, its memory, or the pages absent, claims the slot and makes the pages Absent again (`evict/staged.rs`).

use crate::page::claims::PageAccess;
use crate::page::entry::{Entry, FRAME_PAGES};
use crate::page::word::Seen;
use crate::pool::ahead::Ahead;
use crate::pool::staging::{Chunk, SlotNumber};
use crate::readahead::window;
use crate::region::install;
use crate::region::page_ref::PageRef;
use crate::region::region::Region;
use crate::sys::PAGE;

impl Ahead {
    /// Serves a trap on a page that `seen` says is Staged: maps the whole chunk. True: look at the page's word again, for it has moved on. False:
    /// wait on the word, since another thread maps or drops the chunk. Called by fault handlers.
    pub fn touch(&self, page: PageRef<'_>, seen: Seen, is_store: bool) -> bool {
        let Some(number) = seen.slot().map(SlotNumber) else { return true };
        if !self.staging.claim(number) {
            return false;
        }
        let region = page.region();
        let chunk = self.staging.chunk(number);
        if chunk.region != region.id() || page.look().slot() != Some(number.0) {
            // The slot holds another chunk by now.
            self.put_back(number);
            return true;
        }
        // First, so that reading goes on while this thread maps.
        if let Some(stream) = self.streams.note_used(chunk.stream, chunk.count, is_store) {
            self.go_on_with(region.pool(), stream);
        }
        region.hints().note_used_chunk();
        self.note_work();
        let pool = region.pool();
        let core = pool.here();
        let counters = pool.counters_at(core);
        counters.ahead_chunks.add(1);
        let mapped = if number.is_frame() {
            self.map_frame(region, number, chunk)
        } else {
            self.map_buffer(page, number, chunk, is_store)
        };
        counters.ahead_used.add(mapped);
        region.counters_at(core).ahead_used.add(mapped);
        pool.waiting().wake_waiters();
        true
    }

    /// Moves a frame to its place, as one huge page. The trap has just made a page table there, beside which the kernel would split the huge
    /// page and move 512 small ones: so the table is dropped first (from Linux 6.14 on the kernel lets it go). The frame's free frames then
    /// belong to the pages, and its slot is empty. Returns the pages mapped; if the move fails, the frame is given up.
    fn map_frame(&self, region: &Region, number: SlotNumber, chunk: Chunk) -> usize {
        let pool = region.pool();
        let from = self.staging.memory(number);
        let to = region.address_of(chunk.first);
        let bytes = FRAME_PAGES * PAGE;
        // Kept until the frame has its entry in a queue.
        let moving = region.frames().begin_move();
        let moved = match moving {
            // SAFETY: pages of this region that are Staged in a slot that this thread has claimed: they are not in memory, and
            // the frame is the slot's.
            Some(_) => unsafe {
                install::drop_memory(region, &[libc::iovec { iov_base: to.cast(), iov_len: bytes }]);
                let userfaultfd = region.userfaultfd(chunk.first);
                userfaultfd.move_pages(to, from, bytes).and_then(|()| userfaultfd.write_protect(to, bytes, true))
            },
            None => Err(0),
        };
        if let Err(error) = moved {
            if error != 0 {
                if error != libc::EBUSY {
                    self.staging.give_up_moves();
                }
                // Part of the frame may have been moved.
                install::drop_memory(region, &[libc::iovec { iov_base: to.cast(), iov_len: bytes }]);
            }
            self.unstage(region, chunk);
            return self.free_without_memory(pool, number);
        }
        for page in chunk.pages() {
            let page = region.page(page);
            page.settle(page.word().finish_huge(), 0);
        }
        region.counters_at(pool.here()).brought.add(chunk.count);
        // Only now: as long as a page's word names the slot, the page is part of the slot's chunk.
        self.staging.free(number, false);
        let kept = pool.note_brought(pool.here(), region.hints().gone_since(chunk.first), chunk.count);
        pool.enqueue_frame(Entry::of_frame(region.id(), chunk.first), kept.unwrap_or(false));
        chunk.count
    }

    /// Copies a buffer's pages to their places, and frees the buffer, which keeps its memory and the free frames for that. Returns the
    /// pages mapped.
    fn map_buffer(&self, page: PageRef<'_>, number: SlotNumber, chunk: Chunk, is_store: bool) -> usize {
        let region = page.region();
        let core = region.pool().here();
        let from = self.staging.memory(number);
        let expects_stores = is_store && self.streams.stores(chunk.stream);
        let at = |index: usize| from.wrapping_add(index * PAGE);
        let kept = region.pool().note_brought(core, region.hints().gone_since(chunk.first), chunk.count);
        // Not into the protected queue where frames are used: pages that stay would keep their neighbours from coming as a frame, in each round
        // of a loop.
        let protected = match kept {
            Some(kept) if kept && !(chunk.step == 1 && window::has_frames(self, region)) => u64::MAX,
            Some(_) => 0,
            None => chunk.soon,
        };
        let mut mapped = 0;
        if chunk.step == 1 {
            let pages = chunk.first..chunk.first + chunk.count;
            mapped = install::install_run(region, pages, from, core, expects_stores, protected);
        } else {
            for (index, one) in chunk.pages().enumerate() {
                let expects_store = expects_stores || is_store && one == page.number();
                if install::install_run(region, one..one + 1, at(index), core, expects_store, protected >> index) == 0 {
                    break;
                }
                mapped += 1;
            }
        }
        let rest = Chunk { first: chunk.first + mapped * chunk.step, count: chunk.count - mapped, ..chunk };
        self.unstage(region, rest);
        self.staging.free(number, true);
        region.pool().give_free_frames(core, rest.count);
        mapped
    }
}
