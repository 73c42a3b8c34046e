//! Copies of this process's memory by the kernel: an error where a load or a store would raise a signal (process_vm_readv(2)).

use super::{PAGE, errno};

/// Ranges that the kernel takes at a time (`UIO_MAXIOV`).
pub const MOST_RANGES: usize = 1024;

/// Copies ranges of memory to others of the same lengths, in order, as far as that goes; how many bytes. EFAULT stops it, and so does
/// an output that is mapped and absent: [`read`] says whose fault it is.
///
/// # Safety
/// What is written to is the caller's to write.
pub unsafe fn read_ranges(from: &[libc::iovec], to: &[libc::iovec]) -> usize {
    let counts = (to.len() as u64, from.len() as u64);
    // SAFETY: the kernel checks what is read; the rest is the caller's contract.
    let copied = unsafe { libc::process_vm_readv(libc::getpid(), to.as_ptr(), counts.0, from.as_ptr(), counts.1, 0) };
    copied.max(0) as usize
}

/// Copies memory at an address.
pub fn read(addr: usize, output: &mut [u8]) -> Result<(), i32> {
    by_the_page(addr, output.len(), |at, aside, done| {
        let to = libc::iovec { iov_base: aside.as_mut_ptr().cast(), iov_len: aside.len() };
        let from = libc::iovec { iov_base: at as *mut _, iov_len: aside.len() };
        // SAFETY: into a page on the stack; the kernel checks the other side.
        let copied = unsafe { libc::process_vm_readv(libc::getpid(), &to, 1, &from, 1, 0) };
        output[done..done + aside.len()].copy_from_slice(aside);
        copied
    })
}

/// Copies data to memory at an address.
///
/// # Safety
/// Nobody else uses that memory meanwhile.
pub unsafe fn write(addr: usize, data: &[u8]) -> Result<(), i32> {
    by_the_page(addr, data.len(), |at, aside, done| {
        aside.copy_from_slice(&data[done..done + aside.len()]);
        let from = libc::iovec { iov_base: aside.as_mut_ptr().cast(), iov_len: aside.len() };
        let to = libc::iovec { iov_base: at as *mut _, iov_len: aside.len() };
        // SAFETY: the kernel checks that it may be written; the rest is the caller's contract.
        unsafe { libc::process_vm_writev(libc::getpid(), &from, 1, &to, 1, 0) }
    })
}

/// Runs `copy` on memory that is not cached, in pieces of a page on the stack: the other side of the copy may be a cached map, which the
/// kernel cannot touch. `copy` is given an address, the piece and how much was done before it.
fn by_the_page(addr: usize, len: usize, mut copy: impl FnMut(usize, &mut [u8], usize) -> isize) -> Result<(), i32> {
    let mut aside = [0; PAGE];
    let mut done = 0;
    while done < len {
        // Not across pages: one may be there without the other.
        let count = (len - done).min(PAGE - (addr + done) % PAGE);
        match copy(addr + done, &mut aside[..count], done) {
            copied if copied == count as isize => done += count,
            -1 => return Err(errno()),
            _ => return Err(libc::EFAULT),
        }
    }
    Ok(())
}
