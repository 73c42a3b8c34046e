//! The kernel's edge: every raw interface the engine uses, one file each, nothing else.

pub mod aio;
pub mod cgroup;
pub mod confine;
pub mod cpu;
pub mod descriptor_table;
pub mod engine_fd;
pub mod epoll;
pub mod file;
pub mod fork;
pub mod futex;
pub mod guarded_copy;
pub mod kernel_version;
pub mod leaks;
pub mod lines;
pub mod lock;
pub mod madvise;
pub mod maps;
pub mod memfd;
pub mod memory;
pub mod memory_look;
pub mod page_cache;
pub mod pagemap;
pub mod preads;
pub mod proc_files;
pub mod process;
pub mod range_table;
pub mod record_locks;
pub mod registers;
pub mod rights;
pub mod signal;
pub mod survival;
pub mod sync;
pub mod threads;
pub mod trap_stack;
pub mod uring;
pub mod userfaultfd;

/// Bytes in a page. The engine is built for 4 KiB pages (x86-64).
pub const PAGE: usize = 4096;

/// The last system call's error number.
#[inline]
pub fn errno() -> i32 {
    // SAFETY: returns this thread's errno location, always valid.
    unsafe { *libc::__errno_location() }
}
