//! Copies this process's memory by the kernel (process_vm_readv(2), process_vm_writev(2)). Where a load or a store would raise a signal, the
//! copy returns an error.

use super::{PAGE, errno};

/// The most ranges that the kernel takes in one call (`UIO_MAXIOV`).
pub const MOST_RANGES: usize = 1024;

/// Copies ranges of memory to other ranges of the same lengths, in order. Returns how many bytes were copied. It stops at memory that cannot be
/// read. It also stops at an output that lies in a cached map and is absent, since the kernel cannot bring that page in. [`read`] of the range
/// where it stopped tells the two apart.
///
/// # Safety
/// The caller may write to the ranges `to`.
pub unsafe fn read_ranges(from: &[libc::iovec], to: &[libc::iovec]) -> usize {
    let counts = (to.len() as u64, from.len() as u64);
    // SAFETY: the kernel checks the memory that it reads. The rest is the caller's contract.
    let copied = unsafe { libc::process_vm_readv(libc::getpid(), to.as_ptr(), counts.0, from.as_ptr(), counts.1, 0) };
    copied.max(0) as usize
}

/// Copies memory at an address to `output`. Returns an error number: EFAULT if the memory cannot be read.
pub fn read(addr: usize, output: &mut [u8]) -> Result<(), i32> {
    by_the_page(addr, output.len(), |at, aside, done| {
        let to = libc::iovec { iov_base: aside.as_mut_ptr().cast(), iov_len: aside.len() };
        let from = libc::iovec { iov_base: at as *mut _, iov_len: aside.len() };
        // SAFETY: the kernel copies into a page on the stack, and checks the memory that it reads.
        let copied = unsafe { libc::process_vm_readv(libc::getpid(), &to, 1, &from, 1, 0) };
        output[done..done + aside.len()].copy_from_slice(aside);
        copied
    })
}

/// Copies data to memory at an address. Returns an error number: EFAULT if the memory cannot be written.
///
/// # Safety
/// Nobody else uses that memory meanwhile.
pub unsafe fn write(addr: usize, data: &[u8]) -> Result<(), i32> {
    by_the_page(addr, data.len(), |at, aside, done| {
        aside.copy_from_slice(&data[done..done + aside.len()]);
        let from = libc::iovec { iov_base: aside.as_mut_ptr().cast(), iov_len: aside.len() };
        let to = libc::iovec { iov_base: at as *mut _, iov_len: aside.len() };
        // SAFETY: the kernel checks that the memory may be written. The rest is the caller's contract.
        unsafe { libc::process_vm_writev(libc::getpid(), &from, 1, &to, 1, 0) }
    })
}

/// Copies page by page through a page on the stack. `copy` gets an address, a piece of the stack page, and the count of bytes done before. The
/// caller's own buffer may lie in a cached map, whose absent pages the kernel cannot bring in, so only user code touches that buffer.
fn by_the_page(addr: usize, len: usize, mut copy: impl FnMut(usize, &mut [u8], usize) -> isize) -> Result<(), i32> {
    let mut aside = [0; PAGE];
    let mut done = 0;
    while done < len {
        // A piece does not cross a page boundary: one page may be readable and the next not.
        let count = (len - done).min(PAGE - (addr + done) % PAGE);
        match copy(addr + done, &mut aside[..count], done) {
            copied if copied == count as isize => done += count,
            -1 => return Err(errno()),
            _ => return Err(libc::EFAULT),
        }
    }
    Ok(())
}
