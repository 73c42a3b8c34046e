//! The kernel's edge: every raw interface that the engine uses, one file each. `lock.rs` is the engine's lock, and `range_table.rs` a table
//! that signal handlers may read.

pub mod aio;
pub mod cgroup;
pub mod confine;
pub mod cpu;
#[cfg(all(test, not(loom)))]
pub mod crash;
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

/// Bytes in a page. The engine works with 4 KiB pages only (x86-64).
pub const PAGE: usize = 4096;

/// The error number of this thread's last failed call (errno(3)).
#[inline]
pub fn errno() -> i32 {
    // SAFETY: the function returns the address of this thread's errno, which is always valid.
    unsafe { *libc::__errno_location() }
}
