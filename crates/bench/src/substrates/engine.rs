//! The engines: how each loads and stores a page, and how large the cache of a fastmap engine is.

mod calls;
mod hinted;
mod kernel;
mod pinned;

use std::fs::{File, OpenOptions};
use std::ops::Range;
use std::os::unix::fs::OpenOptionsExt;

use self::calls::Calls;
use self::hinted::Hinted;
use self::pinned::{Face, Pinned};
use crate::substrates::measure::Shadow;
use crate::substrates::{Advice, Counters, Engine, Error, FastmapReport, PAGE, Result, Sequence, Spec, stamp};

/// One way to reach pages, shared by all threads of a run.
pub trait Access: Sync {
    /// The state of one thread.
    type Local;

    /// Makes the state of a thread.
    fn local(&self) -> Result<Self::Local>;

    /// The next page of a thread's sequence. An engine that is told its next pages takes some of the sequence in advance.
    #[inline]
    fn next_page(&self, _local: &mut Self::Local, sequence: &mut Sequence) -> Result<u64> {
        Ok(sequence.next_page())
    }

    /// The next page while memory is filled. Every engine that can be told its next pages is told then, so that filling takes no longer
    /// than the device needs.
    #[inline]
    fn warm_page(&self, local: &mut Self::Local, sequence: &mut Sequence) -> Result<u64> {
        self.next_page(local, sequence)
    }

    /// [`crate::substrates::Op::Read`] on `page`.
    fn read(&self, local: &mut Self::Local, page: u64) -> Result<()>;

    /// [`crate::substrates::Op::Write`] on `page`, which no other thread writes.
    fn write(&self, local: &mut Self::Local, page: u64, shadow: &Shadow) -> Result<()>;

    /// [`crate::substrates::Op::Rmw`] on `page`, which no other thread writes.
    fn rmw(&self, local: &mut Self::Local, page: u64, shadow: &Shadow) -> Result<()>;

    /// [`crate::substrates::Pattern::Fill`] on `page`: stores all of its bytes. The pages of a thread come in order. `last` marks the last
    /// of them.
    fn fill(&self, local: &mut Self::Local, page: u64, last: bool, shadow: &Shadow) -> Result<()>;

    /// Puts every store so far on stable storage.
    fn flush(&self) -> Result<()>;
}

/// An engine with a map. It loads and stores through raw pointers.
pub struct Mapped<'a> {
    base: *mut u8,
    pages: u64,
    flush: &'a (dyn Fn() -> Result<()> + Sync),
}

// SAFETY: the pointer stands for a mapping that the caller of `Mapped::new` keeps, writable wherever stores are asked for. Threads race
// only on words that nobody stores to: a page's generation is touched by its owner alone.
unsafe impl Sync for Mapped<'_> {}

impl<'a> Mapped<'a> {
    /// # Safety
    ///
    /// `base` points to `pages` pages, page-aligned, that stay mapped as long as this value is used. They are writable if `write`, `rmw` or
    /// `fill` is called. `flush` flushes the mapping.
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
        // SAFETY: inside the mapping and 8-byte aligned, see `new`. The load is volatile, so that it reaches the page each time.
        unsafe { self.word(page, offset).read_volatile() }
    }

    #[inline]
    fn store_generation(&self, page: u64, generation: u64) {
        // SAFETY: inside the mapping and 8-byte aligned, as for `load`. It is writable, see `new`.
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
        // SAFETY: inside the mapping and writable, see `new`. This thread alone fills the page.
        let bytes = unsafe { std::slice::from_raw_parts_mut(self.base.wrapping_add(page as usize * PAGE), PAGE) };
        stamp::fill(bytes, page, shadow.next(page));
        Ok(())
    }

    fn flush(&self) -> Result<()> {
        (self.flush)()
    }
}

/// A load that [`with`] runs on an engine.
pub trait Load {
    /// The result of the load.
    type Output;
    /// Runs the load on one engine, and flushes its stores. `cached` is the cache of a fastmap engine.
    fn over<A: Access>(self, access: &A, cached: Option<&Cached<'_>>) -> Result<Self::Output>;
}

/// The set-up of a fastmap engine.
pub struct Cached<'a> {
    /// The cache.
    pub cache: &'a fastmap::Cache,
    /// Whether the engine reads the file past the page cache.
    pub direct_io: bool,
}

impl Cached<'_> {
    /// The cache's counters.
    pub fn stats(&self) -> fastmap::Stats {
        self.cache.stats()
    }

    /// The set-up, with counters that were read before.
    pub fn report(&self, stats: fastmap::Stats) -> FastmapReport {
        let capacity_bytes = self.cache.capacity() as u64;
        FastmapReport { capacity_bytes, direct_io: self.direct_io, counters: Counters::from(stats) }
    }
}

/// Changes to the default set-up of a fastmap engine.
pub struct Setup {
    /// Changes the builder of the cache.
    pub cache: fn(fastmap::CacheBuilder) -> fastmap::CacheBuilder,
    /// Whether the engine reads ahead.
    pub readahead: bool,
}

impl Default for Setup {
    fn default() -> Setup {
        Setup { cache: |cache| cache, readahead: true }
    }
}

/// Opens the spec's file through its engine, runs the load, and drops the map.
pub fn with<L: Load>(spec: &Spec, load: L) -> Result<L::Output> {
    with_setup(spec, &Setup::default(), load)
}

/// Like [`with`], with another set-up of the fastmap engine.
pub fn with_setup<L: Load>(spec: &Spec, setup: &Setup, load: L) -> Result<L::Output> {
    match spec.engine {
        Engine::Pread | Engine::Direct => {
            let flags = if spec.engine == Engine::Direct { libc::O_DIRECT } else { 0 };
            let file = open(spec, flags)?;
            let ahead = |_: &[Range<usize>], far: &[Range<usize>]| match kernel::fadvise(&file, far) {
                Ok(()) => Ok(far.len()),
                Err(source) => {
                    let remedy = "check the file and its device";
                    Err(Error::Io { thing: spec.label.clone(), what: "posix_fadvise", source, remedy })
                }
            };
            let calls = Calls::new(spec, &file);
            // Past the page cache there is no memory to fill, so nothing is told ahead.
            match spec.engine {
                Engine::Direct => load.over(&calls, None),
                _ => load.over(&Hinted::new(spec, calls, &ahead), None),
            }
        }
        Engine::Mmap
        | Engine::MmapRandom
        | Engine::MmapSequential
        | Engine::MmapWillneed
        | Engine::MmapFadvise
        | Engine::MmapPopulate
        | Engine::Steered => kernel::with(spec, load),
        Engine::Fastmap | Engine::FastmapPin | Engine::FastmapPrefetch => with_fastmap(spec, setup, load),
        other => unreachable!("{other} is not an engine of pages, and no experiment over pages takes it"),
    }
}

fn with_fastmap<L: Load>(spec: &Spec, setup: &Setup, load: L) -> Result<L::Output> {
    let file = open(spec, 0)?;
    let capacity = match spec.memory {
        Some(memory) => capacity_for(memory, spec.pages, spec.op.writes())?,
        None => unlimited_capacity(spec.pages),
    };
    let cache = (setup.cache)(fastmap::Cache::builder().capacity(capacity)).build()?;
    let (options, direct_io) = options(&file, &cache, spec.pages);
    let cached = Some(&Cached { cache: &cache, direct_io });
    let advice = match spec.advice {
        Advice::Normal => fastmap::Advice::Normal,
        Advice::Random => fastmap::Advice::Random,
        Advice::Sequential => fastmap::Advice::Sequential,
        Advice::Backward => fastmap::Advice::Backward,
    };
    if spec.op.writes() {
        let map_mut = || {
            // SAFETY: the file is the benchmark's own, and nobody cuts it short while it is mapped.
            let map = unsafe { options.map_mut(&file) }?;
            map.advise(advice)?;
            if !setup.readahead {
                map.set_readahead(0)?;
            }
            Ok(map)
        };
        let mut map = map_mut()?;
        let base = map.as_mut_ptr();
        let flush = || Ok(map.flush()?);
        let ahead = |_: &[Range<usize>], far: &[Range<usize>]| Ok(map.prefetch(far)?);
        if spec.engine == Engine::FastmapPin {
            let pinned = Pinned { face: &|| map_mut().map(Face::Own), flush: &flush };
            return load.over(&Hinted::new(spec, pinned, &ahead), cached);
        }
        // SAFETY: the map is writable and lives until the load is over.
        let mapped = unsafe { Mapped::new(base, spec.pages, &flush) };
        load.over(&Hinted::new(spec, mapped, &ahead), cached)
    } else {
        // SAFETY: the file is the benchmark's own, and nobody cuts it short while it is mapped.
        let map = unsafe { options.map(&file) }?;
        map.advise(advice)?;
        if !setup.readahead {
            map.set_readahead(0)?;
        }
        let ahead = |_: &[Range<usize>], far: &[Range<usize>]| Ok(map.prefetch(far)?);
        if spec.engine == Engine::FastmapPin {
            let pinned = Pinned { face: &|| Ok(Face::Shared(&map)), flush: &|| Ok(()) };
            return load.over(&Hinted::new(spec, pinned, &ahead), cached);
        }
        // SAFETY: the map lives until the load is over, and a load that does not write never stores.
        let mapped = unsafe { Mapped::new(map.as_ptr().cast_mut(), spec.pages, &|| Ok(())) };
        load.over(&Hinted::new(spec, mapped, &ahead), cached)
    }
}

/// Options to map `pages` pages of a file into a cache. Also says whether the file is then read past the page cache.
pub fn options(file: &File, cache: &fastmap::Cache, pages: u64) -> (fastmap::MapOptions, bool) {
    let direct_io = takes_direct_io(file);
    let mut options = fastmap::MapOptions::new();
    // The cache serves the file, wherever the file is.
    options.mode(fastmap::Mode::Cached).cache(cache).len(pages as usize * PAGE).fallback(if direct_io {
        fastmap::Fallback::Refuse
    } else {
        fastmap::Fallback::Buffered
    });
    (options, direct_io)
}

/// The capacity of a cache for a file of `pages` pages if memory is not limited, bytes: a quarter of the file.
pub fn unlimited_capacity(pages: u64) -> usize {
    (pages as usize * PAGE / 4).max(fastmap::Cache::MIN_CAPACITY)
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

/// Whether the engine can read the file past the page cache. It cannot if the file is in memory already.
fn takes_direct_io(file: &File) -> bool {
    fastmap::requirements::of_file(file).iter().all(|requirement| requirement.found.is_ok())
}

/// Bytes that the process, the counters of its threads, and the fixed parts of the engine take on two processors. Measured: 4 to 7 MiB with
/// 1 to 16 threads.
const FIXED: u64 = 8 << 20;

/// Bytes for each further processor: the engine's read buffers and queues, and memory that the kernel charges in advance
/// (MEMCG_CHARGE_BATCH, 256 KiB).
const PER_PROCESSOR: u64 = 1 << 20;

fn fixed() -> u64 {
    let processors = std::thread::available_parallelism().map_or(2, usize::from) as u64;
    FIXED + processors.saturating_sub(2) * PER_PROCESSOR
}

/// Bytes for each page of the file: 8 of page table, which stays once it was used, and 4 of page word and dirty bitmaps.
const PER_PAGE: u64 = 12;

/// Bytes for each page of the file in a load that writes: its expected generation. See [`Shadow`].
const PER_PAGE_WRITTEN: u64 = 4;

/// The capacity of the fastmap engine's cache in a process that may use `memory` bytes for everything, bytes: memory - 8 MiB - 1 MiB for
/// each processor but two - 1 % of memory - 12 bytes for each page of the file (16 in a load that writes).
///
/// The 1 % is for bookkeeping that grows with the cache; the engine promises to need no more.
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

/// The memory for which [`capacity_for`] gives a cache of `frames` pages, in a load that does not write. Bytes.
pub fn memory_for(frames: u64, pages: u64) -> u64 {
    let rest = frames * PAGE as u64 + PAGE as u64 / 2 + overhead(pages, false);
    (rest * 100).div_ceil(99).max(least_memory(pages, false))
}

fn overhead(pages: u64, writes: bool) -> u64 {
    fixed() + pages * if writes { PER_PAGE + PER_PAGE_WRITTEN } else { PER_PAGE }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn capacity_is_what_the_arithmetic_leaves() {
        // 4 GiB of pages under 1 GiB: 1 GiB - 10.24 MiB - 8 MiB (on two processors) - 12 MiB.
        let capacity = capacity_for(1 << 30, 1 << 20, false).unwrap() as u64;
        let exact = (1u64 << 30) - (1 << 30) / 100 - fixed() - (12 << 20);
        assert!(exact - capacity < PAGE as u64);
    }

    #[test]
    fn the_memory_for_a_number_of_pages_gives_as_many() {
        for (frames, pages) in [(16_000, 65_536), (16_001, 65_536), (250_000, 1 << 20)] {
            assert_eq!(capacity_for(memory_for(frames, pages), pages, false).unwrap() as u64 / PAGE as u64, frames);
        }
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
