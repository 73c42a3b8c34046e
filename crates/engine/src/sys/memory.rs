//! Anonymous memory: mmap(2), mprotect(2), munmap(2), process_vm_readv(2), process_vm_writev(2), proc(5).

use super::{PAGE, errno};
use std::io;
use std::marker::PhantomData;
use std::ops::Deref;
use std::ptr;

/// Reserves `len` bytes of address space. The range has no memory and no access rights. `align` is a power of two, and at least a page.
pub fn reserve(len: usize, align: usize) -> io::Result<*mut u8> {
    let padded = len.checked_add(align).ok_or(io::ErrorKind::OutOfMemory)?;
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
    // SAFETY: a new anonymous mapping at an address of the kernel's choice.
    let at = unsafe { libc::mmap(ptr::null_mut(), padded, libc::PROT_NONE, flags, -1, 0) };
    if at == libc::MAP_FAILED {
        return Err(io::Error::last_os_error());
    }
    let start = at.cast::<u8>();
    let before = start.align_offset(align);
    let aligned = start.wrapping_add(before);
    // SAFETY: both parts that are trimmed belong to the mapping made above, and nobody uses them.
    unsafe {
        if before > 0 {
            release(start, before);
        }
        release(aligned.wrapping_add(len), align - before);
    }
    Ok(aligned)
}

/// Bytes of address space that the process's limit leaves (setrlimit(2), RLIMIT_AS). `None`: there is no limit.
pub fn addresses_left() -> Option<usize> {
    // SAFETY: the kernel fills the zeroed structure.
    let limit = unsafe {
        let mut limit: libc::rlimit = std::mem::zeroed();
        (libc::getrlimit(libc::RLIMIT_AS, &mut limit) == 0).then_some(limit.rlim_cur)?
    };
    if limit == libc::RLIM_INFINITY {
        return None;
    }
    let sizes = super::proc_files::text("/proc/self/statm");
    let pages: usize = sizes.split(' ').next().and_then(|size| size.parse().ok()).unwrap_or(0);
    Some((limit as usize).saturating_sub(pages * PAGE))
}

/// Reserves address space at a given address. It replaces mappings that are there.
///
/// # Safety
/// Nobody uses the memory that is there any more.
pub unsafe fn reserve_at(at: *mut u8, len: usize) -> io::Result<()> {
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE | libc::MAP_FIXED;
    // SAFETY: the caller's contract.
    let got = unsafe { libc::mmap(at.cast(), len, libc::PROT_NONE, flags, -1, 0) };
    if got == libc::MAP_FAILED { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// Makes a range of a reservation readable, and writable if `writable`.
///
/// # Safety
/// The range belongs to the caller, and references into it are used only as the new protection allows.
pub unsafe fn protect(at: *mut u8, len: usize, writable: bool) -> io::Result<()> {
    let protection = libc::PROT_READ | if writable { libc::PROT_WRITE } else { 0 };
    // SAFETY: the caller's contract.
    match unsafe { libc::mprotect(at.cast(), len, protection) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Whether a byte can be read. Waits for its page if another thread brings the page in.
pub fn is_readable(at: usize) -> bool {
    read(at, &mut [0]) == 1
}

/// Arguments of process_vm_readv(2) and process_vm_writev(2). They have the full width, since syscall(3) reads the last argument as eight bytes
/// from the stack.
const ONE: libc::c_ulong = 1;
const NO_FLAGS: libc::c_ulong = 0;

/// Copies memory that may be absent, by the kernel (process_vm_readv(2)). Returns how many bytes could be read, from the first on.
pub fn read(at: usize, into: &mut [u8]) -> usize {
    // SAFETY: getpid has no preconditions.
    read_of(unsafe { libc::getpid() }, at, into).unwrap_or(0)
}

/// The same as [`read`], of a process's memory. Returns an error number if nothing could be read.
pub fn read_of(process: libc::pid_t, at: usize, into: &mut [u8]) -> Result<usize, i32> {
    let to = libc::iovec { iov_base: into.as_mut_ptr().cast(), iov_len: into.len() };
    let from = libc::iovec { iov_base: at as *mut libc::c_void, iov_len: into.len() };
    // SAFETY: the kernel writes to `into`, and checks the memory that it reads.
    let got = unsafe { libc::syscall(libc::SYS_process_vm_readv, process, &to, ONE, &from, ONE, NO_FLAGS) };
    usize::try_from(got).map_err(|_| errno())
}

/// Writes to memory by the kernel (process_vm_writev(2)). A failure is an error number, and no signal. The memory may be protected from stores
/// (mprotect(2)): then the write goes through `/proc/self/mem` (proc(5)), if the kernel allows that.
///
/// # Safety
/// The memory is mapped, and the caller may change it.
pub unsafe fn put(to: *mut u8, bytes: &[u8]) -> Result<(), i32> {
    let from = libc::iovec { iov_base: bytes.as_ptr().cast_mut().cast(), iov_len: bytes.len() };
    let there = libc::iovec { iov_base: to.cast(), iov_len: bytes.len() };
    // SAFETY: the caller's contract. The other arguments are a path, numbers, and this function's structures.
    unsafe {
        let put = libc::syscall(libc::SYS_process_vm_writev, libc::getpid(), &from, ONE, &there, ONE, NO_FLAGS);
        if put as usize == bytes.len() {
            return Ok(());
        }
        let flags = libc::O_WRONLY | libc::O_CLOEXEC;
        let memory = libc::syscall(libc::SYS_openat, libc::AT_FDCWD, c"/proc/self/mem".as_ptr(), flags);
        if memory < 0 {
            return Err(errno());
        }
        let put = libc::syscall(libc::SYS_pwrite64, memory, bytes.as_ptr(), bytes.len(), to as u64);
        let error = errno();
        libc::syscall(libc::SYS_close, memory);
        if put as usize == bytes.len() { Ok(()) } else { Err(if put < 0 { error } else { libc::EIO }) }
    }
}

/// Unmaps a range.
///
/// # Safety
/// Nothing uses the range any more.
pub unsafe fn release(at: *mut u8, len: usize) {
    // SAFETY: the caller's contract.
    unsafe { libc::munmap(at.cast(), len) };
}

/// Size of a huge page in bytes. Large tables consist of huge pages: a random look-up then misses neither the TLB nor the cached page tables,
/// which saves 0.1 µs a fault on a virtual machine.
const HUGE: usize = 2 << 20;

/// A slice of items that begin as zeros, in a mapping of its own. A page takes memory only once it is touched.
pub struct Zeroed<T> {
    at: *mut u8,
    count: usize,
    items: PhantomData<T>,
}

// SAFETY: the value owns its memory, like a boxed slice.
unsafe impl<T: Send> Send for Zeroed<T> {}
// SAFETY: `&Zeroed<T>` gives no more than `&T`, as a shared slice does.
unsafe impl<T: Sync> Sync for Zeroed<T> {}

impl<T> Zeroed<T> {
    /// Makes all items zero again, and gives their memory back to the kernel. A thread that reads meanwhile finds the old items, or zeros.
    pub fn clear(&self) {
        // SAFETY: the memory is this value's own. All zeros are a value of the type. The items are atomics, which may change beneath a shared
        // reference.
        unsafe { libc::madvise(self.at.cast(), self.count * size_of::<T>(), libc::MADV_DONTNEED) };
    }
}

/// Types for which bytes of zero are a valid value.
///
/// # Safety
/// All-zero bytes are a value of the type, and the type needs no drop.
pub unsafe trait Zeroable {}
// SAFETY: an integer.
unsafe impl Zeroable for u64 {}
// SAFETY: an integer.
unsafe impl Zeroable for std::sync::atomic::AtomicU8 {}
// SAFETY: bytes.
unsafe impl Zeroable for [u8; PAGE] {}
#[cfg(not(loom))]
// SAFETY: an integer.
unsafe impl Zeroable for std::sync::atomic::AtomicU64 {}
#[cfg(loom)]
// SAFETY: no model touches such memory: models build their bitmaps from boxed slices.
unsafe impl Zeroable for crate::sys::sync::AtomicU64 {}
#[cfg(not(loom))]
// SAFETY: an integer.
unsafe impl Zeroable for std::sync::atomic::AtomicU32 {}
#[cfg(loom)]
// SAFETY: no model touches such memory, since no model has clean queues.
unsafe impl Zeroable for crate::sys::sync::AtomicU32 {}
// SAFETY: all zeros are a null pointer and a length of zero.
unsafe impl Zeroable for libc::iovec {}

impl<T: Zeroable> Zeroed<T> {
    /// Maps room for `count` items.
    pub fn new(count: usize) -> io::Result<Self> {
        Self::sparse(count, count)
    }

    /// Maps room for `count` items. All of the first `likely` items are expected to be touched, so they get huge pages. The others get 4 KiB
    /// pages: one that is touched takes no more. (With huge pages, a table for a region of 64 GiB would take 2 MiB as soon as one page of the
    /// region is used.)
    pub fn sparse(count: usize, likely: usize) -> io::Result<Self> {
        let len = Self::bytes(count).ok_or(io::ErrorKind::OutOfMemory)?;
        let huge = Self::bytes(likely.min(count)).ok_or(io::ErrorKind::OutOfMemory)?;
        let at = reserve(len, if huge >= HUGE { HUGE } else { PAGE })?;
        // SAFETY: the range was reserved just now, for this slice alone. (Without huge pages it works the same.)
        unsafe {
            if huge >= HUGE {
                libc::madvise(at.cast(), huge, libc::MADV_HUGEPAGE);
            }
            // The rest gets none, even where the system gives huge pages to all memory. If the likely part is small, no part gets any.
            let rest = if huge >= HUGE { huge.next_multiple_of(HUGE) } else { 0 };
            if len >= HUGE && rest < len {
                libc::madvise(at.wrapping_add(rest).cast(), len - rest, libc::MADV_NOHUGEPAGE);
            }
            protect(at, len, true).inspect_err(|_| release(at, len))?;
        }
        Ok(Zeroed { at, count, items: PhantomData })
    }

    fn bytes(count: usize) -> Option<usize> {
        count.checked_mul(size_of::<T>())?.max(1).checked_next_multiple_of(PAGE)
    }

    /// The address of the first item, for code that hands out disjoint parts itself.
    pub fn as_mut_ptr(&self) -> *mut T {
        self.at.cast()
    }
}

impl<T> Deref for Zeroed<T> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        // SAFETY: the memory is mapped and page-aligned, and lives as long as self. Zeros are a valid T.
        unsafe { std::slice::from_raw_parts(self.at.cast(), self.count) }
    }
}

impl<T> Drop for Zeroed<T> {
    fn drop(&mut self) {
        let len = (self.count * size_of::<T>()).max(1).next_multiple_of(PAGE);
        // SAFETY: the mapping is this value's own, and nobody uses it any more.
        unsafe { release(self.at, len) };
    }
}

impl<T> std::fmt::Debug for Zeroed<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Zeroed({} items)", self.count)
    }
}

/// Address space for a table of words that begin as zeros. The table grows in place, and only its first part is usable. So a locked address
/// space (mlockall(2)) holds, and strict accounting of memory counts, only the part in use.
#[derive(Debug)]
pub struct Growing {
    at: *mut u64,
    most: usize,
}

// SAFETY: the value owns its memory, and nothing in it belongs to one thread.
unsafe impl Send for Growing {}
// SAFETY: `&Growing` gives the address only. Its users agree on which thread touches which word.
unsafe impl Sync for Growing {}

impl Growing {
    /// Reserves room for `most` words. None of them is usable yet.
    pub fn new(most: usize) -> io::Result<Self> {
        let len = Zeroed::<u64>::bytes(most).ok_or(io::ErrorKind::OutOfMemory)?;
        Ok(Growing { at: reserve(len, if len >= HUGE { HUGE } else { PAGE })?.cast(), most })
    }

    /// Makes the first `count` words usable. Words that were usable before keep their values.
    pub fn commit(&self, count: usize) -> io::Result<()> {
        let len = Zeroed::<u64>::bytes(count.min(self.most)).ok_or(io::ErrorKind::OutOfMemory)?;
        // SAFETY: the range is the start of the reservation. (Without huge pages it works the same.)
        unsafe {
            if len >= HUGE {
                libc::madvise(self.at.cast(), len, libc::MADV_HUGEPAGE);
            }
            protect(self.at.cast(), len, true)
        }
    }

    /// The address of the first word.
    pub fn as_mut_ptr(&self) -> *mut u64 {
        self.at
    }
}

impl Drop for Growing {
    fn drop(&mut self) {
        let len = (self.most * size_of::<u64>()).max(1).next_multiple_of(PAGE);
        // SAFETY: the mapping is this value's own, and nobody uses it any more.
        unsafe { release(self.at.cast(), len) };
    }
}
