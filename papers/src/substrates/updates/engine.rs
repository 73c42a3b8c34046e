//! A file mapped for updates through one of the engines, and how loads and stores reach it.

use std::fs::{File, OpenOptions};
use std::io;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use fastmap::MapMut;

use super::lines::{INITIAL, LINE};
use super::{Order, RECORD, Work};
use crate::substrates::engine::{self, Cached};
use crate::substrates::{Engine, Error, PAGE, Result};

/// A mapping, shared by all threads of a run.
pub struct Mapped<'a> {
    base: *mut u8,
    len: usize,
    flush: &'a (dyn Fn() -> Result<()> + Sync),
    /// With the fastmap engines.
    pub cached: Option<Cached<'a>>,
    /// Under the AR protocol: what tells the initial value and has lines read.
    duties: Option<&'a MapMut>,
    /// Loads that met the initial value.
    pub synchronised: AtomicU64,
}

// SAFETY: the pointer stands for a mapping that outlives this value. A thread touches its own pages' words, or its own
// records, only.
unsafe impl Sync for Mapped<'_> {}

impl Mapped<'_> {
    #[inline]
    fn at(&self, offset: u64, len: usize) -> *mut u8 {
        debug_assert!(offset as usize + len <= self.len);
        self.base.wrapping_add(offset as usize)
    }

    /// Stores 8 bytes with one instruction.
    #[inline]
    pub fn store_word(&self, offset: u64, word: u64) {
        // SAFETY: inside the mapping, which is writable, and 8-byte aligned; volatile, so that it is one store.
        unsafe { self.at(offset, 8).cast::<u64>().write_volatile(word) }
    }

    /// Stores whole lines, as a copy does.
    #[inline]
    pub fn store(&self, offset: u64, bytes: &[u8]) {
        debug_assert!(offset.is_multiple_of(LINE as u64) && bytes.len().is_multiple_of(LINE));
        // SAFETY: inside the mapping, which is writable and nobody's reference.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), self.at(offset, bytes.len()), bytes.len()) }
    }

    /// Loads a record.
    #[inline]
    pub fn load(&self, offset: u64, record: &mut [u8; RECORD]) -> Result<()> {
        let copy = |record: &mut [u8; RECORD]| {
            // SAFETY: inside the mapping, and no thread stores to another one's record.
            unsafe { std::ptr::copy_nonoverlapping(self.at(offset, RECORD), record.as_mut_ptr(), RECORD) };
        };
        copy(record);
        if let Some(map) = self.duties
            && record.chunks_exact(LINE).any(|line| map.is_initial(line))
        {
            self.synchronised.fetch_add(1, Relaxed);
            map.synchronise(offset as usize, RECORD)?;
            copy(record);
        }
        Ok(())
    }

    /// Puts every store so far on stable storage.
    pub fn flush(&self) -> Result<()> {
        (self.flush)()
    }
}

/// Maps the order's file through its engine, runs `load`, and lets go of the file.
pub fn with<T>(order: &Order, load: impl FnOnce(&Mapped<'_>) -> Result<T>) -> Result<T> {
    let len = order.pages as usize * PAGE;
    let failed = |what| {
        let remedy = "check the file and its device";
        move |source: io::Error| Error::Io { thing: order.label.clone(), what, source, remedy }
    };
    let file = OpenOptions::new().read(true).write(true).open(&order.path).map_err(failed("cannot open"))?;
    let advice = match order.load.engine {
        Engine::Mmap => memmap2::Advice::Normal,
        Engine::MmapRandom => memmap2::Advice::Random,
        _ => return with_fastmap(order, &file, load),
    };
    // SAFETY: the file is the benchmark's own and nobody cuts it short meanwhile.
    let mut map = unsafe { memmap2::MmapOptions::new().len(len).map_mut(&file) }.map_err(failed("mmap"))?;
    map.advise(advice).map_err(failed("madvise"))?;
    let base = map.as_mut_ptr();
    let flush = || map.flush().map_err(failed("msync"));
    load(&Mapped { base, len, flush: &flush, cached: None, duties: None, synchronised: AtomicU64::new(0) })
}

fn with_fastmap<T>(order: &Order, file: &File, load: impl FnOnce(&Mapped<'_>) -> Result<T>) -> Result<T> {
    let capacity = match order.memory {
        Some(memory) => capacity_for(memory, order.pages, order.load.work)?,
        None => engine::unlimited_capacity(order.pages),
    };
    let cache = fastmap::Cache::new(capacity)?;
    let (mut options, direct_io) = engine::options(file, &cache, order.pages);
    match order.load.engine {
        Engine::FastmapAr => options.async_read(INITIAL),
        Engine::FastmapStores => options.async_stores(true),
        _ => &mut options,
    };
    // SAFETY: the file is the benchmark's own and nobody cuts it short meanwhile.
    let mut map = unsafe { options.map_mut(file) }?;
    let base = map.as_mut_ptr();
    let flush = || Ok(map.flush()?);
    load(&Mapped {
        base,
        len: map.len(),
        flush: &flush,
        cached: Some(Cached { cache: &cache, direct_io }),
        duties: (order.load.engine == Engine::FastmapAr).then_some(&map),
        synchronised: AtomicU64::new(0),
    })
}

/// Capacity in bytes of the fastmap engines' cache in a process that may use `memory` bytes for everything:
/// [`crate::substrates::capacity_for`] of a load that writes, less what the records' generations take.
///
/// # Errors
///
/// [`Error::Memory`] with the least memory that works.
pub fn capacity_for(memory: u64, pages: u64, work: Work) -> Result<usize> {
    crate::substrates::capacity_for(memory.saturating_sub(beside(pages, work)), pages, true)
        .map_err(|_| Error::Memory { memory, least: least_memory(pages, work) })
}

/// The least memory for which [`capacity_for`] gives a capacity, in whole MiB.
pub fn least_memory(pages: u64, work: Work) -> u64 {
    (crate::substrates::least_memory(pages, true) + beside(pages, work)).next_multiple_of(1 << 20)
}

/// Bytes of generations beyond the one a page that [`crate::substrates::capacity_for`] counts.
fn beside(pages: u64, work: Work) -> u64 {
    (work.units(pages) - pages) * 4
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_least_memory_works_and_records_need_more() {
        for work in [Work::Store8, Work::Record] {
            let least = least_memory(1 << 18, work);
            assert!(capacity_for(least, 1 << 18, work).unwrap() >= fastmap::Cache::MIN_CAPACITY);
            let error = capacity_for(least - (2 << 20), 1 << 18, work).unwrap_err().to_string();
            assert!(error.contains(&format!("give at least {}MiB", least >> 20)), "{error}");
        }
        let capacity = |work| capacity_for(1 << 30, 1 << 20, work).unwrap() as u64;
        let less = capacity(Work::Line) - capacity(Work::Record);
        assert!(less.abs_diff((12 << 20) / 100 * 99) <= PAGE as u64, "three more counts a page, less 1 %: {less}");
    }
}
