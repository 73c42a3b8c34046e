//! Makes a map: the checks, then the cache, a direct mapping or the kernel.

use crate::direct::mapping;
use crate::error::{Error, Result, tell_of_fallback};
use crate::files::facts::facts_of;
use crate::files::table::{self, AttachOptions};
use crate::map::agree::{self, Registered};
use crate::map::cached::Cached;
use crate::map::kernel::{FilePart, Kernel, KernelMapping, Source};
use crate::map::mapping::{Backing, Mapping, pages};
use crate::map::options::MapOptions;
use crate::modes::{Fallback, Mode, Persist};
use crate::region::address::Place;
use crate::store::origin::OriginStore;
use crate::store::{self, Origin, one_writer};
use crate::sys::file::{self, Facts, Medium};
use crate::sys::fork;
use std::fs::File;
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

impl MapOptions {
    /// Maps a file; `open_store` opens its store if it is not mapped yet.
    pub(crate) fn open(&self, from: &File, writable: bool, open_store: store::Open<'_>) -> Result<Mapping> {
        self.open_as(from, facts_of(from)?, writable, open_store)
    }

    /// Maps a file with an origin.
    pub(crate) fn open_origin(&self, from: &File, origin: Arc<dyn Origin>) -> Result<Mapping> {
        let facts = facts_of(from)?;
        let (as_origin, open) = OriginStore::opener(facts, origin);
        self.open_as(from, as_origin, false, &open)
    }

    fn open_as(&self, from: &File, facts: Facts, writable: bool, open_store: store::Open<'_>) -> Result<Mapping> {
        let path = || file::path_of(from);
        match file::access_mode(from) {
            libc::O_WRONLY => return Err(Error::WriteOnlyFile { path: path() }),
            libc::O_RDONLY if writable => return Err(Error::ReadOnlyFile { path: path() }),
            _ => {}
        }
        if self.offset > facts.size {
            return Err(Error::OffsetPastEnd { path: path(), offset: self.offset, size: facts.size });
        }
        let len = self.len.unwrap_or((facts.size - self.offset) as usize);
        let mapping = self.place_as(from, facts, len, writable, open_store)?;
        if self.reserve && writable {
            mapping.extend(0..len)?;
        }
        Ok(mapping)
    }

    /// Maps `len` bytes from the offset on, whatever the length of the file.
    pub(crate) fn place(
        &self,
        from: &File,
        len: usize,
        writable: bool,
        open_store: store::Open<'_>,
    ) -> Result<Mapping> {
        self.place_as(from, facts_of(from)?, len, writable, open_store)
    }

    fn place_as(
        &self,
        from: &File,
        facts: Facts,
        len: usize,
        writable: bool,
        open_store: store::Open<'_>,
    ) -> Result<Mapping> {
        let io = |operation| move |source| Error::Io { path: file::path_of(from), operation, source };
        let end = part_of_file(&file::path_of(from), self.offset, 0..len)?.end as usize;
        let source = || {
            let source = || Ok(Box::new(Source { file: file::another(from)?, options: self.clone() }));
            writable.then(source).transpose().map_err(io("open it anew"))
        };
        if len == 0 {
            let backing = Backing::Empty(source()?);
            return Ok(Mapping { start: std::ptr::dangling_mut(), len, backing });
        }
        let by_kernel = |persist: Option<Persist>, _registered| {
            if persist.is_none() && self.steer {
                fastmap_steer::start();
            }
            let mapping = KernelMapping::new(self.part(from, &facts, len, writable), persist);
            let mapping = Arc::new(mapping.map_err(io("map it (mmap)"))?);
            let start = mapping.start();
            Ok(Mapping { start, len, backing: Backing::Kernel(Kernel { mapping, source: source()?, _registered }) })
        };
        if let Some(persist) = self.without_cache(from, &facts)? {
            return by_kernel(persist, None);
        }
        let wants_kernel = !self.needs_engine();
        if wants_kernel && self.one_writer && !fork::is_child() {
            // A program that was killed may have stored to it.
            one_writer::wait_for_keeper(from);
        }
        let _entry = agree::enter(wants_kernel);
        let identity = facts.identity;
        let is_first = || wants_kernel && (fork::is_child() || !table::is_cached(identity));
        let registered = Registered::another(identity).or_else(|| is_first().then(|| Registered::new(identity)));
        if registered.is_some() {
            return by_kernel(None, registered);
        }
        let options = AttachOptions {
            pool: self.cache.as_ref().map(|cache| &cache.pool),
            writable,
            one_writer: self.one_writer,
            fallback: self.fallback,
            place: Place::Room(0),
            scratch: self.scratch,
            by_address: false,
            deferred: self.deferred,
        };
        match table::attach(from, &facts, end, options, open_store)? {
            Some(region) => {
                region.extents().add(pages(self.offset as usize, len));
                let (identity, offset, reserve) = (facts.identity, self.offset as usize, self.reserve && writable);
                let cached = Cached { region, identity, offset, reserve };
                Ok(Mapping { start: cached.start(), len, backing: Backing::Cached(cached) })
            }
            None => by_kernel(None, None),
        }
    }

    /// Whether these options need the engine.
    fn needs_engine(&self) -> bool {
        let waits = self.deferred.initial.is_none() && !self.deferred.keep;
        self.cache.is_some() || self.scratch || !waits || self.mode == Mode::Cached
    }

    /// The part of the file that a kernel mapping of `len` bytes from the offset on covers.
    pub(crate) fn part<'a>(&self, file: &'a File, facts: &Facts, len: usize, writable: bool) -> FilePart<'a> {
        let (identity, medium) = (facts.identity, file::medium(file));
        FilePart { file, identity, medium, offset: self.offset, len, writable }
    }

    /// Whether the mode settles that a file is mapped without a cache. `Some(Some(_))`: straight, and how its stores
    /// are made to last. `Some(None)`: by the kernel, as the fallback. `None`: not settled by the mode.
    fn without_cache(&self, from: &File, facts: &Facts) -> Result<Option<Option<Persist>>> {
        let is_wanted = match self.mode {
            Mode::Cached => false,
            Mode::Automatic => !self.scratch && !table::is_cached(facts.identity),
            Mode::Direct => true,
        };
        let is_in_memory = || file::medium(from) != Medium::Storage;
        match self.mode {
            _ if is_wanted && is_in_memory() => Ok(Some(Some(self.persist))),
            Mode::Direct if self.fallback == Fallback::Kernel => {
                tell_of_fallback(&mapping::not_in_memory(from), false);
                Ok(Some(None))
            }
            Mode::Direct => Err(mapping::not_in_memory(from)),
            _ => Ok(None),
        }
    }
}

/// The place in the file of a part of a map that begins at `offset`. [`Error::LengthOverflow`] if it ends past 64 TiB.
pub(crate) fn part_of_file(path: &Path, offset: u64, part: Range<usize>) -> Result<Range<u64>> {
    const MOST: u64 = 1 << 46;
    let end = offset.checked_add(part.end as u64).filter(|end| *end <= MOST);
    let overflow = || Error::LengthOverflow { path: path.to_owned(), offset, len: part.end as u64 };
    end.map(|end| offset + part.start as u64..end).ok_or_else(overflow)
}
