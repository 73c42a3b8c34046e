//! fork(2): children get kernel mappings at the same places as soon as they touch them, and no engine.

use crate::boundary::Failure;
use fastmap::calls;
use std::sync::Once;
use std::sync::atomic::{AtomicBool, Ordering};

/// This process was made by fork(2) from one that used the library: locks of its other threads may be locked for ever.
static IS_CHILD: AtomicBool = AtomicBool::new(false);

extern "C" fn before() {
    if !is_child() {
        calls::before_fork();
    }
}

extern "C" fn in_parent() {
    if !is_child() {
        // SAFETY: `before` ran in this thread.
        unsafe { calls::in_parent() };
    }
}

extern "C" fn in_child() {
    // SAFETY: `before` ran in the thread that this one was made of, unless that was a child as well.
    unsafe { calls::in_child() };
    IS_CHILD.store(true, Ordering::Relaxed);
}

/// Has fork(2) take care of maps; before there is one.
pub fn prepare() {
    static PREPARED: Once = Once::new();
    PREPARED.call_once(|| {
        // SAFETY: functions of this library, which stays loaded.
        unsafe { libc::pthread_atfork(Some(before), Some(in_parent), Some(in_child)) };
    });
}

/// Whether all maps are the kernel's here.
pub fn is_child() -> bool {
    IS_CHILD.load(Ordering::Relaxed)
}

/// Fails where the engine does not run.
pub fn refuse_in_child() -> Result<(), Failure> {
    if is_child() {
        let why = "this is a child made by fork(2), where there is no cache and all maps are the kernel's: call exec to have one";
        return Err(Failure::new(libc::ENOSYS, why));
    }
    prepare();
    Ok(())
}
