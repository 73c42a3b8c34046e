//! The C library's heap: malloc(3) and similar functions. Also the functions that set up libaio and liburing.

use libc::{c_int, c_uint, c_void, size_t};

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

    fn io_setup(most: c_int, context: *mut c_void) -> c_int;
    fn io_queue_init(most: c_int, context: *mut c_void) -> c_int;
    fn io_uring_setup(entries: c_uint, parameters: *mut c_void) -> c_int;
    fn io_uring_queue_init(entries: c_uint, ring: *mut c_void, flags: c_uint) -> c_int;
    fn io_uring_queue_init_params(entries: c_uint, ring: *mut c_void, parameters: *mut c_void) -> c_int;
    fn io_uring_queue_init_mem(entries: c_uint, ring: *mut c_void, parameters: *mut c_void, memory: *mut c_void, len: size_t) -> c_int;
}
