//! Signals: sigaction(2), pthread_sigmask(3), and handing a signal on to whoever had it before.

use std::io;
use std::mem::MaybeUninit;
use std::ptr;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};

/// Signature of a handler installed with `SA_SIGINFO`.
pub type Handler = extern "C" fn(libc::c_int, *mut libc::siginfo_t, *mut libc::c_void);

/// Who had SIGBUS before. Read by the handler: set before the handler can run.
static PREVIOUS: OnceLock<libc::sigaction> = OnceLock::new();

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
        // By a process (SI_USER and its kin are zero or negative), or over a bad page that nobody touched: no access is
        // going to repeat it.
        let sent = (*info).si_code <= 0 || (*info).si_code == libc::BUS_MCEERR_AO;
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
