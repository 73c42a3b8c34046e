//! Flushes. When one returns, everything that was dirty in its range is in the file, or on stable storage.

use crate::error::{Error, Result};
use crate::pool::mailbox::FlushRequest;
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

/// A flush of more dirty pages is shared out between the writers. For fewer, handing it over would take longer.
const MANY_PAGES: usize = 256;

/// `None`: there are no writers.
fn post(region: &Region, pages: Range<usize>, stable: bool) -> Option<Arc<FlushRequest>> {
    let asked = region.in_flight().resizes().moment().0;
    region.pool().post_flush(region.id(), region.serial(), region.store().clone(), pages, stable, asked)
}

/// The region of a request. `None`: the region is gone, and all of it has been saved.
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
        // A gone region makes no difference: the request is for the file.
        None if request.stable => sync_store(pool, &*request.store),
        None => Ok(()),
    });
}

/// Waits for a request. If a change of the file's length was under way at any time since the request was made, flushes once more: a truncation
/// that failed makes pages dirty again (`region/in_flight.rs`).
pub fn finish(request: &FlushRequest) -> Result<()> {
    request.wait()?;
    let is_done = |region: &Region| region.in_flight().resizes().none_since(Mark(request.asked));
    // If the region is gone, it has been saved, and no change of its length is under way.
    let mut blocked = Some(Blocked::but_sigbus());
    let Some(entered) = region_of(request).filter(|region| !is_done(region)) else { return Ok(()) };
    // SAFETY: `_at_work` begins before `entered` is dropped, and keeps the region from ending until this function returns. If the work does not
    // begin, the function returns at once.
    let region = unsafe { entered.outlived() };
    let Some(_at_work) = region.in_flight().begin_work(&mut blocked, true) else { return Ok(()) };
    // `entered` is dropped before the flush: the flush waits for threads that may wait until nobody has entered the region.
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
    // The cache's count is asked first, since it costs only a sum.
    let pool = region.pool();
    let many = || pool.dirty_pages() > MANY_PAGES && region.dirty().count(pages.clone(), MANY_PAGES) > MANY_PAGES;
    if many() {
        complete(region, || match post(region, pages.clone(), false) {
            Some(request) => request.wait(),
            None => write(region, pages.clone()),
        })?;
    } else {
        write_out(region, pages)?;
    }
    if stable { sync(region) } else { Ok(()) }
}

/// Starts a flush to stable storage. `None`: there are no writers, or the region is never saved.
pub fn flush_later(region: &Region, pages: Range<usize>) -> Option<Arc<FlushRequest>> {
    if region.scratch().is_some() { None } else { post(region, pages, true) }
}

/// Flushes in this thread alone, and not to stable storage.
pub fn write_out(region: &Region, pages: Range<usize>) -> Result<()> {
    complete(region, || write(region, pages.clone()))
}

fn write(region: &Region, pages: Range<usize>) -> Result<()> {
    sweep::write_out(region, pages, Stripe::ALL).map_err(|failure| failure.into_error(&**region.store()))
}

/// Repeats `flush` until no change of the file's length was under way meanwhile (`region/in_flight.rs`).
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

/// Writes every dirty page of a cache. The error names the file that cannot be written.
pub fn write_out_all(pool: &Pool) -> Result<()> {
    regions_of(pool).try_for_each(|region| write_out(&region, 0..region.span() / PAGE))
}

/// Puts everything that was written to a file on stable storage.
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
