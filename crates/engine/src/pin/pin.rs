//! Pages kept in memory: what [`Pinned`](crate::Pinned) and the copying methods are made of.
//!
//! A pin is a count in the page's word, so a page that is there costs a compare-and-swap to pin and a subtraction to let go,
//! without a system call. The page's first pin takes a *pinnable frame*, its last one gives it back; there are fewer of
//! them than pages ([`Inner::most_pins`]), so that faults always find pages that can go. Nobody waits for a pin or for
//! a pin free frame: where there is none, that is an error.
//!
//! An absent page is brought in as a fault would (`fault/serve.rs`), by this thread and without a trap; only then are
//! signals blocked. What may go wrong there is an error here and not a SIGBUS.
//!
//! A *write pin* keeps the page writable, too. A page's first one comes under its block's write lock, where no writer is
//! between taking a dirty bit and protecting the page; from then on writers leave its protection alone (`writeback/flight.rs`).

use crate::error::{Error, Result};
use crate::fault::serve;
use crate::page::dirty::BLOCK_PAGES;
use crate::page::word::State;
use crate::pool::pool::Pool;
use crate::region::install::{self, Outcome};
use crate::region::region::Region;
use crate::sys::PAGE;
use crate::sys::signal::Blocked;
use std::io;
use std::ops::Range;

/// Pinnable frames taken ahead of the pages of a range.
const AHEAD: usize = 64;
/// Pages brought in before pending signals get a chance.
const BLOCKED_FOR: usize = 64;

/// Pinned pages of a region, until dropped.
#[derive(Debug)]
pub struct Hold<'a> {
    region: &'a Region,
    pages: Range<usize>,
    /// Whose share the pinnable frames came from, times two; odd for write pins. In one word, and no `bool`: the guard
    /// is handed from function to function, and a word that is written in parts and read as one costs more than an
    /// atomic operation.
    origin: usize,
}

impl<'a> Hold<'a> {
    /// Pins one page, if it is there and nothing is in the way: all that a pin mostly is. Part of the caller's code, since
    /// calls and results handed through memory would be half of what it costs.
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

    /// Pins pages, or with `writing` write-pins them, all or none.
    #[inline(never)]
    pub fn new(region: &'a Region, pages: Range<usize>, writing: bool) -> Result<Self> {
        let core = region.pool().here();
        if pages.len() > region.pool().most_pins() {
            return Err(over_budget(region, &pages));
        }
        let none = |writing| Hold { region, pages: pages.start..pages.start, origin: core * 2 + usize::from(writing) };
        // What is left in either of them when it fails is let go.
        region.store().ask(pages.start, pages.len());
        let (mut plain, mut kept) = (none(false), none(true));
        while plain.pages.end < pages.end {
            // A block at a time: its lock is waited for with signals blocked.
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

    /// Pins more pages, up to `end`, and for those to be pinned for writing, brings them in so; false: there are no pin
    /// free frames for all.
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
    /// Cuts off what lies from a page on.
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

/// Pinnable frames in this thread's hands. Those left when it is dropped go back.
struct Spare<'a> {
    pool: &'a Pool,
    core: usize,
    count: usize,
}

impl Spare<'_> {
    /// Sees to it that there is one, and if it must look for any, for up to `wanted`.
    fn has_one(&mut self, wanted: usize) -> bool {
        /// Others may have some in their hands that they are about to give back.
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

/// Signals blocked from the first page that has to be brought in, and let in now and then.
#[derive(Default)]
struct Quiet {
    blocked: Option<Blocked>,
    pages: usize,
}

impl Quiet {
    fn begin(&mut self) {
        if self.pages == BLOCKED_FOR {
            // In this order: the old mask first.
            self.blocked = None;
            self.pages = 0;
        }
        self.blocked.get_or_insert_with(Blocked::all);
        self.pages += 1;
    }
}

/// Pins a page, bringing it in if need be; false: there is no pinnable frame for it.
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
            return Err(too_many(region, page, 4095));
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

/// Makes pages of one block, which the caller has pinned, writable and Dirty, and their pins write pins. Those for which that
/// is done are taken off the front of `pages`.
fn keep_writable(region: &Region, pages: &mut Range<usize>) -> Result<()> {
    let pinned_for_writing = |page: usize| region.word(page).look().is_pinned_for_writing();
    let _blocked = Blocked::all();
    // From here on no writer protects any, also not one whose last write pin goes at this moment.
    let _held = region.writes().write_lock(pages.start / BLOCK_PAGES).lock();
    for page in pages.clone() {
        if let Err(error) = region.take_space(page) {
            return outcome(region, page, Outcome::Failed(install::TAKING_SPACE, error));
        }
    }
    let mut at = pages.start;
    while let Some(start) = (at..pages.end).find(|page| !pinned_for_writing(*page)) {
        let end = (start..pages.end).find(|page| pinned_for_writing(*page)).unwrap_or(pages.end);
        // Also those that are Dirty: a writer of their neighbours may have protected them.
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

/// Runs `then` while a page is kept in memory; with `storing`, a page that was Dirty a moment ago, so that stores hardly ever
/// trap. The pin is not counted against the budget: `then` is told whether there was room for it, and if not, must not
/// touch other memory that may be mapped by the same cache, for threads that all did might wait for one another.
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
            return Err(too_many(region, page, 4095));
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

/// Brings a page into memory, for a store writable; it may be gone again when this returns. Signals are blocked.
#[inline(never)]
fn bring_in(region: &Region, page: usize, storing: bool) -> Result<()> {
    let served = if region.is_converted() {
        // Served, it would be absent again and again.
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
