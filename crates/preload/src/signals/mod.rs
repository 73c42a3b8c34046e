//! Signals. The engine serves page faults in its handler of SIGBUS. So this handler is never replaced, and SIGBUS is
//! never blocked. The program does not notice.
//!
//! * The engine keeps the program's action for SIGBUS, and chains to it for faults that are not the engine's
//!   (`fastmap::signals::replace_sigbus`). The program's handler may touch maps, so it runs as with `SA_NODEFER`.
//! * A thread that blocks SIGBUS does not really block it, but is told that it does. The threads that it makes and the
//!   programs that it executes inherit what it is told. So a SIGBUS that kill(2) sends is delivered at once, unless a
//!   thread waits for it (sigwait(3)).
//! * No handler of another signal blocks SIGBUS while it runs, whatever its `sa_mask` says.
//!
//! This holds from the start of the process: a thread that blocks all signals may be there long before the first
//! mapping.
//!
//! A child made by vfork(2) has masks and actions of its own, but shares all of this memory. Before it executes a
//! program it resets its signals, as shells do. None of that may change its parent's signals. So the child has an
//! account of its own here (`Guest`), and its parent's account stays as it is.
//!
//! `masks.rs` and `actions.rs` have the calls by name, `by_number.rs` the calls through syscall(2). This room calls
//! `own` and `next`.
//!
//! The real masks are seen by system calls that a program makes without the C library, by `SigBlk` in /proc, and by
//! signalfd(2), which never reports SIGBUS.

mod actions;
pub(crate) mod by_number;
mod masks;

pub(crate) use masks::has_sigbus;

use crate::next;
use crate::own::guard::{self, KernelMask, real_mask};
use crate::own::{errno, owner, set_errno};
use fastmap::signals::replace_sigbus;
use libc::{c_int, pid_t};
use std::cell::Cell;
use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

thread_local! {
    /// Whether this thread believes that it blocks SIGBUS.
    static TOLD_BLOCKED: Cell<bool> = const { Cell::new(false) };
    /// The account of the last child that this thread has made by vfork(2).
    static GUEST: Cell<Option<Guest>> = const { Cell::new(None) };
}

/// The signal state that a child made by vfork(2) believes to have while it shares its parent's memory.
#[derive(Clone, Copy)]
struct Guest {
    pid: pid_t,
    blocked: bool,
    masked: u64,
    nodefer: bool,
    /// The program's action for SIGBUS, if the engine's handler is in force.
    sigbus: Option<libc::sigaction>,
}

/// The account of this process, if it is a child made by vfork(2). At first that is what its parent believes.
fn guest() -> Option<Guest> {
    let pid = owner::guest()?;
    GUEST.get().filter(|guest| guest.pid == pid).or_else(|| {
        let (masked, nodefer) = (MASKED.load(Ordering::Relaxed), NODEFER.load(Ordering::Relaxed));
        // SAFETY: `None` only asks for the action.
        let sigbus = unsafe { replace_sigbus(None) };
        Some(Guest { pid, blocked: TOLD_BLOCKED.get(), masked, nodefer, sigbus })
    })
}

/// Before vfork(2): forgets the last child's account, since process ids are reused.
pub(crate) fn before_vfork() {
    GUEST.set(None);
}

/// Signals, a bit each, for which the program believes that `sa_mask` has SIGBUS.
static MASKED: AtomicU64 = AtomicU64::new(0);

/// Whether the program believes that its action for SIGBUS has `SA_NODEFER`.
static NODEFER: AtomicBool = AtomicBool::new(false);

/// Called at the start. Unblocks SIGBUS, which may have been blocked before exec(2). The first thread is told that it
/// still is.
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

/// Gives a new thread the belief of the thread that made it.
pub(crate) fn inherit(told: bool) {
    TOLD_BLOCKED.set(told);
}

/// The action that this process believes in force for SIGBUS; replaces it if `new` is given. `None`: the engine's
/// handler is not in force.
fn replace(new: Option<&libc::sigaction>) -> Option<libc::sigaction> {
    // SAFETY: the program gave the action to sigaction(2), so its handler is fit to be called.
    let Some(guest) = guest() else { return unsafe { replace_sigbus(new) } };
    let old = guest.sigbus?;
    GUEST.set(Some(Guest { sigbus: Some(new.copied().unwrap_or(old)), ..guest }));
    Some(old)
}

/// Whether the process believes that a signal's `sa_mask` has SIGBUS, and that its action has `SA_NODEFER`. The latter
/// is kept for SIGBUS alone, and is true for all other signals. If `new` is given, both are as `new` says from now on.
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

/// While this lives, the real mask and action are what the program believes. That is for a program that is executed and
/// inherits both. (An action is inherited only if it ignores the signal.)
pub(crate) struct AsTold {
    mask: Option<KernelMask>,
    action: Option<libc::sigaction>,
}

impl AsTold {
    /// For a program that is executed while this one goes on. Changes only the mask.
    pub fn beside() -> Self {
        AsTold { mask: told_blocked().then(|| real_mask(libc::SIG_BLOCK, guard::SIGBUS)), action: None }
    }

    /// For a program that takes the place of this one. Changes the mask and the action.
    pub fn instead() -> Self {
        // SAFETY: `None` only asks for the action.
        let told = guest().map_or_else(|| unsafe { replace_sigbus(None) }, |guest| guest.sigbus);
        let ignored = told.filter(|action| action.sa_sigaction == libc::SIG_IGN).map(|_| {
            // SAFETY: both structures are local, and a zeroed sigaction is a valid one.
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
        // SAFETY: the action is the one that was in force. errno stays that of the exec that failed.
        unsafe {
            let before = errno();
            if let Some(action) = &self.action {
                next::sigaction(libc::SIGBUS, action, ptr::null_mut());
            }
            set_errno(before);
        }
        if let Some(mask) = self.mask {
            real_mask(libc::SIG_SETMASK, mask);
        }
    }
}
