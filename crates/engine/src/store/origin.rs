//! A file that is filled from elsewhere while it is mapped: parts of an object in a store, kept on local disk.
//!
//! The file has the object's length and is sparse. Parts that have not come yet are holes, which must never be taken for bytes. So nothing is
//! read from the file before its [`Origin`] says that it is there, and nothing is used before the origin has found it right.

use super::file::FileStore;
use super::{Opened, ReadEnd, Store};
use crate::counters::stats::Counter;
use crate::error::{Error, Result};
use crate::sys::file::{Facts, Identity};
use std::fmt::Debug;
use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::fd::RawFd;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

/// The source of a mapped file that is filled while it is read ([`MapOptions::map_origin`](crate::MapOptions::map_origin)). The crate
/// `fastmap-object` has one for objects in stores.
///
/// ```
/// use fastmap::{MapOptions, Origin};
/// use std::{ops::Range, path::Path, sync::Arc, time::Duration};
///
/// /// Has brought everything before anybody asks.
/// #[derive(Debug)]
/// struct AllThere;
///
/// impl Origin for AllThere {
///     fn has(&self, _: Range<u64>) -> bool {
///         true
///     }
///     fn bring(&self, _: Range<u64>, _: Option<Duration>) -> Result<(), i32> {
///         Ok(())
///     }
///     fn ask(&self, _: Range<u64>) {}
///     fn is_right(&self, _: u64, _: &[u8]) -> bool {
///         true
///     }
///     fn name(&self) -> &Path {
///         Path::new("test://object")
///     }
///     fn explain(&self, _: i32) -> Option<&str> {
///         None
///     }
/// }
///
/// # fn main() -> std::io::Result<()> {
/// # let file = tempfile::tempfile()?;
/// std::os::unix::fs::FileExt::write_all_at(&file, b"an object", 0)?;
/// # if fastmap::requirements::of_machine().iter().all(|one| one.optional || one.found.is_ok()) {
/// let map = MapOptions::new().map_origin(&file, Arc::new(AllThere))?;
/// assert_eq!(&map[3..], b"object");
/// # }
/// # Ok(())
/// # }
/// ```
/// Fault handlers call all methods but [`explain`](Self::explain): in any thread of the program, even inside malloc(3), with all signals
/// blocked. So these methods neither allocate nor panic, and take no lock that is held while program code runs. They make system calls, and
/// sleep on futex(2) words.
pub trait Origin: Debug + Send + Sync {
    /// Whether all of a range of the file's bytes is in the file now. It may be gone when it is read: then [`is_right`](Self::is_right) says
    /// so.
    fn has(&self, range: Range<u64>) -> bool;

    /// Brings a range into the file, and waits until it is there: no longer than `patience`, or, if that is `None`, as long as a map of the
    /// object waits.
    ///
    /// # Errors
    /// An error number: `ETIMEDOUT` when its deadline has passed, `ESTALE` when the object has changed, or another that
    /// [`explain`](Self::explain) knows.
    fn bring(&self, range: Range<u64>, patience: Option<Duration>) -> std::result::Result<(), i32>;

    /// Asks for a range to be brought into the file, and does not wait.
    fn ask(&self, range: Range<u64>);

    /// Whether bytes that were read from the file, from a page's start on, are the object's. Wrong bytes count as not there from then on, and
    /// are brought anew. If the bytes do not end with a page they end with the file.
    fn is_right(&self, offset: u64, bytes: &[u8]) -> bool;

    /// Brings a range and calls `read`, which reads it from the file and returns as much of it as it has read. Repeats both while the range
    /// had gone from the file, or was wrong.
    ///
    /// # Errors
    /// Those of [`bring`](Self::bring) and of `read`; `EIO` when it was wrong a few times, or gone very often.
    fn read<'a>(
        &self,
        range: Range<u64>,
        read: &mut dyn FnMut() -> std::result::Result<&'a [u8], i32>,
    ) -> std::result::Result<(), i32> {
        const WRONG: usize = 4;
        // Where many readers share little room they take it from one another, and each gets on after a while.
        const GONE: usize = 10_000;
        let (mut wrong, mut gone) = (0, 0);
        while wrong < WRONG && gone < GONE {
            self.bring(range.clone(), None)?;
            let bytes = read()?;
            let is_whole = bytes.len() as u64 == range.end - range.start;
            // Asked before `is_right`: wrong bytes count as gone from then on.
            let is_gone = !self.has(range.clone());
            if is_whole && self.is_right(range.start, bytes) {
                return Ok(());
            }
            if is_whole && is_gone { gone += 1 } else { wrong += 1 }
        }
        Err(libc::EIO)
    }

    /// The name by which the program knows the object, for messages.
    fn name(&self) -> &Path;

    /// The meaning of an error number of [`bring`](Self::bring), and what to do about it.
    fn explain(&self, error: i32) -> Option<&str>;
}

/// A file with an origin: read-only.
#[derive(Debug)]
pub struct OriginStore {
    file: FileStore,
    /// Of its own, not the file's: each map of an object is a file to the engine.
    identity: Identity,
    origin: Arc<dyn Origin>,
}

impl OriginStore {
    /// The facts that stand for a file with an origin in the engine, and the function that opens its store.
    pub fn opener(facts: Facts, origin: Arc<dyn Origin>) -> (Facts, impl Fn(&File, &Facts, bool) -> Opened) {
        let own = Facts { identity: Identity::unique(), ..facts };
        let open = move |from: &File, own: &Facts, direct: bool| {
            let file = FileStore::open(from, &facts, direct)?;
            Ok(Box::new(OriginStore { file, identity: own.identity, origin: origin.clone() }) as Box<dyn Store>)
        };
        (own, open)
    }
}

impl Store for OriginStore {
    fn path(&self) -> &Path {
        self.origin.name()
    }

    fn origin(&self) -> Option<&Arc<dyn Origin>> {
        Some(&self.origin)
    }

    fn allow_writing(&self, _from: &File) -> Result<()> {
        let source = io::Error::from_raw_os_error(libc::EROFS);
        Err(Error::Io { path: self.path().to_owned(), operation: "write to it: an object is mapped read-only", source })
    }

    fn lock(&self) -> Result<()> {
        Ok(())
    }

    fn is_locked(&self) -> bool {
        false
    }

    fn unlock(&self) {}

    unsafe fn close(&self) {
        // SAFETY: the caller's contract.
        unsafe { self.file.close() };
    }

    fn identity(&self) -> Identity {
        self.identity
    }

    fn reader(&self) -> &File {
        self.file.reader()
    }

    fn descriptors(&self) -> [Option<RawFd>; 4] {
        self.file.descriptors()
    }

    fn size(&self) -> u64 {
        self.file.size()
    }

    fn refresh_size(&self) -> u64 {
        self.file.size()
    }

    fn length(&self) -> io::Result<u64> {
        Ok(self.file.size())
    }

    fn note_shorter(&self, _size: u64) {}

    fn writer(&self) -> Option<&File> {
        None
    }

    fn note_mapped(&self, end: usize) {
        self.file.note_mapped(end);
    }

    unsafe fn read_page(&self, page: usize, buffer: *mut u8, cached: &Counter) -> ReadEnd {
        // SAFETY: the caller's buffer, a page of it.
        unsafe { ReadEnd::of(self.read_pages(page, 1, buffer, cached), buffer) }
    }

    unsafe fn read_pages(
        &self,
        page: usize,
        pages: usize,
        buffer: *mut u8,
        cached: &Counter,
    ) -> std::result::Result<usize, i32> {
        let range = self.bytes_of(page, pages);
        let whole = (range.end - range.start) as usize;
        if whole > 0 {
            // SAFETY: the caller's buffer, of which so much is filled.
            self.origin.read(range, &mut || unsafe {
                let filled = self.file.read_pages(page, pages, buffer, cached)?;
                Ok(std::slice::from_raw_parts(buffer, filled))
            })?;
        }
        Ok(whole)
    }

    unsafe fn read_cached(&self, page: usize, pages: usize, buffer: *mut u8, cached: &Counter) -> Option<usize> {
        if !self.is_near(page, pages) {
            return None;
        }
        // SAFETY: the caller's buffer, of which so much is filled.
        unsafe {
            let filled = self.file.read_cached(page, pages, buffer, cached)?;
            self.is_right(page, buffer, filled).then_some(filled)
        }
    }

    fn expect_cached(&self) {
        self.file.expect_cached();
    }

    fn direct_reads(&self) -> Option<&File> {
        self.file.direct_reads()
    }

    fn next_data(&self, offset: u64) -> u64 {
        offset
    }

    fn next_hole(&self, _offset: u64) -> u64 {
        u64::MAX
    }

    fn write_end(&self) -> std::result::Result<u64, i32> {
        Err(libc::EROFS)
    }

    unsafe fn write_pages(
        &self,
        _page: usize,
        _from: *const u8,
        _pages: usize,
        _end: u64,
    ) -> std::result::Result<(), i32> {
        Err(libc::EROFS)
    }

    fn write_to_page_cache(&self, _does: bool) {}

    fn direct_writes(&self) -> Option<&File> {
        None
    }

    fn sync(&self, _syncs: &Counter) -> io::Result<()> {
        Ok(())
    }
}
