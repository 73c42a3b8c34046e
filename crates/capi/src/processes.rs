//! fork(2). A child has no engine. It gets kernel mappings at the same addresses as soon as it touches them, and objects window by window.

use crate::boundary::Failure;
use crate::{caches, objects, said};
use fastmap::by_address;
use std::any::Any;
use std::cell::Cell;
use std::sync::Once;
use std::sync::atomic::{AtomicBool, Ordering};

/// This process was made by fork(2) from one that used the library: locks of its other threads may be locked for ever.
static IS_CHILD: AtomicBool = AtomicBool::new(false);

thread_local! {
    /// This library's locks, held while this thread forks. A child opens objects, too, and would wait for ever for a lock that another thread of
    /// its parent held.
    static LOCKS: Cell<Option<Box<dyn Any>>> = const { Cell::new(None) };
}

extern "C" fn before() {
    if !is_child() {
        by_address::before_fork();
    }
    // No thread waits for a lock of the engine while it holds one of these.
    let locks = (objects::lock(), caches::lock());
    let _ = LOCKS.try_with(|held| held.set(Some(Box::new(locks))));
}

fn unlock() {
    let _ = LOCKS.try_with(Cell::take);
}

extern "C" fn in_parent() {
    unlock();
    if !is_child() {
        // SAFETY: `before` ran in this thread.
        unsafe { by_address::in_parent() };
    }
}

extern "C" fn in_child() {
    unlock();
    // SAFETY: `before` ran in the thread that forked; in the child of a child the call does nothing more.
    unsafe { by_address::in_child() };
    IS_CHILD.store(true, Ordering::Relaxed);
}

/// Registers the handlers of fork(2), before the first map is made.
pub fn prepare() {
    static PREPARED: Once = Once::new();
    PREPARED.call_once(|| {
        // SAFETY: functions of this library, which stays loaded.
        unsafe { libc::pthread_atfork(Some(before), Some(in_parent), Some(in_child)) };
        said::listen();
    });
}

/// Whether this process is a child made by fork(2) of one that used the library: all its maps of files are kernel mappings.
pub fn is_child() -> bool {
    IS_CHILD.load(Ordering::Relaxed)
}

/// Fails in a child made by fork(2), where the engine does not run. Elsewhere registers the handlers of fork(2).
pub fn refuse_in_child() -> Result<(), Failure> {
    if is_child() {
        let why = "this is a child made by fork(2), where there is no cache and all maps are the kernel's: call exec to have one";
        return Err(Failure::new(libc::ENOSYS, why));
    }
    prepare();
    Ok(())
}
