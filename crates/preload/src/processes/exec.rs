//! execve(2) and its kin.

use super::save;
use crate::copy::held;
use crate::own::{errno, set_errno};
use crate::{next, signals};
use libc::{c_char, c_int, c_void};
use std::arch::naked_asm;
use std::ffi::CStr;
use std::ptr;

pub(super) type Strings = *const *const c_char;

/// The arguments of an exec where the kernel can read them. In the engine's memory the kernel finds only the pages that
/// are present, so arguments there are copied. The copy is never dropped where exec succeeds: in a child of vfork(2) it
/// stays in its parent's memory.
pub(super) struct Readable {
    pub path: *const c_char,
    pub argv: Strings,
    pub envp: Strings,
    copied: *mut c_void,
    len: usize,
}

impl Readable {
    /// # Safety
    /// The pointers are C strings, and arrays of them that end with null; or null.
    pub unsafe fn new(path: *const c_char, argv: Strings, envp: Strings) -> Option<Self> {
        // SAFETY: the caller's contract. The copies fit the mapping, which was measured with the same code.
        unsafe {
            let mut own = Readable { path, argv, envp, copied: ptr::null_mut(), len: 0 };
            let mut inside = in_engine(path);
            let mut len = text_len(path);
            for array in [argv, envp] {
                let count = count(array);
                inside |= !array.is_null() && held(array, (count + 1) * size_of::<*const c_char>());
                len += (count + 1) * size_of::<*const c_char>();
                for at in 0..count {
                    inside |= in_engine(*array.add(at));
                    len += text_len(*array.add(at));
                }
            }
            if !inside {
                return Some(own);
            }
            let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
            let at = next::mmap(ptr::null_mut(), len, libc::PROT_READ | libc::PROT_WRITE, flags, -1, 0);
            if at == libc::MAP_FAILED {
                return None;
            }
            (own.copied, own.len) = (at, len);
            let words = at.cast::<*const c_char>();
            let (own_argv, own_envp) = (words, words.add(count(argv) + 1));
            let mut to = own_envp.add(count(envp) + 1).cast::<c_char>();
            let mut copy = |text: *const c_char| {
                if text.is_null() {
                    return text;
                }
                let (start, len) = (to, text_len(text));
                ptr::copy_nonoverlapping(text, start, len);
                to = to.add(len);
                start.cast_const()
            };
            own.path = copy(path);
            for (from, own) in [(argv, own_argv), (envp, own_envp)] {
                (0..count(from)).for_each(|at| *own.add(at) = copy(*from.add(at)));
            }
            own.argv = if argv.is_null() { argv } else { own_argv };
            own.envp = if envp.is_null() { envp } else { own_envp };
            Some(own)
        }
    }
}

impl Drop for Readable {
    fn drop(&mut self) {
        if self.len > 0 {
            // SAFETY: the mapping was made by `new`, and the call that read it has returned.
            unsafe {
                let before = errno();
                next::munmap(self.copied, self.len);
                set_errno(before);
            }
        }
    }
}

/// A string's length with the zero at its end. Zero for null.
unsafe fn text_len(text: *const c_char) -> usize {
    // SAFETY: the caller's C string, or null.
    if text.is_null() { 0 } else { unsafe { CStr::from_ptr(text) }.count_bytes() + 1 }
}

unsafe fn in_engine(text: *const c_char) -> bool {
    // SAFETY: the caller's C string, or null.
    !text.is_null() && (held(text, 1) || held(text, unsafe { text_len(text) }))
}

unsafe fn count(array: Strings) -> usize {
    // SAFETY: the caller's array, which ends with null, or null.
    unsafe { if array.is_null() { 0 } else { (0..).take_while(|at| !(*array.add(*at)).is_null()).count() } }
}

unsafe extern "C" {
    static environ: Strings;
}

/// Prepares every exec: writes dirty pages back, and really blocks SIGBUS if the program believes that it is blocked.
/// Returns only if the call fails.
unsafe fn exec(path: *const c_char, argv: Strings, envp: Strings, call: impl FnOnce(&Readable) -> c_int) -> c_int {
    save();
    // SAFETY: the caller's contract.
    let Some(readable) = (unsafe { Readable::new(path, argv, envp) }) else {
        set_errno(libc::ENOMEM);
        return -1;
    };
    let _signals = signals::AsTold::instead();
    call(&readable)
}

pub(crate) unsafe fn exec_path(path: *const c_char, argv: Strings, envp: Strings) -> c_int {
    // SAFETY: the caller's contract.
    unsafe { exec(path, argv, envp, |own| next::execve(own.path, own.argv, own.envp)) }
}

unsafe fn exec_file(file: *const c_char, argv: Strings, envp: Strings) -> c_int {
    // SAFETY: the caller's contract.
    unsafe { exec(file, argv, envp, |own| next::execvpe(own.path, own.argv, own.envp)) }
}

pub(crate) unsafe fn exec_at(fd: c_int, path: *const c_char, argv: Strings, envp: Strings, flags: c_int) -> c_int {
    // SAFETY: the caller's contract.
    unsafe { exec(path, argv, envp, |own| next::execveat(fd, own.path, own.argv, own.envp, flags)) }
}

/// Declares the calls of the exec family. They call the functions behind them, not each other: a call of an exported
/// name in here would be the C library's.
macro_rules! execs {
    ($($(#[$doc:meta])* fn $name:ident($($argument:ident: $type:ty),*) = $call:expr;)*) => { $(
        $(#[$doc])*
        ///
        /// # Safety
        /// The caller keeps the contract of the C library's function of this name.
        #[unsafe(no_mangle)]
        pub unsafe extern "C-unwind" fn $name($($argument: $type),*) -> c_int {
            // SAFETY: the caller's contract.
            unsafe { $call }
        }
    )* };
}

execs! {
    /// execve(2).
    fn execve(path: *const c_char, argv: Strings, envp: Strings) = exec_path(path, argv, envp);
    /// execv(3).
    fn execv(path: *const c_char, argv: Strings) = exec_path(path, argv, environ);
    /// execvp(3).
    fn execvp(file: *const c_char, argv: Strings) = exec_file(file, argv, environ);
    /// execvpe(3).
    fn execvpe(file: *const c_char, argv: Strings, envp: Strings) = exec_file(file, argv, envp);
    /// fexecve(3).
    fn fexecve(fd: c_int, argv: Strings, envp: Strings) =
        exec(ptr::null(), argv, envp, |own| next::fexecve(fd, own.argv, own.envp));
    /// execveat(2).
    fn execveat(fd: c_int, path: *const c_char, argv: Strings, envp: Strings, flags: c_int) =
        exec_at(fd, path, argv, envp, flags);
}

/// Declares the variadic calls. A collector gets the first argument, the address of the arguments that came in
/// registers, and the address of the other arguments, behind the return address.
macro_rules! variadic {
    ($($(#[$doc:meta])* $name:ident: $collect:ident;)*) => { $(
        $(#[$doc])*
        ///
        /// # Safety
        /// The caller keeps the contract of the C library's function of this name.
        #[unsafe(no_mangle)]
        #[unsafe(naked)]
        pub unsafe extern "C-unwind" fn $name(path: *const c_char, first: *const c_char) -> c_int {
            naked_asm!(
                "push r9",
                "push r8",
                "push rcx",
                "push rdx",
                "push rsi",
                "mov rsi, rsp",
                "lea rdx, [rsp + 48]",
                "call {collect}",
                "add rsp, 40",
                "ret",
                collect = sym $collect
            )
        }
    )* };
}

variadic! {
    /// execl(3).
    execl: collect_execl;
    /// execlp(3).
    execlp: collect_execlp;
    /// execle(3).
    execle: collect_execle;
}

unsafe extern "C" fn collect_execl(path: *const c_char, registers: Strings, stack: Strings) -> c_int {
    // SAFETY: the caller's contract.
    unsafe { with_list(registers, stack, |argv, _| exec_path(path, argv, environ)) }
}

unsafe extern "C" fn collect_execlp(file: *const c_char, registers: Strings, stack: Strings) -> c_int {
    // SAFETY: the caller's contract.
    unsafe { with_list(registers, stack, |argv, _| exec_file(file, argv, environ)) }
}

unsafe extern "C" fn collect_execle(path: *const c_char, registers: Strings, stack: Strings) -> c_int {
    // SAFETY: the caller's contract: the environment follows the null.
    unsafe { with_list(registers, stack, |argv, after| exec_path(path, argv, after.cast())) }
}

/// Calls `then` with an array of the arguments, which end with null, and with the argument after the null. Nothing
/// comes from malloc(3): this may be a child made by vfork(2).
unsafe fn with_list(registers: Strings, stack: Strings, then: impl FnOnce(Strings, *const c_char) -> c_int) -> c_int {
    const IN_REGISTERS: usize = 5;
    const FEW: usize = 512;
    // SAFETY: the caller's contract; the array has room for the null.
    unsafe {
        let argument = |at: usize| {
            if at < IN_REGISTERS { *registers.add(at) } else { *stack.add(at - IN_REGISTERS) }
        };
        let count = (0..).take_while(|at| !argument(*at).is_null()).count();
        let after = argument(count + 1);
        if count < FEW {
            let mut array = [ptr::null(); FEW];
            (0..count).for_each(|at| array[at] = argument(at));
            return then(array.as_ptr(), after);
        }
        let len = (count + 1) * size_of::<*const c_char>();
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        let array = next::mmap(ptr::null_mut(), len, libc::PROT_READ | libc::PROT_WRITE, flags, -1, 0);
        if array == libc::MAP_FAILED {
            return -1;
        }
        let array = array.cast::<*const c_char>();
        (0..count).for_each(|at| *array.add(at) = argument(at));
        let result = then(array, after);
        let before = errno();
        next::munmap(array.cast(), len);
        set_errno(before);
        result
    }
}
