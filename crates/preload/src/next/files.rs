//! Reading, writing and opening files, and calls whose arguments depend on a command. The wrappers are in the rooms `files`,
//! `calls` and `objects`.

use libc::{c_char, c_int, c_long, c_uint, c_ulong, c_void, iovec, mode_t, off_t, pid_t, size_t, ssize_t};

table! {
    fn read(fd: c_int, buf: *mut c_void, len: size_t) -> ssize_t;
    fn __read(fd: c_int, buf: *mut c_void, len: size_t) -> ssize_t;
    fn __read_chk(fd: c_int, buf: *mut c_void, len: size_t, size: size_t) -> ssize_t;
    fn write(fd: c_int, buf: *const c_void, len: size_t) -> ssize_t;
    fn __write(fd: c_int, buf: *const c_void, len: size_t) -> ssize_t;
    fn pread(fd: c_int, buf: *mut c_void, len: size_t, offset: off_t) -> ssize_t;
    fn pread64(fd: c_int, buf: *mut c_void, len: size_t, offset: off_t) -> ssize_t;
    fn __pread64(fd: c_int, buf: *mut c_void, len: size_t, offset: off_t) -> ssize_t;
    fn __pread_chk(fd: c_int, buf: *mut c_void, len: size_t, offset: off_t, size: size_t) -> ssize_t;
    fn __pread64_chk(fd: c_int, buf: *mut c_void, len: size_t, offset: off_t, size: size_t) -> ssize_t;
    fn pwrite(fd: c_int, buf: *const c_void, len: size_t, offset: off_t) -> ssize_t;
    fn pwrite64(fd: c_int, buf: *const c_void, len: size_t, offset: off_t) -> ssize_t;
    fn __pwrite64(fd: c_int, buf: *const c_void, len: size_t, offset: off_t) -> ssize_t;
    fn readv(fd: c_int, entries: *const iovec, count: c_int) -> ssize_t;
    fn writev(fd: c_int, entries: *const iovec, count: c_int) -> ssize_t;
    fn preadv(fd: c_int, entries: *const iovec, count: c_int, offset: off_t) -> ssize_t;
    fn preadv64(fd: c_int, entries: *const iovec, count: c_int, offset: off_t) -> ssize_t;
    fn preadv2(fd: c_int, entries: *const iovec, count: c_int, offset: off_t, flags: c_int) -> ssize_t;
    fn preadv64v2(fd: c_int, entries: *const iovec, count: c_int, offset: off_t, flags: c_int) -> ssize_t;
    fn pwritev(fd: c_int, entries: *const iovec, count: c_int, offset: off_t) -> ssize_t;
    fn pwritev64(fd: c_int, entries: *const iovec, count: c_int, offset: off_t) -> ssize_t;
    fn pwritev2(fd: c_int, entries: *const iovec, count: c_int, offset: off_t, flags: c_int) -> ssize_t;
    fn pwritev64v2(fd: c_int, entries: *const iovec, count: c_int, offset: off_t, flags: c_int) -> ssize_t;
    fn vmsplice(fd: c_int, entries: *const iovec, count: size_t, flags: c_uint) -> ssize_t;
    fn process_vm_readv(pid: pid_t, local: *const iovec, count: c_ulong, remote: *const iovec, remotes: c_ulong, flags: c_ulong) -> ssize_t;
    fn process_vm_writev(pid: pid_t, local: *const iovec, count: c_ulong, remote: *const iovec, remotes: c_ulong, flags: c_ulong) -> ssize_t;

    fn sendfile(out: c_int, from: c_int, offset: *mut off_t, len: size_t) -> ssize_t;
    fn sendfile64(out: c_int, from: c_int, offset: *mut off_t, len: size_t) -> ssize_t;
    fn copy_file_range(from: c_int, from_offset: *mut off_t, to: c_int, to_offset: *mut off_t, len: size_t, flags: c_uint) -> ssize_t;
    fn splice(from: c_int, from_offset: *mut off_t, to: c_int, to_offset: *mut off_t, len: size_t, flags: c_uint) -> ssize_t;

    fn open(path: *const c_char, flags: c_int, mode: mode_t) -> c_int;
    fn open64(path: *const c_char, flags: c_int, mode: mode_t) -> c_int;
    fn __open(path: *const c_char, flags: c_int, mode: mode_t) -> c_int;
    fn __open64(path: *const c_char, flags: c_int, mode: mode_t) -> c_int;
    fn __open_2(path: *const c_char, flags: c_int) -> c_int;
    fn __open64_2(path: *const c_char, flags: c_int) -> c_int;
    fn openat(folder: c_int, path: *const c_char, flags: c_int, mode: mode_t) -> c_int;
    fn openat64(folder: c_int, path: *const c_char, flags: c_int, mode: mode_t) -> c_int;
    fn __openat_2(folder: c_int, path: *const c_char, flags: c_int) -> c_int;
    fn __openat64_2(folder: c_int, path: *const c_char, flags: c_int) -> c_int;
    fn creat(path: *const c_char, mode: mode_t) -> c_int;
    fn creat64(path: *const c_char, mode: mode_t) -> c_int;
    fn truncate(path: *const c_char, len: off_t) -> c_int;
    fn truncate64(path: *const c_char, len: off_t) -> c_int;
    fn ftruncate(fd: c_int, len: off_t) -> c_int;
    fn ftruncate64(fd: c_int, len: off_t) -> c_int;
    fn fallocate(fd: c_int, mode: c_int, offset: off_t, len: off_t) -> c_int;
    fn fallocate64(fd: c_int, mode: c_int, offset: off_t, len: off_t) -> c_int;
    fn posix_fallocate(fd: c_int, offset: off_t, len: off_t) -> c_int;
    fn posix_fallocate64(fd: c_int, offset: off_t, len: off_t) -> c_int;
    fn fsync(fd: c_int) -> c_int;
    fn fdatasync(fd: c_int) -> c_int;
    fn posix_fadvise(fd: c_int, offset: off_t, len: off_t, advice: c_int) -> c_int;
    fn posix_fadvise64(fd: c_int, offset: off_t, len: off_t, advice: c_int) -> c_int;
    fn readahead(fd: c_int, offset: off_t, len: size_t) -> ssize_t;
    fn flock(fd: c_int, operation: c_int) -> c_int;
    fn realpath(path: *const c_char, resolved: *mut c_char) -> *mut c_char;
    fn __realpath_chk(path: *const c_char, resolved: *mut c_char, size: size_t) -> *mut c_char;
    fn canonicalize_file_name(path: *const c_char) -> *mut c_char;
    fn sync_file_range(fd: c_int, offset: off_t, len: off_t, flags: c_uint) -> c_int;
    fn syncfs(fd: c_int) -> c_int;
    fn sync() -> c_int;
    fn lseek(fd: c_int, offset: off_t, whence: c_int) -> off_t;
    fn lseek64(fd: c_int, offset: off_t, whence: c_int) -> off_t;
    fn lockf(fd: c_int, command: c_int, len: off_t) -> c_int;

    fn fcntl(fd: c_int, command: c_int, argument: c_long) -> c_int;
    fn fcntl64(fd: c_int, command: c_int, argument: c_long) -> c_int;
    fn __fcntl(fd: c_int, command: c_int, argument: c_long) -> c_int;
    fn ioctl(fd: c_int, request: c_ulong, argument: c_long) -> c_int;
    fn prctl(option: c_int, a: c_long, b: c_long, c: c_long, d: c_long) -> c_int;
    fn syscall(number: c_long, a: c_long, b: c_long, c: c_long, d: c_long, e: c_long, f: c_long) -> c_long;
    fn getcwd(buf: *mut c_char, len: size_t) -> *mut c_char;
    fn __getcwd_chk(buf: *mut c_char, len: size_t, size: size_t) -> *mut c_char;
    fn mkdtemp(template: *mut c_char) -> *mut c_char;
}
