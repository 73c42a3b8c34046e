//! Seats of the threads that serve faults. Such a thread comes to a region through an access, and has no use of it (`registry.rs`): a count for
//! each region would be one line of memory that all faulting threads write. Each thread takes a seat instead, and notes there which region it is
//! in. A region that ends waits until no seat has it ([`await_leaving`]).
//!
//! A thread may come late: it has trapped, or sleeps on a page, while the region's maps become kernel mappings. Either it looks the address up
//! after the region was hidden, and finds nothing; or its seat shows it.

use crate::region::region::Region;
use crate::region::registry;
use std::cell::Cell;
use std::ops::Deref;
use std::ptr;
use std::sync::atomic::{AtomicUsize, Ordering, fence};

/// How many there are. If all are taken, a thread waits for one: those that have one wait for none.
const COUNT: usize = 512;

#[repr(align(64))] // a line each
struct Place(AtomicUsize);

/// The state of each: `FREE`, `LOOKING`, or the address of the region that its thread is in.
static PLACES: [Place; COUNT] = [const { Place(AtomicUsize::new(FREE)) }; COUNT];
const FREE: usize = 0;
/// Its thread is about to look up a region.
const LOOKING: usize = 1;

/// A seat that is taken, until dropped.
#[derive(Debug)]
pub struct Seat(&'static AtomicUsize);

impl Seat {
    /// Takes a seat. All signals are blocked until it is dropped: a handler that leaves by longjmp(3) would leave it taken.
    #[inline]
    pub fn take() -> Self {
        // Threads lie on different stacks, so that each mostly finds the same seat, free.
        let here = Cell::new(0_u8);
        let first = (ptr::from_ref(&here).addr() >> 12).wrapping_mul(0x9E37_79B9) >> 16;
        let place = loop {
            let take = |place: &&AtomicUsize| {
                place.compare_exchange(FREE, LOOKING, Ordering::SeqCst, Ordering::Relaxed).is_ok()
            };
            match (0..COUNT).map(|next| &PLACES[(first + next) % COUNT].0).find(take) {
                Some(place) => break place,
                None => std::thread::yield_now(),
            }
        };
        // Pairs with the fence in `await_leaving`: either that sees the seat taken, or this thread does not find the region.
        fence(Ordering::SeqCst);
        Seat(place)
    }

    /// The region that holds an address. It does not end before the result is dropped.
    ///
    /// # Safety
    /// As for [`registry::find`], except that the region may be about to become a kernel mapping.
    #[inline]
    pub unsafe fn find<'a>(self, address: usize) -> Option<Seated<'a>> {
        // SAFETY: the caller's contract. A region that was hidden before it ended is not found, or sees this seat.
        let region: &Region = unsafe { registry::find(address) }?;
        self.0.store(ptr::from_ref(region).addr(), Ordering::Release);
        Some(Seated { region, _seat: self })
    }
}

impl Drop for Seat {
    #[inline]
    fn drop(&mut self) {
        self.0.store(FREE, Ordering::Release);
    }
}

/// A region that a thread is in, by its seat.
#[derive(Debug)]
pub struct Seated<'a> {
    region: &'a Region,
    _seat: Seat,
}

impl<'a> Seated<'a> {
    /// The region. The reference may outlive this value.
    ///
    /// # Safety
    /// Before dropping this value, the caller makes sure by other means that the region does not end while the reference is used.
    pub unsafe fn outlived(&self) -> &'a Region {
        self.region
    }
}

impl Deref for Seated<'_> {
    type Target = Region;

    #[inline]
    fn deref(&self) -> &Region {
        self.region
    }
}

/// Waits until no thread is in a region by its seat. Either nobody touches the region's addresses any more, or they are hidden. The caller holds
/// nothing that a fault waits for.
pub fn await_leaving(region: &Region) {
    fence(Ordering::SeqCst);
    for place in &PLACES {
        while [LOOKING, ptr::from_ref(region).addr()].contains(&place.0.load(Ordering::SeqCst)) {
            std::thread::yield_now();
        }
    }
}

/// Frees all seats. Called in a child made by fork(2), where the parent's other threads do not exist.
pub fn free_all() {
    PLACES.iter().for_each(|place| place.0.store(FREE, Ordering::Relaxed));
}
