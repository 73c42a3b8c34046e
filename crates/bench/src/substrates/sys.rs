//! System calls that the standard library does not offer, each behind a safe function.

use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd};
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::time::Duration;

/// cachestat(2), Linux 6.5: its number is the same on every architecture, and libc does not name it yet.
const SYS_CACHESTAT: libc::c_long = 451;

/// User and system time that all threads of this process have used so far. getrusage(2).
pub fn cpu_times() -> (Duration, Duration) {
    times(&usage(libc::RUSAGE_SELF))
}

/// User and system time that the calling thread has used so far. getrusage(2).
pub fn thread_times() -> (Duration, Duration) {
    times(&usage(libc::RUSAGE_THREAD))
}

/// The calling thread's id, as other processes see it. gettid(2).
pub fn thread_id() -> u32 {
    // SAFETY: no memory is handed over.
    unsafe { libc::gettid() as u32 }
}

/// Page faults, minor and major, that the kernel has served for all threads of this process so far. getrusage(2).
pub fn faults() -> u64 {
    let usage = usage(libc::RUSAGE_SELF);
    (usage.ru_minflt + usage.ru_majflt) as u64
}

/// Page faults of all threads of this process that have waited for a read so far. getrusage(2).
pub fn major_faults() -> u64 {
    usage(libc::RUSAGE_SELF).ru_majflt as u64
}

fn times(usage: &libc::rusage) -> (Duration, Duration) {
    let of = |t: libc::timeval| Duration::from_secs(t.tv_sec as u64) + Duration::from_micros(t.tv_usec as u64);
    (of(usage.ru_utime), of(usage.ru_stime))
}

fn usage(whose: libc::c_int) -> libc::rusage {
    // SAFETY: rusage is plain numbers, for which zero is a value; the call fills in the one it is given.
    unsafe {
        let mut usage: libc::rusage = std::mem::zeroed();
        libc::getrusage(whose, &mut usage);
        usage
    }
}

/// Writes back the file system that holds the file. syncfs(2).
pub fn sync_file_system(file: &File) -> io::Result<()> {
    // SAFETY: no memory is handed over.
    match unsafe { libc::syncfs(file.as_raw_fd()) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Drops the file's clean pages from the page cache. posix_fadvise(2) with POSIX_FADV_DONTNEED.
pub fn drop_cached(file: &File) -> io::Result<()> {
    // SAFETY: no memory is handed over, and the descriptor is open as long as `file` lives.
    match unsafe { libc::posix_fadvise(file.as_raw_fd(), 0, 0, libc::POSIX_FADV_DONTNEED) } {
        0 => Ok(()),
        error => Err(io::Error::from_raw_os_error(error)),
    }
}

/// How many pages of the file's first `len` bytes are in the page cache. Dirty pages and pages under write-back count. cachestat(2).
pub fn cached_pages(file: &File, len: u64) -> io::Result<u64> {
    let range = [0u64, len];
    // nr_cache, nr_dirty, nr_writeback, nr_evicted, nr_recently_evicted
    let mut counts = [0u64; 5];
    // SAFETY: the kernel reads two and writes five u64, which is what the arrays hold.
    let result = unsafe { libc::syscall(SYS_CACHESTAT, file.as_raw_fd(), range.as_ptr(), counts.as_mut_ptr(), 0) };
    if result == 0 { Ok(counts[0]) } else { Err(io::Error::last_os_error()) }
}

/// How many pages of a mapping are in the page cache. mincore(2), for kernels without cachestat(2).
pub fn resident_pages(map: &memmap2::Mmap) -> io::Result<u64> {
    let mut pages = vec![0u8; map.len().div_ceil(crate::substrates::PAGE)];
    // SAFETY: the range is one live mapping, page-aligned by mmap, and `pages` has one byte for each of its pages.
    let result = unsafe { libc::mincore(map.as_ptr() as *mut _, map.len(), pages.as_mut_ptr()) };
    if result != 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(pages.iter().filter(|&&p| p & 1 != 0).count() as u64)
}

/// Reserves blocks for the first `len` bytes and makes the file at least that long. fallocate(2).
///
/// The error is `Unsupported` if the file system cannot reserve blocks.
pub fn reserve(file: &File, len: u64) -> io::Result<()> {
    // SAFETY: no memory is handed over.
    match unsafe { libc::fallocate(file.as_raw_fd(), 0, 0, len as libc::off_t) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Bytes the file's file system has left for an unprivileged user. fstatvfs(3).
pub fn free_bytes(file: &File) -> io::Result<u64> {
    // SAFETY: statvfs is plain numbers, for which zero is a value; the call fills in the one it is given.
    unsafe {
        let mut stat: libc::statvfs = std::mem::zeroed();
        match libc::fstatvfs(file.as_raw_fd(), &mut stat) {
            0 => Ok(stat.f_bavail * stat.f_frsize),
            _ => Err(io::Error::last_os_error()),
        }
    }
}

/// Whether the file is in DAX mode: a mapping of it reaches persistent memory without the page cache. statx(2), Linux 5.8.
pub fn is_dax(file: &File) -> bool {
    // SAFETY: statx is plain numbers, for which zero is a value; the call fills in the one it is given; the path is empty.
    unsafe {
        let mut stat: libc::statx = std::mem::zeroed();
        let asked = libc::statx(file.as_raw_fd(), c"".as_ptr(), libc::AT_EMPTY_PATH, 0, &mut stat);
        asked == 0 && stat.stx_attributes & libc::STATX_ATTR_DAX as u64 != 0
    }
}

/// Whether the file is on a tmpfs. fstatfs(2).
pub fn is_tmpfs(file: &File) -> bool {
    // SAFETY: statfs is plain numbers, for which zero is a value; the call fills in the one it is given.
    unsafe {
        let mut stat: libc::statfs = std::mem::zeroed();
        libc::fstatfs(file.as_raw_fd(), &mut stat) == 0 && stat.f_type == libc::TMPFS_MAGIC
    }
}

/// Sets up a command: the kernel kills its process when the thread that started it ends.
pub fn dies_with_parent(command: &mut Command) {
    ends_with_parent(command, libc::SIGKILL);
}

/// Sets up a command: the kernel sends its process `signal` when the thread that started it ends. PR_SET_PDEATHSIG(2const).
pub fn ends_with_parent(command: &mut Command, signal: libc::c_int) {
    // SAFETY: between fork and exec two system calls are made, and no memory handed over.
    unsafe {
        let parent = libc::getpid();
        command.pre_exec(move || match libc::prctl(libc::PR_SET_PDEATHSIG, signal) {
            0 if libc::getppid() == parent => Ok(()),
            0 => Err(io::Error::from_raw_os_error(libc::ESRCH)),
            _ => Err(io::Error::last_os_error()),
        });
    }
}

/// Sets up a command: the descriptor `kept` stays open in its process. fcntl(2) F_SETFD.
pub fn keeps_open(command: &mut Command, kept: &impl AsRawFd) {
    let kept = kept.as_raw_fd();
    // SAFETY: between fork and exec one system call is made, and no memory handed over.
    unsafe {
        command.pre_exec(move || match libc::fcntl(kept, libc::F_SETFD, 0) {
            0 => Ok(()),
            _ => Err(io::Error::last_os_error()),
        });
    }
}

/// Waits for a descriptor that another process sends with one byte of data (SCM_RIGHTS), and receives it. unix(7).
pub fn receive_file(socket: &UnixStream) -> io::Result<File> {
    let mut byte = 0_u8;
    let mut part = libc::iovec { iov_base: (&raw mut byte).cast(), iov_len: 1 };
    // Room for one descriptor and its header, with the alignment of the header.
    let mut control = [0_u64; 3];
    // SAFETY: msghdr is plain numbers and addresses, for which zero is a value. The memory that it points to outlives the call. The received
    // header lies within `control`, and nobody else owns its descriptor.
    unsafe {
        let mut message: libc::msghdr = std::mem::zeroed();
        (message.msg_iov, message.msg_iovlen) = (&raw mut part, 1);
        (message.msg_control, message.msg_controllen) = ((&raw mut control).cast(), size_of_val(&control));
        if libc::recvmsg(socket.as_raw_fd(), &mut message, libc::MSG_CMSG_CLOEXEC) < 0 {
            return Err(io::Error::last_os_error());
        }
        let header = libc::CMSG_FIRSTHDR(&message);
        if header.is_null() || (*header).cmsg_type != libc::SCM_RIGHTS {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        Ok(File::from_raw_fd(libc::CMSG_DATA(header).cast::<libc::c_int>().read_unaligned()))
    }
}

/// Sets up a command: its process joins a memory cgroup before it executes the program. `procs` is the cgroup's `cgroup.procs`.
pub fn joins(command: &mut Command, procs: File) {
    // SAFETY: between fork and exec one system call is made, on a descriptor and a byte that the closure has.
    unsafe {
        command.pre_exec(move || match libc::write(procs.as_raw_fd(), c"0".as_ptr().cast(), 1) {
            1 => Ok(()),
            _ => Err(io::Error::last_os_error()),
        });
    }
}

/// CLOCK_MONOTONIC now, nanoseconds, as other processes see it. clock_gettime(2).
pub fn monotonic_ns() -> u64 {
    let mut now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the call fills in the one it is given.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &mut now) };
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}
