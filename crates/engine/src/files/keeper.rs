//! The keeper: what the program stored reaches the file, whatever ends the program.
//!
//! The keeper is a process that shares the program's memory and descriptors, made with the first mutable map. It sleeps on one word. A thread of
//! the program, `fastmap-watch`, only exists: when it ends, the kernel clears the word and wakes the keeper. That happens at exit, at any deadly
//! signal (after the core dump), and at exec(2), so one event stands for all of them. The keeper then
//!
//! 1. waits until the program's other threads are out of their system calls and its rings are empty: a write still in flight could otherwise
//!    land on top of a newer one;
//! 2. takes a write lease of each file, if nobody else has it open: who opens the file meanwhile waits in open(2), and neither sees it half
//!    written nor is overwritten;
//! 3. writes every page that may hold stores;
//! 4. gives up the files' locks, and ends.
//!
//! The threads may have died anywhere, inside the allocator or with a lock held. So the keeper allocates nothing, takes no lock, and goes by the
//! page words: their transitions leave no moment at which a page holds stores and its word does not say so.

use crate::counters::stats::Counter;
use crate::deferred::fill_thread::FillThread;
use crate::deferred::protocol::{self, DeferredStores};
use crate::deferred::store_buffers::{Holds, StoreBuffers};
use crate::files::{children, closing};
use crate::page::word::{Seen, State};
use crate::pool::rings::Rings;
use crate::region::region::Region;
use crate::region::{registry, report, userfaultfds};
use crate::store::{ReadEnd, one_writer};
use crate::sys::signal::Blocked;
use crate::sys::{PAGE, cgroup, confine, engine_fd, file, memory, process, rights, survival};
use crate::writeback::flight::MOST_RUN;
use std::fs::File;
use std::io::Write;
use std::ops::Range;
use std::os::fd::{AsRawFd, RawFd};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicI32, AtomicU32, Ordering};
use std::sync::{Once, OnceLock, mpsc};
use std::time::{Duration, Instant};

/// Not zero while the program lives: the kernel clears it.
static ALIVE: AtomicU32 = AtomicU32::new(0);
/// The keeper's report: [`NOT_YET`]; 0 once it is confined; or the error number for which it could not be confined, and has ended.
static CONFINED: AtomicI32 = AtomicI32::new(NOT_YET);
const NOT_YET: i32 = -1;
/// The process id of the program.
static PROGRAM: AtomicI32 = AtomicI32::new(0);
/// The process id of the keeper, from [`CONFINED`] on.
static KEEPER: AtomicI32 = AtomicI32::new(0);
/// How far the keeper's dismissal is: 0, [`ASKED`] or [`GONE`].
static DISMISSED: AtomicU32 = AtomicU32::new(0);
/// The keeper is asked to end.
const ASKED: u32 = 1;
/// The keeper has ended.
const GONE: u32 = 2;

/// Starts the process's keeper, once. On return it watches. Without one (no process to be had, a seccomp filter) the
/// program goes on as it would with the keeper turned off.
pub fn start() {
    static STARTED: Once = Once::new();
    STARTED.call_once(|| {
        if std::process::id() == 1 {
            // The kernel kills everything in a container with its first process.
            return tracing::warn!("no keeper for PID 1 of a container: only what is flushed survives its sudden end");
        }
        if let Some(peril) = survival::peril() {
            tracing::warn!("only what is flushed is sure to survive a sudden end of this process: {peril}");
        }
        if let Err(error) = watch() {
            return tracing::warn!(%error, "no keeper: only what is flushed survives a sudden end of this process");
        }
        if let Err(error) = cgroup::keep_apart(KEEPER.load(Ordering::Acquire)) {
            tracing::warn!(%error, "the keeper stays in the control group: a kill of all of that ends it, too");
        }
        if let Some(file) = REGISTER.get()
            && let Err(error) = register(file)
        {
            tracing::warn!(%error, file = %file.display(), "the keeper is not noted: nobody waits for it after this process's end");
        }
    });
}

/// Whether there is a keeper: it saves what is stored, whatever ends this process, and tells children that wait for that.
pub fn is_running() -> bool {
    CONFINED.load(Ordering::Acquire) == 0
}

/// The file in which the keeper of this process is to be noted: [`register_in`].
static REGISTER: OnceLock<PathBuf> = OnceLock::new();

/// What /proc shows of it: a file in memory (memfd_create(2)).
const REGISTERS_NAME: &str = "/memfd:fastmap-keepers (deleted)";

/// The keeper, when it starts, is noted in this file, a memfd of the name `fastmap-keepers`: the process ids of program and keeper are appended, four
/// bytes each. For who waits for all keepers; a map waits for those of its file by itself.
pub fn register_in(file: &Path) {
    let _ = REGISTER.set(file.to_owned());
}

fn register(path: &Path) -> std::io::Result<()> {
    let ids = [&PROGRAM, &KEEPER].map(|id| id.load(Ordering::Acquire).to_ne_bytes());
    let _low = engine_fd::low();
    let mut options = File::options();
    let mut found = options.append(true).custom_flags(libc::O_NONBLOCK | libc::O_NOCTTY).open(path)?;
    // Its maker may have ended, and the maker's number be another process's.
    if file::path_of(&found) != Path::new(REGISTERS_NAME) {
        return Err(std::io::ErrorKind::NotFound.into());
    }
    found.write_all(ids.as_flattened())
}

fn watch() -> std::io::Result<()> {
    PROGRAM.store(std::process::id() as i32, Ordering::Release);
    let (tell, told) = mpsc::sync_channel(1);
    let body = move || {
        // With the program's rights the keeper lifts its limit on the size of files, before it is confined.
        let own = rights::Own::begin(true);
        process::note_death_in(&ALIVE);
        let made = process::spawn_sharing(keep).and_then(|()| {
            // This takes a moment. A keeper that is killed in it is no worse than one that is killed later.
            let deadline = Instant::now() + Duration::from_secs(5);
            while CONFINED.load(Ordering::Acquire) == NOT_YET && Instant::now() < deadline {
                process::pause();
            }
            match CONFINED.load(Ordering::Acquire) {
                0 => Ok(()),
                error => Err(if error == NOT_YET { libc::ETIMEDOUT } else { error }),
            }
        });
        own.give_up();
        let last = if made.is_ok() { GONE } else { ASKED };
        let _ = tell.send(made);
        // The keeper uses this thread's errno, so the thread outlives it. Without a keeper the thread stays all the same. (The C library never
        // uses the stack of this thread again, since the kernel clears another word than the library's.)
        process::await_value(&DISMISSED, last);
    };
    // Thread and keeper inherit the mask: no signal ever comes to either.
    let _blocked = Blocked::all();
    std::thread::Builder::new().name(one_writer::KEEPERS_THREAD.into()).spawn(body)?;
    let made = told.recv().map_err(std::io::Error::other)?;
    made.map_err(std::io::Error::from_raw_os_error)
}

/// Ends keeper and thread: nothing is left to be saved, and nothing more is mapped.
pub fn dismiss() {
    CONFINED.store(NOT_YET, Ordering::Release);
    process::set_value(&DISMISSED, ASKED);
    process::set_value(&ALIVE, 0);
}

/// The keeper's life.
extern "C" fn keep(_: *mut libc::c_void) -> libc::c_int {
    process::name_and_detach(one_writer::KEEPER);
    file::lift_write_limit();
    let confined = confine::confine(PROGRAM.load(Ordering::Acquire) as u32);
    KEEPER.store(std::process::id() as i32, Ordering::Release);
    CONFINED.store(confined.err().unwrap_or(0), Ordering::Release);
    if confined.is_err() {
        return 1;
    }
    process::await_death(&ALIVE);
    if DISMISSED.load(Ordering::Acquire) == ASKED {
        // The keeper's last access to the thread's memory.
        process::set_value(&DISMISSED, GONE);
        return 0;
    }
    process::close_descriptors(next_needed);
    process::await_alone(PROGRAM.load(Ordering::Acquire));
    rings().for_each(Rings::await_writes);
    // Entering a region counts the keeper among its users: nobody is left to wait for it.
    for region in writable() {
        if region.pool().keeper {
            save(&region);
        }
    }
    // After all pages are saved: a file that had a growing map has two regions.
    writable().for_each(|region| region.store().unlock());
    children::note_saved();
    0
}

/// The regions that may hold stores that somebody wants.
fn writable() -> impl Iterator<Item = registry::InUse<'static>> {
    registry::all().filter(|region| region.is_writable() && region.scratch().is_none())
}

/// The rings that writes of the program's may be in flight in.
fn rings() -> impl Iterator<Item = &'static Rings> {
    // SAFETY: neither region nor cache goes away any more.
    writable().filter_map(|region| unsafe { &*std::sync::Arc::as_ptr(region.pool()) }.writers()?.rings())
}

/// The first descriptor at or after `from` that the keeper needs.
fn next_needed(from: RawFd) -> Option<RawFd> {
    let at_least = |descriptors: &mut dyn Iterator<Item = RawFd>| descriptors.filter(|one| *one >= from).min();
    let of_rings = rings().filter_map(|rings| at_least(&mut rings.descriptors()));
    writable()
        .filter_map(|region| at_least(&mut region.descriptors()))
        .chain(of_rings)
        .chain(at_least(&mut std::iter::once(libc::STDERR_FILENO)))
        .min()
}

/// Writes every page of a region that may hold stores.
fn save(region: &Region) {
    let end = match region.store().write_end() {
        Ok(end) => end,
        Err(error) => return report::say(region, 0, format_args!("and others cannot be saved: error {error}")),
    };
    let pages = (end as usize).div_ceil(PAGE).min(region.span() / PAGE);
    let mut lost = None;
    hold_up_others(region, pages);
    // First the store buffers: a page that is in the program's memory as well is newer there, and is written later.
    save_buffered(region, pages, end, &mut lost);
    let has_initial = protocol::of(region).and_then(DeferredStores::initial).is_some();
    // Or may be Unfilled: the thread that was installing or removing the page has died.
    let is_unfilled = |seen: Seen| match seen.state() {
        State::Unfilled => true,
        State::Loading | State::Evicting => has_initial && seen.is_upgrading(),
        _ => false,
    };
    if has_initial {
        let unfilled = (0..pages).filter(|page| is_unfilled(region.word(*page).look()));
        unfilled.for_each(|page| save_unfilled(region, page, end, &mut lost));
    }
    let unsaved = |page: &usize| {
        let seen = region.word(*page).look();
        seen.may_hold_stores() && seen.state() != State::Buffered && !is_unfilled(seen)
    };
    let mut at = 0;
    while let Some(start) = (at..pages).find(unsaved) {
        at = (start..pages.min(start + MOST_RUN)).find(|page| !unsaved(page)).unwrap_or(pages.min(start + MOST_RUN));
        if userfaultfds::by_service() {
            close_gaps(region, start..at);
        }
        write(region, start..at, end, &mut lost);
    }
    if let Some(Lost { page, pages, error }) = lost {
        report::say(region, page, format_args!("cannot be saved: error {error}; stores to {pages} pages are lost"));
    }
}

/// Holds up who opens the file until the keeper ends, by a write lease. The kernel gives it to the file's only open file description, so the
/// store's others are replaced by that one, which writes to the page cache; not where that would be much.
fn hold_up_others(region: &Region, pages: usize) {
    /// The program's descriptors are closed a moment after its memory was left.
    const TRIES: usize = 50;
    let Some(only) = region.store().writer() else { return };
    let is_stored = |page: &usize| region.word(*page).look().may_hold_stores();
    if !(1..=closing::MOST_HANDED_OVER).contains(&(0..pages).filter(is_stored).count()) {
        return;
    }
    let others = region.store().descriptors().into_iter().flatten().filter(|one| *one != only.as_raw_fd());
    others.for_each(|other| process::replace_descriptor(only, other));
    for _ in 0..TRIES {
        if file::lease_to_write(only) != Err(libc::EAGAIN) {
            return;
        }
        process::pause_for(100_000);
    }
}

/// Pages that could not be saved.
struct Lost {
    /// The first.
    page: usize,
    pages: usize,
    /// Its error number.
    error: i32,
}

/// Writes what store buffers hold of a region's pages: stores, laid over the file's bytes, or whole pages that were out of memory.
fn save_buffered(region: &Region, pages: usize, end: u64, lost: &mut Option<Lost>) {
    let Some(buffers) = FillThread::of(region.pool()).map(FillThread::buffers) else { return };
    for (number, entry, holds) in buffers.contents() {
        let page = entry.page();
        if entry.region() != region.id() || page >= pages {
            continue;
        }
        let saved = match holds {
            Holds::Page => write_from(region, page, buffers.page(number), end),
            Holds::Stores => with_file(region, page, end, buffers, |bytes| {
                // SAFETY: the keeper's page; nobody is left to put stores into the buffer.
                unsafe { buffers.lay_over(number, bytes) };
            }),
        };
        note(lost, page, saved);
    }
}

/// Writes the lines of an Unfilled page that do not hold the initial value.
fn save_unfilled(region: &Region, page: usize, end: u64, lost: &mut Option<Lost>) {
    let (Some(buffers), Some(initial)) = (
        FillThread::of(region.pool()).map(FillThread::buffers),
        protocol::of(region).and_then(DeferredStores::initial),
    ) else {
        return;
    };
    if userfaultfds::by_service() {
        close_gaps(region, page..page + 1);
    }
    let stored = region.address_of(page);
    // A page that had left memory before the program died is in a store buffer.
    if memory::is_readable(stored as usize) {
        let saved = with_file(region, page, end, buffers, |bytes| {
            // SAFETY: resident, and nobody is left to store to it.
            unsafe { protocol::take_over(initial, stored, bytes) };
        });
        note(lost, page, saved);
    }
}

/// Writes a page: the file's bytes after `change`.
fn with_file(
    region: &Region,
    page: usize,
    end: u64,
    buffers: &StoreBuffers,
    change: impl FnOnce(*mut u8),
) -> Result<(), i32> {
    let bytes = buffers.keepers();
    // SAFETY: the keeper's own page.
    match unsafe { region.store().read_page(page, bytes, &Counter::default()) } {
        ReadEnd::Failed(error) => return Err(error),
        ReadEnd::PastEnd => return Ok(()),
        ReadEnd::Filled => {}
    }
    change(bytes);
    write_from(region, page, bytes, end)
}

fn write_from(region: &Region, page: usize, bytes: *const u8, end: u64) -> Result<(), i32> {
    // SAFETY: a page of the store buffers' or the keeper's.
    unsafe { region.store().write_pages(page, bytes, 1, end) }
}

fn note(lost: &mut Option<Lost>, page: usize, saved: Result<(), i32>) {
    if let Err(error) = saved {
        lost.get_or_insert(Lost { page, pages: 0, error }).pages += 1;
    }
}

/// Makes reads by the kernel fail at pages that may be absent: nobody is left to bring them in, and the kernel would wait for ever. Pages that
/// are there stay.
fn close_gaps(region: &Region, run: Range<usize>) {
    let may_be_absent =
        |page: &usize| matches!(region.word(*page).look().state(), State::Loading | State::Evicting | State::Staged);
    for page in run.filter(may_be_absent) {
        // SAFETY: a page of this region that nobody uses any more.
        let _ = unsafe { region.userfaultfd(page).poison(region.address_of(page)) };
    }
}

/// Writes a run; where that fails, each of its pages.
fn write(region: &Region, run: Range<usize>, end: u64, lost: &mut Option<Lost>) {
    // SAFETY: the kernel may read the pages, or finds them absent and says so (EFAULT).
    match unsafe { region.store().write_pages(run.start, region.address_of(run.start), run.len(), end) } {
        Ok(()) => {}
        Err(_) if run.len() > 1 => run.for_each(|page| write(region, page..page + 1, end, lost)),
        // A thread that died had claimed the page and not installed it, so there was nothing to store to. Or the page was out of memory, so it
        // was saved.
        Err(libc::EFAULT)
            if matches!(region.word(run.start).look().state(), State::Loading | State::Evicting | State::Staged) => {}
        Err(error) => note(lost, run.start, Err(error)),
    }
}
