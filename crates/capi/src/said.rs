//! Messages on standard error, once a file, that the kernel serves a file although the program asked for a cache.

use crate::processes;
use fastmap::by_address::{self, Served, Why, say_kernels};
use std::cell::Cell;
use std::ffi::c_int;
use std::os::fd::BorrowedFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;

thread_local! {
    /// Why the engine did not take what this thread maps.
    static WHY: Cell<Option<Why>> = const { Cell::new(None) };
}

/// Begins to hear from the engine who serves which file.
pub fn listen() {
    by_address::listen(hear);
}

fn hear(served: &Served<'_>) {
    match served.by_kernel {
        Some(why) if !served.is_done => drop(WHY.try_with(|last| last.set(Some(why)))),
        Some(why) => drop(say_kernels(served.path.as_os_str().as_bytes(), served.file, &why)),
        _ => {}
    }
}

/// Called before a thread maps: all that it hears from then on is about that map.
pub fn begin() {
    let _ = WHY.try_with(Cell::take);
}

/// Says that the kernel serves the file behind a descriptor, although `len` bytes of it were to be in a cache. Maps of up to 1 MiB are not
/// reported.
pub fn note(fd: c_int, len: usize, prot: c_int, flags: c_int) {
    const SMALL: usize = 1 << 20;
    if len <= SMALL || fd < 0 || flags & libc::MAP_ANONYMOUS != 0 {
        return;
    }
    let path = PathBuf::from(format!("/proc/self/fd/{fd}"));
    let Ok(facts) = std::fs::metadata(&path) else { return };
    let file = match facts.mode() & libc::S_IFMT {
        libc::S_IFREG => (facts.dev(), facts.ino()),
        libc::S_IFBLK => (u64::MAX, facts.rdev()),
        _ => return,
    };
    // SAFETY: a raw descriptor that the kernel has just mapped.
    if by_address::is_in_memory(unsafe { BorrowedFd::borrow_raw(fd) }) {
        return;
    }
    let is_private = flags & libc::MAP_TYPE == libc::MAP_PRIVATE;
    let why = match WHY.try_with(Cell::take).ok().flatten() {
        _ if processes::is_child() => Why::Child,
        Some(why) => why,
        None if prot & libc::PROT_EXEC != 0 => Why::Executable,
        None if is_private && prot & libc::PROT_WRITE != 0 => Why::PrivateStores,
        None if is_private => Why::Private,
        None => Why::Flag,
    };
    let name = std::fs::read_link(&path).unwrap_or(path);
    say_kernels(name.as_os_str().as_bytes(), file, &why);
}
