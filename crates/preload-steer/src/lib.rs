//! `libfastmap_steer.so` steers a program that nobody changed. It wraps mmap(2) alone: it notices the call, and passes it on.

mod allocator;
mod at_exit;
mod fork;
mod mapped;
#[path = "../../preload/src/own/sanitizers.rs"]
mod sanitizers;
mod thread;

use fastmap_steer::act::Own;
use fastmap_steer::observe::{Rights, is_alone};
use fastmap_steer::{Report, Settings, Watcher};
use rustix::thread::{Timespec, nanosleep};
use std::ffi::{CStr, c_int, c_void};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;

static REPORT: Report = Report::new();
/// The process whose memory this is.
static PROCESS: AtomicU32 = AtomicU32::new(0);
static OVERRIDES: AtomicBool = AtomicBool::new(false);

#[used]
#[unsafe(link_section = ".init_array")]
static BEGIN: extern "C" fn() = begin;

/// Runs when the library is loaded, before `main`.
extern "C" fn begin() {
    OVERRIDES.store(variable(c"FASTMAP_STEER_OVERRIDE").is_some_and(|value| value == c"1"), Ordering::Relaxed);
    prepare();
    mapped::prepare();
    at_exit::prepare();
    fork::prepare();
    std::panic::set_hook(Box::new(|_| end_thread()));
}

/// Notes which process this is, and its first thread.
fn prepare() {
    PROCESS.store(std::process::id(), Ordering::Relaxed);
    thread::prepare();
}

/// An environment variable.
fn variable(name: &CStr) -> Option<&'static CStr> {
    // SAFETY: the name is a C string, and the answer is a C string or null. No other thread runs yet.
    unsafe {
        let value = libc::getenv(name.as_ptr());
        (!value.is_null()).then(|| CStr::from_ptr(value))
    }
}

/// Whether this memory is the calling process's own. A child of vfork(2) uses its parent's for a while.
fn is_own() -> bool {
    PROCESS.load(Ordering::Relaxed) == std::process::id()
}

/// Starts the watcher of this process, if there can be one.
fn watch() {
    if has_thread_sanitizer() {
        REPORT.set("no thread of its own steers it, since it is built with ThreadSanitizer");
    } else {
        thread::start(body);
    }
}

/// Whether the program has ThreadSanitizer, which keeps a record of each thread in thread-local storage. The watcher has the main thread's, so its
/// calls of memcpy(3) and the like would change the main thread's record. The dynamic linker looks the symbol up when it loads this library.
fn has_thread_sanitizer() -> bool {
    let address: usize;
    // SAFETY: reads the global offset table, which the dynamic linker has filled.
    unsafe {
        std::arch::asm!(
            ".weak __tsan_init",
            "mov {}, qword ptr [rip + __tsan_init@GOTPCREL]",
            out(reg) address,
            options(nostack, pure, readonly, preserves_flags)
        );
    }
    address != 0
}

/// Ends a watcher that has panicked. The program goes on without it.
fn end_thread() {
    // SAFETY: ends the calling thread. It holds nothing that another thread waits for, except this library's allocator.
    unsafe { libc::syscall(libc::SYS_exit, 0) };
}

extern "C" fn body(_: *mut c_void) -> c_int {
    if !fastmap_steer::observe::close_descriptors() {
        return 0;
    }
    let _ = rustix::thread::set_name(c"fastmap-steer");
    let settings = Settings { overrides: OVERRIDES.load(Ordering::Relaxed), ..Settings::default() };
    let program = PROCESS.load(Ordering::Relaxed);
    let mut since = Duration::ZERO;
    let mut watcher = Watcher::new(program, Own, settings, &REPORT);
    watcher.run(|pause| {
        since += pause;
        if since > RIGHTS {
            since = Duration::ZERO;
            // The watcher must not keep rights that the program has given up, nor a program that has ended with its last thread.
            if Rights::of(program) != Rights::own() || is_alone(program) {
                return false;
            }
        }
        let time = Timespec { tv_sec: pause.as_secs() as i64, tv_nsec: pause.subsec_nanos().into() };
        let _ = nanosleep(&time);
        true
    });
    watcher.let_go();
    0
}

/// How long the watcher may have rights that the program has given up.
const RIGHTS: Duration = Duration::from_millis(500);
