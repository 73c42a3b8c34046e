//! Entering the engine from a call of the program, and guarding this library's own state.

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

/// A signal mask as the kernel has it: glibc's is longer, and its calls keep two signals of its own out of it.
pub(crate) type KernelMask = c_ulong;

/// The bit of SIGBUS in a kernel mask.
pub(crate) const SIGBUS: KernelMask = 1 << (libc::SIGBUS - 1);

/// Changes this thread's real mask, which may differ from what the program is told; returns the one before.
pub(crate) fn real_mask(how: c_int, mask: KernelMask) -> KernelMask {
    let mut before: KernelMask = 0;
    // SAFETY: both masks are ours, of the size that the kernel is told.
    unsafe { libc::syscall(libc::SYS_rt_sigprocmask, how, &mask, &mut before, size_of::<KernelMask>()) };
    before
}

/// Keeps this thread from being interrupted until dropped: by handlers of the program, which might call what is being
/// called and wait for a lock that their own thread holds, and by pthread_cancel(3), which would unwind through the
/// engine. SIGBUS stays as it is: the engine may touch a map.
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

// SAFETY: declared as pthread.h has it; any numbers will do.
unsafe extern "C" {
    safe fn pthread_setcancelstate(state: c_int, before: &mut c_int) -> c_int;
}

/// Calls the engine; errno is as before, and what is allocated meanwhile is not the program's to leak. A panic, which must not cross into C, becomes `failed`.
pub(crate) fn caught<T>(failed: T, call: impl FnOnce() -> T) -> T {
    let before = errno();
    let unseen = fastmap::Unseen::begin();
    let call = std::panic::AssertUnwindSafe(call);
    let result = with_room(|| std::panic::catch_unwind(call)).unwrap_or(failed);
    drop(unseen);
    set_errno(before);
    result
}

/// Calls the engine as `caught` does, and nothing interrupts this thread meanwhile.
pub(crate) fn undisturbed<T>(failed: T, call: impl FnOnce() -> T) -> T {
    caught(failed, || {
        let _quiet = Quiet::begin();
        call()
    })
}

/// A lock that is held with every signal blocked: a handler that calls a wrapper finds it free, or held by another
/// thread, which goes on. No map is touched meanwhile. It is held across fork(2), so that a child finds it free and its
/// value whole.
pub(crate) struct Guarded<T: 'static> {
    value: Mutex<T>,
    /// The guard of the thread that forks, from before the fork until after it.
    forking: UnsafeCell<Option<Open<T>>>,
}

struct Open<T: 'static> {
    value: MutexGuard<'static, T>,
    mask: KernelMask,
}

// SAFETY: `forking` is only touched by the thread that holds the lock.
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

    /// Before fork(2), in the thread that calls it.
    pub fn before_fork(&'static self) {
        let open = self.open();
        // SAFETY: this thread holds the lock.
        unsafe { *self.forking.get() = Some(open) };
    }

    /// After it, in the parent, or when it failed, and in the child.
    pub fn after_fork(&'static self) {
        // SAFETY: `before_fork` came before, in this thread or the one that this child is made of.
        if let Some(Open { value, mask }) = unsafe { (*self.forking.get()).take() } {
            drop(value);
            real_mask(libc::SIG_SETMASK, mask);
        }
    }
}
