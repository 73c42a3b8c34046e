//! Which process maps files through the engine, and whether the engine has left it.
//!
//! A child made by vfork(2) shares this memory but has another process id. So the values here belong to the process that
//! wrote them, and the functions compare process ids.

use libc::pid_t;
use std::sync::atomic::{AtomicI32, AtomicU32, Ordering};

/// The process that maps files through the engine; zero: none.
static OWNER: AtomicI32 = AtomicI32::new(0);

/// The process that this memory belongs to; zero before it is noted.
static SELF: AtomicI32 = AtomicI32::new(0);

fn pid() -> pid_t {
    // SAFETY: getpid has no preconditions. (glibc asks the kernel each time.)
    unsafe { libc::getpid() }
}

/// Notes that this memory belongs to this process. Called at the start, and in children that have a copy of the memory.
pub(crate) fn note_self() {
    SELF.store(pid(), Ordering::Relaxed);
}

/// This process's id, if the memory belongs to another process (vfork(2)). Then all values in it are the other process's.
pub(crate) fn guest() -> Option<pid_t> {
    let (owner, pid) = (SELF.load(Ordering::Relaxed), pid());
    (owner != 0 && owner != pid).then_some(pid)
}

/// The process whose first thread has ended before its other threads (pthread_exit(3)); zero: none.
static FIRST_ENDED: AtomicI32 = AtomicI32::new(0);

/// Notes that this process's first thread ends while other threads go on.
pub(crate) fn note_first_ended() {
    FIRST_ENDED.store(pid(), Ordering::SeqCst);
}

/// Notes that this process maps files through the engine. Returns whether its first thread has ended already.
#[must_use]
pub(crate) fn note_maps() -> bool {
    let own = pid();
    OWNER.store(own, Ordering::SeqCst);
    FIRST_ENDED.load(Ordering::SeqCst) == own
}

/// Whether this process maps files through the engine. False in its children, even in a child that shares its memory.
pub(crate) fn owns_maps() -> bool {
    let owner = OWNER.load(Ordering::SeqCst);
    owner != 0 && owner == pid()
}

/// Whether this process or an ancestor maps files through the engine. This is the best answer without a system call.
pub(crate) fn may_own_maps() -> bool {
    OWNER.load(Ordering::Acquire) != 0
}

/// Notes that this process no longer maps files through the engine.
pub(crate) fn forget_maps() {
    OWNER.store(0, Ordering::Release);
}

/// Whether an ancestor of this process, and not the process itself, maps files through the engine.
pub(crate) fn is_child_of_owner() -> bool {
    let owner = OWNER.load(Ordering::Acquire);
    owner != 0 && owner != pid()
}

/// The number of threads that are now mapping a file through the engine; and the bit `LEFT`.
static STATE: AtomicU32 = AtomicU32::new(0);
/// The bit of `STATE` that says that the engine has left this process, or is about to leave.
const LEFT: u32 = 1 << 31;

/// Held by a thread while it maps a file through the engine.
pub(crate) struct Mapping(());

impl Mapping {
    /// `None`: the engine has left, so the kernel maps new files.
    pub fn begin() -> Option<Self> {
        let mapping = Mapping(());
        (STATE.fetch_add(1, Ordering::SeqCst) & LEFT == 0).then_some(mapping)
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        STATE.fetch_sub(1, Ordering::SeqCst);
    }
}

/// Whether the engine has left this process.
#[inline]
pub(crate) fn has_left() -> bool {
    STATE.load(Ordering::Relaxed) & LEFT != 0
}

/// Notes that the engine leaves this process. Returns false if it had left already.
pub(crate) fn note_left() -> bool {
    STATE.fetch_or(LEFT, Ordering::SeqCst) & LEFT == 0
}

/// Whether the engine has left and no thread is still mapping a file through it.
pub(crate) fn no_mapping_under_way() -> bool {
    STATE.load(Ordering::SeqCst) == LEFT
}
