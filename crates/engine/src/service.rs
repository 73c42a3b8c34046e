//! Service threads: page faults of maps that the kernel hands to threads of the engine's (`Faults::Service`), those taken
//! inside system calls among them.
//!
//! A faulting thread sleeps in the kernel, and its fault is a message. Whoever reads it calls `fault::serve`, as the handler of
//! SIGBUS does, and then wakes the page, whatever came of it. So no sleeper is lost: each has a message of its own, and one
//! whose page another thread has installed meanwhile, without waking anybody, is woken when its own message has been found
//! to be served already.
//!
//! Nobody deadlocks: what a service thread waits for in `serve` (a word, a slot, a credit, a buffer) is held by threads that
//! run the engine's code, and those touch no map while they hold it, so they need no service thread. All of these may wait at a time;
//! the faults behind them wait as well, as they would for the same device or memory.
//!
//! A page that cannot be served is *poisoned* (`UFFDIO_POISON`): the kernel raises SIGBUS in a thread that touches it, whatever
//! it blocks, and has a system call fail with EFAULT. Our handler then looks at the page once more, as at any, and says what is
//! wrong; a page that has come into being it loads. Inside system calls nobody looks, so poison is lifted as soon as
//! the file is known to be longer, and after a moment in any case. Loading a page overwrites it.

use crate::fault;
use crate::lock::Lock;
use crate::page::State;
use crate::region::Region;
use crate::registry::{self, SlotIndex};
use crate::sys::PAGE;
use crate::sys::cpu;
use crate::sys::epoll::Epoll;
use crate::sys::madvise;
use crate::sys::process;
use crate::sys::signal::Blocked;
use crate::sys::userfaultfd::{Fault, Userfaultfd};
use std::cell::UnsafeCell;
use std::io;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};
use std::sync::{LazyLock, OnceLock};
use std::time::{Duration, Instant};

/// Service threads, at most.
const MOST: usize = 16;
/// For each processor: most of them wait for a device.
const PER_CORE: usize = 4;
/// How long poison stays. A thread that had no turn meanwhile faults once more, and the page is poisoned once more.
const POISON_LASTS: Duration = Duration::from_millis(10);

/// What each thread is at: `IDLE`, `LOOKING`, or the number of a region's slot and two. It may use a region that nobody
/// touches any more, on behalf of a thread that has given up (a signal, a longjmp), and a region that goes waits for it.
static SEATS: [AtomicU32; MOST] = [const { AtomicU32::new(IDLE) }; MOST];
const IDLE: u32 = 0;
/// About to read a message, or to look up what it is about.
const LOOKING: u32 = 1;

/// Starts the threads, once.
pub fn start(userfaultfds: &'static [Userfaultfd]) -> io::Result<()> {
    static STARTED: OnceLock<Result<(), i32>> = OnceLock::new();
    let run = || -> io::Result<()> {
        let epoll: &'static Epoll = Box::leak(Box::new(Epoll::of(userfaultfds)?));
        LazyLock::force(&POISONED);
        // The threads inherit the mask.
        let _blocked = Blocked::all();
        for (number, seat) in SEATS.iter().take((PER_CORE * cpu::count()).clamp(2, MOST)).enumerate() {
            let body = move || work(seat, userfaultfds, epoll);
            std::thread::Builder::new()
                .name(format!("fastmap-fault{number}"))
                .stack_size(128 << 10)
                .spawn(process::named(body))?;
        }
        Ok(())
    };
    let started = STARTED.get_or_init(|| run().map_err(|error| error.raw_os_error().unwrap_or(libc::EAGAIN)));
    started.map_err(io::Error::from_raw_os_error)
}

/// A service thread's life.
fn work(seat: &AtomicU32, userfaultfds: &[Userfaultfd], epoll: &Epoll) -> ! {
    loop {
        let ready = epoll.wait(POISONED.patience());
        POISONED.lift(|poison| poison.since.elapsed() >= POISON_LASTS);
        // SeqCst pairs with `await_leaving`: what was read before it looked is seen to be at work.
        seat.store(LOOKING, Ordering::SeqCst);
        for (_, userfaultfd) in
            userfaultfds.iter().enumerate().filter(|(place, _)| ready.is_none_or(|one| one == *place))
        {
            while let Some(fault) = userfaultfd.next_fault() {
                answer(seat, userfaultfd, fault);
                seat.store(LOOKING, Ordering::SeqCst);
            }
        }
        seat.store(IDLE, Ordering::SeqCst);
    }
}

fn answer(seat: &AtomicU32, userfaultfd: &Userfaultfd, fault: Fault) {
    let address = fault.address / PAGE * PAGE;
    // SAFETY: this thread is LOOKING: a region that goes waits until it no longer is, and for this region then.
    if let Some(region) = unsafe { registry::find(address) } {
        seat.store(region.slot().0 + 2, Ordering::SeqCst);
        let page = region.page_at(address);
        if !fault::resolve_for_another(region, page, fault.is_store) {
            POISONED.add(region, page);
        }
    }
    // Not only where it was served: whoever faulted on what is no region any more has to find out.
    userfaultfd.wake(address);
}

/// Waits until no service thread is in a region that nobody touches or maps any more. The caller holds nothing that a fault
/// waits for.
pub fn await_leaving(slot: SlotIndex) {
    for seat in &SEATS {
        while [LOOKING, slot.0 + 2].contains(&seat.load(Ordering::SeqCst)) {
            std::thread::yield_now();
        }
    }
}

/// Lifts the poison from a region whose file has become longer.
pub fn note_longer(region: &Region) {
    if POISONED.count.load(Ordering::Acquire) > 0 {
        let _blocked = Blocked::all();
        POISONED.lift(|poison| poison.slot == region.slot());
    }
}

#[derive(Debug, Clone, Copy)]
struct Poison {
    slot: SlotIndex,
    page: usize,
    since: Instant,
}

/// The pages that are poisoned. Memory is not allocated for them: the program may have been stopped inside the allocator.
struct Poisoned {
    lock: Lock,
    pages: UnsafeCell<[Option<Poison>; 64]>,
    count: AtomicUsize,
}

// SAFETY: the pages are reached under the lock.
unsafe impl Sync for Poisoned {}

/// Made before the first thread, since a lock of a model is no constant.
static POISONED: LazyLock<Poisoned> =
    LazyLock::new(|| Poisoned { lock: Lock::new(), pages: UnsafeCell::new([None; 64]), count: AtomicUsize::new(0) });

impl Poisoned {
    /// How long to wait for faults, in milliseconds.
    fn patience(&self) -> i32 {
        if self.count.load(Ordering::Acquire) > 0 { POISON_LASTS.as_millis() as i32 } else { -1 }
    }

    /// Runs `edit` on the list under its lock; it returns what it took out of it.
    fn edit(&self, edit: impl FnOnce(&mut [Option<Poison>; 64]) -> Option<Poison>) -> Option<Poison> {
        let _held = self.lock.lock();
        // SAFETY: the lock is held.
        let places = unsafe { &mut *self.pages.get() };
        let taken = edit(places);
        self.count.store(places.iter().flatten().count(), Ordering::Release);
        taken
    }

    /// Poisons an absent page.
    fn add(&self, region: &Region, page: usize) {
        // SAFETY: a page of this region. Should it be there by now, or be a kernel mapping, nothing happens.
        if unsafe { region.userfaultfd(page).poison(region.address_of(page)) }.is_err() {
            return;
        }
        let poison = Poison { slot: region.slot(), page, since: Instant::now() };
        // A free place, or the oldest one's.
        let displaced =
            self.edit(|places| places.iter_mut().min_by_key(|place| place.map(|one| one.since))?.replace(poison));
        displaced.into_iter().for_each(lift);
        // The file may have become longer since it was asked.
        if (page * PAGE) as u64 >= region.store().size() && ((page * PAGE) as u64) < region.store().refresh_size() {
            self.lift(|one| (one.slot, one.page) == (poison.slot, poison.page));
        }
    }

    /// Lifts the poison from some pages. Signals are blocked.
    fn lift(&self, which: impl Fn(&Poison) -> bool) {
        while self.count.load(Ordering::Acquire) > 0 {
            match self.edit(|places| places.iter_mut().find_map(|place| place.take_if(|one| which(one)))) {
                Some(poison) => lift(poison),
                None => return,
            }
        }
    }
}

/// Makes a poisoned page absent, unless it has been loaded.
fn lift(Poison { slot, page, .. }: Poison) {
    // Should the slot be another region's by now, an absent page of that one stays absent.
    let Some(region) = registry::enter(slot).filter(|region| page < region.span() / PAGE) else { return };
    let seen = region.word(page).look();
    if seen.state() == State::Absent && region.word(page).begin_load(seen) {
        let range = libc::iovec { iov_base: region.address_of(page).cast(), iov_len: PAGE };
        // SAFETY: a page that is absent, and stays so while this thread has claimed it.
        unsafe { madvise::drop_pages(&[range]) };
        fault::unclaim(&region, page);
    }
}
