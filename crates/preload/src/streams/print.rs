//! dprintf(3) and its kin.

use crate::copy::{Buffer, mapped};
use crate::own::{errno, set_errno};
use crate::{files, next};
use libc::{c_char, c_int, c_void, size_t};
use std::arch::naked_asm;

unsafe extern "C" {
    fn vsnprintf(text: *mut c_char, len: size_t, format: *const c_char, arguments: *mut c_void) -> c_int;
    fn __vsnprintf_chk(
        text: *mut c_char,
        len: size_t,
        flag: c_int,
        room: size_t,
        format: *const c_char,
        arguments: *mut c_void,
    ) -> c_int;
}

/// dprintf(3). The C library writes the text past every wrapper, and the strings of `%s` without a copy. So while
/// anything is mapped, the text is made here, and written as by write(2). `flag` is the argument of the fortified
/// functions.
unsafe fn print(fd: c_int, flag: Option<c_int>, format: *const c_char, arguments: *mut c_void) -> c_int {
    const SHORT: usize = 1024;
    // SAFETY: the caller's contract, which is the C library's. Reading a list of arguments (24 bytes) uses it up, so
    // each reading has a copy.
    unsafe {
        if !mapped() {
            return match flag {
                Some(flag) => next::__vdprintf_chk(fd, flag, format, arguments),
                None => next::vdprintf(fd, format, arguments),
            };
        }
        let list = arguments.cast::<[u64; 3]>().read();
        let before = errno();
        let make = |text: *mut u8, room: usize| {
            let mut list = list;
            let list = (&raw mut list).cast();
            // `%m` prints errno.
            set_errno(before);
            match flag {
                Some(flag) => __vsnprintf_chk(text.cast(), room, flag, room, format, list),
                None => vsnprintf(text.cast(), room, format, list),
            }
        };
        let mut short = [0u8; SHORT];
        let len = make(short.as_mut_ptr(), SHORT);
        let Ok(size) = usize::try_from(len) else { return -1 };
        let long = if size < SHORT { None } else { Buffer::new(size + 1) };
        let text = match &long {
            Some(buffer) if make(buffer.start(), size + 1) == len => buffer.start(),
            _ if size < SHORT => short.as_mut_ptr(),
            _ => {
                set_errno(libc::ENOMEM);
                return -1;
            }
        };
        let mut done = 0;
        while done < size {
            match files::write(fd, text.add(done).cast(), size - done) {
                written @ 1.. => done += written as usize,
                _ => return -1,
            }
        }
        set_errno(before);
        len
    }
}

/// vdprintf(3). `dprintf` calls this function, not the exported one: a call of the exported name would be the C
/// library's (`next/mod.rs`).
unsafe extern "C-unwind" fn vdprintf(fd: c_int, format: *const c_char, arguments: *mut c_void) -> c_int {
    // SAFETY: the caller's contract, which is the C library's.
    unsafe { print(fd, None, format, arguments) }
}

/// vdprintf(3), fortified.
unsafe extern "C-unwind" fn __vdprintf_chk(
    fd: c_int,
    flag: c_int,
    format: *const c_char,
    arguments: *mut c_void,
) -> c_int {
    // SAFETY: the caller's contract, which is the C library's.
    unsafe { print(fd, Some(flag), format, arguments) }
}

exported! {
    fn vdprintf(fd: c_int, format: *const c_char, arguments: *mut c_void) -> c_int;
    fn __vdprintf_chk(fd: c_int, flag: c_int, format: *const c_char, arguments: *mut c_void) -> c_int;
}

/// Defines variadic functions. The arguments in registers are stored where a list of arguments (`va_list`, System V ABI
/// for x86-64, 3.5.7) expects them. Then a function that takes the list is called. A thread may be cancelled in that
/// function, so the frame is described to the unwinder.
macro_rules! variadic {
    ($(#[$about:meta])* $name:ident($($argument:ident: $type:ty),*), $named:literal, $list:literal, $to:ident) => {
        $(#[$about])*
        ///
        /// # Safety
        /// The caller keeps the contract of the C library's function of this name.
        #[unsafe(no_mangle)]
        #[unsafe(naked)]
        pub unsafe extern "C-unwind" fn $name($($argument: $type),*) -> c_int {
            naked_asm!(
                ".cfi_startproc",
                "sub rsp, 216",
                ".cfi_adjust_cfa_offset 216",
                "mov [rsp + 32], rdi",
                "mov [rsp + 40], rsi",
                "mov [rsp + 48], rdx",
                "mov [rsp + 56], rcx",
                "mov [rsp + 64], r8",
                "mov [rsp + 72], r9",
                // Vector registers, if they hold arguments.
                "test al, al",
                "je 2f",
                "movaps [rsp + 80], xmm0",
                "movaps [rsp + 96], xmm1",
                "movaps [rsp + 112], xmm2",
                "movaps [rsp + 128], xmm3",
                "movaps [rsp + 144], xmm4",
                "movaps [rsp + 160], xmm5",
                "movaps [rsp + 176], xmm6",
                "movaps [rsp + 192], xmm7",
                "2:",
                concat!("mov dword ptr [rsp], ", $named, " * 8"),
                "mov dword ptr [rsp + 4], 48",
                // The other arguments lie behind the return address.
                "lea rax, [rsp + 224]",
                "mov [rsp + 8], rax",
                "lea rax, [rsp + 32]",
                "mov [rsp + 16], rax",
                concat!("mov ", $list, ", rsp"),
                "call {to}",
                "add rsp, 216",
                ".cfi_adjust_cfa_offset -216",
                "ret",
                ".cfi_endproc",
                to = sym $to
            )
        }
    };
}

variadic!(/** dprintf(3). */ dprintf(fd: c_int, format: *const c_char), "2", "rdx", vdprintf);
variadic!(
    /** dprintf(3), fortified. */ __dprintf_chk(fd: c_int, flag: c_int, format: *const c_char),
    "3", "rcx", __vdprintf_chk
);
