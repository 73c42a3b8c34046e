//! Steering: the kernel keeps serving a program's mapped files, with advice that fits what the program does with them.
//!
//! A *watcher* does three things by turns:
//! * It looks at which pages of the program's file mappings were touched ([`observe`]).
//! * It decides what would help ([`judge`]).
//! * It tells the kernel ([`act`]): do not read around a miss, read this ahead, drop that.
//!
//! The mappings stay the kernel's, so nothing can be lost. Steering changes how long a program takes, and nothing else.
//!
//! A watcher runs in one of three places:
//! * a thread of the process, made by the standard library ([`start`]);
//! * a thread of the process that the C library does not know of, made by `libfastmap_steer.so` with a [`Watcher`]. It makes bare
//!   system calls, which leave `errno` alone, and takes no lock of the program's.
//! * a thread of another process ([`attach`]).
//!
//! [`warm`] stands apart from the watcher: it remembers which pages of files are in memory, and reads them back later.

pub mod act;
pub mod attach;
mod clock;
pub mod judge;
pub mod observe;
mod report;
pub mod requirements;
pub mod warm;
mod watcher;

pub use report::Report;
pub use watcher::{Settings, Watcher};

use rustix::thread::{UnshareFlags, unshare_unsafe};
use std::sync::atomic::{AtomicU32, Ordering};

/// Bytes in a page.
pub(crate) const PAGE: u64 = 4096;

/// The line of the thread of [`start`].
static REPORT: Report = Report::new();

/// One line of what the thread of [`start`] has seen and done so far; `None` if that is nothing.
///
/// ```
/// assert_eq!(fastmap_steer::report(), None);
/// ```
pub fn report() -> Option<String> {
    REPORT.text()
}

/// Starts a thread that steers this process's file mappings until the process ends. A second call does nothing, nor does
/// one in a program that has `libfastmap_steer.so`.
///
/// There is no error to handle: where no further thread can be started, or /proc is missing, nothing is steered.
pub fn start() {
    if STARTED.load(Ordering::Relaxed) == 0 {
        start_here();
    }
}

/// The process whose thread was started last.
static STARTED: AtomicU32 = AtomicU32::new(0);

/// The same in a child made by fork(2), too: no thread of its parent is in it.
pub fn start_here() {
    let own = std::process::id();
    if STARTED.swap(own, Ordering::Relaxed) != own {
        REPORT.set("");
        // Under `fastmap run` the copy of this code in that library steers.
        if observe::has_library(c"libfastmap_steer.so") {
            return;
        }
        let body = || {
            // The thread takes a copy of the descriptor table. So its files take no numbers that the program's next open(2) would get,
            // and a file that the program closes is closed. Where a filter (seccomp) forbids unshare(2), the thread shares the
            // program's table.
            // SAFETY: no descriptor of the program's is used in this thread.
            let has_own = unsafe { unshare_unsafe(UnshareFlags::FILES) }.is_ok();
            if has_own && !observe::close_descriptors() {
                return;
            }
            let pid = std::process::id();
            Watcher::new(pid, act::OwnAndReaders::new(), Settings::default(), &REPORT).run(|pause| {
                std::thread::sleep(pause);
                true
            });
        };
        // Where the thread cannot be started, the mappings are the kernel's without advice.
        let _ = std::thread::Builder::new().name("fastmap-steer".into()).stack_size(256 << 10).spawn(body);
    }
}
