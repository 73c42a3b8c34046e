//! Linux AIO (io_setup(2)): many reads at a time. Any thread may start reads, and any thread may collect those that have ended.
//!
//! The kernel writes completions to memory that it shares with the process. They are found there without a system call. A completion wakes
//! and interrupts no thread. If a device does its work inside the system call, a read has ended when [`Aio::submit`] returns.

use super::errno;
use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::ptr;
use std::sync::atomic::{AtomicU32, Ordering};

/// The most reads that one context has under way.
pub const DEPTH: usize = 256;

/// The most reads that one [`Aio::wait`] waits for.
const MOST_TAKEN: usize = 64;

/// The kernel's `struct io_event`.
#[repr(C)]
#[derive(Clone, Copy)]
struct Event {
    data: u64,
    object: u64,
    result: i64,
    second: i64,
}

/// The kernel's `struct aio_ring`. The events follow it in memory.
#[repr(C)]
struct Shared {
    id: u32,
    count: u32,
    head: AtomicU32,
    tail: AtomicU32,
    magic: u32,
    compatible: u32,
    incompatible: u32,
    header: u32,
}

const MAGIC: u32 = 0xa10a_10a1;

/// A context for reads. One thread at a time uses it. Once open, it neither allocates nor locks, so a fault handler can use it.
pub struct Aio {
    shared: *mut Shared,
    requests: Box<[libc::iocb; DEPTH]>,
    /// How many of `requests` are queued and not yet submitted.
    queued: usize,
    /// A read that the kernel refused to start: its tag, and the error number as a negative.
    refused: Option<(u64, i32)>,
    /// Completions that `wait` has taken from the kernel. `next_done` returns the last one first.
    taken: Vec<Event>,
    in_flight: usize,
}

// SAFETY: the context belongs to the address space, not to a thread.
unsafe impl Send for Aio {}

impl Aio {
    /// Opens a context. Errors: EAGAIN if `fs.aio-max-nr` is exhausted; ENOSYS or EPERM if the kernel has no AIO or a seccomp(2) filter
    /// forbids it.
    pub fn open() -> io::Result<Self> {
        let mut context = 0usize;
        // SAFETY: the kernel stores one word, the context. Its value is the address of the memory that the kernel shares.
        if unsafe { libc::syscall(libc::SYS_io_setup, DEPTH, &mut context) } != 0 {
            return Err(io::Error::last_os_error());
        }
        let shared = context as *mut Shared;
        // SAFETY: the kernel shares this memory until io_destroy(2).
        let is_known = unsafe {
            (*shared).magic == MAGIC && (*shared).incompatible == 0 && (*shared).header as usize == size_of::<Shared>()
        };
        if !is_known {
            // SAFETY: the context was opened above, and has no reads.
            unsafe { libc::syscall(libc::SYS_io_destroy, context) };
            return Err(io::ErrorKind::Unsupported.into());
        }
        // SAFETY: zeros are a valid request: IOCB_CMD_PREAD, without flags.
        let requests = Box::new([unsafe { std::mem::zeroed() }; DEPTH]);
        Ok(Aio { shared, requests, queued: 0, refused: None, taken: Vec::with_capacity(MOST_TAKEN), in_flight: 0 })
    }

    /// How many reads `next_done` has still to return: those queued, under way or ended.
    pub fn in_flight(&self) -> usize {
        self.in_flight
    }

    /// Whether all reads in flight have ended.
    pub fn has_all_done(&self) -> bool {
        // SAFETY: the kernel shares this memory until io_destroy(2).
        let shared = unsafe { &*self.shared };
        let (head, tail) = (shared.head.load(Ordering::Relaxed), shared.tail.load(Ordering::Acquire));
        let in_ring = (tail + shared.count - head) % shared.count;
        in_ring as usize + self.taken.len() + usize::from(self.refused.is_some()) == self.in_flight
    }

    /// Queues a read; the next `submit` starts it. The caller makes sure that fewer than [`DEPTH`] reads are in flight. If `waits` is
    /// false, the read ends with EAGAIN where `submit` would have to wait, for example for the file's lock.
    ///
    /// # Safety
    /// `to` stays valid for `len` writes by the kernel, and nobody else uses it, until `next_done` returns `tag` or this value is dropped.
    pub unsafe fn read(&mut self, file: &File, to: *mut u8, len: usize, offset: u64, tag: u64, waits: bool) {
        let request = &mut self.requests[self.queued];
        request.aio_data = tag;
        request.aio_rw_flags = if waits { 0 } else { libc::RWF_NOWAIT };
        request.aio_fildes = file.as_raw_fd() as u32;
        request.aio_buf = to as u64;
        request.aio_nbytes = len as u64;
        request.aio_offset = offset as i64;
        self.queued += 1;
        self.in_flight += 1;
        if self.queued == DEPTH {
            self.submit();
        }
    }

    /// Whether reads are queued that have not been submitted.
    pub fn has_queued(&self) -> bool {
        self.queued > 0
    }

    /// Submits the queued reads. Returns whether there were any. A read that the kernel refuses ends with the kernel's error; the reads
    /// queued behind it stay queued.
    pub fn submit(&mut self) -> bool {
        let (mut from, is_any) = (0, self.queued > 0);
        let mut list = [ptr::null::<libc::iocb>(); 32];
        while from < self.queued && self.refused.is_none() {
            let count = list.len().min(self.queued - from);
            (0..count).for_each(|index| list[index] = &raw const self.requests[from + index]);
            // SAFETY: the kernel copies the requests, which are this structure's. Callers of `read` promised that their memory stays valid.
            let begun =
                unsafe { libc::syscall(libc::SYS_io_submit, self.shared, count as libc::c_long, list.as_ptr()) };
            if begun > 0 {
                from += begun as usize;
            } else {
                // The kernel refused the first request of the list.
                self.refused = Some((self.requests[from].aio_data, -errno()));
                from += 1;
            }
        }
        // The rest stays queued until `next_done` has returned the refused read.
        self.requests.copy_within(from..self.queued, 0);
        self.queued -= from;
        is_any
    }

    /// Takes a read that has ended: its tag, and the count of bytes or a negative error number.
    pub fn next_done(&mut self) -> Option<(u64, i32)> {
        let taken = |event: Event| (event.data, event.result as i32);
        let done = self.refused.take().or_else(|| self.taken.pop().map(taken)).or_else(|| self.next_event())?;
        self.in_flight -= 1;
        Some(done)
    }

    fn next_event(&mut self) -> Option<(u64, i32)> {
        // SAFETY: the kernel shares this memory until io_destroy(2). Only this thread takes events now.
        let shared = unsafe { &*self.shared };
        let head = shared.head.load(Ordering::Relaxed);
        // Acquire: the kernel wrote the event before it moved the tail.
        if head == shared.tail.load(Ordering::Acquire) {
            return None;
        }
        // SAFETY: the events follow the ring's header, and the kernel has written this one.
        let event = unsafe { self.shared.add(1).cast::<Event>().add(head as usize).read() };
        // Release: the event has been read before the kernel may overwrite its place.
        shared.head.store((head + 1) % shared.count, Ordering::Release);
        Some((event.data, event.result as i32))
    }

    /// Submits the queued reads and waits until `wanted` reads have ended. Waits for at least one read, and for at most [`MOST_TAKEN`]
    /// or the number in flight. Returns at once if `next_done` already has a read to return, or if none is in flight.
    pub fn wait(&mut self, wanted: usize) {
        self.submit();
        if self.refused.is_some() || !self.taken.is_empty() || self.in_flight == 0 {
            return;
        }
        let wanted = wanted.min(self.in_flight).clamp(1, MOST_TAKEN);
        let no_limit = ptr::null::<libc::timespec>();
        let events = self.taken.as_mut_ptr();
        // SAFETY: `taken` is empty, and has room for MOST_TAKEN events.
        let got = unsafe { libc::syscall(libc::SYS_io_getevents, self.shared, wanted, wanted, events, no_limit) };
        if got > 0 {
            // SAFETY: the kernel has written this many events.
            unsafe { self.taken.set_len(got as usize) };
        } else {
            // A debugger interrupted the call, or a seccomp(2) filter forbids it. The caller calls again.
            std::thread::yield_now();
        }
    }
}

impl Drop for Aio {
    fn drop(&mut self) {
        // SAFETY: nobody uses the context any more. The kernel waits for the reads that are under way.
        unsafe { libc::syscall(libc::SYS_io_destroy, self.shared) };
    }
}

impl std::fmt::Debug for Aio {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Aio({} in flight)", self.in_flight)
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use std::collections::BTreeSet;
    use std::os::unix::fs::FileExt;

    #[test]
    fn every_read_ends_once_with_what_it_came_to() {
        let mut aio = match Aio::open() {
            Ok(aio) => aio,
            Err(error) => {
                assert!(std::env::var_os("CI").is_none(), "{error}");
                return println!("skipped: no Linux AIO: {error}");
            }
        };
        let file = tempfile::tempfile().unwrap();
        (0..1000u32).for_each(|at| file.write_all_at(&at.to_le_bytes(), u64::from(at) * 4).unwrap());
        let null = File::open("/proc/self/mem").unwrap();
        let mut bytes = vec![0u32; 3 * DEPTH];
        for round in 0..5 {
            let tags = round..round + DEPTH as u64;
            for tag in tags.clone() {
                // The kernel refuses the last but one. The last reads past the end of the file.
                let (from, at) = match tag - tags.start {
                    254 => (&null, u64::MAX / 2 + 1),
                    255 => (&file, 1 << 20),
                    _ => (&file, tag * 4),
                };
                let to = (&raw mut bytes[tag as usize]).cast();
                // SAFETY: `bytes` lives until all reads have ended.
                unsafe { aio.read(from, to, 4, at, tag, true) };
            }
            let mut left: BTreeSet<_> = tags.clone().collect();
            while !left.is_empty() {
                aio.wait(left.len() / 2);
                while let Some((tag, result)) = aio.next_done() {
                    assert!(left.remove(&tag), "{tag}");
                    match tag - tags.start {
                        254 => assert!(result < 0, "{result}"),
                        255 => assert_eq!(result, 0),
                        _ => assert_eq!((result, bytes[tag as usize]), (4, tag as u32)),
                    }
                }
            }
            assert_eq!((aio.in_flight(), aio.next_done()), (0, None));
        }
    }
}
