//! Mappings: mmap(2) and similar functions.

use libc::{c_int, c_uchar, c_uint, c_void, off_t, size_t};

table! {
    fn mmap(addr: *mut c_void, len: size_t, prot: c_int, flags: c_int, fd: c_int, offset: off_t) -> *mut c_void;
    fn mmap64(addr: *mut c_void, len: size_t, prot: c_int, flags: c_int, fd: c_int, offset: off_t) -> *mut c_void;
    fn munmap(addr: *mut c_void, len: size_t) -> c_int;
    fn mremap(old: *mut c_void, old_len: size_t, new_len: size_t, flags: c_int, new: *mut c_void) -> *mut c_void;
    fn remap_file_pages(addr: *mut c_void, len: size_t, prot: c_int, page: size_t, flags: c_int) -> c_int;
    fn msync(addr: *mut c_void, len: size_t, flags: c_int) -> c_int;
    fn madvise(addr: *mut c_void, len: size_t, advice: c_int) -> c_int;
    fn posix_madvise(addr: *mut c_void, len: size_t, advice: c_int) -> c_int;
    fn mprotect(addr: *mut c_void, len: size_t, prot: c_int) -> c_int;
    fn pkey_mprotect(addr: *mut c_void, len: size_t, prot: c_int, key: c_int) -> c_int;
    fn mincore(addr: *mut c_void, len: size_t, vec: *mut c_uchar) -> c_int;
    fn mlock(addr: *const c_void, len: size_t) -> c_int;
    fn mlock2(addr: *const c_void, len: size_t, flags: c_uint) -> c_int;
    fn munlock(addr: *const c_void, len: size_t) -> c_int;
    fn munlockall() -> c_int;
}
