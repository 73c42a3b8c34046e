//! Children with a copy of the memory: fork(2) by its handlers, `_Fork(3)` and clone(2).

use crate::own::{allocator, caught, errno, owner, remembered, set_errno, undisturbed};
use crate::threads::waiting;
use crate::{heap, next, report};
use fastmap::by_address;
use libc::{c_int, c_long, c_void, pid_t};
use std::cell::Cell;
use std::ptr;
use std::sync::Once;

thread_local! {
    /// This thread is between `before_fork` and the handler after it, in a process that owns maps.
    static FORKING: Cell<bool> = const { Cell::new(false) };
}

/// Registers what is done around fork(2), once, before any other handler is registered: so a child's maps are there
/// when handlers of the program run in it, and still there when the last of them has run before the fork.
pub(crate) fn start() {
    static STARTED: Once = Once::new();
    STARTED.call_once(|| {
        owner::note_self();
        // SAFETY: functions of this library, which is never unloaded, so that no handle need be given.
        unsafe { next::__register_atfork(Some(before_fork), Some(in_parent), Some(in_child), ptr::null_mut()) };
    });
}

/// Called by pthread_atfork(3), which is linked into each library that calls it: their constructors may run before this
/// library's.
///
/// # Safety
/// The caller keeps the contract of pthread_atfork(3).
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn __register_atfork(
    before: next::AtFork,
    in_parent: next::AtFork,
    in_child: next::AtFork,
    library: *mut c_void,
) -> c_int {
    start();
    // SAFETY: the caller's contract.
    unsafe { next::__register_atfork(before, in_parent, in_child, library) }
}

extern "C" fn before_fork() {
    if owner::owns_maps() {
        FORKING.set(true);
        // Writing takes long, so it is done before `by_address::before_fork` blocks signals until the fork is over.
        undisturbed((), by_address::save_all);
        undisturbed((), heap::before_fork);
    }
    // A child of vfork(2) has its parent's table, and must not lock it.
    if owner::guest().is_none() {
        caught((), by_address::before_fork);
    }
    allocator::HEAP.before_fork();
}

extern "C" fn in_parent() {
    allocator::HEAP.after_fork();
    report::note_child();
    // SAFETY: `before_fork` came before, in this thread.
    caught((), || unsafe { by_address::in_parent() });
    if FORKING.replace(false) {
        caught((), heap::in_parent);
    }
}

extern "C" fn in_child() {
    owner::note_self();
    allocator::HEAP.after_fork();
    report::in_child();
    let was_owner = FORKING.replace(false);
    // In the children of children too.
    // SAFETY: `before_fork` came before, in the thread that this child is made of; without it the call does nothing.
    caught((), || unsafe { by_address::in_child() });
    if was_owner {
        caught((), heap::in_child);
    }
}

/// `_Fork(3)`: fork(2) without pthread_atfork(3).
#[unsafe(no_mangle)]
#[allow(non_snake_case, reason = "the C library's name")]
pub extern "C-unwind" fn _Fork() -> pid_t {
    // SAFETY: `_Fork` returns zero in the child.
    unsafe { forking(|| next::_Fork()) }
}

/// Brackets a call that makes a child with a copy of the memory without the C library's fork(3).
///
/// # Safety
/// `call` returns zero in the child.
pub(crate) unsafe fn forking<P: PartialEq + From<u8>>(call: impl FnOnce() -> P) -> P {
    before_fork();
    let child = call();
    let before = errno();
    if child == P::from(0) {
        in_child()
    } else {
        in_parent()
    }
    set_errno(before);
    child
}

/// Before clone(2) with these flags makes something that goes on in this memory, perhaps with descriptors of its own.
pub(crate) fn note_shared(flags: c_long) {
    if flags & c_long::from(libc::CLONE_VM) != 0 && flags & c_long::from(libc::CLONE_FILES) == 0 {
        remembered::divide();
    }
}

/// clone(2) as the C library has it. Without `CLONE_VM` it is a fork(2) in which a function is called.
///
/// # Safety
/// The caller keeps the contract of clone(2).
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn clone(
    run: extern "C" fn(*mut c_void) -> c_int,
    stack: *mut c_void,
    flags: c_int,
    arg: *mut c_void,
    parent: *mut c_void,
    tls: *mut c_void,
    child: *mut c_void,
) -> c_int {
    struct Run(extern "C" fn(*mut c_void) -> c_int, *mut c_void);
    extern "C" fn begin(own: *mut c_void) -> c_int {
        in_child();
        // SAFETY: `own` is on the parent's stack, of which this child has a copy.
        let Run(run, arg) = unsafe { own.cast::<Run>().read() };
        run(arg)
    }
    // SAFETY: the caller's contract.
    unsafe {
        if flags & libc::CLONE_VM != 0 {
            note_shared(c_long::from(flags));
            waiting::before_clone(c_long::from(flags), child);
            return next::clone(run, stack, flags, arg, parent, tls, child);
        }
        before_fork();
        let mut own = Run(run, arg);
        let made = next::clone(begin, stack, flags, ptr::from_mut(&mut own).cast(), parent, tls, child);
        let before = errno();
        in_parent();
        set_errno(before);
        made
    }
}
