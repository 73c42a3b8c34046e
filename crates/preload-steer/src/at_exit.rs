//! Tells at the program's end what steering did: in a line on standard error, and in the file that `FASTMAP_STATS` names.

use rustix::fs::{CWD, Mode, OFlags};
use std::ffi::CStr;
use std::sync::OnceLock;

/// Settings from the environment.
struct Wanted {
    /// Whether the line is written even where standard error is no terminal.
    always: bool,
    /// The file for the statistics (JSON).
    stats: Option<&'static CStr>,
    /// The process that writes the file: the one that `fastmap run` became.
    first: Option<u32>,
}

static WANTED: OnceLock<Wanted> = OnceLock::new();

/// Reads the environment, and registers [`tell`] with atexit(3).
pub(crate) fn prepare() {
    let is_steer = |list: &CStr| list.to_bytes().split(|byte| *byte == b',').any(|word| word == b"steer");
    let always = crate::variable(c"FASTMAP_LOG").is_some_and(is_steer);
    // With a cache the engine's library writes the file.
    let has_engine = crate::variable(c"FASTMAP_CACHE").is_some();
    let stats = crate::variable(c"FASTMAP_STATS").filter(|_| !has_engine);
    let first = crate::variable(c"FASTMAP_RUN_PID").and_then(|pid| pid.to_str().ok()?.parse().ok());
    let _ = WANTED.set(Wanted { always, stats, first });
    // SAFETY: a function that lives as long as the process.
    unsafe { libc::atexit(tell) };
}

extern "C" fn tell() {
    let Some(wanted) = WANTED.get() else { return };
    let mut line = [0u8; 1024];
    let len = crate::REPORT.read(&mut line);
    let line = &line[..len];
    if let Some(path) = wanted.stats.filter(|_| wanted.first == Some(std::process::id())) {
        write_stats(path, line);
    }
    // SAFETY: has no preconditions.
    let is_seen = wanted.always || unsafe { libc::isatty(libc::STDERR_FILENO) } == 1;
    if !line.is_empty() && is_seen {
        let text = [b"fastmap: ", line, b"\n"].concat();
        // SAFETY: the bytes are readable. They are written in one piece, so that other processes' lines stay apart.
        unsafe { libc::write(libc::STDERR_FILENO, text.as_ptr().cast(), text.len()) };
    }
}

/// Writes the statistics file, in the engine's format, without caches and maps. The line is plain ASCII, without quotes.
fn write_stats(path: &CStr, line: &[u8]) {
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::TRUNC | OFlags::CLOEXEC;
    let Ok(file) = rustix::fs::openat(CWD, path, flags, Mode::from_raw_mode(0o644)) else { return };
    let text = format!(
        "{{\"pid\":{},\"complete\":true,\"steered\":\"{}\",\"caches\":[],\"maps\":[]}}\n",
        std::process::id(),
        String::from_utf8_lossy(line)
    );
    let _ = rustix::io::write(&file, text.as_bytes());
}
