//! The SIGBUS handler's installation (sigaction(2)), the program's action behind it, and the blocking of signals (pthread_sigmask(3)).

use super::trap_stack::{self, Serve};
use std::io;
use std::mem::MaybeUninit;
use std::ptr;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU32, AtomicU64, AtomicUsize, Ordering, fence};

/// Signature of a handler installed with `SA_SIGINFO`.
pub type Handler = extern "C" fn(libc::c_int, *mut libc::siginfo_t, *mut libc::c_void);

/// The address and kind of a trap.
#[derive(Debug, Clone, Copy)]
pub struct Trap {
    /// The address the program touched.
    pub address: usize,
    /// Whether it was a store (bit 1 of the x86 page-fault error code, in the saved context).
    pub is_store: bool,
    /// Whether the memory is bad, or was made so (`UFFDIO_POISON`).
    pub is_poisoned: bool,
    /// The saved state of the thread (`ucontext_t`). The thread goes on with it when the handler returns.
    pub context: *mut libc::ucontext_t,
}

/// The program's action for a SIGBUS that is not ours, as the kernel would have it. Our handler reads it without a lock. The program may replace it
/// at any time, from a signal handler, too.
struct Program {
    /// Odd while the words below change. Each change adds two.
    version: AtomicU32,
    handler: AtomicUsize,
    flags: AtomicI32,
    /// The signals of `sa_mask`, a bit each. The kernel has 64; glibc's set has room for more.
    mask: AtomicU64,
    /// Whether our handler is in force.
    replaced: AtomicBool,
}

static PROGRAM: Program = Program {
    version: AtomicU32::new(0),
    handler: AtomicUsize::new(libc::SIG_DFL),
    flags: AtomicI32::new(0),
    mask: AtomicU64::new(0),
    replaced: AtomicBool::new(false),
};

const SIGNALS: std::ops::RangeInclusive<i32> = 1..=64;

/// A signal action as plain words.
#[derive(Debug, Clone, Copy)]
struct Action {
    handler: usize,
    flags: i32,
    mask: u64,
}

impl Action {
    /// `action` may be in a map, where a read can fault. So it is read here, and nowhere else.
    fn of(action: &libc::sigaction) -> Self {
        // SAFETY: looks at a set.
        let is_in = |signal: &i32| unsafe { libc::sigismember(&action.sa_mask, *signal) } == 1;
        // The kernel, too, leaves these two out: nothing blocks them.
        let blockable = |signal: &i32| !matches!(*signal, libc::SIGKILL | libc::SIGSTOP);
        let mask = SIGNALS.filter(is_in).filter(blockable).fold(0, |mask, signal| mask | 1 << (signal - 1));
        Action { handler: action.sa_sigaction, flags: action.sa_flags, mask }
    }

    fn has(self, signal: i32) -> bool {
        self.mask >> (signal - 1) & 1 != 0
    }

    fn to_kernel(self) -> libc::sigaction {
        // SAFETY: a zeroed sigaction is a valid one, and the set is its own.
        unsafe {
            let mut action: libc::sigaction = std::mem::zeroed();
            action.sa_sigaction = self.handler;
            action.sa_flags = self.flags;
            for signal in SIGNALS.filter(|signal| self.has(*signal)) {
                libc::sigaddset(&mut action.sa_mask, signal);
            }
            action
        }
    }
}

impl Program {
    fn read(&self) -> Action {
        loop {
            let before = self.version.load(Ordering::Acquire);
            let action = self.words();
            // Pairs with the fence in `change`: all words read here belong to one version.
            fence(Ordering::Acquire);
            if before.is_multiple_of(2) && self.version.load(Ordering::Relaxed) == before {
                return action;
            }
            std::thread::yield_now();
        }
    }

    fn words(&self) -> Action {
        Action {
            handler: self.handler.load(Ordering::Relaxed),
            flags: self.flags.load(Ordering::Relaxed),
            mask: self.mask.load(Ordering::Relaxed),
        }
    }

    /// Replaces the action by the one that `next` returns, if any. Returns the former action. One thread at a time does this, with signals blocked,
    /// so no thread waits for itself. `next` touches no map.
    fn change(&self, next: impl FnOnce(Action) -> Option<Action>) -> Action {
        let _blocked = Blocked::all();
        let version = loop {
            let version = self.version.load(Ordering::Relaxed);
            let taken = version.is_multiple_of(2)
                && self.version.compare_exchange(version, version + 1, Ordering::Acquire, Ordering::Relaxed).is_ok();
            if taken {
                break version;
            }
            std::thread::yield_now();
        };
        fence(Ordering::Release);
        let old = self.words();
        if let Some(Action { handler, flags, mask }) = next(old) {
            self.handler.store(handler, Ordering::Relaxed);
            self.flags.store(flags, Ordering::Relaxed);
            self.mask.store(mask, Ordering::Relaxed);
        }
        self.version.store(version.wrapping_add(2), Ordering::Release);
        old
    }

    /// Returns the action for a signal that is being delivered. A handler that was installed for one signal only (SA_RESETHAND) makes way for the
    /// default action.
    fn deliver(&self) -> Action {
        let once = |action: &Action| {
            action.flags & libc::SA_RESETHAND != 0 && !matches!(action.handler, libc::SIG_DFL | libc::SIG_IGN)
        };
        let action = self.read();
        if !once(&action) {
            return action;
        }
        self.change(|action| once(&action).then_some(Action { handler: libc::SIG_DFL, ..action }))
    }
}

/// Makes `serve` the handler of SIGBUS, once in the life of the process. Later calls only prepare the calling thread's stack. The action that was in
/// force before becomes the program's action.
///
/// `trap_stack.rs` gives the handler a stack with enough room. The handler runs with every signal blocked. Otherwise a handler of the program could
/// interrupt it and touch the page that it is loading, and would wait for itself.
pub fn install(serve: Serve) -> io::Result<()> {
    static INSTALLED: OnceLock<Result<(), i32>> = OnceLock::new();
    let installed = INSTALLED.get_or_init(|| {
        let handler = trap_stack::set_up(serve).map_err(|error| error.raw_os_error().unwrap_or(libc::ENOMEM))?;
        let mut error = 0;
        // A signal that is not ours can come as soon as our handler is in force. Its reader waits for the end of this change, and so finds the
        // program's action.
        PROGRAM.change(|_| {
            // SAFETY: both structures are ours; a zeroed sigaction is a valid one.
            unsafe {
                let mut action: libc::sigaction = std::mem::zeroed();
                action.sa_sigaction = handler as *const () as usize;
                action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK;
                libc::sigfillset(&mut action.sa_mask);
                let mut previous = MaybeUninit::<libc::sigaction>::zeroed();
                if libc::sigaction(libc::SIGBUS, &action, previous.as_mut_ptr()) != 0 {
                    error = super::errno();
                    return None;
                }
                PROGRAM.replaced.store(true, Ordering::Release);
                Some(Action::of(&previous.assume_init()))
            }
        });
        if error == 0 { Ok(()) } else { Err(error) }
    });
    trap_stack::prepare_thread();
    installed.map_err(io::Error::from_raw_os_error)
}

/// Replaces the program's action by `new`, if given. Returns the former action, or `None` if our handler is not installed. Async-signal-safe.
pub fn replace(new: Option<&libc::sigaction>) -> Option<libc::sigaction> {
    if !PROGRAM.replaced.load(Ordering::Acquire) {
        return None;
    }
    let old = match new.map(Action::of) {
        Some(new) => PROGRAM.change(|_| Some(new)),
        None => PROGRAM.read(),
    };
    Some(old.to_kernel())
}

/// Returns what the kernel says of a SIGBUS. `None`: no access raised it (kill(2), or a bad page that nobody touched).
///
/// # Safety
/// The pointers are those that the kernel gave the handler.
#[inline]
pub unsafe fn trap(info: *mut libc::siginfo_t, context: *mut libc::c_void) -> Option<Trap> {
    const STORE: i64 = 2;
    // SAFETY: the kernel's structures, valid while the handler runs.
    unsafe {
        let is_poisoned = (*info).si_code == libc::BUS_MCEERR_AR;
        if (*info).si_code != libc::BUS_ADRERR && !is_poisoned {
            return None;
        }
        let context = context.cast::<libc::ucontext_t>();
        let error = (*context).uc_mcontext.gregs[libc::REG_ERR as usize];
        Some(Trap { address: (*info).si_addr() as usize, is_store: error & STORE != 0, is_poisoned, context })
    }
}

/// Decides what becomes of a SIGBUS that is the program's, as if our handler were not there. Returns the program's handler, for `trap_stack.rs` to
/// run, or zero. Zero means one of two things: the signal is ignored, or the default action is restored and the signal kills as it would have.
///
/// # Safety
/// Called from the handler, with what the kernel gave it.
#[cold]
pub unsafe fn chain(signal: i32, info: *mut libc::siginfo_t, context: *mut libc::c_void) -> usize {
    let action = PROGRAM.deliver();
    // SAFETY: the kernel's structures; a zeroed sigaction is a valid one.
    unsafe {
        // A process sent it (SI_USER and its kin are zero or negative), or it is about a bad page that nobody touched. No access will raise it again.
        let sent = (*info).si_code <= 0 || (*info).si_code == libc::BUS_MCEERR_AO;
        match action.handler {
            libc::SIG_IGN if sent => 0,
            libc::SIG_IGN | libc::SIG_DFL => {
                let mut action: libc::sigaction = std::mem::zeroed();
                action.sa_sigaction = libc::SIG_DFL;
                libc::sigaction(signal, &action, ptr::null_mut());
                if sent {
                    // No access raises it again, so it is sent once more. It stays pending until the handler returns.
                    libc::syscall(libc::SYS_tgkill, libc::getpid(), libc::syscall(libc::SYS_gettid), signal);
                }
                0
            }
            handler => {
                // The mask that the program's handler would have run with: the thread's own, its sa_mask, and the signal unless SA_NODEFER.
                let before = (&raw const (*context.cast::<libc::ucontext_t>()).uc_sigmask).cast::<u64>().read();
                let own = if action.flags & libc::SA_NODEFER == 0 { 1 << (signal - 1) } else { 0 };
                trap_stack::leave_mask(info, before | action.mask | own);
                handler
            }
        }
    }
}

/// Keeps every signal from this thread until dropped. An engine lock is held only under this, or in the fault handler, where signals are blocked
/// already. Otherwise a handler of the program could fault on a map while its own thread holds the lock. That handler would wait for the lock for
/// ever.
#[derive(Debug)]
pub struct Blocked(libc::sigset_t);

impl Blocked {
    /// Blocks all signals.
    pub fn all() -> Self {
        Self::but(None)
    }

    /// Blocks all signals but SIGBUS, which stays as it was. For a thread that may touch absent memory, and that holds no lock which our handler
    /// takes.
    pub fn but_sigbus() -> Self {
        Self::but(Some(libc::SIGBUS))
    }

    fn but(one: Option<i32>) -> Self {
        type Words = [u64; size_of::<libc::sigset_t>() / size_of::<u64>()];
        // SAFETY: both sets are ours, and are plain bits.
        unsafe {
            let mut all = std::mem::zeroed();
            let mut before = std::mem::zeroed();
            libc::sigfillset(&mut all);
            if let Some(one) = one {
                libc::sigdelset(&mut all, one);
            }
            libc::pthread_sigmask(libc::SIG_BLOCK, &all, &mut before);
            let mut blocked: Words = std::mem::transmute(all);
            let before: Words = std::mem::transmute(before);
            blocked.iter_mut().zip(before).for_each(|(blocked, before)| *blocked &= !before);
            Blocked(std::mem::transmute::<Words, libc::sigset_t>(blocked))
        }
    }
}

/// Keeps pthread_cancel(3) from ending this thread in a system call that is a cancellation point, until dropped. Other threads wait for the work that
/// this thread has begun. Not for a fault handler, since the C library may not know its thread.
#[derive(Debug)]
pub struct Uncancelled {
    was_enabled: bool,
}

const PTHREAD_CANCEL_ENABLE: libc::c_int = 0;
const PTHREAD_CANCEL_DISABLE: libc::c_int = 1;

// SAFETY: declared as in pthread.h. The function takes either of the numbers above.
unsafe extern "C" {
    safe fn pthread_setcancelstate(state: libc::c_int, before: &mut libc::c_int) -> libc::c_int;
}

impl Uncancelled {
    /// Begins to keep it from that.
    pub fn begin() -> Self {
        let mut before = PTHREAD_CANCEL_DISABLE;
        pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &mut before);
        Uncancelled { was_enabled: before == PTHREAD_CANCEL_ENABLE }
    }
}

impl Drop for Uncancelled {
    fn drop(&mut self) {
        if self.was_enabled {
            pthread_setcancelstate(PTHREAD_CANCEL_ENABLE, &mut 0);
        }
    }
}

impl Drop for Blocked {
    fn drop(&mut self) {
        // The former mask is not set again. The C library would leave its own signals out of that mask, and so would unblock them, but a thread of
        // ours blocks one of them (`leases.rs`).
        // SAFETY: the set holds only signals that this has blocked.
        unsafe { libc::pthread_sigmask(libc::SIG_UNBLOCK, &self.0, ptr::null_mut()) };
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    /// This thread's mask, as the kernel has it.
    fn mask() -> u64 {
        let mut mask = 0u64;
        // SAFETY: as many bytes as the kernel's masks have.
        unsafe { libc::syscall(libc::SYS_rt_sigprocmask, libc::SIG_BLOCK, ptr::null::<u64>(), &mut mask, 8) };
        mask
    }

    #[test]
    fn a_mask_is_put_back_as_it_was() {
        // An empty mask, one with a signal of the C library's own, and one with SIGBUS besides.
        for own in [0, 1 << 31, 1 << 31 | 1 << (libc::SIGBUS - 1) | 1 << (libc::SIGUSR1 - 1)] {
            let body = move || {
                // SAFETY: a set that the kernel reads.
                unsafe { libc::syscall(libc::SYS_rt_sigprocmask, libc::SIG_SETMASK, &own, ptr::null::<u64>(), 8) };
                let outer = Blocked::all();
                let inner = Blocked::but_sigbus();
                assert!(mask() & 1 << (libc::SIGTERM - 1) != 0 && mask() & 1 << (libc::SIGBUS - 1) != 0);
                drop(inner);
                drop(outer);
                assert_eq!(mask(), own);
                drop(Blocked::but_sigbus());
                assert_eq!(mask(), own);
            };
            std::thread::spawn(body).join().unwrap();
        }
    }
}
