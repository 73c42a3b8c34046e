//! Calls that move bytes between memory and a pipe or another process: vmsplice(2), process_vm_readv(2),
//! process_vm_writev(2).

use crate::copy::{Call, Unit, Way, any_held, exchange};
use crate::next;
use libc::{c_int, c_uint, c_ulong, iovec, pid_t, size_t, ssize_t};

/// vmsplice(2). Pages of a mapping are copied: what is stored there afterwards does not show in the pipe.
///
/// # Safety
/// The caller keeps the contract of vmsplice(2).
pub unsafe fn vmsplice(fd: c_int, entries: *const iovec, count: size_t, flags: c_uint) -> ssize_t {
    // SAFETY: the caller's contract, which is the C library's.
    unsafe {
        if count > libc::UIO_MAXIOV as usize || !any_held(entries, count) {
            return next::vmsplice(fd, entries, count, flags);
        }
        let reads = next::fcntl(fd, libc::F_GETFL, 0) & libc::O_ACCMODE == libc::O_RDONLY;
        let (way, unit) = if reads { (Way::In, Unit::Call) } else { (Way::Out, Unit::KeptCall) };
        exchange(way, unit, entries, count, &mut |window, _| next::vmsplice(fd, window.as_ptr(), window.len(), flags))
    }
}

/// Wrappers of process_vm_readv(2) and process_vm_writev(2): the local buffers are copied; the remote addresses are no
/// memory of this process.
macro_rules! between_processes {
    ($($way:ident $name:ident;)*) => { $(
        /// The C library's function of this name, with local buffers in mappings.
        ///
        /// # Safety
        /// The caller keeps the contract of the C library's function of this name.
        pub unsafe fn $name(
            pid: pid_t,
            local: *const iovec,
            count: c_ulong,
            remote: *const iovec,
            remotes: c_ulong,
            flags: c_ulong,
        ) -> ssize_t {
            // SAFETY: the caller's contract, which is the C library's.
            unsafe {
                let arguments = Call::new();
                let remote = arguments.input(remote, (remotes as usize).saturating_mul(size_of::<iovec>()));
                if count > libc::UIO_MAXIOV as c_ulong || !any_held(local, count as usize) {
                    return next::$name(pid, local, count, remote, remotes, flags);
                }
                exchange(Way::$way, Unit::Call, local, count as usize, &mut |window, _| {
                    next::$name(pid, window.as_ptr(), window.len() as c_ulong, remote, remotes, flags)
                })
            }
        }
        exported! {
            fn $name(
                pid: pid_t, local: *const iovec, count: c_ulong, remote: *const iovec, remotes: c_ulong, flags: c_ulong
            ) -> ssize_t;
        }
    )* };
}

between_processes! {
    In process_vm_readv;
    Out process_vm_writev;
}

exported! {
    fn vmsplice(fd: c_int, entries: *const iovec, count: size_t, flags: c_uint) -> ssize_t;
}
