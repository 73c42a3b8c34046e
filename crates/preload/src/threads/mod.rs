//! The program's threads. A new thread inherits what its maker believes of SIGBUS. It has a stack on which the engine's
//! handler can run (`stacks.rs`). While it waits for an object in cached memory, that object stays in memory
//! (`waiting.rs`).
//!
//! This room calls `own`, `next`, `copy`, `signals`, `heap` and `mappings`.

pub(crate) mod stacks;
pub(crate) mod waiting;

use crate::own::{self, kernel, owner, undisturbed};
use crate::{heap, next, signals};
use fastmap::by_address;
use libc::{c_int, c_ulong, c_void, size_t};
use std::arch::naked_asm;
use std::fs;
use std::sync::Once;
use std::time::Duration;

/// The kernel's frame of a signal takes 11.5 KiB with AMX. A stack below this size may have no room for it, so its
/// thread is given another stack for signals.
const SMALL: size_t = 64 << 10;

/// Data that a new thread needs before the program's function runs.
struct Begin<R> {
    told_blocked: bool,
    needs_stack: bool,
    /// Bytes of its stack.
    stack: size_t,
    run: extern "C-unwind" fn(*mut c_void) -> R,
    arg: *mut c_void,
}

extern "C-unwind" fn begin<R>(begin: *mut c_void) -> R {
    // SAFETY: made by `make` for this thread alone.
    let Begin { told_blocked, needs_stack, stack, run, arg } = *unsafe { Box::from_raw(begin.cast::<Begin<R>>()) };
    own::stack::note_thread(stack);
    signals::inherit(told_blocked);
    if needs_stack {
        stacks::begin();
    }
    run(arg)
}

/// Makes a thread with a stack of `stack` bytes, by calling `make`, which returns zero if it has made the thread.
fn make<R>(
    run: extern "C-unwind" fn(*mut c_void) -> R,
    arg: *mut c_void,
    stack: size_t,
    make: impl FnOnce(extern "C-unwind" fn(*mut c_void) -> R, *mut c_void) -> c_int,
) -> c_int {
    let told_blocked = signals::told_blocked();
    let needs_stack = heap::is_up() || stack < SMALL;
    let own = Box::into_raw(Box::new(Begin { told_blocked, needs_stack, stack, run, arg }));
    let result = make(begin::<R>, own.cast());
    if result != 0 {
        // SAFETY: no thread was made that could take it.
        drop(unsafe { Box::from_raw(own) });
    }
    result
}

/// Bytes of the stack of a thread that is made without attributes.
fn usual_stack() -> size_t {
    // SAFETY: declared as pthread.h has it. The call initializes attributes of this function's own.
    unsafe extern "C" {
        fn pthread_getattr_default_np(attr: *mut libc::pthread_attr_t) -> c_int;
    }
    let mut stack = 0;
    // SAFETY: as above.
    unsafe {
        let mut attr = std::mem::zeroed();
        if pthread_getattr_default_np(&mut attr) == 0 {
            libc::pthread_attr_getstacksize(&attr, &mut stack);
            libc::pthread_attr_destroy(&mut attr);
        }
    }
    stack
}

/// pthread_create(3).
///
/// # Safety
/// The caller keeps the contract of pthread_create(3).
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn pthread_create(
    thread: *mut c_ulong,
    attr: *const c_void,
    run: extern "C-unwind" fn(*mut c_void) -> *mut c_void,
    arg: *mut c_void,
) -> c_int {
    let mut stack = 0;
    if attr.is_null() {
        stack = usual_stack();
    } else {
        // SAFETY: the attributes are the caller's, and initialized.
        unsafe { libc::pthread_attr_getstacksize(attr.cast(), &mut stack) };
    }
    // SAFETY: the caller's contract.
    make(run, arg, stack, |run, arg| unsafe { next::pthread_create(thread, attr, run, arg) })
}

/// thrd_create(3).
///
/// # Safety
/// The caller keeps the contract of thrd_create(3).
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn thrd_create(
    thread: *mut c_ulong,
    run: extern "C-unwind" fn(*mut c_void) -> c_int,
    arg: *mut c_void,
) -> c_int {
    // SAFETY: the caller's contract.
    make(run, arg, usual_stack(), |run, arg| unsafe { next::thrd_create(thread, run, arg) })
}

/// pthread_exit(3). After a call of it in the first thread, the process ends with its last thread. But the engine's
/// threads never end. So a thread is started that watches for the end of the program's last thread.
///
/// # Safety
/// The caller keeps the contract of pthread_exit(3).
#[unsafe(no_mangle)]
#[unsafe(naked)]
pub unsafe extern "C-unwind" fn pthread_exit(value: *mut c_void) -> ! {
    // The stack is unwound from the caller's frame on.
    naked_asm!("push rdi", "call {before}", "pop rdi", "jmp rax", before = sym before_pthread_exit)
}

extern "C" fn before_pthread_exit() -> *mut c_void {
    static NEXT: next::Next = next::Next::new(c"pthread_exit");
    // SAFETY: gettid and getpid have no preconditions.
    let is_first = unsafe { kernel::call(libc::SYS_gettid, []) == Ok(libc::getpid() as usize) };
    if is_first {
        // Noted before the look at the maps. So a thread that maps a file meanwhile sees this note, or this thread sees
        // the map.
        owner::note_first_ended();
        if owner::owns_maps() {
            undisturbed((), watch_for_last);
        }
    }
    // Every C library has `pthread_exit`.
    NEXT.find().unwrap_or(libc::abort as *mut c_void)
}

/// Starts the thread that watches for the end of the program's last thread. Does so once.
pub(crate) fn watch_for_last() {
    static WATCHED: Once = Once::new();
    WATCHED
        .call_once(|| drop(std::thread::Builder::new().name(LAST.into()).spawn(by_address::own_thread(end_with_last))));
}

/// The name of the thread that ends the process in place of the program's last thread.
const LAST: &str = "fastmap-last";

fn end_with_last() {
    // Polled, since programs that end this way are rare. To count every thread's end would cost all other programs.
    while threads_of_program() {
        std::thread::sleep(Duration::from_millis(10));
    }
    std::process::exit(0);
}

/// Whether a thread of the program is left. Threads of the engine and of the kernel (io_uring(7)) do not count. The
/// first thread, which stays as a zombie, does not count either.
fn threads_of_program() -> bool {
    const PF_IO_WORKER: u64 = 0x10;
    let Ok(threads) = fs::read_dir("/proc/self/task") else { return true };
    threads.flatten().any(|thread| {
        // A thread that has ended meanwhile has no such file.
        let line = fs::read_to_string(thread.path().join("stat")).unwrap_or_default();
        let Some((name, after)) = line.rsplit_once(')') else { return false };
        let mut fields = after.split_ascii_whitespace();
        let has_ended = matches!(fields.next(), Some("Z" | "X"));
        let flags = fields.nth(5).and_then(|flags| flags.parse::<u64>().ok()).unwrap_or(0);
        !has_ended && flags & PF_IO_WORKER == 0 && !name.contains("(fastmap-")
    })
}
