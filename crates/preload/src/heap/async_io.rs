//! io_uring(7) and Linux AIO (io_setup(2)) are refused in a program whose heap is a file.
//!
//! The kernel reads and writes a request's memory at any time. If a page of the heap is absent at that time, its
//! address is bad. If a page is evicted after the kernel has read data into it, the data is lost without notice.
//! Programs that use either interface go on without it if they cannot set it up, as on older kernels and in most
//! containers. A child made by fork(2) has its heap in ordinary memory, and may use both.
//!
//! Calls by number come from `calls/by_number.rs`. liburing and libaio make their system calls past the C library. So
//! their functions that set up a queue are refused here by name. Functions found by dlopen(3) and dlsym(3) are not
//! seen.

use super::{fork, is_up};
use crate::{next, say};
use libc::{c_int, c_uint, c_void, size_t};
use std::sync::atomic::{AtomicBool, Ordering};

/// Whether setting up either is to fail with ENOSYS. The first refusal is said on standard error.
pub(crate) fn refuses_async_io() -> bool {
    static SAID: AtomicBool = AtomicBool::new(false);
    let refuses = is_up() && !fork::is_child();
    if refuses && !SAID.swap(true, Ordering::Relaxed) {
        say(format_args!("io_uring and Linux AIO are refused (ENOSYS): they cannot use a heap in a file"));
    }
    refuses
}

/// Defines functions that may be refused. They return an error as a negative number.
macro_rules! refused {
    ($($(#[$about:meta])* $name:ident($($argument:ident: $type:ty),*);)*) => { $(
        $(#[$about])*
        ///
        /// # Safety
        /// The caller keeps the contract of the C library's function of this name.
        #[unsafe(no_mangle)]
        pub unsafe extern "C-unwind" fn $name($($argument: $type),*) -> c_int {
            // SAFETY: the caller's contract.
            if refuses_async_io() { -libc::ENOSYS } else { unsafe { next::$name($($argument),*) } }
        }
    )* };
}

refused! {
    /// libaio's io_setup(2).
    io_setup(most: c_int, context: *mut c_void);
    /// libaio's io_queue_init(3).
    io_queue_init(most: c_int, context: *mut c_void);
    /// liburing's io_uring_setup(2).
    io_uring_setup(entries: c_uint, parameters: *mut c_void);
    /// liburing's io_uring_queue_init(3).
    io_uring_queue_init(entries: c_uint, ring: *mut c_void, flags: c_uint);
    /// liburing's io_uring_queue_init_params(3).
    io_uring_queue_init_params(entries: c_uint, ring: *mut c_void, parameters: *mut c_void);
    /// liburing's io_uring_queue_init_mem(3).
    io_uring_queue_init_mem(entries: c_uint, ring: *mut c_void, parameters: *mut c_void, memory: *mut c_void, len: size_t);
}
