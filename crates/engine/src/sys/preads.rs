//! Threads that read for a cache, each by pread(2), so that many reads are under way at a time. They are used in two cases:
//!
//! * where the system call that starts an asynchronous read returns only when the read has ended (file systems over a network, FUSE);
//! * where Linux AIO is not available.
//!
//! The threads belong to a cache. Each reader of the cache has a [`Mailbox`], where the threads put the results of its reads.

use super::file;
use super::fork;
use super::futex;
use super::lock::Lock;
use super::signal::Blocked;
use super::threads;
use crate::sys::sync::{AtomicU32, Ordering};
use std::cell::UnsafeCell;
use std::collections::VecDeque;
use std::fs::File;
use std::mem::ManuallyDrop;
use std::os::fd::{AsRawFd, FromRawFd, RawFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize};
use std::time::Duration;

/// The most threads of a cache, and so the most reads at a time.
pub const THREADS: usize = 64;
/// The size of each thread's stack, bytes. It is small, since a thread only makes system calls.
const STACK: usize = 64 << 10;
/// The most requests that one mailbox has under way.
pub const DEPTH: usize = 256;

/// A state: nobody has asked for threads.
const NONE: u32 = 0;
/// A state: threads are wanted by a caller that cannot make them.
const WANTED: u32 = 1;
/// A state: `start` was called. It makes as many threads as it can.
const STARTED: u32 = 2;

/// The threads of a cache, and the queue of their requests.
#[derive(Debug)]
pub struct Preads {
    state: AtomicU32,
    /// How many threads were made.
    count: AtomicUsize,
    lock: Lock,
    asked: UnsafeCell<VecDeque<Request>>,
    /// Changes with each `submit` and with `stop`. Threads without a request sleep on it.
    news: AtomicU32,
    stop: AtomicBool,
}

// SAFETY: `asked` is used only under the lock; the rest is atomics.
unsafe impl Sync for Preads {}
// SAFETY: nothing in it belongs to a thread.
unsafe impl Send for Preads {}

#[derive(Debug)]
struct Request {
    file: RawFd,
    to: *mut u8,
    len: usize,
    offset: u64,
    tag: u64,
    mailbox: Arc<Mailbox>,
}

/// The results of requests that have ended, for the reader that asked.
#[derive(Debug)]
struct Mailbox {
    lock: Lock,
    ended: UnsafeCell<Ended>,
    /// Changes each time enough requests have ended. A thread that waits for that sleeps on it.
    news: AtomicU32,
}

#[derive(Debug)]
struct Ended {
    /// For each request its tag, and the count of bytes or a negative error number.
    results: VecDeque<(u64, i32)>,
    /// How many results a thread waits for. The largest number, if no thread waits.
    wanted: usize,
}

// SAFETY: `ended` is used only under the lock; the rest is atomics.
unsafe impl Sync for Mailbox {}
// SAFETY: nothing in it belongs to a thread.
unsafe impl Send for Mailbox {}

impl Preads {
    /// Makes the queue for so many readers. Starts no threads.
    pub fn new(readers: usize) -> Arc<Self> {
        Arc::new(Preads {
            state: AtomicU32::new(NONE),
            count: AtomicUsize::new(0),
            lock: Lock::new(),
            // The queue never grows, since growing allocates: a thread that waits for the lock may have interrupted the allocator.
            asked: UnsafeCell::new(VecDeque::with_capacity(readers * DEPTH)),
            news: AtomicU32::new(0),
            stop: AtomicBool::new(false),
        })
    }

    /// Returns whether there are threads. If there are none, notes that they are wanted.
    pub fn are_there_or_wanted(&self) -> bool {
        if self.count.load(Ordering::Acquire) > 0 {
            return true;
        }
        let _ = self.state.compare_exchange(NONE, WANTED, Ordering::SeqCst, Ordering::Relaxed);
        false
    }

    /// Whether threads are wanted and `start` was not called yet.
    pub fn are_wanted(&self) -> bool {
        self.state.load(Ordering::SeqCst) == WANTED
    }

    /// How many threads were made.
    pub fn threads(&self) -> usize {
        self.count.load(Ordering::Relaxed)
    }

    /// Starts `threads` threads, at most [`THREADS`]. Only the first call does. The caller must be a thread that may allocate.
    pub fn start(self: &Arc<Self>, threads: usize) {
        if self.state.swap(STARTED, Ordering::SeqCst) == STARTED {
            return;
        }
        for _ in 0..threads.min(THREADS) {
            let preads = self.clone();
            let body = move || preads.serve();
            let thread = std::thread::Builder::new().name("fastmap-pread".into()).stack_size(STACK);
            if let Err(error) = thread.spawn(threads::named(body)) {
                tracing::warn!(%error, threads = self.threads(), "no more reads at a time");
                break;
            }
            self.count.fetch_add(1, Ordering::Release);
        }
    }

    /// Ends the threads once they have done all requests.
    pub fn stop(&self) {
        self.stop.store(true, Ordering::SeqCst);
        self.news.fetch_add(1, Ordering::SeqCst);
        futex::wake_all(&self.news);
    }

    /// Runs in each thread: takes requests and carries them out, until `stop` and the end of the queue.
    fn serve(&self) {
        // This thread takes engine locks, which needs all signals blocked. It must not run the program's signal handlers either.
        let _blocked = Blocked::all();
        loop {
            let before = self.news.load(Ordering::SeqCst);
            match self.next() {
                Some(request) => request.carry_out(),
                None if self.stop.load(Ordering::SeqCst) => return,
                None => futex::wait(&self.news, before, None),
            }
        }
    }

    fn next(&self) -> Option<Request> {
        let _held = self.lock.lock();
        // SAFETY: under the lock.
        unsafe { (*self.asked.get()).pop_front() }
    }

    fn ask(&self, request: Request) {
        let _held = self.lock.lock();
        // SAFETY: under the lock.
        unsafe { (*self.asked.get()).push_back(request) };
    }

    /// Wakes as many threads as there are requests.
    fn wake(&self, requests: usize) {
        self.news.fetch_add(1, Ordering::SeqCst);
        futex::wake(&self.news, requests as i32);
    }
}

impl Request {
    fn carry_out(self) {
        // SAFETY: the descriptor is open until the request has ended. It is not owned here, so it is never closed here.
        let file = ManuallyDrop::new(unsafe { File::from_raw_fd(self.file) });
        // SAFETY: `to` is valid for `len` bytes, and nobody else uses them, until the request has ended.
        let read = unsafe { file::read_at(&file, self.to, self.len, self.offset) };
        self.mailbox.put(self.tag, read.map_or_else(|error| -error, |bytes| bytes as i32));
    }
}

impl Mailbox {
    fn put(&self, tag: u64, result: i32) {
        let are_enough = self.with(|ended| {
            ended.results.push_back((tag, result));
            ended.results.len() >= ended.wanted
        });
        if are_enough {
            self.news.fetch_add(1, Ordering::SeqCst);
            futex::wake_all(&self.news);
        }
    }

    fn with<T>(&self, then: impl FnOnce(&mut Ended) -> T) -> T {
        let _held = self.lock.lock();
        // SAFETY: under the lock.
        then(unsafe { &mut *self.ended.get() })
    }
}

/// The reads that one reader has asked the threads for. One thread at a time uses it, with signals blocked. Once made it does not allocate. Only
/// `wait` and the drop sleep.
#[derive(Debug)]
pub struct Asked {
    pub preads: Arc<Preads>,
    mailbox: Arc<Mailbox>,
    in_flight: usize,
    /// Reads asked for, for which no thread was woken yet.
    queued: usize,
}

impl Asked {
    /// Makes one without reads.
    pub fn of(preads: &Arc<Preads>) -> Self {
        let ended = Ended { results: VecDeque::with_capacity(DEPTH), wanted: usize::MAX };
        let mailbox = Mailbox { lock: Lock::new(), ended: UnsafeCell::new(ended), news: AtomicU32::new(0) };
        Asked { preads: preads.clone(), mailbox: Arc::new(mailbox), in_flight: 0, queued: 0 }
    }

    /// How many reads were asked for and not yet returned by `next_done`.
    pub fn in_flight(&self) -> usize {
        self.in_flight
    }

    /// Asks for a read. The read starts with the next `submit` at the latest. The caller makes sure that there are threads, and that fewer than
    /// [`DEPTH`] reads are in flight.
    ///
    /// # Safety
    /// Until `next_done` returns `tag` or this is dropped, `file` stays open, `to` stays valid for `len` writes, and nobody else uses that memory.
    pub unsafe fn read(&mut self, file: &File, to: *mut u8, len: usize, offset: u64, tag: u64) {
        self.in_flight += 1;
        self.queued += 1;
        let mailbox = self.mailbox.clone();
        self.preads.ask(Request { file: file.as_raw_fd(), to, len, offset, tag, mailbox });
    }

    /// Wakes threads for the reads that were asked for.
    pub fn submit(&mut self) {
        if self.queued > 0 {
            self.preads.wake(std::mem::take(&mut self.queued));
        }
    }

    /// Takes a read that has ended. Returns its tag, and the count of bytes or a negative error number.
    pub fn next_done(&mut self) -> Option<(u64, i32)> {
        let done = if self.in_flight == 0 { None } else { self.mailbox.with(|ended| ended.results.pop_front()) }?;
        self.in_flight -= 1;
        Some(done)
    }

    /// Waits until `wanted` reads have ended that `next_done` has not returned yet: at least one, and at most those in flight. With `at_most` it
    /// sleeps once, no longer than that, and may return early.
    pub fn wait(&mut self, wanted: usize, at_most: Option<Duration>) {
        self.submit();
        let wanted = wanted.clamp(1, self.in_flight.max(1));
        loop {
            let before = self.mailbox.news.load(Ordering::SeqCst);
            let are_enough = self.mailbox.with(|ended| {
                let are_enough = ended.results.len() >= wanted;
                ended.wanted = if are_enough { usize::MAX } else { wanted };
                are_enough
            });
            if self.in_flight == 0 || are_enough {
                return;
            }
            futex::wait(&self.mailbox.news, before, at_most);
            if at_most.is_some() {
                return;
            }
        }
    }
}

impl Drop for Asked {
    /// Waits until all reads have ended. After that no thread writes to their memory.
    fn drop(&mut self) {
        let _blocked = Blocked::all();
        // A child made by fork(2) has no such threads, and its memory is a copy.
        while self.in_flight > 0 && !fork::is_child() {
            self.wait(1, None);
            while self.next_done().is_some() {}
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::sys::PAGE;
    use std::collections::BTreeSet;
    use std::os::unix::fs::FileExt;

    #[test]
    fn every_read_ends_once_with_what_it_came_to() {
        let preads = Preads::new(2);
        assert!(!preads.are_there_or_wanted() && preads.are_wanted());
        preads.start(THREADS);
        assert!(preads.are_there_or_wanted() && !preads.are_wanted());
        let file = tempfile::tempfile().unwrap();
        (0..1000u32).for_each(|at| file.write_all_at(&at.to_le_bytes(), u64::from(at) * 4).unwrap());
        let closed = File::open("/proc/self/mem").unwrap();
        let one = |mut asked: Asked, first: u64| {
            let _blocked = Blocked::all();
            let mut bytes = vec![0u32; DEPTH];
            for round in 0..20 {
                let tags = first + round..first + round + DEPTH as u64;
                for tag in tags.clone() {
                    // The last read but one fails. The last one begins past the end of the file.
                    let (from, at) = match tag - tags.start {
                        254 => (&closed, 0),
                        255 => (&file, 1 << 20),
                        _ => (&file, tag * 4),
                    };
                    let to = (&raw mut bytes[(tag - tags.start) as usize]).cast();
                    // SAFETY: the bytes stay until the read has ended.
                    unsafe { asked.read(from, to, 4, at, tag) };
                }
                let mut left: BTreeSet<_> = tags.clone().collect();
                while !left.is_empty() {
                    asked.wait(left.len() / 2, None);
                    while let Some((tag, result)) = asked.next_done() {
                        assert!(left.remove(&tag), "{tag}");
                        match tag - tags.start {
                            254 => assert!(result < 0, "{result}"),
                            255 => assert_eq!(result, 0),
                            at => assert_eq!((result, bytes[at as usize]), (4, tag as u32)),
                        }
                    }
                }
                assert_eq!((asked.in_flight(), asked.next_done()), (0, None));
            }
        };
        std::thread::scope(|scope| {
            for first in [0, 100] {
                let asked = Asked::of(&preads);
                scope.spawn(move || one(asked, first));
            }
        });
        preads.stop();
    }

    #[test]
    fn what_is_under_way_ends_before_its_memory_goes() {
        let preads = Preads::new(1);
        preads.start(THREADS);
        let file = tempfile::tempfile().unwrap();
        file.write_all_at(&[7; 64 * PAGE], 0).unwrap();
        for _ in 0..50 {
            let mut bytes = vec![0u8; 64 * PAGE];
            let mut asked = Asked::of(&preads);
            {
                let _blocked = Blocked::all();
                for page in 0..64 {
                    // SAFETY: the bytes outlive `asked`.
                    unsafe { asked.read(&file, bytes[page * PAGE..].as_mut_ptr(), PAGE, (page * PAGE) as u64, 0) };
                }
            }
            drop(asked);
            assert!(bytes.iter().all(|byte| *byte == 7));
        }
        preads.stop();
        assert!((0..60_000).any(|_| {
            std::thread::sleep(Duration::from_millis(1));
            Arc::strong_count(&preads) == 1
        }));
    }
}
