//! Signal masks: sigprocmask(2) and its kin. SIGBUS is never blocked. A program that asks for it to be blocked is told
//! that it is.

use super::{tell_blocked, told_blocked};
use crate::next;
use libc::{c_int, c_void, sigset_t};
use std::ptr;

/// A copy, without SIGBUS, of a mask that a call sets for its own time (sigsuspend(2), ppoll(2)). `None`: there is no
/// mask, or SIGBUS is not in it.
pub(crate) unsafe fn without_sigbus(mask: *const sigset_t) -> Option<sigset_t> {
    // SAFETY: null or the caller's set.
    unsafe {
        let mut mask = *mask.as_ref()?;
        let has = libc::sigismember(&mask, libc::SIGBUS) == 1;
        libc::sigdelset(&mut mask, libc::SIGBUS);
        has.then_some(mask)
    }
}

/// Whether a mask has SIGBUS; false for null.
pub(crate) fn has_sigbus(mask: *const sigset_t) -> bool {
    // SAFETY: null or the caller's set.
    unsafe { !mask.is_null() && libc::sigismember(mask, libc::SIGBUS) == 1 }
}

type SetMask = unsafe fn(c_int, *const sigset_t, *mut sigset_t) -> c_int;

pub(super) unsafe fn change_mask(how: c_int, new: *const sigset_t, old: *mut sigset_t, real: SetMask) -> c_int {
    // SAFETY: the caller's pointers, as for sigprocmask(2); the sets here are ours.
    unsafe {
        let mut wanted = new.as_ref().copied();
        let has = wanted.as_ref().is_some_and(|set| libc::sigismember(set, libc::SIGBUS) == 1);
        // Unblocking is real: the program's handler may run with SIGBUS blocked, and leave by longjmp(3).
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
/// The caller keeps the contract of pthread_sigmask(3).
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn pthread_sigmask(how: c_int, new: *const sigset_t, old: *mut sigset_t) -> c_int {
    // SAFETY: the caller's contract.
    unsafe { change_mask(how, new, old, next::pthread_sigmask) }
}

/// sigprocmask(2).
///
/// # Safety
/// The caller keeps the contract of sigprocmask(2).
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn sigprocmask(how: c_int, new: *const sigset_t, old: *mut sigset_t) -> c_int {
    // SAFETY: the caller's contract.
    unsafe { change_mask(how, new, old, next::sigprocmask) }
}

/// Changes the mask by a mask of 4.2BSD, which has the first 32 signals. Returns the former mask as such a mask, or -1.
unsafe fn change_small(how: c_int, mask: c_int) -> c_int {
    // SAFETY: all-zero bytes are an empty set. A set's first word is the kernel's mask.
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
    // SAFETY: every number is a valid mask.
    unsafe { change_small(libc::SIG_BLOCK, mask) }
}

/// sigsetmask(3).
#[unsafe(no_mangle)]
pub extern "C-unwind" fn sigsetmask(mask: c_int) -> c_int {
    // SAFETY: every number is a valid mask.
    unsafe { change_small(libc::SIG_SETMASK, mask) }
}

/// sighold(3).
#[unsafe(no_mangle)]
pub extern "C-unwind" fn sighold(signal: c_int) -> c_int {
    // SAFETY: the calls take no memory.
    unsafe { if signal == libc::SIGBUS { of_one(libc::SIG_BLOCK, signal) } else { next::sighold(signal) } }
}

/// sigrelse(3).
#[unsafe(no_mangle)]
pub extern "C-unwind" fn sigrelse(signal: c_int) -> c_int {
    // SAFETY: the calls take no memory.
    unsafe { if signal == libc::SIGBUS { of_one(libc::SIG_UNBLOCK, signal) } else { next::sigrelse(signal) } }
}

pub(super) fn of_one(how: c_int, signal: c_int) -> c_int {
    // SAFETY: the set is local, and zeroed bytes are an empty set.
    unsafe {
        let mut set = std::mem::zeroed();
        libc::sigaddset(&mut set, signal);
        change_mask(how, &set, ptr::null_mut(), next::sigprocmask)
    }
}

/// sigsuspend(2).
///
/// # Safety
/// The caller keeps the contract of sigsuspend(2).
unsafe fn sigsuspend(mask: *const sigset_t) -> c_int {
    // SAFETY: the caller's contract.
    unsafe { next::sigsuspend(without_sigbus(mask).as_ref().map_or(mask, ptr::from_ref)) }
}

/// sigsuspend(2), by its other name.
use sigsuspend as __sigsuspend;

exported! {
    fn sigsuspend(mask: *const sigset_t) -> c_int;
    fn __sigsuspend(mask: *const sigset_t) -> c_int;
}

/// pthread_attr_setsigmask_np(3), without SIGBUS. A thread that is made with the mask is told what its maker is told of
/// SIGBUS.
///
/// # Safety
/// The caller keeps the contract of pthread_attr_setsigmask_np(3).
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn pthread_attr_setsigmask_np(attr: *mut c_void, mask: *const sigset_t) -> c_int {
    // SAFETY: the caller's contract.
    unsafe { next::pthread_attr_setsigmask_np(attr, without_sigbus(mask).as_ref().map_or(mask, ptr::from_ref)) }
}
