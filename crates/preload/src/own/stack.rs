//! Stacks for calls into the engine: a program's thread may have less than they take (`ulimit -s 64`, `pthread_attr_setstacksize`,
//! coroutines, a handler's alternate stack). Where a call would not have [`NEEDED`] bytes, or nobody knows, it runs on a stack of this
//! library's.

use super::PAGE;
use libc::{c_int, c_void};
use std::arch::naked_asm;
use std::cell::Cell;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicPtr, Ordering};

/// What a call into the engine is given at least, bytes: the first mapping, which makes threads and queues, takes half of that.
const NEEDED: usize = 192 << 10;
/// A stack of this library's, and below it a page that stops an overflow.
const SIZE: usize = 384 << 10;
/// What lies above the first frame of a thread, and below its stack's end: its thread-local storage, the guard.
const TAKEN: usize = 64 << 10;

/// Stacks that are free.
static FREE: [AtomicPtr<u8>; 16] = [const { AtomicPtr::new(null_mut()) }; 16];

thread_local! {
    /// This thread's own stack, as far as it is known: its end, and where it began.
    static OWN: Cell<(usize, usize)> = const { Cell::new((0, 0)) };
}

/// Notes the first thread's stack, which ends as far from its beginning as RLIMIT_STACK says.
pub(crate) fn note_first() {
    // SAFETY: the auxiliary vector's own address of random bytes lies at the stack's beginning, above all frames.
    let top = unsafe { libc::getauxval(libc::AT_RANDOM) } as usize;
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: a structure of ours.
    unsafe { libc::syscall(libc::SYS_prlimit64, 0, libc::RLIMIT_STACK, null_mut::<u8>(), &mut limit) };
    note(top, usize::try_from(limit.rlim_cur).unwrap_or(usize::MAX));
}

/// Notes the calling thread's stack, of so many bytes, in one of its first frames: those above are the thread's start's.
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

/// Runs `call` where it has room. It must not unwind.
#[inline]
pub(super) fn with_room<T>(call: impl FnOnce() -> T) -> T {
    let (end, top) = OWN.get();
    let here = here();
    if here <= top && here.saturating_sub(NEEDED) >= end { in_place(call) } else { elsewhere(call) }
}

/// Not inlined: what the call needs must not be in the frame of who has no room for it.
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
        // SAFETY: the caller's, which waits.
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
    // What the call calls in turn finds that it has room.
    let before = OWN.replace((stack as usize + PAGE, stack as usize + SIZE));
    // SAFETY: the stack is this call's; the job stays until it has run.
    unsafe { run_on(stack.add(SIZE), run, (&raw mut job).cast()) };
    OWN.set(before);
    let keep =
        |free: &AtomicPtr<u8>| free.compare_exchange(null_mut(), stack, Ordering::AcqRel, Ordering::Relaxed).is_ok();
    if !FREE.iter().any(keep) {
        // SAFETY: made here, and nobody's any more. A raw call: the C library's is wrapped for the program.
        unsafe { libc::syscall(libc::SYS_munmap, stack, SIZE) };
    }
    match job.result {
        Some(result) => result,
        // It always runs.
        None => std::process::abort(),
    }
}

fn made() -> Option<*mut u8> {
    let (prot, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_STACK);
    let nobody: c_int = -1;
    // SAFETY: fresh memory, and a page of it that nobody touches.
    unsafe {
        let at = libc::syscall(libc::SYS_mmap, 0usize, SIZE, prot, flags, nobody, 0usize);
        if at < 0 || libc::syscall(libc::SYS_mprotect, at, PAGE, libc::PROT_NONE) != 0 {
            return None;
        }
        Some(at as *mut u8)
    }
}

/// Calls `run` on a stack.
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
