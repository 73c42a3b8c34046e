//! SIGINT, SIGTERM and SIGHUP set a flag. Every long loop checks the flag and returns, so that the cleanup is the same as after a failure.

use std::sync::Arc;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};

use crate::failure::Failure;

static STOP: OnceLock<Arc<AtomicBool>> = OnceLock::new();

/// Makes these signals set the flag from now on.
pub fn watch() {
    let flag = STOP.get_or_init(Default::default);
    for signal in [SIGINT, SIGTERM, SIGHUP] {
        // This fails only for signals that cannot be caught.
        let _ = signal_hook::flag::register(signal, Arc::clone(flag));
    }
}

/// After a signal, the process has this time to end as usual.
const PATIENCE: Duration = Duration::from_millis(700);
/// A signal is noticed after this time at most.
const BLINK: Duration = Duration::from_millis(50);

/// Ends the process with `status` soon after a signal, whatever it waits for then. `last` is called before.
pub fn end_in_time(status: u8, last: impl FnOnce() + Send + 'static) {
    watch();
    // Without the thread, the process ends when what it waits for is over.
    let _ = std::thread::Builder::new().name("fastmap-end".into()).spawn(move || {
        while !requested() {
            std::thread::sleep(BLINK);
        }
        std::thread::sleep(PATIENCE);
        last();
        leave(status)
    });
}

/// Ends the process now.
pub fn leave(status: u8) -> ! {
    leave_fuse();
    // SAFETY: it ends the process without more ado.
    unsafe { libc::_exit(status.into()) }
}

/// Before the process's end: FUSE's close(2) waits for the server, then too, and not even SIGKILL ends that. So files of FUSE that are open are
/// left to another process, which ends when it can.
pub fn leave_fuse() {
    if holds_fuse() {
        // SAFETY: the new process shares the descriptors and nothing else, and makes two system calls.
        unsafe {
            if libc::syscall(libc::SYS_clone, libc::CLONE_FILES, 0, 0, 0, 0) == 0 {
                // Who reads a pipe of this process gets its end.
                libc::syscall(libc::SYS_close_range, 0, 2, 0);
                libc::syscall(libc::SYS_exit_group, 0);
            }
        }
    }
}

/// Whether a file of FUSE is open. No file system is asked.
fn holds_fuse() -> bool {
    let mounts = std::fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    let is_fuse = |mount: &str| {
        let line = mounts.lines().find(|line| line.split(' ').next() == Some(mount));
        line.and_then(|line| line.split_once(" - ")).is_some_and(|(_, kind)| kind.starts_with("fuse"))
    };
    let files = std::fs::read_dir("/proc/self/fdinfo").into_iter().flatten().flatten();
    let mut infos = files.filter_map(|file| std::fs::read_to_string(file.path()).ok());
    infos.any(|info| info.lines().filter_map(|line| line.strip_prefix("mnt_id:")).any(|mount| is_fuse(mount.trim())))
}

/// Whether one of the signals has come.
pub fn requested() -> bool {
    STOP.get().is_some_and(|flag| flag.load(Ordering::Relaxed))
}

/// For the loops of `fastmap-bench`: fails if one of the signals has come.
pub fn check() -> Result<(), Failure> {
    if requested() {
        return Err(Failure::new("bench", "interrupted", "run it again; nothing was left behind"));
    }
    Ok(())
}
