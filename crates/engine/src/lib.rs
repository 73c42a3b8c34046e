//! STUB of the public face (real engine under construction). Signatures are final.
#![allow(missing_docs, unused_variables, clippy::all)]
mod error;
pub use error::{Error, Result};
use std::fs::File;

/// Clone shares.
#[derive(Clone)]
pub struct Cache;
#[derive(Default)]
pub struct CacheBuilder;
impl CacheBuilder {
    pub fn capacity(self, bytes: usize) -> Self { todo!() }
    /// pages per eviction batch, 1..=512
    pub fn evict_batch(self, pages: usize) -> Self { todo!() }
    pub fn build(self) -> Result<Cache> { todo!() }
}
impl Cache {
    pub const MIN_CAPACITY: usize = 16 * 4096;
    pub fn new(capacity_bytes: usize) -> Result<Cache> { todo!() }
    pub fn builder() -> CacheBuilder { todo!() }
    /// quarter of the smaller of physical memory and the cgroup's limit, bytes
    pub fn default_capacity() -> usize { todo!() }
    pub fn capacity(&self) -> usize { todo!() }
    pub fn stats(&self) -> Stats { todo!() }
}
#[derive(Debug, Clone, Copy, Default)]
#[non_exhaustive]
pub struct Stats {
    pub misses: u64,
    pub upgrades: u64,
    pub evicted_pages: u64,
    pub eviction_batches: u64,
    pub writeback_pages: u64,
    pub writeback_runs: u64,
    pub resident_pages: u64,
    pub dirty_pages: u64,
    pub waits: u64,
}
/// Kernel is default: whatever is missing -> map through the kernel, warn by tracing.
/// Buffered: O_DIRECT missing -> cache over buffered I/O; anything else missing -> error.
/// Refuse: error.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Fallback { #[default] Kernel, Buffered, Refuse }
#[derive(Clone, Default)]
pub struct MapOptions;
impl MapOptions {
    pub fn new() -> Self { todo!() }
    pub fn offset(&mut self, bytes: u64) -> &mut Self { todo!() }
    pub fn len(&mut self, bytes: usize) -> &mut Self { todo!() }
    pub fn cache(&mut self, cache: &Cache) -> &mut Self { todo!() }
    pub fn fallback(&mut self, fallback: Fallback) -> &mut Self { todo!() }
    pub unsafe fn map(&self, file: &File) -> Result<Map> { todo!() }
    pub unsafe fn map_mut(&self, file: &File) -> Result<MapMut> { todo!() }
}
/// Which path serves a map.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Engine { Cached, Kernel }
pub struct Map;
pub struct MapMut;
impl Map { pub fn engine(&self) -> Engine { todo!() } }
impl MapMut {
    pub fn engine(&self) -> Engine { todo!() }
    pub fn flush(&self) -> Result<()> { todo!() }
    pub fn flush_async(&self) -> Result<()> { todo!() }
    pub fn flush_range(&self, offset: usize, len: usize) -> Result<()> { todo!() }
}
impl std::ops::Deref for Map { type Target = [u8]; fn deref(&self) -> &[u8] { todo!() } }
impl std::ops::Deref for MapMut { type Target = [u8]; fn deref(&self) -> &[u8] { todo!() } }
impl std::ops::DerefMut for MapMut { fn deref_mut(&mut self) -> &mut [u8] { todo!() } }
impl MapMut { pub fn as_mut_ptr(&mut self) -> *mut u8 { todo!() } }
impl Map { pub fn as_ptr(&self) -> *const u8 { todo!() } }

/// What the engine asks of the machine, for `fastmap doctor` and for the fall-back message.
pub mod requirements {
    /// One thing looked at.
    pub struct Requirement {
        pub name: &'static str,
        /// what it is for, a short phrase
        pub purpose: &'static str,
        /// false: the engine cannot cache without it; true: slower or less without it
        pub optional: bool,
        /// Ok(what was found), Err(why it is missing)
        pub found: Result<String, String>,
        /// what to do when missing, one line
        pub remedy: String,
    }
    /// The machine: architecture, kernel version, userfaultfd and its features, process_madvise, ...
    pub fn of_machine() -> Vec<Requirement> { todo!() }
    /// A file: regular or block device, O_DIRECT with 4096-byte alignment, file system.
    pub fn of_file(file: &std::fs::File) -> Vec<Requirement> { todo!() }
}
