//! Maps whose placement is not the engine alone: the kernel's, and those that may change hands.
//!
//! All maps of a file in a process are placed as its first is, or they would not agree. What changes hands goes by address
//! (`by_address`), and knows nothing of maps here: `placement/calls.rs` lends its functions.

use crate::error::{Error, Result};
use crate::files::{facts, length, table};
use crate::map::kernel::{FilePart, Source};
use crate::map::map::Engine;
use crate::map::open;
use crate::modes::Advice;
use crate::sys::file::Identity;
use crate::sys::{PAGE, file, fork};
use std::collections::BTreeMap;
use std::fmt;
use std::io;
use std::ops::Range;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

/// Where a map is to be.
#[derive(Debug, Clone, Copy)]
pub enum Placing {
    Engine,
    Kernel,
    Auto(&'static dyn Calls),
}

/// mmap(2) and its kin by address, whoever has the memory. Errors are error numbers where nothing else is said.
pub trait Calls: fmt::Debug + Sync {
    /// Maps part of a file, from a multiple of pages on, and has it looked after.
    fn map(&self, part: &FilePart<'_>) -> Result<usize>;
    fn is_engines(&self, at: &Range<usize>) -> bool;
    fn sync(&self, at: &Range<usize>) -> std::result::Result<(), i32>;
    fn advise(&self, at: &Range<usize>, advice: Advice) -> std::result::Result<(), i32>;
    fn prefetch(&self, ranges: &[Range<usize>]) -> Result<usize>;
    fn prefetch_wait(&self, ranges: &[Range<usize>]) -> Result<()>;
    fn gather(&self, ranges: &[Range<usize>], output: &mut [u8]) -> Result<()>;
    fn keep(&self, at: &Range<usize>, writing: bool) -> Result<()>;
    fn let_go(&self, at: &Range<usize>, writing: bool);
    fn read(&self, at: usize, buffer: &mut [u8]) -> Result<()>;
    /// Stores to a mutable map that is borrowed mutable.
    fn write(&self, at: usize, data: &[u8]) -> Result<()>;
    fn set_readahead(&self, at: usize, bytes: usize) -> std::result::Result<(), i32>;
    /// Gives a map another length, and perhaps another place; where it begins then.
    fn remap(&self, at: &Range<usize>, new_len: usize) -> std::result::Result<usize, i32>;
    fn unmap(&self, at: &Range<usize>);
}

/// How the files are placed that have such maps, and how many.
static PLACED: Mutex<BTreeMap<Identity, (Placing, usize)>> = Mutex::new(BTreeMap::new());

/// One map among these; gone with it.
#[derive(Debug)]
pub struct Registered(Identity);

impl Drop for Registered {
    fn drop(&mut self) {
        let mut placed = PLACED.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((_, count)) = placed.get_mut(&self.0) {
            *count -= 1;
            if *count == 0 {
                placed.remove(&self.0);
            }
        }
    }
}

/// Whatever maps a file holds one of these: of those that begin as the kernel's only one at a time.
#[derive(Debug)]
pub enum Entry {
    /// In a child made by fork(2) all maps are the kernel's, and the lock may be held for ever.
    Childs,
    Named(#[expect(dead_code, reason = "kept for its drop")] RwLockReadGuard<'static, ()>),
    Alone(#[expect(dead_code, reason = "kept for its drop")] RwLockWriteGuard<'static, ()>),
}

/// Waits for its turn.
pub fn enter(alone: bool) -> Entry {
    static ENTRY: RwLock<()> = RwLock::new(());
    match alone {
        _ if fork::is_child() => Entry::Childs,
        true => Entry::Alone(ENTRY.write().unwrap_or_else(PoisonError::into_inner)),
        false => Entry::Named(ENTRY.read().unwrap_or_else(PoisonError::into_inner)),
    }
}

/// How one more map of a file is placed, by whoever has entered: as the others are, or else as wanted.
pub fn settle(identity: Identity, wanted: Placing) -> (Placing, Option<Registered>) {
    let mut placed = PLACED.lock().unwrap_or_else(PoisonError::into_inner);
    match (placed.get_mut(&identity), wanted) {
        (Some((placing, count)), _) => {
            *count += 1;
            (*placing, Some(Registered(identity)))
        }
        (None, Placing::Engine) => (Placing::Engine, None),
        (None, _) if table::is_cached_by_name(identity) => (Placing::Engine, None),
        (None, wanted) => {
            placed.insert(identity, (wanted, 1));
            (wanted, Some(Registered(identity)))
        }
    }
}

/// A map that may change hands. Offsets and ranges that its methods take are inside the map, in bytes.
pub struct Placed {
    memory: Arc<PlacedMemory>,
    /// The map's first byte.
    start: usize,
    /// Of a mutable map.
    source: Option<Box<Source>>,
}

/// Its memory, which a flush under way may use longer than the map does.
#[derive(Debug)]
pub struct PlacedMemory {
    calls: &'static dyn Calls,
    path: PathBuf,
    /// Whole pages; only `grow` changes them.
    at: RwLock<Range<usize>>,
    /// Of the map's first byte.
    skip: usize,
    _registered: Option<Registered>,
}

impl Placed {
    pub fn new(
        calls: &'static dyn Calls,
        part: FilePart<'_>,
        source: Option<Box<Source>>,
        registered: Option<Registered>,
    ) -> Result<Self> {
        let skip = (part.offset % PAGE as u64) as usize;
        let whole =
            FilePart { offset: part.offset - skip as u64, len: (part.len + skip).next_multiple_of(PAGE), ..part };
        let base = calls.map(&whole)?;
        let (path, at) = (file::path_of(part.file), RwLock::new(base..base + whole.len));
        let memory = Arc::new(PlacedMemory { calls, path, at, skip, _registered: registered });
        Ok(Placed { memory, start: base + skip, source })
    }

    pub fn start(&self) -> *mut u8 {
        self.start as *mut u8
    }

    fn bytes(&self, offset: usize, len: usize) -> Range<usize> {
        self.start + offset..self.start + offset + len
    }

    /// The pages that a range touches.
    fn pages(&self, offset: usize, len: usize) -> Range<usize> {
        let bytes = self.bytes(offset, len);
        if len == 0 { bytes.end / PAGE * PAGE..bytes.end / PAGE * PAGE } else { bytes.start / PAGE * PAGE..bytes.end }
    }

    fn bytes_of(&self, ranges: &[Range<usize>]) -> Vec<Range<usize>> {
        ranges.iter().map(|range| self.bytes(range.start, range.len())).collect()
    }

    pub fn engine(&self) -> Engine {
        let is_engines = self.memory.calls.is_engines(&(self.start..self.start + 1));
        if is_engines { Engine::Cached } else { Engine::Kernel }
    }

    pub fn flush(&self, offset: usize, len: usize) -> Result<()> {
        self.memory.done("write it back (msync)", self.memory.calls.sync(&self.pages(offset, len)))
    }

    /// What carries on a flush of the map.
    pub fn memory(&self) -> Arc<PlacedMemory> {
        self.memory.clone()
    }

    /// The kernel writes back what its page cache holds.
    pub fn save(&self, len: usize) -> Result<()> {
        if self.engine() == Engine::Cached { self.flush(0, len) } else { Ok(()) }
    }

    pub fn extend(&self, part: Range<usize>) -> Result<()> {
        let Some(source) = &self.source else { return Ok(()) };
        let Source { file, options } = &**source;
        let part = open::part_of_file(&self.memory.path, options.offset, part)?;
        length::extend_file(file, part, options.reserve)
    }

    /// Makes the map longer; where it begins then.
    pub fn grow(&mut self, len: usize, new_len: usize) -> Result<*mut u8> {
        self.extend(len..new_len)?;
        if let Some(source) = &self.source {
            facts::facts_of(&source.file)?;
            let memory = &self.memory;
            let mut at = memory.at.write().unwrap_or_else(PoisonError::into_inner);
            let pages = (memory.skip + new_len).next_multiple_of(PAGE);
            if pages > at.len() {
                let base = memory.calls.remap(&at, pages);
                let base = base.map_err(|error| memory.failed("give it another length (mremap)", error))?;
                *at = base..base + pages;
                self.start = base + memory.skip;
            }
        }
        Ok(self.start())
    }

    pub fn advise(&self, advice: Advice, offset: usize, len: usize) -> Result<()> {
        self.memory.done("advise on it (madvise)", self.memory.calls.advise(&self.pages(offset, len), advice))
    }

    pub fn set_readahead(&self, bytes: usize) -> Result<()> {
        self.memory.done("say how far ahead it is read", self.memory.calls.set_readahead(self.start, bytes))
    }

    pub fn prefetch(&self, ranges: &[Range<usize>]) -> Result<usize> {
        self.memory.calls.prefetch(&self.bytes_of(ranges))
    }

    pub fn prefetch_wait(&self, ranges: &[Range<usize>]) -> Result<()> {
        self.memory.calls.prefetch_wait(&self.bytes_of(ranges))
    }

    pub fn gather(&self, ranges: &[(usize, usize)], output: &mut [u8]) -> Result<()> {
        let bytes: Vec<_> = ranges.iter().map(|(offset, len)| self.bytes(*offset, *len)).collect();
        self.memory.calls.gather(&bytes, output)
    }

    pub fn pin(&self, offset: usize, len: usize, writing: bool) -> Result<PlacedPin<'_>> {
        let at = self.bytes(offset, len);
        self.memory.calls.keep(&at, writing)?;
        Ok(PlacedPin { memory: &self.memory, at, writing })
    }

    pub fn read_at(&self, buffer: &mut [u8], offset: usize) -> Result<()> {
        self.memory.calls.read(self.start + offset, buffer)
    }

    pub fn write_at(&mut self, data: &[u8], offset: usize) -> Result<()> {
        self.memory.calls.write(self.start + offset, data)
    }
}

impl PlacedMemory {
    /// Writes the map's first bytes back, wherever they are by now, and waits for it.
    pub fn flush(&self, len: usize) -> Result<()> {
        let at = self.at.read().unwrap_or_else(PoisonError::into_inner);
        self.done("write it back (msync)", self.calls.sync(&(at.start..at.start + self.skip + len)))
    }

    fn done(&self, operation: &'static str, result: std::result::Result<(), i32>) -> Result<()> {
        result.map_err(|error| self.failed(operation, error))
    }

    fn failed(&self, operation: &'static str, error: i32) -> Error {
        Error::Io { path: self.path.clone(), operation, source: io::Error::from_raw_os_error(error) }
    }
}

impl Drop for PlacedMemory {
    fn drop(&mut self) {
        self.calls.unmap(self.at.get_mut().unwrap_or_else(PoisonError::into_inner));
    }
}

/// Bytes of such a map that are kept in memory.
#[derive(Debug)]
pub struct PlacedPin<'a> {
    memory: &'a PlacedMemory,
    at: Range<usize>,
    writing: bool,
}

impl Drop for PlacedPin<'_> {
    fn drop(&mut self) {
        self.memory.calls.let_go(&self.at, self.writing);
    }
}
