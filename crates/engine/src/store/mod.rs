//! Where the bytes of a region live.

#[cfg(all(test, not(loom)))]
pub mod faulty;
mod file;
mod group_sync;
pub mod one_writer;
pub mod origin;
pub mod page_cache;

pub use file::FileStore;
#[cfg(all(test, loom))]
pub use group_sync::GroupSync;
pub use origin::Origin;

use crate::counters::stats::Counter;
use crate::error::Result;
use crate::sys::PAGE;
use crate::sys::file::{Facts, Identity};
use std::fmt::Debug;
use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::fd::RawFd;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

/// The result of reading a page.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ReadEnd {
    /// The page is in the buffer; what lies past the file's end is zero.
    Filled,
    /// The page lies past the file's end.
    PastEnd,
    /// The read failed with this error number.
    Failed(i32),
}

impl ReadEnd {
    /// The result of a read of one page into `buffer`. Clears the part of the page that the read has not filled.
    ///
    /// # Safety
    /// `buffer` is a page that the caller owns.
    unsafe fn of(read: std::result::Result<usize, i32>, buffer: *mut u8) -> Self {
        match read {
            Ok(0) => ReadEnd::PastEnd,
            Ok(filled) => {
                // SAFETY: the rest of the caller's page.
                unsafe { buffer.add(filled).write_bytes(0, PAGE - filled) };
                ReadEnd::Filled
            }
            Err(error) => ReadEnd::Failed(error),
        }
    }
}

/// The operations that the engine needs of the place where a region's bytes live.
///
/// The methods called *by fault handlers* make system calls and nothing else: no allocation, no lock that is held while
/// program code runs, no panic. A handler reads pages, and writes dirty ones when it finds no clean one to drop.
pub trait Store: Debug + Send + Sync {
    /// The file's name, for messages. Called by fault handlers.
    fn path(&self) -> &Path;

    /// Where the file's bytes come from, if it is filled while it is read. Called by fault handlers.
    fn origin(&self) -> Option<&Arc<dyn Origin>> {
        None
    }

    /// Whether pages can be read without waiting for an origin. Called by fault handlers.
    fn is_near(&self, page: usize, pages: usize) -> bool {
        self.origin().is_none_or(|origin| origin.has(self.bytes_of(page, pages)))
    }

    /// Asks the origin, if there is one, for pages that it has not brought, and does not wait. Called by fault handlers.
    fn ask(&self, page: usize, pages: usize) {
        if let Some(origin) = self.origin()
            && !self.is_near(page, pages)
        {
            origin.ask(self.bytes_of(page, pages));
        }
    }

    /// Asks the origin, if there is one, for pages, and waits for them: no longer than `patience`. Called by fault handlers.
    fn bring(&self, page: usize, pages: usize, patience: Option<Duration>) -> std::result::Result<(), i32> {
        self.origin().map_or(Ok(()), |origin| origin.bring(self.bytes_of(page, pages), patience))
    }

    /// Whether bytes that were read past `read_pages` are right. The origin says so, if there is one. Called by fault handlers.
    ///
    /// # Safety
    /// `filled` bytes at `buffer` may be read.
    unsafe fn is_right(&self, page: usize, buffer: *const u8, filled: usize) -> bool {
        self.origin().is_none_or(|origin| {
            // SAFETY: the caller's.
            origin.is_right(page as u64 * PAGE as u64, unsafe { std::slice::from_raw_parts(buffer, filled) })
        })
    }

    /// The bytes of some pages, as far as the file has them.
    fn bytes_of(&self, page: usize, pages: usize) -> Range<u64> {
        let byte = |page: usize| (page as u64 * PAGE as u64).min(self.size());
        byte(page)..byte(page + pages)
    }

    /// Makes writing possible, through a descriptor that may write.
    fn allow_writing(&self, from: &File) -> Result<()>;

    /// Keeps other processes from writing the file through a cache, as far as its file system can. Writing has been
    /// made possible; callers take turns.
    fn lock(&self) -> Result<()>;

    /// Whether this store keeps other processes from writing.
    fn is_locked(&self) -> bool;

    /// Lets other processes write. Called by the keeper, too.
    fn unlock(&self);

    /// Closes its descriptors.
    ///
    /// # Safety
    /// The store is never dropped, and from now on asked for its path and its identity only.
    unsafe fn close(&self);

    /// Which file it is.
    fn identity(&self) -> Identity;

    /// A descriptor that reads through the page cache, and so finds bytes that a system call has just written.
    fn reader(&self) -> &File;

    /// The descriptors that `write_end`, `write_pages`, `unlock` and `read_page` use; the first two read and write
    /// through the page cache. Called by the keeper.
    fn descriptors(&self) -> [Option<RawFd>; 4];

    /// Length of the file as far as known, bytes. Called by fault handlers.
    fn size(&self) -> u64;

    /// Asks for the length again, for a file that others may have extended. A shorter file is left to `write_end` and
    /// `read_page`, which meet its end themselves. Called by fault handlers.
    fn refresh_size(&self) -> u64;

    /// The file's length now, bytes.
    fn length(&self) -> io::Result<u64>;

    /// Notes that the file was cut to `size` bytes. Pages past that have left memory.
    fn note_shorter(&self, size: u64);

    /// The descriptor that may change the length, if there is one.
    fn writer(&self) -> Option<&File>;

    /// Notes a map of the first `end` bytes.
    fn note_mapped(&self, end: usize);

    /// Reads one page into `buffer`; counts it in `cached` if the page cache had it. Called by fault handlers.
    ///
    /// # Safety
    /// `buffer` is a page, aligned to its size, that the caller owns.
    unsafe fn read_page(&self, page: usize, buffer: *mut u8, cached: &Counter) -> ReadEnd;

    /// Reads up to `pages` pages from `page` on into `buffer`; how many bytes there were before the file's end, or an error number. Counts in
    /// `cached` the pages that the page cache had.
    ///
    /// # Safety
    /// `buffer` is that many pages, aligned to one, that the caller owns.
    unsafe fn read_pages(
        &self,
        page: usize,
        pages: usize,
        buffer: *mut u8,
        cached: &Counter,
    ) -> std::result::Result<usize, i32>;

    /// The same from the page cache alone, if it has all of the pages; `None`: they have to be read. The page cache is asked only where it is
    /// known or likely to have them. Called before a read through `direct_reads`.
    ///
    /// # Safety
    /// As for `read_pages`.
    unsafe fn read_cached(&self, page: usize, pages: usize, buffer: *mut u8, cached: &Counter) -> Option<usize>;

    /// Notes that a system call has written to the file, through the page cache.
    fn expect_cached(&self);

    /// The descriptor through which pages may be read past `read_pages`, many at a time with io_uring(7) or Linux AIO, if there is one.
    fn direct_reads(&self) -> Option<&File>;

    /// The first byte at or after `offset` that is not in a hole; the file's end where none follows (lseek(2), `SEEK_DATA`). `offset` where
    /// holes cannot be told. Called by fault handlers.
    fn next_data(&self, offset: u64) -> u64;

    /// The first byte at or after `offset` that is in a hole; the file's end counts as a hole (lseek(2), `SEEK_HOLE`). `u64::MAX` where holes
    /// cannot be told. Called by fault handlers.
    fn next_hole(&self, offset: u64) -> u64;

    /// The byte before which writing has to stop now, or an error number. Bytes that a truncation has cut off are not written, as the kernel
    /// does not write mapped pages past the end (mmap(2)). Nor are bytes that others have appended behind everything that is mapped. A device
    /// is not truncated: behind the end of one that shrank, writes fail. Called by fault handlers.
    fn write_end(&self) -> std::result::Result<u64, i32>;

    /// Writes `pages` pages from memory to the file, up to `end`, and no further than to where the file ends now: a write past that would
    /// undo a truncation. A truncation that comes between this look and the write, for about a microsecond, is undone all the same. One that
    /// comes during the write waits for it in the file system. On failure, an error number, any part of the pages may have been written.
    /// Called by fault handlers.
    ///
    /// # Safety
    /// `from` is valid for the kernel to read.
    unsafe fn write_pages(&self, page: usize, from: *const u8, pages: usize, end: u64) -> std::result::Result<(), i32>;

    /// Sets whether pages are written to the page cache, which writes them to the device when it likes, or never if the file is deleted
    /// before. `sync` makes them stable all the same.
    fn write_to_page_cache(&self, does: bool);

    /// The descriptor through which whole pages inside the file may be written past `write_pages`, many at a time with
    /// io_uring(7), if there is one. Called by fault handlers.
    fn direct_writes(&self) -> Option<&File>;

    /// Allocates blocks for a range of bytes, which lies inside the file's length or in its last page, and leaves the length alone; an error
    /// number: ENOSPC, EOPNOTSUPP. Called by fault handlers.
    fn allocate(&self, _range: Range<u64>) -> std::result::Result<(), i32> {
        Ok(())
    }

    /// Puts everything written before the call on stable storage, and counts in `syncs` the system calls this made: none when another
    /// thread's did it. Once one has failed, all later ones report an error.
    fn sync(&self, syncs: &Counter) -> io::Result<()>;
}

/// Opens the store of a file, from the program's descriptor, with or without `O_DIRECT`.
pub type Open<'a> = &'a dyn Fn(&File, &Facts, bool) -> Opened;

/// The store that was opened, or the error.
pub type Opened = Result<Box<dyn Store>>;

/// The store of a file as it is.
pub fn open(from: &File, facts: &Facts, direct: bool) -> Result<Box<dyn Store>> {
    Ok(Box::new(FileStore::open(from, facts, direct)?))
}
