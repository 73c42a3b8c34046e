//! Recognises streams. Every miss is noted, and one that continues earlier misses with their stride begins a stream.

use crate::page::entry::{Entry, FRAME_PAGES};
use crate::pool::ahead::Ahead;
use crate::pool::reader::{LARGE_PIECE_PAGES, Pages, ReadRequest};
use crate::pool::runs::{Begun, GoesOn, MOST_LONG, MOST_RUN};
use crate::pool::streams::{AGAIN, ENOUGH, ENOUGH_AFTER_WASTE, Expect, FIRST_WINDOW, Stride};
use crate::readahead::prefetch;
use crate::region::page_ref::PageRef;
use crate::region::region::Region;
use crate::sys::PAGE;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

/// First window of a stream that advice has begun, pages: 512 KiB.
const ADVISED_WINDOW: usize = 128;

/// Pages that can be read side by side in the time of one miss: 20 to 60 on disks.
const MISS: usize = 32;

/// Pages within which a miss may be the next of a walk whose last miss brought its neighbours for nothing: as many again, so that each step of a
/// walk by shorter steps is seen.
const NEAR: usize = 2 * LARGE_PIECE_PAGES;

/// Longest step, pages, of a stream that reads the pages between as well. A large read brings as many pages while the device finds one alone,
/// and one trap maps all of a chunk. Not done where reads end inside the call, since a processor pays for each page there.
const DENSE: usize = 4;

/// Notes a miss, before the page is read. Returns how many pages, from this one on, are to be read at once. Called by fault handlers.
#[inline]
pub fn note_miss(core: usize, page: PageRef<'_>, is_store: bool) -> usize {
    let (region, page) = (page.region(), page.number());
    let pool = region.pool();
    let Some(ahead) = pool.ahead() else { return 1 };
    let hints = region.hints();
    let (expect, readahead) = (hints.expect_at(page), hints.readahead());
    if expect == Expect::Random || readahead == 0 {
        return 1;
    }
    let most = readahead.min(pool.most_run());
    let here = Entry::new(region.id(), page).into();
    let has_runs = expect == Expect::Normal;
    let now = ahead.clock.load(Ordering::Relaxed);
    let time = || hints.runs().begun().wrapping_add(now as u32);
    let goes_on = if has_runs { ahead.runs.goes_on(here, time(), pages_of(region)) } else { None };
    if has_runs && hints.read_times().are_long() {
        fill_far(ahead, region, page, goes_on.is_some());
    }
    if let Some(GoesOn::Measured(reached)) = goes_on {
        hints.runs().note_reached(reached);
        match hints.runs().rest_of_long() {
            _ if reached < MOST_RUN => return 1,
            Some(rest) => {
                let rest = rest.min(most);
                ahead.runs.begin(here, time(), goes_on, Begun::Read(rest));
                return rest;
            }
            None => {
                start(ahead, region, page, 1, FIRST_WINDOW, is_store);
                return 1;
            }
        }
    }
    let enough = if hints.wastes_streams() { ENOUGH_AFTER_WASTE } else { ENOUGH };
    let costs = || hints.read_times().costs();
    let begun = if has_runs { hints.runs().begin_or_go_on(goes_on, costs).at_most(most) } else { Begun::Read(1) };
    let begun = match (goes_on, begun) {
        (None, Begun::Read(pages @ ..LARGE_PIECE_PAGES)) if has_runs && !is_store => {
            let may_be_first = if hints.read_times().are_long() { pages == 1 } else { fits(region) };
            let more = if may_be_first { for_nothing(region, page) } else { 1 };
            // Behind neighbours of another miss a page is read alone: a walk by half as many pages leads there, too.
            let is_lone = more > pages && !pool.cores[core].0.misses.has_near(here, now, NEAR);
            Begun::Read(if is_lone { more.min(most) } else { pages })
        }
        _ => begun,
    };
    let stride = match (goes_on, begun) {
        // The run goes on behind the pages that were read at once: it is longer than was thought, and at last a walk.
        (Some(GoesOn::Read(pages)), Begun::Read(2..)) => {
            let is_walk = pages >= if hints.runs().long_runs_end() { MOST_LONG } else { enough as usize };
            is_walk.then_some(Stride { step: 1, steps: enough })
        }
        _ => pool.cores[core].0.misses.note(here, now),
    };
    let stream = match (stride, expect) {
        (Some(Stride { step, steps }), _) if steps >= enough && (steps - enough).is_multiple_of(AGAIN) => {
            Some((step, FIRST_WINDOW))
        }
        (None, Expect::Forward) => Some((1, ADVISED_WINDOW)),
        (None, Expect::Backward) => Some((-1, ADVISED_WINDOW)),
        _ => None,
    };
    let together = begun.pages();
    if let Some((step, window)) = stream {
        let is_dense = step.unsigned_abs() <= DENSE
            && !ahead.readers.iter().all(|reader| reader.reads_inline.load(Ordering::Relaxed));
        let step = if is_dense { step.signum() } else { step };
        // The stream begins behind the pages that are read with this one.
        let last = if step == 1 { page + together - 1 } else { page };
        start(ahead, region, last, step, window, is_store);
    }
    if has_runs {
        ahead.runs.begin(here, time(), goes_on, begun);
        if fits(region) && hints.runs().begun() as usize > pages_of(region) / MISS {
            fill(ahead, region, page);
        }
    }
    together
}

/// Begins a stream behind a page, and reads on for it.
#[cold]
fn start(ahead: &Ahead, region: &Region, page: usize, step: isize, window: usize, is_store: bool) {
    if let Some(stream) = ahead.streams.start(region.id(), page, step, window, is_store) {
        ahead.go_on_with(region.pool(), stream);
    }
}

/// Pages to read at a miss that is near no other, so that it may be the first of anything, while memory is free: some of its neighbours. The
/// kernel does so, too (`read_ahead_kb`), and finds these pages in memory until others need it.
#[cold]
fn for_nothing(region: &Region, page: usize) -> usize {
    /// Memory is free while more than one in so many of a cache's frames are. An eviction leaves fewer.
    const FREE: usize = 32;
    let pool = region.pool();
    let pages = region.hints().read_times().costs().for_nothing();
    // The free frames come last: to count them is to look at every core's.
    if pages == 1
        || region.store().origin().is_some()
        || region.predicts_store(page)
        || pool.free_frames.idle() <= pool.capacity() / FREE
    {
        return 1;
    }
    // One request: it ends where the region's stripe does.
    pages.min(FRAME_PAGES - page % FRAME_PAGES)
}

/// Pages of a region's file.
fn pages_of(region: &Region) -> usize {
    region.store().size() as usize / PAGE
}

/// Whether a file may be read whole: it fits into the cache, and is not filled from elsewhere. Such a file is fetched on demand only.
fn fits(region: &Region) -> bool {
    region.store().origin().is_none() && pages_of(region) <= region.pool().capacity()
}

/// Notes a miss of a file on storage far away. When its misses have cost as much as reading it whole, asks a reader for all of it. The
/// reader's thread goes on with that.
#[cold]
fn fill_far(ahead: &Ahead, region: &Region, page: usize, is_near: bool) {
    if region.hints().read_times().has_lost_as_much(pages_of(region), is_near) && fits(region) {
        fill(ahead, region, page);
    }
}

/// Asks a reader, once, for all of a file that fits into the cache, and goes on with the work that readers have. Called when misses at
/// random have taken about as long as the whole read will: so both together take at most twice the best time, whatever comes.
#[cold]
fn fill(ahead: &Ahead, region: &Region, page: usize) {
    if region.hints().begin_fill() {
        let all = region.ahead_of(page);
        let pages = Pages { region: region.id(), first: all.start, count: all.len() };
        let reader = prefetch::here(ahead);
        if !reader.ask(&mut std::iter::once(ReadRequest::Fill(pages)), false) {
            region.hints().abort_fill();
        }
    }
    let are_long = region.hints().read_times().are_long();
    for reader in ahead.readers.iter().filter(|reader| reader.has_work()) {
        if are_long { reader.wake() } else { ahead.go_on(region.pool(), reader) }
    }
}

/// Whether a frame that begins or ends with a page is about to be read for a stream. A thread that misses the page then waits: otherwise it
/// would load 512 pages one by one, and the reader could no longer use a frame. `since`: when this thread began to wait. False after 1 ms
/// of waiting. Called by fault handlers.
#[inline]
pub fn is_coming(page: PageRef<'_>, since: &mut Option<Instant>) -> bool {
    /// About the time of a few frames on a fast device, and of the wake-up of a reader's thread.
    const PATIENCE: Duration = Duration::from_millis(1);
    let (region, page) = (page.region(), page.number());
    let within = page % FRAME_PAGES;
    if within != 0 && within != FRAME_PAGES - 1 {
        return false;
    }
    let Some(ahead) = region.pool().ahead() else { return false };
    let Some(stream) = ahead.streams.about_to_read(region.id(), page) else { return false };
    match since {
        Some(since) => since.elapsed() < PATIENCE,
        None => {
            *since = Some(Instant::now());
            ahead.go_on_with(region.pool(), stream);
            true
        }
    }
}
