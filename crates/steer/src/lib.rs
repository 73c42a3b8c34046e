//! Steering: the kernel's own pages of mapped files, and a policy that fits what the program does with them.
//!
//! A *watcher* looks at which pages of a program's file mappings were touched ([`observe`]), decides what would help
//! ([`judge`]), and tells the kernel ([`act`]): do not read around, read this ahead, drop that. The mappings stay the
//! kernel's, so nothing can be lost, and a program that is steered does the same as one that is not, but for time.
//!
//! The watcher runs as a thread of the process ([`start`]), or, from `libfastmap_steer.so`, as a process that shares its
//! memory ([`Watcher`]). It makes bare system calls, which leave `errno` alone, and takes no lock of the program's.

pub mod act;
pub mod attach;
mod clock;
pub mod judge;
pub mod observe;
mod report;
pub mod warm;
mod watcher;

pub use report::Report;
pub use watcher::{Settings, Watcher};

use rustix::thread::{UnshareFlags, unshare_unsafe};
use std::sync::Once;

/// Bytes in a page.
pub(crate) const PAGE: u64 = 4096;

/// Starts a thread that steers this process's file mappings until the process ends. A second call does nothing, nor does
/// one in a program that has `libfastmap_steer.so`.
///
/// Nothing fails here: where the process may have no further thread, or /proc is not there, nothing is steered.
pub fn start() {
    static STARTED: Once = Once::new();
    static REPORT: Report = Report::new();
    STARTED.call_once(|| {
        // Under `fastmap run` another copy of this code does it.
        if observe::has_library(c"libfastmap_steer.so") {
            return;
        }
        let body = || {
            // What it opens takes no number that the program's next open(2) would get, and what the program closes is closed. Where a filter
            // forbids that (seccomp), the table is the program's.
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
        // Without the thread the mappings are the kernel's all the same.
        let _ = std::thread::Builder::new().name("fastmap-steer".into()).stack_size(256 << 10).spawn(body);
    });
}
