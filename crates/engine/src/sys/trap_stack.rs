//! The stacks that the SIGBUS handler runs on: sigaltstack(2), and stacks of the engine's own.
//!
//! The kernel puts a signal's frame onto the thread's alternate stack, or onto the thread's own stack if it has no alternate one. The frame takes up
//! to 3.4 KiB without AVX-512, 3.6 KiB with it, and over 11 KiB with AMX (`AT_MINSIGSTKSZ`, getauxval(3)).
//!
//! Neither stack is sure to have room for the handler. Rust, for example, gives its threads alternate stacks of 8 KiB, or of the frame's size if a
//! frame is larger. So [`entrance`] uses no byte of a stack before it knows the stack's size. Until then it uses only registers that a called
//! function may overwrite, since it may be called as a plain function: a handler of the program may call the handler that was installed before it.
//! Then the handler runs:
//!
//! * on the alternate stack itself, if that has [`ROOM`] left;
//! * else on a stack of a pool, borrowed for as long as the handler runs. Meanwhile the thread gets an alternate stack of the engine's ([`STACK`]
//!   bytes), which it keeps. So a thread usually borrows once, and handlers of the program then have room as well.
//!
//! A SIGBUS that the engine does not serve goes to the program's handler. The program's handler runs on the stack that the kernel chose, with the
//! kernel's frame, as if the engine had not been there.

use super::memory::{protect, reserve};
use super::signal::Handler;
use super::{PAGE, fork};
use std::arch::naked_asm;
use std::io;
use std::mem::offset_of;
use std::ptr;
use std::sync::atomic::{AtomicI32, AtomicPtr, AtomicU32, AtomicU64, AtomicUsize, Ordering};

/// The least room that the handler has, bytes. `tests/suite/depth.rs` checks that an unoptimised one takes two thirds of it at most.
const ROOM: usize = 20 << 10;

/// Room for the largest frame that the kernel pushes, in bytes. With AMX a frame has 11.5 KiB.
const FRAME: usize = 12 << 10;

/// The size of a stack, bytes. It holds the handler, two of the largest frames, and a handler of the program between them.
const STACK: usize = 64 << 10;
const _: () = assert!(STACK >= 2 * FRAME + ROOM + (16 << 10));

/// The most threads that can have one of the engine's alternate stacks at a time. Other threads borrow a stack for each trap.
const MOST_THREADS: usize = 4096;

/// How many stacks the pool has. `FREE` has a bit for each.
const POOL: usize = 64;

/// Bytes from one stack to the next: a stack, and a page below it that stops an overflow.
const STRIDE: usize = STACK + PAGE;

/// The function that serves a trap. It returns the program's handler, which is to run next, or zero. The signal mask for that handler is
/// then at [`MASK_AT`].
pub type Serve = extern "C" fn(libc::c_int, *mut libc::siginfo_t, *mut libc::c_void) -> usize;

/// Offset in a siginfo_t (128 bytes) where the mask for the program's handler is left. A SIGBUS uses the first 40 bytes only.
const MASK_AT: usize = 120;

static SERVE: AtomicUsize = AtomicUsize::new(0);
/// Where the stacks begin: the pool's, and behind them the threads'.
static STACKS: AtomicPtr<u8> = AtomicPtr::new(ptr::null_mut());
/// A bit for each stack of the pool that nobody has borrowed.
static FREE: AtomicU64 = AtomicU64::new(u64::MAX);
/// For each of the threads' stacks, the id of the thread that owns it. Zero: no thread yet.
static OWNERS: [AtomicU32; MOST_THREADS] = [const { AtomicU32::new(0) }; MOST_THREADS];
/// The process that the stacks were made in.
static PROCESS: AtomicI32 = AtomicI32::new(0);

/// Makes the stacks, and returns the handler to install. Called once in a process.
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
        // rcx: rsp less the alternate stack's start, unsigned. On the alternate stack, that is the room left. If it is not below the stack's size,
        // rsp is not in that stack.
        "mov r10, rsp",
        "xor r8d, r8d",
        "mov rcx, rsp",
        "sub rcx, [rdx + {altstack} + {sp}]",
        "cmp rcx, [rdx + {altstack} + {size}]",
        "jae 2f",
        "cmp rcx, {room}",
        "jae 5f",
        // Borrow the first free stack of the pool. r8 is its number plus one; zero: nothing is borrowed.
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
        // All stacks are taken. A thread that has borrowed a stack never waits for a thread without one, so a stack becomes free.
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
        // The program's handler runs, with its mask, as if the kernel had called it.
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

/// Leaves the mask for the program's handler (a bit for each signal) where `entrance` finds it.
///
/// # Safety
/// `info` is the one that the kernel gave the handler that runs now.
pub unsafe fn leave_mask(info: *mut libc::siginfo_t, mask: u64) {
    const { assert!(size_of::<libc::siginfo_t>() == MASK_AT + size_of::<u64>()) };
    // SAFETY: inside the structure, where a SIGBUS has nothing.
    unsafe { info.byte_add(MASK_AT).cast::<u64>().write(mask) };
}

/// Called by the handler. Gives the thread one of the engine's alternate stacks, unless the handler runs on the thread's alternate stack. If the
/// handler runs elsewhere, the alternate stack has too little room left, or there is none.
///
/// # Safety
/// `context` is the one that the kernel gave the handler that runs now.
#[inline]
pub unsafe fn enlarge(context: *mut libc::c_void) {
    // SAFETY: the kernel's structure, valid while the handler runs.
    let context = unsafe { &mut *context.cast::<libc::ucontext_t>() };
    let here = ptr::from_ref(&context) as usize;
    // `entrance` stays on the alternate stack only if that has room.
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
    // The trap interrupted a handler that runs on the alternate stack and will go on there. So the thread keeps that stack.
    if is_on(now, interrupted) {
        return;
    }
    if let Some(stack) = of_this_thread() {
        // The flags stay as they were (`SS_AUTODISARM`). The stack is set in the frame, since sigreturn(2) restores the stack that the frame names.
        // The stack is also set now. Otherwise the alternate stack would not change if this signal's frame lies on it: sigreturn(2) (Linux 6.18)
        // changes no alternate stack that the thread is on.
        let flags = now.ss_flags & !libc::SS_DISABLE;
        *now = libc::stack_t { ss_flags: flags, ..stack };
        // SAFETY: the kernel reads `now`. The handler runs on a borrowed stack, so the alternate stack is not in use.
        unsafe { libc::sigaltstack(now, ptr::null_mut()) };
    }
}

/// Whether an alternate stack has room for the handler and the largest frame.
fn suffices(stack: &libc::stack_t) -> bool {
    stack.ss_flags & libc::SS_DISABLE == 0 && stack.ss_size >= ROOM + FRAME
}

/// Frees all stacks of the pool. Called in a child made by fork(2), where the threads of the parent that had borrowed them do not exist.
pub fn take_back_all() {
    FREE.store(u64::MAX, Ordering::Release);
}

/// Gives the calling thread one of the engine's alternate stacks, unless its alternate stack is large enough or in use. Async-signal-safe.
pub fn prepare_thread() {
    // SAFETY: the kernel fills `now` and reads `stack`. Both are valid.
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

/// Returns the engine's alternate stack for the calling thread. The thread takes one if it has none yet. `None`: no stack is free, or this is
/// another process, with this memory or a copy of it. There, in another PID namespace, thread ids name other threads, so a living owner could look
/// gone.
fn of_this_thread() -> Option<libc::stack_t> {
    let stacks = STACKS.load(Ordering::Acquire);
    // SAFETY: no preconditions.
    let (process, thread) = unsafe { (libc::getpid(), libc::syscall(libc::SYS_gettid) as u32) };
    let is_gone = |thread: u32| {
        // SAFETY: signal 0 is not sent; the call only tells whether there is such a thread, in any process.
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
    // Only this thread enters its own id in `OWNERS`, so relaxed loads are enough to find it.
    let own = || numbers().take(64).find(|number| OWNERS[*number].load(Ordering::Relaxed) == thread);
    let known = own();
    let number = known.or_else(|| numbers().find(take))?;
    let at = stacks.wrapping_add((POOL + number) * STRIDE + PAGE);
    // SAFETY: this thread's part of the reservation.
    if known.is_none() && unsafe { protect(at, STACK, true) }.is_err() {
        // Else it would be taken for one that is ready.
        OWNERS[number].store(0, Ordering::Release);
        return None;
    }
    Some(libc::stack_t { ss_sp: at.cast(), ss_flags: 0, ss_size: STACK })
}
