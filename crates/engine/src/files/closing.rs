//! The end of a file's last map, and of the process: what is dirty is written, and the region goes.

use crate::error::{Error, Result};
use crate::files::table::{Files, Mapped};
use crate::files::{foreign_writers, lifecycle};
use crate::pool::pool::Pool;
use crate::region::region::Region;
use crate::region::registry;
use crate::sys::sync::Ordering;
use crate::sys::{PAGE, file};
use crate::writeback::{flush, sweep};
use std::io::Write;
use std::sync::{Arc, OnceLock};

/// Pages that the last unmap hands to the page cache at most, 64 MiB: more could be too much for a group whose memory the engine's pages
/// fill still.
const MOST_HANDED_OVER: usize = 16384;

/// Takes back one map of a region. With the last one its dirty pages are written and it goes; if they cannot be written
/// it stays, so that nothing is lost: the background writer tries again, and so does the next map of the file, when it
/// ends. `by_address` as it was attached.
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
    // What is volatile goes with its last map.
    sweep::discard(&region, 0..region.span() / PAGE);
    // As the kernel does with its own mappings: a file that is deleted next costs no writes, and fsync(2) still finds them.
    if region.dirty().count(0..region.span() / PAGE, MOST_HANDED_OVER + 1) <= MOST_HANDED_OVER {
        region.store().write_to_page_cache(true);
    }
    close(identity, &region, flush::flush(&region, 0..region.span() / PAGE, false));
}

/// Waits while the last map of a file is given back, and what was stored to it is on its way to the file.
pub fn await_close(identity: file::Identity) {
    let (files, mut table) = Files::get();
    while table.get(&identity).is_some_and(|entry| entry.closing) {
        table = files.closed.wait(table).unwrap_or_else(|poison| poison.into_inner());
    }
}

/// Waits until the maps of a file by address that are about to be given back are, and what was stored to them is in the file: before the
/// kernel maps it. The caller keeps others from making such maps.
///
/// # Errors
/// What is stored there cannot be written: the kernel would not see it, and overwrite it.
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

/// Ends the regions of a cache that no map refers to any more and that could not be saved when the last one went: the
/// background writer has saved one now.
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
        // By this thread alone: it is the writer that the others' part would wait for.
        close(identity, &region, flush::write_out(&region, 0..region.span() / PAGE));
    }
}

/// Ends a region that is marked as closing, if its pages are saved.
fn close(identity: file::Identity, region: &Arc<Region>, saved: Result<()>) {
    let saved = saved.and_then(|()| {
        // A page that one of them had in its hands was nobody's to save, and may be dirty since.
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
            // In the table's lock: its next map watches it anew.
            foreign_writers::forget(identity);
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
