//! The kernel's edge: shared memory, futex(2), locks, holes, processes.
//!
//! Nothing here takes a lock of the process. Fault handlers use [`Mapping`], [`wait`], [`wake`], [`read_at`], [`thread`] and [`now`], which do
//! not allocate.

use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::fd::AsRawFd;
use std::ptr::{self, NonNull};
use std::sync::atomic::AtomicU32;
use std::time::Duration;

pub const PAGE: u64 = 4096;

/// A type that other processes may change at any time.
///
/// # Safety
/// It consists of atomics alone, is valid with any bytes, and needs no drop.
pub unsafe trait Shared {}

// SAFETY: an atomic.
unsafe impl Shared for AtomicU32 {}

/// A shared mapping of a file, from its start on.
#[derive(Debug)]
pub struct Mapping {
    at: NonNull<u8>,
    len: usize,
}

// SAFETY: only atomics are handed out.
unsafe impl Send for Mapping {}
// SAFETY: only atomics are handed out.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Maps a file that is at least `len` bytes long, and stays so.
    pub fn new(file: &File, len: u64) -> io::Result<Self> {
        let len = usize::try_from(len).map_err(|_| io::Error::from_raw_os_error(libc::EFBIG))?;
        let (prot, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED | libc::MAP_NORESERVE);
        // By number: in a program with the preload library, mmap(2) by name calls the engine.
        // SAFETY: a new mapping, wherever there is room.
        let at = unsafe { libc::syscall(libc::SYS_mmap, 0_usize, len, prot, flags, file.as_raw_fd(), 0_usize) };
        if at == -1 {
            return Err(io::Error::last_os_error());
        }
        // Without read-around, which brings large folios: a store to one page would take disk blocks for the holes beside it, too.
        // SAFETY: the mapping of just now; advice changes no byte.
        unsafe { libc::syscall(libc::SYS_madvise, at, len, libc::MADV_RANDOM) };
        Ok(Mapping { at: NonNull::new(at as *mut u8).expect("a mapping is not at address 0"), len })
    }

    /// The value at an offset.
    pub fn at<T: Shared>(&self, offset: u64) -> &T {
        &self.all(offset, 1)[0]
    }

    /// `count` values, from an offset on.
    pub fn all<T: Shared>(&self, offset: u64, count: u64) -> &[T] {
        let (from, count) = (offset as usize, count as usize);
        assert!(from.is_multiple_of(align_of::<T>()) && from + count * size_of::<T>() <= self.len);
        // SAFETY: inside the mapping, which is page-aligned and lives as long as self; any bytes will do.
        unsafe { std::slice::from_raw_parts(self.at.as_ptr().add(from).cast(), count) }
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: the mapping is this one's, and nothing borrows from it.
        unsafe { libc::syscall(libc::SYS_munmap, self.at.as_ptr(), self.len) };
    }
}

/// Sleeps while a word, which other processes have mapped too, holds a value: until woken, or until the timeout.
pub fn wait(word: &AtomicU32, value: u32, timeout: Duration) {
    let time = libc::timespec { tv_sec: timeout.as_secs() as _, tv_nsec: timeout.subsec_nanos() as _ };
    // SAFETY: the kernel reads the word and the time, which outlive the call.
    unsafe { libc::syscall(libc::SYS_futex, ptr::from_ref(word), libc::FUTEX_WAIT, value, &raw const time) };
}

/// Wakes up to `count` threads that sleep on a word.
pub fn wake(word: &AtomicU32, count: i32) {
    // SAFETY: only the word's address is used.
    unsafe { libc::syscall(libc::SYS_futex, ptr::from_ref(word), libc::FUTEX_WAKE, count) };
}

/// Reads a file until a buffer is full, the file ends, or a read fails. Returns the bytes read.
pub fn read_at(file: &File, buffer: &mut [u8], offset: u64) -> usize {
    let mut filled = 0;
    while filled < buffer.len() {
        let rest = &mut buffer[filled..];
        let at = offset + filled as u64;
        // SAFETY: the rest of the buffer is as long as it says. By number: no library comes between this call and the kernel.
        let got = unsafe { libc::syscall(libc::SYS_pread64, file.as_raw_fd(), rest.as_mut_ptr(), rest.len(), at) };
        if got <= 0 {
            break;
        }
        filled += got as usize;
    }
    filled
}

/// This thread's number.
pub fn thread() -> u32 {
    // SAFETY: no preconditions.
    unsafe { libc::syscall(libc::SYS_gettid) as u32 }
}

/// Milliseconds of CLOCK_MONOTONIC, which all processes share and nobody sets.
pub fn now() -> u64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the kernel writes it.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &raw mut time) };
    time.tv_sec as u64 * 1000 + time.tv_nsec as u64 / 1_000_000
}

/// Whether no thread has this number, or only a zombie.
pub fn is_dead(thread: u32) -> bool {
    match std::fs::read_to_string(format!("/proc/{thread}/stat")) {
        // The state stands behind the last `) `, because the name may hold any characters.
        Ok(stat) => stat.rsplit_once(") ").is_some_and(|(_, rest)| rest.starts_with(['Z', 'X'])),
        Err(error) => error.kind() == io::ErrorKind::NotFound && std::fs::exists("/proc/self").unwrap_or(false),
    }
}

fn ofd(file: &File, command: libc::c_int, kind: libc::c_int, range: Range<u64>) -> io::Result<libc::flock> {
    let mut lock = libc::flock {
        l_type: kind as _,
        l_whence: libc::SEEK_SET as _,
        l_start: range.start as _,
        l_len: (range.end - range.start) as _,
        l_pid: 0,
    };
    loop {
        // SAFETY: an open descriptor, and a lock that outlives the call.
        if unsafe { libc::fcntl(file.as_raw_fd(), command, &raw mut lock) } == 0 {
            return Ok(lock);
        }
        let error = io::Error::last_os_error();
        if error.kind() != io::ErrorKind::Interrupted {
            return Err(error);
        }
    }
}

/// Locks a byte of a file for this open file description (`F_OFD_SETLK`, Linux 3.15). Returns false if another has it.
pub fn lock_byte(file: &File, byte: u64) -> io::Result<bool> {
    match ofd(file, libc::F_OFD_SETLK, libc::F_WRLCK, byte..byte + 1) {
        Ok(_) => Ok(true),
        Err(error) if matches!(error.raw_os_error(), Some(libc::EAGAIN | libc::EACCES)) => Ok(false),
        Err(error) => Err(error),
    }
}

/// Locks a byte, and waits until no other open file description has it locked.
pub fn lock_byte_later(file: &File, byte: u64) -> io::Result<()> {
    ofd(file, libc::F_OFD_SETLKW, libc::F_WRLCK, byte..byte + 1).map(drop)
}

/// Unlocks a byte.
pub fn unlock_byte(file: &File, byte: u64) {
    let _ = ofd(file, libc::F_OFD_SETLK, libc::F_UNLCK, byte..byte + 1);
}

/// The first byte of a range that another open file description has locked.
pub fn locked_byte(file: &File, range: Range<u64>) -> io::Result<Option<u64>> {
    let start = range.start;
    let lock = ofd(file, libc::F_OFD_GETLK, libc::F_WRLCK, range)?;
    Ok((lock.l_type != libc::F_UNLCK as libc::c_short).then_some((lock.l_start as u64).max(start)))
}

/// flock(2): `LOCK_SH`, `LOCK_EX` or `LOCK_UN`, with `LOCK_NB`. Returns false if the lock is taken.
pub fn flock(file: &File, operation: libc::c_int) -> io::Result<bool> {
    loop {
        // SAFETY: an open descriptor.
        if unsafe { libc::flock(file.as_raw_fd(), operation) } == 0 {
            return Ok(true);
        }
        match io::Error::last_os_error() {
            error if error.kind() == io::ErrorKind::WouldBlock => return Ok(false),
            error if error.kind() == io::ErrorKind::Interrupted => {}
            error => return Err(error),
        }
    }
}

fn fallocate(file: &File, mode: libc::c_int, range: Range<u64>) -> io::Result<()> {
    let len = range.end - range.start;
    // SAFETY: an open descriptor.
    match unsafe { libc::fallocate(file.as_raw_fd(), mode, range.start as _, len as _) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Frees the disk blocks of a range of a file, which becomes a hole.
pub fn punch(file: &File, range: Range<u64>) -> io::Result<()> {
    fallocate(file, libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE, range)
}

/// Allocates disk blocks for a range of a file, so that stores to its mapping cannot fail.
pub fn allocate(file: &File, range: Range<u64>) -> io::Result<()> {
    fallocate(file, libc::FALLOC_FL_KEEP_SIZE, range)
}

/// The next offset at which a file has data (`SEEK_DATA`) or none (`SEEK_HOLE`).
pub fn seek(file: &File, offset: u64, whence: libc::c_int) -> Option<u64> {
    // SAFETY: an open descriptor, whose position nobody uses.
    let at = unsafe { libc::lseek(file.as_raw_fd(), offset as _, whence) };
    u64::try_from(at).ok()
}

/// Whether a file lies on tmpfs. There even a load from a hole of a mapping takes a page, and raises SIGBUS if there is none.
pub fn is_in_memory(file: &File) -> io::Result<bool> {
    // SAFETY: all zeros are a statfs, which the kernel fills.
    let mut of: libc::statfs = unsafe { std::mem::zeroed() };
    // SAFETY: an open descriptor, and a place for the answer.
    match unsafe { libc::fstatfs(file.as_raw_fd(), &raw mut of) } {
        0 => Ok(of.f_type == libc::TMPFS_MAGIC),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Bytes that programs without privileges can still write to the disk of a file.
pub fn free_space(file: &File) -> io::Result<u64> {
    // SAFETY: all zeros are a statvfs, which the kernel fills.
    let mut of: libc::statvfs = unsafe { std::mem::zeroed() };
    // SAFETY: an open descriptor, and a place for the answer.
    match unsafe { libc::fstatvfs(file.as_raw_fd(), &raw mut of) } {
        0 => Ok(of.f_bavail * of.f_frsize),
        _ => Err(io::Error::last_os_error()),
    }
}
