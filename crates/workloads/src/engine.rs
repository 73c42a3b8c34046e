//! The engines: how a page is loaded and stored through each, and how the fastmap engine's cache is sized.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt, OpenOptionsExt};

use crate::measure::Shadow;
use crate::{Counters, Engine, Error, FastmapReport, PAGE, Result, Spec, stamp};

/// One way to reach pages, shared by all threads of a run.
pub trait Access: Sync {
    /// What each thread needs for itself.
    type Local;

    /// Makes it.
    fn local(&self) -> Result<Self::Local>;

    /// [`crate::Op::Read`] on `page`.
    fn read(&self, local: &mut Self::Local, page: u64) -> Result<()>;

    /// [`crate::Op::Write`] on `page`, which no other thread writes.
    fn write(&self, local: &mut Self::Local, page: u64, shadow: &Shadow) -> Result<()>;

    /// [`crate::Op::Rmw`] on `page`, which no other thread writes.
    fn rmw(&self, local: &mut Self::Local, page: u64, shadow: &Shadow) -> Result<()>;
}

/// Any mapped engine: loads and stores through raw pointers.
pub struct Mapped {
    base: *mut u8,
    pages: u64,
}

// SAFETY: the pointer stands for a mapping that the caller of `Mapped::new` keeps, writable wherever stores are asked
// for. Threads race only on words that nobody stores to; a page's generation is touched by its owner alone.
unsafe impl Sync for Mapped {}

impl Mapped {
    /// # Safety
    ///
    /// `base` points to `pages` pages, page-aligned, that stay mapped as long as this value is used; they are writable
    /// if `write` or `rmw` is called.
    unsafe fn new(base: *mut u8, pages: u64) -> Mapped {
        Mapped { base, pages }
    }

    #[inline]
    fn word(&self, page: u64, offset: usize) -> *mut u64 {
        debug_assert!(page < self.pages && offset < PAGE);
        self.base.wrapping_add(page as usize * PAGE + offset).cast()
    }

    #[inline]
    fn load(&self, page: u64, offset: usize) -> u64 {
        // SAFETY: inside the mapping and 8-byte aligned, see `new`; volatile, so that each load reaches the page.
        unsafe { self.word(page, offset).read_volatile() }
    }

    #[inline]
    fn store_generation(&self, page: u64, generation: u64) {
        // SAFETY: as `load`; writable, see `new`.
        unsafe { self.word(page, stamp::GENERATION_OFFSET).write_volatile(generation) }
    }
}

impl Access for Mapped {
    type Local = ();

    fn local(&self) -> Result<()> {
        Ok(())
    }

    #[inline]
    fn read(&self, (): &mut (), page: u64) -> Result<()> {
        stamp::check_stamp(page, |offset| self.load(page, offset))
    }

    #[inline]
    fn write(&self, local: &mut (), page: u64, shadow: &Shadow) -> Result<()> {
        self.store_generation(page, shadow.next(page));
        self.read(local, page)
    }

    #[inline]
    fn rmw(&self, (): &mut (), page: u64, shadow: &Shadow) -> Result<()> {
        shadow.check(page, self.load(page, stamp::GENERATION_OFFSET))?;
        self.store_generation(page, shadow.next(page));
        Ok(())
    }
}

/// `pread` and `pwrite`, buffered or direct. Each thread has one page-aligned buffer. A store is a read and a write of
/// the whole page: the file's other bytes are to survive, and the stamp is to be checked, as through a map.
pub struct Calls {
    file: File,
    label: String,
}

impl Calls {
    fn failed(&self, what: &'static str, source: io::Error) -> Error {
        let remedy = "check the file and its device, or leave this engine out of --engines";
        Error::Io { thing: self.label.clone(), what, source, remedy }
    }

    fn load(&self, bytes: &mut [u8], page: u64) -> Result<()> {
        self.file.read_exact_at(bytes, page * PAGE as u64).map_err(|e| self.failed("pread failed", e))
    }

    fn store(&self, bytes: &[u8], page: u64) -> Result<()> {
        self.file.write_all_at(bytes, page * PAGE as u64).map_err(|e| self.failed("pwrite failed", e))
    }
}

impl Access for Calls {
    /// Anonymous memory: page-aligned, as direct I/O wants it.
    type Local = memmap2::MmapMut;

    fn local(&self) -> Result<Self::Local> {
        memmap2::MmapMut::map_anon(PAGE).map_err(|e| self.failed("no memory for a buffer", e))
    }

    fn read(&self, local: &mut Self::Local, page: u64) -> Result<()> {
        self.load(local, page)?;
        stamp::check_stamp_in(page, local)
    }

    fn write(&self, local: &mut Self::Local, page: u64, shadow: &Shadow) -> Result<()> {
        self.read(local, page)?;
        stamp::set_generation(local, shadow.next(page));
        self.store(local, page)
    }

    fn rmw(&self, local: &mut Self::Local, page: u64, shadow: &Shadow) -> Result<()> {
        self.load(local, page)?;
        shadow.check(page, stamp::generation(local))?;
        stamp::set_generation(local, shadow.next(page));
        self.store(local, page)
    }
}

/// An engine opened on a spec's file, for `use_it` by [`with`].
pub trait Load {
    /// What the load returns.
    type Output;
    /// Runs over one way to reach pages; `report` reads the fastmap engine's counters.
    fn over<A: Access>(self, access: &A, report: &dyn Fn() -> Option<FastmapReport>) -> Result<Self::Output>;
}

/// Opens the spec's file through its engine, runs the load, flushes what it stored and lets go of the file.
pub fn with<L: Load>(spec: &Spec, load: L) -> Result<L::Output> {
    let writes = spec.op.writes();
    let len = spec.pages as usize * PAGE;
    let none = || None;
    match spec.engine {
        Engine::Pread | Engine::Direct => {
            let flags = if spec.engine == Engine::Direct { libc::O_DIRECT } else { 0 };
            let calls = Calls { file: open(spec, flags)?, label: spec.label.clone() };
            load.over(&calls, &none)
        }
        Engine::Mmap | Engine::MmapRandom | Engine::MmapSequential => {
            let file = open(spec, 0)?;
            let failed = |what| {
                move |source| Error::Io {
                    thing: spec.label.clone(),
                    what,
                    source,
                    remedy: "check the file and its device",
                }
            };
            let advice = match spec.engine {
                Engine::MmapRandom => memmap2::Advice::Random,
                Engine::MmapSequential => memmap2::Advice::Sequential,
                _ => memmap2::Advice::Normal,
            };
            if writes {
                // SAFETY: the file is the benchmark's own and nobody cuts it short meanwhile.
                let mut map = unsafe { memmap2::MmapOptions::new().len(len).map_mut(&file) }.map_err(failed("mmap"))?;
                map.advise(advice).map_err(failed("madvise"))?;
                // SAFETY: the map is writable and lives until the load is over.
                let output = load.over(&unsafe { Mapped::new(map.as_mut_ptr(), spec.pages) }, &none)?;
                map.flush().map_err(failed("msync"))?;
                Ok(output)
            } else {
                // SAFETY: as above.
                let map = unsafe { memmap2::MmapOptions::new().len(len).map(&file) }.map_err(failed("mmap"))?;
                map.advise(advice).map_err(failed("madvise"))?;
                // SAFETY: the map lives until the load is over, and a load that does not write never stores.
                load.over(&unsafe { Mapped::new(map.as_ptr().cast_mut(), spec.pages) }, &none)
            }
        }
        Engine::Fastmap => with_fastmap(spec, load),
    }
}

fn with_fastmap<L: Load>(spec: &Spec, load: L) -> Result<L::Output> {
    let file = open(spec, 0)?;
    let direct_io = takes_direct_io(&file);
    let capacity = match spec.memory {
        Some(memory) => capacity_for(memory, spec.pages, spec.op.writes())?,
        None => (spec.pages as usize * PAGE / 4).max(fastmap::Cache::MIN_CAPACITY),
    };
    let cache = fastmap::Cache::new(capacity)?;
    let mut options = fastmap::MapOptions::new();
    options.cache(&cache).len(spec.pages as usize * PAGE).fallback(if direct_io {
        fastmap::Fallback::Refuse
    } else {
        fastmap::Fallback::Buffered
    });
    let report = || {
        let counters = Counters::from(cache.stats());
        Some(FastmapReport { capacity_bytes: cache.capacity() as u64, direct_io, counters })
    };
    if spec.op.writes() {
        // SAFETY: the file is the benchmark's own and nobody cuts it short meanwhile.
        let mut map = unsafe { options.map_mut(&file) }?;
        // SAFETY: the map is writable and lives until the load is over.
        let output = load.over(&unsafe { Mapped::new(map.as_mut_ptr(), spec.pages) }, &report)?;
        map.flush()?;
        Ok(output)
    } else {
        // SAFETY: as above.
        let map = unsafe { options.map(&file) }?;
        // SAFETY: the map lives until the load is over, and a load that does not write never stores.
        load.over(&unsafe { Mapped::new(map.as_ptr().cast_mut(), spec.pages) }, &report)
    }
}

fn open(spec: &Spec, flags: i32) -> Result<File> {
    OpenOptions::new().read(true).write(spec.op.writes()).custom_flags(flags).open(&spec.path).map_err(|source| {
        Error::Io {
            thing: spec.label.clone(),
            what: if flags & libc::O_DIRECT != 0 { "cannot open with O_DIRECT" } else { "cannot open" },
            source,
            remedy: if flags & libc::O_DIRECT != 0 {
                "name a file on another file system, or leave `direct` out of --engines"
            } else {
                "make the file readable, and for write and rmw writable"
            },
        }
    })
}

/// Whether the engine reads the file past the page cache; not where it is in memory already.
fn takes_direct_io(file: &File) -> bool {
    fastmap::requirements::of_file(file).iter().all(|requirement| requirement.found.is_ok())
}

/// The process itself, the counters of its threads and the fixed parts of the engine: 4 to 7 MiB with 1 to 16 threads.
const FIXED: u64 = 8 << 20;

/// Per page of the file: 8 bytes of page table, whose pages stay once used, and 4 of page word and dirty bitmaps.
const PER_PAGE: u64 = 12;

/// Per page of the file in a load that writes: its expected generation, see [`Shadow`].
const PER_PAGE_WRITTEN: u64 = 4;

/// Capacity in bytes of the fastmap engine's cache in a process that may use `memory` bytes for everything:
/// memory - 8 MiB - 1 % of memory - 12 bytes for each page of the file (16 in a load that writes).
///
/// The 1 % is the engine's promise for bookkeeping that grows with the cache.
///
/// # Errors
///
/// [`Error::Memory`] with the least memory that works, if less than [`fastmap::Cache::MIN_CAPACITY`] remains.
pub fn capacity_for(memory: u64, pages: u64, writes: bool) -> Result<usize> {
    let capacity = (memory - memory / 100).saturating_sub(overhead(pages, writes)) / PAGE as u64 * PAGE as u64;
    if capacity < fastmap::Cache::MIN_CAPACITY as u64 {
        return Err(Error::Memory { memory, least: least_memory(pages, writes) });
    }
    Ok(capacity as usize)
}

/// The least memory for which [`capacity_for`] gives a capacity, in whole MiB.
pub fn least_memory(pages: u64, writes: bool) -> u64 {
    let rest = fastmap::Cache::MIN_CAPACITY as u64 + PAGE as u64 + overhead(pages, writes);
    (rest * 100).div_ceil(99).next_multiple_of(1 << 20)
}

fn overhead(pages: u64, writes: bool) -> u64 {
    FIXED + pages * if writes { PER_PAGE + PER_PAGE_WRITTEN } else { PER_PAGE }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn capacity_is_what_the_arithmetic_leaves() {
        // 4 GiB of pages under 1 GiB: 1 GiB - 10.24 MiB - 8 MiB - 12 MiB.
        let capacity = capacity_for(1 << 30, 1 << 20, false).unwrap() as u64;
        let exact = (1u64 << 30) - (1 << 30) / 100 - (8 << 20) - (12 << 20);
        assert!(exact - capacity < PAGE as u64);
    }

    #[test]
    fn the_least_memory_works_and_less_names_it() {
        for (pages, writes) in [(4096, false), (1 << 20, true), (1 << 26, false)] {
            let least = least_memory(pages, writes);
            assert!(capacity_for(least, pages, writes).unwrap() >= fastmap::Cache::MIN_CAPACITY);
            let error = capacity_for(least - (1 << 20) - (1 << 16), pages, writes).unwrap_err().to_string();
            assert!(error.contains(&format!("give at least {}MiB", least >> 20)), "{error}");
        }
        assert!(capacity_for(0, 1, false).is_err());
    }
}
