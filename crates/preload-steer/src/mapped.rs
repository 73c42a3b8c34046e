//! mmap(2), the only call that is noticed. It is passed on as it is. The watcher starts when a program has mapped enough of files for steering to
//! matter. Most programs never map so much, and have no watcher. (Some count their threads: Chromium's zygotes end if they have two.)

use crate::thread::without_signals;
use fastmap_steer::observe::Memory;
use std::ffi::{c_int, c_void};
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicUsize, Ordering};

/// Bytes of files mapped so far. Mappings that were undone since still count.
static FILES: AtomicUsize = AtomicUsize::new(0);
static IS_WATCHED: AtomicBool = AtomicBool::new(false);
/// When so many bytes of files are mapped, the next check is made whether to watch.
static ENOUGH: AtomicUsize = AtomicUsize::new(LEAST);

const LEAST: usize = 32 << 20;
/// A process is watched if it has mapped one part in so many of the memory that files can have.
const PART: u64 = 4;

type Mmap = unsafe extern "C" fn(*mut c_void, usize, c_int, c_int, c_int, libc::off_t) -> *mut c_void;

/// The function that comes after this library's: the C library's, or a sanitizer's.
static NEXT: AtomicPtr<c_void> = AtomicPtr::new(std::ptr::null_mut());

/// Looks up the next mmap(2).
pub(crate) fn prepare() {
    // SAFETY: a C string.
    NEXT.store(unsafe { libc::dlsym(libc::RTLD_NEXT, c"mmap".as_ptr()) }, Ordering::Relaxed);
}

/// mmap(2).
///
/// # Safety
///
/// As for mmap(2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mmap(
    at: *mut c_void,
    len: usize,
    access: c_int,
    flags: c_int,
    file: c_int,
    offset: libc::off_t,
) -> *mut c_void {
    if NEXT.load(Ordering::Relaxed).is_null() {
        // Another library's constructor calls this before this library's constructor has run. (syscall(2) is no way out: the engine's library
        // takes it for this call.)
        prepare();
    }
    // SAFETY: `NEXT` is the function of this name, which the C library has; the caller's arguments, unchanged.
    let mapped = unsafe {
        let next = std::mem::transmute::<*mut c_void, Option<Mmap>>(NEXT.load(Ordering::Relaxed));
        next.map_or(libc::MAP_FAILED, |next| next(at, len, access, flags, file, offset))
    };
    if flags & libc::MAP_ANONYMOUS == 0 && mapped != libc::MAP_FAILED {
        let before = FILES.fetch_add(len, Ordering::Relaxed);
        let files = before.saturating_add(len);
        if files >= ENOUGH.load(Ordering::Relaxed) && !IS_WATCHED.load(Ordering::Relaxed) {
            begin(files);
        }
    }
    mapped
}

/// mmap64(3): the same call.
///
/// # Safety
///
/// As for mmap(2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mmap64(
    at: *mut c_void,
    len: usize,
    access: c_int,
    flags: c_int,
    file: c_int,
    offset: libc::off_t,
) -> *mut c_void {
    // SAFETY: the caller's arguments, unchanged.
    unsafe { mmap(at, len, access, flags, file, offset) }
}

#[cold]
fn begin(files: usize) {
    // The next check comes when a quarter more is mapped.
    ENOUGH.store(files.saturating_add(files / 4), Ordering::Relaxed);
    // Signals are blocked because this thread has the allocator's lock: a handler that maps a file meanwhile would wait for that lock for ever.
    let is_enough = || files as u64 >= Memory::of(std::process::id()).for_files() / PART;
    if !crate::is_own() || !without_signals(is_enough) {
        return;
    }
    if !IS_WATCHED.swap(true, Ordering::Relaxed) {
        crate::watch();
    }
}

/// Called in a child of fork(2), which has its parent's mappings but not its watcher.
pub(crate) fn begin_anew() {
    // The parent's line is enough.
    if IS_WATCHED.load(Ordering::Relaxed) && !crate::has_thread_sanitizer() {
        crate::watch();
    }
}
