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
use crate::region::seats::Seat;
use crate::sys::epoll::Epoll;
use crate::sys::signal::Blocked;
use crate::sys::userfaultfd::{Fault, Userfaultfd};
use crate::sys::{PAGE, cpu, threads};
use std::io;
use std::sync::OnceLock;

/// Service threads, at most.
const MOST: usize = 16;
/// Service threads for each processor: most of them wait for a device.
const PER_CORE: usize = 4;

/// Starts the threads, once.
pub fn start(userfaultfds: &'static [Userfaultfd]) -> io::Result<()> {
    static STARTED: OnceLock<Result<(), i32>> = OnceLock::new();
    let run = || -> io::Result<()> {
        let epoll: &'static Epoll = Box::leak(Box::new(Epoll::of(userfaultfds)?));
        Poisoned::prepare();
        // The threads inherit the mask.
        let _blocked = Blocked::all();
        for number in 0..(PER_CORE * cpu::count()).clamp(2, MOST) {
            let body = move || work(userfaultfds, epoll);
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
fn work(userfaultfds: &[Userfaultfd], epoll: &Epoll) -> ! {
    loop {
        let ready = epoll.wait(POISONED.patience());
        POISONED.lift_old();
        for (_, userfaultfd) in
            userfaultfds.iter().enumerate().filter(|(place, _)| ready.is_none_or(|one| one == *place))
        {
            loop {
                // Before the message is read: its thread may have given up since (a signal, a longjmp), and nobody touch the region any more.
                let seat = Seat::take();
                let Some(fault) = userfaultfd.next_fault() else { break };
                answer(seat, userfaultfd, fault);
            }
        }
    }
}

fn answer(seat: Seat, userfaultfd: &Userfaultfd, fault: Fault) {
    let address = fault.address / PAGE * PAGE;
    // SAFETY: a region that ends waits for this thread, by its seat.
    if let Some(region) = unsafe { seat.find(address) } {
        let page = region.address().page_at(address);
        let known = region.store().size();
        if !serve::resolve_for_another(&region, page, fault.is_store) {
            POISONED.add(&region, page, known);
        }
    }
    // In any case: a thread that faulted in a region that is gone has to repeat its access, and finds that out.
    userfaultfd.wake(address);
}
