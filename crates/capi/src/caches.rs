//! Caches by handle, and what they have counted.

use crate::boundary::{Failure, call};
use crate::processes::refuse_in_child;
use fastmap::Cache;
use std::collections::HashMap;
use std::ffi::c_int;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, OnceLock};

/// A cache: a limit, in bytes, on the pages in memory of all maps that were made in it. The structure is opaque.
pub struct fm_cache {
    _private: [u8; 0],
}

/// Counts of a cache since it was made, and its present contents. Where a comment says pages, the count is of
/// pages of 4096 bytes.
///
/// Later versions of the library may have more members at the end: pass fm_stats() the size that you know.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default)]
pub struct fm_stats {
    /// Most bytes that may be in memory.
    pub capacity: u64,
    /// Pages in memory now.
    pub resident_pages: u64,
    /// Of `resident_pages`, those newer than their file.
    pub dirty_pages: u64,
    /// Of `resident_pages`, those that pins and locks keep in memory.
    pub pinned_pages: u64,
    /// Loads and stores that found their page absent.
    pub misses: u64,
    /// Pages that were missed or read ahead a short while after their eviction.
    pub ghost_hits: u64,
    /// Pages filled with zeros, without a read, because the file has a hole there.
    pub born_zero: u64,
    /// First stores to clean pages, and pages pinned for writing.
    pub upgrades: u64,
    /// Page faults that waited for another thread's work on the page.
    pub waits: u64,
    /// Streams: walks with a constant step, which the engine reads ahead of.
    pub streams: u64,
    /// Pages read ahead for streams.
    pub ahead_pages: u64,
    /// Of `ahead_pages`, those that the stream came to.
    pub ahead_used: u64,
    /// Of `ahead_pages`, those dropped before the stream came to them.
    pub ahead_wasted: u64,
    /// Stores to absent pages that did not wait (fm_async_read(), FM_MAP_ASYNC_STORES); counted as misses, too.
    pub async_loads: u64,
    /// Stores buffered until their page was read.
    pub kept_stores: u64,
    /// Lines that hold part of the initial value beside what was stored: violations of the duties of
    /// fm_async_read(), as far as they can be seen.
    pub partial_lines: u64,
    /// Pages brought in by fm_prefetch() and its kin.
    pub prefetched_pages: u64,
    /// Pages dropped, to make room or on advice.
    pub evicted_pages: u64,
    /// Pages written to files.
    pub writeback_pages: u64,
    /// Writes that this took: neighbouring pages are written together.
    pub writeback_runs: u64,
    /// Writes that failed. Their pages are kept and tried again.
    pub writeback_errors: u64,
    /// fdatasync(2) calls.
    pub syncs: u64,
}

impl fm_stats {
    fn of(cache: &Cache) -> Self {
        let stats = cache.stats();
        fm_stats {
            capacity: cache.capacity() as u64,
            resident_pages: stats.resident_pages,
            dirty_pages: stats.dirty_pages,
            pinned_pages: stats.pinned_pages,
            misses: stats.misses,
            ghost_hits: stats.ghost_hits,
            born_zero: stats.born_zero,
            upgrades: stats.upgrades,
            waits: stats.waits,
            streams: stats.streams,
            ahead_pages: stats.ahead_pages,
            ahead_used: stats.ahead_used,
            ahead_wasted: stats.ahead_wasted,
            async_loads: stats.async_loads,
            kept_stores: stats.kept_stores,
            partial_lines: stats.partial_lines,
            prefetched_pages: stats.prefetched_pages,
            evicted_pages: stats.evicted_pages,
            writeback_pages: stats.writeback_pages,
            writeback_runs: stats.writeback_runs,
            writeback_errors: stats.writeback_errors,
            syncs: stats.syncs,
        }
    }
}

/// The caches by handle. A handle is a number that is given only once, so a wrong one is recognised without
/// looking at what it points to.
#[derive(Default)]
struct Handles {
    caches: HashMap<usize, Cache>,
    given: usize,
}

fn handles() -> MutexGuard<'static, Handles> {
    static HANDLES: OnceLock<Mutex<Handles>> = OnceLock::new();
    HANDLES.get_or_init(Mutex::default).lock().unwrap_or_else(|poison| poison.into_inner())
}

/// Keeps other threads from the handles.
pub fn lock() -> impl Sized + 'static {
    handles()
}

fn unknown(handle: *const fm_cache) -> Failure {
    let why =
        format_args!("{handle:p} is not a cache, or one that has been destroyed: pass what fm_cache_create returned");
    Failure::new(libc::EINVAL, why)
}

/// The program has set the capacity of the process's own cache: it wants the engine.
static IS_NAMED: AtomicBool = AtomicBool::new(false);

/// Whether the program has set the capacity of the process's own cache.
pub fn is_named() -> bool {
    IS_NAMED.load(Ordering::Relaxed)
}

/// The process's own cache, whose capacity follows the memory that is left.
fn own() -> Result<Cache, Failure> {
    static OWN: OnceLock<Cache> = OnceLock::new();
    if let Some(cache) = OWN.get() {
        return Ok(cache.clone());
    }
    let cache = Cache::auto()?;
    Ok(OWN.get_or_init(|| cache).clone())
}

/// The cache of a handle; for NULL the process's own.
pub fn find(handle: *const fm_cache) -> Result<Cache, Failure> {
    if handle.is_null() {
        return own();
    }
    handles().caches.get(&handle.addr()).cloned().ok_or_else(|| unknown(handle))
}

/// Makes a cache of up to `capacity` bytes, at least 65536, rounded down to pages of 4096 bytes. Its
/// bookkeeping takes 0.2 % more. A cache takes no memory before it has maps.
///
/// Stores to its maps survive the death of the program, because a process named fastmap-keeper writes them.
/// They do not survive what ends that process, too: the OOM killer, and the end of a PID namespace. Then only
/// what fm_msync() has written is sure to be in the file.
///
/// Returns NULL and sets errno on failure: EINVAL (too small); ENOMEM; ENOSYS (in a child made by fork(2)).
#[unsafe(no_mangle)]
pub extern "C" fn fm_cache_create(capacity: usize) -> *mut fm_cache {
    call("fm_cache_create", || {
        refuse_in_child()?;
        let cache = Cache::new(capacity)?;
        let mut handles = handles();
        handles.given += 1;
        let handle = handles.given * 16;
        handles.caches.insert(handle, cache);
        Ok(std::ptr::without_provenance_mut(handle))
    })
}

/// Changes a cache's capacity to `capacity` bytes, rounded down to pages of 4096 bytes, while it is in use.
/// NULL for `cache` means the process's own. A larger capacity holds at once. A smaller one is reached when the
/// call returns: pages leave memory, and dirty ones are written first. The process's own cache follows the
/// memory that is left until it is given a capacity. From then on maps are cached: see fm_mmap().
///
/// Returns 0, or -1 and sets errno: EINVAL (not a cache, too small, or larger than physical memory); EBUSY
/// (more is pinned than that); ENOSPC, EIO and the other errors of write(2) (dirty pages cannot be written, and
/// are kept); ENOSYS (in a child made by fork(2)).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fm_cache_resize(cache: *mut fm_cache, capacity: usize) -> c_int {
    call("fm_cache_resize", || {
        refuse_in_child()?;
        find(cache)?.resize(capacity)?;
        IS_NAMED.fetch_or(cache.is_null(), Ordering::Relaxed);
        Ok(0)
    })
}

/// Gives back the handle of a cache. The cache itself stays as long as there are maps in it.
///
/// Returns 0, or -1 and sets errno: EINVAL (not a cache, NULL, or destroyed already); ENOSYS (in a child made
/// by fork(2)).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fm_cache_destroy(cache: *mut fm_cache) -> c_int {
    call("fm_cache_destroy", || {
        refuse_in_child()?;
        // Dropped after the lock on the handles is released, since the drop ends the cache's threads.
        let gone = handles().caches.remove(&cache.addr());
        gone.map(|_| 0).ok_or_else(|| unknown(cache))
    })
}

/// Fills in what a cache has counted. NULL for `cache` means the process's own. `size` is sizeof(struct
/// fm_stats) as the program knows it. So many bytes are written, with zeros for what this library does not
/// know.
///
/// Returns 0, or -1 and sets errno: EINVAL (not a cache, or a size that is zero or not a multiple of 8); EFAULT
/// (`stats` is NULL); ENOSYS (in a child made by fork(2)).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fm_stats(cache: *mut fm_cache, stats: *mut fm_stats, size: usize) -> c_int {
    call("fm_stats", || {
        refuse_in_child()?;
        let now = fm_stats::of(&find(cache)?);
        // SAFETY: the caller has `size` bytes there; a struct of integers without padding.
        unsafe { fill_in(stats, &now, size) }?;
        Ok(0)
    })
}

/// Fills in as many counters as the program's struct has, and zeros behind those that this library knows.
///
/// # Safety
/// There are `size` bytes at `to`, unless it is null; `T` is integers of 8 bytes.
pub unsafe fn fill_in<T>(to: *mut T, now: &T, size: usize) -> Result<(), Failure> {
    if size == 0 || !size.is_multiple_of(size_of::<u64>()) {
        let why = format_args!("a struct of {size} bytes: pass its sizeof");
        return Err(Failure::new(libc::EINVAL, why));
    }
    if to.is_null() {
        return Err(Failure::new(libc::EFAULT, "stats is NULL: pass a struct to be filled in"));
    }
    let known = size.min(size_of::<T>());
    let to = to.cast::<u8>();
    // SAFETY: the caller's contract.
    unsafe {
        to.copy_from_nonoverlapping((&raw const *now).cast(), known);
        to.add(known).write_bytes(0, size - known);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn handles_are_never_given_twice() {
        // SAFETY: handles, good and bad.
        unsafe {
            let one = fm_cache_create(1 << 20);
            assert_eq!((fm_cache_destroy(one), fm_cache_destroy(one)), (0, -1));
            let two = fm_cache_create(1 << 20);
            assert_ne!(one, two);
            assert_eq!(fm_cache_resize(one, 2 << 20), -1);
            assert_eq!(fm_cache_resize(two, 2 << 20), 0);
            assert_eq!(find(two).unwrap().capacity(), 2 << 20);
            assert_eq!(fm_cache_destroy(two), 0);
            assert!(fm_cache_create(4096).is_null());
        }
    }

    #[test]
    fn stats_have_the_size_that_the_program_knows() {
        // SAFETY: arrays of more bytes than are asked for.
        unsafe {
            let cache = fm_cache_create(1 << 20);
            let mut room = [u64::MAX; 64];
            let at: *mut fm_stats = room.as_mut_ptr().cast();
            assert_eq!(fm_stats(cache, at, 16), 0);
            assert_eq!(room[..3], [1 << 20, 0, u64::MAX]);
            assert_eq!(fm_stats(cache, at, 500), -1);
            assert_eq!(fm_stats(cache, at, 0), -1);
            assert_eq!(fm_stats(cache, std::ptr::null_mut(), 8), -1);
            assert_eq!(room[2], u64::MAX);
            assert_eq!(fm_stats(cache, at, 63 * 8), 0);
            assert_eq!((room[62], room[63]), (0, u64::MAX));
            assert_eq!(fm_cache_destroy(cache), 0);
        }
    }
}
