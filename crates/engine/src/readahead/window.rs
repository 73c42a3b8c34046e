//! How a reader goes on with its streams: how far it reads, in which chunks, and into which slots.

use crate::evict::room::Room;
use crate::page::entry::FRAME_PAGES;
use crate::page::word::State;
use crate::pool::ahead::Ahead;
use crate::pool::reader::{OnTurn, Position, ReadRequest, Reader};
use crate::pool::staging::{BUFFER_PAGES, Chunk, SlotNumber, Staging};
use crate::pool::streams::{FIRST_WINDOW, Feedback, MOST_WINDOW, Streams};
use crate::region::install::{claim, unclaim};
use crate::region::region::Region;
use crate::region::registry::{self, InUse};
use crate::sys::sync::Ordering;
use std::ops::Range;

/// Window from which a stream is read in frames, pages: 4 MiB.
const FRAME_WINDOW: usize = 1024;
/// Smallest chunk worth a trap, pages.
pub const LEAST_CHUNK: usize = 8;
/// A stream that found no slot counts as waiting for one until so many chunks have been staged.
const STARVED: usize = 32;
/// Frames in memory that a stream passes over at a time, at most: 128 MiB.
const MOST_PASSED: usize = 64;
/// The part of the cache that a stream comes through, from where it began, before it counts as a walk. Lists and blocks are streams, too, and may be
/// wanted again.
const BEGINNING: usize = 8;
/// Largest window of a stream with a step: more requests at a time are no use to a device.
const STEP_WINDOW: usize = 256;

impl Position {
    /// Pages from one page of the stream to the next; negative if it goes backward.
    fn step(&self) -> isize {
        self.start.step
    }

    /// Learns what became of pages read ahead. The window doubles if some were used, and is halved if some were wasted.
    fn learn(&mut self, feedback: Feedback, streams: &Streams) {
        self.outstanding = self.outstanding.saturating_sub(feedback.used + feedback.wasted);
        if feedback.wasted > 0 {
            self.window = (self.window / 2).max(FIRST_WINDOW);
        } else if feedback.used > 0 {
            self.window = (self.window * 2).min(MOST_WINDOW);
        }
        if let Some(missed) = feedback.missed.map(|page| page as isize) {
            if self.is_behind(self.reached, missed) && self.outstanding > 0 {
                // The program is past all that was read. Chunks that it has jumped over are stale from now on, and the window was too large.
                self.start.tag = streams.leave_behind(self.start.tag);
                self.window = (self.window / 2).max(FIRST_WINDOW);
                self.outstanding = 0;
                self.reached = missed;
            }
            self.next = missed;
        }
    }

    /// Whether the stream comes to a page before another.
    fn is_behind(&self, page: isize, other: isize) -> bool {
        (other - page) * self.step().signum() > 0
    }
}

impl OnTurn<'_> {
    /// Reads on for a stream as far as its window and its slots allow. False: the reader has no room for another transfer.
    pub fn top_up(&mut self, number: usize) -> bool {
        let (ahead, pool) = (self.ahead, self.pool);
        if let Some(start) = ahead.streams.begin(number) {
            let window = start.window;
            self.reading.positions[number] = Position {
                start,
                next: start.next as isize,
                reached: start.next as isize,
                window,
                outstanding: 0,
                in_frames: false,
                live: true,
                starved: None,
            };
            pool.counters_at(pool.here()).streams.add(1);
        }
        let position = &mut self.reading.positions[number];
        if !position.live {
            return true;
        }
        position.learn(ahead.streams.feedback(number), &ahead.streams);
        let mut had_room = true;
        match registry::enter(position.start.region).filter(|region| std::ptr::eq(&**region.pool(), pool)) {
            Some(region) => {
                let (share, slots) = self.share(&region);
                let mut begun = 0;
                loop {
                    had_room = self.has_room();
                    let position = &self.reading.positions[number];
                    let window = position.window.min(share);
                    let before = position.outstanding;
                    if window < LEAST_CHUNK || before >= window || !had_room {
                        break;
                    }
                    if begun > window {
                        // Another thread maps pages as fast as this one reads them. Other streams come first, and this thread may have a
                        // program to run.
                        self.reader.pending.fetch_or(1 << number, Ordering::SeqCst);
                        self.reader.wake();
                        break;
                    }
                    if !self.read_on(&region, number, window, slots, None) {
                        break;
                    }
                    let position = &self.reading.positions[number];
                    begun += position.outstanding - before;
                    let is_inline = self.reader.reads_inline.load(Ordering::Relaxed);
                    if is_inline && position.in_frames && position.outstanding <= window {
                        // While this thread is in the system call, another reads the next frame. It may be one frame more than
                        // the window: otherwise every second frame would be read alone.
                        if let Some(idle) = ahead.readers.iter().find(|reader| reader.is_idle()) {
                            self.read_on(&region, number, window + FRAME_PAGES, slots, Some(idle));
                        }
                    }
                    // The device begins at once. If it reads in the system call, the read has ended, and the program goes on
                    // with it.
                    self.submit();
                    if !self.go_on(number) {
                        break;
                    }
                    self.reading.positions[number].learn(ahead.streams.feedback(number), &ahead.streams);
                }
                let position = &mut self.reading.positions[number];
                let is_over = position.next < 0 || !bounds_of(&region, position).contains(&(position.next as usize));
                position.live = !is_over || position.outstanding > 0;
            }
            None => position.live = false,
        }
        if !self.reading.positions[number].live {
            ahead.streams.end(number);
        } else if !self.go_on(number) {
            // Its number has been given to a new stream meanwhile.
            self.reader.pending.fetch_or(1 << number, Ordering::SeqCst);
        }
        had_room
    }

    /// Publishes where a stream has come to. False: its number has been given to a new stream.
    fn go_on(&self, number: usize) -> bool {
        let Position { start, next, window, in_frames, .. } = self.reading.positions[number];
        self.ahead.streams.go_on(number, start.tag, next.max(0) as usize, window, in_frames)
    }

    /// Pages that a stream may have outstanding, and slots for them. Staging memory is shared between the streams that are at work.
    fn share(&self, region: &Region) -> (usize, usize) {
        // A stream that found no slot has nothing outstanding. If it were not counted, it would never get any.
        let now = self.ahead.clock.load(Ordering::Relaxed);
        let is_starved = |at: Option<usize>| at.is_some_and(|at| now.wrapping_sub(at) < STARVED);
        let is_running = |one: &&Position| one.live && (one.outstanding > 0 || is_starved(one.starved));
        let running = self.reading.positions.iter().filter(is_running).count().max(1);
        let capacity = self.pool.capacity();
        let (buffers, frames) = (Staging::most_buffers(capacity), Staging::most_frames(capacity));
        let staging = if region.frames().are_allowed() { frames * FRAME_PAGES } else { 0 } + buffers * BUFFER_PAGES;
        let share = staging / (running * self.ahead.readers.len().min(running));
        // Even a stream with a tiny share asks for slots: they have to be taken from streams that are over.
        (region.hints().readahead().min(capacity / 8).min(share.max(LEAST_CHUNK)), (share / BUFFER_PAGES).max(1))
    }

    /// Reads the next chunk of a stream. With `other`, the chunk has to be a frame, and that reader's thread reads it. False: there is no
    /// room, or nothing to read.
    fn read_on(
        &mut self,
        region: &InUse<'static>,
        number: usize,
        window: usize,
        slots: usize,
        other: Option<&Reader>,
    ) -> bool {
        let position = self.reading.positions[number];
        let step = position.step();
        let is_sequential = step.unsigned_abs() == 1;
        let window = if is_sequential { window } else { window.min(STEP_WINDOW) };
        if position.outstanding >= window {
            return false;
        }
        let mut next = position.next;
        let bounds = bounds_of(region, &position);
        // Pages that are in memory are passed over, up to a window of them. Frames are passed over further, since a loop keeps many of them.
        let (mut pages, mut frames) = (0, 0);
        while pages <= window && frames <= MOST_PASSED {
            self.reading.positions[number].next = next;
            let Some(page) = usize::try_from(next).ok().filter(|page| bounds.contains(page)) else { return false };
            let seen = region.word(page).look();
            if seen.state() != State::Absent {
                let is_frame = is_sequential && seen.state() == State::Clean && seen.is_huge();
                let within = page % FRAME_PAGES;
                let rest = if step > 0 { FRAME_PAGES - within } else { within + 1 };
                next += step * if is_frame { rest as isize } else { 1 };
                (pages, frames) = (pages + usize::from(!is_frame), frames + usize::from(is_frame));
                continue;
            }
            let first = page / FRAME_PAGES * FRAME_PAGES;
            let begins = page == if step > 0 { first } else { first + FRAME_PAGES - 1 };
            let is_mapped = bounds.start <= first && first + FRAME_PAGES <= bounds.end;
            let is_frame = is_sequential && begins && window >= FRAME_WINDOW && is_mapped;
            if other.is_some() && (!is_frame || !self.has_room()) {
                return false;
            }
            // A chunk is a quarter of the window. With fewer than four slots it is a larger part: the other slots are for other streams.
            let most = (window / slots.min(4)).clamp(LEAST_CHUNK, BUFFER_PAGES);
            // The chunks of a sequential stream end where frames begin.
            let most = match step {
                1 => most.min(first + FRAME_PAGES - page),
                -1 => most.min(page - first + 1),
                _ => most,
            };
            let tag = position.start.tag;
            if !self.is_near(region, page, step, if is_frame { FRAME_PAGES } else { most }, window) && !self.waits {
                self.reader.pending.fetch_or(1 << number, Ordering::SeqCst);
                self.reader.wake();
                return false;
            }
            let read = if is_frame && region.frames().are_allowed() && self.ahead.staging.moves() {
                let chunk = Chunk { region: region.id(), first, step: 1, count: FRAME_PAGES, stream: tag, soon: 0 };
                self.read_frame(region, chunk, other)
            } else {
                None
            };
            let read = read.or_else(|| self.read_buffer(region, &position, page, most, &bounds));
            self.reading.positions[number].starved = read.is_none().then(|| self.ahead.clock.load(Ordering::Relaxed));
            let Some(read) = read else { return false };
            next += step * read.max(1) as isize;
            pages += 1;
            if read > 0 {
                let position = &mut self.reading.positions[number];
                position.next = next;
                if position.is_behind(position.reached, next) {
                    position.reached = next;
                }
                position.outstanding += read;
                position.in_frames = read == FRAME_PAGES;
                return true;
            }
        }
        false
    }

    /// Whether the pages of a chunk can be read without being fetched from elsewhere. If not, the origin is asked for all of the window.
    fn is_near(&self, region: &Region, page: usize, step: isize, pages: usize, window: usize) -> bool {
        let store = region.store();
        if store.origin().is_none() {
            return true;
        }
        let from = |pages: usize| if step == -1 { (page + 1).saturating_sub(pages) } else { page };
        let each = || (0..pages).map(|index| page.saturating_add_signed(step * index as isize));
        match step {
            1 | -1 if store.is_near(from(pages), pages) => true,
            1 | -1 => {
                store.ask(from(window), window);
                false
            }
            _ if each().all(|page| store.is_near(page, 1)) => true,
            _ => {
                each().for_each(|page| store.ask(page, 1));
                false
            }
        }
    }

    /// Takes a slot that has memory, with free frames for that memory and `pages` more.
    fn take_slot(&self, frame: bool, pages: usize) -> Option<SlotNumber> {
        let pool = self.pool;
        let staging = &self.ahead.staging;
        let capacity = pool.capacity();
        let most = if frame { Staging::most_frames(capacity) } else { Staging::most_buffers(capacity) };
        let take = || staging.take(frame, most).or_else(|| Some((self.ahead.take_stale(pool, frame)?, true)));
        // Other readers may hold chunks of streams that are over, and nobody has taken notice yet that these have been read.
        let notice = || self.ahead.take_notice(pool, |_| false);
        let (number, has_memory) = take().or_else(|| notice().then(take).flatten())?;
        let core = pool.here();
        if !has_memory && frame {
            staging.expect(number, true);
            return match pool.take_ahead(core, FRAME_PAGES, Some((staging, number))) {
                Room::None => {
                    staging.free(number, false);
                    None
                }
                Room::FreeFrames => {
                    staging.expect(number, false);
                    // The slot has no pages, but may have a page table. Without that the kernel gives a huge page.
                    staging.drop_memory(number);
                    Some(number)
                }
                Room::Frame => Some(number),
            };
        }
        let wanted = pages + if has_memory { 0 } else { number.pages() };
        if wanted > 0 && pool.take_ahead(core, wanted, None) == Room::None {
            staging.free(number, has_memory);
            return None;
        }
        Some(number)
    }

    /// Reads a whole frame, by this thread or by `other`'s. `None`: that is not possible.
    fn read_frame(&mut self, region: &InUse<'static>, chunk: Chunk, other: Option<&Reader>) -> Option<usize> {
        let reader = other.unwrap_or(self.reader);
        // The pages are claimed first: making room takes a while, and the program must not overtake the reader.
        let claimed = chunk.pages().take_while(|page| claim(region, *page, Some(reader.number)).is_some()).count();
        let number = if claimed == chunk.count { self.take_slot(true, 0) } else { None };
        let Some(number) = number else {
            chunk.pages().take(claimed).for_each(|page| unclaim(region, page));
            return None;
        };
        if other.is_none() {
            self.read_chunk(region, number, chunk);
            return Some(chunk.count);
        }
        // From here on a region that ends waits for the slot (`Staging::may_hold`).
        self.ahead.staging.fill(number, chunk, 0);
        let request = ReadRequest::Chunk(region.held(), number, chunk);
        if !reader.ask(&mut std::iter::once(request), true) {
            self.ahead.staging.free(number, true);
            chunk.pages().for_each(|page| unclaim(region, page));
            return None;
        }
        reader.wake();
        Some(chunk.count)
    }

    /// Reads up to `most` pages of a stream, from `page` on, into a buffer. Returns how many; `None`: there is no slot.
    fn read_buffer(
        &mut self,
        region: &InUse<'static>,
        position: &Position,
        page: usize,
        most: usize,
        bounds: &Range<usize>,
    ) -> Option<usize> {
        let step = position.step();
        let page_at =
            |index: usize| page.checked_add_signed(index as isize * step).filter(|page| bounds.contains(page));
        let (pool, core) = (self.pool, self.pool.here());
        // Further on it is a walk, which brings pages back whether or not they are wanted again.
        let begins = position.start.next.abs_diff(page) <= pool.capacity() / BEGINNING;
        let (mut count, mut soon) = (0, 0);
        for page in (0..most).map_while(page_at) {
            let Some(seen) = claim(region, page, Some(self.reader.number)) else { break };
            let came_back = begins && pool.note_came_back(core, seen.ghost());
            soon |= u64::from(came_back) << count;
            count += 1;
        }
        if count == 0 {
            return Some(0);
        }
        if step < 0 {
            soon = soon.reverse_bits() >> (u64::BITS as usize - count);
        }
        let last = page.checked_add_signed((count - 1) as isize * step).unwrap_or(page);
        let first = page.min(last);
        let chunk =
            Chunk { region: region.id(), first, step: step.unsigned_abs(), count, stream: position.start.tag, soon };
        let Some(number) = self.take_slot(false, count) else {
            chunk.pages().for_each(|page| unclaim(region, page));
            return None;
        };
        self.read_chunk(region, number, chunk);
        Some(count)
    }
}

/// Whether a long walk through a region is read in frames.
pub fn has_frames(ahead: &Ahead, region: &Region) -> bool {
    let window = region.hints().readahead().min(region.pool().capacity() / 8);
    window >= FRAME_WINDOW && region.frames().are_allowed() && ahead.staging.moves()
}

/// The pages that may be read for a stream: those of the map that it is in. The page before its next one tells which map that is: the
/// program has touched that page, or will.
fn bounds_of(region: &Region, position: &Position) -> Range<usize> {
    usize::try_from(position.next - position.step()).map_or(0..0, |page| region.ahead_of(page))
}
