//! System calls by their instruction. This library exports syscall(2) and functions like fstat(2) for the program, so its own calls must not
//! reach them by these names (`next/mod.rs`).

use libc::{c_int, c_long};
use std::arch::asm;

/// Makes a system call. Returns its result, or its error number. errno stays as it is.
///
/// # Safety
/// The arguments are as the call wants them. Pointers among them are exposed (`expose_provenance`), since the kernel uses them.
#[inline]
pub(crate) unsafe fn call<const N: usize>(number: c_long, arguments: [usize; N]) -> Result<usize, c_int> {
    const { assert!(N <= 6) };
    let argument = |at: usize| arguments.get(at).copied().unwrap_or(0);
    let result: isize;
    // SAFETY: the kernel changes the result's register, rcx, r11, and memory that the arguments point to (syscall(2)).
    unsafe {
        asm!(
            "syscall",
            inlateout("rax") number as isize => result,
            in("rdi") argument(0),
            in("rsi") argument(1),
            in("rdx") argument(2),
            in("r10") argument(3),
            in("r8") argument(4),
            in("r9") argument(5),
            lateout("rcx") _,
            lateout("r11") _,
            options(nostack)
        );
    }
    if (-4095..0).contains(&result) { Err(-result as c_int) } else { Ok(result as usize) }
}

/// fstat(2). `None`: the descriptor is not open.
pub(crate) fn facts_of(fd: c_int) -> Option<libc::stat> {
    let mut stat = std::mem::MaybeUninit::<libc::stat>::uninit();
    // SAFETY: the kernel fills the structure if the call succeeds.
    unsafe {
        call(libc::SYS_fstat, [fd as usize, stat.as_mut_ptr().expose_provenance()]).ok()?;
        Some(stat.assume_init())
    }
}

/// readlink(2): the bytes of `to` that hold the link's text. Empty: the link cannot be read.
pub(crate) fn read_link<'a>(link: &[u8], to: &'a mut [u8]) -> &'a [u8] {
    debug_assert_eq!(link.last(), Some(&0));
    // SAFETY: a C string, and the place and length of `to`.
    let len = unsafe {
        call(libc::SYS_readlink, [link.as_ptr().expose_provenance(), to.as_mut_ptr().expose_provenance(), to.len()])
    };
    &to[..len.unwrap_or(0)]
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::AsRawFd;

    #[test]
    fn calls_return_what_the_kernel_says() {
        let file = tempfile::tempfile().expect("a folder");
        file.set_len(77).expect("room");
        assert_eq!(facts_of(file.as_raw_fd()).map(|stat| stat.st_size), Some(77));
        assert!(facts_of(-1).is_none());
        // SAFETY: no memory.
        assert_eq!(unsafe { call(libc::SYS_close, [usize::MAX]) }, Err(libc::EBADF));
        let mut place = [0; 64];
        let own = read_link(b"/proc/self\0", &mut place);
        assert_eq!(std::str::from_utf8(own).ok(), Some(std::process::id().to_string().as_str()));
        assert!(read_link(b"/proc\0", &mut [0; 8]).is_empty());
    }
}
