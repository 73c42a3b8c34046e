//! One line at the program's end, of what was done.

use std::ffi::CStr;
use std::sync::atomic::{AtomicBool, Ordering};

static ALWAYS: AtomicBool = AtomicBool::new(false);

/// Reads what the environment asks for, and has [`say`] called by exit(3).
pub(crate) fn prepare() {
    let wanted = |list: &CStr| list.to_bytes().split(|byte| *byte == b',').any(|word| word == b"steer");
    ALWAYS.store(crate::variable(c"FASTMAP_LOG").is_some_and(wanted), Ordering::Relaxed);
    // SAFETY: a function that lives as long as the process.
    unsafe { libc::atexit(say) };
}

extern "C" fn say() {
    let mut line = [0u8; 1024];
    let len = crate::REPORT.read(&mut line);
    // SAFETY: has no preconditions; writes what was filled.
    unsafe {
        if len == 0 || !(ALWAYS.load(Ordering::Relaxed) || libc::isatty(libc::STDERR_FILENO) == 1) {
            return;
        }
        for part in [b"fastmap: ", &line[..len], b"\n"] {
            libc::write(libc::STDERR_FILENO, part.as_ptr().cast(), part.len());
        }
    }
}
