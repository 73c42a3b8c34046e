//! io_uring(7) and Linux AIO (io_setup(2)): the kernel serves their requests at any time, past this library.
//!
//! If a page of a request's memory is absent at that time, its address is bad (EFAULT), and what a request reads from or writes to a file that is
//! mapped is not what the mapping shows. So once a program has set up a queue, its files are the kernel's: those that it has mapped, and those that
//! it maps later. A heap in a file and objects cannot be the kernel's: there a queue cannot be set up (ENOSYS), as on older kernels and in most
//! containers. A child made by fork(2) has its heap in ordinary memory, and may use both.
//!
//! Calls by number come from `by_number.rs`. liburing and libaio make their system calls past the C library. So their functions that set up a
//! queue are wrapped here by name. Functions found by dlopen(3) and dlsym(3), and system calls made by instruction, are not seen.

use crate::{heap, mappings, next, objects};
use libc::{c_int, c_uint, c_void, size_t};

/// Sets up a queue by `call`, which returns a negative number on failure. `None`: that is refused.
pub(super) fn set_up<T: Into<i64> + Copy>(call: impl FnOnce() -> T) -> Option<T> {
    if heap::refuses_async_io() || objects::any() {
        return None;
    }
    let made = call();
    if made.into() >= 0 {
        mappings::leave_to_rings();
    }
    Some(made)
}

/// Wraps functions that set up a queue. They return an error as a negative number.
macro_rules! wrapped {
    ($($(#[$about:meta])* $name:ident($($argument:ident: $type:ty),*);)*) => { $(
        $(#[$about])*
        ///
        /// # Safety
        /// The caller keeps the contract of the C library's function of this name.
        #[unsafe(no_mangle)]
        pub unsafe extern "C-unwind" fn $name($($argument: $type),*) -> c_int {
            // SAFETY: the caller's contract.
            set_up(|| unsafe { next::$name($($argument),*) }).unwrap_or(-libc::ENOSYS)
        }
    )* };
}

wrapped! {
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
