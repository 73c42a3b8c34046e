//! Finds the region (`region.rs`) of an address, or of a number that stands in a queue. Fault handlers use it, too.
//!
//! There are two static tables:
//!
//! * *Addresses*: sorted ranges under a sequence lock (`sys/range_table.rs`). Every trap searches them, without a store to shared memory.
//! * *Numbers*: the region that has a number ([`RegionId`]), and a count of its uses (`page/entry.rs`). A thread that finds a page in a queue
//!   looks here. A region waits until all its uses have ended before it goes away.

use crate::counters::stats::Stats;
use crate::page::entry::{MOST_REGIONS, RegionId, RegionUse, RegionVisit};
use crate::pool::pool::Pool;
use crate::region::by_file;
use crate::region::region::Region;
use crate::sys::range_table::RangeTable;
use std::ops::Range;
use std::ptr;
use std::sync::Mutex;
use std::sync::atomic::{AtomicPtr, AtomicUsize, Ordering};

/// The table of addresses: the region of each range, as a pointer. It has a row for each region, and as many again for the parts of regions that
/// foreign memory has cut in two ([`cut`]).
static ADDRESSES: RangeTable<{ 2 * MOST_REGIONS }, 1> = RangeTable::new();
/// Serialises changes to both tables.
static CHANGES: Mutex<()> = Mutex::new(());

/// By number: the region that [`enter`] finds.
static REGIONS: [AtomicPtr<Region>; MOST_REGIONS] = [const { AtomicPtr::new(ptr::null_mut()) }; MOST_REGIONS];
/// By number: the last region that had it, also when [`enter`] does not find that region any more. The pointer is valid for a thread that
/// holds a use of the region.
static HELD: [AtomicPtr<Region>; MOST_REGIONS] = [const { AtomicPtr::new(ptr::null_mut()) }; MOST_REGIONS];
/// All numbers that were ever used are below this one.
static NUMBERS_USED: AtomicUsize = AtomicUsize::new(0);

/// The region that holds an address.
///
/// # Safety
/// The calling thread accesses the address. The owner of a map keeps the region alive as long as threads access it.
#[inline]
pub unsafe fn find<'a>(address: usize) -> Option<&'a Region> {
    let (at, [region]) = ADDRESSES.from(address)?;
    // SAFETY: entries point to live regions (the caller's contract).
    (at.start <= address).then(|| unsafe { &*region_at(region) })
}

/// A region as a word of the table of addresses.
fn word_of(region: &Region) -> u64 {
    ptr::from_ref(region).expose_provenance() as u64
}

fn region_at(word: u64) -> *const Region {
    ptr::with_exposed_provenance(word as usize)
}

/// Whether the address of a page is the region's, and neither a kernel mapping's nor foreign. A thread that has claimed the page asks this: then the answer holds until it
/// lets the page go, since who takes addresses away holds their pages meanwhile. Takes no lock.
#[inline]
pub fn has(region: &Region, page: usize) -> bool {
    let address = region.address_of(page) as usize;
    let is_in_table =
        || ADDRESSES.from(address).is_some_and(|(at, word)| at.start <= address && word == [word_of(region)]);
    !region.is_converted() && (!region.is_cut() || is_in_table())
}

/// Between these lie all addresses that regions ever had.
static LOWEST: AtomicUsize = AtomicUsize::new(usize::MAX);
static HIGHEST: AtomicUsize = AtomicUsize::new(0);

/// Whether any region has an address in a range. Takes no lock. Intercepted calls ask this about every address that they are given. For most
/// addresses two loads are enough. (The loads may be relaxed: a thread that has an address of a region got it from a thread that saw the region
/// published.)
#[inline]
pub fn meets(range: Range<usize>) -> bool {
    range.start < HIGHEST.load(Ordering::Relaxed) && range.end > LOWEST.load(Ordering::Relaxed) && is_met(range)
}

fn is_met(range: Range<usize>) -> bool {
    ADDRESSES.from(range.start).is_some_and(|(at, _)| at.start < range.end)
}

/// Forgets all regions in a child made by fork(2), which inherits none. Only the addresses of `wanted` regions stay: the child may still ask
/// its parent for these. The caller is the only thread, or all other threads wait for it.
pub fn retain(wanted: impl Fn(&Region) -> bool) {
    NUMBERS_USED.store(0, Ordering::Relaxed);
    ADDRESSES.in_child();
    // SAFETY: live in the parent when the child was made; a copy here, which stays.
    ADDRESSES.change(|rows| rows.retain(|[region]| wanted(unsafe { &*region_at(region) })));
}

/// Claims a number for a region to be made. `None` when [`MOST_REGIONS`] are in use.
pub fn reserve() -> Option<RegionId> {
    let _changes = CHANGES.lock().unwrap_or_else(|poison| poison.into_inner());
    let free =
        |number: &usize| REGIONS[*number].load(Ordering::Relaxed).is_null() && RegionId(*number as u32).users() == 0;
    // If a visit was left behind (`page/entry.rs`), every region with that number would stay in memory for good. Such numbers come last.
    let unvisited = |number: &usize| free(number) && !RegionId(*number as u32).is_visited();
    let number = (0..MOST_REGIONS).find(unvisited).or_else(|| (0..MOST_REGIONS).find(free))?;
    // A phantom use reserves the number until `publish` or `cancel`.
    std::mem::forget(RegionUse::begin(RegionId(number as u32)));
    NUMBERS_USED.fetch_max(number + 1, Ordering::SeqCst);
    Some(RegionId(number as u32))
}

/// Ends the use that `reserve` or `withdraw` began. The number is free then, unless a region is published under it.
pub fn cancel(region: RegionId) {
    // SAFETY: `reserve` or `withdraw` began this use.
    unsafe { RegionUse::end(region) };
}

/// Makes a region known by its number and addresses; from here on its faults are served.
pub fn publish(region: &Region) {
    let _changes = CHANGES.lock().unwrap_or_else(|poison| poison.into_inner());
    let at = ptr::from_ref(region).cast_mut();
    HELD[region.id().0 as usize].store(at, Ordering::SeqCst);
    REGIONS[region.id().0 as usize].store(at, Ordering::SeqCst);
    by_file::note(region);
    cancel(region.id());
    insert_all(region);
}

fn insert_all(region: &Region) {
    let (start, end) = region.address().addresses();
    LOWEST.fetch_min(start, Ordering::Relaxed);
    HIGHEST.fetch_max(end, Ordering::Relaxed);
    // There is room: `cut` and `join` add a row only to fewer than `MOST_REGIONS` rows, and at most `MOST_REGIONS` regions add one each here.
    ADDRESSES.change(|rows| rows.insert(start..end, [word_of(region)]));
}

/// Removes a range from a region's addresses: it is foreign memory from now on. False: the region would be cut in two, and there is no room
/// for one more row.
pub fn cut(region: &Region, range: Range<usize>) -> bool {
    let _changes = CHANGES.lock().unwrap_or_else(|poison| poison.into_inner());
    let word = [word_of(region)];
    ADDRESSES.change(|rows| {
        let row = rows.place(range.start);
        if row == rows.len() || rows.words(row) != word {
            return true;
        }
        let at = rows.at(row);
        if range.start < at.start || at.end < range.end {
            return true;
        }
        match (at.start < range.start, range.end < at.end) {
            (true, true) if rows.len() >= MOST_REGIONS => return false,
            (true, true) => {
                rows.set(row, at.start..range.start, word);
                rows.insert(range.end..at.end, word);
            }
            (true, false) => rows.set(row, at.start..range.start, word),
            (false, true) => rows.set(row, range.end..at.end, word),
            (false, false) => rows.remove(row),
        }
        true
    })
}

/// Adds a range, which no region has, to a region's addresses. False: there is no room for one more row.
pub fn join(region: &Region, range: Range<usize>) -> bool {
    let _changes = CHANGES.lock().unwrap_or_else(|poison| poison.into_inner());
    let word = [word_of(region)];
    LOWEST.fetch_min(range.start, Ordering::Relaxed);
    HIGHEST.fetch_max(range.end, Ordering::Relaxed);
    ADDRESSES.change(|rows| {
        let place = rows.place(range.start);
        let its = |row: &usize| *row < rows.len() && rows.words(*row) == word;
        let before = place.checked_sub(1).filter(its).filter(|row| rows.at(*row).end == range.start);
        let behind = Some(place).filter(its).filter(|row| rows.at(*row).start == range.end);
        match (before, behind) {
            (Some(before), Some(behind)) => {
                rows.set(before, rows.at(before).start..rows.at(behind).end, word);
                rows.remove(behind);
            }
            (Some(before), None) => rows.set(before, rows.at(before).start..range.end, word),
            (None, Some(behind)) => rows.set(behind, range.start..rows.at(behind).end, word),
            (None, None) if rows.len() >= MOST_REGIONS => return false,
            (None, None) => rows.insert(range, word),
        }
        true
    })
}

/// Forgets the addresses of a region whose maps are kernel mappings now. Faults there are not served any more.
pub fn hide(region: &Region) {
    let _changes = CHANGES.lock().unwrap_or_else(|poison| poison.into_inner());
    ADDRESSES.change(|rows| rows.retain(|word| word != [word_of(region)]));
}

/// Forgets a region's addresses and number, and waits until all its uses have ended. Reads under way have uses, too: `get_on` finishes those
/// that have arrived, and returns false if there were none. The number stays claimed until `cancel`, so that entries with this number can be
/// purged from the queues.
pub fn withdraw(region: &Region, get_on: impl Fn() -> bool) {
    let id = region.id();
    {
        let _changes = CHANGES.lock().unwrap_or_else(|poison| poison.into_inner());
        ADDRESSES.change(|rows| rows.retain(|word| word != [word_of(region)]));
        by_file::forget(region);
        // `cancel` ends this use.
        std::mem::forget(RegionUse::begin(id));
        // SeqCst, as in `enter`: either `enter` sees the null pointer, or this thread sees the use that `enter` began.
        REGIONS[id.0 as usize].store(ptr::null_mut(), Ordering::SeqCst);
    }
    while id.users() != 1 {
        if !get_on() {
            std::thread::yield_now();
        }
    }
}

/// A region that a thread uses without an access to its addresses. The region does not go away as long as this value lives.
#[derive(Debug, Clone)]
pub struct InUse<'a> {
    region: &'a Region,
    held: RegionUse,
}

/// Enters the region of a number, if there is one.
#[inline]
pub fn enter<'a>(id: RegionId) -> Option<InUse<'a>> {
    if REGIONS[id.0 as usize].load(Ordering::Relaxed).is_null() {
        return None;
    }
    let held = RegionUse::begin(id);
    // SAFETY: `withdraw` waits for the uses before the region goes.
    let region = unsafe { REGIONS[id.0 as usize].load(Ordering::SeqCst).as_ref() }?;
    Some(InUse { region, held })
}

/// The region of a number, if there is one, and a visit to it. The region may end during the visit, but its `Region` stays in memory.
#[inline]
pub fn visit(id: RegionId) -> Option<(&'static Region, RegionVisit)> {
    let visit = RegionVisit::begin(id);
    // SAFETY: SeqCst, as in `withdraw` and in `lifecycle::dissolve` after it. Either the pointer is null here, or `dissolve` sees the visit
    // and keeps the `Region`.
    let region = unsafe { REGIONS[id.0 as usize].load(Ordering::SeqCst).as_ref() }?;
    Some((region, visit))
}

/// Makes an [`InUse`] of a use that [`InUse::held`] returned. The region is still there. It may be about to go: then it waits for the end of
/// this use, so the caller must finish what it began.
pub fn resume<'a>(held: RegionUse) -> Option<InUse<'a>> {
    // SAFETY: the use keeps the region whose number it has, and no other has the number meanwhile.
    let region = unsafe { HELD[held.region().0 as usize].load(Ordering::SeqCst).as_ref() }?;
    Some(InUse { region, held })
}

/// A number that changes whenever a region comes, goes, or changes its addresses.
pub fn version() -> usize {
    ADDRESSES.version()
}

/// All numbers that were ever used are below this one.
pub fn numbers() -> usize {
    NUMBERS_USED.load(Ordering::SeqCst)
}

/// Every region there is, entered one at a time.
pub fn all<'a>() -> impl Iterator<Item = InUse<'a>> {
    (0..numbers()).filter_map(|number| enter(RegionId(number as u32)))
}

/// The regions whose pages a pool holds.
pub fn regions_of(pool: &Pool) -> impl Iterator<Item = InUse<'static>> {
    all().filter(move |region| std::ptr::eq(&**region.pool(), pool))
}

/// The statistics of a cache, with the largest read size of its regions.
pub fn stats_of(pool: &Pool) -> Stats {
    let read_size = regions_of(pool).map(|region| region.hints().read_size()).max();
    Stats { read_size: read_size.unwrap_or_default(), ..pool.stats() }
}

impl<'a> InUse<'a> {
    /// The region. The reference may outlive this value.
    ///
    /// # Safety
    /// Before dropping this value, the caller makes sure by other means that the region does not end while the reference is used.
    pub unsafe fn outlived(&self) -> &'a Region {
        self.region
    }

    /// One more use of the region, without the reference. A queue can hold it. [`resume`] makes an `InUse` of it again.
    pub fn held(&self) -> RegionUse {
        self.held.clone()
    }
}

impl std::ops::Deref for InUse<'_> {
    type Target = Region;

    fn deref(&self) -> &Region {
        self.region
    }
}
