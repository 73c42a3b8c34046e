//! Readers beside a program bring pages of files into the page cache, several pieces at a time. Advice does not do that everywhere:
//! FUSE and NFS read ahead one request at a time.

use crate::PAGE;
use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap, munmap};
use std::collections::VecDeque;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;

/// Threads that read, as many as there may be requests.
#[derive(Debug, Default)]
pub struct Readers {
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<()>>,
}

#[derive(Debug, Default)]
struct Shared {
    work: Mutex<Work>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct Work {
    queue: VecDeque<Piece>,
    /// Requests that there may be, and that there are.
    most: usize,
    active: usize,
    /// Bytes read.
    brought: u64,
    has_ended: bool,
}

/// Bytes of a file to be read.
#[derive(Debug)]
struct Piece {
    file: Arc<File>,
    at: u64,
    len: usize,
    /// It is read by a mapping of this process's own with MADV_HUGEPAGE, so by one request and in pages that are as large as the file system
    /// takes: a seventh of the processor time that pread(2) takes.
    is_block: bool,
}

/// Pages that a reader brings at a time: 256 KiB.
pub const PIECE: u64 = 64;
/// Bytes that a reader reads at a time.
const BUFFER: usize = (PIECE * PAGE) as usize;

impl Readers {
    /// Queues `len` bytes of `file` to be read: `is_block` if they lie in one block of 2 MiB, to be read together.
    pub fn bring(&mut self, file: &Arc<File>, at: u64, len: usize, is_block: bool) {
        self.shared.lock().queue.push_back(Piece { file: Arc::clone(file), at, len, is_block });
        self.shared.changed.notify_one();
    }

    /// Allows `most` requests at a time, and starts as many threads.
    pub fn allow(&mut self, most: usize) {
        self.shared.lock().most = most;
        while self.threads.len() < most {
            let shared = Arc::clone(&self.shared);
            let reader = std::thread::Builder::new().name("fastmap-reader".into()).stack_size(64 << 10);
            let Ok(thread) = reader.spawn(move || shared.read()) else { break };
            self.threads.push(thread);
        }
        self.shared.changed.notify_all();
    }

    /// Pieces that are not read yet, and bytes that are.
    pub fn state(&self) -> (usize, u64) {
        let work = self.shared.lock();
        (work.queue.len() + work.active, work.brought)
    }

    /// Forgets the pieces that no reader has begun.
    pub fn clear(&mut self) {
        self.shared.lock().queue.clear();
    }

    /// Ends the threads if there is nothing to read.
    pub fn rest(&mut self) {
        let (waiting, brought) = self.state();
        if waiting == 0 && !self.threads.is_empty() {
            *self = Readers::default();
            self.shared.lock().brought = brought;
        }
    }
}

impl Drop for Readers {
    fn drop(&mut self) {
        let mut work = self.shared.lock();
        work.queue.clear();
        work.has_ended = true;
        drop(work);
        // Nobody waits for the threads: storage may not answer.
        self.shared.changed.notify_all();
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Work> {
        self.work.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn read(&self) {
        let mut buffer = Vec::new();
        if buffer.try_reserve_exact(BUFFER).is_err() {
            return;
        }
        buffer.resize(BUFFER, 0);
        let mut work = self.lock();
        while !work.has_ended {
            let piece = if work.active < work.most { work.queue.pop_front() } else { None };
            let Some(piece) = piece else {
                work = self.changed.wait(work).unwrap_or_else(PoisonError::into_inner);
                continue;
            };
            work.active += 1;
            drop(work);
            let brought = piece.read(&mut buffer);
            work = self.lock();
            work.active -= 1;
            work.brought += brought;
            self.changed.notify_one();
        }
    }
}

impl Piece {
    /// Reads the piece, unless the page cache has all of it. Returns the bytes that were read.
    fn read(&self, buffer: &mut [u8]) -> u64 {
        if super::files::is_cached(&self.file, self.at, self.len) {
            return 0;
        }
        if self.is_block {
            return self.populate();
        }
        let mut done = 0;
        while done < self.len {
            let part = &mut buffer[..BUFFER.min(self.len - done)];
            match self.file.read_at(part, self.at + done as u64) {
                Ok(0) => break,
                Ok(count) => done += count,
                Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
                // The program meets the error by itself.
                Err(_) => break,
            }
        }
        done as u64
    }

    fn populate(&self) -> u64 {
        let access = ProtFlags::READ;
        // SAFETY: a fresh mapping, of which nobody takes a reference; the kernel alone touches it, and reports bytes that are not there.
        unsafe {
            let Ok(here) = mmap(std::ptr::null_mut(), self.len, access, MapFlags::SHARED, &*self.file, self.at) else {
                return 0;
            };
            // A kernel without huge pages refuses it, and reads its usual pieces. With MADV_RANDOM one block is read, and not the next, too,
            // and this does not count as a use of the pages.
            let _ = madvise(here, self.len, Advice::LinuxHugepage);
            let _ = madvise(here, self.len, Advice::Random);
            let read = madvise(here, self.len, Advice::LinuxPopulateRead);
            let _ = munmap(here, self.len);
            if read.is_ok() { self.len as u64 } else { 0 }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_to_be_brought_is_read_and_what_goes_beyond_the_end_is_not() {
        let file = tempfile::tempfile().unwrap();
        file.write_all_at(&vec![1; 3 << 20], 0).unwrap();
        file.sync_all().unwrap();
        rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed).unwrap();
        let file = Arc::new(file);
        let mut readers = Readers::default();
        for at in 0..5 {
            readers.bring(&file, at << 20, 1 << 20, false);
        }
        assert_eq!(readers.state().0, 5);
        readers.allow(4);
        while readers.state().0 > 0 {
            std::thread::yield_now();
        }
        assert!(readers.state().1 <= 3 << 20);
    }
}
