//! mmap(2) of an object (`objects/mod.rs`). The engine maps it; where the engine cannot, the program gets a copy in memory. The kernel does
//! not map an object's local copy: it would show bytes that have not been fetched as zeros.

use super::map::{Wanted, by_kernel, request};
use super::note_maps;
use super::protect::lock_cached;
use crate::objects::{Object, fill};
use crate::own::{PAGE, owner, set_errno, undisturbed};
use crate::{config, next, say};
use fastmap::{Error, by_address};
use libc::{c_int, c_void};
use std::os::fd::BorrowedFd;
use std::sync::atomic::{AtomicBool, Ordering};

/// mmap(2) of an object's descriptor.
///
/// # Safety
/// The caller keeps the contract of mmap(2).
pub(super) unsafe fn map(object: &'static Object, wanted: Wanted) -> *mut c_void {
    // SAFETY: the caller's contract.
    unsafe { mapped(object, wanted) }.unwrap_or_else(|error| {
        set_errno(error);
        libc::MAP_FAILED
    })
}

unsafe fn mapped(object: &'static Object, wanted: Wanted) -> Result<*mut c_void, c_int> {
    let Wanted { len, prot, flags, fd, offset, .. } = wanted;
    let kind = flags & libc::MAP_TYPE;
    // SAFETY: F_GETFL takes no memory.
    if unsafe { next::fcntl(fd, libc::F_GETFL, 0) } & libc::O_PATH != 0 {
        return Err(libc::EBADF);
    }
    let is_private = kind == libc::MAP_PRIVATE;
    if len == 0
        || offset % PAGE as i64 != 0
        || !is_private && !matches!(kind, libc::MAP_SHARED | libc::MAP_SHARED_VALIDATE)
    {
        return Err(libc::EINVAL);
    }
    if offset < 0 {
        return Err(libc::EOVERFLOW);
    }
    if !is_private && prot & libc::PROT_WRITE != 0 {
        return Err(libc::EACCES);
    }
    let odd = libc::MAP_HUGETLB | libc::MAP_SYNC | libc::MAP_32BIT | libc::MAP_GROWSDOWN;
    if prot == libc::PROT_READ && flags & odd == 0 && !config().off {
        // SAFETY: the caller's contract.
        let at = undisturbed(Err(libc::EIO), || unsafe { by_engine(object, wanted) });
        match at {
            Ok(Some(at)) => return Ok(at),
            Ok(None) => {}
            Err(error) => return Err(error),
        }
    }
    // SAFETY: the caller's contract.
    unsafe { copied(object, wanted) }
}

/// Maps it through the engine. `None`: the engine cannot.
unsafe fn by_engine(object: &Object, wanted: Wanted) -> Result<Option<*mut c_void>, c_int> {
    let Wanted { len, flags, fd, .. } = wanted;
    let Some(cache) = crate::cache() else { return Ok(None) };
    // Another thread may be about to end the engine's threads.
    let Some(_mapping) = owner::Mapping::begin() else { return Ok(None) };
    let request = request(wanted);
    // SAFETY: the program's descriptor, open during its call; the caller's contract.
    match unsafe { by_address::map_origin(BorrowedFd::borrow_raw(fd), object.origin.clone(), cache, &request) } {
        Ok(at) => {
            note_maps();
            if flags & libc::MAP_LOCKED != 0 {
                // As with mmap(2), which succeeds even if it cannot lock all of the memory.
                let _ = lock_cached(at.cast(), len);
            }
            if flags & libc::MAP_POPULATE != 0 {
                // SAFETY: it changes nothing that the memory holds.
                let _ = unsafe { by_address::advise(at as usize, len, libc::MADV_WILLNEED) };
            }
            Ok(Some(at.cast()))
        }
        Err(error) if error.errno() == libc::EEXIST => Err(libc::EEXIST),
        Err(error) => {
            static SAID: AtomicBool = AtomicBool::new(false);
            let is_worth_saying = matches!(error, Error::Missing { .. }) && !owner::is_child_of_owner();
            if is_worth_saying && !SAID.swap(true, Ordering::Relaxed) {
                say(format_args!("{error}; objects are mapped as copies in memory (said once)"));
            }
            Ok(None)
        }
    }
}

/// Maps anonymous memory, and fills it with a copy of the object's bytes.
unsafe fn copied(object: &Object, wanted: Wanted) -> Result<*mut c_void, c_int> {
    let Wanted { len, prot, flags, fd, offset, .. } = wanted;
    let bytes = (len as u64).min(object.len.saturating_sub(offset as u64));
    if bytes > fastmap::Cache::memory_limit() as u64 {
        return Err(libc::ENOMEM);
    }
    let flags =
        flags & !(libc::MAP_TYPE | libc::MAP_POPULATE | libc::MAP_SYNC) | libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
    let whole = Wanted { prot: libc::PROT_READ | libc::PROT_WRITE, flags, fd: -1, offset: 0, ..wanted };
    // SAFETY: the caller's contract; the memory is new, and nobody else's yet.
    unsafe {
        let at = by_kernel(whole);
        if at == libc::MAP_FAILED {
            return Err(crate::own::errno());
        }
        if let Err(error) = fill(object, fd, offset as u64, at.cast(), bytes) {
            next::munmap(at, len);
            return Err(error);
        }
        if prot != whole.prot && next::mprotect(at, len, prot) != 0 {
            let error = crate::own::errno();
            next::munmap(at, len);
            return Err(error);
        }
        Ok(at)
    }
}
