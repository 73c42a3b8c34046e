//! Stores to absent pages that do not wait for the page's read, in regions that want that. The read follows.
//!
//! *With an initial value* (AR-MMAP: Imamura and Yoshida, "AR-MMAP: Write Performance Improvement of Memory-Mapped File", section III): the page
//! is filled with a line of 64 bytes that the program never stores, and is writable at once: Unfilled. Lines that still hold it when the file's
//! bytes are there are replaced by those.
//!
//! *Buffered*: the store itself is decoded (`decode.rs`) and put into a slot (`store_buffers.rs`); the page stays absent, so a load of it waits:
//! Buffered. A few more stores that come before the read is done are put there, too; then the page's next one waits.
//!
//! Either way the fill thread (`deferred/fill_thread.rs`) reads the page, puts both together, and makes the page Dirty. A page is announced here
//! before it can hold a store, and is done once it is marked dirty: for a page that is neither, a flush has nothing to do.

use crate::deferred::fill_thread::FillThread;
use crate::deferred::{decode, fill_thread};
use crate::error::{Error, Result};
use crate::page::claims::{Loading, PageAccess};
use crate::page::dirty::BLOCK_PAGES;
use crate::page::word::{After, Seen, State};
use crate::pool::mailbox::Failure;
use crate::region::install::Outcome;
use crate::region::page_ref::PageRef;
use crate::region::region::Region;
use crate::sys::memory::Zeroed;
use crate::sys::signal::Trap;
use crate::sys::sync::{AtomicU32, AtomicU64, Ordering};
use crate::sys::{PAGE, descriptor_table};
use std::io;
use std::ops::Range;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicI32};

/// Bytes of a line: the unit of stores under AR-MMAP's protocol, as of the processor's caches.
pub const LINE: usize = 64;

/// Bound of [`DeferredStores::stalls`]: it follows the last few hundred pages.
const MOST_STALLS: u32 = 128;

/// How a map wants stores to absent pages to be served.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct DeferredMode {
    /// They complete on a page filled with this line.
    pub initial: Option<[u8; LINE]>,
    /// They are buffered.
    pub keep: bool,
}

/// The state of a region that wants either.
#[derive(Debug)]
pub struct DeferredStores {
    initial: OnceLock<Initial>,
    keeps: AtomicBool,
    /// The cost of buffered stores of late: 4 for each thread that had to wait for such a page, less 1 for each page that was filled.
    stalls: AtomicU32,
    /// Pages that the fill thread has not begun to read, a bit each.
    asked: Zeroed<AtomicU64>,
    /// For each block, the number of its pages that are announced and not done.
    announced: Zeroed<AtomicU32>,
    /// The error number of the last read that failed.
    error: AtomicI32,
}

/// The line that absent pages are filled with, and a page of it.
#[derive(Debug)]
struct Initial {
    line: [u8; LINE],
    page: Zeroed<[u8; PAGE]>,
}

impl DeferredStores {
    /// For a region of so many pages.
    pub fn new(pages: usize) -> io::Result<Self> {
        Ok(DeferredStores {
            initial: OnceLock::new(),
            keeps: AtomicBool::new(false),
            stalls: AtomicU32::new(0),
            asked: Zeroed::new(pages.div_ceil(64))?,
            announced: Zeroed::new(pages.div_ceil(BLOCK_PAGES))?,
            error: AtomicI32::new(0),
        })
    }

    /// Grants a wish; false: there is another initial value.
    pub fn grant(&self, wish: DeferredMode) -> io::Result<bool> {
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
        // Release: a handler that sees `keeps` finds the decoder's tables.
        self.keeps.fetch_or(wish.keep, Ordering::Release);
        Ok(true)
    }

    /// The wish that was granted.
    pub fn granted(&self) -> DeferredMode {
        DeferredMode { initial: self.initial().copied(), keep: self.keeps.load(Ordering::Relaxed) }
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

    /// Whether a store to a page is to be buffered: not while more than one thread waits for every four pages, which costs more than to wait at
    /// once. Some pages are buffered all the same, to learn when that changes.
    fn buffers(&self, page: usize) -> bool {
        // One in eight, in no order (Fibonacci hashing).
        let is_sample = page.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 61 == 0;
        self.keeps.load(Ordering::Acquire) && (self.stalls.load(Ordering::Relaxed) < MOST_STALLS / 2 || is_sample)
    }

    /// Notes a thread that has to wait for a page with buffered stores.
    pub fn note_stall(&self) {
        let more = |stalls: u32| (stalls < MOST_STALLS).then_some(stalls + 4);
        let _ = self.stalls.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more);
    }

    /// Notes a page whose buffered stores are in memory.
    pub fn note_filled(&self) {
        let less = |stalls: u32| stalls.checked_sub(1);
        let _ = self.stalls.fetch_update(Ordering::Relaxed, Ordering::Relaxed, less);
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

    /// Notes the error number of a read.
    pub fn note_error(&self, error: i32) {
        self.error.store(error, Ordering::Relaxed);
    }
}

/// The state of a region in which stores to absent pages need not wait.
#[inline]
pub fn of(region: &Region) -> Option<&DeferredStores> {
    region.deferred().get()
}

/// Lets stores to absent pages of a region go on without the read, as wished, if that is possible here.
pub fn grant(region: &Region, wish: DeferredMode) -> Result<()> {
    if wish == DeferredMode::default() {
        return Ok(());
    }
    if !descriptor_table::is_engines() {
        // The fill thread would have this thread's table.
        return Err(Error::in_another_table(region.store().path()));
    }
    fill_thread::start(region.pool());
    if of(region).is_none() {
        let behind = DeferredStores::new(region.span() / PAGE)
            .map_err(|source| region.io_error("map memory for its page words", source))?;
        region.deferred().set_once(|| Some(behind));
    }
    match of(region).map_or(Ok(true), |behind| behind.grant(wish)) {
        Ok(true) => Ok(()),
        Ok(false) => Err(Error::InitialValue { path: region.store().path().to_owned() }),
        Err(source) => Err(region.io_error("map memory for its initial value", source)),
    }
}

/// The fate of a store to an absent page.
pub enum Deferred<'a> {
    /// It is in memory or in a buffer; the thread goes on.
    Done,
    /// The page has to be read first.
    Read(Loading<PageRef<'a>>),
    /// The kernel refuses.
    Failed(Loading<PageRef<'a>>, Outcome),
}

/// Completes a store that trapped without the read, if that is possible. The thread has the page in Loading and a free frame for it. Called by
/// fault handlers.
pub fn defer(claim: Loading<PageRef<'_>>, core: usize, trap: Trap) -> Deferred<'_> {
    let page = claim.page();
    let (region, number) = (page.region(), page.number());
    let pool = region.pool();
    let (Some(behind), Some(filler)) = (of(region), FillThread::of(pool)) else { return Deferred::Read(claim) };
    // Behind the file's end there is nothing to store to, and the page that holds the end may have part of a line.
    let is_whole = region.store().write_end().is_ok_and(|end| (number + 1) * PAGE <= end as usize);
    let initial = behind.initial.get();
    if !is_whole || initial.is_none() && !behind.buffers(number) || !filler.take_place(pool) {
        return Deferred::Read(claim);
    }
    let after = if let Some(initial) = initial {
        page.word().begin_writable_install();
        behind.announce(number);
        // SAFETY: the initial value is a page.
        if let Err(error) = unsafe { page.copy(initial.page.as_mut_ptr().cast(), false) } {
            behind.note_done(number);
            filler.give_place();
            return Deferred::Failed(claim, Outcome::Failed("UFFDIO_COPY", error));
        }
        page.word().publish_unfilled()
    } else {
        let slots = filler.buffers();
        let Some(slot) = slots.take_for(region.id(), number, trap) else {
            filler.give_place();
            return Deferred::Read(claim);
        };
        pool.counters_at(core).kept_stores.add(1);
        // A page all of whose bytes were stored: there is nothing to read.
        // SAFETY: the buffer's bytes are a page.
        if slots.is_whole(slot) && unsafe { claim.install(slots.stores_of(slot), true) }.is_ok() {
            slots.give_back(slot);
            claim.finish(true, false, false, core);
            filler.give_place();
            return Deferred::Done;
        }
        behind.announce(number);
        page.word().buffer(slot)
    };
    // From here on the page is the fill thread's.
    claim.keep();
    behind.ask(number);
    filler.call();
    page.settle(after, core);
    pool.counters_at(core).async_loads.add(1);
    Deferred::Done
}

/// Buffers one more store to a page that was seen as Buffered; false: the thread has to wait. Called by fault handlers.
pub fn buffer_another(page: PageRef<'_>, seen: Seen, trap: Trap) -> bool {
    let region = page.region();
    let buffered = || {
        let (slot, pool) = (seen.buffered_in()?, region.pool());
        let slots = FillThread::of(pool)?.buffers();
        let _held = slots.lock(slot);
        // Under the lock the slot stays the page's.
        let buffered = page.look().buffered_in() == Some(slot) && slots.put(slot, trap);
        pool.counters_at(pool.here()).kept_stores.add(usize::from(buffered));
        Some(buffered)
    };
    trap.is_store && of(region).is_some_and(|behind| behind.keeps.load(Ordering::Acquire)) && buffered() == Some(true)
}

/// Lifts the protection of an Unfilled page (`seen`) that a store trapped on: a writer of its neighbours protects all pages between them.
/// `None`: the word has changed. The fill thread waits meanwhile. Called by fault handlers.
pub fn let_store(page: PageRef<'_>, seen: Seen) -> Option<Outcome> {
    if !page.word().begin_lift(seen) {
        return None;
    }
    // UPGRADING keeps it resident.
    let lifted = page.protect(false);
    page.settle(After { wake: page.word().finish_lift(), ..After::default() }, 0);
    Some(lifted.map_or_else(|error| Outcome::Failed("UFFDIO_WRITEPROTECT", error), |()| Outcome::Resolved))
}

/// Waits until the pages of a range that were stored to without their read are read, and Dirty. Fails with the first page that cannot be read.
/// The caller holds no page and no lock of the engine's.
pub fn settle(region: &Region, pages: Range<usize>) -> std::result::Result<(), Failure> {
    let Some(behind) = of(region) else { return Ok(()) };
    let mut settled = Ok(());
    for block in pages.start / BLOCK_PAGES..pages.end.div_ceil(BLOCK_PAGES).min(behind.announced.len()) {
        if behind.announced[block].load(Ordering::Acquire) == 0 {
            continue;
        }
        let within = pages.start.max(block * BLOCK_PAGES)..pages.end.min((block + 1) * BLOCK_PAGES);
        for page in within.start..within.end.min(region.span() / PAGE) {
            // If one fails, the others are waited for all the same.
            settled = settled.and(await_read(region.page(page)).map_err(|error| Failure::new(page, error)));
        }
    }
    settled
}

/// Waits until a page is neither Unfilled nor Buffered, nor between that and Dirty; fails with the error number of its read.
pub fn await_read(page: PageRef<'_>) -> std::result::Result<(), i32> {
    loop {
        let seen = page.look();
        if seen.has_failed() {
            return Err(of(page.region()).map_or(libc::EIO, DeferredStores::error));
        }
        if !matches!(seen.state(), State::Unfilled | State::Buffered) && !seen.is_upgrading() {
            return Ok(());
        }
        page.wait(seen);
    }
}

/// Whether at least one word of a line holds the initial value. Words are the unit in which lines are loaded and stored in pieces.
#[inline]
pub fn holds_initial(initial: &[u8; LINE], line: &[u8]) -> bool {
    line.chunks(8).zip(initial.chunks(8)).any(|(word, initial)| word == initial)
}

/// Copies into `file`, the file's bytes of a page, the lines of `stored` that do not hold the initial value: those that the program has stored
/// to. Returns how many of these hold part of the initial value, an aligned word of 8 bytes.
///
/// # Safety
/// Both are pages; nobody stores to either meanwhile.
pub unsafe fn take_over(initial: &[u8; LINE], stored: *const u8, file: *mut u8) -> usize {
    let mut partial = 0;
    for at in (0..PAGE).step_by(LINE) {
        // SAFETY: within the pages.
        let line = unsafe { stored.add(at).cast::<[u8; LINE]>().read() };
        if line != *initial {
            // SAFETY: within the page, which nobody else writes.
            unsafe { file.add(at).cast::<[u8; LINE]>().write(line) };
            partial += usize::from(holds_initial(initial, &line));
        }
    }
    partial
}
