//! Children of fork(2) that go on without exec(2) have a watcher of their own.

/// Registers [`begin_anew`] to run in children.
pub(crate) fn prepare() {
    // SAFETY: a function that lives as long as the process: nothing unloads a preloaded library.
    unsafe { libc::pthread_atfork(None, None, Some(begin_anew)) };
}

extern "C" fn begin_anew() {
    crate::allocator::begin_anew();
    crate::REPORT.set("");
    crate::prepare();
    crate::mapped::begin_anew();
}
