//! Service threads: threads of the engine's to which the kernel hands page faults of maps (`Faults::Service`), those
//! inside system calls among them.
//!
//! A faulting thread sleeps in the kernel, and its fault is a message. The service thread that reads the message serves the fault
//! (`serve::serve`), and then wakes the page, whether that succeeded or not. So no sleeper is lost: each has a message of its own. If
//! another thread has installed the page meanwhile and woken nobody, the service thread finds the page served, and wakes the sleeper.
//!
//! Nobody deadlocks. A service thread waits in `serve` for a word, a slot, a free frame or a buffer. The threads that hold these run the
//! engine's code, and touch no map while they hold them, so they need no service thread. All service threads may wait at the same time;
//! further faults then wait as well, as they would for the same device or memory.
//!
//! A page that cannot be served is *poisoned* (`UFFDIO_POISON`): the kernel raises SIGBUS in a thread that touches it, even if the
//! thread blocks SIGBUS, and a system call that touches it fails with EFAULT. Our handler then serves the page once more: it says
//! what is wrong, or loads a page that has come into being. Inside a system call no handler runs, so poison is lifted as soon as the
//! file is known to be longer, and after a moment in any case. Loading a page overwrites its poison.

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
/// Service threads for each processor: most of them wait for a device.
const PER_CORE: usize = 4;

/// The state of each thread: `IDLE`, `LOOKING`, or two more than the number of the region's slot that it works in. It may work for a thread
/// that has given up since (a signal, a longjmp), in a region that nobody touches any more. A region that ends waits for it.
static SEATS: [AtomicU32; MOST] = [const { AtomicU32::new(IDLE) }; MOST];
const IDLE: u32 = 0;
/// About to read a message, or to look up its region.
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
        // SeqCst pairs with `await_leaving`: if a message was read before that looked, it sees this thread at work.
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
    // SAFETY: a region that ends waits while this thread is LOOKING, and then for as long as the seat has its number.
    if let Some(region) = unsafe { registry::find(address) } {
        seat.store(region.id().0 + 2, Ordering::SeqCst);
        let page = region.address().page_at(address);
        let known = region.store().size();
        if !serve::resolve_for_another(region, page, fault.is_store) {
            POISONED.add(region, page, known);
        }
    }
    // In any case: a thread that faulted in a region that is gone has to repeat its access, and finds that out.
    userfaultfd.wake(address);
}

/// Waits until no service thread is in a region, which nobody touches or maps any more. The caller holds nothing that a fault waits for.
pub fn await_leaving(slot: RegionId) {
    for seat in &SEATS {
        while [LOOKING, slot.0 + 2].contains(&seat.load(Ordering::SeqCst)) {
            std::thread::yield_now();
        }
    }
}
