//! Where lines of `fastmap run` go while the program runs, and after it. This process holds nothing of the program's open: whoever reads the
//! program's output to its end waits for the program alone. It keeps standard error only if FASTMAP_LOG asks for lines.

use std::fs::File;
use std::io::Write;
use std::os::fd::AsRawFd;
use std::os::unix::fs::OpenOptionsExt;
use std::path::PathBuf;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::table::printable;

/// The place for lines.
#[derive(Debug)]
enum Voice {
    /// Standard error, which stays open.
    Kept,
    /// The terminal that standard error was: opened for each line, as long as this job is in its foreground.
    Terminal(PathBuf),
    /// Nobody wants lines.
    Silent,
}

static VOICE: OnceLock<Voice> = OnceLock::new();
static IS_SILENT: AtomicBool = AtomicBool::new(false);

/// Chooses the place. `logs`: FASTMAP_LOG asks for lines. Called before standard error is closed. Returns whether it is to be kept.
pub fn choose(logs: bool) -> bool {
    let voice = match std::fs::read_link("/proc/self/fd/2") {
        _ if logs => Voice::Kept,
        // SAFETY: the call takes a number.
        Ok(path) if unsafe { libc::isatty(libc::STDERR_FILENO) } == 1 => Voice::Terminal(path),
        _ => Voice::Silent,
    };
    matches!(VOICE.get_or_init(|| voice), Voice::Kept)
}

/// Says nothing from now on.
pub fn be_silent() {
    IS_SILENT.store(true, Ordering::Relaxed);
}

/// Says a line, after `fastmap: `. Names of programs and files in it are printed as everywhere.
pub fn say(line: &str) {
    if IS_SILENT.load(Ordering::Relaxed) {
        return;
    }
    let text = format!("fastmap: {}\n", printable(line));
    match VOICE.get() {
        None | Some(Voice::Kept) => {
            let _ = std::io::stderr().write_all(text.as_bytes());
        }
        Some(Voice::Terminal(path)) => {
            let flags = libc::O_NOCTTY | libc::O_NONBLOCK;
            let Ok(mut terminal) = File::options().write(true).custom_flags(flags).open(path) else { return };
            // SAFETY: the calls take a number.
            if unsafe { libc::tcgetpgrp(terminal.as_raw_fd()) == libc::getpgrp() } {
                let _ = terminal.write_all(text.as_bytes());
            }
        }
        Some(Voice::Silent) => {}
    }
}
