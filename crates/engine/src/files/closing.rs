//! The end of a file's last map, and of the process: dirty pages are written, and the region ends.

use crate::error::{Error, Result};
use crate::files::table::{Files, Mapped};
use crate::files::{leases, lifecycle};
use crate::pool::pool::Pool;
use crate::region::region::Region;
use crate::region::registry;
use crate::sys::sync::Ordering;
use crate::sys::{PAGE, file};
use crate::writeback::{flush, sweep};
use std::io::Write;
use std::sync::{Arc, OnceLock};

/// The most pages that the last unmap, or the keeper, hands to the page cache, 64 MiB. More could be too much for a memory group that the engine's pages still
/// fill.
pub const MOST_HANDED_OVER: usize = 16384;

/// Gives back one map of a region. With the last one, the dirty pages are written and the region ends. If they cannot be written the region
/// stays, so that nothing is lost: the background writer tries again, and so does the end of the file's next map. `by_address`: as in
/// `table::attach`.
pub fn detach(identity: file::Identity, region: Arc<Region>, by_address: bool) {
    if !region.is_ours() {
        // A child after fork(2) has neither the pages nor the threads; the parent saves them.
        return std::mem::forget(region);
    }
    {
        let (files, mut table) = Files::get();
        let Some(entry) = table.get_mut(&identity) else { return };
        entry.maps -= 1;
        entry.by_address -= usize::from(by_address);
        if entry.maps > 0 {
            files.closed.notify_all();
            return;
        }
        entry.closing = true;
    }
    // The pages of a scratch region are not written: they go with its last map.
    sweep::discard(&region, 0..region.span() / PAGE);
    // Dirty pages go to the page cache, as with the kernel's mappings: a file that is deleted next costs no writes, and fsync(2) still finds
    // them.
    if region.dirty().count(0..region.span() / PAGE, MOST_HANDED_OVER + 1) <= MOST_HANDED_OVER {
        region.store().write_to_page_cache(true);
    }
    close(identity, &region, flush::flush(&region, 0..region.span() / PAGE, false));
}

/// Waits while a file is closing: its last map is gone, and its dirty pages are being written.
pub fn await_close(identity: file::Identity) {
    let (files, mut table) = Files::get();
    while table.get(&identity).is_some_and(|entry| entry.closing) {
        table = files.closed.wait(table).unwrap_or_else(|poison| poison.into_inner());
    }
}

/// Waits, before the kernel maps a file, until all its maps by address are given back and what was stored to them is in the file. The caller
/// keeps others from making such maps.
///
/// # Errors
/// The stores cannot be written: the kernel would not see them, and would overwrite them.
pub fn await_end(identity: file::Identity) -> Result<()> {
    let (files, mut table) = Files::get();
    loop {
        match table.get_mut(&identity) {
            Some(entry) if entry.closing || entry.by_address > 0 => {
                table = files.closed.wait(table).unwrap_or_else(|poison| poison.into_inner());
            }
            Some(entry) if entry.maps == 0 => {
                entry.closing = true;
                let region = entry.region.clone();
                drop(table);
                let saved = flush::flush(&region, 0..region.span() / PAGE, false);
                let failed = saved.as_ref().err().map(Error::errno);
                close(identity, &region, saved);
                if let Some(error) = failed {
                    let source = std::io::Error::from_raw_os_error(error);
                    return Err(region.io_error("write what was stored to it before it was unmapped", source));
                }
                table = Files::get().1;
            }
            _ => return Ok(()),
        }
    }
}

/// Ends the regions of a cache that have no map any more and could not be saved when the last one went. Called when the background writer has
/// saved one of them.
pub fn close_abandoned(pool: &Pool) {
    let abandoned: Vec<_> = {
        let (_, mut table) = Files::get();
        let ours = |mapped: &Mapped| std::ptr::eq(&**mapped.region.pool(), pool);
        let waiting = table.iter_mut().filter(|(_, mapped)| mapped.maps == 0 && !mapped.closing && ours(mapped));
        waiting
            .map(|(identity, mapped)| {
                mapped.closing = true;
                (*identity, mapped.region.clone())
            })
            .collect()
    };
    for (identity, region) in abandoned {
        // This thread writes alone: it is a writer itself, and a flush by all writers would wait for it.
        close(identity, &region, flush::write_out(&region, 0..region.span() / PAGE));
    }
}

/// Ends a region that is marked as closing, if its pages are saved.
fn close(identity: file::Identity, region: &Arc<Region>, saved: Result<()>) {
    let saved = saved.and_then(|()| {
        // A page that a system call had in its hands could not be saved, and may have become dirty since.
        region.in_flight().drain();
        flush::write_out(region, 0..region.span() / PAGE).inspect_err(|_| region.in_flight().readmit())
    });
    if saved.is_ok() {
        lifecycle::dissolve(region);
        region.store().unlock();
        region.close_file();
    }
    let (files, mut table) = Files::get();
    match saved {
        Ok(()) => {
            // With the table locked: the file's next map takes a lease of its own.
            leases::forget(identity);
            drop(table.remove(&identity));
        }
        Err(error) => {
            say(format_args!("{error}"));
            region.store().write_to_page_cache(false);
            if let Some(entry) = table.get_mut(&identity) {
                entry.closing = false;
                entry.region.writes().unsaved().store(true, Ordering::Release);
                entry.region.pool().wake_writers();
            }
        }
    }
    files.closed.notify_all();
}

/// Arranges that the dirty pages of maps that are never dropped (in a static, or behind `process::exit`) are written at
/// exit, as the kernel does with its own.
pub(super) fn save_at_exit() {
    extern "C" fn save() {
        let to_save =
            |region: &registry::InUse<'_>| region.is_ours() && region.is_writable() && region.scratch().is_none();
        for region in registry::all().filter(to_save) {
            if let Err(error) = flush::write_out(&region, 0..region.span() / PAGE) {
                let end = if region.pool().keeper { "tries once more" } else { "gives them up" };
                say(format_args!("{error}; the process ends and {end}"));
            }
        }
    }
    static REGISTERED: OnceLock<i32> = OnceLock::new();
    // SAFETY: a function without arguments that lives as long as the process.
    REGISTERED.get_or_init(|| unsafe { libc::atexit(save) });
}

/// One line on standard error, which may be closed.
fn say(what: std::fmt::Arguments<'_>) {
    let _ = writeln!(std::io::stderr(), "fastmap: {what}");
}
