//! Signals: sigaction(2), pthread_sigmask(3), and handing a signal on to whoever had it before.

use std::io;
use std::mem::MaybeUninit;
use std::ptr;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicUsize, Ordering};

/// Signature of a handler installed with `SA_SIGINFO`.
pub type Handler = extern "C" fn(libc::c_int, *mut libc::siginfo_t, *mut libc::c_void);

/// Who had SIGBUS before. Read by the handler: set before the handler can run.
static PREVIOUS: OnceLock<libc::sigaction> = OnceLock::new();

/// An address just above the main thread's stack: the program's file name (getauxval(3)).
static MAIN_STACK_END: AtomicUsize = AtomicUsize::new(0);

/// The address and kind of a trap.
#[derive(Debug, Clone, Copy)]
pub struct Trap {
    /// The address the program touched.
    pub address: usize,
    /// A store, not a load (bit 1 of the x86 page-fault error code, in the saved context).
    pub is_store: bool,
}

/// Installs `handler` for SIGBUS once in the life of the process; later calls do nothing.
///
/// It runs on the thread's alternate stack where there is one, and with every signal blocked: a handler of the program
/// that interrupted it and touched the page it is loading would wait for itself.
pub fn install(handler: Handler) -> io::Result<()> {
    static INSTALLED: OnceLock<Result<(), i32>> = OnceLock::new();
    let installed = INSTALLED.get_or_init(|| {
        // SAFETY: both structures are ours; a zeroed sigaction is a valid one. The previous action is stored before ours
        // can run.
        unsafe {
            let mut previous = MaybeUninit::<libc::sigaction>::zeroed();
            if libc::sigaction(libc::SIGBUS, ptr::null(), previous.as_mut_ptr()) != 0 {
                return Err(super::errno());
            }
            let _ = PREVIOUS.set(previous.assume_init());
            MAIN_STACK_END.store(libc::getauxval(libc::AT_EXECFN) as usize, Ordering::Relaxed);
            let mut action: libc::sigaction = std::mem::zeroed();
            action.sa_sigaction = handler as *const () as usize;
            action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK;
            libc::sigfillset(&mut action.sa_mask);
            match libc::sigaction(libc::SIGBUS, &action, ptr::null_mut()) {
                0 => Ok(()),
                _ => Err(super::errno()),
            }
        }
    });
    installed.map_err(io::Error::from_raw_os_error)
}

/// What the kernel says of a SIGBUS; `None` when it is no page fault (sent by kill(2), or a hardware memory error).
///
/// # Safety
/// The pointers are those the kernel gave the handler.
#[inline]
pub unsafe fn trap(info: *mut libc::siginfo_t, context: *mut libc::c_void) -> Option<Trap> {
    const STORE: i64 = 2;
    // SAFETY: the kernel's structures, valid while the handler runs.
    unsafe {
        if (*info).si_code != libc::BUS_ADRERR {
            return None;
        }
        let context = context.cast::<libc::ucontext_t>();
        let error = (*context).uc_mcontext.gregs[libc::REG_ERR as usize];
        Some(Trap { address: (*info).si_addr() as usize, is_store: error & STORE != 0 })
    }
}

/// Hands a SIGBUS to the handler that was installed before ours, as if ours were not there; without one, restores the
/// default action, so that the signal kills as it would have.
///
/// # Safety
/// Called from the handler with what the kernel gave it.
pub unsafe fn hand_on(signal: i32, info: *mut libc::siginfo_t, context: *mut libc::c_void) {
    /// A handler with SA_RESETHAND has run: the default action is in force since.
    static RESET: AtomicBool = AtomicBool::new(false);
    let Some(previous) = PREVIOUS.get() else { return };
    let once = previous.sa_flags & libc::SA_RESETHAND != 0;
    let action = if once && RESET.swap(true, Ordering::Relaxed) { libc::SIG_DFL } else { previous.sa_sigaction };
    // SAFETY: the kernel's structures; `previous` came from sigaction(2).
    unsafe {
        let sent = (*info).si_code <= 0; // by a process: SI_USER and its kin are zero or negative
        match action {
            libc::SIG_IGN if sent => {}
            libc::SIG_IGN | libc::SIG_DFL => {
                let mut action: libc::sigaction = std::mem::zeroed();
                action.sa_sigaction = libc::SIG_DFL;
                libc::sigaction(signal, &action, ptr::null_mut());
                if sent {
                    // Nothing will fault again on return: send it once more; it stays pending until we return.
                    libc::syscall(libc::SYS_tgkill, libc::getpid(), libc::syscall(libc::SYS_gettid), signal);
                }
            }
            handler => {
                // The mask it would have run with: the thread's own, its sa_mask, and the signal unless SA_NODEFER.
                let mut mask = (*context.cast::<libc::ucontext_t>()).uc_sigmask;
                for other in 1..=64 {
                    if libc::sigismember(&previous.sa_mask, other) == 1 {
                        libc::sigaddset(&mut mask, other);
                    }
                }
                if previous.sa_flags & libc::SA_NODEFER == 0 {
                    libc::sigaddset(&mut mask, signal);
                }
                libc::pthread_sigmask(libc::SIG_SETMASK, &mask, ptr::null_mut());
                if previous.sa_flags & libc::SA_SIGINFO != 0 {
                    let call: Handler = std::mem::transmute::<usize, Handler>(handler);
                    call(signal, info, context);
                } else {
                    let call = std::mem::transmute::<usize, extern "C" fn(libc::c_int)>(handler);
                    call(signal);
                }
            }
        }
    }
}

/// Keeps every signal away from this thread until dropped. Engine locks are only held so (or in the fault handler, where
/// it is so already): a handler of the program that faulted on a map while its own thread held one would never get it.
pub struct Blocked(libc::sigset_t);

impl Blocked {
    /// Blocks all signals.
    pub fn all() -> Self {
        // SAFETY: both sets are ours.
        unsafe {
            let mut all = std::mem::zeroed();
            let mut before = std::mem::zeroed();
            libc::sigfillset(&mut all);
            libc::pthread_sigmask(libc::SIG_SETMASK, &all, &mut before);
            Blocked(before)
        }
    }
}

impl Drop for Blocked {
    fn drop(&mut self) {
        // SAFETY: the mask found when this was made.
        unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &self.0, ptr::null_mut()) };
    }
}

/// Ends a handler without sigreturn(2): restores the signal mask with one short system call and the registers from the
/// saved context in user space. Worth 0.25 µs of a 5.4 µs miss (docs/measurements.md).
///
/// Returns, having done nothing, where only the kernel can do it: the interrupted stack is of a kind we do not know, its
/// alternate stack was disarmed, a shadow stack is on, or the program is single-stepped.
///
/// # Safety
/// Called last in the handler, with the context the kernel gave it.
#[inline]
pub unsafe fn resume(context: *mut libc::c_void) {
    const TRAP_FLAG: i64 = 1 << 8;
    const SS_AUTODISARM: i32 = 1 << 31;
    // SAFETY: the kernel's structure.
    unsafe {
        let saved = context.cast::<libc::ucontext_t>();
        let registers = &(*saved).uc_mcontext.gregs;
        let plain = registers[libc::REG_EFL as usize] & TRAP_FLAG == 0
            && (*saved).uc_stack.ss_flags & SS_AUTODISARM == 0
            && is_thread_stack(registers[libc::REG_RSP as usize] as usize);
        if plain && !shadow_stack() {
            let mask = &raw const (*saved).uc_sigmask;
            libc::syscall(libc::SYS_rt_sigprocmask, libc::SIG_SETMASK, mask, ptr::null_mut::<u8>(), 8);
            restore(context);
        }
    }
}

/// Whether a stack pointer is on the stack the C library gave this thread, so that `restore` may use the bytes below it.
/// A coroutine's or goroutine's stack may end there. A thread's control block lies just above its stack, except in the
/// main thread, whose stack ends with the program's arguments.
#[inline]
fn is_thread_stack(pointer: usize) -> bool {
    /// The usual limit on a stack; nothing else lies so close below either mark.
    const NEAR: usize = 8 << 20;
    let control_block: usize;
    // SAFETY: the x86-64 ABI keeps the control block's own address at its start.
    unsafe { core::arch::asm!("mov {}, fs:[0]", out(reg) control_block, options(nostack, readonly, preserves_flags)) };
    let arguments = MAIN_STACK_END.load(Ordering::Relaxed);
    control_block.wrapping_sub(pointer) < NEAR || arguments.wrapping_sub(pointer) < NEAR
}

/// Whether this process runs with a user shadow stack (Linux 6.6 on processors with CET), asked once.
fn shadow_stack() -> bool {
    static ANSWER: AtomicU8 = AtomicU8::new(0);
    const ARCH_SHSTK_STATUS: i32 = 0x5005;
    match ANSWER.load(Ordering::Relaxed) {
        0 => {
            let mut enabled = 0u64;
            // SAFETY: writes one word; kernels without it answer EINVAL.
            let asked = unsafe { libc::syscall(libc::SYS_arch_prctl, ARCH_SHSTK_STATUS, &mut enabled) };
            let on = asked == 0 && enabled & 1 != 0;
            ANSWER.store(1 + u8::from(on), Ordering::Relaxed);
            on
        }
        answer => answer == 2,
    }
}

/// Loads every register from a saved context and goes on where it was interrupted. The last four travel over the
/// interrupted stack, below the 128 bytes that the ABI reserves under its pointer.
///
/// Offsets: `uc_mcontext.gregs` starts at 40, eight bytes a register in the order of `REG_R8` and so on; `fpregs` is at
/// 224. The extended state's features are at 472 of it when the magic number at 464 says so (Linux `_fpx_sw_bytes`).
#[unsafe(naked)]
unsafe extern "C" fn restore(context: *mut libc::c_void) -> ! {
    core::arch::naked_asm!(
        "mov rcx, [rdi + 224]",
        "cmp dword ptr [rcx + 464], 0x46505853",
        "jne 2f",
        "mov eax, [rcx + 472]",
        "mov edx, [rcx + 476]",
        "xrstor64 [rcx]",
        "jmp 3f",
        "2:",
        "fxrstor64 [rcx]",
        "3:",
        "mov rcx, [rdi + 160]",
        "sub rcx, 160",
        "mov rax, [rdi + 104]", // rdi
        "mov [rcx], rax",
        "mov rax, [rdi + 152]", // rcx
        "mov [rcx + 8], rax",
        "mov rax, [rdi + 176]", // flags
        "mov [rcx + 16], rax",
        "mov rax, [rdi + 168]", // rip
        "mov [rcx + 24], rax",
        "mov r8, [rdi + 40]",
        "mov r9, [rdi + 48]",
        "mov r10, [rdi + 56]",
        "mov r11, [rdi + 64]",
        "mov r12, [rdi + 72]",
        "mov r13, [rdi + 80]",
        "mov r14, [rdi + 88]",
        "mov r15, [rdi + 96]",
        "mov rsi, [rdi + 112]",
        "mov rbp, [rdi + 120]",
        "mov rbx, [rdi + 128]",
        "mov rdx, [rdi + 136]",
        "mov rax, [rdi + 144]",
        "mov rsp, rcx",
        "pop rdi",
        "pop rcx",
        "popfq",
        "ret 128",
    )
}
