//! Stores that are flushed at once: how fast, and how many bytes a flush touches.

use std::fs::{File, OpenOptions};
use std::path::PathBuf;
use std::time::Duration;

use hdrhistogram::Histogram;
use serde::{Deserialize, Serialize};

use crate::substrates::device::Device;
use crate::substrates::measure::{Shadow, histogram};
use crate::substrates::{
    Engine, Error, Meter, PAGE, Pattern, Reading, Result, Sequence, persist, readback, stamp, sys,
};
use fastmap_bench::names;

/// The engines that flush.
pub const ENGINES: &[Engine] = &[Engine::Msync, Engine::Fastmap, Engine::FastmapPersist, Engine::Persist];

/// Whether an engine flushes cache lines, which makes nothing durable on a disk.
pub fn is_for_memory(engine: Engine) -> bool {
    matches!(engine, Engine::FastmapPersist | Engine::Persist)
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
    pub engine: Engine,
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
    /// As [`crate::substrates::Spec::epoch`].
    pub epoch: u32,
}

/// What one run gave.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct Synced {
    /// Bytes a flush wrote back, where anybody tells.
    pub flush_bytes: Option<f64>,
    /// The kind of FastMap's map.
    pub map: Option<String>,
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
pub fn sync(spec: &SyncSpec, meter: &Meter) -> Result<(Reading, Synced)> {
    let failed = |what| {
        let (thing, remedy) = (spec.label.clone(), "check the file and its device");
        move |source| Error::Io { thing, what, source, remedy }
    };
    let file = OpenOptions::new().read(true).write(true).open(&spec.path).map_err(failed("cannot open"))?;
    let (len, medium) = (spec.pages as usize * PAGE, Medium::of(&file));
    let synced = match spec.engine {
        Engine::Msync | Engine::Persist => {
            // SAFETY: the file is the benchmark's own and nobody cuts it short meanwhile.
            let mut map = unsafe { memmap2::MmapOptions::new().len(len).map_mut(&file) }.map_err(failed("mmap"))?;
            let base = map.as_mut_ptr();
            if spec.engine == Engine::Persist {
                let bytes = std::cell::Cell::new(0);
                let flush = |offset: usize, len: usize| {
                    bytes.set(bytes.get() + len as u64);
                    // SAFETY: `offset` and `len` lie in the map.
                    unsafe { persist::write_back(base.add(offset), len) };
                    Ok(())
                };
                measure(spec, &Syncing { base, medium, flush: &flush, flushed: &|| Some(bytes.get()) }, meter)?
            } else {
                let flush = |offset, len| map.flush_range(offset, len).map_err(failed("msync"));
                let device = Device::of(&spec.path).and_then(|device| Some((device.counts()?, device)));
                let flushed = || match (medium, &device) {
                    (Medium::Tmpfs, _) => Some(0),
                    (Medium::Disk, Some((before, device))) => Some(before.until(&device.counts()?).write_bytes),
                    _ => None,
                };
                measure(spec, &Syncing { base, medium, flush: &flush, flushed: &flushed }, meter)?
            }
        }
        _ => with_fastmap(spec, &file, medium, meter)?,
    };
    meter.let_go();
    Ok(synced)
}

fn with_fastmap(spec: &SyncSpec, file: &File, medium: Medium, meter: &Meter) -> Result<(Reading, Synced)> {
    let len = spec.pages as usize * PAGE;
    // All of the file fits: what is measured is flushing.
    let cache = fastmap::Cache::new(len.max(fastmap::Cache::MIN_CAPACITY))?;
    let mut options = fastmap::MapOptions::new();
    options.cache(&cache).len(len).fallback(fastmap::Fallback::Buffered);
    if spec.engine == Engine::FastmapPersist {
        options.mode(fastmap::Mode::Direct).persist(fastmap::Persist::CacheLines);
    }
    // SAFETY: the file is the benchmark's own and nobody cuts it short meanwhile.
    let mut map = unsafe { options.map_mut(file) }?;
    let base = map.as_mut_ptr();
    let flush = |offset, len| Ok(map.flush_range(offset, len)?);
    let flushed = || Some(map.flushed_bytes() + cache.stats().writeback_bytes());
    let (reading, synced) = measure(spec, &Syncing { base, medium, flush: &flush, flushed: &flushed }, meter)?;
    Ok((reading, Synced { map: Some(format!("{:?}", map.engine()).to_lowercase()), ..synced }))
}

/// Stores to every page and flushes it, then measures, then reads back.
fn measure(spec: &SyncSpec, syncing: &Syncing<'_>, meter: &Meter) -> Result<(Reading, Synced)> {
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
    let flushed = (syncing.flushed)();
    let open = meter.start(&spec.path);
    let start = open.at;
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
    let ops = latency.len();
    let reading = open.end().counting(ops, window, Some(&latency));
    let flushed = flushed.zip((syncing.flushed)()).map(|(before, after)| after - before);
    readback::stamped(&spec.path, &spec.label, spec.pages, &shadow)?;
    Ok((reading, Synced { flush_bytes: flushed.map(|bytes| bytes as f64 / ops as f64), map: None }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::substrates::prepare;

    const PAGES: u64 = 64;

    fn spec(file: &tempfile::NamedTempFile, engine: Engine, work: SyncWork) -> SyncSpec {
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
            let (reading, kernel) = sync(&spec(&file, Engine::Msync, work), &Meter::default()).unwrap();
            assert!(reading.ops > 0 && kernel.map.is_none());
            let (_, bare) = sync(&spec(&file, Engine::Persist, work), &Meter::default()).unwrap();
            let range = if work == SyncWork::Page { PAGE as u64 } else { PAGES * PAGE as u64 };
            assert_eq!(bare.flush_bytes, Some(range as f64));
            let (reading, ours) = sync(&spec(&file, Engine::Fastmap, work), &Meter::default()).unwrap();
            assert!(ours.map.is_some() && reading.seconds >= 0.02);
        }
    }

    #[test]
    fn stores_that_do_not_reach_the_file_are_found() {
        let file = stamped();
        let mut memory = memmap2::MmapMut::map_anon(PAGES as usize * PAGE).unwrap();
        let elsewhere =
            Syncing { base: memory.as_mut_ptr(), medium: Medium::Disk, flush: &|_, _| Ok(()), flushed: &|| None };
        let measured = measure(&spec(&file, Engine::Persist, SyncWork::Page), &elsewhere, &Meter::default());
        assert!(matches!(measured, Err(Error::Generation { .. })), "{measured:?}");
    }
}
