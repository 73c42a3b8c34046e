//! Many reads at a time that any thread may ask for and any may collect: Linux AIO (io_setup(2)).
//!
//! Completions are found in memory that the kernel shares, without a call, and nobody is woken or interrupted by one. Where a device works
//! inside the system call, a read has ended when [`Aio::submit`] returns.

use super::errno;
use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::ptr;
use std::sync::atomic::{AtomicU32, Ordering};

/// Reads under way in one context, at most.
pub const DEPTH: usize = 256;

/// Reads that are waited for at a time, at most.
const MOST_TAKEN: usize = 64;

/// `struct io_event` of the kernel's.
#[repr(C)]
#[derive(Clone, Copy)]
struct Event {
    data: u64,
    object: u64,
    result: i64,
    second: i64,
}

/// `struct aio_ring` of the kernel's; the events follow it.
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

/// A context for reads, used by one thread at a time. Once open it neither allocates nor locks, so that a fault handler can use it.
pub struct Aio {
    shared: *mut Shared,
    requests: Box<[libc::iocb; DEPTH]>,
    /// Requests written down and not submitted.
    queued: usize,
    /// What was not submitted, since the kernel refused it: the tag and the error.
    refused: Option<(u64, i32)>,
    /// Those that `wait` has taken, the last of them first.
    taken: Vec<Event>,
    in_flight: usize,
}

// SAFETY: the context is the address space's, and no thread's own.
unsafe impl Send for Aio {}

impl Aio {
    /// Opens one. EAGAIN: `fs.aio-max-nr` is exhausted; ENOSYS or EPERM: the kernel, or a seccomp(2) filter, has none to give.
    pub fn open() -> io::Result<Self> {
        let mut context = 0usize;
        // SAFETY: the kernel stores the context's address, which is that of the memory it shares.
        if unsafe { libc::syscall(libc::SYS_io_setup, DEPTH, &mut context) } != 0 {
            return Err(io::Error::last_os_error());
        }
        let shared = context as *mut Shared;
        // SAFETY: shared by the kernel until io_destroy(2).
        let is_known = unsafe {
            (*shared).magic == MAGIC && (*shared).incompatible == 0 && (*shared).header as usize == size_of::<Shared>()
        };
        if !is_known {
            // SAFETY: the context from above, with nothing in it.
            unsafe { libc::syscall(libc::SYS_io_destroy, context) };
            return Err(io::ErrorKind::Unsupported.into());
        }
        // SAFETY: zeros are a valid request: IOCB_CMD_PREAD, without flags.
        let requests = Box::new([unsafe { std::mem::zeroed() }; DEPTH]);
        Ok(Aio { shared, requests, queued: 0, refused: None, taken: Vec::with_capacity(MOST_TAKEN), in_flight: 0 })
    }

    /// Reads queued or under way, and not returned by `next_done`.
    pub fn in_flight(&self) -> usize {
        self.in_flight
    }

    /// Whether all of them have ended.
    pub fn has_all_done(&self) -> bool {
        // SAFETY: shared by the kernel until io_destroy(2).
        let shared = unsafe { &*self.shared };
        let (head, tail) = (shared.head.load(Ordering::Relaxed), shared.tail.load(Ordering::Acquire));
        let in_ring = (tail + shared.count - head) % shared.count;
        in_ring as usize + self.taken.len() + usize::from(self.refused.is_some()) == self.in_flight
    }

    /// Writes a read down, which starts with the next `submit`. The caller sees to it that fewer than [`DEPTH`] are in flight. One that
    /// may not wait ends with EAGAIN where `submit` would wait, for the file's lock say.
    ///
    /// # Safety
    /// `to` stays valid for `len` writes by the kernel, and nobody else uses it, until `next_done` returns `tag` or this is dropped.
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

    /// Whether something is written down that has not been started.
    pub fn has_queued(&self) -> bool {
        self.queued > 0
    }

    /// Starts what is written down, if anything is; whether it was. What the kernel refuses ends with its error.
    pub fn submit(&mut self) -> bool {
        let (mut from, is_any) = (0, self.queued > 0);
        let mut list = [ptr::null::<libc::iocb>(); 32];
        while from < self.queued && self.refused.is_none() {
            let count = list.len().min(self.queued - from);
            (0..count).for_each(|index| list[index] = &raw const self.requests[from + index]);
            // SAFETY: requests of this structure's, which the kernel copies, for memory that `read` was promised.
            let begun =
                unsafe { libc::syscall(libc::SYS_io_submit, self.shared, count as libc::c_long, list.as_ptr()) };
            if begun > 0 {
                from += begun as usize;
            } else {
                // The first of them is what it does not like.
                self.refused = Some((self.requests[from].aio_data, -errno()));
                from += 1;
            }
        }
        // The rest waits until the refused one has been returned.
        self.requests.copy_within(from..self.queued, 0);
        self.queued -= from;
        is_any
    }

    /// A read that has ended: its tag, and the count of bytes or a negative error number.
    pub fn next_done(&mut self) -> Option<(u64, i32)> {
        let taken = |event: Event| (event.data, event.result as i32);
        let done = self.refused.take().or_else(|| self.taken.pop().map(taken)).or_else(|| self.next_event())?;
        self.in_flight -= 1;
        Some(done)
    }

    fn next_event(&mut self) -> Option<(u64, i32)> {
        // SAFETY: shared by the kernel until io_destroy(2); only this thread takes events at this time.
        let shared = unsafe { &*self.shared };
        let head = shared.head.load(Ordering::Relaxed);
        // Acquire: the event was written before.
        if head == shared.tail.load(Ordering::Acquire) {
            return None;
        }
        // SAFETY: the events follow the head, and this one is written.
        let event = unsafe { self.shared.add(1).cast::<Event>().add(head as usize).read() };
        // Release: the place is the kernel's again.
        shared.head.store((head + 1) % shared.count, Ordering::Release);
        Some((event.data, event.result as i32))
    }

    /// Waits until so many reads have ended, if as many are under way; for one at least and [`MOST_TAKEN`] at most.
    pub fn wait(&mut self, wanted: usize) {
        self.submit();
        if self.refused.is_some() || !self.taken.is_empty() || self.in_flight == 0 {
            return;
        }
        let wanted = wanted.min(self.in_flight).clamp(1, MOST_TAKEN);
        let no_limit = ptr::null::<libc::timespec>();
        let events = self.taken.as_mut_ptr();
        // SAFETY: room for as many events.
        let got = unsafe { libc::syscall(libc::SYS_io_getevents, self.shared, wanted, wanted, events, no_limit) };
        if got > 0 {
            // SAFETY: the kernel has written them.
            unsafe { self.taken.set_len(got as usize) };
        } else {
            // A debugger has interrupted it, or a filter forbids it; the caller comes again.
            std::thread::yield_now();
        }
    }
}

impl Drop for Aio {
    fn drop(&mut self) {
        // SAFETY: nobody uses the context any more. The kernel waits for what is under way.
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
                // The last but one is refused, the last reads past the end.
                let (from, at) = match tag - tags.start {
                    254 => (&null, u64::MAX / 2 + 1),
                    255 => (&file, 1 << 20),
                    _ => (&file, tag * 4),
                };
                let to = (&raw mut bytes[tag as usize]).cast();
                // SAFETY: the bytes stay until the read has ended.
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
