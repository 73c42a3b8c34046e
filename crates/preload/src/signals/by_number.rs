//! rt_sigaction(2) and its kin by number, with the kernel's own structures.

use super::actions::change_action;
use super::masks::change_mask;
use crate::next;
use crate::own::guard::{self, KernelMask};
use libc::{c_int, c_long, sighandler_t, sigset_t, size_t};
use std::ptr;

/// An action as the kernel has it. (On x86-64 it names the code that its handler returns to, `SA_RESTORER`.)
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct Action {
    handler: sighandler_t,
    flags: u64,
    restorer: Option<extern "C" fn()>,
    mask: KernelMask,
}

const SIZE: size_t = size_of::<KernelMask>();

/// The set with the signals of a mask. A set's first word is the kernel's mask.
fn set_of(mask: KernelMask) -> sigset_t {
    // SAFETY: all-zero bytes are an empty set.
    unsafe {
        let mut set: sigset_t = std::mem::zeroed();
        ptr::from_mut(&mut set).cast::<KernelMask>().write(mask);
        set
    }
}

fn mask_of(set: &sigset_t) -> KernelMask {
    // SAFETY: the first word of a sigset_t is the kernel's mask.
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
    // SAFETY: the pointers are null, or `change_action`'s own.
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
    // SAFETY: the pointers are null, or `change_mask`'s own.
    unsafe { next::syscall(libc::SYS_rt_sigprocmask, how.into(), new, old, SIZE as c_long, 0, 0) as c_int }
}

/// rt_sigaction(2).
///
/// # Safety
/// The caller keeps the contract of rt_sigaction(2).
pub(crate) unsafe fn action(signal: c_int, new: *const Action, old: *mut Action, size: size_t) -> c_long {
    // SAFETY: the caller's pointers; the kernel refuses another size before it looks at them.
    unsafe {
        if size != SIZE || !(1..=64).contains(&signal) {
            let (new, old) = (new as c_long, old as c_long);
            return next::syscall(libc::SYS_rt_sigaction, signal.into(), new, old, size as c_long, 0, 0);
        }
        let new = new.as_ref().map(|new| new.named());
        let mut before = std::mem::zeroed();
        let result = change_action(signal, new.as_ref().map_or(ptr::null(), ptr::from_ref), &mut before, real_action);
        if let (0, Some(old)) = (result, old.as_mut()) {
            *old = Action::of(&before);
        }
        result.into()
    }
}

/// rt_sigprocmask(2).
///
/// # Safety
/// The caller keeps the contract of rt_sigprocmask(2).
pub(crate) unsafe fn mask(how: c_int, new: *const KernelMask, old: *mut KernelMask, size: size_t) -> c_long {
    // SAFETY: the caller's pointers; the kernel refuses another size before it looks at them.
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
/// The caller keeps the contract of rt_sigsuspend(2).
pub(crate) unsafe fn suspend(mask: *const KernelMask, size: size_t) -> c_long {
    // SAFETY: the caller's pointers; the kernel refuses another size before it looks at them.
    unsafe {
        let own = if size == SIZE { mask.as_ref().map(|mask| mask & !guard::SIGBUS) } else { None };
        let mask = own.as_ref().map_or(mask, ptr::from_ref);
        next::syscall(libc::SYS_rt_sigsuspend, mask as c_long, size as c_long, 0, 0, 0, 0)
    }
}
