//! Where the SIGBUS handler runs: sigaltstack(2), on stacks of the engine's own size.
//!
//! The kernel puts its frame onto the thread's alternate stack or, without one, onto its own: 3.4 KiB here, 3.6 with
//! AVX-512, over 11 with AMX (`AT_MINSIGSTKSZ`, getauxval(3)). Neither stack is the engine's. Rust gives its threads
//! alternate stacks of 8 KiB, or of just that frame where it is larger. So the handler needs no byte of a stack that it
//! did not size: [`entrance`] works in registers, those that any function may use (a handler of the program may call
//! it, as the one before its own), and goes on elsewhere:
//!
//! * on the alternate stack itself, if that has [`ROOM`];
//! * else on one that it borrows from a pool for as long as the handler runs. The thread is then given a stack of its
//!   own ([`STACK`] bytes) as its alternate stack from here on. So that happens once in a thread, and handlers of the
//!   program that run there have room as well.
//!
//! What is the program's to handle is handed to it on the stack that the kernel chose, with the frame as the kernel
//! made it: as if nobody had been there before.

use super::memory::{protect, reserve};
use super::signal::Handler;
use super::{PAGE, fork};
use std::arch::naked_asm;
use std::io;
use std::mem::offset_of;
use std::ptr;
use std::sync::atomic::{AtomicI32, AtomicPtr, AtomicU32, AtomicU64, AtomicUsize, Ordering};

/// What the handler is given at least, bytes. `tests/suite/depth.rs` measures what it takes of them, unoptimised: less than half.
const ROOM: usize = 20 << 10;

/// No frame of the kernel's is larger, bytes: with AMX it is 11.5 KiB.
const FRAME: usize = 12 << 10;

/// A thread's stack, bytes: room for the handler, for two of the largest frames, and for a handler of the program
/// between them.
const STACK: usize = 64 << 10;
const _: () = assert!(STACK >= 2 * FRAME + ROOM + (16 << 10));

/// Threads that have one at a time, at most. Others borrow each time.
const MOST_THREADS: usize = 4096;

/// Stacks to borrow: a bit each in `FREE`.
const POOL: usize = 64;

/// A stack and a page below it that stops an overflow.
const STRIDE: usize = STACK + PAGE;

/// What serves a trap: returns the program's handler, which is to run next, or zero. The mask to run it with is at
/// [`MASK_AT`].
pub type Serve = extern "C" fn(libc::c_int, *mut libc::siginfo_t, *mut libc::c_void) -> usize;

/// Where in a siginfo_t, of 128 bytes, the mask for the program's handler is left: SIGBUS uses the first 40.
const MASK_AT: usize = 120;

static SERVE: AtomicUsize = AtomicUsize::new(0);
/// The pool, and behind it the threads' stacks.
static STACKS: AtomicPtr<u8> = AtomicPtr::new(ptr::null_mut());
/// Of the pool.
static FREE: AtomicU64 = AtomicU64::new(u64::MAX);
/// The thread that owns each of the stacks; zero: none yet.
static OWNERS: [AtomicU32; MOST_THREADS] = [const { AtomicU32::new(0) }; MOST_THREADS];
/// The process that the stacks were made in.
static PROCESS: AtomicI32 = AtomicI32::new(0);

/// Makes the stacks, once; returns the handler to install. A second call has no effect.
pub fn set_up(serve: Serve) -> io::Result<Handler> {
    let stacks = reserve((POOL + MOST_THREADS) * STRIDE, PAGE)?;
    for number in 0..POOL {
        // SAFETY: reserved just now.
        unsafe { protect(stacks.add(number * STRIDE + PAGE), STACK, true)? };
    }
    // SAFETY: no preconditions.
    PROCESS.store(unsafe { libc::getpid() }, Ordering::Relaxed);
    SERVE.store(serve as *const () as usize, Ordering::Relaxed);
    STACKS.store(stacks, Ordering::Release);
    Ok(entrance)
}

/// The SIGBUS handler.
#[unsafe(naked)]
extern "C" fn entrance(number: libc::c_int, info: *mut libc::siginfo_t, context: *mut libc::c_void) {
    naked_asm!(
        // How much is left of the alternate stack, if this is it?
        "mov r10, rsp",
        "xor r8d, r8d",
        "mov rcx, rsp",
        "sub rcx, [rdx + {altstack} + {sp}]",
        "cmp rcx, [rdx + {altstack} + {size}]",
        "jae 2f",
        "cmp rcx, {room}",
        "jae 5f",
        // Borrow the first that is free: r8 is its number and one.
        "2:",
        "mov rax, [rip + {free}]",
        "3:",
        "bsf rcx, rax",
        "jz 4f",
        "mov r9, rax",
        "btr r9, rcx",
        "lock cmpxchg [rip + {free}], r9",
        "jne 3b",
        "lea r8d, [rcx + 1]",
        "imul rsp, r8, {stride}",
        "add rsp, [rip + {stacks}]",
        "jmp 5f",
        // All are taken. A thread that has one waits for none that has none, so one becomes free.
        "4:",
        "mov eax, {yield_}",
        "syscall",
        "jmp 2b",
        "5:",
        "and rsp, -16",
        "push r10",
        "push r8",
        "push rdi",
        "push rsi",
        "push rdx",
        "sub rsp, 8",
        "call [rip + {serve}]",
        "add rsp, 8",
        "pop rdx",
        "pop rsi",
        "pop rdi",
        "pop r8",
        "pop rsp",
        "test r8d, r8d",
        "jz 6f",
        "lea ecx, [r8 - 1]",
        "mov r9d, 1",
        "shl r9, cl",
        "lock or [rip + {free}], r9",
        "6:",
        "test rax, rax",
        "jnz 7f",
        "ret",
        // The program's: with its mask, and as if called by the kernel.
        "7:",
        "mov r8, rax",
        "mov r9d, edi",
        "movq xmm0, rdx",
        "mov eax, {sigprocmask}",
        "mov edi, {set}",
        "add rsi, {mask}",
        "xor edx, edx",
        "mov r10d, 8",
        "syscall",
        "mov edi, r9d",
        "sub rsi, {mask}",
        "movq rdx, xmm0",
        "jmp r8",
        altstack = const offset_of!(libc::ucontext_t, uc_stack),
        sp = const offset_of!(libc::stack_t, ss_sp),
        size = const offset_of!(libc::stack_t, ss_size),
        room = const ROOM,
        free = sym FREE,
        stacks = sym STACKS,
        stride = const STRIDE,
        yield_ = const libc::SYS_sched_yield,
        serve = sym SERVE,
        sigprocmask = const libc::SYS_rt_sigprocmask,
        set = const libc::SIG_SETMASK,
        mask = const MASK_AT,
    )
}

/// Leaves the mask for the program's handler, a bit a signal, where `entrance` finds it.
///
/// # Safety
/// What the kernel gave the handler that runs now.
pub unsafe fn leave_mask(info: *mut libc::siginfo_t, mask: u64) {
    const { assert!(size_of::<libc::siginfo_t>() == MASK_AT + size_of::<u64>()) };
    // SAFETY: inside the structure, where a SIGBUS has nothing.
    unsafe { info.byte_add(MASK_AT).cast::<u64>().write(mask) };
}

/// In the handler: gives the thread a stack of its own for signals, if the one it has is too small, or none.
///
/// # Safety
/// What the kernel gave the handler that runs now.
#[inline]
pub unsafe fn enlarge(context: *mut libc::c_void) {
    // SAFETY: the kernel's structure, valid while the handler runs.
    let context = unsafe { &mut *context.cast::<libc::ucontext_t>() };
    let here = ptr::from_ref(&context) as usize;
    // It runs there, so it has room.
    if !is_on(&context.uc_stack, here) {
        give(context);
    }
}

fn is_on(stack: &libc::stack_t, address: usize) -> bool {
    stack.ss_flags & libc::SS_DISABLE == 0 && address.wrapping_sub(stack.ss_sp as usize) < stack.ss_size
}

#[cold]
fn give(context: &mut libc::ucontext_t) {
    let interrupted = context.uc_mcontext.gregs[libc::REG_RSP as usize] as usize;
    let now = &mut context.uc_stack;
    // A handler that was interrupted on its alternate stack goes on there.
    if is_on(now, interrupted) {
        return;
    }
    if let Some(stack) = of_this_thread() {
        // As it was, but for the size (`SS_AUTODISARM`). Now, since sigreturn(2) changes no stack that it finds itself
        // on; and for it, since it restores what the frame says.
        let flags = now.ss_flags & !libc::SS_DISABLE;
        *now = libc::stack_t { ss_flags: flags, ..stack };
        // SAFETY: a description that the kernel reads; the handler runs on a stack that it has borrowed.
        unsafe { libc::sigaltstack(now, ptr::null_mut()) };
    }
}

/// Whether the handler has room on an alternate stack whatever the processor saves.
fn suffices(stack: &libc::stack_t) -> bool {
    stack.ss_flags & libc::SS_DISABLE == 0 && stack.ss_size >= ROOM + FRAME
}

/// In a child made by fork(2): stacks that other threads of its parent had borrowed are nobody's.
pub fn take_back_all() {
    FREE.store(u64::MAX, Ordering::Release);
}

/// Gives the calling thread an alternate stack of the engine's, unless it has one as large, or runs on the one it has.
/// Async-signal-safe.
pub fn prepare_thread() {
    // SAFETY: the kernel fills our description, and reads ours.
    unsafe {
        let mut now: libc::stack_t = std::mem::zeroed();
        let asked = libc::sigaltstack(ptr::null(), &mut now) == 0;
        if asked
            && !suffices(&now)
            && now.ss_flags & libc::SS_ONSTACK == 0
            && let Some(stack) = of_this_thread()
        {
            libc::sigaltstack(&stack, ptr::null_mut());
        }
    }
}

/// The calling thread's stack. Not in another process that has this memory, or a copy: it would take living threads for
/// dead.
fn of_this_thread() -> Option<libc::stack_t> {
    let stacks = STACKS.load(Ordering::Acquire);
    // SAFETY: no preconditions.
    let (process, thread) = unsafe { (libc::getpid(), libc::syscall(libc::SYS_gettid) as u32) };
    let is_gone = |thread: u32| {
        // SAFETY: signal 0 is none; it is asked whether there is such a thread, of whatever process.
        unsafe { libc::syscall(libc::SYS_tkill, thread, 0) != 0 && super::errno() == libc::ESRCH }
    };
    if stacks.is_null() || fork::is_child() || process != PROCESS.load(Ordering::Relaxed) {
        return None;
    }
    let start = thread as usize % MOST_THREADS;
    let numbers = || (start..MOST_THREADS).chain(0..start);
    let take = |number: &usize| {
        let owner = OWNERS[*number].load(Ordering::Relaxed);
        let is_free = owner == thread || owner == 0 || is_gone(owner);
        is_free && OWNERS[*number].compare_exchange(owner, thread, Ordering::AcqRel, Ordering::Relaxed).is_ok()
    };
    // Nobody else enters this thread's number.
    let own = || numbers().take(64).find(|number| OWNERS[*number].load(Ordering::Relaxed) == thread);
    let known = own();
    let number = known.or_else(|| numbers().find(take))?;
    let at = stacks.wrapping_add((POOL + number) * STRIDE + PAGE);
    if known.is_none() {
        // SAFETY: this thread's part of the reservation.
        unsafe { protect(at, STACK, true).ok()? };
    }
    Some(libc::stack_t { ss_sp: at.cast(), ss_flags: 0, ss_size: STACK })
}
