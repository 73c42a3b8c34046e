//! The life of a region: made, registered and published; opened to stores; dissolved. And the start of the engine's
//! threads.

use crate::counters::per_map::Ended;
use crate::deferred::fill_thread;
use crate::error::{Error, Result};
use crate::evict::{batch, follow};
use crate::fault::service;
use crate::files::closing;
use crate::live;
use crate::page::entry::{Entry, FRAME_PAGES};
use crate::page::word::{Seen, State};
use crate::pool::pool::Pool;
use crate::readahead::readers;
use crate::region::address::Place;
use crate::region::region::Region;
use crate::region::userfaultfds::Userfaultfds;
use crate::region::{registry, seats, userfaultfds};
use crate::store::Store;
use crate::sys::signal::Blocked;
use crate::sys::{PAGE, memory};
use crate::writeback::threads;
use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

/// Makes a region over a file, able to hold `need` bytes of it, and serves its faults from now on. `scratch`: see `region/saved.rs`. Its
/// addresses are open to loads; with `by_address` they are closed, and each map opens its own.
pub fn open(
    pool: Arc<Pool>,
    store: Arc<dyn Store>,
    need: usize,
    place: Place,
    scratch: bool,
    by_address: bool,
) -> Result<Arc<Region>> {
    let fail = |source| {
        let operation = "open userfaultfds to serve its page faults";
        Error::Io { path: store.path().to_owned(), operation, source }
    };
    let opened = Userfaultfds::get().map_err(fail)?;
    if userfaultfds::by_service() {
        service::start(&opened.regions).map_err(fail)?;
    }
    let region = Arc::new(Region::new(pool, store, need, place, scratch, by_address, opened)?);
    if let Err(error) = register(&region) {
        registry::cancel(region.id());
        for part in region.address().own_addresses() {
            // SAFETY: nobody knows the region yet.
            unsafe { memory::release(part.start as *mut u8, part.len()) };
        }
        return Err(region.io_error("register it with userfaultfd", error));
    }
    registry::publish(&region);
    start_with_first(region.pool(), opened);
    Ok(region)
}

/// Starts the threads that a pool has from its first map on, once.
fn start_with_first(pool: &Arc<Pool>, opened: &'static Userfaultfds) {
    pool.start_reads(|| readers::start(Arc::downgrade(pool), opened.staging()));
    if pool.follows.load(Ordering::Acquire) {
        pool.follow(|| follow::start(Arc::downgrade(pool)));
    }
    live::note(pool);
}

fn register(region: &Region) -> io::Result<()> {
    let address = region.address();
    for part in address.own_parts() {
        address.serve_faults(part)?;
    }
    // Before the first frame may come.
    region.frames().allow(address.is_aligned(FRAME_PAGES * PAGE));
    if region.is_by_address() {
        return Ok(());
    }
    for part in address.own_parts() {
        // SAFETY: the range is this region's own, not handed out yet.
        unsafe { open_to_loads(region, address.start().wrapping_add(part.start), part.len())? };
    }
    Ok(())
}

/// Starts the background writers of a pool, once.
fn start_writers(pool: &Arc<Pool>) {
    pool.start_writes(|| threads::start(Arc::downgrade(pool), pool.dirty_expire, closing::close_abandoned));
}

/// Ends the threads of a pool, for good: no file is mapped any more, and none will be.
pub fn end_threads(pool: &Pool) {
    pool.end_threads();
    fill_thread::stop(pool);
}

/// Opens addresses of a region that nobody stores to for loads. The mapping is writable all the same, for the kernel moves pages between
/// writable mappings only; all pages are write-protected, and a store that traps is refused. If the kernel refuses so much writable memory, the
/// mapping is read-only and pages are copied.
///
/// # Safety
/// They are the region's own.
pub unsafe fn open_to_loads(region: &Region, start: *mut u8, len: usize) -> io::Result<()> {
    // SAFETY: the caller's contract.
    unsafe {
        memory::protect(start, len, true).or_else(|_| {
            batch::forbid_frames(region);
            memory::protect(start, len, false)
        })
    }
}

/// Opens all of a region's addresses, for a map that was not made by address.
pub fn open_addresses(region: &Region) -> Result<()> {
    if !region.leave_by_address() {
        return Ok(());
    }
    for part in region.address().own_parts() {
        let start = region.address().start().wrapping_add(part.start);
        // SAFETY: the region's own.
        let opened = unsafe {
            if region.is_writable() {
                memory::protect(start, part.len(), true)
            } else {
                open_to_loads(region, start, part.len())
            }
        };
        opened.map_err(|source| region.io_error("open its map", source))?;
    }
    Ok(())
}

/// Lets stores through to the fault path, and pages to the file, through a descriptor that may write. With
/// `one_writer`, no other process may do so meanwhile.
pub fn allow_writing(region: &Region, from: &std::fs::File, one_writer: bool) -> Result<()> {
    let _allowing = region.lock_growing();
    region.store().allow_writing(from)?;
    if one_writer {
        region.store().lock()?;
    }
    if !region.is_writable() {
        allow_stores(region)?;
    }
    Ok(())
}

/// Lets stores through to the fault path. The file is open for writing already.
pub fn allow_stores(region: &Region) -> Result<()> {
    // A frame is writable for a moment when it comes in, and leaves memory as a whole: a region that is stored to has none.
    batch::forbid_frames(region);
    // So far the region refused stores to its maps by address. From here on their own protection does: they become read-only, until mprotect(2)
    // or a new map opens them.
    let (parts, is_open) = if region.is_by_address() {
        (region.extents().all().into_iter().map(|pages| pages.start * PAGE..pages.end * PAGE).collect(), false)
    } else {
        (region.address().own_parts(), true)
    };
    for part in parts {
        // SAFETY: pages resident so far were installed write-protected, so a store to them traps.
        unsafe { memory::protect(region.address().start().wrapping_add(part.start), part.len(), is_open) }
            .map_err(|source| region.io_error("make its map writable", source))?;
    }
    region.set_writable();
    start_writers(region.pool());
    Ok(())
}

/// Takes the pages off the count of dirty ones that are dirty although all was saved, and returns how many they are: reads that ended since
/// then mapped them writable, for a store that was expected and can come no more. The region is withdrawn.
fn discard_unstored(region: &Region) -> usize {
    let mut unstored = 0;
    let dirty = region.dirty();
    for block in (0..dirty.blocks()).filter(|block| dirty.is_marked(*block)) {
        dirty.take(block, 0..region.span() / PAGE, usize::MAX, |page| {
            unstored += usize::from(region.word(page).look().state() == State::Dirty);
        });
    }
    region.pool().discount_dirty(region.pool().here(), unstored);
    unstored
}

/// How often visitors of a region that has ended are looked for, 50 µs apart. A visitor that is still there then may never leave
/// (`region/in_flight.rs`): the region's values stay for it.
const LOOKS: usize = 1000;

/// Ends a region that no map refers to and that is saved. Its frames are free again.
pub fn dissolve(region: &Arc<Region>) {
    // Before the locks: a thread that serves a fault may be waiting for room.
    seats::await_leaving(region);
    region.in_flight().drain();
    let mut ended = region.pool().ended.lock();
    let free_frames = {
        // An evictor pops entries before it enters their region. Entries of this region in its hands would be in no queue when they are counted
        // below, and their frames would be lost. So every evictor is kept out.
        let _blocked = Blocked::all();
        let _evicting: Vec<_> = region.pool().cores.iter().map(|core| core.0.evicting.lock()).collect();
        let is_its = |id| id == region.id();
        registry::withdraw(region, || {
            region.pool().ahead().is_some_and(|ahead| ahead.take_notice(region.pool(), is_its))
        });
        let idle = region.pool().ahead().map_or(0, |ahead| {
            ahead.drop_region(region);
            ahead.reclaim_idle()
        });
        for part in region.address().own_addresses() {
            // SAFETY: no map refers to the region, and no thread is in it any more.
            unsafe { memory::release(part.start as *mut u8, part.len()) };
        }
        let unstored = discard_unstored(region);
        // All other resident pages are clean. Each has one entry, or its frame has one. Entries of pages that are not resident are void.
        let entries = region.pool().clean.purge(region.id(), 0..region.span() / PAGE).into_iter();
        let is_clean = |seen: Seen| seen.state() == State::Clean && !seen.is_huge();
        let is_here = |entry: &Entry| entry.is_frame() || is_clean(region.word(entry.page()).look());
        unstored + idle + entries.filter(is_here).map(Entry::pages).sum::<usize>()
    };
    // Nobody comes to visit any more.
    let is_visited = !(0..LOOKS).any(|look| {
        if look > 0 {
            std::thread::sleep(Duration::from_micros(50));
        }
        !region.id().is_visited()
    });
    if is_visited {
        // A visitor finds all pages Absent.
        region.keep_for_good();
    }
    Ended::keep(&mut ended, region.store().path(), region.counters());
    drop(ended);
    registry::cancel(region.id());
    region.pool().give_free_frames(0, free_frames);
}
