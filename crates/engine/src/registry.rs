//! Which region an address or a queue entry belongs to; read inside fault handlers.
//!
//! Two static tables. *Addresses*: sorted ranges under a sequence lock, searched at every trap without a store to shared
//! memory. *Slots*: number to region, with a count of the threads that use it, for threads that meet a page through a
//! queue and not through an access of the program; a region that goes away waits for them.

use crate::coherent;
use crate::region::Region;
use crate::sys::signal::Blocked;
use std::ptr;
use std::sync::Mutex;
use std::sync::atomic::{AtomicPtr, AtomicU32, AtomicUsize, Ordering, fence};

/// Files mapped at a time in one process, at most.
pub const MOST_REGIONS: usize = 8192;

struct Range {
    start: AtomicUsize,
    end: AtomicUsize,
    region: AtomicPtr<Region>,
}

/// Odd while the table changes.
static SEQUENCE: AtomicUsize = AtomicUsize::new(0);
static COUNT: AtomicUsize = AtomicUsize::new(0);
/// One for each region, and as many for parts of regions that others have cut in two.
static RANGES: [Range; 2 * MOST_REGIONS] =
    [const { Range { start: AtomicUsize::new(0), end: AtomicUsize::new(0), region: AtomicPtr::new(ptr::null_mut()) } };
        2 * MOST_REGIONS];
/// Serialises changes to both tables.
static CHANGES: Mutex<()> = Mutex::new(());

struct Slot {
    region: AtomicPtr<Region>,
    users: AtomicU32,
}

static SLOTS: [Slot; MOST_REGIONS] =
    [const { Slot { region: AtomicPtr::new(ptr::null_mut()), users: AtomicU32::new(0) } }; MOST_REGIONS];
/// Slots that were ever used.
static SLOTS_USED: AtomicUsize = AtomicUsize::new(0);

/// A slot's number, for queue entries.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SlotIndex(pub u32);

/// The region that holds an address.
///
/// # Safety
/// The caller is a thread that touches the address: its owner keeps the region alive for as long as threads do.
#[inline]
pub unsafe fn find<'a>(address: usize) -> Option<&'a Region> {
    loop {
        let before = SEQUENCE.load(Ordering::Acquire);
        if before % 2 == 1 {
            std::thread::yield_now();
            continue;
        }
        let count = COUNT.load(Ordering::Relaxed);
        let (mut low, mut high) = (0, count);
        while low < high {
            let middle = (low + high) / 2;
            if RANGES[middle].end.load(Ordering::Relaxed) <= address { low = middle + 1 } else { high = middle }
        }
        let mut found = ptr::null_mut();
        if low < count
            && let range = &RANGES[low]
            && range.start.load(Ordering::Relaxed) <= address
        {
            found = range.region.load(Ordering::Relaxed);
        }
        // Pairs with the fence and store in `change`: all that was read belongs to one version of the table.
        fence(Ordering::Acquire);
        if SEQUENCE.load(Ordering::Relaxed) == before {
            // SAFETY: non-null entries point to live regions (the caller's contract).
            return unsafe { found.as_ref() };
        }
    }
}

/// Between these lie all addresses that regions ever had.
static LOWEST: AtomicUsize = AtomicUsize::new(usize::MAX);
static HIGHEST: AtomicUsize = AtomicUsize::new(0);

/// Whether any region has an address in a range. No lock. Asked by every call that is handed an address: of most addresses two
/// loads say that they are nobody's. (Whoever has an address of a region has it from a thread that saw it published.)
#[inline]
pub fn meets(range: std::ops::Range<usize>) -> bool {
    range.start < HIGHEST.load(Ordering::Relaxed) && range.end > LOWEST.load(Ordering::Relaxed) && is_met(range)
}

fn is_met(range: std::ops::Range<usize>) -> bool {
    loop {
        let before = SEQUENCE.load(Ordering::Acquire);
        let count = COUNT.load(Ordering::Relaxed);
        if before % 2 == 1 {
            std::thread::yield_now();
            continue;
        }
        let (mut low, mut high) = (0, count);
        while low < high {
            let middle = (low + high) / 2;
            if RANGES[middle].end.load(Ordering::Relaxed) <= range.start { low = middle + 1 } else { high = middle }
        }
        let found = low < count && RANGES[low].start.load(Ordering::Relaxed) < range.end;
        fence(Ordering::Acquire);
        if SEQUENCE.load(Ordering::Relaxed) == before {
            return found;
        }
    }
}

/// Forgets regions, in a child made by fork(2), which has none of them: all but the addresses of those that it may ask for. By the only
/// thread, or one that all others wait for.
pub fn retain(wanted: impl Fn(&Region) -> bool) {
    SEQUENCE.store(0, Ordering::Relaxed);
    SLOTS_USED.store(0, Ordering::Relaxed);
    change(|count| {
        let mut kept = 0;
        for (row, range) in RANGES.iter().enumerate().take(count) {
            let region = range.region.load(Ordering::Relaxed);
            // SAFETY: live in the parent when the child was made; a copy here, which stays.
            if unsafe { region.as_ref() }.is_some_and(&wanted) {
                copy_row(row, kept);
                kept += 1;
            }
        }
        kept
    });
}

/// Runs `edit` on the table with readers kept out. Signals are blocked, and `edit` touches nothing but the table: a
/// fault on a map at this point would spin for ever.
fn change(edit: impl FnOnce(usize) -> usize) {
    let _blocked = Blocked::all();
    SEQUENCE.fetch_add(1, Ordering::Relaxed);
    fence(Ordering::Release);
    COUNT.store(edit(COUNT.load(Ordering::Relaxed)), Ordering::Relaxed);
    SEQUENCE.fetch_add(1, Ordering::Release);
}

fn copy_row(from: usize, to: usize) {
    let (from, to) = (&RANGES[from], &RANGES[to]);
    to.start.store(from.start.load(Ordering::Relaxed), Ordering::Relaxed);
    to.end.store(from.end.load(Ordering::Relaxed), Ordering::Relaxed);
    to.region.store(from.region.load(Ordering::Relaxed), Ordering::Relaxed);
}

/// Claims a slot for a region to be made. `None` when [`MOST_REGIONS`] are in use.
pub fn reserve() -> Option<SlotIndex> {
    let _changes = CHANGES.lock().unwrap_or_else(|poison| poison.into_inner());
    let free = |slot: &Slot| slot.region.load(Ordering::Relaxed).is_null() && slot.users.load(Ordering::Relaxed) == 0;
    let index = SLOTS.iter().position(free)?;
    // A user that is not there keeps the slot from being claimed twice; `publish` and `cancel` take it away.
    SLOTS[index].users.fetch_add(1, Ordering::SeqCst);
    SLOTS_USED.fetch_max(index + 1, Ordering::SeqCst);
    Some(SlotIndex(index as u32))
}

/// Gives back a reserved slot that no region came for.
pub fn cancel(slot: SlotIndex) {
    SLOTS[slot.0 as usize].users.fetch_sub(1, Ordering::SeqCst);
}

/// Makes a region known by its slot and addresses; from here on its faults are served.
pub fn publish(region: &Region) {
    let _changes = CHANGES.lock().unwrap_or_else(|poison| poison.into_inner());
    let at = ptr::from_ref(region).cast_mut();
    SLOTS[region.slot().0 as usize].region.store(at, Ordering::SeqCst);
    coherent::note(region);
    cancel(region.slot());
    let (start, end) = region.addresses();
    LOWEST.fetch_min(start, Ordering::Relaxed);
    HIGHEST.fetch_max(end, Ordering::Relaxed);
    // There are as many rows as slots beside those that `cut` makes, and this region has a slot: there is room.
    change(|count| insert(count, start..end, at));
}

fn insert(count: usize, range: std::ops::Range<usize>, region: *mut Region) -> usize {
    let place = (0..count).find(|row| RANGES[*row].start.load(Ordering::Relaxed) > range.start).unwrap_or(count);
    (place..count).rev().for_each(|row| copy_row(row, row + 1));
    RANGES[place].start.store(range.start, Ordering::Relaxed);
    RANGES[place].end.store(range.end, Ordering::Relaxed);
    RANGES[place].region.store(region, Ordering::Relaxed);
    count + 1
}

/// Takes a region's rows away; how many are left.
fn remove(count: usize, region: *mut Region) -> usize {
    let mut kept = 0;
    for (row, range) in RANGES[..count].iter().enumerate() {
        if range.region.load(Ordering::Relaxed) != region {
            if kept != row {
                copy_row(row, kept);
            }
            kept += 1;
        }
    }
    kept
}

/// Takes a range out of a region's addresses: it is somebody else's memory from now on. False: there is no room for two parts.
pub fn cut(region: &Region, range: std::ops::Range<usize>) -> bool {
    let _changes = CHANGES.lock().unwrap_or_else(|poison| poison.into_inner());
    let at = ptr::from_ref(region).cast_mut();
    let mut fits = true;
    change(|count| {
        let met = (0..count).find(|row| {
            let Range { start, end, region } = &RANGES[*row];
            region.load(Ordering::Relaxed) == at
                && start.load(Ordering::Relaxed) <= range.start
                && range.end <= end.load(Ordering::Relaxed)
        });
        let Some(row) = met else { return count };
        let (start, end) = (RANGES[row].start.load(Ordering::Relaxed), RANGES[row].end.load(Ordering::Relaxed));
        match (start < range.start, range.end < end) {
            (true, true) if count >= MOST_REGIONS => {
                fits = false;
                count
            }
            (true, true) => {
                RANGES[row].end.store(range.start, Ordering::Relaxed);
                insert(count, range.end..end, at)
            }
            (true, false) => {
                RANGES[row].end.store(range.start, Ordering::Relaxed);
                count
            }
            (false, true) => {
                RANGES[row].start.store(range.end, Ordering::Relaxed);
                count
            }
            (false, false) => {
                (row + 1..count).for_each(|row| copy_row(row, row - 1));
                count - 1
            }
        }
    });
    fits
}

/// Forgets the addresses of a region whose maps are the kernel's now: nobody's faults there are served any more.
pub fn hide(region: &Region) {
    let _changes = CHANGES.lock().unwrap_or_else(|poison| poison.into_inner());
    change(|count| remove(count, ptr::from_ref(region).cast_mut()));
}

/// Forgets a region's addresses and slot, and waits until no thread uses it. The slot stays claimed until `cancel`, so
/// that entries with its number can be purged from the queues.
pub fn withdraw(region: &Region) {
    let at = ptr::from_ref(region).cast_mut();
    let slot = &SLOTS[region.slot().0 as usize];
    {
        let _changes = CHANGES.lock().unwrap_or_else(|poison| poison.into_inner());
        change(|count| remove(count, at));
        coherent::forget(region);
        slot.users.fetch_add(1, Ordering::SeqCst);
        // SeqCst with `enter`: either it sees the null, or this thread sees its count.
        slot.region.store(ptr::null_mut(), Ordering::SeqCst);
    }
    while slot.users.load(Ordering::SeqCst) != 1 {
        std::thread::yield_now();
    }
}

/// A region in use by a thread that is not accessing its memory: it will not go away.
#[derive(Debug)]
pub struct InUse<'a> {
    region: &'a Region,
    slot: &'static AtomicU32,
}

/// Enters the region of a slot, if there is one.
#[inline]
pub fn enter<'a>(slot: SlotIndex) -> Option<InUse<'a>> {
    let Slot { region, users } = &SLOTS[slot.0 as usize];
    if region.load(Ordering::Relaxed).is_null() {
        return None;
    }
    users.fetch_add(1, Ordering::SeqCst);
    // SAFETY: `withdraw` waits for the count before the region goes.
    match unsafe { region.load(Ordering::SeqCst).as_ref() } {
        Some(region) => Some(InUse { region, slot: users }),
        None => {
            users.fetch_sub(1, Ordering::SeqCst);
            None
        }
    }
}

/// Slots that were ever used.
pub fn slots() -> usize {
    SLOTS_USED.load(Ordering::SeqCst)
}

/// Every region there is, entered one at a time.
pub fn all<'a>() -> impl Iterator<Item = InUse<'a>> {
    (0..slots()).filter_map(|index| enter(SlotIndex(index as u32)))
}

impl Clone for InUse<'_> {
    fn clone(&self) -> Self {
        // Not gone: this one counts already.
        self.slot.fetch_add(1, Ordering::SeqCst);
        InUse { region: self.region, slot: self.slot }
    }
}

impl std::ops::Deref for InUse<'_> {
    type Target = Region;

    fn deref(&self) -> &Region {
        self.region
    }
}

impl Drop for InUse<'_> {
    fn drop(&mut self) {
        self.slot.fetch_sub(1, Ordering::SeqCst);
    }
}
