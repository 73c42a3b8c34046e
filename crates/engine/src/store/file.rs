//! A regular file or block device, read and written past the page cache where it allows.
//!
//! Whole pages go through a descriptor opened with `O_DIRECT`; the page that holds the file's end, whose tail must not
//! be written, goes through an ordinary one. The kernel keeps the two coherent.

use crate::error::{Error, Result};
use crate::sys::{PAGE, file};
use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, OnceLock};

/// A pair of descriptors of one file, opened by us with flags of our own.
#[derive(Debug)]
struct Handles {
    /// For whole pages: `O_DIRECT` unless the file refuses it.
    pages: File,
    /// For the page at the end of the file, and for sizes and syncing.
    plain: File,
}

/// What reading a page came to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ReadEnd {
    /// The page is in the buffer; what lies past the file's end is zero.
    Filled,
    /// The page lies past the file's end.
    PastEnd,
    /// The read failed with this error number.
    Failed(i32),
}

/// An open file, ready for faults.
#[derive(Debug)]
pub struct FileStore {
    path: PathBuf,
    is_device: bool,
    direct: bool,
    size: AtomicU64,
    /// Where the longest map ends or ended, bytes: a program may map more than there is and extend the file after.
    mapped: AtomicU64,
    reading: Handles,
    writing: OnceLock<Handles>,
    /// fdatasync(2) failed once: the kernel forgets which bytes that cost (fsyncgate), so it is remembered here.
    /// Held over the call: the kernel reports a failure to one of two that call at the same time.
    sync_failed: Mutex<bool>,
}

impl FileStore {
    /// Opens the file behind a descriptor anew. `direct`: with `O_DIRECT`, which [`direct_works`](file::direct_works)
    /// found possible.
    pub fn open(from: &File, facts: &file::Facts, direct: bool) -> Result<Self> {
        let path = file::path_of(from);
        let reading = Handles::open(from, &path, false, direct)?;
        Ok(FileStore {
            path,
            is_device: facts.is_device,
            direct,
            size: AtomicU64::new(facts.size),
            mapped: AtomicU64::new(0),
            reading,
            writing: OnceLock::new(),
            sync_failed: Mutex::new(false),
        })
    }

    /// Makes writing possible, through a descriptor that may write.
    pub fn allow_writing(&self, from: &File) -> Result<()> {
        if self.writing.get().is_none() {
            let _ = self.writing.set(Handles::open(from, &self.path, true, self.direct)?);
        }
        Ok(())
    }

    /// The file's name, for messages.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Length of the file as far as known, bytes.
    pub fn size(&self) -> u64 {
        self.size.load(Ordering::Acquire)
    }

    /// Asks for the length again, for a file that others may have extended. A shorter file is left to `write_end` and
    /// `read_page`, which meet its end themselves.
    pub fn refresh_size(&self) -> u64 {
        loop {
            let known = self.size();
            let now = file::size_now(&self.reading.plain, self.is_device).unwrap_or(0);
            // Not over a `note_shorter` since: `now` may be from before the file was cut.
            let update = || self.size.compare_exchange(known, now, Ordering::AcqRel, Ordering::Acquire);
            if now <= known || update().is_ok() {
                return known.max(now);
            }
        }
    }

    /// The file's length now, bytes.
    pub fn length(&self) -> io::Result<u64> {
        file::size_now(&self.reading.plain, self.is_device).ok_or_else(io::Error::last_os_error)
    }

    /// Notes that the file was cut to `size` bytes. Pages past that have left memory.
    pub fn note_shorter(&self, size: u64) {
        self.size.store(size, Ordering::Release);
    }

    /// The descriptor that may write and change the length, if there is one.
    pub fn writer(&self) -> Option<&File> {
        self.writing.get().map(|handles| &handles.plain)
    }

    /// Reads one page into `buffer`. Called by the fault handler: system calls only.
    ///
    /// # Safety
    /// `buffer` is a page, aligned to its size, that the caller owns.
    #[inline]
    pub unsafe fn read_page(&self, page: usize, buffer: *mut u8) -> ReadEnd {
        let offset = page as u64 * PAGE as u64;
        if offset >= self.size() && offset >= self.refresh_size() {
            return ReadEnd::PastEnd;
        }
        // SAFETY: the caller's buffer.
        let read = unsafe { file::read_at(&self.reading.pages, buffer, PAGE, offset) };
        match read {
            Ok(PAGE) => ReadEnd::Filled,
            Ok(0) => ReadEnd::PastEnd,
            Ok(filled) => {
                // SAFETY: the rest of the caller's buffer.
                unsafe { buffer.add(filled).write_bytes(0, PAGE - filled) };
                ReadEnd::Filled
            }
            Err(error) => ReadEnd::Failed(error),
        }
    }

    /// Notes a map of the first `end` bytes.
    pub fn note_mapped(&self, end: usize) {
        self.mapped.fetch_max(end as u64, Ordering::AcqRel);
    }

    /// Where writing has to stop now, bytes: what a truncation has cut off is not written, as the kernel does with mapped
    /// pages past the end (mmap(2)), nor what others have appended behind everything that is mapped.
    pub fn write_end(&self) -> std::result::Result<u64, i32> {
        let ours = self.size().max(self.mapped.load(Ordering::Acquire));
        file::size_now(&self.reading.plain, self.is_device).map(|now| now.min(ours)).ok_or(libc::EIO)
    }

    /// Writes `pages` pages from memory to the file, up to `end`, and no further than to where the file ends now: a write
    /// past that would undo a truncation. One that comes between this look and the write is undone all the same, for about
    /// a microsecond; a write under way is waited for by the file system.
    ///
    /// # Safety
    /// `from` is valid for the kernel to read.
    pub unsafe fn write_pages(
        &self,
        page: usize,
        from: *const u8,
        pages: usize,
        end: u64,
    ) -> std::result::Result<(), i32> {
        let Some(handles) = self.writing.get() else { return Err(libc::EBADF) };
        let offset = page as u64 * PAGE as u64;
        let end = end.min(self.write_end()?);
        let len = end.min(offset + (pages * PAGE) as u64).saturating_sub(offset) as usize;
        let whole = len - len % PAGE;
        // SAFETY: inside the caller's memory.
        unsafe {
            if whole > 0 {
                file::write_at(&handles.pages, from, whole, offset)?;
            }
            if len > whole {
                file::write_at(&handles.plain, from.add(whole), len - whole, offset + whole as u64)?;
            }
        }
        Ok(())
    }

    /// Puts everything written so far on stable storage (fdatasync(2)). Once it has failed it reports an error for good:
    /// the kernel drops the pages it could not write and calls the next sync a success.
    pub fn sync(&self) -> io::Result<()> {
        let Some(handles) = self.writing.get() else { return Ok(()) };
        let mut failed = self.sync_failed.lock().unwrap_or_else(|poison| poison.into_inner());
        if *failed {
            return Err(io::Error::other("an earlier fdatasync failed: written data may be lost; restore the file"));
        }
        handles.plain.sync_data().inspect_err(|_| *failed = true)
    }
}

impl Handles {
    fn open(from: &File, path: &Path, writable: bool, direct: bool) -> Result<Self> {
        let fail = |operation| move |source| Error::Io { path: path.to_owned(), operation, source };
        // A file whose permissions changed since it was opened cannot be opened anew: a duplicate shares its flags,
        // which is as good for the descriptor that needs none of its own.
        let plain = file::reopen(from, writable, false).or_else(|_| from.try_clone()).map_err(fail("duplicate it"))?;
        let pages = if direct { file::reopen(from, writable, true) } else { plain.try_clone() };
        let handles = Handles { pages: pages.map_err(fail("open it anew for direct I/O"))?, plain };
        if !direct {
            // The cache above decides what to read ahead and what to keep; the page cache need not guess as well.
            // SAFETY: advice on our own descriptor.
            unsafe { libc::posix_fadvise(handles.pages.as_raw_fd(), 0, 0, libc::POSIX_FADV_RANDOM) };
        }
        Ok(handles)
    }
}
