//! Actions of signals: sigaction(2), signal(2) and their kin. The engine keeps the program's action for SIGBUS.

use super::masks::of_one;
use super::{account, replace, told_blocked};
use crate::next;
use crate::own::set_errno;
use libc::{c_int, sighandler_t};
use std::ptr;

const SIG_HOLD: sighandler_t = 2;

type SetAction = unsafe fn(c_int, *const libc::sigaction, *mut libc::sigaction) -> c_int;

pub(super) unsafe fn change_action(
    signal: c_int,
    new: *const libc::sigaction,
    old: *mut libc::sigaction,
    real: SetAction,
) -> c_int {
    // SAFETY: the caller's pointers, as for sigaction(2); the actions in here are local.
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
/// The caller keeps the contract of sigaction(2).
unsafe fn sigaction(signal: c_int, new: *const libc::sigaction, old: *mut libc::sigaction) -> c_int {
    // SAFETY: the caller's contract.
    unsafe { change_action(signal, new, old, next::sigaction) }
}

/// sigaction(2), by its other name.
use sigaction as __sigaction;

exported! {
    fn sigaction(signal: c_int, new: *const libc::sigaction, old: *mut libc::sigaction) -> c_int;
    fn __sigaction(signal: c_int, new: *const libc::sigaction, old: *mut libc::sigaction) -> c_int;
}

/// Gives SIGBUS a handler, as the older calls do. Returns the former handler.
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

/// Defines calls of the family of signal(2). They differ from the C library's only for SIGBUS.
macro_rules! handlers {
    ($($(#[$doc:meta])* $name:ident: $flags:expr;)*) => { $(
        $(#[$doc])*
        ///
        /// # Safety
        /// The caller keeps the contract of the C library's function of this name.
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

/// Notes that an older call sets an action for a signal: its mask has no SIGBUS.
fn forget_mask(signal: c_int) {
    if (1..=64).contains(&signal) {
        account(signal, Some((false, false)));
    }
}

/// sigset(3).
///
/// # Safety
/// The caller keeps the contract of sigset(3).
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
    // SAFETY: the calls take no memory of the caller's.
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
    // SAFETY: the actions are local.
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
