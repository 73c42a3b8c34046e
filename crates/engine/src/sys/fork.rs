//! Tells whether the engine runs in this address space, by a word that the kernel clears in children (madvise(2) `MADV_WIPEONFORK`,
//! Linux 4.14).
//!
//! Every call on a map asks this, so the answer must not cost a system call. A child made by fork(2), or by clone(2) without `CLONE_VM`, has
//! copies of its parent's values, but neither the regions nor the threads. There the word is zero, however the child was made. A process that
//! shares the memory (vfork(2), the keeper) has the regions too, and does not count as a child here.

use super::{PAGE, memory};
use std::io;
use std::ptr;
use std::sync::atomic::{AtomicPtr, AtomicU32, Ordering};

/// The word, in a page of its own. Null before the engine runs.
static WORD: AtomicPtr<AtomicU32> = AtomicPtr::new(ptr::null_mut());

/// Notes that the engine runs in this address space. Called before its first region is made. Idempotent.
pub fn claim() -> io::Result<()> {
    if !WORD.load(Ordering::Acquire).is_null() {
        return Ok(());
    }
    let at = wiped_in_children(PAGE)?;
    // SAFETY: the page was made just now, and no other thread knows it.
    unsafe {
        let word = at.cast::<AtomicU32>();
        (*word).store(1, Ordering::Relaxed);
        if WORD.compare_exchange(ptr::null_mut(), word, Ordering::AcqRel, Ordering::Acquire).is_err() {
            // Another thread has set the word first.
            memory::release(at, PAGE);
        }
    }
    Ok(())
}

/// Makes writable memory of zeros: `len` bytes, a multiple of the page size. A child made by fork(2) finds zeros there again.
pub fn wiped_in_children(len: usize) -> io::Result<*mut u8> {
    let at = memory::reserve(len, PAGE)?;
    // SAFETY: the range was reserved just now, and no other thread knows it.
    unsafe {
        let release = |_: &io::Error| memory::release(at, len);
        memory::protect(at, len, true).inspect_err(release)?;
        if libc::madvise(at.cast(), len, libc::MADV_WIPEONFORK) != 0 {
            return Err(io::Error::last_os_error()).inspect_err(release);
        }
    }
    Ok(at)
}

/// Whether the engine runs in this address space, or in an ancestor of this process.
pub fn is_claimed() -> bool {
    !WORD.load(Ordering::Acquire).is_null()
}

/// Whether the engine runs in an ancestor of this process, and therefore not in this process.
#[inline]
pub fn is_child() -> bool {
    // SAFETY: the pointer is null, or points to a word that lives as long as the address space.
    unsafe { WORD.load(Ordering::Acquire).as_ref() }.is_some_and(|word| word.load(Ordering::Relaxed) == 0)
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn a_child_knows_that_it_is_one() {
        claim().unwrap();
        claim().unwrap();
        assert!(!is_child());
        for (name, flags, expected) in [("fork", libc::SIGCHLD, 1), ("vfork", libc::SIGCHLD | libc::CLONE_VM, 0)] {
            extern "C" fn answer(_: *mut libc::c_void) -> libc::c_int {
                is_child().into()
            }
            let mut stack = vec![0u128; 4096];
            let mut status = 0;
            // SAFETY: the child alone uses the stack. It looks at one word, and ends before this function goes on.
            unsafe {
                let top = stack.as_mut_ptr().add(stack.len()).cast();
                let child = libc::clone(answer, top, flags | libc::CLONE_VFORK, ptr::null_mut());
                assert!(child > 0, "{name}: {}", io::Error::last_os_error());
                assert_eq!(libc::waitpid(child, &mut status, 0), child);
            }
            assert!(libc::WIFEXITED(status) && libc::WEXITSTATUS(status) == expected, "{name}: {status:#x}");
        }
    }
}
