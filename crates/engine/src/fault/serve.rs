//! Decides by the page's word what a trap needs.

use crate::deferred::protocol;
use crate::fault::load::load;
use crate::page::claims::{Loading, PageAccess, Upgrading};
use crate::page::word::{Seen, State};
use crate::readahead::detect;
use crate::region::install::{self, Outcome};
use crate::region::page_ref::PageRef;
use crate::region::region::Region;
use crate::region::report::say;
use crate::sys::signal;

/// Serves the fault of a thread that waits in the kernel; false: it cannot succeed. Nothing is printed here of a page past the end: a
/// thread in a system call gets its error, and any other thread traps next.
pub fn resolve_for_another(region: &Region, page: usize, is_store: bool) -> bool {
    if is_store && !region.is_writable() {
        return region.forbid_stores(page);
    }
    match serve(region.page(page), is_store) {
        Outcome::Resolved => true,
        Outcome::PastEnd => false,
        Outcome::Failed(what, error) => {
            if region.is_first_failure() {
                say(region, page, format_args!("cannot be served: {what} failed with error {error} (said once)"));
            }
            false
        }
    }
}

/// Serves an access of a thread that has not trapped here: a service thread's, or one that asks before it touches the page (`pin/pin.rs`).
/// The caller has signals blocked, as the handler has, and reports errors itself.
pub fn serve(page: PageRef<'_>, is_store: bool) -> Outcome {
    serve_access(page, is_store, None)
}

/// Serves an access. `trap`: that of this thread, if it has trapped; afterwards it repeats the instruction, or goes on behind it.
pub fn serve_access(page: PageRef<'_>, is_store: bool, trap: Option<signal::Trap>) -> Outcome {
    let mut since = None;
    loop {
        let seen = page.look();
        // After the look: a change of the file from here on changes the word, and the claim below fails.
        if is_store && let Err(error) = page.region().take_space(page.number()) {
            return match error {
                // The region has ended since the trap: the repeated access finds the kernel's mapping.
                libc::ESTALE => Outcome::Resolved,
                error => Outcome::Failed(install::TAKING_SPACE, error),
            };
        }
        match seen.state() {
            State::Absent if detect::is_coming(page, &mut since) => std::thread::yield_now(),
            State::Absent => {
                if let Some(claim) = Loading::begin(page, seen) {
                    return load(claim, seen.ghost(), is_store, trap);
                }
                if !page.is_admitted() {
                    // The gate is shut (`region/reach.rs`): the file is being changed, or handed over to the kernel.
                    std::thread::yield_now();
                }
            }
            State::Staged => {
                let Some(ahead) = page.region().pool().ahead() else { continue };
                if !ahead.touch(page, seen, is_store)
                    && let (Some(expected), Some(slot)) = (page.word().announce_waiter(seen), seen.slot())
                    && !ahead.is_claimable(slot)
                {
                    page.sleep(expected);
                }
            }
            // Another thread has installed it since the trap.
            State::Clean | State::Dirty if !is_store => return Outcome::Resolved,
            State::Unfilled if trap.is_some() && !is_store => return Outcome::Resolved,
            State::Unfilled if trap.is_some() && !seen.is_upgrading() => {
                if let Some(outcome) = protocol::let_store(page, seen) {
                    return outcome;
                }
            }
            State::Unfilled if trap.is_some() => wait(page, seen),
            State::Buffered if trap.is_some_and(|trap| protocol::buffer_another(page, seen, trap)) => {
                return Outcome::Resolved;
            }
            State::Unfilled | State::Buffered => {
                if let (State::Buffered, Some(deferred)) = (seen.state(), protocol::of(page.region())) {
                    deferred.note_stall();
                }
                count_wait(page);
                if let Err(error) = protocol::await_read(page) {
                    return Outcome::Failed("reading it", error);
                }
            }
            State::Clean | State::Dirty if !seen.is_upgrading() => {
                if let Some(claim) = Upgrading::begin(page, seen) {
                    if let Err(error) = page.region().take_space_of_claimed(page.number()) {
                        claim.abort(page.region().pool().here());
                        return Outcome::Failed(install::TAKING_SPACE, error);
                    }
                    return match seen.state() {
                        State::Clean => install::upgrade_group(claim),
                        // It is dirty, and was protected together with its neighbours, which are being written.
                        _ => install::upgrade(claim),
                    };
                }
            }
            State::Loading | State::Evicting | State::Clean | State::Dirty => wait(page, seen),
        }
    }
}

/// Sleeps until the thread that is at work on a page is done. `seen`: the word that showed this.
fn wait(page: PageRef<'_>, seen: Seen) {
    count_wait(page);
    match (seen.reader(), page.region().pool().ahead()) {
        (Some(reader), Some(ahead)) => ahead.await_claimed(page, reader),
        _ => page.wait(seen),
    }
}

fn count_wait(page: PageRef<'_>) {
    let pool = page.region().pool();
    pool.counters_at(pool.here()).waits.add(1);
}
