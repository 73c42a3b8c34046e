//! Which process maps files through the engine, and whether the engine has left it.
//!
//! A child made by vfork(2) shares this memory but has another process id, so each question compares ids: what is kept
//! here belongs to the process that wrote it.

use libc::pid_t;
use std::sync::atomic::{AtomicI32, AtomicU32, Ordering};

/// The process that maps files through the engine; zero: none yet.
static OWNER: AtomicI32 = AtomicI32::new(0);

/// The process that this memory belongs to: set at the start and in children that have a copy of it; zero before.
static SELF: AtomicI32 = AtomicI32::new(0);

fn pid() -> pid_t {
    // SAFETY: getpid has no preconditions. (glibc asks the kernel each time.)
    unsafe { libc::getpid() }
}

/// Notes that this memory belongs to this process: at the start, and in children that have a copy of it.
pub(crate) fn note_self() {
    SELF.store(pid(), Ordering::Relaxed);
}

/// This process's id, if the memory is another's (vfork(2)), and so all that is kept in it.
pub(crate) fn guest() -> Option<pid_t> {
    let (owner, pid) = (SELF.load(Ordering::Relaxed), pid());
    (owner != 0 && owner != pid).then_some(pid)
}

/// The process whose first thread has ended before the others (pthread_exit(3)); zero: none.
static FIRST_ENDED: AtomicI32 = AtomicI32::new(0);

/// Notes that this process's first thread ends, and others go on.
pub(crate) fn note_first_ended() {
    FIRST_ENDED.store(pid(), Ordering::SeqCst);
}

/// Notes that this process maps files through the engine. True: its first thread has ended already.
#[must_use]
pub(crate) fn note_maps() -> bool {
    let own = pid();
    OWNER.store(own, Ordering::SeqCst);
    FIRST_ENDED.load(Ordering::SeqCst) == own
}

/// Whether this process maps files through the engine; false in its children, even in one that shares its memory.
pub(crate) fn owns_maps() -> bool {
    let owner = OWNER.load(Ordering::SeqCst);
    owner != 0 && owner == pid()
}

/// Whether this process or an ancestor maps files through the engine: the best answer without a system call.
pub(crate) fn may_own_maps() -> bool {
    OWNER.load(Ordering::Acquire) != 0
}

/// Notes that this process does not map files through the engine any more.
pub(crate) fn forget_maps() {
    OWNER.store(0, Ordering::Release);
}

/// Whether an ancestor of this process, and not the process itself, maps files through the engine.
pub(crate) fn is_child_of_owner() -> bool {
    let owner = OWNER.load(Ordering::Acquire);
    owner != 0 && owner != pid()
}

/// The number of threads that are mapping a file through the engine, and `LEFT`.
static STATE: AtomicU32 = AtomicU32::new(0);
/// The engine has left this process, or is about to.
const LEFT: u32 = 1 << 31;

/// Held by a thread while it maps a file through the engine.
pub(crate) struct Mapping(());

impl Mapping {
    /// `None`: the engine has left, and new files are the kernel's.
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

/// Notes that the engine leaves this process; false: it had left already.
pub(crate) fn note_left() -> bool {
    STATE.fetch_or(LEFT, Ordering::SeqCst) & LEFT == 0
}

/// Whether no thread is mapping a file through the engine any more, once it has left.
pub(crate) fn no_mapping_under_way() -> bool {
    STATE.load(Ordering::SeqCst) == LEFT
}
