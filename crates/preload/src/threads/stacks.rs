//! Stacks in cached memory. The kernel must find them in memory when it delivers a signal.
//!
//! A miss raises SIGBUS, and the kernel puts its frame onto the stack of the thread that missed. If that stack is
//! absent itself (makecontext(3) on memory from `malloc`), or too small for the frame, the process ends. So:
//!
//! * A thread without an alternate signal stack is given one. In a program with a heap that holds for every thread, in
//!   other programs for threads whose stack is small.
//! * Stacks that the program names to the kernel or to the C library are pinned for good.
//! * An alternate stack that is too small for the frame is replaced by one of this library's, with a message. If the
//!   process has maps of the engine, an alternate stack must also have room for a handler of the program, and is
//!   replaced otherwise.
//!
//! The C library saves and sets signal masks in contexts (makecontext(3)) by a system call on the context itself. The
//! call is repeated until the context's page is present.

use crate::copy::held;
use crate::own::{PAGE, errno, owner, set_errno, undisturbed};
use crate::{next, say};
use fastmap::by_address;
use libc::{c_int, c_void, size_t, stack_t, ucontext_t};
use std::arch::naked_asm;
use std::cell::Cell;
use std::ptr::{null, null_mut};
use std::sync::atomic::{AtomicBool, Ordering};

/// Bytes of an alternate stack: room for the engine's handler, for a handler of the program on top of it, and for the
/// registers that a processor saves (AVX-512, AMX).
const ROOM: usize = 64 << 10;

/// An alternate signal stack made by this library: the first address of its mapping.
struct Alternate(*mut c_void);

thread_local! {
    /// This thread's alternate stack. It is unmapped when the thread ends.
    static ALTERNATE: Cell<Option<Alternate>> = const { Cell::new(None) };
}

/// Gives this thread an alternate signal stack if it has none.
pub(crate) fn begin() {
    if current().ss_flags & libc::SS_DISABLE != 0 {
        replace(0);
    }
}

/// Gives this thread an alternate signal stack in place of any other, with these flags (`SS_AUTODISARM`). False: there
/// is no memory.
fn replace(flags: c_int) -> bool {
    let new = Alternate::new(flags);
    let made = new.is_some();
    ALTERNATE.set(new);
    made
}

impl Alternate {
    fn new(ss_flags: c_int) -> Option<Self> {
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
        // SAFETY: the mapping is new, and only this thread has it. Its first page stops an overflow.
        unsafe {
            let at = next::mmap(null_mut(), PAGE + ROOM, libc::PROT_READ | libc::PROT_WRITE, flags, -1, 0);
            if at == libc::MAP_FAILED {
                return None;
            }
            next::mprotect(at, PAGE, libc::PROT_NONE);
            let stack = stack_t { ss_sp: at.byte_add(PAGE), ss_flags, ss_size: ROOM };
            next::sigaltstack(&stack, null_mut());
            Some(Alternate(at))
        }
    }
}

impl Drop for Alternate {
    fn drop(&mut self) {
        // SAFETY: `new` made the mapping. If it is still the alternate stack it is disabled first; the program may have
        // set another.
        unsafe {
            if current().ss_sp == self.0.byte_add(PAGE) {
                let none = stack_t { ss_sp: null_mut(), ss_flags: libc::SS_DISABLE, ss_size: 0 };
                next::sigaltstack(&none, null_mut());
            }
            next::munmap(self.0, PAGE + ROOM);
        }
    }
}

/// This thread's alternate signal stack.
fn current() -> stack_t {
    // SAFETY: sigaltstack fills the zeroed structure.
    unsafe {
        let mut now: stack_t = std::mem::zeroed();
        next::sigaltstack(null(), &mut now);
        now
    }
}

/// The bytes that the kernel may put onto a stack when it delivers a signal. On a smaller stack no page fault can be
/// served.
fn least() -> usize {
    // SAFETY: getauxval has no preconditions. It returns zero where the kernel does not say.
    unsafe { libc::getauxval(libc::AT_MINSIGSTKSZ) as usize }
}

/// Bytes that suffice for a handler of the program, and for the frame of a page fault in it.
fn sufficient() -> usize {
    2 * least() + (8 << 10)
}

/// Pins a stack for good. False: that is not possible, which is said once.
fn keep(stack: *mut c_void, len: usize) -> bool {
    static SAID: AtomicBool = AtomicBool::new(false);
    // SAFETY: the program keeps the range mapped while it is a stack.
    let held = undisturbed(None, || unsafe { by_address::pin(stack as usize, len) });
    let kept = held.is_some();
    std::mem::forget(held);
    if !kept && !SAID.swap(true, Ordering::Relaxed) {
        say(format_args!(
            "a stack of {len} bytes cannot be kept in memory: the cache is too small for the program's stacks"
        ));
    }
    kept
}

/// sigaltstack(2).
///
/// # Safety
/// The caller keeps the contract of sigaltstack(2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sigaltstack(new: *const stack_t, old: *mut stack_t) -> c_int {
    // SAFETY: the caller's contract. The kernel reads and writes copies of the descriptions on this thread's stack.
    unsafe {
        let wanted = new.as_ref().copied();
        if let Some(stack) = wanted
            && stack.ss_flags & libc::SS_DISABLE == 0
            && held(stack.ss_sp, stack.ss_size)
            && !keep(stack.ss_sp, stack.ss_size)
        {
            set_errno(libc::ENOMEM);
            return -1;
        }
        if let Some(stack) = wanted
            && stack.ss_flags & libc::SS_DISABLE == 0
            && (stack.ss_size < least() || stack.ss_size < sufficient() && owner::owns_maps())
        {
            static SAID: AtomicBool = AtomicBool::new(false);
            if stack.ss_size < least() && !SAID.swap(true, Ordering::Relaxed) {
                say(format_args!(
                    "an alternate signal stack of {} bytes is too small: this processor's registers take up to {} (AT_MINSIGSTKSZ); a larger one takes its place",
                    stack.ss_size,
                    least()
                ));
            }
            let before = current();
            if before.ss_flags & libc::SS_ONSTACK == 0 && replace(stack.ss_flags) {
                if !old.is_null() {
                    old.write(before);
                }
                return 0;
            }
        }
        let mut before: stack_t = std::mem::zeroed();
        let wanted = wanted.as_ref().map_or(null(), std::ptr::from_ref);
        let result = next::sigaltstack(wanted, if old.is_null() { old } else { &mut before });
        if result == 0 && !old.is_null() {
            old.write(before);
        }
        result
    }
}

/// pthread_attr_setstack(3).
///
/// # Safety
/// The caller keeps the contract of pthread_attr_setstack(3).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pthread_attr_setstack(attr: *mut c_void, stack: *mut c_void, len: size_t) -> c_int {
    if held(stack, len) && !keep(stack, len) {
        return libc::EINVAL;
    }
    // SAFETY: the caller's contract.
    unsafe { next::pthread_attr_setstack(attr, stack, len) }
}

/// Brings the signal mask of a context into memory, writable if it is about to be written.
///
/// # Safety
/// `context` points to a ucontext_t.
unsafe fn touch(context: *const c_void, writable: bool) {
    // SAFETY: the mask is inside the context. Its value may be undefined, and is stored back unchanged.
    unsafe {
        let mask = (&raw const (*context.cast::<ucontext_t>()).uc_sigmask).cast::<u64>().cast_mut();
        let value = mask.read_volatile();
        if writable {
            mask.write_volatile(value);
        }
    }
}

/// swapcontext(3).
///
/// # Safety
/// The caller keeps the contract of swapcontext(3).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn swapcontext(to: *mut c_void, from: *const c_void) -> c_int {
    // SAFETY: the caller's contract. A return to this context is a return to this frame, which is still there.
    unsafe {
        loop {
            let result = next::swapcontext(to, from);
            if result == 0 || !is_absent(to) && !is_absent(from) {
                return result;
            }
            touch(to, true);
            touch(from, false);
        }
    }
}

/// setcontext(3).
///
/// # Safety
/// The caller keeps the contract of setcontext(3).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn setcontext(from: *const c_void) -> c_int {
    // SAFETY: the caller's contract. The call returns only if it fails.
    unsafe {
        loop {
            let result = next::setcontext(from);
            if !is_absent(from) {
                return result;
            }
            touch(from, false);
        }
    }
}

/// Whether a call may have failed because this context was absent.
fn is_absent(context: *const c_void) -> bool {
    held(context, size_of::<ucontext_t>()) && errno() == libc::EFAULT
}

/// getcontext(3). It returns to its caller's frame once more for each later setcontext(3). So it is jumped to, not
/// called.
///
/// # Safety
/// The caller keeps the contract of getcontext(3).
#[unsafe(no_mangle)]
#[unsafe(naked)]
pub unsafe extern "C" fn getcontext(to: *mut c_void) -> c_int {
    naked_asm!(
        "push rdi",
        "call {before}",
        "pop rdi",
        "jmp rax",
        before = sym before_getcontext
    )
}

unsafe extern "C" fn before_getcontext(to: *mut c_void) -> *mut c_void {
    static NEXT: next::Next = next::Next::new(c"getcontext");
    if held(to, size_of::<ucontext_t>()) {
        // SAFETY: the caller's contract.
        unsafe { touch(to, true) };
    }
    // Every C library that has `swapcontext` has `getcontext`.
    NEXT.find().unwrap_or(null_mut())
}
