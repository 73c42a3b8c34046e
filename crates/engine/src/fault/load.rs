//! Bringing in a page that this thread claimed: one free frame, one read, one installation.

use crate::deferred::protocol::{self, Deferred};
use crate::evict::room::Room;
use crate::fault::zero_ahead::fill_ahead;
use crate::page::claims::Loading;
use crate::page::entry::FRAME_PAGES;
use crate::page::word::{Ghost, State};
use crate::pool::read_buffers::{BUFFERS, Buffer};
use crate::readahead::{detect, prefetch};
use crate::region::arrivals::clear_tail;
use crate::region::install::Outcome;
use crate::region::page_ref::PageRef;
use crate::region::region::Region;
use crate::region::{install, prediction, userfaultfds};
use crate::store::ReadEnd;
use crate::sys::{PAGE, signal};
use std::ops::Range;
use std::sync::atomic::Ordering;
use std::time::Instant;

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
    if let Err(error) = region.store().bring(number, 1, None) {
        return give_up(claim, Outcome::Failed("fetching it", error));
    }
    if let Err(error) = pool.take_free_frame(core) {
        return give_up(claim, Outcome::Failed("writing back dirty pages to make room", error));
    }
    let counters = pool.counters_at(core);
    let claim = match (is_store, is_hole, trap) {
        (true, false, Some(trap)) if region.has_space(number) => match protocol::defer(claim, core, trap) {
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
    // Where the file has been changed since the page was seen the store traps once more.
    let expects_store = is_store || !sample && whole.is_none() && region.predicts_store(number);
    let writable = expects_store && region.has_space(number);
    let is_run = together > 1 && whole.is_none();
    let mut end = number + if is_run { together } else { 1 };
    if is_run && region.store().origin().is_some() {
        // What would have to be fetched is left to those who want it.
        end = (number + 1..end).find(|page| !region.store().is_near(*page, 1)).unwrap_or(end);
    }
    if end > number + 1 && region.hints().read_times().are_long() && prefetch::ask(region, number + 1..end) {
        // While this thread waits for the page that was missed.
        end = number + 1;
    }
    let is_run = end > number + 1;
    let run = if is_run { Run::claim(region, number + 1..end, 1, core) } else { None };
    let alone = || {
        let buffer = pool.buffer(core);
        // SAFETY: the buffer is this thread's page.
        let read = || unsafe { region.store().read_page(number, buffer.at, &counters.page_cache_hits) };
        match timed(region, 1, core, read, |end| matches!(end, ReadEnd::Filled)) {
            ReadEnd::PastEnd => Outcome::PastEnd,
            ReadEnd::Failed(error) => Outcome::Failed("reading it", error),
            ReadEnd::Filled => install(&claim, buffer.at, writable),
        }
    };
    let first = run.and_then(|run| {
        let behind = run.pages.end;
        Some((run.load(&claim, writable)?, behind))
    });
    let (outcome, mut behind) = match (whole, first) {
        (Some(_), _) => (install(&claim, pool.zeros(), writable), end),
        (None, Some(first)) => first,
        (None, None) => (alone(), end),
    };
    if outcome != Outcome::Resolved {
        pool.give_free_frames(core, 1);
        return give_up(claim, outcome);
    }
    // The rest of a long run. While this thread has the page that was missed, nobody takes the region away. Not where it is writable: it is
    // Upgrading then, and who waits for that holds a block's lock.
    while behind < end
        && !writable
        && let Some(run) = Run::claim(region, behind..end, 0, core)
    {
        behind = run.pages.end;
        let (there, all) = (run.read(), run.pages.len());
        if run.bring(there) < all {
            break;
        }
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

/// Pages behind one that was missed, or behind others that were read with it, claimed by this thread, which are read at once; and the buffer
/// for all of them. They are brought, or given up, before this thread waits for anything but the device.
struct Run<'a> {
    region: &'a Region,
    pages: Range<usize>,
    /// Pages before them that are read with them: the one that was missed, or none.
    before: usize,
    /// A bit for each whose queue is the protected one.
    protected_queue: u64,
    buffer: Buffer<'a>,
    core: usize,
}

impl<'a> Run<'a> {
    /// Claims the first of some pages, as far as they are absent, mapped, fit into a buffer, and there is room without waiting.
    #[cold]
    fn claim(region: &'a Region, pages: Range<usize>, before: usize, core: usize) -> Option<Self> {
        let (pool, first) = (region.pool(), pages.start);
        // All of it in one stripe of the region.
        let stripe = (first - before) / FRAME_PAGES * FRAME_PAGES + FRAME_PAGES;
        let end = region.ahead_of(first - before).end.min(pages.end).min(stripe).min(first - before + BUFFERS);
        let is_absent = |page: &usize| region.word(*page).look().state() == State::Absent;
        let most = (first..end).take_while(is_absent).count();
        let buffer = if most > 0 { pool.run_buffer(core, before + most) } else { None }?;
        if pool.take_ahead(core, most, None) == Room::None {
            return None;
        }
        let (count, protected_queue) = install::claim_run(region, first, most, None, core);
        (count > 0).then_some(Run { region, pages: first..first + count, before, protected_queue, buffer, core })
    }

    /// Reads them, with what is before; how many pages there are of it all.
    fn read(&self) -> usize {
        let Run { region, pages, before, buffer, core, .. } = self;
        let (first, count) = (pages.start - before, pages.len() + before);
        let hits = &region.pool().counters_at(*core).page_cache_hits;
        // SAFETY: the buffer is this thread's, and has room for them.
        let read = || unsafe { region.store().read_pages(first, count, buffer.at, hits) };
        let filled = timed(region, count, *core, read, |read| *read == Ok(count * PAGE)).unwrap_or(0);
        let there = filled.div_ceil(PAGE);
        clear_tail(buffer.at, filled, there);
        there
    }

    /// Makes as many of them resident, and gives up the others; how many are.
    fn bring(self, there: usize) -> usize {
        let from = self.buffer.at.wrapping_add(self.before * PAGE);
        let mapped = install::install_claimed(self.region, self.pages, there, from, self.protected_queue);
        let used = self.region.hints().runs().used_of(mapped);
        let (counters, of_file) = (self.region.pool().counters_at(self.core), self.region.counters_at(self.core));
        for (pages, used_pages) in [(&counters.run_pages, &counters.run_used), (&of_file.run_pages, &of_file.run_used)]
        {
            pages.add(mapped);
            used_pages.add(used);
        }
        mapped
    }

    /// Reads them and the page that was missed, and makes all resident; what came of that one. `None`: they cannot be read together.
    fn load(self, claim: &Loading<PageRef<'_>>, writable: bool) -> Option<Outcome> {
        let there = self.read();
        let outcome = (there > 0).then(|| install(claim, self.buffer.at, writable));
        self.bring(if outcome == Some(Outcome::Resolved) { there - 1 } else { 0 });
        outcome
    }
}

/// Reads pages, and now and then takes the time, unless the page cache had them, or they are not all there.
#[inline]
fn timed<T>(
    region: &Region,
    pages: usize,
    core: usize,
    read: impl FnOnce() -> T,
    is_all: impl FnOnce(&T) -> bool,
) -> T {
    let counters = region.pool().counters_at(core);
    let hits = || counters.page_cache_hits.get();
    let before = region.hints().read_times().is_due(pages, counters.misses.get()).then(|| (Instant::now(), hits()));
    let read = read();
    // Another thread of this core may have had one meanwhile: one measurement less.
    if let Some((began, _)) = before.filter(|(_, before)| hits() == *before && is_all(&read)) {
        region.hints().read_times().note(pages, began);
    }
    read
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
