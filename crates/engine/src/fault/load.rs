//! Bringing in a page that this thread claimed: one free frame, one read, one installation.
//!
//! [`load`] looks at the miss, gets ready, makes a plan, and carries it out.

use crate::deferred::protocol::{self, Deferred};
use crate::fault::zero_ahead::fill_ahead;
use crate::page::claims::Loading;
use crate::page::entry::FRAME_PAGES;
use crate::page::word::Ghost;
use crate::pool::reader::LARGE_PIECE_PAGES;
use crate::readahead::run::{Run, read_rest, timed};
use crate::readahead::{detect, prefetch};
use crate::region::install::{self, Outcome, install_missed};
use crate::region::page_ref::PageRef;
use crate::region::{prediction, registry, userfaultfds};
use crate::store::ReadEnd;
use crate::sys::{PAGE, signal};

/// Brings in a page that this thread claimed.
pub fn load(claim: Loading<PageRef<'_>>, ghost: Option<Ghost>, is_store: bool, trap: Option<signal::Trap>) -> Outcome {
    let page = claim.page();
    let region = page.region();
    if !registry::has(region, page.number()) {
        // The trap was taken before the conversion, or before other memory was mapped there: the repeated access finds that.
        claim.abort();
        return Outcome::Resolved;
    }
    let core = region.pool().here();
    let miss = Miss { page, is_store, is_hole: region.take_hole(page.number()), core };
    // First, so that reading ahead begins while this page is read.
    let together = miss.note();
    let claim = match miss.get_ready(claim, trap) {
        Ok(claim) => claim,
        Err(over) => return over,
    };
    let plan = miss.plan(together);
    let outcome = miss.carry_out(&plan, &claim);
    if outcome == Outcome::Resolved {
        miss.finish(&plan, claim, ghost);
    } else {
        region.pool().give_free_frames(core, 1);
        claim.abort();
    }
    outcome
}

/// A miss of a page that this thread claimed.
#[derive(Clone, Copy)]
struct Miss<'a> {
    page: PageRef<'a>,
    is_store: bool,
    /// The page was in a hole of the file when the file was last asked.
    is_hole: bool,
    core: usize,
}

/// How a missed page comes into memory.
struct Plan {
    /// Set if the page is in a hole, and so is zeros. The number of whole pages that the file has.
    zeros_until: Option<usize>,
    /// It is mapped without write protection, since a store waits for it or is expected.
    writable: bool,
    /// It is mapped protected, so that a first store to it shows (`region/prediction.rs`).
    is_sample: bool,
    /// The page behind the last one that is read with it.
    end: usize,
}

impl<'a> Miss<'a> {
    /// Tells readahead of the miss. Returns how many pages are to be read together.
    #[inline]
    fn note(&self) -> usize {
        // Where a hole is being filled there is nothing to read.
        if self.is_hole && self.is_store {
            return 1;
        }
        // The next miss of a walk may be served by any service thread, so all of them use one core's miss history.
        let history = if userfaultfds::by_service() { 0 } else { self.core };
        detect::note_miss(history, self.page, self.is_store)
    }

    /// Fetches the page's bytes, if the file is filled from elsewhere, and takes a free frame. `Err`: the miss is over. Either this has failed,
    /// or the store is deferred.
    #[inline]
    fn get_ready(
        &self,
        claim: Loading<PageRef<'a>>,
        trap: Option<signal::Trap>,
    ) -> Result<Loading<PageRef<'a>>, Outcome> {
        let (region, number, core) = (self.page.region(), self.page.number(), self.core);
        let pool = region.pool();
        let fetched = region.store().bring(number, 1, None).map_err(|error| ("fetching it", error));
        let has_room = fetched.and_then(|()| {
            pool.take_free_frame(core).map_err(|error| ("writing back dirty pages to make room", error))
        });
        if let Err((doing, error)) = has_room {
            claim.abort();
            return Err(Outcome::Failed(doing, error));
        }
        let (true, false, Some(trap)) = (self.is_store, self.is_hole, trap) else { return Ok(claim) };
        if !region.has_space(number) {
            return Ok(claim);
        }
        match protocol::defer(claim, core, trap) {
            Deferred::Read(claim) => Ok(claim),
            Deferred::Done => {
                pool.counters_at(core).misses.add(1);
                region.counters_at(core).misses.add(1);
                Err(Outcome::Resolved)
            }
            Deferred::Failed(claim, outcome) => {
                pool.give_free_frames(core, 1);
                claim.abort();
                Err(outcome)
            }
        }
    }

    /// Decides which pages are read, and how the page is mapped.
    #[inline]
    fn plan(&self, together: usize) -> Plan {
        let (region, number) = (self.page.region(), self.page.number());
        // The file's end is asked for now: a page that has been cut off is past the end, and not zeros.
        let whole = self.is_hole.then(|| region.store().write_end().map_or(0, |end| end as usize / PAGE));
        let zeros_until = whole.filter(|end| number < *end);
        let is_read = !self.is_store && zeros_until.is_none();
        let is_sample = is_read && region.is_writable() && prediction::is_sample(number);
        // A page is mapped protected, so that its first store traps and makes it Dirty, unless a store is expected. A load of a page in a hole
        // never makes it writable, so the hole stays.
        let expects_store = self.is_store || is_read && !is_sample && region.predicts_store(number);
        // If the file has changed since the page was seen, there may be no space for it any more: then the store traps once more.
        let writable = expects_store && region.has_space(number);
        let is_alone = together == 1 || zeros_until.is_some();
        let end = if is_alone { number + 1 } else { self.end_of_run(number + together) };
        Plan { zeros_until, writable, is_sample, end }
    }

    /// The end of the pages that this thread reads, the missed one included. Where reads take long, one request's worth; it asks a reader for the
    /// others, which are read at the same time.
    fn end_of_run(&self, end: usize) -> usize {
        let (region, number) = (self.page.region(), self.page.number());
        // Pages that would have to be fetched are left to the threads that touch them.
        let is_far = |page: &usize| !region.store().is_near(*page, 1);
        let far = if region.store().origin().is_some() { (number + 1..end).find(is_far) } else { None };
        let end = far.unwrap_or(end);
        let own = number + LARGE_PIECE_PAGES.min(FRAME_PAGES - number % FRAME_PAGES);
        let are_asked = end > own && region.hints().read_times().are_long() && prefetch::ask(region, own..end);
        if are_asked { own } else { end }
    }

    /// Reads the page and those that the plan reads with it, and makes them resident.
    #[inline]
    fn carry_out(&self, plan: &Plan, claim: &Loading<PageRef<'_>>) -> Outcome {
        let (region, next, core) = (self.page.region(), self.page.number() + 1, self.core);
        if plan.zeros_until.is_some() {
            return install_missed(claim, region.pool().zeros(), plan.writable);
        }
        let run = if plan.end > next { Run::claim(region, next..plan.end, 1, core) } else { None };
        let (outcome, behind) = match run.and_then(|run| run.load(claim, plan.writable)) {
            Some(loaded) => loaded,
            None => (self.read_alone(claim, plan.writable), next),
        };
        if outcome == Outcome::Resolved && !plan.writable && behind < plan.end {
            if region.hints().read_times().are_long() {
                prefetch::ask(region, behind..plan.end);
            } else if behind > next {
                read_rest(region, behind..plan.end, core);
            }
        }
        outcome
    }

    /// Reads the page alone, and makes it resident.
    #[inline]
    fn read_alone(&self, claim: &Loading<PageRef<'_>>, writable: bool) -> Outcome {
        let (region, core) = (self.page.region(), self.core);
        let pool = region.pool();
        let buffer = pool.buffer(core);
        let hits = &pool.counters_at(core).page_cache_hits;
        // SAFETY: the buffer is this thread's page.
        let read = || unsafe { region.store().read_page(self.page.number(), buffer.at, hits) };
        match timed(region, 1, core, read, |end| matches!(end, ReadEnd::Filled)) {
            ReadEnd::PastEnd => Outcome::PastEnd,
            ReadEnd::Failed(error) => Outcome::Failed("reading it", error),
            ReadEnd::Filled => install_missed(claim, buffer.at, writable),
        }
    }

    /// Publishes the page, which is resident, and counts the miss.
    #[inline]
    fn finish(&self, plan: &Plan, claim: Loading<PageRef<'_>>, ghost: Option<Ghost>) {
        let (region, core) = (self.page.region(), self.core);
        let pool = region.pool();
        let (counters, of_file) = (pool.counters_at(core), region.counters_at(core));
        counters.misses.add(1);
        of_file.misses.add(1);
        let protected = pool.note_missed(core, ghost);
        of_file.ghost_hits.add(usize::from(ghost.is_some_and(|ghost| pool.ghosts.is_young(ghost))));
        claim.finish(plan.writable, plan.is_sample, protected, core);
        if plan.is_sample {
            install::note_sample(region, self.page.number(), core);
        }
        if plan.writable && !self.is_store {
            counters.guessed_stores.add(1);
        }
        if let Some(end) = plan.zeros_until {
            counters.born_zero.add(1);
            if self.is_store {
                fill_ahead(self.page, end, core);
            }
        }
        pool.waiting().wake_waiters();
    }
}
