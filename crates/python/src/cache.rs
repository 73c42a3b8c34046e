//! Caches: limits on memory, with their counters.

use crate::failure::{Failure, check};
use fastmap_capi::{fm_cache, fm_cache_create, fm_cache_destroy, fm_cache_resize, fm_stats};
use pyo3::prelude::*;
use pyo3::types::PyDict;
use std::sync::atomic::{AtomicU64, Ordering};

/// A limit on the memory of all the arrays and mappings that are made in it.
///
/// Parameters
/// ----------
/// capacity : int or str
///     Bytes, or a size such as "1GiB" (KiB, MiB, GiB, TiB); 64 KiB at least. The bookkeeping takes 0.2 % more.
///
/// Raises
/// ------
/// ValueError
///     Too small, or no size.
/// OSError
///     ENOSYS in a child made by fork(2) of a process that uses fastmap: start it by "spawn" or "forkserver".
///
/// Notes
/// -----
/// After FastMap, Papagiannis et al., "Optimizing Memory-mapped I/O for Fast Storage Devices", USENIX ATC 2020. Files in a cache are read
/// past the kernel's page cache where the file system allows that.
///
/// Examples
/// --------
/// >>> cache = fastmap.Cache("1MiB")
/// >>> cache.capacity
/// 1048576
#[pyclass(frozen, subclass, module = "fastmap._native")]
pub struct Cache {
    /// The handle; a number.
    handle: usize,
    /// The capacity when it was last asked for: a child made by fork(2) has no caches to ask.
    capacity: AtomicU64,
}

impl Cache {
    pub fn handle(&self) -> *mut fm_cache {
        std::ptr::without_provenance_mut(self.handle)
    }

    fn counters(&self) -> Result<fm_stats, Failure> {
        let mut stats = std::mem::MaybeUninit::<fm_stats>::zeroed();
        // SAFETY: a struct of integers, of the size that is passed.
        check(unsafe { fm_stats(self.handle(), stats.as_mut_ptr(), size_of::<fm_stats>()) })?;
        // SAFETY: zeroed, and filled in.
        let stats = unsafe { stats.assume_init() };
        self.capacity.store(stats.capacity, Ordering::Relaxed);
        Ok(stats)
    }
}

#[pymethods]
impl Cache {
    #[new]
    fn new(capacity: usize) -> PyResult<Self> {
        let handle = fm_cache_create(capacity);
        if handle.is_null() {
            return Err(Failure::last().into());
        }
        let cache = Cache { handle: handle.addr(), capacity: AtomicU64::new(0) };
        cache.counters()?;
        Ok(cache)
    }

    /// Most bytes that may be in memory.
    #[getter]
    fn capacity(&self) -> u64 {
        self.counters().map_or_else(|_| self.capacity.load(Ordering::Relaxed), |now| now.capacity)
    }

    #[pyo3(name = "_resize")]
    fn resize(&self, py: Python<'_>, capacity: usize) -> PyResult<()> {
        // SAFETY: a handle.
        Ok(py.detach(|| check(unsafe { fm_cache_resize(self.handle(), capacity) })).map(|_| ())?)
    }

    /// Counts of the cache since it was made, and its present contents.
    ///
    /// Returns
    /// -------
    /// dict of str to int
    ///     `capacity` in bytes; all else counts. In pages of 4096 bytes: `resident_pages`, `dirty_pages`, `pinned_pages` (now), `born_zero`,
    ///     `ahead_pages`, `ahead_used`, `ahead_wasted`, `prefetched_pages`, `evicted_pages`, `writeback_pages`. `misses` are accesses that
    ///     found their page absent.
    fn stats<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let now = self.counters()?;
        let all = PyDict::new(py);
        macro_rules! fill {
            ($($name:ident)*) => { $(all.set_item(stringify!($name), now.$name)?;)* };
        }
        fill!(capacity resident_pages dirty_pages pinned_pages misses ghost_hits born_zero upgrades waits streams ahead_pages ahead_used
            ahead_wasted async_loads kept_stores partial_lines prefetched_pages evicted_pages writeback_pages writeback_runs
            writeback_errors syncs);
        Ok(all)
    }

    fn __repr__(&self) -> String {
        let there = self.counters().map_or(0, |now| now.resident_pages * 4096);
        format!("<fastmap.Cache of {} bytes, {there} in memory>", self.capacity())
    }
}

impl Drop for Cache {
    fn drop(&mut self) {
        // In a child made by fork(2) this fails, and there is nothing to give back.
        // SAFETY: a handle; mappings in the cache keep it.
        unsafe { fm_cache_destroy(self.handle()) };
    }
}
