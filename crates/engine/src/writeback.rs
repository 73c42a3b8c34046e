//! Dirty pages to the file: runs of neighbours, protected with one call and written with one.
//!
//! A writer holds the lock of the block it works on and has signals blocked. It takes a page's dirty bit, moves the word
//! to Clean+WRITING, protects the run, writes it. A store that comes after the protection traps and makes the page Dirty
//! again; one that came before is in what is written. Once a flusher has a block's lock, nobody's write is in flight in
//! the block, so what its bits do not show is on its way to no one.

use crate::cache::Inner;
use crate::dirty::BLOCK_PAGES;
use crate::error::{Error, Result};
use crate::files;
use crate::page::State;
use crate::region::Region;
use crate::registry;
use crate::sync::{AtomicU32, Ordering};
use crate::sys::signal::Blocked;
use crate::sys::{PAGE, futex};
use std::io;
use std::iter::successors;
use std::ops::Range;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Weak};
use std::time::Duration;

/// Longest run, pages: 1 MiB.
const MOST_RUN: usize = 256;
/// Pages a faulting thread writes before it looks for a clean page again.
const HELP_PAGES: usize = 512;

/// Bytes that could not be written.
#[derive(Debug, Clone, Copy)]
struct Failure {
    page: usize,
    pages: usize,
    error: i32,
}

/// What writing a block came to.
#[derive(Debug, Default)]
struct Outcome {
    /// Pages now clean.
    written: usize,
    /// The first run that failed.
    failure: Option<Failure>,
}

/// What a thread that needs a clean page achieved by writing.
#[derive(Debug)]
pub enum Help {
    /// Some pages are clean now.
    Wrote,
    /// No dirty page, or other threads are writing.
    Nothing,
    /// Dirty pages, and none could be written: the error number.
    Failed(i32),
}

/// Writes the dirty pages of a block that lie in `pages`, at most `limit`. The caller holds the block's lock.
fn write_block(region: &Region, block: usize, pages: Range<usize>, limit: usize) -> Outcome {
    let mut outcome = Outcome::default();
    let first = block * BLOCK_PAGES;
    let mut claimed = Claimed([0; BLOCK_PAGES / 64]);
    region.dirty().take(block, pages, limit, |page| {
        if begin(region, page) {
            claimed.insert(page - first);
        }
    });
    if let Some(span) = claimed.span() {
        // One protection for all of them, with one TLB flush on every core: a flush a run costs more than the writes
        // (docs/measurements.md). Other dirty pages in between, if any, trap once more, which is harmless.
        let from = region.address_of(first + span.start);
        // SAFETY: a block lies in one stripe of the region.
        let protected = unsafe { region.userfaultfd(first).write_protect(from, span.len() * PAGE, true) };
        let writable = protected.and_then(|()| region.store().write_end());
        let mut at = span.start;
        while let Some(run) = claimed.run_from(at) {
            at = run.end;
            write_run(region, first + run.start..first + run.end, writable, &mut outcome);
        }
        region.cache().note_progress();
    }
    outcome
}

/// Pages of a block that a writer has claimed: a set small enough for a signal handler's stack.
struct Claimed([u64; BLOCK_PAGES / 64]);

impl Claimed {
    fn insert(&mut self, page: usize) {
        self.0[page / 64] |= 1 << (page % 64);
    }

    /// From the first to the last, or nothing.
    fn span(&self) -> Option<Range<usize>> {
        let first = self.next(0, 0)?;
        let last = self.0.iter().rposition(|word| *word != 0)?;
        Some(first..last * 64 + 64 - self.0[last].leading_zeros() as usize)
    }

    /// The first run of neighbours at or after a page, at most [`MOST_RUN`] long.
    fn run_from(&self, page: usize) -> Option<Range<usize>> {
        let start = self.next(page, 0)?;
        let end = self.next(start, u64::MAX).unwrap_or(BLOCK_PAGES);
        Some(start..end.min(start + MOST_RUN))
    }

    /// The first page at or after `page` that is in the set, or with `flip` all ones, that is not.
    fn next(&self, page: usize, flip: u64) -> Option<usize> {
        let mut mask = u64::MAX << (page % 64);
        for word in page / 64..self.0.len() {
            let bits = (self.0[word] ^ flip) & mask;
            if bits != 0 {
                return Some(word * 64 + bits.trailing_zeros() as usize);
            }
            mask = u64::MAX;
        }
        None
    }
}

/// Claims a dirty page for writing. A page that another thread is making writable may hold stores already: that thread
/// waits for nothing any more, so it is waited for.
fn begin(region: &Region, page: usize) -> bool {
    let word = region.word(page);
    while !word.begin_write() {
        let seen = word.look();
        if !seen.is_upgrading() {
            if seen.state() != State::Dirty {
                return false;
            }
        } else if let Some(expected) = word.announce_waiter(seen) {
            futex::wait(word.futex(), expected, None);
        }
    }
    true
}

/// Writes pages claimed with `begin` and gives them back. `writable` says where the file ends, or that the pages could not
/// be protected and must stay dirty.
fn write_run(region: &Region, run: Range<usize>, writable: std::result::Result<u64, i32>, outcome: &mut Outcome) {
    let cache = region.cache();
    let core = cache.here();
    let counters = &cache.cores[core].0.counters;
    cache.discount_dirty(core, run.len());
    let from = region.address_of(run.start);
    // SAFETY: the pages are resident: nobody evicts one that is being written.
    let written = writable.and_then(|end| unsafe { region.store().write_pages(run.start, from, run.len(), end) });
    for page in run.clone() {
        let after = region.word(page).finish_write(written.is_ok());
        if after.enqueue {
            cache.enqueue(core, region, page);
        }
        if after.newly_dirty {
            cache.count_dirty(core);
        }
        if written.is_err() {
            region.dirty().set(page);
        }
    }
    match written {
        Ok(()) => {
            outcome.written += run.len();
            counters.writeback_pages.add(run.len());
            counters.writeback_runs.add(1);
        }
        Err(error) => {
            counters.writeback_errors.add(1);
            outcome.failure.get_or_insert(Failure { page: run.start, pages: run.len(), error });
        }
    }
}

/// Writes every page of the range that is dirty at the time of the call, and waits for writes in flight there. With
/// `stable`, the file is then put on stable storage.
pub fn flush(region: &Region, pages: Range<usize>, stable: bool) -> Result<()> {
    let mut failure = None;
    let blocks = pages.start / BLOCK_PAGES..pages.end.div_ceil(BLOCK_PAGES).min(region.dirty().blocks());
    for lock in 0..region.write_locks() {
        let mut block = blocks.start;
        loop {
            // One block at a time, so that signals are not kept waiting longer than a block takes.
            let _blocked = Blocked::all();
            let _held = region.write_lock(lock).lock();
            let dirty = region.dirty();
            let mut marked = successors(dirty.next_block(block), |block| dirty.next_block(block + 1));
            let next = marked.find(|block| block % region.write_locks() == lock);
            let Some(next) = next.filter(|next| blocks.contains(next)) else { break };
            let outcome = write_block(region, next, pages.clone(), usize::MAX);
            failure = failure.or(outcome.failure);
            block = next + 1;
        }
    }
    if let Some(Failure { page, pages, error }) = failure {
        return Err(Error::WriteBack {
            path: region.store().path().to_owned(),
            offset: (page * PAGE) as u64,
            len: (pages * PAGE) as u64,
            source: io::Error::from_raw_os_error(error),
        });
    }
    if stable {
        region.store().sync().map_err(|source| region.io_error("put it on stable storage (fdatasync)", source))?;
    }
    Ok(())
}

/// Writes every dirty page of a cache, or says which file refuses.
pub fn flush_all(cache: &Inner) -> Result<()> {
    regions_of(cache).try_for_each(|region| flush(&region, 0..region.span() / PAGE, false))
}

/// Writes up to `limit` dirty pages of a region, from where the last such call stopped. Signals are blocked.
fn write_some(region: &Region, limit: usize) -> Help {
    let blocks = region.dirty().blocks();
    let cursor = region.write_cursor().load(Ordering::Relaxed);
    let mut from = cursor;
    let mut wrapped = false;
    let mut failed = None;
    loop {
        let next = match region.dirty().next_block(from) {
            Some(next) if !wrapped || next < cursor => next,
            None if !wrapped && cursor > 0 => {
                (from, wrapped) = (0, true);
                continue;
            }
            _ => break,
        };
        from = next + 1;
        let Some(_held) = region.write_lock(next).try_lock() else { continue };
        let outcome = write_block(region, next, 0..blocks * BLOCK_PAGES, limit);
        if outcome.written > 0 {
            // The block's rest is next, unless it was all.
            let unfinished = outcome.written + outcome.failure.map_or(0, |failure| failure.pages) >= limit;
            region.write_cursor().store(if unfinished { next } else { from % blocks }, Ordering::Relaxed);
            return Help::Wrote;
        }
        failed = failed.or(outcome.failure);
    }
    failed.map_or(Help::Nothing, |failure| Help::Failed(failure.error))
}

/// The regions whose pages a cache holds.
fn regions_of(cache: &Inner) -> impl Iterator<Item = registry::InUse<'_>> {
    registry::all().filter(move |region| std::ptr::eq(&**region.cache(), cache))
}

/// Writes a few dirty pages of the cache, for a thread that found no clean one. Signals are blocked.
pub fn help(cache: &Inner) -> Help {
    let mut result = Help::Nothing;
    for region in regions_of(cache) {
        match write_some(&region, HELP_PAGES) {
            Help::Wrote => return Help::Wrote,
            Help::Failed(error) => result = Help::Failed(error),
            Help::Nothing => {}
        }
    }
    result
}

/// The background writer of a cache: one thread, asleep below the high-water mark.
#[derive(Debug)]
pub struct Writer(Arc<Control>);

#[derive(Debug, Default)]
struct Control {
    calls: AtomicU32,
    stop: AtomicBool,
}

impl Writer {
    /// Starts the thread. Where none can be started, pages are written by the threads that need room and by flushes.
    pub fn start(cache: Weak<Inner>) -> Option<Self> {
        let control = Arc::new(Control::default());
        let shared = control.clone();
        let body = move || {
            let _blocked = Blocked::all();
            let mut seen = 0;
            while !shared.stop.load(Ordering::Acquire) {
                let pause = match cache.upgrade() {
                    Some(cache) => write_down(&cache),
                    None => return,
                };
                futex::wait(&shared.calls, seen, pause);
                seen = shared.calls.load(Ordering::Acquire);
            }
        };
        match std::thread::Builder::new().name("fastmap-writer".into()).spawn(body) {
            Ok(_) => Some(Writer(control)),
            Err(error) => {
                tracing::warn!(%error, "no background writer: threads that need room write dirty pages themselves");
                None
            }
        }
    }

    /// Makes the thread look at its cache.
    pub fn wake(&self) {
        self.0.calls.fetch_add(1, Ordering::AcqRel);
        futex::wake(&self.0.calls, 1);
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        self.0.stop.store(true, Ordering::Release);
        self.wake();
    }
}

/// Serves `flush_async`, then brings the dirty pages from above the high-water mark down to the low one. Returns how
/// long to sleep at most: writes that failed are tried again.
fn write_down(cache: &Inner) -> Option<Duration> {
    const AGAIN: Duration = Duration::from_millis(200);
    let (mut again, mut saved) = (false, false);
    for region in regions_of(cache) {
        if !region.flush_wanted().swap(false, Ordering::AcqRel) {
            continue;
        }
        match flush(&region, 0..region.span() / PAGE, true) {
            Ok(()) => saved = true,
            Err(error) => {
                tell(&region, &error);
                // A disk may have room again; a failed fdatasync is final (see `FileStore::sync`).
                if matches!(error, Error::WriteBack { .. }) {
                    region.flush_wanted().store(true, Ordering::Release);
                    again = true;
                }
            }
        }
    }
    if saved {
        files::close_abandoned(cache);
    }
    if cache.dirty_pages() > cache.high_water() {
        let mut progress = true;
        while progress && cache.dirty_pages() > cache.low_water() {
            progress = false;
            for region in regions_of(cache) {
                match write_some(&region, BLOCK_PAGES) {
                    Help::Wrote => progress = true,
                    Help::Failed(error) => {
                        tell(&region, &io::Error::from_raw_os_error(error));
                        again = true;
                    }
                    Help::Nothing => {}
                }
            }
            // A flush that somebody asks for meanwhile is served first: its call starts the next round at once.
            if !again && regions_of(cache).any(|region| region.flush_wanted().load(Ordering::Acquire)) {
                break;
            }
        }
    }
    again.then_some(AGAIN)
}

/// Says once a region that background writing fails; the next flush returns the error.
fn tell(region: &Region, error: &dyn std::fmt::Display) {
    if region.complain() {
        tracing::error!(file = %region.store().path().display(), %error, "write-back fails; the pages stay in memory");
    }
}
