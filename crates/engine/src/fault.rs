//! One page fault, from trap to return: the SIGBUS handler and the miss and store paths it takes.
//!
//! This code interrupts arbitrary code: it allocates nothing, takes no lock that a program's thread can hold while it
//! runs program code, never panics on purpose, and leaves errno as it was. All signals are blocked while it runs.

use crate::ahead::Touch;
use crate::behind;
use crate::cache::MOST_AHEAD;
use crate::children;
use crate::dirty::BLOCK_PAGES;
use crate::faults;
use crate::habits::{self, StoreHabit};
use crate::handover;
use crate::page::{Ghost, Seen, State};
use crate::region::Region;
use crate::registry;
use crate::store::ReadEnd;
use crate::streams;
use crate::sys::lines;
use crate::sys::memory;
use crate::sys::signal;
use crate::sys::trap_stack;
use crate::sys::{PAGE, fork, futex};
use crate::writeback::RIPE;
use std::fmt::{self, Write};
use std::ops::Range;
use std::os::unix::ffi::OsStrExt;
use std::sync::atomic::Ordering;

/// How a fault ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    /// The access will succeed now, or trap anew.
    Resolved,
    /// The page lies past the file's end.
    PastEnd,
    /// A system call failed: what it was for, and the error number.
    Failed(&'static str, i32),
}

/// Serves a SIGBUS, on a stack of the engine's (`sys/trap_stack.rs`); returns the program's handler, which runs next, or zero.
pub extern "C" fn on_sigbus(number: libc::c_int, info: *mut libc::siginfo_t, context: *mut libc::c_void) -> usize {
    // SAFETY: errno is this thread's; the pointers are the kernel's; the thread touches the address it trapped on.
    unsafe {
        // A signal that somebody sends meanwhile is the program's.
        if matches!((*info).si_code, libc::BUS_ADRERR | libc::BUS_MCEERR_AR) && lines::give_up(context) {
            return 0;
        }
        let errno = libc::__errno_location();
        let saved = *errno;
        trap_stack::enlarge(context);
        // Memory that went bad is the kernel's to tell of, unless service threads may have said so of a page.
        let trap = signal::trap(info, context).filter(|trap| !trap.is_poisoned || faults::by_service());
        let hit = trap.and_then(|trap| Some((registry::find(trap.address)?, trap)));
        let ours = match hit {
            Some(_) if fork::is_child() => {
                // Repeated, the access is the kernel's to serve, or to refuse.
                children::resolve();
                true
            }
            Some((region, trap)) => resolve(region, trap) && !is_bad(trap),
            None => trap.is_some_and(handover::is_late),
        };
        let mut next = 0;
        if !ours {
            if let Some((region, trap)) = hit
                && trap.is_poisoned
                && region.word(region.page_at(trap.address)).look().state() == State::Absent
            {
                // As the program knows it from mmap(2).
                (*info).si_code = libc::BUS_ADRERR;
            }
            next = signal::hand_on(number, info, context);
        }
        *errno = saved;
        next
    }
}

/// Serves a trap; false when the access cannot succeed, which is then on standard error.
#[inline]
fn resolve(region: &Region, trap: signal::Trap) -> bool {
    let page = region.page_at(trap.address);
    if trap.is_store && !region.is_writable() {
        // The kernel says so itself (SIGSEGV) when the store is repeated.
        return region.forbid_stores(page);
    }
    // Where service threads serve faults this comes from one that they could not serve: the read says why.
    match serve_access(region, page, trap.is_store, Some(trap).filter(|trap| !trap.is_poisoned)) {
        Outcome::Resolved => true,
        Outcome::PastEnd => {
            let size = region.store().size();
            say(region, page, format_args!("is past the end of the file ({size} bytes)"));
            false
        }
        Outcome::Failed(what, error) => {
            say(region, page, format_args!("cannot be served: {what} failed with error {error}"));
            false
        }
    }
}

/// Whether what the kernel says of a page that is served holds all the same: its memory is bad.
fn is_bad(trap: signal::Trap) -> bool {
    trap.is_poisoned && !memory::is_readable(trap.address)
}

/// Serves the fault of a thread that waits in the kernel; false when it cannot succeed. A page that is past the end is no
/// more said here than the kernel does: the thread may be in a system call, which fails; otherwise its own trap follows.
pub fn resolve_for_another(region: &Region, page: usize, is_store: bool) -> bool {
    if is_store && !region.is_writable() {
        return region.forbid_stores(page);
    }
    match serve(region, page, is_store) {
        Outcome::Resolved => true,
        Outcome::PastEnd => false,
        Outcome::Failed(what, error) => {
            say(region, page, format_args!("cannot be served: {what} failed with error {error}"));
            false
        }
    }
}

/// Decides by the page's word what a trap means, or what a thread needs that asks before it touches the page (`pinning.rs`):
/// that one has signals blocked, as the handler has, and says itself what went wrong.
pub fn serve(region: &Region, page: usize, is_store: bool) -> Outcome {
    serve_access(region, page, is_store, None)
}

/// With the trap, if the access is a thread's that has trapped, and goes on behind its instruction or repeats it.
fn serve_access(region: &Region, page: usize, is_store: bool, trap: Option<signal::Trap>) -> Outcome {
    let word = region.word(page);
    let mut since = None;
    loop {
        let seen = word.look();
        match seen.state() {
            State::Absent if streams::is_coming(region, page, &mut since) => std::thread::yield_now(),
            State::Absent if word.begin_load(seen) => return load(region, page, seen.ghost(), is_store, trap),
            State::Absent => {}
            State::Staged => {
                let Some(ahead) = region.cache().ahead() else { continue };
                if ahead.touch(region, page, seen, is_store) == Touch::Wait
                    && let (Some(expected), Some(slot)) = (word.announce_waiter(seen), seen.slot())
                    && !ahead.is_claimable(slot)
                {
                    futex::wait(word.futex(), expected, None);
                }
            }
            // Another thread's installation came between this trap and now.
            State::Clean | State::Dirty if !is_store => return Outcome::Resolved,
            State::Unread if trap.is_some() && !is_store => return Outcome::Resolved,
            State::Unread if trap.is_some() && !seen.is_upgrading() => {
                if let Some(outcome) = behind::let_store(region, page, seen) {
                    return outcome;
                }
            }
            State::Unread if trap.is_some() => wait(region, page, seen),
            State::Kept if trap.is_some_and(|trap| behind::keep_another(region, page, seen, trap)) => {
                return Outcome::Resolved;
            }
            State::Unread | State::Kept => {
                if let (State::Kept, Some(behind)) = (seen.state(), region.behind()) {
                    behind.note_regret();
                }
                if let Err(error) = behind::await_read(region, page) {
                    return Outcome::Failed("reading it", error);
                }
            }
            State::Clean | State::Dirty if !seen.is_upgrading() => {
                if word.begin_upgrade(seen) {
                    return upgrade(region, page..page + 1);
                }
            }
            State::Loading | State::Evicting | State::Clean | State::Dirty => wait(region, page, seen),
        }
    }
}

/// Sleeps until another thread is done with a page that was seen so.
fn wait(region: &Region, page: usize, seen: Seen) {
    let (word, cache) = (region.word(page), region.cache());
    cache.cores[cache.here()].0.counters.waits.add(1);
    if let Some(expected) = word.announce_waiter(seen) {
        futex::wait(word.futex(), expected, None);
    }
}

/// Brings in a page that this thread claimed: one credit, one read, one installation.
fn load(region: &Region, page: usize, ghost: Option<Ghost>, is_store: bool, trap: Option<signal::Trap>) -> Outcome {
    if region.is_handed_over() {
        // The trap was taken before that; repeated, the access finds the kernel's mapping.
        return give_up(region, page, Outcome::Resolved);
    }
    let cache = region.cache();
    let core = cache.here();
    let is_hole = region.take_hole(page);
    // Before this page is read, so that reading ahead begins meanwhile. Where a hole is being filled there is nothing to read.
    if !(is_hole && is_store) {
        // Any service thread may serve a walk's next miss: one core's traces are for all of them.
        let traces = if faults::by_service() { 0 } else { core };
        streams::note_miss(cache, traces, region, page, is_store);
    }
    if let Err(error) = cache.take_credit(core) {
        return give_up(region, page, Outcome::Failed("writing back dirty pages to make room", error));
    }
    let counters = &cache.cores[core].0.counters;
    if let (true, false, Some(trap)) = (is_store, is_hole, trap)
        && let Some(outcome) = behind::go_on(region, page, core, trap)
    {
        if outcome != Outcome::Resolved {
            cache.release_credits(core, 1);
            return give_up(region, page, outcome);
        }
        counters.misses.add(1);
        region.counters_at(core).misses.add(1);
        return outcome;
    }
    // Where whole pages end now: a hole that somebody has cut off is no zeros but past the end.
    let whole = is_hole.then(|| region.store().write_end().map_or(0, |end| end as usize / PAGE));
    let whole = whole.filter(|end| page < *end);
    // Write-protected unless a store waits for it or is expected: the first store must trap to make the page Dirty. A hole
    // that is only read stays one.
    let control = !is_store && whole.is_none() && region.is_writable() && habits::is_control(page);
    let writable = is_store || !control && whole.is_none() && region.may_guess_store(page);
    let outcome = match whole {
        Some(_) => install(region, page, cache.zeros(), writable),
        None => {
            let buffer = cache.buffer(core);
            // SAFETY: the buffer is this thread's page.
            match unsafe { region.store().read_page(page, buffer.at) } {
                ReadEnd::PastEnd => Outcome::PastEnd,
                ReadEnd::Failed(error) => Outcome::Failed("reading it", error),
                ReadEnd::Filled => install(region, page, buffer.at, writable),
            }
        }
    };
    if outcome != Outcome::Resolved {
        cache.release_credits(core, 1);
        return give_up(region, page, outcome);
    }
    counters.misses.add(1);
    let of_file = region.counters_at(core);
    of_file.misses.add(1);
    let long = ghost.is_some_and(|ghost| cache.note_return(core, ghost));
    if long {
        of_file.ghost_hits.add(1);
    }
    finish(region, page, core, writable, control, long);
    if control {
        let wrong: u32 = region.habits_at(page).map(StoreHabit::note_load).sum();
        counters.wrong_guesses.add(wrong as usize * habits::CONTROLS);
    }
    if writable && !is_store {
        counters.guessed_stores.add(1);
    }
    if let Some(end) = whole {
        counters.born_zero.add(1);
        if is_store {
            fill_ahead(region, page, end.min(region.least_end().load(Ordering::Relaxed)), core);
        }
    }
    cache.note_progress();
    Outcome::Resolved
}

/// Makes a claimed page resident with the bytes at `from`.
fn install(region: &Region, page: usize, from: *const u8, writable: bool) -> Outcome {
    // The bit comes before the page: another thread may store to it and flush before this one goes on.
    if writable {
        region.word(page).begin_writable_install();
        region.dirty().set(page);
    }
    // SAFETY: an absent page of this region that the state Loading gives to this thread; `from` is a page.
    match unsafe { region.userfaultfd(page).copy_page(region.address_of(page), from, !writable) } {
        Ok(()) => Outcome::Resolved,
        Err(error) => Outcome::Failed("UFFDIO_COPY", error),
    }
}

/// Maps neighbouring pages that this thread has claimed (Loading, or Staged in a slot of its own) with the bytes at `from`,
/// and publishes them; how many it could. They are write-protected, but for those that are expected to be stored to. `long`: a
/// bit for each of the first 32 whose queue is the long one.
pub fn install_run(
    region: &Region,
    run: Range<usize>,
    from: *const u8,
    core: usize,
    expects_stores: bool,
    long: u32,
) -> usize {
    #[derive(PartialEq)]
    enum Kind {
        Protected,
        Control,
        Writable,
    }
    let kind = |page: usize| match () {
        () if !region.is_writable() => Kind::Protected,
        () if expects_stores && region.store().is_locked() => Kind::Writable,
        () if habits::is_control(page) => Kind::Control,
        () if region.may_guess_store(page) => Kind::Writable,
        () => Kind::Protected,
    };
    let counters = &region.cache().cores[core].0.counters;
    let mut start = run.start;
    while start < run.end {
        let kind_here = kind(start);
        let end = (start..run.end).find(|page| kind(*page) != kind_here).unwrap_or(run.end);
        let (writable, control) = (kind_here == Kind::Writable, kind_here == Kind::Control);
        if writable {
            // As in `install`: the bits come before the pages.
            for page in start..end {
                region.word(page).begin_writable_install();
                region.dirty().set(page);
            }
        }
        let bytes = from.wrapping_add((start - run.start) * PAGE);
        // SAFETY: absent pages of one stripe that are this thread's to install; as many bytes are there.
        let installed =
            unsafe { region.userfaultfd(start).copy_pages(region.address_of(start), bytes, end - start, !writable) };
        for page in start..start + installed {
            let long = long.checked_shr((page - run.start) as u32).is_some_and(|bits| bits & 1 != 0);
            finish(region, page, core, writable, control, long);
            if control {
                let wrong: u32 = region.habits_at(page).map(StoreHabit::note_load).sum();
                counters.wrong_guesses.add(wrong as usize * habits::CONTROLS);
            }
        }
        if writable {
            counters.guessed_stores.add(installed);
        }
        region.counters_at(core).brought.add(installed);
        start += installed;
        if start < end {
            break;
        }
    }
    start - run.start
}

/// Publishes an installed page.
pub fn finish(region: &Region, page: usize, core: usize, writable: bool, control: bool, long: bool) {
    let word = region.word(page);
    let after = word.finish_load(writable, control, long);
    if after.newly_dirty {
        region.cache().count_dirty(core);
    }
    if after.enqueue {
        region.cache().enqueue(core, region, page, after.long);
    }
    if after.wake {
        futex::wake_all(word.futex());
    }
}

/// A program that fills a hole from front to back: the pages behind the one it just stored to are installed writable, as
/// many as lie filled before it, so twice as many each time. They need no read, and one trap serves them all. Should the
/// program stop, at most as many pages of zeros as it wrote pages are written to the file in place of a hole.
fn fill_ahead(region: &Region, page: usize, end: usize, core: usize) {
    let cache = region.cache();
    let is_resident = |page: &usize| matches!(region.word(*page).look().state(), State::Clean | State::Dirty);
    let filled = (page.saturating_sub(MOST_AHEAD)..page).rev().take_while(is_resident).count();
    let (block, within) = (page / BLOCK_PAGES, page % BLOCK_PAGES);
    if block > 0 && within < filled && region.scratch().is_none() {
        // The block before is full, and who fills a file does not come back soon: writing it goes along with filling on.
        region.ages()[block - 1].store(RIPE, Ordering::Relaxed);
        cache.wake_writers();
    }
    let start = page + 1;
    let end = end.min(region.stripe_end(page)).min(start + filled.min(cache.most_ahead()));
    let mut claimed = start;
    while claimed < end && cache.take_spare_credit(core) {
        let word = region.word(claimed);
        let loading = word.begin_load(word.look());
        if !loading || !region.take_hole(claimed) {
            cache.release_credits(core, 1);
            if loading {
                unclaim(region, claimed);
            }
            break;
        }
        word.begin_writable_install();
        region.dirty().set(claimed);
        claimed += 1;
    }
    if claimed == start {
        return;
    }
    // SAFETY: absent pages of one stripe that the state Loading gives to this thread; as many zeros are there.
    let installed = unsafe {
        region.userfaultfd(start).copy_pages(region.address_of(start), cache.zeros(), claimed - start, false)
    };
    (start..start + installed).for_each(|page| finish(region, page, core, true, false, false));
    for page in start + installed..claimed {
        cache.release_credits(core, 1);
        unclaim(region, page);
    }
    cache.cores[core].0.counters.born_zero.add(installed);
    region.counters_at(core).brought.add(installed);
}

/// Un-claims a page that could not be loaded, for a reason that the caller returns.
fn give_up(region: &Region, page: usize, outcome: Outcome) -> Outcome {
    unclaim(region, page);
    outcome
}

/// Un-claims a page that is not loaded after all; whoever waits for it tries itself.
pub fn unclaim(region: &Region, page: usize) {
    let word = region.word(page);
    if word.abort_load().wake {
        futex::wake_all(word.futex());
    }
}

/// The first store to a clean page, or pins for writing of neighbours in one block: makes them writable, then Dirty. The
/// caller has set UPGRADING in each.
pub fn upgrade(region: &Region, pages: Range<usize>) -> Outcome {
    let cache = region.cache();
    let core = cache.here();
    let (start, len) = (region.address_of(pages.start), pages.len() * PAGE);
    pages.clone().for_each(|page| region.dirty().set(page));
    // SAFETY: resident pages of this region, of one stripe; UPGRADING lets no one drop them. A writer of
    // their neighbours may protect them once more, and then the store traps once more.
    let lifted = unsafe { region.userfaultfd(pages.start).write_protect(start, len, false) };
    cache.cores[core].0.counters.upgrades.add(pages.len());
    for page in pages {
        // On failure the page counts as dirty too, which is safe: it is written once too often.
        let word = region.word(page);
        let after = word.finish_upgrade();
        if after.newly_dirty {
            cache.count_dirty(core);
        }
        if after.wake {
            futex::wake_all(word.futex());
        }
        if after.control_stored {
            region.habits_at(page).for_each(StoreHabit::note_store);
        }
    }
    lifted.map_or_else(|error| Outcome::Failed("UFFDIO_WRITEPROTECT", error), |()| Outcome::Resolved)
}

/// A message built on the stack.
struct Line {
    text: [u8; 512],
    len: usize,
}

impl Line {
    fn push(&mut self, bytes: &[u8]) {
        let count = bytes.len().min(self.text.len() - self.len);
        self.text[self.len..self.len + count].copy_from_slice(&bytes[..count]);
        self.len += count;
    }
}

impl fmt::Write for Line {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        self.push(text.as_bytes());
        Ok(())
    }
}

/// Puts one line on standard error: the file, the offset, what is wrong with it.
pub fn say(region: &Region, page: usize, what: fmt::Arguments<'_>) {
    let mut line = Line { text: [0; 512], len: 0 };
    line.push(b"fastmap: ");
    let path = region.store().path().as_os_str().as_bytes();
    line.push(&path[..path.len().min(300)]);
    let _ = writeln!(line, ": page at offset {} {what}", page * PAGE);
    // SAFETY: writes our own bytes; a failure has nowhere to be told.
    unsafe { libc::syscall(libc::SYS_write, 2, line.text.as_ptr(), line.len) };
}

/// Ends the process over a broken promise of the kernel.
pub fn die(region: &Region, what: &'static str) -> ! {
    say(region, 0, format_args!("and others: {what}"));
    std::process::abort()
}
