//! Signals: sigaction(2), pthread_sigmask(3), and chaining to the handler that was there before.

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
    /// A store, not a load (bit 1 of the x86 page-fault error code, in the saved context).
    pub is_store: bool,
    /// The memory is bad, or has been made so (`UFFDIO_POISON`).
    pub is_poisoned: bool,
    /// The state of the thread (`ucontext_t`), which it goes on with when the handler returns.
    pub context: *mut libc::ucontext_t,
}

/// What the program wants done with a SIGBUS that is not ours: its action, as the kernel would have it. Our handler
/// reads it without a lock, and it may be replaced at any time, from a signal handler too.
struct Program {
    /// Odd while the words below change, and at every change two more.
    version: AtomicU32,
    handler: AtomicUsize,
    flags: AtomicI32,
    /// The signals of `sa_mask`, a bit each. The kernel has 64; glibc's set has room for more.
    mask: AtomicU64,
    /// Our handler is in force.
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

/// An action, in words.
#[derive(Debug, Clone, Copy)]
struct Action {
    handler: usize,
    flags: i32,
    mask: u64,
}

impl Action {
    /// `action` may be in a map: it is read here, and nowhere else.
    fn of(action: &libc::sigaction) -> Self {
        // SAFETY: looks at a set.
        let is_in = |signal: &i32| unsafe { libc::sigismember(&action.sa_mask, *signal) } == 1;
        // As the kernel does: nothing blocks these two.
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
            // Pairs with the fence in `change`: all that was read belongs to one version.
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

    /// Replaces the action that is in force by what `next` makes of it; returns the former. One thread at a time, with
    /// signals blocked: none waits for itself. `next` touches no map.
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

    /// The action for a signal that is being delivered: a handler that wants one signal only has had it now.
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

/// Makes `serve` the handler of SIGBUS, once in the life of the process; later calls only see to the calling thread's
/// stack. What was in force before becomes the program's action.
///
/// It runs on a stack of the engine's (`trap_stack.rs`), and with every signal blocked: a handler of the program
/// that interrupted it and touched the page it is loading would wait for itself.
pub fn install(serve: Serve) -> io::Result<()> {
    static INSTALLED: OnceLock<Result<(), i32>> = OnceLock::new();
    let installed = INSTALLED.get_or_init(|| {
        let handler = trap_stack::set_up(serve).map_err(|error| error.raw_os_error().unwrap_or(libc::ENOMEM))?;
        let mut error = 0;
        // The program's action is known before a signal that is not ours can come: its reader waits for this.
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

/// Replaces the program's action, if `new` is given, and returns the former; `None` if our handler is not installed.
/// Async-signal-safe.
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

/// What the kernel says of a SIGBUS; `None` when no access raised it (sent by kill(2), a bad page that nobody touched).
///
/// # Safety
/// The pointers are those the kernel gave the handler.
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

/// Decides what becomes of a SIGBUS that is the program's, as if our handler were not there: returns the handler that
/// it has installed, for `trap_stack.rs` to run; or zero, and the default action is restored, so that the signal kills
/// as it would have.
///
/// # Safety
/// Called from the handler with what the kernel gave it.
#[cold]
pub unsafe fn chain(signal: i32, info: *mut libc::siginfo_t, context: *mut libc::c_void) -> usize {
    let action = PROGRAM.deliver();
    // SAFETY: the kernel's structures; a zeroed sigaction is a valid one.
    unsafe {
        // By a process (SI_USER and its kin are zero or negative), or over a bad page that nobody touched: no access is
        // going to repeat it.
        let sent = (*info).si_code <= 0 || (*info).si_code == libc::BUS_MCEERR_AO;
        match action.handler {
            libc::SIG_IGN if sent => 0,
            libc::SIG_IGN | libc::SIG_DFL => {
                let mut action: libc::sigaction = std::mem::zeroed();
                action.sa_sigaction = libc::SIG_DFL;
                libc::sigaction(signal, &action, ptr::null_mut());
                if sent {
                    // Nothing will fault again on return: send it once more; it stays pending until we return.
                    libc::syscall(libc::SYS_tgkill, libc::getpid(), libc::syscall(libc::SYS_gettid), signal);
                }
                0
            }
            handler => {
                // The mask it would have run with: the thread's own, its sa_mask, and the signal unless SA_NODEFER.
                let before = (&raw const (*context.cast::<libc::ucontext_t>()).uc_sigmask).cast::<u64>().read();
                let own = if action.flags & libc::SA_NODEFER == 0 { 1 << (signal - 1) } else { 0 };
                trap_stack::leave_mask(info, before | action.mask | own);
                handler
            }
        }
    }
}

/// Keeps every signal away from this thread until dropped. Engine locks are only held so (or in the fault handler,
/// where it is so already): a handler of the program that faulted on a map while its own thread held one would never
/// get it.
#[derive(Debug)]
pub struct Blocked(libc::sigset_t);

impl Blocked {
    /// Blocks all signals.
    pub fn all() -> Self {
        type Words = [u64; size_of::<libc::sigset_t>() / size_of::<u64>()];
        // SAFETY: both sets are ours, and bits.
        unsafe {
            let mut all = std::mem::zeroed();
            let mut before = std::mem::zeroed();
            libc::sigfillset(&mut all);
            libc::pthread_sigmask(libc::SIG_BLOCK, &all, &mut before);
            let mut blocked: Words = std::mem::transmute(all);
            let before: Words = std::mem::transmute(before);
            blocked.iter_mut().zip(before).for_each(|(blocked, before)| *blocked &= !before);
            Blocked(std::mem::transmute::<Words, libc::sigset_t>(blocked))
        }
    }

    /// Blocks all but SIGBUS: for a thread that may touch what is not there, and whose lock our handler does not want.
    pub fn but_sigbus() -> Self {
        let blocked = Blocked::all();
        // SAFETY: the set is ours.
        unsafe {
            let mut bus = std::mem::zeroed();
            libc::sigemptyset(&mut bus);
            libc::sigaddset(&mut bus, libc::SIGBUS);
            if libc::sigismember(&blocked.0, libc::SIGBUS) == 1 {
                libc::pthread_sigmask(libc::SIG_UNBLOCK, &bus, ptr::null_mut());
            }
        }
        blocked
    }
}

/// Keeps pthread_cancel(3) from ending this thread, in a system call that is a cancellation point, until dropped: what it has begun others
/// wait for. Not in a fault handler, where the thread may be none of the C library's.
#[derive(Debug)]
pub struct Uncancelled {
    was_enabled: bool,
}

const PTHREAD_CANCEL_ENABLE: libc::c_int = 0;
const PTHREAD_CANCEL_DISABLE: libc::c_int = 1;

// SAFETY: declared as pthread.h has it; these numbers will do.
unsafe extern "C" {
    safe fn pthread_setcancelstate(state: libc::c_int, before: &mut libc::c_int) -> libc::c_int;
}

impl Uncancelled {
    /// From here on.
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
        // Not by the mask that was found: the C library's signals, which a thread of ours blocks (`foreign_writers.rs`), it would
        // leave out, and so unblock.
        // SAFETY: what this has blocked.
        unsafe { libc::pthread_sigmask(libc::SIG_UNBLOCK, &self.0, ptr::null_mut()) };
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    /// The mask of this thread as the kernel has it.
    fn mask() -> u64 {
        let mut mask = 0u64;
        // SAFETY: as many bytes as the kernel's masks have.
        unsafe { libc::syscall(libc::SYS_rt_sigprocmask, libc::SIG_BLOCK, ptr::null::<u64>(), &mut mask, 8) };
        mask
    }

    #[test]
    fn a_mask_is_put_back_as_it_was() {
        // With one of the C library's own, and SIGBUS or not.
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
