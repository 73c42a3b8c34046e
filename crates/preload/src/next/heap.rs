//! The C library's heap: malloc(3) and similar functions.

use libc::{c_int, c_void, size_t};

table! {
    fn malloc(size: size_t) -> *mut c_void;
    fn calloc(count: size_t, size: size_t) -> *mut c_void;
    fn realloc(at: *mut c_void, size: size_t) -> *mut c_void;
    fn reallocarray(at: *mut c_void, count: size_t, size: size_t) -> *mut c_void;
    fn free(at: *mut c_void) -> ();
    fn posix_memalign(to: *mut *mut c_void, align: size_t, size: size_t) -> c_int;
    fn aligned_alloc(align: size_t, size: size_t) -> *mut c_void;
    fn memalign(align: size_t, size: size_t) -> *mut c_void;
    fn valloc(size: size_t) -> *mut c_void;
    fn pvalloc(size: size_t) -> *mut c_void;
    fn malloc_usable_size(at: *mut c_void) -> size_t;
}
