//! Children without a copy of the memory: vfork(2), posix_spawn(3), system(3) and popen(3).

use super::exec::{Readable, Strings};
use super::save;
use crate::{next, signals};
use libc::{c_char, c_int, c_void, pid_t};
use std::arch::naked_asm;
use std::ptr;

/// vfork(2). The child shares the memory, and is about to execute a program that reads files.
///
/// # Safety
/// The caller keeps the contract of vfork(2).
#[unsafe(no_mangle)]
#[unsafe(naked)]
pub unsafe extern "C-unwind" fn vfork() -> pid_t {
    // A jump, so that the C library's own function finds the stack as this function's caller left it.
    naked_asm!("sub rsp, 8", "call {before}", "add rsp, 8", "jmp rax", before = sym before_vfork)
}

/// vfork(2), by its other name.
///
/// # Safety
/// The caller keeps the contract of vfork(2).
#[unsafe(no_mangle)]
#[unsafe(naked)]
pub unsafe extern "C-unwind" fn __vfork() -> pid_t {
    naked_asm!("jmp {vfork}", vfork = sym vfork)
}

extern "C" fn before_vfork() -> *mut c_void {
    static NEXT: next::Next = next::Next::new(c"vfork");
    save();
    signals::before_vfork();
    // Every C library has `vfork`.
    NEXT.find().unwrap_or(libc::fork as *mut c_void)
}

/// Wrappers of posix_spawn(3), by path or by name.
macro_rules! spawns {
    ($($name:ident)*) => { $(
        // SAFETY: the C library's name and signature.
        #[unsafe(no_mangle)]
        unsafe extern "C-unwind" fn $name(
            pid: *mut pid_t,
            path: *const c_char,
            actions: *const c_void,
            attr: *const c_void,
            argv: Strings,
            envp: Strings,
        ) -> c_int {
            save();
            // SAFETY: the caller's contract, which is the C library's.
            unsafe {
                let Some(own) = Readable::new(path, argv, envp) else { return libc::ENOMEM };
                let _signals = signals::AsTold::beside();
                next::$name(pid, own.path, actions, attr, own.argv, own.envp)
            }
        }
    )* };
}
spawns!(posix_spawn posix_spawnp);

/// system(3).
///
/// # Safety
/// The caller keeps the contract of system(3).
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn system(command: *const c_char) -> c_int {
    save();
    // SAFETY: the caller's contract.
    unsafe {
        let Some(own) = Readable::new(command, ptr::null(), ptr::null()) else { return -1 };
        next::system(own.path)
    }
}

/// popen(3).
///
/// # Safety
/// The caller keeps the contract of popen(3).
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn popen(command: *const c_char, kind: *const c_char) -> *mut c_void {
    save();
    // SAFETY: the caller's contract.
    unsafe {
        let Some(own) = Readable::new(command, ptr::null(), ptr::null()) else { return ptr::null_mut() };
        next::popen(own.path, kind)
    }
}
