//! Service threads: page faults of maps that the kernel hands to threads of the engine's (`Faults::Service`), those taken
//! inside system calls among them.
//!
//! A faulting thread sleeps in the kernel, and its fault is a message. The thread that reads it calls `serve::serve`, as the handler of
//! SIGBUS does, and then wakes the page, whatever came of it. So no sleeper is lost: each has a message of its own, and one
//! whose page another thread has installed meanwhile, without waking anybody, is woken when its own message has been found
//! to be served already.
//!
//! Nobody deadlocks: what a service thread waits for in `serve` (a word, a slot, a free frame, a buffer) is held by
//! threads that run the engine's code, and those touch no map while they hold it, so they need no service thread. All
//! of these may wait at a time; the faults behind them wait as well, as they would for the same device or memory.
//!
//! A page that cannot be served is *poisoned* (`UFFDIO_POISON`): the kernel raises SIGBUS in a thread that touches it, whatever
//! it blocks, and has a system call fail with EFAULT. Our handler then looks at the page once more, as at any, and says what is
//! wrong; a page that has come into being it loads. Inside system calls nobody looks, so poison is lifted as soon as
//! the file is known to be longer, and after a moment in any case. Loading a page overwrites it.

use crate::fault::poison::{POISONED, Poisoned};
use crate::fault::serve;
use crate::page::entry::RegionId;
use crate::region::registry;
use crate::sys::epoll::Epoll;
use crate::sys::signal::Blocked;
use crate::sys::userfaultfd::{Fault, Userfaultfd};
use crate::sys::{PAGE, cpu, threads};
use std::io;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};

/// Service threads, at most.
const MOST: usize = 16;
/// For each processor: most of them wait for a device.
const PER_CORE: usize = 4;

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
        Poisoned::prepare();
        // The threads inherit the mask.
        let _blocked = Blocked::all();
        for (number, seat) in SEATS.iter().take((PER_CORE * cpu::count()).clamp(2, MOST)).enumerate() {
            let body = move || work(seat, userfaultfds, epoll);
            std::thread::Builder::new()
                .name(format!("fastmap-fault{number}"))
                .stack_size(128 << 10)
                .spawn(threads::named(body))?;
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
        POISONED.lift_old();
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
        seat.store(region.id().0 + 2, Ordering::SeqCst);
        let page = region.address().page_at(address);
        let known = region.store().size();
        if !serve::resolve_for_another(region, page, fault.is_store) {
            POISONED.add(region, page, known);
        }
    }
    // Not only where it was served: a thread that faulted on what is no region any more has to find out.
    userfaultfd.wake(address);
}

/// Waits until no service thread is in a region that nobody touches or maps any more. The caller holds nothing that a fault
/// waits for.
pub fn await_leaving(slot: RegionId) {
    for seat in &SEATS {
        while [LOOKING, slot.0 + 2].contains(&seat.load(Ordering::SeqCst)) {
            std::thread::yield_now();
        }
    }
}
