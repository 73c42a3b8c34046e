//! Stacks for calls into the engine.
//!
//! A program's thread may have less stack than such a call takes (`ulimit -s 64`, `pthread_attr_setstacksize`,
//! coroutines, a handler's alternate stack). A call that has less than [`NEEDED`] bytes, or for which the size is not
//! known, runs on a stack of this library.

use super::{PAGE, kernel};
use libc::c_void;
use std::arch::naked_asm;
use std::cell::Cell;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicPtr, Ordering};

/// The least stack for a call into the engine, bytes. The first mapping makes threads and queues, and takes half of it.
const NEEDED: usize = 192 << 10;
/// The size of a stack of this library, bytes. Its lowest page is a guard that stops an overflow.
const SIZE: usize = 384 << 10;
/// The part of a thread's stack that its frames do not have, bytes: thread-local storage at the top, the guard at the
/// bottom.
const TAKEN: usize = 64 << 10;

/// Free stacks of this library.
static FREE: [AtomicPtr<u8>; 16] = [const { AtomicPtr::new(null_mut()) }; 16];

thread_local! {
    /// The bounds of the stack that this thread runs on: its lowest usable address, and its top. Zeros: not known.
    static OWN: Cell<(usize, usize)> = const { Cell::new((0, 0)) };
}

/// Notes the first thread's stack, whose size is RLIMIT_STACK.
pub(crate) fn note_first() {
    // SAFETY: the call takes no memory. The random bytes of the auxiliary vector lie at the stack's top, above all frames.
    let top = unsafe { libc::getauxval(libc::AT_RANDOM) } as usize;
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: the kernel fills this function's structure.
    let _ = unsafe {
        kernel::call(libc::SYS_prlimit64, [0, libc::RLIMIT_STACK as usize, 0, (&raw mut limit).expose_provenance()])
    };
    note(top, usize::try_from(limit.rlim_cur).unwrap_or(usize::MAX));
}

/// Notes the calling thread's stack, of `size` bytes. Called in one of the thread's first frames. The frames above belong
/// to the C library's start of the thread, and take less than `ABOVE` bytes.
pub(crate) fn note_thread(size: usize) {
    const ABOVE: usize = 8 << 10;
    note(here(), size);
    OWN.set((OWN.get().0, here().saturating_add(ABOVE)));
}

fn note(top: usize, size: usize) {
    OWN.set((top.saturating_sub(size.saturating_sub(TAKEN)), top));
}

#[inline(always)]
fn here() -> usize {
    let rsp: usize;
    // SAFETY: reads a register.
    unsafe { std::arch::asm!("mov {}, rsp", out(reg) rsp, options(nomem, nostack, preserves_flags)) };
    rsp
}

/// Runs `call` on a stack with enough room: on this thread's, or on one of this library's. `call` must not unwind.
#[inline]
pub(super) fn with_room<T>(call: impl FnOnce() -> T) -> T {
    let (end, top) = OWN.get();
    let here = here();
    if here <= top && here.saturating_sub(NEEDED) >= end { in_place(call) } else { elsewhere(call) }
}

/// It is not inlined: the locals of `call` must not enlarge the frame of `with_room`, which may lack the room for them.
#[inline(never)]
fn in_place<T>(call: impl FnOnce() -> T) -> T {
    call()
}

#[cold]
fn elsewhere<T>(call: impl FnOnce() -> T) -> T {
    struct Job<F, T> {
        call: Option<F>,
        result: Option<T>,
    }
    extern "C" fn run<F: FnOnce() -> T, T>(job: *mut c_void) {
        // SAFETY: the job is the caller's, which waits until this function returns.
        let job = unsafe { &mut *job.cast::<Job<F, T>>() };
        job.result = job.call.take().map(|call| call());
    }
    fn of<F: FnOnce() -> T, T>(_: &Job<F, T>) -> extern "C" fn(*mut c_void) {
        run::<F, T>
    }
    let stack = FREE.iter().map(|free| free.swap(null_mut(), Ordering::AcqRel)).find(|stack| !stack.is_null());
    let Some(stack) = stack.or_else(made) else { return in_place(call) };
    let mut job = Job { call: Some(call), result: None };
    let run = of(&job);
    // So nested calls find that they have room.
    let before = OWN.replace((stack as usize + PAGE, stack as usize + SIZE));
    // SAFETY: the stack belongs to this call alone, and the job stays until it has run.
    unsafe { run_on(stack.add(SIZE), run, (&raw mut job).cast()) };
    OWN.set(before);
    let keep =
        |free: &AtomicPtr<u8>| free.compare_exchange(null_mut(), stack, Ordering::AcqRel, Ordering::Relaxed).is_ok();
    if !FREE.iter().any(keep) {
        // SAFETY: `made` mapped this stack, and nobody uses it any more.
        let _ = unsafe { kernel::call(libc::SYS_munmap, [stack.expose_provenance(), SIZE]) };
    }
    match job.result {
        Some(result) => result,
        // `run` always sets the result.
        None => std::process::abort(),
    }
}

fn made() -> Option<*mut u8> {
    let (prot, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_STACK);
    // SAFETY: the memory is fresh, so nobody uses the page that becomes the guard.
    unsafe {
        let at = kernel::call(libc::SYS_mmap, [0, SIZE, prot as usize, flags as usize, usize::MAX, 0]).ok()?;
        kernel::call(libc::SYS_mprotect, [at, PAGE, libc::PROT_NONE as usize]).ok()?;
        Some(std::ptr::with_exposed_provenance_mut(at))
    }
}

/// Calls `run` with `job`, on the stack whose top this is.
#[unsafe(naked)]
unsafe extern "C" fn run_on(top: *mut u8, run: extern "C" fn(*mut c_void), job: *mut c_void) {
    naked_asm!("push rbp", "mov rbp, rsp", "mov rsp, rdi", "mov rdi, rdx", "call rsi", "mov rsp, rbp", "pop rbp", "ret")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_call_runs_where_it_has_room_and_comes_back() {
        let small = std::thread::Builder::new().stack_size(32 << 10).spawn(|| {
            note_thread(32 << 10);
            let outer = here();
            let (inner, nested) = with_room(|| {
                let mut large = [1u8; 150 << 10];
                std::hint::black_box(&mut large);
                (here(), with_room(here))
            });
            assert!(outer.abs_diff(inner) > 32 << 10 && inner.abs_diff(nested) < SIZE);
            assert!(with_room(|| std::panic::catch_unwind(|| panic!("inside"))).is_err());
            assert!(outer.abs_diff(here()) < 4096);
        });
        small.unwrap().join().unwrap();
        note_thread(8 << 20);
        assert!(with_room(here).abs_diff(here()) < 4096);
    }
}
