//! io_uring(7) and Linux AIO (io_setup(2)) are refused in a program whose heap is a file.
//!
//! The kernel reads and writes a request's memory when it likes. A page of the heap that is absent then is a bad
//! address, and what is read into one that is evicted meanwhile is lost without notice. Programs that use either go on
//! without it where setting it up fails, as it does on older kernels and in most containers. A child made by fork(2)
//! has its heap in ordinary memory, and may use both.
//!
//! Calls by number come from `calls/by_number.rs`. liburing and libaio make theirs past the C library, so what sets up
//! is refused here by name. Functions found by dlopen(3) and dlsym(3) are not seen.

use super::{fork, is_up};
use crate::{next, say};
use libc::{c_int, c_uint, c_void, size_t};
use std::sync::atomic::{AtomicBool, Ordering};

/// Whether setting either up is to fail with ENOSYS; says so, once.
pub(crate) fn refuses_async_io() -> bool {
    static SAID: AtomicBool = AtomicBool::new(false);
    let refuses = is_up() && !fork::is_child();
    if refuses && !SAID.swap(true, Ordering::Relaxed) {
        say(format_args!("io_uring and Linux AIO are refused (ENOSYS): they cannot use a heap in a file"));
    }
    refuses
}

/// Refuses functions that return an error's number below zero.
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
