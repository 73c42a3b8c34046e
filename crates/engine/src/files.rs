//! Which files are mapped: opening, sharing and closing their regions.

use crate::behind::{Behind, Wish};
use crate::cache::{Cache, Inner};
use crate::error::{Error, Result};
use crate::fault;
use crate::file_lock;
use crate::keeper;
use crate::others;
use crate::region::{Place, Region};
use crate::registry;
use crate::requirements::{self, Requirement};
use crate::sizes;
use crate::store;
use crate::sync::Ordering;
use crate::sys::{PAGE, descriptor_table, file, fork, madvise, signal};
use crate::writeback;
use crate::writers;
use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::fs::File;
use std::io::Write;
use std::ops::Range;
use std::path::Path;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock};

/// What to do where the engine lacks something it needs.
///
/// ```
/// use fastmap::{Fallback, MapOptions};
///
/// let file = tempfile::tempfile()?;
/// file.set_len(4096)?;
/// // SAFETY: nobody else changes the file.
/// let map = unsafe { MapOptions::new().fallback(Fallback::Kernel).map(&file)? };
/// assert_eq!(map[0], 0);
/// # Ok::<(), std::io::Error>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Fallback {
    /// Map the file through the kernel instead (mmap(2)), with a warning through `tracing` that says what is missing.
    #[default]
    Kernel,
    /// Where only direct I/O is missing, cache the file all the same, over buffered reads and writes: the page cache then
    /// holds a second copy. Anything else missing is an error.
    Buffered,
    /// Fail, naming what is missing and what to do about it.
    Refuse,
}

struct Mapped {
    region: Arc<Region>,
    maps: usize,
    /// Its last map is gone, or is to have a larger region, and its dirty pages are on their way to the file.
    closing: bool,
}

#[derive(Default)]
struct Files {
    table: Mutex<HashMap<file::Identity, Mapped>>,
    closed: Condvar,
}

static FILES: OnceLock<Files> = OnceLock::new();

impl Files {
    fn get() -> (&'static Files, MutexGuard<'static, HashMap<file::Identity, Mapped>>) {
        let files = FILES.get_or_init(Files::default);
        (files, files.table.lock().unwrap_or_else(|poison| poison.into_inner()))
    }
}

/// How a file is to be mapped.
#[derive(Debug, Clone, Copy)]
pub struct How<'a> {
    pub cache: Option<&'a Cache>,
    pub writable: bool,
    pub one_writer: bool,
    pub fallback: Fallback,
    /// Where a region goes that has to be made.
    pub place: Place,
    /// A region that has to be made only borrows the space of its file (`contents.rs`).
    pub scratch: bool,
    /// What may be done to the map's addresses is its own to say (`Region::is_by_address`).
    pub by_address: bool,
    /// What it wants of stores to absent pages.
    pub behind: Wish,
}

/// Whether a file is in the engine.
pub fn is_cached(identity: file::Identity) -> bool {
    Files::get().1.contains_key(&identity)
}

/// Keeps the table of files as it is, and with it every other thread that would extend a file, until dropped.
pub fn lock() -> impl Sized {
    Files::get().1
}

/// Finds or makes the region of a file, for one map more of its first `need` bytes; `open` opens the store of a new one.
/// `None`: map it through the kernel.
pub fn attach(
    from: &File,
    facts: &file::Facts,
    need: usize,
    how: How<'_>,
    open: store::Open<'_>,
) -> Result<Option<Arc<Region>>> {
    let How { cache, writable, one_writer, fallback, place, scratch, by_address, behind } = how;
    if !fork::is_child() && !descriptor_table::is_engines() {
        let error = in_another_table(&file::path_of(from));
        // A kernel mapping beside cached ones would not agree with them.
        if fallback != Fallback::Kernel || is_cached(facts.identity) {
            return Err(error);
        }
        tracing::warn!(%error, "mapped through the kernel instead");
        return Ok(None);
    }
    let (files, mut table) = Files::get();
    let settled = |mapped: &Mapped| !writable || mapped.region.store().is_locked();
    if one_writer && !table.get(&facts.identity).is_some_and(settled) {
        drop(table);
        file_lock::wait_for_keeper(from);
        table = Files::get().1;
    }
    if table.get(&facts.identity).is_some_and(|mapped| !mapped.region.is_ours()) {
        // A child made by fork(2): the entry is its parent's.
        drop(table);
        return if fallback == Fallback::Kernel { Ok(None) } else { Err(in_a_child(&file::path_of(from))) };
    }
    while table.get(&facts.identity).is_some_and(|entry| entry.closing) {
        table = files.closed.wait(table).unwrap_or_else(|poison| poison.into_inner());
    }
    let mapped = match table.entry(facts.identity) {
        Entry::Occupied(entry) => entry.into_mut(),
        Entry::Vacant(entry) => {
            let Some(direct) = check(from, fallback)? else { return Ok(None) };
            let cache = cache.map_or_else(Cache::global, |cache| Ok(cache.clone()))?;
            descriptor_table::claim();
            let store = Arc::from(open(from, facts, direct)?);
            madvise::prepare();
            signal::install(fault::on_sigbus).map_err(|source| Error::Io {
                path: file::path_of(from),
                operation: "install a SIGBUS handler to serve its page faults",
                source,
            })?;
            let region = Region::new(cache.inner, store, need, place, scratch, by_address)?;
            entry.insert(Mapped { region, maps: 0, closing: false })
        }
    };
    let region = mapped.region.clone();
    let prepared = sizes::follow(&region).and_then(|()| {
        if need > region.span() {
            return Err(Error::Outgrown { path: file::path_of(from), span: region.span() as u64 });
        }
        // Bytes that were not mapped may have been written by others.
        region.holes().distrust(0);
        region.least_end().fetch_min(need / PAGE, Ordering::AcqRel);
        region.store().note_mapped(need);
        if !by_address {
            region.open()?;
        }
        if writable { let_write(&region, from, one_writer).and_then(|()| region.go_on_behind(behind)) } else { Ok(()) }
    });
    mapped.maps += 1;
    if let Err(error) = prepared {
        drop(table);
        detach(facts.identity, region);
        return Err(error);
    }
    Ok(Some(region))
}

/// Lets stores to a region through, by a descriptor that may write, and sees to it that they reach the file whatever ends
/// the process.
pub fn let_write(region: &Region, from: &File, one_writer: bool) -> Result<()> {
    if !descriptor_table::is_engines() {
        return Err(in_another_table(region.store().path()));
    }
    region.allow_writing(from, one_writer)?;
    save_at_exit();
    if region.cache().keeper && region.scratch().is_none() {
        keeper::start();
    }
    Ok(())
}

/// Gives the only map of a file a region that holds `need` bytes of it; an extension, with or without disk space reserved,
/// makes the file longer before.
///
/// All that can fail comes first: the old region, its pages clean, goes when the new one is ready. Until then whoever maps
/// the file waits, as for one that is closing.
pub fn replace(
    identity: file::Identity,
    old: &Arc<Region>,
    need: usize,
    extension: Option<(Range<u64>, bool)>,
) -> Result<Arc<Region>> {
    {
        let (_, mut table) = Files::get();
        match table.get_mut(&identity) {
            // What a scratch region's file has would have to be handed on: its range is made as large as it will be.
            Some(entry) if entry.maps == 1 && old.scratch().is_none() => entry.closing = true,
            _ => return Err(Error::Outgrown { path: old.store().path().to_owned(), span: old.span() as u64 }),
        }
    }
    let replaced = larger(old, need, extension);
    if let Ok(new) = &replaced {
        old.dissolve();
        new.unsaved().store(old.unsaved().load(Ordering::Acquire), Ordering::Release);
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
    sizes::follow(old)?;
    writers::flush(old, 0..old.span() / PAGE, false)?;
    if let Some((part, reserve)) = extension {
        sizes::extend(old, part, reserve)?;
    }
    // One store for both: a failed sync is remembered there.
    let new = Region::new(old.cache().clone(), old.store().clone(), need, Place::Room(0), false, old.is_by_address())?;
    new.inherit(old);
    if old.is_writable() {
        let granted = old.behind().map_or_else(Wish::default, Behind::granted);
        new.allow_stores().and_then(|()| new.go_on_behind(granted)).inspect_err(|_| new.dissolve())?;
    }
    Ok(new)
}

/// Whether a file can be cached, and if so with direct I/O. `None`: the caller chose the kernel where it cannot.
fn check(from: &File, fallback: Fallback) -> Result<Option<bool>> {
    static MACHINE_IS_FIT: OnceLock<()> = OnceLock::new();
    let lacking = |requirement: Requirement| Error::Missing {
        path: file::path_of(from),
        missing: requirement.name,
        remedy: format!("{}; {}", requirement.found.err().unwrap_or_default(), requirement.remedy),
    };
    let error = match MACHINE_IS_FIT.get() {
        _ if fork::is_child() => Some(in_a_child(&file::path_of(from))),
        Some(()) => None,
        None => requirements::missing().map(lacking).or_else(|| {
            MACHINE_IS_FIT.get_or_init(|| ());
            None
        }),
    };
    let of_file =
        || requirements::of_file(from).into_iter().find(|one| !one.optional && one.found.is_err()).map(lacking);
    match (error, fallback) {
        (Some(error), Fallback::Kernel) => {
            tracing::warn!(%error, "mapped through the kernel instead");
            Ok(None)
        }
        (Some(error), _) => Err(error),
        (None, Fallback::Buffered) => Ok(Some(of_file().is_none())),
        (None, Fallback::Refuse) => of_file().map_or(Ok(Some(true)), Err),
        (None, Fallback::Kernel) => Ok(of_file().map_or(Some(true), |error| {
            tracing::warn!(%error, "mapped through the kernel instead");
            None
        })),
    }
}

/// The error of a child made by fork(2): it has none of the engine's threads, memory or userfaultfds.
pub fn in_a_child(path: &Path) -> Error {
    Error::Missing {
        path: path.to_owned(),
        missing: "the process that started the engine",
        remedy: "this is a child made by fork(2), where the engine does not run: call exec, or map through the kernel"
            .into(),
    }
}

/// The error of a thread whose descriptors are not those of the engine's threads.
pub fn in_another_table(path: &Path) -> Error {
    Error::Missing {
        path: path.to_owned(),
        missing: "the engine's descriptors",
        remedy: "this thread has a descriptor table of its own (unshare(2), or close_range(2) with CLOSE_RANGE_UNSHARE): map \
                 in a thread that has not, or before"
            .into(),
    }
}

/// Takes back one map of a region. With the last one its dirty pages are written and it goes; if they cannot be written
/// it stays, so that nothing is lost: the background writer tries again, and so does whoever maps the file next.
pub fn detach(identity: file::Identity, region: Arc<Region>) {
    if !region.is_ours() {
        // A child after fork(2) has neither the pages nor the threads; the parent saves them.
        return std::mem::forget(region);
    }
    {
        let (_, mut table) = Files::get();
        let Some(entry) = table.get_mut(&identity) else { return };
        entry.maps -= 1;
        if entry.maps > 0 {
            return;
        }
        entry.closing = true;
    }
    // What is volatile goes with its last map.
    writeback::discard(&region, 0..region.span() / PAGE);
    close(identity, &region, writers::flush(&region, 0..region.span() / PAGE, false));
}

/// Ends the regions of a cache that no map refers to any more and that could not be saved when the last one went: the
/// background writer has saved one now.
pub fn close_abandoned(cache: &Inner) {
    let abandoned: Vec<_> = {
        let (_, mut table) = Files::get();
        let ours = |mapped: &Mapped| std::ptr::eq(&**mapped.region.cache(), cache);
        let waiting = table.iter_mut().filter(|(_, mapped)| mapped.maps == 0 && !mapped.closing && ours(mapped));
        waiting
            .map(|(identity, mapped)| {
                mapped.closing = true;
                (*identity, mapped.region.clone())
            })
            .collect()
    };
    for (identity, region) in abandoned {
        // By this thread alone: it is the writer that the others' part would wait for.
        close(identity, &region, writers::write_out(&region, 0..region.span() / PAGE));
    }
}

/// Ends a region that is marked as closing, if its pages are saved.
fn close(identity: file::Identity, region: &Region, saved: Result<()>) {
    let saved = saved.and_then(|()| {
        // A page that one of them had in its hands was nobody's to save, and may be dirty since.
        region.see_visitors_off();
        writers::write_out(region, 0..region.span() / PAGE).inspect_err(|_| region.welcome_visitors())
    });
    if saved.is_ok() {
        region.dissolve();
        region.store().unlock();
        region.close_file();
    }
    let (files, mut table) = Files::get();
    match saved {
        Ok(()) => {
            // In the table's lock: who maps it next watches it anew.
            others::forget(identity);
            drop(table.remove(&identity));
        }
        Err(error) => {
            say(format_args!("{error}"));
            if let Some(entry) = table.get_mut(&identity) {
                entry.closing = false;
                entry.region.unsaved().store(true, Ordering::Release);
                entry.region.cache().wake_writers();
            }
        }
    }
    files.closed.notify_all();
}

/// One line on standard error, which may be closed.
fn say(what: std::fmt::Arguments<'_>) {
    let _ = writeln!(std::io::stderr(), "fastmap: {what}");
}

/// Notes that a map of a region reaches further now.
pub fn note_grown(identity: file::Identity, region: &Region, end: usize) {
    let (_, table) = Files::get();
    region.store().note_mapped(end);
    if table.get(&identity).is_some_and(|mapped| mapped.maps == 1) {
        region.least_end().store(end / PAGE, Ordering::Release);
    }
}

/// Has the dirty pages of maps that are never dropped (in a static, or behind `process::exit`) written at exit, as the
/// kernel does with its own.
fn save_at_exit() {
    extern "C" fn save() {
        let to_save =
            |region: &registry::InUse<'_>| region.is_ours() && region.is_writable() && region.scratch().is_none();
        for region in registry::all().filter(to_save) {
            if let Err(error) = writers::write_out(&region, 0..region.span() / PAGE) {
                let end = if region.cache().keeper { "tries once more" } else { "gives them up" };
                say(format_args!("{error}; the process ends and {end}"));
            }
        }
    }
    static REGISTERED: OnceLock<i32> = OnceLock::new();
    // SAFETY: a function without arguments that lives as long as the process.
    REGISTERED.get_or_init(|| unsafe { libc::atexit(save) });
}
