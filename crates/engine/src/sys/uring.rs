//! Many writes at a time from one thread: io_uring(7).

use io_uring::{IoUring, opcode, types};
use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, RawFd};

/// Writes in flight in one ring, at most.
pub const DEPTH: usize = 128;

/// A ring for writes, used by one thread at a time. Once open it neither allocates nor locks, so that a fault handler can
/// use it.
pub struct Ring {
    uring: IoUring,
    /// What the caller knows each write by; the kernel knows it by its index here.
    tags: [u64; DEPTH],
    /// One bit for each index in use.
    used: u128,
    broken: bool,
}

impl Ring {
    /// Opens one. EPERM, ENOSYS: io_uring is not allowed here (sysctl `kernel.io_uring_disabled`, seccomp) or not there.
    pub fn open() -> io::Result<Self> {
        // Completions wait until this thread enters the kernel of its own accord (Linux 5.19): it takes them there anyway,
        // and interrupting it for each costs the program's thread more.
        let uring = IoUring::builder().setup_coop_taskrun().build(DEPTH as u32)?;
        Ok(Ring { uring, tags: [0; DEPTH], used: 0, broken: false })
    }

    /// Its descriptor.
    pub fn descriptor(&self) -> RawFd {
        self.uring.as_raw_fd()
    }

    /// Whether it still works.
    pub fn works(&self) -> bool {
        !self.broken
    }

    /// Writes handed over that `next_done` has not returned.
    pub fn in_flight(&self) -> usize {
        self.used.count_ones() as usize
    }

    /// Writes that the kernel has begun and not ended, by what the ring's memory says: for a ring that nobody uses any more.
    pub fn unfinished(&mut self) -> usize {
        let not_begun = self.uring.submission().len();
        let ended = self.uring.completion().len();
        self.in_flight().saturating_sub(not_begun + ended)
    }

    /// Hands a write over; it starts with the next `submit`. The caller sees to it that fewer than [`DEPTH`] are in flight.
    ///
    /// # Safety
    /// `from` stays valid for `len` reads by the kernel until `next_done` returns `tag`.
    pub unsafe fn write(&mut self, file: &File, from: *const u8, len: usize, offset: u64, tag: u64) {
        let index = self.used.trailing_ones() as usize;
        self.used |= 1 << index;
        self.tags[index] = tag;
        let write = opcode::Write::new(types::Fd(file.as_raw_fd()), from, len as u32).offset(offset);
        // SAFETY: the caller's contract covers the memory.
        let pushed = unsafe { self.uring.submission().push(&write.build().user_data(index as u64)) };
        debug_assert!(pushed.is_ok(), "as many entries as tags");
    }

    /// Starts what was handed over and waits until `wanted` writes have ended since completions were last taken. An error
    /// is no write's own: the ring is broken then, and every write in it counts as failed.
    pub fn submit(&mut self, wanted: usize) {
        loop {
            match self.uring.submit_and_wait(wanted) {
                Ok(_) if self.uring.submission().is_empty() => return,
                Ok(_) => {}
                Err(error) => match error.raw_os_error() {
                    // The kernel is short of memory, or wants completions taken first.
                    Some(libc::EAGAIN | libc::EBUSY) if !self.uring.completion().is_empty() => return,
                    Some(libc::EAGAIN | libc::EBUSY) => std::thread::yield_now(),
                    Some(libc::EINTR) => {}
                    // The program closed the ring's descriptor, as it happens to daemons.
                    _ => return self.broken = true,
                },
            }
        }
    }

    /// A write that has ended: its tag, and the count of bytes written or a negative error number.
    pub fn next_done(&mut self) -> Option<(u64, i32)> {
        // One that was given up when the ring broke may still come.
        let used = self.used;
        let done = self.uring.completion().find(|done| used & 1 << done.user_data() != 0);
        let (index, result) = match done {
            Some(done) => (done.user_data() as usize, done.result()),
            None if self.broken && self.used != 0 => (self.used.trailing_zeros() as usize, -libc::EBADF),
            None => return None,
        };
        self.used &= !(1 << index);
        Some((self.tags[index], result))
    }
}

impl std::fmt::Debug for Ring {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Ring({} in flight)", self.in_flight())
    }
}
