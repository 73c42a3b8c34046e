//! Many reads or writes at a time from one thread: io_uring(7).

use super::engine_fd::{self, EngineFd};
use super::futex;
use super::process;
use super::signal::Blocked;
use crate::sys::sync::{AtomicU32, Ordering};
use io_uring::{IoUring, opcode, types};
use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, IntoRawFd, RawFd};
use std::sync::atomic::AtomicBool;
use std::time::Duration;

/// The most requests in flight in one ring.
pub const DEPTH: usize = 128;

/// A ring for reads or writes. One thread at a time uses it. An open ring neither allocates nor locks, so a fault handler can use it.
pub struct Ring {
    uring: EngineFd<IoUring>,
    /// The caller's tag of each request. The kernel knows the request by its index here.
    tags: [u64; DEPTH],
    /// One bit for each index in use.
    used: u128,
    broken: bool,
    /// True while a thread changes both the ring's memory and `used`. If the thread dies then, the two differ by one.
    between: AtomicBool,
    /// True: completions come in any system call of this thread. False: they come only when it enters the ring.
    completes_anywhere: bool,
}

/// Moves a ring to a descriptor at a high number.
fn move_up(uring: IoUring) -> io::Result<EngineFd<IoUring>> {
    // SAFETY: the ring is open for as long as this borrow.
    let Some(above) = engine_fd::copy_up(unsafe { BorrowedFd::borrow_raw(uring.as_raw_fd()) }) else {
        return Ok(EngineFd::marked(uring));
    };
    // SAFETY: a descriptor of this ring, with the parameters that the kernel gave for it.
    unsafe { IoUring::from_fd(above.into_raw_fd(), uring.params().clone()) }.map(EngineFd::marked)
}

impl Ring {
    /// Opens a ring. Errors: EPERM or ENOSYS if io_uring is not allowed (sysctl `kernel.io_uring_disabled`, seccomp(2)) or not there.
    pub fn open() -> io::Result<Self> {
        let _low = engine_fd::low();
        // Completions wait until this thread enters the kernel of its own accord (Linux 5.19). The thread takes them there anyway. To interrupt it
        // for each completion costs the program's thread more.
        let uring = IoUring::builder().setup_coop_taskrun().build(DEPTH as u32)?;
        Ok(Self::of(move_up(uring)?, true))
    }

    fn of(uring: EngineFd<IoUring>, completes_anywhere: bool) -> Self {
        Ring { uring, tags: [0; DEPTH], used: 0, broken: false, between: AtomicBool::new(false), completes_anywhere }
    }

    /// Tells whether `open` can open a ring. A thread of its own tries that. Once a ring is gone, the kernel interrupts the system calls of the
    /// thread that used it (epoll_wait(2) fails with EINTR, getrandom(2) stops short), and no thread of the program expects that.
    pub fn try_out(open: fn() -> io::Result<Ring>) -> io::Result<()> {
        let _blocked = Blocked::all();
        let thread = std::thread::Builder::new().name("fastmap-ring".into()).spawn(move || open().map(drop))?;
        thread.join().unwrap_or_else(|_| Err(io::Error::other("the thread that opened it ended")))
    }

    /// Opens a ring that only the calling thread will use. The kernel serves it at less cost (Linux 6.1).
    pub fn open_for_this_thread() -> io::Result<Self> {
        let uring = IoUring::builder().setup_single_issuer().setup_defer_taskrun().build(DEPTH as u32)?;
        Ok(Self::of(move_up(uring)?, false))
    }

    /// The descriptor of the ring.
    pub fn descriptor(&self) -> RawFd {
        self.uring.as_raw_fd()
    }

    /// Whether the ring still works: no submission has failed.
    pub fn works(&self) -> bool {
        !self.broken
    }

    /// How many requests are in the ring that `next_done` has not returned.
    pub fn in_flight(&self) -> usize {
        self.used.count_ones() as usize
    }

    /// How many requests the kernel has begun and not ended, by what the ring's memory says. For a ring that broke, or that nobody uses any more.
    pub fn unfinished(&mut self) -> usize {
        let not_begun = self.uring.submission().len();
        let ended = self.uring.completion().len();
        self.in_flight().saturating_sub(not_begun + ended)
    }

    /// Whether the thread that used the ring ended at a moment when `unfinished` may be one too high.
    pub fn is_between(&self) -> bool {
        self.between.load(Ordering::Acquire)
    }

    /// Queues a write, which starts with the next `submit`. The caller makes sure that fewer than [`DEPTH`] requests are in flight.
    ///
    /// # Safety
    /// `from` stays valid for `len` reads by the kernel until `next_done` returns `tag`.
    pub unsafe fn write(&mut self, file: &File, from: *const u8, len: usize, offset: u64, tag: u64) {
        let write = opcode::Write::new(types::Fd(file.as_raw_fd()), from, len as u32).offset(offset);
        // SAFETY: the caller's contract covers the memory.
        unsafe { self.push(write.build(), tag) };
    }

    /// Queues a read, which starts with the next `submit`. The caller makes sure that fewer than [`DEPTH`] requests are in flight.
    ///
    /// # Safety
    /// Until `next_done` returns `tag`, `to` stays valid for `len` writes by the kernel, and nobody else uses that memory. If the ring breaks, this
    /// holds for ever.
    pub unsafe fn read(&mut self, file: &File, to: *mut u8, len: usize, offset: u64, tag: u64) {
        let read = opcode::Read::new(types::Fd(file.as_raw_fd()), to, len as u32).offset(offset);
        // SAFETY: the caller's contract covers the memory.
        unsafe { self.push(read.build(), tag) };
    }

    unsafe fn push(&mut self, request: io_uring::squeue::Entry, tag: u64) {
        let index = self.used.trailing_ones() as usize;
        self.between.store(true, Ordering::Release);
        self.used |= 1 << index;
        self.tags[index] = tag;
        // SAFETY: the caller's contract.
        let pushed = unsafe { self.uring.submission().push(&request.user_data(index as u64)) };
        // The ring has as many entries as tags, so it is full only if the kernel takes no more entries. Such a ring is broken, and reports all its
        // requests as failed.
        self.broken |= pushed.is_err();
        self.between.store(false, Ordering::Release);
    }

    /// Starts the queued requests. Waits until `wanted` requests have ended since completions were last taken.
    ///
    /// An error does not belong to one request: it breaks the ring. Then every request that the kernel has not begun counts as failed. In a ring that
    /// only this thread uses, every request counts as failed.
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
                    // The program closed the ring's descriptor, as daemons do.
                    _ => return self.broken = true,
                },
            }
        }
    }

    /// Takes a request that has ended. Returns its tag, and the count of bytes or a negative error number. If the ring broke, and is not one that
    /// only this thread uses, this waits for the requests that the kernel has begun. A write that ended later, on top of a newer one, would bring old
    /// bytes back.
    pub fn next_done(&mut self) -> Option<(u64, i32)> {
        while self.broken && self.completes_anywhere && self.uring.completion().is_empty() && self.unfinished() > 0 {
            // The kernel reports completions on the way out of any system call, such as this sleep.
            process::pause();
        }
        // A request that was given up when the ring broke may still complete. It is passed over.
        let used = self.used;
        self.between.store(true, Ordering::Release);
        let done = self.uring.completion().find(|done| used & 1 << done.user_data() != 0);
        let (index, result) = match done {
            Some(done) => (done.user_data() as usize, done.result()),
            None if self.broken && self.used != 0 => (self.used.trailing_zeros() as usize, -libc::EBADF),
            None => {
                self.between.store(false, Ordering::Release);
                return None;
            }
        };
        self.used &= !(1 << index);
        self.between.store(false, Ordering::Release);
        Some((self.tags[index], result))
    }
}

/// Wakes a thread by a futex(2) word, which counts the rings. (A descriptor would do as well, until the program closes it and opens a file that gets
/// its number.)
#[derive(Debug, Default)]
pub struct Bell(AtomicU32);

impl Bell {
    /// How often the bell was rung.
    pub fn rung(&self) -> u32 {
        self.0.load(Ordering::SeqCst)
    }

    /// Rings the bell. Fault handlers may call this.
    pub fn ring(&self) {
        self.0.fetch_add(1, Ordering::SeqCst);
        futex::wake_all(&self.0);
    }

    /// Waits until the bell has been rung more than `rung` times, but no longer than `at_most`. May return early.
    pub fn wait(&self, rung: u32, at_most: Option<Duration>) {
        futex::wait(&self.0, rung, at_most);
    }
}

impl std::fmt::Debug for Ring {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Ring({} in flight)", self.in_flight())
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use std::io::Read;
    use std::os::fd::FromRawFd;
    use std::sync::mpsc;

    /// A full pipe, and as many bytes as it holds. A write of these bytes is under way until somebody reads the pipe.
    fn full_pipe() -> (File, File, Vec<u8>) {
        let mut ends = [0; 2];
        // SAFETY: two descriptors, each owned once; the pipe is asked for a number.
        unsafe {
            assert_eq!(libc::pipe2(ends.as_mut_ptr(), libc::O_CLOEXEC), 0);
            let [reading, writing] = ends.map(|end| File::from_raw_fd(end));
            let bytes = vec![b'o'; libc::fcntl(writing.as_raw_fd(), libc::F_GETPIPE_SZ) as usize];
            std::io::Write::write_all(&mut &writing, &bytes).unwrap();
            (reading, writing, bytes)
        }
    }

    fn sleeps_or_ended(thread: i32) -> bool {
        let line = std::fs::read_to_string(format!("/proc/self/task/{thread}/stat")).unwrap_or_default();
        line.rsplit(')').next().is_none_or(|rest| rest.trim_start().starts_with('S') || rest.is_empty())
    }

    #[test]
    fn a_write_under_way_ends_before_it_is_said_to_when_its_ring_breaks() {
        if let Err(error) = Ring::try_out(Ring::open) {
            return println!("skipped: no io_uring: {error}");
        }
        let (mut reading, writing, bytes) = full_pipe();
        let room = bytes.len();
        let (tell, told) = mpsc::channel();
        std::thread::scope(|scope| {
            let (bytes, writing) = (&bytes, &writing);
            let writer = scope.spawn(move || {
                let mut ring = Ring::open().unwrap();
                // SAFETY: the bytes outlive the thread, which waits for the write.
                unsafe { ring.write(writing, bytes.as_ptr(), bytes.len(), 0, 7) };
                ring.submit(0);
                assert_eq!((ring.unfinished(), ring.works()), (1, true));
                // The number becomes another file's. The write goes on: the ring lives as long as its memory is mapped.
                let other = File::open("/dev/null").unwrap();
                // SAFETY: the number is the ring's own, and stays the ring's to close.
                assert_eq!(unsafe { libc::dup2(other.as_raw_fd(), ring.descriptor()) }, ring.descriptor());
                // SAFETY: no preconditions.
                tell.send(unsafe { libc::gettid() }).unwrap();
                // A request that the kernel has not begun fails.
                // SAFETY: `bytes` is valid until the ring has ended, as for the first write.
                unsafe { ring.write(writing, bytes.as_ptr(), 1, 0, 8) };
                ring.submit(0);
                assert!(!ring.works());
                [(); 3].map(|()| ring.next_done())
            });
            let thread = told.recv().unwrap();
            while !writer.is_finished() && !sleeps_or_ended(thread) {
                std::thread::yield_now();
            }
            let mut got = vec![0; 2 * room];
            reading.read_exact(&mut got).unwrap();
            assert_eq!(writer.join().unwrap(), [Some((7, room as i32)), Some((8, -libc::EBADF)), None]);
        });
    }
}
