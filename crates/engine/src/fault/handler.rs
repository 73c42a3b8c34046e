//! The SIGBUS handler: it finds the page of a trap, serves the trap (`serve.rs`), and passes on signals that are the program's.
//!
//! This code interrupts arbitrary code: it allocates nothing, takes no lock that a program's thread can hold while it
//! runs program code, never panics on purpose, and leaves errno as it was. All signals are blocked while it runs.

use crate::fault::serve::serve_access;
use crate::fault::{child, late};
use crate::page::word::State;
use crate::region::install::{Outcome, TAKING_SPACE};
use crate::region::page_ref::PageRef;
use crate::region::report::say;
use crate::region::seats::Seat;
use crate::region::{registry, userfaultfds};
use crate::sys::{fork, lines, memory, signal, trap_stack};
use std::sync::OnceLock;

/// Resolves a trap that a child made by fork(2) takes on memory of its parent's maps. The function belongs to `files`, a room further down.
static IN_CHILD: OnceLock<fn()> = OnceLock::new();

/// Sets the function that serves a trap in a child made by fork(2). It is set once, and must be async-signal-safe.
pub fn resolve_children_by(resolve: fn()) {
    IN_CHILD.get_or_init(|| resolve);
}

/// Installs the handler, once in a process.
pub fn install() -> std::io::Result<()> {
    signal::install(on_sigbus)
}

/// Serves a SIGBUS. It runs on a stack of the engine's (`sys/trap_stack.rs`), and returns the program's handler, which runs next, or zero.
extern "C" fn on_sigbus(number: libc::c_int, info: *mut libc::siginfo_t, context: *mut libc::c_void) -> usize {
    // SAFETY: errno is this thread's; the pointers are the kernel's; the thread touches the address it trapped on.
    unsafe {
        // With any other code the signal was sent by somebody, and is the program's.
        if matches!((*info).si_code, libc::BUS_ADRERR | libc::BUS_MCEERR_AR) && lines::give_up(context) {
            return 0;
        }
        let errno = libc::__errno_location();
        let saved = *errno;
        trap_stack::enlarge(context);
        // Only where service threads serve faults may poison be the engine's. Otherwise memory has gone bad, which the program is told.
        let trap = signal::trap(info, context).filter(|trap| !trap.is_poisoned || userfaultfds::by_service());
        if let Some(trap) = &trap
            && fork::is_child()
            && let Some(is_served) = child::serve(trap.address)
        {
            let next = if is_served { 0 } else { signal::chain(number, info, context) };
            *errno = saved;
            return next;
        }
        let seated = trap.as_ref().and_then(|trap| Seat::take().find(trap.address));
        let hit = trap.zip(seated.as_deref()).map(|(trap, region)| {
            let page = region.page(region.address().page_at(trap.address));
            (page, trap)
        });
        let ours = match hit {
            Some(_) if fork::is_child() => {
                // The access is then repeated, and the kernel serves or refuses it.
                IN_CHILD.get().into_iter().for_each(|resolve| resolve());
                true
            }
            Some((page, trap)) => resolve(page, trap) && !is_bad(trap),
            // If another region has come there meanwhile, the repeated access traps on that one.
            None => trap.is_some_and(|trap| late::is_late(trap) || registry::find(trap.address).is_some()),
        };
        let mut next = 0;
        if !ours {
            if let Some((page, trap)) = hit
                && trap.is_poisoned
                && page.look().state() == State::Absent
            {
                // The code that the program would get with mmap(2).
                (*info).si_code = libc::BUS_ADRERR;
            }
            next = signal::chain(number, info, context);
        }
        *errno = saved;
        next
    }
}

/// Serves a trap. False: the access cannot succeed, and standard error says why, where that is worth a line.
#[inline]
fn resolve(page: PageRef<'_>, trap: signal::Trap) -> bool {
    let region = page.region();
    if trap.is_store && !region.is_writable() {
        // The store is repeated, and the kernel raises SIGSEGV.
        return region.forbid_stores(page.number());
    }
    // A poisoned page is one that service threads could not serve. It is read once more, which tells why.
    match serve_access(page, trap.is_store, Some(trap).filter(|trap| !trap.is_poisoned)) {
        Outcome::Resolved => true,
        Outcome::PastEnd => {
            if region.is_first_past_end() {
                // The size is asked for: the region's own number may be older than a truncation by others.
                let size = region.store().length().unwrap_or_else(|_| region.store().size());
                say(region, page.number(), format_args!("is past the end of the file ({size} bytes; said once)"));
            }
            false
        }
        // Said once a file. (mmap(2) says nothing at all.)
        Outcome::Failed(TAKING_SPACE, _) if !region.space().is_first_lack() => false,
        Outcome::Failed(what, error) => {
            if region.is_first_failure() {
                let origin = region.store().origin().and_then(|origin| origin.explain(error));
                let (stop, why) = origin.map_or(("", ""), |why| (": ", why));
                let what = format_args!("cannot be served: {what} failed with error {error}{stop}{why} (said once)");
                say(region, page.number(), what);
            }
            false
        }
    }
}

/// Whether the memory of a page that has been served is bad: the kernel reported poison, and the page still cannot be read.
fn is_bad(trap: signal::Trap) -> bool {
    trap.is_poisoned && !memory::is_readable(trap.address)
}
