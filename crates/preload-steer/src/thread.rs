//! Makes a thread that the C library does not know of, by clone(2).

use std::ffi::{c_int, c_void};
use std::mem::MaybeUninit;
use std::ptr;
use std::sync::atomic::{AtomicUsize, Ordering};

const STACK: usize = 256 << 10;
const PAGE: usize = 4096;

pub(crate) type Body = extern "C" fn(*mut c_void) -> c_int;

unsafe extern "C" {
    /// clone(2), by the C library's other name for it: ThreadSanitizer would take the thread for a child made by fork(2).
    fn __clone(body: Body, stack: *mut c_void, flags: c_int, argument: *mut c_void, ...) -> c_int;
}

/// The main thread's thread-local storage, which lives as long as the process. No code of this library uses it in the watcher, except a panic on
/// its way out.
static STORAGE: AtomicUsize = AtomicUsize::new(0);

/// Notes the calling thread's thread-local storage, which the watcher's thread shares. The caller is the process's first thread.
pub(crate) fn prepare() {
    // SAFETY: has no preconditions.
    STORAGE.store(unsafe { libc::pthread_self() } as usize, Ordering::Relaxed);
}

/// Runs `body` in a thread of this process with a descriptor table of its own. No signal is delivered to the thread. If no further thread can be
/// made, nothing happens.
///
/// `body` makes bare system calls only, since errno is the main thread's. The C library does not know of the thread. So locks still
/// cost nothing in a program of one thread (6 % of SQLite).
pub(crate) fn start(body: Body) {
    let shared = libc::CLONE_VM | libc::CLONE_FS | libc::CLONE_SIGHAND | libc::CLONE_THREAD | libc::CLONE_SYSVSEM;
    without_signals(|| {
        // SAFETY: errno is put back; the stack is the new thread's own.
        unsafe {
            let errno = *libc::__errno_location();
            if let Some(stack) = stack() {
                let storage = STORAGE.load(Ordering::Relaxed);
                // On x86-64 pthread_self(3) is the value of the register.
                let flags = shared | if cfg!(target_arch = "x86_64") { libc::CLONE_SETTLS } else { 0 };
                if __clone(body, stack, flags, ptr::null_mut(), ptr::null_mut::<c_int>(), storage) < 0 {
                    libc::munmap(stack.wrapping_byte_sub(STACK), STACK);
                }
            }
            *libc::__errno_location() = errno;
        }
    });
}

/// Runs `body` while this thread gets no signals.
pub(crate) fn without_signals<T>(body: impl FnOnce() -> T) -> T {
    let (mut all, mut before) = (MaybeUninit::<libc::sigset_t>::uninit(), MaybeUninit::<libc::sigset_t>::uninit());
    // SAFETY: fills sets of this function's own.
    unsafe {
        libc::sigfillset(all.as_mut_ptr());
        libc::pthread_sigmask(libc::SIG_SETMASK, all.as_ptr(), before.as_mut_ptr());
    }
    let result = body();
    // SAFETY: the set was filled above.
    unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, before.as_ptr(), ptr::null_mut()) };
    result
}

/// The top of a new stack, with a page without access below it.
fn stack() -> Option<*mut c_void> {
    // SAFETY: a new mapping.
    unsafe {
        let kind = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE | libc::MAP_STACK;
        let at = libc::mmap(ptr::null_mut(), STACK, libc::PROT_READ | libc::PROT_WRITE, kind, -1, 0);
        if at == libc::MAP_FAILED {
            return None;
        }
        libc::mprotect(at, PAGE, libc::PROT_NONE);
        Some(at.wrapping_byte_add(STACK))
    }
}
