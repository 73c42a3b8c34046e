//! Which files are mapped: opening, sharing and replacing their regions. `closing.rs` ends them.

use crate::deferred::protocol::{self, DeferredMode, DeferredStores};
use crate::error::{Error, Result, tell_of_fallback};
use crate::fault::handler;
use crate::files::{children, closing, keeper, length, lifecycle};
use crate::modes::Fallback;
use crate::pool::pool::Pool;
use crate::region::address::Place;
use crate::region::region::Region;
use crate::requirements::{self, Requirement};
use crate::store::{self, one_writer};
use crate::sys::sync::Ordering;
use crate::sys::{PAGE, descriptor_table, file, fork, madvise, memory};
use crate::writeback::flush;
use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::fs::File;
use std::ops::Range;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock};

pub(super) struct Mapped {
    pub(super) region: Arc<Region>,
    pub(super) maps: usize,
    /// Those of them that were made by address.
    pub(super) by_address: usize,
    /// Its last map is gone, or is to have a larger region, and its dirty pages are on their way to the file.
    pub(super) closing: bool,
}

#[derive(Default)]
pub(super) struct Files {
    table: Mutex<HashMap<file::Identity, Mapped>>,
    pub(super) closed: Condvar,
}

static FILES: OnceLock<Files> = OnceLock::new();

impl Files {
    pub(super) fn get() -> (&'static Files, MutexGuard<'static, HashMap<file::Identity, Mapped>>) {
        let files = FILES.get_or_init(Files::default);
        (files, files.table.lock().unwrap_or_else(|poison| poison.into_inner()))
    }
}

/// How a file is to be mapped.
#[derive(Debug, Clone, Copy)]
pub struct AttachOptions<'a> {
    pub pool: Option<&'a Arc<Pool>>,
    pub writable: bool,
    pub one_writer: bool,
    pub fallback: Fallback,
    /// The place of the region, if it has to be made.
    pub place: Place,
    /// The region, if it has to be made, only borrows the space of its file (`region/saved.rs`).
    pub scratch: bool,
    /// The map itself sets the protection of its addresses (`Region::is_by_address`).
    pub by_address: bool,
    /// How the map wants stores to absent pages to be served.
    pub deferred: DeferredMode,
}

/// Whether a file is in the engine.
pub fn is_cached(identity: file::Identity) -> bool {
    Files::get().1.contains_key(&identity)
}

/// Locks the table of files until dropped. No other thread extends a file meanwhile.
pub fn lock() -> impl Sized {
    Files::get().1
}

/// Finds or makes the region of a file, for one map more of its first `need` bytes; `open` opens the store of a new
/// one. `None`: map it through the kernel.
pub fn attach(
    from: &File,
    facts: &file::Facts,
    need: usize,
    options: AttachOptions<'_>,
    open: store::Open<'_>,
) -> Result<Option<Arc<Region>>> {
    let AttachOptions { pool, writable, one_writer, fallback, place, scratch, by_address, deferred } = options;
    if !fork::is_child() && !descriptor_table::is_engines() {
        let error = Error::in_another_table(&file::path_of(from));
        // A kernel mapping beside cached ones would not agree with them.
        if fallback != Fallback::Kernel || is_cached(facts.identity) {
            return Err(error);
        }
        tell_of_fallback(&error, by_address);
        return Ok(None);
    }
    let (files, mut table) = Files::get();
    let settled = |mapped: &Mapped| !writable || mapped.region.store().is_locked();
    if one_writer && !table.get(&facts.identity).is_some_and(settled) {
        drop(table);
        one_writer::wait_for_keeper(from);
        table = Files::get().1;
    }
    if table.get(&facts.identity).is_some_and(|mapped| !mapped.region.is_ours()) {
        // A child made by fork(2): the entry is its parent's.
        drop(table);
        return if fallback == Fallback::Kernel { Ok(None) } else { Err(Error::in_a_child(&file::path_of(from))) };
    }
    while table.get(&facts.identity).is_some_and(|entry| entry.closing) {
        table = files.closed.wait(table).unwrap_or_else(|poison| poison.into_inner());
    }
    let mapped = match table.entry(facts.identity) {
        Entry::Occupied(entry) => entry.into_mut(),
        Entry::Vacant(entry) => {
            let Some(direct) = check(from, need, fallback, by_address)? else { return Ok(None) };
            let pool = pool.map_or_else(Pool::global, |pool| Ok(pool.clone()))?;
            descriptor_table::claim();
            let store = Arc::from(open(from, facts, direct)?);
            madvise::prepare();
            handler::resolve_children_by(children::resolve);
            handler::install().map_err(|source| Error::Io {
                path: file::path_of(from),
                operation: "install a SIGBUS handler to serve its page faults",
                source,
            })?;
            let region = lifecycle::open(pool, store, need, place, scratch, by_address)?;
            // A write(2) that found no region may have begun. A page that is read before that write ends would be written back without it.
            file::await_changes(from);
            entry.insert(Mapped { region, maps: 0, by_address: 0, closing: false })
        }
    };
    let region = mapped.region.clone();
    let prepared = length::follow(&region).and_then(|()| {
        // A map that was not made by address cannot have foreign memory between its pages.
        if need > region.span() || !by_address && region.address().has_foreign(&(0..need)) {
            return Err(Error::Outgrown { path: file::path_of(from), span: region.span() as u64 });
        }
        // Bytes that were not mapped may have been written by others.
        region.distrust(0);
        region.least_end().fetch_min(need / PAGE, Ordering::AcqRel);
        region.store().note_mapped(need);
        if !by_address {
            lifecycle::open_addresses(&region)?;
        }
        if writable {
            let_write(&region, from, one_writer).and_then(|()| protocol::grant(&region, deferred))
        } else {
            Ok(())
        }
    });
    mapped.maps += 1;
    mapped.by_address += usize::from(by_address);
    if let Err(error) = prepared {
        drop(table);
        closing::detach(facts.identity, region, by_address);
        return Err(error);
    }
    Ok(Some(region))
}

/// Allows stores to a region, through a descriptor that may write, and ensures that they reach the file, whatever ends the process.
pub fn let_write(region: &Region, from: &File, one_writer: bool) -> Result<()> {
    if !descriptor_table::is_engines() {
        return Err(Error::in_another_table(region.store().path()));
    }
    lifecycle::allow_writing(region, from, one_writer)?;
    closing::save_at_exit();
    if region.pool().keeper && region.scratch().is_none() {
        keeper::start();
    }
    Ok(())
}

/// Gives the only map of a file a region that can hold `need` bytes of it. With an extension (a part of the file, and whether disk space is
/// reserved for it) the file is made longer first.
///
/// All that can fail comes first: the old region, its pages clean, ends when the new one is ready. Until then a thread that maps the file waits,
/// as for a file that is closing.
pub fn replace(
    identity: file::Identity,
    old: &Arc<Region>,
    need: usize,
    extension: Option<(Range<u64>, bool)>,
) -> Result<Arc<Region>> {
    {
        let (_, mut table) = Files::get();
        match table.get_mut(&identity) {
            // The pages of a scratch region would have to move to the new one. So a scratch region is made as large as it will ever be.
            Some(entry) if entry.maps == 1 && old.scratch().is_none() => entry.closing = true,
            _ => return Err(Error::Outgrown { path: old.store().path().to_owned(), span: old.span() as u64 }),
        }
    }
    let replaced = larger(old, need, extension);
    if let Ok(new) = &replaced {
        lifecycle::dissolve(old);
        new.writes().unsaved().store(old.writes().unsaved().load(Ordering::Acquire), Ordering::Release);
    }
    let (files, mut table) = Files::get();
    if let Some(entry) = table.get_mut(&identity) {
        entry.closing = false;
        if let Ok(new) = &replaced {
            entry.region = new.clone();
        }
    }
    files.closed.notify_all();
    replaced
}

fn larger(old: &Arc<Region>, need: usize, extension: Option<(Range<u64>, bool)>) -> Result<Arc<Region>> {
    length::follow(old)?;
    flush::flush(old, 0..old.span() / PAGE, false)?;
    if let Some((part, reserve)) = extension {
        length::extend(old, part, reserve)?;
    }
    // One store for both: a failed sync is remembered there.
    let new =
        lifecycle::open(old.pool().clone(), old.store().clone(), need, Place::Room(0), false, old.is_by_address())?;
    new.hints().inherit(old.hints());
    if old.is_writable() {
        let granted = protocol::of(old).map_or_else(DeferredMode::default, DeferredStores::granted);
        lifecycle::allow_stores(&new)
            .and_then(|()| protocol::grant(&new, granted))
            .inspect_err(|_| lifecycle::dissolve(&new))?;
    }
    Ok(new)
}

/// Address space that the engine takes with a cache's first file, bytes, room for files to grow apart: measured 0.7 to 1.0 GiB (stacks, the
/// allocator's arenas of threads).
const OWN_ADDRESSES: usize = 1 << 30;

/// Whether a limit of the address space leaves too little for a new region of `need` bytes: the program, which knows nothing of the engine, is to
/// have three quarters of it.
fn lacks_addresses(from: &File, need: usize) -> Option<Error> {
    let wanted = need.saturating_mul(2).saturating_add(OWN_ADDRESSES);
    let left = memory::addresses_left().filter(|left| wanted > left / 4)?;
    let remedy = format!("a limit leaves {} MiB, too few for the engine; raise it (ulimit -v)", left >> 20);
    Some(Error::Missing { path: file::path_of(from), missing: "address space", remedy })
}

/// Whether a file of which `need` bytes are to be mapped can be cached, and if so with direct I/O. `None`: the caller chose the kernel where it
/// cannot.
fn check(from: &File, need: usize, fallback: Fallback, by_address: bool) -> Result<Option<bool>> {
    static MACHINE_IS_FIT: OnceLock<()> = OnceLock::new();
    let lacking = |requirement: Requirement| Error::Missing {
        path: file::path_of(from),
        missing: requirement.name,
        remedy: format!("{}; {}", requirement.found.err().unwrap_or_default(), requirement.remedy),
    };
    let error = match MACHINE_IS_FIT.get() {
        _ if fork::is_child() => Some(Error::in_a_child(&file::path_of(from))),
        Some(()) => None,
        None => requirements::missing().map(lacking).or_else(|| {
            MACHINE_IS_FIT.get_or_init(|| ());
            None
        }),
    };
    let error = error.or_else(|| if by_address { lacks_addresses(from, need) } else { None });
    let of_file =
        || requirements::of_file(from).into_iter().find(|one| !one.optional && one.found.is_err()).map(lacking);
    match (error, fallback) {
        (Some(error), Fallback::Kernel) => {
            tell_of_fallback(&error, by_address);
            Ok(None)
        }
        (Some(error), _) => Err(error),
        (None, Fallback::Buffered) => Ok(Some(of_file().is_none())),
        (None, Fallback::Refuse) => of_file().map_or(Ok(Some(true)), Err),
        (None, Fallback::Kernel) => Ok(of_file().map_or(Some(true), |error| {
            tell_of_fallback(&error, by_address);
            None
        })),
    }
}

/// Notes that a map of a region reaches further now.
pub fn note_grown(identity: file::Identity, region: &Region, end: usize) {
    let (_, table) = Files::get();
    region.store().note_mapped(end);
    if table.get(&identity).is_some_and(|mapped| mapped.maps == 1) {
        region.least_end().store(end / PAGE, Ordering::Release);
    }
}
