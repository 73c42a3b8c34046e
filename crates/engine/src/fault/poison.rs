//! Pages that service threads could not serve. For a moment they raise SIGBUS in every thread that touches them (`UFFDIO_POISON`).

use crate::page::claims::Loading;
use crate::page::entry::RegionId;
use crate::page::word::State;
use crate::region::region::Region;
use crate::region::{registry, userfaultfds};
use crate::sys::lock::Lock;
use crate::sys::signal::Blocked;
use crate::sys::{PAGE, madvise};
use std::cell::UnsafeCell;
use std::sync::LazyLock;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

/// How long poison stays. A thread that did not run meanwhile faults again, and the page is poisoned again.
const POISON_LASTS: Duration = Duration::from_millis(10);

/// Lifts the poison from a region whose file has become longer. The caller has noted the new length. The poison is gone when this returns.
pub fn note_longer(region: &Region) {
    if userfaultfds::by_service() {
        let _blocked = Blocked::all();
        POISONED.lift(|poison| poison.slot == region.id());
    }
}

#[derive(Debug, Clone, Copy)]
struct Poison {
    slot: RegionId,
    page: usize,
    since: Instant,
}

/// The pages that are poisoned. Nothing is allocated: the program may have been stopped inside its allocator.
pub struct Poisoned {
    lock: Lock,
    pages: UnsafeCell<[Option<Poison>; 64]>,
    count: AtomicUsize,
}

// SAFETY: the pages are reached under the lock.
unsafe impl Sync for Poisoned {}

/// Made before the first service thread. (A loom lock cannot be made in a constant.)
pub static POISONED: LazyLock<Poisoned> =
    LazyLock::new(|| Poisoned { lock: Lock::new(), pages: UnsafeCell::new([None; 64]), count: AtomicUsize::new(0) });

impl Poisoned {
    /// Makes the list.
    pub fn prepare() {
        LazyLock::force(&POISONED);
    }

    /// Lifts what has stayed long enough.
    pub fn lift_old(&self) {
        if self.count.load(Ordering::Acquire) > 0 {
            self.lift(|poison| poison.since.elapsed() >= POISON_LASTS);
        }
    }

    /// How long to wait for faults, in milliseconds.
    pub fn patience(&self) -> i32 {
        if self.count.load(Ordering::Acquire) > 0 { POISON_LASTS.as_millis() as i32 } else { -1 }
    }

    /// Runs `edit` on the list under its lock. List and pages change together under it. So a thread that finds no page of a region here
    /// knows that none is poisoned because of a length from before its look.
    fn edit(&self, edit: impl FnOnce(&mut [Option<Poison>; 64])) {
        let _held = self.lock.lock();
        // SAFETY: the lock is held.
        let places = unsafe { &mut *self.pages.get() };
        edit(places);
        self.count.store(places.iter().flatten().count(), Ordering::Release);
    }

    /// Poisons an absent page. `known`: the file's length as it was known before the attempt to serve the page.
    pub fn add(&self, region: &Region, page: usize, known: u64) {
        self.edit(|places| {
            // The file may be longer by now, and the thread that noted it may have lifted the poison already (`note_longer`).
            let begin = (page * PAGE) as u64;
            if begin >= known && begin < region.store().refresh_size() {
                return;
            }
            // SAFETY: a page of this region. If it is in memory by now, or a kernel mapping, nothing happens.
            if unsafe { region.userfaultfd(page).poison(region.address_of(page)) }.is_err() {
                return;
            }
            let poison = Poison { slot: region.id(), page, since: Instant::now() };
            // A free place, or that of the oldest poison, which is lifted.
            let place = places.iter_mut().min_by_key(|place| place.map(|one| one.since));
            place.and_then(|place| place.replace(poison)).into_iter().for_each(lift);
        });
    }

    /// Lifts the poison from some pages. Signals are blocked.
    fn lift(&self, which: impl Fn(&Poison) -> bool) {
        self.edit(|places| places.iter_mut().filter_map(|place| place.take_if(|one| which(one))).for_each(lift));
    }
}

/// Makes a poisoned page absent, unless it has been loaded.
fn lift(Poison { slot, page, .. }: Poison) {
    // If the slot is another region's by now, nothing is lost: an absent page of that one stays absent.
    let Some(region) = registry::enter(slot).filter(|region| page < region.span() / PAGE) else { return };
    let seen = region.word(page).look();
    if seen.state() == State::Absent
        && let Some(claim) = Loading::begin(region.page(page), seen)
    {
        // Asked now that the page is claimed: the program may have mapped other memory there.
        if registry::has(&region, page) {
            let range = libc::iovec { iov_base: region.address_of(page).cast(), iov_len: PAGE };
            // SAFETY: a page of this region that is absent, and stays so while this thread has claimed it.
            unsafe { madvise::drop_pages(&[range]) };
        }
        claim.abort();
    }
}
