//! Stores to absent pages that do not wait for the page's read, in regions that want that. The read goes on behind.
//!
//! *With an initial value* (AR-MMAP: Imamura and Yoshida, "AR-MMAP: Write Performance Improvement of Memory-Mapped File", section
//! III): the page is filled with a line of 64 bytes that the program never stores, and is writable at once: Unread. What still
//! holds that line when the file's bytes are there is replaced by them.
//!
//! *Kept*: the store itself is decoded (`decode.rs`) and put into a slot (`slots.rs`); the page stays absent, so a load of it waits:
//! Kept. Stores that come before the read is done are put there too, a few; then the page's next one waits.
//!
//! Either way the merger (`merger.rs`) reads the page, puts both together, and makes the page Dirty. A page is announced here before
//! it can hold a store and is done once it is marked dirty: a flush that finds neither has nothing to wait for.

use crate::decode;
use crate::dirty::BLOCK_PAGES;
use crate::fault::{self, Outcome};
use crate::page::{Seen, State};
use crate::region::Region;
use crate::slots::Slots;
use crate::sync::{AtomicU32, AtomicU64, Ordering};
use crate::sys::memory::Zeroed;
use crate::sys::signal::Trap;
use crate::sys::{PAGE, futex};
use crate::writeback::Failure;
use std::io;
use std::ops::Range;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicI32};

/// Bytes of a line: the unit of stores under AR-MMAP's protocol, as of the processor's caches.
pub const LINE: usize = 64;

/// Bound of the regret over kept stores: a few hundred pages, whichever way it goes.
const MOST_REGRET: u32 = 128;

/// What a map wants of stores to absent pages.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Wish {
    /// That they complete on a page filled with this.
    pub initial: Option<[u8; LINE]>,
    /// That they are kept.
    pub keep: bool,
}

/// What a region that wants either has.
#[derive(Debug)]
pub struct Behind {
    initial: OnceLock<Initial>,
    keeps: AtomicBool,
    /// How much it has cost of late to keep stores: threads that then waited for the merger, less pages nobody waited for.
    regret: AtomicU32,
    /// Pages that the merger has not begun to read, a bit each.
    asked: Zeroed<AtomicU64>,
    /// For each block, its pages that are announced and not done.
    announced: Zeroed<AtomicU32>,
    /// Of the last read that failed.
    error: AtomicI32,
}

/// What absent pages are filled with.
#[derive(Debug)]
struct Initial {
    line: [u8; LINE],
    page: Zeroed<[u8; PAGE]>,
}

impl Behind {
    /// For a region of so many pages.
    pub fn new(pages: usize) -> io::Result<Self> {
        Ok(Behind {
            initial: OnceLock::new(),
            keeps: AtomicBool::new(false),
            regret: AtomicU32::new(0),
            asked: Zeroed::new(pages.div_ceil(64))?,
            announced: Zeroed::new(pages.div_ceil(BLOCK_PAGES))?,
            error: AtomicI32::new(0),
        })
    }

    /// Grants a wish; false: there is another initial value.
    pub fn grant(&self, wish: Wish) -> io::Result<bool> {
        if let Some(line) = wish.initial {
            let page = Zeroed::<[u8; PAGE]>::new(1)?;
            for at in (0..PAGE).step_by(LINE) {
                // SAFETY: a page of this function's.
                unsafe { page.as_mut_ptr().cast::<u8>().add(at).copy_from(line.as_ptr(), LINE) };
            }
            if self.initial.get_or_init(|| Initial { line, page }).line != line {
                return Ok(false);
            }
        }
        if wish.keep {
            decode::prepare();
        }
        // Release: a handler that sees it finds the tables.
        self.keeps.fetch_or(wish.keep, Ordering::Release);
        Ok(true)
    }

    /// What was granted.
    pub fn granted(&self) -> Wish {
        Wish { initial: self.initial().copied(), keep: self.keeps.load(Ordering::Relaxed) }
    }

    /// The initial value, where there is one.
    pub fn initial(&self) -> Option<&[u8; LINE]> {
        self.initial.get().map(|initial| &initial.line)
    }

    /// Takes the first page at or after `from` that is to be read.
    pub fn take_asked(&self, from: usize) -> Option<usize> {
        let mut block = from / BLOCK_PAGES;
        let mut at = from;
        while block < self.announced.len() {
            if self.announced[block].load(Ordering::Relaxed) > 0 {
                let end = ((block + 1) * BLOCK_PAGES / 64).min(self.asked.len());
                for word in at / 64..end {
                    let bits = self.asked[word].load(Ordering::Acquire) & u64::MAX << (at % 64);
                    if bits != 0 {
                        let page = word * 64 + bits.trailing_zeros() as usize;
                        self.asked[word].fetch_and(!(1 << (page % 64)), Ordering::AcqRel);
                        return Some(page);
                    }
                    at = (word + 1) * 64;
                }
            }
            block += 1;
            at = block * BLOCK_PAGES;
        }
        None
    }

    /// Whether a store to a page is to be kept: not while one thread in four comes back and waits, which costs more than to wait
    /// at once. Some pages are kept all the same, to learn when that changes.
    fn keeps(&self, page: usize) -> bool {
        // One in eight, in no order (Fibonacci hashing).
        let is_sample = page.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 61 == 0;
        self.keeps.load(Ordering::Acquire) && (self.regret.load(Ordering::Relaxed) < MOST_REGRET / 2 || is_sample)
    }

    /// Notes a thread that has to wait for a page with kept stores.
    pub fn note_regret(&self) {
        let more = |regret: u32| (regret < MOST_REGRET).then_some(regret + 4);
        let _ = self.regret.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more);
    }

    /// Notes a page whose kept stores are in memory.
    pub fn note_filled(&self) {
        let less = |regret: u32| regret.checked_sub(1);
        let _ = self.regret.fetch_update(Ordering::Relaxed, Ordering::Relaxed, less);
    }

    /// Announces a page that this thread has in Loading.
    fn announce(&self, page: usize) {
        self.announced[page / BLOCK_PAGES].fetch_add(1, Ordering::AcqRel);
    }

    /// Notes that a page is done: it is marked dirty, if it is there.
    pub fn note_done(&self, page: usize) {
        self.announced[page / BLOCK_PAGES].fetch_sub(1, Ordering::AcqRel);
    }

    fn ask(&self, page: usize) {
        self.asked[page / 64].fetch_or(1 << (page % 64), Ordering::AcqRel);
    }

    /// The error number of the last read that failed.
    pub fn error(&self) -> i32 {
        self.error.load(Ordering::Relaxed)
    }

    /// Notes one.
    pub fn note_error(&self, error: i32) {
        self.error.store(error, Ordering::Relaxed);
    }
}

/// Goes on without the read, for the thread of a store that trapped: it has the page in Loading and a credit for it. `None`: it has
/// to read. Called by fault handlers.
pub fn go_on(region: &Region, page: usize, core: usize, trap: Trap) -> Option<Outcome> {
    let behind = region.behind()?;
    let cache = region.cache();
    let merger = cache.merger()?;
    // Past the end there is nothing to store to, and the page that holds it has bytes that are no line's.
    let is_whole = region.store().write_end().is_ok_and(|end| (page + 1) * PAGE <= end as usize);
    if !is_whole {
        return None;
    }
    let word = region.word(page);
    let initial = behind.initial.get();
    if initial.is_none() && !behind.keeps(page) || !merger.take_place(cache) {
        return None;
    }
    let published = if let Some(initial) = initial {
        word.begin_writable_install();
        behind.announce(page);
        // SAFETY: an absent page of this region that the state Loading gives to this thread.
        let installed = unsafe {
            region.userfaultfd(page).copy_page(region.address_of(page), initial.page.as_mut_ptr().cast(), false)
        };
        if let Err(error) = installed {
            behind.note_done(page);
            merger.give_place();
            return Some(Outcome::Failed("UFFDIO_COPY", error));
        }
        word.publish_unread()
    } else {
        let slots = merger.slots();
        let Some(slot) = slots.take_for(region.slot(), page, trap) else {
            merger.give_place();
            return None;
        };
        cache.cores[core].0.counters.kept_stores.add(1);
        if slots.is_whole(slot) && install_whole(region, page, core, slots, slot) {
            merger.give_place();
            return Some(Outcome::Resolved);
        }
        behind.announce(page);
        word.keep(slot)
    };
    behind.ask(page);
    merger.call();
    if published.wake {
        futex::wake_all(word.futex());
    }
    cache.cores[core].0.counters.async_loads.add(1);
    Some(Outcome::Resolved)
}

/// Installs a page all of whose bytes were stored: there is nothing to read. False: the kernel takes none.
fn install_whole(region: &Region, page: usize, core: usize, slots: &Slots, slot: usize) -> bool {
    region.word(page).begin_writable_install();
    region.dirty().set(page);
    let bytes = slots.stores_of(slot);
    // SAFETY: an absent page of this region that the state Loading gives to this thread; the slot's is a page.
    let installed = unsafe { region.userfaultfd(page).copy_page(region.address_of(page), bytes, false) }.is_ok();
    if installed {
        slots.give_back(slot);
        fault::finish(region, page, core, true, false, false);
    }
    installed
}

/// Keeps one more store to a page that was seen as Kept; false: the thread has to wait. Called by fault handlers.
pub fn keep_another(region: &Region, page: usize, seen: Seen, trap: Trap) -> bool {
    let kept = || {
        let (slot, cache) = (seen.kept_in()?, region.cache());
        let slots = cache.merger()?.slots();
        let _held = slots.lock(slot);
        // Under the lock the slot stays the page's.
        let kept = region.word(page).look().kept_in() == Some(slot) && slots.put(slot, trap);
        cache.cores[cache.here()].0.counters.kept_stores.add(usize::from(kept));
        Some(kept)
    };
    trap.is_store && region.behind().is_some_and(|behind| behind.keeps.load(Ordering::Acquire)) && kept() == Some(true)
}

/// Lifts the protection of an Unread page that a store trapped on, seen so: the writer of its neighbours protects all that is between
/// them. `None`: the word has moved on. The merger waits meanwhile. Called by fault handlers.
pub fn let_store(region: &Region, page: usize, seen: Seen) -> Option<Outcome> {
    let word = region.word(page);
    if !word.begin_lift(seen) {
        return None;
    }
    // SAFETY: a resident page of this region, which UPGRADING keeps so.
    let lifted = unsafe { region.userfaultfd(page).write_protect(region.address_of(page), PAGE, false) };
    if word.finish_lift() {
        futex::wake_all(word.futex());
    }
    Some(lifted.map_or_else(|error| Outcome::Failed("UFFDIO_WRITEPROTECT", error), |()| Outcome::Resolved))
}

/// Waits until the pages of a range that were stored to without their read are read, and Dirty; or says which one cannot be, the
/// first if there are several. The caller holds no page and no lock of the engine's.
pub fn settle(region: &Region, pages: Range<usize>) -> Result<(), Failure> {
    let Some(behind) = region.behind() else { return Ok(()) };
    let mut settled = Ok(());
    for block in pages.start / BLOCK_PAGES..pages.end.div_ceil(BLOCK_PAGES).min(behind.announced.len()) {
        if behind.announced[block].load(Ordering::Acquire) == 0 {
            continue;
        }
        let within = pages.start.max(block * BLOCK_PAGES)..pages.end.min((block + 1) * BLOCK_PAGES);
        for page in within.start..within.end.min(region.span() / PAGE) {
            // One that fails lets the others be waited for all the same.
            settled = settled.and(await_read(region, page).map_err(|error| Failure::new(page, error)));
        }
    }
    settled
}

/// Waits until a page is neither Unread nor Kept, nor between that and Dirty; fails with the error number of its read.
pub fn await_read(region: &Region, page: usize) -> Result<(), i32> {
    let word = region.word(page);
    loop {
        let seen = word.look();
        if seen.has_failed() {
            return Err(region.behind().map_or(libc::EIO, Behind::error));
        }
        if !matches!(seen.state(), State::Unread | State::Kept) && !seen.is_upgrading() {
            return Ok(());
        }
        if let Some(expected) = word.announce_waiter(seen) {
            futex::wait(word.futex(), expected, None);
        }
    }
}

/// Whether a line holds the initial value in one of its words at least: the unit in which lines are loaded and stored in pieces.
#[inline]
pub fn holds_initial(initial: &[u8; LINE], line: &[u8]) -> bool {
    line.chunks(8).zip(initial.chunks(8)).any(|(word, initial)| word == initial)
}

/// Takes over, into the file's bytes of a page, the lines that a program has stored to: those that do not hold the initial value.
/// Returns how many of these hold part of it: an aligned word of 8 bytes.
///
/// # Safety
/// Both are pages; nobody stores to either meanwhile.
pub unsafe fn take_over(initial: &[u8; LINE], stored: *const u8, file: *mut u8) -> usize {
    let mut partial = 0;
    for at in (0..PAGE).step_by(LINE) {
        // SAFETY: within the pages.
        let line = unsafe { stored.add(at).cast::<[u8; LINE]>().read() };
        if line != *initial {
            // SAFETY: likewise.
            unsafe { file.add(at).cast::<[u8; LINE]>().write(line) };
            partial += usize::from(holds_initial(initial, &line));
        }
    }
    partial
}
