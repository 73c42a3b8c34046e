//! How a reader goes on with its streams: how far, in which chunks, and into which slots.

use crate::cache::{Inner, Room};
use crate::fault::unclaim;
use crate::page::State;
use crate::reader::{Reader, claim};
use crate::readers::{Desk, Order};
use crate::region::Region;
use crate::registry::{self, InUse};
use crate::staging::{BUFFER_PAGES, Chunk, FRAME_PAGES, SlotNumber, Staging};
use crate::streams::{FIRST_WINDOW, MOST_WINDOW, News, Start};
use crate::sync::Ordering;
use crate::sys::uring::DEPTH;
use std::ops::Range;

/// Window from which a stream is read in frames, pages: 4 MiB.
const FRAME_WINDOW: usize = 1024;
/// Smallest chunk worth a trap, pages.
pub const LEAST_CHUNK: usize = 8;
/// Largest window of a stream with a step: more requests at a time are no use to a device.
const STEP_WINDOW: usize = 256;

/// A stream, as its reader knows it.
#[derive(Debug, Clone, Copy)]
pub struct Run {
    pub start: Start,
    /// The next page to read; negative, or past the end, when there is none.
    pub next: isize,
    pub window: usize,
    /// Pages read or being read, and neither mapped nor dropped.
    pub outstanding: usize,
    /// What was read last was a frame.
    pub in_frames: bool,
    pub live: bool,
}

impl Run {
    /// The direction's sign and more: pages from one to the next.
    fn step(&self) -> isize {
        self.start.step
    }

    /// Learns what became of pages read ahead: twice as many are wanted when they were used, half as many when not.
    fn learn(&mut self, news: News) {
        self.outstanding = self.outstanding.saturating_sub(news.used + news.wasted);
        if news.wasted > 0 {
            self.window = (self.window / 2).max(FIRST_WINDOW);
        } else if news.used > 0 {
            self.window = (self.window * 2).min(MOST_WINDOW);
        }
        if let Some(missed) = news.missed {
            self.next = missed as isize;
        }
    }
}

impl Reader {
    /// Reads on for a stream until its window is full, or there is no room; false: in the ring.
    pub fn top_up(&mut self, cache: &Inner, number: usize) -> bool {
        let ahead = self.ahead.clone();
        if let Some(start) = ahead.streams.begin(number) {
            let window = start.window;
            self.runs[number] =
                Run { start, next: start.next as isize, window, outstanding: 0, in_frames: false, live: true };
            cache.cores[cache.here()].0.counters.streams.add(1);
        }
        let run = &mut self.runs[number];
        if !run.live {
            return true;
        }
        run.learn(ahead.streams.news(number));
        let mut had_room = true;
        match registry::enter(run.start.region).filter(|region| std::ptr::eq(&**region.cache(), cache)) {
            Some(region) => {
                let share = self.share(cache, &region);
                loop {
                    let run = &self.runs[number];
                    let window = run.window.min(share);
                    had_room = self.has_room();
                    if window < LEAST_CHUNK || run.outstanding >= window || !had_room {
                        break;
                    }
                    if !self.read_on(cache, &region, number, window, None) {
                        break;
                    }
                    let before = self.requests;
                    let run = &self.runs[number];
                    if self.reads_inline && run.in_frames && run.outstanding <= window {
                        // While this thread is in the system call, another reads the next frame. One more than the window, if
                        // need be: else every second frame would be read alone.
                        if let Some(idle) = ahead.desks.iter().find(|desk| desk.asleep.load(Ordering::Relaxed)) {
                            self.read_on(cache, &region, number, window + FRAME_PAGES, Some(idle));
                        }
                    }
                    // The device begins at once. One that reads in the system call has ended: the program goes on with that.
                    if let Some(ring) = &mut self.ring {
                        ring.submit(0);
                    }
                    self.finish_ended(Some(cache));
                    self.reads_inline = self.requests < before;
                    let run = &mut self.runs[number];
                    if !ahead.streams.go_on(number, run.start.tag, run.next.max(0) as usize, run.window, run.in_frames)
                    {
                        break;
                    }
                    run.learn(ahead.streams.news(number));
                }
                let run = &mut self.runs[number];
                let is_over = run.next < 0 || !bounds_of(&region, run).contains(&(run.next as usize));
                run.live = !is_over || run.outstanding > 0;
            }
            None => run.live = false,
        }
        let run = self.runs[number];
        if !run.live {
            ahead.streams.end(number);
        } else if !ahead.streams.go_on(number, run.start.tag, run.next.max(0) as usize, run.window, run.in_frames) {
            // It has been begun anew meanwhile.
            ahead.call(number);
        }
        had_room
    }

    /// Pages that a stream may have outstanding: staging memory is shared between those that are at work.
    fn share(&self, cache: &Inner, region: &Region) -> usize {
        let running = self.runs.iter().filter(|run| run.live && run.outstanding > 0).count().max(1);
        let capacity = cache.capacity();
        let (buffers, frames) = (Staging::most_buffers(capacity), Staging::most_frames(capacity));
        let staging = if region.takes_frames() { frames * FRAME_PAGES } else { 0 } + buffers * BUFFER_PAGES;
        let share = staging / (running * self.ahead.desks.len().min(running));
        // A stream that gets hardly anything still asks for slots, which have to be taken from streams that are over.
        region.readahead().min(capacity / 8).min(share.max(LEAST_CHUNK))
    }

    /// Reads the next chunk of a stream, or if it is a frame, has another reader do it; false: there is no room, or nothing to
    /// read.
    fn read_on(
        &mut self,
        cache: &Inner,
        region: &InUse<'static>,
        number: usize,
        window: usize,
        other: Option<&Desk>,
    ) -> bool {
        let run = self.runs[number];
        let step = run.step();
        let is_walk = step.unsigned_abs() == 1;
        let window = if is_walk { window } else { window.min(STEP_WINDOW) };
        if run.outstanding >= window {
            return false;
        }
        let mut next = run.next;
        let bounds = bounds_of(region, &run);
        for _ in 0..=window {
            self.runs[number].next = next;
            let Some(page) = usize::try_from(next).ok().filter(|page| bounds.contains(page)) else { return false };
            // What is there already is passed over, as far as the window reaches.
            if region.word(page).look().state() != State::Absent {
                next += step;
                continue;
            }
            let first = page / FRAME_PAGES * FRAME_PAGES;
            let begins = page == if step > 0 { first } else { first + FRAME_PAGES - 1 };
            let is_mapped = bounds.start <= first && first + FRAME_PAGES <= bounds.end;
            let is_frame = is_walk && begins && window >= FRAME_WINDOW && is_mapped;
            if other.is_some() && !is_frame {
                return false;
            }
            let most = (window / 4).clamp(LEAST_CHUNK, BUFFER_PAGES);
            // A walk's chunks end where frames begin.
            let most = match step {
                1 => most.min(first + FRAME_PAGES - page),
                -1 => most.min(page - first + 1),
                _ => most.min(DEPTH - self.requests),
            };
            let tag = run.start.tag;
            let read = if is_frame && region.takes_frames() && self.ahead.staging.moves() {
                let chunk = Chunk { region: region.slot(), first, step: 1, count: FRAME_PAGES, stream: tag };
                self.read_frame(cache, region, chunk, other)
            } else {
                None
            };
            let Some(read) = read.or_else(|| self.read_buffer(cache, region, &run, page, most, &bounds)) else {
                return false;
            };
            next += step * read.max(1) as isize;
            if read > 0 {
                let run = &mut self.runs[number];
                run.next = next;
                run.outstanding += read;
                run.in_frames = read == FRAME_PAGES;
                return true;
            }
        }
        false
    }

    /// Takes a slot, with memory and credits for it and `pages` more.
    fn take_slot(&self, cache: &Inner, frame: bool, pages: usize) -> Option<SlotNumber> {
        let staging = &self.ahead.staging;
        let capacity = cache.capacity();
        let most = if frame { Staging::most_frames(capacity) } else { Staging::most_buffers(capacity) };
        let (number, has_memory) =
            staging.take(frame, most).or_else(|| Some((self.ahead.take_stale(cache, frame)?, true)))?;
        let core = cache.here();
        if !has_memory && frame {
            staging.expect(number, true);
            return match cache.take_ahead(core, FRAME_PAGES, Some((staging, number))) {
                Room::None => {
                    staging.free(number, false);
                    None
                }
                Room::Credits => {
                    staging.expect(number, false);
                    // Nothing is there but, perhaps, a page table: without it the kernel gives a huge page.
                    staging.drop_memory(number);
                    Some(number)
                }
                Room::Frame => Some(number),
            };
        }
        let wanted = pages + if has_memory { 0 } else { number.pages() };
        if wanted > 0 && cache.take_ahead(core, wanted, None) == Room::None {
            staging.free(number, has_memory);
            return None;
        }
        Some(number)
    }

    /// Reads a whole frame; `None` if that is not possible.
    fn read_frame(
        &mut self,
        cache: &Inner,
        region: &InUse<'static>,
        chunk: Chunk,
        other: Option<&Desk>,
    ) -> Option<usize> {
        // Claimed before there is room: making some takes a while, and the program is not to overtake.
        let claimed = chunk.pages().take_while(|page| claim(region, *page).is_some()).count();
        let number = if claimed == chunk.count { self.take_slot(cache, true, 0) } else { None };
        let Some(number) = number else {
            chunk.pages().take(claimed).for_each(|page| unclaim(region, page));
            return None;
        };
        match other {
            Some(desk) => {
                // Whoever ends the region waits for the slot.
                self.ahead.staging.fill(number, chunk, 0);
                desk.lock_orders().push_front(Order::Chunk(region.clone(), number, chunk));
                desk.wake();
            }
            None => self.read_chunk(cache, region, number, chunk),
        }
        Some(chunk.count)
    }

    /// Reads up to `most` pages of a stream from one on into a buffer; how many, `None` without room.
    fn read_buffer(
        &mut self,
        cache: &Inner,
        region: &InUse<'static>,
        run: &Run,
        page: usize,
        most: usize,
        bounds: &Range<usize>,
    ) -> Option<usize> {
        let step = run.step();
        let page_at =
            |index: usize| page.checked_add_signed(index as isize * step).filter(|page| bounds.contains(page));
        let count = (0..most).map_while(page_at).take_while(|page| claim(region, *page).is_some()).count();
        if count == 0 {
            return Some(0);
        }
        let last = page.checked_add_signed((count - 1) as isize * step).unwrap_or(page);
        let first = page.min(last);
        let chunk = Chunk { region: region.slot(), first, step: step.unsigned_abs(), count, stream: run.start.tag };
        let Some(number) = self.take_slot(cache, false, count) else {
            chunk.pages().for_each(|page| unclaim(region, page));
            return None;
        };
        self.read_chunk(cache, region, number, chunk);
        Some(count)
    }
}

/// What may be read for a walk, told by the page before the next, which the program has touched or will: a walk inside a map
/// ends where that ends.
fn bounds_of(region: &Region, run: &Run) -> Range<usize> {
    usize::try_from(run.next - run.step()).map_or(0..0, |page| region.ahead_of(page))
}
