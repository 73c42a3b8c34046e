//! How a call of the program enters the engine, and how this library's own state is guarded.

use super::kernel;
use super::stack::with_room;
use libc::{c_int, c_ulong};
use std::cell::UnsafeCell;
use std::sync::{Mutex, MutexGuard};

/// This thread's errno.
pub(crate) fn errno() -> c_int {
    // SAFETY: the address is this thread's own, and always valid.
    unsafe { *libc::__errno_location() }
}

/// Sets this thread's errno.
pub(crate) fn set_errno(number: c_int) {
    // SAFETY: the address is this thread's own, and always valid.
    unsafe { *libc::__errno_location() = number };
}

/// A signal mask as the kernel has it. glibc's masks are longer, and its functions never block two signals that glibc
/// uses itself.
pub(crate) type KernelMask = c_ulong;

/// The bit of SIGBUS in a kernel mask.
pub(crate) const SIGBUS: KernelMask = 1 << (libc::SIGBUS - 1);

/// Changes this thread's real signal mask, and returns the mask before. The program may be told of a different mask.
pub(crate) fn real_mask(how: c_int, mask: KernelMask) -> KernelMask {
    let mut before: KernelMask = 0;
    let masks = [(&raw const mask).expose_provenance(), (&raw mut before).expose_provenance()];
    // SAFETY: both masks are this function's, of the size that the kernel is told.
    let _ =
        unsafe { kernel::call(libc::SYS_rt_sigprocmask, [how as usize, masks[0], masks[1], size_of::<KernelMask>()]) };
    before
}

/// Until it is dropped, nothing interrupts this thread:
///
/// * no handler of the program, which might call the same function and wait for a lock that its own thread holds;
/// * no pthread_cancel(3), which would unwind through the engine.
///
/// SIGBUS stays as it is, since the engine may touch a map.
pub(crate) struct Quiet {
    mask: KernelMask,
    cancel: c_int,
}

impl Quiet {
    pub fn begin() -> Self {
        let mask = real_mask(libc::SIG_BLOCK, !SIGBUS);
        let mut cancel = 0;
        pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &mut cancel);
        Quiet { mask, cancel }
    }
}

impl Drop for Quiet {
    fn drop(&mut self) {
        pthread_setcancelstate(self.cancel, &mut 0);
        real_mask(libc::SIG_SETMASK, self.mask);
    }
}

const PTHREAD_CANCEL_DISABLE: c_int = 1;

// SAFETY: declared as in pthread.h; the function takes any number.
unsafe extern "C" {
    safe fn pthread_setcancelstate(state: c_int, before: &mut c_int) -> c_int;
}

/// Calls the engine. errno stays as it was. LeakSanitizer does not count the call's allocations as leaks. A panic must not
/// cross into C, so the result is `failed` then.
pub(crate) fn caught<T>(failed: T, call: impl FnOnce() -> T) -> T {
    let before = errno();
    let unseen = fastmap::Unseen::begin();
    let call = std::panic::AssertUnwindSafe(call);
    let result = with_room(|| std::panic::catch_unwind(call)).unwrap_or(failed);
    drop(unseen);
    set_errno(before);
    result
}

/// Calls the engine as `caught` does, and keeps this thread from being interrupted (`Quiet`).
pub(crate) fn undisturbed<T>(failed: T, call: impl FnOnce() -> T) -> T {
    caught(failed, || {
        let _quiet = Quiet::begin();
        call()
    })
}

/// A lock that is held with every signal blocked. So a handler that calls a wrapper finds the lock free, or held by
/// another thread, which goes on. The holder touches no map. The lock is held across fork(2), so that a child finds it
/// free and its value whole.
pub(crate) struct Guarded<T: 'static> {
    value: Mutex<T>,
    /// The guard of the thread that forks, from before fork(2) until after it.
    forking: UnsafeCell<Option<Open<T>>>,
}

struct Open<T: 'static> {
    value: MutexGuard<'static, T>,
    mask: KernelMask,
}

// SAFETY: only the thread that holds the lock touches `forking`.
unsafe impl<T: Send> Sync for Guarded<T> {}

impl<T> Guarded<T> {
    pub const fn new(value: T) -> Self {
        Guarded { value: Mutex::new(value), forking: UnsafeCell::new(None) }
    }

    fn open(&'static self) -> Open<T> {
        let mask = real_mask(libc::SIG_SETMASK, KernelMask::MAX);
        Open { value: self.value.lock().unwrap_or_else(|poison| poison.into_inner()), mask }
    }

    pub fn with<R>(&'static self, call: impl FnOnce(&mut T) -> R) -> R {
        let Open { mut value, mask } = self.open();
        let result = call(&mut value);
        drop(value);
        real_mask(libc::SIG_SETMASK, mask);
        result
    }

    /// Called before fork(2), in the thread that forks.
    pub fn before_fork(&'static self) {
        let open = self.open();
        // SAFETY: this thread holds the lock.
        unsafe { *self.forking.get() = Some(open) };
    }

    /// Called after fork(2) in the child, and in the parent, even if fork(2) failed.
    pub fn after_fork(&'static self) {
        // SAFETY: `before_fork` ran before, in this thread or in the thread that this child is a copy of, so it holds the lock.
        if let Some(Open { value, mask }) = unsafe { (*self.forking.get()).take() } {
            drop(value);
            real_mask(libc::SIG_SETMASK, mask);
        }
    }
}
