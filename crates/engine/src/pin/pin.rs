//! Pins, which keep pages in memory: the base of [`Pinned`](crate::Pinned) and of the copying methods.
//!
//! A pin is a count in the page's word. To pin a page that is in memory takes a compare-and-swap, to let it go a
//! subtraction, and neither takes a system call. The page's first pin takes a *pinnable frame*, and the last one to go gives it back.
//! There are fewer pinnable frames than pages ([`Pool::most_pins`]), so that faults always find pages that can go. Nobody waits for a
//! pin or for a pinnable frame: if there is none, that is an error.
//!
//! An absent page is brought in as by a fault (`fault/serve.rs`), by this thread and without a trap. Signals are blocked only
//! meanwhile. A failure is an error here and not a SIGBUS.
//!
//! A *write pin* also keeps the page writable. A page's first one comes under its block's write lock, so no writer is
//! between taking a dirty bit and protecting the page. From then on writers leave its protection alone (`writeback/flight.rs`).

use crate::error::{Error, Result};
use crate::fault::serve;
use crate::page::dirty::BLOCK_PAGES;
use crate::page::word::State;
use crate::pool::pool::Pool;
use crate::region::install::{self, Outcome};
use crate::region::region::Region;
use crate::region::registry;
use crate::sys::PAGE;
use crate::sys::signal::Blocked;
use std::io;
use std::ops::Range;

/// Pinnable frames that are taken at a time for the pages of a range, at most.
const AHEAD: usize = 64;
/// Pages that are brought in before pending signals are let in.
const BLOCKED_FOR: usize = 64;

/// Pinned pages of a region, until dropped.
#[derive(Debug)]
pub struct Hold<'a> {
    region: &'a Region,
    pages: Range<usize>,
    /// Twice the number of the core whose share the pinnable frames came from, plus one for write pins. It is one word
    /// without a `bool` beside it: the guard is handed from function to function, and a word that is written in parts and
    /// read as one costs more than an atomic operation.
    origin: usize,
}

impl<'a> Hold<'a> {
    /// Pins one page if it is in memory and nothing is in the way, which is the common case. Inlined, since a call and a
    /// result handed through memory would be half of the cost.
    #[inline(always)]
    pub fn of_resident(region: &'a Region, page: usize) -> Option<Self> {
        let pins = &region.pool().pins;
        let word = region.word(page);
        let core = region.pool().here();
        let seen = word.look();
        if !seen.can_be_pinned() || !seen.is_pinned() && !pins.take(core) {
            return None;
        }
        if word.try_pin(seen) {
            return Some(Hold { region, pages: page..page + 1, origin: core * 2 });
        }
        if !seen.is_pinned() {
            pins.give(core, 1);
        }
        None
    }

    /// Pins pages, all or none. With `writing` the pins are write pins.
    #[inline(never)]
    pub fn new(region: &'a Region, pages: Range<usize>, writing: bool) -> Result<Self> {
        let core = region.pool().here();
        if pages.len() > region.pool().most_pins() {
            return Err(over_budget(region, &pages));
        }
        let none = |writing| Hold { region, pages: pages.start..pages.start, origin: core * 2 + usize::from(writing) };
        // If this fails, the pages in either of them are let go.
        region.store().ask(pages.start, pages.len());
        let (mut plain, mut kept) = (none(false), none(true));
        while plain.pages.end < pages.end {
            // Write pins are made a block at a time: the block's lock is waited for with signals blocked.
            let end = pages.end.min((plain.pages.end / BLOCK_PAGES + 1) * BLOCK_PAGES);
            if !plain.extend(if writing { end } else { pages.end }, writing)? {
                return Err(over_budget(region, &pages));
            }
            if writing {
                let result = keep_writable(region, &mut plain.pages);
                kept.pages.end = plain.pages.start;
                result?;
            }
        }
        Ok(if writing { kept } else { plain })
    }

    /// Pins more pages, up to `end`. With `writing` they are brought in writable. False: there are not enough pinnable frames.
    fn extend(&mut self, end: usize, writing: bool) -> Result<bool> {
        let Hold { region, pages, origin } = self;
        let mut spare = Spare { pool: region.pool(), core: *origin / 2, count: 0 };
        let mut quiet = Quiet::default();
        while pages.end < end {
            if !pin_one(region, pages.end, writing, &mut spare, end - pages.end, &mut quiet)? {
                return Ok(false);
            }
            pages.end += 1;
        }
        Ok(true)
    }
}

impl Hold<'_> {
    /// Splits off the pages from `page` on.
    pub fn split_off(&mut self, page: usize) -> Self {
        let at = page.clamp(self.pages.start, self.pages.end);
        let after = Hold { region: self.region, pages: at..self.pages.end, origin: self.origin };
        self.pages.end = at;
        after
    }

    #[inline(never)]
    fn let_all_go(&mut self) {
        let freed = self.pages.clone().filter(|page| install::let_go(self.region, *page, self.origin % 2 == 1)).count();
        if freed > 0 {
            self.region.pool().pins.give(self.origin / 2, freed);
        }
    }
}

impl Drop for Hold<'_> {
    #[inline(always)]
    fn drop(&mut self) {
        if self.pages.len() != 1 {
            self.let_all_go();
        } else if install::let_go(self.region, self.pages.start, self.origin % 2 == 1) {
            self.region.pool().pins.give(self.origin / 2, 1);
        }
    }
}

/// Pinnable frames in this thread's hands. The rest goes back when this is dropped.
struct Spare<'a> {
    pool: &'a Pool,
    core: usize,
    count: usize,
}

impl Spare<'_> {
    /// Sees to it that there is at least one. If there is none, takes up to `wanted`. False: none can be had.
    fn has_one(&mut self, wanted: usize) -> bool {
        /// Other threads may be about to give some back.
        const TRIES: usize = 8;
        let cores = self.pool.cores.len();
        for _ in 0..TRIES {
            let mut shares = (0..cores).map(|step| (self.core + step) % cores);
            if self.count == 0 {
                self.count = shares
                    .find_map(|core| Some(self.pool.pins.take_some(core, wanted)).filter(|some| *some > 0))
                    .unwrap_or(0);
            }
            if self.count > 0 {
                return true;
            }
            std::thread::yield_now();
        }
        false
    }
}

impl Drop for Spare<'_> {
    fn drop(&mut self) {
        if self.count > 0 {
            self.pool.pins.give(self.core, self.count);
        }
    }
}

/// Blocks signals from the first page on that has to be brought in, and lets them in now and then.
#[derive(Default)]
struct Quiet {
    blocked: Option<Blocked>,
    pages: usize,
}

impl Quiet {
    fn begin(&mut self) {
        if self.pages == BLOCKED_FOR {
            // The old mask is restored before signals are blocked again.
            self.blocked = None;
            self.pages = 0;
        }
        self.blocked.get_or_insert_with(Blocked::all);
        self.pages += 1;
    }
}

/// Pins a page, and brings it in before if need be. False: there is no pinnable frame for it.
fn pin_one(
    region: &Region,
    page: usize,
    writing: bool,
    spare: &mut Spare<'_>,
    wanted: usize,
    quiet: &mut Quiet,
) -> Result<bool> {
    let word = region.word(page);
    loop {
        let seen = word.look();
        if !seen.is_pinned() && !spare.has_one(wanted.min(AHEAD)) {
            return Ok(false);
        }
        if seen.is_full() {
            return Err(too_many(region, page, 2047));
        }
        if !seen.can_be_pinned() {
            quiet.begin();
            bring_in(region, page, writing)?;
        } else if word.try_pin(seen) {
            spare.count -= usize::from(!seen.is_pinned());
            return Ok(true);
        }
    }
}

/// Makes pages of one block writable and Dirty, and their pins, which the caller has taken, write pins. Pages that are done are taken
/// off the front of `pages`.
fn keep_writable(region: &Region, pages: &mut Range<usize>) -> Result<()> {
    let pinned_for_writing = |page: usize| region.word(page).look().is_pinned_for_writing();
    let _blocked = Blocked::all();
    // While it is held no writer protects any of them, not even one whose last write pin goes at this moment.
    let _held = region.writes().write_lock(pages.start / BLOCK_PAGES).lock();
    for page in pages.clone() {
        // A system call that writes to a pinned page waits for the lock.
        if let Err(error) = region.take_space_of_claimed(page) {
            return outcome(region, page, Outcome::Failed(install::TAKING_SPACE, error));
        }
    }
    let mut at = pages.start;
    while let Some(start) = (at..pages.end).find(|page| !pinned_for_writing(*page)) {
        let end = (start..pages.end).find(|page| pinned_for_writing(*page)).unwrap_or(pages.end);
        // Dirty pages too: they may have been protected together with neighbours that were written.
        outcome(region, start, install::upgrade_run(region, start..end))?;
        at = end;
    }
    while pages.start < pages.end {
        if !region.word(pages.start).pin_for_writing() {
            return Err(too_many(region, pages.start, 1023));
        }
        pages.start += 1;
    }
    Ok(())
}

/// Runs `then` while a page is kept in memory. With `storing` the page was Dirty a moment ago, so stores hardly ever trap. The pin may exceed
/// the budget. `then` is told whether there was room for it. If not, it must not touch other memory that the same cache may map: threads
/// that all did so might wait for one another.
#[inline]
pub fn with_page<R>(region: &Region, page: usize, storing: bool, then: impl FnOnce(bool) -> R) -> Result<R> {
    let word = region.word(page);
    let pins = &region.pool().pins;
    let core = region.pool().here();
    loop {
        let seen = word.look();
        if seen.can_be_pinned() && (!storing || seen.state() == State::Dirty) {
            let room = seen.is_pinned() || pins.overdraw(core);
            if word.try_pin(seen) {
                let _hold = Hold { region, pages: page..page + 1, origin: core * 2 };
                return Ok(then(room));
            }
            if !seen.is_pinned() {
                pins.give(core, 1);
            }
        } else if seen.is_full() {
            return Err(too_many(region, page, 2047));
        } else {
            let _blocked = Blocked::all();
            bring_in(region, page, storing)?;
        }
    }
}

/// Brings a page in; it may be gone again when this returns.
pub fn bring(region: &Region, page: usize) -> Result<()> {
    let _blocked = Blocked::all();
    bring_in(region, page, false)
}

/// Brings a page into memory, writable if `storing`. It may be gone again when this returns. Signals are blocked.
#[inline(never)]
fn bring_in(region: &Region, page: usize, storing: bool) -> Result<()> {
    let served = if !registry::has(region, page) {
        // To serve it would leave the page absent, and the caller would try for ever.
        Outcome::Failed(Error::CHANGED_HANDS, libc::ESTALE)
    } else {
        serve::serve(region.page(page), storing)
    };
    outcome(region, page, served)
}

fn outcome(region: &Region, page: usize, outcome: Outcome) -> Result<()> {
    let (path, offset) = (|| region.store().path().to_owned(), (page * PAGE) as u64);
    match outcome {
        Outcome::Resolved => Ok(()),
        Outcome::PastEnd => {
            let size = region.store().length().unwrap_or_else(|_| region.store().size());
            Err(Error::PastEnd { path: path(), offset, size })
        }
        Outcome::Failed(operation, error) => {
            let origin = region.store().origin().and_then(|origin| origin.explain(error));
            Err(match origin {
                Some(reason) => Error::Fetch { path: path(), offset, errno: error, reason: reason.to_owned() },
                None => Error::Load { path: path(), offset, operation, source: io::Error::from_raw_os_error(error) },
            })
        }
    }
}

#[cold]
fn over_budget(region: &Region, pages: &Range<usize>) -> Error {
    let pool = region.pool();
    let bytes = |pages: usize| (pages * PAGE) as u64;
    Error::PinBudget {
        path: region.store().path().to_owned(),
        offset: bytes(pages.start),
        len: bytes(pages.len()),
        most: bytes(pool.most_pins()),
        pinned: bytes(pool.pinned_pages()),
    }
}

#[cold]
fn too_many(region: &Region, page: usize, most: u32) -> Error {
    Error::TooManyPins { path: region.store().path().to_owned(), offset: (page * PAGE) as u64, most }
}
