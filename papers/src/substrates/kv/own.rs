//! The store of [`crate::substrates::btree`] over kernel mmap and over FastMap.

use std::fs::OpenOptions;
use std::path::Path;

use fastmap::Cache;

use super::{Order, Store, failed};
use crate::substrates::btree::{FastmapRegion, KernelRegion, Region, Tree};
use crate::substrates::{Counters, Engine, FastmapReport, Result};

struct Own<R> {
    tree: Tree<R>,
    /// With FastMap: the cache, and whether it reads past the page cache.
    cache: Option<(Cache, bool)>,
}

/// Opens the store in a file, or makes it.
pub fn open(order: &Order, file: &Path, mapped: u64, make: bool) -> Result<Box<dyn Store>> {
    let opened = OpenOptions::new().read(true).write(true).create(make).truncate(make).open(file);
    let opened = opened.map_err(|source| failed(file, "cannot open it", source))?;
    let random = match order.engine {
        Engine::MmapRandom => true,
        Engine::Fastmap => {
            let cache = Cache::new(order.capacity as usize)?;
            // SAFETY: the file is in a directory of the benchmark's own.
            let region = unsafe { FastmapRegion::map(opened, mapped, &cache) }?;
            let cache = Some((cache, region.direct_io()));
            return over(region, cache, make);
        }
        _ => false,
    };
    // SAFETY: as above.
    over(unsafe { KernelRegion::map(opened, mapped, random) }?, None, make)
}

fn over<R: Region + 'static>(region: R, cache: Option<(Cache, bool)>, make: bool) -> Result<Box<dyn Store>> {
    let tree = if make { Tree::create(region)? } else { Tree::open(region)? };
    Ok(Box::new(Own { tree, cache }))
}

impl<R: Region> Store for Own<R> {
    fn read(&self, key: &[u8], with: &mut dyn FnMut(&[u8])) -> Result<bool> {
        Ok(self.tree.get(key, with).is_some())
    }

    fn write(&self, key: &[u8], value: &[u8]) -> Result<()> {
        self.tree.put(key, value).map(drop)
    }

    fn modify(&self, key: &[u8], with: &mut dyn FnMut(&mut [u8])) -> Result<bool> {
        Ok(self.tree.modify(key, with)?.is_some())
    }

    fn scan(&self, from: &[u8], with: &mut dyn FnMut(&[u8], &[u8]) -> bool) -> Result<()> {
        self.tree.scan(from, with);
        Ok(())
    }

    fn flush(&mut self) -> Result<()> {
        self.tree.flush()
    }

    fn report(&self) -> Option<FastmapReport> {
        let (cache, direct_io) = self.cache.as_ref()?;
        let capacity_bytes = cache.capacity() as u64;
        Some(FastmapReport { capacity_bytes, direct_io: *direct_io, counters: Counters::from(cache.stats()) })
    }
}
