//! A regular file or block device, read and written past the page cache where it allows.
//!
//! Whole pages go through a descriptor opened with `O_DIRECT`; the page that holds the file's end, whose tail must not
//! be written, goes through an ordinary one. The kernel keeps the two coherent.

use super::group_sync::GroupSync;
use super::{ReadEnd, Store};
use crate::counters::stats::Counter;
use crate::error::{Error, Result};
use crate::store::one_writer;
use crate::store::page_cache::SecondTier;
use crate::sys::engine_fd::EngineFd;
use crate::sys::file::Medium;
use crate::sys::{PAGE, file, page_cache};
use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::fd::{AsRawFd, RawFd};
use std::path::{Path, PathBuf};
use std::ptr;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// A pair of descriptors of one file, opened by us with flags of our own.
#[derive(Debug)]
struct Handles {
    /// For whole pages: `O_DIRECT` unless the file refuses it.
    pages: EngineFd<File>,
    /// For the page at the end of the file, and for sizes, holes and syncing.
    plain: EngineFd<File>,
    /// `plain` is the program's own descriptor under another number: its position is not ours to move.
    shared: bool,
}

/// An open file, ready for faults.
#[derive(Debug)]
pub struct FileStore {
    path: PathBuf,
    identity: file::Identity,
    is_device: bool,
    direct: bool,
    size: AtomicU64,
    /// Where the longest map ends or ended, bytes: a program may map more than the file has, and extend it later.
    mapped: AtomicU64,
    reading: Handles,
    /// The page cache as second tier, where pages are read past it.
    second_tier: Option<SecondTier>,
    /// Pages are written to the page cache.
    writes_to_cache: AtomicBool,
    writing: OnceLock<Handles>,
    /// One at a time: of two threads that call fdatasync(2) at the same time, the kernel reports a failure to one only.
    syncs: GroupSync,
    /// `writing` holds the lock of `one_writer.rs`.
    locked: AtomicBool,
}

impl FileStore {
    /// Opens the file behind a descriptor anew. `direct`: with `O_DIRECT`, which [`direct_works`](file::direct_works)
    /// found possible.
    pub fn open(from: &File, facts: &file::Facts, direct: bool) -> Result<Self> {
        let path = file::path_of(from);
        let reading = Handles::open(from, &path, false, direct)?;
        // The page cache is not asked where there is no device behind the file: all of it is there, or must not be (DAX). Nor through the
        // program's own descriptor, which may read past the page cache.
        let has_tiers = direct && !reading.shared && file::medium(&reading.plain) == Medium::Storage;
        if has_tiers {
            page_cache::expect_random(&reading.plain);
        }
        Ok(FileStore {
            path,
            identity: facts.identity,
            is_device: facts.is_device,
            direct,
            size: AtomicU64::new(facts.size),
            mapped: AtomicU64::new(0),
            reading,
            second_tier: has_tiers.then(SecondTier::default),
            writes_to_cache: AtomicBool::new(false),
            writing: OnceLock::new(),
            syncs: GroupSync::default(),
            locked: AtomicBool::new(false),
        })
    }
}

impl FileStore {
    /// The file's length. The descriptor that whole pages are written to is asked, if there is one: it is an error if it leads to another
    /// file, so that no write goes there.
    fn size_now(&self) -> std::result::Result<u64, i32> {
        match self.writing.get() {
            Some(handles) => file::size_now(&handles.pages, Some(self.identity), self.is_device),
            None => file::size_now(&self.reading.plain, None, self.is_device),
        }
    }

    /// Writes bytes inside the file's length that lie past `RLIMIT_FSIZE`.
    ///
    /// # Safety
    /// As for `write_pages`.
    unsafe fn write_past_limit(
        &self,
        handles: &Handles,
        from: *const u8,
        len: usize,
        offset: u64,
    ) -> std::result::Result<(), i32> {
        self.check(&handles.plain)?;
        // SAFETY: the caller's.
        let write = |len| unsafe { file::write_by_mapping(&handles.plain, from, len, offset) };
        match write(len) {
            Ok(()) => Ok(()),
            // Bytes that a truncation has cut off meanwhile are not written.
            Err(error) => match self.write_end()?.saturating_sub(offset) as usize {
                0 => Ok(()),
                left if left < len => write(left),
                _ => Err(error),
            },
        }
    }

    /// Whether a descriptor leads to the file.
    fn check(&self, handle: &File) -> std::result::Result<(), i32> {
        file::size_now(handle, Some(self.identity), self.is_device).map(drop)
    }
}

impl Store for FileStore {
    fn allow_writing(&self, from: &File) -> Result<()> {
        if self.writing.get().is_none() {
            let _ = self.writing.set(Handles::open(from, &self.path, true, self.direct)?);
        }
        Ok(())
    }

    fn lock(&self) -> Result<()> {
        if let (false, Some(handles)) = (self.is_locked(), self.writing.get()) {
            self.locked.store(one_writer::lock(&handles.plain, &self.path)?, Ordering::Release);
        }
        Ok(())
    }

    fn is_locked(&self) -> bool {
        self.locked.load(Ordering::Acquire)
    }

    fn unlock(&self) {
        if let (true, Some(handles)) = (self.locked.swap(false, Ordering::AcqRel), self.writing.get()) {
            one_writer::unlock(&handles.plain);
        }
    }

    unsafe fn close(&self) {
        for handles in [Some(&self.reading), self.writing.get()].into_iter().flatten() {
            // SAFETY: the caller's contract: the owners that stay behind are neither used nor dropped.
            unsafe {
                drop(ptr::read(&handles.pages));
                drop(ptr::read(&handles.plain));
            }
        }
    }

    fn identity(&self) -> file::Identity {
        self.identity
    }

    fn reader(&self) -> &File {
        &self.reading.plain
    }

    fn descriptors(&self) -> [Option<RawFd>; 4] {
        let writing = self.writing.get();
        let (plain, pages) = (Some(&self.reading.plain), Some(&self.reading.pages));
        let files = [plain, writing.map(|one| &one.plain), writing.map(|one| &one.pages), pages];
        files.map(|file| file.map(|file| file.as_raw_fd()))
    }

    fn path(&self) -> &Path {
        &self.path
    }

    fn size(&self) -> u64 {
        self.size.load(Ordering::Acquire)
    }

    fn refresh_size(&self) -> u64 {
        loop {
            let known = self.size();
            let now = self.size_now().unwrap_or(0);
            // Does not overwrite a later `note_shorter`: `now` may be from before the file was cut.
            let update = || self.size.compare_exchange(known, now, Ordering::AcqRel, Ordering::Acquire);
            if now <= known || update().is_ok() {
                return known.max(now);
            }
        }
    }

    fn length(&self) -> io::Result<u64> {
        self.size_now().map_err(io::Error::from_raw_os_error)
    }

    fn note_shorter(&self, size: u64) {
        self.size.store(size, Ordering::Release);
    }

    fn writer(&self) -> Option<&File> {
        self.writing.get().map(|handles| &*handles.plain)
    }

    unsafe fn read_page(&self, page: usize, buffer: *mut u8, cached: &Counter) -> ReadEnd {
        let offset = page as u64 * PAGE as u64;
        if offset >= self.size() && offset >= self.refresh_size() {
            return ReadEnd::PastEnd;
        }
        // SAFETY: the caller's buffer.
        unsafe { ReadEnd::of(self.read_pages(page, 1, buffer, cached), buffer) }
    }

    unsafe fn read_pages(
        &self,
        page: usize,
        pages: usize,
        buffer: *mut u8,
        cached: &Counter,
    ) -> std::result::Result<usize, i32> {
        // SAFETY: the caller's buffer.
        unsafe {
            match self.read_cached(page, pages, buffer, cached) {
                Some(filled) => Ok(filled),
                None => file::read_at(&self.reading.pages, buffer, pages * PAGE, page as u64 * PAGE as u64),
            }
        }
    }

    unsafe fn read_cached(&self, page: usize, pages: usize, buffer: *mut u8, cached: &Counter) -> Option<usize> {
        let (tier, offset) = (self.second_tier.as_ref()?, page as u64 * PAGE as u64);
        // SAFETY: the caller's buffer.
        unsafe { tier.read(&self.reading.plain, buffer, pages * PAGE, offset, self.size(), cached) }
    }

    fn expect_cached(&self) {
        self.second_tier.iter().for_each(SecondTier::rearm);
    }

    fn direct_reads(&self) -> Option<&File> {
        Some(&*self.reading.pages)
    }

    fn next_data(&self, offset: u64) -> u64 {
        if self.reading.shared {
            return offset;
        }
        // Asked first: bytes that others append after that are not part of the hole.
        let end = self.size_now().unwrap_or(offset);
        match file::seek(&self.reading.plain, libc::SEEK_DATA, offset) {
            Ok(found) => found,
            Err(libc::ENXIO) => end,
            Err(_) => offset,
        }
    }

    fn next_hole(&self, offset: u64) -> u64 {
        if self.reading.shared {
            return u64::MAX;
        }
        match file::seek(&self.reading.plain, libc::SEEK_HOLE, offset) {
            Ok(found) => found,
            Err(libc::ENXIO) => offset,
            Err(_) => u64::MAX,
        }
    }

    fn note_mapped(&self, end: usize) {
        self.mapped.fetch_max(end as u64, Ordering::AcqRel);
    }

    fn write_end(&self) -> std::result::Result<u64, i32> {
        let ours = self.size().max(self.mapped.load(Ordering::Acquire));
        if self.is_device {
            // A device has not been truncated. One that is gone seems empty, and must refuse the write.
            self.size_now()?;
            return Ok(self.refresh_size().min(ours));
        }
        self.size_now().map(|now| now.min(ours))
    }

    unsafe fn write_pages(&self, page: usize, from: *const u8, pages: usize, end: u64) -> std::result::Result<(), i32> {
        let Some(handles) = self.writing.get() else { return Err(libc::EBADF) };
        let offset = page as u64 * PAGE as u64;
        let end = end.min(self.write_end()?);
        let len = end.min(offset + (pages * PAGE) as u64).saturating_sub(offset) as usize;
        let to_cache = self.writes_to_cache.load(Ordering::Relaxed);
        let whole = if to_cache { 0 } else { len - len % PAGE };
        // SAFETY: inside the caller's memory.
        unsafe {
            if offset + len as u64 > file::write_limit() {
                return self.write_past_limit(handles, from, len, offset);
            }
            let write = |file: &File, from, len, offset| match file::write_at(file, from, len, offset) {
                // The limit has been set meanwhile.
                Err(libc::EFBIG) => {
                    file::forget_limit_signal();
                    self.write_past_limit(handles, from, len, offset)
                }
                done => done,
            };
            if whole > 0 {
                write(&handles.pages, from, whole, offset)?;
            }
            if len > whole {
                self.check(&handles.plain)?;
                write(&handles.plain, from.add(whole), len - whole, offset + whole as u64)?;
            }
        }
        Ok(())
    }

    fn direct_writes(&self) -> Option<&File> {
        self.writing.get().filter(|_| !self.writes_to_cache.load(Ordering::Relaxed)).map(|handles| &*handles.pages)
    }

    fn write_to_page_cache(&self, does: bool) {
        self.writes_to_cache.store(does, Ordering::Relaxed);
    }

    fn allocate(&self, range: Range<u64>) -> std::result::Result<(), i32> {
        let handles = self.writing.get().ok_or(libc::EBADF)?;
        self.check(&handles.plain)?;
        file::allocate_blocks(&handles.plain, range)
    }

    fn sync(&self, syncs: &Counter) -> io::Result<()> {
        // A file that is mapped read-only is synced too: it may have been stored to before, or be written through a descriptor.
        let handles = self.writing.get().unwrap_or(&self.reading);
        // An error here is not the file's, and must not be remembered as its failure.
        self.check(&handles.plain).map_err(io::Error::from_raw_os_error)?;
        self.syncs.run(|| {
            syncs.add(1);
            file::sync_data(&handles.plain)
        })
    }
}

impl Handles {
    fn open(from: &File, path: &Path, writable: bool, direct: bool) -> Result<Self> {
        let fail = |operation| move |source| Error::Io { path: path.to_owned(), operation, source };
        // A file whose permissions changed since it was opened cannot be opened anew. A duplicate shares its flags, which is as good for the
        // descriptor that needs no flags of its own.
        let (plain, shared) = match file::reopen(from, writable, false) {
            Ok(plain) => (plain, false),
            Err(_) => (EngineFd::new(from.try_clone().map_err(fail("duplicate it"))?), true),
        };
        let pages = if direct { file::reopen(from, writable, true) } else { file::another(&plain) };
        let handles = Handles { pages: pages.map_err(fail("open it anew for direct I/O"))?, plain, shared };
        if !direct {
            // The cache above decides what to read ahead and what to keep; the page cache need not guess as well.
            page_cache::expect_random(&handles.pages);
        }
        Ok(handles)
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use std::os::unix::fs::FileExt;

    #[test]
    fn what_is_another_file_by_now_is_not_written_to() {
        let folder = tempfile::tempdir_in(env!("CARGO_MANIFEST_DIR")).unwrap();
        let create = |name: &str| {
            let path = folder.path().join(name);
            std::fs::write(&path, [b'o'; 2 * PAGE + 10]).unwrap();
            File::options().read(true).write(true).open(path).unwrap()
        };
        let [file, victim] = ["file", "victim"].map(create);
        let store = FileStore::open(&file, &file::facts(&file).unwrap(), false).unwrap();
        store.allow_writing(&file).unwrap();
        let page = [b'n'; 3 * PAGE];
        // SAFETY: three pages.
        let write = |first| unsafe { store.write_pages(first, page.as_ptr(), 3 - first, u64::MAX) };
        assert_eq!(store.write_end(), Ok(2 * PAGE as u64 + 10));
        assert_eq!(write(0), Ok(()));
        let handles = store.writing.get().unwrap();
        for number in [handles.pages.as_raw_fd(), handles.plain.as_raw_fd()] {
            // As in a thread whose descriptor table is another. SAFETY: the store's number, which stays open.
            assert_eq!(unsafe { libc::dup2(victim.as_raw_fd(), number) }, number);
            assert_eq!(write(2), Err(libc::EBADF), "the file's end");
        }
        assert_eq!((write(0), store.write_end()), (Err(libc::EBADF), Err(libc::EBADF)));
        assert!(store.length().is_err() && store.sync(&Counter::default()).is_err());
        let mut bytes = [0; 2 * PAGE + 10];
        victim.read_exact_at(&mut bytes, 0).unwrap();
        assert!(bytes.iter().all(|byte| *byte == b'o'));
    }
}
