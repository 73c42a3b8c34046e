//! Flushes: everything that is dirty in a range is in the file, or on stable storage, when they return.

use crate::error::{Error, Result};
use crate::pool::mailbox::{FlushRequest, WriteQueue};
use crate::pool::pool::Pool;
use crate::region::in_flight::Mark;
use crate::region::region::Region;
use crate::region::registry::{self, InUse, regions_of};
use crate::store::Store;
use crate::sys::PAGE;
use crate::sys::signal::Blocked;
use crate::writeback::sweep::{self, Stripe};
use std::io;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// Pages from which on a flush is shared out between the writers: below, handing it over takes longer.
const MANY_PAGES: usize = 256;

fn post(writers: &WriteQueue, region: &Region, pages: Range<usize>, stable: bool) -> Arc<FlushRequest> {
    let asked = region.in_flight().resizes().moment().0;
    writers.post(region.id(), region.serial(), region.store().clone(), pages, stable, asked)
}

/// The region of a request, unless it is gone: then all of it has been saved.
fn region_of(request: &FlushRequest) -> Option<InUse<'static>> {
    registry::enter(request.region).filter(|region| region.serial() == request.serial)
}

/// Does a writer's part of a flush, and ends the flush with the last part.
pub fn carry_out(pool: &Pool, request: &FlushRequest, stripe: Stripe) {
    let region = region_of(request);
    if let Some(region) = &region
        && let Err(failure) = sweep::write_out(region, request.pages.clone(), stripe)
    {
        request.note_failure(failure);
    }
    if !request.end_part() {
        return;
    }
    request.end(match request.take_failure() {
        Some(failure) => {
            if let Some(region) = region {
                region.writes().unsaved().store(true, Ordering::Release);
                pool.wake_writers();
            }
            Err(failure.into_error(&*request.store))
        }
        // Also when the region is gone: the file was asked for.
        None if request.stable => sync_store(pool, &*request.store),
        None => Ok(()),
    });
}

/// Waits for a request, and flushes again what a change of the file's length has put back after it was asked for.
pub fn finish(request: &FlushRequest) -> Result<()> {
    request.wait()?;
    let is_done = |region: &Region| region.in_flight().resizes().none_since(Mark(request.asked));
    // Once the last map is dropped the region has been saved, and every change of a length has ended.
    let mut blocked = Some(Blocked::but_sigbus());
    let Some(entered) = region_of(request).filter(|region| !is_done(region)) else { return Ok(()) };
    // SAFETY: used no more where the work does not begin.
    let region = unsafe { entered.outlived() };
    let Some(_at_work) = region.in_flight().begin_work(&mut blocked, true) else { return Ok(()) };
    // What a flush waits for may wait for that.
    drop(entered);
    write_out(region, request.pages.clone())?;
    if request.stable { sync(region) } else { Ok(()) }
}

/// Writes every page of the range that is dirty at the time of the call, and waits for writes in flight there. With
/// `stable`, the file is then put on stable storage.
///
/// A scratch region is never saved.
pub fn flush(region: &Region, pages: Range<usize>, stable: bool) -> Result<()> {
    if region.scratch().is_some() {
        return Ok(());
    }
    // The cache's count first: it is only a sum.
    let pool = region.pool();
    let many = || pool.dirty_pages() > MANY_PAGES && region.dirty().count(pages.clone(), MANY_PAGES) > MANY_PAGES;
    match pool.writers().filter(|_| many()) {
        Some(writers) => complete(region, || post(writers, region, pages.clone(), false).wait())?,
        None => write_out(region, pages)?,
    }
    if stable { sync(region) } else { Ok(()) }
}

/// Starts a flush to stable storage. `None`: there is nobody to carry it out.
pub fn flush_later(region: &Region, pages: Range<usize>) -> Option<Arc<FlushRequest>> {
    let writers = region.pool().writers().filter(|_| region.scratch().is_none())?;
    Some(post(writers, region, pages, true))
}

/// A flush by this thread alone, without stable storage.
pub fn write_out(region: &Region, pages: Range<usize>) -> Result<()> {
    complete(region, || {
        sweep::write_out(region, pages.clone(), Stripe::ALL).map_err(|failure| failure.into_error(&**region.store()))
    })
}

/// Flushes until no change of the file's length was under way meanwhile (`region/in_flight.rs`).
fn complete(region: &Region, mut flush: impl FnMut() -> Result<()>) -> Result<()> {
    loop {
        let mark = region.in_flight().resizes().await_end().map_err(|error| {
            let operation = "flush it in a thread that is changing its length (coherence::Resizing)";
            region.io_error(operation, io::Error::from_raw_os_error(error))
        })?;
        flush()?;
        if region.in_flight().resizes().none_since(mark) {
            return Ok(());
        }
    }
}

/// Writes every dirty page of a cache, or says which file refuses.
pub fn write_out_all(pool: &Pool) -> Result<()> {
    regions_of(pool).try_for_each(|region| write_out(&region, 0..region.span() / PAGE))
}

/// Puts what was written of a file on stable storage.
pub fn sync(region: &Region) -> Result<()> {
    sync_store(region.pool(), &**region.store())
}

fn sync_store(pool: &Pool, store: &dyn Store) -> Result<()> {
    let syncs = &pool.counters_at(pool.here()).syncs;
    store.sync(syncs).map_err(|source| {
        let operation = "put it on stable storage (fdatasync)";
        Error::Io { path: store.path().to_owned(), operation, source }
    })
}
