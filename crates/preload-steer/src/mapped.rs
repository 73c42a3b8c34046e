//! mmap(2), passed on as it is: the one call that is noticed. The watcher is started when a program has mapped enough of
//! files for steering to matter; most programs never do, and have none.

use std::ffi::{c_int, c_void};
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicUsize, Ordering};

/// Bytes of files mapped so far. What was unmapped since still counts.
static FILES: AtomicUsize = AtomicUsize::new(0);
static IS_WATCHED: AtomicBool = AtomicBool::new(false);

/// Bytes of mapped files from which on a process is watched.
const MANY: usize = 32 << 20;

type Mmap = unsafe extern "C" fn(*mut c_void, usize, c_int, c_int, c_int, libc::off_t) -> *mut c_void;

/// The function that comes after this library's: the C library's, or a sanitizer's.
static NEXT: AtomicPtr<c_void> = AtomicPtr::new(std::ptr::null_mut());

/// Looks it up.
pub(crate) fn prepare() {
    // SAFETY: a C string.
    NEXT.store(unsafe { libc::dlsym(libc::RTLD_NEXT, c"mmap".as_ptr()) }, Ordering::Relaxed);
}

/// mmap(2).
///
/// # Safety
///
/// As there.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mmap(
    at: *mut c_void,
    len: usize,
    access: c_int,
    flags: c_int,
    file: c_int,
    offset: libc::off_t,
) -> *mut c_void {
    let next = NEXT.load(Ordering::Relaxed);
    // SAFETY: the caller's arguments, unchanged; `NEXT` has nothing, or the function of this name.
    let mapped = unsafe {
        if next.is_null() {
            // Another library's constructor, before this one's.
            let mapped = libc::syscall(libc::SYS_mmap, at, len, access, flags, file, offset);
            std::ptr::with_exposed_provenance_mut(mapped as usize)
        } else {
            std::mem::transmute::<*mut c_void, Mmap>(next)(at, len, access, flags, file, offset)
        }
    };
    if flags & libc::MAP_ANONYMOUS == 0 && mapped != libc::MAP_FAILED {
        let before = FILES.fetch_add(len, Ordering::Relaxed);
        if before.saturating_add(len) >= MANY && !IS_WATCHED.load(Ordering::Relaxed) {
            begin();
        }
    }
    mapped
}

/// mmap64(3): the same call.
///
/// # Safety
///
/// As there.
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
fn begin() {
    if crate::is_own() && !IS_WATCHED.swap(true, Ordering::Relaxed) {
        crate::watch();
    }
}

/// In a child of fork(2), which has its parent's mappings and not its watcher.
pub(crate) fn begin_anew() {
    if IS_WATCHED.load(Ordering::Relaxed) {
        crate::watch();
    }
}
