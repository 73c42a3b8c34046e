//! Calls that move bytes between memory and a pipe or another process: vmsplice(2), process_vm_readv(2),
//! process_vm_writev(2). Also reads and writes of the files in /proc that are this process's memory (proc_pid_mem(5)).
//!
//! The kernel finds no engine page that is absent. So the memory of this process that such a call reaches by its address
//! is kept in memory meanwhile. Nothing can do that in another process: a debugger gets EFAULT or EIO
//! (docs/intercepted.md).

use super::At;
use crate::copy::{Call, Unit, Way, any_held, exchange, held, mapped};
use crate::mappings::leave_to_kernel;
use crate::next;
use crate::own::{PAGE, errno, kernel, set_errno, undisturbed};
use fastmap::by_address::{self, Why};
use libc::{c_char, c_int, c_uint, c_ulong, c_void, iovec, off_t, pid_t, size_t, ssize_t};
use std::ffi::CStr;
use std::io::Write;
use std::sync::atomic::{AtomicBool, Ordering};

/// The most bytes that are kept in memory at a time: a small part of any cache.
const PINNED: usize = 64 << 10;

/// Makes a call that reaches memory of this process by its address. `writing` says whether it writes there. The engine's
/// pages in the range stay in memory meanwhile. If they cannot all be kept, since part of the range is not mapped, the
/// call is made for the first page only. If not even this page can be kept, the call finds the pages that the kernel has.
///
/// Returns the call's result, and the number of bytes for which the call was made.
fn reaching(place: usize, len: usize, writing: bool, call: impl FnOnce(usize) -> isize) -> (isize, usize) {
    let page = len.min(PAGE - place % PAGE);
    let keep = |len: usize| undisturbed(false, || by_address::keep(place, len, writing).is_ok());
    let (len, kept) = match held(std::ptr::without_provenance::<c_void>(place), len) {
        false => (len, false),
        true if keep(len) => (len, true),
        // For a write to a read-only private page the kernel makes a private copy, which the engine cannot. So the kernel
        // gets the mapping.
        true if writing && leave_to_kernel(place as *const c_void, page, Why::Call).is_ok() => (page, false),
        true => (page, page < len && keep(page)),
    };
    let done = call(len);
    if kept {
        let before = errno();
        let _ = undisturbed(Ok(()), || by_address::let_go(place, len, writing));
        set_errno(before);
    }
    (done, len)
}

/// Whether the process ever opened a file that may be its own memory. Most programs never do, and pay one load for this.
static ANY: AtomicBool = AtomicBool::new(false);

/// Notes that a file has been opened by this path.
///
/// # Safety
/// The kernel has read the path, so it is a string.
pub unsafe fn opened(path: *const c_char) {
    // SAFETY: the contract.
    let path = unsafe { CStr::from_ptr(path) }.to_bytes();
    if path.ends_with(b"mem") && (path.len() == 3 || path[path.len() - 4] == b'/') {
        ANY.store(true, Ordering::Relaxed);
    }
}

/// Whether a descriptor is of this process's memory, while the engine maps any file.
#[inline]
pub fn is_own(fd: c_int) -> bool {
    ANY.load(Ordering::Relaxed) && mapped() && names_own(fd)
}

#[cold]
fn names_own(fd: c_int) -> bool {
    let mut link = [0u8; 32];
    let _ = write!(&mut link[..31], "/proc/self/fd/{fd}");
    let mut path = [0u8; 64];
    let mut parts = kernel::read_link(&link, &mut path).split(|byte| *byte == b'/').skip(1);
    let is_own = |part: &[u8]| std::str::from_utf8(part).is_ok_and(|part| part.parse() == Ok(std::process::id()));
    parts.next() == Some(b"proc") && parts.next().is_some_and(is_own) && parts.last() == Some(b"mem")
}

/// Reads or writes this process's memory through its file in /proc. `call` gets one entry and its offset. An offset of -1
/// stands for the descriptor's position, which `call` moves.
///
/// # Safety
/// There are `count` valid entries, as for readv(2) or writev(2).
pub unsafe fn through(
    way: Way,
    fd: c_int,
    entries: *const iovec,
    count: usize,
    at: At,
    call: &mut dyn FnMut(&[iovec], off_t) -> isize,
) -> isize {
    let mut window = |window: &[iovec], before: usize| {
        let mut done = 0;
        for entry in window {
            let mut within = 0;
            while within < entry.iov_len {
                let len = (entry.iov_len - within).min(PINNED);
                let offset = at.after(before + done);
                let place = match at {
                    // SAFETY: the call takes no memory.
                    At::Position => unsafe { next::lseek(fd, 0, libc::SEEK_CUR) },
                    At::Offset(_) => offset,
                };
                let part = |len| iovec { iov_base: entry.iov_base.wrapping_byte_add(within), iov_len: len };
                let (moved, len) = reaching(place as usize, len, way == Way::Out, |len| call(&[part(len)], offset));
                if moved < 0 {
                    return if done > 0 { done as isize } else { moved };
                }
                done += moved as usize;
                within += moved as usize;
                if (moved as usize) < len {
                    return done as isize;
                }
            }
        }
        done as isize
    };
    // SAFETY: the contract.
    unsafe { exchange(way, Unit::Piece, entries, count, &mut window) }
}

/// Whether this is the id of this process, or of one of its threads.
fn is_self(pid: pid_t) -> bool {
    // SAFETY: signal 0 sends nothing.
    pid > 0 && unsafe { kernel::call(libc::SYS_tgkill, [libc::getpid() as usize, pid as usize, 0]) }.is_ok()
}

/// The place that is `skip` bytes behind the start of a list, and the bytes from there to the end of its entry. `None`:
/// the list ends before.
///
/// # Safety
/// There are `count` valid entries.
unsafe fn part_at(entries: *const iovec, count: usize, mut skip: usize) -> Option<(*mut c_void, usize)> {
    for index in 0..count {
        // SAFETY: the contract.
        let entry = unsafe { entries.add(index).read() };
        if skip < entry.iov_len {
            return Some((entry.iov_base.wrapping_byte_add(skip), entry.iov_len - skip));
        }
        skip -= entry.iov_len;
    }
    None
}

/// process_vm_readv(2) or process_vm_writev(2) of this process's own memory, for one window of the local entries. `before`
/// is the number of bytes in the windows before. `call` gets one local and one remote entry.
///
/// # Safety
/// There are `remotes` valid entries.
unsafe fn within(
    way: Way,
    window: &[iovec],
    before: usize,
    remote: *const iovec,
    remotes: usize,
    call: &mut dyn FnMut(&iovec, &iovec) -> isize,
) -> isize {
    let mut done = 0;
    loop {
        // SAFETY: the window's entries are valid, and so are the remote entries by the contract.
        let parts = unsafe { (part_at(window.as_ptr(), window.len(), done), part_at(remote, remotes, before + done)) };
        let (Some((local, there)), Some((place, len))) = parts else { break };
        let len = len.min(there).min(PINNED);
        let entry = |iov_base, iov_len| iovec { iov_base, iov_len };
        let (moved, len) = reaching(place.expose_provenance(), len, way == Way::Out, |len| {
            call(&entry(local, len), &entry(place, len))
        });
        if moved < 0 && done == 0 {
            return moved;
        }
        done += moved.max(0) as usize;
        if moved < len as isize {
            break;
        }
    }
    done as isize
}

/// vmsplice(2). Pages of an engine mapping are copied, so later stores to the mapping do not show in the pipe.
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

/// Wrappers of process_vm_readv(2) and process_vm_writev(2). Local buffers in engine mappings are copied. The remote
/// addresses are usually another process's. If they are this process's own, `within` makes the call.
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
                let most = libc::UIO_MAXIOV as c_ulong;
                if flags == 0 && mapped() && !local.is_null() && count <= most && remotes <= most && is_self(pid) && any_held(remote, remotes as usize) {
                    return exchange(Way::$way, Unit::Call, local, count as usize, &mut |window, before| {
                        within(Way::$way, window, before, remote, remotes as usize, &mut |local, remote| {
                            next::$name(pid, local, 1, remote, 1, 0)
                        })
                    });
                }
                if count > most || local.is_null() || !any_held(local, count as usize) {
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
