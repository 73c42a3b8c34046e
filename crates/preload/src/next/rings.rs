//! The functions that set up libaio and liburing.

use libc::{c_int, c_uint, c_void, size_t};

table! {
    fn io_setup(most: c_int, context: *mut c_void) -> c_int;
    fn io_queue_init(most: c_int, context: *mut c_void) -> c_int;
    fn io_uring_setup(entries: c_uint, parameters: *mut c_void) -> c_int;
    fn io_uring_queue_init(entries: c_uint, ring: *mut c_void, flags: c_uint) -> c_int;
    fn io_uring_queue_init_params(entries: c_uint, ring: *mut c_void, parameters: *mut c_void) -> c_int;
    fn io_uring_queue_init_mem(entries: c_uint, ring: *mut c_void, parameters: *mut c_void, memory: *mut c_void, len: size_t) -> c_int;
}
