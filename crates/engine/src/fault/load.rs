//! Bringing in a page that this thread claimed: one free frame, one read, one installation.

use crate::deferred::protocol::{self, Deferred};
use crate::evict::room::Room;
use crate::fault::zero_ahead::fill_ahead;
use crate::page::claims::Loading;
use crate::page::entry::FRAME_PAGES;
use crate::page::word::{Ghost, State};
use crate::pool::read_buffers::Buffer;
use crate::readahead::detect;
use crate::region::arrivals::clear_tail;
use crate::region::install::Outcome;
use crate::region::page_ref::PageRef;
use crate::region::{install, prediction, userfaultfds};
use crate::store::ReadEnd;
use crate::sys::{PAGE, signal};
use std::ops::Range;
use std::sync::atomic::Ordering;

/// Of small caches a run is this part at most.
const LEAST_SHARE: usize = 64;

/// Brings in a page that this thread claimed.
pub fn load(claim: Loading<PageRef<'_>>, ghost: Option<Ghost>, is_store: bool, trap: Option<signal::Trap>) -> Outcome {
    let page = claim.page();
    let (region, number) = (page.region(), page.number());
    if region.is_converted() {
        // The trap was taken before that; repeated, the access finds the kernel's mapping.
        claim.abort_late();
        return Outcome::Resolved;
    }
    let pool = region.pool();
    let core = pool.here();
    let is_hole = region.take_hole(number);
    // Before this page is read, so that reading ahead begins meanwhile. Where a hole is being filled there is nothing to read.
    let mut together = 1;
    if !(is_hole && is_store) {
        // Any service thread may serve a walk's next miss: one core's miss history is for all of them.
        let history = if userfaultfds::by_service() { 0 } else { core };
        together = detect::note_miss(history, page, is_store);
    }
    if let Err(error) = pool.take_free_frame(core) {
        return give_up(claim, Outcome::Failed("writing back dirty pages to make room", error));
    }
    let counters = pool.counters_at(core);
    let claim = match (is_store, is_hole, trap) {
        (true, false, Some(trap)) => match protocol::defer(claim, core, trap) {
            Deferred::Done => {
                counters.misses.add(1);
                region.counters_at(core).misses.add(1);
                return Outcome::Resolved;
            }
            Deferred::Failed(claim, outcome) => {
                pool.give_free_frames(core, 1);
                return give_up(claim, outcome);
            }
            Deferred::Read(claim) => claim,
        },
        _ => claim,
    };
    // Where whole pages end now: a hole that somebody has cut off is no zeros but past the end.
    let whole = is_hole.then(|| region.store().write_end().map_or(0, |end| end as usize / PAGE));
    let whole = whole.filter(|end| number < *end);
    // Write-protected unless a store waits for it or is expected: the first store must trap to make the page Dirty. A hole
    // that is only read stays one.
    let sample = !is_store && whole.is_none() && region.is_writable() && prediction::is_sample(number);
    let writable = is_store || !sample && whole.is_none() && region.predicts_store(number);
    let run = if together > 1 && whole.is_none() { Run::claim(page, together, core) } else { None };
    let alone = || {
        let buffer = pool.buffer(core);
        // SAFETY: the buffer is this thread's page.
        match unsafe { region.store().read_page(number, buffer.at, &counters.page_cache_hits) } {
            ReadEnd::PastEnd => Outcome::PastEnd,
            ReadEnd::Failed(error) => Outcome::Failed("reading it", error),
            ReadEnd::Filled => install(&claim, buffer.at, writable),
        }
    };
    let outcome = match whole {
        Some(_) => install(&claim, pool.zeros(), writable),
        None => run.and_then(|run| run.load(&claim, writable, core)).unwrap_or_else(alone),
    };
    if outcome != Outcome::Resolved {
        pool.give_free_frames(core, 1);
        return give_up(claim, outcome);
    }
    counters.misses.add(1);
    let of_file = region.counters_at(core);
    of_file.misses.add(1);
    let protected = pool.note_missed(core, ghost);
    of_file.ghost_hits.add(usize::from(ghost.is_some_and(|ghost| pool.ghosts.is_young(ghost))));
    claim.finish(writable, sample, protected, core);
    if sample {
        install::note_sample(region, number, core);
    }
    if writable && !is_store {
        counters.guessed_stores.add(1);
    }
    if let Some(end) = whole {
        counters.born_zero.add(1);
        if is_store {
            fill_ahead(page, end.min(region.least_end().load(Ordering::Relaxed)), core);
        }
    }
    pool.waiting().wake_waiters();
    Outcome::Resolved
}

/// Pages behind one that was missed, claimed by this thread, which are read with it; and the buffer for all of them. They are brought, or
/// given up, when it is loaded: until then this thread waits for nothing but the device.
struct Run<'a> {
    pages: Range<usize>,
    /// A bit for each whose queue is the protected one.
    protected_queue: u32,
    buffer: Buffer<'a>,
}

impl<'a> Run<'a> {
    /// Claims pages behind one, up to so many with it, as far as they are absent, mapped, and there is room without waiting.
    fn claim(page: PageRef<'a>, together: usize, core: usize) -> Option<Self> {
        let (region, first) = (page.region(), page.number() + 1);
        let pool = region.pool();
        // All of it in one stripe of the region.
        let end =
            region.ahead_of(page.number()).end.min(first.next_multiple_of(FRAME_PAGES)).min(page.number() + together);
        let most = end.checked_sub(first).filter(|most| *most > 0)?.min(pool.capacity() / LEAST_SHARE);
        let is_absent = |page: &usize| region.word(*page).look().state() == State::Absent;
        let most = (first..first + most).take_while(is_absent).count();
        let buffer = if most > 0 { pool.run_buffer(core, most + 1) } else { None }?;
        if pool.take_ahead(core, most, None) == Room::None {
            return None;
        }
        let (count, protected_queue) = install::claim_run(region, first, most, None, core);
        (count > 0).then_some(Run { pages: first..first + count, protected_queue, buffer })
    }

    /// Reads them and the page that was missed, and makes all resident; what came of that one. `None`: they cannot be read together.
    fn load(self, claim: &Loading<PageRef<'_>>, writable: bool, core: usize) -> Option<Outcome> {
        let Run { pages, protected_queue, buffer } = self;
        let region = claim.page().region();
        let pool = region.pool();
        let hits = &pool.counters_at(core).page_cache_hits;
        // SAFETY: the buffer is this thread's, and has room for them.
        let read = unsafe { region.store().read_pages(pages.start - 1, pages.len() + 1, buffer.at, hits) };
        let filled = read.unwrap_or(0);
        let there = filled.div_ceil(PAGE);
        clear_tail(buffer.at, filled, there);
        let outcome = match there {
            0 => None,
            _ => Some(install(claim, buffer.at, writable)),
        };
        let brought = if outcome == Some(Outcome::Resolved) { there - 1 } else { 0 };
        let from = buffer.at.wrapping_add(PAGE);
        let mapped = install::install_claimed(region, pages, brought, from, protected_queue);
        pool.counters_at(core).run_pages.add(mapped);
        outcome
    }
}

/// Makes the claimed page resident with the page of bytes at `from`.
fn install(claim: &Loading<PageRef<'_>>, from: *const u8, writable: bool) -> Outcome {
    // SAFETY: a read buffer of this thread's, or the pool's zeros: a page.
    match unsafe { claim.install(from, writable) } {
        Ok(()) => Outcome::Resolved,
        Err(error) => Outcome::Failed("UFFDIO_COPY", error),
    }
}

/// Gives up a page that could not be loaded, for a reason that the caller returns.
fn give_up(claim: Loading<PageRef<'_>>, outcome: Outcome) -> Outcome {
    claim.abort();
    outcome
}
