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

    /// [`crate::Pattern::Fill`] on `page`: all of its bytes. A thread's pages come in order; `last` marks its last one.
    fn fill(&self, local: &mut Self::Local, page: u64, last: bool, shadow: &Shadow) -> Result<()>;

    /// Puts every store so far on stable storage.
    fn flush(&self) -> Result<()>;
}

/// Any mapped engine: loads and stores through raw pointers.
pub struct Mapped<'a> {
    base: *mut u8,
    pages: u64,
    flush: &'a (dyn Fn() -> Result<()> + Sync),
}

// SAFETY: the pointer stands for a mapping that the caller of `Mapped::new` keeps, writable wherever stores are asked
// for. Threads race only on words that nobody stores to; a page's generation is touched by its owner alone.
unsafe impl Sync for Mapped<'_> {}

impl<'a> Mapped<'a> {
    /// # Safety
    ///
    /// `base` points to `pages` pages, page-aligned, that stay mapped as long as this value is used; they are writable
    /// if `write`, `rmw` or `fill` is called. `flush` flushes the mapping.
    unsafe fn new(base: *mut u8, pages: u64, flush: &'a (dyn Fn() -> Result<()> + Sync)) -> Mapped<'a> {
        Mapped { base, pages, flush }
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

impl Access for Mapped<'_> {
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

    #[inline]
    fn fill(&self, (): &mut (), page: u64, _last: bool, shadow: &Shadow) -> Result<()> {
        debug_assert!(page < self.pages);
        // SAFETY: inside the mapping and writable, see `new`; this thread alone fills the page.
        let bytes = unsafe { std::slice::from_raw_parts_mut(self.base.wrapping_add(page as usize * PAGE), PAGE) };
        stamp::fill(bytes, page, shadow.next(page));
        Ok(())
    }

    fn flush(&self) -> Result<()> {
        (self.flush)()
    }
}

/// Pages a call in [`crate::Pattern::Fill`], 1 MiB: enough that neither calls nor the device's requests are what costs.
const FILL_PAGES: usize = 256;

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
    type Local = Buffer;

    fn local(&self) -> Result<Self::Local> {
        let memory = memmap2::MmapMut::map_anon(FILL_PAGES * PAGE);
        Ok(Buffer { memory: memory.map_err(|e| self.failed("no memory for a buffer", e))?, filled: 0 })
    }

    fn read(&self, local: &mut Self::Local, page: u64) -> Result<()> {
        let bytes = &mut local.memory[..PAGE];
        self.load(bytes, page)?;
        stamp::check_stamp_in(page, bytes)
    }

    fn write(&self, local: &mut Self::Local, page: u64, shadow: &Shadow) -> Result<()> {
        self.read(local, page)?;
        let bytes = &mut local.memory[..PAGE];
        stamp::set_generation(bytes, shadow.next(page));
        self.store(bytes, page)
    }

    fn rmw(&self, local: &mut Self::Local, page: u64, shadow: &Shadow) -> Result<()> {
        let bytes = &mut local.memory[..PAGE];
        self.load(bytes, page)?;
        shadow.check(page, stamp::generation(bytes))?;
        stamp::set_generation(bytes, shadow.next(page));
        self.store(bytes, page)
    }

    fn fill(&self, local: &mut Self::Local, page: u64, last: bool, shadow: &Shadow) -> Result<()> {
        let from = local.filled * PAGE;
        stamp::fill(&mut local.memory[from..from + PAGE], page, shadow.next(page));
        local.filled += 1;
        // Calls end where the file's megabytes do, wherever the thread's part began.
        if last || (page + 1).is_multiple_of(FILL_PAGES as u64) {
            let count = std::mem::take(&mut local.filled);
            self.store(&local.memory[..count * PAGE], page + 1 - count as u64)?;
        }
        Ok(())
    }

    fn flush(&self) -> Result<()> {
        self.file.sync_data().map_err(|e| self.failed("fdatasync failed", e))
    }
}

/// A thread's memory for [`Calls`].
pub struct Buffer {
    /// Anonymous: page-aligned, as direct I/O wants it, and no memory where it is not touched.
    memory: memmap2::MmapMut,
    /// Pages at its start that `fill` has stamped and not yet written.
    filled: usize,
}

/// An engine opened on a spec's file, for `use_it` by [`with`].
pub trait Load {
    /// What the load returns.
    type Output;
    /// Runs over one way to reach pages, and flushes what it stored; `cached` is there with the fastmap engine.
    fn over<A: Access>(self, access: &A, cached: Option<&Cached<'_>>) -> Result<Self::Output>;
}

/// How the fastmap engine was set up.
pub struct Cached<'a> {
    cache: &'a fastmap::Cache,
    direct_io: bool,
}

impl Cached<'_> {
    /// Its counters.
    pub fn stats(&self) -> fastmap::Stats {
        self.cache.stats()
    }

    /// The set-up with counters read at some time.
    pub fn report(&self, stats: fastmap::Stats) -> FastmapReport {
        let capacity_bytes = self.cache.capacity() as u64;
        FastmapReport { capacity_bytes, direct_io: self.direct_io, counters: Counters::from(stats) }
    }
}

/// Opens the spec's file through its engine, runs the load and lets go of the file.
pub fn with<L: Load>(spec: &Spec, load: L) -> Result<L::Output> {
    let writes = spec.op.writes();
    let len = spec.pages as usize * PAGE;
    match spec.engine {
        Engine::Pread | Engine::Direct => {
            let flags = if spec.engine == Engine::Direct { libc::O_DIRECT } else { 0 };
            let calls = Calls { file: open(spec, flags)?, label: spec.label.clone() };
            load.over(&calls, None)
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
                let base = map.as_mut_ptr();
                let flush = || map.flush().map_err(failed("msync"));
                // SAFETY: the map is writable and lives until the load is over.
                load.over(&unsafe { Mapped::new(base, spec.pages, &flush) }, None)
            } else {
                // SAFETY: as above.
                let map = unsafe { memmap2::MmapOptions::new().len(len).map(&file) }.map_err(failed("mmap"))?;
                map.advise(advice).map_err(failed("madvise"))?;
                // SAFETY: the map lives until the load is over, and a load that does not write never stores.
                load.over(&unsafe { Mapped::new(map.as_ptr().cast_mut(), spec.pages, &|| Ok(())) }, None)
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
    let cached = Some(&Cached { cache: &cache, direct_io });
    if spec.op.writes() {
        // SAFETY: the file is the benchmark's own and nobody cuts it short meanwhile.
        let mut map = unsafe { options.map_mut(&file) }?;
        let base = map.as_mut_ptr();
        let flush = || Ok(map.flush()?);
        // SAFETY: the map is writable and lives until the load is over.
        load.over(&unsafe { Mapped::new(base, spec.pages, &flush) }, cached)
    } else {
        // SAFETY: as above.
        let map = unsafe { options.map(&file) }?;
        // SAFETY: the map lives until the load is over, and a load that does not write never stores.
        load.over(&unsafe { Mapped::new(map.as_ptr().cast_mut(), spec.pages, &|| Ok(())) }, cached)
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
