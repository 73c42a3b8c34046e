//! Stores that are flushed at once: how fast, and how many bytes a flush touches.

use std::fs::{File, OpenOptions};
use std::path::PathBuf;
use std::time::{Duration, Instant};

use hdrhistogram::Histogram;
use serde::{Deserialize, Serialize};

use crate::device::Device;
use crate::measure::{Shadow, histogram};
use crate::spec::names;
use crate::{Error, LatencyUs, PAGE, Pattern, Result, Sequence, persist, readback, stamp, sys};

/// What makes stores durable.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Syncer {
    /// Kernel mmap and msync(2).
    Msync,
    /// A map of this project, of the kind that it chooses itself, and `flush_range`.
    Fastmap,
    /// A direct map of this project that persists by cache lines, also where the file system needs nothing of the kind.
    FastmapPersist,
    /// Kernel mmap, and a bare loop that writes back the cache lines of the range, then a fence: `pmem_persist`.
    Persist,
}

names!(Syncer, "engine", {
    Msync => "msync", Fastmap => "fastmap", FastmapPersist => "fastmap-persist", Persist => "persist",
});

impl Syncer {
    /// Whether it persists by cache lines wherever the file is: pointless where that is no memory.
    pub fn is_for_memory(self) -> bool {
        matches!(self, Syncer::FastmapPersist | Syncer::Persist)
    }
}

/// What one operation stores, and what it flushes then.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum SyncWork {
    /// A random page; that page.
    Page,
    /// A random page; the whole file.
    One,
    /// Every page; the whole file.
    All,
}

names!(SyncWork, "work", { Page => "page", One => "one", All => "all" });

/// What a file's bytes are in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Medium {
    /// Memory that a power cut empties.
    Tmpfs,
    /// Persistent memory, mapped as it is.
    Dax,
    /// Anything else, with a page cache above it.
    Disk,
}

impl Medium {
    /// Of an open file; statx(2) and fstatfs(2) tell. What cannot be told is a disk.
    pub fn of(file: &File) -> Medium {
        match (sys::is_dax(file), sys::is_tmpfs(file)) {
            (true, _) => Medium::Dax,
            (_, true) => Medium::Tmpfs,
            _ => Medium::Disk,
        }
    }
}

/// One run.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct SyncSpec {
    /// What makes stores durable.
    pub engine: Syncer,
    /// What an operation is.
    pub work: SyncWork,
    /// Where the file can be opened.
    pub path: PathBuf,
    /// How messages call it.
    pub label: String,
    /// Its length in pages of 4096 bytes.
    pub pages: u64,
    /// Length of the measurement; it ends with the operation that is then under way.
    pub seconds: f64,
    /// As [`crate::Spec::epoch`].
    pub epoch: u32,
}

/// What one run gave.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct Synced {
    /// Operations, each a store and a flush.
    pub ops: u64,
    /// Length of the window.
    pub seconds: f64,
    /// Operations a second.
    pub ops_per_s: f64,
    /// User and system time of the process per operation.
    pub cpu_us_per_op: f64,
    /// Time of the flushes alone.
    pub latency_us: LatencyUs,
    /// Bytes a flush wrote back, on average: as FastMap counts them, of `persist` the range it went over; of msync what the
    /// block device under the file wrote in the window, or 0 on tmpfs, where it does nothing. None where nobody tells.
    pub flush_bytes: Option<f64>,
    /// Of the fastmap engines: the kind of map.
    pub map: Option<String>,
    /// As [`crate::Outcome::peak_rss_bytes`].
    pub peak_rss_bytes: u64,
}

/// A map and the way to flush it, for the duration of a run.
struct Syncing<'a> {
    base: *mut u8,
    /// What the file is in.
    medium: Medium,
    /// Flushes a range, offset and length.
    flush: &'a dyn Fn(usize, usize) -> Result<()>,
    /// Bytes flushed so far.
    flushed: &'a dyn Fn() -> Option<u64>,
}

/// Runs `spec` in this process and reads everything back, every byte, while the map is still there: what its end would write
/// back must be in the file before. `peak` is asked for the peak of memory once.
///
/// # Errors
///
/// Whatever kept the engine from running, and the first wrong byte.
pub fn sync(spec: &SyncSpec, peak: impl FnOnce() -> u64) -> Result<Synced> {
    let failed = |what| {
        let (thing, remedy) = (spec.label.clone(), "check the file and its device");
        move |source| Error::Io { thing, what, source, remedy }
    };
    let file = OpenOptions::new().read(true).write(true).open(&spec.path).map_err(failed("cannot open"))?;
    let (len, medium) = (spec.pages as usize * PAGE, Medium::of(&file));
    let mut synced = match spec.engine {
        Syncer::Msync | Syncer::Persist => {
            // SAFETY: the file is the benchmark's own and nobody cuts it short meanwhile.
            let mut map = unsafe { memmap2::MmapOptions::new().len(len).map_mut(&file) }.map_err(failed("mmap"))?;
            let base = map.as_mut_ptr();
            if spec.engine == Syncer::Persist {
                let bytes = std::cell::Cell::new(0);
                let flush = |offset: usize, len: usize| {
                    bytes.set(bytes.get() + len as u64);
                    // SAFETY: `offset` and `len` lie in the map.
                    unsafe { persist::write_back(base.add(offset), len) };
                    Ok(())
                };
                measure(spec, &Syncing { base, medium, flush: &flush, flushed: &|| Some(bytes.get()) })?
            } else {
                let flush = |offset, len| map.flush_range(offset, len).map_err(failed("msync"));
                let device = Device::of(&spec.path).and_then(|device| Some((device.counts()?, device)));
                let flushed = || match (medium, &device) {
                    (Medium::Tmpfs, _) => Some(0),
                    (Medium::Disk, Some((before, device))) => Some(before.until(&device.counts()?).write_bytes),
                    _ => None,
                };
                measure(spec, &Syncing { base, medium, flush: &flush, flushed: &flushed })?
            }
        }
        Syncer::Fastmap | Syncer::FastmapPersist => with_fastmap(spec, &file, medium)?,
    };
    synced.peak_rss_bytes = peak();
    Ok(synced)
}

fn with_fastmap(spec: &SyncSpec, file: &File, medium: Medium) -> Result<Synced> {
    let len = spec.pages as usize * PAGE;
    // All of the file fits: what is measured is flushing.
    let cache = fastmap::Cache::new(len.max(fastmap::Cache::MIN_CAPACITY))?;
    let mut options = fastmap::MapOptions::new();
    options.cache(&cache).len(len).fallback(fastmap::Fallback::Buffered);
    if spec.engine == Syncer::FastmapPersist {
        options.mode(fastmap::Mode::Direct).persist(fastmap::Persist::CacheLines);
    }
    // SAFETY: the file is the benchmark's own and nobody cuts it short meanwhile.
    let mut map = unsafe { options.map_mut(file) }?;
    let base = map.as_mut_ptr();
    let flush = |offset, len| Ok(map.flush_range(offset, len)?);
    let flushed = || Some(map.flushed_bytes() + cache.stats().writeback_bytes());
    let synced = measure(spec, &Syncing { base, medium, flush: &flush, flushed: &flushed })?;
    Ok(Synced { map: Some(format!("{:?}", map.engine()).to_lowercase()), ..synced })
}

/// Stores to every page and flushes it, then measures, then reads back.
fn measure(spec: &SyncSpec, syncing: &Syncing<'_>) -> Result<Synced> {
    let shadow = Shadow::new(spec.epoch, spec.pages);
    let whole = spec.pages as usize * PAGE;
    let store = |page: u64| {
        // SAFETY: inside the map, writable, and this thread's alone.
        let bytes = unsafe { std::slice::from_raw_parts_mut(syncing.base.add(page as usize * PAGE), PAGE) };
        stamp::fill(bytes, page, shadow.next(page));
    };
    // As the work does it: a flush of the whole file has the next store to each page trap, where stores are tracked. Not on a
    // disk, where so many flushes take minutes.
    if spec.work == SyncWork::Page && syncing.medium != Medium::Disk {
        (0..spec.pages).try_for_each(|page| {
            store(page);
            (syncing.flush)(page as usize * PAGE, PAGE)
        })?;
    } else {
        (0..spec.pages).for_each(store);
        (syncing.flush)(0, whole)?;
    }

    let mut pages = Sequence::of_all(Pattern::Random, spec.pages, 1, true).remove(0);
    let mut latency: Histogram<u32> = histogram();
    let length = Duration::from_secs_f64(spec.seconds);
    let (flushed, cpu, start) = ((syncing.flushed)(), sys::cpu_time(), Instant::now());
    let mut window = Duration::ZERO;
    while window < length {
        let page = pages.next_page();
        match spec.work {
            SyncWork::Page | SyncWork::One => store(page),
            SyncWork::All => (0..spec.pages).for_each(store),
        }
        let stored = start.elapsed();
        match spec.work {
            SyncWork::Page => (syncing.flush)(page as usize * PAGE, PAGE)?,
            SyncWork::One | SyncWork::All => (syncing.flush)(0, whole)?,
        }
        window = start.elapsed();
        latency.saturating_record((window - stored).as_nanos() as u64);
    }
    let (cpu, ops) = (sys::cpu_time() - cpu, latency.len());
    let flushed = flushed.zip((syncing.flushed)()).map(|(before, after)| after - before);
    readback::stamped(&spec.path, &spec.label, spec.pages, &shadow)?;
    Ok(Synced {
        ops,
        seconds: window.as_secs_f64(),
        ops_per_s: ops as f64 / window.as_secs_f64(),
        cpu_us_per_op: cpu.as_secs_f64() * 1e6 / ops as f64,
        latency_us: LatencyUs::of(&latency),
        flush_bytes: flushed.map(|bytes| bytes as f64 / ops as f64),
        map: None,
        peak_rss_bytes: 0,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::prepare;

    const PAGES: u64 = 64;

    fn spec(file: &tempfile::NamedTempFile, engine: Syncer, work: SyncWork) -> SyncSpec {
        let epoch = prepare::next_epoch(file.as_file(), "file").unwrap();
        let (path, label) = (file.path().to_owned(), "file".to_owned());
        SyncSpec { engine, work, path, label, pages: PAGES, seconds: 0.02, epoch }
    }

    fn stamped() -> tempfile::NamedTempFile {
        let file = tempfile::NamedTempFile::new_in(env!("CARGO_MANIFEST_DIR")).unwrap();
        prepare::fill(file.as_file(), "file", 0, PAGES, prepare::stamp_page, |_| true).unwrap();
        file
    }

    #[test]
    fn every_work_is_done_and_what_it_flushed_is_told() {
        let file = stamped();
        for work in [SyncWork::Page, SyncWork::One, SyncWork::All] {
            let kernel = sync(&spec(&file, Syncer::Msync, work), || 7).unwrap();
            assert!(kernel.ops > 0 && kernel.peak_rss_bytes == 7 && kernel.map.is_none());
            let bare = sync(&spec(&file, Syncer::Persist, work), || 7).unwrap();
            let range = if work == SyncWork::Page { PAGE as u64 } else { PAGES * PAGE as u64 };
            assert_eq!(bare.flush_bytes, Some(range as f64));
            let ours = sync(&spec(&file, Syncer::Fastmap, work), || 7).unwrap();
            assert!(ours.map.is_some() && ours.seconds >= 0.02);
        }
    }

    #[test]
    fn stores_that_do_not_reach_the_file_are_found() {
        let file = stamped();
        let mut memory = memmap2::MmapMut::map_anon(PAGES as usize * PAGE).unwrap();
        let elsewhere =
            Syncing { base: memory.as_mut_ptr(), medium: Medium::Disk, flush: &|_, _| Ok(()), flushed: &|| None };
        let measured = measure(&spec(&file, Syncer::Persist, SyncWork::Page), &elsewhere);
        assert!(matches!(measured, Err(Error::Generation { .. })), "{measured:?}");
    }
}
