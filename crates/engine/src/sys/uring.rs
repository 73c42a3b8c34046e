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

/// Requests in flight in one ring, at most.
pub const DEPTH: usize = 128;

/// A ring for reads or writes, used by one thread at a time. Once open it neither allocates nor locks, so that a fault
/// handler can use it.
pub struct Ring {
    uring: EngineFd<IoUring>,
    /// What the caller knows each request by; the kernel knows it by its index here.
    tags: [u64; DEPTH],
    /// One bit for each index in use.
    used: u128,
    broken: bool,
    /// A thread is between the ring's memory and `used`: should it die there, these differ by one.
    between: AtomicBool,
    /// Completions come whatever this thread calls; else only when it enters the ring.
    completes_anywhere: bool,
}

/// Moves a ring to a descriptor at a high number.
fn move_up(uring: IoUring) -> io::Result<EngineFd<IoUring>> {
    // SAFETY: it is open for as long as this.
    let Some(above) = engine_fd::copy_up(unsafe { BorrowedFd::borrow_raw(uring.as_raw_fd()) }) else {
        return Ok(EngineFd::marked(uring));
    };
    // SAFETY: a descriptor of this ring, and what the kernel said of it.
    unsafe { IoUring::from_fd(above.into_raw_fd(), uring.params().clone()) }.map(EngineFd::marked)
}

impl Ring {
    /// Opens one. EPERM, ENOSYS: io_uring is not allowed here (sysctl `kernel.io_uring_disabled`, seccomp) or not
    /// there.
    pub fn open() -> io::Result<Self> {
        let _low = engine_fd::low();
        // Completions wait until this thread enters the kernel of its own accord (Linux 5.19): it takes them there
        // anyway, and interrupting it for each costs the program's thread more.
        let uring = IoUring::builder().setup_coop_taskrun().build(DEPTH as u32)?;
        Ok(Self::of(move_up(uring)?, true))
    }

    fn of(uring: EngineFd<IoUring>, completes_anywhere: bool) -> Self {
        Ring { uring, tags: [0; DEPTH], used: 0, broken: false, between: AtomicBool::new(false), completes_anywhere }
    }

    /// Whether one can be opened; found out in a thread of its own. Once a ring is gone the kernel interrupts the
    /// system calls of the thread that used it (epoll_wait(2) fails with EINTR, getrandom(2) stops short), which no
    /// thread of the program's expects.
    pub fn try_out(open: fn() -> io::Result<Ring>) -> io::Result<()> {
        let _blocked = Blocked::all();
        let thread = std::thread::Builder::new().name("fastmap-ring".into()).spawn(move || open().map(drop))?;
        thread.join().unwrap_or_else(|_| Err(io::Error::other("the thread that opened it ended")))
    }

    /// Opens one that only the calling thread will use, which the kernel then serves at less cost (Linux 6.1).
    pub fn open_for_this_thread() -> io::Result<Self> {
        let uring = IoUring::builder().setup_single_issuer().setup_defer_taskrun().build(DEPTH as u32)?;
        Ok(Self::of(move_up(uring)?, false))
    }

    /// Its descriptor.
    pub fn descriptor(&self) -> RawFd {
        self.uring.as_raw_fd()
    }

    /// Whether it still works.
    pub fn works(&self) -> bool {
        !self.broken
    }

    /// Requests in the ring that `next_done` has not returned.
    pub fn in_flight(&self) -> usize {
        self.used.count_ones() as usize
    }

    /// Writes that the kernel has begun and not ended, by what the ring's memory says: for a ring that nobody uses any
    /// more.
    pub fn unfinished(&mut self) -> usize {
        let not_begun = self.uring.submission().len();
        let ended = self.uring.completion().len();
        self.in_flight().saturating_sub(not_begun + ended)
    }

    /// Whether the thread that used the ring ended where `unfinished` may be one too high.
    pub fn is_between(&self) -> bool {
        self.between.load(Ordering::Acquire)
    }

    /// Queues a write, which starts with the next `submit`. The caller sees to it that fewer than [`DEPTH`] are in
    /// flight.
    ///
    /// # Safety
    /// `from` stays valid for `len` reads by the kernel until `next_done` returns `tag`.
    pub unsafe fn write(&mut self, file: &File, from: *const u8, len: usize, offset: u64, tag: u64) {
        let write = opcode::Write::new(types::Fd(file.as_raw_fd()), from, len as u32).offset(offset);
        // SAFETY: the caller's contract covers the memory.
        unsafe { self.push(write.build(), tag) };
    }

    /// Queues a read, which starts with the next `submit`. The caller sees to it that fewer than [`DEPTH`] are in
    /// flight.
    ///
    /// # Safety
    /// `to` stays valid for `len` writes by the kernel, and nobody else uses it, until `next_done` returns `tag`; for
    /// ever if the ring breaks.
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
        // SAFETY: the caller's.
        let pushed = unsafe { self.uring.submission().push(&request.user_data(index as u64)) };
        // As many entries as tags, while the kernel takes them: a ring that does not is broken, and says so of all it
        // has.
        self.broken |= pushed.is_err();
        self.between.store(false, Ordering::Release);
    }

    /// Starts what is queued and waits until `wanted` requests have ended since completions were last taken. An error
    /// is no request's own: the ring is broken then, and every request in it that the kernel has not begun counts as
    /// failed; of one that only this thread uses, every request.
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

    /// A request that has ended: its tag, and the count of bytes or a negative error number. Of a ring that broke this
    /// waits for those that the kernel has begun: a write that ended later, on top of a newer one, would bring old
    /// bytes back.
    pub fn next_done(&mut self) -> Option<(u64, i32)> {
        while self.broken && self.completes_anywhere && self.uring.completion().is_empty() && self.unfinished() > 0 {
            // The kernel says so on the way out of any system call.
            process::pause();
        }
        // One that was given up when the ring broke may still come.
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

/// What wakes a thread: a futex(2) word, which counts. (A descriptor would do as
/// well, until the program closes it and opens a file that gets its number.)
#[derive(Debug, Default)]
pub struct Bell(AtomicU32);

impl Bell {
    /// How often it was rung.
    pub fn rung(&self) -> u32 {
        self.0.load(Ordering::SeqCst)
    }

    /// Rings it. Called by fault handlers.
    pub fn ring(&self) {
        self.0.fetch_add(1, Ordering::SeqCst);
        futex::wake_all(&self.0);
    }

    /// Waits until it has been rung more often than so many times, or for so long.
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

    /// A pipe that is full, and as many bytes: a write of them is under way until somebody reads.
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
                // The number is another file's. What has begun goes on: the ring is there as long as its memory is
                // mapped.
                let other = File::open("/dev/null").unwrap();
                // SAFETY: the ring's own number, and what it owns from here on.
                assert_eq!(unsafe { libc::dup2(other.as_raw_fd(), ring.descriptor()) }, ring.descriptor());
                // SAFETY: never in a system call here.
                tell.send(unsafe { libc::gettid() }).unwrap();
                // One that is not begun fails.
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
