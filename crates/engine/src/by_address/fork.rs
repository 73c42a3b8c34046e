//! fork(2): what is done before and after it; and files that become the kernel's because others write them.

use super::convert::convert;
use super::lookup::{MAPS, publish};
use super::own::{self, look, own};
use super::table::{Piece, Table};
use super::why::Why;
use crate::coherence::MappedFile;
use crate::fault::child::{self, ChildMap};
use crate::files::children::InheritedPart;
use crate::files::{children, keeper, leases};
use crate::region::registry;
use crate::sys::file::{self, Identity};
use crate::sys::signal::Blocked;
use crate::sys::{PAGE, descriptor_table, engine_fd, fork, threads};
use crate::writeback::flush;
use std::fs::File;
use std::mem::ManuallyDrop;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// Writes every dirty page to its file, as far as that is possible, before somebody else reads the files.
pub fn save_all() {
    let to_save = |region: &registry::InUse<'_>| region.is_ours() && region.is_writable() && region.scratch().is_none();
    for region in registry::all().filter(to_save) {
        // Pages that cannot be written stay dirty, and the next flush returns the error.
        let _ = flush::write_out(&region, 0..region.span() / PAGE);
    }
}

/// The thread that forks, while it does.
struct Forking {
    /// Its signals are blocked until this is dropped.
    _blocked: Blocked,
    /// The engine runs, so it will not run in the child, and the table is owned. Else the child keeps the table: it notes kernel mappings, which
    /// the child has, too.
    engine_runs: bool,
}

static FORKING: Mutex<Option<Forking>> = Mutex::new(None);

/// Called before fork(2). Writes dirty pages, for children that read files, and freezes the table, with signals blocked, until [`in_parent`] or
/// [`in_child`]. Does nothing in a child, which has no engine.
pub fn before_fork() {
    if fork::is_child() {
        return;
    }
    save_all();
    // If this process were killed, nobody would tell the child when all is in the files. Or the child could not be told apart. So the files are
    // converted now, and there is nothing to tell.
    let (has_keeper, has_anchor) = (keeper::is_running(), descriptor_table::anchor().is_some());
    let is_left = |piece: &Piece| !has_keeper && piece.share.region.is_writable() || !has_anchor && !piece.is_objects();
    if !(has_keeper && has_anchor) && look(|table| table.pieces().iter().any(is_left)) {
        let _ = answer();
    }
    let blocked = Blocked::all();
    // The owner may be starting the engine's threads, which takes memory of the program's allocator, whose locks this thread may have: with the
    // first map it is not waited for.
    let engine_runs = fork::is_claimed();
    // Kept until the table is frozen: nobody maps a file in between.
    let owner = engine_runs.then(own);
    owner.iter().for_each(|owner| owner.change(Table::note_inherited));
    own::freeze(engine_runs);
    drop(owner);
    if engine_runs {
        // SAFETY: this thread froze it.
        let table = unsafe { MAPS.frozen() };
        child::before_fork(objects(table));
        children::before_fork(parts(table), keeper::is_running());
    }
    *FORKING.lock().unwrap_or_else(|poison| poison.into_inner()) = Some(Forking { _blocked: blocked, engine_runs });
}

/// In a child made by fork(2): whether part of a range is a map of an object, which can only be read.
///
/// ```
/// assert!(!fastmap::by_address::is_object_in_child(&0 as *const i32 as usize, 4));
/// ```
pub fn is_object_in_child(addr: usize, len: usize) -> bool {
    fork::is_child() && child::meets(&(addr..addr.saturating_add(len)))
}

/// The maps of objects that a child is to find.
fn objects(table: &Table) -> Vec<ChildMap> {
    let is_inherited = |piece: &&Piece| !piece.not_in_children && piece.is_objects();
    let of = |piece: &Piece| {
        let region = &piece.share.region;
        let (fd, origin) = (region.store().reader().as_raw_fd(), region.store().origin()?.clone());
        let (offset, capacity) = (piece.pages().start * PAGE, region.pool().capacity() * PAGE);
        Some(ChildMap::new(piece.at.clone(), offset as u64, region.store().size(), origin, fd, capacity))
    };
    table.pieces().iter().filter(is_inherited).filter_map(of).collect()
}

/// The parts of files that a child is to find.
fn parts(table: &Table) -> Vec<InheritedPart> {
    let is_inherited = |piece: &&Piece| !piece.not_in_children && !piece.is_objects();
    let mut kept: Vec<_> = table.pieces().iter().filter(is_inherited).map(|piece| piece.at.clone()).collect();
    kept.sort_by_key(|at| at.start);
    kept.dedup();
    let mut parts: Vec<InheritedPart> = Vec::new();
    for (at, prot) in kept.iter().flat_map(|at| table.protections(at)) {
        let Some((piece, _)) = table.meeting(&at).next() else { continue };
        // SAFETY: the parent's, until it is thawed; the child's copy is never dropped.
        let region = unsafe { &*Arc::as_ptr(&piece.share.region) };
        let (fd, kind) = (piece.share.descriptor().unwrap_or(-1), piece.share.kind);
        let offset = (region.address().page_at(at.start) * PAGE) as i64;
        if !parts.iter().any(|part| part.at == at) {
            parts.push(InheritedPart {
                at: at.clone(),
                prot,
                kind,
                fd,
                offset,
                identity: piece.share.identity,
                region,
            });
        }
    }
    parts
}

/// Called after fork(2), in the parent, also when it failed.
///
/// # Safety
/// [`before_fork`] came before, in this thread.
pub unsafe fn in_parent() {
    if fork::is_child() {
        return;
    }
    let Some(forking) = FORKING.lock().unwrap_or_else(|poison| poison.into_inner()).take() else { return };
    if forking.engine_runs {
        children::after_fork();
        child::after_fork();
    }
    // SAFETY: the caller's contract.
    unsafe { own::thaw(forking.engine_runs) };
}

/// Starts, with the first map, the thread that answers children which want to see what is stored here. The thread cannot be started around a
/// fork, when other libraries' handlers hold their locks: a thread's start takes memory of the program's allocator.
///
/// # Errors
/// There is no memory, or no thread: children would wait for ever.
pub fn expect_children() -> std::io::Result<()> {
    static STARTED: Mutex<bool> = Mutex::new(false);
    // It inherits the mask: no signal of the program's comes to it.
    let _blocked = Blocked::all();
    let mut started = STARTED.lock().unwrap_or_else(|poison| poison.into_inner());
    if !*started {
        children::make_link()?;
        let thread = std::thread::Builder::new().name("fastmap-fork".into()).stack_size(256 << 10);
        thread.spawn(threads::named(|| children::serve(answer)))?;
        *started = true;
    }
    Ok(())
}

/// Converts every mapped file for good: a child wants to share what is stored to it with this process.
fn answer() -> Result<(), i32> {
    /// For pages that are pinned for the time of a system call, and disks that are full for a moment.
    const PATIENCE: Duration = Duration::from_secs(5);
    let start = Instant::now();
    // Maps of objects stay: children have their own.
    let next =
        || look(|table| table.pieces().iter().find(|piece| !piece.is_objects()).map(|piece| piece.share.identity));
    while let Some(identity) = next() {
        match share(identity, Why::Forked) {
            Ok(()) => {}
            Err(error) if start.elapsed() > PATIENCE => return Err(error),
            Err(_) => std::thread::sleep(Duration::from_millis(20)),
        }
    }
    Ok(())
}

/// Called before this process opens a file by its name to write or cut it. A file that is the engine's by a lease is converted, and `None`
/// returned. Otherwise the lease would make the call wait for the conversion, and its caller may hold what the conversion needs.
pub fn to_be_written(file: MappedFile) -> Option<MappedFile> {
    let identity = file.region().store().identity();
    if !leases::is_held(identity) {
        return Some(file);
    }
    drop(file);
    let _ = patiently(|| convert(&own(), identity, Why::Written).map_err(|error| error.errno()));
    None
}

/// Converts a file that somebody waits to write. What maps it once all of its maps are gone may have a lease again. False: pages are pinned.
pub fn give_back(identity: Identity) -> bool {
    convert(&own(), identity, Why::Written).is_ok()
}

/// Waits for pages that are pinned for a moment.
fn patiently(mut attempt: impl FnMut() -> Result<(), i32>) -> Result<(), i32> {
    const LOOKS: usize = 100;
    let mut done = attempt();
    for _ in 0..LOOKS {
        if done.is_ok() {
            return done;
        }
        std::thread::sleep(Duration::from_millis(20));
        done = attempt();
    }
    tracing::warn!("a file that others write stays in the cache: its pages are pinned");
    done
}

/// Converts the file behind a descriptor for good, for example before the program locks all of it (fcntl(2)), where the engine itself has a lock
/// on one byte. A file that is not in the engine stays as it is.
///
/// # Errors
/// The error number for which it stays in the engine: pages are pinned, or cannot be saved.
pub fn leave_descriptor_to_kernel(fd: BorrowedFd<'_>, why: Why) -> Result<(), i32> {
    // SAFETY: borrowed for as long as it is used here; never closed.
    let from = ManuallyDrop::new(unsafe { File::from_raw_fd(fd.as_raw_fd()) });
    match file::facts(&from) {
        Ok(facts) => patiently(|| share(facts.identity, why)),
        Err(_) => Ok(()),
    }
}

fn share(identity: Identity, why: Why) -> Result<(), i32> {
    // Before the conversion, so that a map which is made meanwhile is the kernel's too.
    let owner = own();
    owner.change(|table| table.leave_to_kernel(identity));
    convert(&owner, identity, why).map_err(|error| error.errno())
}

/// Called after fork(2), in the child. The child finds its parent's maps at the same addresses, as kernel mappings, as soon as it touches them
/// (`files/children.rs`). All maps that it makes itself are kernel mappings, too.
///
/// # Safety
/// [`before_fork`] came before, in the thread that this child is made of.
pub unsafe fn in_child() {
    engine_fd::in_child();
    let Some(forking) = FORKING.try_lock().ok().and_then(|mut forking| forking.take()) else {
        // A child's child: the parent did nothing before.
        return children::in_grandchild();
    };
    // SAFETY: the caller says that this is the child of the thread that froze it. Signals stay blocked until `forking` goes.
    unsafe { own::thaw(forking.engine_runs) };
    if !forking.engine_runs {
        own::disown_in_child();
    }
    // It may have begun to run after the table was frozen.
    if forking.engine_runs || fork::is_child() {
        // Regions and locks are the parent's: never dropped here.
        MAPS.with(|table| {
            std::mem::forget(std::mem::take(table));
            publish(table);
        });
        children::in_child();
    }
}

/// In a child made by fork(2): converts its parent's maps to kernel mappings now, in both processes, and not when they are touched. Called
/// before the child gives up the rights that this takes (seccomp(2)). Does nothing elsewhere.
pub fn resolve_in_child() {
    if children::is_pending() {
        children::resolve();
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::by_address::{self, Request};
    use crate::{Cache, Fallback};
    use std::os::fd::AsFd;

    const LEN: usize = 16 * PAGE;

    #[test]
    fn a_file_that_a_child_has_from_the_kernel_stays_the_kernels() {
        let folder = std::env::current_exe().unwrap();
        let file = tempfile::tempfile_in(folder.parent().unwrap()).unwrap();
        file.set_len(LEN as u64).unwrap();
        if let Some(missing) = crate::requirements::missing() {
            return crate::effort::skip(format!("{} is missing", missing.name));
        }
        let cache = Cache::new(Cache::MIN_CAPACITY).unwrap();
        let prot = libc::PROT_READ | libc::PROT_WRITE;
        let request = Request {
            addr: 0,
            len: LEN,
            prot,
            flags: libc::MAP_SHARED,
            offset: 0,
            one_writer: true,
            own: true,
            fallback: Fallback::Buffered,
            async_stores: false,
            layers: false,
        };
        // SAFETY: nobody else has the file, or a reference into its maps.
        let map = || unsafe { by_address::map(file.as_fd(), &cache, &request) }.unwrap().map(|at| at as usize);
        for is_forked in [false, true] {
            let at = map().expect("it is the engine's, also after it was the kernel's");
            // SAFETY: likewise.
            unsafe {
                // A part with a protection of its own is the kernel's.
                assert_eq!(by_address::protect(at, PAGE, libc::PROT_READ), Ok(()));
                assert!(!by_address::is_cached(at, LEN));
                if is_forked {
                    // As before fork(2).
                    own().change(Table::note_inherited);
                }
                assert_eq!(by_address::unmap(at, LEN), Ok(()));
            }
        }
        assert_eq!(map(), None);
    }
}
