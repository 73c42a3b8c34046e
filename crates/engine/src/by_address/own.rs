//! One thread at a time changes what lies where: by mmap(2), munmap(2), mprotect(2), mremap(2), or the conversion of a file to kernel mappings.
//!
//! Such a change is several steps: it looks at the table of maps, flushes, unmaps or maps, and notes what it did. The table's lock is free
//! between the steps, for a step may wait for a disk. So the thread owns the table from its first look to its last note, and no other
//! thread changes it meanwhile. Threads that only look ([`look`]), or keep pages in memory ([`note_kept`]), do not wait for the owner.
//!
//! The order of waiting: the ownership, the table of files, the table of maps. The owner waits for no thread that may want to own the table. It
//! waits for pins, a second at most, and for a file that is being closed, by a thread that owns nothing.

use super::lookup::{MAPS, publish};
use super::table::Table;
use crate::sys::fork;
use crate::sys::lock::Lock;
use crate::sys::signal::{Blocked, Uncancelled};
use std::marker::PhantomData;
use std::sync::LazyLock;
use std::sync::atomic::{AtomicI32, AtomicU32, Ordering};

/// Held by the owner.
static LOCK: LazyLock<Lock> = LazyLock::new(Lock::new);

/// The thread that owns the table; zero: none.
static OWNER: AtomicI32 = AtomicI32::new(0);

/// How often the owner has taken the table and not given it back.
static DEPTH: AtomicU32 = AtomicU32::new(0);

/// This thread owns the table of maps until this is dropped. Signals, but for SIGBUS, are blocked meanwhile: a handler of the program's
/// that maps or unmaps would find a change half done.
#[must_use]
#[derive(Debug)]
pub struct Owner {
    /// Of a child made by fork(2), which has no maps of the engine: nothing is owned.
    is_child: bool,
    _uncancelled: Uncancelled,
    _blocked: Blocked,
    /// It stays in its thread.
    _thread: PhantomData<*const ()>,
}

/// Waits until no other thread owns the table of maps, and owns it. A thread may own it more than once.
///
/// A program uses it to ask for a file's maps and then map the file itself: nobody changes the maps in between.
///
/// ```
/// let owner = fastmap::by_address::own();
/// drop(owner);
/// ```
pub fn own() -> Owner {
    let (blocked, uncancelled) = (Blocked::but_sigbus(), Uncancelled::begin());
    // In a child made by clone(2) the owner may be a thread of the parent's, which is not there.
    let is_child = fork::is_child();
    if !is_child {
        take();
    }
    Owner { is_child, _uncancelled: uncancelled, _blocked: blocked, _thread: PhantomData }
}

fn take() {
    // SAFETY: no memory.
    let this = unsafe { libc::syscall(libc::SYS_gettid) as i32 };
    if OWNER.load(Ordering::Relaxed) != this {
        std::mem::forget(LOCK.lock());
        OWNER.store(this, Ordering::Relaxed);
    }
    DEPTH.fetch_add(1, Ordering::Relaxed);
}

fn give() {
    if DEPTH.fetch_sub(1, Ordering::Relaxed) == 1 {
        OWNER.store(0, Ordering::Relaxed);
        // SAFETY: this thread took it, or is the one that a child was made of.
        unsafe { LOCK.release() };
    }
}

impl Owner {
    /// Changes the table.
    pub(super) fn change<R>(&self, then: impl FnOnce(&mut Table) -> R) -> R {
        MAPS.with(|table| {
            let result = then(table);
            publish(table);
            result
        })
    }
}

impl Drop for Owner {
    fn drop(&mut self) {
        if !self.is_child {
            give();
        }
    }
}

/// Locks the table for the thread that forks, until [`thaw`], and owns it if it `owns`: then a child finds no change half done. The caller has
/// blocked signals.
pub(super) fn freeze(owns: bool) {
    LazyLock::force(&LOCK);
    if owns {
        take();
    }
    MAPS.freeze();
}

/// Ends [`freeze`], in the parent or in the child.
///
/// # Safety
/// This thread has frozen it, and not thawed it since, or is the one that a child was made of.
pub(super) unsafe fn thaw(owns: bool) {
    // SAFETY: the caller's contract.
    unsafe { MAPS.thaw() };
    if owns {
        give();
    }
}

/// In a child whose table was frozen and not owned: the owner, if there was one, is a thread of the parent's.
pub(super) fn disown_in_child() {
    OWNER.store(0, Ordering::Relaxed);
    DEPTH.store(0, Ordering::Relaxed);
    // SAFETY: no thread of this process has it.
    unsafe { LOCK.release() };
}

/// Looks at the table. It may change as soon as this returns, unless this thread owns it.
pub(super) fn look<R>(then: impl FnOnce(&Table) -> R) -> R {
    MAPS.with(|table| then(table))
}

/// Changes the notes of what keeps pages in memory (`keep.rs`, `locks.rs`), and looks at the table in the same step.
pub(super) fn note_kept<R>(then: impl FnOnce(&mut Table) -> R) -> R {
    MAPS.with(then)
}
