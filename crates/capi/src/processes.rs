//! fork(2): children get kernel mappings at the same places as soon as they touch them, and no engine.

use crate::boundary::Failure;
use fastmap::by_address;
use std::sync::Once;
use std::sync::atomic::{AtomicBool, Ordering};

/// This process was made by fork(2) from one that used the library: locks of its other threads may be locked for ever.
static IS_CHILD: AtomicBool = AtomicBool::new(false);

extern "C" fn before() {
    if !is_child() {
        by_address::before_fork();
    }
}

extern "C" fn in_parent() {
    if !is_child() {
        // SAFETY: `before` ran in this thread.
        unsafe { by_address::in_parent() };
    }
}

extern "C" fn in_child() {
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
    });
}

/// Whether this process is such a child: all its maps are kernel mappings.
pub fn is_child() -> bool {
    IS_CHILD.load(Ordering::Relaxed)
}

/// Fails in such a child, where the engine does not run; elsewhere makes sure of the fork handlers.
pub fn refuse_in_child() -> Result<(), Failure> {
    if is_child() {
        let why = "this is a child made by fork(2), where there is no cache and all maps are the kernel's: call exec to have one";
        return Err(Failure::new(libc::ENOSYS, why));
    }
    prepare();
    Ok(())
}
