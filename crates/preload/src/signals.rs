//! Signals: the engine serves page faults in a handler of SIGBUS, which therefore must be its own and never be blocked, and
//! the program is not to notice.
//!
//! * The program's action for SIGBUS is kept by the engine, which hands on what is not its own
//!   (`fastmap::signals::replace_sigbus`). Its handler may touch maps: it runs as with `SA_NODEFER`.
//! * A thread that blocks SIGBUS does not, but is told that it does; so are the threads that it makes and the programs that it
//!   executes. A SIGBUS that kill(2) sends is therefore delivered at once, unless a thread waits for it (sigwait(3)).
//! * No handler of another signal blocks SIGBUS while it runs, whatever its `sa_mask` says.
//!
//! What is said here of blocking holds from the start: a thread that blocks all signals may be there long before the first
//! mapping.
//!
//! A child made by vfork(2) has masks and actions of its own, and all of this memory: it sets its signals to rights before it
//! executes a program, as shells do, and none of that is its parent's. So it has an account of its own here, and what is kept
//! of the parent stays as it is.
//!
//! Real masks are seen by raw system calls, by `SigBlk` in /proc, and by signalfd(2), which never reports SIGBUS.

use crate::guard::{self, KernelMask, real_mask};
use crate::{next, process, set_errno};
use fastmap::signals::replace_sigbus;
use libc::{c_int, c_void, pid_t, sighandler_t, sigset_t};
use std::cell::Cell;
use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

thread_local! {
    /// This thread believes that it blocks SIGBUS.
    static TOLD_BLOCKED: Cell<bool> = const { Cell::new(false) };
    /// The account of the last child that this thread has become by vfork(2).
    static GUEST: Cell<Option<Guest>> = const { Cell::new(None) };
}

/// What a process believes that shares the memory of another.
#[derive(Clone, Copy)]
struct Guest {
    pid: pid_t,
    blocked: bool,
    masked: u64,
    nodefer: bool,
    /// Its action for SIGBUS, if the engine's handler is in force.
    sigbus: Option<libc::sigaction>,
}

/// The account of this process if it is such a child; at first what its parent believes.
fn guest() -> Option<Guest> {
    let pid = process::guest()?;
    GUEST.get().filter(|guest| guest.pid == pid).or_else(|| {
        let (masked, nodefer) = (MASKED.load(Ordering::Relaxed), NODEFER.load(Ordering::Relaxed));
        // SAFETY: nothing is replaced.
        let sigbus = unsafe { replace_sigbus(None) };
        Some(Guest { pid, blocked: TOLD_BLOCKED.get(), masked, nodefer, sigbus })
    })
}

/// Before vfork(2): numbers of processes come again.
pub(crate) fn before_vfork() {
    GUEST.set(None);
}

/// Signals, a bit each, whose `sa_mask` has SIGBUS by the program's account.
static MASKED: AtomicU64 = AtomicU64::new(0);

/// Whether the program's action for SIGBUS has `SA_NODEFER` by its own account.
static NODEFER: AtomicBool = AtomicBool::new(false);

const SIG_HOLD: sighandler_t = 2;

/// At the start: SIGBUS may have been blocked before exec(2).
pub(crate) fn start() {
    if real_mask(libc::SIG_UNBLOCK, guard::SIGBUS) & guard::SIGBUS != 0 {
        TOLD_BLOCKED.set(true);
    }
}

/// Whether this thread believes that it blocks SIGBUS.
pub(crate) fn told_blocked() -> bool {
    guest().map_or_else(|| TOLD_BLOCKED.get(), |guest| guest.blocked)
}

fn tell_blocked(blocked: bool) {
    match guest() {
        Some(guest) => GUEST.set(Some(Guest { blocked, ..guest })),
        None => TOLD_BLOCKED.set(blocked),
    }
}

/// What a new thread believes: what the one that made it did.
pub(crate) fn inherit(told: bool) {
    TOLD_BLOCKED.set(told);
}

/// Makes what programs inherit that are executed what this one believes, for a moment: SIGBUS is blocked, and ignored.
pub(crate) struct AsTold {
    mask: Option<KernelMask>,
    action: Option<libc::sigaction>,
}

impl AsTold {
    /// For a program that is executed beside this one, which goes on meanwhile: only the mask.
    pub fn beside() -> Self {
        AsTold { mask: told_blocked().then(|| real_mask(libc::SIG_BLOCK, guard::SIGBUS)), action: None }
    }

    /// For one in the place of this.
    pub fn instead() -> Self {
        // SAFETY: nothing is replaced.
        let told = guest().map_or_else(|| unsafe { replace_sigbus(None) }, |guest| guest.sigbus);
        let ignored = told.filter(|action| action.sa_sigaction == libc::SIG_IGN).map(|_| {
            // SAFETY: both are ours; a zeroed sigaction is a valid one.
            unsafe {
                let (mut ignore, mut before): (libc::sigaction, libc::sigaction) = std::mem::zeroed();
                ignore.sa_sigaction = libc::SIG_IGN;
                next::sigaction(libc::SIGBUS, &ignore, &mut before);
                before
            }
        });
        let mut told = Self::beside();
        told.action = ignored;
        told
    }
}

impl Drop for AsTold {
    fn drop(&mut self) {
        // SAFETY: this thread's; the call that failed has said why. The action is the one that was in force.
        unsafe {
            let errno = *libc::__errno_location();
            if let Some(action) = &self.action {
                next::sigaction(libc::SIGBUS, action, ptr::null_mut());
            }
            set_errno(errno);
        }
        if let Some(mask) = self.mask {
            real_mask(libc::SIG_SETMASK, mask);
        }
    }
}

/// A mask that a call sets for its own time (sigsuspend(2), ppoll(2)), without SIGBUS. `None`: there is none, or it has none.
pub(crate) unsafe fn without_sigbus(mask: *const sigset_t) -> Option<sigset_t> {
    // SAFETY: null or the caller's set.
    unsafe {
        let mut mask = *mask.as_ref()?;
        let has = libc::sigismember(&mask, libc::SIGBUS) == 1;
        libc::sigdelset(&mut mask, libc::SIGBUS);
        has.then_some(mask)
    }
}

/// Whether such a mask has SIGBUS; null has not.
pub(crate) fn has_sigbus(mask: *const sigset_t) -> bool {
    // SAFETY: null or the caller's set.
    unsafe { !mask.is_null() && libc::sigismember(mask, libc::SIGBUS) == 1 }
}

type SetMask = unsafe fn(c_int, *const sigset_t, *mut sigset_t) -> c_int;

unsafe fn change_mask(how: c_int, new: *const sigset_t, old: *mut sigset_t, real: SetMask) -> c_int {
    // SAFETY: the caller's pointers, as for sigprocmask(2); the sets here are ours.
    unsafe {
        let mut wanted = new.as_ref().copied();
        let has = wanted.as_ref().is_some_and(|set| libc::sigismember(set, libc::SIGBUS) == 1);
        // Unblocking it is meant: the program's handler may run with it blocked, and leave by longjmp(3).
        if let Some(set) = wanted.as_mut().filter(|_| how != libc::SIG_UNBLOCK) {
            libc::sigdelset(set, libc::SIGBUS);
        }
        let mut before: sigset_t = std::mem::zeroed();
        let result = real(how, wanted.as_ref().map_or(ptr::null(), ptr::from_ref), &mut before);
        if result != 0 {
            return result;
        }
        let told = told_blocked();
        if wanted.is_some() {
            tell_blocked(match how {
                libc::SIG_BLOCK => told || has,
                libc::SIG_UNBLOCK => told && !has,
                _ => has,
            });
        }
        if let Some(old) = old.as_mut() {
            if told {
                libc::sigaddset(&mut before, libc::SIGBUS);
            }
            *old = before;
        }
        0
    }
}

/// pthread_sigmask(3).
///
/// # Safety
/// As there.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn pthread_sigmask(how: c_int, new: *const sigset_t, old: *mut sigset_t) -> c_int {
    // SAFETY: the caller's contract.
    unsafe { change_mask(how, new, old, next::pthread_sigmask) }
}

/// sigprocmask(2).
///
/// # Safety
/// As there.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn sigprocmask(how: c_int, new: *const sigset_t, old: *mut sigset_t) -> c_int {
    // SAFETY: the caller's contract.
    unsafe { change_mask(how, new, old, next::sigprocmask) }
}

/// Changes the mask by 4.2BSD's small ones, of the first 32 signals.
unsafe fn change_small(how: c_int, mask: c_int) -> c_int {
    // SAFETY: all-zero bytes are an empty set, whose first word is as the kernel has it.
    unsafe {
        let (mut new, mut old): (sigset_t, sigset_t) = std::mem::zeroed();
        ptr::from_mut(&mut new).cast::<u32>().write(mask as u32);
        match change_mask(how, &new, &mut old, next::sigprocmask) {
            0 => ptr::from_ref(&old).cast::<c_int>().read(),
            failed => failed,
        }
    }
}

/// sigblock(3).
#[unsafe(no_mangle)]
pub extern "C-unwind" fn sigblock(mask: c_int) -> c_int {
    // SAFETY: any mask will do.
    unsafe { change_small(libc::SIG_BLOCK, mask) }
}

/// sigsetmask(3).
#[unsafe(no_mangle)]
pub extern "C-unwind" fn sigsetmask(mask: c_int) -> c_int {
    // SAFETY: any mask will do.
    unsafe { change_small(libc::SIG_SETMASK, mask) }
}

/// sighold(3).
#[unsafe(no_mangle)]
pub extern "C-unwind" fn sighold(signal: c_int) -> c_int {
    // SAFETY: numbers only.
    unsafe { if signal == libc::SIGBUS { of_one(libc::SIG_BLOCK, signal) } else { next::sighold(signal) } }
}

/// sigrelse(3).
#[unsafe(no_mangle)]
pub extern "C-unwind" fn sigrelse(signal: c_int) -> c_int {
    // SAFETY: numbers only.
    unsafe { if signal == libc::SIGBUS { of_one(libc::SIG_UNBLOCK, signal) } else { next::sigrelse(signal) } }
}

fn of_one(how: c_int, signal: c_int) -> c_int {
    // SAFETY: the set is ours.
    unsafe {
        let mut set = std::mem::zeroed();
        libc::sigaddset(&mut set, signal);
        change_mask(how, &set, ptr::null_mut(), next::sigprocmask)
    }
}

/// sigsuspend(2).
///
/// # Safety
/// As there.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn sigsuspend(mask: *const sigset_t) -> c_int {
    // SAFETY: the caller's contract.
    unsafe { next::sigsuspend(without_sigbus(mask).as_ref().map_or(mask, ptr::from_ref)) }
}

/// sigsuspend(2), by its other name.
///
/// # Safety
/// As there.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn __sigsuspend(mask: *const sigset_t) -> c_int {
    // SAFETY: the caller's contract.
    unsafe { next::sigsuspend(without_sigbus(mask).as_ref().map_or(mask, ptr::from_ref)) }
}

/// pthread_attr_setsigmask_np(3). A thread that begins with SIGBUS blocked this way is told that it has not.
///
/// # Safety
/// As there.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn pthread_attr_setsigmask_np(attr: *mut c_void, mask: *const sigset_t) -> c_int {
    // SAFETY: the caller's contract.
    unsafe { next::pthread_attr_setsigmask_np(attr, without_sigbus(mask).as_ref().map_or(mask, ptr::from_ref)) }
}

/// The action for SIGBUS that this process believes in force, where the engine's handler is; replaces it if `new` is given.
fn replace(new: Option<&libc::sigaction>) -> Option<libc::sigaction> {
    // SAFETY: an action that the program gave to sigaction(2).
    let Some(guest) = guest() else { return unsafe { replace_sigbus(new) } };
    let old = guest.sigbus?;
    GUEST.set(Some(Guest { sigbus: Some(new.copied().unwrap_or(old)), ..guest }));
    Some(old)
}

/// Whether a signal's `sa_mask` has SIGBUS, and its action `SA_NODEFER`, by this process's account (of the latter only that of
/// SIGBUS is kept); from now on as `new` says.
fn account(signal: c_int, new: Option<(bool, bool)>) -> (bool, bool) {
    let bit = 1u64 << (signal - 1);
    let guest = guest();
    let (masked, nodefer) = match guest {
        Some(guest) => (guest.masked, guest.nodefer),
        None => (MASKED.load(Ordering::Relaxed), NODEFER.load(Ordering::Relaxed)),
    };
    let of_sigbus = signal == libc::SIGBUS;
    if let Some((has, is_nodefer)) = new {
        match guest {
            Some(guest) => {
                let masked = if has { masked | bit } else { masked & !bit };
                GUEST.set(Some(Guest { masked, nodefer: if of_sigbus { is_nodefer } else { nodefer }, ..guest }));
            }
            None => {
                if has {
                    MASKED.fetch_or(bit, Ordering::Relaxed);
                } else {
                    MASKED.fetch_and(!bit, Ordering::Relaxed);
                }
                if of_sigbus {
                    NODEFER.store(is_nodefer, Ordering::Relaxed);
                }
            }
        }
    }
    (masked & bit != 0, nodefer || !of_sigbus)
}

type SetAction = unsafe fn(c_int, *const libc::sigaction, *mut libc::sigaction) -> c_int;

unsafe fn change_action(
    signal: c_int,
    new: *const libc::sigaction,
    old: *mut libc::sigaction,
    real: SetAction,
) -> c_int {
    // SAFETY: the caller's pointers, as for sigaction(2); the actions here are ours.
    unsafe {
        let mut wanted = new.as_ref().copied();
        let has = wanted.as_ref().is_some_and(|action| libc::sigismember(&action.sa_mask, libc::SIGBUS) == 1);
        let defers = wanted.as_ref().is_some_and(|action| action.sa_flags & libc::SA_NODEFER == 0);
        if let Some(action) = &mut wanted {
            libc::sigdelset(&mut action.sa_mask, libc::SIGBUS);
            if signal == libc::SIGBUS {
                action.sa_flags |= libc::SA_NODEFER;
            }
        }
        let mut before: libc::sigaction = std::mem::zeroed();
        let kept = (signal == libc::SIGBUS).then(|| replace(wanted.as_ref())).flatten();
        match kept {
            Some(kept) => before = kept,
            None => {
                let result = real(signal, wanted.as_ref().map_or(ptr::null(), ptr::from_ref), &mut before);
                if result != 0 {
                    return result;
                }
            }
        }
        let (had, nodefer) = account(signal, wanted.map(|_| (has, !defers)));
        if let Some(old) = old.as_mut() {
            if had {
                libc::sigaddset(&mut before.sa_mask, libc::SIGBUS);
            }
            if !nodefer {
                before.sa_flags &= !libc::SA_NODEFER;
            }
            *old = before;
        }
        0
    }
}

/// sigaction(2).
///
/// # Safety
/// As there.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn sigaction(
    signal: c_int,
    new: *const libc::sigaction,
    old: *mut libc::sigaction,
) -> c_int {
    // SAFETY: the caller's contract.
    unsafe { change_action(signal, new, old, next::sigaction) }
}

/// sigaction(2), by its other name.
///
/// # Safety
/// As there.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn __sigaction(
    signal: c_int,
    new: *const libc::sigaction,
    old: *mut libc::sigaction,
) -> c_int {
    // SAFETY: the caller's contract.
    unsafe { change_action(signal, new, old, next::sigaction) }
}

/// Gives SIGBUS a handler, as the older calls do; returns the former one.
unsafe fn handle_sigbus(handler: sighandler_t, flags: c_int) -> sighandler_t {
    // SAFETY: the caller's contract; the actions are ours.
    unsafe {
        let (mut new, mut old): (libc::sigaction, libc::sigaction) = std::mem::zeroed();
        new.sa_sigaction = handler;
        new.sa_flags = flags;
        match change_action(libc::SIGBUS, &new, &mut old, next::sigaction) {
            0 => old.sa_sigaction,
            _ => libc::SIG_ERR,
        }
    }
}

/// Defines calls of the family of signal(2): only for SIGBUS are they ours.
macro_rules! handlers {
    ($($(#[$doc:meta])* $name:ident: $flags:expr;)*) => { $(
        $(#[$doc])*
        ///
        /// # Safety
        /// As there.
        #[unsafe(no_mangle)]
        pub unsafe extern "C-unwind" fn $name(signal: c_int, handler: sighandler_t) -> sighandler_t {
            // SAFETY: the caller's contract.
            unsafe {
                if signal == libc::SIGBUS && handler != libc::SIG_ERR {
                    return handle_sigbus(handler, $flags);
                }
                forget_mask(signal);
                next::$name(signal, handler)
            }
        }
    )* };
}

handlers! {
    /// signal(2).
    signal: libc::SA_RESTART;
    /// bsd_signal(3).
    bsd_signal: libc::SA_RESTART;
    /// ssignal(3).
    ssignal: libc::SA_RESTART;
    /// sysv_signal(3).
    sysv_signal: libc::SA_RESETHAND | libc::SA_NODEFER;
    /// sysv_signal(3), by its other name.
    __sysv_signal: libc::SA_RESETHAND | libc::SA_NODEFER;
}

/// The older calls set no mask of their own.
fn forget_mask(signal: c_int) {
    if (1..=64).contains(&signal) {
        account(signal, Some((false, false)));
    }
}

/// sigset(3).
///
/// # Safety
/// As there.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn sigset(signal: c_int, disposition: sighandler_t) -> sighandler_t {
    // SAFETY: the caller's contract.
    unsafe {
        if signal != libc::SIGBUS || disposition == libc::SIG_ERR {
            forget_mask(signal);
            return next::sigset(signal, disposition);
        }
        let held = told_blocked();
        let before = if disposition == SIG_HOLD {
            of_one(libc::SIG_BLOCK, signal);
            let mut old: libc::sigaction = std::mem::zeroed();
            change_action(signal, ptr::null(), &mut old, next::sigaction);
            old.sa_sigaction
        } else {
            let before = handle_sigbus(disposition, 0);
            of_one(libc::SIG_UNBLOCK, signal);
            before
        };
        if held { SIG_HOLD } else { before }
    }
}

/// sigignore(3).
#[unsafe(no_mangle)]
pub extern "C-unwind" fn sigignore(signal: c_int) -> c_int {
    // SAFETY: numbers only.
    unsafe {
        if signal != libc::SIGBUS {
            forget_mask(signal);
            return next::sigignore(signal);
        }
        if handle_sigbus(libc::SIG_IGN, 0) == libc::SIG_ERR { -1 } else { 0 }
    }
}

/// siginterrupt(3).
#[unsafe(no_mangle)]
pub extern "C-unwind" fn siginterrupt(signal: c_int, flag: c_int) -> c_int {
    // SAFETY: the actions are ours.
    unsafe {
        if signal != libc::SIGBUS {
            return next::siginterrupt(signal, flag);
        }
        let mut action: libc::sigaction = std::mem::zeroed();
        if change_action(signal, ptr::null(), &mut action, next::sigaction) != 0 {
            set_errno(libc::EINVAL);
            return -1;
        }
        if flag != 0 {
            action.sa_flags &= !libc::SA_RESTART;
        } else {
            action.sa_flags |= libc::SA_RESTART;
        }
        change_action(signal, &action, ptr::null_mut(), next::sigaction)
    }
}

/// rt_sigaction(2) and its kin by number, with the kernel's own structures.
pub(crate) mod by_number {
    use super::*;
    use libc::{c_long, size_t};

    /// An action as the kernel has it. (On x86-64 whoever gives one says where its handler returns to, `SA_RESTORER`.)
    #[repr(C)]
    #[derive(Clone, Copy)]
    pub(crate) struct Action {
        handler: sighandler_t,
        flags: u64,
        restorer: Option<extern "C" fn()>,
        mask: KernelMask,
    }

    const SIZE: size_t = size_of::<KernelMask>();

    /// A set's first word is the kernel's mask.
    fn set_of(mask: KernelMask) -> sigset_t {
        // SAFETY: all-zero bytes are an empty set.
        unsafe {
            let mut set: sigset_t = std::mem::zeroed();
            ptr::from_mut(&mut set).cast::<KernelMask>().write(mask);
            set
        }
    }

    fn mask_of(set: &sigset_t) -> KernelMask {
        // SAFETY: see `set_of`.
        unsafe { ptr::from_ref(set).cast::<KernelMask>().read() }
    }

    impl Action {
        fn of(action: &libc::sigaction) -> Self {
            let flags = u64::from(action.sa_flags as u32);
            Action { handler: action.sa_sigaction, flags, restorer: action.sa_restorer, mask: mask_of(&action.sa_mask) }
        }

        fn named(self) -> libc::sigaction {
            let (sa_mask, sa_flags) = (set_of(self.mask), self.flags as c_int);
            libc::sigaction { sa_sigaction: self.handler, sa_mask, sa_flags, sa_restorer: self.restorer }
        }
    }

    unsafe fn real_action(signal: c_int, new: *const libc::sigaction, old: *mut libc::sigaction) -> c_int {
        // SAFETY: null, or `change_action`'s own.
        unsafe {
            let new = new.as_ref().map(Action::of);
            let mut before = Action::of(&std::mem::zeroed());
            let given = new.as_ref().map_or(0, |new| ptr::from_ref(new) as c_long);
            let (signal, place) = (signal.into(), &raw mut before as c_long);
            let result = next::syscall(libc::SYS_rt_sigaction, signal, given, place, SIZE as c_long, 0, 0);
            old.write(before.named());
            result as c_int
        }
    }

    unsafe fn real_mask(how: c_int, new: *const sigset_t, old: *mut sigset_t) -> c_int {
        let (new, old) = (new as c_long, old as c_long);
        // SAFETY: null, or `change_mask`'s own.
        unsafe { next::syscall(libc::SYS_rt_sigprocmask, how.into(), new, old, SIZE as c_long, 0, 0) as c_int }
    }

    /// rt_sigaction(2).
    ///
    /// # Safety
    /// As there.
    pub(crate) unsafe fn action(signal: c_int, new: *const Action, old: *mut Action, size: size_t) -> c_long {
        // SAFETY: the caller's pointers; the kernel refuses another size before it looks at them.
        unsafe {
            if size != SIZE || !(1..=64).contains(&signal) {
                let (new, old) = (new as c_long, old as c_long);
                return next::syscall(libc::SYS_rt_sigaction, signal.into(), new, old, size as c_long, 0, 0);
            }
            let new = new.as_ref().map(|new| new.named());
            let mut before = std::mem::zeroed();
            let result =
                change_action(signal, new.as_ref().map_or(ptr::null(), ptr::from_ref), &mut before, real_action);
            if let (0, Some(old)) = (result, old.as_mut()) {
                *old = Action::of(&before);
            }
            result.into()
        }
    }

    /// rt_sigprocmask(2).
    ///
    /// # Safety
    /// As there.
    pub(crate) unsafe fn mask(how: c_int, new: *const KernelMask, old: *mut KernelMask, size: size_t) -> c_long {
        // SAFETY: likewise.
        unsafe {
            if size != SIZE {
                let (new, old) = (new as c_long, old as c_long);
                return next::syscall(libc::SYS_rt_sigprocmask, how.into(), new, old, size as c_long, 0, 0);
            }
            let new = new.as_ref().map(|new| set_of(*new));
            let mut before = std::mem::zeroed();
            let result = change_mask(how, new.as_ref().map_or(ptr::null(), ptr::from_ref), &mut before, real_mask);
            if let (0, Some(old)) = (result, old.as_mut()) {
                *old = mask_of(&before);
            }
            result.into()
        }
    }

    /// rt_sigsuspend(2).
    ///
    /// # Safety
    /// As there.
    pub(crate) unsafe fn suspend(mask: *const KernelMask, size: size_t) -> c_long {
        // SAFETY: likewise.
        unsafe {
            let own = if size == SIZE { mask.as_ref().map(|mask| mask & !guard::SIGBUS) } else { None };
            let mask = own.as_ref().map_or(mask, ptr::from_ref);
            next::syscall(libc::SYS_rt_sigsuspend, mask as c_long, size as c_long, 0, 0, 0, 0)
        }
    }
}
